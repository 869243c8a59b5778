"""timm's architectures: on meta without memory or noise, and small ones that keep what the default is made of."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from kappaone.coverage import timm_zoo
from kappaone.coverage.structure import attention_structures
from kappaone.coverage.timm_shrink import LEVELS, shrunk
from kappaone.errors import SpecError

timm = pytest.importorskip("timm")


def states() -> tuple[object, ...]:
    return random.getstate(), np.random.get_state()[1].tobytes(), torch.get_rng_state().numpy().tobytes()  # noqa: NPY002


def test_names_are_timm_s_own_without_tags():
    names = timm_zoo.names()
    assert names == sorted(names)
    assert len(names) > 1000
    assert not any("." in name for name in names)
    assert {"vit_tiny_patch16_224", "swin_tiny_patch4_window7_224", "resnet18"} <= set(names)


def test_meta_takes_no_memory_no_random_state_and_no_words(capfd):
    before = states()
    model = timm_zoo.on_meta("vit_giant_patch14_224")
    assert sum(parameter.numel() for parameter in model.parameters()) > 1_000_000_000
    assert {parameter.device.type for parameter in model.parameters()} == {"meta"}
    assert states() == before
    assert capfd.readouterr() == ("", "")


def test_an_unknown_name_is_an_error():
    with pytest.raises(SpecError, match="no architecture 'vit_nope'"):
        timm_zoo.on_meta("vit_nope")
    with pytest.raises(SpecError, match="no architecture 'vit_nope'"):
        timm_zoo.small("vit_nope")


@pytest.mark.parametrize(
    ("name", "most"),
    [
        ("vit_base_patch16_224", 0.3e6),
        ("swin_tiny_patch4_window7_224", 3e6),
        ("xcit_tiny_12_p16_224", 0.5e6),
        ("davit_tiny", 1e6),
        ("levit_128s", 1e6),
        ("naflexvit_base_patch16_gap", 0.3e6),
        # Its blocks are dictionaries that the class takes apart.
        pytest.param("mobilenetv4_hybrid_medium", 8e6, marks=pytest.mark.slow),
        ("convit_tiny", 3e6),  # two kinds of layer, told apart by their number
    ],
)
def test_a_small_instance_runs_and_has_every_structure_of_the_default(name, most):
    before = states()
    small = timm_zoo.small(name)
    assert states() == before
    assert small is not None
    assert small.example.shape[0] == 2
    assert not small.model.training
    assert sum(parameter.numel() for parameter in small.model.parameters()) < most
    wanted = attention_structures(timm_zoo.on_meta(name))
    assert wanted
    assert set(wanted) <= set(attention_structures(small.model))
    with torch.no_grad():
        out = small.model(small.example)
    assert bool(out.isfinite().all())


def test_the_same_small_instance_every_time_and_no_constant_parameters():
    one, two = (timm_zoo.small("vit_tiny_patch16_224") for _ in range(2))
    assert one is not None and two is not None
    assert torch.equal(one.example, two.example)
    for (name, a), b in zip(one.model.named_parameters(), two.model.parameters(), strict=True):
        assert torch.equal(a, b), name
        assert a.numel() == 1 or float(a.detach().std()) > 0, name  # zero biases would hide from a probe


def test_the_class_is_as_it_was(monkeypatch):
    """The arguments are read while the class makes an instance; nothing of that stays, after an error too."""
    cls = type(timm_zoo.on_meta("vit_tiny_patch16_224"))
    distilled = type(timm_zoo.on_meta("deit_tiny_distilled_patch16_224"))
    before = cls.__init__, distilled.__init__
    timm_zoo.small("vit_tiny_patch16_224")
    timm_zoo.small("deit_tiny_distilled_patch16_224")
    monkeypatch.setattr(timm_zoo, "shrunk", lambda *_: {"nonsense": 1})
    assert timm_zoo.small("vit_tiny_patch16_224") is None
    assert "unexpected keyword argument 'nonsense'" in timm_zoo.why_not_small("vit_tiny_patch16_224")
    assert (cls.__init__, distilled.__init__) == before


def test_an_instance_that_lost_a_kind_of_attention_is_not_taken(monkeypatch):
    """One layer of convit is of one kind; the zoo must notice and go on to the next candidate."""
    real = timm_zoo.shrunk

    def greedy(arguments, level):
        return {**real(arguments, level), **({"depth": 1} if level == "narrow" else {})}

    monkeypatch.setattr(timm_zoo, "shrunk", greedy)
    small = timm_zoo.small("convit_tiny")
    assert small is not None
    assert not small.note.startswith("narrow")


def test_groups_of_key_heads_stay_groups():
    out = shrunk({"depth": 12, "embed_dim": 768, "num_heads": 12, "num_kv_heads": 3, "head_dim": 64}, "narrow")
    assert (out["num_heads"], out["num_kv_heads"], out["embed_dim"], out["head_dim"]) == (4, 2, 64, 16)
    same = {"depth": 12, "embed_dim": 768, "num_heads": 12}
    assert shrunk(same, LEVELS[-1]) == same
    assert shrunk(same, "shallow") == {**same, "depth": 2}
    crossed = shrunk({"depth": ((1, 4, 0), (1, 4, 0)), "embed_dim": (192, 384), "num_heads": (6, 12)}, "narrow")
    assert crossed == {"depth": ((1, 2, 0), (1, 2, 0)), "embed_dim": (64, 64), "num_heads": (4, 4)}

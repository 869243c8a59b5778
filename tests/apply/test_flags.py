"""What we write survives transformers: post_init, init_weights, apply, save and load, tie, resize."""

from __future__ import annotations

import pytest
import torch
import transformers
from torch import nn

import kappaone
from kappaone.apply.flags import MARK, OURS, from_checkpoint
from kappaone.errors import WriteError
from tests.apply.test_materialize import bert, encoder, gpt2, hf_vit, llama

MODELS = [gpt2, bert, llama, hf_vit]


def written(model: nn.Module, report: kappaone.InitReport) -> dict[str, torch.Tensor]:
    names = {entry.parameter for layer in report.layers for entry in layer.roles.values() if entry.status == "set"}
    return {name: dict(model.named_parameters())[name].detach().clone() for name in names}


@pytest.mark.parametrize("build", MODELS, ids=lambda b: b.__name__)
def test_what_is_written_survives_everything_that_initialises(build, tmp_path):
    model = build()
    report = kappaone.init_(model, "conditioned", seed=0)
    ours = written(model, report)
    assert ours and all(getattr(dict(model.named_parameters())[name], MARK) for name in ours)
    steps = {
        "post_init": model.post_init,
        "init_weights": model.init_weights,
        "apply": lambda: model.apply(model._init_weights),  # goes past the modules' marks
        "tie_weights": model.tie_weights,
    }
    for name, step in steps.items():
        step()
        assert kappaone.check(model, report), name
    for module in model.modules():
        vars(module).pop(MARK, None)  # as if nothing had been initialised yet
    model.init_weights()
    assert kappaone.check(model, report)
    if build is not hf_vit:
        model.resize_token_embeddings(120)
        model.post_init()
        assert kappaone.check(model, report)
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path)
    assert kappaone.check(again, report)
    for name, values in ours.items():
        assert torch.equal(dict(again.named_parameters())[name], values)
    # And what came from a checkpoint is not overwritten; every tensor is named, the list is cut.
    with pytest.raises(WriteError) as caught:
        kappaone.init_(again, "conditioned", seed=1)
    text = str(caught.value)
    assert "transformers marks it as loaded from a checkpoint" in text and "overwrite=True" in text
    assert f"so do {len(ours) - 1} others" in text and sum(f"'{name}'" in text for name in ours) == min(len(ours), 13)
    assert kappaone.check(again, report)
    assert kappaone.init_(again, "conditioned", seed=1, overwrite=True).blocks_set == report.blocks_set


def test_our_mark_is_no_sign_of_a_checkpoint():
    model = gpt2()
    kappaone.init_(model, "conditioned(parts=q)", seed=0)
    weight = model.transformer.h[0].attn.c_attn.weight
    assert getattr(weight, MARK) and getattr(weight, OURS) and not from_checkpoint(weight)
    # q, k and v lie in one parameter: setting k afterwards is no overwriting of loaded weights.
    assert kappaone.init_(model, "conditioned(parts=k)", seed=0).blocks_set == 12


def test_models_of_other_libraries_carry_no_marks():
    model = encoder()
    kappaone.init_(model, "conditioned", seed=0)
    assert not any(hasattr(p, MARK) for p in model.parameters())


def test_loaded_by_load_state_dict_where_it_can_be_told():
    trained = gpt2()
    with torch.no_grad():
        for block in trained.transformer.h:
            block.attn.c_attn.weight.mul_(3).add_(0.1)
    model = gpt2()
    model.load_state_dict(trained.state_dict())
    with pytest.raises(WriteError, match=r"'transformer.h.0.attn.c_attn.weight'.*follows none.*so do 2 others: "):
        kappaone.init_(model, "conditioned", seed=0)


class InPlace(transformers.BertPreTrainedModel):
    """A user's model whose `_init_weights` writes in place, past transformers' marks (transformers#46620)."""

    def __init__(self, config):
        super().__init__(config)
        self.bert = transformers.BertModel(config)
        self.scale = nn.Linear(config.hidden_size, 4)
        self.post_init()

    def _init_weights(self, module):
        if isinstance(module, nn.Linear):
            module.weight.data.normal_(mean=0.0, std=0.5)
            if module.bias is not None:
                module.bias.data.zero_()


class Kept(InPlace):
    @kappaone.keep_initialized
    def _init_weights(self, module):
        super()._init_weights(module)


def test_the_helper_keeps_what_an_in_place_init_weights_would_overwrite():
    config = bert().config
    for kind, kept in ((InPlace, False), (Kept, True)):
        model = kind(config)
        assert float(model.scale.weight.detach().std()) > 0.3  # fresh weights are initialised by it
        report = kappaone.init_(model, "conditioned", seed=0, overwrite=True)
        model.apply(model._init_weights)
        assert bool(kappaone.check(model, report)) == kept
        assert model.scale.weight.device.type == "cpu"


def test_the_helper_puts_everything_back_after_an_error():
    class Model(nn.Module):
        @kappaone.keep_initialized
        def _init_weights(self, module):
            raise RuntimeError("no")

    layer = nn.Linear(2, 2)
    setattr(layer.weight, MARK, True)
    weight = layer.weight
    with pytest.raises(RuntimeError, match="no"):
        Model()._init_weights(layer)
    assert layer.weight is weight and not weight.is_meta

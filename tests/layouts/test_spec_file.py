from __future__ import annotations

import pytest

from kappaone.errors import SpecError
from kappaone.layouts import AttentionSpec
from kappaone.layouts.spec_file import read_specs


def test_a_spec_survives_the_file(tmp_path):
    specs = [
        AttentionSpec(
            "a.*.b", heads=4, kv_heads=2, fused="qkv", order="group(q k v)", o="out", scale=0.25, causal=True
        ),
        AttentionSpec("x", heads=2, q="to q", fused="kv", order="k v", facts={"rotary": True, "partial": 'a "part"'}),
        AttentionSpec("", heads=2, q="q", k="k", v="v", value_dim=3, head_dim=4, o_order="dim"),
    ]
    path = tmp_path / "mine é.toml"
    path.write_text("\n\n".join(spec.to_toml() for spec in specs), encoding="utf-8")
    assert read_specs(path) == specs
    for spec in specs:
        line = spec.to_python().removeprefix("kappaone.")
        assert eval(line, {"AttentionSpec": AttentionSpec}) == spec  # noqa: S307


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "holds nothing"),
        ("[[layout]\n", "no TOML file"),
        ("[layout]\nheads = 2", r"expected one \[\[layout\]\] table"),
        ("[[layout]]\nheads = 2\nheds = 3", "layout 1: unknown heds"),
        ('[[layout]]\nheads = "2"\nfused = "a"', "layout 1: .*heads='2'"),
        ('[[layout]]\nheads = 2\nfused = "a"\n[[layout]]\nheads = 2', "layout 2: .*no role named apart"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(tmp_path, text, what):
    path = tmp_path / "layouts.toml"
    path.write_text(text)
    with pytest.raises(SpecError, match=what):
        read_specs(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(SpecError, match="No such file"):
        read_specs(tmp_path / "none.toml")


@pytest.mark.parametrize(
    "line",
    [
        *("match = 3", "fused = 3", "fused = ''", "order = 3", "o = true", "o = ''"),
        *("scale = true", "causal = 'yes'", "causal = 1", "transposed = 'no'", "facts = 3", "facts = ['gate']"),
    ],
)
def test_values_of_another_type_are_named(tmp_path, line):
    key = line.partition(" ")[0]
    table = {"match": "'0'", "heads": "2", "fused": "'w'"}
    text = "[[layout]]\n" + "".join(f"{k} = {v}\n" for k, v in table.items() if k != key) + line
    file = tmp_path / "mine.toml"
    file.write_text(text)
    with pytest.raises(SpecError, match=f"layout 1: .*{key}=.*expected"):
        read_specs(file)

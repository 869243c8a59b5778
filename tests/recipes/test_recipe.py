"""Recipes by name, options from plain values, presets as data."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pytest

from kappaone.errors import SpecError
from kappaone.recipes import (
    Recipe,
    get_recipe,
    options_from_dict,
    options_to_dict,
    parse_assignments,
    recipe,
    recipe_names,
    register_recipe,
)


@dataclass(frozen=True)
class Plain:
    count: int = 1
    rate: float = 0.5
    name: str = "a"
    on: bool = False
    limit: float | None = None


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_has_its_presets_and_survives_json(name: str) -> None:
    found = get_recipe(name)
    assert found.name == name
    assert {"smoke", "tiny"} <= set(found.presets)
    assert found.study is not None
    for preset, values in found.presets.items():
        options = found.make_options(preset)
        assert set(values) <= {f.name for f in fields(found.options)}
        plain = json.loads(json.dumps(options_to_dict(options)))
        assert options_from_dict(found.options, plain) == options
        assert found.make_options(preset, **plain) == options


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"cuont": 3}, r"test has no option 'cuont' \(did you mean 'count'\?\)\n.*use one of count, limit, name"),
        ({"count": 1.5}, "option count is 1.5; expected int"),
        ({"count": True}, "option count is True; expected int"),
        ({"rate": "0.1"}, "option rate is '0.1'; expected float"),
        ({"rate": False}, "option rate is False; expected float"),
        ({"name": None}, "option name is None; expected str"),
        ({"on": 1}, "option on is 1; expected bool"),
        ({"limit": "x"}, "option limit is 'x'; expected float or None"),
    ],
)
def test_wrong_options_are_named(values: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        options_from_dict(Plain, values, of="test")


def test_right_options_are_taken() -> None:
    made = options_from_dict(Plain, {"rate": 2, "limit": 3, "on": True})
    assert made == Plain(rate=2.0, limit=3.0, on=True)
    assert isinstance(made.rate, float)
    assert isinstance(made.limit, float)
    assert options_from_dict(Plain, {"limit": None}) == Plain()


def test_assignments_of_the_command_line() -> None:
    got = parse_assignments(["a=1", "b=1e-3", "c=x=y", "d=true", "e=", 'f="7"'])
    assert got == {"a": 1, "b": 1e-3, "c": "x=y", "d": True, "e": "", "f": "7"}
    for wrong in (["a"], ["=1"], ["a=1", "a=2"]):
        with pytest.raises(SpecError, match="option"):
            parse_assignments(wrong)


def test_a_users_file_is_a_recipe(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from dataclasses import dataclass, replace\n"
        "from kappaone.recipes import get_recipe\n"
        "@dataclass\nclass Other:\n    x: 'int' = 1\n"
        "MINE = replace(get_recipe('images'), name='mine')\n"
    )
    assert get_recipe(f"{file}:MINE").name == "mine"
    for reference, message in (
        (f"{file}:NOTHING", "has nothing under 'NOTHING'"),
        (f"{file}:Other", "has a type under 'Other'"),
        (f"{tmp_path / 'none.py'}:MINE", "no file .*none.py"),
        ("no_such_package_x.y:MINE", "no module 'no_such_package_x.y'"),
        ("imagse", "no recipe 'imagse'\n.*images"),
        (":MINE", "no recipe"),
    ):
        with pytest.raises(SpecError, match=message):
            get_recipe(reference)


def test_an_error_in_a_users_file_is_its_own(tmp_path: Path) -> None:
    file = tmp_path / "broken.py"
    file.write_text("import no_such_module_of_the_user\n")
    with pytest.raises(ModuleNotFoundError, match="no_such_module_of_the_user"):
        get_recipe(f"{file}:MINE")


def test_registering(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recipe, "_REGISTRY", dict(recipe._REGISTRY))
    register_recipe("more", "kappaone.recipes.images:RECIPE")
    register_recipe("more", "kappaone.recipes.images:RECIPE")
    assert recipe_names()[-1] == "more"
    assert isinstance(get_recipe("more"), Recipe)
    with pytest.raises(SpecError, match=r"already kappaone\.recipes\.images:RECIPE"):
        register_recipe("more", "other:RECIPE")
    with pytest.raises(SpecError, match=r"package\.module:NAME"):
        register_recipe("bad", "kappaone.recipes.images")


def test_unknown_preset_lists_the_right_ones() -> None:
    with pytest.raises(SpecError, match=r"no preset .large.\n.*smoke, tiny"):
        get_recipe("images").make_options("large")

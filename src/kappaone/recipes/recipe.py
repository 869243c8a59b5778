"""What a recipe is: options with checks, presets as data, a model, data, an evaluation, and how it is compared.

A recipe is looked up by name in a registry of import paths, so that listing recipes imports none of them. A user's
own recipe is written `file.py:NAME` or `package.module:NAME` and needs no registration.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import importlib.util
import json
import sys
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from kappaone.errors import SpecError

if TYPE_CHECKING:
    from torch import nn

Options = TypeVar("Options")

#: The arm that is left as its library built it, without a call of `init_`: the check that "default" changes nothing.
NO_ARM = "none"


@dataclass(frozen=True)
class StudyDefaults:
    """How a recipe is compared unless the caller says otherwise; all of it goes into the plan before the first run.

    Attributes:
        arms: scheme strings.
        reference: the arm that the others are compared with.
        noise_arm: the A/A arm, or None.
        metric: the primary metric.
        higher_is_better: its good side.
        margin: two arms within this of each other, in the metric's unit, count as equivalent.
        tracked: metrics shown at their first and last record.
        target_window: evaluations that are averaged before a curve is compared with its target.
        target_tail: share of the reference's evaluations, at its end, whose mean is the target.
    """

    arms: tuple[str, ...]
    reference: str
    noise_arm: str | None
    metric: str
    higher_is_better: bool
    margin: float
    tracked: tuple[str, ...] = ()
    target_window: int = 1
    target_tail: float = 0.05


@dataclass(frozen=True)
class Recipe:
    """One thing to train.

    Attributes:
        name: what the user types.
        summary: one line for people.
        run: "package.module:function", called in a process of its own as `run(spec, emit)`.
        options: a frozen dataclass; it checks itself when it is made.
        presets: named sets of options: "smoke" takes seconds and is for tests, "tiny" is the demo.
        build_model: maps (options, seed) to a fresh model on the CPU; the global random state is left as it was.
        load_data: maps options to the data.
        evaluate: maps (model, data, options) to metrics.
        resolve: replaces what depends on the machine ("auto") by what it is here, before a plan is written.
        study: how the recipe is compared.

    Examples:
        >>> recipe = get_recipe("images")
        >>> sorted(recipe.presets)
        ['smoke', 'tiny']
        >>> recipe.make_options("tiny", steps=7, warmup_steps=2).steps
        7
    """

    name: str
    summary: str
    run: str
    options: type[Any]
    presets: Mapping[str, Mapping[str, Any]]
    build_model: Callable[[Any, int], nn.Module]
    load_data: Callable[[Any], Any]
    evaluate: Callable[..., dict[str, float]]
    resolve: Callable[[Any], Any] = field(default=lambda options: options)
    study: StudyDefaults | None = None

    def make_options(self, preset: str = "tiny", /, **overrides: Any) -> Any:
        """Options of a preset, with some of them replaced.

        Args:
            preset: one of `presets`.
            overrides: options by name.

        Raises:
            SpecError: unknown preset or option, wrong type or value; the right ones are listed.
        """
        if preset not in self.presets:
            raise SpecError(f"recipe {self.name!r} has no preset {preset!r}", f"use one of {', '.join(self.presets)}")
        return options_from_dict(self.options, {**self.presets[preset], **overrides}, of=f"recipe {self.name!r}")


# Name -> import path of the Recipe; one line a recipe.
_REGISTRY: dict[str, str] = {"images": "kappaone.recipes.images:RECIPE"}


def recipe_names() -> tuple[str, ...]:
    """Names of the registered recipes, without importing any.

    Examples:
        >>> "images" in recipe_names()
        True
    """
    return tuple(_REGISTRY)


def register_recipe(name: str, reference: str) -> None:
    """Make a recipe known by name.

    Args:
        name: what the user will type.
        reference: "package.module:NAME" of a `Recipe`.

    Raises:
        SpecError: the name is taken by another recipe, or the reference is not written as it must be.
    """
    if ":" in name or reference.count(":") != 1:
        raise SpecError(
            f"recipe {name!r} at {reference!r}: expected a plain name and 'package.module:NAME'", "correct them"
        )
    if _REGISTRY.get(name, reference) != reference:
        raise SpecError(f"recipe {name!r} is already {_REGISTRY[name]}", "choose another name")
    _REGISTRY[name] = reference


def get_recipe(recipe: str | Recipe) -> Recipe:
    """Look up a recipe.

    Args:
        recipe: a registered name, "package.module:NAME", "path/to/file.py:NAME", or a `Recipe`, which is returned.

    Returns:
        The recipe.

    Raises:
        SpecError: nothing of that name, or something that is not a `Recipe`.

    Examples:
        >>> get_recipe("images").run
        'kappaone.recipes.images:run'
    """
    if isinstance(recipe, Recipe):
        return recipe
    reference = _REGISTRY.get(recipe, recipe)
    place, colon, attribute = reference.rpartition(":")
    if not colon or not place or not attribute:
        raise SpecError(
            f"there is no recipe {recipe!r}",
            f"use one of {', '.join(_REGISTRY)}, or 'file.py:NAME' or 'package.module:NAME' of a Recipe",
        )
    module = _from_file(Path(place)) if place.endswith(".py") else _from_package(place)
    found = getattr(module, attribute, None)
    if not isinstance(found, Recipe):
        kind = "nothing" if found is None else f"a {type(found).__name__}"
        raise SpecError(f"{place} has {kind} under {attribute!r}; expected a Recipe", "correct the name after ':'")
    return found


def options_from_dict(cls: type[Options], values: Mapping[str, Any], *, of: str = "") -> Options:
    """Make an options dataclass from plain values, as they come from JSON or from keyword arguments.

    Args:
        cls: a dataclass whose fields are bool, int, float, str, or one of these or None.
        values: options by name; what is missing keeps its default.
        of: whose options they are, for the error.

    Returns:
        The options; an int given for a float becomes one.

    Raises:
        SpecError: an unknown name (the right ones are listed), or a value of another type.

    Examples:
        >>> from kappaone.recipes import TrainingOptions
        >>> options_from_dict(TrainingOptions, {"learning_rate": 1}).learning_rate
        1.0
        >>> options_from_dict(TrainingOptions, {"stepps": 3}, of="this recipe")
        Traceback (most recent call last):
        ...
        kappaone.errors.SpecError: this recipe has no option 'stepps' (did you mean 'steps'?)
          what to do: use one of batch_size, beta1, ...
    """
    kinds = typing.get_type_hints(cls)
    known = sorted(f.name for f in dataclasses.fields(cls) if f.init)  # type: ignore[arg-type]
    ready: dict[str, Any] = {}
    for name, value in values.items():
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            raise SpecError(f"{of or cls.__name__} has no option {name!r}{hint}", f"use one of {', '.join(known)}")
        ready[name] = _as_kind(name, value, kinds[name])
    return cls(**ready)


def options_to_dict(options: Any) -> dict[str, Any]:
    """Plain JSON-ready form of an options dataclass; `options_from_dict` reads it back."""
    return {f.name: getattr(options, f.name) for f in dataclasses.fields(options)}


def parse_assignments(pairs: Iterable[str]) -> dict[str, Any]:
    """Read options as they are written on the command line.

    Args:
        pairs: "name=value" each; a value is read as JSON, and as plain text where it is none.

    Raises:
        SpecError: no "=", or a name given twice.

    Examples:
        >>> parse_assignments(["steps=50", "clip_norm=null", "dataset=mnist-5k"])
        {'steps': 50, 'clip_norm': None, 'dataset': 'mnist-5k'}
    """
    found: dict[str, Any] = {}
    for pair in pairs:
        name, sign, text = pair.partition("=")
        name = name.strip()
        if not sign or not name:
            raise SpecError(f"option {pair!r} is not written name=value", "for instance steps=200")
        if name in found:
            raise SpecError(f"option {name!r} is given twice", "give it once")
        try:
            found[name] = json.loads(text)
        except json.JSONDecodeError:
            found[name] = text
    return found


def _as_kind(name: str, value: Any, kind: Any) -> Any:
    allowed = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    if value is None and type(None) in allowed:
        return None
    if float in allowed and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    # bool is an int to Python, but steps=true is a mistake.
    if any(type(value) is one for one in allowed):
        return value
    wanted = " or ".join("None" if one is type(None) else one.__name__ for one in allowed)
    raise SpecError(f"option {name} is {value!r}; expected {wanted}", f"correct {name}")


def _from_package(place: str) -> types.ModuleType:
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        # An import that fails inside the module is its own problem and says so itself.
        if error.name is None or not (place == error.name or place.startswith(error.name + ".")):
            raise
        raise SpecError(f"no module {place!r} to take a recipe from", "write package.module:NAME") from error


def _from_file(file: Path) -> types.ModuleType:
    if not file.is_file():
        raise SpecError(f"no file {file} to take a recipe from", "write path/to/file.py:NAME")
    name = f"kappaone_user_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise SpecError(f"{file} cannot be loaded as Python", "write path/to/file.py:NAME")
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their own module up while it is executed.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module

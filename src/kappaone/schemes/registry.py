"""Names of schemes and procedures, their options, and those that any of them takes: parts=, layers=, scale=.

To add a scheme: its file, one line in `ENTRIES`, one line in docs/schemes.md, one row in the conformance suite.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from importlib.metadata import EntryPoint
from typing import Any, Literal

from kappaone.errors import SpecError
from kappaone.plugins import found as brought_by_packages
from kappaone.plugins import load as load_brought
from kappaone.schemes.base import Option, Scheme
from kappaone.schemes.procedure import Procedure
from kappaone.schemes.syntax import Call, Range, Value, parse, show

ENTRIES: dict[str, str] = {
    "conditioned": "kappaone.schemes.conditioned:SCHEME",
    "default": "kappaone.schemes.default:SCHEME",
    "trunc_normal": "kappaone.schemes.gaussian:TRUNC_NORMAL",
    "fan_in": "kappaone.schemes.gaussian:FAN_IN",
    "xavier_per_role": "kappaone.schemes.xavier:PER_ROLE",
    "xavier_fused": "kappaone.schemes.xavier:FUSED",
    "orthogonal": "kappaone.schemes.orthogonal:SCHEME",
    "mimetic": "kappaone.schemes.mimetic:SCHEME",
    "unit_logits": "kappaone.procedures.unit_logits:PROCEDURE",
}

_MATCHED = {
    "norm": Option("fro", ("fro",), help="which norm is matched"),
    "group": Option("head", ("head", "role"), help="each head's block, or the role as a whole"),
}
_COMMON = ("parts", "layers", "scale")


@dataclass(frozen=True)
class Scale:
    """What `scale=` asks for.

    Attributes:
        kind: "unit" (the scheme's own), "factor", "matched" (the norms of the weights that are there), "scheme" (the
            norms that another scheme would give), "logit" (std of the centred logits on an example).
        value: the factor, or the std.
        group: each head's norm, or the role's.
        scheme: the other scheme.
    """

    kind: Literal["unit", "factor", "matched", "scheme", "logit"] = "unit"
    value: float = 1.0
    group: str = "head"
    scheme: InitSpec | None = None


@dataclass(frozen=True)
class InitSpec:
    """A scheme string, understood.

    Attributes:
        entry: the scheme or procedure.
        options: its own options, all of them, in their right types.
        parts: roles to set, a subset of "qkvo".
        layers: positions of attention layers to set, as written; None for all.
        scale: scale of what is set.
        text: canonical form.
    """

    entry: Scheme | Procedure
    options: Mapping[str, Any] = field(default_factory=dict)
    parts: str = "qkv"
    layers: Value | None = None
    scale: Scale = Scale()
    text: str = ""

    def __str__(self) -> str:
        return self.text

    def chosen(self, count: int) -> frozenset[int]:
        """Positions of the layers to set, of `count`.

        Raises:
            SpecError: if a position does not exist.
        """
        value = self.layers
        if value is None:
            return frozenset(range(count))
        if isinstance(value, Range):
            found: Iterable[int] = range(count)[slice(value.start, value.stop)]
        elif isinstance(value, Call):
            found = [0] if value.name == "first" else [count - 1]
        else:
            found = [int(item) for item in (value if isinstance(value, tuple) else (value,))]
        positions = frozenset(i + count if i < 0 else i for i in found)
        if not positions or min(positions) < 0 or max(positions) >= count:
            raise SpecError(
                f"{self.text}: layers={show(value)} names no layer of {count}"
                if not positions
                else f"{self.text}: layers={show(value)}; the model has {count} attention layers, 0 to {count - 1}",
                "kappaone.find_attention(model) lists them in order",
            )
        return positions


def lookup(name: str) -> Scheme | Procedure:
    """The scheme or procedure of this name.

    Raises:
        SpecError: listing the right names.

    Examples:
        >>> lookup("conditioned").parts
        'qkv'
    """
    known = names()
    if name not in known:
        near = difflib.get_close_matches(name, known, 1)
        raise SpecError(
            f"no scheme is called {name!r}; there are {', '.join(known)}",
            f"did you mean {near[0]}?" if near else "see kappaone schemes",
        )
    if name in ENTRIES:
        module, _, attribute = ENTRIES[name].partition(":")
        entry = getattr(import_module(module), attribute)
    else:
        point = _brought()[name]
        entry = load_brought(point, (Scheme, Procedure))
        if entry.name != name:
            raise SpecError(
                f"the entry point {name!r} ({point.value}) is a scheme that calls itself {entry.name!r}",
                "give both the same name",
            )
    assert isinstance(entry, (Scheme, Procedure))
    return entry


def names() -> tuple[str, ...]:
    """Every scheme and procedure: ours, then those that installed packages bring.

    Raises:
        SpecError: if a package brings one under a name of ours.
    """
    return (*ENTRIES, *_brought())


def home(name: str) -> str:
    """The module in which a scheme or procedure is written."""
    return (ENTRIES[name] if name in ENTRIES else _brought()[name].value).partition(":")[0]


def _brought() -> dict[str, EntryPoint]:
    found = brought_by_packages("kappaone.schemes") | brought_by_packages("kappaone.procedures")
    for name in found:
        if name in ENTRIES:
            raise SpecError(
                f"an installed package brings a scheme {name!r} ({found[name].value}), which is a name of ours",
                "uninstall it, or have it renamed",
            )
    return found


def understand(scheme: str | InitSpec) -> InitSpec:
    """A scheme string with its options checked and filled in.

    Raises:
        SpecError: for a wrong name, option or value; the message lists the right ones.

    Examples:
        >>> spec = understand("conditioned(scale=matched, value=per_head)")
        >>> spec.options["value"], spec.scale.kind, str(spec)
        ('per_head', 'matched', 'conditioned(value=per_head, scale=matched)')
    """
    return scheme if isinstance(scheme, InitSpec) else _understand(parse(scheme))


def _understand(call: Call) -> InitSpec:
    entry = lookup(call.name)
    own, common = _options(call, entry.options, _COMMON)
    spec = InitSpec(entry, own, entry.parts)
    given: list[tuple[str, Value]] = [(k, v) for k, v in _given(call, entry.options) if k in entry.options]
    given.sort(key=lambda pair: list(entry.options).index(pair[0]))
    if "parts" in common:
        spec = replace(spec, parts=_parts(entry, common["parts"]))
    if "layers" in common:
        spec = replace(spec, layers=_layers(entry.name, common["layers"]))
    if "scale" in common:
        spec = replace(spec, scale=_scale(entry, common["scale"]))
    arguments = [*given, *((name, common[name]) for name in _COMMON if name in common)]
    flags = {name for name, option in entry.options.items() if option.flag}
    shown = tuple(("", Call(k)) if k in flags and v in (True, Call("true")) else (k, v) for k, v in arguments)
    return replace(spec, text=str(Call(entry.name, shown)))


def _given(call: Call, options: Mapping[str, Option]) -> list[tuple[str, Value]]:
    """Arguments by name; a bare word is a flag."""
    out: list[tuple[str, Value]] = []
    for key, value in call.arguments:
        if key:
            out.append((key, value))
        elif isinstance(value, Call) and not value.arguments and value.name in options and options[value.name].flag:
            out.append((value.name, Call("true")))
        else:
            flags = [name for name, option in options.items() if option.flag]
            raise SpecError(
                f"{call.name}: {show(value)} stands without a name; "
                + (f"only {', '.join(flags)} may" if flags else "expected option=value"),
                f"write {call.name}(option=value); options are {', '.join([*options, *_COMMON])}",
            )
    names = [key for key, _ in out]
    twice = next((n for n in names if names.count(n) > 1), None)
    if twice:
        raise SpecError(f"{call.name}: {twice} is given twice", "give it once")
    return out


def _options(
    call: Call, options: Mapping[str, Option], common: tuple[str, ...] = ()
) -> tuple[dict[str, Any], dict[str, Value]]:
    own = {name: option.default for name, option in options.items()}
    rest: dict[str, Value] = {}
    for key, value in _given(call, options):
        if key in options:
            plain = value.name if isinstance(value, Call) and not value.arguments else value
            own[key] = options[key].check(
                call.name, key, plain if not isinstance(plain, (Call, Range)) else show(plain)
            )
        elif key in common:
            rest[key] = value
        else:
            near = difflib.get_close_matches(key, [*options, *common], 1)
            raise SpecError(
                f"{call.name} has no option {key!r}; it has {', '.join([*options, *common]) or 'none'}",
                f"did you mean {near[0]}?" if near else f"see kappaone schemes {call.name}",
            )
    return own, rest


def _parts(entry: Scheme | Procedure, value: Value) -> str:
    word = value.name if isinstance(value, Call) else show(value)
    if not word or set(word) - set(entry.parts) or len(set(word)) != len(word):
        raise SpecError(
            f"{entry.name}: parts={word}; expected some of the letters {entry.parts}",
            f"write for instance parts={entry.parts[:2]}",
        )
    return "".join(role for role in "qkvo" if role in word)


def _layers(name: str, value: Value) -> Value:
    word = isinstance(value, Call) and (value.name not in ("first", "last") or value.arguments)
    items = value if isinstance(value, tuple) else (value,) if isinstance(value, (int, float)) else ()
    if word or any(not isinstance(item, int) for item in items):
        raise SpecError(
            f"{name}: layers={show(value)}; expected first, last, a position, a range 0:6 or a list [0, 2]",
            "write for instance layers=0:6",
        )
    return value


def _scale(entry: Scheme | Procedure, value: Value) -> Scale:
    if isinstance(entry, Procedure):
        raise SpecError(
            f"{entry.name} is a procedure and sets its own scale; scale={show(value)} has no meaning",
            "leave scale= out",
        )
    if isinstance(value, (int, float)) and 0 < value < float("inf"):
        return Scale("factor", float(value))
    if isinstance(value, Call):
        if value.name == "unit" and not value.arguments:
            return Scale()
        if value.name == "matched":
            own, _ = _options(value, _MATCHED, ())
            return Scale("matched", group=str(own["group"]))
        if value.name == "logit":
            return Scale("logit", _logit_std(entry.name, value))
        if value.name in names():
            other = _understand(value)
            if isinstance(other.entry, Procedure) or other.scale.kind == "logit":
                raise SpecError(
                    f"{entry.name}: scale={value}; the norms of a procedure are not known beforehand", "name a scheme"
                )
            if other.layers is not None:
                raise SpecError(
                    f"{entry.name}: scale={value}; layers= has no meaning inside scale=, which follows the layers that are set",
                    f"write {entry.name}(layers={show(other.layers)}, scale={value.name})",
                )
            return Scale("scheme", scheme=other)
    raise SpecError(
        f"{entry.name}: scale={show(value)}; expected unit, matched, matched(group=head|role), logit(STD), a positive number, "
        f"or a scheme ({', '.join(names())})",
        "write for instance scale=matched",
    )


def _logit_std(name: str, call: Call) -> float:
    values = [value for key, value in call.arguments if key in ("", "std")]
    if (
        len(call.arguments) > 1
        or len(values) != len(call.arguments)
        or not all(isinstance(v, (int, float)) and 0 < v < float("inf") for v in values)
    ):
        raise SpecError(
            f"{name}: scale={call}; expected logit(STD) with a positive number", "write for instance scale=logit(1.0)"
        )
    return float(values[0]) if values and isinstance(values[0], (int, float)) else 1.0

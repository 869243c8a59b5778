"""The page of a conditioning report: heat maps by layer and head, and every number in tables."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kappaone.errors import SpecError
from kappaone.reports.heatmaps import Cell, Panel, heatmaps
from kappaone.reports.numbers import MISSING, finite, number, show
from kappaone.reports.parts import Figure, Table

Dict = Mapping[str, Any]

# Quantities of the blocks' weights: key, what it is called, logarithmic colours.
WEIGHTS = (
    ("condition_number", "Condition number of the weights", True),
    ("frobenius_norm", "Frobenius norm of the weights", False),
    ("stable_rank", "Stable rank of the weights", False),
)
# Quantities of a head on an example input: key, symbol, what it is called, logarithmic colours.
ACTIVATIONS = (
    ("logit_std", "logit std", "Standard deviation of the attention logits", False),
    ("attention_entropy", "entropy", "Entropy of the attention (nats)", False),
    ("relative_entropy", "relative entropy", "Entropy of the attention over its largest", False),
    ("kappa_X", "kappa(X)", "Condition number of the tokens X", True),
    ("kappa_P", "kappa(P)", "Condition number of the attention matrix P", True),
    ("kappa_J", "kappa(J)", "Condition number of the attention Jacobian J", True),
)
Activation = tuple[str, str, str, bool]
_COLUMNS = ("sigma_max", "sigma_min", "condition_number", "frobenius_norm", "stable_rank")


def conditioning_context(result: Dict) -> dict[str, Any]:
    """Everything that the template of a conditioning report needs.

    Args:
        result: `ConditioningReport.to_dict()`, secrets already masked.

    Raises:
        SpecError: it holds no layer.
    """
    layers = list(result.get("layers") or [])
    if not layers:
        raise SpecError(
            "a page of conditioning needs at least one attention layer; found none",
            "see kappaone.find_attention(model) for what was found and why",
        )
    names = [str(layer.get("name", "")) for layer in layers]
    figures = [f for place, q in enumerate(WEIGHTS) if (f := _weights(place, q, layers, names))]
    measured = [f for place, q in enumerate(ACTIVATIONS) if (f := _activations(place, q, layers, names))]
    heads = sorted({len(_heads(layer)) or _role_heads(layer) for layer in layers})
    return {
        "title": f"Conditioning of {result['model']}" if result.get("model") else "Conditioning of attention",
        "lead": f"{len(layers)} attention layer{'' if len(layers) == 1 else 's'}, "
        f"{' or '.join(map(str, heads))} heads each",
        "example": result.get("example"),
        "notes": _notes(result, layers, names),
        "bound_table": _bound_table(layers, names),
        "bound_words": _bound_words(layers),
        "summary": _summary(layers, names),
        "statuses": _statuses(layers),
        "weights": figures,
        "activations": measured,
        "facts": _facts(result),
        "layers_table": _layers_table(layers, names),
    }


def block_cell(spectrum: Dict | None, key: str = "condition_number") -> Cell:
    """A quantity of one block's spectrum; its status speaks of the condition number, the rest are plain numbers.

    Examples:
        >>> block_cell({"condition_number": 4e15, "status": "rank_deficient", "rank": 3, "stable_rank": 1.2})
        Cell(value=4000000000000000.0, status='rank_deficient', note='numerical rank 3', exact=False)
    """
    if spectrum is None:
        return Cell(None, "not measured")
    status = str(spectrum.get("status", "ok")) if key == "condition_number" else "ok"
    note = f"numerical rank {spectrum['rank']}" if status != "ok" and "rank" in spectrum else ""
    # A weight's kappa beyond its numerical rank is a lower bound (kappaone.linalg.spectra).
    return Cell(number(spectrum.get(key)), status, note, exact=status == "ok")


def head_cell(head: Dict, key: str) -> Cell:
    """A quantity of one head on the example: a number, or a condition number with its status.

    Examples:
        >>> head = {"kappa_J": {"condition_number": "nan", "status": "zero_operator", "note": "J is 0"}}
        >>> head_cell(head, "kappa_J"), head_cell(head, "logit_std").status
        (Cell(value=nan, status='zero_operator', note='J is 0', exact=True), 'not measured')
    """
    found = head.get(key)
    if found is None:
        return Cell(None, "not measured")
    if isinstance(found, Mapping):
        status = str(found.get("status", "ok"))
        # kappa(J) over its generic rank is what it says; kappa(P) beyond P's numerical rank is a lower bound.
        exact = status != "bounded" and not (status == "rank_deficient" and key != "kappa_J")
        return Cell(number(found.get("condition_number")), status, str(found.get("note") or ""), exact)
    value = number(found)
    undefined = value is None or math.isnan(value)
    note = f"over its numerical rank, {head['rank_X']}" if key == "kappa_X" and "rank_X" in head else ""
    return Cell(value, "undefined" if undefined else "ok", note)


def _roles(layer: Dict) -> Dict:
    roles: Dict = layer["weights"]["roles"]
    return roles


def _role_heads(layer: Dict) -> int:
    return max((len(role.get("heads") or []) for role in _roles(layer).values()), default=0)


def _heads(layer: Dict) -> Sequence[Dict]:
    """The heads of a layer as far as an example input was measured."""
    heads: Sequence[Dict] = layer.get("heads") or []
    return heads


def _role_names(layers: Iterable[Dict]) -> list[str]:
    found = {role for layer in layers for role in _roles(layer)}
    return [r for r in "qkvo" if r in found] + sorted(found - set("qkvo"))


def _weights(place: int, quantity: tuple[str, str, bool], layers: Sequence[Dict], names: list[str]) -> Figure | None:
    key, title, log = quantity
    panels = []
    for role in _role_names(layers):
        rows = []
        for layer in layers:
            heads = (_roles(layer).get(role) or {}).get("heads") or []
            rows.append([block_cell(h, key) for h in heads])
        if any(rows):
            panels.append(Panel(f"W_{role.upper()}", rows))
    if not panels:
        return None
    return _figure(f"weights-{place}", title, panels, names, log)


def _activations(place: int, quantity: Activation, layers: Sequence[Dict], names: list[str]) -> Figure | None:
    key, symbol, title, log = quantity
    rows = [[head_cell(head, key) for head in _heads(layer)] for layer in layers]
    if all(c.status == "not measured" for row in rows for c in row):
        return None
    return _figure(f"activations-{place}", title, [Panel(symbol, rows)], names, log)


def _figure(id: str, title: str, panels: list[Panel], names: list[str], log: bool) -> Figure:
    cells = [c for panel in panels for row in panel.rows for c in row]
    values = [x for c in cells if c.exact and (x := finite(c.value)) is not None]
    bad = sum(c.status != "ok" for c in cells)
    extent = f"from {show(min(values))} to {show(max(values))}" if values else "none of them exact"
    heads = max((len(row) for panel in panels for row in panel.rows), default=0)
    rows = [
        [f"{place}: {names[place] or '(the model itself)'}", panel.title, *(c.text for c in row)]
        + [MISSING] * (heads - len(row))
        for place in range(len(names))
        for panel in panels
        if (row := panel.rows[place])
    ]
    table = Table(
        f"{title}, by layer and head", ["Layer", "Of", *(f"Head {i}" for i in range(heads))], rows, text=frozenset({1})
    )
    hatch = " A struck cell has a status other than ok: see its tooltip or the table; grey: no number." if bad else ""
    return Figure(
        id=id,
        title=title,
        alt=f"Heat maps by layer and head of {title.lower()}: {len(cells)} values, {extent}"
        + (f"; {bad} with a status other than ok." if bad else "."),
        plot=heatmaps(panels, layers=names, quantity=f"{title}{' (log colours)' if log else ''}", log=log),
        tables=[table],
        note=f"Layers from the input downwards.{hatch}",
    )


def _span(cells: Sequence[Cell]) -> str:
    """The smallest and the largest of the exact numbers, and the statuses that are not ok."""
    values = [x for c in cells if c.exact and (x := finite(c.value)) is not None]
    counts: dict[str, int] = {}
    for c in cells:
        if c.status != "ok":
            counts[c.status] = counts.get(c.status, 0) + 1
    low, high = (show(min(values), 3), show(max(values), 3)) if values else ("", "")
    words = [low if low == high else f"{low} to {high}"] if values else []
    return "; ".join(words + [f"{n} × {status}" for status, n in counts.items()]) or MISSING


def _measured(layers: Sequence[Dict]) -> list[Activation]:
    return [q for q in ACTIVATIONS if any(head.get(q[0]) is not None for layer in layers for head in _heads(layer))]


def _summary(layers: Sequence[Dict], names: Sequence[str]) -> Table:
    roles, measured = _role_names(layers), _measured(layers)
    rows = []
    for place, (layer, name) in enumerate(zip(layers, names, strict=True)):
        row = [f"{place}: {name or '(the model itself)'}"]
        for role in roles:
            of_role = _roles(layer).get(role) or {}
            row.append(_span([block_cell(h) for h in of_role.get("heads") or []]))
            row.append(block_cell(of_role.get("stacked")).text if of_role else MISSING)
        fused = layer["weights"].get("fused")
        row.append(block_cell(fused).text if fused else MISSING)
        row += [_span([head_cell(h, q[0]) for h in _heads(layer)]) for q in measured]
        rows.append(row)
    columns = ["Layer"]
    for role in roles:
        columns += [f"kappa of W_{role.upper()} by head", f"W_{role.upper()} whole"]
    return Table(
        "Every layer: smallest to largest over its heads, and what is not a plain number",
        [*columns, "W_Q, W_K, W_V fused", *(q[1] for q in measured)],
        rows,
    )


def _statuses(layers: Sequence[Dict]) -> list[str]:
    """How often each status other than ok occurs, in words."""
    counts: dict[tuple[str, str], int] = {}
    for layer in layers:
        found = [
            (f"kappa of W_{role.upper()}", block_cell(h))
            for role, values in _roles(layer).items()
            for h in values.get("heads") or []
        ]
        found += [(q[1], head_cell(h, q[0])) for h in _heads(layer) for q in _measured(layers)]
        for what, c in found:
            if c.status != "ok":
                counts[what, c.status] = counts.get((what, c.status), 0) + 1
    return [f"{what}: {status} in {n} head{'' if n == 1 else 's'}" for (what, status), n in counts.items()]


def _layers_table(layers: Sequence[Dict], names: Sequence[str]) -> Table:
    rows = []
    for place, (layer, name) in enumerate(zip(layers, names, strict=True)):
        found: list[tuple[str, str, Dict]] = []
        for role in _role_names([layer]):
            of_role = _roles(layer)[role] or {}
            found += [(f"W_{role.upper()}", str(i), h) for i, h in enumerate(of_role.get("heads") or [])]
            if of_role.get("stacked"):
                found.append((f"W_{role.upper()}", "all heads", of_role["stacked"]))
        if layer["weights"].get("fused"):
            found.append(("W_Q, W_K, W_V", "fused", layer["weights"]["fused"]))
        rows += [
            [
                f"{place}: {name or '(the model itself)'}",
                of,
                head,
                *(show(values.get(k)) for k in _COLUMNS),
                str(values.get("status", "ok")),
            ]
            for of, head, values in found
        ]
    return Table("Weights of every block", ["Layer", "Of", "Head", *_COLUMNS, "Status"], rows, text=frozenset({1, 8}))


def _bound_table(layers: Sequence[Dict], names: Sequence[str]) -> Table | None:
    """Theorem 3.1 head by head, with its right-hand side as it is (infinite) and B+ beside kappa(J)."""
    keys = ("b_plus", "logits_term", "value_term", "kappa_X", "kappa_P", "kappa_plus_Lambda")
    weights = ("kappa_W_Q", "kappa_W_K", "kappa_W_V")
    rows = []
    for place, (layer, name) in enumerate(zip(layers, names, strict=True)):
        for index, head in enumerate(_heads(layer)):
            bound = head.get("bound")
            if not bound:
                continue
            # Lambda(P) is singular for every head: said once, above the table.
            odd = [
                f"{matrix}: {status}"
                for matrix, status in (bound.get("statuses") or {}).items()
                if status != "ok" and not status.startswith("singular")
            ]
            rows.append(
                [
                    f"{place}: {name or '(the model itself)'}",
                    str(head.get("head", index)),
                    head_cell(head, "kappa_J").text,
                    show(bound.get("value")),
                    *(show(bound.get(key), 3) for key in (*keys, *weights)),
                    ", ".join(odd) or "ok",
                ]
            )
    if not rows:
        return None
    heads = [
        "kappa(J)",
        "B (the bound: infinite)",
        "B+ (heuristic, not a bound)",
        "its logits term",
        "its value term",
        "kappa(X)",
        "kappa(P)",
    ]
    heads += ["kappa+(Lambda)", "kappa(W_Q)", "kappa(W_K)", "kappa(W_V)", "Statuses"]
    return Table("Theorem 3.1 by head", ["Layer", "Head", *heads], rows, text=frozenset({13}))


def _bound_words(layers: Sequence[Dict]) -> list[str]:
    """What B and B+ are, in the report's own words."""
    for layer in layers:
        for head in _heads(layer):
            if bound := head.get("bound"):
                why, label = bound.get("why_infinite"), bound.get("b_plus_label")
                return [f"B is infinite: {why}."] * bool(why) + [f"B+ is {label}."] * bool(label)
    return []


def _notes(result: Dict, layers: Sequence[Dict], names: Sequence[str]) -> list[str]:
    of_layers = [
        f"{n or '(the model itself)'}: {t}"
        for layer, n in zip(layers, names, strict=True)
        for t in layer.get("notes") or []
    ]
    return [*map(str, result.get("notes") or []), *of_layers]


def _facts(result: Dict) -> Table:
    """Whatever else the report says about itself, as names and values."""
    rows: list[list[str]] = []

    def walk(prefix: str, value: Any) -> None:
        if isinstance(value, Mapping):
            for key, inner in value.items():
                walk(f"{prefix}.{key}" if prefix else str(key), inner)
        elif isinstance(value, (list, tuple)):
            rows.append([prefix, ", ".join(str(v) for v in value) or "none"])
        else:
            rows.append([prefix, "none" if value is None else str(value)])

    walk("", {k: v for k, v in result.items() if k not in ("layers", "notes")})
    return Table("About this report", ["Name", "Value"], rows, text=frozenset({1}))

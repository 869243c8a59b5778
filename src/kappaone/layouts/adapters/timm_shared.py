"""What the adapters of timm share: what must be there, what may be there, what is around, and timm's laws."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from kappaone.laws import Law
from kappaone.layouts.layout import AttentionLayout, RoleRows
from kappaone.layouts.site import Projection, Site

T = TypeVar("T")

# Children that hold nothing that a layout would have to know.
INERT = frozenset({"attn_drop", "proj_drop", "softmax", "drop", "drop_path"})


def has(site: Site, *names: str) -> bool:
    """Whether the module has all of these attributes."""
    return all(hasattr(site.module, name) for name in names)


def only(site: Site, children: Iterable[str], parameters: Iterable[str] = ()) -> bool:
    """Whether the module has no children and no parameters of its own but these."""
    return site.children() <= {*children, *INERT} and site.own_parameters() <= set(parameters)


def within(site: Site, *names: str) -> bool:
    """Whether one of the modules around has all of these attributes.

    For attention of so few attributes that much else looks like it: where it was taken out of its model it is refused.
    """
    return any(all(hasattr(module, name) for name in names) for module in site.ancestors())


def number(site: Site, name: str) -> int | None:
    """A whole number of at least 1 that is an attribute of the module, or None."""
    value = site.attribute(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 1 else None


def every(*values: T | None) -> tuple[T, ...] | None:
    """All values, or None where one of them is missing."""
    there = tuple(value for value in values if value is not None)
    return there if len(there) == len(values) else None


def scale(site: Site) -> float | None:
    """The factor on q.k that the module holds, or None where it holds none."""
    value = site.attribute("scale")
    return float(value) if isinstance(value, (int, float)) else None


def truthy(**facts: Any) -> dict[str, Any]:
    """The facts that are true (or say something)."""
    return {name: value for name, value in facts.items() if value}


def qk_norms(site: Site, *names: str) -> bool:
    """Whether q and k are normalized, by the norms of these names (`q_norm`, `k_norm`)."""
    return bool(site.children() & set(names or ("q_norm", "k_norm")))


def linear_laws(*parts: Projection | None) -> tuple[Law, ...]:
    """The laws by which timm draws its linear maps, for the weights of one layer.

    Args:
        parts: the stored weights of q, k and v.
    """
    stored = {(part.inputs, part.outputs) for part in parts if part is not None}
    xavier = [Law("uniform", (2 / (i + o)) ** 0.5, "timm: xavier_uniform_ on the stored weight") for i, o in stored]
    torch_default = [Law("uniform", (3 * i) ** -0.5, "torch: nn.Linear's default") for i, _ in stored]
    return (Law("normal", 0.02, "timm: trunc_normal_(std=.02)", bound=2.0), *xavier, *dict.fromkeys(torch_default))


def layout(
    site: Site,
    source: str,
    rows: dict[str, RoleRows] | None,
    out: RoleRows | None,
    facts: dict[str, Any],
    *,
    factor: float | None,
    laws: tuple[Law, ...] = (),
    zero_bias: bool = False,
    output: str = "projected",
    suffix: str = "",
) -> AttentionLayout | None:
    """The layout of a site from its roles, or None where the roles do not fit the weights."""
    if rows is None or set(rows) != {"q", "k", "v"}:
        return None
    return AttentionLayout(
        name=f"{site.name}{suffix}",
        kind=type(site.module).__name__,
        source=source,
        q=rows["q"],
        k=rows["k"],
        v=rows["v"],
        o=out,
        scale=factor,
        causal=None,
        facts=facts,
        output="heads" if output == "heads" else "projected",
        zero_bias=zero_bias,
        laws=laws,
    )

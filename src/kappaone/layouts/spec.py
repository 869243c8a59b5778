"""The user's own layout, in a few lines, for attention that no adapter recognises.

    AttentionSpec(match="blocks.*.mix", heads=12, fused="to_qkv", order="q k v", o="to_out")
    AttentionSpec(match="layers.*.att", heads=8, kv_heads=2, q="wq", k="wk", v="wv", o="wo")
    AttentionSpec(match="*.attn", heads=8, q="to_q", fused="to_kv", order="k v", o="to_out.0")

The same in TOML, for the command line: a table `[[layout]]` for each spec. A module may carry such a spec itself, as its attribute `kappaone_attention` (`match` is then ignored).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from fnmatch import fnmatchcase
from typing import Any, Literal

from kappaone.errors import SpecError
from kappaone.layouts.layout import QKV, AttentionLayout, Role, RoleRows
from kappaone.layouts.order import Order, parse, starts_and_steps
from kappaone.layouts.site import Projection, Site


@dataclass(frozen=True)
class AttentionSpec:
    """Where q, k, v and o live in the modules whose name matches.

    Attributes:
        match: glob over qualified module names, such as "blocks.*.attn".
        heads: number of query heads.
        fused: child (or parameter) that holds several roles together; with `order`.
        order: order of the rows in `fused`, see `kappaone.layouts.order`: "q k v" (all q, then all k, then all v),
            "head(q k v)", "group(q k v)" (per key/value group: its queries, its key, its value), "dim(head(q k v))"
            (interleaved), ...; a role that it does not name has its own weight. For separate weights "head" or "dim"
            says which axis is the outer one.
        q: child (or parameter) of the queries where the roles are separate.
        k: of the keys.
        v: of the values.
        o: of the output projection, if the module has one.
        kv_heads: key/value heads, if fewer than heads.
        head_dim: rows per head of q and k; worked out from the shapes if None.
        value_dim: rows per head of v; head_dim if None.
        o_order: which axis is the outer one among the columns of `o`: "head" or "dim".
        scale: factor on q.k inside the softmax; 1/sqrt(head_dim) if None.
        causal: whether the layer masks the future by itself.
        transposed: weights are stored (in, out); worked out for Linear and Conv1D children if None.
        facts: further facts (see `AttentionLayout.facts`).
    """

    match: str = "*"
    heads: int = 0
    fused: str | None = None
    order: str = "q k v"
    q: str | None = None
    k: str | None = None
    v: str | None = None
    o: str | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    value_dim: int | None = None
    o_order: Literal["head", "dim"] = "head"
    scale: float | None = None
    causal: bool | None = None
    transposed: bool | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._check_types()
        for name in ("heads", "kv_heads", "head_dim", "value_dim"):
            value = getattr(self, name)
            if (value is None and name != "heads") or (type(value) is int and value >= 1):
                continue
            raise SpecError(
                f"layout spec {self.match!r}: {name}={value!r}; expected a whole number of at least 1", f"pass {name}="
            )
        if self.kv_heads and self.heads % self.kv_heads:
            raise SpecError(
                f"layout spec {self.match!r}: {self.heads} heads cannot share {self.kv_heads} kv_heads evenly",
                "kv_heads must divide heads",
            )
        number = isinstance(self.scale, (int, float)) and not isinstance(self.scale, bool)
        if self.scale is not None and (not number or not 0 < self.scale < float("inf")):
            raise SpecError(
                f"layout spec {self.match!r}: scale={self.scale!r}; expected a positive number",
                "leave it out for 1/sqrt(head_dim)",
            )
        if self.o_order not in ("head", "dim"):
            raise SpecError(
                f"layout spec {self.match!r}: o_order={self.o_order!r}; expected 'head' or 'dim'", "correct it"
            )
        named = {role for role in QKV if getattr(self, role) is not None}
        inside = set(self._order().roles) if self.fused is not None else set()
        if self.fused is None:
            self._separate_order()
        if inside & named or inside | named != set(QKV):
            raise SpecError(
                f"layout spec {self.match!r}: "
                + (f"fused={self.fused!r} holds {' '.join(sorted(inside))} by its order, " if inside else "")
                + f"{' '.join(sorted(named)) or 'no role'} named apart; expected each of q, k, v once",
                "name the child modules (or parameters): fused=... with order=, or q=, k=, v=",
            )

    def _check_types(self) -> None:
        """What a TOML file can hold and Python's annotations do not catch."""
        for name in ("match", "order", "fused", *QKV, "o"):
            value = getattr(self, name)
            if not isinstance(value, str) and (value is not None or name in ("match", "order")):
                raise SpecError(f"layout spec {self.match!r}: {name}={value!r}; expected a string", f"correct {name}=")
            if value == "" and name != "match":
                raise SpecError(
                    f"layout spec {self.match!r}: {name}={value!r}; expected the name of a child or a parameter",
                    f"leave {name}= out where there is none",
                )
        for name in ("causal", "transposed"):
            if getattr(self, name) is not None and not isinstance(getattr(self, name), bool):
                raise SpecError(
                    f"layout spec {self.match!r}: {name}={getattr(self, name)!r}; expected true or false",
                    f"leave {name}= out where it is not known",
                )
        if not isinstance(self.facts, Mapping):
            raise SpecError(
                f"layout spec {self.match!r}: facts={self.facts!r}; expected a table, such as {{ gate = true }}",
                "write facts as a table of names and values",
            )

    def _order(self) -> Order:
        try:
            return parse(self.order)
        except SpecError as error:
            raise SpecError(f"layout spec {self.match!r}: {error.what}", error.todo) from None

    def _separate_order(self) -> str:
        if self.order not in ("q k v", "head", "dim"):
            raise SpecError(
                f"layout spec {self.match!r}: order={self.order!r} without fused=; expected 'head' or 'dim'",
                "name the weight that holds several roles with fused=",
            )
        return "dim" if self.order == "dim" else "head"

    def _given(self) -> dict[str, Any]:
        """What differs from the defaults, `match` and `heads` always."""
        return {
            item.name: getattr(self, item.name)
            for item in fields(self)
            if item.name in ("match", "heads") or getattr(self, item.name) != _default(item)
        }

    def to_python(self) -> str:
        """The spec as a line of Python.

        Examples:
            >>> print(AttentionSpec("*.attn", heads=4, fused="qkv", o="proj").to_python())
            kappaone.AttentionSpec(match='*.attn', heads=4, fused='qkv', o='proj')
        """
        return f"kappaone.AttentionSpec({', '.join(f'{key}={value!r}' for key, value in self._given().items())})"

    def to_toml(self) -> str:
        """The spec as a TOML table, for a file that the command line reads with --layouts.

        Examples:
            >>> print(AttentionSpec("*.attn", heads=4, fused="qkv", facts={"gate": True}).to_toml())
            [[layout]]
            match = "*.attn"
            heads = 4
            fused = "qkv"
            facts = { gate = true }
        """
        lines = ["[[layout]]"]
        for key, value in self._given().items():
            if isinstance(value, Mapping):
                inner = ", ".join(f"{name} = {json.dumps(item)}" for name, item in value.items())
                lines.append(f"{key} = {{ {inner} }}")
            else:
                lines.append(f"{key} = {json.dumps(value)}")
        return "\n".join(lines)

    def matches(self, name: str) -> bool:
        """Whether the spec is for the module of this name."""
        return fnmatchcase(name, self.match)

    def describe(self, site: Site, source: Literal["spec", "declaration"] = "spec") -> AttentionLayout:
        """The layout of one module by this spec, checked against the shapes.

        Raises:
            SpecError: if the shapes do not fit.
        """
        counts: dict[Role, int] = {"q": self.heads, "k": self.kv_heads or self.heads, "v": self.kv_heads or self.heads}
        roles: dict[Role, RoleRows] = {}
        if self.fused is not None:
            roles |= self._fused(site, self.fused, counts)
        for role in QKV:
            if role not in roles:
                roles[role] = self._alone(site, role, counts[role], self._order().outer if self.fused else ())
        return AttentionLayout(
            name=site.name,
            kind=type(site.module).__name__,
            source=source,
            q=roles["q"],
            k=roles["k"],
            v=roles["v"],
            o=None if self.o is None else self._output(site, self.o, roles["v"].size),
            scale=self.scale if self.scale is not None else roles["q"].size ** -0.5,
            causal=self.causal,
            facts=dict(self.facts),
            output="heads" if self.o is None else "projected",
        )

    def _projection(self, site: Site, child: str) -> Projection:
        part = site.projection(child, transposed=self.transposed)
        if part is None:
            raise SpecError(
                f"layer {site.name!r} has no projection {child!r}, which the layout spec {self.match!r} names; it "
                f"has {site.shapes()}",
                "name a child module with a weight, or a parameter",
            )
        return part

    def _fused(self, site: Site, child: str, counts: dict[Role, int]) -> dict[Role, RoleRows]:
        part, order = self._projection(site, child), self._order()
        shares = sum(counts[_role(role)] for role in order.roles)
        values = counts["v"] if "v" in order.roles else 0
        size = self.head_dim
        if size is None:
            known = values * self.value_dim if self.value_dim else 0
            size = (part.outputs - known) // (shares - (values if self.value_dim else 0))
        sizes = {role: size if role != "v" else self.value_dim or size for role in order.roles}
        at, total = starts_and_steps(order, {r: counts[_role(r)] for r in order.roles}, sizes, text=self.order)
        if total != part.outputs:
            need = " + ".join(f"{counts[_role(r)]} {r} x {sizes[r]}" for r in order.roles)
            raise SpecError(
                f"{part.weight!r} has {part.outputs} outputs; the spec {self.match!r} needs {total} = {need}",
                "correct heads, kv_heads or head_dim",
            )
        return {_role(r): part.rows(at[r][0], sizes[r], step=at[r][1]) for r in order.roles}

    def _alone(self, site: Site, role: Role, heads: int, outer: tuple[str, ...]) -> RoleRows:
        part = self._projection(site, str(getattr(self, role)))
        given = self.head_dim if role != "v" else self.value_dim
        size = given or part.outputs // heads
        if size * heads != part.outputs:
            raise SpecError(
                f"{part.weight!r} has {part.outputs} outputs; the spec {self.match!r} needs a multiple of {heads} heads"
                + (f" x {size}" if given else ""),
                "correct heads, kv_heads, head_dim or value_dim",
            )
        if "dim" in outer or (self.fused is None and self._separate_order() == "dim"):
            return part.rows(range(heads), size, step=heads)
        return part.rows(range(0, part.outputs, size), size)

    def _output(self, site: Site, child: str, size: int) -> RoleRows:
        part = self._projection(site, child)
        heads = part.inputs // size if self.facts.get("differential") else self.heads
        if heads * size != part.inputs:
            raise SpecError(
                f"{part.weight!r} reads {part.inputs} columns; the spec {self.match!r} gives {heads} heads x {size}",
                "correct heads, head_dim, value_dim, or o",
            )
        return part.columns(heads, interleaved=self.o_order == "dim")


def _default(item: Field[Any]) -> Any:
    return item.default if item.default_factory is MISSING else item.default_factory()


def _role(role: str) -> Role:
    return "q" if role == "q" else "k" if role == "k" else "v"

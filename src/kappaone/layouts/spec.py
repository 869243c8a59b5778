"""The user's own layout, in a few lines, for attention that no adapter recognises.

    AttentionSpec(match="blocks.*.mix", heads=12, fused="to_qkv", order="q k v", o="to_out")
    AttentionSpec(match="layers.*.att", heads=8, kv_heads=2, q="wq", k="wk", v="wv", o="wo")

A module may carry such a spec itself, as its attribute `kappaone_attention` (`match` is then ignored).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Literal

from kappaone.errors import SpecError
from kappaone.layouts.layout import QKV, AttentionLayout, Role
from kappaone.layouts.site import Projection, Site

_ORDER = re.compile(r"^(?:(head|group)\(([qkv ]+)\)|([qkv ]+))$")


@dataclass(frozen=True)
class AttentionSpec:
    """Where q, k, v and o live in the modules whose name matches.

    Attributes:
        match: glob over qualified module names, such as "blocks.*.attn".
        heads: number of query heads.
        fused: child (or parameter) that holds q, k and v together; with `order`.
        order: order of the rows in `fused`: "q k v" (all q, then all k, then all v), "head(q k v)" (q, k, v of
            head 0, then of head 1, ...), "group(q k v)" (per key/value group: its queries, its key, its value); any
            order of the letters.
        q: child (or parameter) of the queries where the roles are separate.
        k: of the keys.
        v: of the values.
        o: of the output projection, if the module has one.
        kv_heads: key/value heads, if fewer than heads.
        head_dim: rows per head; worked out from the shapes if None.
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
    scale: float | None = None
    causal: bool | None = None
    transposed: bool | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("heads", "kv_heads", "head_dim"):
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
        if self.scale is not None and (not isinstance(self.scale, (int, float)) or not 0 < self.scale < float("inf")):
            raise SpecError(
                f"layout spec {self.match!r}: scale={self.scale!r}; expected a positive number",
                "leave it out for 1/sqrt(head_dim)",
            )
        separate = [self.q, self.k, self.v]
        if (self.fused is None) == any(part is None for part in separate) or (self.fused and any(separate)):
            raise SpecError(
                f"layout spec {self.match!r}: expected either fused=... or all of q=, k=, v=",
                "name the child modules (or parameters) that hold the projections",
            )
        self._order()

    def _order(self) -> tuple[Literal["blocked", "head", "group"], str]:
        found = _ORDER.match(self.order.strip())
        letters = "".join((found[2] or found[3]).split()) if found else ""
        if found is None or sorted(letters) != ["k", "q", "v"]:
            raise SpecError(
                f"layout spec {self.match!r}: order={self.order!r}; expected 'q k v', 'head(q k v)' or "
                "'group(q k v)', with the letters in any order",
                "kappaone.verify tells which rows are which",
            )
        return ("head" if found[1] == "head" else "group" if found[1] == "group" else "blocked"), letters

    def matches(self, name: str) -> bool:
        """Whether the spec is for the module of this name."""
        return fnmatchcase(name, self.match)

    def describe(self, site: Site, source: Literal["spec", "declaration"] = "spec") -> AttentionLayout:
        """The layout of one module by this spec, checked against the shapes.

        Raises:
            SpecError: if the shapes do not fit.
        """
        kv_heads = self.kv_heads or self.heads
        if self.fused is not None:
            part = self._projection(site, self.fused)
            head_dim = self.head_dim or part.outputs // (self.heads + 2 * kv_heads)
            total = head_dim * (self.heads + 2 * kv_heads)
            if total != part.outputs:
                raise SpecError(
                    f"{part.weight!r} has {part.outputs} outputs; the spec {self.match!r} needs {total} = head_dim "
                    f"{head_dim} x ({self.heads} query + 2 x {kv_heads} key/value heads)",
                    "correct heads, kv_heads or head_dim",
                )
            starts = self._fused_starts(kv_heads, head_dim)
            roles = {role: part.rows(starts[role], head_dim) for role in QKV}
        else:
            parts = {role: self._projection(site, str(getattr(self, role))) for role in QKV}
            counts = {"q": self.heads, "k": kv_heads, "v": kv_heads}
            roles = {}
            for role, part in parts.items():
                size = part.outputs // counts[role] if role == "v" or not self.head_dim else self.head_dim
                if size * counts[role] != part.outputs:
                    raise SpecError(
                        f"{part.weight!r} has {part.outputs} outputs; the spec {self.match!r} needs a multiple of "
                        f"{counts[role]} heads" + (f" x head_dim {size}" if self.head_dim else ""),
                        "correct heads, kv_heads or head_dim",
                    )
                roles[role] = part.rows(range(0, part.outputs, size), size)
        return AttentionLayout(
            name=site.name,
            kind=type(site.module).__name__,
            source=source,
            q=roles["q"],
            k=roles["k"],
            v=roles["v"],
            o=None if self.o is None else self._projection(site, self.o).columns(self.heads),
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

    def _fused_starts(self, kv_heads: int, head_dim: int) -> dict[Role, range | list[int]]:
        kind, letters = self._order()
        group = self.heads // kv_heads
        counts: dict[str, int] = {"q": self.heads, "k": kv_heads, "v": kv_heads}
        starts: dict[Role, range | list[int]] = {}
        if kind == "blocked":
            at = 0
            for letter in letters:
                rows = counts[letter] * head_dim
                starts[_role(letter)] = range(at, at + rows, head_dim)
                at += rows
            return starts
        if kind == "head" and group != 1:
            raise SpecError(
                f"layout spec {self.match!r}: order='head(...)' with {kv_heads} kv_heads for {self.heads} heads",
                "use order='group(q k v)' for grouped queries",
            )
        stride, at = (group + 2) * head_dim, 0
        for letter in letters:
            blocks = group if letter == "q" else 1
            starts[_role(letter)] = [g * stride + at + b * head_dim for g in range(kv_heads) for b in range(blocks)]
            at += blocks * head_dim
        return starts


def _role(letter: str) -> Role:
    return "q" if letter == "q" else "k" if letter == "k" else "v"

"""A layout is data: where each role's rows of one attention layer live, and what is known about the layer.

The row convention of the whole package, stated once:

* A *block* is the weight of one role of one head, as the matrix that multiplies a token from the left, `y = W x`, so
  its rows are outputs. For q, k and v a block has shape (head_dim, width); for o it has shape (width, head_dim).
  This is the transpose of the paper's `W^(i)` (D x d, multiplying from the right): semi-orthogonal means `W W^T = I`.
* `nn.Linear.weight` stores outputs along axis 0. Transformers' `Conv1D` stores them along axis 1 (`transposed=True`).
* A head's rows are an arithmetic progression, `start, start + step, ...`. That covers every fused order in use:
  `[Q|K|V]`, `(q k v)` per head, per key/value group, per shard (step 1, only the starts differ), and the interleaved
  orders in which head_dim is the outer axis (step > 1).
* A weight of more than two axes is read as a matrix: its first `axes` axes together are the outputs, the others the
  inputs (1x1 convolutions, and stacks such as (heads, head_dim, width)).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from kappaone.errors import LayoutError
from kappaone.laws import Law
from kappaone.layouts.facts import FACTS

Role = Literal["q", "k", "v", "o"]
QKV: tuple[Role, ...] = ("q", "k", "v")


@dataclass(frozen=True)
class Inner:
    """The first factor of a low-rank projection, `W = block @ diag(norm) @ inner` (multi-head latent attention).

    Attributes:
        parameter: qualified name of the weight that maps tokens to the latent.
        start: its first output that belongs to the latent.
        size: width of the latent, r.
        width: width of the tokens, D.
        norm: qualified name of the gain of the RMSNorm between the factors, or None. The norm itself divides by the
            latent's length, token by token, so that the product is known up to a factor for each token.
    """

    parameter: str
    start: int
    size: int
    width: int
    norm: str | None = None


@dataclass(frozen=True)
class RoleRows:
    """Where the blocks of one role live in one parameter.

    Attributes:
        parameter: qualified name of the weight, as `model.named_parameters()` gives it, wrapper prefixes stripped.
        starts: for each head (key/value head for k and v), the first index of its block along the head axis.
        size: length of each block along the head axis (head_dim; value_dim for v and o).
        width: length of the other axis (the width of the tokens that the role reads; for o, of the output).
        transposed: the weight is stored (in, out), as transformers' Conv1D does.
        bias: qualified name of the bias, or None.
        bias_starts: first index of each head's part of the bias (q, k, v only).
        step: distance between consecutive rows of a block (of its bias too); 1 unless head_dim is an outer axis.
        axes: how many leading axes of the stored weight are the output axis together.
        inner: the first factor, where the projection is a product; `parameter` then holds the second one.
    """

    parameter: str
    starts: tuple[int, ...]
    size: int
    width: int
    transposed: bool = False
    bias: str | None = None
    bias_starts: tuple[int, ...] = ()
    step: int = 1
    axes: int = 1
    inner: Inner | None = None

    def __post_init__(self) -> None:
        if self.bias_starts and len(self.bias_starts) != len(self.starts):
            raise LayoutError(
                f"{self.parameter!r} has {len(self.starts)} heads, its bias {self.bias!r} {len(self.bias_starts)}",
                "give bias_starts one entry for each head",
            )

    def span(self, head: int) -> slice:
        """The indices of one head's block along the head axis."""
        start = self.starts[head]
        return slice(start, start + (self.size - 1) * self.step + 1, self.step)

    def bias_span(self, head: int) -> slice:
        """The indices of one head's part of the bias (q, k, v only)."""
        start = self.bias_starts[head]
        return slice(start, start + (self.size - 1) * self.step + 1, self.step)

    @property
    def stop(self) -> int:
        """One more than the last index of the role along the head axis."""
        return max(self.starts) + (self.size - 1) * self.step + 1

    @property
    def heads(self) -> int:
        """Number of blocks: heads for q and o, key/value heads for k and v."""
        return len(self.starts)

    @property
    def rows(self) -> int:
        """Total number of rows of the role, over all heads."""
        return self.size * self.heads

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON-ready form."""
        return {
            "parameter": self.parameter,
            "starts": list(self.starts),
            "size": self.size,
            "width": self.width,
            "transposed": self.transposed,
            "bias": self.bias,
            "bias_starts": list(self.bias_starts),
            "step": self.step,
            "axes": self.axes,
            "inner": None if self.inner is None else dict(vars(self.inner)),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> RoleRows:
        """The inverse of `to_dict`."""
        inner = data.get("inner")
        return cls(
            **{
                **data,
                "starts": tuple(data["starts"]),
                "bias_starts": tuple(data["bias_starts"]),
                "inner": None if inner is None else Inner(**inner),
            }
        )


@dataclass(frozen=True)
class AttentionLayout:
    """One attention layer: its roles, its heads, and the facts that matter for schemes and measurements.

    Attributes:
        name: qualified name of the attention module, wrapper prefixes stripped ("" for the model itself). A module that
            holds several attentions (joint attention over two streams) has one layout for each, told apart by a
            suffix: "attn" and "attn[added]".
        kind: the module's class name, for people; never used to decide anything.
        source: who described it: an adapter's name, "spec" or "declaration".
        q: rows of the query role.
        k: rows of the key role.
        v: rows of the value role.
        o: columns of the output projection by head, or None where there is none or it is unknown.
        scale: the factor on q.k inside the softmax (1/sqrt(head_dim) usually), or None if unknown.
        causal: True or False where the layout fixes it, None where the input decides.
        facts: further facts by name, from the vocabulary of `kappaone.layouts.facts`.
        output: what the module returns: "projected" (after o) or "heads" (o is in another module, or there is none).
        zero_bias: the library's own default sets the q, k, v biases to zero.
        laws: the laws by which the library itself draws these weights, by role ("qkv" for all three).
    """

    name: str
    kind: str
    source: str
    q: RoleRows
    k: RoleRows
    v: RoleRows
    o: RoleRows | None = None
    scale: float | None = None
    causal: bool | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    output: Literal["projected", "heads"] = "projected"
    zero_bias: bool = False
    laws: tuple[Law, ...] = ()

    def __post_init__(self) -> None:
        if self.q.size != self.k.size:
            raise LayoutError(
                f"layer {self.name!r}: queries have {self.q.size} rows per head, keys {self.k.size}; expected the same",
                "correct head_dim of q and k in the layout",
            )
        if self.q.heads % self.k.heads or self.q.heads % self.v.heads:
            raise LayoutError(
                f"layer {self.name!r}: {self.q.heads} query, {self.k.heads} key and {self.v.heads} value heads; expected "
                "key heads and value heads that divide the query heads",
                "correct heads and kv_heads in the layout",
            )
        unknown = set(self.facts) - set(FACTS)
        if unknown:
            raise LayoutError(
                f"layer {self.name!r}: no fact is called {', '.join(sorted(map(repr, unknown)))}; there are {', '.join(FACTS)}",
                "correct facts= in the layout",
            )

    @property
    def module(self) -> str:
        """Qualified name of the attention module: `name` without its suffix."""
        return self.name.partition("[")[0]

    @property
    def heads(self) -> int:
        """Number of query heads."""
        return self.q.heads

    @property
    def kv_heads(self) -> int:
        """Number of key/value heads; fewer than `heads` under grouped-query attention."""
        return self.k.heads

    @property
    def head_dim(self) -> int:
        """Rows of one query head, d."""
        return self.q.size

    @property
    def width(self) -> int:
        """Width of the tokens that the queries read, D."""
        return self.q.width

    @property
    def output_heads(self) -> int:
        """Heads of what enters the output projection: the query heads, or the value heads of differential attention."""
        return self.v.heads if self.facts.get("differential") else self.heads

    def kv_head(self, head: int, role: Role = "k") -> int:
        """The key (or value) head that query head `head` reads.

        Consecutive heads share one (Llama) unless the fact `kv_map` says "modulo" (x-transformers).
        """
        shared = self.v.heads if role == "v" else self.k.heads
        if self.facts.get("kv_map") == "modulo":
            return head % shared
        return head // (self.heads // shared)

    @property
    def scale_free(self) -> bool:
        """Whether a gain on W_Q and W_K has no effect, since q and k are normalized before they meet."""
        return any(self.facts.get(name) and FACTS[name].scale_free for name in self.facts)

    def factored(self) -> tuple[Role, ...]:
        """The roles that are a product of two stored weights."""
        return tuple(role for role in QKV if self.role(role).inner is not None)

    def role(self, role: Role) -> RoleRows:
        """The rows of one role.

        Raises:
            LayoutError: for "o" where the layout has no output projection.
        """
        rows = {"q": self.q, "k": self.k, "v": self.v, "o": self.o}[role]
        if rows is None:
            raise LayoutError(f"layer {self.name!r} has no output projection in its layout", "leave role o out")
        return rows

    def fused(self) -> bool:
        """Whether q, k and v share one parameter."""
        return self.q.parameter == self.k.parameter == self.v.parameter

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON-ready form."""
        return {
            "name": self.name,
            "kind": self.kind,
            "source": self.source,
            "heads": self.heads,
            "kv_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "width": self.width,
            "scale": self.scale,
            "causal": self.causal,
            "output": self.output,
            "facts": dict(self.facts),
            "roles": {r: self.role(r).to_dict() for r in ("q", "k", "v", "o") if r != "o" or self.o is not None},
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> AttentionLayout:
        """The inverse of `to_dict`, less the library's laws, which a file has no use for."""
        roles = {role: RoleRows.from_dict(rows) for role, rows in data["roles"].items()}
        plain = {key: data[key] for key in ("name", "kind", "source", "scale", "causal", "output", "facts")}
        return cls(**plain, q=roles["q"], k=roles["k"], v=roles["v"], o=roles.get("o"))

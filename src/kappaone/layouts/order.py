"""The order of rows in a weight, as a nest of loops from the outermost to the innermost.

    q k v             all q, then all k, then all v; inside, head after head
    head(q k v)       q, k, v of head 0, then of head 1, ...
    group(q k v)      for each key/value head: its queries, its key, its value
    4(q v k)          4 equal chunks of heads, each with its q, then v, then k (tensor-parallel checkpoints)
    dim(q k v)        head_dim outermost: the first row of every head of q, of k, of v, then the second, ...
    dim(head(q k v))  and any other nest of head, dim and a number

Where an axis is not named, heads run before head_dim, inside the roles. A weight may hold two roles only
("k v"): the third has its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from kappaone.errors import SpecError

_OUTER = re.compile(r"^\s*(head|group|dim|[1-9]\d*)\s*\((.*)\)\s*$")


@dataclass(frozen=True)
class Order:
    """An order, understood.

    Attributes:
        outer: the loops around the roles: "head", "group", "dim", or a number of chunks.
        roles: the roles in their order, such as "qkv".
    """

    outer: tuple[str, ...]
    roles: str


def parse(text: str) -> Order:
    """Read an order.

    Raises:
        SpecError: if it is none.

    Examples:
        >>> parse("dim(head(q k v))")
        Order(outer=('dim', 'head'), roles='qkv')
        >>> parse("k v")
        Order(outer=(), roles='kv')
    """
    outer: list[str] = []
    rest = text
    while found := _OUTER.match(rest):
        outer.append(found[1])
        rest = found[2]
    roles = "".join(rest.split())
    alone = [name for name in outer if name in ("head", "group") or name.isdigit()]
    if not roles or len(set(roles)) != len(roles) or set(roles) - set("qkv"):
        raise SpecError(
            f"order={text!r}; expected the roles q, k, v in their order, such as 'q k v', 'head(q k v)', 'group(q k v)', "
            "'dim(head(q k v))' or '4(q v k)'",
            "kappaone layouts MODEL --probe tells which rows are which",
        )
    if len(set(outer)) != len(outer) or len(alone) > 1:
        raise SpecError(f"order={text!r} names the heads twice", "use one of head, group or a number")
    return Order(tuple(outer), roles)


def starts_and_steps(
    order: Order, heads: Mapping[str, int], sizes: Mapping[str, int], *, text: str
) -> tuple[dict[str, tuple[tuple[int, ...], int]], int]:
    """Where each block of each role starts, the step between its rows, and the rows in all.

    Args:
        order: the order.
        heads: heads of each role in it.
        sizes: rows per head of each role in it.
        text: the order as written, for messages.

    Raises:
        SpecError: if the order does not fit the heads.

    Examples:
        >>> starts_and_steps(parse("head(q k v)"), dict(q=2, k=2, v=2), dict(q=4, k=4, v=4), text="")
        ({'q': ((0, 12), 1), 'k': ((4, 16), 1), 'v': ((8, 20), 1)}, 24)
        >>> starts_and_steps(parse("dim(k v)"), dict(k=2, v=2), dict(k=3, v=3), text="")
        ({'k': ((0, 1), 4), 'v': ((2, 3), 4)}, 12)
    """
    counts = {role: heads[role] for role in order.roles}
    fewest = min(counts.values())
    for name in order.outer:
        chunks = int(name) if name.isdigit() else fewest
        if name == "head" and len(set(counts.values())) > 1:
            raise SpecError(
                f"order={text!r} with {counts} heads; 'head' needs as many of each",
                "use group(...) for grouped queries",
            )
        if name != "dim" and any(count % chunks for count in counts.values()):
            raise SpecError(
                f"order={text!r}: {counts} heads do not divide into {chunks} chunks", "correct heads or order"
            )
    if "dim" in order.outer and len({sizes[role] for role in order.roles}) > 1:
        raise SpecError(
            f"order={text!r}: 'dim' needs as many rows in each head of each role", "correct head_dim or order"
        )
    rows: dict[tuple[str, int], list[int]] = {}
    for index, (role, head) in enumerate(_walk(order, counts, sizes, fewest)):
        rows.setdefault((role, head), []).append(index)
    out: dict[str, tuple[tuple[int, ...], int]] = {}
    for role in order.roles:
        at = [rows[role, head] for head in range(counts[role])]
        out[role] = (tuple(found[0] for found in at), at[0][1] - at[0][0] if len(at[0]) > 1 else 1)
    return out, sum(counts[role] * sizes[role] for role in order.roles)


def _walk(order: Order, counts: Mapping[str, int], sizes: Mapping[str, int], fewest: int) -> Iterator[tuple[str, int]]:
    """(role, head) of each row, from the first to the last."""

    def loop(outer: Sequence[str], chunk: int, chunks: int, dim: int | None) -> Iterator[tuple[str, int]]:
        if outer and outer[0] == "dim":
            for d in range(sizes[order.roles[0]]):
                yield from loop(outer[1:], chunk, chunks, d)
            return
        if outer:
            chunks = int(outer[0]) if outer[0].isdigit() else fewest
            for c in range(chunks):
                yield from loop(outer[1:], c, chunks, dim)
            return
        for role in order.roles:
            inside = counts[role] // chunks
            for head in range(chunk * inside, (chunk + 1) * inside):
                for _ in range(sizes[role] if dim is None else 1):
                    yield role, head

    yield from loop(order.outer, 0, 1, None)

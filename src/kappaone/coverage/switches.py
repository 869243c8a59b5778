"""A layout's switches, sizes aside, as one line: what an adapter decided, and so what one probe can confirm."""

from __future__ import annotations

import re
from itertools import groupby

from kappaone.layouts.layout import QKV, AttentionLayout, RoleRows

# Numbers in a fact's words are sizes, as "the first 3072 rows belong to the MLP".
_NUMBER = re.compile(r"\d+")


def switches(layout: AttentionLayout) -> str:
    """What a layout says beyond sizes: who described it, order, storage, biases, heads, scale, facts.

    Examples:
        >>> from torch import nn
        >>> from kappaone.layouts import find_attention
        >>> switches(find_attention(nn.MultiheadAttention(8, 2))[0])
        'torch.mha: q k v by heads in one weight; biases q k v o; kv all; scale 1/sqrt(head_dim); batch_first=False'
    """
    roles = {role: layout.role(role) for role in QKV}
    rows = [layout.q, layout.k, layout.v] + ([layout.o] if layout.o is not None else [])
    parts = [f"{_order(layout)}{_storage(rows)}"]
    biased: list[str] = [role for role, at in roles.items() if at.bias is not None]
    biased += ["o"] if layout.o is not None and layout.o.bias is not None else []
    parts.append(f"biases {' '.join(biased) or 'none'}")
    parts.append(f"kv {_kv(layout)}")
    parts.append(f"scale {_scale(layout)}")
    if layout.causal is not None:
        parts.append("causal" if layout.causal else "not causal")
    if layout.v.size != layout.q.size:
        parts.append("values of another size")
    if layout.o is None or layout.output != "projected":
        parts.append("no o" if layout.o is None else "o elsewhere")
    parts += [
        name
        if value is True
        else f"{name}={_NUMBER.sub('#', str(value))}"
        if isinstance(value, (bool, str))
        else f"{name}=..."
        for name, value in sorted(layout.facts.items())
    ]
    return f"{layout.source}: {'; '.join(parts)}"


def _order(layout: AttentionLayout) -> str:
    """The order of blocks in a shared weight, such as "q k v by heads" or "(q k v) for each head"."""
    weights = dict.fromkeys(layout.role(role).parameter for role in QKV)
    words: list[str] = []
    for weight in weights:
        blocks = sorted((s, r) for r in QKV if layout.role(r).parameter == weight for s in layout.role(r).starts)
        letters = [role for _, role in blocks]
        runs = [letter for letter, _ in groupby(letters)]
        once = list(dict.fromkeys(runs))
        if len(once) == 1:
            words.append(once[0])
        elif len(runs) == len(once):
            words.append(" ".join(once) + (" by heads" if layout.heads > 1 else " of one head"))
        else:
            words.append(f"({' '.join(once)}) for each {'head' if layout.kv_heads == layout.heads else 'group'}")
    shared = len(weights) == 1
    return " | ".join(words) + (" in one weight" if shared else "")


def _storage(rows: list[RoleRows]) -> str:
    out = []
    if any(at.transposed for at in rows):
        out.append("transposed")
    if any(at.step != 1 for at in rows):
        out.append("interleaved")
    if any(at.axes != 1 for at in rows):
        out.append("stacked")
    if any(at.inner is not None for at in rows):
        out.append("products")
    return f", {', '.join(out)}" if out else ""


def _kv(layout: AttentionLayout) -> str:
    if layout.kv_heads == layout.heads:
        return "all"
    return "one" if layout.kv_heads == 1 else "groups"


def _scale(layout: AttentionLayout) -> str:
    if layout.scale is None:
        return "unknown"
    for words, value in (
        ("1/sqrt(head_dim)", layout.head_dim**-0.5),
        ("1", 1.0),
        ("1/sqrt(width)", layout.width**-0.5),
    ):
        if abs(layout.scale - value) <= 1e-6 * value:
            return words
    return "its own"

"""What a row of a weight does to the operands of the softmax: the second way of the probe.

Watching the output alone fails where q, k or v are pooled, normalized or bent between their projection and the
softmax (a value row is then no longer linear, and one token's query depends on others), and where the module sorts
tokens into windows itself. Then the attention call is watched: of `scaled_dot_product_attention` the operand that
moves; of an eager softmax its logits. A change that one token alone sees moves some rows of the logits for a query
row, some columns for a key row, and none for a value row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from kappaone.layouts.bench import Bench
from kappaone.layouts.blocks import as_matrix
from kappaone.layouts.layout import Role

# Facts that make the output alone a bad witness.
_HIDDEN = ("pooled", "v_norm", "activated", "windows")
_ROLES: tuple[Role, ...] = ("q", "k", "v")
# Large enough to be the largest of a pooled window, whichever sign it needs.
_STEPS = (1.0, 8.0, -8.0, 64.0, -64.0)
_STILL = 1e-9
_TOKENS = 64
_MASKED = 1e8


@dataclass
class Heard:
    """The attention calls of one run: operands of the fused one, logits of the eager one."""

    fused: list[tuple[Tensor, ...]] = field(default_factory=list)
    logits: list[Tensor] = field(default_factory=list)


class _Ear(TorchFunctionMode):
    def __init__(self, heard: Heard) -> None:
        super().__init__()
        self.heard = heard

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention:
            given = {**dict(zip(("query", "key", "value"), args, strict=False)), **kwargs}
            self.heard.fused.append(tuple(given[name].detach() for name in ("query", "key", "value")))
        elif func in (F.softmax, torch.softmax, Tensor.softmax):
            self.heard.logits.append((args[0] if args else kwargs["input"]).detach())
        return func(*args, **kwargs)


@dataclass(frozen=True)
class Told:
    """What the attention call tells of a row.

    Attributes:
        role: "q", "k", "v", "?" or "dead".
        change: of the output.
        heads: the heads of a fused call whose operand moved, if one was heard.
    """

    role: str
    change: Tensor
    heads: tuple[int, ...] | None = None


def needed(bench: Bench) -> bool:
    """Whether the output alone would be a bad witness: by the layout's facts, or since other tokens come out of it."""
    if bench.single("q") or bench.layout.facts.get("channel_attention"):
        return False
    facts = bench.layout.facts
    # Logits beside a sink are shifted by their largest (gpt-oss), so that a key row moves whole rows of them.
    hidden = [name for name in _HIDDEN if not (name == "windows" and facts.get("sinks"))]
    if any(facts.get(name) for name in hidden) or heads_hidden(bench):
        return True
    return bench.base.shape[:2] != bench.reads("q").shape[:2]


def heads_hidden(bench: Bench) -> bool:
    """Whether the output does not tell the heads: something that no layout states stands behind them."""
    return bench.layout.o is None and bench.layout.output == "projected"


def classify(bench: Bench, role: Role, row: int, random: torch.Generator) -> Told | None:
    """What a row of the weight that is said to hold `role` does to the attention call.

    Returns:
        What was told; None where this cannot be told: no attention
        call was heard, or the weight belongs to no module whose input could be set.
    """
    owner = _owner(bench, role)
    if owner is None:
        return None
    tokens = bench.reads(role)
    direction = torch.randn(tokens.shape[-1], generator=random, dtype=torch.float64, device="cpu").to(tokens.device)
    direction = direction / direction.norm()
    rows = bench.layout.role(role)
    name = bench.local(rows.parameter)

    def run(step: float, token: int) -> tuple[Tensor, Heard]:
        state = dict(bench.state)
        if step:
            state[name] = state[name].clone(memory_format=torch.contiguous_format)
            as_matrix(state[name], rows)[row] += step * direction
        heard = Heard()
        hook = owner.register_forward_pre_hook(_alone(tokens.shape, direction, token))
        try:
            with _Ear(heard):
                return bench.output(state), heard
        finally:
            hook.remove()

    for token in _tried(tokens, random):
        seen_by = float(tokens.reshape(-1, tokens.shape[-1])[token] @ direction)
        base, before = run(0.0, token)
        if not before.fused and not before.logits:
            return None
        for step in _STEPS:
            out, after = run(step / seen_by, token)
            change = out - base
            if float(change.abs().max()) > _STILL * bench.size:
                return Told(_moved(before, after), change, _moved_heads(before, after))
    return Told("dead", torch.zeros_like(bench.base))


def _tried(tokens: Tensor, random: torch.Generator) -> list[int]:
    """Tokens of all examples to try one after the other: the largest (one of padding asks for nothing), then others.

    Pooling with a stride reads some tokens only.
    """
    sizes = tokens.norm(dim=-1).flatten()
    order = torch.randperm(len(sizes), generator=random, device="cpu")[:_TOKENS].tolist()
    return [int(sizes.argmax()), *(int(token) for token in order if float(sizes[token]) > 0)]


def _moved(before: Heard, after: Heard) -> str:
    """Which role a row plays, by what moved at the attention call."""
    roles: set[str] = set()
    for old, new in zip(before.fused, after.fused, strict=True):
        roles |= {role for role, a, b in zip(_ROLES, old, new, strict=True) if _differ(a, b)}
    for a, b in zip(before.logits, after.logits, strict=True):
        if not _differ(a, b):
            continue
        roles.add(_rows_or_columns(a, b))
    if before.logits and not before.fused and not roles:
        return "v"  # the output moves, and the attention weights do not
    return next(iter(roles)) if len(roles) == 1 else "?"


def _moved_heads(before: Heard, after: Heard) -> tuple[int, ...] | None:
    """The heads of the fused calls whose operands moved; None if none was heard."""
    found: set[int] = set()
    for old, new in zip(before.fused, after.fused, strict=True):
        for a, b in zip(old, new, strict=True):
            moved = (a - b).abs() > _STILL * _size(a, b)
            found |= {int(h) for h in moved.movedim(-3, 0).flatten(1).any(1).nonzero().flatten()}
    return tuple(sorted(found)) if before.fused else None


def _rows_or_columns(a: Tensor, b: Tensor) -> str:
    """Whether logits moved by whole rows ("q") or whole columns ("k"), what is masked left aside; else "?"."""
    open_ = (a.abs() < _MASKED) & (b.abs() < _MASKED)
    moved = open_ & ((a - b).abs() > _STILL * _size(a, b))
    moved, open_ = (t.reshape(-1, *t.shape[-2:]) for t in (moved, open_))
    still = open_ & ~moved
    rows = not bool((still.any(-1) & moved.any(-1)).any())
    columns = not bool((still.any(-2) & moved.any(-2)).any())
    return "?" if rows == columns else "q" if rows else "k"


def _differ(a: Tensor, b: Tensor) -> bool:
    return bool(((a - b).abs() > _STILL * _size(a, b)).any())


def _size(a: Tensor, b: Tensor) -> float:
    """The largest entry that is no mask: some libraries mask by the dtype's lowest number, not by -inf."""
    sizes = [t[t.abs() < _MASKED].abs() for t in (a, b)]
    return max((float(t.max()) for t in sizes if t.numel()), default=0.0)


def _alone(shape: torch.Size, direction: Tensor, kept: int) -> Callable[..., Any]:
    """A hook that takes a direction out of all tokens but one, whatever their shape."""

    def hook(_module: nn.Module, args: tuple[Any, ...]) -> Any:
        value = args[0]
        channels_first = value.ndim == 4 and value.shape[-1] != shape[-1] and value.shape[1] == shape[-1]
        flat = value.movedim(1, -1) if channels_first else value
        tokens = flat.reshape(-1, shape[-1]).clone()
        if tokens.shape[0] != shape[0] * shape[1]:
            return None
        part = tokens @ direction
        part[kept] = 0.0
        tokens = (tokens - part[:, None] * direction).reshape(flat.shape)
        return (tokens.movedim(-1, 1) if channels_first else tokens, *args[1:])

    return hook


def _owner(bench: Bench, role: Role) -> nn.Module | None:
    """The module in the layer that holds a role's weight, if it is called as a module of its own."""
    path = bench.local(bench.layout.role(role).parameter).rpartition(".")[0]
    try:
        return bench.module.get_submodule(path) if path and bench.called(role) else None
    except AttributeError:
        return None

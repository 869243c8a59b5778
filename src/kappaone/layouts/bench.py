"""One attention layer on the bench: what its projections read, and what it puts out before its output projection.

The module runs alone, on the inputs that it got in a forward pass of the model, in float64, with copies of its weights
(`torch.func.functional_call`): nothing is written to the model.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from kappaone.errors import MeasureError
from kappaone.layouts.blocks import as_matrix
from kappaone.layouts.capture import Heard
from kappaone.layouts.layout import QKV, AttentionLayout, Role, RoleRows
from kappaone.layouts.precision import Unclamped, double_precision, doubled


class Bench:
    """An attention module with its inputs and weights in float64.

    Args:
        module: the attention module, in evaluation mode.
        layout: what is said of it.
        heard: what it got when the model ran.

    Attributes:
        base: (batch, tokens, heads x value_dim), its output in front of the output projection.
        size: largest entry of `base`.
    """

    def __init__(self, module: nn.Module, layout: AttentionLayout, heard: Heard) -> None:
        self.module, self.layout = _plain(module), layout
        self.args, self.kwargs = doubled(heard.args), doubled(heard.kwargs or {})
        state = {**dict(self.module.named_parameters()), **dict(self.module.named_buffers())}
        self.state = {name: doubled(value.detach()) for name, value in state.items()}
        self.batch_first = bool(layout.facts.get("batch_first", True))
        if layout.o is not None and layout.output == "projected":
            self._open_output()
        tokens = next((t for t in _floating((*self.args, *self.kwargs.values())) if t.ndim >= 2), None)
        if tokens is not None and not tokens.numel():
            raise MeasureError(
                f"layer {layout.name!r} was called with no tokens: {tuple(tokens.shape)}",
                "pass an example with at least one item and three tokens",
            )
        self._read: dict[Role, Tensor] = {}
        self._called: set[Role] = set()
        self._again: Counter[Role] = Counter()
        self._listening = True
        self.base = self.output(self.state)
        self._listening = False
        self.size = float(self.base.abs().max())
        if not bool(self.base.isfinite().all()):
            raise MeasureError(
                f"layer {layout.name!r} gives NaN or infinite outputs in float64 on the inputs it got, before anything is changed",
                "pass an example without padding, or one that the model computes finite outputs for",
            )
        if not torch.equal(self.base, self.output(self.state)):
            raise MeasureError(
                f"layer {layout.name!r} gives two outputs for the same inputs (it keeps a state, or draws numbers)",
                "verify it with its cache and its randomness off",
            )
        self._askers = _largest_late(self.reads("q"))
        self._asking = self._askers[:, 0]

    def reads(self, role: Role) -> Tensor:
        """(batch, tokens, width): what the projection of a role reads.

        What its module was called with if that is a module of its own, else the layer's input of this width.
        """
        if role in self._read:
            return self._read[role]
        width = self.layout.role(role).width
        fitting = [t for t in _floating((*self.args, *self.kwargs.values())) if t.shape[-1] == width and t.ndim >= 2]
        # A call such as attention(query, key, value) says what each role reads.
        named = self.kwargs.get({"q": "query", "k": "key", "v": "value"}[role])
        by_place = [t for t in _floating(self.args[:3]) if t.ndim >= 2]
        if isinstance(named, Tensor) and named.shape[-1] == width:
            chosen = named
        elif len(by_place) == 3 and by_place[QKV.index(role)].shape[-1] == width:
            chosen = by_place[QKV.index(role)]
        elif fitting:
            chosen = fitting[-1 if role != "q" and self.layout.facts.get("cross") else 0]
        else:
            raise MeasureError(
                f"layer {self.layout.name!r} was called without tokens of width {width}, which its {role} reads",
                "report this layer",
            )
        self._read[role] = self._tokens(chosen, role)
        return self._read[role]

    def tested(self, role: Role) -> Tensor:
        """(batch,) the token of each example that tells query rows from key rows, among those that a role reads."""
        reads = self.reads(role)
        if len(self._asking) == len(reads):
            return self._asking.clamp(max=reads.shape[1] - 1)
        return torch.full((len(reads),), reads.shape[1] - 1, device=reads.device)

    @contextmanager
    def asking(self, turn: int) -> Iterator[None]:
        """Meanwhile another token of each example is the tested one: the next largest ones, by their place."""
        self._asking = self._askers[:, min(turn, self._askers.shape[1] - 1)]
        try:
            yield
        finally:
            self._asking = self._askers[:, 0]

    def single(self, role: Role) -> bool:
        """Whether only one token asks, or the role reads one token only."""
        asking = self.reads("q")
        alike = bool((asking == asking[:, :1]).all())  # one learned query, many times
        return alike or self.base.shape[1] == 1 or self.reads(role).shape[1] == 1

    def called(self, role: Role) -> bool:
        """Whether the role's weight belongs to a module that was called, so that what it reads was seen."""
        return role in self._called

    def respond(self, role: Role, row: int, change: Tensor) -> Tensor:
        """How the output differs when a row of a role's weight is changed."""
        rows = self.layout.role(role)
        name = self.local(rows.parameter)
        weight = self.state[name].clone(memory_format=torch.contiguous_format)
        as_matrix(weight, rows)[row] += change
        if self._again[role]:
            return self._respond_once(rows, weight) - self.base
        return self.output({**self.state, name: weight}) - self.base

    def _respond_once(self, rows: RoleRows, weight: Tensor) -> Tensor:
        """The output where a projection reads tokens by a changed weight, and what it reads later as before.

        DeBERTa may project positions by the weights of queries and keys: no direction is hidden from all of those.
        """
        owner = self._owner(rows)
        assert owner is not None
        calls: list[int] = []

        def hook(module: nn.Module, args: tuple[Any, ...], out: Any) -> Any:
            calls.append(1)
            if len(calls) > 1 or not isinstance(out, Tensor):
                return None
            handle.remove()  # it would run again inside
            return torch.func.functional_call(module, {"weight": weight}, args)

        handle = owner.register_forward_hook(hook)
        try:
            return self.output(self.state)
        finally:
            handle.remove()

    def moved_heads(self, response: Tensor) -> tuple[int, ...]:
        """The output heads that a response moves."""
        by_head = torch.stack([part.abs().max() for part in self._by_head(response)])
        return tuple(int(h) for h in (by_head > 1e-4 * by_head.max()).nonzero().flatten())

    def moved_columns(self, response: Tensor) -> int:
        """How many output columns move."""
        by_column = response.abs().amax(dim=(0, 1))
        return int((by_column > 1e-6 * by_column.max()).sum())

    def fills_its_heads(self, response: Tensor, moved: tuple[int, ...]) -> bool:
        """Whether a query or key row moves its heads as a whole: else the layout's heads are several real ones."""
        parts = self._by_head(response)
        columns = [parts[head].abs().amax(dim=(0, 1)) for head in moved]
        top = max(float(part.max()) for part in columns)
        return all(float((part > 1e-9 * top).double().mean()) > 0.75 for part in columns)

    def at_tested(self, role: Role, response: Tensor) -> Tensor:
        """The response at the tested token of each example."""
        tested = self.tested(role)
        if len(response) != len(tested) or int(tested.max()) >= response.shape[1]:
            return response[:, -1]  # folded batches: the module's tokens are not the output's
        return response[torch.arange(len(response), device=response.device), tested.to(response.device)]

    def _by_head(self, response: Tensor) -> list[Tensor]:
        """The columns of each output head."""
        heads, o = self.layout.output_heads, self.layout.o
        if o is not None and o.heads == heads and (self.layout.output == "projected" or response.shape[-1] >= o.stop):
            # What is captured may be the attention's part alone, where the projection reads something else before it.
            first = 0 if response.shape[-1] >= o.stop else min(o.starts)
            spans = [o.span(head) for head in range(heads)]
            return [response[..., slice(span.start - first, span.stop - first, span.step)] for span in spans]
        return list(response.tensor_split(heads, -1))

    def output(self, state: Mapping[str, Tensor]) -> Tensor:
        """(batch, tokens, heads x value_dim), in front of the output projection."""
        seen: list[Tensor] = []
        handles = []
        owner = self._owner(self.layout.o) if self.layout.output == "projected" else None
        if owner is not None:
            handles.append(owner.register_forward_pre_hook(lambda _m, args: seen.append(args[0])))
        if self._listening:
            for role in QKV:
                handles.append(self._listen(role))
        handles += [norm.register_forward_hook(_passed_through) for norm in self._joint_norms()]
        try:
            with double_precision(), Unclamped() if self.layout.facts.get("clamped") else nullcontext():
                out = torch.func.functional_call(self.module, dict(state), self.args, self.kwargs)
        except MeasureError:
            raise
        except Exception as error:
            raise MeasureError(
                f"layer {self.layout.name!r} does not run alone in float64 on the inputs it got: {type(error).__name__}: {error}",
                "verify a float32 copy of the model, or leave verify out",
            ) from error
        finally:
            for handle in handles:
                if handle is not None:
                    handle.remove()
        rows = self.layout.o if seen else None
        # Joint attention returns both of its streams, the added one second.
        added = int(self.layout.name != self.layout.module and isinstance(out, (tuple, list)) and len(out) > 1)
        result = self._all_calls(seen) if seen else out[added] if isinstance(out, (tuple, list)) else out
        while isinstance(result, (tuple, list)):  # I-BERT returns each part with a scaling factor
            result = result[0]
        width = rows.rows if rows is not None else self.layout.output_heads * self.layout.v.size
        result = result.detach().double()
        if self._channels_first(result, rows, width):
            result = result.movedim(1, -1)
        elif result.ndim == 4 and result.shape[-2:] == (self.layout.output_heads, self.layout.v.size):
            result = result.flatten(-2)  # heads not joined yet
        if result.ndim == 2:
            result = result[None]
        if not self.batch_first:
            result = result.transpose(0, 1)
        return result.reshape(result.shape[0], -1, result.shape[-1])

    def _all_calls(self, seen: list[Tensor]) -> Tensor:
        """What the output projection was called with: its calls one after the other, where each has some tokens."""
        alike = len({(t.shape[0], t.shape[-1]) for t in seen}) == 1
        if len(seen) == 1 or not alike or not self.batch_first:
            return seen[0]
        return torch.cat([t.reshape(t.shape[0], -1, t.shape[-1]) for t in seen], 1)

    def _joint_norms(self) -> list[nn.Module]:
        """Norms over all heads together, which would hide in whose columns a row moves: they are left out here."""
        facts, o = self.layout.facts, self.layout.o
        if o is not None and self.layout.output == "projected" and self._owner(o) is None:
            # Nobody calls a parameter, so that what comes after it (XLNet's norm) is all there is to see.
            return [module for module in self.module.modules() if _is_norm(module)]
        if not facts.get("output_norm") and facts.get("qk_norm") != "whole":
            return []
        return [module for module in self.module.modules() if _is_norm(module)]

    def _listen(self, role: Role) -> Any:
        """Note what the module that owns a role's weight is called with, once."""
        rows = self.layout.role(role)
        owner = self._owner(rows)
        if owner is None:
            return None

        def hook(_module: nn.Module, args: tuple[Any, ...]) -> None:
            if role not in self._read and args and isinstance(args[0], Tensor):
                self._read[role] = self._tokens(self._batch_first(args[0].detach()), role)
                self._called.add(role)
            elif self._listening and role in self._called:
                self._again[role] += 1

        return owner.register_forward_pre_hook(hook)

    def _batch_first(self, value: Tensor) -> Tensor:
        """What a projection is called with, turned back where the module turns its input to sequence first."""
        for given in _floating((*self.args, *self.kwargs.values())) if self.batch_first else ():
            if given.ndim == value.ndim == 3 and torch.equal(value, given.transpose(0, 1)):
                return given
        return value

    def _tokens(self, value: Tensor, role: Role) -> Tensor:
        """(batch, tokens, width) of what a projection is called with."""
        width = self.layout.role(role).width
        if self._channels_first(value, self.layout.role(role), width):
            value = value.movedim(1, -1)
        if not self.batch_first and value.ndim >= 3:
            value = value.transpose(0, 1)
        batch = next((t.shape[0] for t in _floating((*self.args, *self.kwargs.values())) if t.ndim >= 3), 0)
        if value.ndim == 2 and value.shape[0] == batch:
            value = value[:, None]  # one token of each example
        tokens = value.reshape(value.shape[0] if value.ndim > 2 else 1, -1, value.shape[-1])
        spread = float((tokens - tokens.reshape(-1, tokens.shape[-1])[0]).abs().max())
        if tokens.numel() and not bool(tokens.any()):
            raise MeasureError(
                f"layer {self.layout.name!r}: what its {role} reads is all zeros, so that its weight plays no role yet",
                "verify another layer (learned queries often start at zero)",
            )
        # Queries may well be one learned token for each of several items.
        if spread == 0 and tokens.shape[1] > 1 and role != "q":
            raise MeasureError(
                f"layer {self.layout.name!r}: all tokens of the example are alike",
                "pass an example with different tokens",
            )
        return tokens

    def _channels_first(self, value: Tensor, rows: RoleRows | None, width: int) -> bool:
        """Whether channels are the second axis: for certain where a convolution reads them, else by their number."""
        if value.ndim != 4 or value.shape[1] != width:
            return False
        weight = None if rows is None else self.state.get(self.local(rows.parameter))
        return value.shape[-1] != width or (weight is not None and weight.ndim == 4)

    def _open_output(self) -> None:
        """Make the output projection the identity, for modules that do not call it as a module (torch's MHA)."""
        o = self.layout.o
        assert o is not None
        name = self.local(o.parameter)
        if name in self.state and o.width >= o.rows and o.axes == 1:
            weight = torch.zeros_like(self.state[name])
            as_matrix(weight, o).fill_diagonal_(1.0)
            self.state[name] = weight
            bias = None if o.bias is None else self.local(o.bias)
            if bias in self.state:
                self.state[bias] = torch.zeros_like(self.state[bias])

    def _owner(self, rows: RoleRows | None) -> nn.Module | None:
        """The module in the layer that holds a weight, if it is not the layer itself."""
        if rows is None:
            return None
        owner = self.local(rows.parameter).rpartition(".")[0]
        try:
            return self.module.get_submodule(owner) if owner else None
        except AttributeError:
            return None  # under the parent, as BERT's output projection

    def local(self, name: str) -> str:
        """A parameter's name inside the module, as functional_call wants it."""
        prefix = f"{self.layout.module}." if self.layout.module else ""
        return name.removeprefix(prefix)


def _plain(module: nn.Module) -> nn.Module:
    """The module, or a copy of it in which each parametrized weight is the tensor that its parametrization gives."""
    if not any(map(parametrize.is_parametrized, module.modules())):
        return module
    copied = copy.deepcopy(module)
    for part in list(copied.modules()):
        if not parametrize.is_parametrized(part):
            continue
        names = list(getattr(part, "parametrizations", ()))
        values = {name: getattr(part, name).detach() for name in names}
        # torch gives each parametrized module a class of its own, which the original shares with its copy:
        # remove_parametrizations would take the weight from both.
        part.__class__ = type(part).__bases__[0]
        del part._modules["parametrizations"]
        for name, value in values.items():
            part.register_parameter(name, nn.Parameter(value, requires_grad=False))
    return copied


def _is_norm(module: nn.Module) -> bool:
    told = any(hasattr(module, name) for name in ("eps", "variance_epsilon", "epsilon"))
    return told and all(parameter.ndim <= 1 for parameter in module.parameters())


def _passed_through(_module: nn.Module, args: tuple[Any, ...], out: Any) -> Any:
    return args[0] if args and isinstance(out, Tensor) and args[0].shape == out.shape else out


def _largest_late(tokens: Tensor) -> Tensor:
    """(batch, some) the tokens of each example that tell query rows from key rows, from the best one on.

    They lie in the second half, since under a causal mask they must see others, and are the largest there: a token of
    zeros (a detection token before its first update, padding) asks for nothing, so that no key row could change its
    output. Where that half is all zeros, the whole serves.
    """
    sizes = tokens.norm(dim=-1)
    half = sizes.shape[1] // 2
    late = sizes[:, half:] if bool((sizes[:, half:].amax(1) > 0).all()) else sizes
    # The last of equal ones: flipped, since a stable order keeps the first in front.
    order: Tensor = late.flip(1).argsort(dim=1, descending=True, stable=True)
    last: int = sizes.shape[1] - 1
    tokens_by_size: Tensor = last - order
    return tokens_by_size


def _floating(values: tuple[Any, ...]) -> list[Tensor]:
    return [v for v in values if isinstance(v, Tensor) and v.is_floating_point()]

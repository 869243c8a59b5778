"""What the rows of an unknown attention module do, told from its behaviour alone: no name is read.

Every weight inside the module whose input was seen is tried, row by row, as the probe does (kappaone.layouts.probe), but
without a layout that says what to expect:

* a linear response that mixes tokens is a value row; a linear one that stays at its token is a row of the output
  projection (or of another map after the mixing);
* a curved response that stays at its token and moves a whole head is a query row; one that moves a single column is a
  row of a gate;
* a curved response that mixes tokens is a key row.

The output projection is found first, since the heads are columns of what it reads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from kappaone.errors import LayoutError, MeasureError
from kappaone.layouts.capture import Heard
from kappaone.layouts.precision import doubled
from kappaone.layouts.response import NOISE, anywhere, grow, orthogonal_to

Tell = Callable[[int, int], None]
# Rows of each weight that are tried first; with three roles of equal size one is missed once in a thousand times.
_SAMPLE = 20


@dataclass
class Weight:
    """A weight of the module, as a map from what it reads.

    Attributes:
        name: the parameter's name inside the module.
        reads: (batch, tokens, inputs) what it is applied to.
        transposed: stored (in, out).
        outputs: number of rows.
        rows: for each row that was tried, what it does: (role, moved columns).
    """

    name: str
    reads: Tensor
    transposed: bool
    outputs: int
    rows: dict[int, tuple[str, tuple[int, ...]]] = field(default_factory=dict)


@dataclass(frozen=True)
class Explored:
    """What was found out about a module.

    Attributes:
        weights: the weights that hold query, key or value rows.
        output: the output projection, or None.
        columns: width of what is in front of the output projection (or of the output).
    """

    weights: tuple[Weight, ...]
    output: Weight | None
    columns: int


class Explorer:
    """One module on the bench, without a layout.

    Args:
        module: the module, in evaluation mode.
        name: its name, for messages.
        heard: what it got when the model ran.
        seed: of the directions.
    """

    def __init__(self, module: nn.Module, name: str, heard: Heard, *, seed: int = 0) -> None:
        self.module, self.name = module, name
        self.args, self.kwargs = doubled(heard.args), doubled(heard.kwargs or {})
        state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        self.state: dict[str, Tensor] = {key: doubled(value.detach()) for key, value in state.items()}
        self.random = torch.Generator("cpu").manual_seed(seed)
        self.front: nn.Module | None = None
        self.weights = self._weights()

    def explore(self, tell: Tell | None = None) -> Explored:
        """Try a few rows of every weight, find the output projection, then try every row in front of it.

        Raises:
            LayoutError: if no query, key and value rows are found.
        """
        sampled = {weight.name: self._sampled(weight) for weight in self.weights}
        output = self._output_projection(sampled)
        if output is not None:
            self.front = self.module.get_submodule(output.name.rpartition(".")[0])
        mixing = [w for w in self.weights if w is not output and set(sampled[w.name]) & {"v", "q", "k"}]
        total, done = sum(weight.outputs for weight in mixing), 0
        base = self._run(self.state)
        for weight in mixing:
            for row in range(weight.outputs):
                weight.rows[row] = self._try(weight, row, base)
                done += 1
                if tell is not None:
                    tell(done, total)
        kept = tuple(w for w in mixing if {role for role, _ in w.rows.values()} & {"q", "k", "v"})
        missing = set("qkv") - {role for w in kept for role, _ in w.rows.values()}
        if missing:
            seen = "; ".join(f"{w.name}: {_counted(w)}" for w in mixing) or "no weight that mixes tokens"
            raise LayoutError(
                f"layer {self.name!r} has no rows that behave as {' or '.join(sorted(missing))} (seen: {seen})",
                "it may not be softmax(Q K^T) V; pass an example with more, and different, tokens, or write the layout by hand",
            )
        return Explored(kept, output, base.shape[-1])

    def _weights(self) -> list[Weight]:
        """Every weight of two or more axes with what it was applied to, from one run."""
        inputs: dict[str, Tensor] = {}
        outputs: dict[str, Tensor] = {}
        handles = []
        for path, module in self.module.named_modules():
            if path and any(p is not None and p.ndim >= 2 for p in module._parameters.values()):

                def hook(_m: nn.Module, args: tuple[Any, ...], out: Any, path: str = path) -> None:
                    if path not in inputs and args and isinstance(args[0], Tensor) and isinstance(out, Tensor):
                        inputs[path], outputs[path] = args[0].detach(), out.detach()

                handles.append(module.register_forward_hook(hook))
        try:
            self._call(self.state)
        finally:
            for handle in handles:
                handle.remove()
        found: list[Weight] = []
        for name, parameter in self.module.named_parameters():
            owner, _, own = name.rpartition(".")
            if parameter.ndim < 2 or (parameter.ndim > 2 and parameter[0, 0].numel() != 1):
                continue
            matrix = self.state[name].flatten(1)
            if owner in inputs and own == "weight":
                made = _orientation(matrix, inputs[owner], outputs[owner], self.state.get(f"{owner}.bias"))
            elif not owner:
                made = self._own(matrix)
            else:
                made = None
            if made is not None:
                reads, transposed = made
                found.append(Weight(name, reads, transposed, matrix.shape[1 if transposed else 0]))
        return found

    def _own(self, matrix: Tensor) -> tuple[Tensor, bool] | None:
        """A parameter of the module itself is taken to be applied to the module's first input of a fitting width."""
        for value in (*self.args, *self.kwargs.values()):
            if isinstance(value, Tensor) and value.is_floating_point() and value.ndim >= 2:
                if value.shape[-1] == matrix.shape[1]:
                    return _tokens(value), False
                if value.shape[-1] == matrix.shape[0]:
                    return _tokens(value), True
        return None

    def _sampled(self, weight: Weight) -> list[str]:
        """What a few rows do to the module's own output: v, q, k, o, dead or ?."""
        base = self._run(self.state)
        # By chance: rows that are evenly spaced could all fall on one role of an interleaved weight.
        chosen = torch.randperm(weight.outputs, generator=self.random, device="cpu")[:_SAMPLE].tolist()
        return [self._try(weight, int(row), base)[0] for row in chosen]

    def _try(self, weight: Weight, row: int, base: Tensor) -> tuple[str, tuple[int, ...]]:
        tested = torch.full((len(weight.reads),), _late(weight.reads), device=weight.reads.device)
        direction = orthogonal_to(weight.reads, tested, self.random)
        top = float(base.abs().max())
        seen = grow(lambda step: self._respond(weight, row, step * direction) - base, top)
        alone = seen is None
        if seen is None:
            other = anywhere(weight.reads, self.random)
            seen = grow(lambda step: self._respond(weight, row, step * other) - base, top)
        if seen is None:
            return "dead", ()
        by_column = seen.change.abs().amax(dim=(0, 1))
        moved = tuple(int(c) for c in (by_column > 1e-4 * by_column.max()).nonzero().flatten())
        if seen.kind == "?":
            return "?", moved
        at = seen.change[:, int(tested[0])] if seen.change.shape[1] == weight.reads.shape[1] else seen.change[:, -1]
        stays = alone or float(at.abs().max()) < 1e-6 * seen.size + NOISE * top
        if seen.kind == "linear":
            return ("o" if stays else "v"), moved
        if stays:
            return ("gate" if len(moved) == 1 else "q"), moved
        return "k", moved

    def _output_projection(self, sampled: Mapping[str, list[str]]) -> Weight | None:
        """The last linear map: all its rows are linear and stay at their token, and it reads what value rows change."""
        fitting = [
            weight
            for weight in self.weights
            if set(sampled[weight.name]) <= {"o", "dead"} and "o" in sampled[weight.name] and "." in weight.name
        ]
        values = next((w for w in self.weights if "v" in sampled[w.name]), None)
        if values is None:
            return None
        changed = {**self.state, values.name: self.state[values.name] * 1.5}
        reading = [w for w in fitting if not torch.equal(self._read(w, self.state), self._read(w, changed))]
        return reading[0] if reading else None

    def _read(self, weight: Weight, state: Mapping[str, Tensor]) -> Tensor:
        """What a weight's module is called with under a state."""
        seen: list[Tensor] = []
        owner = self.module.get_submodule(weight.name.rpartition(".")[0])
        handle = owner.register_forward_pre_hook(lambda _m, args: seen.append(args[0].detach()))
        try:
            self._call(state)
        finally:
            handle.remove()
        return seen[0]

    def _respond(self, weight: Weight, row: int, change: Tensor) -> Tensor:
        stored = self.state[weight.name].clone(memory_format=torch.contiguous_format)
        matrix = stored.flatten(1) if stored.ndim == 2 else stored.view(stored.shape[0], -1)
        (matrix.T if weight.transposed else matrix)[row] += change
        return self._run({**self.state, weight.name: stored})

    def _run(self, state: Mapping[str, Tensor]) -> Tensor:
        """(batch, tokens, columns) in front of the output projection, or the output where there is none."""
        seen: list[Tensor] = []
        handle = None
        if self.front is not None:
            handle = self.front.register_forward_pre_hook(lambda _m, args: seen.append(args[0]))
        try:
            out = self._call(state)
        finally:
            if handle is not None:
                handle.remove()
        result = seen[0] if seen else out[0] if isinstance(out, (tuple, list)) else out
        if not isinstance(result, Tensor):
            raise MeasureError(
                f"layer {self.name!r} returns {type(result).__name__}; expected a tensor, or a tuple that starts with one",
                "write the layout by hand",
            )
        result = result.detach().double()
        return (
            result.reshape(1, *result.shape) if result.ndim == 2 else result.reshape(len(result), -1, result.shape[-1])
        )

    def _call(self, state: Mapping[str, Tensor]) -> Any:
        try:
            return torch.func.functional_call(self.module, dict(state), self.args, self.kwargs)
        except Exception as error:
            raise MeasureError(
                f"layer {self.name!r} does not run alone in float64 on the inputs it got: {type(error).__name__}: {error}",
                "probe a float32 copy of the model, or write the layout by hand",
            ) from error


def _orientation(matrix: Tensor, read: Tensor, made: Tensor, bias: Tensor | None) -> tuple[Tensor, bool] | None:
    """What a module's weight is applied to and how it is stored, told by comparing with what the module gives."""
    if read.ndim == 4 and made.ndim == 4 and read.shape[-1] != matrix.shape[1]:
        read, made = read.movedim(1, -1), made.movedim(1, -1)
    for transposed in (False, True):
        W = matrix.T if transposed else matrix
        if read.shape[-1] == W.shape[1] and made.shape[-1] == W.shape[0]:
            expected = read @ W.T + (0 if bias is None else bias)
            if torch.allclose(expected.to(made.dtype), made, rtol=1e-6, atol=1e-9):
                return _tokens(read), transposed
    return None


def _tokens(value: Tensor) -> Tensor:
    return value.reshape(value.shape[0] if value.ndim > 2 else 1, -1, value.shape[-1])


def _late(tokens: Tensor) -> int:
    """The token that tells query rows from key rows: one that sees others under a causal mask, and is not zero."""
    sizes = tokens.norm(dim=-1).amin(dim=0)
    half = len(sizes) // 2
    return len(sizes) - 1 - int(sizes[half:].flip(0).argmax())


def _counted(weight: Weight) -> str:
    roles = [role for role, _ in weight.rows.values()]
    return ", ".join(f"{roles.count(role)} {role}" for role in dict.fromkeys(roles))

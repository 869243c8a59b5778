"""The behavioural probe: what each row of an attention weight really does, without reading a name.

Change one row r of a weight, W -> W + eps e_r u^T, and watch the layer's output:

* exactly linear in eps (twice the change, twice the response): a value row;
* otherwise, with u orthogonal to what one token reads but not to what the others read: that token's output is
  unchanged for a query row, changed for a key row;
* the output columns that move, before the output projection, name the head (all heads of a group for a key or value
  row under grouped queries).

The module runs alone, on the inputs that it got in a forward pass of the model, in float64, with perturbed copies of
its weights (`torch.func.functional_call`): nothing is written to the model. The step is grown until a response is
clearly nonlinear or clearly is not, so that no fixed threshold misreads a weak row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from kappaone.errors import LayoutError, MeasureError
from kappaone.layouts.blocks import named_modules
from kappaone.layouts.capture import Heard, listen
from kappaone.layouts.layout import QKV, AttentionLayout, Role, RoleRows
from kappaone.layouts.running import evaluating

_STEPS = (1.0, 8.0, 64.0, 512.0, 4096.0)
# Softmax in float32 inside a float64 run leaves noise of about 1e-7 of the output.
_NOISE = 2e-6
_CLEAR = 1e-3
_FAR = 30.0
# A row is called linear only from this step on, and where the output's rounding hides no more than this.
_LARGE, _SURE = 64.0, 1e-4


@dataclass(frozen=True)
class RowVerdict:
    """What one row was expected to do, and what it did.

    Attributes:
        layer: module name.
        parameter: weight.
        row: index along the weight's output axis.
        expected_role: by the layout.
        expected_heads: query heads whose output may move, by the layout.
        role: seen; "?" if the response was neither clear nor absent, "dead" if there was none.
        heads: query heads whose output moved.
    """

    layer: str
    parameter: str
    row: int
    expected_role: str
    expected_heads: tuple[int, ...]
    role: str
    heads: tuple[int, ...]

    @property
    def ok(self) -> bool:
        """Whether it did what the layout says."""
        return self.role == self.expected_role and set(self.heads) == set(self.expected_heads)

    def __str__(self) -> str:
        return (
            f"{self.parameter} row {self.row}: the layout says {self.expected_role} of heads {list(self.expected_heads)}; "
            f"it behaves as {self.role} of heads {list(self.heads)}"
        )


@dataclass(frozen=True)
class ProbeReport:
    """The probe's verdicts over a model.

    Attributes:
        verdicts: one for each row that was tried.
        unreached: layers that the example did not reach.
    """

    verdicts: tuple[RowVerdict, ...]
    unreached: tuple[str, ...] = ()

    @property
    def wrong(self) -> tuple[RowVerdict, ...]:
        """Rows that do not do what the layout says."""
        return tuple(verdict for verdict in self.verdicts if not verdict.ok)

    @property
    def ok(self) -> bool:
        """Every row that was tried confirmed its layout, and every layer was reached."""
        return not self.wrong and not self.unreached and bool(self.verdicts)

    def require(self) -> ProbeReport:
        """Raise if a layout was contradicted.

        Raises:
            LayoutError: naming the first rows that disagree.
        """
        if self.wrong:
            shown = "\n  ".join(map(str, self.wrong[:4]))
            raise LayoutError(
                f"{len(self.wrong)} of {len(self.verdicts)} probed rows contradict their layout:\n  {shown}",
                "name the output projection (o=): without it the heads cannot be told apart behind it; or correct heads="
                if all(verdict.role == verdict.expected_role for verdict in self.wrong)
                else "correct the layout (order=, heads=, kv_heads=), or report the adapter",
            )
        if self.unreached:
            raise LayoutError(
                f"the example does not reach {len(self.unreached)} attention layers: {', '.join(self.unreached[:4])}",
                "pass an example that runs the whole model",
            )
        return self

    def __str__(self) -> str:
        layers = len({verdict.layer for verdict in self.verdicts})
        head = f"probe: {len(self.verdicts)} rows of {layers} layers, {len(self.wrong)} contradict their layout"
        return "\n  ".join([head, *map(str, self.wrong[:10]), *(f"not reached: {name}" for name in self.unreached)])


def verify(
    model: nn.Module,
    layouts: Sequence[AttentionLayout],
    example: Any,
    *,
    rows_per_head: int | None = 1,
    seed: int = 0,
) -> ProbeReport:
    """Check layouts against the model's behaviour.

    Args:
        model: the model; nothing in it changes.
        layouts: from `find_attention`.
        example: an input; at least three tokens, two of them different.
        rows_per_head: rows to try in each head of each role (the first ones by a seeded choice); None for all.
        seed: of the choice of rows and directions.

    Raises:
        MeasureError: if the model or a layer does not run on the example.

    Examples:
        >>> model = nn.TransformerEncoderLayer(16, 4, batch_first=True)
        >>> from kappaone.layouts import find_attention
        >>> print(verify(model, find_attention(model), torch.randn(2, 5, 16)))
        probe: 12 rows of 1 layers, 0 contradict their layout
    """
    heard = listen(model, layouts, example)
    modules = dict(named_modules(model))
    random = torch.Generator("cpu").manual_seed(seed)
    verdicts: list[RowVerdict] = []
    for layout in layouts:
        if heard[layout.name].calls:
            with evaluating(modules[layout.name]):
                verdicts += _Bench(modules[layout.name], layout, heard[layout.name], random).try_rows(rows_per_head)
    return ProbeReport(tuple(verdicts), tuple(layout.name for layout in layouts if not heard[layout.name].calls))


class _Bench:
    """One attention module on the bench: its inputs and weights in float64, its output in front of W_O."""

    def __init__(self, module: nn.Module, layout: AttentionLayout, heard: Heard, random: torch.Generator) -> None:
        self.module, self.layout, self.random = module, layout, random
        self.args, self.kwargs = _double(heard.args), _double(heard.kwargs or {})
        state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        self.state = {name: _double(value.detach()) for name, value in state.items()}
        self.tokens, self.batch_first = self._tokens()
        self.tested = _tested(self._reads(layout.width))
        if self.layout.o is not None and self.layout.output == "projected":
            self._open_output()
        self.base = self._output(self.state)
        if not bool(self.base.isfinite().all()):
            raise MeasureError(
                f"layer {layout.name!r} gives NaN or infinite outputs in float64 on the inputs it got, before anything is changed",
                "pass an example without padding, or one that the model computes finite outputs for",
            )
        if not torch.equal(self.base, self._output(self.state)):
            raise MeasureError(
                f"layer {layout.name!r} gives two outputs for the same inputs (it keeps a state, or draws numbers)",
                "verify it with its cache and its randomness off",
            )

    def try_rows(self, per_head: int | None) -> list[RowVerdict]:
        out = []
        for role in QKV:
            rows = self.layout.role(role)
            for head, start in enumerate(rows.starts):
                count = rows.size if per_head is None else min(per_head, rows.size)
                chosen = torch.randperm(rows.size, generator=self.random, device="cpu")[:count].tolist()
                out += [self._try(role, rows, head, start + int(offset)) for offset in chosen]
        return out

    def _try(self, role: Role, rows: RoleRows, head: int, row: int) -> RowVerdict:
        expected = tuple(
            h
            for h in range(self.layout.heads)
            if (role == "q" and h == head) or (role != "q" and self.layout.kv_head(h) == head)
        )
        seen, heads = self._classify(rows, row)
        return RowVerdict(self.layout.name, rows.parameter, row, role, expected, seen, heads)

    def _classify(self, rows: RoleRows, row: int) -> tuple[str, tuple[int, ...]]:
        reads = self._reads(rows.width)
        direction = _orthogonal_to(reads, self.tested, self.random)
        spread = float((reads.reshape(-1, reads.shape[-1]) @ direction).abs().max())
        if spread == 0:
            raise MeasureError(
                f"layer {self.layout.name!r}: all tokens of the example are alike",
                "pass an example with different tokens",
            )
        direction = direction / spread
        response, kink, noise, size, base = self.base, 0.0, 0.0, 0.0, float(self.base.abs().max())
        for step in _STEPS:
            response = self._respond(rows, row, step * direction)
            size = float(response.abs().max())
            if size == 0:
                continue
            kink = float((self._respond(rows, row, 2 * step * direction) - 2 * response).abs().max()) / size
            noise = _NOISE * max(1.0, base / size)
            # Above the noise too: a weak row's first response is a small part of the output, whose rounding looks
            # like a kink, and stopping there would leave the row undecided (or call a weak query row a value row).
            if kink > max(_CLEAR, _FAR * noise) or (step >= _LARGE and kink < noise < _SURE):
                break
        if size <= _NOISE * base * 1e-3:
            return "dead", ()
        moved = self._moved_heads(response)
        if kink < noise < _SURE:
            return "v", moved
        if kink <= max(_CLEAR, noise):
            return "?", moved
        still = float(self._at_tested(response).abs().max())
        role = "q" if still < 1e-6 * size + _NOISE * base else "k"
        return (role if self._fills_its_heads(response, moved) else f"{role} (of a part of the head only)"), moved

    def _at_tested(self, response: Tensor) -> Tensor:
        if len(response) != len(self.tested) or int(self.tested.max()) >= response.shape[1]:
            return response[:, -1]  # windows or folded batches: the module's tokens are not the output's
        return response[torch.arange(len(response), device=response.device), self.tested.to(response.device)]

    def _respond(self, rows: RoleRows, row: int, change: Tensor) -> Tensor:
        name = self._local(rows.parameter)
        weight = self.state[name].clone()
        matrix = weight.flatten(1).T if rows.transposed else weight.flatten(1)
        matrix[row] += change
        return self._output({**self.state, name: weight}) - self.base

    def _fills_its_heads(self, response: Tensor, moved: tuple[int, ...]) -> bool:
        """Whether a query or key row moves its head as a whole: else the layout's heads are several real ones."""
        by_column = response.reshape(*response.shape[:-1], self.layout.heads, -1).abs().amax(dim=(0, 1))[list(moved)]
        return bool(((by_column > 1e-9 * by_column.max()).double().mean(-1) > 0.75).all())

    def _moved_heads(self, response: Tensor) -> tuple[int, ...]:
        by_head = response.reshape(*response.shape[:-1], self.layout.heads, -1).abs().amax(dim=(0, 1, 3))
        return tuple(int(h) for h in (by_head > 1e-4 * by_head.max()).nonzero().flatten())

    def _output(self, state: Mapping[str, Tensor]) -> Tensor:
        """(batch, tokens, heads x value_dim), in front of the output projection."""
        seen: list[Tensor] = []
        owner = self._output_owner()
        handle = owner.register_forward_pre_hook(lambda _m, args: seen.append(args[0])) if owner is not None else None
        try:
            out = torch.func.functional_call(self.module, dict(state), self.args, self.kwargs)
        except Exception as error:
            raise MeasureError(
                f"layer {self.layout.name!r} does not run alone in float64 on the inputs it got: {type(error).__name__}: {error}",
                "verify a float32 copy of the model, or leave verify out",
            ) from error
        finally:
            if handle is not None:
                handle.remove()
        result = seen[0] if seen else out[0] if isinstance(out, (tuple, list)) else out
        if result.ndim == 2:
            result = result[None]
        if not self.batch_first:
            result = result.transpose(0, 1)
        return result.detach().double().reshape(result.shape[0], -1, result.shape[-1])

    def _open_output(self) -> None:
        """Make the output projection the identity, for modules that do not call it as a module (torch's MHA)."""
        o = self.layout.o
        assert o is not None
        name = self._local(o.parameter)
        if name in self.state and o.width >= o.rows:
            weight = torch.zeros_like(self.state[name])
            matrix = weight.T if o.transposed else weight.flatten(1)
            matrix.fill_diagonal_(1.0)
            self.state[name] = weight
            bias = None if o.bias is None else self._local(o.bias)
            if bias in self.state:
                self.state[bias] = torch.zeros_like(self.state[bias])

    def _output_owner(self) -> nn.Module | None:
        o = self.layout.o
        if o is None or self.layout.output != "projected":
            return None
        owner = self._local(o.parameter).rpartition(".")[0]
        return self.module.get_submodule(owner) if owner else None

    def _local(self, name: str) -> str:
        """A parameter's name inside the module, as functional_call wants it."""
        prefix = f"{self.layout.name}." if self.layout.name else ""
        return name.removeprefix(prefix)

    def _tokens(self) -> tuple[list[Tensor], bool]:
        batch_first = bool(self.layout.facts.get("batch_first", True))
        values = [*self.args, *self.kwargs.values()]
        found = [v for v in values if isinstance(v, Tensor) and v.is_floating_point() and v.ndim >= 2]
        fitting = [v for v in found if v.shape[-1] in {self.layout.role(role).width for role in QKV}]
        if not fitting:
            raise MeasureError(
                f"layer {self.layout.name!r} was called without tokens of width {self.layout.width}",
                "report this layer",
            )
        if not all(v.numel() for v in fitting):
            raise MeasureError(
                f"layer {self.layout.name!r} was called with no tokens: {tuple(fitting[0].shape)}",
                "pass an example with at least one item and three tokens",
            )
        return [v if batch_first or v.ndim < 3 else v.transpose(0, 1) for v in fitting], batch_first

    def _reads(self, width: int) -> Tensor:
        """(batch, tokens, width): what the queries read, if it has this width, else what has it."""
        chosen = next((t for t in self.tokens if t.shape[-1] == width), self.tokens[0])
        return chosen.reshape(chosen.shape[0] if chosen.ndim > 2 else 1, -1, width)


def _tested(tokens: Tensor) -> Tensor:
    """(batch,) the token of each example that tells query rows from key rows.

    It lies in the second half, since under a causal mask it must see others, and is the largest there: a token of
    zeros (a detection token before its first update) asks for nothing, so that no key row could change its output.
    """
    sizes = tokens.norm(dim=-1)
    half = sizes.shape[1] // 2
    # The last of equal ones: flipped, since argmax takes the first.
    back: Tensor = sizes[:, half:].flip(1).argmax(1)
    at: Tensor = sizes.shape[1] - 1 - back
    return at


def _orthogonal_to(tokens: Tensor, tested: Tensor, random: torch.Generator) -> Tensor:
    """A random direction orthogonal to the tested token of every example, not to the others."""
    at: Tensor | int = tested.clamp(max=tokens.shape[1] - 1) if len(tested) == len(tokens) else tokens.shape[1] - 1
    last = tokens[torch.arange(len(tokens), device=tokens.device), at]
    direction = torch.randn(tokens.shape[-1], generator=random, dtype=torch.float64, device="cpu").to(tokens.device)
    basis = torch.linalg.qr(last.T)[0] if len(last) < tokens.shape[-1] else last[:1].T / last[0].norm()
    for _ in range(2):  # twice is enough
        direction = direction - basis @ (basis.T @ direction)
    return direction


def _double(value: Any) -> Any:
    """Floating tensors in float64, wherever they are in the inputs; key/value caches, which remember calls, left out."""
    if hasattr(value, "get_seq_length"):
        return None
    if isinstance(value, Tensor):
        return value.double() if value.is_floating_point() else value
    if isinstance(value, tuple):
        return tuple(map(_double, value))
    if isinstance(value, list):
        return list(map(_double, value))
    if isinstance(value, dict):
        return {key: _double(item) for key, item in value.items()}
    return value

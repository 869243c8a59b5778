"""Write blocks into parameters, all or nothing.

In place, under no_grad: identity, dtype, device, strides, ties and requires_grad of a parameter stay as they are.
Values are computed in float64 and rounded to float32 and then to the parameter's dtype, so that a bf16 model gets
the same bits as an fp32 model that is cast to bf16 afterwards.
"""

from __future__ import annotations

import hashlib
import math
from types import TracebackType

import torch
from torch import Tensor

from kappaone.errors import WriteError

NOTHING = "no rank has written anything"
UNDONE = "every rank has put its weights back"


def rounded(values: Tensor, dtype: torch.dtype, name: str = "a block") -> Tensor:
    """Float64 values in the parameter's dtype, by way of float32 unless the parameter is float64 itself.

    Raises:
        WriteError: if a value is not finite, before or after rounding, or if all of them round to zero.
    """
    out = values if dtype == torch.float64 else values.to(torch.float32).to(dtype)
    # A sum of squares is finite only if every value is; where it overflows the values themselves decide.
    if not math.isfinite(norm(out)) and not bool(torch.isfinite(out).all()):
        raise WriteError(
            f"{name}: computed values are not finite in {dtype}", "lower scale=, gain= or std=, or report this scheme"
        )
    if dtype != torch.float64 and not bool(out.any()) and bool(values.any()):
        raise WriteError(f"{name}: all computed values round to zero in {dtype}", "raise scale=, gain= or std=")
    return out


def norm(block: Tensor) -> float:
    """Frobenius norm of a block.

    Examples:
        >>> norm(torch.tensor([[3.0, 0.0], [0.0, 4.0]]))
        5.0
    """
    flat = block.detach().reshape(-1)
    if flat.dtype in (torch.float16, torch.bfloat16):
        flat = flat.float()
    return math.sqrt(max(float(torch.dot(flat, flat)), 0.0)) if flat.is_cpu else float(torch.linalg.vector_norm(flat))


def fingerprint(block: Tensor) -> str:
    """SHA-256 of the bits of a block in row order, its first 16 hexadecimal digits.

    Examples:
        >>> fingerprint(torch.eye(3)) == fingerprint(torch.eye(3)), fingerprint(torch.eye(3)) == fingerprint(torch.eye(3).flip(0))
        (True, False)
    """
    bits = block.detach().to("cpu").contiguous()
    if bits.data_ptr() == block.data_ptr():
        bits = bits.clone()  # what NumPy has seen cannot be resized any more, as FSDP does with its parameters
    bits = bits.view(torch.uint8)
    return hashlib.sha256(bits.numpy().data).hexdigest()[:16]


class Transaction:
    """A set of writes that is kept whole or undone whole.

    Args:
        undo: keep a CPU copy of what is overwritten, and restore it when the block is left by any exception,
            interrupts included. Without it the exception says which blocks were already written.
    """

    def __init__(self, *, undo: bool) -> None:
        self._undo = undo
        self._saved: dict[tuple[int, tuple[int, ...]], tuple[Tensor, Tensor | None]] = {}
        self.written: list[str] = []

    @property
    def otherwise(self) -> str:
        """What is true of the weights on every rank after a failure."""
        return UNDONE if self._undo else "undo=False: what was written stays"

    def __enter__(self) -> Transaction:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None or not self.written:
            return
        if not self._undo:
            names = ", ".join(self.written)
            note = f"undo=False: these blocks were already written and stay so: {names}"
            if isinstance(error, Exception):
                raise WriteError(f"{error}; {note}", "build the model anew, or run init_ again") from error
            error.add_note(note)
            return
        self._restore()

    def write(self, name: str, view: Tensor, values: Tensor, old: Tensor | None = None) -> None:
        """Copy values into a view of a parameter, keeping what was there.

        Args:
            name: the block, for messages.
            view: view of the parameter, detached.
            values: same shape, in the parameter's dtype.
            old: a CPU copy of what is there, if one has been made.
        """
        key = (view.data_ptr(), tuple(view.shape))
        if key not in self._saved:
            kept = old if old is not None else view.to("cpu", copy=True)
            self._saved[key] = (view, kept if self._undo else None)
        self.written.append(name)  # before the copy: an interrupt in the middle of it counts as written
        with torch.no_grad():
            view.copy_(values)

    def _restore(self) -> None:
        """Put everything back; an interrupt meanwhile is held until all is back."""
        interrupted: KeyboardInterrupt | None = None
        waiting = list(self._saved.values())
        while waiting:
            try:
                view, old = waiting[-1]
                assert old is not None
                with torch.no_grad():
                    view.copy_(old)
                waiting.pop()
            except KeyboardInterrupt as error:
                interrupted = error
        if interrupted is not None:
            raise interrupted

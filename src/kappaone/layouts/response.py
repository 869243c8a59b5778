"""How a layer answers a change of one weight row: not at all, linearly, or in a curve.

The step is grown until a response is clearly nonlinear or clearly is not, so that no fixed threshold misreads a weak row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

_STEPS = (1.0, 8.0, 64.0, 512.0, 4096.0)
# Softmax in float32 inside a float64 run leaves noise of about 1e-7 of the output.
NOISE = 2e-6
_CLEAR = 1e-3
_FAR = 30.0
# A row is called linear only from this step on, and where the output's rounding hides no more than this.
_LARGE, _SURE = 64.0, 1e-4


@dataclass(frozen=True)
class Response:
    """What came of a change.

    Attributes:
        change: the change of the output.
        kind: "linear", "curved", or "?" where the two cannot be told.
        size: its largest entry.
    """

    change: Tensor
    kind: Literal["linear", "curved", "?"]
    size: float


def grow(respond: Callable[[float], Tensor], base: float) -> Response | None:
    """The response to a change that is grown until it is clearly linear, or clearly is not; None if there is none.

    Args:
        respond: the change of the output for a step of this length.
        base: largest entry of the output itself.
    """
    response, kink, noise, size = torch.zeros(()), 0.0, 0.0, 0.0
    for step in _STEPS:
        response = respond(step)
        size = float(response.abs().max())
        if size == 0:
            continue
        kink = float((respond(2 * step) - 2 * response).abs().max()) / size
        noise = NOISE * max(1.0, base / size)
        # Above the noise too: a weak row's first response is a small part of the output, whose rounding looks
        # like a kink, and stopping there would leave the row undecided (or call a weak query row a value row).
        if kink > max(_CLEAR, _FAR * noise) or (step >= _LARGE and kink < noise < _SURE):
            break
    if size <= NOISE * base * 1e-3:
        return None
    return Response(
        response, "linear" if kink < noise < _SURE else "?" if kink <= max(_CLEAR, noise) else "curved", size
    )


def covered(tokens: Tensor) -> int:
    """How many of the examples (windows are examples too) leave a direction orthogonal to a token of each of them."""
    return max(1, min(len(tokens), tokens.shape[-1] // 2))


def orthogonal_to(tokens: Tensor, tested: Tensor, random: torch.Generator) -> Tensor:
    """A random direction orthogonal to the tested token of the first `covered` examples; largest effect 1."""
    last = tokens[torch.arange(len(tokens), device=tokens.device), tested][: covered(tokens)]
    direction = torch.randn(tokens.shape[-1], generator=random, dtype=torch.float64, device="cpu").to(tokens.device)
    basis = torch.linalg.qr(last.T)[0]
    for _ in range(2):  # twice is enough
        direction = direction - basis @ (basis.T @ direction)
    spread = float((tokens.reshape(-1, tokens.shape[-1]) @ direction).abs().max())
    # A single token reads nothing else: the direction has no effect, whatever its length.
    return direction / spread if spread > 1e-12 * float(direction.norm()) else direction / direction.norm()


def anywhere(tokens: Tensor, random: torch.Generator) -> Tensor:
    """A random direction that all tokens see; largest effect 1."""
    direction = torch.randn(tokens.shape[-1], generator=random, dtype=torch.float64, device="cpu").to(tokens.device)
    return direction / (tokens.reshape(-1, tokens.shape[-1]) @ direction).abs().max()

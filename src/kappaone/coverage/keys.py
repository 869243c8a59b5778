"""Run a model once and see whether its attention has anything to choose from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from kappaone.errors import MeasureError
from kappaone.layouts.running import evaluating, run


def fewest_keys(model: nn.Module, example: Any) -> int | str | None:
    """The fewest keys that any softmax or fused attention of the model had on the example.

    Args:
        model: any module.
        example: an input that should run the whole model.

    Returns:
        The number; None where no attention ran; words where the model does not run on the example, or gives numbers
        that are not finite.

    Examples:
        >>> fewest_keys(nn.TransformerEncoderLayer(16, 4, batch_first=True), torch.randn(2, 5, 16))
        5
    """
    seen: list[int] = []

    class Count(TorchFunctionMode):
        def __torch_function__(
            self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
        ) -> Any:
            kwargs = kwargs or {}
            if func is F.scaled_dot_product_attention:
                seen.append(int((args[1] if len(args) > 1 else kwargs["key"]).shape[-2]))
            elif func is F.multi_head_attention_forward:
                seen.append(int(args[1].shape[0]))
            elif func in (F.softmax, torch.softmax, Tensor.softmax):
                logits = args[0] if args else kwargs["input"]
                dim = args[1] if len(args) > 1 else kwargs.get("dim", -1)
                if logits.ndim >= 3:
                    seen.append(int(logits.shape[-1 if dim is None else dim]))
            return func(*args, **kwargs)

    try:
        with evaluating(model), Count():
            out = run(model, example)
    except MeasureError as error:
        return error.what
    if isinstance(out, Tensor) and not bool(out.isfinite().all()):
        return "the output is not finite"
    return min(seen) if seen else None

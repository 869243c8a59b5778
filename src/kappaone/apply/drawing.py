"""Random numbers of a library's own initialization: from the seed alone, on whatever device and in whatever shards.

Inside `drawing_on_cpu`, every in-place draw (`normal_`, `uniform_`, ...) into a tensor that is not plain CPU memory is
made whole on the CPU and copied, so that a GPU and a sharded model get the numbers that a CPU model gets. torch's own
draws into DTensors depend on the number of ranks, and on the CPU they give every rank the same numbers
(pytorch#168058, pytorch#196562).
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from kappaone.streams import generator

_DRAWS = ("normal_", "uniform_", "random_", "bernoulli_", "exponential_", "log_normal_", "cauchy_", "geometric_")


class _DrawOnCpu(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Make in-place draws on the CPU, whole."""

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        options = dict(kwargs or {})
        packet = getattr(getattr(func, "overloadpacket", None), "__name__", "")
        target = args[0] if args else None
        if packet not in _DRAWS or not isinstance(target, Tensor) or _is_plain_cpu(target) or target.is_meta:
            return func(*args, **options)
        given = options.get("generator")
        if given is not None and given.device.type != "cpu":
            return func(*args, **options)
        whole = torch.empty(target.shape, dtype=target.dtype, device="cpu")
        func(whole, *args[1:], **options)
        put_whole(target, whole)
        return target


def _is_plain_cpu(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu" and not hasattr(tensor, "device_mesh")


def put_whole(target: Tensor, whole: Tensor) -> None:
    """Copy a whole tensor into a tensor, or this rank's part of it into a sharded one; nothing is sent."""
    if not hasattr(target, "device_mesh"):
        target.copy_(whole)
        return
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(target, DTensor)
    # src_data_rank=None: every rank cuts its part out of its own copy.
    part = distribute_tensor(
        whole.to(target.device_mesh.device_type), target.device_mesh, target.placements, src_data_rank=None
    )
    target.to_local().copy_(part.to_local())


@contextmanager
def drawing_on_cpu(seed: int, device: torch.device) -> Iterator[None]:
    """Draws come from the seed, on the CPU; every global random state is put back afterwards.

    Examples:
        >>> before = torch.random.get_rng_state()
        >>> with drawing_on_cpu(0, torch.device("cpu")):
        ...     x = torch.empty(2).normal_()
        >>> with drawing_on_cpu(0, torch.device("cpu")):
        ...     y = torch.empty(2).normal_()
        >>> torch.equal(x, y), torch.equal(before, torch.random.get_rng_state())
        (True, True)
    """
    rng = generator(seed, "materialize")
    states: list[tuple[Callable[[Any], Any], Any]] = [(random.setstate, random.getstate())]
    numpy = sys.modules["numpy"]
    states.append((numpy.random.set_state, numpy.random.get_state()))
    on_device = device.type not in ("cpu", "meta")
    devices = [device.index if device.index is not None else 0] if on_device else []
    try:
        with torch.random.fork_rng(devices=devices, device_type=device.type if on_device else "cuda"):
            torch.default_generator.manual_seed(int(rng.integers(2**63)))
            if on_device:
                with torch.get_device_module(device).device(device):
                    torch.get_device_module(device).manual_seed(int(rng.integers(2**63)))
            random.seed(int(rng.integers(2**63)))
            numpy.random.seed(int(rng.integers(2**32)))
            with _DrawOnCpu():  # type: ignore[no-untyped-call]
                yield
    finally:
        for put, state in states:
            put(state)

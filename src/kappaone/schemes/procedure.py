"""What a procedure is: an initialization that needs the model, a batch, a teacher or a measurement.

It shares the registry and the syntax of schemes and, like a scheme, returns jobs that only `kappaone.apply` writes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from kappaone.schemes.base import Job, Option


@dataclass(frozen=True)
class Procedure:
    """An entry of the registry.

    Attributes:
        name: how it is called.
        summary: one line.
        source: paper or code that it comes from.
        make: (context, **options) -> jobs by layer name; the context is `kappaone.apply.plan.Context`.
        needs_example: it cannot run without an example input.
        sharded: it knows that the model may be sharded: its measurements are the same on every rank
            (`Context.pooled`), and its jobs say which present weights they read.
        parts: the roles that it sets unless `parts=` says otherwise.
        options: its own options.
    """

    name: str
    summary: str
    source: str
    make: Callable[..., dict[str, list[Job]]]
    needs_example: bool = False
    sharded: bool = False
    parts: str = "qkv"
    options: Mapping[str, Option] = field(default_factory=dict)

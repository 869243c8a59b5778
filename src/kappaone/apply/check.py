"""`check`: was the initialization really applied, and is it still there? To be asked before step 1."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from kappaone.apply.gathered import Whole
from kappaone.apply.report import InitReport, changed_blocks, role_fingerprints
from kappaone.errors import LayoutError
from kappaone.layouts.blocks import named_modules, parameters_by_name
from kappaone.layouts.layout import AttentionLayout, Role
from kappaone.layouts.shards import at_rest

# For each role of each layer that kappaone wrote, by any call: the checksums of its blocks.
_WRITTEN: weakref.WeakKeyDictionary[nn.Module, dict[tuple[str, str], tuple[str, ...]]] = weakref.WeakKeyDictionary()
_LAST: weakref.WeakKeyDictionary[nn.Module, InitReport] = weakref.WeakKeyDictionary()


def remember(model: nn.Module, report: InitReport) -> None:
    """Keep the report of a model for as long as the model lives."""
    inner = _innermost(model)
    _LAST[inner] = report
    written = _WRITTEN.setdefault(inner, {})
    for layer in report.layers:
        for role, entry in layer.roles.items():
            if entry.status == "set":
                written[layer.layout.name, role] = tuple(entry.fingerprints)


def still_ours(
    model: nn.Module, layouts: Sequence[AttentionLayout], parameters: Mapping[str, Tensor]
) -> frozenset[tuple[str, str]]:
    """(layer, role) pairs whose blocks are, bit for bit, what kappaone last wrote there."""
    written = _WRITTEN.get(_innermost(model), {})
    roles: tuple[Role, ...] = ("q", "k", "v", "o")
    whole = Whole(parameters)
    return frozenset(
        (layout.name, role)
        for layout in layouts
        for role in roles
        if (layout.name, role) in written and role_fingerprints(layout, role, whole) == written[layout.name, role]
    )


def last_report(model: nn.Module) -> InitReport | None:
    """The report of the last `init_` of this model (through its wrappers), if there was one."""
    return _LAST.get(_innermost(model))


def _innermost(model: nn.Module) -> nn.Module:
    return next(module for _, module in named_modules(model))


@dataclass(frozen=True)
class CheckResult:
    """The outcome of `check`.

    Attributes:
        ok: every block that was set is still there, bit for bit.
        blocks: how many were set.
        changed: the blocks that differ now.
        scheme: the scheme of the report.
    """

    ok: bool
    blocks: int
    changed: tuple[str, ...]
    scheme: str

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        if self.ok:
            return f"{self.scheme}: all {self.blocks} blocks are as they were set"
        shown = "\n  ".join(self.changed[:10])
        more = f"\n  and {len(self.changed) - 10} more" if len(self.changed) > 10 else ""
        return f"{self.scheme}: {len(self.changed)} of {self.blocks} blocks are not as they were set:\n  {shown}{more}"

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON-ready form."""
        return {"ok": self.ok, "blocks": self.blocks, "changed": list(self.changed), "scheme": self.scheme}


def check(model: nn.Module, report: InitReport | None = None) -> CheckResult:
    """Compare a model with the report of its initialization, bit for bit.

    On a sharded model every rank must call this: weights are gathered, one at a time.

    Args:
        model: the model, wrapped or not.
        report: what `init_` returned; the last one of this model if None.

    Raises:
        LayoutError: if the model was never initialised and no report is given.

    Examples:
        >>> from kappaone.apply import init_
        >>> model = nn.TransformerEncoderLayer(16, 4)
        >>> _ = init_(model, "conditioned", seed=0)
        >>> print(check(model))
        conditioned: all 12 blocks are as they were set
        >>> _ = nn.init.zeros_(model.self_attn.in_proj_weight)
        >>> bool(check(model))
        False
    """
    report = report or last_report(model)
    if report is None:
        raise LayoutError(
            "this model was not initialised by kappaone in this process, so there is nothing to compare it with",
            "pass the report that init_ returned",
        )
    at_rest(model)
    return check_tensors(Whole(parameters_by_name(model)), report)


def check_tensors(tensors: Mapping[str, Tensor], report: InitReport) -> CheckResult:
    """The same for tensors by name, such as those of a safetensors file."""
    changed = tuple(changed_blocks(report, tensors))
    return CheckResult(not changed, report.blocks_set, changed, report.scheme)

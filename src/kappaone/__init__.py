"""kappaone starts the attention layers of any Transformer well, measures what that does, and proves whether it helped.

    report = kappaone.init_(model, "conditioned", seed=0)

Names are loaded when they are first used, so that `kappaone --help` does not wait for torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from kappaone._version import __version__ as __version__

if TYPE_CHECKING:
    from kappaone.apply import CheckResult as CheckResult
    from kappaone.apply import InitReport as InitReport
    from kappaone.apply import MaterializeReport as MaterializeReport
    from kappaone.apply import check as check
    from kappaone.apply import init_ as init_
    from kappaone.apply import materialize_ as materialize_
    from kappaone.apply.flags import keep_initialized as keep_initialized
    from kappaone.conditioning import ConditioningReport as ConditioningReport
    from kappaone.conditioning import inspect as inspect
    from kappaone.errors import KappaoneError as KappaoneError
    from kappaone.errors import KappaoneWarning as KappaoneWarning
    from kappaone.layouts import AttentionLayout as AttentionLayout
    from kappaone.layouts import AttentionSpec as AttentionSpec
    from kappaone.layouts import RoleRows as RoleRows
    from kappaone.layouts import find_attention as find_attention
    from kappaone.layouts.probe import ProbeReport as ProbeReport
    from kappaone.layouts.probe import verify as verify
    from kappaone.layouts.propose import propose as propose
    from kappaone.recipes import compare as compare
    from kappaone.reports import report as report

_HOME = {
    "AttentionLayout": "kappaone.layouts",
    "AttentionSpec": "kappaone.layouts",
    "CheckResult": "kappaone.apply",
    "InitReport": "kappaone.apply",
    "MaterializeReport": "kappaone.apply",
    "ConditioningReport": "kappaone.conditioning",
    "KappaoneError": "kappaone.errors",
    "KappaoneWarning": "kappaone.errors",
    "ProbeReport": "kappaone.layouts.probe",
    "RoleRows": "kappaone.layouts",
    "check": "kappaone.apply",
    "compare": "kappaone.recipes",
    "find_attention": "kappaone.layouts",
    "init_": "kappaone.apply",
    "inspect": "kappaone.conditioning",
    "keep_initialized": "kappaone.apply.flags",
    "materialize_": "kappaone.apply",
    "propose": "kappaone.layouts.propose",
    "report": "kappaone.reports",
    "verify": "kappaone.layouts.probe",
}
__all__ = ["__version__", *_HOME]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'kappaone' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)

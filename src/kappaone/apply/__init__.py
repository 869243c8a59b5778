"""Floor 2: writes a plan into a model, all or nothing, and reports."""

from kappaone.apply.check import CheckResult as CheckResult
from kappaone.apply.check import check as check
from kappaone.apply.init import init_ as init_
from kappaone.apply.materialize import MaterializeReport as MaterializeReport
from kappaone.apply.materialize import materialize_ as materialize_
from kappaone.apply.report import InitReport as InitReport

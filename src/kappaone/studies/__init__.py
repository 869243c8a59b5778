"""Studies: arms, paired seeds, runs that survive being killed, and statistics that a reviewer would accept.

Knows nothing of models or schemes: arms are strings, a run is a command or a function that records metrics. Importing
it loads neither torch nor scipy.

Examples:
    >>> from kappaone.studies import Plan
    >>> plan = Plan(name="demo", arms=("default", "conditioned"), seeds=range(8), margin=0.01)
    >>> len(plan.arms) * len(plan.seeds)
    16
"""

from kappaone.studies.analyse import analyse as analyse
from kappaone.studies.plan import Contrast as Contrast
from kappaone.studies.plan import Plan as Plan
from kappaone.studies.plan import TargetRule as TargetRule
from kappaone.studies.results import StudyAnalysis as StudyAnalysis
from kappaone.studies.store import RunRecord as RunRecord
from kappaone.studies.store import RunResult as RunResult
from kappaone.studies.study import Study as Study
from kappaone.studies.study import StudyStatus as StudyStatus

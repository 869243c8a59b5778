"""The statistics of a study: intervals, the exact check, steps to target, power."""

from kappaone.studies.statistics.contrasts import Estimate as Estimate
from kappaone.studies.statistics.contrasts import estimates as estimates
from kappaone.studies.statistics.contrasts import simultaneous_level as simultaneous_level
from kappaone.studies.statistics.contrasts import spread as spread
from kappaone.studies.statistics.contrasts import t_interval as t_interval
from kappaone.studies.statistics.power import Detectable as Detectable
from kappaone.studies.statistics.power import minimum_detectable as minimum_detectable
from kappaone.studies.statistics.power import t_test_power as t_test_power
from kappaone.studies.statistics.signflip import SignFlip as SignFlip
from kappaone.studies.statistics.signflip import sign_flip_max_t as sign_flip_max_t
from kappaone.studies.statistics.target import Reached as Reached
from kappaone.studies.statistics.target import steps_to_target as steps_to_target

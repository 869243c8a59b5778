"""Floor 2: weight spectra, the attention Jacobian and its condition number, the bound, `inspect`."""

from kappaone.conditioning.activity import AttentionActivity as AttentionActivity
from kappaone.conditioning.activity import attention_activity as attention_activity
from kappaone.conditioning.bound import AttentionBound as AttentionBound
from kappaone.conditioning.bound import attention_bound as attention_bound
from kappaone.conditioning.bound import kappa_plus_lambda as kappa_plus_lambda
from kappaone.conditioning.bound import kronecker_jacobian as kronecker_jacobian
from kappaone.conditioning.extremes import JacobianCondition as JacobianCondition
from kappaone.conditioning.extremes import condition_number as condition_number
from kappaone.conditioning.inspect import inspect as inspect
from kappaone.conditioning.jacobian import AttentionJacobian as AttentionJacobian
from kappaone.conditioning.rank import generic_rank as generic_rank
from kappaone.conditioning.report import ConditioningReport as ConditioningReport
from kappaone.conditioning.report import HeadCondition as HeadCondition
from kappaone.conditioning.report import LayerCondition as LayerCondition
from kappaone.conditioning.weights import RoleSpectra as RoleSpectra
from kappaone.conditioning.weights import WeightSpectra as WeightSpectra
from kappaone.conditioning.weights import weight_spectra as weight_spectra

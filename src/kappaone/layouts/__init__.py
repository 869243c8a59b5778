"""Floor 1: where each role's rows live, adapters by library, the behavioural probe."""

from kappaone.layouts.find import Refused as Refused
from kappaone.layouts.find import Survey as Survey
from kappaone.layouts.find import find_attention as find_attention
from kappaone.layouts.find import survey as survey
from kappaone.layouts.layout import AttentionLayout as AttentionLayout
from kappaone.layouts.layout import Inner as Inner
from kappaone.layouts.layout import RoleRows as RoleRows
from kappaone.layouts.spec import AttentionSpec as AttentionSpec

"""The conformance suite: what every scheme and every layout must do, importable by third parties.

from kappaone.testing import ModelCase, check_layout, check_scheme

@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_mine(dtype):
check_scheme("my_scheme", MY_CASE, dtype)
"""

from kappaone.testing.layouts import check_layout as check_layout
from kappaone.testing.layouts import rename_classes as rename_classes
from kappaone.testing.model_case import ModelCase as ModelCase
from kappaone.testing.schemes import check_scheme as check_scheme

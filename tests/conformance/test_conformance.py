"""Every scheme on every layout in every dtype, and every layout against its behaviour."""

from __future__ import annotations

import pytest
import torch

from kappaone.errors import SpecError
from kappaone.layouts import find_attention
from kappaone.schemes import ENTRIES, understand
from kappaone.testing import check_layout, check_scheme
from tests.conformance.rows import LAYOUTS, MODELS, SCHEMES


@pytest.mark.parametrize("case", [*MODELS, *LAYOUTS], ids=lambda case: case.name)
def test_layout(case):
    check_layout(case)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=lambda d: str(d)[6:])
@pytest.mark.parametrize("case", MODELS, ids=lambda case: case.name)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_scheme(scheme, case, dtype):
    if scheme == "unit_logits" and case.facts.get("qk_norm"):
        with pytest.raises(SpecError, match="normalized"):
            check_scheme(scheme, case, dtype)
        return
    if scheme == "default(redraw)" and not find_attention(case.model())[0].laws:
        with pytest.raises(SpecError, match="none known"):
            check_scheme(scheme, case, dtype)
        return
    check_scheme(scheme, case, dtype)


def test_every_entry_of_the_registry_has_a_row():
    assert {understand(scheme).entry.name for scheme in SCHEMES} == set(ENTRIES)

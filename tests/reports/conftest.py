"""One headless Chromium for all tests that look at a page."""

import os

import pytest

from .browser import Chromium, executable


@pytest.fixture(scope="session")
def chromium(tmp_path_factory):
    if executable() is None:
        reason = "Chromium is not installed (Debian: apt-get install --no-install-recommends chromium)"
        # An absent browser may not hide a broken page where the result counts.
        (pytest.fail if os.environ.get("CI") else pytest.skip)(reason)
    with Chromium(tmp_path_factory.mktemp("chromium")) as browser:
        yield browser

"""The one browser test of the default run; the others are the tier `browser`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def test_the_page_of_a_run_works_on_a_telephone_in_the_dark(opened: Callable[..., Any]) -> None:
    found = opened("one_of_ten", width=360, color_scheme="dark", bypass_csp=True)
    assert found.too_wide() == []
    found.page.fill("#text", "hopper-1")
    assert found.page.inner_text("#shown") == "2 of 10 hosts"
    assert found.violations() == []
    assert found.noise == []
    assert [url for url in found.requests if not url.startswith(("file:", "data:"))] == []

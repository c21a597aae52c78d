"""Which versions are the planned one."""

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.base.versions import is_version


@pytest.mark.parametrize(
    ("found", "planned", "same"),
    [
        ("595.71.05", "595.71.05", True),
        ("535.309.01", "535", True),
        ("535.309.01", "535.3", False),
        ("535", "535", True),
        ("5350.1", "535", False),
        ("535a", "535", False),
        ("1.535.1", "535", False),
        ("13.20", "13.2", False),
        ("13", "13.2", False),
        ("595.71.05-1", "595.71.05", True),
    ],
)
def test_is_version(found: str, planned: str, same: bool) -> None:
    assert is_version(found, planned) is same

"""User names and passwords in URLs, as people write them."""

from __future__ import annotations

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.base import urls


@pytest.mark.parametrize(
    ("text", "expected", "info"),
    [
        ("https://ann:s3cret@mirror.lab/cuda/", "https://mirror.lab/cuda/", "ann:s3cret"),
        ("https://token@mirror.lab:8443/cuda", "https://mirror.lab:8443/cuda", "token"),
        ("http://ann:p@ss@mirror.lab/", "http://mirror.lab/", "ann:p@ss"),
        ("http://ann:@mirror.lab", "http://mirror.lab", "ann:"),
        ("https://mirror.lab/a@b/", "https://mirror.lab/a@b/", None),
        ("ann@mirror.lab:/srv", "ann@mirror.lab:/srv", None),
        ("file:///srv/mirror", "file:///srv/mirror", None),
    ],
)
def test_the_user_info_of_a_url_is_found_and_removed(text: str, expected: str, info: str | None) -> None:
    assert urls.without_credentials(text) == expected
    assert urls.user_info(text) == info


def test_every_url_in_nested_data_is_cleaned() -> None:
    data = {"a": ["E: http://u:p@h/x failed, https://v:q@i/y too"], "http://u:p@h": {"n": 5, "b": None}, "t": (True,)}
    assert urls.without_credentials(data) == {
        "a": ["E: http://h/x failed, https://i/y too"],
        "http://h": {"n": 5, "b": None},
        "t": [True],
    }

# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Keep user names and passwords in URLs out of what is printed or written. Runs on the managed host and controller."""

from __future__ import annotations

import re
from typing import Any

_USER_INFO = re.compile(r"(?<=://)[^\s/\"'<>]*@")


def without_credentials(value: Any) -> Any:
    """Return text, or data with text however nested, without the user name and password of each URL in it."""
    if isinstance(value, str):
        return _USER_INFO.sub("", value) if "@" in value else value
    if isinstance(value, dict):
        return {without_credentials(name): without_credentials(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_credentials(item) for item in value]
    return value


def user_info(url: str) -> str | None:
    """Return USER:PASSWORD of a URL, as they are in it; None without."""
    found = _USER_INFO.search(url)
    return found.group()[:-1] if found else None

# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""A package to install, in plan, diff and transaction, whatever the package manager. Used on both sides."""

from __future__ import annotations

import dataclasses
from typing import Optional


@dataclasses.dataclass(frozen=True)
class Package:
    """A package to install; version: None where the archive decides.

    Its text, NAME=VERSION or NAME, is that of plan.json, of role variables and of messages.
    """

    name: str
    version: Optional[str] = None

    def __str__(self) -> str:
        return self.name if self.version is None else "%s=%s" % (self.name, self.version)

    @classmethod
    def parse(cls, text: str) -> Package:
        """Return the package of a text such as `libnccl2=2.29.7-1+cuda13.2`."""
        name, _unused, version = text.partition("=")
        return cls(name, version or None)

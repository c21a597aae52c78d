# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""A package to install, in plan, diff and transaction, whatever the package manager. Used on both sides."""

from __future__ import annotations

import dataclasses
import re
from typing import Optional

# As in rpm, neither a version nor a release has a hyphen. Without an epoch the end of a name could be a version.
_OF_RPM = re.compile(r"(?P<name>[^=]+)-(?P<epoch>\d+):(?P<version>[^-=:]+-[^-=:]+)")


@dataclasses.dataclass(frozen=True)
class Package:
    """A package to install; version: None where the archive decides.

    Its text is that of plan.json, of role variables and of messages, as the package manager takes it: NAME=VERSION, or
    NAME-EPOCH:VERSION-RELEASE for dnf (is_rpm); NAME without a version.
    """

    name: str
    version: Optional[str] = None
    is_rpm: bool = dataclasses.field(default=False, compare=False)

    def __str__(self) -> str:
        if self.version is None:
            return self.name
        if not self.is_rpm:
            return "%s=%s" % (self.name, self.version)
        return "%s-%s" % (self.name, self.version if ":" in self.version else "0:" + self.version)

    @classmethod
    def parse(cls, text: str) -> Package:
        """Return the package of a text such as `libnccl2=2.29.7-1+cuda13.2` or `libnccl-0:2.29.7-1+cuda13.2`.

        An rpm version has no epoch 0, as rpm itself prints it.
        """
        match = _OF_RPM.fullmatch(text)
        if match:
            epoch, version = match.group("epoch"), match.group("version")
            return cls(match.group("name"), version if epoch == "0" else "%s:%s" % (epoch, version), is_rpm=True)
        name, _unused, version = text.partition("=")
        return cls(name, version or None)

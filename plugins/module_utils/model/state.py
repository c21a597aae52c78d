# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""What a probe has of the parts that gpuhost applied. Read on the managed host, used on both sides."""

from __future__ import annotations

import dataclasses
from typing import Iterable, Mapping, NamedTuple


class SettingsLine(NamedTuple):
    """A line in a file of settings of others that breaks the stack, such as a global LD_LIBRARY_PATH."""

    file: str
    line: str


@dataclasses.dataclass(frozen=True)
class Repairs:
    """What is damaged: packages to install again, environments to rebuild, services to enable, lines to disable."""

    packages: tuple[str, ...] = ()
    environments: tuple[str, ...] = ()
    services: tuple[str, ...] = ()
    lines: tuple[SettingsLine, ...] = ()

    @classmethod
    def merged(cls, repairs: Iterable[Repairs]) -> Repairs:
        """Return several repairs as one, each thing once."""
        found = list(repairs)
        return cls(
            packages=tuple(dict.fromkeys(name for each in found for name in each.packages)),
            environments=tuple(dict.fromkeys(path for each in found for path in each.environments)),
            services=tuple(dict.fromkeys(name for each in found for name in each.services)),
            lines=tuple(dict.fromkeys(line for each in found for line in each.lines)),
        )


@dataclasses.dataclass(frozen=True)
class AppliedPart:
    """A part as the last complete run recorded it; changed: one sentence for each difference from the record.

    fingerprint: None for a part without a record, of which only damage is known. damage: a message by the name of what
    is damaged; accepted: the damage that stays (gpu_stack_accept_damage). why: the reason to apply a part whose record
    does not show whether it is whole.
    """

    fingerprint: str | None = None
    changed: tuple[str, ...] = ()
    repairs: Repairs = Repairs()
    damage: Mapping[str, str] = dataclasses.field(default_factory=dict)
    accepted: Mapping[str, str] = dataclasses.field(default_factory=dict)
    why: str = ""

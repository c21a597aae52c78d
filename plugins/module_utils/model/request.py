# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""The request: what the user sets with the gpu_stack_* variables."""

from __future__ import annotations

import functools
from typing import Iterable

from ansible_collections.gpuhost.stack.plugins.module_utils.model.records import ByName

LATEST = "latest"


class PlanInputError(ValueError):
    """The request, the probe or a plan cannot be used; the message lists every reason."""


class Request(ByName[str]):
    """The gpu_stack_* variables that a plan depends on, by name without the prefix, as text.

    meta/variables.yml says what each means and accepts. A component is `auto`, a version, a prefix of one (`13` for any
    CUDA 13), `latest`, or `none`. `auto` keeps what is there while it fits, and is the newest that fits where nothing
    is; `latest` is the newest each time. Immutable. components/inputs/user_request.py makes one with every variable.
    """

    def __eq__(self, other: object) -> bool:
        return self._values == other._values if isinstance(other, Request) else NotImplemented

    def __hash__(self) -> int:
        return self._hash

    @functools.cached_property
    def _hash(self) -> int:
        return hash(frozenset(self._values.items()))

    def but(self, **changes: str) -> Request:
        """Return the request with other values; raises KeyError for a variable that it does not have."""
        if unknown := changes.keys() - self._values.keys():
            raise KeyError(", ".join(sorted(unknown)))
        return Request({**self._values, **changes})

    def only(self, names: Iterable[str]) -> Request:
        """Return the request with these variables and no other, so that reading another one is a KeyError."""
        return Request({name: self._values[name] for name in names})

    @property
    def latest(self) -> tuple[str, ...]:
        """The components of which the newest is requested, whatever is there."""
        return tuple(name for name, value in self.items() if value == LATEST)

    def newest(self) -> Request:
        """Return the request of a host on which nothing is there: `auto` in place of `latest`."""
        return self.but(**dict.fromkeys(self.latest, "auto")) if self.latest else self

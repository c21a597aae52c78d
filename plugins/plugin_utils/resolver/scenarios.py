"""What remedies try, and what is kept: another request, another host.

Runs on the controller; pure data.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping

from ansible_collections.gpuhost.stack.plugins.module_utils.model.package import Package
from ansible_collections.gpuhost.stack.plugins.module_utils.model.plan import KeptDriver, Plan, Remedy
from ansible_collections.gpuhost.stack.plugins.module_utils.model.request import Request
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.schema import Catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.host import Host

Attempt = Callable[[Request, Host], Plan]


@dataclasses.dataclass(frozen=True)
class Trial:
    """A plan with problems, and what may be tried instead."""

    catalog: Catalog
    plan: Plan
    request: Request
    host: Host
    attempt: Attempt

    def changed(self, request: Request) -> dict[str, str]:
        """Return what another request changes, by field."""
        before = self.plan.request
        return {name: value for name, value in request.items() if before[name] != value}

    def remedy(self, request: Request) -> Remedy:
        """Return the remedy that consists of another request."""
        changes = self.changed(request)
        return Remedy(f"{settings(changes)} ({outcome(self.attempt(request, self.host))})", changes)


@dataclasses.dataclass(frozen=True)
class Repair:
    """A remedy for a problem; code: of the problem; find: yields what gives a plan. last: after those of the host."""

    code: str
    find: Callable[[Trial], Iterator[Remedy]]
    last: bool = False


@dataclasses.dataclass(frozen=True)
class Part:
    """What stays or is planned anew as a whole.

    names: the components; version: of the first one; asks: the request that keeps it; packages: what it consists of;
    stays: an installed driver that is not managed. of_others: others installed it.
    """

    names: tuple[str, ...]
    version: str
    asks: Mapping[str, str]
    packages: tuple[Package, ...] = ()
    stays: KeptDriver | None = None
    of_others: bool = False


@dataclasses.dataclass(frozen=True)
class Kept:
    """The request and the host to resolve in order to keep the parts.

    asked: the user's request and host. newest: the plan that keeps nothing; newer: the versions that `latest` would
    give, where they are others than those that stay. there: names of packages of what may stay; given_up: why a part is
    not kept, by its first component.
    """

    request: Request
    host: Host
    asked: tuple[Request, Host]
    parts: tuple[Part, ...] = ()
    newest: Plan | None = None
    newer: Mapping[str, str] = dataclasses.field(default_factory=dict)
    there: frozenset[str] = frozenset()
    given_up: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def names(self) -> dict[str, Part]:
        """The components that stay."""
        return {name: part for part in self.parts for name in part.names}

    def freed(self, part: Part) -> dict[str, str]:
        """Return what was requested in place of what keeps a part."""
        return {name: self.asked[0].newest()[name] for name in part.asks}


def settings(changes: Mapping[str, str]) -> str:
    """Return what to set, with quotes where YAML would drop a zero."""
    quoted = {
        name: f'"{value}"' if re.fullmatch(r"\d+\.\d*[1-9]0+", value) else value for name, value in changes.items()
    }
    return "set " + " and ".join(f"gpu_stack_{name}={value}" for name, value in quoted.items())


def outcome(plan: Plan) -> str:
    """Return in short what a plan installs."""
    parts = []
    for component in filter(None, plan.components.values()):
        parts.append(f"{component.label} {component.full_version}")
    return "gives " + ", ".join(parts) if parts else "installs nothing"

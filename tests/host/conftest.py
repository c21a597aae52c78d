"""Fixtures of the host suite: the plan that was applied to a host, read from the host itself.

The same suite runs on the lab's containers and on real machines:
`pytest tests/host --hosts=ansible://gpu_hosts --ansible-inventory=inventories/lab`.
"""

import json
from typing import Any

import pytest

from tests.packages import Packages, of

FACT = "/etc/ansible/facts.d/gpu_stack.fact"


@pytest.fixture(scope="module")
def plan(host) -> dict[str, Any]:
    """Return the applied plan, with which every test compares the host."""
    fact = host.file(FACT)
    assert fact.exists, f"{FACT} is missing: run playbooks/gpu_host.yml on this host first"
    return json.loads(fact.content_string)


@pytest.fixture(scope="module")
def component(plan):
    """Return a function: component("cuda") is the planned component; it skips the test if the plan has none."""

    def find(name: str) -> dict[str, Any]:
        if not plan["components"].get(name):
            pytest.skip(f"the plan has no {name}")
        return plan["components"][name]

    return find


@pytest.fixture(scope="module")
def variables(host) -> dict[str, Any]:
    """Return the host's inventory variables, which state whether this host runs its own kernel."""
    return host.ansible.get_variables()


@pytest.fixture(scope="module")
def as_root(host):
    with host.sudo():
        yield host


@pytest.fixture(scope="module")
def packages(host) -> Packages:
    return of(host)

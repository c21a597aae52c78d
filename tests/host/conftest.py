"""What the host suite knows of a host: the plan that was applied to it, read from the host itself.

The same suite runs on the lab's containers and on real machines:
`pytest tests/host --hosts=ansible://gpu_hosts --ansible-inventory=inventories/lab`.
"""

import json
from typing import Any

import pytest

FACT = "/etc/ansible/facts.d/gpu_stack.fact"


@pytest.fixture(scope="module")
def plan(host) -> dict[str, Any]:
    """The applied plan; without one there is nothing that the host could be held against."""
    fact = host.file(FACT)
    assert fact.exists, f"{FACT} is missing: run playbooks/gpu_host.yml on this host first"
    return json.loads(fact.content_string)


@pytest.fixture(scope="module")
def component(plan):
    """component("cuda"): the planned component; skips the test where the plan leaves it out."""

    def find(name: str) -> dict[str, Any]:
        if not plan["components"].get(name):
            pytest.skip(f"the plan leaves {name} out")
        return plan["components"][name]

    return find


@pytest.fixture(scope="module")
def variables(host) -> dict[str, Any]:
    """The host's inventory variables: they say whether this host runs its own kernel."""
    return host.ansible.get_variables()


@pytest.fixture(scope="module")
def as_root(host):
    with host.sudo():
        yield host

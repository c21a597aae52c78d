"""Each module of these tests is about one host, its HOST."""

import pytest


@pytest.fixture(scope="module")
def host(request):
    """Return the host of the module."""
    from testinfra import get_host

    inventory = request.config.option.ansible_inventory
    return get_host(f"ansible://{request.module.HOST}?ansible_inventory={inventory}")

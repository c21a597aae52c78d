"""A fake host for each framework."""

from pathlib import Path

import pytest

from tests.unit.roles.framework_env.fake_host import FRAMEWORKS, Host


@pytest.fixture(params=FRAMEWORKS, ids=lambda framework: framework.name)
def host(request: pytest.FixtureRequest, tmp_path: Path) -> Host:
    return Host(tmp_path / "gpuhost", request.param)

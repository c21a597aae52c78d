"""Each framework role's prove.py, run in environments with fake frameworks."""

import json
import subprocess

from tests.unit.roles.framework_env.fake_host import Host


def test_the_framework_tells_what_it_is(host: Host) -> None:
    command = [str(host.build(host.new) / "bin/python"), "-I", "-c", host.framework.proof]
    assert json.loads(subprocess.run(command, capture_output=True, check=True).stdout) == host.framework.answer

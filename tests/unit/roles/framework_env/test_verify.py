"""Each framework role's verify.py, run in environments with fake frameworks."""

import json
import subprocess

from tests.unit.roles.framework_env.fake_host import Host


def test_versions_of_the_framework_are_printed(host: Host) -> None:
    command = [str(host.build(host.new) / "bin/python"), "-I", "-c", host.framework.verify_script]
    assert json.loads(subprocess.run(command, capture_output=True, check=True).stdout) == host.framework.verified

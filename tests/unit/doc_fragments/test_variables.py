"""What ansible-doc prints of the request."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.declared import of_request

from tests.unit.ansible_runs import COLLECTIONS


def test_ansible_doc_has_the_declared_variables_of_the_request() -> None:
    command = [str(Path(sys.executable).with_name("ansible-doc")), "-t", "module", "gpuhost.stack.stack_plan", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **COLLECTIONS})
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["gpuhost.stack.stack_plan"]["doc"]["options"]["request"]["suboptions"]
    assert set(found) == set(of_request())
    assert found["leftovers"]["choices"] == ["refuse", "remove"]
    assert found["pytorch"]["default"] == "fallback"
    assert "V(latest): the newest each time." in found["cuda"]["description"]
    assert found["driver_profile"]["description"][0].endswith(
        "See desktops."
    )  # no link, which would be relative to docs/

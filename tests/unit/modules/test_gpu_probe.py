"""gpu_probe as Ansible runs it, on this very machine."""

from __future__ import annotations

import ast
import json
import os
import platform
from pathlib import Path

import pytest
import yaml
from ansible.module_utils.testing import patch_module_args
from ansible_collections.gpuhost.stack.plugins.modules import gpu_probe


@pytest.mark.parametrize("check", [False, True])
def test_it_tells_of_this_machine_and_changes_nothing(capsys: pytest.CaptureFixture[str], check: bool) -> None:
    with patch_module_args({"package_patterns": ["dpkg"], "_ansible_check_mode": check}), pytest.raises(SystemExit):
        gpu_probe.main()
    result = json.loads(capsys.readouterr().out)
    assert result["changed"] is False
    assert result["probe"]["kernel"]["running"] == os.uname().release
    assert result["probe"]["toolchain"]["glibc"] in (platform.libc_ver()[1], None)
    assert result["probe"]["repository"] is None
    assert set(result["probe"]["packages"]) <= {"dpkg"}


def test_documented_defaults_are_the_real_ones() -> None:
    tree = ast.parse(Path(gpu_probe.__file__).read_text())
    assert ast.get_docstring(tree)
    options = yaml.safe_load(gpu_probe.DOCUMENTATION)["options"]
    assert options["package_patterns"]["default"] == gpu_probe.PACKAGES
    assert options["repository_patterns"]["default"] == gpu_probe.REPOSITORY_PACKAGES

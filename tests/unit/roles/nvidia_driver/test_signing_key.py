"""What a run prints of the module signing key."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.unit.ansible_runs import PROJECT, run_play

KEY = "-----BEGIN PRIVATE KEY-----"


@pytest.mark.parametrize("there", ["", "another key"], ids=["new", "replaced"])
def test_no_diff_prints_the_private_key(tmp_path: Path, there: str) -> None:
    directory = tmp_path / "signing"
    directory.mkdir()
    (tmp_path / "key.pem").write_text(f"{KEY}\nnobody may see this\n")
    (tmp_path / "certificate.der").write_text("a certificate")
    if there:
        (directory / "key").write_text(f"{KEY}\n{there}\n")
    listed = yaml.safe_load((PROJECT / "roles/nvidia_driver/vars/main.yml").read_text())
    signing = [each for each in listed["__nvidia_driver_resources"] if "signing" in each["path"]]
    for each in signing:  # outside of the role
        if "template" in each:
            each["template"] = f"{PROJECT}/roles/nvidia_driver/templates/{each['template']}"
    play = {
        "hosts": "localhost",
        "gather_facts": False,
        "vars": {
            **listed,
            "__nvidia_driver_signing_directory": str(directory),
            "__nvidia_driver_signing_settings": f"{tmp_path}/settings/signing.conf",
            "nvidia_driver_module_signing_key": str(tmp_path / "key.pem"),
            "nvidia_driver_module_signing_certificate": str(tmp_path / "certificate.der"),
            "signing": signing,
        },
        "tasks": [{"gpuhost.stack.apply": {"resources": "{{ signing }}"}}],
    }
    done = run_play(tmp_path, play, "--check", "--diff", "-vvvv")  # a file of root's is not made here
    output = done.stdout + done.stderr
    assert "mok_signing_key=" in output, "other files are shown"
    assert f"{directory}/key" in output
    assert [text for text in (KEY, "nobody may see this", there or "another key") if text in output] == []

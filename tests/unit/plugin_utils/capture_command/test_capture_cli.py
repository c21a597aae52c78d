"""script/capture as a process, on this machine."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.plugin_utils.capture_command import capture_cli
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.catalogs import load_catalog
from syrupy.assertion import SnapshotAssertion

MIRROR = "https://HOST-1/cuda/repos/ubuntu2404/x86_64/"
PROJECT = Path(__file__).resolve().parents[4]


def run(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(PROJECT / "script/capture"), *words], cwd=cwd, capture_output=True, text=True)


def test_the_file_is_a_probe_and_nobody_elses_to_read(tmp_path: Path) -> None:
    done = run("--output", "host.json", cwd=tmp_path)
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "Wrote host.json. Nothing has left this host.")
    assert (tmp_path / "host.json").stat().st_mode & 0o777 == 0o600
    found = json.loads((tmp_path / "host.json").read_text())
    assert found["capture"] == 1
    assert found["documents"]["/etc/os-release"]["lines"]
    planned = subprocess.run(
        [str(PROJECT / "script/plan"), "--probe", str(tmp_path / "host.json"), "--request", "expect_gpus=0"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert planned.returncode in (0, 1), planned.stderr
    assert planned.stdout.startswith(found["probe"]["distribution"]["id"])


def test_no_file_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "host.json").write_text("mine")
    done = run("--output", "host.json", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == (
        "script/capture: host.json exists, and is not overwritten; name another file with --output\n"
    )
    assert (tmp_path / "host.json").read_text() == "mine"


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    done = run("--output", "no/host.json", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (2, "script/capture: --output no/host.json: No such file or directory\n")


def test_the_summary_says_where_to_look_before_it_leaves(snapshot: SnapshotAssertion) -> None:
    found: dict[str, Any] = {
        "documents": {
            "nvidia-smi -q": {"lines": ["a", "b"]},
            "lspci -nn": {"status": 127, "lines": ["lspci: No such file or directory"]},
            "/boot/grub/grub.cfg": {"problem": "Permission denied"},
        },
        "probe": {
            "errors": ["disk: cannot be read"],
            "repository": {"url": MIRROR, "packages": {"a": ["1"]}, "error": None},
        },
        "masked": {"host": 2, "uuid": 9},
    }
    assert capture_cli.summary("gpuhost-capture-20261127.json", found) == snapshot
    found["probe"]["repository"] = {"url": MIRROR, "packages": {}, "error": f"{MIRROR}InRelease: 404  Not Found"}
    assert capture_cli.summary("gpuhost-capture-20261127.json", found).splitlines()[4:6] == [
        f"  NVIDIA's repository: {MIRROR}InRelease: 404  Not Found",
        "    (of a mirror: --repository-url URL, as in gpu_stack_repository_url)",
    ]


def test_a_mirror_is_read_in_place_of_nvidias_repository(tmp_path: Path) -> None:
    done = run("--output", "host.json", "--repository-url", f"file://{tmp_path}/mirror", cwd=tmp_path)
    assert done.returncode == 0
    probe = json.loads((tmp_path / "host.json").read_text())["probe"]
    if probe["distribution"]["id"] not in load_catalog().distros:
        pytest.skip("NVIDIA has no repository for this machine's distribution")
    repository = probe["repository"]
    assert repository["url"].startswith(f"file://{tmp_path}/mirror/")
    assert repository["error"], "nothing is there"


def test_an_address_that_is_none_is_bad_usage(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    done = run("--repository-url", "mirror.corp.net", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (2, snapshot)
    assert not list(tmp_path.iterdir())

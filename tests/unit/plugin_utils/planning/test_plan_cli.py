"""script/plan: its options, JSON and exit statuses."""

from __future__ import annotations

import io
import json

import pytest
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.request import PlanInputError
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning import plan_cli
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.plan_cli import find_gpu, main

from tests.unit.frozen_catalog import FROZEN_FOLDER, frozen_catalog


@pytest.fixture(autouse=True)
def _frozen(monkeypatch):
    monkeypatch.setattr(plan_cli, "CATALOG_FOLDER", FROZEN_FOLDER)


def run(*arguments):
    out, err = io.StringIO(), io.StringIO()
    status = main(arguments, out, err)
    return status, out.getvalue(), err.getvalue()


def test_the_documented_command():
    status, out, err = run(
        "--distro",
        "ubuntu-24.04",
        "--gpu",
        "NVIDIA H200",
        "--gpu",
        "10de:2330",
        "--gpu",
        "cc:9.0",
        "--python",
        "3.12",
        "--request",
        "cuda=12.9",
        "--request",
        "tensorflow=2.21",
        "--kernel",
        "6.8",
        "--json",
    )
    made = json.loads(out)
    assert (status, err, made["ok"]) == (0, "", True)
    assert [g["compute_capability"] for g in made["gpus"]] == ["9.0"] * 3
    assert made["components"]["cuda"]["version"] == "12.9"
    assert made["components"]["tensorflow"]["version"] == "2.21.0"


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (["--distro", "debian-12", "--gpu", "Tesla M60"], 0),
        (["--distro", "debian-12", "--gpu", "Tesla M60", "--request", "cuda=13.2"], 1),
        (["--distro", "debian-12"], 1),
        (["--distro", "debian-12", "--gpu", "T4", "--request", "driver_kernel_modules=proprietary"], 0),
        (["--distro", "debian-12", "--gpu", "B200", "--request", "driver_kernel_modules=proprietary"], 1),
        (["--distro", "debian-12", "--gpu", "T4", "--request", "gpu_stack_keep_cuda=1"], 0),
        (["--distro", "debian-12", "--gpu", "T4", "--request", "keep_cuda=0"], 2),
        (["--distro", "debian-12", "--gpu", "T4", "--python", "3.14"], 1),
        (["--distro", "plan9", "--gpu", "T4"], 1),
        (["--gpu", "T4"], 2),
        (["--distro", "debian-12", "--gpu", "Voodoo 2"], 2),
        (["--distro", "debian-12", "--gpu", "cc:4.2"], 2),
        (["--distro", "debian-12", "--gpu", "T4", "--request", "cuda"], 2),
        (["--distro", "debian-12", "--gpu", "T4", "--request", "colour=red"], 2),
        (["--distro", "debian-12", "--gpu", "T4", "--python", "three"], 2),
        (["--distro", "debian-12", "--gp", "T4"], 2),
        (["--help"], 0),
    ],
)
def test_exit_status(arguments, status, capsys):
    assert run(*arguments)[0] == status
    capsys.readouterr()


def test_problems_are_printed_with_remedies():
    status, out, _ = run("--distro", "debian-12", "--gpu", "GTX 1080", "--request", "gpu_stack_cuda=13.2")
    assert status == 1
    assert "gpu-dropped-by-cuda" in out
    assert "remedy:" in out


@pytest.mark.parametrize(
    ("text", "pci_id"),
    [
        ("NVIDIA H200", "10de:2335"),
        ("h200", "10de:2335"),
        ("Tesla M60", "10de:13f2"),
        ("M60", "10de:13f2"),
        ("GeForce GTX 1080", "10de:1b80"),
        ("K40c", "10de:1024"),
        ("10DE:2330", "10de:2330"),
        ("B200", "10de:2901"),
    ],
)
def test_gpu_names(text, pci_id):
    assert find_gpu(frozen_catalog(), text).pci_id == pci_id


def test_an_ambiguous_name_lists_the_candidates():
    with pytest.raises(PlanInputError, match=r"ambiguous: .*10de:"):
        find_gpu(frozen_catalog(), "GTX 750")

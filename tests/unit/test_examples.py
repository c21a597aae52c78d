"""inventories/examples: each is read by Ansible and planned for a host of its kind, and docs/first-hour.md shows it.
inventories/lab: what its first lines say to do results in the hosts that were written.

The hosts are probed by the real module, in directories with captured files (os-release, the driver's version) and with
the PCI devices of the lab.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.gpuhost.stack.plugins.module_utils import probe
from ansible_collections.gpuhost.stack.plugins.module_utils.host import pci as host_pci
from ansible_collections.gpuhost.stack.plugins.module_utils.model.records import to_json
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia import proc_driver
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.catalogs import load_catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.declared import declared
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.plans import plan_for_probe
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.registry import BY_NAME
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.probe import Probe
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning import variables

from tests.doubles.lab import pci
from tests.unit.frozen_catalog import frozen_catalog
from tests.unit.module_utils.host_files import link, put

PROJECT = Path(__file__).resolve().parents[2]
EXAMPLES = PROJECT / "inventories/examples"
LOCAL = PROJECT / "inventories/local"
FIXTURES = PROJECT / "tests/fixtures/probe"
REQUEST = PROJECT / "playbooks/group_vars/all/request.yml"
BIN = Path(sys.executable).parent
OPEN_580 = "proc-driver-nvidia-version-open-580.txt"

# The kind of host that each example is for: distribution, Python, GPUs, loaded driver; and what is planned for it.
HOSTS: dict[str, tuple[str, str, list[str], str | None, set[str]]] = {
    "local": (
        "ubuntu-24.04", "3.12", ["NVIDIA GeForce RTX 4090"], None, {"driver", "cuda", "cudnn", "nccl", "tensorflow"},
    ),
    "shared-server": ("ubuntu-22.04", "3.10", ["NVIDIA A100-SXM4-80GB"] * 4, OPEN_580, {"tensorflow", "pytorch"}),
    "pytorch-only": ("debian-12", "3.11", ["NVIDIA H200"] * 2, None, {"driver", "pytorch"}),
    "bastion": ("debian-12", "3.11", ["NVIDIA H200"] * 2, None, {"driver", "cuda", "cudnn", "nccl", "tensorflow"}),
    "http-proxy": (
        "ubuntu-22.04", "3.10", ["NVIDIA H200"] * 2, None, {"driver", "cuda", "cudnn", "nccl", "tensorflow"},
    ),
    "eight-gpu-servers": (
        "ubuntu-24.04", "3.12", ["NVIDIA H200"] * 8, None,
        {"driver", "cuda", "cudnn", "nccl", "tensorflow", "pytorch"},
    ),
}  # fmt: skip


def folder(name: str) -> Path:
    """Return the directory of an example, which for this machine is its inventory."""
    return LOCAL if name == "local" else EXAMPLES / name


def files(name: str) -> list[Path]:
    """Return the files of an example."""
    return [path for path in (folder(name) / "hosts.yml", folder(name) / "group_vars/gpu_hosts.yml") if path.exists()]


def inventory(name: str) -> dict[str, dict[str, Any]]:
    """Return the variables of each host, as ansible-inventory reads them."""
    words = [BIN / "ansible-inventory", "-i", folder(name) / "hosts.yml", "--list"]
    done = subprocess.run(words, capture_output=True, text=True, check=True, cwd=PROJECT)
    read = json.loads(done.stdout)
    assert set(read["gpu_hosts"]["hosts"]) == set(read["_meta"]["hostvars"])
    return dict(read["_meta"]["hostvars"])


def request(name: str) -> dict[str, Any]:
    """Return the request of the first host, as playbooks/group_vars makes it of the inventory."""
    words = [BIN / "ansible", "gpu_hosts[0]", "-i", folder(name) / "hosts.yml", "-e", f"@{REQUEST}"]
    words += ["-m", "ansible.builtin.debug", "-a", "var=gpu_stack_request", "--one-line"]
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=True, cwd=PROJECT)
    return dict(json.loads(done.stdout.partition("=>")[2])["gpu_stack_request"])


def probed(root: Path, name: str) -> dict[str, Any]:
    """Return what gpu_probe reads on a host of the example's kind."""
    distribution, python, gpus, driver, _planned = HOSTS[name]
    put(root, "/etc/os-release", (FIXTURES / f"os-release-{distribution}.txt").read_text())
    put(root, f"/usr/bin/python{python}")
    link(root, "/usr/bin/python3", f"python{python}")
    pci.write_tree(root / host_pci.DEVICES.lstrip("/"), pci.find_products(gpus))
    if driver:
        put(root, proc_driver.PATH, (FIXTURES / driver).read_text())
    options = probe.Options(None, {}, False, (), (), "/opt/gpuhost/tensorflow", ".*nvidia.*", "nvidia-cuda-toolkit")
    found = to_json(probe.probe(str(root), options))
    assert len(found["gpus"]) == len(gpus)
    return {**found, "toolchain": None}  # that of the machine of the tests


def test_each_example_has_a_kind_of_host() -> None:
    assert {LOCAL.name, *(path.name for path in EXAMPLES.iterdir())} == set(HOSTS)


@pytest.mark.parametrize("name", HOSTS)
def test_every_variable_exists(name: str) -> None:
    known = set(declared())
    hosts = inventory(name)
    used = {variable for values in hosts.values() for variable in values}
    assert {variable for variable in used if variable.startswith("gpu_stack_")} - known == set()
    assert all(values["ansible_become"] is True for values in hosts.values())
    # Those in comments, too: they are there to be used.
    text = "".join(path.read_text() for path in files(name))
    commented = set(re.findall(r"^# (\w+):", text, re.MULTILINE))
    specs = [path.read_text() for path in (PROJECT / "roles").glob("*/meta/argument_specs.yml")]
    assert {word for word in commented if not any(f"\n      {word}:" in spec for spec in specs)} - known == set()


@pytest.mark.parametrize("name", HOSTS)
def test_every_value_is_accepted(name: str) -> None:
    known = list(declared())
    for values in inventory(name).values():
        checked = variables.set_by_user(values, known)
        assert checked or name == "local"
        assert variables.misspelt(values, known, []) == []
        assert variables.wrong_values(checked, load_catalog(), date.today()) == []


@pytest.mark.parametrize("name", HOSTS)
def test_the_example_is_planned_for_a_host_of_its_kind(tmp_path: Path, name: str) -> None:
    plan = plan_for_probe(Probe.from_json(probed(tmp_path, name)), request(name), frozen_catalog())
    assert [problem.message for problem in plan.problems] == []
    assert {part for part in BY_NAME if plan.components.get(part)} == HOSTS[name][4]


def test_a_server_with_a_gpu_less_is_refused(tmp_path: Path) -> None:
    found = probed(tmp_path, "eight-gpu-servers")
    plan = plan_for_probe(Probe.from_json({**found, "gpus": found["gpus"][1:]}), request("eight-gpu-servers"))
    assert "no-gpu" in [problem.code for problem in plan.problems]


def test_ssh_jumps_over_the_bastion() -> None:
    for host, values in inventory("bastion").items():
        words = ["ssh", "-F", "none", *values["ansible_ssh_common_args"].split(), "-G", host]
        options = subprocess.run(words, capture_output=True, text=True, check=True).stdout
        assert "proxyjump ops@bastion.example.org" in options


def test_the_scenario_uses_what_the_bastion_and_the_proxy_show() -> None:
    hosts = yaml.safe_load((PROJECT / "molecule/examples/hosts.yml").read_text())["gpu_hosts"]["hosts"]
    (inner,) = hosts.values()
    (proxied,) = inventory("http-proxy").values()
    assert set(inner["gpu_stack_environment"]) == set(proxied["gpu_stack_environment"])
    assert "-o ProxyJump=" in inner["ansible_ssh_common_args"]


@pytest.mark.parametrize(
    ("shown", "written", "hosts"),
    [
        ("", "", {}),
        ("^    # ", "    ", {"gpu01.example.org": {}, "gpu02.example.org": {"ansible_user": "admin"}}),
        ("^  hosts:$", "  hosts:\n    node7: {ansible_user: root}", {"node7": {"ansible_user": "root"}}),
        (r"\Z", "    node7:\n    node8:\n", {"node7": {}, "node8": {}}),
    ],
    ids=["as it is", "sample uncommented", "a line at the top", "lines at the end"],
)
def test_the_inventory_of_the_lab_is_edited_in_place(
    tmp_path: Path, shown: str, written: str, hosts: dict[str, dict[str, str]]
) -> None:
    text = re.sub(shown, written, (PROJECT / "inventories/lab/hosts.yml").read_text(), flags=re.MULTILINE)
    (tmp_path / "hosts.yml").write_text(text)
    words = [BIN / "ansible-inventory", "-i", tmp_path / "hosts.yml", "--list", "--export"]
    done = subprocess.run(words, capture_output=True, text=True, check=True, cwd=PROJECT)
    read = json.loads(done.stdout)
    assert done.stderr == ""
    found = read.get("gpu_hosts", {}).get("hosts", [])
    assert {name: read["_meta"]["hostvars"].get(name, {}) for name in found} == hosts


def test_the_page_shows_every_example() -> None:
    page = (PROJECT / "docs/first-hour.md").read_text()
    shown = re.findall(r"<!-- example (?:examples/)?([\w-]+) -->", page)
    assert sorted(shown) == sorted(HOSTS)
    for name in shown:  # script/docs wrote what is in the files
        assert files(name)
        assert [str(path) for path in files(name) if path.read_text() not in page] == []

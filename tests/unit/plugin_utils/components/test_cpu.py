"""What the wheels need of a processor: hosts with a /proc/cpuinfo that somebody published, and their plans."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.host import system
from ansible_collections.gpuhost.stack.plugins.module_utils.model.plan import Plan
from ansible_collections.gpuhost.stack.plugins.module_utils.model.records import to_json
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base import versions
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog import lock_texts
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.loader import with_locks
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.common.frameworks import CPU_LACKS
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.catalogs import load_catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.user_request import asking
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.plans import resolve
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.host import Host, HostGpu, host_from_probe
from syrupy.assertion import SnapshotAssertion

from tests.unit.module_utils.host_files import put
from tests.unit.plugin_utils.planning.planning_cases import make_probe

FIXTURES = Path(__file__).parents[3] / "fixtures" / "cpuinfo"
T4 = HostGpu("10de:1eb8")


def host(root: Path, distribution: str, *cpus: str, **parts: object) -> Host:
    """Return a host with a T4 and these processors, as its probe has them."""
    put(root, system.CPUS, "".join((FIXTURES / name).read_text() for name in cpus))
    seen = host_from_probe(make_probe(cpu=to_json(system.cpu(str(root)))))
    known = {"cpu": seen.cpu, "cpu_flags": seen.cpu_flags, "gpus": (T4,), **parts}
    return dataclasses.replace(Host(distribution, "x86_64"), **known)  # type: ignore[arg-type]


def plan(found: Host, **request: str) -> Plan:
    return resolve(load_catalog(), asking(**request), found)


def numpy(made: Plan) -> str:
    component = made.components["pytorch"]
    assert component is not None
    return load_catalog().pinned[component.lock]["numpy"]


@pytest.mark.parametrize("distribution", ["debian-12", "ubuntu-22.04", "ubuntu-24.04"])
def test_without_avx_auto_takes_the_newest_pytorch(tmp_path: Path, distribution: str) -> None:
    made = plan(host(tmp_path, distribution, "celeron-j4105"))
    assert made.ok, made.problems
    assert made.components["tensorflow"] is None
    newest = plan(Host(distribution, "x86_64", gpus=(T4,)), tensorflow="none", pytorch="auto")
    assert made.components["pytorch"] == newest.components["pytorch"]
    because = {reason.component: reason.because for reason in made.reasons}
    assert "(Intel(R) Celeron(R) J4105 CPU @ 1.50GHz) lacks what the wheels need: avx" in because["tensorflow"]
    assert because["pytorch"].startswith("in place of TensorFlow")


@pytest.mark.parametrize("name", ["qemu64", "core2-quad"])
def test_a_lock_whose_numpy_starts_is_taken_where_there_is_one(tmp_path: Path, name: str) -> None:
    """NumPy 2.4 needs Python 3.11; locks for Python 3.10 have an older one."""
    made = plan(host(tmp_path, "ubuntu-22.04", name))
    assert made.ok, made.problems
    assert numpy(made).startswith("2.2.")
    both = plan(host(tmp_path, "ubuntu-24.04", name, pythons=("3.10", "3.12"), default_python="3.12"))
    assert both.ok, both.problems
    assert both.components["pytorch"] is not None
    assert both.components["pytorch"].python == "3.10"


@pytest.mark.parametrize("name", ["qemu64", "core2-quad"])
@pytest.mark.parametrize("request_", [{}, {"tensorflow": "none", "pytorch": "auto"}, {"tensorflow": "2.21.0"}])
def test_where_nothing_starts_the_plan_is_refused(
    tmp_path: Path, name: str, request_: dict[str, str], snapshot: SnapshotAssertion
) -> None:
    made = plan(host(tmp_path, "debian-12", name), **request_)
    assert {problem.code for problem in made.problems} == {CPU_LACKS}
    assert made.problems == snapshot
    assert "CPU type `host`" in made.problems[0].remedy if name == "qemu64" else "computer" in made.problems[0].remedy


def test_a_release_that_was_asked_for_is_refused_and_not_replaced(tmp_path: Path) -> None:
    made = plan(host(tmp_path, "debian-12", "celeron-j4105"), tensorflow="2.21.0")
    assert [problem.code for problem in made.problems] == [CPU_LACKS]
    assert "popcnt" not in made.problems[0].message


def test_the_remedy_is_one(tmp_path: Path) -> None:
    assert plan(host(tmp_path, "debian-12", "qemu64"), tensorflow="none", pytorch="none").ok


@pytest.mark.parametrize("cpus", [("i5-3230m",), ()], ids=["AVX", "not known"])
def test_a_processor_that_lacks_nothing_or_is_not_known_changes_nothing(tmp_path: Path, cpus: tuple[str, ...]) -> None:
    made, described = plan(host(tmp_path, "debian-12", *cpus)), plan(Host("debian-12", "x86_64", gpus=(T4,)))
    assert made.ok
    assert (made.components, made.reasons) == (described.components, described.reasons)


def test_each_processor_must_have_a_feature(tmp_path: Path) -> None:
    """Wheels start on any of them."""
    assert plan(host(tmp_path, "debian-12", "i5-3230m", "celeron-j4105")).components["tensorflow"] is None


@pytest.mark.parametrize("name", ["tensorflow", "numpy"])
def test_releases_before_the_first_need_nothing(name: str) -> None:
    """Wheels of NumPy 2.3.5 were started as qemu64; TensorFlow 1.5 is the last without AVX (tensorflow#17411)."""
    rows = {row.package: row for row in load_catalog().cpu.wheels}
    first, last = {"tensorflow": ("1.6.0", "1.5.0"), "numpy": ("2.4.0", "2.3.5")}[name]
    assert versions.satisfies(first, rows[name].releases)
    assert not versions.satisfies(last, rows[name].releases)


@pytest.mark.parametrize("kind", ["alone", "with another Python's", "both"])
def test_a_lock_of_the_users_own_says_which_numpy_it_has(tmp_path: Path, kind: str) -> None:
    found = host(tmp_path, "debian-12", "core2-quad")
    planned = plan(host(tmp_path, "debian-12"), tensorflow="none", pytorch="auto").components["pytorch"]
    assert planned is not None
    older, newer = (f"numpy=={version} \\\n    --hash=sha256:00\n" for version in ("2.3.5", "2.4.0"))
    if kind != "with another Python's":
        put(tmp_path, f"locks/{planned.lock}", older)
    if kind != "alone":
        texts = {planned.python: older if kind != "both" else newer, "3.10": newer}
        put(tmp_path, f"locks/{lock_texts.of_all(planned.lock)}", lock_texts.merge(texts))
    catalog = with_locks(load_catalog(), tmp_path / "locks")
    made = resolve(catalog, asking(tensorflow="none", pytorch="auto"), found)
    assert made.ok, made.problems
    assert made.components["pytorch"] == planned


def test_the_probe_of_an_arm_has_no_cpu(tmp_path: Path) -> None:
    put(tmp_path, system.CPUS, "processor\t: 0\nBogoMIPS\t: 50.00\nFeatures\t: fp asimd evtstrm aes\n\n")
    assert system.cpu(str(tmp_path)) is None
    assert system.cpu(str(tmp_path / "none")) is None

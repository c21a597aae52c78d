"""Hosts that were set up by NVIDIA's guides, with metapackages of CUDA and a driver, with the real apt and dpkg.

The chain from `cuda` to a driver: tests/doubles/nvidia_repository/contents.yml, which names its sources.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.base import store
from ansible_collections.gpuhost.stack.plugins.module_utils.packages import restore, transaction
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.apt import apt_commands
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.catalogs import load_catalog

from tests.unit.module_utils.real_apt import RealApt, needs_apt
from tests.unit.module_utils.simulated_packages import parse

pytestmark = needs_apt
OLD, NEW = "570.211.01-1", "595.71.05-1"
CHAIN = {
    "cuda": "cuda-12-8 (>= 12.8.1)",
    "cuda-12-8": "cuda-runtime-12-8 (>= 12.8.1), cuda-toolkit-12-8 (>= 12.8.1)",
    "cuda-runtime-12-8": "cuda-libraries-12-8 (>= 12.8.1), cuda-drivers (>= 570.124.06)",
    "cuda-toolkit-12-8": "cuda-libraries-12-8 (>= 12.8.1), cuda-nvcc-12-8",
    "cuda-libraries-12-8": "",
    "cuda-nvcc-12-8": "",
}
METAS = ["cuda", "cuda-12-8", "cuda-runtime-12-8", "cuda-drivers"]
REQUEST = transaction.PackageRequest(
    packages=parse(f"nvidia-driver-cuda={NEW}"),
    helpers=[],
    pins=[],
    pins_replace=[],
    hold_dependencies=["nvidia-.*"],
    replaces=[],
    may_remove=["nvidia-driver-570"],
    metas=load_catalog().packages.metas,
)
DOCUMENTATION = "/usr/share/doc/{}/copyright"


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RealApt:
    """Return a host on which somebody typed `apt install cuda`; the planned driver conflicts with that of it."""
    host = RealApt(tmp_path)
    monkeypatch.setattr(apt_commands, "PREFERENCES", str(host.root / "etc/apt/preferences.d"))
    monkeypatch.setattr(apt_commands, "ARCHIVES", str(host.root / "var/cache/apt/archives"))
    tool = {"cuda-nvcc-12-8": {"/usr/local/cuda-12.8/bin/nvcc": "x"}}
    debs = [
        host.build(
            name,
            {DOCUMENTATION.format(name): "x", **tool.get(name, {})},
            "12.8.1-1",
            **({"depends": needs} if needs else {}),
        )
        for name, needs in CHAIN.items()
    ]
    debs += [
        host.build("cuda-drivers", {DOCUMENTATION.format("cuda-drivers"): "x"}, OLD, depends="nvidia-driver-570"),
        host.build("nvidia-driver-570", {"/usr/bin/nvidia-smi": "570"}, OLD),
        host.build("nvidia-driver-cuda", {"/usr/bin/nvidia-smi": "595"}, NEW, conflicts="nvidia-driver-570"),
    ]
    host.offer(*debs)
    assert host.do("apt-get", "-y", "install", "cuda").returncode == 0
    return host


def marks(host: RealApt) -> list[str]:
    """Return the packages with their versions, and which of them were installed as dependencies."""
    return [*host.shown(), *sorted(host.do("apt-mark", "showauto").stdout.split())]


def removable(host: RealApt) -> list[str]:
    """Return what `apt-get autoremove` would remove."""
    done = host.do("apt-get", "--simulate", "autoremove")
    return [line.split()[1] for line in done.stdout.splitlines() if line.startswith("Remv ")]


def test_metapackages_go_and_what_they_brought_stays(host: RealApt) -> None:
    before = marks(host)
    result = host.run_transaction(REQUEST)
    removed = {change.split()[0] for change in result.changes if change.endswith("(removed)")}
    assert removed == {*METAS, "nvidia-driver-570"}
    assert {line.split()[0] for line in host.shown() if line.startswith("cuda")} == set(CHAIN) - set(METAS)
    assert removable(host) == []
    restore.restore(host.apt(), store.journal(str(host.state)))
    assert marks(host) == before


@pytest.mark.parametrize("path", ["/usr/local/bin/site", "/etc/site.conf"])
def test_a_metapackage_that_owns_a_file_stays(host: RealApt, path: str) -> None:
    assert host.do("apt-get", "-y", "remove", "cuda").returncode == 0
    host.install(host.build("cuda", {path: "x"}, "12.8.1-2", depends="cuda-12-8"))
    before = marks(host)
    with pytest.raises(transaction.RefusedError) as caught:
        host.run_transaction(REQUEST)
    assert caught.value.details["unplanned"] == ["cuda 12.8.1-2 (removed)"]
    assert marks(host) == before


def test_an_empty_metapackage_goes_that_the_pin_would_downgrade(host: RealApt, tmp_path: Path) -> None:
    """`apt install cuda` brings cuda-drivers of 615 and no driver (cupy/cupy#10295); the plan then pins 595.

    That of 595 has dependencies: what stays breaks the administrator's dist-upgrade.
    """
    assert host.do("apt-get", "-y", "purge", "cuda", "cuda-drivers", "nvidia-driver-570").returncode == 0
    empty = {DOCUMENTATION.format("cuda-drivers"): "x"}
    stanzas = "Package: cuda-drivers* src:nvidia-open:any\nPin: version 595.*\nPin-Priority: 1000\n"
    host.offer(
        host.build("cuda-drivers", empty, "615.71.09-1"),
        host.build("cuda-drivers", empty, NEW, depends="nvidia-driver (>= 595.71.05)"),
        host.build("nvidia-driver", {}, NEW),
        host.build("nvidia-driver-pinning-595", {"/etc/apt/preferences.d/nvidia-driver-pin": stanzas}, "595-1"),
    )
    assert host.do("apt-get", "-y", "install", "cuda").returncode == 0
    assert "cuda-drivers 615.71.09-1 install ok installed" in host.shown()
    pinned = REQUEST._replace(pins=parse("nvidia-driver-pinning-595=595-1"), may_remove=[])
    before = marks(host)
    host.run_transaction(pinned)
    assert "DOWNGRADED" in dist_upgrade(host), "as long as it stays"
    restore.restore(host.apt(), store.journal(str(host.state)))
    assert marks(host) == before
    result = host.run_transaction(pinned._replace(replaces=["cuda\\-drivers"]))
    assert {change.split()[0] for change in result.changes if change.endswith("(removed)")} == set(METAS)
    assert dist_upgrade(host).startswith("0 upgraded, 0 newly installed, 0 to remove")
    assert removable(host) == []


def dist_upgrade(host: RealApt) -> str:
    """Return what `apt-get -y dist-upgrade` would do."""
    done = host.do("apt-get", "--simulate", "-y", "dist-upgrade")
    return done.stdout.partition("Calculating upgrade...")[2].strip()


def test_a_metapackage_of_others_stays(host: RealApt) -> None:
    host.install(host.build("site-node", {}, "1", depends="cuda-12-8"))
    with pytest.raises(transaction.RefusedError) as caught:
        host.run_transaction(REQUEST)
    assert caught.value.details["unplanned"] == ["site-node 1 (removed)"]


def test_a_metapackage_that_its_administrator_holds_stays(host: RealApt) -> None:
    host.hold("cuda-12-8")
    with pytest.raises(transaction.RefusedError) as caught:
        host.run_transaction(REQUEST)
    assert caught.value.details["problem"]["code"] == "package-held"

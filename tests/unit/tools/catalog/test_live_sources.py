"""script/catalog-check: asking pip, apt and NVIDIA's repositories."""

from __future__ import annotations

import gzip
import shutil
import subprocess
import zipfile

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.base import download

from tests.unit.frozen_catalog import frozen_catalog
from tests.unit.tools.catalog.captured import FIXTURES, INDEX, offered, text
from tools.catalog import live_sources
from tools.catalog.live_sources import Answer, SourceUnreachable


def test_nvidia_key_is_read():
    catalog = frozen_catalog()
    answers = {"gz": gzip.compress(b""), "pub": (FIXTURES.parent / "openpgp/rsa.asc").read_bytes()}
    index = live_sources.nvidia_index(
        catalog, catalog.distros["ubuntu-24.04"], lambda url, timeout: answers[url.rsplit(".", 1)[1]]
    )
    shown = (FIXTURES.parent / "openpgp/gpg-show-keys.txt").read_text()
    assert index.key_fingerprint
    assert index.key_fingerprint in shown


def test_nvidia_unreachable():
    def fetch(url, timeout):
        raise download.DownloadError(f"{url}: Name or service not known")

    catalog = frozen_catalog()
    with pytest.raises(SourceUnreachable, match=r"debian12: https://.*: Name or service not known"):
        live_sources.nvidia_index(catalog, catalog.distros["debian-12"], fetch)


def test_pip_answers():
    found = live_sources.parse_versions("nvidia-nccl-cu13", Answer(0, text("pip-index-versions.json"), ""))
    assert found == INDEX["nvidia-nccl-cu13"]
    assert live_sources.parse_versions("tensorflow", Answer(1, "", text("pip-no-wheel.txt"))) == ()
    for answer in (Answer(1, "", text("pip-index-away.txt")), Answer(124, "", "pip: no answer within 600 s")):
        with pytest.raises(SourceUnreachable, match="tensorflow: pip could not list"):
            live_sources.parse_versions("tensorflow", answer)


def test_a_wheel_of_an_index_on_this_machine_is_read(tmp_path):
    path = tmp_path / "nvidia wheel-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("nvidia/cu13/include/crt/host_config.h", "#error too new")
    with live_sources.open_wheel(path.as_uri()) as wheel, zipfile.ZipFile(wheel) as archive:
        assert archive.namelist() == ["nvidia/cu13/include/crt/host_config.h"]
    path.unlink()
    with pytest.raises(SourceUnreachable, match=r"nvidia wheel-1\.0-py3-none-any\.whl: No such file or directory"):
        live_sources.open_wheel(path.as_uri())


def test_an_old_pip_is_passed_over():
    asked = []

    def run(command, extra, timeout):
        asked.append(command[0])
        return Answer(127, "", "no such file") if "uv" in command[0] else Answer(0, "pip 23.0.1 from /usr\n", "")

    with pytest.raises(SourceUnreachable, match=r"no pip 25\.1 or newer .*uv tool run.*: no such file.*: pip 23\.0\.1"):
        live_sources.find_pip(run)
    assert len(asked) == 4
    found = live_sources.find_pip(lambda *_: Answer(0, "pip 26.3 from /somewhere (python 3.11)\n", ""))
    assert found[0].endswith("/uv")


def test_mirror():
    mirror = live_sources.parse_mirror(text("indextargets-debian.txt"), "debian")
    assert live_sources.parse_mirror(text("indextargets-debian.txt"), "ubuntu") is None
    assert live_sources.sources_list(mirror, "trixie", ["main", "contrib"]) == (
        "deb [arch=amd64] http://mirror.example/debian trixie main contrib\n"
        "deb [arch=amd64] http://mirror.example/debian trixie-updates main contrib\n"
        "deb [arch=amd64] http://mirror.example/debian-security trixie-security main contrib\n"
    )


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (Answer(127, "", "apt-get: No such file or directory"), "this machine has no apt that answers"),
        (Answer(0, "", ""), "apt sources name no Debian mirror"),
    ],
    ids=["no-apt", "no-mirror"],
)
def test_no_mirror(answer, message):
    with pytest.raises(SourceUnreachable, match=message):
        live_sources.find_mirror("debian", lambda *_: answer)


@pytest.mark.skipif(shutil.which("apt-config") is None, reason="not on this machine: apt-config")
def test_private_apt_runs_no_hook_and_leaves_the_system_alone(tmp_path):
    """apt's own reading of the configuration: everything is below the folder, the proxy stays, no hook is left."""
    dump = text("apt-config-dump.txt") + 'Acquire::http::Proxy "http://proxy.example:3128";\n'
    assert "Post-Invoke" in dump
    (tmp_path / "apt.conf").write_text(live_sources.apt_conf(dump, tmp_path))
    (tmp_path / "none.d").mkdir()
    environment = {"PATH": "/usr/bin:/bin", "APT_CONFIG": str(tmp_path / "apt.conf")}
    seen = subprocess.run(["apt-config", "dump"], env=environment, capture_output=True, text=True, check=True).stdout
    assert "Invoke" not in seen
    assert 'Acquire::http::Proxy "http://proxy.example:3128";' in seen
    assert "DEP-11" not in seen
    for key in ("Dir::State", "Dir::State::status", "Dir::Cache", "Dir::Etc::sourcelist", "Dir::Etc::sourceparts"):
        assert f'{key} "{tmp_path}' in seen, key


def archive_run(status=0):
    def run(command, extra, timeout):
        if command[:2] == ["apt-cache", "pkgnames"]:
            return Answer(0, "\n".join([*offered("debian-13"), "nvidia-settings", "gcc-14-doc"]), "")
        if command[:2] == ["apt-cache", "madison"]:
            assert sorted(command[2:]) == sorted(offered("debian-13"))
            return Answer(0, text("madison-debian-13.txt"), "")
        if command[-1] == "update":
            return Answer(status, "", "E: Failed to fetch http://mirror.example/debian/dists/trixie/InRelease\n")
        return Answer(0, "", "")

    return run


def test_archive_is_asked_for_what_the_catalog_names():
    catalog = frozen_catalog()
    mirror = live_sources.parse_mirror(text("indextargets-debian.txt"), "debian")
    found = live_sources.archive_offers(mirror, catalog, catalog.distros["debian-13"], archive_run())
    assert found == offered("debian-13")
    with pytest.raises(SourceUnreachable, match=r"debian-13: apt-get update failed: E: Failed to fetch"):
        live_sources.archive_offers(mirror, catalog, catalog.distros["debian-13"], archive_run(100))

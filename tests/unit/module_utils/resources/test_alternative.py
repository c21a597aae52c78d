"""Alternatives from dpkg's records, against update-alternatives itself."""

import shutil
import subprocess
from pathlib import Path

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.resources import alternative


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "var/lib/dpkg/alternatives").mkdir(parents=True)
    (tmp_path / "etc/alternatives").mkdir(parents=True)
    (tmp_path / "var/lib/dpkg/alternatives/cuda").write_text("auto\n/usr/local/cuda\n\n/usr/local/cuda-13.2\n132\n\n")
    (tmp_path / "etc/alternatives/cuda").symlink_to("/usr/local/cuda-13.2")
    return tmp_path


def test_mode_and_value_are_read(root):
    assert alternative.read(str(root), "cuda") == {"mode": "auto", "value": "/usr/local/cuda-13.2"}
    assert alternative.read(str(root), "pager") is None
    (root / "etc/alternatives/cuda").unlink()
    assert alternative.read(str(root), "cuda") == {"mode": "auto", "value": "none"}


def test_a_state_becomes_the_command_that_sets_it():
    assert alternative.set_command("cuda", {"mode": "auto", "value": "/a"}) == [
        "update-alternatives",
        "--auto",
        "cuda",
    ]
    manual = alternative.set_command("cuda", {"mode": "manual", "value": "/a"})
    assert manual == ["update-alternatives", "--set", "cuda", "/a"]


def query(*options: str, name: str) -> dict[str, str] | None:
    """Return what `update-alternatives --query` reports; None for an unknown name."""
    answer = subprocess.run(["update-alternatives", *options, "--query", name], capture_output=True, text=True)
    if answer.returncode:
        return None
    fields = dict(line.split(": ", 1) for line in answer.stdout.splitlines() if ": " in line)
    return {"mode": fields["Status"], "value": fields["Value"]}


needs_dpkg = pytest.mark.skipif(shutil.which("update-alternatives") is None, reason="update-alternatives is not there")


def test_an_alternative_of_enterprise_linux(tmp_path):
    """As writeState() of fedora-sysv/chkconfig's alternatives.c writes it, whose lines 1 and 2 are those of dpkg."""
    records, links = tmp_path / "var/lib/alternatives", tmp_path / "etc/alternatives"
    records.mkdir(parents=True)
    links.mkdir(parents=True)
    (records / "cuda").write_text(
        "manual\n/usr/local/cuda\n\n/usr/local/cuda-12.9\n129\n/usr/local/cuda-13.0\n@x@130\n"
    )
    (links / "cuda").symlink_to("/usr/local/cuda-12.9")
    assert alternative.read(str(tmp_path), "cuda") == {"mode": "manual", "value": "/usr/local/cuda-12.9"}
    assert alternative.link(str(tmp_path), "cuda") == {"path": "/usr/local/cuda", "points": "missing"}


@needs_dpkg
@pytest.mark.parametrize("name", ["awk", "pager", "editor", "no-such-name"])
def test_the_alternatives_of_this_machine_are_those_that_update_alternatives_reports(name):
    assert alternative.read("/", name) == query(name=name)


@needs_dpkg
@pytest.mark.parametrize("action", ["install", "set", "dangling"])
def test_an_alternative_in_each_mode_is_what_update_alternatives_reports(tmp_path, action):
    records, links = tmp_path / "var/lib/dpkg/alternatives", tmp_path / "etc/alternatives"
    for directory in (records, links, tmp_path / "one", tmp_path / "two"):
        directory.mkdir(parents=True)
    where = ["--admindir", str(records), "--altdir", str(links), "--log", str(tmp_path / "log")]
    for name, priority in (("one", "1"), ("two", "2")):
        install = ["--install", str(tmp_path / "link"), "gpuhost-test", str(tmp_path / name), priority]
        subprocess.run(["update-alternatives", *where, *install], check=True, capture_output=True)
    if action == "set":
        set_one = ["--set", "gpuhost-test", str(tmp_path / "one")]
        subprocess.run(["update-alternatives", *where, *set_one], check=True, capture_output=True)
    if action == "dangling":
        (links / "gpuhost-test").unlink()
    found = alternative.read(str(tmp_path), "gpuhost-test")
    assert found == query(*where, name="gpuhost-test")
    assert found["mode"] == ("manual" if action == "set" else "auto")


def test_the_link_that_users_follow_is_read(root):
    link = root / "usr/local/cuda"
    link.parent.mkdir(parents=True)
    assert alternative.link(str(root), "pager") is None
    assert alternative.link(str(root), "cuda") == {"path": "/usr/local/cuda", "points": "missing"}
    link.mkdir()
    assert alternative.link(str(root), "cuda") == {"path": "/usr/local/cuda", "points": "not a link"}
    link.rmdir()
    link.symlink_to("/etc/alternatives/cuda")
    assert alternative.link(str(root), "cuda") == {"path": "/usr/local/cuda", "points": "/etc/alternatives/cuda"}


@needs_dpkg
@pytest.mark.parametrize("damage", ["replaced", "deleted", "automatic"])
def test_update_alternatives_restores_the_link_when_the_same_value_is_set(tmp_path, damage):
    """The role cuda_toolkit relies on it."""
    for name in ("admin", "links", "a", "b"):
        (tmp_path / name).mkdir()
    link = tmp_path / "cuda"

    def run(*words: str) -> None:
        options = ["--altdir", str(tmp_path / "links"), "--admindir", str(tmp_path / "admin"), "--log", "/dev/null"]
        subprocess.run(["update-alternatives", *options, *words], check=True, capture_output=True)

    run("--install", str(link), "cuda", str(tmp_path / "a"), "2")
    run("--install", str(link), "cuda", str(tmp_path / "b"), "1")
    run("--set", "cuda", str(tmp_path / "a"))
    if damage == "automatic":
        run("--auto", "cuda")
    else:
        link.unlink()
    if damage == "replaced":
        link.symlink_to(tmp_path / "b")
    run("--set", "cuda", str(tmp_path / "a"))
    assert link.readlink() == tmp_path / "links/cuda"
    assert link.resolve() == tmp_path / "a"
    assert (tmp_path / "admin/cuda").read_text().splitlines()[0] == "manual"


@pytest.mark.parametrize("record", ["", "auto\n"])
def test_a_record_that_is_cut_is_of_an_unknown_alternative(root, record):
    """A power failure may leave it so."""
    (root / "var/lib/dpkg/alternatives/cuda").write_text(record)
    assert alternative.link(str(root), "cuda") is None
    assert (alternative.read(str(root), "cuda") is None) == (not record)


def test_a_dangling_link_points_where_it_does(root):
    (root / "var/lib/dpkg/alternatives/cuda").write_text("manual\n/cuda\n")
    (root / "cuda").symlink_to("/nowhere")
    assert alternative.link(str(root), "cuda") == {"path": "/cuda", "points": "/nowhere"}
    assert alternative.read(str(root), "cuda")["mode"] == "manual"

"""state.py on environments with fake frameworks."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.roles.framework_env.fake_host import FRAMEWORKS, PYTHON, Framework, Host, put, sha256


def test_environment_is_named_after_its_contents(host: Host) -> None:
    found = host.state_as_the_role()
    assert found == host.state()
    assert found["environment"] == host.new
    assert (found["complete"], found["linked"], found["uv"], found["remove"]) == (False, False, False, [])
    assert found["reason"] == f"{host.new}: missing"


def test_current_environment_is_verified_and_not_changed(host: Host) -> None:
    host.build(host.new)
    host.use(host.new)
    before = sorted(path for path in host.base.rglob("*"))
    found = host.state_as_the_role()
    assert (found["environment"], found["complete"], found["linked"]) == (host.new, True, True)
    assert found["verified"] == host.framework.verified
    assert sorted(path for path in host.base.rglob("*")) == before


def test_settings_of_users_make_no_environment_incomplete(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    code = host.framework.code + "\nimport os\nassert 'FRAMEWORK_BACKEND' not in os.environ\n"
    module(host.framework, f"__version__ = {host.framework.version!r}\n{code}")(host.build(host.new))
    monkeypatch.setenv("FRAMEWORK_BACKEND", "another")
    assert host.state()["reason"] == ""


def test_older_environment_is_used_again(host: Host) -> None:
    host.build(host.new)
    host.build(host.old, host.framework.other_lock)
    host.use(host.new, 1000)
    host.use(host.old, 2000)
    found = host.state()
    assert (found["environment"], found["complete"], found["linked"]) == (host.new, True, False)
    assert (found["current"], found["remove"]) == (host.old, [])


def test_absolute_link_is_made_relative(host: Host) -> None:
    host.build(host.new)
    host.link.symlink_to(host.environments / host.new)
    found = host.state()
    assert (found["problem"], found["current"], found["complete"], found["linked"]) == ("", host.new, True, False)


def test_incomplete_environment_is_rebuilt_under_its_name(host: Host) -> None:
    host.build(host.old, host.framework.other_lock)
    host.use(host.old, 1000)
    host.build(host.new, None)
    found = host.state()
    assert (found["environment"], found["complete"], found["current"]) == (host.new, False, host.old)
    assert found["reason"] == f"{host.new}: incomplete"
    assert found["remove"] == []


def module(framework: Framework, code: str) -> Callable[[Path], None]:
    return put(f"lib/python{PYTHON}/site-packages/{framework.package}/__init__.py", code)


def damages(framework: Framework) -> dict[str, tuple[Callable[[Path], None], str]]:
    """Return {case: (function that damages an environment, reason that state.py gives)}."""
    package = f"{framework.package}=={framework.version}"
    return {
        "other lock": (put("gpuhost.lock", framework.other_lock), "built from another lock file"),
        "package added": (
            put(f"lib/python{PYTHON}/site-packages/six-1.0.dist-info/METADATA", "Name: six\nVersion: 1.0\n"),
            "packages were added, removed or changed: +six==1.0",
        ),
        "no record": (put("gpuhost.freeze", ""), f"packages were added, removed or changed: +{package}"),
        "no import": (
            module(framework, "import nothing_of_this_name"),
            f"{framework.label} cannot be imported: No module named 'nothing_of_",
        ),
        "crash": (module(framework, "import os; os.abort()"), "its verification ended with status -6"),
        "no CUDA": (
            module(framework, framework.without_cuda),
            f"found {framework.label} without CUDA, expected a CUDA build",
        ),
        "no Python": (lambda directory: (directory / "bin/python").unlink(), "its Python does not start: [Errno 2]"),
    }


@pytest.mark.parametrize("case", damages(FRAMEWORKS[0]))
def test_damaged_environment_in_use_is_kept_until_its_replacement_is_built(host: Host, case: str) -> None:
    damage, reason = damages(host.framework)[case]
    damage(host.build(host.new))
    host.use(host.new, 1000)
    found = host.state()
    assert found["reason"].startswith(f"{host.new}: {reason}")
    assert (found["environment"], found["complete"], found["linked"]) == (host.new + "-2", False, False)
    assert (found["current"], found["remove"]) == (host.new, [])
    host.build(host.new + "-2")
    host.use(host.new + "-2", 2000)
    found = host.state()
    assert (found["environment"], found["complete"], found["linked"], found["remove"]) == (
        host.new + "-2",
        True,
        True,
        [],
    )
    damage(host.environments / (host.new + "-2"))
    assert host.state()["environment"] == host.new


def test_environment_whose_files_have_changed_is_replaced(host: Host) -> None:
    path = host.build(host.new)
    host.use(host.new, 1000)
    assert host.state()["complete"] is True
    found = host.state(damaged=[str(path)])
    assert (found["environment"], found["complete"]) == (host.new + "-2", False)
    assert found["reason"] == f"{host.new}: its files have changed since they were recorded"


def test_environment_of_another_python_is_not_used(host: Host) -> None:
    host.build(host.new)
    host.use(host.new)
    found = host.state(python="3.99")
    assert found["reason"] == f"{host.new}: found Python {PYTHON}, expected 3.99"


def four(host: Host) -> list[str]:
    names = [host.framework.environment(f"2.1{number}.0", str(number)) for number in range(4)]
    for number, name in enumerate(names):
        host.build(name, str(number))
        host.use(name, 1000 + number)
    return names


@pytest.mark.parametrize(("keep", "gone"), [(0, 4), (1, 3), (2, 2), (9, 0)])
def test_most_recently_used_environments_are_kept(host: Host, keep: int, gone: int) -> None:
    names = four(host)
    host.build(host.new)
    assert host.state(keep=keep)["remove"] == names[:gone]
    host.use(host.new, 3000)
    assert host.state(keep=keep)["remove"] == names[:gone]


def test_target_of_the_link_counts_as_the_latest(host: Host) -> None:
    names = four(host)
    host.link.unlink()
    host.link.symlink_to(f"environments/{names[0]}")
    assert host.state(keep=1)["remove"] == names[1:]


def test_unused_environments_are_removed_and_other_directories_kept(host: Host) -> None:
    host.build(host.new)
    host.use(host.new, 1000)
    host.build(host.old, None)
    host.build(host.new + "-2")
    (host.environments / f"{host.framework.name}-mine").mkdir()
    (host.environments / (host.old + ".saved")).mkdir()
    assert host.state()["remove"] == sorted([host.old, host.new + "-2"])


def test_target_of_another_link_is_kept_and_not_counted(host: Host) -> None:
    names = four(host)
    host.use(names[0], link=f"{host.framework.name}-stable")
    assert host.state(keep=2)["remove"] == [names[1]]
    host.build(host.new, None)
    host.use(host.new, link=f"{host.framework.name}-next")
    assert host.state(keep=2)["environment"] == host.new + "-2"


def test_link_to_a_removed_environment_is_ours(host: Host) -> None:
    host.use(host.new)
    found = host.state()
    assert (found["problem"], found["current"], found["environment"], found["complete"]) == (
        "",
        "",
        host.new + "-2",
        False,
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: (path / "bin").mkdir(parents=True), "Found a directory at"),
        (
            lambda path: put("gpuhost.lock", "torch==2.15.0")(path),
            "Found a directory with an environment of an older release",
        ),
        (lambda path: path.write_text("x"), "Found a file at"),
        (lambda path: path.symlink_to("/srv/tensorflow"), "Found a link to /srv/tensorflow at"),
        (lambda path: path.symlink_to("environments/mine"), "Found a link to environments/mine at"),
    ],
    ids=["directory", "older release", "file", "link elsewhere", "link to another's"],
)
def test_conflicting_file_in_place_of_the_link_is_refused(
    host: Host, make: Callable[[Path], object], message: str
) -> None:
    make(host.link)
    found = host.state()
    assert set(found) == {"problem"}
    assert found["problem"].startswith(message)
    assert f"expected a link to an environment in {host.environments}" in found["problem"]
    assert f"mv {host.link} {host.link}.old" in found["problem"]


def test_uv_is_installed_if_its_record_is_this_lock(host: Host) -> None:
    put("uv/gpuhost.lock", "uv")(host.base)
    assert host.state()["uv"] is False
    put("uv/bin/uv", "")(host.base)
    (host.base / "uv/bin/uv").chmod(0o755)
    assert host.state()["uv"] is True
    assert host.state(uv_lock=sha256("newer"))["uv"] is False
    assert host.state(damaged=[str(host.base / "uv")])["uv"] is False


def test_frameworks_do_not_affect_each_other(tmp_path: Path) -> None:
    """Neither counts or removes the other's environments."""
    one, other = (Host(tmp_path / "gpuhost", framework) for framework in FRAMEWORKS)
    names = four(one)
    other.build(other.new)
    other.use(other.new, 1000)
    other.build(other.old, None)
    assert one.state(keep=0)["remove"] == names
    found = other.state(keep=0)
    assert (found["environment"], found["complete"], found["linked"]) == (other.new, True, True)
    assert found["remove"] == [other.old]
    other.link.unlink()
    other.link.symlink_to(f"environments/{names[0]}")
    assert other.state()["problem"].startswith(f"Found a link to environments/{names[0]} at")

"""Files and links are captured and restored: on real files in a directory of the test's own."""

from __future__ import annotations

import os
from pathlib import Path
from unittest.mock import Mock

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.base import command
from ansible_collections.gpuhost.stack.plugins.module_utils.resources import file
from ansible_collections.gpuhost.stack.plugins.module_utils.resources.base import Host
from ansible_collections.gpuhost.stack.plugins.module_utils.resources.effects import Effects


def effects() -> Effects:
    """Return those of files whose places have none."""
    return Effects(Mock(side_effect=AssertionError))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "settings").write_text("old\n")
    (tmp_path / "settings").chmod(0o640)
    (tmp_path / "current").symlink_to("environments/one")
    return tmp_path


@pytest.fixture
def before(tree):
    return {str(tree / name): file.capture(str(tree / name)) for name in ("settings", "current", "absent")}


def test_changed_files_links_and_new_files_are_restored(tree, before):
    (tree / "settings").write_text("new\n")
    (tree / "settings").chmod(0o600)
    (tree / "current").unlink()
    (tree / "current").symlink_to("environments/two")
    (tree / "absent").write_text("new with the change\n")
    assert sorted(file.restore(before, effects())) == sorted(before)
    assert (tree / "settings").read_text() == "old\n"
    assert (tree / "settings").stat().st_mode & 0o777 == 0o640
    assert os.readlink(tree / "current") == "environments/one"
    assert not (tree / "absent").exists()
    assert file.restore(before, effects()) == []


def test_a_link_that_became_a_file_and_a_deleted_file_are_restored(tree, before):
    (tree / "current").unlink()
    (tree / "current").write_text("no link\n")
    (tree / "settings").unlink()
    file.restore(before, effects())
    assert os.readlink(tree / "current") == "environments/one"
    assert (tree / "settings").read_text() == "old\n"


def test_a_directory_in_the_place_of_a_file_is_left_alone(tree, before):
    (tree / "settings").unlink()
    (tree / "settings").mkdir()
    assert file.restore(before, effects()) == []
    assert (tree / "settings").is_dir()


def test_check_mode_reports_and_changes_nothing(tree, before):
    (tree / "settings").write_text("new\n")
    assert file.restore(before, effects(), check=True) == [str(tree / "settings")]
    assert (tree / "settings").read_text() == "new\n"


@pytest.fixture
def directories(tmp_path: Path) -> tuple[list[str], list[str]]:
    own, shared, used = tmp_path / "own", tmp_path / "shared", tmp_path / "used"
    (own / "deep").mkdir(parents=True)
    (own / "deep" / "file").write_text("")
    (shared / "below").mkdir(parents=True)
    used.mkdir()
    (used / "another's").write_text("")
    return [str(own)], [str(shared), str(shared / "below"), str(used)]


def test_own_directories_are_removed_whole_and_shared_ones_when_empty(tmp_path, directories):
    own, shared = directories
    assert file.remove_directories(own, shared) == [*own, shared[1], shared[0]]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["used"]


def test_check_mode_removes_no_directory(tmp_path, directories):
    assert file.remove_directories(*directories, check=True)[0] == directories[0][0]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["own", "shared", "used"]


@pytest.mark.parametrize("below", ["", "linked/"], ids=["", "below a link"])
@pytest.mark.parametrize("kind", ["directory", "file"])
def test_a_mount_point_stays_with_the_directories_above_it_alone(tmp_path, monkeypatch, below, kind):
    """As the kernel lists bind mounts of the same file system, too, which os.path.ismount does not know."""
    (tmp_path / "linked").symlink_to(".")
    mounted = tmp_path / "own" / "data" / "my disk"
    (mounted if kind == "directory" else mounted.parent).mkdir(parents=True)
    (mounted / "file" if kind == "directory" else mounted).write_text("")
    kept = {mounted.parent, *mounted.parent.rglob("*")}
    for beside in ("own/dat", "own/data2", "own/data/my", "own/data/my disk2"):  # their names begin alike
        (tmp_path / beside).mkdir()
        (tmp_path / beside / "file").write_text("")
    (mounted.parent / "my d").write_text("")
    mounts = tmp_path / "mounts"
    mounts.write_text(f"/dev/sda1 / ext4 rw 0 0\n/dev/sda1 {mounted.parent}/my\\040disk ext4 rw 0 0\n")
    monkeypatch.setattr(file, "MOUNTS", str(mounts))
    file.remove_directories([f"{tmp_path}/{below}own"], [])
    assert set((tmp_path / "own").rglob("*")) == kept


def test_the_mount_points_of_this_machine_are_found():
    points = file._mount_points()
    assert {"/", "/proc"} <= set(points)
    assert all(os.path.isabs(point) for point in points)


def test_a_captured_file_has_its_owner_mode_and_content(tree):
    found = (tree / "settings").stat()
    state = file.capture(str(tree / "settings"))
    assert file.content(state) == b"old\n"
    assert (state["mode"], state["uid"], state["gid"]) == (0o640, found.st_uid, found.st_gid)
    assert file.capture(str(tree / "settings/below")) is None, "below a file there is nothing"
    assert file.capture(str(tree)) == {"kind": "folder"}


def test_a_file_of_another_owner_is_restored_with_it(tree, before):
    if os.geteuid() != 0:
        pytest.skip("only root can change the owner of a file")
    os.chown(tree / "settings", 7, 8)
    theirs = {str(tree / "settings"): file.capture(str(tree / "settings"))}
    file.restore(before, effects())
    assert ((tree / "settings").stat().st_uid, (tree / "settings").stat().st_gid) == (0, 0)
    assert file.restore(theirs, effects()) == [str(tree / "settings")]
    assert ((tree / "settings").stat().st_uid, (tree / "settings").stat().st_gid) == (7, 8)


def test_what_was_a_directory_is_left_alone(tree):
    path = tree / "was a directory"
    states = {str(tree): {"kind": "folder"}, str(path): {"kind": "folder"}}
    path.write_text("a file now")
    assert file.restore(states, effects()) == []
    assert path.read_text() == "a file now"
    path.unlink()
    assert file.restore(states, effects()) == []


def test_paths_are_restored_in_their_order(tree):
    for name in ("c", "a", "b"):
        (tree / name).write_text("")
    states = {str(tree / name): None for name in ("c", "a", "b")}
    assert file.restore(states, effects()) == [str(tree / name) for name in ("a", "b", "c")]


def test_the_captured_states_have_the_form_of_the_records(tree):
    """Records of earlier versions are restored."""
    found = (tree / "settings").stat()
    owner = {"uid": found.st_uid, "gid": found.st_gid}
    # The content is what `printf 'old\\n' | base64` prints.
    expected = {"kind": "file", "content": "b2xkCg==", "mode": 0o640, **owner}
    assert file.capture(str(tree / "settings")) == expected
    assert file.capture(str(tree / "current")) == {"kind": "link", "target": "environments/one"}
    assert file.capture(str(tree / "absent")) is None


def test_links_and_missing_directories_are_not_removed(tmp_path, directories):
    (tmp_path / "link").symlink_to("own")
    assert file.remove_directories([str(tmp_path / "link"), str(tmp_path / "none")], []) == []
    assert file.remove_directories([], [str(tmp_path / "link"), str(tmp_path / "used/another's")]) == []
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "own/deep/file").exists()
    assert file.remove_directories([str(tmp_path / "none"), *directories[0]], []) == directories[0]


def test_links_in_an_own_directory_are_removed_and_what_they_point_to_is_not(tmp_path, directories):
    (tmp_path / "own/link").symlink_to(tmp_path / "used")
    assert file.remove_directories(directories[0], []) == directories[0]
    assert (tmp_path / "used/another's").exists()
    assert not (tmp_path / "own").exists()


# What roles want ------------------------------------------------------------------------------------------------------

FILE = {"content": b"new\n", "mode": 0o644}
LINK = {"target": "/opt/launcher"}


def there(path: Path) -> tuple[str, ...] | None:
    """Return what is at a path, as a test compares it."""
    if path.is_symlink():
        return ("link", os.readlink(path))
    if not path.exists():
        return None
    mode = f"{path.stat().st_mode & 0o7777:o}"
    return ("directory", mode) if path.is_dir() else ("file", mode, path.read_text())


def put(path: Path, state: tuple[str, ...] | None) -> None:
    if state is None:
        return
    if state[0] == "link":
        path.symlink_to(state[1])
        return
    path.mkdir() if state[0] == "directory" else path.write_text(state[2])
    path.chmod(int(state[1], 8))


@pytest.mark.parametrize(
    ("before", "wanted", "after"),
    [
        (None, FILE, ("file", "644", "new\n")),
        (("file", "644", "old\n"), FILE, ("file", "644", "new\n")),
        (("file", "600", "new\n"), FILE, ("file", "644", "new\n")),
        (("file", "644", "new\n"), FILE, None),
        (("link", "elsewhere"), FILE, ("file", "644", "new\n")),
        (("file", "644", "new\n"), {**FILE, "is_absent": True}, ()),
        (None, {**FILE, "is_absent": True}, None),
        (None, LINK, ("link", "/opt/launcher")),
        (("link", "/opt/launcher"), LINK, None),
        (("link", "/opt/other"), LINK, ("link", "/opt/launcher")),
        (("file", "755", "theirs\n"), LINK, ("link", "/opt/launcher")),
        (("link", "/opt/launcher"), {**LINK, "is_absent": True}, ()),
        (("link", "/opt/other"), {**LINK, "is_absent": True}, None),
        (("file", "755", "theirs\n"), {**LINK, "is_absent": True}, None),
        (("directory", "755"), {**LINK, "is_absent": True}, None),
        (None, {}, ("directory", "755")),
        (None, {"mode": 0o700}, ("directory", "700")),
        (("directory", "755"), {"mode": 0o700}, ("directory", "700")),
        (("directory", "2775"), {}, None),
        (("directory", "755"), {"is_absent": True}, ()),
        (None, {"is_absent": True}, None),
        (("file", "644", "theirs\n"), {"is_absent": True}, None),
    ],
)
def test_what_a_role_wants_at_a_path(tmp_path, before, wanted, after):
    """After None: nothing is to be done; (): nothing is there."""
    path = tmp_path / "a"
    put(path, before)
    each = [file.Wanted(str(path), **wanted)]
    assert bool(file.apply(each, effects(), check=True)) == (after is not None)
    assert there(path) == before, "check mode"
    assert list(file.apply(each, effects())) == ([] if after is None else [str(path)])
    assert there(path) == (before if after is None else after or None)
    assert file.apply(each, effects()) == {}


def test_a_directory_goes_with_the_last_of_its_files_and_stays_with_another_one(tmp_path):
    def gone(name):
        return file.Wanted(str(tmp_path / name), b"" if "/" in name else None, mode=None, is_absent=True)

    for name in ("a/one", "b/one", "b/theirs", "c/ours"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    changed = file.Wanted(str(tmp_path / "c/ours"), **FILE)
    found = file.apply([gone("a"), gone("a/one"), gone("b/one"), gone("b"), changed, gone("c")], effects())
    assert list(found) == [str(tmp_path / name) for name in ("a/one", "b/one", "c/ours", "a")]
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*"))
    assert left == ["b", "b/theirs", "c", "c/ours"]


def test_a_link_to_a_directory_is_the_directory(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "a").symlink_to("real")
    assert file.apply([file.Wanted(str(tmp_path / "a"))], effects()) == {}


def test_all_that_is_in_the_way_is_named_before_anything_is_written(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").write_text("x")
    wanted = [file.Wanted(str(tmp_path / "new"), b""), file.Wanted(str(tmp_path / "a"), b"")]
    with pytest.raises(ValueError, match="move it away") as failure:
        file.apply([*wanted, file.Wanted(str(tmp_path / "b"))], effects())
    assert str(failure.value).replace(str(tmp_path), "").splitlines() == [
        "/a is a directory, expected a file or link: move it away",
        "/b is a file or link, expected a directory: move it away",
    ]
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(("owner", "expected"), [(None, (1, 2)), ((0, 0), (0, 0))])
def test_a_file_keeps_its_owner_unless_one_is_wanted(tmp_path, owner, expected):
    (tmp_path / "a").write_text("new")
    (tmp_path / "a").chmod(0o600)
    os.chown(tmp_path / "a", 1, 2)
    wanted = [file.Wanted(str(tmp_path / "a"), b"new", mode=0o600, owner=owner)]
    assert bool(file.apply(wanted, effects())) == (owner is not None)
    assert ((tmp_path / "a").stat().st_uid, (tmp_path / "a").stat().st_gid) == expected


def test_of_a_secret_the_record_has_a_digest_and_nobody_reads_that(tree):
    path = str(tree / "settings")
    state = file.without_content(file.capture(path))
    assert "content" not in state
    states = {path: state, "/other": None, "/link": {"kind": "link", "target": "x"}}
    assert file.lost_secrets(states) == []
    watched = {"files": [path]}
    before = file.File().read(Host("/", command.run), watched)
    (tree / "settings").write_text("another password\n")
    now = file.File().read(Host("/", command.run), watched)
    (found,) = file.File().differences(Host("/", command.run), before, now, watched)
    assert (found.text, found.is_damage) == (f"file {path} has another content", True)
    assert file.lost_secrets(states) == [path]

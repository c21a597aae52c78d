"""The records on a managed host: written whole, one JSON file each."""

import json

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.base import files, store

GCC = {"version": "1", "held": False, "auto": True}


def test_a_missing_record_is_none_and_a_broken_one_an_error(tmp_path):
    assert store.read(str(tmp_path), store.VERIFIED) is None
    for text in ("{", "[1]", "[]x"):
        (tmp_path / "verified.json").write_text(text)
        with pytest.raises(ValueError, match=r"verified\.json"):
            store.read(str(tmp_path), store.VERIFIED)


@pytest.mark.parametrize(
    ("schema", "is_read"),
    [(store.SCHEMA, True), (None, True), (store.SCHEMA - 1, True), (store.SCHEMA + 1, False), ("2027", False)],
)
def test_a_record_of_a_later_release_is_refused_with_its_schema(tmp_path, schema, is_read, snapshot):
    """None: without a schema."""
    record = {"since": "2027-01-01T00:00:00Z"} | ({} if schema is None else {"schema": schema})
    (tmp_path / "pending.json").write_text(json.dumps(record))
    if is_read:
        assert store.read(str(tmp_path), store.PENDING) == record
        assert store.newer(str(tmp_path)) is None
        return
    with pytest.raises(store.NewerStateError) as error:
        store.read(str(tmp_path), store.PENDING)
    assert str(error.value) == str(store.newer(str(tmp_path)))
    assert str(error.value).replace(str(tmp_path), "") == snapshot


def test_a_record_whose_name_only_a_later_release_knows_is_found_beside_a_broken_one(tmp_path, snapshot):
    assert store.newer(str(tmp_path / "missing")) is None
    (tmp_path / "applied.json").write_text("{")
    (tmp_path / "transaction.lock").write_text("")
    assert store.newer(str(tmp_path)) is None
    (tmp_path / "leases.json").write_text('{"schema": 7}')
    assert str(store.newer(str(tmp_path))).replace(str(tmp_path), "") == snapshot


def test_an_interrupted_write_keeps_the_record_before_it(tmp_path, monkeypatch):
    store.write(str(tmp_path), store.VERIFIED, {"plan": "old"})

    def interrupt(*_args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(files.os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        store.write(str(tmp_path), store.VERIFIED, {"plan": "new"})
    monkeypatch.undo()
    assert (store.read(str(tmp_path), store.VERIFIED) or {})["plan"] == "old"
    store.write(str(tmp_path), store.VERIFIED, {"plan": "new"})
    assert (store.read(str(tmp_path), store.VERIFIED) or {})["plan"] == "new"


def test_a_record_has_its_schema(tmp_path):
    store.write(str(tmp_path / "new" / "directory"), store.APPLIED, {"parts": {}})
    assert json.loads((tmp_path / "new/directory/applied.json").read_text()) == {"parts": {}, "schema": store.SCHEMA}


def test_the_journal_keeps_the_first_state_of_a_package(tmp_path):
    directory = str(tmp_path)
    assert store.journal(directory) == {}
    store.record_packages(directory, {"libnccl2": None, "gcc": GCC})
    store.record_packages(directory, {"libnccl2": {"version": "2", "held": True, "auto": False}, "curl": None})
    assert store.journal(directory) == {"libnccl2": None, "gcc": GCC, "curl": None}


def test_only_root_can_read_a_record(tmp_path):
    """The content of a managed file may be a password."""
    store.write(str(tmp_path), store.VERIFIED, {"files": {}})
    assert (tmp_path / "verified.json").stat().st_mode & 0o777 == 0o600


def test_a_record_is_removed_if_it_is_there(tmp_path):
    store.write(str(tmp_path), store.VERIFIED, {})
    store.remove(str(tmp_path), store.VERIFIED)
    assert list(tmp_path.iterdir()) == []
    store.remove(str(tmp_path), store.VERIFIED)


@pytest.mark.parametrize(
    ("name", "file"),
    [
        (store.BASELINE, "baseline"), (store.VERIFIED, "verified"), (store.PREVIOUS, "previous"),
        (store.JOURNAL, "journal"), (store.APPLIED, "applied"), (store.PENDING, "pending"),
        (store.LISTINGS, "listings"), (store.TRANSACTION, "transaction"),
        (store.RESTORING, "restoring"),
    ],
)  # fmt: skip
def test_each_record_is_in_the_file_that_earlier_versions_wrote(tmp_path, name, file):
    store.write(str(tmp_path), name, {"a": 1})
    assert (tmp_path / f"{file}.json").read_text() == '{\n "a": 1,\n "schema": 1\n}\n'
    assert store.read(str(tmp_path), name) == {"a": 1, "schema": 1}


def test_what_verified_a_configuration_is_unknown_until_something_has(tmp_path):
    directory = str(tmp_path)
    assert (store.evidence(directory), store.requested(directory)) == (None, None)
    store.write(directory, store.VERIFIED, {"plan": {}})
    assert (store.evidence(directory), store.requested(directory)) == ({}, {})
    store.write(directory, store.VERIFIED, {"plan": {"request": {"cuda": "13.2"}}, "evidence": {"at": "now"}})
    assert (store.evidence(directory), store.requested(directory)) == ({"at": "now"}, {"cuda": "13.2"})


def test_a_journal_with_nothing_new_is_not_written_again(tmp_path):
    store.record_packages(str(tmp_path), {"gcc": GCC})
    before = (tmp_path / "journal.json").stat()
    store.record_packages(str(tmp_path), {"gcc": None})
    store.record_packages(str(tmp_path), {})
    after = (tmp_path / "journal.json").stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)

"""openpgp_key as Ansible runs it: what it writes, when it downloads, what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.gpuhost.stack.plugins.modules import openpgp_key
from syrupy.assertion import SnapshotAssertion

FIXTURES = Path(__file__).parents[2] / "fixtures/openpgp"
RSA = "47145FB2DABD2F296F5A031D4E79DBD8E9C85B3C"  # gpg --show-keys, tests/fixtures/openpgp/gpg-show-keys.txt
ED = "1D7FC970BB05416C71527E97B73197D1B233A900"


class Module:
    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self.capsys = folder, capsys

    def __call__(self, key: str, dest: str = "key.asc", fingerprint: str = RSA, **more: object) -> dict[str, Any]:
        url = key if ":" in key else (FIXTURES / key).as_uri()
        args = {"url": url, "dest": str(self.folder / dest), "fingerprint": fingerprint, **more}
        with patch_module_args(args), pytest.raises(SystemExit):
            openpgp_key.main()
        return dict(json.loads(self.capsys.readouterr().out))


@pytest.fixture
def module(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Module:
    return Module(tmp_path, capsys)


@pytest.mark.parametrize(
    ("key", "dest", "wanted", "written"),
    [
        ("rsa.asc", "key.asc", RSA, "rsa.asc"),
        ("rsa.gpg", "key.asc", RSA, "rsa.asc"),
        ("rsa.asc", "key.gpg", RSA, "rsa.gpg"),
        ("rsa.gpg", "key.gpg", RSA, "rsa.gpg"),
        ("both.asc", "key.asc", RSA, "rsa.asc"),
        ("both.asc", "key.gpg", ED, "ed.gpg"),
    ],
)
def test_only_the_wanted_key_is_written_as_gpg_exports_it(
    module: Module, key: str, dest: str, wanted: str, written: str
) -> None:
    result = module(key, dest, wanted)
    assert (result["changed"], result["fingerprint"]) == (True, wanted)
    assert (module.folder / dest).read_bytes() == (FIXTURES / written).read_bytes()
    assert (module.folder / dest).stat().st_mode & 0o777 == 0o644


def test_a_key_with_trailing_text_is_written_again(module: Module) -> None:
    assert module("rsa.asc")["changed"] is True
    file = module.folder / "key.asc"
    file.write_text(file.read_text() + "# edited\n")
    assert module("rsa.asc")["changed"] is True
    assert file.read_bytes() == (FIXTURES / "rsa.asc").read_bytes()


def test_an_owners_file_with_trailing_text_is_written_once(module: Module) -> None:
    owners = module.folder / "owners.asc"
    owners.write_text((FIXTURES / "rsa.asc").read_text() + "Read https://example.org before you trust it.\n")
    assert module(owners.as_uri())["changed"] is True
    assert module(owners.as_uri())["changed"] is False


def test_a_second_run_downloads_nothing(module: Module) -> None:
    assert module("rsa.asc")["changed"] is True
    again = module("http://127.0.0.1:9/unreachable", fingerprint=" ".join([RSA[:4], RSA[4:].lower()]))
    assert (again["changed"], "found" in again) == (False, False)


def test_a_changed_mode_is_corrected(module: Module) -> None:
    module("rsa.asc")
    (module.folder / "key.asc").chmod(0o600)
    assert module("http://127.0.0.1:9/unreachable")["changed"] is True
    assert (module.folder / "key.asc").stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize(
    "content", [b"", b"rubbish", (FIXTURES / "ed.gpg").read_bytes(), (FIXTURES / "both.asc").read_bytes()]
)
def test_a_file_that_is_not_exactly_the_wanted_key_is_replaced(module: Module, content: bytes) -> None:
    (module.folder / "key.asc").write_bytes(content)
    assert module("rsa.asc")["changed"] is True
    assert (module.folder / "key.asc").read_bytes() == (FIXTURES / "rsa.asc").read_bytes()


def test_check_mode_compares_and_writes_nothing(module: Module) -> None:
    assert module("rsa.asc", _ansible_check_mode=True)["changed"] is True
    assert module("ed.gpg", _ansible_check_mode=True)["failed"] is True
    assert list(module.folder.iterdir()) == []


@pytest.mark.parametrize(
    ("key", "fingerprint", "words"),
    [
        ("ed.gpg", RSA, [ED, RSA]),
        ("gpg-show-keys.txt", RSA, [RSA]),
        ("ftp://127.0.0.1/key.pub", RSA, ["ftp://"]),
        ("rsa.asc", RSA[-16:], [RSA[-16:]]),
    ],
    ids=["another key", "no key", "scheme", "short fingerprint"],
)
def test_refusals_have_what_was_found_and_expected_and_what_to_do(
    module: Module, key: str, fingerprint: str, words: list[str], snapshot: SnapshotAssertion
) -> None:
    result = module(key, fingerprint=fingerprint)
    assert result["failed"] is True
    assert [word for word in words if word not in result["msg"]] == []
    assert result["msg"].replace(FIXTURES.as_uri(), "file://").replace(str(module.folder), "") == snapshot
    assert list(module.folder.iterdir()) == []


@pytest.mark.parametrize(
    ("key", "words"), [("missing.asc", "No such file"), ("http://127.0.0.1:9/key.pub", "Connection refused")]
)
def test_what_prevents_a_download_is_in_the_message(module: Module, key: str, words: str) -> None:
    result = module(key)
    assert result["failed"] is True
    assert words in result["msg"]
    assert list(module.folder.iterdir()) == []


def test_a_password_in_the_url_is_not_in_the_result(module: Module) -> None:
    result = module("http://ann:s3cret@127.0.0.1:9/key.asc")
    assert " http://127.0.0.1:9/key.asc: " in result["msg"]
    assert "s3cret" not in json.dumps(result)

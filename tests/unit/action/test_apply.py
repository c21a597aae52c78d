"""gpuhost.stack.apply in a role that ansible-playbook runs on this machine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from ansible.parsing.vault import VaultLib, VaultSecret

from tests.unit.ansible_runs import Done, run_play

RESOURCES = [
    {"path": "{{ top }}/etc/a.conf", "template": "a.conf.j2"},
    {"path": "{{ top }}/etc/program", "src": "program.sh", "mode": "0755"},
    {"path": "{{ top }}/etc/words", "content": "{{ word }}\n"},
    {"path": "{{ top }}/etc/key", "src": "{{ key }}", "mode": "0600", "secret": True},
    {"path": "{{ top }}/bin", "names": ["one", "two"], "target": "{{ top }}/etc/program"},
    {"path": "{{ top }}/bin/old", "content": "", "state": "absent"},
    {"path": "{{ top }}/bin/older", "template": "which is gone with it.j2", "state": "absent"},
    {"path": "{{ top }}/only/x", "content": "x", "if_exists": "{{ top }}/only"},
]
KEY = b"\x30\x82\xff\x00 no text"  # as of a key in DER
PASSWORD = "correct horse battery staple"


class Role:
    """A role with these resources, and what it writes below `top`."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.top, self.key = directory, directory / "top", directory / "signing.key"
        self.resources: list[dict[str, Any]] = RESOURCES
        for name, text in {
            "templates/a.conf.j2": "{% if word %}\na {{ word }}\n{% endif %}\n",
            "files/program.sh": "#!/bin/sh\n",
        }.items():
            path = directory / "roles/r" / name
            path.parent.mkdir(parents=True)
            path.write_text(text)
        (directory / "roles/r/tasks").mkdir()
        (directory / "roles/r/tasks/main.yml").write_text('- gpuhost.stack.apply: {resources: "{{ resources }}"}\n')
        (self.top / "bin").mkdir(parents=True)
        (self.top / "bin/old").write_text("old\n")
        self.key.write_bytes(KEY)

    def run(self, *words: str, **variables: Any) -> Done:
        known = {"top": str(self.top), "key": str(self.key), "word": "first", "resources": self.resources, **variables}
        play = {"hosts": "localhost", "gather_facts": False, "vars": known, "roles": ["r"]}
        return run_play(self.directory, play, *words)

    def there(self) -> dict[str, Any]:
        paths = [path for path in sorted(self.top.rglob("*")) if path.is_symlink() or path.is_file()]
        return {
            str(path.relative_to(self.top)): path.readlink().name if path.is_symlink() else path.read_bytes()
            for path in paths
        }


@pytest.fixture
def role(tmp_path: Path) -> Role:
    return Role(tmp_path)


WRITTEN = {
    "bin/one": "program",
    "bin/two": "program",
    "etc/a.conf": b"a first\n",
    "etc/key": KEY,
    "etc/program": b"#!/bin/sh\n",
    "etc/words": b"first\n",
}


def test_what_a_role_lists_is_written_once(role: Role) -> None:
    done = role.run()
    assert (done.returncode, done.stderr) == (0, "")
    assert role.there() == WRITTEN
    modes = {name: f"{(role.top / 'etc' / name).stat().st_mode & 0o777:o}" for name in ("a.conf", "program", "key")}
    assert modes == {"a.conf": "644", "program": "755", "key": "600"}
    assert "changed=0 " in role.run().stdout
    os.chown(role.top / "etc/key", 1, 2)
    assert "changed=1 " in role.run().stdout
    assert (role.top / "etc/key").stat().st_uid == os.geteuid()


def test_check_mode_shows_what_would_be_written_but_for_secrets(role: Role) -> None:
    (role.top / "etc").mkdir()
    (role.top / "etc/a.conf").write_text("a zeroth\n")
    (role.top / "etc/key").write_text(PASSWORD)
    before = role.there()
    done = role.run("--check", "--diff", "-vvvv")
    assert done.returncode == 0
    assert role.there() == before
    shown = done.stdout
    assert all(line in shown.splitlines() for line in ("-a zeroth", "+a first", "+first"))
    assert "+(secret)" not in shown.splitlines(), "two secrets are shown alike"
    assert f"{role.top}/etc/key" in shown
    secrets = [PASSWORD, "no text", "MIL/AC"]  # the last is the beginning of KEY in base64
    assert [text for text in secrets if text in shown] == []


def test_a_task_may_show_no_difference(role: Role) -> None:
    tasks = role.directory / "roles/r/tasks/main.yml"
    tasks.write_text(f"{tasks.read_text()}  diff: false\n")
    done = role.run("--check", "--diff")
    assert "changed=1 " in done.stdout
    assert "+first" not in done.stdout.splitlines()


def test_a_file_that_vault_encrypted_is_decrypted(role: Role) -> None:
    role.key.write_bytes(VaultLib([("default", VaultSecret(PASSWORD.encode()))]).encrypt(KEY))
    (role.directory / "password").write_text(PASSWORD)
    assert role.run("--vault-password-file", str(role.directory / "password")).returncode == 0
    assert role.there()["etc/key"] == KEY


@pytest.mark.parametrize(
    ("resource", "message"),
    [
        (
            {"path": "/a", "src": "y", "target": "/z"},
            "/a: found src and target, expected one of content, src, template",
        ),
        ({"path": "/a", "content": "x", "mode": "rw"}, "the mode of /a is 'rw', expected octal digits such as 0644"),
        ({"path": "a", "content": "x"}, "the path is 'a', expected an absolute one"),
        ({"target": "/a"}, "expected a path, or an alternative and its target, found ['target']"),
        ({"alternative": "cuda"}, "expected a path, or an alternative and its target, found ['alternative']"),
        ({"path": "/a", "text": "x"}, "Unsupported parameters"),
        ({"path": "/a", "template": "none.j2"}, "none.j2"),
    ],
)
def test_a_mistake_in_the_list_is_named(role: Role, resource: dict[str, Any], message: str) -> None:
    role.resources = [{"path": str(role.top / "first"), "content": "x"}, resource]
    done = role.run()
    assert done.returncode == 2
    assert message in " ".join((done.stdout + done.stderr).split())
    assert not (role.top / "first").exists()

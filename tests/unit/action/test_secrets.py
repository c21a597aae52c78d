"""A password in gpu_stack_repository_url: it reaches the mirror and apt, and nothing that is printed or written."""

from __future__ import annotations

import base64
import gzip
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit import web_server
from tests.unit.ansible_runs import INTERPRETER, Done, run_playbook

PROJECT = Path(__file__).resolve().parents[3]
USER, PASSWORD = "ann", "p/s3cret-8153"
AUTHORIZATION = "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
FILES = {"Packages.gz": gzip.compress(b""), "Packages": b"", "Release": b"Suite: lab\n"}


class Mirror(web_server.Handler):
    """A mirror that wants a password for everything; `asked`: the status of each request by its file."""

    asked: list[tuple[str, int]]

    def do_GET(self) -> None:
        name = self.path.rpartition("/")[2]
        status = 401 if self.headers["Authorization"] != AUTHORIZATION else 200 if name in FILES else 404
        type(self).asked.append((name, status))
        headers = {"WWW-Authenticate": 'Basic realm="lab"'} if status == 401 else {}
        self.reply(status, FILES[name] if status == 200 else b"", headers)


@pytest.fixture
def mirror() -> Iterator[str]:
    """Return the mirror's URL with user name and password."""
    Mirror.asked = []
    with web_server.serve(Mirror) as port:
        yield f"http://{USER}:{PASSWORD.replace('/', '%2F')}@127.0.0.1:{port}/cuda"


def ansible(folder: Path, *words: str) -> Done:
    own = {
        "ANSIBLE_CACHE_PLUGIN": "jsonfile",
        "ANSIBLE_CACHE_PLUGIN_CONNECTION": str(folder / "cache"),
        "ANSIBLE_LOG_PATH": str(folder / "log"),
        "GPUHOST_REPORTS": str(folder / "reports"),
    }
    inventory = PROJECT / "inventories/local"
    return run_playbook(folder, "-e", "ansible_become=false", *words, *INTERPRETER, "-i", inventory, **own)


def with_secret(folder: Path) -> list[str]:
    """Return the files below a folder that contain the password, as it is or as in the URL."""
    secrets = [PASSWORD.encode(), PASSWORD.replace("/", "%2F").encode()]
    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    return [str(path) for path in files if any(secret in path.read_bytes() for secret in secrets)]


@pytest.mark.parametrize(
    ("name", "path"), [("gpu_stack_repository_url", ""), ("nvidia_repo_url", "/flat/")], ids=["the request", "the role"]
)
def test_the_plan_of_a_mirror_with_a_password_does_not_contain_it(
    tmp_path: Path, mirror: str, name: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The repository that the role will add is the one that is read, whichever variable has it."""
    monkeypatch.setitem(FILES, "Release.gpg", b"a signature")
    variables = tmp_path / "input" / "vars.json"
    variables.parent.mkdir()
    variables.write_text(json.dumps({name: mirror + path}))
    answer = ansible(tmp_path, f"{PROJECT}/playbooks/preflight.yml", "-vvv", "--diff", "-e", f"@{variables}")
    assert ("Packages.gz", 200) in Mirror.asked, answer.stdout + answer.stderr
    (evidence,) = tmp_path.glob("reports/*/localhost")
    repository = json.loads((evidence / "probe.json").read_text())["repository"]
    assert repository["error"] is None
    assert "@" not in repository["url"]
    assert repository["url"].partition("/cuda")[2].startswith(path or "/")
    assert (evidence / "plan.json").exists()
    # The plan is no fact, so that none of it is in a fact cache, whose files others may read.
    assert [path.read_text() for path in (tmp_path / "cache").iterdir() if "gpu_stack" in path.read_text()] == []
    assert with_secret(tmp_path) == [str(variables)]
    for secret in (PASSWORD, PASSWORD.replace("/", "%2F")):
        assert secret not in answer.stdout + answer.stderr


def test_apt_finds_the_password_in_its_own_file_and_not_in_the_source(tmp_path: Path, mirror: str) -> None:
    """The role's templates, rendered by Ansible and read by this machine's apt."""
    templates = PROJECT / "roles/nvidia_repo/templates"
    url, key = f"{mirror}/debian12/x86_64/", tmp_path / "key.asc"
    play = f"""
- hosts: all
  gather_facts: false
  vars: {{nvidia_repo_url: "{url}", nvidia_repo_key_path: "{key}"}}
  tasks:
    - ansible.builtin.template: {{src: "{templates}/auth.conf.j2", dest: "{tmp_path}/auth/own.conf", mode: "0600"}}
      no_log: true
    - ansible.builtin.template: {{src: "{templates}/nvidia-cuda.sources.j2", dest: "{tmp_path}/own.sources"}}
"""
    for name in ("auth", "state/lists/partial", "archives/partial", "empty"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "input").mkdir()
    (tmp_path / "input/play.yml").write_text(play)
    answer = ansible(tmp_path, str(tmp_path / "input/play.yml"), "-vvv", "--diff")
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert with_secret(tmp_path) == [str(tmp_path / "auth/own.conf"), str(tmp_path / "input/play.yml")]
    assert PASSWORD not in answer.stdout + answer.stderr
    settings = {
        "Dir::Etc::SourceList": tmp_path / "own.sources",
        "Dir::Etc::SourceParts": tmp_path / "empty",
        "Dir::Etc::NetrcParts": tmp_path / "auth",
        "Dir::State": tmp_path / "state",
        "Dir::State::Lists": tmp_path / "state/lists",
        "Dir::Cache": tmp_path,
        "APT::Sandbox::User": "root",
        "Acquire::http::Proxy": "DIRECT",
        "Acquire::AllowInsecureRepositories": "true",
    }
    options = [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]
    updated = subprocess.run(["apt-get", *options, "update"], capture_output=True, text=True)
    assert ("Release", 200) in Mirror.asked, updated.stdout + updated.stderr
    assert 401 not in dict(Mirror.asked).values()
    assert "s3cret" not in updated.stdout + updated.stderr

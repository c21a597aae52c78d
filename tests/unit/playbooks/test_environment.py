"""gpu_stack_environment under ansible-playbook: what a host downloads goes through the proxy that it names."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from ansible_collections.gpuhost.stack.plugins.plugin_utils.actions.secret_environment import divided

from tests.unit import web_server
from tests.unit.ansible_runs import INTERPRETER, Done, empty_apt, printed, run_playbook

PROJECT = Path(__file__).resolve().parents[3]
# These run on the controller, or report and read what is there.
WITHOUT = {"_check_variables.yml", "plan.yml", "_preflight.yml", "_fail_hosts.yml", "monitor.yml", "report.yml"}


PASSWORD = "opensesame"
ASKED: list[str] = []
KEY = (PROJECT / "tests/fixtures/openpgp/rsa.asc").read_bytes()
FINGERPRINT = "47145FB2DABD2F296F5A031D4E79DBD8E9C85B3C"
PACKAGES = b"Package: a\nVersion: 1\nArchitecture: all\nMaintainer: x\nSize: 1\nFilename: ./a.deb\n\n"
SERVED = {"http://mirror.invalid/key.asc": KEY, "http://mirror.invalid/cuda/./Packages": PACKAGES}


class Proxy(web_server.Handler):
    def do_GET(self) -> None:
        ASKED.append(self.path)
        content = SERVED.get(self.path)
        self.reply(404 if content is None else 200, content or b"")


@pytest.fixture
def proxy() -> Iterator[str]:
    """Start an HTTP proxy that records the URLs and has only a few of them; return its URL, with a password.

    No process list shows that password while the proxy runs.
    """
    ASKED.clear()
    seen: set[str] = set()
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(0.01):
            for path in Path("/proc").glob("[0-9]*/cmdline"):
                with contextlib.suppress(OSError):
                    seen.add(path.read_text(errors="replace"))

    watcher = threading.Thread(target=watch)
    watcher.start()
    with web_server.serve(Proxy) as port:
        yield f"http://user:{PASSWORD}@127.0.0.1:{port}"
    ended.set()
    watcher.join()
    assert any("ansible-playbook" in line for line in seen)
    assert [line for line in seen if PASSWORD in line] == []


def plan(tmp_path: Path, variables: dict[str, object], *files: str) -> Done:
    given = (json.dumps({"ansible_become": False, **variables}), *files)
    words = ("-i", "inventories/local", *INTERPRETER, *(word for each in given for word in ("-e", each)))
    settings = {"GPUHOST_REPORTS": str(tmp_path / "reports"), **empty_apt(tmp_path / "apt")}
    return run_playbook(PROJECT, "playbooks/plan.yml", *words, **settings)


def test_the_probe_reads_the_repository_through_the_proxy(tmp_path: Path, proxy: str) -> None:
    mirror = "http://mirror.invalid/cuda/repos"
    (tmp_path / "proxy.yml").write_text(f"gpu_stack_environment: {{http_proxy: '{proxy}'}}\n")
    done = plan(tmp_path, {"gpu_stack_repository_url": mirror}, f"@{tmp_path}/proxy.yml")
    assert PASSWORD not in done.stdout + done.stderr
    assert done.returncode in (0, 2), done.stdout + done.stderr
    assert any(re.match(rf"{mirror}/.*/InRelease$", url) for url in ASKED), ASKED


@pytest.mark.skipif(shutil.which("apt-get") is None, reason="needs apt-get")
def test_the_key_and_apt_use_the_proxy(tmp_path: Path, proxy: str) -> None:
    """The modules under ansible-playbook: their hosts cannot resolve the mirror's name, which does not exist."""
    settings = tmp_path / "apt.conf"  # pytest's directories are readable for their owner alone
    settings.write_text('APT::Sandbox::User "root";\n')
    source = "Types: deb\nURIs: http://mirror.invalid/cuda\nSuites: ./\nTrusted: yes\n"
    key = {"url": "http://mirror.invalid/key.asc", "dest": str(tmp_path / "key.asc"), "fingerprint": FINGERPRINT}
    tasks = [
        {"gpuhost.stack.openpgp_key": key},
        {"gpuhost.stack.apt_source": {"dest": str(tmp_path / "new.sources"), "content": source}},
    ]
    for variables, status in (({}, 2), ({"gpu_stack_environment": {"http_proxy": proxy}}, 0)):
        # As the playbooks have it: what has no login, and for the modules the rest.
        given = "{{ {'APT_CONFIG': settings} | combine(lookup('gpuhost.stack.variables', 'gpu_stack_environment')) }}"
        here = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable, "settings": str(settings)}
        here |= variables
        play = {"hosts": "all", "gather_facts": False, "environment": given, "vars": here, "tasks": tasks}
        (tmp_path / "play.yml").write_text(json.dumps([play]))
        done = run_playbook(PROJECT, tmp_path / "play.yml", "-i", "box,")
        assert done.returncode == status, done.stdout + done.stderr
        assert status == 0 or "The key could not be downloaded" in done.stdout + done.stderr
    assert (tmp_path / "key.asc").exists()
    assert (tmp_path / "new.sources").read_text() == source
    assert {"http://mirror.invalid/key.asc", "http://mirror.invalid/cuda/./Packages"} <= set(ASKED)


def test_an_environment_that_is_no_dictionary_is_refused(tmp_path: Path) -> None:
    done = plan(tmp_path, {"gpu_stack_environment": "http_proxy=http://proxy.example:3128"})
    assert done.returncode == 2
    assert "gpu_stack_environment is 'http_proxy=http://proxy.example:3128'; expected a dictionary" in printed(done)


def test_what_has_a_login_and_what_has_not() -> None:
    secrets = {
        "http_proxy": "http://user:word@proxy:3128",
        "HTTPS_PROXY": "user:word@proxy:3128",
        "INDEX": "https://token@i/",
    }
    others = {"TMPDIR": "/scratch/alice@site", "LC_ALL": "ca_ES@euro", "no_proxy": "localhost", "X": "http://proxy/a@b"}
    assert divided({**secrets, **others}) == (others, secrets)
    assert divided("http_proxy=http://a:b@c") == ("http_proxy=http://a:b@c", {})


def test_every_play_on_the_hosts_that_may_download_has_the_environment() -> None:
    plays = {path.name: path.read_text() for path in (PROJECT / "playbooks").glob("*.yml")}
    on_hosts = {
        name for name, text in plays.items() if re.search(r"hosts: (>-\s+)?.*(gpu_hosts|__gpu_stack_hosts)", text)
    } - WITHOUT
    assert len(on_hosts) >= 8
    environment = "environment: \"{{ lookup('gpuhost.stack.variables', 'gpu_stack_environment') }}\""
    assert {name for name in on_hosts if environment not in plays[name]} == set()

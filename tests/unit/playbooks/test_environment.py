"""gpu_stack_environment under ansible-playbook: what a host downloads goes through the proxy that it names."""

from __future__ import annotations

import http.server
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[3]
# These run on the controller, or report and read what is there.
WITHOUT = {"_preflight.yml", "monitor.yml", "report.yml"}


ASKED: list[str] = []


class Proxy(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        ASKED.append(self.path)
        self.send_error(404)

    def log_message(self, *_words: object) -> None:
        """Print nothing."""


@pytest.fixture
def proxy() -> Iterator[str]:
    """Start an HTTP proxy that records the URLs and has none of them; return its URL."""
    ASKED.clear()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def plan(tmp_path: Path, variables: dict[str, object]) -> subprocess.CompletedProcess[str]:
    given = {"ansible_become": False, "ansible_python_interpreter": sys.executable, **variables}
    return subprocess.run(
        [Path(sys.executable).with_name("ansible-playbook"), "playbooks/plan.yml", "-i", "inventories/local",
         "-e", json.dumps(given)],
        cwd=PROJECT, capture_output=True, text=True,
        env={**os.environ, "GPUHOST_REPORTS": str(tmp_path / "reports"), "NO_COLOR": "1"},
    )  # fmt: skip


def test_the_probe_reads_the_repository_through_the_proxy(tmp_path: Path, proxy: str) -> None:
    mirror = "http://mirror.invalid/cuda/repos"
    done = plan(tmp_path, {"gpu_stack_repository_url": mirror, "gpu_stack_environment": {"http_proxy": proxy}})
    assert done.returncode in (0, 2), done.stdout + done.stderr
    assert any(re.match(rf"{mirror}/.*/Packages\.gz$", url) for url in ASKED), ASKED


def test_an_environment_that_is_no_dictionary_is_refused(tmp_path: Path) -> None:
    done = plan(tmp_path, {"gpu_stack_environment": "http_proxy=http://proxy.example:3128"})
    assert done.returncode == 2
    assert "gpu_stack_environment is 'http_proxy=http://proxy.example:3128'; expected a dictionary" in " ".join(
        (done.stdout + done.stderr).split()
    )


def test_every_play_on_the_hosts_that_may_download_has_the_environment() -> None:
    plays = {path.name: path.read_text() for path in (PROJECT / "playbooks").glob("*.yml")}
    on_hosts = {name for name, text in plays.items() if "hosts: gpu_hosts" in text} - WITHOUT
    assert len(on_hosts) >= 8
    assert {name for name in on_hosts if 'environment: "{{ gpu_stack_environment' not in plays[name]} == set()

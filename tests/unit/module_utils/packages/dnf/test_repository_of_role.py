"""The real dnf reads NVIDIA's repository from the files that the role nvidia_repo writes."""

from __future__ import annotations

import base64
import functools
from typing import Any

from tests.unit import web_server
from tests.unit.module_utils.real_dnf import RealDnf, needs_dnf
from tests.unit.roles.test_role_files import rendered

pytestmark = needs_dnf
USER, PASSWORD = "me", "p%$s3cret"


class Private(web_server.Files):
    """Serves a directory to who knows the password."""

    def do_GET(self) -> None:
        """Answer a request."""
        wanted = "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        if self.headers["Authorization"] == wanted:
            super().do_GET()
        else:
            self.reply(401)


def write(host: RealDnf, **variables: Any) -> None:
    """Write what the role lists for dnf."""
    for each in rendered("nvidia_repo", variables):
        path = host.root / each["path"].lstrip("/")
        if each["path"].startswith(("/etc/dnf/", "/etc/yum.repos.d/")) and each.get("state", "present") == "present":
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(each["content"])


def offered(host: RealDnf) -> list[str]:
    done = host.do("dnf", "--repo=nvidia-cuda", "repoquery", "--quiet", "nvidia-open", "libnccl")
    return [done.stderr] if done.returncode else done.stdout.split()


def test_a_login_and_blocked_packages(host: RealDnf, el10: str) -> None:
    directory = el10.removeprefix("file://")
    with web_server.serve(functools.partial(Private, directory=directory)) as port:
        url = f"http://{USER}:p%25%24s3cret@127.0.0.1:{port}/"
        write(host, nvidia_repo_url=url)
        assert "s3cret" not in (host.root / "etc/yum.repos.d/nvidia-cuda.repo").read_text()
        found = offered(host)
        assert [name for name in found if name.startswith("libnccl")] != []
        assert len(found) == 4
        write(host, nvidia_repo_url=url, nvidia_repo_blocked_packages=["nvidia-*"])
        assert [name.partition("-")[0] for name in offered(host)] == ["libnccl"]
        (host.root / "etc/dnf/vars/gpuhost_nvidia_password").write_text("other\n")
        host.do("rm", "-rf", str(host.root / "var/cache/dnf"))
        (failed,) = offered(host)
        assert "Failed to download metadata for repo 'nvidia-cuda'" in failed

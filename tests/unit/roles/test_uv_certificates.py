"""The index of packages behind a private root, with the uv that hosts have."""

from __future__ import annotations

import shlex
import ssl
import subprocess
from functools import partial
from pathlib import Path

import pytest
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.lock_files import find_uv

from tests.unit import web_server
from tests.unit.plugin_utils.planning.test_repository import certificate
from tests.unit.roles.framework_env.test_role import REFUSE, fake_uv, run

# In a mount namespace of its own, with another file of the system's roots.
STORE = "/etc/ssl/certs/ca-certificates.crt"
UNSHARE = ["unshare", "--user", "--map-root-user", "--mount"]
WITH_ROOT = [*UNSHARE, "sh", "-c", f'mount --bind "$1" {STORE}; shift; exec "$@"', "sh"]
NO_NAMESPACE = subprocess.run([*UNSHARE, "test", "-e", STORE], capture_output=True).returncode != 0
UNTRUSTED, READ = "invalid peer certificate: UnknownIssuer", "there are no versions of framework"


@pytest.mark.skipif(NO_NAMESPACE, reason="this machine allows no user namespace, or has no roots")
def test_uv_trusts_the_roots_of_the_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program in place of uv asks the index by uv, with the environment that the role gives, and fails."""
    compile_ = [find_uv(), "pip", "compile", "--no-cache", "--no-config", str(tmp_path / "wanted.in")]
    (tmp_path / "wanted.in").write_text("framework\n")
    (tmp_path / "www/simple/framework").mkdir(parents=True)
    (tmp_path / "www/simple/framework/index.html").write_text("")
    root = str(certificate(tmp_path / "root.pem", 1))
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(root)
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"):  # of the machine that the tests run on
        monkeypatch.delenv(name, raising=False)
    fake_uv(tmp_path, 'env -0 > "$0.environment"', f"UV_HTTP_RETRIES=0 {shlex.join(compile_)} >&2", REFUSE)
    with web_server.serve(partial(web_server.Files, directory=str(tmp_path / "www")), tls) as port:
        url = f"https://localhost:{port}/simple"
        built = run(
            tmp_path, "pytorch", "--diff", version="2.15.0", index_url=url, system_packages=[], build_packages=[]
        )
        said = " ".join(built.stdout.split())
        assert UNTRUSTED in said, said + built.stderr
        assert "pytorch_env_ca_bundle" in said
        assert "update-ca-certificates" in said
        lines = (tmp_path / "uv/bin/uv.environment").read_text().split("\0")
        given = {**dict(line.split("=", 1) for line in lines if line), "TMPDIR": str(tmp_path), "UV_HTTP_RETRIES": "0"}

        def ask(*before: str, **more: str) -> str:
            return subprocess.run([*before, *compile_], env={**given, **more}, capture_output=True, text=True).stderr

        assert READ in ask(*WITH_ROOT, root)
        assert UNTRUSTED in ask(*WITH_ROOT, root, UV_SYSTEM_CERTS="0"), "the roots of uv itself"
        assert READ in ask(SSL_CERT_FILE=root), "a bundle of one's own"

"""Why a repository cannot be read: real servers, real apt, and what its message is taken for."""

from __future__ import annotations

import datetime
import gzip
import shutil
import ssl
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.base import command
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.apt import apt_lists
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning import repository
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.unit import web_server
from tests.unit.module_utils.base.test_download import apt_is_configured, proxy

FIXTURES = Path(__file__).parents[3] / "fixtures/apt"
NOW = datetime.datetime.now(datetime.UTC)
Serve = Callable[..., str]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the directory of a repository that was signed by gpg."""
    folder = tmp_path / "www"
    folder.mkdir()
    for name in ("InRelease", "Packages.gz"):
        shutil.copy(FIXTURES / name, folder)
    return folder


@pytest.fixture
def serve(folder: Path) -> Iterator[Serve]:
    with ExitStack() as started:

        def start(certificate: Path | None = None) -> str:
            tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER) if certificate else None
            if tls and certificate:
                tls.load_cert_chain(certificate)
            port = started.enter_context(web_server.serve(partial(web_server.Files, directory=str(folder)), tls))
            return f"{'https' if certificate else 'http'}://localhost:{port}/"

        yield start


def certificate(path: Path, days: int) -> Path:
    """Write a certificate for localhost that is valid from `days` before now, for ten days, and its key."""
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([])
    start = NOW - datetime.timedelta(days=days)
    built = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    built = built.not_valid_before(start).not_valid_after(start + datetime.timedelta(days=10))
    built = built.add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=True)
    plain = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    pem = built.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    path.write_bytes(key.private_bytes(*plain) + pem)
    return path


def why(root: Path, url: str) -> tuple[str, str]:
    """Return the error of a host that has no lists of a repository, and what it is taken for."""
    error = apt_lists.read(str(root / "host"), url, ["*"], "(?!)", "x86_64", True, command.run).error
    return str(error), repository.cause(str(error)).meaning


@pytest.fixture(autouse=True)
def apt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    apt_is_configured(tmp_path, monkeypatch, "")


def test_a_repository_that_can_be_read_has_no_error(tmp_path: Path, serve: Serve) -> None:
    assert why(tmp_path, serve())[0] == "None"


@pytest.mark.parametrize(
    ("url", "meaning"),
    [
        ("http://mirror.invalid/", "the name of the server"),
        ("https://mirror.invalid/", "the name of the server"),
        ("http://127.0.0.1:9/", "nothing answers"),
        ("file:///nonexistent/", "no such repository"),
    ],
)
def test_a_server_that_is_not_there(tmp_path: Path, url: str, meaning: str) -> None:
    assert meaning in why(tmp_path, url)[1]


@pytest.mark.parametrize(
    ("status", "scheme", "meaning"),
    [
        ("407", "http", "the proxy asks for a user name and password"),
        ("407", "https", "the proxy asks for a user name and password"),
        ("403", "http", "refuses this host"),
        ("403", "https", "refuses this host"),
        ("200", "http", "apt accepts no repository without a signature"),
    ],
)
def test_a_proxy_that_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: str, scheme: str, meaning: str
) -> None:
    with proxy(tmp_path / "log", status) as address:
        apt_is_configured(tmp_path, monkeypatch, f'Acquire::http::Proxy "{address}";')
        assert meaning in why(tmp_path, f"{scheme}://mirror.example.org/cuda/")[1]


def test_a_proxy_without_a_scheme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pip accepts it, apt does not."""
    monkeypatch.setenv("http_proxy", "proxy.example.org:3128")
    error, meaning = why(tmp_path, "http://mirror.example.org/cuda/")
    assert meaning == "apt needs the scheme of a proxy's address", error


@pytest.mark.parametrize(
    ("days", "trusted", "meaning"),
    [
        (1, False, "does not trust the server's certificate"),
        (-3, True, "this host's clock is slow"),
        (30, True, "this host's clock is fast"),
    ],
    ids=["inspected", "not yet valid", "expired"],
)
def test_a_certificate_that_is_not_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, serve: Serve, days: int, trusted: bool, meaning: str
) -> None:
    pem = certificate(tmp_path / "server.pem", days)
    if trusted:
        apt_is_configured(tmp_path, monkeypatch, f'Acquire::https::CaInfo "{pem}";')
    error, meant = why(tmp_path, serve(pem))
    assert meaning in meant, error


@pytest.mark.parametrize(
    ("old", "new", "meaning"),
    [
        ("Date: Fri, 21 Nov 2025", f"Date: {NOW + datetime.timedelta(days=2):%a, %d %b %Y}", "clock is slow"),
        ("SHA256:", "Valid-Until: Fri, 21 Nov 2025 10:00:00 UTC\nSHA256:", "clock is fast"),
        ("-----BEGIN PGP SIGNATURE-----", "", "without a signature"),
    ],
    ids=["not valid yet", "expired", "not signed"],
)
def test_a_release_file_that_apt_refuses(
    tmp_path: Path, folder: Path, serve: Serve, old: str, new: str, meaning: str
) -> None:
    text = (folder / "InRelease").read_text()
    (folder / "InRelease").write_text(text.replace(old, new))
    error, meant = why(tmp_path, serve())
    assert meaning in meant, error


@pytest.mark.parametrize(
    ("setting", "old", "new"),
    [
        ('Acquire::Check-Date "false";', "2025", "2099"),
        ('Acquire::Check-Date "0";', "SHA256:", "Valid-Until: Fri, 21 Nov 2025 10:00:00 UTC\nSHA256:"),
        ('Acquire::Check-Valid-Until "no";', "SHA256:", "Valid-Until: Fri, 21 Nov 2025 10:00:00 UTC\nSHA256:"),
        ('Acquire::Max-FutureTime "9999999999";', "2025", "2099"),
    ],
)
def test_a_date_that_the_hosts_apt_accepts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: Path, serve: Serve, setting: str, old: str, new: str
) -> None:
    text = (folder / "InRelease").read_text()
    (folder / "InRelease").write_text(text.replace(old, new))
    assert "file is" in why(tmp_path, serve())[0]
    apt_is_configured(tmp_path, monkeypatch, setting)
    assert why(tmp_path, serve())[0] == "None"


def test_a_release_file_with_a_signature_beside_it_is_accepted(tmp_path: Path, folder: Path, serve: Serve) -> None:
    (folder / "InRelease").rename(folder / "Release")
    assert "not signed" in why(tmp_path, serve())[0]
    (folder / "Release.gpg").write_text("signature")
    assert why(tmp_path, serve())[0] == "None"


def test_an_index_that_is_none(tmp_path: Path, folder: Path, serve: Serve) -> None:
    (folder / "Packages.gz").write_bytes(gzip.compress(b"x" * 99)[:-9])
    assert "no package list" in why(tmp_path, serve())[1]


def test_what_nothing_is_known_of_has_the_command_that_shows_it() -> None:
    assert "apt-helper download-file URL/InRelease" in repository.cause("something else").remedy


@pytest.mark.parametrize(
    ("error", "meaning"),
    [("Could not handshake: Error in the pull function. [IP: 10.0.0.1 443]", "proxy cuts"),
     ("SSL connection failed: error:0A000126:SSL routines::unexpected eof while reading / Success", "proxy cuts"),
     ("Error reading from server - read (104: Connection reset by peer) [IP: 10.0.0.1 3128]", "proxy cuts"),
     ("SSL connection failed: error:0A000086:SSL routines::certificate verify failed", "does not trust"),
     ("Could not handshake: An unexpected TLS packet was received.", "no HTTPS server"),
     ("Unable to connect to 10.0.0.1:3128:", "nothing answers")],
)  # fmt: skip
def test_a_connection_that_is_cut_is_no_certificate(error: str, meaning: str) -> None:
    assert meaning in repository.cause(error).meaning


# NVIDIA/nvidia-container-toolkit#837, NVIDIA/libnvidia-container#203; libcurl's words for its error 60.
@pytest.mark.parametrize(
    ("error", "meaning", "remedy"),
    [("Curl error (35): SSL connect error for https://nvidia.github.io/libnvidia-container/stable/rpm/"
      "nvidia-container-toolkit.repo [OpenSSL SSL_connect: SSL_ERROR_SYSCALL in connection to proxy:1111 ]",
      "proxy cuts", "the proxy's address"),
     ("Errors during downloading metadata for repository 'libnvidia-container':\n  - Status code: 404 for "
      "https://nvidia.github.io/libnvidia-container/stable/rhel9.0/x86_64/repodata/repomd.xml (IP: 185.199.109.153)",
      "no such repository", "gpu_stack_repository_url"),
     ("Curl error (60): SSL peer certificate or SSH remote key was not OK for https://mirror/repodata/repomd.xml "
      "[SSL certificate problem: unable to get local issuer certificate]",
      "does not trust", "/etc/pki/ca-trust/source/anchors/NAME.crt and run update-ca-trust")],
)  # fmt: skip
def test_what_dnf_prints_has_remedies_for_dnf(error: str, meaning: str, remedy: str) -> None:
    found = repository.cause(error)
    assert meaning in found.meaning
    assert remedy in found.remedy


# CIS' rule that sets repo_gpgcheck (ansible-lockdown/RHEL8-CIS) on a public host; NVIDIA/nvidia-docker#1403;
# negativo17/nvidia-driver#160.
@pytest.mark.parametrize(
    "error",
    [
        "Failed to download metadata for repo 'epel': GPG verification is enabled, but GPG signature is not available. "
        "This may be an error or the repository does not support GPG verification: Status code: 404 for "
        "http://mirrors.upr.edu/epel/8/Everything/x86_64/repodata/repomd.xml.asc (IP: 136.145.244.40)",
        "Error: Failed to download metadata for repo 'nvidia-docker': repomd.xml GPG signature verification error: Bad "
        "GPG signature",
        "Package nvidia-driver-cuda-560.35.03-2.fc40.x86_64.rpm is not signed\nError: GPG check FAILED",
    ],
    ids=["no signature", "bad signature", "package"],
)
def test_what_dnf_refuses_without_a_signature_has_a_remedy_for_dnf(error: str) -> None:
    found = repository.failed_download(error)
    assert found is not None
    assert found[0] == error.partition("\n")[0]
    assert "dnf accepts nothing without a signature" in found[1].meaning
    assert "repodata/repomd.xml.asc" in found[1].remedy
    assert "InRelease" not in found[1].remedy

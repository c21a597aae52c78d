"""Downloads: the content, and what went wrong with the URL named."""

import base64
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.base import command, download

from tests.unit import web_server


class Server(web_server.Handler):
    def do_GET(self) -> None:
        if self.path == "/private":
            wanted = "Basic " + base64.b64encode(b"ann:p/s3cret").decode()
            status = 200 if self.headers["Authorization"] == wanted else 401
        else:
            status = 200 if self.path == "/key" else 404
        self.reply(status, b"12345")


@pytest.fixture(scope="module")
def url():
    with web_server.serve(Server) as port:
        yield f"http://127.0.0.1:{port}"


def test_the_content_of_a_url_is_returned(url, tmp_path):
    assert download.fetch(f"{url}/key", 5) == b"12345"
    (tmp_path / "key").write_bytes(b"from a file")
    assert download.fetch((tmp_path / "key").as_uri(), 5) == b"from a file"


def test_content_up_to_the_limit_is_accepted(url, snapshot):
    assert download.fetch(f"{url}/key", 5, limit=5) == b"12345"
    with pytest.raises(download.DownloadError) as error:
        download.fetch(f"{url}/key", 5, limit=4)
    assert str(error.value).replace(url, "URL") == snapshot


def test_a_missing_file_is_an_error_with_the_servers_answer(url):
    with pytest.raises(download.DownloadError, match=r"/none: 404 +Not Found"):
        download.fetch(f"{url}/none", 5)


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("http://127.0.0.1:9/key", "Connection refused"),
        ("file:///nonexistent/key", "No such file"),
        ("ftp://127.0.0.1/key", "must start with one of http://"),
        ("http://[broken/key", "Undetermined Error"),
    ],
    ids=["unreachable", "missing file", "scheme", "invalid"],
)
def test_a_failure_is_an_error_with_the_url(address, message):
    with pytest.raises(download.DownloadError, match=message) as caught:
        download.fetch(address, 5)
    assert str(caught.value).startswith(address)


def test_a_password_in_the_url_is_sent_and_never_shown(url):
    def private(secret: str) -> str:
        return url.replace("://", f"://ann:{secret}@") + "/private"

    assert download.fetch(private("p%2Fs3cret"), 5) == b"12345"
    with pytest.raises(download.DownloadError, match="401") as caught:
        download.fetch(private("wr0ng"), 5)
    assert str(caught.value).startswith(f"{url}/private: ")


PROXY = Path(__file__).parents[3] / "doubles/http_proxy.py"
ELSEWHERE = "http://mirror.example.org/debian12/Packages.gz"  # no name server knows it


@contextmanager
def proxy(log: Path, *status: str) -> Iterator[str]:
    """Start a proxy, and return its URL."""
    words = [sys.executable, str(PROXY), str(log), *status]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
        finally:
            process.terminate()


def apt_is_configured(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Give apt a configuration, which the real `apt-config dump` reads, too; no proxy in the environment.

    Without this machine's own settings.
    """
    (folder / "apt.conf").write_text('Dir::Etc::main "/dev/null"; Dir::Etc::parts "/dev/null";\n' + text)
    monkeypatch.setenv("APT_CONFIG", str(folder / "apt.conf"))
    for name in ("http_proxy", "https_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    "configured",
    [
        'Acquire::http::Proxy "{proxy}";',
        'Acquire::http::Proxy::mirror.example.org "{proxy}"; Acquire::http::Proxy "http://127.0.0.1:9";',
        'Acquire::http::Proxy-Auto-Detect "{folder}/detect";',
    ],
    ids=["for all", "for one server", "detected"],
)
def test_the_proxy_of_apt_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, configured: str) -> None:
    with proxy(tmp_path / "log") as address:
        (tmp_path / "detect").write_text(f"#!/bin/sh\necho {address}\n")
        (tmp_path / "detect").chmod(0o755)
        apt_is_configured(tmp_path, monkeypatch, configured.format(proxy=address, folder=tmp_path))
        dumped = subprocess.run(["apt-config", "dump", "Acquire::http"], capture_output=True, text=True, check=True)
        assert address in dumped.stdout or f"{tmp_path}/detect" in dumped.stdout
        monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # apt's own setting wins
        assert download.fetch(ELSEWHERE, 5) == b"/debian12/Packages.gz"
    assert (tmp_path / "log").read_text() == f"GET {ELSEWHERE}\n"


def test_the_proxy_of_the_environment_is_asked_without_one_of_apt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    apt_is_configured(tmp_path, monkeypatch, "")
    with proxy(tmp_path / "log") as address:
        monkeypatch.setenv("http_proxy", address)
        assert download.fetch(ELSEWHERE, 5) == b"/debian12/Packages.gz"


def test_a_server_that_apt_asks_directly_is_asked_directly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    with proxy(tmp_path / "log") as address:
        configured = f'Acquire::http::Proxy "{address}"; Acquire::http::Proxy::127.0.0.1 "DIRECT";'
        apt_is_configured(tmp_path, monkeypatch, configured)
        assert download.fetch(f"{url}/key", 5) == b"12345"
    assert not (tmp_path / "log").exists()


@pytest.mark.parametrize("address", [ELSEWHERE, ELSEWHERE.replace("http:", "https:")], ids=["http", "https"])
def test_the_refusal_of_a_proxy_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    with proxy(tmp_path / "log", "407") as through:
        apt_is_configured(tmp_path, monkeypatch, f'Acquire::http::Proxy "{through}";')
        with pytest.raises(download.DownloadError, match=r"407 +Proxy Authentication Required"):
            download.fetch(address, 5)
    assert (tmp_path / "log").read_text().startswith("CONNECT" if "https" in address else "GET")


def with_secret(words: list[str], secret: str) -> list[int]:
    """Return the modes of the files that a command line names and that have a secret."""
    paths = [Path(word.rpartition("=")[2]) for word in words]
    return [path.stat().st_mode & 0o777 for path in paths if path.is_file() and secret in path.read_text("latin-1")]


def test_a_password_is_in_no_process_list(url: str, tmp_path: Path) -> None:
    """But in a file of root's alone."""
    seen: list[str] = []
    modes: list[int] = []

    def watch(argv: list[str], timeout: float) -> command.Answer:
        seen.extend(argv)
        modes.extend(with_secret(argv, "s3cret"))
        return command.run(argv, timeout)

    address = url.replace("://", "://ann:p%2Fs3cret@") + "/private"
    assert download.fetch(address, 5, run=watch) == b"12345"
    assert not [word for word in seen if "s3cret" in word]
    assert modes == [0o600]


# Where there is no apt ------------------------------------------------------------------------------------------------


@pytest.fixture
def without_apt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Take apt's helper away; return the path of dnf's settings."""
    monkeypatch.setattr(download, "APT_HELPER", str(tmp_path / "none"))
    monkeypatch.setattr(download, "DNF_SETTINGS", str(tmp_path / "dnf.conf"))
    for name in ("http_proxy", "https_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "dnf.conf"


def test_curl_downloads_without_apt(url: str, without_apt: Path, tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(b"from a file")
    assert download.fetch(f"{url}/key", 5) == b"12345"
    assert download.fetch((tmp_path / "key").as_uri(), 5) == b"from a file"
    assert download.fetch(url.replace("://", "://ann:p%2Fs3cret@") + "/private", 5) == b"12345"


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("{url}/none", "404"),
        ("http://ann:wr0ng@{host}/private", "401"),
        ("http://127.0.0.1:9/key", "Failed to connect|Connection refused"),
        ("file:///nonexistent/key", "Couldn't open file"),
        ("{url}/key", "larger than 4 bytes"),
    ],
    ids=["missing", "password", "unreachable", "missing file", "too large"],
)
def test_curls_failure_is_an_error_with_the_url(url: str, without_apt: Path, address: str, message: str) -> None:
    asked = address.format(url=url, host=url.removeprefix("http://"))
    with pytest.raises(download.DownloadError, match=message) as caught:
        download.fetch(asked, 5, limit=4)
    assert str(caught.value).startswith(asked.replace("ann:wr0ng@", ""))
    assert "wr0ng" not in str(caught.value)


def test_curl_asks_the_proxy_of_dnf_and_shows_no_password(without_apt: Path, tmp_path: Path) -> None:
    seen: list[str] = []
    modes: list[int] = []

    def watch(argv: list[str], timeout: float) -> command.Answer:
        seen.extend(argv)
        modes.extend(with_secret(argv, "p%2"))
        return command.run(argv, timeout)

    with proxy(tmp_path / "log") as address:
        without_apt.write_text(f"[main]\nproxy={address}\nproxy_username=me\nproxy_password=p%2\n")
        assert download.fetch(ELSEWHERE, 5, run=watch) == b"/debian12/Packages.gz"
    assert (tmp_path / "log").read_text() == f"GET {ELSEWHERE}\n"
    assert not [word for word in seen if "p%2" in word]
    assert modes == [0o600]

"""Downloads: the content, and what went wrong with the URL named."""

import base64
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.host import download


class Server(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/private":
            wanted = "Basic " + base64.b64encode(b"ann:p/s3cret").decode()
            self.send_response(200 if self.headers["Authorization"] == wanted else 401)
        else:
            self.send_response(200 if self.path == "/key" else 404)
        self.send_header("Content-Length", "5")
        self.end_headers()
        self.wfile.write(b"12345")

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture(scope="module")
def url():
    server = HTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_the_content_of_a_url_is_returned(url, tmp_path):
    assert download.fetch(f"{url}/key", 5) == b"12345"
    (tmp_path / "key").write_bytes(b"from a file")
    assert download.fetch((tmp_path / "key").as_uri(), 5) == b"from a file"


def test_content_up_to_the_limit_is_accepted(url):
    assert download.fetch(f"{url}/key", 5, limit=5) == b"12345"
    with pytest.raises(download.DownloadError, match=r"/key: larger than 4 bytes"):
        download.fetch(f"{url}/key", 5, limit=4)


def test_a_missing_file_is_an_error_with_the_servers_answer(url):
    with pytest.raises(download.DownloadError, match=r"/none: the server answered 404 Not Found"):
        download.fetch(f"{url}/none", 5)


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("http://127.0.0.1:9/key", "Connection refused"),
        ("file:///nonexistent/key", "No such file"),
        ("ftp://127.0.0.1/key", "must start with one of http://"),
        ("http://[broken/key", "ValueError"),
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

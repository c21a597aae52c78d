"""cifar10.py: the format, the generated set, and downloads over loopback that break off, are wrong or complete."""

import hashlib
import io
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import cifar10
import pytest

from tests.unit import web_server


def record(label: int, fill: int) -> bytes:
    return bytes([label]) + bytes([fill]) * 3072


# The format, as the data's authors describe it: <1 x label><3072 x pixel>, 10000 records in a file of 30730000 bytes.


def test_record_length_is_that_of_the_published_format() -> None:
    assert cifar10.RECORD_BYTES * 10000 == 30730000


def test_records_split_into_labels_and_pixels() -> None:
    labels, pixels = cifar10.split_records(record(3, 7) + record(9, 250), "a file")
    assert list(labels) == [3, 9]
    assert pixels == bytes([7]) * 3072 + bytes([250]) * 3072


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(b"", "found 0 bytes", id="empty"),
        pytest.param(record(1, 1)[:-1], "found 3072 bytes, expected a multiple of 3073", id="cut"),
        pytest.param(record(10, 1), "found label 10, expected 0 to 9", id="label out of range"),
    ],
)
def test_invalid_batch_is_refused(content: bytes, message: str) -> None:
    with pytest.raises(cifar10.DataError, match=message):
        cifar10.split_records(content, "a file")


# The generated set


def test_generated_set_has_the_format_and_is_marked_simulated(tmp_path: Path) -> None:
    dataset = cifar10.write_simulated(tmp_path, seed=1, records=50)
    labels, pixels = cifar10.read(dataset.files)
    assert (dataset.kind, dataset.records, len(labels), len(pixels)) == ("simulated", 250, 250, 250 * 3072)
    assert set(labels) == set(range(10))
    assert all("simulated" in path.name and "simulated" in path.parent.name for path in dataset.files)
    assert "simulated" in dataset.description


def test_generated_set_is_deterministic_and_written_once(tmp_path: Path) -> None:
    first = cifar10.write_simulated(tmp_path, seed=1, records=5)
    written = [path.stat().st_mtime_ns for path in first.files]
    again = cifar10.write_simulated(tmp_path, seed=1, records=5)
    elsewhere = cifar10.write_simulated(tmp_path / "elsewhere", seed=1, records=5)
    other = cifar10.write_simulated(tmp_path, seed=2, records=5)
    assert [path.stat().st_mtime_ns for path in again.files] == written
    assert cifar10.read(elsewhere.files) == cifar10.read(first.files) != cifar10.read(other.files)


def test_incomplete_set_is_written_again(tmp_path: Path) -> None:
    dataset = cifar10.write_simulated(tmp_path, seed=1, records=5)
    whole = cifar10.read(dataset.files)
    dataset.files[2].write_bytes(b"cut")
    assert cifar10.read(cifar10.write_simulated(tmp_path, seed=1, records=5).files) == whole


def test_set_with_other_labels_of_the_same_size_is_written_again(tmp_path: Path) -> None:
    dataset = cifar10.write_simulated(tmp_path, seed=1, records=5)
    original = dataset.files[0].read_bytes()
    dataset.files[0].write_bytes(bytes([(original[0] + 1) % 10]) + original[1:])
    cifar10.write_simulated(tmp_path, seed=1, records=5)
    assert dataset.files[0].read_bytes() == original


def test_generated_classes_are_distinguishable(tmp_path: Path) -> None:
    """The nearest class pattern gives the label, so a network can learn it."""
    labels, pixels = cifar10.read(cifar10.write_simulated(tmp_path, seed=1, records=20).files)
    patterns = [cifar10.class_pattern(label, 1).to_bytes(3072, "big") for label in range(10)]

    def distance(image: bytes, pattern: bytes) -> int:
        return sum(abs(a - b) for a, b in zip(image[::16], pattern[::16], strict=True))

    images = [pixels[at : at + 3072] for at in range(0, len(pixels), 3072)]
    nearest = [min(range(10), key=lambda label: distance(image, patterns[label])) for image in images]
    assert nearest == list(labels)


# The archive over HTTP


@dataclass
class Site:
    """A web site with one file and the configured faults."""

    content: bytes
    break_after: int | None = None
    ranges: bool = True
    requested: list[str | None] = field(default_factory=list)
    url: str = ""


@pytest.fixture
def archive_bytes() -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        for name in ("data_batch_1.bin", "test_batch.bin"):
            content = record(len(name) % 10, 1) * 40
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return stream.getvalue()


@pytest.fixture
def archive(archive_bytes: bytes) -> cifar10.Archive:
    members = {name: hashlib.sha256(record(len(name) % 10, 1) * 40) for name in ("data_batch_1.bin", "test_batch.bin")}
    return cifar10.Archive(
        name="cifar-10-binary.tar.gz",
        size=len(archive_bytes),
        sha256=hashlib.sha256(archive_bytes).hexdigest(),
        directory="cifar-10-batches-bin",
        members={name: digest.hexdigest() for name, digest in members.items()},
    )


@pytest.fixture
def site(archive_bytes: bytes) -> Iterator[Site]:
    served = Site(archive_bytes)

    class Handler(web_server.Handler):
        def do_GET(self) -> None:
            wanted = self.headers.get("Range")
            served.requested.append(wanted)
            start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and served.ranges else 0
            body = served.content[start:]
            self.send_response(206 if start else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if served.break_after is not None:
                body, served.break_after = body[: served.break_after], None
            self.wfile.write(body)

    with web_server.serve(Handler) as port:
        served.url = f"http://127.0.0.1:{port}/cifar-10-binary.tar.gz"
        yield served


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cifar10.time, "sleep", lambda _: None)


def test_archive_is_downloaded_verified_and_unpacked(site: Site, archive: cifar10.Archive, tmp_path: Path) -> None:
    told: list[str] = []
    dataset = cifar10.real_dataset(tmp_path, site.url, archive, told.append)
    assert (dataset.kind, dataset.records, dataset.source) == ("real", 40, site.url)
    assert told == [f"{archive.size} of {archive.size} bytes of cifar-10-binary.tar.gz"]
    assert [path.name for path in dataset.files] == ["data_batch_1.bin"]
    cifar10.real_dataset(tmp_path, site.url, archive)
    assert site.requested == [None]  # valid files are not downloaded again


@pytest.mark.parametrize(
    ("ranges", "second_request"),
    [pytest.param(True, "bytes=100-", id="resumed"), pytest.param(False, "bytes=100-", id="server without ranges")],
)
def test_interrupted_transfer_is_resumed(
    site: Site, archive: cifar10.Archive, tmp_path: Path, ranges: bool, second_request: str
) -> None:
    site.break_after, site.ranges = 100, ranges
    dataset = cifar10.real_dataset(tmp_path, site.url, archive)
    assert dataset.records == 40
    assert site.requested == [None, second_request]


def test_transfer_of_an_earlier_run_is_resumed(
    site: Site, archive: cifar10.Archive, archive_bytes: bytes, tmp_path: Path
) -> None:
    (tmp_path / "cifar-10-binary.tar.gz.part").write_bytes(archive_bytes[:77])
    assert cifar10.real_dataset(tmp_path, site.url, archive).records == 40
    assert site.requested == ["bytes=77-"]


def test_existing_archive_is_used(archive: cifar10.Archive, archive_bytes: bytes, tmp_path: Path) -> None:
    (tmp_path / archive.name).write_bytes(archive_bytes)
    assert cifar10.real_dataset(tmp_path, "http://127.0.0.1:1/", archive).records == 40


def test_corrupted_archive_is_refused_and_deleted(site: Site, archive: cifar10.Archive, tmp_path: Path) -> None:
    site.content = site.content[:-1] + bytes([site.content[-1] ^ 1])
    with pytest.raises(cifar10.DataError, match=f"sha256 is .* expected {archive.sha256}"):
        cifar10.real_dataset(tmp_path, site.url, archive)
    assert list(tmp_path.iterdir()) == []


def test_response_of_another_length_is_refused(site: Site, archive: cifar10.Archive, tmp_path: Path) -> None:
    site.content = b"<html>please log in</html>"
    with pytest.raises(cifar10.DataError, match=f"found 26 bytes, expected {archive.size}"):
        cifar10.real_dataset(tmp_path, site.url, archive)


def test_modified_file_is_replaced(site: Site, archive: cifar10.Archive, archive_bytes: bytes, tmp_path: Path) -> None:
    dataset = cifar10.real_dataset(tmp_path, site.url, archive)
    original = dataset.files[0].read_bytes()
    with tarfile.open(fileobj=io.BytesIO(archive_bytes)) as tar:
        member = tar.extractfile(f"cifar-10-batches-bin/{dataset.files[0].name}")
        assert member is not None
        assert member.read() == original
    dataset.files[0].write_bytes(record(1, 2) * 40)
    assert cifar10.real_dataset(tmp_path, site.url, archive).records == 40
    assert dataset.files[0].read_bytes() == original


def test_unreachable_site_gives_simulated_data_with_auto_only(tmp_path: Path) -> None:
    dataset, note = cifar10.prepare(tmp_path, "auto", "http://127.0.0.1:1/x", records=5)
    assert dataset.kind == "simulated"
    assert "http://127.0.0.1:1/x" in note
    with pytest.raises(cifar10.ArchiveUnavailable, match="mirror"):
        cifar10.prepare(tmp_path, "real", "http://127.0.0.1:1/x")


def test_wrong_archive_is_never_replaced_by_simulated_data(site: Site, tmp_path: Path) -> None:
    with pytest.raises(cifar10.DataError, match="this is not the archive"):
        cifar10.prepare(tmp_path, "auto", site.url, records=5)

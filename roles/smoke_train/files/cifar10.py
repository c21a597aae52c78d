"""Provide CIFAR-10 in its binary format, real or simulated, for smoke_train.py.

A worker (protocol: train_process.py), so that a server that stalls is ended at the time limit. Runs on the managed host
with the environment's Python; standard library only. A record is one label byte and 3072 bytes
of pixels (32 x 32, red plane first). The real archive is downloaded (interrupted transfers are resumed), verified
against its published checksums and unpacked. If it is unavailable, a generated set can replace it: the same format,
with "simulated" in its directory name, its file names and the description that becomes part of the result.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import random
import shutil
import sys
import tarfile
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
import worker_base
from train_options import Options
from train_process import Events

IMAGE_BYTES = 3 * 32 * 32
RECORD_BYTES = 1 + IMAGE_BYTES
TEST_FILE = "test_batch.bin"


@dataclass(frozen=True)
class Archive:
    """The archive and its expected contents."""

    name: str
    size: int
    sha256: str
    directory: str
    members: dict[str, str]  # file name -> SHA-256


URL = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
TIMEOUT = 20  # seconds without an answer of the server
ATTEMPTS = 4
ARCHIVE = Archive(
    name="cifar-10-binary.tar.gz",
    size=170052171,
    sha256="c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    directory="cifar-10-batches-bin",
    members={
        "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
        "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
        "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
        "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
        "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
        TEST_FILE: "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
    },
)

SIMULATED_DIRECTORY = "cifar-10-simulated"
SIMULATED_PER_FILE = 2000
SIMULATED_TRAIN_FILES = 5
# Pixel = class pattern (0 to 192) + noise (0 to 63): the sum fits in a byte, so a whole image is one addition of two
# long integers, without NumPy.
PATTERN_MAX = 192
NOISE_MASK = int.from_bytes(bytes([63]) * IMAGE_BYTES, "big")


class DataError(Exception):
    """The data are unusable; the text names what was found, what was expected and what to do."""


class ArchiveUnavailable(DataError):
    """The archive could not be downloaded; a generated set may replace it."""


@dataclass(frozen=True)
class Dataset:
    """The files with the training records, and their origin."""

    kind: str  # "real" or "simulated"
    files: tuple[Path, ...]
    records: int
    description: str
    source: str


# Records -----------------------------------------------------------------------------------------------------------


def split_records(content: bytes, name: str) -> tuple[bytes, bytes]:
    """Split a batch file into labels and pixels; raises DataError if it is not a CIFAR-10 batch."""
    if not content or len(content) % RECORD_BYTES:
        raise DataError(
            f"{name}: found {len(content)} bytes, expected a multiple of {RECORD_BYTES}; delete the file and run again"
        )
    labels = content[::RECORD_BYTES]
    if max(labels) > 9:
        raise DataError(f"{name}: found label {max(labels)}, expected 0 to 9; delete the file and run again")
    pixels = b"".join(content[at + 1 : at + RECORD_BYTES] for at in range(0, len(content), RECORD_BYTES))
    return labels, pixels


def read(files: Iterable[str | Path]) -> tuple[bytes, bytes]:
    """Return the labels (one byte each) and the pixels (IMAGE_BYTES each) of all records in batch files."""
    parts = [split_records(Path(name).read_bytes(), str(name)) for name in files]
    return b"".join(labels for labels, _unused in parts), b"".join(pixels for _unused, pixels in parts)


# The generated set -------------------------------------------------------------------------------------------------


def class_pattern(label: int, seed: int) -> int:
    """Return a class's pattern as one integer of IMAGE_BYTES bytes: a 4 x 4 mosaic of colours, scaled to 32 x 32."""
    generator = random.Random(f"{seed}/{label}")
    pixels = bytearray()
    for _unused in range(3):
        tiles = [[generator.randrange(PATTERN_MAX + 1) for _unused in range(4)] for _unused in range(4)]
        for row in range(32):
            pixels += bytes(tiles[row // 8][column // 8] for column in range(32))
    return int.from_bytes(pixels, "big")


def simulated_batch(number: int, records: int, seed: int) -> bytes:
    """Return the records of one file: class pattern plus noise; deterministic for a number and a seed."""
    patterns = [class_pattern(label, seed) for label in range(10)]
    generator = random.Random(f"{seed}/batch {number}")
    content = bytearray()
    for _unused in range(records):
        label = generator.randrange(10)
        image = patterns[label] + (generator.getrandbits(IMAGE_BYTES * 8) & NOISE_MASK)
        content.append(label)
        content += image.to_bytes(IMAGE_BYTES, "big")
    return bytes(content)


def write_simulated(data_dir: Path, seed: int, records: int) -> Dataset:
    """Write the generated set unless exactly that exists already; it appears completely or not at all.

    Generating it takes less than a second, so files of an earlier run are compared byte by byte.
    """
    directory = data_dir / f"{SIMULATED_DIRECTORY}-{seed}-{records}"
    contents = {
        f"simulated_batch_{number}.bin": simulated_batch(number, records, seed)
        for number in range(1, SIMULATED_TRAIN_FILES + 1)
    }
    if not all(holds(directory / name, content) for name, content in contents.items()):
        data_dir.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=data_dir, prefix="unfinished-") as scratch:
            for name, content in contents.items():
                (Path(scratch) / name).write_bytes(content)
            replace_directory(Path(scratch), directory)
    return Dataset(
        kind="simulated",
        files=tuple(directory / name for name in contents),
        records=records * len(contents),
        description="simulated: generated images in CIFAR-10's binary format (class pattern plus noise)",
        source=f"generated, seed {seed}",
    )


def holds(path: Path, content: bytes) -> bool:
    """Return whether the file exists and has this content."""
    return path.is_file() and path.read_bytes() == content


def replace_directory(scratch: Path, directory: Path) -> None:
    """Move the files in `scratch` to a new directory that replaces `directory`."""
    unpacked = scratch.parent / f"{scratch.name}-ready"
    shutil.rmtree(directory, ignore_errors=True)
    unpacked.mkdir()
    for path in scratch.iterdir():
        path.rename(unpacked / path.name)
    unpacked.rename(directory)


# The real archive --------------------------------------------------------------------------------------------------


def file_digest(path: Path) -> str:
    """Return a file's SHA-256 in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        for block in iter(lambda: stream.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


def unpacked_problems(data_dir: Path, archive: Archive) -> list[str]:
    """Return what is wrong with the unpacked files; empty if they are exactly the published ones."""
    problems = []
    for name, sha256 in archive.members.items():
        path = data_dir / archive.directory / name
        if not path.is_file():
            problems.append(f"{path} is missing")
        elif file_digest(path) != sha256:
            problems.append(f"{path} is not the published file")
    return problems


def download(url: str, target: Path, archive: Archive, say: Callable[[str], None]) -> None:
    """Download the archive to `target`, resuming `target`.part; its checksums are verified before the rename.

    Raises ArchiveUnavailable if it cannot be downloaded, DataError if the content is not the published one.
    """
    part = target.with_name(target.name + ".part")
    target.parent.mkdir(parents=True, exist_ok=True)
    server_answered = False
    reason = ""
    for attempt in range(ATTEMPTS):
        before = part.stat().st_size if part.exists() else 0
        if before >= archive.size:
            break
        try:
            fetch_remaining(url, part, archive, say)
            server_answered = True
        except (urllib.error.URLError, http.client.HTTPException, OSError, ValueError) as error:
            reason = f"{type(error).__name__}: {error}"
            now = part.stat().st_size if part.exists() else 0
            if now == before and not server_answered:
                break  # the server never answered: retrying would only delay the run
            server_answered = True
            time.sleep(min(2**attempt, 5))
    size = part.stat().st_size if part.exists() else 0
    if size < archive.size:
        raise ArchiveUnavailable(
            f"{url}: {reason or 'the transfer ended early'}; {size} of {archive.size} bytes downloaded. Use a mirror "
            "(--mirror-url), put the archive into the data directory, or use --data simulated"
        )
    check_archive(part, archive, url)
    part.replace(target)


def fetch_remaining(url: str, part: Path, archive: Archive, say: Callable[[str], None]) -> None:
    """Fetch what `part` lacks, or everything if the server does not support ranges; raises DataError."""
    offset = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={offset}-"} if offset else {})
    with urllib.request.urlopen(request, timeout=TIMEOUT) as response:
        partial = response.status == 206
        length = response.headers.get("Content-Length")
        if length is not None and int(length) + (offset if partial else 0) != archive.size:
            raise DataError(
                f"{url}: found {int(length) + (offset if partial else 0)} bytes, expected {archive.size}: this is not "
                "the archive (a proxy's page?). Use a mirror (--mirror-url) or --data simulated"
            )
        with part.open("ab" if partial else "wb") as stream:
            next_report = 0.0
            for block in iter(lambda: response.read(1 << 18), b""):
                stream.write(block)
                if time.monotonic() >= next_report:
                    next_report = time.monotonic() + 5
                    say(f"{stream.tell()} of {archive.size} bytes of {archive.name}")


def check_archive(path: Path, archive: Archive, origin: str) -> None:
    """Delete the file and raise DataError if it is not the published archive."""
    found = file_digest(path)
    if found != archive.sha256:
        path.unlink()
        raise DataError(
            f"{origin}: sha256 is {found}, expected {archive.sha256}; the file was deleted. Run again, or use another "
            "mirror (--mirror-url)"
        )


def unpack(path: Path, data_dir: Path, archive: Archive) -> None:
    """Extract exactly the known members; paths inside the archive are ignored."""
    with tempfile.TemporaryDirectory(dir=data_dir, prefix="unfinished-") as scratch:
        with tarfile.open(path, "r:gz") as tar:
            for member in tar:
                name = os.path.basename(member.name)
                source = tar.extractfile(member) if member.isfile() and name in archive.members else None
                if source is not None:
                    with (Path(scratch) / name).open("wb") as stream:
                        shutil.copyfileobj(source, stream)
        replace_directory(Path(scratch), data_dir / archive.directory)
    problems = unpacked_problems(data_dir, archive)
    if problems:
        raise DataError(f"{path}: " + "; ".join(problems) + ". Delete it and run again")


def real_dataset(
    data_dir: Path, mirror_url: str = "", archive: Archive = ARCHIVE, say: Callable[[str], None] = print
) -> Dataset:
    """Return the published data: from unpacked files, else from an archive in `data_dir`, else downloaded.

    Raises ArchiveUnavailable or DataError.
    """
    origin = "files in the data directory"
    if unpacked_problems(data_dir, archive):
        path = data_dir / archive.name
        origin = str(path)
        if path.is_file():
            check_archive(path, archive, str(path))
        else:
            origin = mirror_url or URL
            download(origin, path, archive, say)
        unpack(path, data_dir, archive)
    files = tuple(data_dir / archive.directory / name for name in archive.members if name != TEST_FILE)
    records = sum(path.stat().st_size for path in files) // RECORD_BYTES
    return Dataset("real", files, records, "CIFAR-10, binary version, checksums verified", origin)


def prepare(
    data_dir: Path,
    kind: str,
    mirror_url: str = "",
    seed: int = 1,
    records: int = SIMULATED_PER_FILE,
    say: Callable[[str], None] = print,
) -> tuple[Dataset, str]:
    """Return the requested data, and a note if `auto` had to use simulated data, with the reason.

    say: called with the progress of a download, as text.
    """
    if kind == "simulated":
        return write_simulated(data_dir, seed, records), ""
    try:
        return real_dataset(data_dir, mirror_url, say=say), ""
    except ArchiveUnavailable as error:
        if kind == "real":
            raise
        return write_simulated(data_dir, seed, records), f"the real data are unavailable: {error}"


def send(_request: dict[str, Any], options: Options, events: Events) -> None:
    """Prepare the requested data and send the event `data`."""

    def say(text: str) -> None:
        events.send("progress", text=text)

    dataset, note = prepare(Path(options.data_dir), options.data, options.mirror_url, options.seed, say=say)
    files = [str(path.resolve()) for path in dataset.files]
    events.send("data", **dict(vars(dataset), files=files, note=note))


if __name__ == "__main__":
    sys.exit(worker_base.run(sys.argv[1], send, str))

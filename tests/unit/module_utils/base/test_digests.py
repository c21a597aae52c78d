"""Digests of files, as the system's own tools compute them."""

from __future__ import annotations

import subprocess
from pathlib import Path

from ansible_collections.gpuhost.stack.plugins.module_utils.base import digests


def test_the_digest_of_what_is_no_file_is_empty(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old\n")
    (tmp_path / "link").symlink_to("missing")
    expected = subprocess.run(["md5sum", str(tmp_path / "file")], check=True, capture_output=True, text=True).stdout
    assert digests.of_file(str(tmp_path / "file"), "md5") == bytes.fromhex(expected.split()[0])
    assert digests.of_file(str(tmp_path / "file"), "no-such-algorithm") == b""
    for name in ("missing", "link", "."):
        assert digests.of_file(str(tmp_path / name), "md5") == b""

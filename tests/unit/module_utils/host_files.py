"""Write files below a root directory, as a test lays out a host."""

from __future__ import annotations

from pathlib import Path


def put(root: Path, path: str, content: str | bytes = "") -> Path:
    target = root / path.lstrip("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content if isinstance(content, bytes) else content.encode())
    return target


def link(root: Path, path: str, target: str) -> None:
    at = root / path.lstrip("/")
    at.parent.mkdir(parents=True, exist_ok=True)
    at.symlink_to(target)

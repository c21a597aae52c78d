"""Real packages, built by dpkg-deb and installed by dpkg below a directory that is the host's root."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest

needs_dpkg = pytest.mark.skipif(not shutil.which("dpkg-deb"), reason="dpkg is not installed on this machine")


class RealDpkg:
    """A root directory with dpkg's database."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for name in ("info", "updates"):
            (root / "var/lib/dpkg" / name).mkdir(parents=True)
        for name in ("status", "available"):
            (root / "var/lib/dpkg" / name).write_text("")

    def build(
        self,
        name: str,
        files: dict[str, str],
        version: str = "1",
        conffiles: Iterable[str] = (),
        links: dict[str, str] | None = None,
        script: str = "",
        **relations: str,
    ) -> Path:
        """Build a package of text files and links; return the .deb.

        script: of its postinst. relations: fields of its control file, such as depends="a (= 1), b".
        """
        tree = self.root.parent / f"{name}_{version}"
        for path, text in files.items():
            (tree / path.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
            (tree / path.lstrip("/")).write_text(text)
        for path, target in (links or {}).items():
            (tree / path.lstrip("/")).symlink_to(target)
        (tree / "DEBIAN").mkdir(mode=0o755, parents=True, exist_ok=True)
        fields = {
            "Package": name,
            "Version": version,
            "Architecture": "all",
            "Maintainer": "test",
            "Description": "test",
            **{field.capitalize(): value for field, value in relations.items()},
        }
        (tree / "DEBIAN/control").write_text("".join(f"{key}: {value}\n" for key, value in fields.items()))
        if script:
            (tree / "DEBIAN/postinst").write_text(f"#!/bin/sh\n{script}\n")
            (tree / "DEBIAN/postinst").chmod(0o755)
        if conffiles:
            (tree / "DEBIAN/conffiles").write_text("".join(f"{path}\n" for path in conffiles))
        deb = tree.with_name(f"{name}_{version}_all.deb")
        subprocess.run(["dpkg-deb", "-Znone", "--build", tree, deb], check=True, capture_output=True)
        return deb

    def install(self, deb: Path, *options: str) -> None:
        """Run dpkg --install; its own directories in PATH, as for root."""
        command = [
            "dpkg",
            f"--root={self.root}",
            "--force-not-root",
            "--force-bad-path",
            *options,
            "--install",
            str(deb),
        ]
        done = subprocess.run(
            command, capture_output=True, text=True, env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        )
        assert done.returncode == 0, done.stderr

    def hold(self, name: str) -> None:
        """Hold a package, as apt-mark does."""
        subprocess.run(
            ["dpkg", f"--root={self.root}", "--force-not-root", "--set-selections"],
            input=f"{name} hold\n",
            text=True,
            check=True,
        )

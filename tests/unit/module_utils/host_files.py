"""Write files below a root directory, as a test lays out a host."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from ansible_collections.gpuhost.stack.plugins.module_utils.packages.apt import apt_lists


def put(root: Path, path: str, content: str | bytes = "") -> Path:
    target = root / path.lstrip("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content if isinstance(content, bytes) else content.encode())
    return target


def link(root: Path, path: str, target: str) -> None:
    at = root / path.lstrip("/")
    at.parent.mkdir(parents=True, exist_ok=True)
    at.symlink_to(target)


def put_grub_menu(root: Path, kernels: Iterable[str], default: str = "0", system: str = "Debian GNU/Linux") -> None:
    """Write a grub.cfg like grub-mkconfig's (tests/fixtures/grub), with these kernels in this order."""
    lines = [
        "load_env",
        "menuentry_id_option=--id",
        f'set default="{default}"',
        'if [ -n "${gpuhost_entry}" ]; then',
        'set default="${gpuhost_entry}"',
        "fi",
    ]
    for number, kernel in enumerate(kernels):
        if number == 0:
            lines += [
                f"menuentry '{system}' $menuentry_id_option 'gnulinux-simple-1' {{",
                f"linux /boot/vmlinuz-{kernel}",
            ]
            lines += ["}", f"submenu 'Advanced options for {system}' $menuentry_id_option 'gnulinux-advanced-1' {{"]
        own = f"$menuentry_id_option 'gnulinux-{kernel}-advanced-1'"
        lines += [f"menuentry '{system}, with Linux {kernel}' {own} {{", f"linux /boot/vmlinuz-{kernel}", "}"]
    put(root, "/boot/grub/grub.cfg", "\n".join([*lines, "}", ""]))


def listed(rows: dict[str, str], source: str = "") -> str:
    """Return a list of packages as a repository has it, by name and version; source: of all of them."""
    more = f"Source: {source}\n" if source else ""
    return "".join(f"Package: {n}\nVersion: {v}\nArchitecture: all\n{more}\n" for n, v in rows.items())


def put_repository(root: Path, uri: str, suite: str, content: str, release: str = "") -> None:
    """Write what apt keeps of a repository, flat where `suite` is /, and its source."""
    base = apt_lists.list_name(uri) + ("" if suite == "/" else f"_dists_{suite}")
    kind = "_Packages" if suite == "/" else "_main_binary-amd64_Packages"
    put(root, f"{apt_lists.LISTS}/{base}{kind}", content)
    if release:
        put(root, f"{apt_lists.LISTS}/{base}_InRelease", release)
    name = re.sub(r"\W", "-", uri.partition(":")[2].lstrip("/"))
    put(root, f"/etc/apt/sources.list.d/{name}.list", f"deb {uri} {suite}{' main' * (suite != '/')}\n")

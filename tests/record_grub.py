"""Record which kernel GRUB itself boots with each configuration of tests/unit/module_utils/host/test_grub.py.

    PYTHONPATH=collections .venv/bin/python -m tests.record_grub   writes tests/fixtures/grub/booted.json

GRUB is Debian 12's grub-emu, which is GRUB as a program. It has no `linux` command: a function prints what that would
load. Its library for windows is replaced by an empty one. Needs apt, gcc and a Debian 12 machine.
"""

import contextlib
import hashlib
import json
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

Files = Mapping[str, str]  # beside grub.cfg, {name: content}
Cases = Mapping[str, tuple[str | None, str, str, Files]]
RECORD = Path(__file__).parent / "fixtures/grub/booted.json"
PACKAGES = ("grub-emu", "libdevmapper1.02.1")
SDL = """int SDL_Init(void) { return -1; }
char *SDL_GetError(void) { return "no windows"; }
int sdl(void) { return -1; }
"""
LINUX = 'function linux { echo "kernel $1"; }\n'
ENVIRONMENT_BYTES = 1024


def digest(configuration: str, environment: str, files: Files) -> str:
    """Return what a record is valid for."""
    texts = [configuration, environment, *(text for file in files.items() for text in file)]
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]


def known(cases: Cases) -> dict[str, tuple[str, str, Files]]:
    """Return {case: (configuration, environment, files)} of those in which GRUB's choice is known."""
    return {
        name: (text, kept, files)
        for name, (text, kept, boots, files) in cases.items()
        if text and not boots.startswith("unknown")
    }


@contextlib.contextmanager
def emulator() -> Iterator[list[str]]:
    """Return the command that runs GRUB."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        subprocess.run(
            ["apt-get", "-qq", "-o", "APT::Sandbox::User=root", "download", *PACKAGES], cwd=folder, check=True
        )
        for package in folder.glob("*.deb"):
            subprocess.run(["dpkg", "-x", package, folder], check=True)
        (folder / "sdl.c").write_text(SDL)
        library = folder / "libSDL-1.2.so.0"
        subprocess.run(
            ["gcc", "-shared", "-fPIC", f"-Wl,-soname,{library.name}", "-o", library, "sdl.c"], cwd=folder, check=True
        )
        libraries = ":".join({str(folder), *(str(path.parent) for path in folder.rglob("libdevmapper.so*"))})
        yield ["env", f"LD_LIBRARY_PATH={libraries}", f"{folder}/usr/bin/grub-emu", "-r", "host", "-d"]


def booted(command: list[str], configuration: str, environment: str, files: Files) -> str:
    """Return the kernel that GRUB boots; "" where it boots something else."""
    with tempfile.TemporaryDirectory() as folder:
        text = configuration.replace("terminal_output gfxterm\n", "")
        Path(folder, "grub.cfg").write_text(f"{LINUX}{text}\nset timeout=0\n")
        for name, content in files.items():
            Path(folder, name).write_text(content)
        block = f"# GRUB Environment Block\n{environment}"
        Path(folder, "grubenv").write_text(block + "#" * (ENVIRONMENT_BYTES - len(block)))
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        with subprocess.Popen([*command, folder], **quiet) as process:
            assert process.stdout
            output = ""
            while data := os.read(process.stdout.fileno(), 1 << 16):
                output += data.decode(errors="replace").replace("\r", "")
                if "Press any key" in output:  # it waits, and then shows the menu
                    process.kill()
    output = re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", output)
    assert "Booting" in output, output
    return (re.findall(r"^kernel \S*vmlinuz-(\S+)", output, re.MULTILINE) or [""])[-1]


def main() -> None:
    from tests.unit.module_utils.host.test_grub import CASES, case_of  # which imports this module

    cases = known({name: case_of(name) for name in CASES})
    with emulator() as command, ThreadPoolExecutor(4) as pool:
        version = subprocess.run([*command[:3], "--version"], capture_output=True, text=True, check=True).stdout
        kernels = pool.map(lambda case: booted(command, *case), cases.values())
        found = {
            name: {"of": digest(*case), "kernel": kernel}
            for (name, case), kernel in zip(cases.items(), kernels, strict=True)
        }
    RECORD.write_text(
        json.dumps({"grub": version.strip().rpartition("/")[2], "booted": found}, indent=1, ensure_ascii=False) + "\n"
    )


if __name__ == "__main__":
    main()

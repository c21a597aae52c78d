"""Call nvidia-smi once and read its CSV and its exit code. Runs on the target."""

from __future__ import annotations

import os
import shutil
from typing import Any

from ansible_collections.gpuhost.stack.plugins.module_utils.host.command import Run

FIELDS: tuple[str, ...] = ("index", "name", "uuid", "driver_version", "memory.total", "compute_cap", "pci.bus_id")
TIMEOUT = 30
NEWER_FIELD = "compute_cap"  # unknown to drivers before 510, which answer exit code 2
DIRECTORIES = ("/usr/bin", "/usr/local/bin", "/usr/local/nvidia/bin", "/usr/lib/wsl/lib")

EXIT_CODES = {
    0: "works",
    2: "an option or a field to query is not known to this nvidia-smi",
    4: "no permission",
    6: "no device was found",
    9: "the NVIDIA driver is not loaded",
    12: "the NVIDIA management library (libnvidia-ml.so.1) is missing",
    14: "a GPU's infoROM is corrupted",
    15: "a GPU has fallen off the bus",
    18: "the loaded kernel module and the user-space libraries have different versions",
    124: "did not answer in time",
    127: "could not be started",
    255: "an option is not known to this nvidia-smi, or an unknown error",
}


def meaning(exit_code: int) -> str:
    return EXIT_CODES.get(exit_code, "nvidia-smi failed for a reason that its exit code does not tell")


def argv(path: str, fields: tuple[str, ...]) -> list[str]:
    return [path, "--query-gpu=" + ",".join(fields), "--format=csv,noheader,nounits"]


def pci_address(bus_id: str) -> str:
    """nvidia-smi's 00000000:05:00.0 as sysfs names it: 0000:05:00.0."""
    domain, rest = bus_id.lower().split(":", 1)
    return "%04x:%s" % (int(domain, 16), rest)


def parse(output: str, fields: tuple[str, ...] = FIELDS) -> list[dict[str, Any]]:
    """Rows of `--format=csv,noheader,nounits`; a value in brackets ([N/A], [Not Supported]) is None."""
    gpus = []
    for line in output.splitlines():
        if not line.strip():
            continue
        values = [value.strip() for value in line.split(", ")]
        if len(values) != len(fields):
            raise ValueError(
                "nvidia-smi printed %d values for %d fields: %r" % (len(values), len(fields), line.strip())
            )
        row = {name: None if value.startswith("[") else value for name, value in zip(fields, values)}  # noqa: B905
        gpus.append(_gpu(row))
    return gpus


def _gpu(row: dict[str, str | None]) -> dict[str, Any]:
    index, memory, bus_id = row.get("index"), row.get("memory.total"), row.get("pci.bus_id")
    return {
        "index": None if index is None else int(index),
        "name": row.get("name"),
        "uuid": row.get("uuid"),
        "driver_version": row.get("driver_version"),
        "memory_mib": None if memory is None else int(memory),
        "compute_capability": row.get("compute_cap"),
        "pci_address": None if bus_id is None else pci_address(bus_id),
    }


def find() -> str | None:
    """Where nvidia-smi is; sudo and systemd may have cut PATH, so its usual places count too."""
    path = os.environ.get("PATH", "") + os.pathsep + os.pathsep.join(DIRECTORIES)
    return shutil.which("nvidia-smi", path=path)


def read(path: str | None, run: Run) -> dict[str, Any] | None:
    """The probe's `nvidia_smi`; None when the program is not there. `run(argv, timeout)` gives a command.Answer."""
    if path is None:
        return None
    fields = FIELDS
    answer = run(argv(path, fields), TIMEOUT)
    if answer.exit_code == 2 and NEWER_FIELD in answer.text():
        fields = tuple(field for field in FIELDS if field != NEWER_FIELD)
        answer = run(argv(path, fields), TIMEOUT)
    gpus = parse(answer.stdout.decode("utf-8", "replace"), fields) if answer.exit_code == 0 else []
    message = "" if answer.exit_code == 0 else " ".join(answer.text().split())
    return {"path": path, "exit_code": answer.exit_code, "message": message, "gpus": gpus}

# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Keep what the checks of a host found last, and what they had found before a change that is pending.

last_result.json has the time, the boot, the loaded module's version, the GPUs, the position in the kernel log and each
check's outcome with cause, finding and values. verify_options.json has what the checks were asked, so that the host can
ask them again and judge what it finds by the same data: gpuhost-verify reads both. A change keeps the result from
before it in pending.json (`before`), as the checks after it write another one. Runs on the managed host.
"""

from __future__ import annotations

import os
import time
from typing import Any, Dict, List, Mapping

from ansible_collections.gpuhost.stack.plugins.module_utils.base import files, store
from ansible_collections.gpuhost.stack.plugins.module_utils.host import pci
from ansible_collections.gpuhost.stack.plugins.module_utils.model.nvidia import NvidiaSmi
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia import proc_driver

BOOT_ID = "/proc/sys/kernel/random/boot_id"
# Of a check: the values are in the text `found`. What to do about it is not kept, as it depends on the release.
FIELDS = ("status", "found", "reason", "cause", "setting", "finding", "versions")

# What smoke_train writes when it has ended, whatever its outcome (role smoke_train).
TRAINING, UNDONE_TRAINING = "smoke_train/result.json", "smoke_train/result_of_undone_change.json"

Gpus = List[
    Dict[str, Any]
]  # of {"pci_address", "uuid"}, by address; the UUID is None where nvidia-smi does not report it


def gpus(root: str, smi: NvidiaSmi | None) -> Gpus | None:
    """Return the GPUs on the PCI bus; None where that cannot be read. smi: the result of nvidia_smi.read."""
    try:
        addresses = sorted(gpu.pci_address for gpu in pci.read(root)[0])
    except OSError:
        return None
    uuids = {gpu.pci_address: gpu.uuid for gpu in (smi.gpus if smi else ())}
    return [{"pci_address": address, "uuid": uuids.get(address)} for address in addresses]


def compose(root: str, smi: NvidiaSmi | None, evidence: dict[str, Any]) -> dict[str, Any]:
    """Return the record of the `verify` evidence; what cannot be read is None."""
    try:
        loaded = proc_driver.read(root)
    except (OSError, ValueError):  # a check reports it
        loaded = None
    boot = files.read_text(root, BOOT_ID)
    return {
        "at": time.strftime(store.NOW, time.gmtime()),
        "boot_id": boot.strip() if boot else None,
        "driver": loaded.version if loaded else None,
        "gpus": gpus(root, smi),
        "kernel_log": evidence.get("kernel_log"),
        "status": evidence["status"],
        "checks": {
            check["id"]: {name: check[name] for name in FIELDS if name in check} for check in evidence["checks"]
        },
    }


def write(directory: str, record: dict[str, Any], options: Mapping[str, Any] | None = None) -> str | None:
    """Replace the last result where the host has a state directory; return why it could not be written.

    options: those of gpu_verify by which it was found, which seldom change; None leaves those that are kept.
    """
    if not os.path.isdir(directory):
        return None
    try:
        store.write(directory, store.LAST_RESULT, record)
        if options is not None and _options(directory) != {**options, "schema": store.SCHEMA}:
            store.write(directory, store.OPTIONS, dict(options))
    except OSError as error:
        place = os.path.join(directory, store.LAST_RESULT + ".json")
        return "the result of the checks was not kept in %s: %s" % (place, error.strerror or error)
    return None


def read(directory: str) -> dict[str, Any] | None:
    """Return the last result; None where there is none, or one that is damaged: the next checks replace it."""
    try:
        return store.read(directory, store.LAST_RESULT)
    except store.NewerStateError:
        raise
    except ValueError:
        return None


def _options(directory: str) -> dict[str, Any] | None:
    try:
        return store.read(directory, store.OPTIONS)
    except ValueError:
        return None


def findings_before(directory: str, present: Gpus | None) -> dict[str, str]:
    """Return by check what it had found before the change that is pending, as far as it was not right.

    Empty without a change or a record, and where the GPUs have changed since: a finding may name one by its number.
    """
    before = (store.read(directory, store.PENDING) or {}).get("before") or {}
    if not present or before.get("gpus") != present:
        return {}
    checks = before.get("checks") or {}
    return {name: check["finding"] for name, check in checks.items() if check.get("finding")}


def of_restored_host(directory: str, is_changed: bool) -> None:
    """Put back the result from before the change that was undone; drop that of another configuration.

    The result of a training of that one is kept under another name, for people.
    """
    training = os.path.join(directory, TRAINING)
    if is_changed and os.path.exists(training):
        os.replace(training, os.path.join(directory, UNDONE_TRAINING))
    before = (store.read(directory, store.PENDING) or {}).get("before")
    if before:
        store.write(directory, store.LAST_RESULT, before)
    elif is_changed:
        store.remove(directory, store.LAST_RESULT)

# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Keep what the checks of a host found last, and what they had found before a change that is pending.

last_result.json has the time, the boot, the loaded module's version, the GPUs, the position in the kernel log and each
check's outcome with cause and values. verify_options.json has what the checks were asked, so that the host can ask them
again and judge what it finds by the same data: gpuhost-verify reads both. A change keeps the result from just before it
in pending.json (`before`), as the checks after it write another one, and those that have been right since (`passed`).
Runs on the managed host.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any, Dict, List, Mapping

from ansible_collections.gpuhost.stack.plugins.module_utils.base import files, store
from ansible_collections.gpuhost.stack.plugins.module_utils.host import pci
from ansible_collections.gpuhost.stack.plugins.module_utils.model import outcomes
from ansible_collections.gpuhost.stack.plugins.module_utils.model.nvidia import NvidiaSmi
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia import proc_driver

BOOT_ID = "/proc/sys/kernel/random/boot_id"
# Of a check: the values are in the text `found`. What to do about it is not kept, as it depends on the release.
FIELDS = ("status", "found", "reason", "cause", "setting", "versions")
OF_GPUS = ("gpu.", "cuda.", "tensorflow.", "pytorch.", "idle.")  # of no use while another module than ours is loaded
MODULE_MATCHES = "driver.module_matches_user_space"

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
        _keep_passed(directory, record)
        _keep_innocent(directory, record)
        if options is not None and _options(directory) != {**options, "schema": store.SCHEMA}:
            store.write(directory, store.OPTIONS, dict(options))
    except (OSError, ValueError) as error:  # a damaged record of a change: the probe reports it
        place = os.path.join(directory, store.LAST_RESULT + ".json")
        return "the result of the checks was not kept in %s: %s" % (place, getattr(error, "strerror", None) or error)
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


def asked_last(directory: str) -> dict[str, Any] | None:
    """Return the options with which the checks were asked last, of the configuration that is on the host."""
    return _options(directory)


def answers(directory: str, present: Gpus | None) -> outcomes.Answers:
    """Return what the checks had found before the change that is pending, and when its configuration was verified.

    Nothing without a change, and where the host had other GPUs.
    """
    pending = store.read(directory, store.PENDING) or {}
    before = pending.get("before") or {}
    if not before or _places(before.get("gpus")) != _places(present):
        return outcomes.Answers()
    verified = (store.evidence(directory) or {}).get("checks")
    return outcomes.Answers(_outcomes(before), verified, frozenset(pending.get("passed") or ()))


def with_last(fresh: dict[str, Any], last: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a result from just before a change; what it could not measure has the answer of the last one, if any.

    That is what waits for idle GPUs, and all that uses the GPUs while the loaded module is not the installed one.
    """
    if not last or _places(last.get("gpus")) != _places(fresh["gpus"]):
        return fresh
    matches = fresh["checks"].get(MODULE_MATCHES, {}).get("status") in (outcomes.PASS, outcomes.SKIP)
    known = last.get("checks") or {}
    checks = {
        name: known.get(name, check)
        if check["status"] == outcomes.DEFERRED or (not matches and name.startswith(OF_GPUS))
        else check
        for name, check in fresh["checks"].items()
    }
    return dict(fresh, checks=checks)


def _places(found: Gpus | None) -> list[str]:
    """Return the addresses of GPUs; their UUIDs are unknown where nvidia-smi fails, as after a bad change."""
    return [gpu["pci_address"] for gpu in found or []]


def _outcomes(result: Mapping[str, Any]) -> dict[str, str]:
    return {name: check["status"] for name, check in (result.get("checks") or {}).items()}


def _keep_passed(directory: str, record: dict[str, Any]) -> None:
    """Add the checks that pass to those that have passed since the change that is pending."""
    pending = store.read(directory, store.PENDING)
    if pending is None:
        return
    right = {name for name, outcome in _outcomes(record).items() if outcomes.is_right(outcome)}
    store.write(directory, store.PENDING, dict(pending, passed=sorted(right.union(pending.get("passed") or ()))))


def worse(directory: str) -> list[str]:
    """Return the checks of the last result that the change which is pending made worse."""
    last = read(directory) or {}
    known = answers(directory, last.get("gpus"))
    checks = last.get("checks") or {}
    return [name for name, check in checks.items() if outcomes.is_worse(check) and known.were_right(name)]


def _training(directory: str) -> dict[str, Any]:
    """Return the result of the last training; {} where there is none that can be read."""
    try:
        result = json.loads(files.read_text(directory, TRAINING) or "{}")
    except (OSError, ValueError):  # it was interrupted while it was written
        return {}
    return result if isinstance(result, dict) else {}


def _checks_of_training(result: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    return {check["id"]: check for check in result.get("checks") or []}


def _worse_in_training(directory: str) -> list[str]:
    """Return the checks of a training since the change began that passed when the configuration was verified."""
    result, since = _training(directory), (store.read(directory, store.PENDING) or {}).get("since", "")
    if not since or result.get("finished", "") < since:
        return []
    trainings = (store.evidence(directory) or {}).get("trainings") or {}
    before = (trainings.get(result.get("framework")) or {}).get("checks") or {}
    return [
        name
        for name, check in _checks_of_training(result).items()
        if outcomes.is_worse(check) and outcomes.is_right(before.get(name))
    ]


def _keep_undone(directory: str) -> None:
    """Record which checks were worse after the change that is undone, and the versions that it had planned."""
    found = worse(directory) + _worse_in_training(directory)
    planned = ((_options(directory) or {}).get("plan") or {}).get("components") or {}
    if found:
        versions = {name: part["version"] for name, part in planned.items() if part}
        at = time.strftime(store.NOW, time.gmtime())
        store.write(directory, store.UNDONE, {"at": at, "checks": found, "versions": versions})


def _keep_innocent(directory: str, record: dict[str, Any]) -> None:
    """Take what fails without that change as well, checks or training, from the record of the one that was undone."""
    undone = store.read(directory, store.UNDONE)
    if undone is None or store.read(directory, store.PENDING) is not None:
        return
    checks = {**_checks_of_training(_training(directory)), **record["checks"]}
    left = [name for name in undone["checks"] if not outcomes.is_worse(checks.get(name, {}))]
    if not left:
        store.remove(directory, store.UNDONE)
    elif left != undone["checks"]:
        store.write(directory, store.UNDONE, dict(undone, checks=left))


def of_restored_host(directory: str, is_changed: bool) -> None:
    """Put back the result from before the change that was undone; drop that of another configuration.

    The result of a training of that one is kept under another name, for people.
    """
    training = os.path.join(directory, TRAINING)
    if is_changed:
        _keep_undone(directory)
    if is_changed and os.path.exists(training):
        os.replace(training, os.path.join(directory, UNDONE_TRAINING))
    before = (store.read(directory, store.PENDING) or {}).get("before")
    if before:
        store.write(directory, store.LAST_RESULT, before)
    elif is_changed:
        store.remove(directory, store.LAST_RESULT)

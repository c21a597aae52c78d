# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Read and write the state that gpuhost keeps on a managed host, one JSON file a record.

/var/lib/gpuhost (the directory of the module stack_state):

baseline.json   the host before gpuhost: {"files", "alternatives", "services", "folders": {path: whether it existed}}
verified.json   the last verified configuration: {"plan", "packages", "evidence", "applied"} and, as in the baseline,
                  the {key: state} of each kind of resource that a rollback restores (resources/kinds.py)
previous.json   the verified configuration before that one, in the same form
journal.json    each package that a transaction changed, as it was before its first change: {"packages": {name: state}}
applied.json    what the last complete run left, part by part, and what a later one began to change (applied.py)
listings.json   the files of the packages and environments of that record
run.json        the run that changes the host, until its end (run_lock.py)
transaction.json  the result of a package transaction that no run has read yet (transaction_lock.py)
last_result.json  what the checks found last (last_result.py)
verify_options.json  what they were asked then: plan, limits, waivers (last_result.py)
pending.json    a change that is not verified yet: {"since", "before", "passed"}; removed when it is verified, or rolled
                  back; `before` is the result of the checks just before the change, absent where nothing could be
                  asked, `passed` the checks that have been right since the change was last written, `plan` what the
                  checks were asked for on a host that others set up and that was never verified
undone.json     the change that was undone last: {"at", "checks", "versions"}, the checks that were worse after it and
                  the versions by component; removed when another configuration is verified
restoring.json  the record that a rollback restores: {"to", "changed"}; removed when that is
                  verified, or given up
effects.json    what has to run because a file has changed: {"waiting"} (resources/effects.py)
packages/       the .deb files of the verified and the previous configuration

The state of a package is {"version", "held", "auto"}, or None where it was not installed; that of a file is what
`resources/file.py` returns, of a secret without its content outside of the baseline, that of another kind what its
module returns. The evidence is what verified the configuration, as verification/verdict.py on the
controller composes it: {"at", "stack", "checks", "trainings"}; `applied` is the content of applied.json and, packed, of
listings.json at that time. Records of earlier versions have neither. Times are UTC, as NOW formats them.
Runs on the managed host.
"""

from __future__ import annotations

import base64
import json
import os
import zlib
from typing import Any

from ansible_collections.gpuhost.stack.plugins.module_utils.base import files

DIRECTORY = "/var/lib/gpuhost"
SCHEMA = 1
BASELINE, VERIFIED, PREVIOUS = "baseline", "verified", "previous"
JOURNAL, APPLIED, PENDING = "journal", "applied", "pending"
LISTINGS = "listings"
TRANSACTION = "transaction"
RESTORING, UNDONE = "restoring", "undone"
LAST_RESULT, OPTIONS = "last_result", "verify_options"
NOW = "%Y-%m-%dT%H:%M:%SZ"


class NewerStateError(ValueError):
    """A record of a later gpuhost, which this one would misunderstand; `found` is the message without the remedy."""

    def __init__(self, path: str, schema: Any) -> None:
        self.found = "%s was written by a newer gpuhost (schema %s); expected at most %d" % (path, schema, SCHEMA)
        super().__init__(self.found + "; update gpuhost on the controller")


def read(directory: str, name: str) -> dict[str, Any] | None:
    """Return a record, or None where there is none.

    Raise NewerStateError for one of a later schema, ValueError where it is not JSON.
    """
    path = _path(directory, name)
    try:
        with open(path) as stream:
            record = dict(json.load(stream))
    except FileNotFoundError:
        return None
    except (TypeError, ValueError) as error:
        raise ValueError("%s is not a JSON object (%s): move it away and run this again" % (path, error)) from error
    schema = record.get("schema", SCHEMA)
    if not isinstance(schema, int) or schema > SCHEMA:
        raise NewerStateError(path, schema)
    return record


def newer(directory: str) -> NewerStateError | None:
    """Return the error of the first record of a later gpuhost, whatever its name is; None if there is none."""
    for name in files.names("/", directory):
        stem, extension = os.path.splitext(name)
        try:
            if extension == ".json":
                read(directory, stem)
        except NewerStateError as error:
            return error
        except (OSError, ValueError):  # what needs this record reports it
            continue
    return None


def write(directory: str, name: str, content: dict[str, Any]) -> None:
    """Replace a record atomically: a power loss leaves the old one or the new one."""
    text = json.dumps(dict(content, schema=SCHEMA), indent=1, sort_keys=True) + "\n"
    files.write(_path(directory, name), text.encode(), 0o600)  # a managed file may hold a password


def remove(directory: str, name: str) -> None:
    """Remove a record, if it is there."""
    if os.path.exists(_path(directory, name)):
        os.unlink(_path(directory, name))


def pack(data: Any) -> str:
    """Return data as a short text, for a part of a record that is large and seldom read."""
    return base64.b64encode(zlib.compress(json.dumps(data, sort_keys=True).encode())).decode()


def unpack(text: str) -> Any:
    """Return what `pack` was given."""
    return json.loads(zlib.decompress(base64.b64decode(text)))


def evidence(directory: str) -> dict[str, Any] | None:
    """Return what verified the configuration: {} if that was not recorded yet, None if nothing was verified."""
    record = read(directory, VERIFIED)
    return None if record is None else dict(record.get("evidence") or {})


def requested(directory: str) -> dict[str, Any] | None:
    """Return the request of the verified configuration, None if nothing was verified."""
    plan = _verified_plan(directory)
    return None if plan is None else dict(plan.get("request") or {})


def verified_plan(directory: str) -> dict[str, Any] | None:
    """Return what of the verified plan decides what stays, None if nothing was verified.

    It has `components`, the PCI ids of the GPUs and the driver that stayed; ValueError where they are not as in a plan.
    """
    plan = _verified_plan(directory)
    if plan is None:
        return None
    components, gpus = plan.get("components") or {}, plan.get("gpus") or []
    if not isinstance(components, dict) or not all(part is None or "version" in part for part in components.values()):
        raise ValueError("%s has no plan with components: move it away and run this again" % _path(directory, VERIFIED))
    kept = plan.get("kept_driver")
    return {"components": components, "gpus": sorted({gpu["pci_id"] for gpu in gpus}), "kept_driver": kept}


def _verified_plan(directory: str) -> dict[str, Any] | None:
    record = read(directory, VERIFIED)
    plan = None if record is None else record.get("plan") or {}
    if not isinstance(plan, (dict, type(None))):
        raise ValueError("%s has no plan: move it away and run this again" % _path(directory, VERIFIED))
    return plan


def journal(directory: str) -> dict[str, Any]:
    """Return {package: its state before the first change} of every package that a transaction changed."""
    return dict((read(directory, JOURNAL) or {}).get("packages") or {})


def record_packages(directory: str, states: dict[str, Any]) -> None:
    """Add packages to the journal before they are changed; those that are in it keep their first state."""
    recorded = journal(directory)
    if set(states) - set(recorded):
        write(directory, JOURNAL, {"packages": dict(states, **recorded)})


def _path(directory: str, name: str) -> str:
    return os.path.join(directory, name + ".json")

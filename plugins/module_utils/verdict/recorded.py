# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Read what a host has recorded of its last checks, its verification and its trainings, for gpuhost-verify."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from calendar import timegm
from typing import Any, Mapping, Optional, Tuple

from ansible_collections.gpuhost.stack.plugins.module_utils.base import files, store
from ansible_collections.gpuhost.stack.plugins.module_utils.state import last_result

ONLY_ROOT = "only root may read the records in %s: run gpuhost-verify as root" % store.DIRECTORY


@dataclasses.dataclass(frozen=True)
class Training:
    """The last training, if it did not verify the host: its framework, outcome, when it ended, and what it found."""

    framework: str
    status: str
    ended: float  # seconds since the epoch
    found: str


@dataclasses.dataclass(frozen=True)
class Recorded:
    """The records of a host, each None where there is none; unread: a sentence for each that cannot be read.

    result: of the checks; options: what they were asked; evidence: what verified the last verified configuration;
    pending: the change that is not verified yet. Records of earlier releases have neither options nor evidence.
    """

    result: Optional[Mapping[str, Any]] = None
    options: Optional[Mapping[str, Any]] = None
    evidence: Optional[Mapping[str, Any]] = None
    pending: Optional[Mapping[str, Any]] = None
    training: Optional[Training] = None
    unread: Tuple[str, ...] = ()


def read(root: str) -> Recorded:
    """Return the records below a root directory."""
    unread = []

    def record(name: str) -> dict[str, Any] | None:
        try:
            return store.read(files.under(root, store.DIRECTORY), name)
        except PermissionError:
            unread.append(ONLY_ROOT)
        except (OSError, ValueError) as error:
            unread.append(str(error))
        return None

    verified = record(store.VERIFIED)
    evidence = None if verified is None else dict(verified.get("evidence") or {})
    training, problem = _training(root, seconds((evidence or {}).get("at")))
    records = [record(name) for name in (store.LAST_RESULT, store.OPTIONS, store.PENDING)]
    unread = list(dict.fromkeys([*unread, *problem]))
    return Recorded(records[0], records[1], evidence, records[2], training, tuple(unread))


def seconds(time_in_utc: str | None) -> float | None:
    """Return a time of a record in seconds since the epoch; None where there is none, or it is nonsense."""
    try:
        return float(timegm(time.strptime(time_in_utc or "", store.NOW)))
    except ValueError:
        return None


def _training(root: str, verified: float | None) -> tuple[Training | None, list[str]]:
    """Return the last training if it ended after the last verification and did not pass, and why it is unread."""
    path = os.path.join(store.DIRECTORY, last_result.TRAINING)
    try:
        text = files.read_text(root, path)
        if text is None:
            return None, []
        ended = os.stat(files.under(root, path)).st_mtime
        result = json.loads(text)
        wrong = [check for check in result["checks"] if check["status"] == result["status"]]
        found = "; ".join("%s: %s" % (check["id"], check.get("found") or check.get("reason")) for check in wrong)
        training = Training(result["framework"], result["status"], ended, found)
    except (OSError, ValueError, KeyError, TypeError) as error:
        return None, ["%s cannot be read: %s" % (path, error)]
    is_verified = verified is not None and ended <= verified
    return (None if is_verified or training.status == "pass" else training), []

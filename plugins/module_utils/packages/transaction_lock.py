# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""One package transaction at a time on a host, its progress, and the result of one whose run did not wait for it.

A transaction continues on the host when its run loses the connection or is killed. The next run waits until
`transaction.lock` is free and reads the result in `transaction.json`; a run that got the result itself removes that
file. Runs on the managed host.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from typing import Any, Dict, Iterator

from ansible_collections.gpuhost.stack.plugins.module_utils.base import files, processes, store
from ansible_collections.gpuhost.stack.plugins.module_utils.model.packages import PackageLock, Transaction

LOCK = "transaction.lock"
PROGRESS = "transaction.progress"  # what apt writes to APT::Status-Fd, and lines `step:TEXT`
INTERVAL = 1.0  # seconds


@contextlib.contextmanager
def hold(directory: str, what: str, timeout: float) -> Iterator[Dict[str, Any]]:
    """Hold the lock of a host's package transactions and record the result of what is done with it.

    The dictionary takes "changes", their number; without a change and without an error nothing is recorded. Raise
    ValueError if another transaction holds the lock for longer than `timeout` seconds.
    """
    path, progress = os.path.join(directory, LOCK), os.path.join(directory, PROGRESS)
    with contextlib.ExitStack() as stack:
        while True:
            files.make_parents(path)
            # A lock of fcntl, which the programs started here do not inherit and whose holder anybody can find out.
            stream = stack.enter_context(open(path, "ab"))
            _wait(stream.fileno(), path, timeout)
            # A teardown that held the lock has removed the directory: then this file is no longer the one to lock.
            if os.path.exists(path) and os.path.samestat(os.fstat(stream.fileno()), os.stat(path)):
                break
        store.remove(directory, store.TRANSACTION)
        with open(progress, "wb"):
            pass
        result: Dict[str, Any] = {"what": what, "changes": 0, "failed": None}
        try:
            yield result
        except Exception as error:
            result["failed"] = str(error)
            raise
        finally:
            # A teardown has removed the directory.
            if os.path.isdir(directory) and (result["changes"] or result["failed"] is not None):
                ended = time.strftime(store.NOW, time.gmtime())
                # The error of a full or read-only file system must not replace that of the transaction.
                with contextlib.suppress(OSError):
                    store.write(directory, store.TRANSACTION, dict(result, ended=ended))
            # The next transaction must not begin with the progress of this one.
            with contextlib.suppress(FileNotFoundError):
                os.unlink(progress)


def _wait(descriptor: int, path: str, timeout: float) -> None:
    end = time.monotonic() + timeout
    while True:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except (BlockingIOError, PermissionError) as error:
            if time.monotonic() >= end:
                holder = processes.holder("/", path) or PackageLock(path)
                raise ValueError(
                    "Nothing was changed: another package transaction is running on this host: %s. Waited %d seconds; "
                    "run this again when it has ended." % (processes.describe([holder]), timeout)
                ) from error
        time.sleep(min(INTERVAL, max(0.0, end - time.monotonic())))


def read(root: str, directory: str) -> Transaction:
    """Return the process that runs a transaction, and the result that no run got."""
    running = processes.holder(root, os.path.join(directory, LOCK))
    return Transaction(running, store.read(files.under(root, directory), store.TRANSACTION))

"""A function in a child process: what it returns and raises arrives, and it has ended afterwards."""

from __future__ import annotations

import os
import re
import signal
from typing import NoReturn

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.base.beside import Beside
from ansible_collections.gpuhost.stack.plugins.module_utils.base.store import NewerStateError


def fail(error: Exception) -> NoReturn:
    raise error


def test_the_result_comes_from_a_child_that_has_ended() -> None:
    # More than a pipe holds, so that the child has to wait for its reader.
    pid, text = Beside(lambda: (os.getpid(), "x" * 1_000_000))()
    assert pid != os.getpid()
    assert len(text) == 1_000_000
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.parametrize("error", [PermissionError(13, "Permission denied", "/root"), NewerStateError("a.json", 2)])
def test_what_cannot_be_read_is_said_in_the_same_words(error: Exception) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(str(error))}$"):
        Beside(lambda: fail(error))()


def test_a_mistake_in_the_code_has_its_traceback() -> None:
    with pytest.raises(RuntimeError, match=r"(?s)in fail\b.*KeyError: 'fingerprint'"):
        Beside(lambda: fail(KeyError("fingerprint")))()


def test_a_killed_child_is_no_result() -> None:
    with pytest.raises(ValueError, match=r"ended without a result \(wait status 9\)"):
        Beside(lambda: os.kill(os.getpid(), signal.SIGKILL))()

# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Run a function in a child process while this one goes on. Runs on the managed host."""

from __future__ import annotations

import os
import pickle
import traceback
from typing import Any, Callable, Generic, NoReturn, TypeVar

Result = TypeVar("Result")


class Beside(Generic[Result]):
    """A function that has begun to run in a child process; calling this object waits for its result.

    A thread would share this interpreter's lock; importing multiprocessing takes a good part of the time that a child
    saves. What the child changes in memory is lost. The result must be picklable.
    """

    def __init__(self, function: Callable[[], Result]) -> None:
        self._pipe, end = os.pipe()
        self._child = os.fork()
        if self._child == 0:
            os.close(self._pipe)
            _answer(function, end)
        os.close(end)

    def __call__(self) -> Result:
        """Return the function's result.

        Raise ValueError with the message of an OSError or ValueError in it, or if the child was killed; RuntimeError
        with the traceback of any other exception.
        """
        with os.fdopen(self._pipe, "rb") as stream:
            answer = stream.read()
        _pid, status = os.waitpid(self._child, 0)
        if status:
            raise ValueError("its process ended without a result (wait status %d)" % status)
        result, unread, error = pickle.loads(answer)
        if unread is not None:
            raise ValueError(unread)
        if error is not None:
            raise RuntimeError(error)
        found: Result = result
        return found


def _answer(function: Callable[[], Any], pipe: int) -> NoReturn:
    """Send the function's result or error to the parent, and exit.

    Errors are sent as text: an exception whose constructor takes other arguments than its message cannot be unpickled.
    """
    status = 1
    answer: tuple[Any, str | None, str | None]
    try:
        try:
            answer = (function(), None, None)
        except (OSError, ValueError) as error:
            answer = (None, str(error), None)
        except Exception:  # noqa: BLE001 - raised where the result is asked for
            answer = (None, None, traceback.format_exc())
        with os.fdopen(pipe, "wb") as stream:
            pickle.dump(answer, stream)
        status = 0
    finally:
        os._exit(status)  # the parent's exit handlers and `finally` blocks must not run here, too

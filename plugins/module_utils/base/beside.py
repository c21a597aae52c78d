# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Call a function in a process beside this one, for work that keeps a CPU busy. Runs on the managed host."""

from __future__ import annotations

import os
import pickle
import traceback
from typing import Any, Callable, Generic, NoReturn, TypeVar

Result = TypeVar("Result")


class Beside(Generic[Result]):
    """A function that a child process calls at once; called, it waits for the result.

    In place of multiprocessing, whose import takes a part of what this saves. The child is a copy of this process: what
    it changes in memory ends with it. The result must be picklable.
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

        Raise ValueError with the text of its OSError or ValueError, or if the child was killed; RuntimeError with the
        traceback of any other error.
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
    """Write the result of a function, or the text of its error, and end this process, which shares all with its parent.

    Only texts, as an exception with arguments of its own cannot be unpickled.
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
        os._exit(status)  # neither handlers nor `finally` of the callers may run a second time

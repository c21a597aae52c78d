"""Begin and end a program of the command line as its caller expects. Imports the standard library alone."""

from __future__ import annotations

import argparse
import io
import os
import re
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from ansible_collections.gpuhost.stack.plugins.plugin_utils.base.paths import PROJECT
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base.release import version

ONLY_ARGUMENTS = "GPUHOST_ONLY_ARGUMENTS"  # a variable by which script/start asks whether the arguments are right
RIGHT = 100  # the exit status if they are


class Parser(argparse.ArgumentParser):
    """A parser with --version that reports every mistake in a line of its own and ends with status 2.

    mistakes: returns what is wrong with the arguments beyond what argparse itself finds.
    """

    def __init__(
        self, prog: str, mistakes: Callable[[argparse.Namespace], list[str]] = lambda _: [], **options: Any
    ) -> None:
        super().__init__(prog=prog, allow_abbrev=False, **options)
        self._mistakes = mistakes
        self.add_argument("--version", action="version", version=f"gpuhost {version()}")

    def parse_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> argparse.Namespace:
        """Return the arguments; a negative number is the value of the option before it, as in `--gpu -1xH100`."""
        words = list(sys.argv[1:] if args is None else args)
        for place in range(len(words) - 1, 0, -1):
            if re.match(r"-\d", words[place]) and re.fullmatch(r"--[a-z-]+", words[place - 1]):
                words[place - 1 : place + 1] = [f"{words[place - 1]}={words[place]}"]
        found: argparse.Namespace = super().parse_args(words, namespace)
        if mistakes := self._mistakes(found):
            self.refuse(mistakes)
        if os.environ.get(ONLY_ARGUMENTS):
            sys.exit(RIGHT)
        return found

    def _print_message(self, message: str, file: Any = None) -> None:
        """Write help or an error; argparse would ignore that nobody reads it, which is for `run`."""
        (file or sys.stderr).write(message)
        (file or sys.stderr).flush()

    def check(self) -> int:
        """Read the arguments for a script that goes on by itself, and return the exit status by which it does."""
        self.parse_args()
        return RIGHT

    def error(self, message: str) -> NoReturn:
        """End with a message of argparse, and with where the options are explained."""
        self.refuse([f"{message}; {self.prog} --help explains the options"])

    def refuse(self, mistakes: Sequence[str]) -> NoReturn:
        """End with mistakes, one a line."""
        self.exit(2, "".join(f"{self.prog}: {mistake}\n" for mistake in mistakes))


def enter_environment(parser: Parser, words: Sequence[str], needs: str) -> NoReturn:
    """Go on with the Python of .venv and these words, or end with what to type for it, or with what the parser says.

    needs: what the program asks of script/bootstrap.
    """

    def enter() -> NoReturn:
        parser.parse_args()
        python = PROJECT / ".venv" / "bin" / "python"
        if not os.access(python, os.X_OK):
            parser.refuse([f"found no .venv; run script/bootstrap {needs}"])
        path = os.pathsep.join([str(PROJECT), str(PROJECT / "collections")])
        os.execve(python, [str(python), *words], {**os.environ, "PYTHONPATH": path})

    run(enter)


def run(main: Callable[[], int | None]) -> NoReturn:
    """Run a program and exit with its status; where nobody reads its output (`| head`), end by SIGPIPE without a word.

    The signal comes after the program has cleaned up, not in the middle of a write. What the output's encoding lacks is
    escaped, as Python does on standard error.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        try:
            status = main()
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())  # for what is still buffered
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGPIPE)
    sys.exit(status)

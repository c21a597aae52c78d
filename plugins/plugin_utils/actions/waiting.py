# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Wait for what keeps a host from being changed and ends by itself, and print it while waiting."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from ansible_collections.gpuhost.stack.plugins.plugin_utils.report import terminal

INTERVAL = 5.0  # seconds between two probes of a busy host
REPEAT = 60.0  # seconds after which the same reason is printed again


class Waiting:
    """One wait, such as for cloud-init and Unattended-Upgrades, of at most `seconds`, which `option` sets.

    Each reason is printed when it is first seen and every minute, with how long the run still waits at most.
    """

    def __init__(
        self, host: str, seconds: float, option: str = "gpu_stack_wait", show: Callable[[str], object] | None = None
    ) -> None:
        self.host, self.seconds, self.option = host, seconds, option
        self.show = show or terminal.show
        self.start: float | None = None
        self.shown: tuple[str, ...] = ()
        self.shown_at = 0.0

    @property
    def waited(self) -> float:
        """The seconds since the first probe that found a reason to wait."""
        return 0.0 if self.start is None else time.monotonic() - self.start

    @property
    def left(self) -> float:
        """The seconds that remain of the time limit."""
        return max(0.0, self.seconds - self.waited)

    def goes_on(self, reasons: Sequence[str]) -> bool:
        """Return, after a pause, whether to probe the host again."""
        reasons, waited = tuple(reasons), self.waited
        if not reasons:
            if self.start is not None:
                self.show(f"{self.host}: waited {waited:.0f} s; nothing blocks the host any more")
            return False
        if waited >= self.seconds:
            if self.seconds:
                self.show(f"{self.host}: still blocked after {waited:.0f} s: {'; '.join(reasons)}")
            return False
        now = time.monotonic()
        self.start = now if self.start is None else self.start
        if reasons != self.shown or now - self.shown_at >= REPEAT:
            self.shown, self.shown_at = reasons, now
            limit = self.seconds - waited
            self.show(f"{self.host}: waiting, for at most {limit:.0f} s ({self.option}): {'; '.join(reasons)}")
        time.sleep(min(INTERVAL, self.seconds - waited))
        return True

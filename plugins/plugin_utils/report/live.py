"""What each host of a run is doing: lines that are redrawn on a terminal, short lines in a log."""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from ansible_collections.gpuhost.stack.plugins.plugin_utils.base.escaping import for_terminal
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base.tables import wrapped

SAME_AS = "same_as"  # in the result of a host that failed for the same reason as another one: that host
PLAN = "shown_plan"  # in the result of a host that was planned: its text without the host's name; whether to apply it
_LIMITED = 10  # hosts that a command names
LONG = 10.0  # seconds after which a log names the task that is running
_SHOWN = 20  # hosts of a line in a log
RUNNING, DONE, FAILED = "running", "done", "failed"
WAITING = "waiting for other hosts"


@dataclasses.dataclass
class HostState:
    """The last task of a host; times: time.monotonic(). detail: how far it is; named: whether a log has its name."""

    stage: str
    task: str
    stage_since: float
    task_since: float
    status: str = RUNNING
    detail: str = ""
    ended: float = 0.0
    named: bool = False


class Progress:
    """The state of all hosts, from the events of a run."""

    def __init__(self) -> None:
        self.started = time.monotonic()
        self.hosts: dict[str, HostState] = {}

    def begin(self, host: str, stage: str, task: str) -> None:
        """Record that a task starts on a host."""
        now, before = time.monotonic(), self.hosts.get(host)
        since = before.stage_since if before and before.stage == stage else now
        self.hosts[host] = HostState(stage, task, since, now)

    def detail(self, host: str, text: str) -> None:
        """Record how far the task of a host is."""
        if host in self.hosts:
            self.hosts[host].detail = text

    def end(self, host: str, failed: bool = False) -> None:
        """Record that the task of a host has ended."""
        if state := self.hosts.get(host):
            state.status, state.detail, state.ended = FAILED if failed else DONE, "", time.monotonic()

    def runs(self, host: str) -> bool:
        """Return whether a task runs on a host."""
        state = self.hosts.get(host)
        return state is not None and state.status == RUNNING

    # A terminal -------------------------------------------------------------------------------------------------

    def lines(self, width: int, height: int) -> list[str]:
        """Return a line for each host, of at most `width` columns; where more than `height`, the rest is counted."""
        # A copy: another thread draws.
        states = sorted(self.hosts.items(), key=lambda item: item[1].status != RUNNING)
        shown, rest = (states, states[:0]) if len(states) <= height else (states[: height - 1], states[height - 1 :])
        names = max((len(for_terminal(host)) for host, _state in shown), default=0)
        stages = max((len(state.stage) for _host, state in shown), default=0)
        lines = [_line(for_terminal(host).ljust(names), state, stages) for host, state in sorted(shown)]
        if rest:
            counts = Counter(state.status for _host, state in rest)
            lines.append(f"and {len(rest)} more hosts: {', '.join(f'{n} {status}' for status, n in counts.items())}")
        return [line if len(line) <= width else f"{line[: width - 1]}…" for line in lines]

    # A log ------------------------------------------------------------------------------------------------------

    def long_tasks(self) -> Iterator[str]:
        """Yield a line for each task that has been running for LONG, with its hosts, once."""
        now = time.monotonic()
        found: dict[tuple[str, str], list[str]] = {}
        for host, state in list(self.hosts.items()):
            if state.status == RUNNING and not state.named and now - state.task_since >= LONG:
                state.named = True
                found.setdefault((state.stage, state.task), []).append(host)
        for (stage, task), hosts in found.items():
            yield f"[{clock(now - self.started)}] {stage}: {task} ({some(hosts)})"


def _line(name: str, state: HostState, stages: int) -> str:
    end = state.ended if state.status != RUNNING else time.monotonic()
    doing = for_terminal(state.detail) or state.task
    if state.status != RUNNING:
        doing = WAITING if state.status == DONE else f"{state.status}: {state.task}"
    return f"{name}  {state.stage.ljust(stages)}  {clock(end - state.stage_since):>7}  {doing}"


def clock(seconds: float) -> str:
    """Return a duration as m:ss, or h:mm:ss."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def some(hosts: Sequence[str]) -> str:
    """Return names of hosts; of many the first ones and how many there are."""
    shown = ", ".join(hosts[:_SHOWN])
    return f"{shown}, ... {len(hosts)} hosts" if len(hosts) > _SHOWN else shown


def plans(shown: Mapping[str, Mapping[str, Any]], width: int, command: Callable[[str], str]) -> Iterator[str]:
    """Yield the plans of hosts, in the order of the hosts, each once with the hosts that have it.

    shown: what PLAN is in the result of each host. width: columns. command: applies the plans of the hosts that its
    argument names, of all hosts of the run if it is empty.
    """
    hosts_of: dict[tuple[str, bool], list[str]] = {}
    for host, plan in shown.items():
        hosts_of.setdefault((plan["text"], plan["next"]), []).append(host)
    for (text, is_next), hosts in hosts_of.items():
        yield f"{for_terminal(some(hosts))}  {text}"
        if is_next:
            following = for_terminal(command(",".join(hosts) if len(hosts) <= _LIMITED else ""))
            yield "\n".join(wrapped(f"Next: {following}   (-v: reasons)", width, rest=" " * 6, command=following))


class Region:
    """The last lines of a terminal, which are removed before other text is written and drawn again below it."""

    def __init__(self) -> None:
        self.drawn = 0  # lines
        self.is_prompt = False  # the cursor is behind text that asks for an answer

    def around(self, text: str, lines: Iterable[str]) -> str:
        """Return what to write so that `text`, if any, is printed above the region, which then has these lines."""
        erase = f"\r\x1b[{self.drawn}A\x1b[J" if self.drawn else ""  # \r: the terminal may have echoed a key
        if text:
            self.is_prompt = not text.endswith("\n")
        new = [] if self.is_prompt else list(lines)
        self.drawn = len(new)
        return erase + text + "".join(f"{line}\n" for line in new)

"""The cases that script/bench measures; each returns its figures and the ratios that have targets."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import lab
from benchmarks.adopt import adopt
from benchmarks.install import first_install
from benchmarks.measure import Command, Ratio, Timing, in_turn, once, say
from benchmarks.results import Options, Result
from benchmarks.train import PYTHON, train

RERUN = ("--skip-tags", "verify,smoke_train")
WITH_CHECKS = ("--skip-tags", "smoke_train")
FORKS = 20
FLEET = 20  # the size of fleet that has a target
HOSTS_AT_ONCE = 1000


def peer_command(options: Options, *more: str, inventory: tuple[str, ...] = (lab.INVENTORY,)) -> list[Command]:
    """Return the peer's command, or nothing if no peer was named."""
    if options.peer is None:
        return []
    return [lab.playbook("peer", str(options.peer.resolve()), *options.peer_options, *more, inventory=inventory)]


def peer_notes(case: str, timings: Mapping[str, Timing], folder: Path) -> list[str]:
    """Return a note if the peer changed something; it is measured all the same, as its users run it."""
    if "peer" not in timings:
        return []
    counts = lab.changes((folder / "peer.log").read_text(errors="replace"))
    changed = max(counts.values(), default=0)
    return [f"{case}: the peer reports {changed} changes per host in every run"] if changed else []


def rerun(options: Options) -> Result:
    """Measure runs with nothing to do, with and without checks, against the floor, a ping and a peer on one host.

    One of the checks imports TensorFlow; what that takes alone is measured, too, and subtracted from nothing.
    """
    limit = ("--limit", "bench-1")
    commands = [
        lab.playbook("ping", "benchmarks/ping.yml", *limit),
        lab.playbook("floor", "benchmarks/floor.yml", *limit),
        lab.playbook("rerun_documented", "playbooks/gpu_host.yml", *limit),
        lab.playbook("rerun_with_checks", "playbooks/gpu_host.yml", *limit, *WITH_CHECKS),
        lab.playbook("rerun", "playbooks/gpu_host.yml", *limit, *RERUN),
        lab.over_ssh("import_tensorflow", "bench-1", f"-c \"{PYTHON} -c 'import tensorflow'\""),
        *peer_command(options, *limit),
    ]
    timings = in_turn(commands, options.runs, lab.LOGS)
    for command in commands[:5]:
        lab.refuse_changes(command.name, lab.LOGS)
    walls = {name: timing.walls() for name, timing in timings.items()}
    ratios: dict[str, Ratio | float] = {
        f"{name}_over_{other}": Ratio.of(walls[name], walls[other])
        for name, other in (
            ("rerun_documented", "floor"),
            ("rerun_documented", "ping"),
            ("rerun", "floor"),
            ("rerun", "ping"),
            ("rerun_with_checks", "floor"),
            ("import_tensorflow", "floor"),
            *((("rerun", "peer"),) if "peer" in walls else ()),
        )
    }
    return Result(ratios, _to_dict(timings), peer_notes("rerun", timings, lab.LOGS))


def _to_dict(timings: Mapping[str, Timing]) -> dict[str, Any]:
    return {name: timing.to_dict() for name, timing in timings.items()}


def fleet(options: Options) -> Result:
    """Measure reruns of many hosts: the controller's CPU time per host, against the floor and a peer."""
    lab.accept_many()
    result = Result(
        notes=[
            f"fleet: the hosts are names of one container, {FORKS} at a time: CPU seconds are the controller's only, "
            "wall time includes the container's work"
        ]
    )
    curve: dict[str, dict[str, list[float]]] = {}
    for count in sorted(options.hosts):
        inventory, folder = (lab.INVENTORY, lab.fleet(count)), lab.LOGS / f"fleet-{count}"
        limit = ("--limit", "bench-alias-*", "--forks", str(FORKS))
        commands = [
            lab.playbook("floor", "benchmarks/floor.yml", *limit, inventory=inventory),
            lab.playbook("rerun", "playbooks/gpu_host.yml", *limit, *RERUN, inventory=inventory),
            *peer_command(options, *limit, inventory=inventory),
        ]
        say(f"fleet of {count}")
        timings = in_turn(commands, min(3, options.runs), folder)
        for name in ("floor", "rerun"):
            lab.refuse_changes(name, folder)
        result.figures[str(count)] = _to_dict(timings)
        for name, timing in timings.items():
            points = curve.setdefault(name, {"hosts": [], "wall": [], "cpu": []})
            points["hosts"].append(count)
            points["wall"].append(round(timing.wall(), 3))
            points["cpu"].append(round(timing.cpu() / count, 3))
        result.ratios[f"fleet_{count}_cpu_over_floor"] = Ratio.of(timings["rerun"].cpus(), timings["floor"].cpus())
        if "peer" in timings:
            name = "fleet_cpu_over_peer" if count == FLEET else f"fleet_{count}_cpu_over_peer"
            result.ratios[name] = Ratio.of(timings["rerun"].cpus(), timings["peer"].cpus())
            result.notes += peer_notes(f"fleet of {count}", timings, folder)
    result.figures["curve"] = curve
    return result


def plan(options: Options) -> Result:
    """Measure the resolver: one host in one process, and a thousand hosts in one process."""
    words = ("--distro", "ubuntu-24.04", "--gpu", "NVIDIA H200", "--gpu", "NVIDIA H200")
    one = Command("plan", (str(lab.PROJECT / "script/plan"), *words), lab.PROJECT, lab.ENVIRONMENT)
    environment = {**lab.ENVIRONMENT, "PYTHONPATH": f"{lab.PROJECT}/collections:{lab.PROJECT}"}
    argv = (sys.executable, "-m", "benchmarks.plan_many", str(HOSTS_AT_ONCE))
    many = Command("plan_1000_hosts", argv, lab.PROJECT, environment)
    timings = {**in_turn([one], max(3, options.runs), lab.LOGS), **in_turn([many], min(3, options.runs), lab.LOGS)}
    kinds = int((lab.LOGS / "plan_1000_hosts.log").read_text())
    seconds: dict[str, Ratio | float] = {
        "plan_seconds": timings["plan"].wall(),
        "plan_1000_hosts_seconds": timings["plan_1000_hosts"].wall(),
    }
    notes = [
        f"plan_1000_hosts_seconds: {kinds} kinds of host (distribution and GPU), one plan per host; results that "
        "depend on the catalog and the GPUs only are cached between hosts"
    ]
    return Result(seconds, _to_dict(timings), notes)


def verify_on_host(options: Options) -> Result:
    """Measure the verdict on the host from its record, as a prolog asks it, with the connection that measures it."""
    command = lab.over_ssh("gpuhost_verify", "bench-1", "-c gpuhost-verify")
    timings = in_turn([command], max(3, options.runs), lab.LOGS)
    return Result({"gpuhost_verify_seconds": timings["gpuhost_verify"].wall()}, _to_dict(timings))


# In the order of execution: first_install needs bare hosts, the later cases need the host that it installed.
CASES: Mapping[str, Callable[[Options], Result]] = {
    "plan": plan,
    "adopt": adopt,
    "first_install": first_install,
    "rerun": rerun,
    "fleet": fleet,
    "verify_on_host": verify_on_host,
    "train": train,
}
NEEDS_LAB = frozenset(CASES) - {"plan", "adopt"}
NEEDS_STACK = NEEDS_LAB - {"first_install"}


def in_order(chosen: Sequence[str]) -> list[str]:
    """Return the chosen cases in the order of execution, or all cases if none is chosen."""
    return [name for name in CASES if name in chosen or not chosen]


def prepare(name: str) -> None:
    """Install the whole stack on bench-1, untimed, if the case needs it; first_install creates its own hosts.

    With checks and training: a rerun of the README's command has nothing to do only on a verified host.
    """
    if name in NEEDS_STACK:
        lab.lab("up")
        lab.LOGS.mkdir(parents=True, exist_ok=True)
        say("provisioning bench-1 (several minutes if it is bare)")
        once(
            lab.playbook("provision", "playbooks/gpu_host.yml", "--limit", "bench-1"),
            lab.LOGS / "provision.log",
        )

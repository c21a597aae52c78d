"""What is measured: each case gives figures and, where there is a target, the ratio that it is held against."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import lab
from benchmarks.install import first_install
from benchmarks.measure import Command, Timing, in_turn, once, say
from benchmarks.results import Options, Result
from benchmarks.train import train

RERUN = ("--skip-tags", "verify,smoke_train")
VERIFY_RERUN = ("--skip-tags", "smoke_train")
FORKS = 20
FLEET = 20  # the size of fleet that has a target
HOSTS_AT_ONCE = 1000


def peer_command(options: Options, *more: str, inventory: tuple[str, ...] = (lab.INVENTORY,)) -> list[Command]:
    if options.peer is None:
        return []
    return [lab.playbook("peer", str(options.peer.resolve()), *options.peer_options, *more, inventory=inventory)]


def peer_notes(case: str, timings: Mapping[str, Timing], folder: Path) -> list[str]:
    """What a peer did that was not nothing; it stays in, for its user sees that at each run, too."""
    if "peer" not in timings:
        return []
    counts = lab.changes((folder / "peer.log").read_text(errors="replace"))
    changed = max(counts.values(), default=0)
    return [f"{case}: the peer reports {changed} changes a host at each run"] if changed else []


def rerun(options: Options) -> Result:
    """A run with nothing to do, and one with the checks, beside the floor (and a peer) on one host."""
    limit = ("--limit", "bench-1")
    commands = [
        lab.playbook("floor", "benchmarks/floor.yml", *limit),
        lab.playbook("rerun", "playbooks/gpu_host.yml", *limit, *RERUN),
        lab.playbook("verify_rerun", "playbooks/gpu_host.yml", *limit, *VERIFY_RERUN),
        *peer_command(options, *limit),
    ]
    timings = in_turn(commands, options.runs, lab.LOGS)
    for name in ("floor", "rerun", "verify_rerun"):
        lab.refuse_changes(name, lab.LOGS)
    imported = import_seconds()
    floor = timings["floor"].wall()
    ratios = {
        "rerun_over_floor": timings["rerun"].wall() / floor,
        "verify_rerun_over_floor": (timings["verify_rerun"].wall() - imported) / floor,
    }
    if "peer" in timings:
        ratios["rerun_over_peer"] = timings["rerun"].wall() / timings["peer"].wall()
    figures = {**told(timings), "import_tensorflow_seconds": round(imported, 2)}
    note = f"verify_rerun_over_floor: without the {imported:.1f} s that `import tensorflow` alone takes on the host"
    return Result(ratios, figures, [note, *peer_notes("rerun", timings, lab.LOGS)])


def import_seconds() -> float:
    """`import tensorflow` alone, on the host, started like any program; the median of three."""
    python = "/opt/gpuhost/tensorflow/bin/python"
    clock = "import subprocess, time\nfor _ in range(3):\n    begun = time.monotonic()\n"
    clock += f"    subprocess.run(['{python}', '-c', 'import tensorflow'], check=True, stderr=subprocess.DEVNULL)\n"
    clock += "    print(time.monotonic() - begun)\n"
    output = lab.ssh("bench-1", f"python3 - <<'EOF'\n{clock}EOF\n")
    return sorted(float(line) for line in output.split())[1]


def told(timings: Mapping[str, Timing]) -> dict[str, Any]:
    return {name: timing.to_dict() for name, timing in timings.items()}


def fleet(options: Options) -> Result:
    """Reruns of many hosts: what the controller spends on each, beside a peer where there is one."""
    lab.accept_many()
    result = Result(
        notes=[
            f"fleet: the hosts are names of one container, {FORKS} at a time: CPU seconds are the controller's alone, "
            "wall time has the container's work in it"
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
        timings = in_turn(commands, max(1, options.runs // 2), folder, warm_up=0)
        for name in ("floor", "rerun"):
            lab.refuse_changes(name, folder)
        result.figures[str(count)] = told(timings)
        for name, timing in timings.items():
            points = curve.setdefault(name, {"hosts": [], "wall": [], "cpu": []})
            points["hosts"].append(count)
            points["wall"].append(round(timing.wall(), 3))
            points["cpu"].append(round(timing.cpu() / count, 3))
        result.ratios[f"fleet_{count}_cpu_over_floor"] = timings["rerun"].cpu() / timings["floor"].cpu()
        if "peer" in timings:
            name = "fleet_cpu_over_peer" if count == FLEET else f"fleet_{count}_cpu_over_peer"
            result.ratios[name] = timings["rerun"].cpu() / timings["peer"].cpu()
            result.notes += peer_notes(f"fleet of {count}", timings, folder)
    result.figures["curve"] = curve
    return result


def plan(options: Options) -> Result:
    """The resolver: one process for one host, and a thousand hosts in one process."""
    words = ("--distro", "ubuntu-24.04", "--gpu", "NVIDIA H200", "--gpu", "NVIDIA H200")
    one = Command("plan", (str(lab.PROJECT / "script/plan"), *words), lab.PROJECT, lab.ENVIRONMENT)
    environment = {**lab.ENVIRONMENT, "PYTHONPATH": f"{lab.PROJECT}/collections:{lab.PROJECT}"}
    argv = (sys.executable, "-m", "benchmarks.plan_many", str(HOSTS_AT_ONCE))
    many = Command("plan_1000_hosts", argv, lab.PROJECT, environment)
    timings = {**in_turn([one], max(3, options.runs), lab.LOGS), **in_turn([many], min(3, options.runs), lab.LOGS, 0)}
    kinds = int((lab.LOGS / "plan_1000_hosts.log").read_text())
    ratios = {"plan_seconds": timings["plan"].wall(), "plan_1000_hosts_seconds": timings["plan_1000_hosts"].wall()}
    notes = [
        f"plan_1000_hosts_seconds: {kinds} kinds of host (distribution and GPU), a plan for each host; what follows "
        "from catalog and kinds of GPU alone is kept between them"
    ]
    return Result(ratios, told(timings), notes)


# In this order: the first one needs bare hosts, and the others the one that it leaves installed.
CASES: Mapping[str, Callable[[Options], Result]] = {
    "plan": plan,
    "first_install": first_install,
    "rerun": rerun,
    "fleet": fleet,
    "train": train,
}
NEEDS_LAB = frozenset(CASES) - {"plan"}
NEEDS_STACK = NEEDS_LAB - {"first_install"}


def in_order(chosen: Sequence[str]) -> list[str]:
    """The cases in the order in which they can be run, each once; all where none is named."""
    return [name for name in CASES if name in chosen or not chosen]


def prepare(name: str) -> None:
    """What a case needs and is not timed: bench-1 with the whole stack. first_install makes its hosts itself."""
    if name in NEEDS_STACK:
        lab.lab("up")
        lab.LOGS.mkdir(parents=True, exist_ok=True)
        say("bringing bench-1 to what is planned (minutes where it is bare)")
        once(
            lab.playbook("provision", "playbooks/gpu_host.yml", "--limit", "bench-1", *RERUN),
            lab.LOGS / "provision.log",
        )

"""Train with PyTorch as requested by smoke_train.py: choose the devices, start one process per rank and watch them.

Run as `python pytorch_worker.py REQUEST.json` (protocol: train_process.py). Each rank is a process of this same file
with a second argument, its RankConfig as JSON, and with torchrun's environment variables; pytorch_replica.py is what it
runs. torchrun itself is not used: it starts each rank in a session of its own, where it outlives the end of this
process group, closes the file descriptor for events (both seen with PyTorch 2.13), and tells no other host of a cluster
which replica failed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
import train_process
from train_options import Options
from train_process import Events, exit_text
from worker_base import Devices, Failed, choose, run

POLL_INTERVAL = 0.1  # seconds
GRACE_PERIOD = 3.0  # seconds for the other ranks after one failed, and between SIGTERM and SIGKILL


@dataclass(frozen=True)
class RankConfig:
    """The configuration of a rank, passed as JSON on its command line."""

    world_size: int
    physical: tuple[int | None, ...]  # devices of this host
    virtual_kind: str | None  # of these devices
    rank: int = 0  # among all replicas of all hosts
    local_rank: int = 0
    node: int = 0  # index of the host
    nodes: int = 1
    backend: str = ""  # nccl or gloo
    fallbacks: tuple[str, ...] = ()  # why the backend is not NCCL although GPUs are used
    master: str = ""  # host of the rendezvous store
    port: int = 0
    timeout: float = 0.0  # of a collective, in seconds
    error_file: str = ""
    parent: int = 0  # the process that started it

    @property
    def devices(self) -> Devices:
        """Return the devices of this host's replicas."""
        return Devices(tuple(self.physical), self.virtual_kind)


# Choices: pure functions -------------------------------------------------------------------------------------------


def choose_backend(kinds: list[str | None], nccl: bool) -> tuple[str, tuple[str, ...]]:
    """Return the backend, and the reasons if it is not NCCL although GPUs are used.

    NCCL needs a GPU of its own for each replica on every host; otherwise gloo. kinds: `virtual_kind` of each host.
    """
    if all(kind == "cpu" for kind in kinds):
        return "gloo", ()
    reasons = []
    if "gpu" in kinds:
        reasons.append("several replicas share a GPU, and NCCL needs one for each")
    if "cpu" in kinds:
        reasons.append("a host of the cluster has no GPU")
    if not nccl:
        reasons.append("this PyTorch was built without NCCL")
    return ("gloo", tuple(reasons)) if reasons else ("nccl", ())


def collective_timeout(time_limit: float) -> float:
    """Return the timeout of a collective in seconds; below the time limit, so that a lost rank is reported."""
    return max(10.0, 0.5 * time_limit)


def address(worker: str) -> tuple[str, int]:
    """Split "host:port"; an IPv6 address is in brackets."""
    host, _unused, port = worker.rpartition(":")
    return host.strip("[]"), int(port)


def first_cause(ended: dict[int, int], errors: dict[int, dict[str, Any]]) -> str:
    """Return the error of the rank that failed first; the others only lost their peer.

    ended: exit status by rank, negative for a signal. errors: what a rank reported, with `time` on the common clock.
    """
    failed = {rank: status for rank, status in ended.items() if status}
    unreported = [rank for rank in sorted(failed) if rank not in errors]
    if unreported:
        rank = unreported[0]
        return f"replica {rank} {exit_text(failed[rank])}"
    rank = min(failed, key=lambda rank: errors[rank]["time"])
    return f"replica {rank}: {errors[rank]['text']}"


# Processes ---------------------------------------------------------------------------------------------------------


def die_with_parent(parent: int) -> None:
    """Ask the kernel to kill this rank when its parent dies; otherwise it would keep its GPU.

    Exits if the parent is gone already.
    """
    train_process.die_with_parent()
    if os.getppid() != parent:
        sys.exit("the process that started this rank has ended")


class Cluster:
    """The hosts that train together. As with torchrun, they rendezvous at the first one's address."""

    def __init__(self, torch: Any, cluster: dict[str, Any] | None, timeout: float) -> None:
        workers = (cluster or {}).get("workers") or []
        self.node = int((cluster or {}).get("index") or 0)
        self.nodes = len(workers) or 1
        self.workers = workers
        master, port = address(workers[0]) if workers else ("127.0.0.1", 0)
        # Port 0 selects a free port. The address is only used by clients: the store listens on all interfaces.
        try:
            self.store = torch.distributed.TCPStore(
                master, port, is_master=self.node == 0, wait_for_workers=False, timeout=timedelta(seconds=timeout)
            )
        except RuntimeError as error:
            raise Failed(
                f"found no rendezvous at {master}:{port}: {error}; expected worker 0 to listen there and every other "
                "worker to reach it; start the same run on every host, check firewalls, or choose a free port"
            ) from error
        self.master, self.port = master, self.store.port

    def rendezvous(self, devices: Devices) -> list[dict[str, Any]]:
        """Publish this host's devices and return those of every host, in order. Blocks until all have joined."""
        self.store.set(f"gpuhost/node/{self.node}", json.dumps([len(devices.physical), devices.virtual_kind]))
        joined = []
        for node in range(self.nodes):
            try:
                replicas, kind = json.loads(self.store.get(f"gpuhost/node/{node}"))
            except RuntimeError as error:
                raise Failed(
                    f"worker {node} ({self.workers[node]}) did not join: {error}; start the same run on every host and "
                    "check that the hosts reach each other"
                ) from error
            joined.append({"replicas": replicas, "kind": kind})
        return joined

    def remote_failure(self) -> str:
        """Return the failure that another host reported, or an empty string."""
        if self.nodes == 1 or not self.store.check(["gpuhost/failed"]):
            return ""
        return self.store.get("gpuhost/failed").decode()

    def report_failure(self, text: str) -> str:
        """Report this host's failure to the others and return the text to show.

        If another host reported a failure first, this host only lost its peer: the text starts with the other failure.
        """
        if self.nodes == 1:
            return text
        with suppress(RuntimeError):  # the store is lost together with its host
            time.sleep(1.0 if self.node else 1.5)
            remote = self.remote_failure()
            if remote:
                return f"{remote}; here: {text}" if remote != text else text
            self.store.set("gpuhost/failed", f"worker {self.node} ({self.workers[self.node]}): {text}")
        return text

    def leave(self) -> None:
        """Leave the cluster. The first host holds the store in its process and leaves last."""
        if self.nodes == 1:
            return
        with suppress(RuntimeError):  # the results are complete; a host that has already ended is not a failure
            self.store.set(f"gpuhost/left/{self.node}", "")
            if self.node == 0:
                self.store.wait([f"gpuhost/left/{node}" for node in range(self.nodes)], timedelta(seconds=GRACE_PERIOD))


def rank_configs(options: Options, devices: Devices, cluster: Cluster, nccl: bool, directory: str) -> list[RankConfig]:
    """Return the configuration of each process of this host."""
    hosts = cluster.rendezvous(devices)
    backend, fallbacks = choose_backend([host["kind"] for host in hosts], nccl)
    first_rank = sum(host["replicas"] for host in hosts[: cluster.node])
    return [
        RankConfig(
            rank=first_rank + local,
            local_rank=local,
            world_size=sum(host["replicas"] for host in hosts),
            node=cluster.node,
            nodes=cluster.nodes,
            backend=backend,
            fallbacks=fallbacks,
            physical=devices.physical,
            virtual_kind=devices.virtual_kind,
            master=cluster.master,
            port=cluster.port,
            timeout=collective_timeout(options.time_limit),
            error_file=os.path.join(directory, f"error-{first_rank + local}.json"),
            parent=os.getpid(),
        )
        for local in range(len(devices.physical))
    ]


def rank_environment(config: RankConfig, processes: int, interface: str) -> dict[str, str]:
    """Return torchrun's variables, and settings that keep the ranks of a host from disturbing each other."""
    threads = max(1, (os.cpu_count() or 1) // processes)
    variables = {
        "RANK": str(config.rank),
        "LOCAL_RANK": str(config.local_rank),
        "WORLD_SIZE": str(config.world_size),
        "LOCAL_WORLD_SIZE": str(processes),
        "GROUP_RANK": str(config.node),
        "MASTER_ADDR": config.master,
        "MASTER_PORT": str(config.port),
    }
    defaults = {"OMP_NUM_THREADS": str(threads)}
    if interface:
        # By default gloo uses the interface of the host's own name, which other hosts may not reach.
        defaults["GLOO_SOCKET_IFNAME"] = interface
        if config.nodes > 1:
            defaults["NCCL_SOCKET_IFNAME"] = interface
    return {**defaults, **os.environ, **variables}


def start_ranks(events: Events, configs: list[RankConfig], interface: str) -> dict[int, subprocess.Popen[bytes]]:
    """Start the processes of the ranks, in this process group, and return them by rank.

    The first rank of a host inherits the descriptor for events.
    """
    return {
        config.rank: subprocess.Popen(
            [sys.executable, *map(os.path.abspath, sys.argv[:2]), json.dumps(asdict(config))],
            stdin=subprocess.DEVNULL,
            env=rank_environment(config, len(configs), interface),
            pass_fds=[events.descriptor] if config.local_rank == 0 else [],
        )
        for config in configs
    }


def wait_for_ranks(processes: dict[int, subprocess.Popen[bytes]], configs: list[RankConfig], cluster: Cluster) -> str:
    """Wait until all ranks have ended; return why they failed, or an empty string."""
    try:
        while True:
            time.sleep(POLL_INTERVAL)
            ended = {rank: process.poll() for rank, process in processes.items()}
            if any(status for status in ended.values()):
                time.sleep(POLL_INTERVAL)  # the rank that failed first may be reaped later
                return first_cause({r: p.poll() or 0 for r, p in processes.items()}, reported_errors(configs))
            if all(status == 0 for status in ended.values()):
                return ""
            try:
                remote = cluster.remote_failure()
            except RuntimeError as error:
                remote = "" if cluster.node == 0 else f"worker 0 ({cluster.workers[0]}) is unreachable: {error}"
            if remote:
                return remote
    finally:
        terminate(list(processes.values()))


def reported_errors(configs: list[RankConfig]) -> dict[int, dict[str, Any]]:
    """Return the errors that ranks wrote down before they ended, by rank."""
    errors = {}
    for config in configs:
        with suppress(FileNotFoundError, ValueError):
            errors[config.rank] = json.loads(Path(config.error_file).read_text())
    return errors


def terminate(processes: list[subprocess.Popen[bytes]]) -> None:
    """Send SIGTERM, then SIGKILL, to the processes that are still running."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        running = [process for process in processes if process.poll() is None]
        for process in running:
            process.send_signal(number)
        deadline = time.monotonic() + GRACE_PERIOD
        for process in running:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))


def launch(request: dict[str, Any], options: Options, events: Events) -> None:
    """Choose devices, start the ranks and wait for them. Raises MissingGpus, Failed."""
    import torch
    from pytorch_replica import Run, interface_to

    events.send("start", framework="pytorch", version=torch.__version__)
    visible = torch.cuda.device_count() if torch.cuda.is_available() else 0
    devices = choose(options, visible, request["on_pci"], request["simulated"])
    if options.training == "data_parallel":
        from data_parallel import DataParallel, refuse_virtual_gpus

        refuse_virtual_gpus(devices)
        config = RankConfig(len(devices.physical), devices.physical, devices.virtual_kind)
        Run(torch, request["files"], options, config, events, DataParallel).execute()
        return
    cluster = Cluster(torch, request["cluster"], collective_timeout(options.time_limit))
    with tempfile.TemporaryDirectory(prefix="smoke_train-replicas-") as directory:
        configs = rank_configs(options, devices, cluster, torch.distributed.is_nccl_available(), directory)
        others = [address(worker)[0] for node, worker in enumerate(cluster.workers) if node != cluster.node]
        interface = interface_to(others[0]) if others else "lo"
        failure = wait_for_ranks(start_ranks(events, configs, interface), configs, cluster)
    if failure:
        failure = cluster.report_failure(failure)
    cluster.leave()
    if failure:
        raise Failed(failure)


def main(arguments: list[str]) -> int:
    """Run the worker, or a rank if a configuration is given, and return the exit status."""
    path, *config = arguments
    if not config:
        return run(path, launch)
    from pytorch_replica import run_replica

    request, rank_config = json.loads(Path(path).read_text()), RankConfig(**json.loads(config[0]))
    die_with_parent(rank_config.parent)
    # Only the first replica of a host sends events.
    return run_replica(request, rank_config, Events(None if rank_config.local_rank else request["events_fd"]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

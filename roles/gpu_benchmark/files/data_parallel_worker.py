"""Train with PyTorch's DataParallel in place of smoke_train's DistributedDataParallel (protocol: train_process.py).

One process has all replicas of the host. Runs in the directory of smoke_train's files, as
`python data_parallel_worker.py REQUEST.json`.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
import pytorch_replica
from pytorch_worker import ERROR_CHARACTERS, Devices, Events, RankConfig, UnsupportedRequest, choose, memory_limit


def refuse_virtual_gpus(devices: Devices) -> None:
    """Raise UnsupportedRequest if DataParallel cannot run on these devices.

    It copies one model to distinct GPUs: it supports neither the CPU nor two replicas on one GPU.
    """
    if devices.virtual_kind is None:
        return
    found = "no GPU that PyTorch sees" if devices.virtual_kind == "cpu" else "several replicas on one GPU"
    raise UnsupportedRequest(
        f"found {found}, expected one or more GPUs with one replica each for DataParallel; "
        "DistributedDataParallel also runs on the CPU and on virtual GPUs (gpu_benchmark_training=default)"
    )


class DataParallel:
    """The weights are on the first GPU; each step copies them to the others, which are threads of this process."""

    def __init__(self, torch: Any, config: Any) -> None:
        self.torch, self.config = torch, config
        self.rank, self.replicas = 0, len(config.physical)
        self.devices = [pytorch_replica.device_of(torch, physical) for physical in config.physical]
        self.device = self.devices[0]
        self.devices_seen: set[str] = set()
        probes = [torch.ones((), device=device) for device in self.devices]
        nccl = self.replicas == 1 or torch.cuda.nccl.is_available(probes)
        self.implementation = "nccl" if nccl else "copies between GPUs"
        self.fallbacks = [] if nccl else ["PyTorch reports that NCCL does not support these GPUs"]

    def local_part(self, indices: Any, alone: bool) -> Any:
        """Return the whole batch: DataParallel splits it itself. Begins a step, whose GPUs are counted."""
        self.devices_seen.clear()
        return indices

    def wrap(self, model: Any, alone: bool) -> Any:
        """Return the network that runs on all GPUs, or on the first one alone."""
        if alone or self.replicas == 1:
            return model
        model.register_forward_pre_hook(lambda module, inputs: self.devices_seen.add(str(inputs[0].device)))
        return self.torch.nn.DataParallel(model, device_ids=[device.index for device in self.devices])

    def mean(self, loss: Any, alone: bool) -> float:
        """Return the loss as a number."""
        return float(loss.detach())

    def barrier(self) -> None:
        """Wait for all GPUs."""
        for device in self.devices:
            self.torch.cuda.synchronize(device)

    def all_reduce_values(self) -> list[float]:
        """Sum i + 1 of each GPU i with DataParallel's own operations: a reduction and a broadcast."""
        torch = self.torch
        local = [torch.full((1,), index + 1.0, device=device) for index, device in enumerate(self.devices)]
        if self.replicas == 1:
            return [float(local[0])]
        indices = [device.index for device in self.devices]
        total = torch.nn.parallel.comm.reduce_add(local, destination=indices[0])
        return [float(copy) for copy in torch.nn.parallel.comm.broadcast(total, indices)]

    def computed(self, loss: Any) -> tuple[int, list[dict[str, Any]]]:
        """Return the number of GPUs that the last step ran on, and these with this process."""
        devices = self.devices_seen if self.replicas > 1 else {str(loss.device)}
        return len(devices), [{"device": device, "process": os.getpid()} for device in sorted(devices)]

    def weights_disagreement(self, model: Any) -> float:
        """Return the largest relative difference of a weight between the copies of the next step."""
        if self.replicas == 1:
            return 0.0
        copies = self.torch.nn.parallel.replicate(model, [device.index for device in self.devices], detach=True)
        weights = [list(copy.parameters()) or replica_weights(copy) for copy in copies]
        return max(
            pytorch_replica.relative_difference(other.to(first.device).float(), first.float())
            for others in weights[1:]
            for first, other in zip(weights[0], others)  # noqa: B905
        )

    def shut_down(self) -> None:
        """Wait for all GPUs."""
        self.barrier()


def replica_weights(copy: Any) -> list[Any]:
    """Return the weights of a copy made by `replicate`: plain tensors, which `parameters` does not list."""
    return [weight for module in copy.modules() for weight in module._former_parameters.values() if weight is not None]


def execute(torch: Any, request: dict[str, Any], events: Events) -> int:
    """Train on this host's GPUs; return 0, or 1 if requested GPUs are missing."""
    options = request["options"]
    visible = torch.cuda.device_count() if torch.cuda.is_available() else 0
    devices = choose(options, visible, request["on_pci"], request["simulated"])
    if devices is None:
        events.send("missing_gpus", visible=visible)
        return 1
    refuse_virtual_gpus(devices)
    alone = {"rank": 0, "local_rank": 0, "world_size": len(devices.physical), "node": 0, "nodes": 1, "backend": ""}
    here = {"master": "", "port": 0, "timeout": 0.0, "error_file": "", "parent": os.getppid(), "fallbacks": ()}
    limit = memory_limit(options, devices)
    config = RankConfig(**alone, **here, physical=devices.physical, memory_limit=limit)
    pytorch_replica.Run(torch, request, config, events, DataParallel).execute()
    events.send("end")
    return 0


def main(path: str) -> int:
    """Run the request in the given file and return the exit status; an exception is also sent as an event."""
    request = json.loads(Path(path).read_text())
    events = Events(request["events_fd"])
    try:
        import torch

        events.send("start", framework="pytorch", version=torch.__version__)
        return execute(torch, request, events)
    except UnsupportedRequest as refusal:
        events.send("error", text=str(refusal))
    except Exception as error:  # noqa: BLE001 - the top of the process: any error must be reported
        traceback.print_exc()
        events.send("error", text=f"{type(error).__name__}: {error}"[-ERROR_CHARACTERS:])
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

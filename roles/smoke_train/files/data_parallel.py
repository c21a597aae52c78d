"""Train with PyTorch's DataParallel, as role gpu_benchmark asks for: one process has all replicas of the host."""

from __future__ import annotations

import os
from typing import Any

from pytorch_replica import device_of
from worker_base import Devices, Failed, relative_difference


def refuse_virtual_gpus(devices: Devices) -> None:
    """Raise Failed if DataParallel cannot run on these devices.

    It copies one model to distinct GPUs: it supports neither the CPU nor two replicas on one GPU.
    """
    if devices.virtual_kind is None:
        return
    found = "no GPU that PyTorch sees" if devices.virtual_kind == "cpu" else "several replicas on one GPU"
    raise Failed(
        f"found {found}, expected one or more GPUs with one replica each for DataParallel; "
        "DistributedDataParallel also runs on the CPU and on virtual GPUs (gpu_benchmark_training=default)"
    )


class DataParallel:
    """The weights are on the first GPU; each step copies them to the others, which are threads of this process."""

    def __init__(self, torch: Any, config: Any) -> None:
        self.torch, self.config = torch, config
        self.rank, self.replicas = 0, len(config.physical)
        self.devices = [device_of(torch, physical) for physical in config.physical]
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
            relative_difference(other.to(first.device).float(), first.float())
            for others in weights[1:]
            for first, other in zip(weights[0], others)  # noqa: B905
        )

    def shut_down(self) -> None:
        """Wait for all GPUs."""
        self.barrier()


def replica_weights(copy: Any) -> list[Any]:
    """Return the weights of a copy made by `replicate`: plain tensors, which `parameters` does not list."""
    return [weight for module in copy.modules() for weight in module._former_parameters.values() if weight is not None]

"""data_parallel.py: what it refuses, and its training on simulated GPUs if there is a Python with PyTorch."""

from collections.abc import Callable

import data_parallel
import pytest
from real_workers import Worker, needs
from worker_base import Devices, Failed

real = needs("pytorch")
TRAINING = ("--training", "data_parallel")


@pytest.fixture
def framework() -> str:
    return "pytorch"


@pytest.mark.parametrize("devices", [Devices((None, None), "cpu"), Devices((0, 0), "gpu")], ids=["CPU", "shared GPU"])
def test_each_replica_needs_a_gpu(devices: Devices) -> None:
    with pytest.raises(Failed, match=r"found .*, expected one or more GPUs.*gpu_benchmark_training=default"):
        data_parallel.refuse_virtual_gpus(devices)
    data_parallel.refuse_virtual_gpus(Devices((0, 1), None))


@real
def test_without_a_gpu_the_refusal_is_reported(start: Callable[..., Worker]) -> None:
    worker = start(*TRAINING)
    assert worker.listen() == 1
    assert [item["event"] for item in worker.events] == ["start", "error"]
    assert "found no GPU that PyTorch sees" in worker.the("error")["text"]


SIMULATED_GPUS = """
import copy, types
import torch

class Sliced(torch.nn.Module):
    '''DataParallel's behaviour on one device: copies of the network, each with its slice of the batch.'''
    def __init__(self, module, device_ids):
        super().__init__()
        self.module, self.device_ids = module, device_ids
    def forward(self, images):
        parts = images.chunk(len(self.device_ids))
        for hook in self.module._forward_pre_hooks.values():
            for number in self.device_ids:
                # The first device is the one that the whole network is on, as with real GPUs.
                device = f"simulated:{number}" if number else str(images.device)
                hook(self.module, (types.SimpleNamespace(device=device),))
        hooks, self.module._forward_pre_hooks = self.module._forward_pre_hooks, {}
        try:
            return torch.cat([self.module(part) for part in parts])
        finally:
            self.module._forward_pre_hooks = hooks

def device_of(torch, physical):
    return torch.device("cpu", physical)

def replicate(network, devices, detach):
    return [copy.deepcopy(network) for _ in devices]

def damaged(network, devices, detach):
    copies = replicate(network, devices, detach)
    next(copies[1].parameters()).data[0] += 1.0
    return copies

torch.nn.DataParallel = Sliced
torch.nn.parallel.replicate = replicate
torch.nn.parallel.comm.reduce_add = lambda tensors, destination: sum(tensors)
torch.nn.parallel.comm.broadcast = lambda tensor, devices: [tensor] * len(devices)
torch.cuda.is_available = lambda: True
torch.cuda.device_count = lambda: 2
# A PyTorch that is built for CUDA would ask the driver in each step of an optimizer.
torch.accelerator.current_accelerator = lambda check_available=False: None
torch.cuda.nccl.is_available = lambda tensors: True
torch.cuda.synchronize = lambda device: None
torch.cuda.get_device_properties = lambda device: types.SimpleNamespace(
    name="simulated GPU", major=9, minor=0, total_memory=2**34
)
torch.cuda.set_per_process_memory_fraction = lambda share, device: print("share", share, device)
import data_parallel
data_parallel.device_of = device_of
"""


@real
def test_data_parallel_on_simulated_gpus(start: Callable[..., Worker]) -> None:
    worker = start("--memory-limit", "4096", *TRAINING, patch=SIMULATED_GPUS)
    assert worker.listen() == 0, worker.log.read_text()[-3000:]
    devices = worker.the("devices")
    assert (devices["virtual"], [device["physical"] for device in devices["devices"]]) == (False, [0, 1])
    assert devices["devices"][1]["compute_capability"] == "9.0"
    assert worker.the("all_reduce")["values"] == [3.0, 3.0]
    assert worker.the("all_reduce")["implementation"] == "nccl"
    trained = worker.the("trained")
    assert (trained["replicas"], trained["batch_size"], trained["weights_disagreement"]) == (2, 32, 0.0)
    assert worker.the("agreement")["replicas"] == [1, 2]
    assert worker.the("agreement")["gradients_differ"] < 1e-4
    assert "same-as-one-replica" not in worker.failed()
    log = worker.log.read_text()
    assert log.count("share 0.25 ") == 2
    assert log.count("at most 4096 of 16384 MiB") == 2


@real
def test_damaged_copy_of_data_parallel_is_detected(start: Callable[..., Worker]) -> None:
    patch = SIMULATED_GPUS + "torch.nn.parallel.replicate = damaged\n"
    worker = start("--agreement-steps", "0", *TRAINING, patch=patch)
    assert worker.listen() == 0
    assert worker.the("trained")["weights_disagreement"] > 0.1

"""Train one replica for pytorch_worker.py with DistributedDataParallel; the first replica of a host sends events."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import struct
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import cifar10
from train_options import Options
from worker_base import ERROR_CHARACTERS, gradient_difference, local_batch, relative_difference

# A small network and a learning rate at which a wrong gradient shows in the next loss, while rounding differences stay
# small. Measured on a CPU with 2 replicas and 5 steps: 4e-7 between one replica and two, 5e-3 if the gradients are not
# summed. A deep network amplifies rounding differences in each step.
AGREEMENT_BLOCKS = 1
AGREEMENT_LEARNING_RATE = 0.03
SIOCGIFADDR = 0x8915  # netdevice(7): an interface's IPv4 address


def interface_to(host: str) -> str:
    """Return the network interface on the route to `host`, or an empty string if it cannot be determined."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, 9))  # nothing is sent
            local = probe.getsockname()[0]
            for _unused, name in socket.if_nameindex():
                with contextlib.suppress(OSError):
                    wanted = struct.pack("256s", name.encode()[:15])
                    if socket.inet_ntoa(fcntl.ioctl(probe.fileno(), SIOCGIFADDR, wanted)[20:24]) == local:
                        return name
    except OSError:
        return ""
    return ""


# The network and its data ------------------------------------------------------------------------------------------


def build_model(torch: Any, blocks: int, seed: int) -> Any:
    """Return a ResNet for 32 x 32 images: three stages of `blocks` blocks, 6 * blocks + 2 layers with weights.

    The same network as in tensorflow_worker.py.
    """
    nn = torch.nn

    def convolution(inputs: int, filters: int, size: int, stride: int) -> Any:
        layer = nn.Conv2d(inputs, filters, size, stride, padding=size // 2, bias=False)
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        return nn.Sequential(layer, nn.BatchNorm2d(filters))

    class Block(nn.Module):
        def __init__(self, inputs: int, filters: int, stride: int) -> None:
            super().__init__()
            self.first = convolution(inputs, filters, 3, stride)
            self.second = convolution(filters, filters, 3, 1)
            self.shortcut = nn.Identity() if stride == 1 else convolution(inputs, filters, 1, stride)

        def forward(self, images: Any) -> Any:
            inner = self.second(torch.relu(self.first(images)))
            return torch.relu(self.shortcut(images) + inner)

    torch.manual_seed(seed)
    layers: list[Any] = [convolution(3, 16, 3, 1), nn.ReLU()]
    inputs = 16
    for stage, filters in enumerate((16, 32, 64)):
        for block in range(blocks):
            layers.append(Block(inputs, filters, 2 if stage and not block else 1))
            inputs = filters
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 10))


class Data:
    """The records in memory; every replica draws the same global batches and takes its part of each."""

    def __init__(self, torch: Any, files: Sequence[str]) -> None:
        self.torch = torch
        labels, pixels = cifar10.read(files)
        # frombuffer needs writable memory; NumPy may not be installed.
        self.labels = torch.frombuffer(bytearray(labels), dtype=torch.uint8).long()
        self.images = torch.frombuffer(bytearray(pixels), dtype=torch.uint8).view(-1, 3, 32, 32)

    def batches(self, size: int, seed: int) -> Iterator[Any]:
        """Yield shuffled batches endlessly, as indices of records.

        Each epoch contains every record once, except for an incomplete last batch, which is dropped.
        """
        generator = self.torch.Generator().manual_seed(seed)
        while True:
            order = self.torch.randperm(len(self.labels), generator=generator)
            if len(order) < size:
                order = order.repeat(-(-size // len(order)))
            yield from order[: len(order) // size * size].split(size)

    def select(self, indices: Any, device: Any) -> tuple[Any, Any]:
        """Return the images, scaled to -1..1, and their labels."""
        images = self.images[indices].to(device).float() / 127.5 - 1.0
        return images, self.labels[indices].to(device)


# Strategies --------------------------------------------------------------------------------------------------------


class Distributed:
    """DistributedDataParallel: this process is one replica; `alone` marks an operation of rank 0 without the others."""

    def __init__(self, torch: Any, config: Any) -> None:
        self.torch, self.config = torch, config
        self.rank, self.replicas = config.rank, config.world_size
        self.device = device_of(torch, config.physical[config.local_rank])
        self.devices = [self.device]
        self.implementation, self.fallbacks = config.backend, list(config.fallbacks)
        self.questions = 0  # that the replicas asked each other through the store
        self.store = rendezvous(torch, config, self.device)

    def local_part(self, indices: Any, alone: bool) -> Any:
        """Return this replica's part of a global batch."""
        size = len(indices) // self.replicas
        return indices if alone else indices[self.rank * size : (self.rank + 1) * size]

    def wrap(self, model: Any, alone: bool) -> Any:
        """Return the network with gradients averaged over the replicas."""
        if alone or self.replicas == 1:
            return model
        devices = [self.device] if self.device.type == "cuda" else None
        return self.torch.nn.parallel.DistributedDataParallel(model, device_ids=devices)

    def all_reduce(self, value: Any) -> Any:
        """Sum a tensor on the replica's device over the replicas, in place, and return it."""
        if self.replicas > 1:
            self.torch.distributed.all_reduce(value)
        return value

    def mean(self, loss: Any, alone: bool) -> float:
        """Return the mean of a loss over the replicas."""
        value = loss.detach().float().clone()
        return float(value) if alone else float(self.all_reduce(value)) / self.replicas

    def barrier(self) -> None:
        """Wait for all replicas, by means of an all-reduce."""
        float(self.all_reduce(self.torch.ones((), device=self.device)))

    def all_reduce_values(self) -> list[float]:
        """All-reduce i + 1 of each replica i and return the sums that the replicas received."""
        local = self.all_reduce(self.torch.full((), float(self.rank + 1), device=self.device))
        all_values = self.torch.zeros(self.replicas, device=self.device)
        all_values[self.rank] = local
        return [float(value) for value in self.all_reduce(all_values)]

    def computed(self, loss: Any) -> tuple[int, list[dict[str, Any]]]:
        """Return the number of replicas that computed a loss, and those of this host: their device and process.

        Replicas are counted by device; on the CPU or on a shared GPU, by process.
        """
        shared = self.config.physical.count(self.config.physical[self.config.local_rank]) > 1
        # Through the store: PyTorch's own exchange of objects needs NumPy, which may not be installed.
        own = [self.config.node, str(loss.device), os.getpid(), shared or loss.device.type == "cpu"]
        self.questions += 1
        self.store.set(f"computed/{self.questions}/{self.rank}", json.dumps(own))
        found = [json.loads(self.store.get(f"computed/{self.questions}/{rank}")) for rank in range(self.replicas)]
        distinct = {(node, device, process if by_process else 0) for node, device, process, by_process in found}
        here = [{"device": device, "process": pid} for node, device, pid, _unused in found if node == self.config.node]
        return len(distinct), here

    def weights_disagreement(self, model: Any) -> float:
        """Return the largest difference of a weight to rank 0's, relative to the largest of its tensor."""
        torch, worst = self.torch, 0.0
        if self.replicas == 1:
            return 0.0
        for parameter in model.parameters():
            local = parameter.detach().float().contiguous()
            first = local.clone()
            torch.distributed.broadcast(first, src=0)
            worst = max(worst, relative_difference(local, first))
        total = torch.tensor(worst, device=self.device)
        torch.distributed.all_reduce(total, op=torch.distributed.ReduceOp.MAX)
        return float(total)

    def shut_down(self) -> None:
        """Leave the process group, after all replicas are done."""
        self.barrier()
        self.torch.distributed.destroy_process_group()


def device_of(torch: Any, physical: int | None) -> Any:
    """Return the device with this CUDA index, or the CPU for None."""
    return torch.device("cpu") if physical is None else torch.device("cuda", physical)


def rendezvous(torch: Any, config: Any, device: Any) -> Any:
    """Join the process group and return the store of the rendezvous.

    `config.timeout` also applies to every later collective.
    """
    timeout = timedelta(seconds=config.timeout)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    store = torch.distributed.TCPStore(config.master, config.port, is_master=False, timeout=timeout)
    torch.distributed.init_process_group(
        config.backend,
        store=torch.distributed.PrefixStore("gpuhost/replicas", store),
        rank=config.rank,
        world_size=config.world_size,
        timeout=timeout,
    )
    return torch.distributed.PrefixStore("gpuhost/replica", store)


# The run -----------------------------------------------------------------------------------------------------------


class Run:
    """One replica's share of a run."""

    def __init__(
        self, torch: Any, files: Sequence[str], options: Any, config: Any, events: Any, strategy: Any = Distributed
    ) -> None:
        self.torch, self.options, self.config = torch, options, config
        self.send, self.send_step = events.send, events.step
        self.send("devices", **config.devices.event(options, lambda gpu: describe(torch, gpu)))
        self.replicas = strategy(torch, config)
        self.device, self.count = self.replicas.device, self.replicas.replicas
        self.local_batch = local_batch(options, self.count)
        self.data = Data(torch, files)
        self.limit_memory()

    def limit_memory(self) -> None:
        """Limit the memory of PyTorch's allocator if a limit is configured."""
        limit = self.config.devices.memory_limit(self.options)
        if limit is None:
            return
        for device in self.replicas.devices:
            total = self.torch.cuda.get_device_properties(device).total_memory / 2**20
            self.torch.cuda.set_per_process_memory_fraction(min(1.0, limit / total), device)
            log(self.config, f"{device}: at most {limit} of {total:.0f} MiB for PyTorch's allocator")

    def execute(self) -> None:
        """Run all phases."""
        options = self.options
        replicas = self.replicas
        self.send(
            "all_reduce",
            values=replicas.all_reduce_values(),
            implementation=replicas.implementation,
            fallbacks=list(replicas.fallbacks),
        )
        self.train()
        if options.agreement_steps and self.count > 1 and self.config.nodes == 1:
            self.compare_with_one(options.agreement_steps)
        replicas.shut_down()

    def forward(self, net: Any, batch: tuple[Any, Any]) -> Any:
        """Return the mean loss of this replica's part of the batch."""
        images, labels = batch
        with self.precision():
            outputs = net(images)
        return self.torch.nn.functional.cross_entropy(outputs.float(), labels)

    def precision(self) -> Any:
        """Return the autocast context: float16 on GPUs, bfloat16 on CPUs, where few operations support float16."""
        if not self.options.mixed_precision:
            return contextlib.nullcontext()
        kind = self.torch.float16 if self.device.type == "cuda" else self.torch.bfloat16
        return self.torch.autocast(self.device.type, dtype=kind)

    def scaler(self) -> Any:
        """Return the gradient scaler: float16 gradients underflow below about 6e-8; bfloat16 has float32's range."""
        enabled = self.options.mixed_precision and self.device.type == "cuda"
        return self.torch.amp.GradScaler(self.device.type, enabled=enabled)

    def step(self, net: Any, optimizer: Any, scaler: Any, batch: tuple[Any, Any]) -> Any:
        """Train on one batch and return its loss."""
        optimizer.zero_grad()
        loss = self.forward(net, batch)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss

    def train(self) -> None:
        """Run the training that is checked and send its result."""
        options, replicas = self.options, self.replicas
        # Each replica starts with different weights: only the framework's broadcast makes them equal.
        model = build_model(self.torch, options.blocks, options.seed + self.config.rank).to(self.device)
        net = replicas.wrap(model, alone=False)
        if options.log_device_placement:
            log_placement(self.config, model)
        if options.mixed_precision and self.device.type == "cpu":
            log(self.config, "mixed precision on a CPU: bfloat16 instead of float16, and no scaling of the loss")
        optimizer = self.torch.optim.Adam(model.parameters(), lr=options.learning_rate)
        scaler, size, steps = self.scaler(), self.local_batch * self.count, options.train_steps
        batches = self.data.batches(size, options.seed)
        for number in range(1, steps + 1):
            batch = self.data.select(replicas.local_part(next(batches), alone=False), self.device)
            local_loss = self.step(net, optimizer, scaler, batch)
            loss = replicas.mean(local_loss, alone=False)
            self.send_step("train", number, steps, loss)
        computed, here = replicas.computed(local_loss)
        self.send(
            "trained",
            replicas=computed,
            ran=here,
            batch_size=size,
            weights_disagreement=replicas.weights_disagreement(model),
        )

    def compare_with_one(self, steps: int) -> None:
        """Train one replica and all of them on the same batches from the same initial weights, with SGD, and compare.

        Normalisation layers are frozen, since batch statistics differ between a whole batch and its parts by design.
        Their statistics come from one batch beforehand: without any, an untrained network has losses in the hundreds.
        """
        losses, gradients, counts = [], [], []
        for alone in (True, False):
            history, first_gradients, computed = self.agreement_training(alone, steps, len(losses) * steps)
            self.replicas.barrier()
            losses.append(history)
            gradients.append(first_gradients)
            counts.append(computed)
        # Replicas that did not train alone have nothing to compare, and send nothing.
        difference = gradient_difference(gradients[0], [[gradient] for gradient in gradients[1]])
        self.send("agreement", replicas=counts, losses=losses, gradients_differ=difference)

    def agreement_training(self, alone: bool, steps: int, done: int) -> tuple[list[float], list[Any], int]:
        """Return the losses, the gradients of the first step, and how many replicas computed the last one.

        Nothing on replicas that do not take part. Always in float32 without TensorFloat-32.
        """
        torch, options, replicas = self.torch, self.options, self.replicas
        size = self.local_batch * self.count
        batches = self.data.batches(size, options.seed + 1)
        history: list[float] = []
        gradients: list[Any] = []
        with full_precision(torch):
            model = build_model(torch, AGREEMENT_BLOCKS, options.seed).to(self.device)
            net = replicas.wrap(model, alone)
            if alone and replicas.rank:
                return [], [], 0
            freeze_normalisation(torch, model, self.data.select(next(batches), self.device)[0])
            optimizer = torch.optim.SGD(model.parameters(), lr=AGREEMENT_LEARNING_RATE)
            for number in range(1, steps + 1):
                images, labels = self.data.select(replicas.local_part(next(batches), alone), self.device)
                optimizer.zero_grad()
                loss = torch.nn.functional.cross_entropy(net(images), labels)
                loss.backward()
                gradients = gradients or [parameter.grad.clone() for parameter in model.parameters()]
                optimizer.step()
                history.append(replicas.mean(loss, alone))
                self.send_step("agreement", done + number, 2 * steps, history[-1])
        return history, gradients, 1 if alone else replicas.computed(loss)[0]


@contextlib.contextmanager
def full_precision(torch: Any) -> Iterator[None]:
    """Turn TF32 off: its 10-bit mantissa would dominate the differences."""
    matmul = torch.backends.cuda.matmul
    before, matmul.allow_tf32 = matmul.allow_tf32, False
    try:
        with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False):
            yield
    finally:
        matmul.allow_tf32 = before


def freeze_normalisation(torch: Any, model: Any, images: Any) -> None:
    """Set the statistics of the normalisation layers to those of these images and freeze them."""
    for layer in model.modules():
        if isinstance(layer, torch.nn.BatchNorm2d):
            layer.momentum = 1.0  # the moving statistics become those of the last batch
    model.train()
    with torch.no_grad():
        model(images)
    model.eval()


def describe(torch: Any, gpu: int | None) -> tuple[str, str]:
    """Return the model and the compute capability of a GPU, or what the CPU is used as."""
    if gpu is None:
        return "a process on the CPU", ""
    known = torch.cuda.get_device_properties(gpu)
    return known.name, f"{known.major}.{known.minor}"


def log(config: Any, text: str) -> None:
    """Print a line with the rank to the log."""
    print(f"replica {config.rank}: {text}", flush=True)


def log_placement(config: Any, model: Any) -> None:
    """Print the shape, type and device of every weight."""
    for name, parameter in model.named_parameters():
        log(config, f"{name} {tuple(parameter.shape)} {parameter.dtype} on {parameter.device}")


def run_replica(request: dict[str, Any], config: Any, events: Any) -> int:
    """Run one replica. An error is logged and written to `config.error_file` for the process that started it."""
    try:
        import torch

        if None in config.physical:
            torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
        Run(torch, request["files"], Options(**request["options"]), config, events).execute()
    except Exception as error:  # noqa: BLE001 - the top of the process: any error must be reported
        moment = time.monotonic()
        traceback.print_exc()
        text = f"{type(error).__name__}: {error}"
        where = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{text[:ERROR_CHARACTERS]} (in {where.name}, {os.path.basename(where.filename)} line {where.lineno})"
        Path(config.error_file).write_text(json.dumps({"time": moment, "text": text}))
        sys.stdout.flush()
        # Skip destructors: NCCL's would wait for peers that have ended.
        os._exit(1)
    return 0

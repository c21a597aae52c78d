# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Import PyTorch, list its CUDA libraries and compute: a program for the PyTorch environment's own Python.

It prints lines of MARK and a JSON object, one for each part as soon as it is known, so that a crash in a driver library
does not lose the parts before it. pytorch_checks judges them. It works without NumPy.
"""

from __future__ import annotations

import json
import os
import sys
from importlib import metadata

MARK = "GPUHOST-ANSWER "
LIBRARIES = ("libcudart", "libcublas", "libcudnn", "libnccl")
SIZE = 512
SEED = 20170706


def emit(**parts):
    """Print one line of output."""
    sys.stdout.write("\n" + MARK + json.dumps(parts) + "\n")
    sys.stdout.flush()


def mapped_libraries():
    """Return the paths of the CUDA libraries in this process by library name; importing PyTorch loads them."""
    paths = {}
    with open("/proc/self/maps") as lines:
        for line in lines:
            path = line.rstrip("\n").split(" ", 5)[-1].strip()
            name = os.path.basename(path).split(".so", 1)[0]
            if name in LIBRARIES and path.startswith("/"):
                paths[name] = path
    return paths


def library_versions(torch):
    """Return what cudnnGetVersion() and ncclGetVersion() of the loaded files return; None without such a library."""
    nccl = torch.cuda.nccl.version() if torch.distributed.is_nccl_available() else None
    return {"cudnn": torch.backends.cudnn.version(), "nccl": ".".join(str(part) for part in nccl) if nccl else None}


def pinned_versions():
    """Return the versions of the installed cuDNN and NCCL wheels, which are those of the lock file."""
    versions = {}
    for distribution in metadata.distributions():
        name = (distribution.metadata["Name"] or "").lower()
        for component in ("cudnn", "nccl"):
            if name.startswith("nvidia-%s-cu" % component):
                versions[component] = distribution.version
    return versions


def multiply(torch, device):
    """Multiply on a device; return the largest difference from double precision, relative to its largest element."""
    generator = torch.Generator().manual_seed(SEED)
    left, right = (torch.randn(SIZE, SIZE, generator=generator) for _unused in range(2))
    exact = left.double() @ right.double()
    product = left.to(device) @ right.to(device)
    error = (product.cpu().double() - exact).abs().max() / exact.abs().max()
    return {"device": device, "ran_on": str(product.device), "difference": float(error)}


def multiply_everywhere(torch, count):
    """Multiply on each GPU, or on the CPU if there is none."""
    torch.backends.cuda.matmul.allow_tf32 = False
    results = []
    for device in ["cuda:%d" % number for number in range(count)] or ["cpu"]:
        try:
            results.append(multiply(torch, device))
        except RuntimeError as error:
            results.append({"device": device, "error": (str(error).splitlines() or ["no message"])[0][:300]})
    return results


def main():
    """Print every part."""
    import torch

    emit(
        version=torch.__version__,
        cuda=torch.version.cuda,
        prefix=os.path.realpath(sys.prefix),
        search_path=os.environ.get("LD_LIBRARY_PATH", ""),
        pinned=pinned_versions(),
    )
    emit(libraries=mapped_libraries())
    if torch.version.cuda:
        emit(called=library_versions(torch))
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    emit(devices=count)
    emit(matmul=multiply_everywhere(torch, count))


if __name__ == "__main__":
    main()

"""What PyTorch says and computes; runs as a program in the PyTorch environment's Python, not in the module's.

Prints lines of MARK and a JSON object, one for each part as soon as it is known, so that what was found out before a
crash in a driver library is not lost. pytorch_checks judges them. NumPy is not asked for.
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


def tell(**parts):
    print("\n" + MARK + json.dumps(parts), flush=True)


def mapped():
    """Files of the CUDA libraries in this process, by their names: PyTorch loads them when it is imported."""
    found = {}
    with open("/proc/self/maps") as lines:
        for line in lines:
            path = line.rstrip("\n").split(" ", 5)[-1].strip()
            name = os.path.basename(path).split(".so", 1)[0]
            if name in LIBRARIES and path.startswith("/"):
                found[name] = path
    return found


def called(torch):
    """cudnnGetVersion() and ncclGetVersion() of the loaded files, as PyTorch calls them; without an answer None."""
    nccl = torch.cuda.nccl.version() if torch.distributed.is_nccl_available() else None
    return {"cudnn": torch.backends.cudnn.version(), "nccl": ".".join(str(part) for part in nccl) if nccl else None}


def pinned():
    """Versions of the installed wheels of cuDNN and NCCL: those of the lock file, whose hashes were checked."""
    found = {}
    for distribution in metadata.distributions():
        name = (distribution.metadata["Name"] or "").lower()
        for component in ("cudnn", "nccl"):
            if name.startswith("nvidia-%s-cu" % component):
                found[component] = distribution.version
    return found


def multiply(torch, device):
    """The largest difference to the CPU's double precision product, relative to its largest element."""
    generator = torch.Generator().manual_seed(SEED)
    left, right = (torch.randn(SIZE, SIZE, generator=generator) for _ in range(2))
    exact = left.double() @ right.double()
    product = left.to(device) @ right.to(device)
    error = (product.cpu().double() - exact).abs().max() / exact.abs().max()
    return {"device": device, "ran_on": str(product.device), "difference": float(error)}


def multiply_everywhere(torch, count):
    torch.backends.cuda.matmul.allow_tf32 = False
    results = []
    for device in ["cuda:%d" % number for number in range(count)] or ["cpu"]:
        try:
            results.append(multiply(torch, device))
        except RuntimeError as error:
            results.append({"device": device, "error": (str(error).splitlines() or ["no reason told"])[0][:300]})
    return results


def main():
    import torch

    tell(
        version=torch.__version__,
        cuda=torch.version.cuda,
        prefix=os.path.realpath(sys.prefix),
        search_path=os.environ.get("LD_LIBRARY_PATH", ""),
        pinned=pinned(),
    )
    tell(libraries=mapped())
    if torch.version.cuda:
        tell(called=called(torch))
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    tell(devices=count)
    tell(matmul=multiply_everywhere(torch, count))


if __name__ == "__main__":
    main()

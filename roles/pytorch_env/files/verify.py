"""Verify that PyTorch is a CUDA build that can be imported and print its versions as JSON; runs in the environment."""

import json
import sys

try:
    import torch
except (ImportError, OSError) as error:  # OSError: a CUDA library that it loads is missing or damaged
    sys.exit(
        f"PyTorch cannot be imported: {error}; expected {sys.executable} to import it: "
        "choose a lock file with all its dependencies"
    )
if not torch.version.cuda:
    sys.exit("found PyTorch without CUDA, expected a CUDA build: make the lock file from the wheel on PyPI")
cudnn = torch.backends.cudnn.version()  # 92600: major * 10000 (cuDNN 8: * 1000) + minor * 100 + patch
unit = 10000 if (cudnn or 0) >= 90000 else 1000
print(
    json.dumps(
        {
            "version": torch.__version__,  # such as 2.15.0+cu130
            "python": f"{sys.version_info.major}.{sys.version_info.minor}",
            "cuda": torch.version.cuda,
            "cudnn": f"{cudnn // unit}.{cudnn % unit // 100}.{cudnn % 100}" if cudnn else None,
            "gpus": torch.cuda.device_count(),
        }
    )
)

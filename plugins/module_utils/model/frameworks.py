# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""The frameworks that get an environment: the one list of them. Used on the managed host and on the controller.

The role of a framework is NAME_env, its link /opt/gpuhost/NAME, its releases catalog/NAME.yml, the worker that trains
with it roles/smoke_train/files/NAME_worker.py.
"""

from __future__ import annotations

import dataclasses
from typing import Any

FOLDER = "/opt/gpuhost"


@dataclasses.dataclass(frozen=True)
class Framework:
    """A framework.

    package: its Python package, as its metadata names it; training_file: the evidence of its training, without .json.
    compile_cache: the environment variable with the directory in which it keeps what it compiles when it runs.
    """

    name: str
    label: str
    package: str
    training_file: str
    compile_cache: str = ""

    @property
    def path(self) -> str:
        """The link to its environment in use."""
        return "%s/%s" % (FOLDER, self.name)


# In the order of plans, checks, trainings and tables.
TENSORFLOW = Framework("tensorflow", "TensorFlow", "tensorflow", training_file="smoke_train")
PYTORCH = Framework(
    "pytorch", "PyTorch", "torch", training_file="smoke_train_pytorch", compile_cache="TRITON_CACHE_DIR"
)
FRAMEWORKS = (TENSORFLOW, PYTORCH)
LABELS = {each.name: each.label for each in FRAMEWORKS}


def paths(options: Any) -> dict[str, str]:
    """Return the path of each framework's environment by the options of a module.

    These are environment_paths and, where a module has it, NAME_path, which was an option of its own before.
    """
    given, own = options.environment_paths, {each.name: each.name + "_path" for each in FRAMEWORKS}
    return {each.name: str(given.get(each.name) or getattr(options, own[each.name], each.path)) for each in FRAMEWORKS}

"""The components, each after those that it depends on, and the order in which their versions are preferred.

The only list of them: a component is a module of this folder, with its `CHOICE` and its part of a host, and a line
here.
"""

from __future__ import annotations

from typing import Any

from ansible_collections.gpuhost.stack.plugins.module_utils.model.components import Components
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components import (
    cuda,
    fabric,
    libraries,
    pytorch,
    tensorflow,
)
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.base import EnvironmentPart, PackagedPart, Part
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.driver import choice as driver
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.driver.part import Driver
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.choices import Choice

COMPONENTS: tuple[tuple[Choice, Part[Any]], ...] = (
    (driver.CHOICE, Driver()),
    (fabric.CHOICE, fabric.Fabric()),
    (cuda.CHOICE, cuda.Cuda()),
    (tensorflow.CHOICE, tensorflow.Tensorflow()),
    (libraries.CUDNN, libraries.Cudnn()),
    (libraries.NCCL, libraries.Nccl()),
    (pytorch.CHOICE, pytorch.Pytorch()),
)
CHOICES = tuple(choice for choice, _part in COMPONENTS)
AFTER = {choice.name: choice.after for choice in CHOICES}
PUBLISHED = {choice.name: choice.published for choice in CHOICES}
# What stands first gets its best version first; what stands in one row is decided together. What is in no row follows.
PREFERENCE = (
    ("tensorflow",),
    ("driver", "fabric", "cuda"),
    ("pytorch",),
    ("cudnn",),
    ("nccl",),
)
ROWS = (
    *PREFERENCE,
    *((choice.name,) for choice in CHOICES if not any(choice.name in row for row in PREFERENCE)),
)
# The other fields of the request by component, with the attributes of the component that they decide.
OPTIONS = {choice.name: choice.options for choice in CHOICES}
# In the order of tables: what consists of packages, then what has an environment.
PACKAGED: tuple[PackagedPart[Any], ...] = tuple(part for _choice, part in COMPONENTS if isinstance(part, PackagedPart))
FRAMEWORKS: tuple[EnvironmentPart[Any], ...] = tuple(
    part for _choice, part in COMPONENTS if isinstance(part, EnvironmentPart)
)
PARTS: tuple[Part[Any], ...] = (*PACKAGED, *FRAMEWORKS)
CATALOG_FILES = {part.name: part.catalog_file for part in PARTS if part.catalog_file}
TRAINING_FILES = {part.name: part.training_file for part in FRAMEWORKS}
NOTHING = Components(dict.fromkeys(part.name for part in PARTS))  # the plan of none of them
BY_NAME = {part.name: part for part in PARTS}

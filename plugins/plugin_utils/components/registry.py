"""The components, in the order of tables. The only list of them: to add one, write its module and add it here."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.base import EnvironmentPart, PackagedPart, Part
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.cuda import Cuda
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.cudnn import Cudnn
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.driver.part import Driver
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.nccl import Nccl
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.pytorch import Pytorch
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.tensorflow import Tensorflow

PARTS: tuple[Part[Any], ...] = (Driver(), Cuda(), Cudnn(), Nccl(), Tensorflow(), Pytorch())
PACKAGED: tuple[PackagedPart[Any], ...] = tuple(part for part in PARTS if isinstance(part, PackagedPart))
FRAMEWORKS: tuple[EnvironmentPart[Any], ...] = tuple(part for part in PARTS if isinstance(part, EnvironmentPart))
TRAINING_FILES = {part.name: part.training_file for part in FRAMEWORKS}
BY_NAME = {part.name: part for part in PARTS}

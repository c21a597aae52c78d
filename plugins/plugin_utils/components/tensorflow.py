"""TensorFlow on a host."""

from __future__ import annotations

from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.base import EnvironmentPart
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.components import TensorflowComponent


class Tensorflow(EnvironmentPart[TensorflowComponent]):
    """TensorFlow in an environment of its own, with CUDA libraries of its wheels or of the system."""

    name = "tensorflow"
    label = "TensorFlow"
    role = "tensorflow_env"
    training_file = "smoke_train"

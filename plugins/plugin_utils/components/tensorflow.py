"""TensorFlow on a host."""

from __future__ import annotations

from ansible_collections.gpuhost.stack.plugins.module_utils.model.frameworks import TENSORFLOW
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.schema import Catalog, TensorflowRelease
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.base import EnvironmentPart
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.components import TensorflowComponent


class Tensorflow(EnvironmentPart[TensorflowComponent]):
    """TensorFlow in an environment of its own, with CUDA libraries of its wheels or of the system."""

    name = TENSORFLOW.name
    label = TENSORFLOW.label
    role = "tensorflow_env"
    training = "smoke training"
    training_file = TENSORFLOW.training_file
    path = TENSORFLOW.path

    def origin(self, planned: TensorflowComponent) -> str:
        """Return the Python, and where the CUDA libraries are from."""
        return f"Python {planned.python}, CUDA of the {planned.cuda_libraries}"

    def releases(self, catalog: Catalog) -> tuple[TensorflowRelease, ...]:
        """Return TensorFlow's releases."""
        return catalog.tensorflow.releases

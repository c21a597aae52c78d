"""Driver, toolkit and TensorFlow together."""

from __future__ import annotations

from ansible_collections.gpuhost.stack.plugins.plugin_utils import versions

from tests.unit.plugin_utils.resolver.resolver_cases import plan


def test_unknown_version_names_neighbours():
    message = plan("ubuntu-22.04", "A100", cuda="12.7")["problems"][0]["message"]
    assert "12.8.0" in message
    assert "12.6.3" in message


def test_system_libraries_select_a_cuda_of_the_wheels_major():
    parts = plan("ubuntu-22.04", "A100", tensorflow_cuda_libraries="system")["components"]
    assert parts["tensorflow"]["cuda_libraries"] == "system"
    assert parts["tensorflow"]["requirements"] == ["tensorflow==2.21.0"]
    assert parts["cuda"]["version"] == "12.9"
    assert versions.major(parts["cudnn"]["version"]) == 9

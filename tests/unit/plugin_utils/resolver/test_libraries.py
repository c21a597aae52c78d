"""cuDNN and NCCL: the builds that fit a toolkit."""

from __future__ import annotations

from tests.unit.plugin_utils.resolver.resolver_cases import codes, picked, plan


def test_nccl_is_built_for_another_minor_where_there_is_no_own_build():
    nccl = plan("ubuntu-24.04", "A100", cuda="12.5")["components"]["nccl"]
    assert nccl["packages"]
    assert not any("+cuda12.5" in p for p in nccl["packages"])


def test_tensorflow_with_system_libraries_needs_cudnn():
    made = plan("ubuntu-22.04", "A100", tensorflow="2.18", tensorflow_cuda_libraries="system", cudnn="none")
    assert codes(made) == ["tensorflow-cudnn-mismatch"]
    assert picked(plan("ubuntu-22.04", "A100", tensorflow_cuda_libraries="system"))["cuda"].startswith("12.")

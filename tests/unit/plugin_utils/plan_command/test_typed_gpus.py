"""The GPUs that a user describes: their names, their numbers, and what is none."""

from __future__ import annotations

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.model.request import PlanInputError
from ansible_collections.gpuhost.stack.plugins.plugin_utils.plan_command.typed_gpus import find_gpu, find_gpus

from tests.unit.frozen_catalog import frozen_catalog


@pytest.mark.parametrize(
    ("text", "pci_id"),
    [
        ("NVIDIA H200", "10de:2335"),
        ("h200", "10de:2335"),
        ("Tesla M60", "10de:13f2"),
        ("M60", "10de:13f2"),
        ("GeForce GTX 1080", "10de:1b80"),
        ("K40c", "10de:1024"),
        ("10DE:2330", "10de:2330"),
        ("B200", "10de:2901"),
        ("K40", "10de:1023"),
        # As lspci prints them, and not one of another size whose name has the same words.
        ("H100 SXM5 80GB", "10de:2330"),
        ("H100 SXM5", "10de:2330"),
        ("H100 SXM5 96GB", "10de:2338"),
        ("H200 SXM", "10de:2335"),
        ("V100 16GB", "10de:1db1"),
        ("GA104M [GeForce RTX 3070 Mobile / Max-Q]", "10de:249d"),
        ("GA106 [GeForce RTX 3060 Lite Hash Rate]", "10de:2501"),
        ("3090", "10de:2204"),  # no 3090 Ti
        # What nvidia-smi prints, by the cards' subsystems.
        ("NVIDIA GH200 480GB", "10de:2342"),
        ("Tesla M40 24GB", "10de:17fd"),
        ("NVIDIA RTX PRO 5000 72GB Blackwell", "10de:2bb3"),
        ("cc:9", "cc:9.0"),
        ("sm_90", "cc:9.0"),
        ("sm120", "cc:12.0"),
    ],
)
def test_gpu_names(text, pci_id):
    assert find_gpu(frozen_catalog(), text).pci_id == pci_id


def test_a_name_that_fits_several_generations_lists_them():
    with pytest.raises(PlanInputError) as caught:
        find_gpu(frozen_catalog(), "RTX 6000")
    assert "NVIDIA RTX 6000 Ada Generation (8.9, 10de:26b1), Quadro RTX 6000 (7.5, 10de:1e30)" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "near"),
    [("H100 SXM", "H100 SXM5 96GB (9.0, 10de:2338)"), ("H1000", "NVIDIA H100 (9.0, 10de:2339)"), ("A6000 Ada", "6000")],
)
def test_a_name_that_does_not_exist_lists_what_is_like_it(text, near):
    with pytest.raises(PlanInputError, match="Did you mean ") as caught:
        find_gpu(frozen_catalog(), text)
    assert near in str(caught.value)


@pytest.mark.parametrize("text", ["8xH200", "8x H200", "8 x NVIDIA H200", "8\u00d7H200", "8x10de:2335"])
def test_a_number_of_gpus(text):
    found = find_gpus(frozen_catalog(), text)
    assert [gpu.pci_id for gpu in found] == ["10de:2335"] * 8


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("8 NVIDIA H200", "did you mean '8xNVIDIA H200'?"),
        ("H200 (4)", "did you mean 4xH200?"),
        ("RTX 4090*2", "did you mean '2xRTX 4090'?"),
        ("H200 and 2xA100-PCIE-40GB", "did you mean --gpu H200 --gpu 2xA100-PCIE-40GB?"),
        ("1000xH200", "found 1000 GPUs; expected 1 to 999 of a kind"),
        ("0x2335", "found half of a PCI id; did you mean 10de:2335?"),
        ("8086:56c0", "is the PCI id of another vendor"),
        ("Radeon RX 7900 XTX", "is of AMD; expected a GPU of NVIDIA"),
        ("Gaudi 3", "is of Intel; expected a GPU of NVIDIA"),
        ("Jetson AGX Orin", "is a Jetson, whose driver and CUDA are those of its JetPack"),
        ("HGX B200", "is a machine; expected its GPUs, such as --gpu 8xB200"),
        ("DGX-2", "is a machine; expected its GPUs, such as --gpu 8xH100"),
        ("H200 1g.18gb", "is a part of a GPU; expected the whole one, such as --gpu H200"),
    ],
)
def test_what_is_no_name_of_a_gpu(text, answer):
    with pytest.raises(PlanInputError) as caught:
        find_gpus(frozen_catalog(), text)
    assert answer in str(caught.value)

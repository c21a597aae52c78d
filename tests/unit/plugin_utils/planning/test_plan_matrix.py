"""The support table: rows, reasons, and that the documents are up to date with the catalog."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import io
import itertools
import re
from pathlib import Path

import pytest
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.architectures import supported
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.catalogs import load_catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.user_request import asking
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.plans import resolve
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.host import Host, HostGpu
from ansible_collections.gpuhost.stack.plugins.plugin_utils.plan_command import plan_cli, typed_gpus
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning import plan_matrix
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.plan_matrix import GENERATIONS

from tests.unit.frozen_catalog import FROZEN_FOLDER, frozen_catalog

PROJECT = Path(__file__).parents[4]


def command(*arguments):
    """What script/plan prints for the frozen catalog."""
    out = io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan_cli, "CATALOG_FOLDER", FROZEN_FOLDER)
        assert plan_cli.main(arguments, out, io.StringIO()) == 0
    return out.getvalue()


@pytest.fixture(scope="module")
def table():
    return command("--matrix")


@pytest.mark.parametrize(("capability", "examples"), [generation[1:] for generation in GENERATIONS])
def test_the_gpus_of_the_table_can_be_typed(capability, examples):
    """README names them, so a newcomer's first --gpu is one of them."""
    catalog = load_catalog()
    generations = {c: a.name for a in catalog.gpu.architectures for c in a.compute_capabilities}
    for name in examples.split(", "):
        product = catalog.products[typed_gpus.find_gpu(catalog, name).pci_id.removeprefix("10de:")]
        assert product.architecture == generations[capability], name


def section(table, distribution):
    """The cells of a distribution release by GPU generation and compute capability."""
    text = re.search(rf"### {re.escape(distribution)}\n(.*?)(?=\n### |\Z)", table, re.DOTALL).group(1)
    lines = [[c.strip() for c in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("| ")]
    return {line[0].split(" (")[0]: line[1:] for line in lines[2:]}


def test_every_release_and_generation_has_a_row(table):
    for distribution in frozen_catalog().distros:
        assert len(section(table, distribution)) == len(GENERATIONS)


@pytest.mark.parametrize(
    ("distribution", "gpu", "cells"),
    [
        ("ubuntu-22.04", "Hopper 9.0", ["595 open", "13.2", "9.28.0", "2.29.7", "TensorFlow 2.21.0", "3.10"]),
        ("ubuntu-22.04", "Kepler 3.5", ["470 proprietary", "11.8", "8.7.0", "2.16.2", "TensorFlow 2.14.1", "3.10"]),
        ("debian-12", "Maxwell 5.2", ["580 proprietary", "12.9", "9.10.2", "-", "TensorFlow 2.16.2", "3.11"]),
        (
            "ubuntu-26.04",
            "Volta 7.0",
            ["580 proprietary", "12.4 (archive)", "-", "-", "PyTorch 2.14.1, CUDA 12.6", "3.14"],
        ),
    ],
)
def test_rows(table, distribution, gpu, cells):
    assert section(table, distribution)[gpu] == cells


def test_a_row_without_a_framework_has_a_reason():
    rows = list(plan_matrix.rows(load_catalog()))
    families = plan_matrix.families(load_catalog()).values()
    served = sum(len(supported(load_catalog(), distribution)) for distribution, *_others in families)
    assert len(rows) == served * len(GENERATIONS)
    for row in rows:
        parts = row.plan.components
        has_framework = row.plan.ok and (parts["tensorflow"] or parts["pytorch"]) is not None
        assert bool(row.reason) != has_framework, (row.distribution, row.generation)


def test_another_architecture_has_a_section_of_what_it_has_a_plan_for():
    table = plan_matrix.matrix(load_catalog())
    hopper = section(table, "ubuntu-24.04 on aarch64")["Hopper 9.0"]
    assert hopper[0].endswith(" open")
    assert hopper[4].startswith("PyTorch 2.")
    assert "Volta 7.0" not in section(table, "ubuntu-24.04 on aarch64")
    assert "on aarch64" not in plan_matrix.support(load_catalog())


def test_a_family_of_distributions_has_one_section_and_is_not_in_the_short_form():
    table = plan_matrix.matrix(load_catalog())
    assert section(table, "el-9")["Hopper 9.0"][0].endswith(" open")
    assert "almalinux-9, centos-9, rhel-9, rocky-9. Python 3.12" in table
    assert "### rocky-9" not in table
    assert "el-" not in plan_matrix.support(load_catalog()).splitlines()[0]


def test_the_other_short_form_has_what_the_first_leaves_out():
    """Each once; those with the same plans share a column."""
    lines = plan_matrix.elsewhere(load_catalog()).splitlines()
    columns = lines[0].strip("| ").split(" | ")[1:]
    assert "el-9 (x86_64)" in columns
    assert len([column for column in columns if "ubuntu-24.04" in column and "(aarch64)" in column]) == 1
    assert not [column for column in columns if "ubuntu-24.04" in column and "x86_64" in column]
    cells = [[line.strip("| ").split(" | ")[number] for line in lines[2:]] for number in range(1, len(columns) + 1)]
    assert len({tuple(column) for column in cells}) == len(columns)


def test_the_plans_of_a_family_differ_in_nothing_that_the_table_has():
    catalog = load_catalog()
    for first, *others in plan_matrix.families(catalog).values():
        for architecture, (_name, capability, _examples) in itertools.product(supported(catalog, first), GENERATIONS):
            gpu = HostGpu(f"cc:{capability}", compute_capability=capability)
            plans = [
                resolve(catalog, asking(tensorflow="none"), Host(d, architecture, (gpu,))) for d in (first, *others)
            ]
            assert len({tuple(component.version for component in p.components.packaged()) for p in plans}) == 1


def test_the_command_prints_the_short_form():
    lines = command("--matrix", "short").splitlines()
    assert lines[0] == f"| driver/CUDA/TensorFlow | {' | '.join(frozen_catalog().distros)} |"
    assert len(lines) == 2 + len(GENERATIONS)


def script_docs():
    """script/docs as a module."""
    loader = importlib.machinery.SourceFileLoader("script_docs", str(PROJECT / "script" / "docs"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("script_docs", loader))
    loader.exec_module(module)
    return module


def test_generated_parts_are_replaced_between_their_markers(tmp_path):
    document = tmp_path / "README.md"
    document.write_text("before\n<!-- support -->\nold\n<!-- end -->\nafter\n")
    fresh = script_docs().render(document)
    assert "old" not in fresh
    assert "| Hopper (H100, H200) |" in fresh
    document.write_text(fresh)
    assert script_docs().render(document) == fresh
    assert fresh.startswith("before\n<!-- support -->\n")
    assert fresh.endswith("<!-- end -->\nafter\n")

"""Every TensorFlow row against its own wheel: METADATA and file lists captured from the package index."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base import versions
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.catalogs import load_catalog

FIXTURE = Path(__file__).parents[3] / "fixtures" / "plan" / "tensorflow_metadata.json"
CAPTURED = json.loads(FIXTURE.read_text())["releases"]
ROWS = {r.version: r for r in load_catalog().tensorflow.releases}


def test_every_release_of_the_index_has_a_row_and_the_other_way_round():
    assert {c["version"] for c in CAPTURED} == set(ROWS)


@pytest.mark.parametrize("captured", CAPTURED, ids=[c["version"] for c in CAPTURED])
def test_row(captured):
    row = ROWS[captured["version"]]
    assert row.package == captured["package"]
    assert list(row.pythons) == captured["pythons"]
    if captured["requires_python"]:
        assert all(versions.satisfies(p, captured["requires_python"]) for p in row.pythons)
    name, version, python = captured["file"].split("-")[:3]
    assert (name.replace("_", "-"), version) == (row.package, row.version)
    assert f"{python[2]}.{python[3:]}" == row.pythons[-1], "the newest wheel is the one that was captured"
    assert captured["file"].endswith("x86_64.whl")
    _check_extra(row, captured["and_cuda"])


def _check_extra(row, lines):
    found = dict(re.fullmatch(r"([A-Za-z0-9-]+)\s*\(?([^)]*)\)?", line).groups() for line in lines)
    if not found:
        assert row.and_cuda is None
        return
    major = row.and_cuda.cuda_major
    assert found[f"nvidia-cudnn-cu{major}"] == row.and_cuda.cudnn
    assert found[f"nvidia-nccl-cu{major}"] == row.and_cuda.nccl
    assert {int(m.group(1)) for n in found if (m := re.search(r"-cu(\d+)$", n))} == {major}

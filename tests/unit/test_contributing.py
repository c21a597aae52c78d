"""CONTRIBUTING.md: its examples are entries of the catalog. README.md: it stays short."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]


EXAMPLES = re.findall(
    r"```yaml\n# (catalog/\S+?\.yml)(?:: (\w+))?\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL
)


README_WORDS = 900  # a first page that is read to its end; everything else is in docs/


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().split()) <= README_WORDS


def test_contributing_shows_each_kind_of_release():
    assert [(file, key) for file, key, _ in EXAMPLES] == [
        ("catalog/cuda.yml", "toolkits"),
        ("catalog/tensorflow.yml", "releases"),
        ("catalog/driver.yml", "branches"),
        ("catalog/distro/debian-13.yml", ""),
    ]


@pytest.mark.parametrize(("file", "key", "example"), EXAMPLES, ids=[file for file, _, _ in EXAMPLES])
def test_contributing_shows_the_catalog_as_it_is(file, key, example):
    shown, real = yaml.safe_load(example), yaml.safe_load((ROOT / file).read_text())
    if key:
        assert all(entry in real[key] for entry in shown), f"CONTRIBUTING.md: copy the example again from {file}"
    else:
        assert {name: real[name] for name in shown} == shown, f"CONTRIBUTING.md: copy the example again from {file}"

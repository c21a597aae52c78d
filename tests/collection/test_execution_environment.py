"""What ansible-builder makes of the definition in meta/execution-environment.yml, and of the installed collection."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import yaml

from tests.collection.conftest import PROJECT, checked

META = PROJECT / "meta/execution-environment.yml"


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the newest ansible-builder, in an environment of its own."""
    place = tmp_path_factory.mktemp("builder")
    checked(sys.executable, "-m", "venv", str(place), cwd=place)
    checked(str(place / "bin/pip"), "install", "--quiet", "ansible-builder", cwd=place)
    return str(place / "bin/ansible-builder")


def test_the_definition_in_the_comment_makes_a_containerfile(builder: str, tmp_path: Path) -> None:
    shown = re.findall(r"^#   (.*)$", META.read_text(), re.MULTILINE)
    (tmp_path / "execution-environment.yml").write_text("\n".join(shown) + "\n")
    checked(builder, "create", "--output-filename", "Containerfile", cwd=tmp_path)
    made = (tmp_path / "context/Containerfile").read_text()
    runtime = yaml.safe_load((PROJECT / "meta/runtime.yml").read_text())["requires_ansible"].replace(".0", "")
    assert f"ansible-core{runtime}" in made
    collections = yaml.safe_load((tmp_path / "context/_build/requirements.yml").read_text())["collections"]
    assert [entry["type"] for entry in collections] == ["git"]


def test_the_collection_asks_for_what_a_controller_needs(builder: str, installed: Path, tmp_path: Path) -> None:
    checked(builder, "introspect", str(installed), "--write-pip", "pip.txt", "--sanitize", cwd=tmp_path)
    asked = {line.split()[0] for line in (tmp_path / "pip.txt").read_text().splitlines()}
    needed = [(PROJECT / f"requirements/{name}.in").read_text() for name in ("control", "bootstrap")]
    named = set(re.findall(r"^[a-z][a-z-]*", "\n".join(needed), re.MULTILINE))
    assert asked == named - {"ansible-core"}

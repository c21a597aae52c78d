"""The release of this code: that of galaxy.yml in a clone, that of the manifest in an installed collection."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import yaml
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base import release

PROJECT = Path(__file__).resolve().parents[4]


def test_a_clone_has_the_release_of_its_galaxy_yml() -> None:
    assert release.version() == yaml.safe_load((PROJECT / "galaxy.yml").read_text())["version"]


def test_an_installed_collection_has_the_release_of_its_manifest(tmp_path: Path) -> None:
    """As ansible-galaxy installs it: MANIFEST.json, and no galaxy.yml."""
    root = tmp_path / "ansible_collections/gpuhost/stack"
    folder = root / "plugins/plugin_utils/base"
    folder.mkdir(parents=True)
    for name in ("release.py", "paths.py"):
        (folder / name).write_text((PROJECT / "plugins/plugin_utils/base" / name).read_text())
    (root / "MANIFEST.json").write_text(json.dumps({"collection_info": {"version": "7.1.2"}}))
    code = "from ansible_collections.gpuhost.stack.plugins.plugin_utils.base import release; print(release.version())"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "7.1.2"


def test_the_scenario_upgrade_starts_from_the_newest_release_of_the_changelog() -> None:
    releases = yaml.safe_load((PROJECT / "changelogs/changelog.yaml").read_text())["releases"]
    newest = max(releases, key=lambda text: [int(part) for part in text.split(".")])
    (built,) = (PROJECT / "tests/fixtures/releases").glob("*.tar.gz")
    with tarfile.open(built) as archive:
        manifest = json.load(archive.extractfile("MANIFEST.json") or pytest.fail(f"no MANIFEST.json in {built}"))
    assert manifest["collection_info"]["version"] == newest

"""What the tools say by which collections are judged. No test of theirs is ignored."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.collection.conftest import PROJECT, call, checked

# ansible-test of ansible-core 2.19 downloads get_pip_24_2.py to install pip; the interpreter brings a pip of its own.
GET_PIP = "import ensurepip\nensurepip.bootstrap()\n"


@pytest.fixture(scope="module")
def tree(tarball: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the collection as a git checkout below ansible_collections, as ansible-test requires it."""
    place = tmp_path_factory.mktemp("tree") / "ansible_collections/gpuhost/stack"
    place.mkdir(parents=True)
    checked("tar", "-xzf", str(tarball), cwd=place)  # extractall has no filter in Debian 12's Python 3.11.2
    checked("git", "init", "--quiet", ".", cwd=place)
    checked("git", "add", "--all", cwd=place)
    return place


def test_sanity(tools: Path, tree: Path, tmp_path: Path) -> None:
    assert not list(tree.glob("tests/sanity/ignore*"))
    cache = tmp_path / ".ansible/test/cache"
    cache.mkdir(parents=True)
    (cache / "get_pip_24_2.py").write_text(GET_PIP)
    python = subprocess.run(
        [tools / "python", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"], capture_output=True, text=True
    ).stdout.strip()
    path = f"{tools}:/usr/bin:/bin"
    command = [str(tools / "ansible-test"), "sanity", "--requirements", "--python", python, "--color", "no"]
    answer = call(*command, cwd=tree, HOME=str(tmp_path), PATH=path, PYTHONPYCACHEPREFIX="")
    assert answer.returncode == 0, "\n".join(
        line for line in (answer.stdout + answer.stderr).splitlines() if line.startswith(("ERROR", "FATAL"))
    )


def test_documentation(tools: Path, tree: Path) -> None:
    command = [str(tools / "antsibull-docs"), "lint-collection-docs", "--plugin-docs", "--skip-rstcheck", str(tree)]
    answer = call(*command, cwd=tree, PATH=f"{tools}:/usr/bin:/bin")
    assert answer.returncode == 0, answer.stdout + answer.stderr


def test_changelog(tools: Path) -> None:
    answer = call(str(tools / "antsibull-changelog"), "lint", cwd=PROJECT, PATH=f"{tools}:/usr/bin:/bin")
    assert answer.returncode == 0, answer.stdout + answer.stderr


def test_galaxy_importer(tools: Path, tree: Path, tmp_path: Path) -> None:
    """galaxy-importer requires the project's URL, which does not exist yet: an example URL is set."""
    source = tmp_path / "source"
    shutil.copytree(tree, source, ignore=shutil.ignore_patterns(".git", "MANIFEST.json", "FILES.json"))
    galaxy = yaml.safe_load((PROJECT / "galaxy.yml").read_text())
    (source / "galaxy.yml").write_text(yaml.safe_dump({**galaxy, "repository": "https://example.org/gpuhost/stack"}))
    path = f"{tools}:/usr/bin:/bin"
    checked(str(tools / "ansible-galaxy"), "collection", "build", "--output-path", str(tmp_path), cwd=source, PATH=path)
    (built,) = tmp_path.glob("*.tar.gz")
    config = tmp_path / "importer.cfg"
    config.write_text("[galaxy-importer]\nRUN_ANSIBLE_TEST=False\nCHECK_REQUIRED_TAGS=True\nCHECK_CHANGELOG=True\n")
    command = [str(tools / "python"), "-m", "galaxy_importer.main", str(built)]
    output = checked(*command, cwd=tmp_path, GALAXY_IMPORTER_CONFIG=str(config), PATH=path, HOME=str(tmp_path))
    assert "Importer processing completed successfully" in output
    assert re.findall(r"^(?:WARNING|ERROR).*", output, re.MULTILINE) == []

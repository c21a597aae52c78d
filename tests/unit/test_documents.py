"""The documents: links lead somewhere, and generated parts name the files that they come from."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import io
import re
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.declared import declared, of_request
from ansible_collections.gpuhost.stack.plugins.plugin_utils.plan_command import plan_cli

PROJECT = Path(__file__).resolve().parents[2]
DOCUMENTS = [
    *(PROJECT / name for name in ("README.md", "CONTRIBUTING.md", "benchmarks/peer/README.md")),
    *sorted(PROJECT.glob("docs/**/*.md")),
    *sorted(PROJECT.glob("roles/*/README.md")),
]
IDS = [str(path.relative_to(PROJECT)) for path in DOCUMENTS]
LINK = re.compile(r"\]\((?!https?:)([^)\s]+)\)")
GENERATED = re.compile(r"<!-- ([a-z][\w /-]*) -->\n(.*)\n")
SOURCE = re.compile(r"<!-- Generated from (.+) by script/docs -->")


def prose(path: Path) -> str:
    """Return a document without its blocks of code."""
    return re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)


def anchors(path: Path) -> set[str]:
    """Return the anchors of a document: GitHub's of its headings, and its own."""
    heads = re.findall(r"^#+ (.*)$", prose(path), re.MULTILINE)
    made = {re.sub(r"[^\w -]", "", head.strip().lower()).replace(" ", "-") for head in heads}
    return made | set(re.findall(r'<a id="([\w.-]+)">', path.read_text()))


@pytest.mark.parametrize("path", DOCUMENTS, ids=IDS)
def test_links_lead_to_files_and_headings(path: Path) -> None:
    broken = []
    for target in LINK.findall(prose(path)):
        file, _, anchor = target.partition("#")
        there = (path.parent / file).resolve() if file else path
        if not there.exists() or (anchor and (there.suffix != ".md" or anchor not in anchors(there))):
            broken.append(target)
    assert broken == []


def test_there_are_links_in_most_documents() -> None:
    """Otherwise the test above would find nothing to try."""
    assert sum(len(LINK.findall(prose(path))) for path in DOCUMENTS) > 150
    assert "what-auto-keeps" in anchors(PROJECT / "docs/changing.md")


# The folders that the documents write paths from.
ROOTS = [
    *(PROJECT / name for name in ("", "plugins", "plugins/plugin_utils", "plugins/module_utils", "playbooks")),
    PROJECT / "playbooks/group_vars/all",
    *PROJECT.glob("roles/*"),
]


@pytest.mark.parametrize("path", DOCUMENTS, ids=IDS)
def test_files_that_the_text_names_exist(path: Path) -> None:
    named = re.findall(r"`([a-z_]+/[\w./-]*\.(?:csv|cu|jsonl|md|py|txt|yml))`", prose(path))
    missing = [name for name in named if not any((root / name).exists() for root in ROOTS)]
    assert [name for name in missing if Path(name).stem != "NAME"] == []


def parts() -> list[tuple[Path, str, str]]:
    """Return document, marker and the line below it of each generated part."""
    return [
        (path, marker, line)
        for path in DOCUMENTS
        for marker, line in GENERATED.findall(path.read_text())
        if marker != "end"
    ]


def script_docs() -> ModuleType:
    """Return script/docs as a module."""
    loader = importlib.machinery.SourceFileLoader("script_docs", str(PROJECT / "script/docs"))
    spec = importlib.util.spec_from_loader("script_docs", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def test_each_generated_part_names_the_files_it_comes_from() -> None:
    assert len(parts()) > 40
    unnamed = [f"{path.name}: {marker}" for path, marker, line in parts() if not SOURCE.fullmatch(line)]
    assert unnamed == []
    for path, marker, line in parts():
        named = re.findall(r"[\w.-]+/[\w./-]*", line.removesuffix("by script/docs -->"))
        assert named, f"{path.name}: {marker} names no file"
        assert [name for name in named if not (PROJECT / name).exists()] == [], f"{path.name}: {marker}"


def test_an_unknown_marker_is_refused(tmp_path: Path) -> None:
    document = tmp_path / "page.md"
    document.write_text("<!-- mesured -->\nold\n<!-- end -->\n")
    with pytest.raises(ValueError, match=r"page\.md: unknown marker <!-- mesured -->; expected one of check links, "):
        script_docs().render(document)


def test_every_kind_of_generated_part_is_in_a_document() -> None:
    known = script_docs().PARTS
    used = {marker if marker in known else marker.partition(" ")[0] for _, marker, _ in parts()}
    assert used == set(known)


def test_each_question_of_the_index_has_its_heading_with_the_answer_below() -> None:
    page = (PROJECT / "docs/README.md").read_text()
    asked = re.findall(r"^- \[(.*\?)\]\(#", page, re.MULTILINE)
    answers = dict(re.findall(r"^### (.*)\n\n(.+)", page, re.MULTILINE))
    assert list(answers) == asked
    assert len(asked) == 10
    assert {question: text for question, text in answers.items() if text.startswith("#")} == {}


def test_variables_in_the_answers_of_the_index_exist_and_their_versions_can_be_planned() -> None:
    blocks = re.findall(r"^```yaml\n(.*?)^```", (PROJECT / "docs/README.md").read_text(), re.DOTALL | re.MULTILINE)
    specs = [yaml.safe_load(path.read_text()) for path in (PROJECT / "roles").glob("*/meta/argument_specs.yml")]
    roles = {name for spec in specs for name in spec["argument_specs"]["main"].get("options", {})}
    assert len(blocks) > 3
    for values in map(yaml.safe_load, blocks):
        assert [name for name in values if name not in declared() and name not in roles] == []
        request = [f"{name.removeprefix('gpu_stack_')}={value}" for name, value in values.items()]
        options = [word for each in request if each.partition("=")[0] in of_request() for word in ("--request", each)]
        assert plan_cli.main(["--distro", "ubuntu-24.04", "--gpu", "H100", *options], io.StringIO()) == 0, values


@pytest.mark.parametrize(
    ("cuda", "oldest", "older"), [("13.0", "580.65.06", "575.57.08"), ("12.8", "525.60.13", "520.61.05")]
)
def test_the_oldest_drivers_in_the_documents_are_those_that_the_resolver_accepts(
    cuda: str, oldest: str, older: str
) -> None:
    """On a host that keeps its driver."""
    page = (PROJECT / "docs/compatibility.md").read_text()
    assert f"\n| {cuda} | {oldest} | " in page
    host = ("--distro", "ubuntu-24.04", "--gpu", "A100", "--request", "driver=none", "--request", f"cuda={cuda}")
    for loaded, status in ((oldest, 0), (older, 1)):
        out = io.StringIO()
        assert plan_cli.main([*host, "--request", "tensorflow=none", "--loaded-driver", loaded], out) == status
        assert ("driver-too-old-for-cuda" in out.getvalue()) == bool(status), out.getvalue()

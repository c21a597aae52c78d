"""script/catalog-check: output and exit status."""

from __future__ import annotations

import dataclasses
import io
import json
import subprocess
import zipfile
from pathlib import Path

import pytest
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.catalogs import load_catalog

from tests.unit.frozen_catalog import frozen_catalog
from tests.unit.tools.catalog.captured import WHEELS, metadata, release, replace_entries, short, text
from tools.catalog import cli, comparison, live_sources
from tools.catalog.comparison import Finding
from tools.catalog.live_sources import Answer, SourceUnreachable

ROOT = Path(__file__).resolve().parents[4]

ONE = Finding("nvidia", "new", "cuda.yml toolkits", "absent", "99.1.0 in ubuntu2404")


def run(monkeypatch, findings=(), unreachable=(), arguments=()):
    def compare(catalog, distro, index):
        return list(findings) if distro.id == "ubuntu-24.04" else []

    def index(catalog, distro, machine):
        if distro.id in unreachable:
            raise SourceUnreachable(f"{distro.nvidia_repository.slug}: no route to host")

    monkeypatch.setattr(comparison, "compare_nvidia", compare)
    monkeypatch.setattr(live_sources, "nvidia_index", index)
    out, err = io.StringIO(), io.StringIO()
    status = cli.main(["--only", "nvidia", *arguments], out, err)
    return status, out.getvalue(), err.getvalue()


@pytest.mark.parametrize(
    ("findings", "unreachable", "arguments", "status"),
    [
        ([], [], [], 0),
        ([ONE], [], [], 1),
        ([], ["debian-12"], [], 3),
        ([], ["debian-12"], ["--offline-ok"], 0),
        ([ONE], ["debian-12"], [], 1),
        ([ONE], ["debian-12"], ["--offline-ok"], 1),
    ],
    ids=["same", "differs", "away", "away-ok", "both", "both-ok"],
)
def test_exit_status(monkeypatch, findings, unreachable, arguments, status):
    assert run(monkeypatch, findings, unreachable, arguments)[0] == status


@pytest.mark.parametrize("arguments", [["--only", "npm"], ["--frob"], ["--only", "nvidia", "more"]])
def test_bad_usage(arguments, capsys):
    assert cli.main(arguments) == 2
    assert "script/catalog-check --help explains the options" in capsys.readouterr().err


def test_an_architecture_is_compared_with_its_own_sources(monkeypatch):
    """Its repositories, its archives' names, and its wheels; a release that does not serve it is left out."""
    asked = []
    monkeypatch.setattr(comparison, "compare_nvidia", lambda *_: [])
    monkeypatch.setattr(
        live_sources, "nvidia_index", lambda catalog, distro, machine: asked.append((distro.id, machine))
    )
    assert cli.main(["--only", "nvidia", "--arch", "aarch64"], io.StringIO(), io.StringIO()) == 0
    assert ("debian-12", "aarch64") in asked
    assert "ubuntu-20.04" not in dict(asked)
    words: list[str] = []

    def pip(command, *_):
        words.extend(command)
        return Answer(0, '{"versions": []}', "")

    live_sources.pip_versions(["pip"], "torch", "3.12", pip, "aarch64")
    assert "manylinux_2_28_aarch64" in words
    assert not any("x86_64" in word for word in words)
    mirror = live_sources.Mirror("bookworm", {"": "http://mirror.example/debian"}, "")
    assert "[arch=arm64]" in live_sources.sources_list(mirror, "bookworm", ["main"], "arm64")


def test_output(monkeypatch):
    _, out, err = run(monkeypatch, [ONE, ONE], ["debian-12"])
    assert "nvidia: index of debian12\n" in err
    assert "nvidia  new  cuda.yml toolkits\n    catalog: absent\n    live:    99.1.0 in ubuntu2404\n" in out
    assert "nvidia  not reached: debian12: no route to host\n" in out
    assert out.endswith("1 differences, 1 not reached\n")
    made = json.loads(run(monkeypatch, [ONE], ["debian-12"], ["--json"])[1])
    assert made["findings"] == [dataclasses.asdict(ONE)]
    assert made["unreachable"] == [{"source": "nvidia", "reason": "debian12: no route to host"}]
    assert "nvidia: ubuntu2404" in made["compared"]


def test_one_line_of_the_catalog_is_reported_once():
    other = dataclasses.replace(ONE, observed="99.1.0 in debian13")
    assert short(cli.merged([ONE, other, ONE])) == [
        ("new", "cuda.yml toolkits", "absent", "99.1.0 in ubuntu2404; 99.1.0 in debian13")
    ]


def test_tensorflow_is_compared(monkeypatch):
    """The whole way from pip's answers to the findings, with one release changed in the catalog."""
    wrong = dataclasses.replace(release("2.19.1"), pythons=("3.12",), and_cuda=None)
    catalog = replace_entries(frozen_catalog(), "tensorflow", "releases", [release("2.21.0"), wrong])
    monkeypatch.setattr(live_sources, "find_pip", lambda: ["pip"])
    monkeypatch.setattr(live_sources, "pip_versions", lambda pip, name, python, **_more: WHEELS.get(python, ()))
    monkeypatch.setattr(live_sources, "pip_metadata", lambda pip, name, version, python, machine: metadata(version))
    result = cli.check(catalog, ["tensorflow"], lambda line: None)
    assert [(f.kind, f.where) for f in result.findings] == [
        ("differs", "tensorflow.yml releases[2.19.1].pythons"),
        ("differs", "tensorflow.yml releases[2.19.1].and_cuda"),
        ("new", "tensorflow.yml releases"),
    ]
    assert result.findings[-1].observed == "tensorflow 2.20.0"


def test_a_pytorch_release_is_confirmed_by_its_own_metadata_alone(monkeypatch):
    """One release is wrong, the METADATA of another is not reached, and the versions of cuDNN are not listed."""
    catalog = load_catalog()
    known = {r.version: r for r in catalog.pytorch.releases if r.version in ("2.9.1", "2.14.1", "2.13.0")}
    known["2.9.1"] = dataclasses.replace(known["2.9.1"], pythons=("3.12",))
    catalog = replace_entries(catalog, "pytorch", "releases", known.values())

    def listed(pip, name, python, **_more):
        if name != "torch":
            raise SourceUnreachable(f"{name}: no route to host")
        return tuple(version for version in known if python in pythons[version])

    def wheel(pip, name, version, python, machine):
        if version == "2.13.0":
            raise SourceUnreachable(f"{name} {version}: no route to host")
        return live_sources.parse_report(json.loads(text(f"report-torch-{version}.json")))

    pythons = {r.version: r.pythons for r in load_catalog().pytorch.releases}
    monkeypatch.setattr(live_sources, "find_pip", lambda: ["pip"])
    monkeypatch.setattr(live_sources, "pip_versions", listed)
    monkeypatch.setattr(live_sources, "pip_metadata", wheel)
    verdicts, result = cli.deep(catalog, ["pytorch", "pypi"], 1, lambda line: None)
    found = {verdict.entry: verdict.verdict for verdict in verdicts}
    assert {version: found[f"pytorch.yml releases[{version}]"] for version in known} == {
        "2.9.1": "contradicted",
        "2.14.1": "confirmed",
        "2.13.0": "trusted",
    }
    assert "torch 2.13.0: no route to host" in [u.reason for u in result.unreachable]
    assert {found[entry] for entry in found if entry.startswith("cudnn.yml versions")} == {"trusted"}


def test_an_index_that_lists_nothing_is_not_taken_for_an_empty_one(monkeypatch):
    monkeypatch.setattr(live_sources, "find_pip", lambda: ["pip"])
    monkeypatch.setattr(live_sources, "pip_versions", lambda pip, name, python, **_more: ())
    result = cli.check(frozen_catalog(), ["tensorflow", "pytorch", "pypi"], lambda line: None)
    assert result.findings == []
    assert {u.source for u in result.unreachable} == {"tensorflow", "pytorch", "pypi"}


PTXAS = "#!/bin/sh\necho \"--gpu-name <gpu name>\"\necho \"  Allowed values for this option:  'sm_90','sm_100'.\"\n"


def test_a_wheel_that_cannot_be_read_leaves_the_others_compared(monkeypatch):
    """One toolkit's wheel is away; the compilers of the others are compared all the same."""
    catalog = frozen_catalog()
    here, away = [toolkit.version for toolkit in catalog.cuda.toolkits][-2:]

    def wheel(url):
        if url == away:
            raise SourceUnreachable(f"{url}: no route to host")
        made = io.BytesIO()
        with zipfile.ZipFile(made, "w") as archive:
            archive.writestr(
                "nvidia/include/crt/host_config.h", "#if __GNUC__ > 14\n#error gcc versions later than 14\n"
            )
            archive.writestr("nvidia/bin/ptxas", PTXAS)
        return made

    found = metadata("2.21.0")
    monkeypatch.setattr(live_sources, "find_pip", lambda: ["pip"])
    monkeypatch.setattr(live_sources, "pip_versions", lambda pip, name, python, **_more: (f"{here}.1", f"{away}.1"))
    monkeypatch.setattr(
        live_sources,
        "pip_metadata",
        lambda pip, name, version, python, machine: dataclasses.replace(found, url=version.rpartition(".")[0]),
    )
    monkeypatch.setattr(live_sources, "open_wheel", wheel)
    verdicts, result = cli.deep(catalog, ["compilers"], 1, lambda line: None)
    assert [(u.source, u.reason) for u in result.unreachable] == [("compilers", f"{away}: no route to host")]
    compared = {verdict.entry for verdict in verdicts if verdict.verdict != "trusted"}
    assert any(f"[{here}]" in entry for entry in compared)
    assert not any(f"[{away}]" in entry for entry in compared)


def test_the_script():
    done = subprocess.run([ROOT / "script/catalog-check", "--help"], capture_output=True, text=True)
    assert (done.returncode, "--offline-ok" in done.stdout) == (0, True)

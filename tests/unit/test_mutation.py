"""Tier `mutation`: which changes it makes, and how it tells those that tests notice from the others."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests import runner
from tests.mutation import __main__ as mutation
from tests.mutation.areas import AREAS, Area
from tests.mutation.operators import mutants

PROJECT = Path(__file__).resolve().parents[2]


def changed(source: str) -> set[str]:
    """Return the mutants of a source, as text."""
    return {mutant.apply(source.encode()).decode() for mutant in mutants("x.py", source.encode())}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("a < b", {"a <= b", "a >= b"}),
        ("a is not b", {"a is b"}),
        ("a  not in  b", {"a  in  b"}),
        ("0 <= a < b", {"1 <= a < b", "0 < a < b", "0 > a < b", "0 <= a <= b", "0 <= a >= b"}),
        ("(a) and (b or c)", {"(a) or (b or c)", "(a) and (b and c)"}),
        ("x = not (a)", {"x =  (a)"}),
        ("a + b | c", {"a - b | c", "a + b & c"}),
        ("[a] + b", set()),
        ("x = 'ä b'; y = 'ä' == c", {"x = 'ä b'; y = 'XXä' == c", "x = 'ä b'; y = 'ä' != c"}),
        ("f'{a == b}'", set()),
        ("def f(a: 'int') -> 'x y':\n    'Text.'", set()),
        (
            "x = 1 if a else True",
            {"x = 2 if a else True", "x = 1 if a else False"}
            | {f"x = 1 if {test} else True" for test in ("True", "False")},
        ),
        ("while a:\n    break", {"while False:\n    break", "while a:\n    continue"}),
        ("[a for a in b if a]", {"[a for a in b if True]", "[a for a in b if False]"}),
        ("raise A", {"pass"}),
        ("a.b = f(\n    c)", {"pass"}),
        ("a += min(b)", {"pass", "a += max(b)"}),
        ("a.startswith(b)", {"a.endswith(b)", "pass"}),
        ("x = (1.5, False)", {"x = (3.0, False)", "x = (1.5, True)", "x = (1.5,)", "x = (False,)"}),
        ("if __name__ == '__main__':\n    a()", set()),
    ],
)
def test_changes(source, expected):
    assert changed(source.strip()) - {"x = a.startswith(b)"} == {text.strip() for text in expected}


@pytest.mark.parametrize("area", sorted(mutation.AREAS))
def test_every_area_has_files_and_tests(area):
    sources = mutation.AREAS[area].sources(PROJECT)
    assert sources
    assert [path for path in mutation.AREAS[area].tests if not (PROJECT / "tests/unit" / path).exists()] == []


@pytest.mark.parametrize(
    ("module", "tests"),
    [
        ("plugins/x/own.py", ["x/test_own.py"]),
        ("roles/r/files/verify.py", ["roles/r/test_verify.py"]),
        ("plugins/x/shared.py", ["x/test_a.py", "x/test_b.py", "x/test_c.py"]),
        ("plugins/y/shared.py", ["test_far.py"]),
        ("plugins/x/of_others.py", []),
    ],
    ids=["its own file", "of a role", "at most three, the nearest", "another folder's", "that no test imports"],
)
def test_the_nearest_tests_of_a_module(monkeypatch, tmp_path, module, tests):
    collection = "ansible_collections.gpuhost.stack.plugins"
    for name, text in {
        "x/test_own.py": "",
        "roles/r/test_verify.py": "",
        "test_all.py": f"import {collection}.x.shared",
        "test_far.py": f"from {collection}.y.shared import f",
        "x/test_a.py": f"from {collection}.x import shared",
        "x/test_b.py": f"def test():\n    from {collection}.x.shared import f",
        "x/test_c.py": f"from {collection} import x\nimport {collection}.x.shared as s",
        "x/test_d.py": f"from {collection}.x import unshared  # x.shared",
    }.items():
        (tmp_path / "tests/unit" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tests/unit" / name).write_text(text)
    monkeypatch.setattr(mutation, "PROJECT", tmp_path)
    assert mutation.nearest_tests(module) == [f"tests/unit/{name}" for name in tests]


def test_the_tool_starts_as_the_tier_starts_it(monkeypatch, tmp_path):
    """Without a mutant: nothing was tested, which is no success."""
    command = runner.Step.command
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.setattr(runner, "RESULTS", tmp_path)
    monkeypatch.setattr(runner.Step, "command", lambda step, *words, **v: command(step, *words, "--mutants=0", **v))
    step = runner.Step("mutation", runner.lint)
    found = runner.run_area(step, "training")
    assert "seed" in found, step.log.read_text()
    assert (found["passed"], found["failed"]) == (0, 1)
    assert "no mutant was tested" in step.log.read_text()


def test_every_accepted_survivor_is_a_mutant_and_has_a_reason():
    accepted = mutation.accepted()
    functions, known = {(file, function) for file, function, *_ in accepted}, set()
    for path in {file for file, *_ in accepted}:
        source = (PROJECT / path).read_bytes()
        known |= {m.key(source) for m in mutants(path, source) if (path, m.function) in functions}
    assert [key for key in accepted if key not in known] == []
    assert all(len(reason) > 20 for reason in accepted.values())


MODULE = """\
def positive(number):
    return number > 0
"""
TESTS = {
    "strong": "assert module.positive(1) and not module.positive(0) and not module.positive(-1)",
    "weak": "assert module.positive(2)",
}


@pytest.fixture
def project(monkeypatch, tmp_path):
    """Return a project of one module, whose mutants the tool tests."""
    if subprocess.run(
        [*mutation.NAMESPACE, "mount", "-n", "-t", "tmpfs", "none", "/mnt"], capture_output=True
    ).returncode:
        pytest.skip("this user may not create mount namespaces")
    folder = tmp_path / "project"
    for name, text in {
        "plugins/module.py": MODULE,
        "tests/unit/test_module.py": "",
        "tests/mutation/survivors.yml": "[]\n",
        "pyproject.toml": "[tool.pytest.ini_options]\npythonpath = ['plugins']\n",
        ".gitignore": ".cache\n__pycache__\n",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    monkeypatch.setattr(mutation, "PROJECT", folder)
    monkeypatch.setattr(mutation, "CACHE", folder / ".cache/mutation")
    monkeypatch.setattr(mutation, "ACCEPTED", folder / "tests/mutation/survivors.yml")
    monkeypatch.setattr(mutation, "AREAS", {"all": Area(("plugins/*.py",), ("test_module.py",))})
    monkeypatch.setattr(mutation, "limits", lambda copy, areas: dict.fromkeys(areas, 300.0))
    return folder


def run_tool(monkeypatch, folder, *options):
    """Run the tool and return its exit status and counts."""
    monkeypatch.setattr(sys, "argv", ["mutation", "--jobs=1", f"--json={folder}.json", *options])
    status = mutation.main()
    return status, json.loads(Path(f"{folder}.json").read_text())


def test_a_change_that_a_test_notices_is_killed(monkeypatch, project, capsys):
    (project / "tests/unit/test_module.py").write_text(f"import module\n\n\ndef test():\n    {TESTS['strong']}\n")
    status, counts = run_tool(monkeypatch, project, "--seed=3", "--mutants=2")
    assert (status, counts["finished"], counts["seed"], counts["killed"]) == (0, True, 3, 2)
    status, counts = run_tool(monkeypatch, project, "--seed=3")
    assert (status, counts["killed"], counts["survived"]) == (0, 3, [])
    assert (project / "plugins/module.py").read_text() == MODULE


def test_changed_code_can_write_to_a_directory_of_its_own_alone(project, tmp_path):
    """A mutant that removes or writes more than the code does must not reach this machine."""
    kept = tmp_path / "kept"
    kept.write_text("as it was")
    test = f"""
        import pathlib, pytest
        def test(tmp_path):
            (tmp_path / "file").write_text("x")
            for path in (pathlib.Path({str(kept)!r}), pathlib.Path(__file__)):
                with pytest.raises(OSError, match="Read-only"):
                    path.unlink()
    """
    (project / "tests/unit/test_module.py").write_text(textwrap.dedent(test))
    passed, output = mutation.Copy(project).passes(["tests/unit/test_module.py"])
    assert passed, output
    assert kept.read_text() == "as it was"
    assert not mutation.Copy(project).passes(["tests/unit/test_module.py"], sandbox=False)[0]


def test_a_test_that_does_not_end_kills(project):
    (project / "tests/unit/test_module.py").write_text("import time\n\n\ndef test():\n    time.sleep(600)\n")
    assert mutation.Copy(project).passes(["tests/unit/test_module.py"], 2) == (False, "timeout")


def test_survivors_fail_the_tier_and_a_second_run_goes_on(monkeypatch, project, capsys):
    (project / "tests/unit/test_module.py").write_text(f"import module\n\n\ndef test():\n    {TESTS['weak']}\n")
    status, counts = run_tool(monkeypatch, project, "--minutes=0", "--mutants=100")
    assert (status, counts["finished"], counts["killed"]) == (3, False, 0)
    status, counts = run_tool(monkeypatch, project, "--mutants=100")
    assert (status, counts["finished"]) == (1, True)
    output = capsys.readouterr().out
    assert "-    return number > 0\n+    return number >= 0\nsurvived: not in tests/mutation/survivors.yml" in output
    monkeypatch.setattr(mutation.Copy, "test", None)  # nothing is tested twice
    (project / "tests/mutation/survivors.yml").write_text(
        '[{file: plugins/module.py, function: positive, was: return number > 0, becomes: "return number >= 0",'
        " reason: no caller has a zero}]"
    )
    status, again = run_tool(monkeypatch, project, "--mutants=100")
    assert (status, again["killed"], again["seconds"]) == (1, counts["killed"], counts["seconds"])
    assert "plugins/module.py: positive: return number >= 0: no caller has a zero" in again["survived"]


def test_the_tests_must_pass_without_a_mutant(monkeypatch, project):
    monkeypatch.undo()
    monkeypatch.setattr(mutation, "AREAS", {"all": Area((), ("test_module.py",))})
    (project / "tests/unit/test_module.py").write_text("def test():\n    assert False\n")
    with pytest.raises(SystemExit, match="the tests of all fail without a mutant"):
        mutation.limits(mutation.Copy(project), {"all"})


@pytest.mark.parametrize(
    ("finished", "enough", "failed"), [(True, True, 0), (True, False, 1), (False, False, 0)], ids=str
)
def test_an_area_is_recorded_when_all_of_its_mutants_were_tested(monkeypatch, tmp_path, finished, enough, failed):
    counts = {"finished": finished, "killed": 9, "survived": ["one: equivalent"], "seed": 5, "seconds": 7}
    asked = {}

    def command(step, *words, **variables):
        if words[0] == "script/bootstrap":
            return True
        asked[words[3]] = set(variables)
        (tmp_path / "mutation.json").write_text(json.dumps(counts))
        return finished and enough

    monkeypatch.setattr(runner, "RESULTS", tmp_path)
    monkeypatch.setattr(runner, "LEDGER", tmp_path / "ledger.jsonl")
    monkeypatch.setattr(runner, "clean_commit", lambda: "a1b2")
    monkeypatch.setattr(runner.Step, "command", command)
    (step,) = runner.run_tier("mutation", 1)
    assert step.finished is finished
    assert (len(runner.ledger_lines()), len(asked)) == ((len(AREAS), len(AREAS)) if finished else (0, 1))
    if finished:
        python = {"GPUHOST_TENSORFLOW_PYTHON", "GPUHOST_PYTORCH_PYTHON"}
        assert {area for area, variables in asked.items() if variables == python} == {"checks"}
        line = runner.ledger_lines()[0]
        assert (line["area"], line["seed"], line["seconds"]) == (next(iter(AREAS)), 5, 7)
        assert (line["passed"], line["failed"], line["skipped"]) == (9, failed, 1)
        assert (step.failed > 0) is not enough


@pytest.mark.parametrize("works", [[], ["script/bootstrap"]], ids=["no framework", "no counts"])
def test_a_tool_that_ends_without_counts_fails_its_area(monkeypatch, tmp_path, works):
    asked = []

    def command(step, *words, **_):
        asked.append(words[0])
        return words[0] in works

    monkeypatch.setattr(runner, "RESULTS", tmp_path)
    monkeypatch.setattr(runner.Step, "command", command)
    assert runner.run_area(runner.Step("mutation", runner.lint), "checks")["failed"] == 1
    assert asked == ["script/bootstrap", *(["python"] if works else [])]

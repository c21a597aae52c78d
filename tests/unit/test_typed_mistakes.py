"""The mistakes of tests/fixtures/typed_mistakes.yml, typed where people type them, get the documented messages."""

from __future__ import annotations

import io
import json
import re
import shlex
import textwrap
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.gpuhost.stack.plugins.plugin_utils.plan_command import plan_cli

from tests.unit.ansible_runs import INTERPRETER, Done, run_playbook

PROJECT = Path(__file__).resolve().parents[2]
ROWS: dict[str, list[dict[str, str]]] = yaml.safe_load((PROJECT / "tests/fixtures/typed_mistakes.yml").read_text())
HOST = ["--distro", "ubuntu-24.04", "--gpu", "H200"]


def typed(kind: str) -> Any:
    return pytest.mark.parametrize("row", ROWS[kind], ids=[row["typed"].splitlines()[0] for row in ROWS[kind]])


def has(output: str, answer: str) -> bool:
    """Return whether an output has an answer in it, whose `...` stand for any text; white space makes no difference."""
    parts = [r"\s+".join(map(re.escape, part.split())) for part in answer.split("...")]
    return re.search(r"(?s:.*?)".join(parts), output) is not None


def playbook(folder: Path, inventory: str, *words: str) -> Done:
    (folder / "hosts.yml").write_text(inventory)
    settings = {"GPUHOST_REPORTS": str(folder / "reports"), "COLUMNS": "2000"}
    return run_playbook(PROJECT, "playbooks/plan.yml", "-i", folder / "hosts.yml", *words, **settings)


def test_there_are_at_least_sixty() -> None:
    assert sum(len(rows) for rows in ROWS.values()) >= 60


@typed("plan")
def test_arguments_of_script_plan(row: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    arguments = shlex.split(row["typed"])
    missing = [*([] if "--distro" in arguments else HOST[:2]), *([] if "--gpu" in arguments else HOST[2:])]
    out, err = io.StringIO(), io.StringIO()
    plan_cli.main([*missing, *arguments], out, err)
    answer = out.getvalue() + err.getvalue() + capsys.readouterr().err
    assert has(answer, row["answer"]), answer


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What one run says of each row, typed as the variables of a host of its own in one inventory, by its evidence."""
    folder = tmp_path_factory.mktemp("variables")
    hosts = [
        f"    row{number}:\n" + textwrap.indent(row["typed"], "      ") for number, row in enumerate(ROWS["variables"])
    ]
    inventory = "gpu_hosts:\n  vars: {ansible_connection: local, gpu_stack_expect_gpus: 0}\n  hosts:\n" + "\n".join(
        hosts
    )
    ran = playbook(folder, inventory + "\n", *INTERPRETER, "--forks", "2")
    found = {}
    for path in folder.glob("reports/2*/row*"):
        texts = []
        for name in ("failure", "plan"):
            if (path / f"{name}.json").exists():
                kept = json.loads((path / f"{name}.json").read_text())
                texts += [kept["message"]] if name == "failure" else [w["message"] for w in kept["warnings"]]
        found[path.name] = "\n".join(texts)
    assert len(found) == len(ROWS["variables"]), ran.stdout + ran.stderr
    return found


@pytest.mark.parametrize(
    "number", range(len(ROWS["variables"])), ids=[r["typed"].split("\n")[0] for r in ROWS["variables"]]
)
def test_variables_of_a_host(answers: dict[str, str], number: int) -> None:
    assert has(answers[f"row{number}"], ROWS["variables"][number]["answer"]), answers[f"row{number}"]


@typed("inventory")
def test_inventories_without_hosts(tmp_path: Path, row: dict[str, str]) -> None:
    ran = playbook(tmp_path, row["typed"] + "\n")
    assert ran.returncode != 0
    assert has(ran.stdout + ran.stderr, row["answer"]), ran.stdout + ran.stderr
    assert "TASK" not in ran.stdout

"""Text for people stays out of output for programs."""

from __future__ import annotations

import pytest
from ansible_collections.gpuhost.stack.plugins.plugin_utils.report import terminal


@pytest.mark.parametrize(
    "name", ["default", "gpuhost.stack.progress", "ansible.builtin.default", "community.general.yaml", "minimal"]
)
def test_output_for_people_is_shared(name: str) -> None:
    assert not terminal.belongs_on_stderr(name)


@pytest.mark.parametrize(
    "name", ["json", "ansible.posix.json", "ansible.posix.jsonl", "community.general.null", "my.own.one"]
)
def test_any_other_output_is_left_alone(name: str) -> None:
    assert terminal.belongs_on_stderr(name)


@pytest.mark.parametrize(
    ("shown_as", "printed"), [("", ["a", "b", "c"]), ("log", ["a", "c"])], ids=["another callback", "ours"]
)
def test_progress_is_printed_if_it_has_changed_and_not_too_often(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], shown_as: str, printed: list[str]
) -> None:
    now = [100.0]
    monkeypatch.setattr(terminal.time, "monotonic", lambda: now[0])
    monkeypatch.setenv(terminal.SHOWN_AS, shown_as)
    monkeypatch.setattr(terminal.constants, "DEFAULT_STDOUT_CALLBACK", terminal.CALLBACK)
    progress = terminal.HostProgress("gpu1")
    for seconds, text in ((0, "a"), (5, "b"), (10, "b"), (30, "b"), (61, ""), (62, "c")):
        now[0] = 100 + seconds
        progress.update(text)
    assert capsys.readouterr().out.splitlines() == [f"gpu1: {text}" for text in printed]


def test_processes_of_hosts_know_the_columns_of_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """They have none of their own."""
    assert terminal.width() == 80
    monkeypatch.setenv(terminal.COLUMNS, "132")
    assert terminal.width() == 132


def test_a_run_within_a_run_prints_its_plans_as_its_own_callback_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(terminal.SHOWN_AS, "log")  # of the outer run
    monkeypatch.setattr(terminal.constants, "DEFAULT_STDOUT_CALLBACK", "default")
    assert not terminal.prints_plans()
    monkeypatch.setattr(terminal.constants, "DEFAULT_STDOUT_CALLBACK", terminal.CALLBACK)
    assert terminal.prints_plans()

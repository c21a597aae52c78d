"""playbooks/tasks/plot_monitor.yml under the real ansible-playbook, with and without Matplotlib."""

from pathlib import Path

import pytest
from ansible_collections.gpuhost.stack.plugins.plugin_utils.report import plots

from tests.unit.ansible_runs import Done, printed, run_play

PROJECT = Path(__file__).resolve().parents[3]
PLAY = f"""
- hosts: localhost
  gather_facts: false
  tasks:
    - ansible.builtin.include_tasks: {PROJECT}/playbooks/tasks/plot_monitor.yml
      vars:
        plot_monitor_csv: "{{{{ playbook_dir }}}}/host/monitor.csv"
        plot_monitor_directory: "{{{{ playbook_dir }}}}/reports"
"""


def plot(folder: Path, *words: str, blocked: bool = True) -> Done:
    """Fetch and plot a recording of one sample in `folder`; Matplotlib cannot be imported if `blocked`."""
    (folder / "host").mkdir()
    readings = [column for column, *_ in plots.READINGS]
    rows = [["seconds", "mark", "gpu", *readings], ["0.0", "during", "0", *("1" for _ in readings)]]
    (folder / "host/monitor.csv").write_text("".join(",".join(row) + "\n" for row in rows))
    for suffix in ("processes", "errors"):
        (folder / f"host/monitor-{suffix}.csv").write_text("seconds\n")
    (folder / "modules").mkdir()
    if blocked:
        (folder / "modules/matplotlib.py").write_text("raise ImportError('no Matplotlib here')\n")
    return run_play(folder, PLAY, *words, PYTHONPATH=str(folder / "modules"))


def test_a_training_keeps_its_recording_and_warns(tmp_path):
    """A failure here would roll back a configuration that passed its checks and its training."""
    done = plot(tmp_path, "-e", "plot_monitor_errors=warn")
    output = printed(done)
    assert done.returncode == 0, output
    assert "no Matplotlib here" in output
    assert (tmp_path / "reports/monitor.csv").exists()
    assert not (tmp_path / "reports/monitor.svg").exists()


def test_the_monitor_fails(tmp_path):
    done = plot(tmp_path)
    assert done.returncode == 2
    assert "no Matplotlib here" in done.stdout + done.stderr


def test_with_matplotlib_the_recording_is_drawn(tmp_path):
    pytest.importorskip("matplotlib", reason="the environment of script/bootstrap has it")
    done = plot(tmp_path, "-e", "plot_monitor_errors=warn", blocked=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "<svg" in (tmp_path / "reports/monitor.svg").read_text()


def test_training_warns_and_needs_no_directory_for_results():
    text = (PROJECT / "playbooks/tasks/train.yml").read_text()
    assert "plot_monitor_errors: warn\n" in text
    assert "and lookup('ansible.builtin.env', 'GPUHOST_RUN') is truthy" in text

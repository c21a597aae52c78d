"""docs/slurm.md has the scripts and lines that the tier `slurm` runs; each option of gpuhost-verify is documented."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.verdict import command_line, slurm

PROJECT = Path(__file__).resolve().parents[2]
FILES = PROJECT / "molecule/slurm/files"
PAGE = (PROJECT / "docs/slurm.md").read_text()


@pytest.mark.parametrize("name", ["health_check.sh", "prolog.sh"])
def test_the_scripts_are_those_that_were_tested(name: str) -> None:
    assert f"`/etc/slurm/{name}`:\n\n```text\n{(FILES / name).read_text()}```\n" in PAGE


def test_the_lines_of_slurm_conf_are_those_that_were_tested() -> None:
    """But for the interval, which is shorter in the lab."""
    tested = (FILES / "slurm.conf").read_text().partition("# gpuhost\n")[2].partition("# end\n")[0]
    lines = re.sub(r"(HealthCheckInterval)=5\n", r"\1=300\n", tested)
    assert "HealthCheckInterval=300" in lines
    assert f"```ini\n{lines}```\n" in PAGE


def test_every_option_is_in_the_documents(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command_line.parse(["--help"])
    options = set(re.findall(r"--[a-z-]+", capsys.readouterr().out)) - {"--help"}
    assert len(options) == 7
    usage = (PROJECT / "docs/usage.md").read_text()
    assert [option for option in sorted(options) if f"`{option}" not in usage] == []


def test_scontrol_is_looked_for_where_the_page_says() -> None:
    places = re.findall(r"`(/[\w/]+/bin)`", re.findall(r"it is also looked for in (.+)", PAGE)[0])
    assert len(places) == 2
    assert set(places) <= set(slurm.PLACES)

"""Filters that make and print the report of a run. Controller side; thin wrappers around plugin_utils/report.py."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleFilterError
from ansible_collections.gpuhost.stack.plugins.plugin_utils import report


def read_evidence(folder: Path) -> dict[str, dict[str, Any]]:
    """Evidence by host from `<folder>/<host>/<part>.json`; a missing part is left out, a broken one is an error."""
    hosts: dict[str, dict[str, Any]] = {}
    for path in sorted(item for item in folder.iterdir() if item.is_dir()):
        parts = {part: path / f"{part}.json" for part in report.EVIDENCE}
        hosts[path.name] = {name: json.loads(file.read_text()) for name, file in parts.items() if file.exists()}
    return hosts


def report_summary(run: Any, name: str = "") -> dict[str, Any]:
    """report.json's content; `run` is a run's folder or the evidence by host."""
    if isinstance(run, Mapping):
        return report.summary(name or "of given evidence", run)
    folder = Path(str(run))
    try:
        return report.summary(name or folder.name, read_evidence(folder))
    except (OSError, ValueError) as error:
        raise AnsibleFilterError(
            f"gpuhost.stack.report_summary: {error}; expected the folder of a run, reports/<run>, with a folder of "
            "JSON evidence for each host. Run playbooks/gpu_host.yml to make one."
        ) from error


def _printed(printer: Any, name: str, summary: Any) -> str:
    try:
        return str(printer(summary))
    except (KeyError, TypeError) as error:
        raise AnsibleFilterError(
            f"gpuhost.stack.{name}: expected the result of gpuhost.stack.report_summary, could not read {error}"
        ) from error


def report_markdown(summary: Any) -> str:
    """report.md's content."""
    return _printed(report.markdown, "report_markdown", summary)


def report_table(summary: Any) -> str:
    """The summary for a terminal."""
    return _printed(report.table, "report_table", summary)


class FilterModule:
    """The filters."""

    def filters(self) -> dict[str, Any]:
        """Names and functions."""
        return {
            "report_summary": report_summary,
            "report_markdown": report_markdown,
            "report_table": report_table,
        }

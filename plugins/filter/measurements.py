# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0 OR GPL-3.0-or-later
# Apache License 2.0, or GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
"""Filters for measurements: tables (plugin_utils/report/measurements.py), and the name of a host's folder for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ansible.errors import AnsibleFilterError
from ansible_collections.gpuhost.stack.plugins.module_utils.model.records import RecordError
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base.escaping import for_file_name, for_terminal
from ansible_collections.gpuhost.stack.plugins.plugin_utils.report import measurements

_Table = Callable[[Any], list[str]]


def _filter(name: str, table: _Table, expected: str) -> _Table:
    """Return the filter `name`, which reports data of another kind as an error of the template."""

    def apply(data: Any) -> list[str]:
        try:
            return [for_terminal(line) for line in table(data)]
        except (RecordError, KeyError) as error:
            raise AnsibleFilterError(f"gpuhost.stack.{name}: expected {expected}: {error}") from error

    return apply


class FilterModule:
    """The filters by name."""

    def filters(self) -> dict[str, Callable[[Any], Any]]:
        """Return the filters; called by Ansible."""
        return {
            "host_folder": lambda host: for_file_name(str(host)),
            "monitor_table": _filter("monitor_table", measurements.monitor_table, "a summary of gpu_monitor.py"),
            "benchmark_table": _filter(
                "benchmark_table", measurements.benchmark_table, "a result of matmul_benchmark.py"
            ),
        }

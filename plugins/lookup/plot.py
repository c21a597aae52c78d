# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0 OR GPL-3.0-or-later
# Apache License 2.0, or GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
"""Draw files of measurements on the controller, with plugin_utils/report/plots.py."""

from __future__ import annotations

DOCUMENTATION = r"""
name: plot
short_description: Draw files of measurements as SVG
version_added: "0.1.0"
author: gpuhost contributors (!UNKNOWN)
description:
  - Reads files on the controller and returns one SVG document for each. Writes nothing.
  - Needs Matplotlib, which is imported when this lookup runs and by nothing else.
options:
  _terms:
    description:
      - The kind of plot, then the files.
      - "V(monitor): CSV files of C(gpu_monitor.py), all readings of all GPUs over time."
      - "V(benchmark): JSON results of C(matmul_benchmark.py), time and rate over size."
      - "V(scaling): JSON results of C(smoke_train.py --scaling), images per second and efficiency over the replicas."
    required: true
  title:
    description: Title above the plot.
    type: str
    default: ""
"""

EXAMPLES = r"""
- name: Draw the recording
  ansible.builtin.copy:
    content: "{{ lookup('gpuhost.stack.plot', 'monitor', 'reports/monitor.csv', title=inventory_hostname) }}"
    dest: reports/monitor.svg
    mode: "0644"
  delegate_to: localhost
"""

RETURN = r"""
_raw:
  description: SVG documents, one for each file.
  type: list
  elements: str
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleLookupError
from ansible.plugins.lookup import LookupBase
from ansible_collections.gpuhost.stack.plugins.plugin_utils.report import measurements, plots


def _data(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


KINDS: dict[str, Callable[[Path, str], str]] = {
    "monitor": lambda path, title: plots.monitor(measurements.recording(path), title),
    "benchmark": lambda path, title: plots.benchmark(_data(path), title),
    "scaling": lambda path, title: plots.scaling(_data(path)["scaling"], title),
}


def draw(terms: list[Any], title: str = "") -> list[str]:
    """Return an SVG document for each file; terms: the kind of plot, then the files.

    Raises AnsibleLookupError for another kind, without a file, and for a file that cannot be read or drawn.
    """
    if len(terms) < 2 or str(terms[0]) not in KINDS:
        raise AnsibleLookupError(
            f"gpuhost.stack.plot: found {[str(term) for term in terms]}, expected one of {', '.join(KINDS)} and a file"
        )
    documents = []
    for term in terms[1:]:
        try:
            documents.append(KINDS[str(terms[0])](Path(str(term)), title))
        except (OSError, ValueError, KeyError, TypeError) as error:
            reason = f"{type(error).__name__} {error}" if isinstance(error, (KeyError, TypeError)) else str(error)
            raise AnsibleLookupError(f"gpuhost.stack.plot: cannot draw {term} as {terms[0]}: {reason}") from error
    return documents


class LookupModule(LookupBase):
    """The lookup `gpuhost.stack.plot`."""

    def run(self, terms: Any, variables: dict[str, Any] | None = None, **kwargs: Any) -> list[str]:
        """Return the documents; called by Ansible."""
        self.set_options(var_options=variables, direct=kwargs)
        return draw(list(terms), self.get_option("title"))

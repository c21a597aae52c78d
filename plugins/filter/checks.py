# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0 OR GPL-3.0-or-later
# Apache License 2.0, or GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
"""Offer the filter `failed_checks`: why a host is not verified, as the text of a failure. Runs on the controller."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpuhost.stack.plugins.module_utils.checks import model
from ansible_collections.gpuhost.stack.plugins.module_utils.model.outcomes import TABLE
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base.escaping import for_terminal
from ansible_collections.gpuhost.stack.plugins.plugin_utils.report import causes, verdict
from ansible_collections.gpuhost.stack.plugins.plugin_utils.report.evidence import HostEvidence


def failed_checks(verify: Any, probe: Any = None, plan: Any = None, diff: Any = None) -> str:
    """Return why a host is not verified, for a terminal; with what was found before, symptoms are only counted."""
    host = HostEvidence.from_json({"probe": probe, "plan": plan, "diff": diff, "verify": verify})
    checks = host.verify.checks if host.verify else ()
    symptoms = [check.id for check in checks if causes.symptom_of("verify", check, host)]
    own = {**verify, "checks": [check for check in verify["checks"] if check["id"] not in symptoms]}
    is_explained = symptoms and all(TABLE[check["status"]].verifies for check in own["checks"])
    lines = [*verdict.symptom_lines(host), *([] if is_explained else [model.failure_message(own)])]
    return for_terminal("\n".join(lines))


class FilterModule:
    """The filters."""

    def filters(self) -> dict[str, Any]:
        """Return the filters by name."""
        return {"failed_checks": failed_checks}

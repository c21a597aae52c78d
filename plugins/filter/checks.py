# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0 OR GPL-3.0-or-later
# Apache License 2.0, or GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
"""Offer the filter `failed_checks`: why a host is not verified, as the text of a failure. Runs on the controller."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpuhost.stack.plugins.module_utils.checks import model
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base.escaping import for_terminal


class FilterModule:
    """The filters."""

    def filters(self) -> dict[str, Any]:
        """Return the filters by name."""
        return {"failed_checks": lambda evidence: for_terminal(model.failure_message(evidence))}

# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Compare the version that a host has with the planned one. Runs on the managed host."""

from __future__ import annotations


def is_version(found: str, planned: str) -> bool:
    """Return whether `found` is the planned version or extends it: 535.309.01 is 535, but 13.20 is not 13.2."""
    return found == planned or (found.startswith(planned) and not found[len(planned)].isalnum())

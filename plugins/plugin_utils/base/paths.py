# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""The directory of the project, a clone or the installed collection. Imports the standard library alone."""

from __future__ import annotations

from pathlib import Path

PROJECT = Path(__file__).resolve().parents[3]

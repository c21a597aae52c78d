"""Requests of tests, read as those of users are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.gpuhost.stack.plugins.module_utils.model.request import Request
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs import user_request

from tests.unit.frozen_catalog import frozen_catalog


def requested(values: Mapping[str, Any]) -> Request:
    """Return the request for variables without `gpu_stack_`, and the defaults of the others."""
    reading = user_request.read(values, frozen_catalog())
    assert not reading.errors, reading.errors
    return reading.request

# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Write records as JSON at the edge of a process. Used on the managed host and on the controller, which reads them."""

from __future__ import annotations

import dataclasses
from typing import Any, Mapping

# Metadata of a field with the default None: in that case its key is absent from the JSON, and not null.
OMITTED = {"omitted": True}


def to_json(value: Any) -> Any:
    """Return dataclasses, mappings and sequences, however nested, as dicts and lists.

    The key of a field is its name, or `key` of its metadata. A named tuple is a list.
    """
    if dataclasses.is_dataclass(value):
        found = {}
        for field in dataclasses.fields(value):
            item = getattr(value, field.name)
            if item is not None or not field.metadata.get("omitted"):
                found[field.metadata.get("key", field.name)] = to_json(item)
        return found
    if isinstance(value, Mapping):
        return {key: to_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(item) for item in value]
    return value

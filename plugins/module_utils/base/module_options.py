# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""The options of an Ansible module as one typed object: its argument_spec follows from the fields. Runs on the host.

An option without a default is required. What the specification of an option has besides what its field says, such as
choices or the type `path`, is in the field's metadata (`option`). A test compares the specification with DOCUMENTATION,
which ansible-doc prints and which cannot be read here: a host's Python may have no YAML.
"""

from __future__ import annotations

import dataclasses
import os
import typing
from typing import Any, Dict, List, Mapping, Optional, Type, TypeVar

Options = TypeVar("Options")
_TYPES: Dict[Any, str] = {
    str: "str", bool: "bool", int: "int", float: "float", Any: "raw", Dict[str, Any]: "dict",
}  # fmt: skip
_MISSING = dataclasses.MISSING
# What types are written with. ansible-lint runs a module that sys.modules does not have, where they are not found.
_NAMES = {"Any": Any, "Dict": Dict, "List": List, "Optional": Optional}


def option(value: Any = _MISSING, **specification: Any) -> Any:
    """Return the field of an option that has more in its specification than type and default, which is `value`.

    With `required` False, or with `default` None, the module itself says that the option is missing: its action plugin
    gives it, or another option decides whether it is needed.
    """
    metadata = {"specification": specification}
    if isinstance(value, (list, dict)):
        return dataclasses.field(default_factory=value.copy, metadata=metadata)  # pylint: disable=invalid-field-call
    return dataclasses.field(default=value, metadata=metadata)  # pylint: disable=invalid-field-call


def argument_spec(options: Type[Any]) -> Dict[str, Dict[str, Any]]:
    """Return the argument_spec of AnsibleModule for a class of options."""
    types = typing.get_type_hints(options, localns=_NAMES)
    return {field.name: _specification(field, types[field.name]) for field in dataclasses.fields(options)}


def read(options: Type[Options], params: Mapping[str, Any]) -> Options:
    """Return a module's options; one that was not given has its field's default, if any.

    Parameters that are none of the options, such as those of a file, stay where they are. The option `environment` sets
    variables of this process and of the programs that it starts.
    """
    fields = dataclasses.fields(options)  # type: ignore[arg-type]
    given = [field.name for field in fields if params[field.name] is not None or not _has_default(field)]
    found = options(**{name: params[name] for name in given})
    os.environ.update({name: str(value) for name, value in getattr(found, "environment", {}).items()})
    return found


def _has_default(field: Any) -> bool:
    return field.default is not _MISSING or field.default_factory is not _MISSING


def _specification(field: Any, kind: Any) -> Dict[str, Any]:
    if type(None) in getattr(kind, "__args__", ()):
        (kind,) = (inner for inner in kind.__args__ if inner is not type(None))
        is_optional = True
    else:
        is_optional = False
    if getattr(kind, "__origin__", None) is list:
        (element,) = kind.__args__
        found: Dict[str, Any] = {"type": "list", "elements": _TYPES[element]}
    else:
        found = {"type": _TYPES[kind]}
    default = field.default if field.default_factory is _MISSING else field.default_factory()
    if default is _MISSING:
        found["required"] = not is_optional
    elif default is not None:
        found["default"] = default
    found.update(field.metadata.get("specification", {}))
    return {
        name: value for name, value in found.items() if (name, value) not in (("required", False), ("default", None))
    }

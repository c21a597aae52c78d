"""What the roles of this project list in their vars/main.yml, for the plays around them, as templates.

Lists whose names end in RESOURCES are what the module `apply` writes, those in WRITTEN paths that other tasks write.
MANAGED is what else a role has on a host, by kind, and TRANSACTION the options of package_transaction. Runs on the
controller; role_values.py renders them.
"""

from __future__ import annotations

import functools
from itertools import chain
from typing import Any, NamedTuple

from ansible.template import trust_as_template
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base.paths import PROJECT
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.loader import load_yaml
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.parts.fingerprints import RESOURCES

WRITTEN, MANAGED, TRANSACTION = "_written", "_managed", "_transaction"


def trusted(value: Any) -> Any:
    """Return what a role's file has, as templates."""
    if isinstance(value, dict):
        return {name: trusted(each) for name, each in value.items()}
    if isinstance(value, list):
        return [trusted(each) for each in value]
    return trust_as_template(value) if isinstance(value, str) else value


class File(NamedTuple):
    """What is at a path that a role lists: names of files in it, None where it is one itself; whether it is secret."""

    path: str
    names: Any = None
    is_secret: bool = False


class Role(NamedTuple):
    """What a role lists, as templates, and the variables that these need; transaction: the options of one."""

    files: list[File]
    managed: dict[str, Any]
    transaction: dict[str, Any]
    defaults: dict[str, Any]
    variables: dict[str, Any]


@functools.cache
def roles() -> dict[str, Role]:
    """Return what each role lists."""
    found: dict[str, Role] = {}
    for path in sorted((PROJECT / "roles").glob("*/vars/main.yml")):
        own, defaults = trusted(load_yaml(path)), path.parents[1] / "defaults" / "main.yml"
        listed = list(chain(*(values for name, values in own.items() if name.endswith(RESOURCES))))
        alternatives = [each["alternative"] for each in listed if "alternative" in each]
        listed = [each for each in listed if "path" in each]
        files = [File(each["path"], each.get("names"), bool(each.get("secret"))) for each in listed]
        files += [File(each) for name, values in own.items() if name.endswith(WRITTEN) for each in values]
        (managed,) = [values for name, values in own.items() if name.endswith(MANAGED)] or [{}]
        managed |= {"alternatives": alternatives} if alternatives else {}
        (transaction,) = [values for name, values in own.items() if name.endswith(TRANSACTION)] or [{}]
        if files or managed or transaction:
            found[path.parents[1].name] = Role(files, managed, transaction, trusted(load_yaml(defaults)), own)
    return found

"""The base of actions that refuse wrong variables before anything is done on a host."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from datetime import date
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail, AnsibleError
from ansible.plugins.action import ActionBase
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base.spelling import counted
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.loader import CatalogError
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.catalogs import load_catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning import variables as variables_
from ansible_collections.gpuhost.stack.plugins.plugin_utils.report import live

# What a value may need that exists later: the plan (the hint of facts.yml), and facts that a play gathers.
LATER = ("this play needs the plan of the same run", "ansible_facts")

CLAIM = ".refused-"  # how files in the directory of a run begin that say which host was refused first

variables_.role_options()  # Ansible imports this file before it forks a process for each host


def refusal(mistakes: list[str]) -> str:
    """Return all mistakes in the variables of a host for a terminal, one a line."""
    listed = "".join(f"\n- {mistake}" for mistake in mistakes)
    number = counted(len(mistakes), "mistake")
    return f"{number} in the variables; nothing was changed. Correct the inventory or -e:{listed}"


def first_with(text: str, host: str) -> str:
    """Return the first host of this run that was refused with a text: this one, or another that another process judged.

    Without a directory of the run each is the first.
    """
    folder = os.environ.get("GPUHOST_RUN")
    if not folder:
        return host
    known = Path(folder) / f"{CLAIM}{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    try:
        known.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=folder, prefix=CLAIM, encoding="utf-8") as own:
            own.write(host)
            own.flush()
            os.link(own.name, known)
    except FileExistsError:
        return known.read_text(encoding="utf-8")
    except OSError:
        return host
    return host


class VariablesAction(ActionBase):
    """An action whose arguments `variables` and `internal_variables` list the names that begin with gpu_stack_."""

    def check_variables(self, variables: dict[str, Any]) -> list[str]:
        """Fail with every misspelt name, every value that cannot be templated and every value that is not accepted.

        The defaults of request.yml and of roles would replace some of them silently. Returns the role variables that
        cannot be templated before there is a plan.
        """
        known, internal = self._task.args["variables"], self._task.args["internal_variables"]
        mistakes, later = variables_.misspelt(variables, known, internal), []
        values = {}
        for name, raw in variables_.set_by_user(variables, known).items():
            try:
                values[name] = self._templar.template(raw)
            except AnsibleError as error:
                text = f"{raw} {error}"
                # What a run gives to a role exists in that role alone.
                given = variables_.of_same_role(name) & set(re.findall(r"\w+", text))
                if given or any(word in text for word in LATER):
                    later.append(name)
                else:
                    mistakes.append(f"{name}: {error}")
        self.refuse([*mistakes, *self.wrong_values(values)])
        return later

    def wrong_values(self, values: dict[str, Any]) -> list[str]:
        """Return what is wrong with values that need no template any more, by the name of the variable."""
        try:
            return variables_.wrong_values(values, load_catalog(), date.today())
        except CatalogError as error:
            raise AnsibleActionFail(f"cannot read the catalog: {error}") from error

    def refuse(self, mistakes: list[str]) -> None:
        """Fail with the mistakes, if there are any; where another host of the run has the same ones, with its name."""
        if not mistakes:
            return
        text, host = refusal(mistakes), str(self._templar.available_variables["inventory_hostname"])
        first = first_with(text, host)
        if first == host:
            raise AnsibleActionFail(text)
        message = f"the {counted(len(mistakes), 'mistake')} in the variables of {first}; nothing was changed"
        raise AnsibleActionFail(message, result={live.SAME_AS: first})

# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0 OR GPL-3.0-or-later
# Apache License 2.0, or GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
"""The option `request` for ansible-doc, from meta/variables.yml."""

from __future__ import annotations

import re
from typing import Any, ClassVar

import yaml
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.declared import of_request
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.user_variables import Variable


def _markup(text: str) -> str:
    """Return Markdown as Ansible's markup, without the links, which are relative to docs/."""
    return re.sub(r"`([^`]*)`", r"C(\1)", re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text.strip()))


def _suboption(variable: Variable) -> dict[str, Any]:
    words = [f"V({word}): {_markup(meaning)}." for word, meaning in variable.choices.items() if meaning]
    found = {"description": [_markup(variable.meaning), *words], "type": "str", "default": variable.default}
    return found | ({"choices": list(variable.choices)} if variable.type == "choice" else {})


class ModuleDocFragment:
    """The fragment `gpuhost.stack.variables`."""

    # Annotated, since the yamllint of ansible-test takes each plain assignment here for one of a text, and fails.
    DOCUMENTATION: ClassVar[str] = yaml.safe_dump(
        {
            "options": {
                "request": {
                    "description": [
                        "The C(gpu_stack_) variables that the plan depends on, without the prefix.",
                        "An invalid value is a problem of the plan; an unknown name is an error.",
                    ],
                    "type": "dict",
                    "required": True,
                    "suboptions": {option: _suboption(variable) for option, variable in of_request().items()},
                }
            }
        },
        sort_keys=False,
    )

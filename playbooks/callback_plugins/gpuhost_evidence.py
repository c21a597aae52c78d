# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0 OR GPL-3.0-or-later
# Apache License 2.0, or GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
"""Activate the callback gpuhost.stack.evidence for the playbooks of this directory, whatever ansible.cfg is in use.

Ansible loads callbacks beside a playbook by itself, but those of a collection only where ansible.cfg enables them. It
loads this one before the first play, also an ansible-core on which the others would fail: that run ends here.
It also ends a run without hosts, which Ansible takes for a success.
"""

from __future__ import annotations

import gc
import re
import sys
from pathlib import Path
from typing import Any

from ansible import context
from ansible.release import __version__

_RUNTIME = Path(__file__).resolve().parents[2] / "meta" / "runtime.yml"


def unsupported(version: str, requirement: str) -> str | None:
    """Return why a version of ansible-core cannot run the playbooks; None if it can. requirement: >=2.19.0,<2.22.0."""

    def numbers(text: str) -> tuple[int, ...]:
        return tuple(int(part) for part in re.findall(r"\d+", text)[:2])

    first, after = (numbers(limit) for limit in requirement.split(","))
    if first <= numbers(version) < after:
        return None
    wanted = f"ansible-core {first[0]}.{first[1]} to {after[0]}.{after[1] - 1}"
    return (
        f"gpuhost needs {wanted}, and this ansible-playbook is of ansible-core {version}: in a clone run "
        "script/bootstrap control and use .venv/bin/ansible-playbook, "
        f"else pip install 'ansible-core{requirement}'; nothing was changed"
    )


_requirement = re.search(r'requires_ansible: "(.+)"', _RUNTIME.read_text(encoding="utf-8"))
if _requirement and (_refusal := unsupported(__version__, _requirement.group(1))):
    sys.exit(f"ERROR: {_refusal}")

# What Ansible has loaded stays until the end: no garbage collection needs to visit it, here or in a host's process.
# Code and facts that come after it stay, too: one collection for each 700 new objects, the default, would find nothing.
gc.freeze()
gc.set_threshold(10_000)

from ansible_collections.gpuhost.stack.plugins.plugin_utils.actions import bytecode  # noqa: E402

bytecode.use()

from ansible_collections.gpuhost.stack.plugins.callback import evidence  # noqa: E402
from ansible_collections.gpuhost.stack.plugins.plugin_utils.actions import no_hosts  # noqa: E402
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base import paths  # noqa: E402

DOCUMENTATION = evidence.DOCUMENTATION


class CallbackModule(evidence.CallbackModule):
    """The evidence callback, active without being enabled."""

    CALLBACK_NEEDS_ENABLED = False

    play: Any = None

    def v2_playbook_on_play_start(self, play: Any) -> None:
        """Remember the play."""
        self.play = play
        super().v2_playbook_on_play_start(play)

    def v2_playbook_on_no_hosts_matched(self) -> None:
        """End the run if the play is of this collection; a playbook of the user's own may be limited to other hosts."""
        variables = self.play.get_variable_manager().get_vars(play=self.play)
        limit = variables.get("ansible_limit")
        is_own = Path(self.play.get_path().rsplit(":", 1)[0]).resolve().parent == paths.PLAYBOOKS
        if is_own and (not limit or paths.are_own(context.CLIARGS["args"])):
            sources = variables.get("ansible_inventory_sources") or ()
            refused = no_hosts.refusal(variables["groups"], sources, limit)
            sys.exit(f"ERROR: {refused}. Nothing was changed.")

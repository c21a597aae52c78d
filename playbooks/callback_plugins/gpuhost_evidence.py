# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0 OR GPL-3.0-or-later
# Apache License 2.0, or GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
"""Activate the callback gpuhost.stack.evidence for the playbooks of this directory, whatever ansible.cfg is in use.

Ansible loads callbacks beside a playbook by itself, but those of a collection only where ansible.cfg enables them.
"""

from __future__ import annotations

from ansible_collections.gpuhost.stack.plugins.callback import evidence

DOCUMENTATION = evidence.DOCUMENTATION


class CallbackModule(evidence.CallbackModule):
    """The evidence callback, active without being enabled."""

    CALLBACK_NEEDS_ENABLED = False

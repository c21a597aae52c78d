#!/usr/bin/python
# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0 OR GPL-3.0-or-later
# Apache License 2.0, or GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
"""Bring a role's files, links, directories and alternatives into their states, and run what follows.

Runs on the managed host.
"""

from __future__ import annotations

DOCUMENTATION = r"""
module: apply
short_description: Write the files, links and directories that a role lists, and select alternatives
description:
  - Compares all of O(resources) with the host, writes what differs in the order of the list, each file by one rename,
    and then runs what has to follow, once each. C(ldconfig) follows a change in C(/etc/ld.so.conf.d),
    C(systemctl daemon-reload) one in C(/etc/systemd/system), a restart of the unit one of a timer or of a service's
    drop-in, and C(update-grub) one in C(/etc/grub.d). A timer is stopped before its file is removed, and gpuhost's
    kernel guard gives its choice back.
  - What has to follow is recorded in O(state_directory) before a file is written, and until it ran. So a run that
    follows one which died between the two makes up for it.
  - Files keep their owner. New ones, and all that are secret, get the user that runs this module.
version_added: "0.2.0"
options:
  resources:
    description: What is to be at each path, in the order in which it is written.
    type: list
    elements: dict
    required: true
    suboptions:
      path:
        description: The absolute path. Required but for an O(resources[].alternative).
        type: path
      alternative:
        description:
          - The name of an alternative that C(update-alternatives) sets to O(resources[].target) after the files are
            written, by hand, so that no other takes over by its priority. Before a package has registered it, check
            mode reports a change, and the module fails.
        type: str
      names:
        description: Several files in the directory O(resources[].path) in place of one, which are alike.
        type: list
        elements: str
      state:
        description:
          - With V(absent), a file or link is removed, and a directory where it is empty. A link stays that points
            elsewhere than to O(resources[].target).
        type: str
        choices: [present, absent]
        default: present
      content:
        description: The text of a file.
        type: str
      src:
        description: A file in the role's C(files), or on the controller, that is copied; vault may have encrypted it.
        type: str
      template:
        description: A template in the role's C(templates) that makes the text of a file.
        type: str
      data:
        description: The content in base64, which the action plugin makes of the three options above.
        type: str
      target:
        description: Where a link points. It replaces a file.
        type: str
      mode:
        description: >-
          The mode as octal digits. Of a file V(0644) without it; of a directory V(0755) where it is created, and no
          other where it is there.
        type: str
      secret:
        description: Whether C(--diff) shows that the content differs, and not the content.
        type: bool
        default: false
      if_exists:
        description: The path without which nothing is done about this resource, before any other is written.
        type: path
  state_directory:
    description: Where what has to follow is recorded; nowhere without it, as where a role is used alone.
    type: path
    default: ""
attributes:
  check_mode:
    description: Reports what would change.
    support: full
  diff_mode:
    description: Shows the text of files, but of secret ones, and the targets of links.
    support: full
notes:
  - A resource without O(resources[].content), O(resources[].src), O(resources[].template) and O(resources[].target)
    is a directory.
author: gpuhost contributors (!UNKNOWN)
"""

EXAMPLES = r"""
- name: Set up the command launcher
  gpuhost.stack.apply:
    resources:
      - path: /usr/local/lib/gpuhost/cuda-command
        template: cuda-command.j2
        mode: "0755"
      - path: /usr/local/bin
        names: [nvcc, ptxas]
        target: /usr/local/lib/gpuhost/cuda-command
"""

RETURN = r"""
paths:
  description: What was changed, or would be.
  returned: success
  type: list
  elements: str
  sample: ["/usr/local/bin/nvcc"]
"""

import base64
import dataclasses
import os
from typing import Any, Dict, List

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpuhost.stack.plugins.module_utils.base import module_options
from ansible_collections.gpuhost.stack.plugins.module_utils.base.module_options import option
from ansible_collections.gpuhost.stack.plugins.module_utils.resources import alternative, file
from ansible_collections.gpuhost.stack.plugins.module_utils.resources.effects import Effects


@dataclasses.dataclass(frozen=True)
class Resource:
    """The options of one resource."""

    path: str = option(required=False, type="path")
    alternative: str = option(required=False)
    names: List[str] = option(required=False)
    content: str = option(required=False, no_log=True)
    src: str = option(required=False)
    template: str = option(required=False)
    data: str = option(required=False, no_log=True)
    target: str = option(required=False)
    mode: str = option(required=False)
    if_exists: str = option(required=False, type="path")
    state: str = option("present", choices=["present", "absent"])
    secret: bool = option(False, no_log=False)


@dataclasses.dataclass(frozen=True)
class Options:
    """The options that DOCUMENTATION describes."""

    resources: List[Dict[str, Any]] = option(options=module_options.argument_spec(Resource))
    state_directory: str = option("", type="path")


def wanted(resource: Dict[str, Any]) -> List[file.Wanted]:
    """Return what is wanted at each path of a resource. Raise ValueError for what is no mode or no absolute path."""
    names, mode, data = resource["names"], resource["mode"], resource["data"]
    if resource["path"] is None:
        if resource["alternative"] is None or resource["target"] is None:
            raise ValueError("expected a path, or an alternative and its target, found %r" % sorted(_given(resource)))
        return []
    if mode is not None and not (mode.isdecimal() and set(mode) <= set("01234567")):
        raise ValueError("the mode of %s is %r, expected octal digits such as 0644" % (resource["path"], mode))
    content = None if data is None else base64.b64decode(data)
    if not os.path.isabs(resource["path"]):
        raise ValueError("the path is %r, expected an absolute one" % resource["path"])
    octal = int(mode, 8) if mode is not None else None if content is None else 0o644
    paths = [resource["path"]] if names is None else [os.path.join(resource["path"], name) for name in names]
    owner = (os.geteuid(), os.getegid()) if resource["secret"] else None
    return [
        file.Wanted(path, content, resource["target"], octal, resource["state"] == "absent", owner) for path in paths
    ]


def _given(resource: Dict[str, Any]) -> List[str]:
    return [name for name, value in resource.items() if value is not None and name not in ("state", "secret")]


def select(module: AnsibleModule, name: str, path: str) -> List[Dict[str, str]]:
    """Set an alternative to a path; return the difference, none where it is set. Raise ValueError where that fails."""
    if alternative.is_selected("/", name, path):
        return []
    now = alternative.read("/", name)
    if not module.check_mode:
        if now is None:
            raise ValueError("there is no alternative %s, expected that a package has registered it" % name)
        command = alternative.set_command(name, {"mode": "manual", "value": path})
        rc, out, err = module.run_command(command)
        if rc:
            raise ValueError("`%s` failed with status %d: %s" % (" ".join(command), rc, (err or out).strip()))
    header = "%s/%s" % (alternative.LINKS, name)
    before = "link to %(value)s, %(mode)s\n" % now if now else ""
    return [{"before_header": header, "after_header": header, "before": before, "after": "link to %s, manual\n" % path}]


def shown(state: Any, is_secret: bool) -> str:
    """Return what a person reads of a captured state."""
    if state is None or state["kind"] == file.DIRECTORY:
        return ""
    if state["kind"] == "link":
        return "link to %s\n" % state["target"]
    return "(secret)\n" if is_secret else file.content(state).decode("utf-8", "replace")


def main() -> None:
    """Run the module."""
    module = AnsibleModule(argument_spec=module_options.argument_spec(Options), supports_check_mode=True)
    options = module_options.read(Options, module.params)
    chosen = [each for each in options.resources if each["if_exists"] is None or os.path.exists(each["if_exists"])]
    try:
        effects = Effects(module.run_command, options.state_directory)
        found = file.apply([each for resource in chosen for each in wanted(resource)], effects, module.check_mode)
    except (OSError, ValueError) as error:
        module.fail_json(msg=str(error))
    secret = {each.path for resource in chosen if resource["secret"] for each in wanted(resource)}
    differences: List[Dict[str, str]] = [
        {
            "before_header": path,
            "after_header": path,
            **{name: shown(state, path in secret) for name, state in zip(("before", "after"), states)},  # noqa: B905
        }
        for path, states in found.items()
    ]
    if not module.check_mode:
        failed = effects.run()
        if failed:
            module.fail_json(msg="The files are written, but %s" % "; ".join(failed), changed=bool(found))
    try:
        for each in chosen:
            if each["path"] is None:
                differences += select(module, each["alternative"], each["target"])
    except ValueError as error:
        module.fail_json(msg=str(error), changed=bool(found))
    paths = sorted(difference["after_header"] for difference in differences)
    module.exit_json(changed=bool(paths), paths=paths, diff=differences if module._diff else [])


if __name__ == "__main__":
    main()

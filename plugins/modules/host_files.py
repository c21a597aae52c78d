#!/usr/bin/python
# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Brings several files and links to what they should be, in one go. Runs on the target."""

from __future__ import annotations

DOCUMENTATION = r"""
module: host_files
short_description: Writes several small files and links at once
description:
  - One call for what takes C(ansible.builtin.copy), C(ansible.builtin.file) or C(ansible.builtin.template) two
    calls for each file; a call costs a quarter of a second, what it does next to nothing.
  - Each file and link is replaced by renaming a new one over it, so that a reader finds the old one or the new one.
  - All paths are looked at before the first is changed; what cannot be replaced is told for all of them.
  - Folders that are missing are made, with mode 0755.
options:
  files:
    description: Files that must be there. A link in the place of one is replaced, not followed.
    type: list
    elements: dict
    default: []
    suboptions:
      path: {description: Where it lies., type: path, required: true}
      content: {description: All of its text., type: str, required: true}
      mode: {description: Its mode in octal digits., type: str, default: '0644'}
  links:
    description:
      - Symbolic links that must be there, in the place of whatever file is there; where each leads by its path. What a
        link leads to need not exist.
    type: dict
    default: {}
  absent:
    description: Files that must not be there.
    type: list
    elements: path
    default: []
  absent_links:
    description:
      - Links that must not be there, given as I(links) are. Anything else in its place is somebody else's and
        stays.
    type: dict
    default: {}
attributes:
  check_mode:
    description: Compares, writes nothing.
    support: full
  diff_mode:
    description: The texts before and after.
    support: full
author:
  - the gpuhost contributors
"""

EXAMPLES = r"""
- name: Know CUDA in login shells, and its compiler everywhere
  gpuhost.stack.host_files:
    files:
      - path: /etc/profile.d/cuda.sh
        content: "export CUDA_HOME=/usr/local/cuda\n"
    links:
      /usr/local/bin/nvcc: /usr/local/cuda/bin/nvcc
"""

RETURN = r"""
changed_paths:
  description: The paths that were changed, or would be.
  returned: success
  type: list
  elements: str
"""

import os
import stat
import tempfile

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpuhost.stack.plugins.module_utils.host import files


def found(path: str) -> str:
    """What is at a path, links not followed: its text behind `file 0644` or `link`, or nothing."""
    try:
        mode = os.lstat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return ""
    if stat.S_ISLNK(mode):
        return "link %s\n" % os.readlink(path)
    with open(path, "rb") as stream:
        return described(stream.read().decode("utf-8", "surrogateescape"), stat.S_IMODE(mode))


def described(content: str, mode: int) -> str:
    return "file %04o\n%s" % (mode, content)


def aims(params: dict) -> dict[str, str]:
    """{path: what is to be found there}, in the order in which they are done."""
    wanted = {entry["path"]: described(entry["content"], int(entry["mode"], 8)) for entry in params["files"]}
    wanted.update({path: "link %s\n" % target for path, target in params["links"].items()})
    wanted.update(dict.fromkeys(params["absent"], ""))
    links = params["absent_links"].items()
    ours = [path for path, target in links if os.path.islink(path) and os.readlink(path) == target]
    wanted.update(dict.fromkeys(ours, ""))
    return wanted


def problems(params: dict) -> list[str]:
    """What keeps paths from being replaced, and modes that are none; a sentence each."""
    told = []
    for entry in params["files"]:
        if not (entry["mode"].isdigit() and set(entry["mode"]) <= set("01234567")):
            told.append("the mode of %s is %r, expected octal digits such as 0644" % (entry["path"], entry["mode"]))
    paths = [entry["path"] for entry in params["files"]] + params["absent"]
    for path in paths + list(params["links"]):
        if not path.startswith("/"):
            told.append("%s is no absolute path" % path)
            continue
        if os.path.lexists(path) and not os.path.islink(path) and not os.path.isfile(path):
            told.append("%s is a folder or a device, expected a file or nothing: move it away" % path)
        parent = existing_parent(path)
        if not os.path.isdir(parent):
            told.append("%s is no folder, so that %s cannot lie in it: move it away" % (parent, path))
    return told


def existing_parent(path: str) -> str:
    parent = os.path.dirname(path)
    while not os.path.lexists(parent):
        parent = os.path.dirname(parent)
    return parent


def put(path: str, aim: str) -> None:
    """Brings one path to its aim."""
    if not aim:
        os.unlink(path)
        return
    files.make_parents(path)
    head, _, content = aim.partition("\n")
    kind, _, said = head.partition(" ")
    # Made in a folder beside it: the same file system, and a name that nobody else takes.
    with tempfile.TemporaryDirectory(prefix=".gpuhost-", dir=os.path.dirname(path)) as folder:
        new = os.path.join(folder, "new")
        if kind == "link":
            os.symlink(said, new)
        else:
            with open(new, "wb") as stream:
                stream.write(content.encode("utf-8", "surrogateescape"))
            os.chmod(new, int(said, 8))
        os.replace(new, path)


def main() -> None:
    file = {
        "path": {"type": "path", "required": True},
        "content": {"type": "str", "required": True},
        "mode": {"type": "str", "default": "0644"},
    }
    module = AnsibleModule(
        argument_spec={
            "files": {"type": "list", "elements": "dict", "default": [], "options": file},
            "links": {"type": "dict", "default": {}},
            "absent": {"type": "list", "elements": "path", "default": []},
            "absent_links": {"type": "dict", "default": {}},
        },
        supports_check_mode=True,
    )
    told = problems(module.params)
    if told:
        module.fail_json(msg="Nothing was written:\n  %s" % "\n  ".join(told))
    wanted = aims(module.params)
    before = {path: found(path) for path in wanted}
    changed = [path for path, aim in wanted.items() if before[path] != aim]
    for path in changed:
        if not module.check_mode:
            put(path, wanted[path])
    diff = [
        {"before_header": path, "after_header": path, "before": before[path], "after": wanted[path]} for path in changed
    ]
    module.exit_json(changed=bool(changed), changed_paths=changed, diff=diff)


if __name__ == "__main__":
    main()

#!/usr/bin/python
"""Enables further components (contrib, non-free, restricted, ...) of the archive that a host already uses."""

from __future__ import annotations

DOCUMENTATION = r"""
module: apt_components
short_description: Enable further components of the distribution's archive, from the mirror the host already uses
description:
  - Asks apt which repositories are configured and writes one deb822 source file that adds the missing components for
    the same mirrors, suites and keys. The host's own source files are left as they are.
options:
  components:
    description: Components to enable, such as C(contrib) and C(non-free).
    type: list
    elements: str
    required: true
  path:
    description: The source file to write.
    type: path
    default: /etc/apt/sources.list.d/gpuhost-components.sources
attributes:
  check_mode:
    support: full
author: gpuhost
"""

EXAMPLES = r"""
- name: Enable the components that hold NVIDIA's driver on Debian
  gpuhost.stack.apt_components:
    components: [contrib, non-free, non-free-firmware]
"""

RETURN = r"""
added:
  description: Mirrors and suites that got components, as C(uri suite).
  returned: always
  type: list
  elements: str
"""

import os

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpuhost.stack.plugins.module_utils.packages import apt_output

ORIGINS = ["Debian", "Ubuntu"]
QUESTION = ["apt-get", "indextargets", "--format", apt_output.TARGETS_FORMAT, "Created-By: Packages"]
UPDATE = ["apt-get", "-o", "DPkg::Lock::Timeout=300", "update"]


def find_sources(module):
    """The archive's suites; before the first `apt-get update` apt cannot tell which repositories are the archive."""
    ask = [ORIGINS, module.params["components"], module.params["path"]]
    sources = apt_output.archive_sources(module.run_command(QUESTION, check_rc=True)[1], *ask)
    if not sources and not module.check_mode:
        module.run_command(UPDATE, check_rc=True)
        sources = apt_output.archive_sources(module.run_command(QUESTION, check_rc=True)[1], *ask)
        if not sources:
            module.fail_json(
                msg="None of the configured apt repositories is the archive of %s; add the distribution's archive to "
                "/etc/apt, it holds the packages asked for." % " or ".join(ORIGINS)
            )
    return sources


def read(path):
    with open(path) as stream:
        return stream.read()


def main():
    module = AnsibleModule(
        argument_spec={
            "components": {"type": "list", "elements": "str", "required": True},
            "path": {"type": "path", "default": "/etc/apt/sources.list.d/gpuhost-components.sources"},
        },
        supports_check_mode=True,
    )
    path = module.params["path"]
    sources = find_sources(module)
    keyed = [(source, apt_output.signed_by(read(source.path), source.path, source.position)) for source in sources]
    current, wanted = read(path) if os.path.exists(path) else "", apt_output.render_sources(keyed)
    if current != wanted and not module.check_mode:
        with open(path + ".new", "w") as stream:
            stream.write(wanted)
        os.chmod(path + ".new", 0o644)
        os.rename(path + ".new", path)
        module.run_command(UPDATE, check_rc=True)
    module.exit_json(
        changed=current != wanted,
        added=sorted("%s %s" % (source.uri, source.suite) for source in sources if source.components),
        diff={"before": current, "after": wanted, "before_header": path, "after_header": path},
    )


if __name__ == "__main__":
    main()

#!/usr/bin/python
# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0 OR GPL-3.0-or-later
# Apache License 2.0, or GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
"""Install an OpenPGP public key if it has the expected fingerprint. Runs on the managed host."""

from __future__ import annotations

DOCUMENTATION = r"""
module: openpgp_key
short_description: Download an OpenPGP public key and write it only if its fingerprint is the expected one
description:
  - Needs no gpg on the managed host.
  - A file that contains exactly the expected key is left as it is, and nothing is downloaded.
  - Of a download with several keys only the expected one is written, since apt trusts every key in a file.
version_added: "0.1.0"
options:
  url:
    description: URL of the key, armoured or binary; V(http), V(https) or V(file).
    type: str
    required: true
  dest:
    description:
      - File to write, binary if its name ends in C(.gpg) and armoured otherwise. Missing directories are created with
        mode 0755.
    type: path
    required: true
  fingerprint:
    description: The version 4 fingerprint of the primary key, 40 hexadecimal digits; white space is ignored.
    type: str
    required: true
  timeout:
    description: Seconds to wait for the server.
    type: int
    default: 30
  mode:
    description: The file's mode; apt's unprivileged user must be able to read it.
    type: raw
    default: '0644'
extends_documentation_fragment:
  - gpuhost.stack.environment
  - ansible.builtin.files
attributes:
  check_mode:
    description: Downloads and compares, writes nothing.
    support: full
  diff_mode:
    description: There is no diff.
    support: none
author: gpuhost contributors (!UNKNOWN)
"""

EXAMPLES = r"""
- name: Install the key of NVIDIA's repository
  gpuhost.stack.openpgp_key:
    url: https://developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64/3bf863cc.pub
    dest: /usr/share/keyrings/nvidia-cuda.asc
    fingerprint: EB693B3035CD5710E231E123A4B469963BF863CC
"""

RETURN = r"""
fingerprint:
  description: The fingerprint of the key in RV(dest).
  returned: success
  type: str
  sample: EB693B3035CD5710E231E123A4B469963BF863CC
dest:
  description: The file with the key.
  returned: success
  type: str
found:
  description: The fingerprints in the download.
  returned: when something was downloaded
  type: list
  elements: str
"""

import dataclasses
import os
import re
from typing import Any, Dict

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpuhost.stack.plugins.module_utils.base import download, files, module_options, openpgp, urls
from ansible_collections.gpuhost.stack.plugins.module_utils.base.module_options import option

LIMIT_BYTES = 1024 * 1024


@dataclasses.dataclass(frozen=True)
class Options:
    """The options that DOCUMENTATION describes."""

    url: str
    fingerprint: str
    dest: str = option(type="path")
    timeout: int = 30
    mode: Any = "0644"
    environment: Dict[str, Any] = option({}, no_log=True)


def installed(dest: str) -> list[str]:
    """Return the fingerprints in `dest`; none where it must be written: missing, no key, or with trailing text."""
    try:
        data = files.read_bytes("/", dest) or b""
        return [] if openpgp.trailing_data(data) else [key.fingerprint for key in openpgp.public_keys(data)]
    except openpgp.BadKey:
        return []


def fetch(module: AnsibleModule, options: Options, wanted: str) -> bytes:
    """Return the download; fail the module unless it contains the expected key."""
    url, dest = urls.without_credentials(options.url), options.dest
    try:
        data = download.fetch(options.url, options.timeout, LIMIT_BYTES)
    except download.DownloadError as error:
        module.fail_json(
            msg="The key could not be downloaded. %s. Expected the key %s there. Check the URL, name resolution and "
            "the proxy of apt (`apt-config dump Acquire`) or dnf (/etc/dnf/dnf.conf). Nothing was written to %s."
            % (error, wanted, dest)
        )
    try:
        found = [key.fingerprint for key in openpgp.public_keys(data)]
    except openpgp.BadKey as error:
        module.fail_json(
            msg="%s is not an OpenPGP public key: %s. Expected the key %s. It may be a proxy's error page: open the "
            "URL in a browser. Nothing was written to %s." % (url, error, wanted, dest)
        )
    if wanted not in found:
        module.fail_json(
            msg="%s contains the key %s, expected %s. Do not trust it until its owner confirms the new fingerprint; "
            "then change the fingerprint. Nothing was written to %s." % (url, ", ".join(found), wanted, dest),
            found=found,
        )
    return data


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec=module_options.argument_spec(Options),
        add_file_common_args=True,
        supports_check_mode=True,
    )
    options = module_options.read(Options, module.params)
    module.no_log_values.update(filter(None, [urls.user_info(options.url)]))  # it is in the invocation
    wanted = re.sub(r"\s", "", options.fingerprint).upper()
    if not re.match(r"^[0-9A-F]{40}$", wanted):
        module.fail_json(
            msg="The fingerprint is %r, expected 40 hexadecimal digits. A key id is too short to identify a key: use "
            "the full fingerprint that the key's owner publishes." % options.fingerprint
        )
    dest = os.path.abspath(options.dest)
    result = {"changed": False, "fingerprint": wanted, "dest": dest}
    if installed(dest) != [wanted]:
        data = fetch(module, options, wanted)
        result["found"] = [key.fingerprint for key in openpgp.public_keys(data)]
        new = openpgp.extract(data, wanted, dest.endswith(".gpg"))
        result["changed"] = new != files.read_bytes("/", dest)  # the owner's file itself may have trailing text
        if result["changed"] and not module.check_mode:
            files.write(dest, new)
    if os.path.exists(dest):
        file_args = module.load_file_common_arguments(module.params)
        result["changed"] = module.set_fs_attributes_if_different(file_args, result["changed"])
    module.exit_json(**result)


if __name__ == "__main__":
    main()

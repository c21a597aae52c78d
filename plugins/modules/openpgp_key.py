#!/usr/bin/python
# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Put a repository's public key on the host, but only the one with the given fingerprint. Runs on the target."""

from __future__ import annotations

DOCUMENTATION = r"""
module: openpgp_key
short_description: Downloads an OpenPGP public key and writes it only if its fingerprint is the expected one
description:
  - Needs no gpg on the target.
  - An existing file that holds exactly the wanted key is left alone, and nothing is downloaded.
  - Of a download with several keys only the wanted one is written, since apt trusts every key in the file.
options:
  url:
    description: Where the key lies, armoured or binary.
    type: str
    required: true
  dest:
    description: File to write; binary when its name ends in C(.gpg), else armoured. Its folder is made with mode 0755.
    type: path
    required: true
  fingerprint:
    description: The version 4 fingerprint of the primary key, 40 hexadecimal digits; blanks are ignored.
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
  - ansible.builtin.files
author:
  - the gpuhost contributors
attributes:
  check_mode:
    description: Downloads and compares, writes nothing.
    support: full
"""

EXAMPLES = r"""
- name: NVIDIA's repository key
  gpuhost.stack.openpgp_key:
    url: https://developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64/3bf863cc.pub
    dest: /usr/share/keyrings/nvidia-cuda.asc
    fingerprint: EB693B3035CD5710E231E123A4B469963BF863CC
"""

RETURN = r"""
fingerprint:
  description: The fingerprint of the key in C(dest).
  returned: success
  type: str
found:
  description: The fingerprints that the download holds.
  returned: when something was downloaded
  type: list
  elements: str
"""

import os
import re
import tempfile

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpuhost.stack.plugins.module_utils.host import download, files
from ansible_collections.gpuhost.stack.plugins.module_utils.packages import openpgp

LIMIT_BYTES = 1024 * 1024


def existing(dest: str) -> list[str]:
    """Fingerprints in `dest`; none when it is missing, no key, or added to, so that it is written anew."""
    try:
        data = read(dest)
        return [] if openpgp.behind(data) else [key.fingerprint for key in openpgp.public_keys(data)]
    except openpgp.BadKey:
        return []


def read(path: str) -> bytes:
    """A file's content; nothing where there is none."""
    try:
        with open(path, "rb") as handle:
            return handle.read()
    except FileNotFoundError:
        return b""


def content(data: bytes, wanted: str, dest: str) -> bytes:
    """What to write: the download as it is if it fits, else the wanted key alone in the format that `dest` asks for."""
    keys = openpgp.public_keys(data)
    binary = dest.endswith(".gpg")
    if len(keys) == 1 and openpgp.is_armoured(data) != binary:
        return data
    raw = next(key.raw for key in keys if key.fingerprint == wanted)
    return raw if binary else openpgp.armour(raw)


def fetch(module: AnsibleModule, wanted: str) -> bytes:
    """The download, once it is known to hold the wanted key; ends the module otherwise."""
    url, dest = module.params["url"], module.params["dest"]
    try:
        data = download.fetch(url, module.params["timeout"], LIMIT_BYTES)
    except download.DownloadError as error:
        module.fail_json(
            msg="The key could not be downloaded. %s. Expected the key %s there. Check the URL, name resolution and "
            "the proxy (http_proxy, https_proxy); nothing was written to %s." % (error, wanted, dest)
        )
    try:
        found = [key.fingerprint for key in openpgp.public_keys(data)]
    except openpgp.BadKey as error:
        module.fail_json(
            msg="%s is not an OpenPGP public key: %s. Expected the key %s. A proxy's error page looks like this: open "
            "the URL by hand; nothing was written to %s." % (url, error, wanted, dest)
        )
    if wanted not in found:
        module.fail_json(
            msg="%s holds the key %s, expected %s. Do not trust it before its owner's page confirms the new "
            "fingerprint; then change the fingerprint. Nothing was written to %s."
            % (url, ", ".join(found), wanted, dest),
            found=found,
        )
    return data


def write(module: AnsibleModule, data: bytes) -> None:
    files.make_parents(module.params["dest"])
    handle, temporary = tempfile.mkstemp(dir=module.tmpdir)
    with os.fdopen(handle, "wb") as stream:
        stream.write(data)
    module.atomic_move(temporary, module.params["dest"])


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "url": {"type": "str", "required": True},
            "dest": {"type": "path", "required": True},
            "fingerprint": {"type": "str", "required": True},
            "timeout": {"type": "int", "default": 30},
            "mode": {"type": "raw", "default": "0644"},
        },
        add_file_common_args=True,
        supports_check_mode=True,
    )
    wanted = re.sub(r"\s", "", module.params["fingerprint"]).upper()
    if not re.match(r"^[0-9A-F]{40}$", wanted):
        module.fail_json(
            msg="fingerprint is %r, expected 40 hexadecimal digits; a key id is too short to prove "
            "anything: take the full fingerprint from the key's owner." % module.params["fingerprint"]
        )
    dest = module.params["dest"]
    result = {"changed": False, "fingerprint": wanted, "dest": dest}
    if existing(dest) != [wanted]:
        data = fetch(module, wanted)
        result["found"] = [key.fingerprint for key in openpgp.public_keys(data)]
        new = content(data, wanted, dest)
        result["changed"] = new != read(dest)  # an owner's file may itself go on behind the key
        if result["changed"] and not module.check_mode:
            write(module, new)
    if os.path.exists(dest):
        file_args = module.load_file_common_arguments(module.params)
        result["changed"] = module.set_fs_attributes_if_different(file_args, result["changed"])
    module.exit_json(**result)


if __name__ == "__main__":
    main()

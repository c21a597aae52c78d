# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Pack gpuhost-verify from the modules that this process has loaded, as one file that any Python 3.8 runs.

gpu_verify does so, so that the program asks the checks that were asked last, whichever release of gpuhost that was: no
run of the playbooks needs a task for it, and a new release is no change of the host.
"""

from __future__ import annotations

import inspect
import io
import os
import sys
import zipfile

from ansible_collections.gpuhost.stack.plugins.module_utils.base import files
from ansible_collections.gpuhost.stack.plugins.module_utils.state import applied
from ansible_collections.gpuhost.stack.plugins.module_utils.verdict import command_line

PATH = "/opt/gpuhost/verify/gpuhost-verify"  # the role host_verify makes the directory, and a link to the program
MODULES = "ansible_collections.gpuhost.stack.plugins.module_utils."
LATER = (applied,)  # what --fresh imports when it runs, beside the checks: loaded here, so that it is packed
# Without the user's environment and packages, none of which it needs.
INTERPRETER = b"#!/usr/bin/python3 -Is\n"
MAIN = "import sys\nfrom %s import main\nsys.exit(main())\n"
EPOCH = (1980, 1, 1, 0, 0, 0)  # the oldest time of a zip file: the same modules give the same file


def pack() -> bytes:
    """Return the program: an executable zip file with the loaded modules below module_utils."""
    contents = {"__main__.py": MAIN % command_line.__name__}
    for name in [name for name in sys.modules if name.startswith(MODULES)]:
        module = sys.modules[name]
        path = name.replace(".", "/")
        is_package = hasattr(module, "__path__")
        contents[path + ("/__init__.py" if is_package else ".py")] = "" if is_package else inspect.getsource(module)
        while "/" in path:
            path = os.path.dirname(path)
            contents[path + "/__init__.py"] = ""
    stream = io.BytesIO(INTERPRETER)
    stream.seek(0, io.SEEK_END)
    with zipfile.ZipFile(stream, "a", zipfile.ZIP_STORED) as archive:
        for name, text in sorted(contents.items()):
            archive.writestr(zipfile.ZipInfo(name, EPOCH), text.encode())
    return stream.getvalue()


def refresh(path: str = PATH) -> str | None:
    """Write the program where its directory is, unless it is there already; return why it could not be written."""
    if not os.path.isdir(os.path.dirname(path)):
        return None
    try:
        content = pack()
        if files.read_bytes("/", path) != content:
            files.write(path, content, 0o755)
    except OSError as error:
        return "gpuhost-verify was not written to %s: %s" % (path, error.strerror or error)
    return None

"""What each run of ansible-playbook imports, and what reads neither Ansible's settings nor the environment.

`ansible.constants`, and all that imports it, is imported by each run. Modules of this checkout, which Ansible would
import in each of its workers, are among what is imported ahead.
"""

import contextlib
import gc
import importlib
import sys
from pathlib import Path

PLUGINS = "ansible_collections.gpuhost.stack.plugins"
OURS = (f"{PLUGINS}.plugin_utils", f"{PLUGINS}.module_utils")
NAMES = (
    *"""ansible._internal._errors._captured ansible._internal._ssh._ssh_agent ansible.config.manager ansible.errors
    ansible.module_utils.common.yaml ansible.module_utils.compat.selinux ansible.parsing.utils.addresses
    ansible.utils.collection_loader._collection_finder cryptography.hazmat.backends
    cryptography.hazmat.primitives.hmac cryptography.hazmat.primitives.kdf.pbkdf2
    cryptography.hazmat.primitives.padding ctypes.util curses difflib getpass jinja2.nativetypes jinja2.sandbox
    multiprocessing.queues packaging.specifiers packaging.utils pty queue runpy tarfile termios tty uuid""".split(),
    *(f"{OURS[0]}.{name}" for name in ("planning.decision", "report.verdict", "verification.verdict")),
)

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "collections"))
for name in NAMES:
    with contextlib.suppress(ImportError):  # another release of ansible-core has other modules
        importlib.import_module(name)
gc.collect()
gc.freeze()

"""The comparison of a probe, which begins while the code of the other parts is read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog import facts
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.catalogs import load_catalog

PROJECT = Path(__file__).resolve().parents[3]
# The module as Ansible runs it, up to the comparison; prints which of our modules are loaded then.
UP_TO_THE_COMPARISON = """
import json, sys
from ansible.module_utils.testing import patch_module_args
from ansible_collections.gpuhost.stack.plugins.module_utils import probe_start
from ansible_collections.gpuhost.stack.plugins.modules import gpu_probe

def compare(*_options):
    sys.exit(json.dumps([name.rpartition(".")[2] for name in sys.modules if ".module_utils." in name]))

probe_start.compare = compare
with patch_module_args(json.loads(sys.argv[1])):
    gpu_probe.main()
"""


def test_the_comparison_begins_before_the_other_parts_are_imported() -> None:
    done = subprocess.run(
        [sys.executable, "-c", UP_TO_THE_COMPARISON, json.dumps(facts.probe_options(load_catalog()))],
        env={**os.environ, "PYTHONPATH": str(PROJECT / "collections")},
        capture_output=True,
        text=True,
    )
    loaded = json.loads(done.stderr.splitlines()[-1])
    assert "applied" in loaded
    assert {"probe", "nvidia_smi", "apt_sources", "module_keys"} & set(loaded) == set()

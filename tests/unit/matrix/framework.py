"""A framework's Python: prints its probe's answer, one line a part, as captured on a real machine.

argv: the answer's file and the host's root. A library that LD_LIBRARY_PATH names comes before the environment's own,
as the dynamic linker has it (ld.so(8)).
"""

import json
import os
import sys

with open(sys.argv[1]) as stream:
    answer = json.load(stream)
root, search = sys.argv[2], os.environ.get("LD_LIBRARY_PATH", "")


def found(path):
    """Return the file that the dynamic linker loads in the place of the environment's."""
    others = (f"{directory}/{os.path.basename(path)}" for directory in search.split(":") if directory)
    return next((other for other in others if os.path.exists(root + other)), path)


for part in answer["parts"]:
    if "search_path" in part:
        part["search_path"] = search
    if "libraries" in part:
        part["libraries"] = [found(path) for path in part["libraries"]]
    print("\nGPUHOST-ANSWER " + json.dumps(part), flush=True)
if answer.get("signal"):
    os.kill(os.getpid(), answer["signal"])
sys.exit(answer.get("exit", 0))

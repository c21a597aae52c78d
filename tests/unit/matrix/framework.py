"""A framework's Python: prints its probe's answer, one line a part, as captured on a real machine.

argv: the answer's file, the host's root, and Python's own arguments. What users set changes it as it changes the real
ones: LD_LIBRARY_PATH's libraries come before the environment's own (ld.so(8)), PYTHONPATH's packages as well (CPython),
Keras needs the backend's package (keras/src/backend/__init__.py), CUDA_VISIBLE_DEVICES hides GPUs, and Python runs
sitecustomize unless it is started with -S (CPython, module site).
"""

import json
import os
import runpy
import sys

with open(sys.argv[1]) as stream:
    answer = json.load(stream)
root, arguments, search = sys.argv[2], sys.argv[3:], os.environ.get("LD_LIBRARY_PATH", "")
customized = root + "/etc/python3/sitecustomize.py"


def found(path):
    """Return the file that the dynamic linker loads in the place of the environment's."""
    others = (f"{directory}/{os.path.basename(path)}" for directory in search.split(":") if directory)
    return next((other for other in others if os.path.exists(root + other)), path)


def say(**part):
    print("\nGPUHOST-ANSWER " + json.dumps(part), flush=True)


if os.path.exists(customized):
    if "-S" in arguments:
        say(sitecustomize=customized)
    else:
        runpy.run_path(customized)
        if sys.modules.get("typing_extensions", sys) is None:  # which both frameworks import
            sys.exit("ModuleNotFoundError: import of typing_extensions halted; None in sys.modules")
if "tensorflow" in arguments:
    for directory in os.environ.get("PYTHONPATH", "").split(":"):
        if directory and os.path.exists(f"{root}{directory}/numpy/__init__.py"):
            sys.exit(f"ImportError: cannot import name 'typing' from 'numpy' ({directory}/numpy/__init__.py)")
for part in answer["parts"]:
    if "search_path" in part:
        part["search_path"] = search
    if "libraries" in part:
        part["libraries"] = [found(path) for path in part["libraries"]]
    if os.environ.get("CUDA_VISIBLE_DEVICES"):
        count = len(os.environ["CUDA_VISIBLE_DEVICES"].split(","))
        part.update(
            {name: part[name][:count] for name in ("devices", "matmul", "convolution", "triton") if name in part}
        )
    say(**part)
    if "build" in part and "and-keras" in arguments:
        is_there = os.environ.get("KERAS_BACKEND", "tensorflow") == "tensorflow"
        say(keras={"backend": "tensorflow"} if is_there else {"error": "Keras cannot be imported."})
sys.stderr.write(answer.get("stderr", ""))
sys.stderr.flush()
if answer.get("signal"):
    os.kill(os.getpid(), answer["signal"])
sys.exit(answer.get("exit", 0))

"""Run cuda_check as nvcc would have built it: argv is the settings' file, the program, its bytes, and its arguments.

`settings` are those of the simulated CUDA, whose devices CUDA_VISIBLE_DEVICES limits as CUDA's; `values` replace values
of the document, by path such as versions.nccl; a path leads into each element of a list.
"""

import json
import os
import subprocess
import sys


def replace(document, path, value):
    if isinstance(document, list):
        for element in document:
            replace(element, path, value)
    elif document is not None:
        name, _, rest = path.partition(".")
        if rest:
            replace(document.get(name), rest, value)
        else:
            document[name] = value


def main():
    file, program, size, *words = sys.argv[1:]
    with open(file) as stream:
        given = json.load(stream)
    if os.environ.get("CUDA_VISIBLE_DEVICES"):
        given["settings"]["DEVICES"] = str(len(os.environ["CUDA_VISIBLE_DEVICES"].split(",")))
    environment = {**{"SIMULATED_CUDA_" + name: value for name, value in given["settings"].items()}, **os.environ}
    ran = subprocess.run([program, *words, "--bytes", size], env=environment, capture_output=True, text=True)
    head, brace, body = ran.stdout.partition("{")
    try:
        document = json.loads(brace + body)
        for path, value in given["values"].items():
            replace(document, path, value)
        body = json.dumps(document)[1:]
    except ValueError:  # the program ended in the middle of the document
        pass
    sys.stdout.write(head + brace + body)
    sys.stderr.write(ran.stderr)
    sys.stdout.flush()
    if ran.returncode < 0:
        os.kill(os.getpid(), -ran.returncode)
    sys.exit(ran.returncode)


main()

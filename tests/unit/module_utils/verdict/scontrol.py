#!/usr/bin/env python3
"""A double of scontrol: one node, in a JSON file, with the output of Slurm 22.05 for it.

The tier `slurm` has the genuine program. It refuses a drain without a reason, and another node, as that does.
"""

import json
import os
import sys
from pathlib import Path

SHOWN = """\
NodeName={name} Arch=x86_64 CoresPerSocket=1
   CPUAlloc=0 CPUEfctv=2 CPUTot=2 CPULoad=0.61
   NodeAddr=gpu01 NodeHostName=gpu01 Version=22.05.8
   RealMemory=1000 AllocMem=0 FreeMem=9000 Sockets=2 Boards=1
   State={state} ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A
   Partitions=gpu
   BootTime=2026-11-27T10:00:00 SlurmdStartTime=2026-11-27T10:00:00
   CapWatts=n/a
"""
node_file = Path(os.environ["NODE"])
node = json.loads(node_file.read_text())
words = sys.argv[1:]
with node_file.with_suffix(".calls").open("a") as calls:
    calls.write(json.dumps(words) + "\n")
if node.get("down"):
    sys.exit("slurm_load_node error: Unable to contact slurm controller (connect failure)")
if words[:2] == ["show", "aliases"]:
    print(node["name"])
elif words[:2] == ["show", "node"]:
    if words[2] != node["name"]:
        sys.exit(f"Node {words[2]} not found")
    print(SHOWN.format(**node), end="")
    if node["reason"]:
        print(f"   Reason={node['reason']} [root@2026-11-27T11:22:33]")
    print()
elif words[:2] == ["update", f"NodeName={node['name']}"]:
    options = dict(word.split("=", 1) for word in words[2:])
    if options["State"] == "DRAIN":
        if not options.get("Reason"):
            sys.exit("You must specify a reason when DRAINING a node. Request denied")
        node.update(state="IDLE+DRAIN", reason=options["Reason"])
    elif options["State"] == "RESUME":
        node.update(state="IDLE", reason="")
    node_file.write_text(json.dumps(node))
else:
    sys.exit(f"scontrol (double): {words} is not one of the commands that it knows")

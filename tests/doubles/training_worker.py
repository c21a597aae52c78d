"""A simulated training worker: speaks the protocol of train_process.py without a framework, on two virtual replicas.

A test appends calls to WORKER; GOOD are those of the real workers, in their order (test_tensorflow_worker.py and
test_pytorch_worker.py hold them to it).
"""

WORKER = """
import json, os, signal, subprocess, sys, time

request = json.load(open(sys.argv[1]))
options = request["options"]
CPUS = [{"name": "CPU:%d" % n, "model": "virtual", "compute_capability": "", "physical": None} for n in range(2)]
GPUS = [{"name": "GPU:%d" % n, "model": "H200", "compute_capability": "9.0", "physical": n} for n in range(2)]

def send(event, **values):
    os.write(request["events_fd"], (json.dumps(dict(values, event=event)) + "\\n").encode())

def begin(devices=CPUS, kind="cpu", sums=(3.0, 3.0)):
    send("start", framework="tensorflow", version="2.21.0")
    send("devices", devices=devices, virtual=kind is not None, virtual_kind=kind)
    send("all_reduce", values=list(sums), implementation="CollectiveAllReduce (RING)", fallbacks=[])

def steps(first=1, last=options["train_steps"], loss=lambda step: 2.3 / step):
    for step in range(first, last + 1):
        send("step", phase="train", step=step, steps=options["train_steps"], loss=loss(step), time=time.monotonic())

def trained(replicas=2, differs=0.0, process=None):
    ran = [{"device": "GPU:%d" % n, "process": process or os.getpid()} for n in range(replicas)]
    send("trained", replicas=replicas, ran=ran, batch_size=64, weights_disagreement=differs)

def agreed(many=(2.0,) * 5, gradients=0.0):
    send("agreement", replicas=[1, 2], losses=[[2.0] * 5, list(many)], gradients_differ=gradients)

def end():
    send("end")

print("the framework is chatty", flush=True)
"""
GOOD = "begin(); steps(); trained(); agreed(); end()"

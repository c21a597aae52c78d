"""Break the worker: the all-reduce returns each replica's own value."""

import sys

import real_worker as worker

choose = worker.choose_devices


def broken(tf, *rest):
    tf.distribute.ReplicaContext.all_reduce = lambda self, op, value, options=None: value
    return choose(tf, *rest)


worker.choose_devices = broken
sys.exit(worker.main(sys.argv[1]))

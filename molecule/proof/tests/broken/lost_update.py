"""Break the worker: one weight of the second replica becomes zero at the end of the training."""

import sys

import real_worker as worker

run_custom = worker.run_custom


def broken(tf, strategy, *rest):
    model, devices = run_custom(tf, strategy, *rest)
    copies = worker.replica_copies(strategy, model.trainable_variables[0])
    copies[1].assign(0 * copies[0])
    return model, devices


worker.run_custom = broken
sys.exit(worker.main(sys.argv[1]))

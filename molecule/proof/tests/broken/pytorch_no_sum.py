"""Break the worker: the gradients of the replicas are not all-reduced."""

import real_worker
from real_worker import interface_to, run_replica

real_worker.Distributed.wrap = lambda self, model, alone: model

__all__ = ["interface_to", "run_replica"]

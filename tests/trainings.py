"""Helpers of the scenarios that train: the installed script, its smallest run, the failed checks of a run."""

from typing import Any

INSTALLED = "/opt/gpuhost/smoke_train"
# The smallest training that still has to learn; the first one generates the data.
SMALL = (
    "--virtual-gpus 2 --blocks 1 --train-steps 16 --batch-size 64 --data simulated --data-dir /var/lib/gpuhost/cifar10 "
    "--learning-rate 0.003 --agreement-steps 3 --monitor-interval 0 --time-limit 240"
)


def failed(result: dict[str, Any]) -> set[str]:
    """Return the ids of the failed checks."""
    return {check["id"] for check in result["checks"] if check["status"] == "fail"}

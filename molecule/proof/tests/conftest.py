"""How the tests train on a host by hand, with the script as it is installed there or with a worker that was broken."""

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

INSTALLED = "/opt/gpuhost/smoke_train"
BROKEN = Path(__file__).parent / "broken"
# As small as a training can be that still has to learn; the first training generates the data.
SMALL = (
    "--virtual-gpus 2 --blocks 1 --train-steps 16 --batch-size 64 --data simulated --data-dir /var/lib/gpuhost/cifar10 "
    "--learning-rate 0.003 --agreement-steps 3 --monitor-interval 0 --time-limit 240"
)


@pytest.fixture(scope="module")
def as_root(request):
    """The first host, with root rights: what is shown on one of them needs no second time on the other."""
    from testinfra import get_host

    inventory = request.config.option.ansible_inventory
    host = get_host(f"ansible://proof-1?ansible_inventory={inventory}")
    with host.sudo():
        yield host


@pytest.fixture
def train(as_root) -> Callable[..., dict[str, Any]]:
    """train("--gpus 0", framework="tensorflow", expect=1): the result; later options win over SMALL."""

    def run(
        options: str = "", framework: str = "tensorflow", expect: int = 0, folder: str = INSTALLED
    ) -> dict[str, Any]:
        command = f"/opt/gpuhost/{framework}/bin/python {folder}/smoke_train.py {SMALL} {options}"
        answer = as_root.run(command)
        assert answer.rc == expect, answer.stdout[-3000:] + answer.stderr[-3000:]
        result: dict[str, Any] = json.loads(answer.stdout)
        assert result["status"] == ("pass" if expect == 0 else "fail")
        return result

    return run


@pytest.fixture
def broken(as_root) -> Callable[[str], str]:
    """broken("no_sum"): a copy of the script on the host whose worker is changed by broken/no_sum.py."""

    def make(name: str) -> str:
        folder = f"/tmp/broken-{name}"
        worker = "pytorch_replica" if name.startswith("pytorch") else "tensorflow_worker"
        as_root.run_expect([0], f"rm -rf {folder} && cp -r {INSTALLED} {folder}")
        as_root.run_expect([0], f"mv {folder}/{worker}.py {folder}/real_worker.py")
        text = shlex.quote((BROKEN / f"{name}.py").read_text())
        as_root.run_expect([0], f"printf %s {text} > {folder}/{worker}.py")
        return folder

    return make


def failed(result: dict[str, Any]) -> set[str]:
    """The ids of the checks that failed."""
    return {check["id"] for check in result["checks"] if check["status"] == "fail"}

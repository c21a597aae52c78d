"""Fixtures that train on a host by hand, with the installed script or with a broken worker."""

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.trainings import INSTALLED, SMALL

BROKEN = Path(__file__).parent / "broken"


@pytest.fixture(scope="module")
def as_root(request):
    """Return the host, with root privileges."""
    from testinfra import get_host

    inventory = request.config.option.ansible_inventory
    host = get_host(f"ansible://proof-1?ansible_inventory={inventory}")
    with host.sudo():
        yield host


@pytest.fixture
def train(as_root) -> Callable[..., dict[str, Any]]:
    """Return a function: train("--gpus 0", expect=1) is TensorFlow's result; options override SMALL."""

    def run(options: str = "", expect: int = 0, directory: str = INSTALLED) -> dict[str, Any]:
        command = f"/opt/gpuhost/tensorflow/bin/python {directory}/smoke_train.py {SMALL} {options}"
        answer = as_root.run(command)
        assert answer.rc == expect, answer.stdout[-3000:] + answer.stderr[-3000:]
        result: dict[str, Any] = json.loads(answer.stdout)
        assert result["status"] == ("pass" if expect == 0 else "fail")
        return result

    return run


@pytest.fixture
def broken(as_root) -> Callable[[str], str]:
    """Return a function: broken("no_sum") is a copy of the script whose worker is changed by broken/no_sum.py."""

    def make(name: str) -> str:
        directory = f"/tmp/broken-{name}"
        as_root.run_expect([0], f"rm -rf {directory} && cp -r {INSTALLED} {directory}")
        as_root.run_expect([0], f"mv {directory}/tensorflow_worker.py {directory}/real_worker.py")
        text = shlex.quote((BROKEN / f"{name}.py").read_text())
        as_root.run_expect([0], f"printf %s {text} > {directory}/tensorflow_worker.py")
        return directory

    return make

"""keras_fit_worker.py: its training if there is a Python with TensorFlow."""

from collections.abc import Callable

import pytest
from real_workers import Worker, needs


@pytest.fixture
def framework() -> str:
    return "tensorflow"


@needs("tensorflow")
def test_model_fit_trains_like_the_custom_loop(start: Callable[..., Worker]) -> None:
    run = start("--virtual-gpus", "2", "--learning-rate", "0.003", "--agreement-steps", "0", module="keras_fit_worker")
    assert run.listen() == 0, run.log.read_text()[-3000:]
    assert run.failed() == set()
    assert len(run.losses("train")) == 12

"""The filters of the preflight and of plays that change a driver."""

from __future__ import annotations

from typing import Any

import pytest
from ansible.errors import AnsibleFilterError
from ansible_collections.gpuhost.stack.plugins.filter.preflight import FilterModule
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia import gpu_processes

from tests.unit.plugin_utils.planning.planning_cases import PLANNED

FILTERS = FilterModule().filters()
JOB = {"pid": 7, "name": "python3 train.py", "program": "python3", "computes": True, "devices": []}
DAEMONS = [{**JOB, "program": program} for program in gpu_processes.SERVICES]


def test_only_programs_that_would_lose_work_are_listed() -> None:
    gpu_jobs = FILTERS["gpu_jobs"]
    assert gpu_jobs({"gpus": [], "gpu_processes": [JOB, *DAEMONS]}) == "7 (python3 train.py)"
    assert gpu_jobs({"gpus": [], "gpu_processes": DAEMONS}) == ""
    assert gpu_jobs({"gpus": [], "gpu_processes": None}) == ""


def test_the_refusal_lists_problems_of_the_plan_and_of_the_host() -> None:
    of_plan, of_host = ([{"code": code, "message": "m", "remedy": "r"}] for code in ("no-gpu", "disk-full"))
    plan, host = {**PLANNED, "problems": of_plan}, {"problems": of_host, "warnings": []}
    assert FILTERS["preflight_refusal"](plan, host).splitlines() == [
        "2 problems on this host; nothing was changed on it.",
        "- no-gpu: m",
        "  Remedy: r",
        "- disk-full: m",
        "  Remedy: r",
    ]


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("gpu_jobs", ["text"], "gpuhost.stack.gpu_jobs: probe: expected an object, found 'text'"),
        ("preflight_refusal", [{}, {}], "gpuhost.stack.preflight_refusal: gpu_stack_plan.distribution: missing"),
        ("preflight_refusal", [PLANNED, 5], "gpuhost.stack.preflight_refusal: gpu_stack_preflight: expected"),
    ],
)
def test_other_data_is_refused(name: str, arguments: list[Any], message: str) -> None:
    with pytest.raises(AnsibleFilterError, match=message):
        FILTERS[name](*arguments)

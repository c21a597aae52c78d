"""train_checks.py: from a worker's events to checks and to the result, without a worker."""

import json
import math
from typing import Any

import pytest
import train_checks
from train_options import parse_arguments
from train_process import Outcome

STEPS = 30
FALLING = [2.3 - 0.05 * step for step in range(STEPS)]
ARGUMENTS = ["--framework", "tensorflow", "--train-steps", str(STEPS), "--virtual-gpus", "2"]
OPTIONS = parse_arguments(ARGUMENTS)
CPUS = [{"name": f"CPU:{n}", "model": "virtual", "compute_capability": "", "physical": None} for n in range(2)]
GPUS = [{"name": f"GPU:{n}", "model": "H200", "compute_capability": "9.0", "physical": n} for n in range(2)]
RAN = [{"device": f"CPU:{n}", "process": 4242} for n in range(2)]
AGREED = [2.5, 2.4, 2.3, 2.2, 2.1]


def run_events(history: list[float] = FALLING, without: str = "", **changes: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the events of a good run on two virtual replicas, with the given changes."""
    events: dict[str, dict[str, Any]] = {
        "start": {"framework": "tensorflow", "version": "2.21.0"},
        "devices": {"devices": CPUS, "virtual": True, "virtual_kind": "cpu"},
        "all_reduce": {"values": [3.0, 3.0], "implementation": "CollectiveAllReduce (RING)", "fallbacks": []},
        "step": {},
        "trained": {
            "replicas": 2,
            "ran": RAN,
            "batch_size": 64,
            "weights_disagreement": 0.0,
        },
        "agreement": {"replicas": [1, 2], "losses": [AGREED, AGREED], "gradients_differ": 1e-6},
        "end": {},
    }
    steps = [
        {"event": "step", "phase": "train", "step": number, "steps": STEPS, "loss": loss, "time": 100.0 + number / 10}
        for number, loss in enumerate(history, start=1)
    ]
    found: list[dict[str, Any]] = []
    for name, values in events.items():
        if name != without:
            found += steps if name == "step" else [{"event": name, **values, **changes.get(name, {})}]
    return found


def checks(
    events: list[dict[str, Any]], options: Any = OPTIONS, on_pci: int = 0, **outcome: Any
) -> dict[str, train_checks.Check]:
    found = train_checks.evaluate(
        Outcome(events=events, **outcome), train_checks.collect(events), options, on_pci, 20.0
    )
    assert len({item.id for item in found}) == len(found)
    assert {item.id for item in found} <= set(train_checks.CHECKS)
    assert all(item.found and item.expected for item in found)
    assert all(item.remedy for item in found if item.status == "fail")
    return {item.id: item for item in found}


def failed(*args: Any, **kwargs: Any) -> set[str]:
    return {item.id for item in checks(*args, **kwargs).values() if item.status == "fail"}


def with_loss(step: int, loss: float) -> list[float]:
    return [*FALLING[:step], loss, *FALLING[step + 1 :]]


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        pytest.param(run_events(), set(), id="good"),
        pytest.param(run_events([2.3] * STEPS), {"loss-falls"}, id="flat"),
        pytest.param(run_events([4.6 - step / 13 for step in range(STEPS)]), {"loss-falls"}, id="to guessing"),
        pytest.param(run_events(FALLING[::-1]), {"loss-falls"}, id="rising"),
        pytest.param(run_events([2.3] * (STEPS - 1) + [1.7]), {"loss-falls"}, id="one lucky batch"),
        pytest.param(run_events(with_loss(12, math.nan)), {"loss-finite"}, id="NaN in the middle"),
        pytest.param(run_events(with_loss(29, math.nan)), {"loss-finite", "loss-falls"}, id="NaN at the end"),
        pytest.param(run_events(with_loss(0, math.inf)), {"loss-finite"}, id="infinite start"),
        pytest.param(run_events(trained={"replicas": 1}), {"replicas"}, id="missing replica"),
        pytest.param(run_events(all_reduce={"values": [1.0, 2.0]}), {"all-reduce"}, id="no sum"),
        pytest.param(run_events(all_reduce={"values": [3.0]}), {"all-reduce"}, id="missing sum"),
        pytest.param(run_events(all_reduce={"values": [3.0, math.nan]}), {"all-reduce"}, id="NaN sum"),
        pytest.param(run_events(trained={"weights_disagreement": 1e-6}), set(), id="weights differ by rounding"),
        pytest.param(run_events(trained={"weights_disagreement": 1.1e-6}), {"replicas-agree"}, id="weights differ"),
        pytest.param(run_events(trained={"weights_disagreement": math.nan}), {"replicas-agree"}, id="weights NaN"),
        pytest.param(
            run_events(agreement={"losses": [AGREED, [*AGREED[:4], 2.11]]}),
            {"same-as-one-replica"},
            id="last loss differs",
        ),
        pytest.param(
            run_events(agreement={"losses": [AGREED, [*AGREED[:4], math.nan]]}), {"same-as-one-replica"}, id="NaN"
        ),
        pytest.param(
            run_events(agreement={"losses": [AGREED, AGREED[:4]]}), {"same-as-one-replica"}, id="missing loss"
        ),
        pytest.param(run_events(agreement={"gradients_differ": math.nan}), {"same-as-one-replica"}, id="NaN gradient"),
        pytest.param(run_events(agreement={"losses": [[], []]}), {"same-as-one-replica"}, id="no losses"),
        pytest.param(run_events(agreement={"replicas": [1, 1]}), {"same-as-one-replica"}, id="one with itself"),
        pytest.param(run_events(without="agreement"), {"same-as-one-replica"}, id="not compared"),
        pytest.param(run_events(FALLING[:20]), {"training"}, id="missing steps"),
        pytest.param(run_events(without="trained"), {"training"}, id="no trained event"),
        pytest.param(run_events(without="end"), {"training"}, id="no end event"),
    ],
)
def test_each_wrong_value_fails_its_check(events: list[dict[str, Any]], expected: set[str]) -> None:
    assert failed(events) == expected


def test_agreement_tolerance_applies_to_losses_and_gradients() -> None:
    far = run_events(agreement={"losses": [AGREED, [loss * 1.00021 for loss in AGREED]]})
    wrong = run_events(agreement={"gradients_differ": 2.1e-4})
    near = run_events(agreement={"losses": [AGREED, [loss * 1.00019 for loss in AGREED]], "gradients_differ": 1.9e-4})
    assert failed(near) == set()
    assert failed(far) == failed(wrong) == {"same-as-one-replica"}
    for events in (far, wrong):
        assert failed(events, parse_arguments([*ARGUMENTS, "--agreement-tolerance", "0.01"])) == set()


@pytest.mark.parametrize(
    ("last", "margin", "status"),
    [
        pytest.param(1.84, 0.2, "pass", id="a fifth below ln 10"),
        pytest.param(1.85, 0.2, "fail", id="nearly"),
        pytest.param(2.07, 0.1, "pass", id="a tenth below"),
        pytest.param(2.08, 0.1, "fail", id="nearly a tenth"),
    ],
)
def test_loss_must_fall_below_guessing_by_the_margin(last: float, margin: float, status: str) -> None:
    assert train_checks.check_falls([4.0] * 10 + [last] * 10, margin).status == status


@pytest.mark.parametrize(
    ("history", "first", "last"),
    [
        pytest.param([4.0, 2.0, 1.0, 3.0], 3.0, 2.0, id="two steps at each end"),
        pytest.param([9.0, 7.0, *[5.0] * 25, 3.0, 1.0], 8.0, 2.0, id="two of 29 steps"),
        pytest.param([9.0, 8.0, 7.0, *[5.0] * 24, 3.0, 2.0, 1.0], 8.0, 2.0, id="a tenth of 30 steps"),
        pytest.param([4.0, 2.0, 1.0], None, None, id="too few steps"),
        pytest.param([], None, None, id="no step"),
    ],
)
def test_first_and_last_loss_are_means_of_a_tenth_of_the_steps(
    history: list[float], first: float | None, last: float | None
) -> None:
    loss = result(run_events(history))["loss"]
    assert (loss["first"], loss["last"]) == (first, last)


def test_losses_are_counted_where_there_are_too_few_to_fall() -> None:
    found = checks(run_events([2.3, 1.1, 1.0]))["loss-falls"]
    assert (found.status, found.found, found.expected) == ("fail", "3 losses", "4 losses or more")
    assert checks(run_events([2.3, 2.3, 1.0, 1.0]))["loss-falls"].status == "pass"


def test_no_loss_at_all_is_not_finite() -> None:
    found = checks(run_events([]))["loss-finite"]
    assert (found.status, found.found) == ("fail", "0 of 0 losses not finite")


def test_the_losses_that_are_not_finite_are_counted_and_the_first_is_named() -> None:
    history = [*FALLING[:6], math.nan, math.inf, *FALLING[8:]]
    assert checks(run_events(history))["loss-finite"].found == "2 of 30 losses not finite, the first at step 7"
    assert checks(run_events())["loss-finite"].found == "0 of 30 losses not finite"


@pytest.mark.parametrize(
    ("outcome", "expected", "text"),
    [
        pytest.param({"returncode": -9}, "training", "was killed by SIGKILL after step 12 of 30", id="killed"),
        pytest.param({"returncode": -11}, "training", "SIGSEGV", id="crashed"),
        pytest.param({"returncode": 3}, "training", "ended with exit status 3", id="status"),
        pytest.param({"invalid_lines": ["%$"]}, "training", "'%$', which is not a valid event", id="invalid line"),
        pytest.param({"timed_out": True, "returncode": -15}, "time-limit", "after step 12 of 30", id="time"),
    ],
)
def test_unfinished_worker_fails_one_check_that_shows_how_it_ended(
    outcome: dict[str, Any], expected: str, text: str
) -> None:
    events = [event for event in run_events(FALLING[:12]) if event["event"] not in ("trained", "agreement", "end")]
    found = checks(events, log_end="the end of the log", **outcome)
    assert {name for name, item in found.items() if item.status == "fail"} == {expected}
    assert text in found[expected].found
    assert "the end of the log" in found[expected].found + found[expected].remedy
    assert found["all-reduce"].status == "pass"  # checks of earlier events are kept


def test_worker_error_is_reported_with_its_step() -> None:
    events = [*run_events(without="end"), {"event": "error", "text": "OpError: no memory"}]
    assert "OpError: no memory (after step 30 of 30)" in checks(events, returncode=1)["training"].found


START, DEVICES = run_events()[:2]
STEP = {"event": "step", "phase": "train", "step": 7, "steps": 30, "loss": 2.0, "time": 1.0}


@pytest.mark.parametrize(
    ("events", "steps", "progress"),
    [
        pytest.param([], 0, "during its start", id="no event"),
        pytest.param([START], 0, "during its start", id="no devices"),
        pytest.param([START, DEVICES], 0, "before its first step", id="devices"),
        pytest.param([START, DEVICES, STEP], 1, "after step 7 of 30", id="step"),
        pytest.param(
            [START, DEVICES, STEP, {**STEP, "phase": "comparison", "step": 2, "steps": 5}],
            1,
            "after step 2 of 5 of comparison",
            id="step of the comparison",
        ),
    ],
)
def test_how_far_the_worker_got_is_told(events: list[dict[str, Any]], steps: int, progress: str) -> None:
    assert checks(events, returncode=3)["training"].found == f"the worker ended with exit status 3 {progress}"
    found = checks(events, returncode=-15, terminated="SIGTERM")["training"]
    assert (found.status, found.found) == ("unknown", f"terminated by SIGTERM {progress}")
    late = checks(events, returncode=-15, timed_out=True)
    assert late["time-limit"].found == f"{steps} of 30 steps after 20 s; terminated {progress}"
    assert "training" not in late


def test_steps_of_the_comparison_are_no_steps_of_the_training() -> None:
    compared = [{**STEP, "phase": "comparison", "step": n, "steps": 5, "loss": 9.0} for n in range(1, 6)]
    events = [*run_events(), *compared]
    assert failed(events) == set()
    assert result(events)["steps"] == STEPS


@pytest.mark.parametrize(
    ("outcome", "found"),
    [
        pytest.param({}, "30 steps", id="complete"),
        pytest.param({"returncode": 5}, "the worker sent its end event and then ended with exit status 5", id="status"),
        pytest.param({"terminated": "SIGINT", "invalid_lines": ["x"]}, "terminated by SIGINT", id="terminated"),
        pytest.param({"invalid_lines": ["x", "y"], "returncode": 1}, "the worker sent 'x', which is", id="lines"),
    ],
)
def test_what_ended_a_complete_training_is_told(outcome: dict[str, Any], found: str) -> None:
    assert checks(run_events(), **outcome)["training"].found.startswith(found)


def test_the_end_of_the_log_is_quoted_where_there_is_one() -> None:
    events = run_events(FALLING[:20])
    assert checks(events)["training"].found == "the worker ended after 20 of 30 steps"
    quoted = "the worker ended after 20 of 30 steps; the log ends with: a line"
    assert checks(events, log_end="a line")["training"].found == quoted


@pytest.mark.parametrize(
    ("outcome", "status", "found"),
    [
        pytest.param({}, "pass", "30 of 30 steps after 20 s", id="in time"),
        pytest.param(
            {"timed_out": True}, "fail", "30 of 30 steps after 20 s; terminated after step 30 of 30", id="late"
        ),
    ],
)
def test_the_time_limit_is_checked_with_the_steps_done(outcome: dict[str, Any], status: str, found: str) -> None:
    options = parse_arguments([*ARGUMENTS, "--time-limit", "900"])
    check = checks(run_events(), options, **outcome)["time-limit"]
    assert (check.status, check.found, check.expected) == (status, found, "everything within 900 s")


def test_time_is_not_checked_where_the_worker_neither_ended_nor_was_late() -> None:
    assert "time-limit" not in checks(run_events(without="end"), returncode=1)


@pytest.mark.parametrize("arguments", [[], ["--cluster-workers", "a:1,b:1", "--cluster-index", "1"]])
def test_a_failure_names_the_other_hosts_of_a_cluster_alone(arguments: list[str]) -> None:
    options = parse_arguments(["--framework", "pytorch", "--train-steps", "30", *arguments])
    found = checks([], options, timed_out=True)["time-limit"], checks([], options, returncode=1)["training"]
    assert ["host" in item.remedy for item in found] == [bool(arguments)] * 2
    assert "pytorch.log" in found[1].remedy


def test_crash_after_the_end_event_fails_on_a_single_host_only() -> None:
    assert failed(run_events(), returncode=-6) == {"training"}
    cluster = parse_arguments(
        ["--framework", "tensorflow", "--train-steps", "30", "--cluster-workers", "a:1,b:1", "--cluster-index", "0"]
    )
    events = run_events(
        devices={"devices": CPUS[:1]}, all_reduce={"values": [3.0]}, trained={"replicas": 2}, agreement={"losses": []}
    )
    assert failed(events, cluster, returncode=-6) == set()


def test_cluster_needs_the_replicas_of_every_host() -> None:
    options = parse_arguments(
        ["--framework", "tensorflow", "--train-steps", "30", "--cluster-workers", "a:1,b:1,c:1", "--cluster-index", "0"]
    )
    gpus = {"devices": GPUS, "virtual": False, "virtual_kind": None}
    good = run_events(devices=gpus, all_reduce={"values": [21.0, 21.0]}, trained={"replicas": 6})  # 1 + 2 + ... + 6
    bad = run_events(devices=gpus, all_reduce={"values": [3.0, 3.0]}, trained={"replicas": 2})
    assert failed(good, options) == set()
    assert failed(bad, options) == {"all-reduce", "replicas"}
    assert checks(good, options)["same-as-one-replica"].status == "skip"


@pytest.mark.parametrize(
    ("arguments", "devices", "visible", "expected"),
    [
        pytest.param(["--num-gpus", "4"], GPUS, "pass", {"replicas", "all-reduce", "same-as-one-replica"}, id="number"),
        pytest.param(["--gpus", "3"], GPUS, "pass", {"replicas", "all-reduce"}, id="which"),
        pytest.param(
            ["--virtual-gpus", "4"], CPUS, "skip", {"replicas", "all-reduce", "same-as-one-replica"}, id="virtual"
        ),
        pytest.param([], GPUS, "pass", set(), id="all"),
    ],
)
def test_replicas_are_compared_with_the_request(
    arguments: list[str], devices: list[dict[str, Any]], visible: str, expected: set[str]
) -> None:
    kind = None if devices is GPUS else "cpu"
    events = run_events(devices={"devices": devices, "virtual": bool(kind), "virtual_kind": kind})
    found = checks(events, parse_arguments(["--framework", "tensorflow", "--train-steps", "30", *arguments]))
    assert {name for name, item in found.items() if item.status == "fail"} == expected
    assert found["gpus-visible"].status == visible


@pytest.mark.parametrize(
    ("framework", "kind", "arguments", "each", "all_of_them"),
    [
        pytest.param("tensorflow", "cpu", ["--virtual-gpus", "2"], 1, 3, id="one CPU device of each TensorFlow worker"),
        pytest.param("pytorch", "cpu", ["--virtual-gpus", "2"], 2, 6, id="PyTorch on the CPU"),
        pytest.param("tensorflow", "gpu", ["--virtual-gpus", "2"], 2, 6, id="virtual GPUs"),
        pytest.param("tensorflow", None, ["--num-gpus", "4"], 4, 12, id="number"),
        pytest.param("tensorflow", None, ["--gpus", "0,2,3"], 3, 9, id="which"),
        pytest.param("tensorflow", None, [], 2, 6, id="all"),
    ],
)
def test_each_host_of_a_cluster_has_the_requested_replicas(
    framework: str, kind: str | None, arguments: list[str], each: int, all_of_them: int
) -> None:
    cluster = ["--cluster-workers", "a:1,b:1,c:1", "--cluster-index", "0"]
    options = parse_arguments(["--framework", framework, "--train-steps", "30", *cluster, *arguments])
    training = train_checks.collect(run_events(devices={"devices": CPUS, "virtual": bool(kind), "virtual_kind": kind}))
    assert train_checks.requested_local_replicas(options, training) == each
    assert train_checks.requested_replicas(options, training) == all_of_them


@pytest.mark.parametrize("values", [[21.0, 21.0], [21.0] * 6])
def test_a_host_of_a_cluster_reports_its_sums_or_those_of_all_replicas(values: list[float]) -> None:
    cluster = ["--cluster-workers", "a:1,b:1,c:1", "--cluster-index", "0"]
    options = parse_arguments(["--framework", "tensorflow", "--train-steps", "30", *cluster])
    gpus = {"devices": GPUS, "virtual": False, "virtual_kind": None}
    found = checks(run_events(devices=gpus, all_reduce={"values": values}), options)["all-reduce"]
    assert (found.status, found.expected) == ("pass", "21 on each of 2 replicas (1 + 2 + ... + 6)")
    assert "all-reduce" in failed(run_events(devices=gpus, all_reduce={"values": values[:1] * 3}), options)


@pytest.mark.parametrize(
    ("arguments", "devices", "reason"),
    [
        pytest.param(["--agreement-steps", "0"], CPUS, "--agreement-steps 0", id="not requested"),
        pytest.param([], CPUS[:1], "there is only one replica", id="one replica"),
        pytest.param(["--cluster-workers", "a:1,b:1", "--cluster-index", "0"], CPUS, "on a single host", id="cluster"),
    ],
)
def test_a_comparison_that_is_skipped_has_its_reason(
    arguments: list[str], devices: list[dict[str, Any]], reason: str
) -> None:
    options = parse_arguments(["--framework", "pytorch", "--train-steps", "30", *arguments])
    found = checks(run_events(devices={"devices": devices}), options)["same-as-one-replica"]
    assert found.status == "skip"
    assert reason in found.found


def test_two_replicas_are_compared_over_the_requested_steps() -> None:
    two = run_events(agreement={"losses": [AGREED[:2], AGREED[:2]]})
    options = parse_arguments([*ARGUMENTS, "--agreement-steps", "2"])
    assert failed(two, options) == set()
    assert failed(run_events(), options) == {"same-as-one-replica"}
    found = checks(two)["same-as-one-replica"]
    assert (found.status, found.found) == ("fail", "[2, 2] losses of [1, 2] replicas")


def test_the_comparison_tells_the_largest_differences() -> None:
    losses = [[2.0, -1.0, 1.0], [2.0001, -1.0002, 1.0]]
    options = parse_arguments([*ARGUMENTS, "--agreement-steps", "3"])
    found = checks(run_events(agreement={"losses": losses, "gradients_differ": 3e-5}), options)["same-as-one-replica"]
    assert found.found == "largest relative difference of losses 0.0002, of first gradients 3e-05"


@pytest.mark.parametrize(
    ("one", "many", "expected"),
    [
        pytest.param([4.0], [3.0], 0.25, id="relative to the single replica"),
        pytest.param([4.0, 2.0], [4.0, 3.0], 0.5, id="largest"),
        pytest.param([0.0], [0.0], 0.0, id="zero"),
        pytest.param([0.0], [1e-12], 1.0, id="next to zero"),
        pytest.param([2.0], [2.0, 2.0], math.inf, id="other number"),
        pytest.param([], [], math.inf, id="none"),
        pytest.param([math.inf], [math.inf], math.inf, id="not finite"),
    ],
)
def test_largest_difference_of_two_histories(one: list[float], many: list[float], expected: float) -> None:
    assert train_checks.largest_difference([one, many]) == expected


@pytest.mark.parametrize(
    ("devices", "kind", "words"),
    [
        pytest.param(CPUS, "cpu", "virtual (on the CPU)", id="CPU"),
        pytest.param(GPUS, "gpu", "virtual (sharing a GPU)", id="shared GPU"),
        pytest.param(GPUS, None, "GPU", id="GPUs"),
    ],
)
def test_the_kind_of_replicas_is_named(devices: list[dict[str, Any]], kind: str | None, words: str) -> None:
    events = run_events(devices={"devices": devices, "virtual": bool(kind), "virtual_kind": kind})
    expected = f"2 {words} replicas computed the last step; here: CPU:0 by process 4242, CPU:1 by process 4242"
    assert checks(events)["replicas"].found == expected


@pytest.mark.parametrize(
    ("arguments", "on_pci", "expected"),
    [
        pytest.param(["--gpus", "1,3"], 4, "GPUs: 1,3", id="which"),
        pytest.param(["--num-gpus", "2"], 4, "GPUs: 2", id="number"),
        pytest.param([], 4, "GPUs: 4", id="those of the bus"),
        pytest.param([], 0, "GPUs: one or more", id="any"),
    ],
)
def test_missing_gpus_are_compared_with_the_request(arguments: list[str], on_pci: int, expected: str) -> None:
    options = parse_arguments(["--framework", "tensorflow", *arguments])
    found = checks([{"event": "missing_gpus", "visible": 0}], options, on_pci, returncode=1)["gpus-visible"]
    assert (found.status, found.expected) == ("fail", expected)


def test_the_models_of_visible_gpus_are_named() -> None:
    devices = {"devices": [GPUS[0], {"name": "GPU:1", "physical": 1}], "virtual": False, "virtual_kind": None}
    options = parse_arguments(["--framework", "tensorflow", "--num-gpus", "2"])
    assert checks(run_events(devices=devices), options)["gpus-visible"].found == "H200, unknown"
    everything = checks(run_events(devices=devices), parse_arguments(["--framework", "tensorflow"]), on_pci=2)
    assert everything["gpus-visible"].found == "tensorflow sees 2 GPUs (H200, unknown), the PCI bus has 2 NVIDIA GPUs"


def test_missing_gpus_fail_one_check() -> None:
    events = [{"event": "start", "framework": "tensorflow", "version": "2"}, {"event": "missing_gpus", "visible": 1}]
    found = checks(events, on_pci=4, returncode=1)
    assert {name: item.status for name, item in found.items()} == {"gpus-visible": "fail"}
    assert "sees 1 GPUs, the PCI bus has 4 NVIDIA GPUs" in found["gpus-visible"].found


@pytest.mark.parametrize(
    ("arguments", "on_pci", "hidden", "status"),
    [
        ([], 2, False, "pass"),
        ([], 3, False, "fail"),
        ([], 3, True, "pass"),
        (["--num-gpus", "2"], 3, False, "pass"),
        (["--gpus", "0,1"], 3, False, "pass"),
        (["--virtual-gpus", "2"], 3, False, "pass"),
    ],
)
def test_training_on_fewer_gpus_than_the_bus_has_must_be_requested(
    arguments: list[str], on_pci: int, hidden: bool, status: str
) -> None:
    options = parse_arguments(["--framework", "tensorflow", "--train-steps", "30", *arguments])
    events = run_events(devices={"devices": GPUS, "virtual": False, "virtual_kind": None})
    found = {
        item.id: item
        for item in train_checks.evaluate(
            Outcome(events=events), train_checks.collect(events), options, on_pci, 20.0, hidden=hidden
        )
    }["gpus-visible"]
    assert (len(GPUS), found.status) == (2, status)
    if status == "fail":
        assert "sees 2 GPUs" in found.found
        assert "the PCI bus has 3 NVIDIA GPUs" in found.found


def test_fallbacks_of_the_all_reduce_are_reported() -> None:
    event = {"implementation": "HierarchicalCopyAllReduce", "fallbacks": ["CollectiveAllReduce (NCCL) failed: no NCCL"]}
    found = checks(run_events(all_reduce=event))["all-reduce"].found
    assert "HierarchicalCopyAllReduce; CollectiveAllReduce (NCCL) failed: no NCCL" in found


# Output of real runs: TensorFlow 2.19 on four A16 (tensorflow#94650), TensorFlow 2.4 (tensorflow#53160), an H20
# machine (nccl#1189), NVLink (nccl#1817).
A16 = "volta:1533219:1535120 [0] NCCL INFO NCCL version 2.23.4+cudaCUDA_MAJOR.CUDA_MINOR"
OLDER = "NCCL version 2.7.6+cudaCUDA_MAJOR.CUDA_MINOR"
RING = "dbe753952c3d:1013:1420 [0] NCCL INFO Channel 00/02 :    0   1   2   3"
P2P = "H20-GPU-06:4015540:4015653 [1] NCCL INFO Channel 00/0 : 3[1] -> 2[0] via P2P/CUMEM"
POINTER = "sh9-m27xf:3884994:3885029 [7] NCCL INFO Channel 00/0 : 7[7] -> 6[6] via P2P/direct pointer"
NET = "H20-GPU-06:4015539:4015652 [0] NCCL INFO Channel 07/0 : 0[0] -> 2[0] [receive] via NET/IB/3/GDRDMA"
SHM = "a:1:2 [0] NCCL INFO Channel 00 : 0[0] -> 1[1] via SHM/direct/direct"
RING_SHM = "a:1:2 [0] NCCL INFO Ring 00 : 0[0] -> 1[1] via direct shared memory"


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        pytest.param([A16, RING, P2P, P2P], {"version": "2.23.4", "transports": ["P2P"]}, id="P2P"),
        pytest.param([OLDER, SHM, NET], {"version": "2.7.6", "transports": ["NET", "SHM"]}, id="several"),
        pytest.param([A16, POINTER], {"version": "2.23.4", "transports": ["P2P"]}, id="one process"),
        pytest.param([A16], {"version": "2.23.4", "transports": []}, id="one GPU"),
        pytest.param([OLDER, RING_SHM], {"version": "2.7.6", "transports": ["SHM"]}, id="shared memory, older"),
        pytest.param([A16, "tests: 0[0] -> 1[1] via SHM"], {"version": "2.23.4", "transports": []}, id="other line"),
        pytest.param([P2P], None, id="no version"),
        pytest.param(["I0000 loaded cuDNN"], None, id="not started"),
    ],
)
def test_nccl_log_gives_version_and_transports(log: list[str], expected: dict[str, Any] | None) -> None:
    assert train_checks.parse_nccl_log(log) == expected


@pytest.mark.parametrize(
    ("log", "implementation", "texts"),
    [
        pytest.param([A16, P2P], "CollectiveAllReduce (NCCL)", [], id="peer-to-peer"),
        pytest.param([A16, SHM], "CollectiveAllReduce (NCCL)", ["NCCL used SHM, not peer-to-peer transfers"], id="SHM"),
        pytest.param([], "CollectiveAllReduce (NCCL)", ["NCCL is missing from the log"], id="no NCCL in the log"),
        pytest.param([], "ReductionToOneDevice", [], id="not NCCL"),
        pytest.param([A16, SHM, P2P], "nccl", [], id="peer-to-peer and SHM"),
        pytest.param([A16], "nccl", [], id="no transport in the log"),
        pytest.param(
            [A16, SHM, NET], "nccl", ["NCCL used NET and SHM, not peer-to-peer transfers"], id="two other transports"
        ),
    ],
)
def test_nccl_log_is_compared_with_the_worker(log: list[str], implementation: str, texts: list[str]) -> None:
    gpus = {"devices": GPUS, "virtual": False, "virtual_kind": None}
    training = train_checks.collect(run_events(devices=gpus, all_reduce={"implementation": implementation}))
    assert train_checks.fallback_reasons(training, train_checks.parse_nccl_log(log)) == texts


@pytest.mark.parametrize(
    "devices",
    [
        pytest.param({"devices": GPUS, "virtual": True, "virtual_kind": "gpu"}, id="virtual GPUs"),
        pytest.param({"devices": GPUS[:1], "virtual": False, "virtual_kind": None}, id="one GPU"),
    ],
)
def test_nccl_is_not_expected_in_the_log_of_a_single_physical_gpu(devices: dict[str, Any]) -> None:
    event = {"implementation": "nccl", "fallbacks": ["a reason"]}
    training = train_checks.collect(run_events(devices=devices, all_reduce=event))
    assert train_checks.fallback_reasons(training, None) == ["a reason"]


def test_the_result_has_the_all_reduce_with_its_transports() -> None:
    gpus = {"devices": GPUS, "virtual": False, "virtual_kind": None}
    training = train_checks.collect(run_events(devices=gpus, all_reduce={"implementation": "NCCL"}))
    log = train_checks.parse_nccl_log([A16, SHM])
    found = train_checks.build_result(train_checks.Report(OPTIONS, training=training, nccl=log), 5.0)["all_reduce"]
    assert found == {
        "implementation": "NCCL",
        "fallbacks": ["NCCL used SHM, not peer-to-peer transfers"],
        "nccl": {"version": "2.23.4", "transports": ["SHM"]},
    }
    in_check = train_checks.check_all_reduce(training, OPTIONS, log).found
    assert in_check == "sums [3.0, 3.0] by NCCL; NCCL used SHM, not peer-to-peer transfers"


# GPU activity


OWN = {100, 101}
Cell = tuple[str, int, str, tuple[int, ...]]


def activity_check(
    *cells: Cell, visible: str | None = None, physical: tuple[int, ...] = (0, 1), mig: str = "Disabled"
) -> Any:
    """Return the check of a recording from mark, GPU, utilisation and processes, a sample of each GPU a second."""
    rows, processes, seconds = [], [], dict.fromkeys(range(9), 0)
    for mark, gpu, busy, pids in cells:
        seconds[gpu] += 1
        where = {"seconds": f"{seconds[gpu]}.000", "gpu": str(gpu), "uuid": f"GPU-{gpu}a", "gpu_uuid": f"GPU-{gpu}a"}
        rows.append({**where, "mark": mark, "utilization_percent": busy, "mig_mode": mig})
        processes += [{**where, "pid": str(pid)} for pid in pids]
    training = train_checks.Training(devices=tuple({"name": "GPU", "physical": index} for index in physical))
    gpus = train_checks.gpu_activity(rows, processes)
    return train_checks.check_activity(train_checks.trained_gpus(training, visible, gpus), OWN, ["no driver"])


BEFORE: tuple[Cell, ...] = (("before", 0, "0", ()), ("before", 1, "99", (7,)), ("before", 2, "99", (7,)))
BUSY: Cell = ("during", 0, "80", (100,))


@pytest.mark.parametrize(
    ("during", "status", "text"),
    [
        pytest.param([("during", 1, "3", (101,))], "pass", "GPU 1: 3% by the training alone", id="both"),
        pytest.param([("during", 1, "2.9", (101,))], "fail", "GPU 1: at most 2.9% in 1 samples", id="nearly idle"),
        pytest.param([("during", 1, "9", (100, 101))], "pass", "9%", id="two replicas on a GPU"),
        pytest.param([("during", 1, "0", (101,)), ("during", 1, "9", (101,))], "pass", "9%", id="busy for a moment"),
        pytest.param(
            [("during", 1, "0", (101,)), ("during", 1, "90", (7,))], "fail", "0% by the training", id="idle alone"
        ),
        pytest.param([("during", 1, "90", (7,))], "fail", "processes 7, none of the training", id="other program"),
        pytest.param([("during", 1, "90", (7, 101))], "unknown", "shared with the processes 7", id="shared"),
        pytest.param([("during", 1, "90", ())], "unknown", "lists no process on it", id="hidden"),
        pytest.param(
            [("during", 1, "3", (101,)), ("during", 1, "90", (7,))], "pass", "3% by the training", id="just busy alone"
        ),
        pytest.param(
            [("during", 1, "90", (9, 7, 101)), ("during", 1, "90", (8,))],
            "unknown",
            "shared with the processes 7, 8, 9",
            id="shared with several",
        ),
        pytest.param([("during", 1, "3", (7,))], "fail", "3% by the processes 7", id="just busy with another"),
        pytest.param([("during", 1, "", (101,)), ("during", 1, "9", (101,))], "pass", "9%", id="a value is missing"),
        pytest.param([("during", 1, "", (101,))], "unknown", "no utilisation in 1 samples", id="no value"),
        pytest.param([("during", 1, "[N/A]", (101,))], "unknown", "no utilisation in 1 samples", id="not available"),
        pytest.param([("during", 1, "inf", (101,))], "unknown", "no utilisation in 1 samples", id="infinite"),
        pytest.param([], "unknown", "GPU 1: no utilisation in 0 samples", id="not sampled while training"),
        pytest.param([("after", 1, "80", (101,))], "unknown", "in 0 samples", id="only after"),
    ],
)
def test_each_gpu_must_be_busy_with_the_training(during: list[Cell], status: str, text: str) -> None:
    found = activity_check(*BEFORE, BUSY, *during)
    assert found.status == status
    assert text in found.found
    assert bool(found.remedy) == (status != "pass")
    assert found.found.startswith("GPU 0: 80% by the training alone; GPU 1: ")
    assert found.found.endswith("; no driver") == (status != "pass"), "errors of the recording explain a failure"


def test_missing_recording_is_unknown_with_its_reason() -> None:
    found = activity_check()
    assert (found.status, found.found) == ("unknown", "GPU 0: not recorded; GPU 1: not recorded; no driver")


@pytest.mark.parametrize(
    ("first", "second", "status"),
    [
        pytest.param(("0", "Disabled"), ("90", "Disabled"), "fail", id="failed and shared"),
        pytest.param(("90", "Disabled"), ("", "Enabled"), "unknown", id="shared and MIG"),
        pytest.param(("0", "Disabled"), ("", "Enabled"), "fail", id="failed and MIG"),
    ],
)
def test_the_worst_outcome_of_all_gpus_counts(first: tuple[str, str], second: tuple[str, str], status: str) -> None:
    where = {"mark": "during", "seconds": "1.000"}
    rows = [
        {**where, "gpu": str(gpu), "uuid": f"GPU-{gpu}", "utilization_percent": busy, "mig_mode": mig}
        for gpu, (busy, mig) in enumerate((first, second))
    ]
    gpus = train_checks.gpu_activity(rows, [])
    for order in (gpus, gpus[::-1]):
        found = train_checks.check_activity(order, OWN, [])
        assert (found.status, bool(found.remedy)) == (status, True)


def test_a_mig_instance_beside_a_busy_gpu_is_skipped() -> None:
    busy = {"index": 0, "uuid": "GPU-0", "mig": False, "samples": [(80.0, {100})]}
    found = train_checks.check_activity(["GPU MIG-1", busy], OWN, ["no driver"])
    assert (found.status, found.remedy) == ("skip", "")
    assert "no driver" not in found.found


def test_training_on_no_gpu_is_unknown() -> None:
    found = activity_check(*BEFORE, BUSY, physical=())
    assert (found.status, found.found) == ("unknown", "no GPU was trained on; no driver")


def test_a_position_that_cuda_does_not_show_names_no_gpu() -> None:
    found = activity_check(BUSY, visible="0", physical=(0, 1))
    assert found.found.startswith("GPU 0: 80% by the training alone; GPU at position 1: not recorded")


def test_spaces_between_visible_gpus_are_ignored() -> None:
    assert activity_check(*BEFORE, BUSY, visible="3, 0", physical=(1,)).status == "pass"


def test_devices_without_a_physical_gpu_are_not_looked_for() -> None:
    training = train_checks.Training(devices=({"name": "CPU:0", "physical": None}, {"name": "CPU:1"}))
    assert train_checks.trained_gpus(training, None, []) == []


def test_virtual_gpus_of_one_physical_gpu_are_that_gpu() -> None:
    assert activity_check(BUSY, physical=(0, 0)).found == "GPU 0: 80% by the training alone"


def test_processes_are_those_of_the_same_gpu_at_the_same_time() -> None:
    """The training's process was on the other GPU first, and on this one later."""
    found = activity_check(BUSY, ("during", 1, "80", (7,)), ("during", 1, "0", (101,)))
    assert found.found.startswith("GPU 0: 80% by the training alone; GPU 1: 0% by the training alone")


@pytest.mark.parametrize(
    ("visible", "physical", "busy"),
    [
        pytest.param(None, (1,), 1, id="index of nvidia-smi"),
        pytest.param("2,0", (0,), 2, id="position in CUDA_VISIBLE_DEVICES"),
        pytest.param("GPU-2a,GPU-1a", (1,), 1, id="UUID"),
        pytest.param("GPU-1", (0,), 1, id="prefix of a UUID"),
    ],
)
def test_trained_gpu_is_found_by_index_or_uuid(visible: str | None, physical: tuple[int, ...], busy: int) -> None:
    cells: list[Cell] = [("during", gpu, "90" if gpu == busy else "0", (100,)) for gpu in range(3)]
    found = activity_check(*cells, visible=visible, physical=physical)
    assert (found.status, found.found) == ("pass", f"GPU {busy}: 90% by the training alone")


@pytest.mark.parametrize("name", ["GPU-", "G", "PU-1a", "a", "GPU-1ab", "gpu-1a"])
def test_name_that_is_no_beginning_of_one_uuid_names_no_gpu(name: str) -> None:
    cells: list[Cell] = [("during", gpu, "90", (100,)) for gpu in range(3)]
    assert activity_check(*cells, visible=name, physical=(0,)).found.startswith(f"GPU {name}: not recorded")


@pytest.mark.parametrize("name", ["", "G", "GPU"])
def test_only_gpu_is_not_named_by_less_than_the_prefix_of_uuids(name: str) -> None:
    found = activity_check(BUSY, visible=f"9,{name},9", physical=(1,))
    assert found.found.startswith(f"GPU {name}: not recorded")


def test_mig_instances_are_skipped_with_the_reason() -> None:
    named = activity_check(*BEFORE, BUSY, visible="MIG-1234", physical=(0,))
    mode = activity_check(*BEFORE, ("during", 0, "", (100,)), physical=(0,), mig="Enabled")
    assert (named.status, mode.status) == ("skip", "skip")
    assert "MIG instance" in named.found
    assert "GPU 0: in MIG mode" in mode.found


# The result


# What smoke_train.py itself adds to the checks of a training on the CPU.
SUPERVISED = (
    train_checks.Check("data", "pass", "generated images", "CIFAR-10 records (auto)"),
    train_checks.Check("gpu-activity", "skip", "virtual replicas on the CPU: no GPU is used", "activity of every GPU"),
    train_checks.Check("gpu-errors", "skip", "virtual replicas on the CPU: no GPU is used", "no error was counted"),
)


def result(
    events: list[dict[str, Any]], options: Any = OPTIONS, more: tuple[Any, ...] = (), **outcome: Any
) -> dict[str, Any]:
    report = train_checks.Report(options, data={"kind": "simulated"}, training=train_checks.collect(events))
    report.checks = [*more, *checks(events, options, **outcome).values()]
    return json.loads(json.dumps(train_checks.build_result(report, 5.0), allow_nan=False))


def test_result_of_a_good_virtual_run() -> None:
    found = result(run_events(), more=SUPERVISED)
    assert (found["schema"], found["status"], found["virtual"], found["virtual_kind"]) == (2, "pass", True, "cpu")
    assert (found["replicas"], found["batch_size"], found["steps"]) == (2, 64, 30)
    assert (found["loss"]["first"], found["loss"]["last"]) == (2.25, 0.9)
    assert found["loss"]["history"] == [round(loss, 6) for loss in FALLING]
    assert (found["framework"], found["version"], found["seconds"]) == ("tensorflow", "2.21.0", 5.0)
    assert (found["devices"], found["ran"], found["data"]) == (CPUS, RAN, {"kind": "simulated"})
    assert (found["simulated"], found["monitor"], found["cluster"], found["mixed_precision"]) == ([], None, None, False)
    assert found["proves"].startswith("code, shapes and replica logic")
    assert found["images_per_second"] == pytest.approx(640)  # 64 images each tenth of a second
    assert "driver" in found["proves_not"]
    assert found["all_reduce"] == {"implementation": "CollectiveAllReduce (RING)", "fallbacks": [], "nccl": None}
    assert found["agreement"] == {
        "replicas": [1, 2],
        "losses": [AGREED, AGREED],
        "largest_relative_difference": 0.0,
        "gradients_differ": 1e-6,
        "tolerance": 2e-4,
    }
    assert [item["id"] for item in found["checks"]] == list(train_checks.CHECKS)


def test_a_check_that_is_not_reported_is_unknown_if_nothing_else_is_wrong() -> None:
    """It is no skip, by which the training would pass."""
    events = [event for event in run_events() if event["event"] != "all_reduce"]
    found = result(events, more=SUPERVISED)
    assert found["status"] == "unknown"
    assert [(item["id"], item["found"]) for item in found["checks"] if item["status"] == "unknown"] == [
        ("all-reduce", "not reported")
    ]


def test_shared_gpu_verifies_the_driver_but_not_the_speed_up() -> None:
    found = result(run_events(devices={"devices": GPUS, "virtual": True, "virtual_kind": "gpu"}))
    assert "driver" in found["proves"]
    assert "speed-up" in found["proves_not"]


def test_result_lists_the_checks_that_were_not_run() -> None:
    found = result([{"event": "missing_gpus", "visible": 0}], returncode=1)
    assert found["status"] == "fail"
    statuses = {item["id"]: item["status"] for item in found["checks"]}
    assert statuses == {**dict.fromkeys(train_checks.CHECKS, "skip"), "gpus-visible": "fail"}
    assert all("gpus-visible failed" in item["found"] for item in found["checks"] if item["status"] == "skip")


def test_the_reason_for_skipped_checks_is_the_first_failure_or_else_what_is_unknown() -> None:
    failed_checks = (train_checks.Check("data", "unknown", "x", "y"), train_checks.Check("training", "fail", "x", "y"))
    for more, reason in ((failed_checks, "training failed"), (failed_checks[:1], "data is unknown")):
        found = train_checks.build_result(train_checks.Report(OPTIONS, checks=list(more)), 1.0)
        assert {item["found"] for item in found["checks"] if item["status"] == "skip"} == {f"not run: {reason}"}
        assert found["status"] == more[-1].status


def test_result_of_a_run_without_events() -> None:
    found = train_checks.build_result(train_checks.Report(OPTIONS), 1.2345)
    assert (found["status"], found["version"], found["devices"], found["ran"]) == ("unknown", "", [], [])
    assert (found["replicas"], found["steps"], found["batch_size"], found["virtual"]) == (0, 0, 0, False)
    assert (found["all_reduce"], found["agreement"], found["virtual_kind"]) == (None, None, None)
    assert (found["proves"], found["proves_not"], found["images_per_second"]) == ("", "", None)
    assert found["loss"] == {"first": None, "last": None, "history": []}
    assert found["seconds"] == 1.23
    assert {item["status"] for item in found["checks"]} == {"unknown"}


def test_result_has_the_options_of_the_run() -> None:
    arguments = ["--cluster-workers", "a:1,b:1", "--cluster-index", "1", "--blocks", "3", "--mixed-precision"]
    found = result(run_events(), parse_arguments(["--framework", "tensorflow", "--train-steps", "30", *arguments]))
    assert found["cluster"] == {"workers": ["a:1", "b:1"], "index": 1}
    assert found["model"] == {"name": "ResNet-20", "blocks": 3}
    assert found["mixed_precision"] is True


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        pytest.param([0.0, 10.0, 11.0], 64.0, id="one step"),
        pytest.param([0.0, 10.0, 10.5, 12.0, 14.0], 48.0, id="three steps"),
        pytest.param([0.0, 10.0], None, id="warm-up alone"),
        pytest.param([0.0, 10.0, 10.0], None, id="no time"),
        pytest.param([], None, id="no step"),
    ],
)
def test_images_per_second_leave_out_the_warm_up(times: list[float], expected: float | None) -> None:
    training = train_checks.Training(times=tuple(times), trained={"batch_size": 64})
    assert train_checks.images_per_second(training) == expected
    assert train_checks.images_per_second(train_checks.Training(times=tuple(times))) is None


def test_a_comparison_that_was_cut_has_no_difference() -> None:
    found = result(run_events(agreement={"losses": [AGREED], "gradients_differ": math.inf}))["agreement"]
    assert (found["largest_relative_difference"], found["gradients_differ"], found["losses"]) == (None, None, [AGREED])


def test_nan_losses_make_valid_json() -> None:
    found = result(run_events(with_loss(29, math.nan), agreement={"losses": [AGREED, [math.nan] * 5]}))
    assert (found["loss"]["history"][-1], found["loss"]["last"]) == (None, None)
    assert found["agreement"]["losses"][1] == [None] * 5
    assert found["agreement"]["largest_relative_difference"] is None


@pytest.mark.parametrize(
    ("arguments", "strategy"),
    [
        pytest.param(["--framework", "tensorflow"], "MirroredStrategy", id="TensorFlow"),
        pytest.param(
            ["--framework", "tensorflow", "--cluster-workers", "a:1,b:1", "--cluster-index", "0"],
            "MultiWorkerMirroredStrategy",
            id="cluster",
        ),
        pytest.param(["--framework", "pytorch"], "DistributedDataParallel", id="PyTorch"),
    ],
)
def test_result_names_the_strategy(arguments: list[str], strategy: str) -> None:
    assert (
        result(run_events(), parse_arguments(["--framework", "tensorflow", "--train-steps", "30", *arguments]))[
            "strategy"
        ]
        == strategy
    )

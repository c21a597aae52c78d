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


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        pytest.param([A16, RING, P2P, P2P], {"version": "2.23.4", "transports": ["P2P"]}, id="P2P"),
        pytest.param([OLDER, SHM, NET], {"version": "2.7.6", "transports": ["NET", "SHM"]}, id="several"),
        pytest.param([A16, POINTER], {"version": "2.23.4", "transports": ["P2P"]}, id="one process"),
        pytest.param([A16], {"version": "2.23.4", "transports": []}, id="one GPU"),
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
    ],
)
def test_nccl_log_is_compared_with_the_worker(log: list[str], implementation: str, texts: list[str]) -> None:
    gpus = {"devices": GPUS, "virtual": False, "virtual_kind": None}
    training = train_checks.collect(run_events(devices=gpus, all_reduce={"implementation": implementation}))
    assert train_checks.fallback_reasons(training, train_checks.parse_nccl_log(log)) == texts


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
        pytest.param([("during", 1, "", (101,))], "unknown", "no utilisation in 1 samples", id="no value"),
        pytest.param([], "unknown", "GPU 1: no utilisation in 0 samples", id="not sampled while training"),
        pytest.param([("after", 1, "80", (101,))], "unknown", "in 0 samples", id="only after"),
    ],
)
def test_each_gpu_must_be_busy_with_the_training(during: list[Cell], status: str, text: str) -> None:
    found = activity_check(*BEFORE, BUSY, *during)
    assert found.status == status
    assert text in found.found
    assert bool(found.remedy) == (status != "pass")


def test_missing_recording_is_unknown_with_its_reason() -> None:
    found = activity_check()
    assert (found.status, found.found) == ("unknown", "GPU 0: not recorded; GPU 1: not recorded; no driver")


def test_failure_of_a_gpu_precedes_what_is_unknown_of_another() -> None:
    assert activity_check(*BEFORE, ("during", 0, "0", (100,)), ("during", 1, "90", ())).status == "fail"


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
    assert found["loss"]["first"] == pytest.approx(2.25)
    assert len(found["loss"]["history"]) == 30
    assert found["images_per_second"] == pytest.approx(640)  # 64 images each tenth of a second
    assert "driver" in found["proves_not"]
    assert found["all_reduce"] == {"implementation": "CollectiveAllReduce (RING)", "fallbacks": [], "nccl": None}
    assert found["agreement"]["largest_relative_difference"] == 0.0
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


def test_nan_losses_make_valid_json() -> None:
    found = result(run_events(with_loss(29, math.nan), agreement={"losses": [AGREED, [math.nan] * 5]}))
    assert found["loss"]["history"][-1] is None
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

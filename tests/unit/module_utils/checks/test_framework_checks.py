"""Running the frameworks' probe in an environment of ours, and judging what they have in common."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.base import command
from ansible_collections.gpuhost.stack.plugins.module_utils.base.command import Answer
from ansible_collections.gpuhost.stack.plugins.module_utils.checks import (
    framework_checks,
    framework_probe,
    model,
    verify,
)
from ansible_collections.gpuhost.stack.plugins.module_utils.checks.framework_probe import MARK
from ansible_collections.gpuhost.stack.plugins.module_utils.checks.model import CheckSpec
from ansible_collections.gpuhost.stack.plugins.module_utils.model import outcomes
from ansible_collections.gpuhost.stack.plugins.module_utils.model.framework_output import Output
from syrupy.assertion import SnapshotAssertion

from tests.unit.module_utils.checks.contexts import host, probe_output

SPEC = CheckSpec("a.b", measures="m", expected="e", skipped="s", remedy="r")
SPECS = (CheckSpec("x.version", "m", "e", "s", "r"), SPEC)


def test_probe_runs_without_a_shell_and_without_settings_of_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[list[str], Mapping[str, str]]] = []

    def run(argv: list[str], timeout: float, env: Mapping[str, str]) -> Answer:
        calls.append((argv, env))
        return Answer(0, b"", b"")

    monkeypatch.setenv("KERAS_BACKEND", "torch")
    monkeypatch.setenv("https_proxy", "http://proxy.example.org:3128")
    rows = [{"use": "dropped", "programs": "all", "name": "KERAS_*", "value": ""}]
    framework_checks.run_probe(host(tmp_path, run=run, user_settings=rows), "tensorflow", "/venv", {"TF": "2"})
    ((argv, env),) = calls
    names = ("KERAS_BACKEND", "https_proxy", "TF", "PATH")
    assert [env.get(name) for name in names] == [None, "http://proxy.example.org:3128", "2", "/usr/bin:/bin"]
    assert argv == ["/venv/bin/python", "-c", Path(framework_probe.__file__).read_text(), "tensorflow"]


# A torch that does what Triton does: compiles in the directory for temporary files, keeps the library in its cache, and
# loads it from there (triton/runtime/cache.py, build.py).
LOADS_FROM_ITS_CACHE = """#!/bin/sh
: > "$TRITON_CACHE_DIR/cuda_utils.so" && echo "$TRITON_CACHE_DIR $(ls "$TRITON_CACHE_DIR")"
"""


@pytest.mark.parametrize("users", [None, (), ("-u", "KERAS_BACKEND")], ids=["ours", "users", "users without one"])
def test_triton_loads_its_libraries_from_where_programs_may_be_run(
    tmp_path: Path, users: tuple[str, ...] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CIS 1.1.2: /tmp is mounted with noexec. A profile's or this process's own cache is not used either."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "users"))
    python = tmp_path / "environment" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(LOADS_FROM_ITS_CACHE)
    python.chmod(0o755)
    work = tmp_path / "work"
    work.mkdir()
    context = host(run=command.run, workspaces=("/nonexistent", str(work)))
    answers = [framework_checks.run_probe(context, "pytorch", str(python.parents[1]), users=users) for _ in range(2)]
    found = [answer.output.split() for answer in answers]
    assert [(Path(cache).parent, names) for cache, *names in found] == [(work, ["cuda_utils.so"])] * 2
    assert found[0] != found[1]  # nothing that the first one compiled
    assert list(work.iterdir()) == []


def test_probe_that_hangs_is_run_again_with_a_longer_limit() -> None:
    limits: list[float] = []

    def run(argv: list[str], timeout: float, env: Mapping[str, str]) -> Answer:
        limits.append(timeout)
        return Answer(command.TIMED_OUT if len(limits) == 1 else 0, b"", b"")

    assert framework_checks.run_probe(host(run=run), "pytorch", "/venv").exit_code == 0
    assert limits == [framework_checks.TIMEOUT, framework_checks.LONG_TIMEOUT]


def test_a_release_that_is_not_known_to_run_on_the_gpus_may_compile_for_an_hour() -> None:
    limits: list[float] = []

    def run(argv: list[str], timeout: float, env: Mapping[str, str]) -> Answer:
        limits.append(timeout)
        return Answer(0, b"", b"")

    warned = {"warnings": [{"code": "repository-not-read"}, {"code": framework_checks.UNPROVEN}]}
    for plan in ({"warnings": warned["warnings"][:1]}, warned):
        framework_checks.run_probe(host(run=run, plan=plan), "tensorflow", "/venv")
    assert limits == [framework_checks.TIMEOUT, framework_checks.TIMEOUT + 3600]


def test_parts_are_merged_and_other_lines_ignored() -> None:
    parts = [{"version": "2.21.0", "devices": []}, {"devices": ["/GPU:0"]}]
    lines = "".join(f"\n{MARK}{json.dumps(part)}\n" for part in parts)
    output = framework_checks.parse(Answer(0, ("a log line" + lines).encode(), b""))
    assert output == Output(version="2.21.0", devices=("/GPU:0",))


@pytest.mark.parametrize(
    ("printed", "message"),
    [
        ("nonsense", "Expecting"),
        ('{"devices": 2}', "the probe.devices: expected a list, found 2"),
        ('{"matmul": [{"ran_on": "cpu"}]}', r"the probe.matmul\[0\].device: missing"),
    ],
)
def test_part_that_is_not_the_probes_json_is_an_error(printed: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        framework_checks.parse(Answer(0, (MARK + printed).encode(), b""))


CRASHED = Answer(-11, b"", b"1\n2\n3\n4\nSegmentation fault\n")
HUNG, KILLED = Answer(command.TIMED_OUT, b"", b"/bin/bash did not end within 300 s"), Answer(-9, b"", b"")
SILENT = Answer(0, b"", b"")


def test_crash_before_a_part_is_a_failure_with_the_last_lines(snapshot: SnapshotAssertion) -> None:
    check = framework_checks.not_printed(SPEC, "PyTorch", CRASHED)
    assert (check.status, check.expected) == ("fail", "e")
    assert check.found == snapshot
    assert check.remedy == snapshot


def test_crash_in_the_convolution_names_a_second_cudnn(snapshot: SnapshotAssertion) -> None:
    spec = framework_checks.convolution_spec("pytorch")
    assert framework_checks.not_printed(spec, "PyTorch", CRASHED).remedy == snapshot


@pytest.mark.parametrize("answer", [HUNG, KILLED, SILENT], ids=["hung", "killed", "silent"])
def test_part_without_an_answer_is_unknown(answer: Answer) -> None:
    check = framework_checks.not_printed(SPEC, "PyTorch", answer)
    assert (check.status, answer.ending() in str(check.reason)) == ("unknown", True)


@pytest.mark.parametrize(
    ("answer", "statuses"),
    [
        (Answer(1, b"", b"ImportError: x"), ["fail", "unknown"]),
        (Answer(127, b"", b"/opt/tf/bin/python: No such file or directory"), ["fail", "unknown"]),
        (CRASHED, ["fail", "unknown"]),
        (HUNG, ["unknown", "unknown"]),
        (KILLED, ["unknown", "unknown"]),
        (SILENT, ["unknown", "unknown"]),
    ],
    ids=["import", "no environment", "crashed", "hung", "killed", "silent"],
)
def test_framework_that_is_not_imported(answer: Answer, statuses: list[str], snapshot: SnapshotAssertion) -> None:
    checks = framework_checks.not_imported(SPECS, "PyTorch", answer, "2.15.0")
    assert [(check.id, check.status) for check in checks] == list(zip(("x.version", "a.b"), statuses, strict=True))
    reason = "importing PyTorch: " + answer.ending()
    if statuses[0] == "fail":
        assert (checks[0].found, checks[0].expected, checks[0].remedy) == (reason, "2.15.0", model.REAPPLY)
        assert checks[1].reason == snapshot
    else:
        assert {check.reason for check in checks} == {reason}


@pytest.mark.parametrize(
    ("output", "answer", "text"),
    [
        ({"ended": True}, SILENT, None),
        ({"ended": True}, Answer(1, b"noise", b"error\n"), "the process ended after it computed: exit 1: error"),
        ({}, SILENT, "the process ended before it listed what computing loads: exit 0"),
        ({}, KILLED, "the process ended before it listed what computing loads: killed by signal 9"),
    ],
)
def test_end_of_the_process(output: dict[str, Any], answer: Answer, text: str | None) -> None:
    assert framework_checks.ended_early(probe_output(**output), answer) == text


@pytest.mark.parametrize(
    ("devices", "changes", "status", "reason"),
    [
        (["/GPU:0", "/GPU:1"], {}, "pass", None),
        (["/GPU:0"], {}, "fail", None),
        ([], {}, "fail", None),
        ([], {"expect_gpus": 0}, "skip", "no GPU is expected on this host"),
        (["/GPU:0"], {"expect_gpus": 0}, "fail", None),
        (["/GPU:0", "/GPU:1"], {"simulated": ["NVIDIA driver"]}, "pass", None),
    ],
)
def test_devices_are_counted(devices: list[str], changes: dict[str, Any], status: str, reason: str | None) -> None:
    context = host(**changes)
    check = framework_checks.devices(context, SPEC, "PyTorch", probe_output(devices=devices), SILENT)
    assert (check.status, check.found, check.reason) == (status, str(len(devices)), reason)
    assert check.expected == (None if status == "skip" else str(context.expect_gpus))


def test_devices_that_a_crash_prevented_are_a_failure() -> None:
    check = framework_checks.devices(host(), SPEC, "PyTorch", Output(), CRASHED)
    assert (check.status, check.expected) == ("fail", "2")


@pytest.mark.parametrize(("changes", "alone"), [({}, True), ({"expect_gpus": 0}, False)], ids=["GPUs", "none"])
def test_gpus_are_locked_while_the_probe_computes_on_them(changes: dict[str, Any], alone: bool) -> None:
    held: list[bool] = []

    def run(argv: list[str], timeout: float, env: Mapping[str, str]) -> Answer:
        held.append(context.gpus_alone.locked())
        return SILENT

    context = host(run=run, **changes)
    framework_checks.run_probe(context, "pytorch", "/venv")
    assert (held, context.gpus_alone.locked()) == ([alone], False)


def test_libraries_are_named_without_their_versions() -> None:
    output = probe_output(
        libraries=["/x/libnccl.so.2", "/x/libcudart.so.12", "/y/libcudart.so.12", "/x/libcufft.so.11"]
    )
    assert framework_checks.loaded_text(output) == "libcudart, libcufft, libnccl"
    assert framework_checks.missing_libraries(output) == ["libcublas", "libcudnn"]


@pytest.mark.parametrize(
    ("loaded", "text"),
    [
        ({"path": "/opt/env-1/lib/python3.11/site-packages/torch/lib/libtorch_cpu.so", "version": "2.15.0"},
         {"pytorch": "2.15.0 (env-1)"}),
        ({"path": "/opt/env-1/lib/python3.11/site-packages/torch/lib/libtorch_cpu.so", "version": None}, None),
        (None, None),
    ],
)  # fmt: skip
def test_loaded_framework_is_shown_with_its_environment(loaded: Any, text: dict[str, str] | None) -> None:
    assert framework_checks.loaded("pytorch", probe_output(loaded=loaded)) == text
    assert framework_checks.loaded("pytorch", Output()) is None


def result(device: str, difference: float = 1e-7, **more: Any) -> dict[str, Any]:
    return {"device": device, "ran_on": device, "difference": difference, **more}


GOOD = [result("cuda:0"), result("cuda:1")]
NAN = float("nan")
SIMULATED = {"simulated": ["NVIDIA driver 595.71.05"]}


@pytest.mark.parametrize(
    ("devices", "results", "changes", "status"),
    [
        (2, GOOD, {}, "pass"),
        (2, [result("cuda:0"), result("cuda:1", 3e-4)], {}, "fail"),
        (2, [result("cuda:0"), result("cuda:1", NAN)], {}, "fail"),
        (2, [result("cuda:0", NAN), result("cuda:1")], {}, "fail"),
        (2, [result("cuda:0"), result("cuda:1", ran_on="cpu")], {}, "fail"),
        (2, [result("cuda:0"), {"device": "cuda:1", "error": "out of memory"}], {}, "fail"),
        (2, GOOD[:1], {}, "fail"),
        (2, GOOD[:1] * 2, {}, "fail"),
        (2, [], {}, "fail"),
        (3, [*GOOD, result("cuda:2")], {}, "fail"),
        (1, GOOD[:1], {}, "fail"),
        (2, GOOD, SIMULATED, "pass"),
        (0, [result("cpu")], SIMULATED, "skip"),
        (0, [result("cpu")], {"expect_gpus": 0}, "skip"),
        (0, [result("cpu")], {}, "unknown"),
        (0, [result("cpu", 0.5)], SIMULATED, "fail"),
        (0, [result("cpu", NAN)], SIMULATED, "fail"),
        (0, [], SIMULATED, "unknown"),
    ],
    ids=[
        "two GPUs", "one wrong", "NaN last", "NaN first", "elsewhere", "error", "one of two", "one twice",
        "none of two", "three of two", "one listed", "simulated with GPUs", "CPU, simulated", "CPU, none expected",
        "CPU, two expected", "CPU wrong", "CPU NaN", "CPU silent",
    ],
)  # fmt: skip
@pytest.mark.parametrize("part", ["matmul", "convolution"])
def test_results_of_a_computation(
    part: str, devices: int, results: list[dict[str, Any]], changes: dict[str, Any], status: str
) -> None:
    spec = CheckSpec("pytorch." + part, measures="m", expected="e", skipped="s", remedy="r")
    output = probe_output(devices=[f"cuda:{n}" for n in range(devices)], **{part: results})
    check = framework_checks.computed(host(**changes), spec, "PyTorch", output, SILENT, 1e-5)
    assert check.status == status, check
    assert status in (outcomes.PASS, outcomes.FAIL) or check.reason


SAME = "the same code on the CPU: cpu differs by 1.0e-07"


@pytest.mark.parametrize(
    ("devices", "results", "changes", "status", "text"),
    [
        (2, [result("cuda:0", 1e-5), result("cuda:1", 2e-7)], {}, "pass",
         "cuda:0 differs by 1.0e-05; cuda:1 differs by 2.0e-07"),
        (2, [result("cuda:0"), result("cuda:1", ran_on="cpu")], {}, "fail",
         "cuda:0 differs by 1.0e-07; cuda:1 differs by 1.0e-07, ran on cpu"),
        (2, [result("cuda:0"), {"device": "cuda:1", "error": "out of memory"}], {}, "fail",
         "cuda:0 differs by 1.0e-07; cuda:1 out of memory"),
        (2, GOOD[:1], {}, "fail", "cuda:0 differs by 1.0e-07 (1 GPUs)"),
        (2, [], {}, "fail", "no result (0 GPUs)"),
        (0, [result("cpu", 0.5)], {}, "fail", "cpu differs by 5.0e-01"),
        (0, [result("cpu")], {}, "unknown", SAME),
        (0, [result("cpu")], SIMULATED, "skip", SAME),
        (0, [], SIMULATED, "unknown", "None"),
    ],
)  # fmt: skip
def test_texts_of_a_computation(
    devices: int, results: list[dict[str, Any]], changes: dict[str, Any], status: str, text: str
) -> None:
    spec = CheckSpec("pytorch.matmul", measures="m", expected="e", skipped="s", remedy="r")
    output = probe_output(devices=[f"cuda:{n}" for n in range(devices)], matmul=results)
    check = framework_checks.computed(host(**changes), spec, "PyTorch", output, SILENT, 1e-5)
    assert (check.status, str(check.found)) == (status, text)
    assert (check.expected, check.reason) == {
        ("pass", 2): ("each of 2 GPUs agrees to 1e-05 of the largest element", None),
        ("fail", 2): ("each of 2 GPUs agrees to 1e-05 of the largest element", None),
        ("fail", 0): ("the CPU agrees to 1e-05", None),
        ("skip", 0): (None, "the NVIDIA driver is simulated: no program can use a GPU here"),
        ("unknown", 0): (
            None,
            "PyTorch lists no GPU, see pytorch.devices" if results else "PyTorch computed nothing, not even on the CPU",
        ),
    }[status, devices]


@pytest.mark.parametrize(
    ("output", "changes", "gpus"),
    [({}, {}, 2), ({}, SIMULATED, 0), ({"devices": ["cuda:0"]}, SIMULATED, 1), ({"devices": ["cuda:0"]}, {}, 2)],
)
def test_computation_that_crashes_fails(
    output: dict[str, Any], changes: dict[str, Any], gpus: int, snapshot: SnapshotAssertion
) -> None:
    spec = CheckSpec("pytorch.matmul", measures="m", expected="e", skipped="s", remedy="r")
    check = framework_checks.computed(host(**changes), spec, "PyTorch", probe_output(**output), CRASHED, 1e-5)
    assert (check.status, "killed by signal 11" in str(check.found)) == ("fail", True)
    assert check.expected == snapshot


def test_checks_say_what_the_probe_computes() -> None:
    size, side = framework_probe.SIZE, framework_probe.FILTER
    assert f"{size} x {size} matrices" in framework_checks.matmul_spec("pytorch", "").measures
    spec = framework_checks.convolution_spec("pytorch")
    assert (spec.id, f"a {side} x {side} convolution" in spec.measures) == ("pytorch.convolution", True)
    assert framework_checks.matmul_spec("tensorflow", "Do it.").id == "tensorflow.matmul"
    assert framework_checks.matmul_spec("tensorflow", "Do it.").remedy.endswith(" Do it.")


@pytest.mark.parametrize(
    ("number", "version"),
    [(8907, "8.9.7"), (10000, "1.0.0"), (92800, "9.28.0"), (91002, "9.10.2"), (2708, "2.7.8"), (21703, "2.17.3"),
     (23203, "2.32.3"), ("2.30.7", "2.30.7"), (None, None)],
)  # fmt: skip
def test_version_numbers(number: Any, version: str | None) -> None:
    assert framework_checks.decoded(number) == version


@pytest.mark.parametrize("search_path", ["/opt/old", ""], ids=["set", "not set"])
def test_remedy_for_a_shadowed_library_names_the_search_path(search_path: str, snapshot: SnapshotAssertion) -> None:
    assert framework_checks.shadowed_remedy(probe_output(search_path=search_path), "PyTorch") == snapshot


def test_path_that_merely_begins_like_the_environments_is_foreign() -> None:
    libraries = ["/opt/tf-old/lib/libcudnn.so.9", "/opt/tf/lib/libcudart.so.12"]
    output = probe_output(prefix="/opt/tf", libraries=libraries)
    assert framework_checks.foreign_libraries(output) == ["libcudnn from /opt/tf-old/lib/libcudnn.so.9"]


def test_without_the_environments_directory_no_library_is_taken_for_its_own() -> None:
    with pytest.raises(ValueError, match="no directory of its environment"):
        framework_checks.foreign_libraries(probe_output(libraries=["/usr/lib/libcudnn.so.9"]))


@pytest.mark.parametrize(
    ("cudnn", "name", "foreign"),
    [
        (92800, "libcudnn_graph.so.9.28.0", False),
        (92800, "libcudnn_graph.so.9.27.0", True),
        (92800, "libcudnn_graph.so.9", True),
        (None, "libcudnn_graph.so.9.28.0", True),
        (92800, "libcudnn.so.9.28.0", True),
        (92800, "libcufft.so.9.28.0", True),
    ],
)
def test_only_a_part_of_the_same_cudnn_may_be_the_systems(cudnn: int | None, name: str, foreign: bool) -> None:
    output = probe_output(prefix="/opt/tf", libraries=["/usr/lib/" + name], called={"cudnn": cudnn})
    assert bool(framework_checks.foreign_libraries(output)) is foreign


def test_link_to_a_file_of_the_environment_is_the_environments(tmp_path: Path) -> None:
    own = tmp_path / "environment/libcudnn.so.9"
    own.parent.mkdir()
    own.touch()
    (tmp_path / "libcudnn.so.9").symlink_to(own)
    output = probe_output(prefix=str(own.parent), libraries=[str(tmp_path / "libcudnn.so.9")])
    assert framework_checks.foreign_libraries(output) == []


@pytest.mark.parametrize("framework", ["tensorflow", "pytorch"])
@pytest.mark.parametrize("damage", ["/etc/environment", "output"])
def test_what_cannot_be_read_makes_every_check_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, framework: str, damage: str
) -> None:
    """An /etc/environment that is a directory, and a part that is cut."""
    if damage == "/etc/environment":
        (tmp_path / "etc/environment").mkdir(parents=True)
    cut = Answer(0, (MARK + '{"version": "2.21.0"}\n' + MARK + '{"devices": [').encode(), b"")
    plan = {"components": {framework: {"version": "2.21.0", "cuda": "13.2"}}}
    group = verify.GROUPS[framework]
    monkeypatch.setattr(verify, "GROUPS", {framework: group})
    evidence = verify.verify(host(tmp_path, run=lambda *args: cut, plan=plan))
    assert {check["id"] for check in evidence["checks"]} == {spec.id for spec in group.CHECKS}
    assert {check["status"] for check in evidence["checks"]} == {"unknown"}
    assert evidence["status"] == "unknown"

"""gpuhost-verify on a host with real files and processes: what it compares, what it prints and how it ends."""

from __future__ import annotations

import json
import os
import re
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.base import command
from ansible_collections.gpuhost.stack.plugins.module_utils.state import applied
from ansible_collections.gpuhost.stack.plugins.module_utils.verdict import command_line
from syrupy.assertion import SnapshotAssertion

from tests.unit.module_utils.simulated_host import DRIVER, use_simulated_nvidia_smi
from tests.unit.module_utils.verdict.verified_host import (
    DAY,
    FATAL,
    FIRST,
    HARMLESS,
    LOADED,
    SECOND,
    WARNING,
    VerifiedHost,
    journal,
    utc,
)

Capture = pytest.CaptureFixture[str]
Change = Callable[[VerifiedHost], Any]


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> VerifiedHost:
    """Return a host whose checks have just passed, asked by `gpuhost-verify --fresh`."""
    use_simulated_nvidia_smi(monkeypatch)
    monkeypatch.setattr(socket, "gethostname", lambda: "gpu01")
    found = VerifiedHost(tmp_path)
    status = found.main("--fresh")
    assert status == 0, capsys.readouterr()
    assert found.recorded("last_result")["kernel_log"] == "2026-11-27T10:00:00.000001+0000"
    capsys.readouterr()
    found.commands.clear()
    return found


def printed(capsys: Capture) -> str:
    """Return what was printed, without what differs from run to run."""
    text = "".join(capsys.readouterr())
    return re.sub(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", "TIME", re.sub(r"\b\d+ seconds ago", "N seconds ago", text))


def document(host: VerifiedHost, capsys: Capture) -> dict[str, Any]:
    capsys.readouterr()
    host.main("--json")
    return dict(json.loads(capsys.readouterr().out))


def none_loaded(host: VerifiedHost) -> None:
    (host.root / "proc/driver/nvidia/version").unlink()
    (host.root / "sys/module/nvidia/version").unlink()


def reboot(host: VerifiedHost) -> None:
    host.write("proc/sys/kernel/random/boot_id", "1d60\n")


def without_journal(*messages: str) -> Change:
    def change(host: VerifiedHost) -> None:
        host.answer("journalctl", "")
        host.answer("dmesg", "".join(f"[{n + 5:5}.000001] {message}\n" for n, message in enumerate(messages)))

    return change


def expired_training(host: VerifiedHost) -> None:
    host.record("verified", evidence={"at": utc(DAY), "trainings": {"pytorch": {"finished": utc(31 * DAY)}}})


def deferred(age: float) -> Change:
    def change(host: VerifiedHost) -> None:
        host.check("cuda.devices", status="deferred", reason="programs use the GPUs: python3 (4242)")
        host.record("verified", evidence={"at": utc(age), "trainings": {}})

    return change


def waived(until: str) -> Change:
    def change(host: VerifiedHost) -> None:
        waiver = {"check": "gpu.ecc_errors", "reason": "replaced in May", "until": until, "gpu": None}
        reason = f"waived until {until}: replaced in May"
        host.check("gpu.ecc_errors", status="waived", reason=reason, found="GPU 1: dram_uncorrectable 5")
        host.record("verify_options", waivers=[waiver])

    return change


def accepted(change: Change) -> Change:
    """Return the change on a host with gpu_stack_unknown=warn."""

    def both(host: VerifiedHost) -> None:
        host.record("verify_options", unknown="warn")
        change(host)

    return both


# What has happened since the checks, and how gpuhost-verify, and with --prolog, ends.
CASES: dict[str, tuple[Change, int, int]] = {
    "nothing": (lambda host: None, 0, 0),
    "another module": (lambda host: host.load("590.44.01"), 2, 2),
    "no module": (none_loaded, 2, 2),
    "two versions of the module": (lambda host: host.write("sys/module/nvidia/version", "590.44.01\n"), 1, 0),
    "a module that does not say which": (lambda host: host.write("proc/driver/nvidia/version", "?\n"), 1, 0),
    "a GPU less": (lambda host: host.lose(SECOND), 2, 2),
    "a silent GPU": (lambda host: host.write(f"sys/bus/pci/devices/{FIRST}/config", "\udcff" * 8), 2, 2),
    "a GPU more": (lambda host: host.add_device("0000:07:00.0", "2335", "0x030200", "nvidia"), 1, 0),
    "a fatal Xid": (lambda host: host.log(LOADED, FATAL), 2, 2),
    "a harmless Xid": (lambda host: host.log(LOADED, HARMLESS), 0, 0),
    "an Xid to look at": (lambda host: host.log(LOADED, WARNING), 0, 0),
    "an unreadable kernel log": (lambda host: host.answer("journalctl", "", 1), 1, 0),
    "a fatal Xid in another log": (without_journal(LOADED, FATAL), 1, 0),
    "another log without one": (without_journal(LOADED), 0, 0),
    "a reboot": (reboot, 0, 0),
    "a reboot and a fatal Xid": (lambda host: (reboot(host), host.log(LOADED, FATAL)), 2, 2),
    "a failed check": (lambda host: host.check("gpu.nvlink", status="fail", found="GPU 0: link 3 down"), 2, 2),
    "an unknown check": (lambda host: host.check("gpu.nvlink", status="unknown", reason="nvidia-smi hung"), 1, 0),
    "an unknown check, accepted": (
        accepted(lambda host: host.check("gpu.nvlink", status="unknown", reason="nvidia-smi hung")),
        0,
        0,
    ),
    "an unreadable kernel log, accepted": (accepted(lambda host: host.answer("journalctl", "", 1)), 0, 0),
    "a warning": (lambda host: host.check("gpu.persistence", status="warn", found="off"), 0, 0),
    "a waived failure": (waived("2999-01-01"), 0, 0),
    "a waiver that has ended": (waived("2026-01-01"), 2, 2),
    "deferred checks": (deferred(DAY), 0, 0),
    "checks deferred too long": (deferred(31 * DAY), 1, 0),
    "checks deferred for a shorter age": (
        lambda host: (deferred(3 * DAY)(host), host.record("verify_options", max_age=2)),
        1,
        0,
    ),
    "an old training": (expired_training, 1, 0),
    "a failed training": (lambda host: host.training("fail", found="the loss rose"), 2, 2),
    "an unknown training": (lambda host: host.training("unknown", reason="killed"), 1, 0),
    "a training that passed": (lambda host: host.training("pass"), 0, 0),
    "a pending change": (lambda host: host.record("pending", since="2026-11-26T10:00:00Z"), 1, 0),
    "no record": (lambda host: (host.state_directory / "last_result.json").unlink(), 1, 0),
    "a damaged record": (lambda host: host.write("var/lib/gpuhost/last_result.json", "{"), 1, 0),
    "a record of a later gpuhost": (lambda host: host.write("var/lib/gpuhost/verified.json", '{"schema": 9}'), 1, 0),
    "nothing measured": (lambda host: host.record("last_result", checks={"a.b": {"status": "skip"}}), 1, 0),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_is_said_and_how_it_ends(
    host: VerifiedHost, capsys: Capture, snapshot: SnapshotAssertion, case: str
) -> None:
    change, status, prolog = CASES[case]
    if case == "a silent GPU":
        (host.root / f"sys/bus/pci/devices/{FIRST}/config").write_bytes(b"\xff" * 64)
    else:
        change(host)
    assert host.main() == status
    text = printed(capsys)
    assert len(text.splitlines()) <= 16
    assert host.main("--prolog") == prolog
    shown = [output.replace(str(host.root), "") for output in (text, printed(capsys))]
    assert shown == snapshot
    found = document(host, capsys)
    assert (found["exit_status"], found["host"]) == (status, "gpu01")
    assert [
        argv[0] for argv in host.commands if argv[0] not in ("journalctl", "dmesg")
    ] == []  # above all no nvidia-smi


def test_a_failure_names_what_and_since_when(host: VerifiedHost, capsys: Capture) -> None:
    host.lose(SECOND)
    host.load("590.44.01")
    found = {finding["id"]: finding for finding in document(host, capsys)["findings"]}
    assert found["host.gpus"]["outcome"] == "fail"
    assert f"{SECOND} is not on the PCI bus any more: 1 of 2" in found["host.gpus"]["text"]
    assert (
        found["host.module"]["text"] == f"NVIDIA's module 590.44.01 is loaded; {DRIVER} was when the host was checked"
    )


def test_many_findings_stay_on_one_screen(host: VerifiedHost, capsys: Capture, snapshot: SnapshotAssertion) -> None:
    for number in range(20):
        host.check(f"gpu.check_{number:02d}", status="fail", found="x" * 500)
    assert host.main() == 2
    text = printed(capsys)
    assert len(text.splitlines()) <= 16
    assert text == snapshot


def test_xids_before_the_checks_are_not_new(host: VerifiedHost, capsys: Capture) -> None:
    """The GPU was reset, which the checks have read from nvidia-smi: its message stays in the log."""
    host.record("last_result", kernel_log="2026-11-27T11:00:00.000001+0000")
    host.log(LOADED, FATAL)
    assert host.main() == 0
    reboot(host)  # then nothing of the log was known
    assert host.main() == 2


def test_the_journal_is_read_from_the_recorded_position_on(host: VerifiedHost) -> None:
    host.main()
    (argv,) = (argv for argv in host.commands if argv[0] == "journalctl")
    assert argv[-1] == "--since=@1795773599"


def test_a_container_whose_kernel_log_is_not_its_own_is_not_asked_for_it(host: VerifiedHost, capsys: Capture) -> None:
    host.check("gpu.xid_errors", status="skip", reason="the kernel log belongs to the machine that runs this container")
    host.log(LOADED, FATAL)
    host.commands.clear()
    assert host.main() == 0
    assert host.commands == []
    assert "not compared: the kernel log belongs to the machine" in capsys.readouterr().out


def test_records_of_an_earlier_release_are_read(host: VerifiedHost, capsys: Capture) -> None:
    """Which had no options of the checks, nor evidence: an Xid then has no meaning, and trainings no date."""
    (host.state_directory / "verify_options.json").unlink()
    host.write("var/lib/gpuhost/verified.json", '{"schema": 1}')
    assert host.main() == 0
    host.log(LOADED, FATAL)
    assert host.main() == 1
    assert "the record has no meaning of Xids" in capsys.readouterr().out
    assert host.main("--fresh") == 1
    assert "no options of the checks: run playbooks/verify.yml" in capsys.readouterr().err


def test_max_age_is_for_checks_and_trainings(host: VerifiedHost, capsys: Capture) -> None:
    assert (host.main("--max-age", "12h"), host.main("--prolog", "--max-age", "12h")) == (1, 1)  # the training
    assert (host.main("--max-age", "2d"), host.main("--prolog", "--max-age", "2d")) == (0, 0)
    host.record("last_result", at=utc(3 * DAY))
    assert (host.main("--max-age", "2d"), host.main("--prolog", "--max-age", "2d")) == (1, 1)
    assert host.main("--prolog") == 0
    host.record("last_result", at=utc(-DAY))
    assert host.main() == 1
    assert "in the future" in capsys.readouterr().out


def test_a_strict_prolog_ends_as_without_it(host: VerifiedHost) -> None:
    expired_training(host)
    assert (host.main("--prolog"), host.main("--prolog", "--strict"), host.main()) == (0, 1, 1)


def test_fresh_asks_every_check_and_records_what_they_find(host: VerifiedHost, capsys: Capture) -> None:
    host.lose(SECOND)
    before = host.recorded("last_result")
    assert host.main("--fresh") == 2
    assert "driver.gpu_count: " in capsys.readouterr().out
    after = host.recorded("last_result")
    assert (len(before["gpus"]), len(after["gpus"])) == (2, 1)
    assert after["checks"].keys() == before["checks"].keys()
    host.add_device(SECOND, "2335", "0x030200", "nvidia")
    assert host.main() == 2  # until the checks are asked again
    assert host.main("--fresh") == 0


def test_fresh_applies_waivers_that_have_not_ended(host: VerifiedHost, capsys: Capture) -> None:
    host.lose(SECOND)
    for until, status in (("2999-01-01", "waived"), ("2026-01-01", "fail")):
        host.record(
            "verify_options", waivers=[{"check": "driver.gpu_count", "reason": "x", "until": until, "gpu": None}]
        )
        host.main("--fresh")
        assert host.recorded("last_result")["checks"]["driver.gpu_count"]["status"] == status


def test_beside_damage_no_host_is_verified_and_the_checks_decide_how_it_ends(
    host: VerifiedHost, capsys: Capture
) -> None:
    host.record("verify_options", damage={f"file /{n}": f"file /{n} is missing" for n in range(5)})
    assert host.main() == 0
    text = capsys.readouterr().out
    assert text.startswith("gpu01: damaged; checked ")
    assert "damaged: file /0 is missing" in text
    assert "and 2 more that is damaged: run playbooks/gpu_host.yml" in text
    found = document(host, capsys)
    assert (found["status"], found["exit_status"], len(found["damage"])) == ("damaged", 0, 5)
    host.load("590.44.01")
    assert host.main() == 2
    assert capsys.readouterr().out.startswith("gpu01: failed; ")


def test_fresh_looks_for_damage_itself_but_not_for_what_is_accepted(host: VerifiedHost, capsys: Capture) -> None:
    """What a run of the playbooks left is recorded; then somebody changes two files, and somebody repairs them."""
    names = ("/etc/profile.d/cuda.sh", "/etc/modprobe.d/gpuhost-nouveau.conf")
    for name in names:
        host.write(name[1:], "as installed\n")
    parts = {"env_paths": {"fingerprint": "1", "watch": {"files": list(names)}}}
    applied.record(str(host.state_directory), parts, str(host.root), host.run)
    for name in names:
        host.write(name[1:], "changed\n")
    assert (host.main("--fresh"), document(host, capsys)["status"]) == (0, "damaged")
    assert [text.split()[1] for text in document(host, capsys)["damage"]] == sorted(names)
    host.record("verify_options", accept_damage=[f"file {names[0]}"])
    host.main("--fresh")
    assert [text.split()[1] for text in document(host, capsys)["damage"]] == [names[1]]
    host.write(names[1][1:], "as installed\n")
    assert (host.main("--fresh"), document(host, capsys)["status"]) == (0, "pass")


def test_a_record_that_cannot_be_compared_costs_no_result_of_the_checks(host: VerifiedHost, capsys: Capture) -> None:
    host.write("var/lib/gpuhost/applied.json", '{"schema": 1, "par')
    assert host.main("--fresh") == 1
    assert "the host cannot be compared with what the last run left: " in capsys.readouterr().err
    host.lose(SECOND)
    assert host.main("--fresh") == 2
    assert len(host.recorded("last_result")["gpus"]) == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="another user's rights need root")
def test_another_user_gets_no_verdict(host: VerifiedHost, capsys: Capture, snapshot: SnapshotAssertion) -> None:
    """As a real process of another user: only root may read the records."""
    for folder in [host.root, *host.root.parents]:
        if folder.stat().st_uid == 0 and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o055)
    child = os.fork()
    if child == 0:
        os.setgid(65534)
        os.setuid(65534)
        try:
            os._exit(host.main() + 10 * host.main("--fresh") + 100 * host.main("--prolog"))
        finally:
            os._exit(255)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 11


def test_what_another_user_reads(host: VerifiedHost, capsys: Capture, monkeypatch: pytest.MonkeyPatch,
                                 snapshot: SnapshotAssertion) -> None:  # fmt: skip
    def refuse(*_arguments: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("ansible_collections.gpuhost.stack.plugins.module_utils.base.store.read", refuse)
    assert (host.main(), host.main("--fresh")) == (1, 1)
    assert printed(capsys) == snapshot


@pytest.mark.parametrize(
    "words",
    [
        ("--strict",),
        ("--max-age", "30"),
        ("--prolog", "--json"),
        ("--prolog", "--fresh"),
        ("--health-check", "--fresh"),
        ("--prometheus", "/var/lib/x.txt"),
        ("--prologue",),
        ("now",),
    ],
    ids=" ".join,
)
def test_bad_usage(words: tuple[str, ...], capsys: Capture, snapshot: SnapshotAssertion) -> None:
    """Not with 2, which is a failure."""
    with pytest.raises(SystemExit) as ended:
        command_line.main(words)
    assert ended.value.code == 64
    assert capsys.readouterr().err.splitlines()[-1] == snapshot


def test_metrics_are_written_whole(host: VerifiedHost, tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    target = tmp_path / "metrics" / "gpuhost.prom"
    host.lose(SECOND)
    assert host.main("--prometheus", str(target)) == 2
    text = target.read_text()
    assert re.sub(r"(timestamp_seconds\S*) \d{10}\b", r"\1 TIME", text) == snapshot
    (checked,) = re.findall(r"^gpuhost_verify_checked_timestamp_seconds (\d+)$", text, re.MULTILINE)
    assert 0 <= time.time() - int(checked) < 60
    assert (target.stat().st_mode & 0o777, [path.name for path in target.parent.iterdir()]) == (0o644, ["gpuhost.prom"])


def test_metrics_that_cannot_be_written_are_said(host: VerifiedHost, capsys: Capture) -> None:
    assert host.main("--prometheus", "/proc/gpuhost.prom") == 1
    assert "gpuhost-verify: /proc/gpuhost.prom was not written: " in capsys.readouterr().err


def test_metrics_that_cannot_be_written_drain_no_node(host: VerifiedHost, capsys: Capture) -> None:
    """A prolog fails only on a failed check (docs/slurm.md), and nothing of the verdict is left out."""
    metrics = ("--prometheus", "/proc/gpuhost.prom")
    assert (host.main("--prolog", *metrics), host.main("--prolog", "--strict", *metrics)) == (0, 1)
    capsys.readouterr()
    assert host.main("--json", *metrics) == 1
    assert json.loads(capsys.readouterr().out)["status"] == "pass"
    host.lose(SECOND)
    assert (host.main("--prolog", *metrics), host.main(*metrics)) == (2, 2)


def test_an_unexpected_kernel_log_is_no_pass(host: VerifiedHost) -> None:
    """A journal with no kernel line, and a dmesg that hangs."""
    host.answers["dmesg"] = command.Answer(command.TIMED_OUT, b"", b"")
    host.answer("journalctl", "-- No entries --\n")
    assert host.main() == 1
    host.answer("journalctl", journal(LOADED).replace("2026-11-27T10", "2026-11-27T12"))
    assert host.main() == 0

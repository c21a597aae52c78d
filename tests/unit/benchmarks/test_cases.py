"""The commands of the cases and how their output is read; needs no host."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from benchmarks import adopt, cases, install, lab, train
from benchmarks.measure import Failed, Sample, Timing
from benchmarks.results import Options

RECAP = """
PLAY RECAP *********************************************************************
bench-1                    : ok=8    changed={}    unreachable=0    failed=0    skipped=7    rescued=0    ignored=0
bench-alias-002            : ok=8    changed=0    unreachable=0    failed=0    skipped=7    rescued=0    ignored=0
"""
PLAN = {
    "components": {
        "driver": {"packages": ["nvidia-driver-cuda=595.1-1"], "pinning_packages": ["nvidia-driver-pinning-595=595-1"]},
        "cuda": {"packages": ["cuda-toolkit-13-2=13.2.1-1"], "host_compilers": ["gcc", "g++"]},
        "cudnn": {"packages": ["libcudnn9=9.28-1"]},
        "nccl": None,
        "tensorflow": {"version": "2.21.0", "python": "3.11", "lock": "tensorflow-2.21.0-py3.11.txt"},
        "pytorch": None,
    },
    "repository": {"url": "http://repository.lab/x/", "key_url": "http://repository.lab/x/key.pub"},
}


# Logs of playbooks ------------------------------------------------------------------------------------------------


def test_changes_are_read_from_the_recap(tmp_path):
    assert lab.changes(RECAP.format(3)) == {"bench-1": 3, "bench-alias-002": 0}
    (tmp_path / "rerun.log").write_text(RECAP.format(0))
    lab.refuse_changes("rerun", tmp_path)


@pytest.mark.parametrize(
    ("log", "message"), [(RECAP.format(3), r"bench-1 \(3\)"), ("skipping: no hosts matched", "no host")]
)
def test_rerun_with_changes_is_refused(tmp_path, log, message):
    (tmp_path / "rerun.log").write_text(log)
    with pytest.raises(Failed, match=message):
        lab.refuse_changes("rerun", tmp_path)


def test_changes_by_a_peer_are_noted(tmp_path):
    timings = {"peer": Timing((Sample(1.0, 1.0, 1),))}
    assert cases.peer_notes("rerun", {}, tmp_path) == []
    for count, notes in ((0, []), (3, ["rerun: the peer reports 3 changes per host in every run"])):
        (tmp_path / "peer.log").write_text(RECAP.format(count))
        assert cases.peer_notes("rerun", timings, tmp_path) == notes


def test_peer_runs_on_the_same_inventory():
    peer = Path(__file__)
    (command,) = cases.peer_command(Options(1, (1,), peer, ("--skip-tags", "x")), "--limit", "bench-1")
    assert command.argv[1:] == (str(peer), "-i", "inventories/bench", "--skip-tags", "x", "--limit", "bench-1")
    assert cases.peer_command(Options(1, (1,)), "--limit", "bench-1") == []


def test_measured_runs_use_their_own_reports_and_no_python_path():
    assert lab.ENVIRONMENT["GPUHOST_REPORTS"] == str(lab.PROJECT / ".cache/bench/reports")
    assert "PYTHONPATH" not in lab.ENVIRONMENT
    assert lab.ENVIRONMENT["PYTHONDONTWRITEBYTECODE"] == ""


def test_rerun_measures_the_documented_command_and_subtracts_nothing(tmp_path, monkeypatch):
    """The README's command, as it is; every ratio is one of two whole runs."""
    walls = {"ping": 1.0, "floor": 2.0, "rerun_documented": 3.0, "rerun_with_checks": 2.5, "rerun": 1.5,
             "import_tensorflow": 1.8}  # fmt: skip
    commands = {}

    def in_turn(found, runs, logs):
        commands.update({command.name: command.argv for command in found})
        for command in found:
            (tmp_path / f"{command.name}.log").write_text(RECAP.format(0))
        return {name: Timing(tuple(Sample(wall, 1.0, 1) for _ in range(runs))) for name, wall in walls.items()}

    monkeypatch.setattr(lab, "LOGS", tmp_path)
    monkeypatch.setattr(cases, "in_turn", in_turn)
    found = cases.rerun(Options(3, (1,)))
    readme = (lab.PROJECT / "README.md").read_text()
    assert commands["rerun_documented"][1:] == (
        "playbooks/gpu_host.yml", "-i", "inventories/bench", "--limit", "bench-1",
    )  # fmt: skip
    assert "ansible-playbook playbooks/gpu_host.yml -i inventories/lab" in readme
    assert {name: ratio.median for name, ratio in found.ratios.items()} == {
        "rerun_documented_over_floor": 1.5,
        "rerun_documented_over_ping": 3.0,
        "rerun_over_floor": 0.75,
        "rerun_over_ping": 1.5,
        "rerun_with_checks_over_floor": 1.25,
        "import_tensorflow_over_floor": 0.9,
    }


def test_fleet_and_plan_are_measured_after_a_round_that_does_not_count(tmp_path, monkeypatch):
    """As the page says; only first_install has no such round."""
    rounds = []

    def in_turn(commands, runs, logs, warm_up=1):
        rounds.append((runs, warm_up))
        (tmp_path / "plan_1000_hosts.log").write_text("7")
        return {command.name: Timing((Sample(1.0, 1.0, 1),) * runs) for command in commands}

    for name, replacement in (
        ("LOGS", tmp_path), ("accept_many", lambda: None), ("fleet", str), ("refuse_changes", lambda *_words: None),
    ):  # fmt: skip
        monkeypatch.setattr(lab, name, replacement)
    monkeypatch.setattr(cases, "in_turn", in_turn)
    cases.fleet(Options(5, (1, 20)))
    cases.plan(Options(5, (1,)))
    assert rounds == [(3, 1), (3, 1), (5, 1), (3, 1)]


def test_the_first_plan_is_measured_without_the_clone_and_the_caches_of_earlier_runs(tmp_path, monkeypatch):
    """Each round clones into another folder, and pip and uv have their caches there; no case of the lab is needed."""
    run, folders = [], []

    def once(command, log):
        run.append((command.name, command.argv[-1] if command.name == "clone" else command.argv[1:]))
        folders.append(command.folder)
        assert list(command.folder.iterdir()) == []
        for name in ("XDG_CACHE_HOME", "PIP_CACHE_DIR", "UV_CACHE_DIR"):
            assert Path(command.environment[name]).is_relative_to(command.folder)
        return Sample(2.0 if command.name == "clone" else 5.0, 1.0, 1)

    monkeypatch.setattr(lab, "LOGS", tmp_path)
    monkeypatch.setattr(adopt, "once", once)
    found = adopt.adopt(Options(2, (1,)))
    plan = ("--distro", "ubuntu-24.04", "--gpu", "NVIDIA H200")
    assert run == [("clone", "gpuhost"), ("first_plan", plan)] * 2
    assert folders[0] == folders[1] != folders[2] == folders[3]
    assert found.ratios == {"adopt_seconds": 7.0}
    assert found.figures["first_plan"]["wall_seconds"] == 5.0
    assert "adopt" not in cases.NEEDS_LAB


# A fleet ----------------------------------------------------------------------------------------------------------


def test_fleet_names_are_connections_to_one_host(tmp_path, monkeypatch):
    stanza = "Host {}\n  HostName 10.0.0.{}\n  Port 22\n  User admin\n"
    state = tmp_path / ".lab/bench"
    state.mkdir(parents=True)
    (state / "ssh_config").write_text(stanza.format("bench-1", 1) + "\n" + stanza.format("bench-2", 2))
    monkeypatch.setattr(lab, "PROJECT", tmp_path)
    monkeypatch.setattr(lab, "CACHE", tmp_path / "cache")
    inventory = Path(lab.fleet(12))
    hosts = yaml.safe_load(inventory.read_text())["gpu_hosts"]["hosts"]
    assert len(hosts) == 12
    (options,) = {host["ansible_ssh_common_args"] for host in hosts.values()}
    for name in ("bench-alias-000", "bench-alias-011"):
        argv = ["ssh", "-G", *options.split(), name]
        output = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
        assert "\nhostname 10.0.0.1\n" in output
        assert "\nuser admin\n" in output


def test_fleet_without_bench_1_is_refused(tmp_path, monkeypatch):
    (tmp_path / ".lab/bench").mkdir(parents=True)
    (tmp_path / ".lab/bench/ssh_config").write_text("Host bench-2\n  HostName 10.0.0.2\n")
    monkeypatch.setattr(lab, "PROJECT", tmp_path)
    monkeypatch.setattr(lab, "CACHE", tmp_path / "cache")
    with pytest.raises(Failed, match="no bench-1"):
        lab.fleet(3)


# The manual commands -----------------------------------------------------------------------------------------


def test_manual_commands_install_the_plan_in_order():
    lines = install.manual_commands(PLAN).splitlines()
    commands = [line for line in lines if line.startswith(("apt", "/opt"))]
    assert commands == [
        "apt-get update",
        "apt-get install -y --no-install-recommends nvidia-driver-pinning-595=595-1 python3-venv",
        "apt-get install -y --no-install-recommends nvidia-driver-cuda=595.1-1 cuda-toolkit-13-2=13.2.1-1 "
        "libcudnn9=9.28-1 gcc g++",
        "apt-mark hold nvidia-driver-cuda cuda-toolkit-13-2 libcudnn9",
        "/opt/gpuhost/uv/bin/pip install --quiet --require-hashes -r /root/bench/uv.txt",
        "/opt/gpuhost/uv/bin/uv venv --quiet --no-project --python=3.11 --python-preference=system "
        "/opt/gpuhost/tensorflow",
        "/opt/gpuhost/uv/bin/uv pip sync --quiet --require-hashes --python=/opt/gpuhost/tensorflow/bin/python "
        "/root/bench/tensorflow-2.21.0-py3.11.txt",
    ]
    assert any("http://repository.lab/x/key.pub" in line for line in lines)


@pytest.mark.parametrize("warm_up", [False, True])
def test_manual_commands_stop_at_the_first_failure(warm_up):
    text = install.manual_commands(PLAN, warm_up)
    assert text.startswith("set -eu\n")
    subprocess.run(["sh", "-n"], input=text, text=True, check=True)


def test_warm_up_downloads_without_unpacking():
    text = install.manual_commands(PLAN, warm_up=True)
    assert "--download-only nvidia-driver-cuda=595.1-1" in text
    assert "--link-mode=symlink" in text
    assert "apt-mark" not in text
    plain = install.manual_commands(PLAN)
    assert "--download-only" not in plain
    assert "symlink" not in plain


def test_warm_up_lists_the_cached_files_of_the_environment(tmp_path):
    """The environment links to uv's cache, except for its Python, which is the system's."""
    cached, library = tmp_path / "var/cache/gpuhost/uv/archive/a", tmp_path / "environment/lib"
    for folder in (cached, library):
        folder.mkdir(parents=True)
    (cached / "one.so").write_text("")
    (library / "one.so").symlink_to(cached / "one.so")
    (library / "python").symlink_to(sys.executable)
    (line,) = [line for line in install.manual_commands(PLAN, warm_up=True).splitlines() if "realpath" in line]
    places = ("/opt/gpuhost/tensorflow", str(library)), (install.DOWNLOADED, str(tmp_path / "downloaded.txt"))
    for there, here in (*places, ("^/var/cache/", f"^{tmp_path}/var/cache/")):
        assert there in line
        line = line.replace(there, here)
    subprocess.run(["sh", "-c", line], check=True)
    assert (tmp_path / "downloaded.txt").read_text() == f"{cached / 'one.so'}\n"


@pytest.mark.parametrize(
    ("component", "more"), [("driver", {"apt_components": ["non-free"], "packages": []}), ("pytorch", {"version": "2"})]
)
def test_plan_that_needs_other_commands_is_refused(component, more):
    plan = {**PLAN, "components": {**PLAN["components"], component: more}}
    with pytest.raises(Failed, match="the plan needs others"):
        install.manual_commands(plan)


def test_differing_packages_are_noted():
    assert install.differences({"a 1", "b 1"}, {"a 1", "b 1"}) == []
    assert install.differences({"a 1", "b 1"}, {"b 1", "c 2"}) == [
        "first_install: installed only by hand: a 1",
        "first_install: installed only by the playbook: c 2",
    ]


# Training -------------------------------------------------------------------------------------------------------


def test_both_sides_train_with_the_same_settings():
    smoke, keras = (dict(pairs(command)) for command in train.commands().values())
    shared = set(smoke) & set(keras)
    assert {"--batch-size", "--blocks", "--learning-rate", "--seed", "--data-dir"} <= shared
    assert {name: smoke[name] for name in shared} == {name: keras[name] for name in shared}
    assert (smoke["--train-steps"], smoke["--virtual-gpus"]) == (keras["--steps"], keras["--replicas"])


def test_options_of_the_training_exist():
    words = train.commands()["smoke_train"].split()[2:]
    code = "import sys, train_options; train_options.parse_arguments(sys.argv[1:])"
    folder = lab.PROJECT / "roles/smoke_train/files"
    answer = subprocess.run([sys.executable, "-c", code, *words], cwd=folder, capture_output=True, text=True)
    assert (answer.returncode, answer.stderr) == (0, "")


def test_the_training_starts_with_the_files_that_are_copied(tmp_path, monkeypatch):
    def put(host, folder, files):
        for name, text in files.items():
            (tmp_path / name).write_text(text)
        raise Failed("copied")

    monkeypatch.setattr(lab, "put", put)
    with pytest.raises(Failed, match="copied"):
        train.train(Options(1, (1,), None, ()))
    answer = subprocess.run(
        [sys.executable, "-I", tmp_path / "smoke_train.py", "--help"], capture_output=True, text=True
    )
    assert (answer.returncode, answer.stderr) == (0, "")


def pairs(command: str) -> list[tuple[str, str]]:
    words = command.split()[2:]
    return list(zip(words[::2], words[1::2], strict=True))


def test_rate_is_read_from_the_last_line_and_needs_all_replicas():
    output = "TensorFlow starts\n" + json.dumps({"images_per_second": 321.5, "replicas": train.REPLICAS, "x": 1})
    assert train.images_per_second("keras", output) == 321.5
    with pytest.raises(Failed, match="found 1 replicas, expected 2"):
        train.images_per_second("keras", json.dumps({"images_per_second": 1.0, "replicas": 1}))


def test_training_rates_are_compared_by_round(monkeypatch):
    """The first pair is the warm-up. The machine's speed halves after the next round."""
    rates = iter([900.0, 1.0, 100.0, 100.0, 60.0, 50.0, 50.0, 45.0, 40.0, 45.0])
    monkeypatch.setattr(lab, "put", lambda host, folder, files: None)
    monkeypatch.setattr(
        lab, "ssh", lambda host, command: json.dumps({"images_per_second": next(rates), "replicas": train.REPLICAS})
    )
    result = train.train(Options(4, (1,), None, ()))
    ratio = result.ratios["train_over_keras"]
    assert ratio.rounds == pytest.approx((100 / 100, 60 / 50, 50 / 45, 40 / 45))
    assert ratio.median == pytest.approx((1.0 + 50 / 45) / 2)
    assert ratio.of_medians == pytest.approx(55 / 47.5)
    assert result.figures["smoke_train"]["runs"] == [100.0, 60.0, 50.0, 40.0]


# Planning ------------------------------------------------------------------------------------------------


def test_planning_is_measured_as_whole_processes(tmp_path, monkeypatch):
    monkeypatch.setattr(lab, "LOGS", tmp_path)
    monkeypatch.setattr(cases, "HOSTS_AT_ONCE", 2)
    found = cases.plan(Options(1, (1,)))
    assert set(found.ratios) == {"plan_seconds", "plan_1000_hosts_seconds"}
    assert found.figures["plan"]["runs"] == 3
    assert found.figures["plan_1000_hosts"]["cpu_seconds"] > 0
    assert "2 kinds of host" in found.notes[0]


def test_first_installs_alternate_on_bare_hosts(monkeypatch):
    done, walls = [], iter([10.0, 11.0, 20.0, 24.0])
    monkeypatch.setattr(lab, "lab", lambda word: done.append(word))
    monkeypatch.setattr(lab, "planned_for", lambda host: PLAN)
    monkeypatch.setattr(lab, "applied_to", lambda host: PLAN)
    monkeypatch.setattr(lab, "put", lambda *_: None)
    monkeypatch.setattr(lab, "ssh", lambda host, command: "a 1 installed\n" if "dpkg-query" in command else "")

    def once(command, log):
        done.append(command.name)
        return Sample(next(walls) if command.name != "warm-up" else 99.0, 1.0, 1)

    monkeypatch.setattr(install, "once", once)
    result = install.first_install(Options(2, (1,)))
    bare = ["down", "up"]
    assert done == ["up", "warm-up", *([*bare, "bare", *bare, "first_install"] * 2)]
    assert result.ratios["first_install_over_bare"].rounds == pytest.approx((1.1, 1.2))
    assert result.figures["bare"]["runs"] == 2
    assert len(result.notes) == 1, "no difference between the installed packages"


def test_the_verdict_is_asked_on_the_installed_host(monkeypatch):
    commands = []

    def in_turn(found, runs, logs):
        commands.extend(found)
        return {command.name: Timing((Sample(0.4, 0.1, 1),) * runs) for command in found}

    monkeypatch.setattr(cases, "in_turn", in_turn)
    result = cases.verify_on_host(Options(runs=1, hosts=()))
    assert result.ratios == {"gpuhost_verify_seconds": 0.4}
    assert commands[0].argv[-2:] == ("bench-1", "sudo -n sh -c gpuhost-verify")
    assert "verify_on_host" in cases.NEEDS_STACK

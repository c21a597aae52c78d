"""script/plan: its options, JSON and exit statuses."""

from __future__ import annotations

import io
import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.loader import CATALOG_FOLDER
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.plans import plan_for_probe
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.probe import Probe
from ansible_collections.gpuhost.stack.plugins.plugin_utils.plan_command import plan_cli
from ansible_collections.gpuhost.stack.plugins.plugin_utils.plan_command.plan_cli import main
from ansible_collections.gpuhost.stack.plugins.plugin_utils.plan_command.plan_options import HOST_OPTIONS, parser

from tests.unit.frozen_catalog import FROZEN_FOLDER, frozen_catalog
from tests.unit.plugin_utils.planning.planning_cases import PROBE

PROGRAM = Path(__file__).resolve().parents[4] / "script/plan"


@pytest.fixture(autouse=True)
def _frozen(monkeypatch):
    monkeypatch.setattr(plan_cli, "CATALOG_FOLDER", FROZEN_FOLDER)


def run(*arguments):
    out, err = io.StringIO(), io.StringIO()
    status = main(arguments, out, err)
    return status, out.getvalue(), err.getvalue()


def test_the_documented_command():
    status, out, err = run(
        "--distro",
        "ubuntu-24.04",
        "--gpu",
        "NVIDIA H200",
        "--gpu",
        "10de:2330",
        "--gpu",
        "cc:9.0",
        "--python",
        "3.12",
        "--request",
        "cuda=12.9",
        "--request",
        "tensorflow=2.21",
        "--kernel",
        "6.8",
        "--json",
    )
    made = json.loads(out)
    assert (status, err, made["ok"]) == (0, "", True)
    assert [g["compute_capability"] for g in made["gpus"]] == ["9.0"] * 3
    assert made["components"]["cuda"]["version"] == "12.9"
    assert made["components"]["tensorflow"]["version"] == "2.21.0"


@pytest.mark.parametrize(("distro", "is_named"), [("ubuntu-22.04", False), ("ubuntu-24.04", True)])
def test_no_headers_are_planned_of_a_python_that_the_archive_does_not_have(monkeypatch, distro, is_named):
    """Ubuntu 22.04 has Python 3.12 of deadsnakes alone, and its archive no python3.12-dev."""
    monkeypatch.setattr(plan_cli, "CATALOG_FOLDER", CATALOG_FOLDER)
    asked = ("--gpu", "H100", "--python", "3.12", "--request", "pytorch=auto", "--why")
    status, out, err = run("--distro", distro, *asked)
    assert (status, err, "gcc" in out, "python3.12-dev" in out) == (0, "", True, is_named)


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (["--distro", "debian-12", "--gpu", "Tesla M60"], 0),
        (["--distro", "debian-12", "--gpu", "Tesla M60", "--request", "cuda=13.2"], 1),
        (["--distro", "debian-12"], 1),
        (["--distro", "debian-12", "--gpu", "T4", "--request", "driver_kernel_modules=proprietary"], 0),
        (["--distro", "debian-12", "--gpu", "B200", "--request", "driver_kernel_modules=proprietary"], 1),
        (["--distro", "debian-12", "--gpu", "T4", "--request", "gpu_stack_keep_cuda=1"], 0),
        (["--distro", "debian-12", "--gpu", "T4", "--request", "keep_cuda=0"], 2),
        (["--distro", "debian-12", "--gpu", "T4", "--python", "3.14"], 0),
        (["--distro", "debian-12", "--gpu", "T4", "--python", "3.14", "--request", "pytorch=none"], 1),
        (["--distro", "plan9", "--gpu", "T4"], 1),
        (["--distro", "debian-13", "--gpu", "10de:2204", "--kernel", "6.14.11-2-pve"], 1),
        (["--distro", "debian-13", "--gpu", "10de:2204", "--next-kernel", "6.14.11-2-pve"], 1),
        (["--distro", "ubuntu-24.04", "--gpu", "10de:2b85", "--kernel", "6.17.11-061711-generic"], 0),
        (["--distro", "ubuntu-24.04", "--gpu", "10de:2684", "--kernel", "5.15.167.4-microsoft-standard-WSL2"], 1),
        (["--distro", "ubuntu-24.04", "--gpu", "10de:2684", "--kernel", "6.8.0-1030-azure"], 0),
        (["--gpu", "T4"], 2),
        (["--distro", "debian-12", "--gpu", "Voodoo 2"], 2),
        (["--distro", "debian-12", "--gpu", "cc:4.2"], 2),
        (["--distro", "debian-12", "--gpu", "T4", "--request", "cuda"], 2),
        (["--distro", "debian-12", "--gpu", "T4", "--request", "cuda="], 0),
        (["--distro", "bookworm", "--gpu", "T4"], 2),
        (["--distro", "debian-12", "--gpu", "8xT4"], 0),
        (["--distro", "debian-12", "--gpu", "0xT4"], 2),
        (["--distro", "debian-12", "--gpu", "T4", "--request", "colour=red"], 2),
        (["--distro", "debian-12", "--gpu", "T4", "--python", "three"], 2),
        (["--distro", "debian-12", "--gp", "T4"], 2),
        (["--help"], 0),
    ],
)
def test_exit_status(arguments, status, capsys):
    assert run(*arguments)[0] == status
    capsys.readouterr()


def test_a_described_kernel_of_wsl_is_refused_as_a_probed_one():
    """github.com/microsoft/WSL2-Linux-Kernel names them so."""
    host = ("--distro", "ubuntu-24.04", "--gpu", "RTX 4090", "--kernel", "6.6.87.2-microsoft-standard-WSL2")
    (problem,) = json.loads(run(*host, "--json")[1])["problems"]
    assert problem["code"] == "wsl"
    assert "kernel 6.6.87.2-microsoft-standard-WSL2" in problem["message"]


def test_problems_are_printed_with_remedies():
    status, out, _ = run("--distro", "debian-12", "--gpu", "GTX 1080", "--request", "gpu_stack_cuda=13.2")
    assert status == 1
    assert "gpu-dropped-by-cuda" in out
    assert "remedy:" in out


def test_one_branch_that_supports_a_gpu_is_one():
    _status, out, _err = run("--distro", "ubuntu-24.04", "--gpu", "GTX 580")
    assert "it no longer supports Fermi GPUs; branch 390 supports it" in out


def test_a_described_device_that_is_unknown_has_no_address():
    status, out, _err = run("--distro", "debian-12", "--gpu", "10de:ffff")
    assert status == 1
    assert "problem  unknown-gpu: PCI id 10de:ffff is not in the catalog" in out


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("noble", "ubuntu-24.04"),
        ("Ubuntu 24.04", "ubuntu-24.04"),
        ("debian12", "debian-12"),
        ("debian-12.5", "debian-12"),
    ],
)
def test_another_spelling_of_a_distribution(text, meant):
    status, _out, err = run("--distro", text, "--gpu", "T4")
    assert (status, err) == (2, f"script/plan: --distro {text!r}; did you mean {meant}?\n")


def test_all_wrong_requests_are_listed_at_once():
    status, _out, err = run("--distro", "debian-12", "--gpu", "T4", "--request", "cude=13", "--request", "nccl=v2")
    assert status == 2
    assert "did you mean cuda?" in err
    assert "gpu_stack_nccl is 'v2'" in err


def test_one_value_given_twice_is_no_contradiction():
    assert run("--distro", "debian-12", "--gpu", "T4", "--request", "cuda=13", "--request", "gpu_stack_cuda=13")[0] == 0


def test_what_a_word_was_taken_for_is_a_warning():
    status, out, _err = run("--distro", "debian-12", "--gpu", "T4", "--request", "cuda=newest")
    assert status == 0
    assert "warning  request-interpreted: gpu_stack_cuda is newest, which means latest" in out


# The plan of a real host -------------------------------------------------------------------------------------------


@pytest.fixture(name="probe_file")
def _probe_file(tmp_path):
    """A host as its evidence records it: two H200 with driver 550 loaded, which no option here describes."""
    probe = {**PROBE, "driver": {"loaded": {"version": "550.163.01"}, "nouveau_loaded": False, "nvidia_smi": None}}
    path = tmp_path / "probe.json"
    path.write_text(json.dumps(probe))
    return path


@pytest.mark.parametrize(
    ("request_", "problem", "ends"),
    [
        ({}, "kernel-headers-missing", "Refused: 1 problem on this host"),
        ({"driver": "none"}, "", "Plan: "),
        ({"driver": "none", "cuda": "13.2"}, "driver-too-old-for-cuda", "No plan: "),
    ],
    ids=["the host refuses it", "a plan", "no plan"],
)
def test_the_answer_for_a_probe_is_the_hosts_own_as_text_and_as_json(probe_file, request_, problem, ends):
    words = ["--probe", str(probe_file), *(f"--request={name}={value}" for name, value in request_.items())]
    status, out, err = run(*words, "--json")
    made = json.loads(out)
    own = plan_for_probe(Probe.from_json(json.loads(probe_file.read_text())), request_, frozen_catalog())
    assert made["components"] == json.loads(json.dumps(own.to_json()["components"]))
    assert (status, err, made["ok"]) == (1 if problem else 0, "", not problem)
    as_text, text, err = run(*words, "--why")
    assert (as_text, err, ends in text) == (status, "", True)
    for kind in ("problem", "warning"):
        assert re.findall(f"^{kind}  ([a-z-]+): ", text, re.MULTILINE) == [
            found["code"] for found in made[f"{kind}s"] if found["code"] != "repository-not-read"
        ]
    assert [found["code"] for found in made["problems"]] == [problem] * bool(problem)


def test_the_next_command_has_the_request_and_the_saved_versions(probe_file, tmp_path):
    saved = tmp_path / "saved&versions.yml"
    words = ["--request=driver=none", "--request=gpu_stack_tensorflow=none"]
    assert run("--probe", str(probe_file), *words, "--save-versions", str(saved))[0] == 0
    _status, out, _err = run("--probe", str(probe_file), *words, "--versions", str(saved))
    command = shlex.split(out.rpartition("Next: ")[2].partition("   (")[0])
    given = ["gpu_stack_driver=none", "gpu_stack_tensorflow=none", f"gpu_stack_versions_file={saved}"]
    assert [word for word in command if "=" in word] == given
    assert command[:4] == ["ansible-playbook", "playbooks/gpu_host.yml", "-i", "inventories/lab"]


@pytest.mark.parametrize(
    ("gpus", "is_board"),
    [
        *((gpus, True) for gpus in ("8xH100", "8x10de:2330", "8xH200", "8xH20", "8xA100", "8xA800-SXM4-80GB")),
        *((gpus, True) for gpus in ("8xB200", "8xB300", "16xV100-SXM3-32GB")),
        *((gpus, False) for gpus in ("4xH100", "8xH100 PCIe", "8xH200 NVL", "8xA100 80GB PCIe", "8xL40S", "8xA30")),
    ],
)
def test_gpus_of_a_board_with_switches_are_asked_for_them(gpus, is_board):
    """Boards: Fabric Manager user guide, NVSwitch-based systems; following the advice plans Fabric Manager."""
    words = ("--distro", "ubuntu-24.04", "--gpu", gpus, "--request", "tensorflow=none", "--json")
    made = json.loads(run(*words)[1])
    asked = [found for found in made["warnings"] if found["code"] == "switches-not-described"]
    assert (len(asked), made["components"]["fabric"]) == (int(is_board), None)
    assert "switches-not-described" not in run(*words, "--request", "fabric=none")[1]
    for warning in asked:
        advice = re.search(r"add (--pci) (\S+):", warning["message"])
        followed = json.loads(run(*words, *advice.groups())[1])
        assert "switches-not-described" not in [found["code"] for found in followed["warnings"]]
        assert followed["components"]["fabric"]["version"] == followed["components"]["driver"]["version"]


def test_a_probe_may_come_from_a_pipe(probe_file, tmp_path):
    """As from `ssh HOST cat probe.json`: it can be read once."""
    file = tmp_path / "versions.yml"
    words = [PROGRAM, "--probe", "/dev/stdin", "--request", "driver=none", "--save-versions", file]
    done = subprocess.run(words, input=probe_file.read_text(), capture_output=True, text=True)
    kept = subprocess.run([*words[:2], probe_file, *words[3:-2]], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == kept.stdout != ""
    assert "distribution: debian-12" in file.read_text()


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--distro", "debian-12"),
        ("--gpu", "T4"),
        ("--python", "3.12"),
        ("--kernel", "6.8"),
        ("--loaded-driver", "580.95.05"),
    ],
)
def test_a_probe_and_a_described_host_are_bad_usage(probe_file, option, value):
    status, out, err = run("--probe", str(probe_file), option, value)
    assert (status, out) == (2, "")
    assert option in err


def test_every_option_that_describes_a_host_is_listed():
    """An option is either one of HOST_OPTIONS or known here not to describe a host, so that no new one is forgotten."""
    others = {"help", "version", "request", "probe", "why", "json", "matrix", "versions", "save_versions"}
    assert {action.dest for action in parser()._actions} == {*HOST_OPTIONS, *others}


def test_saved_versions_are_those_of_the_plan(tmp_path):
    file, host = tmp_path / "versions.yml", ["--distro", "ubuntu-24.04", "--gpu", "H200", "--json"]
    status, saved, err = run(*host, "--request", "cuda=12.9", "--save-versions", str(file))
    assert (status, err) == (0, "")
    status, again, _err = run(*host, "--versions", str(file))
    assert status == 0
    parts = [json.loads(text)["components"] for text in (saved, again)]
    assert [part["cuda"]["version"] for part in parts] == ["12.9", "12.9"]
    assert parts[0] == parts[1]
    assert json.loads(run(*host)[1])["components"]["cuda"]["version"] != "12.9"


def test_a_plan_with_problems_saves_nothing(tmp_path):
    file = tmp_path / "versions.yml"
    assert run("--distro", "ubuntu-24.04", "--gpu", "H200", "--request", "cuda=9", "--save-versions", str(file))[0] == 1
    assert not file.exists()


@pytest.mark.parametrize("option", ["--versions", "--save-versions"])
def test_a_file_of_versions_in_no_folder_is_bad_usage(tmp_path, option):
    path = tmp_path / "none/versions.yml"
    status, out, err = run("--distro", "ubuntu-24.04", "--gpu", "H200", option, str(path))
    assert (status, out) == (2, "")
    assert f"script/plan: {option} {path}: No such file or directory" in err


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "No such file"),
        ("", "Expecting value"),
        (b"\xff\xfe", "codec"),
        ("[" * 100_000, "maximum recursion depth"),
        ("[]", "probe"),
        ("{}", "gpus"),
        ('{"gpus": [], "distribution": "debian-12"}', "distribution"),
        ('{"gpus": []}', "/etc/os-release"),
    ],
)
def test_a_file_that_is_no_probe(tmp_path, content, says):
    path = tmp_path / "probe.json"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    status, out, err = run("--probe", str(path))
    assert (status, out) == (2, "")
    assert str(path) in err
    assert says in err
    assert "reports/RUN/HOST/probe.json" in err


@pytest.mark.parametrize("request_", ["cuda", "cuda=13.", "expect_gpus"])
def test_a_number_of_thousands_of_digits_is_no_version(request_):
    asked = f"{request_}{'' if '=' in request_ else '='}{'9' * 5000}"
    status, out, err = run("--distro", "debian-12", "--gpu", "H100", "--request", asked)
    assert (status, out) == (2, "")
    assert f"gpu_stack_{request_.partition('=')[0]} is '" in err
    assert "expected " in err


@pytest.mark.parametrize("option", ["--gpu", "--pci", "--python", "--kernel", "--next-kernel", "--loaded-driver"])
def test_what_describes_no_host_is_refused_by_its_length(option):
    given = {"--distro": "debian-12", "--gpu": "H100", option: f"6.{'9' * 5000}"}
    status, out, err = run(*(word for pair in given.items() for word in pair))
    assert (status, out) == (2, "")
    assert err == f"script/plan: {option} '6.999999999999999999'...: 5,002 characters; expected at most 1000\n"


def test_a_loaded_driver_limits_a_plan_that_keeps_it():
    host = ["--distro", "ubuntu-24.04", "--gpu", "H200", "--request", "driver=none", "--request", "cuda=13", "--json"]
    status, out, _err = run(*host, "--loaded-driver", "550.163.01")
    assert status == 1
    assert [p["code"] for p in json.loads(out)["problems"]] == ["driver-too-old-for-cuda"]
    assert "the loaded driver is 550.163.01" in out
    assert run(*host, "--loaded-driver", "580.95.05")[0] == 0


@pytest.mark.parametrize("version", ["580", "latest", "580.", "5.80.1"])
def test_a_loaded_driver_is_a_whole_version(version):
    status, _out, err = run("--distro", "ubuntu-24.04", "--gpu", "H200", "--loaded-driver", version)
    assert status == 2
    assert f"--loaded-driver '{version}'" in err


@pytest.mark.parametrize(
    ("distribution", "secure_boot", "source", "warned"),
    [
        ("ubuntu-24.04", "on", "prebuilt", False),
        ("ubuntu-24.04", "off", "dkms", False),
        ("debian-12", "on", "dkms", True),
        ("debian-12", "off", "dkms", False),
    ],
)
def test_secure_boot_as_a_user_types_it(distribution, secure_boot, source, warned):
    words = ["--distro", distribution, "--gpu", "NVIDIA H200", "--secure-boot", secure_boot, "--json"]
    done = subprocess.run([PROGRAM, *words], cwd="/", capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    made = json.loads(done.stdout)
    assert made["components"]["driver"]["module_source"] == source
    assert ("secure-boot" in [warning["code"] for warning in made["warnings"]]) == warned


def test_the_next_kernel_as_a_user_types_it():
    words = ["--distro", "ubuntu-24.04", "--gpu", "NVIDIA H200", "--json"]
    words += ["--kernel", "6.8.0-71-generic", "--next-kernel", "6.8.0-90-generic"]
    done = subprocess.run([PROGRAM, *words], cwd="/", capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    names = ["linux-headers-6.8.0-71-generic", "linux-headers-6.8.0-90-generic", "linux-headers-generic"]
    assert json.loads(done.stdout)["components"]["driver"]["kernel_headers"] == names


@pytest.mark.parametrize("option", ["--kernel", "--next-kernel"])
@pytest.mark.parametrize(
    "release", ["", "noble", "6.8.0-90-generic\n", "Linux 6.8.0-90-generic", "6.8.0-90-generic #91"]
)
def test_what_is_no_release_of_a_kernel_is_bad_usage(option, release):
    """Part of uname -a, or what it printed with the line's end: there are no headers of that name."""
    status, out, err = run("--distro", "ubuntu-24.04", "--gpu", "H200", option, release)
    assert (status, out) == (2, "")
    assert f"{option} {release!r}: expected a version such as 6.8.0-90-generic" in err


def test_a_state_that_secure_boot_does_not_have():
    words = ["--distro", "debian-12", "--gpu", "NVIDIA H200", "--secure-boot", "enabled"]
    done = subprocess.run([PROGRAM, *words], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert "--secure-boot" in done.stderr
    assert "'on', 'off'" in done.stderr


@pytest.mark.parametrize(
    ("distribution", "request_", "planned", "shown"),
    [
        ("ubuntu-24.04", "driver=595.99.02", "595", "595.99.02"),  # whatever the archive has; this is what is known
        ("debian-12", "driver_source=distro", "535", "535.309.01"),
        ("ubuntu-24.04", "driver=595.91.07", "595.91.07", "595.91.07"),
    ],
)
def test_the_version_shown_is_the_exact_one_where_it_is_known(distribution, request_, planned, shown):
    host = ["--distro", distribution, "--gpu", "H200", "--request", request_]
    _status, text, _err = run(*host)
    line = next(line for line in text.splitlines() if "NVIDIA driver" in line)
    assert line.split()[3] == shown
    made = json.loads(run(*host, "--json")[1])
    assert made["components"]["driver"]["version"] == planned
    assert next(r["choice"] for r in made["reasons"] if r["component"] == "driver") == shown

"""No TensorFlow works on the host: PyTorch is installed, trained with and verified in its place, and a run says why.

The tests run in order, after converge and a second run that changed nothing.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog import lock_texts

OWN = "/opt/gpuhost"
RECORDS = "/var/lib/gpuhost"
# A release that runs on a Tesla M60, made for Python 3.9 to 3.12.
REQUESTED = ("-e", "gpu_stack_tensorflow=2.16.2")

# testinfra moves tests without a host to the end; here the order matters.
pytestmark = pytest.mark.usefixtures("host")


@pytest.fixture(scope="module")
def verified(as_root) -> dict[str, Any]:
    """Return the record of the verified configuration."""
    return json.loads(as_root.file(f"{RECORDS}/verified.json").content_string)


@pytest.fixture(scope="module")
def rerun(playbook) -> str:
    """Run the main job once more and return what it printed."""
    return playbook("gpu_host").stdout


def lines(text: str, beginning: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith(beginning)]


def why(text: str) -> None:
    """Assert that a text gives both reasons: the only release for the GPU has no wheel, the newest no code."""
    assert "no release works here" in text
    assert "TensorFlow 2.16.2 is made for Python 3.9, 3.10, 3.11, 3.12; this host has Python 3.13" in text
    assert re.search(r"TensorFlow 2\.\d+\.\d+ has no code for Tesla M60 \(compute capability 5\.2\)", text)


def test_nothing_in_the_inventory_names_a_framework(host):
    asked = {name for name in host.ansible.get_variables() if re.match(r"gpu_stack_(tensorflow|pytorch)", name)}
    assert asked == set()
    assert "Debian GNU/Linux 13" in host.file("/etc/os-release").content_string
    # The system's own Python, and the GPUs as the simulated driver reports them.
    assert host.run_expect([0], "/usr/bin/python3 --version").stdout.startswith("Python 3.13.")
    assert host.run_expect([0], "nvidia-smi -L").stdout.count("Tesla M60") == 2


def test_a_rerun_changes_nothing_and_does_not_train_again(rerun, reports, verified):
    assert re.search(r"^fallback-maxwell\s*: .*changed=0 .*failed=0", rerun, re.MULTILINE), rerun[-2000:]
    training = json.loads((reports / "newest/fallback-maxwell/smoke_train_pytorch.json").read_text())
    assert training["status"] == "reused"
    assert training["finished"] == verified["evidence"]["trainings"]["pytorch"]["finished"]


def test_the_plan_has_pytorch_in_place_of_tensorflow_and_says_why(rerun, reports):
    plan = json.loads((reports / "newest/fallback-maxwell/plan.json").read_text())
    assert plan["problems"] == []
    assert plan["request"]["tensorflow"] == "auto"
    assert plan["request"]["pytorch"] == "fallback"
    assert plan["components"]["tensorflow"] is None
    assert plan["components"]["pytorch"]["python"] == "3.13"
    because = {reason["component"]: reason["because"] for reason in plan["reasons"]}
    why(because["tensorflow"])
    assert "in place of TensorFlow" in because["pytorch"]


def test_the_report_says_why(rerun, reports):
    (line,) = lines((reports / "newest/report.md").read_text(), "- TensorFlow is left out: ")
    why(line)
    (host,) = json.loads((reports / "newest/report.json").read_text())["hosts"]
    rows = {row["component"]: row for row in host["components"]}
    why(rows["tensorflow"]["left_out"])
    assert (rows["pytorch"]["requested"], rows["pytorch"]["left_out"]) == ("fallback", "")
    assert host["status"] == "verified"


def test_the_shipped_lock_was_installed_and_no_tensorflow(as_root, verified):
    pytorch = verified["plan"]["components"]["pytorch"]
    lock = lock_texts.find(pytorch["lock"], Path("roles/pytorch_env/files"))
    assert lock is not None, pytorch
    pinned = lock_texts.pins(lock.read_text(), pytorch["python"], "x86_64")
    assert pinned["torch"] == pytorch["version"]
    listing = as_root.run_expect([0], f"{OWN}/uv/bin/uv pip freeze --python {OWN}/pytorch/bin/python").stdout
    assert dict(line.split("==") for line in listing.split()) == pinned
    code = "import torch; print(torch.__version__, torch.version.cuda, torch.ones(3).sum().item())"
    version, cuda, total = as_root.run_expect([0], f"{OWN}/pytorch/bin/python -c '{code}'").stdout.split()
    assert (version.split("+")[0], cuda, total) == (pytorch["version"], pytorch["cuda"], "3.0")
    assert not as_root.file(f"{OWN}/tensorflow").exists
    assert as_root.run_expect([0], f"ls {OWN}/environments").stdout.split() == [
        Path(as_root.file(f"{OWN}/pytorch").linked_to).name
    ]


def test_the_host_is_verified_by_a_training_on_logical_devices(as_root, verified):
    assert not as_root.file(f"{RECORDS}/pending.json").exists
    assert {name for name, part in verified["plan"]["components"].items() if part} == {"driver", "cuda", "pytorch"}
    evidence = verified["evidence"]
    assert set(evidence["trainings"]) == {"pytorch"}
    assert {name for name, status in evidence["checks"].items() if status == "fail"} == set()
    for name in (
        "pytorch.version",
        "pytorch.built_for_cuda",
        "pytorch.cuda_libraries",
        "driver.gpu_count",
        "cuda.compile_link_run",
    ):
        assert evidence["checks"].get(name) == "pass", (name, evidence["checks"])
    result = json.loads(as_root.file(f"{RECORDS}/smoke_train/result.json").content_string)
    assert (result["framework"], result["status"], result["replicas"]) == ("pytorch", "pass", 2)
    assert (result["strategy"], result["virtual"], result["virtual_kind"]) == ("DistributedDataParallel", True, "cpu")
    assert "NCCL and speed" in result["proves_not"]
    passed = {check["id"] for check in result["checks"] if check["status"] == "pass"}
    assert {"replicas", "all-reduce", "loss-finite", "loss-falls", "replicas-agree", "same-as-one-replica"} <= passed


def test_what_is_simulated_is_named_in_the_report(reports):
    text = (reports / "newest/report.md").read_text()
    for part in ("PCI devices (2 x Tesla M60)", "nvidia-smi, daemon and kernel module are simulated", "only its name"):
        assert part in text


def test_a_tensorflow_that_was_asked_for_is_refused_with_the_reason_and_nothing_is_changed(
    playbook, reports, state, differences
):
    before = state()
    done = playbook("gpu_host", *REQUESTED, expect=2)
    assert "python-not-supported" in done.stdout
    said = " ".join(done.stdout.split())
    assert "TensorFlow 2.16.2 is made for Python 3.9, 3.10, 3.11, 3.12; this host has Python 3.13" in said
    plan = json.loads((reports / "newest/fallback-maxwell/plan.json").read_text())
    assert [problem["code"] for problem in plan["problems"]] == ["python-not-supported"]
    assert all(problem["remedy"] for problem in plan["problems"])
    assert differences(before, state()) == []


def test_after_the_refusal_the_default_run_still_has_nothing_to_do(playbook):
    done = playbook("gpu_host")
    assert re.search(r"^fallback-maxwell\s*: .*changed=0 .*failed=0", done.stdout, re.MULTILINE), done.stdout[-2000:]

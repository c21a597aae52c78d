"""What users get in their environment: found by running the programs in it, and with a reason only where there is one.

The host is a directory: its files set variables, its shell reads them, its programs are real processes.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.checks import (
    cuda_checks,
    model,
    pytorch_checks,
    tensorflow_checks,
)
from ansible_collections.gpuhost.stack.plugins.module_utils.model import outcomes
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia import nvidia_smi
from syrupy.assertion import SnapshotAssertion

from tests.unit.matrix import faults
from tests.unit.matrix import host as at
from tests.unit.matrix.host import Host

STACK = ("fail", model.STACK)


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    """A healthy host, whose nvidia-smi is the one in its own directory."""
    host = Host(tmp_path)
    monkeypatch.setattr(nvidia_smi, "find", lambda: str(host.path(at.NVIDIA_SMI)))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    return host


def differing(host: Host, group: Any = tensorflow_checks) -> dict[str, model.Check]:
    """Return the checks that do not pass."""
    host.save()
    return {check.id: check for check in group.run(host.context()) if check.status != outcomes.PASS}


def told(host: Host, check: model.Check) -> str:
    """Return what a user reads of a check."""
    texts = (check.status, check.cause, check.found, check.setting, check.remedy)
    return "\n".join(str(text) for text in texts if text).replace(str(host.root), "")


def runs(host: Host) -> int:
    """Return how often TensorFlow was started, which a file of the host counts."""
    return len(host.path("started").read_text().splitlines())


def count(host: Host) -> None:
    host.wrap(f"{at.TENSORFLOW}/bin/python", f'echo >> {host.path("started")}\nexec "$REAL" "$@"\n')


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("etc/environment", "LANG=C\nPYTHONPATH=/x\n"),
        ("etc/security/pam_env.conf", "PYTHONPATH DEFAULT=/x\n"),
        ("etc/security/pam_env.conf", "PYTHONPATH \\\n DEFAULT=/x OVERRIDE=${PYTHONPATH}\n"),
        ("etc/environment", "PYTHONPATH=/x#ros\n"),
        ("etc/environment", "LANG=C\nPYTHONPATH=\\\n/x\n"),
        ("etc/profile.d/ros.sh", "export PYTHONPATH=/x:$PYTHONPATH\n"),
    ],
)
def test_warning_names_what_users_get_and_the_variable_and_the_file(
    host: Host, path: str, text: str, snapshot: SnapshotAssertion
) -> None:
    host.write("x/numpy/__init__.py", "")
    host.write(path, text)
    ((name, check),) = differing(host).items()
    assert (name, check.status, check.cause) == ("tensorflow.version", outcomes.WARN, None)
    assert told(host, check) == snapshot


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("etc/environment", "PYTHONPATH = /x\n"),
        ("etc/environment", "export\tPYTHONPATH=/x\n"),
        ("etc/security/pam_env.conf", "PYTHONPATH DEFAULT=/x # for ROS\n"),
    ],
)
def test_a_line_that_pam_env_ignores_is_no_reason(host: Host, path: str, text: str) -> None:
    host.write("x/numpy/__init__.py", "")
    host.write(path, text)
    assert differing(host) == {}


def test_the_named_file_is_the_one_that_has_the_value(host: Host) -> None:
    host.write("x/numpy/__init__.py", "")
    host.write("etc/environment", "PYTHONPATH=/x\n")
    host.write("etc/security/pam_env.conf", "PYTHONPATH DEFAULT=/y OVERRIDE=${PYTHONPATH}\n")
    assert "PYTHONPATH=/x in /etc/environment, line 1" in str(differing(host)["tensorflow.version"].found)


def test_reason_is_found_among_others_in_a_few_runs(host: Host) -> None:
    """Of eight variables, two are the reason, one after the other."""
    innocent = "".join(f"OMP_{name}=1\n" for name in ("A", "B", "C", "D", "E", "F"))
    host.write("x/numpy/__init__.py", "")
    host.write("etc/environment", f"{innocent}KERAS_BACKEND=torch\nPYTHONPATH=/x\n")
    count(host)
    (check,) = differing(host).values()
    assert check.found is not None
    assert "KERAS_BACKEND=torch in /etc/environment, line 7; PYTHONPATH=/x in /etc/environment, line 8" in check.found
    assert "OMP_" not in check.found
    assert runs(host) <= 12


def test_healthy_host_runs_each_program_once(host: Host) -> None:
    """A locale, the paths of this collection and what is on no list are no reason for a second run."""
    host.write("etc/environment", "PATH=/usr/local/bin:/usr/bin:/bin\nLANG=de_DE.UTF-8\nEDITOR=vi\n")
    host.write(at.PROFILE, "# Managed by gpuhost (role env_paths)\nexport CUDA_HOME=/usr/local/cuda\n")
    count(host)
    assert differing(host) == {}
    assert runs(host) == 1


@pytest.mark.parametrize("path", ["root/.bashrc", "root/.profile", "root/.bash_profile", "root/.pam_environment"])
def test_files_of_one_user_are_not_read(host: Host, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does what they set reach the programs through the environment of gpu_verify."""
    monkeypatch.setenv("HOME", str(host.root / "root"))
    monkeypatch.setenv("PYTHONPATH", "/x")
    host.wrap(at.BASH, f'[ ! -e "$HOME/{Path(path).name}" ] || . "$HOME/{Path(path).name}"\n. "$REAL"\n')
    host.write("x/numpy/__init__.py", "")
    host.write(path, "export PYTHONPATH=/x\n")
    assert differing(host) == {}


def harmless_library_path(host: Host) -> None:
    host.write("etc/profile.d/old.sh", "export LD_LIBRARY_PATH=/opt/empty\n")


# Each known cause where it is present and something of ours is broken: what is broken, and what fails then.
NOT_THE_REASON: dict[str, tuple[Callable[[Host], None], Callable[[Host], None], str, str]] = {
    "PYTHONPATH": (faults.python_path, faults.tensorflow_broken, "tensorflow.version", model.REAPPLY),
    "KERAS_BACKEND": (faults.keras_backend, faults.tensorflow_broken, "tensorflow.version", model.REAPPLY),
    "sitecustomize": (
        lambda host: host.write(at.SITECUSTOMIZE, "import os\n"),
        faults.tensorflow_broken,
        "tensorflow.version",
        model.REAPPLY,
    ),
    "CUDA_VISIBLE_DEVICES": (
        faults.visible_devices,
        faults.tensorflow_without_gpus,
        "tensorflow.devices",
        "LD_LIBRARY_PATH must not be set system-wide.",
    ),
    "LD_LIBRARY_PATH": (
        harmless_library_path,
        faults.tensorflow_library_missing,
        "tensorflow.libraries",
        model.REAPPLY,
    ),
}


@pytest.mark.parametrize("name", NOT_THE_REASON)
def test_setting_that_is_not_the_reason_takes_no_blame(host: Host, name: str) -> None:
    setting, damage, failed, remedy = NOT_THE_REASON[name]
    setting(host)
    damage(host)
    check = differing(host)[failed]
    assert (check.status, check.cause, check.setting) == (*STACK, None)
    assert str(check.remedy).endswith(remedy)
    assert name not in str(check.found)


def test_library_path_that_shadows_is_a_failure_of_the_host(host: Host, snapshot: SnapshotAssertion) -> None:
    faults.shadowed_libraries(host)
    ((name, check),) = differing(host).items()
    assert (name, check.status, check.cause) == ("tensorflow.libraries", outcomes.FAIL, model.HOST)
    assert told(host, check) == snapshot


def test_library_path_is_seen_behind_another_reason(host: Host) -> None:
    """PYTHONPATH ends the import, so that the libraries are seen without it alone."""
    faults.shadowed_libraries(host)
    faults.python_path(host)
    found = {name: (check.status, check.cause) for name, check in differing(host).items()}
    assert found == {"tensorflow.version": (outcomes.WARN, None), "tensorflow.libraries": (outcomes.FAIL, model.HOST)}


@pytest.mark.parametrize("group", [tensorflow_checks, pytorch_checks], ids=["TensorFlow", "PyTorch"])
def test_sitecustomize_that_ends_imports_is_the_hosts(host: Host, group: Any, snapshot: SnapshotAssertion) -> None:
    faults.sitecustomize(host)
    check = next(iter(differing(host, group).values()))
    assert (check.status, check.cause) == (outcomes.FAIL, model.HOST)
    assert str(check.setting).startswith(f"/{at.SITECUSTOMIZE}, ")
    assert check.remedy == snapshot


def test_gpus_that_all_users_lack_are_a_warning(host: Host, snapshot: SnapshotAssertion) -> None:
    faults.visible_devices(host)
    ((name, check),) = differing(host, cuda_checks).items()
    assert (name, check.status) == ("cuda.devices", outcomes.WARN)
    assert told(host, check) == snapshot


def test_difference_without_a_known_reason_is_said(host: Host, snapshot: SnapshotAssertion) -> None:
    host.write("etc/profile.d/limits.sh", "export OMP_NUM_THREADS=4\nexport SIMULATED_LIMIT=1\n")
    host.wrap(f"{at.TENSORFLOW}/bin/python", '[ -z "$SIMULATED_LIMIT" ] || exit 3\nexec "$REAL" "$@"\n')
    ((name, check),) = differing(host).items()
    assert (name, check.status) == ("tensorflow.version", outcomes.WARN)
    assert told(host, check) == snapshot


def test_programs_of_users_see_no_gpu_beside_a_job(host: Host) -> None:
    """Whatever a profile says of CUDA_VISIBLE_DEVICES."""
    host.write("etc/profile.d/gpus.sh", "export CUDA_VISIBLE_DEVICES=0,1\n")
    host.wrap(
        f"{at.TENSORFLOW}/bin/python", f'echo "[$CUDA_VISIBLE_DEVICES]" >> {host.path("seen")}\nexec "$REAL" "$@"\n'
    )
    host.smi["processes"] = [{"gpu": 0, "pid": 1, "type": "C", "name": "python", "used_mib": 5000}]
    host.save()
    host.verify()
    assert set(host.path("seen").read_text().split()) == {"[]"}


REAL = Path(os.environ.get("GPUHOST_TENSORFLOW_PYTHON") or "/opt/gpuhost/tensorflow/bin/python")


@pytest.mark.skipif(
    not REAL.exists(), reason="no TensorFlow environment on this machine (GPUHOST_TENSORFLOW_PYTHON names one)"
)
@pytest.mark.parametrize(
    ("setting", "got"),
    [
        ("PYTHONPATH={root}/x", "from 'numpy' ({root}/x/numpy/__init__.py)"),
        ("TF_USE_LEGACY_KERAS=1", "importing its Keras: Keras cannot be imported."),
        ("KERAS_BACKEND=torch", "importing its Keras: Keras cannot be imported."),
    ],
)
def test_reason_with_a_real_tensorflow(host: Host, setting: str, got: str) -> None:
    """Of ros2/ros2 issue 1094 and huggingface/transformers issue 40391."""
    metadata = "from importlib.metadata import version; print(version('tensorflow'))"
    version = subprocess.run([REAL, "-c", metadata], capture_output=True, check=True, text=True).stdout.strip()
    host.plan["components"]["tensorflow"]["version"] = version
    host.program(f"{at.TENSORFLOW}/bin/python", f'exec {REAL} "$@"\n')
    host.write("x/numpy/__init__.py", "")
    host.write("etc/environment", setting.format(root=host.root) + "\n")
    check = differing(host)["tensorflow.version"]
    assert check.status == outcomes.WARN
    assert got.format(root=host.root) in str(check.found)
    assert f"the reason is {setting} in /etc/environment, line 1".format(root=host.root) in str(check.found)

"""check_packages.py, run in environments with fake frameworks."""

import subprocess
from pathlib import Path

from tests.unit.roles.framework_env.fake_host import FILES, PYTHON, Framework, Host, put


def run(environment: Path, framework: Framework, task: str, version: str = "") -> subprocess.CompletedProcess[str]:
    arguments = [framework.package, version or framework.version, PYTHON, task]
    command = [str(environment / "bin/python"), "-I", "-c", (FILES / "check_packages.py").read_text(), *arguments]
    return subprocess.run(command, capture_output=True, text=True)


def test_installed_packages_are_recorded(host: Host) -> None:
    environment, package = host.build(host.new, None), f"{host.framework.package}=={host.framework.version}"
    put(f"lib/python{PYTHON}/site-packages/six-1.0.dist-info/METADATA", "Name: six\nVersion: 1.0\n")(environment)
    assert run(environment, host.framework, "record").returncode == 0
    assert (environment / "gpuhost.freeze").read_text().split() == sorted([package, "six==1.0"])
    assert run(environment, host.framework, "compare").returncode == 0


def test_lock_of_another_version_is_refused(host: Host) -> None:
    environment, package = host.build(host.new, None), host.framework.package
    (environment / "gpuhost.freeze").unlink()
    answer = run(environment, host.framework, "record", host.framework.older)
    assert answer.returncode == 1
    found, wanted = f"{package}=={host.framework.version}", f"{package}=={host.framework.older}"
    assert f"found {found} in {environment}, expected {wanted}: choose" in answer.stderr
    assert not (environment / "gpuhost.freeze").exists()


def test_lock_without_the_framework_for_this_python_is_refused(host: Host) -> None:
    environment = host.build(host.new, None)
    next(environment.glob("lib/*/site-packages/*.dist-info/METADATA")).unlink()
    next(environment.glob("lib/*/site-packages/*.dist-info")).rmdir()
    assert f"found no {host.framework.package} in" in run(environment, host.framework, "record").stderr


def test_a_wheel_with_its_cuda_release_in_its_version_is_the_release(host: Host) -> None:
    """As the wheels of PyTorch's own index have it."""
    environment = host.build(host.new, None)
    metadata = next(environment.glob("lib/*/site-packages/*.dist-info/METADATA"))
    version = host.framework.version
    metadata.write_text(metadata.read_text().replace(f"Version: {version}", f"Version: {version}+cu126"))
    assert run(environment, host.framework, "record").returncode == 0
    assert f"{host.framework.package}=={version}+cu126" in (environment / "gpuhost.freeze").read_text().split()
    assert run(environment, host.framework, "compare").returncode == 0
    assert run(environment, host.framework, "compare", version + "1").returncode == 1

"""The probe's readers on captured files and on trees laid out as the kernel lays them out."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.host import command, os_release, pci, probe, system
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia import installed_stack, nvidia_smi, proc_driver

FIXTURES = Path(__file__).parents[3] / "fixtures/probe"
QUERY = "nvidia-smi --query-gpu=%s --format=csv,noheader,nounits"


def put(root: Path, path: str, text: str = "") -> None:
    target = root / path.lstrip("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text)


def link(root: Path, path: str, target: str) -> None:
    at = root / path.lstrip("/")
    at.parent.mkdir(parents=True, exist_ok=True)
    at.symlink_to(target)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("debian-12", ("debian-12", "debian", "12", "bookworm", "Debian GNU/Linux 12 (bookworm)")),
        ("debian-testing", ("debian", "debian", "", "trixie", "Debian GNU/Linux trixie/sid")),
        ("ubuntu-22.04", ("ubuntu-22.04", "ubuntu", "22.04", "jammy", "Ubuntu 22.04.3 LTS")),
        ("ubuntu-24.04", ("ubuntu-24.04", "ubuntu", "24.04", "noble", "Ubuntu 24.04.1 LTS")),
    ],
)
def test_distribution(tmp_path: Path, name: str, expected: tuple[str, ...]) -> None:
    put(tmp_path, "/usr/lib/os-release", (FIXTURES / f"os-release-{name}.txt").read_text())
    keys = ("id", "name", "version", "codename", "pretty_name")
    assert os_release.read(str(tmp_path)) == dict(zip(keys, expected, strict=True))


def test_a_host_without_os_release_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="/etc/os-release"):
        os_release.read(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "version", "flavour"),
    [
        ("open-580", "580.95.05", "open"),
        ("open-615", "615.71.09", "open"),
        ("proprietary-440", "440.95.01", "proprietary"),
        ("proprietary-515", "515.76", "proprietary"),
    ],
)
def test_loaded_driver(tmp_path: Path, name: str, version: str, flavour: str) -> None:
    put(tmp_path, proc_driver.PATH, (FIXTURES / f"proc-driver-nvidia-version-{name}.txt").read_text())
    assert proc_driver.read(str(tmp_path)) == {"version": version, "kernel_modules": flavour}


def test_no_loaded_driver_is_none_and_an_unknown_text_an_error(tmp_path: Path) -> None:
    assert proc_driver.read(str(tmp_path)) is None
    with pytest.raises(ValueError, match="NVRM version"):
        proc_driver.parse("NVRM version: something else\n")


@pytest.mark.parametrize(
    ("modules", "loaded"), [("nouveau 2301952 1 - Live 0x0\n", True), ("nouveau_x 1 0\nnvidia 2 0\n", False)]
)
def test_nouveau(tmp_path: Path, modules: str, loaded: bool) -> None:
    put(tmp_path, "/proc/modules", modules)
    assert proc_driver.nouveau_loaded(str(tmp_path)) is loaded


def device(root: Path, address: str, *, ids: str, pci_class: str, subsystem: str = "", driver: str = "") -> None:
    base = f"{pci.DEVICES}/{address}"
    vendor, number = ids.split(":")
    put(root, f"{base}/vendor", f"0x{vendor}\n")
    put(root, f"{base}/device", f"0x{number}\n")
    put(root, f"{base}/class", f"0x{pci_class}\n")
    if subsystem:
        put(root, f"{base}/subsystem_vendor", f"0x{subsystem.split(':')[0]}\n")
        put(root, f"{base}/subsystem_device", f"0x{subsystem.split(':')[1]}\n")
    if driver:
        link(root, f"{base}/driver", f"../../../bus/pci/drivers/{driver}")


def test_pci_tells_gpus_and_nvswitches_from_everything_else(tmp_path: Path) -> None:
    device(tmp_path, "0000:86:00.0", ids="10de:13f2", pci_class="030000", subsystem="10de:115e", driver="nouveau")
    device(tmp_path, "0000:05:00.0", ids="10de:2335", pci_class="030200", subsystem="10de:18be", driver="nvidia")
    device(tmp_path, "0000:05:00.1", ids="10de:10fa", pci_class="040300")  # the card's audio function
    device(tmp_path, "0000:07:00.0", ids="10de:22a3", pci_class="068000")
    device(tmp_path, "0000:08:00.0", ids="10de:0373", pci_class="068000")  # nForce network controller
    device(tmp_path, "0000:00:02.0", ids="8086:3e92", pci_class="030000")
    device(tmp_path, "10000:01:00.0", ids="10de:2901", pci_class="030200")
    gpus, switches = pci.read(str(tmp_path))
    assert gpus == [
        {
            "pci_address": "0000:05:00.0",
            "pci_id": "10de:2335",
            "subsystem_id": "10de:18be",
            "class": "0302",
            "kernel_driver": "nvidia",
        },
        {
            "pci_address": "0000:86:00.0",
            "pci_id": "10de:13f2",
            "subsystem_id": "10de:115e",
            "class": "0300",
            "kernel_driver": "nouveau",
        },
        {
            "pci_address": "10000:01:00.0",
            "pci_id": "10de:2901",
            "subsystem_id": None,
            "class": "0302",
            "kernel_driver": None,
        },
    ]
    assert switches == [{"pci_address": "0000:07:00.0", "pci_id": "10de:22a3"}]


def transcript(name: str, command_line: str) -> tuple[int, str]:
    """(exit code, output) of a command in a captured transcript; `out: ` marks standard output where it is marked."""
    text = (FIXTURES.parent / "nvidia-smi" / name).read_text()
    block = text.split(f"$ {command_line}\n", 1)[1].split("\n$ ", 1)[0]
    code = int(block.split("[rc=", 1)[1].split("]", 1)[0])
    lines = [line.removeprefix("out: ") for line in block.splitlines() if not line.startswith("[rc=")]
    return code, "\n".join(lines)


def test_genuine_rows_are_parsed() -> None:
    fields = (
        "index,name,uuid,driver_version,memory.total,memory.used,utilization.gpu,power.draw,compute_cap,pci.bus_id,"
    )
    fields += "pcie.link.gen.current,pcie.link.width.current,temperature.gpu"
    _, output = transcript("nvidia-smi-550.163.01.txt", f"nvidia-smi --query-gpu={fields} --format=csv")
    rows = output.replace(" MiB", "").splitlines()[1:]  # what nounits and noheader leave out
    gpus = nvidia_smi.parse("\n".join(rows), tuple(fields.split(",")))
    assert [gpu["pci_address"] for gpu in gpus] == ["0000:05:00.0", "0000:06:00.0", "0000:85:00.0", "0000:86:00.0"]
    assert gpus[1] == {
        "index": 1,
        "name": "Tesla M60",
        "uuid": "GPU-00000000-0000-4000-8000-000000000001",
        "driver_version": "550.163.01",
        "memory_mib": 8192,
        "compute_capability": "5.2",
        "pci_address": "0000:06:00.0",
    }


def test_a_value_that_the_card_lacks_is_none() -> None:
    row = "0, NVIDIA A100, GPU-1, 535.1, [N/A], [Not Supported], 00000000:05:00.0"
    gpu = nvidia_smi.parse(row)[0]
    assert (gpu["memory_mib"], gpu["compute_capability"], gpu["name"]) == (None, None, "NVIDIA A100")


def test_a_row_of_the_wrong_length_is_an_error() -> None:
    with pytest.raises(ValueError, match="2 values for 7 fields"):
        nvidia_smi.parse("0, NVIDIA A100\n")


NO_DRIVER = (
    b"NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest "
    b"NVIDIA driver is installed and running.\n\n"
)


@pytest.mark.parametrize(
    ("answer", "code", "message"),
    [
        (command.Answer(9, NO_DRIVER, b""), 9, "couldn't communicate with the NVIDIA driver. Make sure"),
        (
            command.Answer(
                *(lambda c, o: (c, o.encode(), b""))(
                    *transcript(
                        "nvidia-smi-550-errors.txt", "nvidia-smi --query-gpu=index --format=csv,noheader,nounits -i 9"
                    )
                )
            ),
            6,
            "No devices were found",
        ),
        (command.Answer(124, b"", b"/usr/bin/nvidia-smi did not end within 30 s"), 124, "did not end within 30 s"),
    ],
    ids=["not loaded", "no device", "hangs"],
)
def test_failures_keep_code_and_message(answer: command.Answer, code: int, message: str) -> None:
    found = nvidia_smi.read("/usr/bin/nvidia-smi", lambda argv, timeout: answer)
    assert found is not None
    assert (found["exit_code"], found["gpus"]) == (code, [])
    assert message in str(found["message"])
    assert nvidia_smi.meaning(code) != nvidia_smi.meaning(3)


def test_a_driver_that_does_not_know_compute_cap_is_asked_without_it() -> None:
    """Branch 470 answers exit code 2 as the genuine program does for a field that it does not know."""
    code, text = transcript("nvidia-smi-550-errors.txt", "nvidia-smi --query-gpu=bogus --format=csv")
    asked = []

    def run(argv: list[str], timeout: float) -> command.Answer:
        asked.append(argv)
        if "compute_cap" in argv[1]:
            return command.Answer(code, text.replace("bogus", "compute_cap").encode(), b"")
        return command.Answer(0, b"0, Tesla K80, GPU-1, 470.256.02, 11441, 00000000:05:00.0\n", b"")

    found = nvidia_smi.read("/usr/bin/nvidia-smi", run)
    assert found is not None
    assert (found["exit_code"], len(asked)) == (0, 2)
    assert found["gpus"] == [
        {
            "index": 0,
            "name": "Tesla K80",
            "uuid": "GPU-1",
            "driver_version": "470.256.02",
            "memory_mib": 11441,
            "compute_capability": None,
            "pci_address": "0000:05:00.0",
        },
    ]


def test_kernels_and_headers_follow_links_within_the_root(tmp_path: Path) -> None:
    put(tmp_path, "/boot/vmlinuz-6.1.0-9-amd64")
    put(tmp_path, "/boot/vmlinuz-6.1.0-56-amd64")
    put(tmp_path, "/usr/src/linux-headers-6.1.0-56-amd64/Makefile")
    link(tmp_path, "/lib/modules/6.1.0-56-amd64/build", "/usr/src/linux-headers-6.1.0-56-amd64")
    link(tmp_path, "/lib/modules/6.1.0-9-amd64/build", "/usr/src/linux-headers-6.1.0-9-amd64")  # Ubuntu's dangling link
    put(tmp_path, "/lib/modules/6.8.0-45-generic/kernel/x.ko")
    assert system.kernel(str(tmp_path), "6.1.0-9-amd64") == {
        "running": "6.1.0-9-amd64",
        "installed": ["6.1.0-9-amd64", "6.1.0-56-amd64", "6.8.0-45-generic"],
        "headers": ["6.1.0-56-amd64"],
        "next_boot": "6.1.0-56-amd64",
    }


def test_python_interpreters(tmp_path: Path) -> None:
    for name in ("python3.9", "python3.11", "python3.11-config", "python3-futurize", "python2.7"):
        put(tmp_path, f"/usr/bin/{name}")
    put(tmp_path, "/usr/local/bin/python3.11")
    put(tmp_path, "/usr/local/bin/python3.13")
    link(tmp_path, "/usr/bin/python3", "python3.11")
    found = system.python(str(tmp_path))
    assert found["default"] == "3.11"
    assert list(found["interpreters"].items()) == [  # type: ignore[attr-defined]
        ("3.9", "/usr/bin/python3.9"),
        ("3.11", "/usr/bin/python3.11"),
        ("3.13", "/usr/local/bin/python3.13"),
    ]
    assert system.python(str(tmp_path / "nothing")) == {"default": None, "interpreters": {}}


@pytest.mark.parametrize(
    "chain", [["gcc-12"], ["/etc/alternatives/gcc", "/usr/bin/gcc-12"], ["x86_64-linux-gnu-gcc-12"]]
)
def test_gcc_by_its_link(tmp_path: Path, chain: list[str]) -> None:
    at = "/usr/bin/gcc"
    for target in chain:
        link(tmp_path, at, target)
        at = target if target.startswith("/") else f"/usr/bin/{target}"
    put(tmp_path, at)
    assert system.gcc(str(tmp_path), command.run) == "12"


def test_gcc_without_a_telling_link_is_asked(tmp_path: Path) -> None:
    assert system.gcc(str(tmp_path), command.run) is None
    put(tmp_path, "/usr/bin/gcc", "#!/bin/sh\necho 13.2.0\n")
    (tmp_path / "usr/bin/gcc").chmod(0o755)
    assert system.gcc(str(tmp_path), command.run) == "13"


@pytest.mark.parametrize(
    ("variable", "other", "expected"),
    [
        (b"\x06\0\0\0\x01", "", "enabled"),
        (b"\x06\0\0\0\x00", "", "disabled"),
        (None, "/sys/firmware/acpi/x", "disabled"),
        (None, "/sys/firmware/efi/systab", "unknown"),
        (None, "", "unknown"),
    ],
    ids=["enabled", "disabled", "BIOS", "efivars not mounted", "container"],
)
def test_secure_boot(tmp_path: Path, variable: bytes | None, other: str, expected: str) -> None:
    (tmp_path / "sys/firmware").mkdir(parents=True)
    if variable is not None:
        put(tmp_path, system.SECURE_BOOT)
        (tmp_path / system.SECURE_BOOT.lstrip("/")).write_bytes(variable)
    if other:
        put(tmp_path, other)
    assert system.secure_boot(str(tmp_path)) == expected


def test_disk_is_what_statvfs_says(tmp_path: Path) -> None:
    (tmp_path / "usr").mkdir()
    found = system.disk(str(tmp_path))
    here = os.statvfs(tmp_path)
    assert set(found) == {"/", "/usr", "/usr/local", "/opt/gpuhost/environments", "/var", "/var/cache/gpuhost/uv"}
    assert {space["mount"] for space in found.values()} == {"/"}
    assert {space["total_mib"] for space in found.values()} == {here.f_blocks * here.f_frsize // 2**20}
    assert abs(found["/usr"]["free_mib"] - here.f_bavail * here.f_frsize // 2**20) < 512


def test_cuda_trees_and_default_link(tmp_path: Path) -> None:
    for tree in ("cuda-13.2", "cuda-9.0", "cuda-12.9"):
        put(tmp_path, f"/usr/local/{tree}/bin/nvcc")
    put(tmp_path, "/usr/local/cuda-11.8/lib64/libcudart.so")  # a library alone is no toolkit
    link(tmp_path, "/usr/local/cuda", "/etc/alternatives/cuda")
    link(tmp_path, "/etc/alternatives/cuda", "/usr/local/cuda-12.9")
    # The package as dpkg has it on a Debian 12 host.
    status = "Package: nvidia-cuda-toolkit\nStatus: hold ok %s\nVersion: 11.8.89~11.8.0-5~deb12u1\n"
    put(tmp_path, "/var/lib/dpkg/status", status % "config-files")
    assert installed_stack.cuda(str(tmp_path), "nvidia-cuda-toolkit")["distro"] is None
    put(tmp_path, "/var/lib/dpkg/status", status % "installed")
    assert installed_stack.cuda(str(tmp_path), "nvidia-cuda-toolkit") == {
        "installed": ["9.0", "12.9", "13.2"],
        "default": "12.9",
        "distro": "11.8",
    }
    assert installed_stack.cuda(str(tmp_path / "nothing"), "nvidia-cuda-toolkit") == {
        "installed": [],
        "default": None,
        "distro": None,
    }


def test_tensorflow_by_its_metadata(tmp_path: Path) -> None:
    site = "/opt/gpuhost/tensorflow/lib/python3.11/site-packages"
    put(tmp_path, f"{site}/tensorflow_io_gcs_filesystem-0.37.dist-info/METADATA")
    assert installed_stack.tensorflow(str(tmp_path)) is None
    put(tmp_path, f"{site}/tensorflow-2.21.0.dist-info/METADATA")
    assert installed_stack.tensorflow(str(tmp_path)) == {
        "path": "/opt/gpuhost/tensorflow",
        "version": "2.21.0",
        "python": "3.11",
    }


@pytest.mark.parametrize("folder", ["environments", "/opt/gpuhost/environments"], ids=["relative", "absolute"])
def test_tensorflow_through_its_link_within_the_root(tmp_path: Path, folder: str) -> None:
    environments = "/opt/gpuhost/environments"
    put(tmp_path, f"{environments}/new/lib/python3.11/site-packages/tensorflow-2.21.0.dist-info/METADATA")
    put(tmp_path, f"{environments}/old/lib/python3.12/site-packages/tensorflow-2.20.0.dist-info/METADATA")
    link(tmp_path, "/opt/gpuhost/tensorflow", f"{folder}/old")
    assert installed_stack.tensorflow(str(tmp_path)) == {
        "path": "/opt/gpuhost/tensorflow",
        "version": "2.20.0",
        "python": "3.12",
    }
    link(tmp_path, "/opt/gpuhost/dangling", f"{folder}/removed")
    assert installed_stack.tensorflow(str(tmp_path), "/opt/gpuhost/dangling") is None


def test_pytorch_by_its_metadata_and_apart_from_tensorflow(tmp_path: Path) -> None:
    environments = "/opt/gpuhost/environments"
    put(tmp_path, f"{environments}/t/lib/python3.11/site-packages/tensorflow-2.21.0.dist-info/METADATA")
    put(tmp_path, f"{environments}/p/lib/python3.11/site-packages/torchvision-0.30.0.dist-info/METADATA")
    link(tmp_path, "/opt/gpuhost/tensorflow", "environments/t")
    assert installed_stack.pytorch(str(tmp_path)) is None
    link(tmp_path, "/opt/gpuhost/pytorch", "environments/p")
    assert installed_stack.pytorch(str(tmp_path)) is None
    put(tmp_path, f"{environments}/p/lib/python3.11/site-packages/torch-2.15.0.dist-info/METADATA")
    assert installed_stack.pytorch(str(tmp_path)) == {
        "path": "/opt/gpuhost/pytorch",
        "version": "2.15.0",
        "python": "3.11",
    }
    assert installed_stack.tensorflow(str(tmp_path)) == {
        "path": "/opt/gpuhost/tensorflow",
        "version": "2.21.0",
        "python": "3.11",
    }


def test_what_stands_where_the_link_to_the_environment_goes(tmp_path: Path) -> None:
    path = "/opt/gpuhost/tensorflow"
    assert installed_stack.in_the_way(str(tmp_path)) is None
    put(tmp_path, path)
    assert installed_stack.in_the_way(str(tmp_path)) == "a file"
    (tmp_path / path.lstrip("/")).unlink()
    put(tmp_path, f"{path}/bin/python")
    assert installed_stack.in_the_way(str(tmp_path)) == "a folder"
    link(tmp_path, "/opt/gpuhost/ours", "environments/tensorflow-2.21.0-py3.11-4b868730")
    assert installed_stack.in_the_way(str(tmp_path), "/opt/gpuhost/ours") is None
    link(tmp_path, "/opt/gpuhost/theirs", "/srv/tensorflow")
    assert installed_stack.in_the_way(str(tmp_path), "/opt/gpuhost/theirs") == "a link to /srv/tensorflow"


OPTIONS = probe.Options(None, {}, True, (), ("*",), "/opt/gpuhost/tensorflow", ".*nvidia.*", "nvidia-cuda-toolkit")


def test_probe_of_an_empty_root_leaves_nothing_out(tmp_path: Path) -> None:
    found = probe.probe(str(tmp_path), OPTIONS)
    assert set(found) == {
        "schema",
        "distribution",
        "architecture",
        "kernel",
        "python",
        "toolchain",
        "gpus",
        "nvswitches",
        "pcie",
        "driver",
        "gpu_processes",
        "packages",
        "package_manager",
        "runfile",
        "repository",
        "repository_files",
        "cuda",
        "tensorflow",
        "tensorflow_in_the_way",
        "pytorch",
        "pytorch_in_the_way",
        "secure_boot",
        "secure_boot_keys",
        "disk",
        "applied",
        "applied_plan",
        "simulated",
        "errors",
    }
    assert found["distribution"] is None
    assert found["errors"] == ["distribution: no os-release file: looked for /etc/os-release and /usr/lib/os-release"]
    assert found["driver"] == {"loaded": None, "nouveau_loaded": False, "nvidia_smi": None}
    json.dumps(found)


def test_probe_of_a_host_with_the_stack(tmp_path: Path) -> None:
    put(tmp_path, "/etc/os-release", (FIXTURES / "os-release-debian-12.txt").read_text())
    put(tmp_path, "/var/lib/dpkg/status", (FIXTURES / "dpkg-status-debian-12.txt").read_text())
    put(tmp_path, installed_stack.APPLIED_PLAN, '{"ok": true}')
    put(tmp_path, "/usr/share/gpuhost-simulated/pci.txt", "PCI devices\n")
    put(tmp_path, "/usr/share/gpuhost-simulated/driver.txt", "NVIDIA driver 595.71.05\n\n")
    put(tmp_path, proc_driver.PATH, "nonsense")
    found = probe.probe(str(tmp_path), OPTIONS)
    assert found["applied_plan"] == {"ok": True}
    assert found["simulated"] == ["NVIDIA driver 595.71.05", "PCI devices"]
    assert found["packages"]["gcc"]["version"] == "4:12.2.0-3"  # type: ignore[index]
    assert [error.split(":")[0] for error in found["errors"]] == ["loaded driver"]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("given", "asked"),
    [
        (
            (None, {"debian-12": "http://127.0.0.1:9/d12/", "ubuntu-24.04": "http://127.0.0.1:9/u24/"}),
            "http://127.0.0.1:9/d12/",
        ),
        (("http://127.0.0.1:9/mine/", {"debian-12": "http://127.0.0.1:9/d12/"}), "http://127.0.0.1:9/mine/"),
        ((None, {"ubuntu-24.04": "http://127.0.0.1:9/u24/"}), None),
    ],
    ids=["by distribution", "url wins", "other distribution"],
)
def test_the_repository_of_this_distribution_is_asked(
    tmp_path: Path, given: tuple[str | None, dict[str, str]], asked: str | None
) -> None:
    put(tmp_path, "/etc/os-release", (FIXTURES / "os-release-debian-12.txt").read_text())
    repository = probe.probe(
        str(tmp_path), dataclasses.replace(OPTIONS, repository_url=given[0], repositories=given[1])
    )["repository"]
    assert (repository and repository["url"]) == asked  # type: ignore[index]


def test_a_damaged_applied_plan_is_told(tmp_path: Path) -> None:
    put(tmp_path, installed_stack.APPLIED_PLAN, '{"ok": tr')
    found = probe.probe(str(tmp_path), OPTIONS)
    assert found["applied_plan"] is None
    assert any(installed_stack.APPLIED_PLAN in error for error in found["errors"])  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("argv", "code", "said"),
    [
        (["sh", "-c", "echo out; echo err >&2; exit 3"], 3, "out\n\nerr"),
        (["sleep", "5"], command.TIMED_OUT, "did not end within 0.2 s"),
        (["/nonexistent/program"], command.NOT_STARTED, "No such file"),
    ],
)
def test_command(argv: list[str], code: int, said: str) -> None:
    answer = command.run(argv, 0.2 if argv[0] == "sleep" else 10)
    assert answer.exit_code == code
    assert said in answer.text()

"""Lay out the host of a report below a directory, from its words; CONTRIBUTING.md lists them.

What a report does not say is that of a healthy host: for `plan` and `preflight` a bare one that could be set up, for
`verify` and `training` the installed one of tests/unit/matrix, on which every check passes.
"""

from __future__ import annotations

import json
import os
import shlex
import sqlite3
import struct
from collections.abc import Iterator, Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from ansible_collections.gpuhost.stack.plugins.module_utils.base import command
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.apt import dpkg_info
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.dnf import dnf_program, rpm_header

from tests.unit.matrix import faults
from tests.unit.matrix import host as at
from tests.unit.matrix.host import Host
from tests.unit.matrix.training import TrainingHost
from tests.unit.module_utils.host_files import put_grub_menu, put_repository

FIXTURES = Path(__file__).parents[1] / "fixtures"
DEVICES = "sys/bus/pci/devices"
# What `uname -r`, os-release(5), the kernel's metapackage and the compilers are on a current installation of each.
DISTRIBUTIONS = {
    "debian-12": ("Debian GNU/Linux", "6.1.0-56-amd64", "linux-image-amd64", 12, "3.11"),
    "debian-13": ("Debian GNU/Linux", "6.12.57+deb13-amd64", "linux-image-amd64", 14, "3.13"),
    "ubuntu-22.04": ("Ubuntu", "5.15.0-139-generic", "linux-image-generic", 11, "3.10"),
    "ubuntu-24.04": ("Ubuntu", "6.8.0-90-generic", "linux-image-generic", 13, "3.12"),
    "ubuntu-26.04": ("Ubuntu", "7.0.0-14-generic", "linux-image-generic", 15, "3.14"),
}
# Of Enterprise Linux: os-release, as public listings of it have it; then as above.
ENTERPRISE_LINUX = {
    "rocky-9": (
        "Rocky Linux",
        "9.6",
        "rhel centos fedora",
        "5.14.0-570.12.1.el9_6",
        "11.5.0 20240719 (Red Hat 11.5.0-5)",
        "3.9",
    ),
    "almalinux-9": (
        "AlmaLinux",
        "9.7",
        "rhel centos fedora",
        "5.14.0-611.49.1.el9_7",
        "11.5.0 20240719 (Red Hat 11.5.0-11)",
        "3.9",
    ),
    "rhel-9": (
        "Red Hat Enterprise Linux",
        "9.6",
        "fedora",
        "5.14.0-570.23.1.el9_6",
        "11.5.0 20240719 (Red Hat 11.5.0-5)",
        "3.9",
    ),
    "centos-9": (
        "CentOS Stream",
        "9",
        "rhel fedora",
        "5.14.0-570.el9",
        "11.5.0 20240719 (Red Hat 11.5.0-5)",
        "3.9",
    ),
    "rhel-10": (
        "Red Hat Enterprise Linux",
        "10.1",
        "centos fedora",
        "6.12.0-124.49.1.el10_1",
        "14.3.1 20250617 (Red Hat 14.3.1-2)",
        "3.12",
    ),
}
CODENAMES = {"ubuntu-22.04": "jammy", "ubuntu-24.04": "noble", "ubuntu-26.04": "resolute"}
X86_64 = "x86_64"
FLAGS = "flags\t\t: fpu pni ssse3 fma cx16 sse4_1 sse4_2 popcnt avx lahf_lm avx2"
PROCESSORS = {  # /proc/cpuinfo; Arm's has neither a name nor `flags`
    X86_64: f"model name\t: Intel(R) Xeon(R) Platinum 8480C\n{FLAGS}\n",
    "aarch64": "processor\t: 0\nFeatures\t: fp asimd evtstrm aes pmull sha1 sha2 crc32\nCPU implementer\t: 0x41\n",
}
ARCHIVES = ("archive.ubuntu.com/", "ports.ubuntu.com/", "deb.debian.org/")
FLAVOURS = {"open": "Open Kernel Module", "proprietary": "Kernel Module"}
Words = Mapping[str, Any]


def check_words(words: Words, known: tuple[str, ...]) -> None:
    """Raise ValueError for words that no host has."""
    if unknown := [word for word in words if word not in known]:
        raise ValueError(f"host: {', '.join(unknown)}: no such word; known are {', '.join(known)}")


def put(root: Path, path: str, spec: object) -> None:
    """Write a file: its text, or how it is otherwise: `link`, `mib` (sparse), `hex`, `fixture`; `mode` besides."""
    target = root / path.lstrip("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    if not isinstance(spec, Mapping):
        target.write_text("" if spec is None else str(spec))
        return
    if "link" in spec:
        target.symlink_to(spec["link"])
        return
    if "mib" in spec:
        with target.open("wb") as stream:
            stream.truncate(int(spec["mib"]) << 20)
    elif "hex" in spec:
        target.write_bytes(bytes.fromhex(spec["hex"]))
    elif "fixture" in spec:
        target.write_bytes((FIXTURES / spec["fixture"]).read_bytes())
    else:
        target.write_text(spec.get("text", ""))
    target.chmod(spec.get("mode", 0o644))


def put_device(root: Path, address: str, spec: Words) -> None:
    """Write a function on the PCI bus, below the bridge of its slot; its `driver` may be absent."""
    above = f"sys/devices/pci0000:00/{spec.get('bridge', '0000:00:01.0')}"
    folder = root / above / address
    vendor, _, device = spec["id"].partition(":")
    values = {"vendor": f"0x{vendor}", "device": f"0x{device}", "class": f"0x{spec.get('class', '030200')}"}
    for name, text in {**values, **spec.get("sysfs", {})}.items():
        put(folder, name, f"{text}\n")
    for name, text in spec.get("slot", {}).items():
        put(root, f"{DEVICES}/{Path(above).name}/{name}", f"{text}\n")
    if spec.get("driver"):
        put(folder, "driver", {"link": f"../../../../../bus/pci/drivers/{spec['driver']}"})
    put(root, f"{DEVICES}/{address}", {"link": f"../../../../{above}/{address}"})


def devices(words: Words) -> Iterator[tuple[str, Words]]:
    """Yield the functions of `gpus` and `pci` with their addresses: 0000:01:00.0, 0000:02:00.0, ..."""
    for number, spec in enumerate([*words.get("gpus", [{"id": "10de:2330"}]), *words.get("pci", [])], start=1):
        yield spec.get("address", f"0000:{number:02x}:00.0"), spec


def machine(words: Words) -> str:
    """Return a host's architecture, as uname prints it."""
    return str(words.get("architecture", X86_64))


def status(packages: Words, architecture: str = "amd64") -> str:
    """Return dpkg's status of packages: a version, or a mapping with `version`, `hold`, `status`, `depends`."""
    entries = []
    for name, given in packages.items():
        spec = given if isinstance(given, Mapping) else {"version": given}
        lines = [
            f"Package: {name}",
            f"Status: {'hold' if spec.get('hold') else 'install'} ok {spec.get('status', 'installed')}",
            f"Architecture: {spec.get('architecture', architecture)}",
            f"Version: {spec['version']}",
            *([f"Depends: {spec['depends']}"] if "depends" in spec else []),
        ]
        entries.append("\n".join(lines) + "\n")
    return "\n".join(entries)


def offered(packages: Words, architecture: str) -> str:
    """Return a list of a repository: a version, or a mapping with `version` and `depends`."""
    entries = []
    for name, given in packages.items():
        spec = given if isinstance(given, Mapping) else {"version": given}
        lines = [f"Package: {name}", f"Version: {spec['version']}", f"Architecture: {architecture}"]
        entries.append("\n".join([*lines, *([f"Depends: {spec['depends']}"] if "depends" in spec else []), "\n"]))
    return "".join(entries)


# A bare host ----------------------------------------------------------------------------------------------------------

BARE = (
    *("distribution", "architecture", "kernels", "next", "compiler", "python", "gpus", "pci", "packages", "driver"),
    *("lists", "files", "disk", "answers", "repository_error"),
)


def lay_out(root: Path, words: Words) -> None:
    """Write a host that a run could set up, but for what the words say."""
    check_words(words, BARE)
    distribution = words.get("distribution", "ubuntu-24.04")
    if distribution in ENTERPRISE_LINUX:
        _lay_out_enterprise_linux(root, distribution, words)
        return
    system, kernel, meta, gcc, python = DISTRIBUTIONS[distribution]
    native = dpkg_info.native_architecture(machine(words))
    kernel, meta = kernel.replace("amd64", native), meta.replace("amd64", native)
    name, _, version = distribution.partition("-")
    codename = CODENAMES.get(distribution, "")
    put(root, "etc/os-release", f'ID={name}\nVERSION_ID="{version}"\nVERSION_CODENAME={codename}\nNAME="{system}"\n')
    kernels = words.get("kernels", [kernel])
    put(root, "proc/sys/kernel/osrelease", f"{kernels[0]}\n")
    compiler = words.get("compiler", f"gcc-{gcc} ({system}) {gcc}.3.0")
    packages = {"base-files": "1", meta: {"version": "1", "depends": f"linux-image-{kernels[-1]}"}}
    for release in kernels:
        put(root, f"boot/vmlinuz-{release}", "")
        put(root, f"boot/config-{release}", f'CONFIG_CC_VERSION_TEXT="{compiler}"\n')
        put(root, f"lib/modules/{release}/modules.dep", "")
        put(root, f"usr/src/linux-headers-{release}/Makefile", "")
        put(root, f"lib/modules/{release}/build", {"link": f"/usr/src/linux-headers-{release}"})
        packages |= {f"linux-image-{release}": "1", f"linux-headers-{release}": "1"}
        put(root, f"var/lib/dpkg/info/linux-image-{release}.list", f"/boot/vmlinuz-{release}\n")
    packages |= {meta.replace("image", "headers"): {"version": "1", "depends": f"linux-headers-{kernels[-1]}"}}
    packages |= {f"gcc-{gcc}": "1", "dkms": "3.0.11-1", "binutils": "1", "kmod": "1", "zstd": "1", "xz-utils": "1"}
    put_grub_menu(root, list(reversed(kernels)), words.get("next", "0"), system)
    _lay_out_computer(root, words, kernels[0], words.get("python", python))
    if "driver" in words:
        packages |= installed_driver(root, words["driver"], kernels, machine(words))
    packages |= words.get("packages", {})
    put(root, "var/lib/dpkg/status", status(packages, native))
    for package in packages:
        if not (root / f"var/lib/dpkg/info/{package}.list").exists():
            put(root, f"var/lib/dpkg/info/{package}.list", "/.\n")
    for where, rows in words.get("lists", {}).items():
        uri, _, suite = where.partition(" ")
        origin = system if uri.partition("://")[2].startswith(ARCHIVES) else "others"
        release = f"Origin: {origin}\nSuite: {suite}\nCodename: {suite}\n"
        put_repository(root, uri, suite or "/", offered(rows, native), release)
    for name, spec in words.get("files", {}).items():
        put(root, name, spec)


def _lay_out_computer(root: Path, words: Words, kernel: str, python: str) -> None:
    """Write what does not depend on the distribution: Python, processor, mounts, modules, devices."""
    for path in (f"usr/bin/python{python}", f"usr/lib/python{python}/ensurepip/__init__.py"):
        put(root, path, "")
    put(root, "usr/bin/python3", {"link": f"python{python}"})
    put(root, "proc/cpuinfo", PROCESSORS[machine(words)])
    put(root, "proc/mounts", "/dev/sda2 / ext4 rw,relatime 0 0\n")
    put(root, "proc/modules", "")
    put(root, "proc/cmdline", f"BOOT_IMAGE=/boot/vmlinuz-{kernel} root=/dev/sda2 ro\n")
    put(root, "sys/firmware/acpi/README", "")
    for address, spec in devices(words):
        put_device(root, address, spec)


def _lay_out_enterprise_linux(root: Path, distribution: str, words: Words) -> None:
    """Write a bare host with kernels, headers, rpm's database and repositories as Enterprise Linux has them.

    By default SELinux is enforcing (RHEL 9, "Using SELinux"), where nothing but that is found; `files` may say
    otherwise.
    """
    system, version, like, kernel, compiler, python = ENTERPRISE_LINUX[distribution]
    name, _, release = distribution.partition("-")
    put(
        root,
        "etc/os-release",
        f'NAME="{system}"\nVERSION="{version}"\nID="{name}"\nID_LIKE="{like}"\nVERSION_ID="{version}"\n'
        f'PLATFORM_ID="platform:el{release}"\nPRETTY_NAME="{system} {version}"\n',
    )
    kernels = words.get("kernels", [f"{kernel}.{machine(words)}"])
    put(root, "proc/sys/kernel/osrelease", f"{kernels[0]}\n")
    packages: dict[str, Any] = {
        "gcc": "11.5.0-5.el9",
        "gcc-c++": "11.5.0-5.el9",
        "make": "1:4.3-8.el9",
        "xz": "5.2.5-8.el9",
    }
    for each in kernels:
        put(root, f"boot/vmlinuz-{each}", "")
        put(root, f"boot/config-{each}", f'CONFIG_CC_VERSION_TEXT="{words.get("compiler", f"gcc (GCC) {compiler}")}"\n')
        put(root, f"lib/modules/{each}/modules.dep", "kernel/fs/xfs/xfs.ko.xz:\n")
        put(root, f"usr/src/kernels/{each}/Makefile", "")
        put(root, f"lib/modules/{each}/build", {"link": f"/usr/src/kernels/{each}"})
        packages |= {f"kernel-core-{each}": {"version": each, "files": [f"/boot/vmlinuz-{each}"]}}
        packages |= {f"kernel-devel-{each}": {"version": each}}
    builder = f"codeready-builder-for-rhel-{release}-{machine(words)}-rpms" if name == "rhel" else "crb"
    for repository in ("baseos", builder, "epel"):
        text = f"[{repository}]\nbaseurl=https://mirror.example/{repository}\nenabled=1\n"
        put(root, f"etc/yum.repos.d/{repository.partition('-')[0]}.repo", text)
    put(root, "sys/fs/selinux/enforce", "1")
    _lay_out_computer(root, words, kernels[0], words.get("python", python))
    put_rpm_database(root, {**packages, **words.get("packages", {})}, machine(words))
    for path, spec in words.get("files", {}).items():
        put(root, path, spec)


def put_rpm_database(root: Path, packages: Words, architecture: str) -> None:
    """Write rpm's database: a version, or a mapping with `version` and `files`; null where a package is not there.

    Of a kernel's package, NAME-RELEASE, the release is the version; it has the same name in each.
    """
    path = root / "var/lib/rpm/rpmdb.sqlite"
    path.parent.mkdir(parents=True)
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE Packages (hnum INTEGER PRIMARY KEY, blob BLOB)")
    for index in ("Providename", "Requirename", "Basenames"):
        database.execute(f"CREATE TABLE {index} (key TEXT, hnum INTEGER)")
    there = {name: spec if isinstance(spec, Mapping) else {"version": spec} for name, spec in packages.items() if spec}
    for number, (row, spec) in enumerate(there.items(), start=1):
        epoch, _, version = spec["version"].removesuffix(f".{architecture}").rpartition(":")
        name = row.removesuffix(f"-{spec['version']}")
        upstream, _, release = version.rpartition("-")
        paths = [Path(file) for file in spec.get("files", [])]
        header = rpm_header_of(
            {
                rpm_header.NAME: name,
                rpm_header.VERSION: upstream,
                rpm_header.RELEASE: release,
                rpm_header.EPOCH: [int(epoch or 0)],
                rpm_header.ARCH: architecture,
                rpm_header.DIRINDEXES: list(range(len(paths))),
                rpm_header.BASENAMES: [file.name for file in paths],
                rpm_header.DIRNAMES: [f"{file.parent}/" for file in paths],
            }
        )
        database.execute("INSERT INTO Packages VALUES (?, ?)", (number, header))
        provides = [name, *(["installonlypkg(kernel)"] if row != name else [])]
        database.executemany("INSERT INTO Providename VALUES (?, ?)", [(key, number) for key in provides])
        database.executemany("INSERT INTO Basenames VALUES (?, ?)", [(file.name, number) for file in paths])
    database.commit()
    database.close()


def rpm_header_of(values: Mapping[int, Any]) -> bytes:
    """Return a package's header as rpm keeps it: texts are strings, lists of texts arrays, numbers of 32 bits."""
    entries, store = b"", b""
    for tag, value in sorted(values.items()):
        store += b"\0" * (-len(store) % 4)
        texts = [value] if isinstance(value, str) else value
        numbers = bool(texts) and isinstance(texts[0], int)
        kind = 4 if numbers else 6 if isinstance(value, str) else 8  # INT32, STRING, STRING_ARRAY
        entries += struct.pack(">iiii", tag, kind, len(store), len(texts))
        store += struct.pack(f">{len(texts)}I", *texts) if numbers else b"".join(f"{text}\0".encode() for text in texts)
    return struct.pack(">II", len(values), len(store)) + entries + store


def installed_driver(root: Path, words: Words, kernels: list[str], machine: str) -> dict[str, Any]:
    """Write a driver of others; return its packages.

    `version`; `package`, which has its libraries; `packages`; `modules`: open or proprietary; `loaded`: false where it
    is not; `built`: the kernels that have its module, all where it is not said; `owner`: the package of the modules.
    """
    version, folder = words["version"], f"usr/lib/{machine}-linux-gnu"
    libraries = [f"/{folder}/{name}.so.{version}" for name in ("libcuda", "libnvidia-ml")]
    for path in libraries:
        put(root, path, {"hex": "7f454c4602"})
        put(root, path.partition(".so")[0] + ".so.1", {"link": Path(path).name})
    put(root, f"etc/ld.so.conf.d/{machine}-linux-gnu.conf", f"/{folder}\n")
    put(root, f"var/lib/dpkg/info/{words['package']}.list", "".join(f"{path}\n" for path in libraries))
    for release in words.get("built", kernels):
        module = f"lib/modules/{release}/updates/dkms/nvidia.ko"
        put(root, module, f"version={version}\nlicense={'Dual MIT/GPL' if words['modules'] == 'open' else 'NVIDIA'}\n")
        put(root, f"lib/modules/{release}/modules.dep", "updates/dkms/nvidia.ko:\n")
    if words.get("loaded", True):
        flavour = FLAVOURS[words["modules"]]
        put(
            root,
            "proc/driver/nvidia/version",
            f"NVRM version: NVIDIA UNIX {flavour} for {machine}  {version}  Release\n",
        )
        put(root, "proc/modules", "nvidia_uvm 4 0 - Live 0x0\nnvidia 8 1 nvidia_uvm, Live 0x0\n")
        put(root, "sys/module/nvidia/version", f"{version}\n")
    return {words["package"]: words.get("package_version", f"{version}-1"), **words.get("packages", {})}


def _dnf(words: Words, request: Words) -> Words:
    """Return what dnf_program answers on a host with these `lists`, by the address of a repository: {package: version}.

    A package may have several versions, newest first. kernel-devel-matched brings what it requires (kernel.spec).
    """
    lists, architecture = words.get("lists", {}), machine(words)
    if request["do"] == "repository":
        rows = lists.get(request["url"].rstrip("/"), {})
        return {"packages": [[name, version, 0, 0, []] for name, version in rows.items()], "streams": {}}
    newest, every = [], []
    for name, given in [row for rows in lists.values() for row in rows.items()]:
        versions = given if isinstance(given, list) else [given]
        every += [f"{name}-{version}.{architecture}" for version in versions if name.endswith("-devel")]
        brought = ("kernel-core", "kernel-devel") if name.endswith("-matched") else ()
        if any(fnmatch(name, glob) for glob in request["globs"]):
            newest.append([name, versions[0], [f"{each}-{versions[0]}.{architecture}" for each in brought]])
    return {"newest": newest, "every": every}


def answering(root: Path, words: Words) -> command.Run:
    """Return what runs programs: those of `answers` (text, or `out` and `status`) as this host has them; and dnf."""
    answers = words.get("answers", {})

    def run(argv: list[str], timeout: float, *args: Any, **options: Any) -> command.Answer:
        if dnf_program.MARK in argv[-1]:
            answer = json.dumps({"result": _dnf(words, json.loads(args[2]))})
            return command.Answer(0, f"{dnf_program.MARK}{answer}".encode(), b"")
        line = shlex.join([os.path.basename(argv[0]), *argv[1:]])
        for start, given in answers.items():
            if line.startswith(start):
                spec = given if isinstance(given, Mapping) else {"out": given}
                return command.Answer(spec.get("status", 0), spec.get("out", "").encode(), b"")
        return command.run(argv, timeout, *args, **options)

    return run


# An installed host ----------------------------------------------------------------------------------------------------

INSTALLED = (
    *("gpus", "nvidia_smi", "kernel_log", "cuda_error", "cuda", "sees", "tensorflow", "pytorch", "packages", "files"),
    *("programs", "removed", "bound", "unlisted", "worker", "environment", "plan"),
)


def change(host: Host, words: Words) -> None:
    """Change the healthy installed host to that of the words.

    nvidia_smi: the state of the simulated one, merged into that of the host. cuda, tensorflow, pytorch: likewise.
    bound: kernel drivers by address. unlisted: addresses that nvidia-smi does not list. sees: 1,
    where programs see the first GPU alone. plan: merged into the plan that the checks compare the host with.
    """
    check_words(words, INSTALLED)
    for number, spec in enumerate(words.get("gpus", [])):
        address = at.ADDRESSES[number]
        host.path(f"{DEVICES}/{address}").rename(host.path(f"healthy-{number}"))
        put_device(host.root, address, {"driver": "nvidia", **spec})
    for address, driver in words.get("bound", {}).items():
        host.bind(address, driver)
    if "unlisted" in words:
        hide_from_nvidia_smi(host, words["unlisted"])
    merge(host.plan, words.get("plan", {}))
    merge(host.smi, words.get("nvidia_smi", {}))
    if error := words.get("cuda_error"):
        faults.lose_cuda(host, str(error))
    if words.get("sees") == 1:
        faults.keep_one_gpu(host)
    merge(host.cuda, words.get("cuda", {}))
    for name in ("tensorflow", "pytorch"):
        answer = getattr(host, name)
        for key, value in words.get(name, {}).items():
            if key == "ends":
                faults.cut(answer, value["before"], value["signal"])
            elif key == "stderr":
                answer[key] = value
            else:
                faults.part(answer, key).update({key: value})
    for line in words.get("kernel_log", []):
        faults.log(host, line)
    for name, spec in words.get("packages", {}).items():
        version, paths = (spec["version"], spec.get("files", [])) if isinstance(spec, Mapping) else (spec, [])
        host.add_package(name, version, paths)
    for name, spec in words.get("files", {}).items():
        put(host.root, name, spec)
    for name, script in words.get("programs", {}).items():
        host.wrap(name.lstrip("/"), script) if host.path(name.lstrip("/")).exists() else host.program(
            name.lstrip("/"), script
        )
    for name in words.get("removed", []):
        host.path(name.lstrip("/")).rename(host.path(f"removed-{name.strip('/').replace('/', '-')}"))
    if isinstance(host, TrainingHost):
        host.worker(**words.get("worker", {}))
    host.save()


def hide_from_nvidia_smi(host: Host, addresses: list[str]) -> None:
    """Let nvidia-smi list the other GPUs alone, as where its driver has not taken these."""
    view = host.path("/".join(["listed-without", *addresses]))
    (view / DEVICES).mkdir(parents=True)
    for name in ("etc", "proc", "run", "usr"):
        (view / name).symlink_to(host.path(name))
    for device in host.path(DEVICES).iterdir():
        if device.name not in addresses:
            (view / DEVICES / device.name).symlink_to(device)
    host.edit(at.NVIDIA_SMI, f"={shlex.quote(str(host.root))} ", f"={shlex.quote(str(view))} ")


def merge(into: dict[str, Any], words: Words) -> None:
    """Merge words into a document, mapping by mapping."""
    for name, value in words.items():
        if isinstance(value, Mapping) and isinstance(into.get(name), dict):
            merge(into[name], value)
        else:
            into[name] = value

"""A whole GPU host in a directory, on which every check passes: its files, its documents and its programs.

Nothing of Python is patched to break it: a fault edits a file, a document, or the program that prints it. Programs are
real processes. nvidia-smi is the lab's simulated one, the CUDA program is cuda_check.cu built against the simulated
CUDA, and a framework is a program that prints what its probe printed on a real machine.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import os
import shlex
import sys
import tempfile
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from ansible_collections.gpuhost.stack.plugins.module_utils.base import command
from ansible_collections.gpuhost.stack.plugins.module_utils.checks import model, verify
from ansible_collections.gpuhost.stack.plugins.module_utils.host import secure_boot
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog import facts
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.catalogs import load_catalog

from tests.doubles import simulated_cuda, simulated_driver
from tests.doubles.nvidia_repository.contents import product_table
from tests.unit import plans

TRIPLET = os.uname().machine + "-linux-gnu"
DRIVER, KERNEL = "595.71.05", "6.1.0-56-amd64"
H100 = "2330"
ADDRESSES = ("0000:1a:00.0", "0000:1b:00.0")  # those of the simulated CUDA's devices
SWITCH = "0000:c0:00.0"
FIXTURES = Path(__file__).parents[2] / "fixtures"
BUS_RATE, PAIR_RATE = "all_reduce.bus_gb_per_second", "peers.copy.gb_per_second"
HANG_LIMIT = 0.3  # seconds; a hung program is waited for no longer, whatever time limit the check sets
_ANSWERS: dict[tuple[object, ...], command.Answer] = {}  # of nvidia-smi, which most faults leave as it was

PACKAGES = {
    "nvidia-driver-cuda": "595.71.05-1",
    "nvidia-fabricmanager": "595.71.05-1",
    "cuda-toolkit-13-2": "13.2.1-1",
    "libcudnn9-cuda-13": "9.28.0.42-1",
    "libnccl2": "2.29.7-1+cuda13.2",
}
PLAN: dict[str, Any] = {
    "ok": True,
    "components": {
        "driver": {
            "version": DRIVER,
            "kernel_modules": "open",
            "security_floor": DRIVER,
            "packages": [f"{name}={PACKAGES[name]}" for name in ("nvidia-driver-cuda", "nvidia-fabricmanager")],
        },
        "fabric": {"version": DRIVER, "subnet_manager": "/opt/nvidia/nvlsm/sbin/nvlsm"},
        "cuda": {
            "version": "13.2",
            "home": "/usr/local/cuda-13.2",
            "packages": [f"cuda-toolkit-13-2={PACKAGES['cuda-toolkit-13-2']}"],
        },
        "cudnn": {"version": "9.28.0.42", "packages": [f"libcudnn9-cuda-13={PACKAGES['libcudnn9-cuda-13']}"]},
        "nccl": {"version": "2.29.7", "packages": [f"libnccl2={PACKAGES['libnccl2']}"]},
        "tensorflow": {"version": "2.21.0", "cuda_libraries": "wheel"},
        "pytorch": {"version": "2.15.0", "cuda": "13.2", "header_packages": ["python3.11-dev"]},
    },
    "gpus": [{"pci_id": f"10de:{H100}", "compute_capability": "9.0"} for _ in ADDRESSES],
}

NVIDIA_SMI, NVCC, MODINFO = "usr/bin/nvidia-smi", "usr/local/cuda-13.2/bin/nvcc", "sbin/modinfo"
BASH, SHELL, SUDO, SYSTEMD_RUN = "bin/bash", "bin/sh", "usr/bin/sudo", "usr/bin/systemd-run"
SETPRIV = "usr/bin/setpriv"
SYSTEMCTL, JOURNALCTL, DMESG = "usr/bin/systemctl", "usr/bin/journalctl", "usr/bin/dmesg"
TENSORFLOW, PYTORCH = "opt/gpuhost/tensorflow", "opt/gpuhost/pytorch"
STATUS, KERNEL_LOG, CUDA_SETTINGS = "var/lib/dpkg/status", "var/log/kernel", "etc/gpuhost-simulated/cuda.json"
SMI_STATE = "etc/gpuhost-simulated/nvidia-smi.json"
NOT_ANSWERED = "run/gpuhost-simulated/not-answered"  # what nvidia-smi was asked that no published output answers
MODULE = f"lib/modules/{KERNEL}/updates/dkms/nvidia.ko"
PROFILE = "etc/profile.d/cuda.sh"
SITECUSTOMIZE = "etc/python3/sitecustomize.py"  # of every Python, where Debian's python3.X has it
KERNEL_KEYS, OWNER_KEYS = "proc/keys", secure_boot.OWNER_KEYS[1:] + "-605dab50-e046-4300-abb6-3dd810dd8b23"
# The serial numbers of tests/fixtures/secure_boot/enrolled.der and not-enrolled.der.
ENROLLED = "67:ED:F8:2E:88:0C:52:11:2F:8F:BA:29:87:73:61:6E:45:86:85:3B"
NOT_ENROLLED = "43:46:4E:15:46:D0:32:B0:28:F5:98:E7:1E:1E:4B:7E:25:C4:AF:4B"


class Host:
    """The host in `root`. Its methods change files, as a fault on a real host does."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.plan = copy.deepcopy(PLAN)
        self.hung: list[tuple[str, str]] = []
        self.smi: dict[str, Any] = {"devices": {str(number): gpu(number) for number in range(len(ADDRESSES))}}
        # The simulated CUDA copies and sums in the machine's memory: these rates are those of the documents.
        rates = {BUS_RATE: 380.0, PAIR_RATE: 380.0}
        self.cuda: dict[str, Any] = {"settings": {"DEVICES": str(len(ADDRESSES))}, "values": rates}
        self.tensorflow = json.loads((FIXTURES / "matrix/tensorflow.json").read_text())
        self.pytorch = json.loads((FIXTURES / "matrix/pytorch.json").read_text())
        self._driver()
        self._packages()
        self._toolkit()
        self._shells()
        self.save()

    # Files --------------------------------------------------------------------------------------------------------

    def path(self, name: str) -> Path:
        return self.root / name

    def write(self, name: str, text: str, mode: int = 0o644) -> None:
        self.path(name).parent.mkdir(parents=True, exist_ok=True)
        self.path(name).write_text(text)
        self.path(name).chmod(mode)

    def edit(self, name: str, old: str, new: str) -> None:
        text = self.path(name).read_text()
        assert old in text, f"{name} has no {old!r}"
        self.path(name).write_text(text.replace(old, new))

    def remove(self, name: str) -> None:
        self.path(name).unlink()

    def save(self) -> None:
        """Write the documents of the simulated programs."""
        self.write(SMI_STATE, json.dumps(self.smi))
        self.write(CUDA_SETTINGS, json.dumps(self.cuda))
        for name, parts in ((TENSORFLOW, self.tensorflow), (PYTORCH, self.pytorch)):
            self.write(f"{name}/answer.json", json.dumps(parts))

    # Programs -----------------------------------------------------------------------------------------------------

    def program(self, name: str, script: str) -> None:
        self.write(name, "#!/bin/sh\n" + script, 0o755)

    def wrap(self, name: str, script: str) -> None:
        """Put a program in front of another one, which it can run as "$REAL"."""
        real = self.path(name + ".real")
        if not real.exists():
            self.path(name).rename(real)
        self.program(name, f"REAL={shlex.quote(str(real))}\n{script}")

    def hang(self, name: str, when: str = "*") -> None:
        """Let a program hang if its arguments match the shell pattern `when`."""
        self.hung.append((name, when))
        self.wrap(name, f'case "$*" in {when}) exec sleep 60 ;; esac\nexec "$REAL" "$@"\n')

    def die(self, name: str, when: str = "*") -> None:
        self.wrap(name, f'case "$*" in {when}) kill -SEGV $$ ;; esac\nexec "$REAL" "$@"\n')

    def nonsense(self, name: str, when: str = "*") -> None:
        """Let a program print nonsense with exit status 0, or fill a file with it."""
        text = "\\007 Segmentation? }{ <<< 42 maybe"
        if os.access(self.path(name), os.X_OK):
            self.wrap(name, f'case "$*" in {when}) printf \'{text}\\n\'; exit 0 ;; esac\nexec "$REAL" "$@"\n')
        else:
            self.write(name, text + "\n")

    def filter(self, name: str, program: str, when: str = "*") -> None:
        """Edit what a program prints by a sed program; its exit status stays."""
        self.wrap(
            name,
            f'case "$*" in {when}) out=$("$REAL" "$@"); code=$?; printf "%s\\n" "$out" | sed {shlex.quote(program)}; '
            f'exit $code ;; esac\nexec "$REAL" "$@"\n',
        )

    # The healthy host ---------------------------------------------------------------------------------------------

    def _driver(self) -> None:
        for address in ADDRESSES:
            self.add_device(address, H100, "0x030200", "nvidia")
        self.add_device(SWITCH, "22a3", "0x068000", "nvidia-nvswitch")
        self.write("run/gpuhost-simulated-fabric", f"{DRIVER}\n")
        self.write("usr/share/gpuhost-simulated/nvidia-smi.json", product_table(DRIVER, "13.2"))
        self.write(
            "proc/driver/nvidia/version",
            f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {DRIVER}  Release Build\n",
        )
        self.write("proc/modules", "nvidia_uvm 4 0 - Live 0x0\nnvidia 8 1 nvidia_uvm, Live 0x0\n")
        self.write("run/nvidia-persistenced/nvidia-persistenced.pid", "1\n")
        self.write(f"boot/vmlinuz-{KERNEL}", "")
        self.write("proc/sys/kernel/osrelease", KERNEL + "\n")
        # As modinfo 34.2 of Debian 13 prints them of a module that dkms 3.2.2 has built and signed there.
        self.write(
            MODULE, f"version={DRIVER}\nlicense=Dual MIT/GPL\nsigner=DKMS module signing key\nsig_key={ENROLLED}\n"
        )
        self.write(secure_boot.SECURE_BOOT[1:], "\6\0\0\0\1")
        self.write(KERNEL_KEYS, (FIXTURES / "secure_boot/proc-keys-6.1").read_text())
        self.path(OWNER_KEYS).write_bytes((FIXTURES / "secure_boot/mok-list-enrolled").read_bytes())
        simulated = " ".join(map(shlex.quote, simulated_driver.nvidia_smi()))
        self.program(NVIDIA_SMI, f'GPUHOST_SIMULATED_ROOT={shlex.quote(str(self.root))} exec {simulated} "$@"\n')
        # `modinfo [-k KERNEL] -F FIELD FILE_OR_NAME`; kmod finds the file of a name in modules.dep (depmod(8)). Of a
        # field that a module lacks it prints nothing (kmod 30 and 34.2).
        self.program(
            MODINFO,
            f"""modules={shlex.quote(str(self.path("lib/modules")))}
if [ "$1" = -k ]; then
  file=$modules/$2/$(sed -n "s,^\\(.*/$5\\.ko\\):.*,\\1,p" "$modules/$2/modules.dep")
  shift 2; set -- "$1" "$2" "$file"
fi
[ -e "$3" ] || {{ echo "modinfo: ERROR: Module $3 not found." >&2; exit 1; }}
sed -n "s/^$2=//p" "$3"
""",
        )
        self.program(
            SYSTEMCTL,
            f"""case "$*" in
  *is-active*) cat {self.path("run/units/active")} ;;
  *display-manager*) cat {self.path("run/units/display")} ;;
  *) echo enabled ;;
esac
""",
        )
        for alias, unit in {"display-manager.service": "gdm3.service", "default.target": "graphical.target"}.items():
            self.write(f"usr/lib/systemd/system/{unit}", "[Unit]\n")
            self.path("etc/systemd/system").mkdir(parents=True, exist_ok=True)
            self.path(f"etc/systemd/system/{alias}").symlink_to(f"/usr/lib/systemd/system/{unit}")
        self.write("run/units/display", "ActiveState=active\n")
        self.write("run/units/active", "active\n")
        # Fabric Manager's processes on a B300, by `systemctl status`.
        self.write("opt/nvidia/nvlsm/sbin/nvlsm", "")
        for number, name in ((1, "systemd"), (3060, "nvlsm"), (3062, "osm_crashd"), (3082, "nv-fabricmanage")):
            self.write(f"proc/{number}/comm", f"{name}\n")
        self.write("run/systemd/system/README", "")
        self.write(KERNEL_LOG, "2026-11-22T06:00:00+00:00 host kernel: Linux version 6.1.0-56-amd64\n")
        self.program(JOURNALCTL, f"cat {self.path(KERNEL_LOG)}\n")
        self.program(DMESG, f"cat {self.path(KERNEL_LOG)}\n")

    def add_device(self, address: str, device: str, pci_class: str, kernel_driver: str) -> None:
        directory = f"sys/bus/pci/devices/{address}"
        for name, text in {"vendor": "0x10de", "device": f"0x{device}", "class": pci_class}.items():
            self.write(f"{directory}/{name}", text + "\n")
        self.bind(address, kernel_driver)

    def bind(self, address: str, kernel_driver: str) -> None:
        link = self.path(f"sys/bus/pci/devices/{address}/driver")
        link.unlink(missing_ok=True)
        link.symlink_to(f"../../../../bus/pci/drivers/{kernel_driver}")

    def add_package(self, name: str, version: str, paths: list[str]) -> None:
        """Install a package of others, with its files in dpkg's database."""
        row = f"\nPackage: {name}\nStatus: install ok installed\nArchitecture: amd64\nVersion: {version}\n"
        self.write(STATUS, self.path(STATUS).read_text() + row)
        self.write(f"var/lib/dpkg/info/{name}.list", "/.\n" + "".join(f"{path}\n" for path in paths))

    def _packages(self) -> None:
        rows = [
            f"Package: {name}\nStatus: hold ok installed\nArchitecture: amd64\nVersion: {version}\n"
            for name, version in PACKAGES.items()
        ]
        self.write(STATUS, "\n".join(rows))

    def _toolkit(self) -> None:
        codes = FIXTURES / "cuda_check/nvcc-13.2-list-gpu-code.txt"
        program = Path(__file__).with_name("run_cuda_check.py")
        words = [sys.executable, program, self.path(CUDA_SETTINGS), simulated_cuda.built(), str(simulated_cuda.BYTES)]
        line = " ".join(shlex.quote(str(word)) for word in words)
        # nvcc finds cuDNN's and NCCL's headers in /usr/include and links with their libraries.
        for name in ("usr/include/cudnn.h", "usr/include/nccl.h", "usr/lib/libcudnn.so", "usr/lib/libnccl.so"):
            self.write(name, "")
        self.program(
            NVCC,
            f"""
case "$1" in
  --version) echo "Cuda compilation tools, release 13.2, V13.2.78"; exit 0 ;;
  --list-gpu-code) cat {codes}; exit 0 ;;
esac
for file in usr/include/cudnn.h usr/include/nccl.h usr/lib/libcudnn.so usr/lib/libnccl.so; do
  [ -e {self.root}/$file ] || {{ echo "fatal error: /$file: No such file or directory" >&2; exit 1; }}
done
while [ "$1" != -o ]; do shift; done
printf '#!/bin/sh\\nexec {line} "$@"\\n' > "$2"
chmod +x "$2"
""",
        )
        self.path("usr/local/cuda").symlink_to("cuda-13.2")
        self.path("usr/local/bin").mkdir()
        self.path("usr/local/bin/nvcc").symlink_to(self.path(NVCC))
        for name in (TENSORFLOW, PYTORCH):
            python = Path(__file__).with_name("framework.py")
            answer = self.path(f"{name}/answer.json")
            self.program(f"{name}/bin/python", f'exec {sys.executable} -S {python} {answer} {self.root} "$@"\n')

    def _shells(self) -> None:
        """Write the shells: they read this host's profiles and search its directories, in place of the machine's."""
        self.write(PROFILE, f'# Managed by gpuhost (role env_paths)\nPATH="$PATH:{self.root}/usr/local/cuda/bin"\n')
        directories = f"{self.root}/usr/bin:/usr/bin:/bin"
        self.program(
            BASH,
            f'PATH={directories}\nfor file in {self.root}/etc/profile.d/*.sh; do [ -e "$file" ] && . "$file"; done\n'
            'shift\nexec /bin/sh -c "$@"\n',
        )
        # PATH is that of `ssh HOST COMMAND`, in this host's directories.
        self.program(SHELL, f'PATH=$(echo "$PATH" | sed "s|^/|{self.root}/|; s|:/|:{self.root}/|g"):/bin\nexport PATH\n'
                     'exec /bin/sh "$@"\n')  # fmt: skip
        self.write("etc/sudoers", "secure_path=/usr/local/bin\n")
        secure = f'PATH=$(sed -n "s|^secure_path=|{self.root}|p" {self.root}/etc/sudoers):/bin'
        self.program(SUDO, f'{secure}\nexport PATH\nshift\ncommand -v "$1" > /dev/null || '
                     '{ echo "sudo: $1: command not found" >&2; exit 1; }\nexec "$@"\n')  # fmt: skip
        # A unit's PATH is the manager's.
        self.write("etc/systemd/system.conf", f"PATH={self.root}/usr/local/bin:/bin\n")
        self.program(SYSTEMD_RUN, f". {self.root}/etc/systemd/system.conf\nexport PATH\n"
                     'while [ "$1" != -c ]; do shift; done\nexec /bin/sh "$@"\n')  # fmt: skip

        # The modes of the device nodes decide whether another user than root can open the GPUs.
        self.write("dev/nvidia0", "", 0o666)
        self.program(SETPRIV, f'[ "$(stat -c %a {self.root}/dev/nvidia0)" = 666 ] || export SIMULATED_CUDA_ERROR=100\n'
                     'while [ "${1#--}" != "$1" ]; do shift; done\nexec "$@"\n')  # fmt: skip

    # Verification -------------------------------------------------------------------------------------------------

    def run(self, argv: list[str], timeout: float, env: dict[str, str] | None = None, **options: Any) -> command.Answer:
        """Run a program as module_utils.base.command does; it must be in this host's directories."""
        found = [self._here(word) for word in argv]
        if "/" not in argv[0]:
            places = [self.path(f"{directory}/{argv[0]}") for directory in ("usr/bin", "sbin", "bin")]
            found[0] = str(next((place for place in places if place.exists()), places[0]))
        elif not argv[0].startswith(tempfile.gettempdir()):  # where compiled programs are
            found[0] = f"{self.root}{argv[0]}"
        limit = HANG_LIMIT if self._hangs(found) else 60.0
        asked = self._nvidia_smi(found, env, options)
        answer = _ANSWERS.get(asked) if asked else None
        if answer is None:
            answer = command.run(found, min(timeout, limit), env, **options)
            if asked:
                _ANSWERS[asked] = answer
        return dataclasses.replace(answer, stderr=answer.stderr.replace(found[0].encode(), argv[0].encode()))

    def _nvidia_smi(self, argv: list[str], *more: object) -> tuple[object, ...] | None:
        """Return all that the answer of nvidia-smi depends on; None for another program, or one that a fault wraps."""
        if argv[0] != str(self.path(NVIDIA_SMI)) or self.path(NVIDIA_SMI + ".real").exists():
            return None
        script = self.path(NVIDIA_SMI).read_text().replace(str(self.root), "")
        return script, *argv[1:], *simulated_driver.read_by_nvidia_smi(self.root), repr(more)

    def _hangs(self, argv: list[str]) -> bool:
        """Return whether one of the hung programs is run, be it by a shell."""
        words = " ".join(argv)
        return any(Path(name).name in words and fnmatch(" ".join(argv[1:]), when) for name, when in self.hung)

    def _here(self, word: str) -> str:
        """Return a path of this host as one of the machine; other words stay."""
        here = f"{self.root}{word}"
        return here if word.startswith("/") and not word.startswith(str(self.root)) and os.path.exists(here) else word

    def context(self) -> model.Context:
        """Return the context that gpu_verify creates on this host."""
        catalog = load_catalog()
        options = verify.Options(
            plans.plan_json(self.plan),
            tensorflow_path="/" + TENSORFLOW,
            cuda_check_source=simulated_cuda.SOURCE.read_text(),
            gpu_thresholds=facts.gpu_thresholds(catalog, [f"10de:{H100}"]),
            link_thresholds=facts.link_thresholds(catalog),
            fabric_manager_packages=list(catalog.packages.fabric_manager),
            user_settings=facts.user_settings(catalog),
            gpu_counters=facts.gpu_counters(catalog),
            xid_errors=facts.xid_errors(catalog),
        )
        context = verify.context(options, str(self.root), self.run)
        return dataclasses.replace(context, workspaces=(tempfile.gettempdir(),))

    def verify(self) -> dict[str, dict[str, Any]]:
        """Return every result of gpu_verify by check id."""
        found = {str(check["id"]): check for check in verify.verify(self.context())["checks"]}
        assert not self.path(NOT_ANSWERED).exists(), self.path(NOT_ANSWERED).read_text()
        return found


def gpu(number: int) -> dict[str, Any]:
    """Return what nvidia-smi shows of a device of the simulated CUDA."""
    return {"set": {"product_name": "Simulated GPU", "uuid": uuid(number), "pci/replay_counter": "0"}}


def uuid(number: int) -> str:
    """Return the UUID of a device of the simulated CUDA."""
    return f"GPU-f0f1f2f3-f4f5-f6f7-f8f9-fafbfcfdfe{number:02}"

# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""The table of known causes: settings and programs of a host, and states of its GPUs, that explain what checks find.

A cause counts only if it is found on the host *and* explains the whole finding: the same GPU, an error that
the table of cuda_errors has, and nothing else wrong. What a check finds beside it stays a failure of the stack.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import re
from typing import Any, Callable, Iterable, Mapping, NamedTuple

from ansible_collections.gpuhost.stack.plugins.module_utils.base import files
from ansible_collections.gpuhost.stack.plugins.module_utils.checks.causes import module_blacklists
from ansible_collections.gpuhost.stack.plugins.module_utils.checks.model import (
    HARDWARE,
    HOST,
    REAPPLY,
    STACK,
    Check,
    Context,
    Symptom,
)
from ansible_collections.gpuhost.stack.plugins.module_utils.host import foreign_settings, pci, pcie
from ansible_collections.gpuhost.stack.plugins.module_utils.model import outcomes
from ansible_collections.gpuhost.stack.plugins.module_utils.model.components import DriverComponent
from ansible_collections.gpuhost.stack.plugins.module_utils.model.frameworks import FRAMEWORKS
from ansible_collections.gpuhost.stack.plugins.module_utils.model.host import Gpu as PciGpu
from ansible_collections.gpuhost.stack.plugins.module_utils.model.host import NvSwitch
from ansible_collections.gpuhost.stack.plugins.module_utils.model.nvidia import GpuProcess
from ansible_collections.gpuhost.stack.plugins.module_utils.model.outcomes import FAIL, SKIP, UNKNOWN
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia import (
    cuda_errors,
    gpu_processes,
    kernel_log,
    ld_so,
    module_loading,
    nvidia_smi,
    nvidia_smi_log,
    proc_driver,
)
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia.nvidia_smi_log import Gpu, Log
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.database import database, words_of
from ansible_collections.gpuhost.stack.plugins.module_utils.state import last_result, user_settings

CEILING = "gpu_ceiling_power_limit"
COMPUTE_MODES = ("Default", "Exclusive_Process", "Exclusive_Thread", "Prohibited")
ON_DEVICES = (
    *("cuda.devices", "cuda.device_query", "cuda.memory_copies", "cuda.peer_access", "cuda.cudnn_handle"),
    *("cuda.nccl_all_reduce", "cuda.bandwidth", "cuda.unprivileged"),
)
OF_FRAMEWORKS = (
    *("%s.%s" % (each.name, part) for each in FRAMEWORKS for part in ("devices", "matmul", "convolution")),
    "pytorch.triton",
)
_IGNORED = re.compile(
    r"Ignoring visible gpu device \(device: \d+, name: (.*?), pci bus id: ([0-9A-Fa-f:.]+)[^)]*\) with "
    r"(?:core count|Cuda multiprocessor count): (\d+)\. The minimum required count is (\d+)\."
)
_PACKAGES = ["*cuda*", "*nvidia*"]
_ADDRESSES = re.compile(r"^Max address space +(\d+)", re.M)
_LIMITED = re.compile(r"^\s*[^#\s]\S*\s+(?:hard|soft|-)\s+as\s+\d", re.M)
_TOPOLOGY = "/var/run/nvidia-topologyd/virtualTopology.xml"  # where no file is named
_VERSION = re.compile(r"^libcuda\.so\.(\d+\.\d+[\d.]*)$")
_FORCED_PEERS = re.compile(r"^RegistryDwords: .*\b((?:PeerMappingOverride|RMForceP2PType|ForceP2P)=\w+)", re.M)
# /proc/self/cgroup in a job of Slurm, of either version (slurm/uid_N/job_N, slurmstepd.scope/job_N).
_JOB = re.compile(r"slurm\S*/job_(\d+)")
_NODES = re.compile(r"^DeviceFile(\w+): (\d+)$", re.M)
# What `nvidia-smi conf-compute` prints with -q, or before branch 550 with -f and -grs.
_CONFIDENTIAL = re.compile(r"^\s*(?:CC (?:State|status)\s*:\s*ON|Multi-GPU Mode\s*:\s*Protected PCIe)\s*$", re.M | re.I)
# `gpu_recovery_action`, and NVML's error in its place.
_RECOVERY = re.compile(r"reset|reboot|drain", re.I)
_READY = re.compile(r"^\s*(?:CC|Confidential Compute) GPUs Ready State\s*:\s*(\S.*?)\s*$", re.M | re.I)


_BETWEEN_GPUS = ("cuda.peer_access", "cuda.nccl_all_reduce")
# CUDA C++ Programming Guide, "IOMMU on Linux".
_IOMMU_REMEDY = (
    "Add the kernel option `iommu=pt` (%s) and reboot; where that does not help, disable the IOMMU and ACS in the "
    "firmware setup (not in a virtual machine)."
)
_HMM_REMEDY = (
    "Write `options nvidia_uvm uvm_disable_hmm=1` to /etc/modprobe.d/uvm.conf and reload the module (`modprobe -r "
    "nvidia_uvm && modprobe nvidia_uvm`, or reboot), or add the kernel option `nokaslr` (%s) and reboot. The driver "
    "and CUDA are not the cause."
)
# What is logged before each failed try of the driver to initialize a GPU: whose fault it is, what it means, what to do;
# the first row that fits. osinit.c, kernel_gsp*.c and nv-pci.c in NVIDIA's open kernel modules; drivers/pci/pci.c of
# the kernel.
_OFF_AND_ON = "Switch the host off and on; a reboot may leave the GPU as it is. "
_NOT_STARTED = (
    (
        HOST,
        re.compile(r"unexpected WPR2 already up"),
        "it still has the protected memory (WPR2) of an earlier start",
        _OFF_AND_ON,
    ),
    (
        HOST,
        re.compile(r"change power state from D3\w+ to D0"),
        "it does not wake up from a state of low power (D3)",
        _OFF_AND_ON + "If it comes back, switch off what saves power on PCIe (ASPM, D3cold, switchable graphics) in "
        "the firmware setup, update the firmware, and check the card's power and seating.",
    ),
    (
        HOST,
        re.compile(r"swiotlb buffer is full"),
        "the kernel's bounce buffer (swiotlb), which a virtual machine with encrypted memory needs, has no room for it",
        "Take the kernel, the settings of the virtual machine and a GPU of NVIDIA's deployment guide for confidential "
        "computing; the kernel option `swiotlb=` only enlarges the buffer.",
    ),
    (
        HOST,
        re.compile(r"does not have the necessary power cables connected"),
        "its power cables are not connected",
        "Switch the host off and connect each power cable of the card to the power supply: data-center cards often "
        "have the connector of a CPU (EPS), whose cable must not be one for PCIe.",
    ),
    (
        HOST,
        re.compile(r"failed to wait for GFW"),
        "its own firmware (GFW) does not finish its start, whatever the driver is",
        _OFF_AND_ON + "If it comes back, check the card's power, seating and riser, and compare its VBIOS with the "
        "vendor's newest.",
    ),
    (
        HOST,
        re.compile(r"Can't find an IRQ for your NVIDIA card"),
        "it has no interrupt",
        "Update the firmware, and let it assign interrupts in the firmware setup; in a virtual machine, the monitor "
        "must give the card one: update it, or pass the card through in another way.",
    ),
    (
        HOST,
        re.compile(r"not supported by open\s+NVRM: nvidia\.ko"),
        "the open kernel modules do not serve it, since it has no GSP",
        REAPPLY + " It plans a driver for all GPUs. Or leave the GPU alone: gpu_stack_ignore_gpus.",
    ),
    (
        STACK,
        re.compile(r"Direct firmware load for nvidia/|No firmware image found|GSP firmware image version mismatch"),
        "/lib/firmware/nvidia has no firmware of the driver's version",
        REAPPLY + " Of a driver of others, install all packages again, in one version.",
    ),
    (
        STACK,
        re.compile(""),
        "`journalctl -k -b -g 'NVRM|nvidia'` has its messages",
        _OFF_AND_ON + "If that does not help, compare the board's VBIOS with the vendor's newest.",
    ),
)


class Found(NamedTuple):
    """A cause that a host has: text for people, what to type, and the GPUs (PCI addresses) that it concerns.

    visible: how many GPUs a process sees because of it
    """

    text: str
    remedy: str
    gpus: frozenset[str]
    visible: int = 0


class Host:
    """What the causes are found in. Everything is read once, and only when a check needs an explanation."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self._log: Log | None = None
        self._found: dict[str, Found | None] = {}

    @property
    def log(self) -> Log:
        """The document of `nvidia-smi -q -x`; without GPUs where nvidia-smi does not answer."""
        if self._log is None:
            is_there = nvidia_smi.answers(self.context.smi)
            smi_path, run, alone = self.context.smi_path, self.context.run, self.context.left_alone
            self._log = nvidia_smi_log.read(smi_path, run, alone) if is_there else Log([])
        return self._log

    @property
    def before(self) -> outcomes.Answers:
        """What the checks had found before the change that is pending."""
        context = self.context
        directory = files.under(context.root, context.state_directory)
        return last_result.answers(directory, last_result.gpus(context.root, context.smi))

    @property
    def kernel_log(self) -> str:
        """The kernel's messages; none where they are another kernel's."""
        if self.context.kernel_module != "loaded" or self.context.driver_simulated:
            return ""
        return kernel_log.read(self.context.run)[0] or ""

    def find(self, cause: Cause) -> Found | None:
        """Return what there is of a cause on this host, None without it."""
        if cause.name not in self._found:
            try:
                self._found[cause.name] = cause.find(self)
            except (OSError, ValueError):  # what cannot be read explains nothing: the failure stays what it is
                self._found[cause.name] = None
        return self._found[cause.name]

    @property
    def pci(self) -> tuple[tuple[PciGpu, ...], tuple[NvSwitch, ...]]:
        """GPUs and NVSwitches on the PCI bus; none where it cannot be read, which the checks of the driver report."""
        try:
            return pci.read(self.context.root)
        except OSError:
            return (), ()

    @property
    def ours(self) -> dict[str, PciGpu]:
        """The GPUs on the PCI bus by their addresses, without those that are left alone."""
        return {gpu.pci_address: gpu for gpu in self.pci[0] if gpu.pci_address not in self.context.left_alone}


@dataclasses.dataclass(frozen=True)
class Cause:
    """A row of the table, and of docs/checks.md.

    outcome: that of the checks which it explains; blame: with FAIL, the cause of the failure
    found_in: how it is found; action: what to do
    checks: those that it explains
    errors: those of cuda_errors that it explains
    find: finds it on a host
    """

    name: str
    outcome: str
    found_in: str
    action: str
    checks: tuple[str, ...]
    errors: tuple[int | str, ...]
    find: Callable[[Host], Found | None]
    blame: str | None = None

    def concerns(self, symptom: Symptom) -> bool:
        """Return whether the cause could explain the symptom, if the host has it."""
        return not symptom.other and any(number in self.errors for _address, number in symptom.errors)

    def explains(self, symptom: Symptom, found: Found, gpus: frozenset[str]) -> bool:
        """Return whether it explains the whole symptom, which it concerns; `gpus` are all GPUs of the host."""
        return all(
            number in self.errors and (gpus if address is None else {address}) <= found.gpus
            for address, number in symptom.errors
        )


class StartCause(Cause):
    """What keeps CUDA from starting: no GPU is seen."""

    def concerns(self, symptom: Symptom) -> bool:
        """Return whether the cause could explain it, if the host has it."""
        return symptom.seen == 0 and super().concerns(symptom)


class FewerCause(Cause):
    """A cause that explains how many GPUs a process sees, and nothing else."""

    def concerns(self, symptom: Symptom) -> bool:
        """Return whether a process saw fewer GPUs than expected; no GPU at all is an error of its own."""
        return not symptom.other and symptom.seen is not None and {n for _gpu, n in symptom.errors} <= set(self.errors)

    def explains(self, symptom: Symptom, found: Found, gpus: frozenset[str]) -> bool:
        """Return whether it saw what the cause leaves it."""
        return int(symptom.seen or 0) >= found.visible


# What a check of the GPUs reads -----------------------------------------------------------------------------------


def compute_mode(gpu: Gpu) -> str | None:
    """Return the compute mode, None if it is not reported. Raise Unreadable for another text."""
    return gpu.choice("compute_mode", *COMPUTE_MODES)


def mig_enabled(gpu: Gpu) -> bool:
    """Return whether MIG is enabled now."""
    return gpu.raw("mig_mode/current_mig") == "Enabled"


def has_fabric(gpu: Gpu) -> bool:
    """Return whether a GPU reports a fabric: boards of B200 and GB200 have one without a visible NVSwitch."""
    return gpu.raw("fabric/state") not in (None, *nvidia_smi_log.ABSENT)


def power_limits(gpu: Gpu) -> tuple[float | None, float | None]:
    """Return the current and the default power limit in W.

    Branch 525 and older have other elements; the newest have a group for them, and will drop the old ones (NVIDIA's
    manual of nvidia-smi, "Changelog").
    """
    group = "gpu_power_readings" if gpu.element.find("gpu_power_readings") is not None else "power_readings"

    def limit(name: str) -> float | None:
        newest = gpu.number("%s/%s/%s_power_limit" % (group, CEILING, name), "W")
        return gpu.number("%s/%s_power_limit" % (group, name), "W") if newest is None else newest

    current = limit("current")
    return gpu.number(group + "/power_limit", "W") if current is None else current, limit("default")


def ignored_by_tensorflow(context: Context, printed: str) -> list[str]:
    """Return the GPUs that TensorFlow leaves out because of their few multiprocessors, as text.

    By what it prints (tensorflow/core/common_runtime/gpu/gpu_device.cc); where it prints nothing, by the plan.
    """
    lines = dict.fromkeys(_IGNORED.findall(printed))
    if lines:
        return ["%s at %s with %s multiprocessors (at least %s)" % line for line in lines]
    return [gpu.name or gpu.pci_id for gpu in context.plan.gpus if gpu.left_out_by == "tensorflow"]


# What is found when a check failed --------------------------------------------------------------------------------


def _addresses(gpus: Iterable[Gpu]) -> frozenset[str]:
    return frozenset(gpu.pci_address for gpu in gpus)


def _named(gpus: Iterable[Gpu]) -> str:
    return ", ".join("GPU %d (%s)" % (gpu.index, gpu.pci_address) for gpu in gpus)


def _find_compute_mode(host: Host) -> Found | None:
    closed = [gpu for gpu in host.log.gpus if gpu.raw("compute_mode") in COMPUTE_MODES[1:]]
    if not closed:
        return None
    text = "; ".join("compute mode %s of %s" % (gpu.raw("compute_mode"), _named([gpu])) for gpu in closed)
    users = _holders(host.context)
    if users:
        text += "; programs that have GPUs open: " + gpu_processes.listed(users)
    commands = ", ".join("`nvidia-smi -i %d -c 0`" % gpu.index for gpu in closed)
    remedy = (
        "Let any number of programs use the GPU: %s. If the mode is meant, end the programs that hold the GPU "
        "(`fuser -v /dev/nvidia*`) and verify again." % commands
    )
    return Found(text, remedy, _addresses(closed))


def _holders(context: Context) -> list[GpuProcess]:
    """Return the programs that have a GPU open, none where they cannot be listed: they only illustrate the mode."""
    try:
        users = gpu_processes.read(context.root, context.smi, context.run)
    except (OSError, ValueError):
        return []
    return [user for user in users if user.computes or any(re.match(r"nvidia\d", d) for d in user.devices)]


def _find_mig(host: Host) -> Found | None:
    gpus = host.log.gpus
    divided = [gpu for gpu in gpus if mig_enabled(gpu)]
    if not divided:
        return None
    has_instances = any(gpu.element.find("mig_devices/mig_device") is not None for gpu in divided)
    text = "MIG is enabled on %s: a process sees one instance, however many GPUs there are" % _named(divided)
    remedy = "Without jobs on them, %s ends MIG; it destroys the instances." % ", ".join(
        "`nvidia-smi -i %d -mig 0`" % gpu.index for gpu in divided
    )
    return Found(text, remedy, _addresses(divided), 1 if has_instances else len(gpus) - len(divided))


def _find_reset(host: Host) -> Found | None:
    """Find GPUs that the driver serves no more until they were reset; before branch 570 a flag says so."""
    asking = [
        gpu
        for gpu in host.log.gpus
        if _RECOVERY.search(gpu.raw("gpu_recovery_action") or "") or gpu.raw("gpu_reset_status/reset_required") == "Yes"
    ]
    remedy = (
        "The driver asks for a reset of %s, and until then CUDA may refuse it: see gpu.recovery. Drain the host and "
        "reset it (`nvidia-smi --gpu-reset -i N`), or reboot." % _named(asking)
    )
    return Found("%s must be reset" % _named(asking), remedy, _addresses(asking)) if asking else None


def _find_confidential(host: Host) -> Found | None:
    """Ask for the state of confidential computing, by which CUDA waits until the GPUs were attested."""
    printed = _conf_compute(host, "-q") or _conf_compute(host, "-f") + _conf_compute(host, "-grs")
    protected = [gpu for gpu in host.log.gpus if _mib(gpu.raw("cc_protected_memory_usage/total"))]
    if not protected and not _CONFIDENTIAL.search(printed):
        return None
    ready = _READY.search(printed)
    if ready is None and host.pci[1]:  # Fabric Manager may be the reason as well
        return None
    if ready is not None and ready.group(1).lower().replace("-", " ") != "not ready":
        return None
    text = "confidential computing is on, and its GPUs are %s (`nvidia-smi conf-compute -q`)" % (
        "not ready" if ready else "not known to be ready"
    )
    remedy = (
        "Attest the GPUs with NVIDIA's verifier, `python3 -m verifier.cc_admin` of nvtrust, or the attestation SDK; at "
        "each boot, and after each load of the driver. With `--user_mode` it leaves them not ready: `nvidia-smi "
        "conf-compute -srs 1`, as root, sets them ready after that. Without an attestation, that gives up what "
        "confidential computing is for."
    )
    return Found(text, remedy, _addresses(host.log.gpus))


def _conf_compute(host: Host, option: str) -> str:
    """Return what nvidia-smi prints of confidential computing, nothing where it does not know the option."""
    if not host.log.gpus:
        return ""
    answer = nvidia_smi.ask(host.context.run, [host.context.smi_path, "conf-compute", option])
    return answer.output if answer.exit_code in nvidia_smi.ANSWERS else ""


def _mib(text: str | None) -> int:
    match = re.match(r"^(\d+) MiB$", text or "")
    return int(match.group(1)) if match else 0


def _find_libcuda(host: Host) -> Found | None:
    """Find a libcuda that the dynamic linker takes in place of the driver's.

    Where the loaded module is not the planned one, that explains the errors: the change has not been completed.
    """
    context = host.context
    driver = context.component("driver")
    planned = driver.version if driver else None
    loaded = proc_driver.read(context.root)
    first = ld_so.first(context.root, "libcuda.so")
    if first is None or (loaded is not None and loaded.version != planned):
        return None
    match = _VERSION.match(os.path.basename(first.real))
    if (match and match.group(1) == planned) or first.set_in is None:
        return None
    owner = _owner(context, {first.path, first.real})
    text = first.real + (" of the package %s" % owner if owner else "")
    text += ", which comes before the driver's libcuda (%s)" % (
        first.set_in or "in a directory that is always searched"
    )
    commands = ["Remove %s from %s and run `ldconfig`." % (first.directory, first.set_in)] if first.set_in else []
    if owner:
        remove = words_of(context.root).remove([owner])
        commands.append("`%s` removes the library itself, if nothing needs it." % remove)
    remedy = " ".join(commands) + " The driver's own libcuda runs every program that this driver supports."
    gpus = frozenset(gpu.pci_address for gpu in host.pci[0])
    return Found(text, remedy, gpus | _addresses(host.log.gpus))


def _find_memory_limit(host: Host) -> Found | None:
    """Find what limits the addresses of processes, of which CUDA reserves more than the GPUs have memory.

    Strict overcommit counts them (vm/overcommit-accounting of the kernel), RLIMIT_AS refuses them (setrlimit(2)).
    """
    root = host.context.root
    texts, remedies = [], []
    if (files.read_text(root, "/proc/sys/vm/overcommit_memory") or "").strip() == "2":
        where = module_loading.sysctl_files(root, "vm/overcommit_memory", off=("0", "1"))
        texts.append("vm.overcommit_memory is 2" + (" (%s)" % ", ".join(where) if where else ""))
        remedies.append("Take the setting out of its file, and `sysctl -w vm.overcommit_memory=0`.")
    limit = _ADDRESSES.search(files.read_text(root, "/proc/self/limits") or "")
    if limit:
        paths = ["/etc/security/limits.conf"]
        paths += ["/etc/security/limits.d/" + name for name in files.names(root, "/etc/security/limits.d")]
        where = [path for path in paths if _LIMITED.search(files.read_text(root, path) or "")]
        in_files = " (%s)" % ", ".join(where) if where else ""
        texts.append(
            "processes have at most %s bytes of addresses, as `ulimit -v` prints%s" % (limit.group(1), in_files)
        )
        remedies.append("Let the limit `as` be unlimited, and log in again.")
    gpus = frozenset(gpu.pci_address for gpu in host.pci[0]) | _addresses(host.log.gpus)
    return Found("; ".join(texts), " ".join(remedies), gpus) if texts else None


def _find_topology(host: Host) -> Found | None:
    """Find a description of the topology that NCCL takes from a file (its misc/param.cc and graph/topo.cc)."""
    root, name = host.context.root, "NCCL_TOPO_FILE"
    found = []
    if name in os.environ:
        found = ["%s=%s in %s" % (name, os.environ[name], user_settings.place(root, name) or "the environment")]
    for path in ("/root/.nccl.conf", "/etc/nccl.conf"):
        named = re.search(r"^\s*%s\s*=\s*(\S+)" % name, files.read_text(root, path) or "", re.M)
        found += ["%s=%s in %s" % (name, named.group(1), path)] if named else []
    if not found and files.read_text(root, _TOPOLOGY) is not None:
        found = [_TOPOLOGY]
    known = cuda_errors.ERRORS[cuda_errors.TOPOLOGY]
    gpus = frozenset(gpu.pci_address for gpu in host.pci[0]) | _addresses(host.log.gpus)
    return Found(found[0], known.remedy, gpus) if found else None


def _find_hmm(host: Host) -> Found | None:
    """Find that the kernel has left nvidia-uvm no addresses, with which CUDA does not start whatever its version is."""
    message = kernel_log.hmm_failure(host.kernel_log)
    if not message:
        return None
    gpus = frozenset(gpu.pci_address for gpu in host.pci[0])
    return Found(
        "the kernel log: %s" % message,
        _HMM_REMEDY % words_of(host.context.root).KERNEL_OPTIONS,
        gpus | _addresses(host.log.gpus),
    )


def _find_node_mode(host: Host) -> Found | None:
    """Find that an option of the driver restricts its device nodes to a user and a group (README of the driver)."""
    root = host.context.root
    given = dict(_NODES.findall(files.read_text(root, "/proc/driver/nvidia/params") or ""))
    mode = int(given.get("Mode", "438"))  # in decimal, as the kernel prints it
    if mode & 0o6 == 0o6:
        return None
    where = foreign_settings.driver_options(root, "DeviceFileMode")
    text = "the driver makes its device nodes with the mode %04o" % mode + (" (%s)" % "; ".join(where) if where else "")
    remedy = (
        "If that is meant, make each user of the GPUs a member of the group that owns them (`ls -l /dev/nvidia*`), and "
        "waive this check. Else remove NVreg_DeviceFileMode from there, run `%s`, and reboot."
        % words_of(root).INITRAMFS
    )
    return Found(text, remedy, frozenset(gpu.pci_address for gpu in host.pci[0]) | _addresses(host.log.gpus))


def _find_window(host: Host) -> Found | None:
    """Find GPUs that no driver takes, since the firmware has given them no addresses."""
    free = [address for address, gpu in host.ours.items() if gpu.kernel_driver is None]
    named = kernel_log.without_window(host.kernel_log) if free else set()
    without = [address for address in free if address in named or pcie.lacks_window(host.context.root, address)]
    if not without:
        return None
    text = "the firmware has given %s no window for its memory (BAR1)" % ", ".join(without)
    return Found(text, pcie.WINDOW_REMEDY, frozenset(without), len(host.ours) - len(without))


def _find_not_started(host: Host, blame: str) -> Found | None:
    """Find GPUs that the driver could not initialize, by what was logged before each try."""
    missing = host.ours.keys() - _addresses(host.log.gpus)
    text = host.kernel_log if missing else ""
    tries = {gpu: said for gpu, said in kernel_log.not_initialized(text).items() if gpu in missing}
    logged = [text for texts in tries.values() for text in texts]
    whose, _pattern, why, remedy = next(row for row in _NOT_STARTED if all(map(row[1].search, logged)))
    if not tries or whose != blame:
        return None
    text = "the driver could not initialize GPU %s: %s" % (", ".join(sorted(tries)), why)
    return Found(
        text, remedy if blame == HOST else "%s. %s" % (text, remedy), frozenset(tries), len(host.ours) - len(tries)
    )


def _find_not_served(host: Host) -> Found | None:
    """Find GPUs that no driver has, where the driver says that another branch of it serves some GPU."""
    free = [address for address, gpu in host.ours.items() if gpu.kernel_driver is None]
    said = kernel_log.not_served(host.kernel_log) if free else []
    if not said:
        return None
    text = "the driver does not serve %s, and says: %s" % (", ".join(free), "; ".join(said))
    remedy = REAPPLY + " It plans a driver for all GPUs. Or leave the GPU alone: gpu_stack_ignore_gpus."
    return Found(text, remedy, frozenset(free), len(host.ours) - len(free))


def _find_job(host: Host) -> Found | None:
    """Find that this session is within a job of Slurm, whose cgroup keeps the GPUs of others from it (cgroup.conf)."""
    job = _JOB.search(files.read_text(host.context.root, "/proc/self/cgroup") or "")
    missing = host.ours.keys() - _addresses(host.log.gpus)
    if not job or not missing:
        return None
    text = "this session is within Slurm's job %s, which keeps %s from it" % (job.group(1), ", ".join(sorted(missing)))
    remedy = (
        "Log in as a user whose sessions pam_slurm_adopt leaves alone, without a job on this host: name it for "
        "pam_access or pam_listfile in front of pam_slurm_adopt in /etc/pam.d/sshd; or end the job."
    )
    return Found(text, remedy, frozenset(missing), len(host.ours) - len(missing))


def _find_refused(host: Host) -> Found | None:
    """Find that the kernel has refused the driver's module, which is built for another one or another driver."""
    is_away = bool(host.pci[0]) and proc_driver.read(host.context.root) is None
    message = kernel_log.refused_module(host.kernel_log) if is_away else ""
    if not message:
        return None
    remedy = (
        "The kernel has refused the module: %s. It is built for another kernel, or against another driver: `dkms "
        "status` names it, `sudo dkms build --force NAME/VERSION && sudo dkms install --force NAME/VERSION` build it "
        "again; then `modprobe nvidia`." % message
    )
    return Found(message, remedy, frozenset(gpu.pci_address for gpu in host.pci[0]))


def _find_forced_peers(host: Host) -> Found | None:
    """Find that an option of the module makes the driver allow peer access that it would not."""
    forced = _FORCED_PEERS.search(files.read_text(host.context.root, "/proc/driver/nvidia/params") or "")
    if not forced:
        return None
    where = foreign_settings.driver_options(host.context.root, "RegistryDwords")
    text = "peer access is forced by %s of the module" % forced.group(1) + (" (%s)" % "; ".join(where) if where else "")
    remedy = (
        "Remove that option, run `%s`, and reboot: without it the driver lets those GPUs copy directly whose data "
        "arrive. Until then, NCCL_P2P_DISABLE=1 in the environment of programs does without it."
        % words_of(host.context.root).INITRAMFS
    )
    return Found(text, remedy, frozenset(gpu.pci_address for gpu in host.pci[0]))


def _find_iommu(host: Host) -> Found | None:
    """Find that the IOMMU refuses what GPUs send each other, or translates it where nothing shows that this works."""
    gpus = [gpu.pci_address for gpu in host.pci[0]]
    faults = kernel_log.iommu_faults(host.kernel_log)
    ours = list(host.ours)
    refused = {address: faults[address[5:]] for address in ours if address[5:] in faults}
    remedy = _IOMMU_REMEDY % words_of(host.context.root).KERNEL_OPTIONS
    if refused:
        address, message = next(iter(refused.items()))
        return Found("the IOMMU refuses %s, as the kernel logs: %s" % (address, message), remedy, frozenset(gpus))
    links = pcie.read(host.context.root, ours)
    if not links.translated or any(host.before.were_right(name) for name in _BETWEEN_GPUS):
        return None
    types = sorted({str(links.gpus[address].iommu_type) for address in links.translated})
    text = "the IOMMU translates what GPUs send each other (type %s: %s)" % (
        ", ".join(types), ", ".join(links.translated),
    )  # fmt: skip
    return Found(text, remedy, frozenset(gpus))


def _owner(context: Context, paths: set[str]) -> str | None:
    """Return the package that has a file, None if none has it or a planned package has."""
    driver = DriverComponent.of(context.plan.components)
    planned = {package.name for package in driver.packages} if driver else set()
    packages = database(context.root)
    for name, package in packages.read(_PACKAGES).items():
        if package.status == "installed" and name not in planned and paths & set(packages.files(name)):
            return name
    return None


def _of_missing_gpu(
    name: str, found_in: str, action: str, find: Callable[[Host], Found | None], blame: str
) -> FewerCause:
    """Return the cause of a GPU that is on the bus and that the driver does not list."""
    checks = (*module_blacklists.CHECKS, "gpu.answers", *ON_DEVICES, *OF_FRAMEWORKS)
    return FewerCause(name, FAIL, found_in, action, checks, (100, 101, 999), find, blame)


CAUSES: tuple[Cause, ...] = (
    Cause(
        "Another libcuda than the driver's",
        FAIL,
        "The files that /etc/ld.so.conf and /etc/ld.so.conf.d put in front of the driver's libcuda, and the packages "
        "that have them (`cuda-compat-*`)",
        "Remove the directory from that file, or the package",
        (*ON_DEVICES, *OF_FRAMEWORKS),
        blame=HOST,
        errors=(34, 35, 803, 804),
        find=_find_libcuda,
    ),
    Cause(
        "The kernel's address space has no room for HMM",
        FAIL,
        "`nvidia-uvm: ... request_free_mem_region() err -34` in the kernel log, since the module was loaded, with "
        "kernels that randomize their address space (CUDA toolkit release notes, known issues)",
        "Boot with `nokaslr`, or `options nvidia_uvm uvm_disable_hmm=1`",
        (*ON_DEVICES, *OF_FRAMEWORKS),
        blame=HOST,
        errors=(3,),
        find=_find_hmm,
    ),
    Cause(
        "Compute mode Prohibited or Exclusive_Process",
        FAIL,
        "`compute_mode` in `nvidia-smi -q -x`; without an error 46 of that GPU it is a warning of `gpu.compute_mode`",
        "`nvidia-smi -i N -c 0`",
        (*ON_DEVICES, *OF_FRAMEWORKS),
        blame=HOST,
        errors=(46,),
        find=_find_compute_mode,
    ),
    Cause(
        "A GPU that must be reset",
        FAIL,
        "`gpu_recovery_action` in `nvidia-smi -q -x`, before branch 570 `reset_required`",
        "`nvidia-smi --gpu-reset -i N`, or a reboot",
        (*ON_DEVICES, *OF_FRAMEWORKS),
        blame=HARDWARE,
        errors=(3, 46, 101, 999),
        find=_find_reset,
    ),
    Cause(
        "Confidential computing, not ready",
        FAIL,
        "`nvidia-smi conf-compute -q`, `cc_protected_memory_usage` in `nvidia-smi -q -x`",
        "Attest the GPUs with NVIDIA's verifier, `nvidia-smi conf-compute -srs 1`",
        (*ON_DEVICES, *OF_FRAMEWORKS),
        blame=HOST,
        errors=(802,),
        find=_find_confidential,
    ),
    StartCause(
        "The memory of processes is limited",
        FAIL,
        "`vm.overcommit_memory` 2, and a limit of the address space (`ulimit -v`)",
        "`sysctl -w vm.overcommit_memory=0`; `as` unlimited in /etc/security/limits.conf",
        (*ON_DEVICES, *OF_FRAMEWORKS),
        blame=HOST,
        errors=(2,),
        find=_find_memory_limit,
    ),
    Cause(
        "A description of the topology that NCCL cannot use",
        FAIL,
        "`NCCL_TOPO_FILE` in the environment, /etc/nccl.conf or root's .nccl.conf, and NCCL's text about its XML",
        "Leave out `NCCL_TOPO_FILE`, or take the file of this host",
        ("cuda.nccl_all_reduce",),
        blame=HOST,
        errors=(cuda_errors.TOPOLOGY,),
        find=_find_topology,
    ),
    FewerCause(
        "A GPU without a window for its memory",
        FAIL,
        "No driver has the GPU, and the kernel log has `BAR1 is 0M @ 0x0`, or `resource` in sysfs has no start for it",
        "Enable `Above 4G decoding` in the firmware setup",
        (*module_blacklists.CHECKS, "gpu.answers", *ON_DEVICES, *OF_FRAMEWORKS),
        blame=HOST,
        errors=(35, 100, 999),
        find=_find_window,
    ),
    _of_missing_gpu(
        "A GPU that another branch of the driver serves",
        "No driver has the GPU, and the driver logs that its legacy drivers serve it, or that this release does not",
        "Plan again; or `gpu_stack_ignore_gpus`",
        _find_not_served,
        HOST,
    ),
    _of_missing_gpu(
        "A GPU in a state in which no driver starts it",
        "`RmInitAdapter failed` or a failed probe of a GPU that is missing, in the kernel log, and before each `WPR2 "
        "already up`, `change power state from D3cold to D0`, missing power cables, or the like",
        "Switch the host off and on; power cables; settings of the firmware that save power",
        functools.partial(_find_not_started, blame=HOST),
        HOST,
    ),
    _of_missing_gpu(
        "A GPU that the driver could not initialize",
        "`RmInitAdapter failed` of a GPU that is missing, in the kernel log, after something else",
        "Without firmware of the driver's version, its packages again; else switch the host off and on",
        functools.partial(_find_not_started, blame=STACK),
        STACK,
    ),
    _of_missing_gpu(
        "A session within a job",
        "A job of Slurm in /proc/self/cgroup, with fewer GPUs than the host",
        "Log in as a user whom pam_slurm_adopt leaves alone",
        _find_job,
        HOST,
    ),
    FewerCause(
        "A module that the kernel refuses",
        FAIL,
        "No module is loaded, and the kernel has logged another version magic of it, or a symbol that does not fit",
        "`sudo dkms build --force NAME/VERSION && sudo dkms install --force NAME/VERSION`",
        (*module_blacklists.CHECKS, *ON_DEVICES, *OF_FRAMEWORKS),
        blame=STACK,
        errors=(35, 100, 999),
        find=_find_refused,
    ),
    Cause(
        "Peer access that an option forces",
        FAIL,
        "`RegistryDwords` with `PeerMappingOverride` or the like in /proc/driver/nvidia/params",
        "The driver's module without that option",
        _BETWEEN_GPUS,
        blame=HOST,
        errors=(cuda_errors.BETWEEN,),
        find=_find_forced_peers,
    ),
    Cause(
        "Device nodes for a group",
        FAIL,
        "`DeviceFileMode` in /proc/driver/nvidia/params, and `NVreg_DeviceFileMode` in modprobe.d",
        "Membership in the group, or the mode 0666",
        ("cuda.unprivileged",),
        blame=HOST,
        errors=(100, 304, 999),
        find=_find_node_mode,
    ),
    Cause(
        "The IOMMU between GPUs",
        FAIL,
        "`IO_PAGE_FAULT` (AMD-Vi) or `DMAR: [DMA` of a GPU in the kernel log; without them a group of type DMA, unless "
        "these checks were right before the change",
        "Kernel option `iommu=pt`, or no IOMMU",
        _BETWEEN_GPUS,
        blame=HOST,
        errors=(cuda_errors.BETWEEN,),
        find=_find_iommu,
    ),
    FewerCause(
        "MIG",
        SKIP,
        "`mig_mode` in `nvidia-smi -q -x`; a process sees one instance (NVIDIA's MIG guide)",
        "`nvidia-smi -i N -mig 0`, if it is not meant",
        (*ON_DEVICES, *OF_FRAMEWORKS),
        errors=(100,),
        find=_find_mig,
    ),
)


def explain(checks: list[Check], context: Context) -> list[Check]:
    """Return the checks with the outcomes of the causes that explain them, and with errors translated.

    A framework that sees no GPU and prints no error has the error with which CUDA refused the program of the checks.
    """
    host = Host(context)
    start = next((check.symptom for check in checks if check.id == "cuda.devices" and check.symptom), Symptom())
    of_all = frozenset(error for error in start.errors if error[0] is None)
    return [_explained(check, host, of_all) for check in checks]


def _explained(check: Check, host: Host, of_all: frozenset[tuple[str | None, int | str]]) -> Check:
    if check.symptom is None or check.status not in (FAIL, UNKNOWN):
        return check
    symptom = check.symptom
    if not symptom.errors and symptom.seen == 0 and check.id in OF_FRAMEWORKS:
        symptom = dataclasses.replace(symptom, errors=of_all)
    gpus = frozenset(gpu.pci_address for gpu in host.pci[0]) or _addresses(host.log.gpus)
    for cause in CAUSES:
        if check.id not in cause.checks or not cause.concerns(symptom):
            continue
        found = host.find(cause)
        if found is not None and cause.explains(symptom, found, gpus):
            return _with(check, found, cause.outcome, cause.blame)
    keys = sorted({key for _address, key in symptom.errors}, key=str)
    remedies = [text for text in (remedy(host, key) for key in keys) if text]
    is_known = len(remedies) == len(keys) and not symptom.other and not symptom.seen
    blame = cuda_errors.cause(keys)
    if is_known and blame:
        text, action = "; ".join(map(cuda_errors.meaning, keys)), [cuda_errors.ERRORS[key].remedy for key in keys]
        return _with(check, Found(text, " ".join(action), frozenset()), FAIL, blame)
    if check.status == FAIL and check.cause == STACK and remedies:
        return dataclasses.replace(check, remedy=" ".join(remedies + ([] if is_known else [str(check.remedy)])))
    return check


def _with(check: Check, found: Found, outcome: str, blame: str | None) -> Check:
    """Return a check with the outcome of a cause. What was not measured is skipped: the failure is reported once."""
    if outcome == FAIL and check.status == FAIL:
        setting = found.text if blame == HOST else None
        return dataclasses.replace(check, cause=blame, setting=setting, remedy=found.remedy)
    blank: Mapping[str, Any] = {"expected": None, "remedy": None, "cause": None}
    setting = found.text if outcome == SKIP else None
    reason = "%s. %s" % (found.text, found.remedy)
    return dataclasses.replace(check, status=SKIP, reason=reason, setting=setting, **blank)


def remedy(host: Host, key: int | str) -> str | None:
    """Return what an error means and what to type on this host, None if the table lacks it."""
    if key == 802 and host.pci[1]:
        return (
            "CUDA's error 802: the system is not ready, since Fabric Manager has not set up its NVSwitches: `systemctl "
            "status nvidia-fabricmanager`; its version must be the driver's."
        )
    return cuda_errors.remedy(key)

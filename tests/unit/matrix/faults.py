"""The faults of the matrix: what each does to a host, the checks that must see it, and what follows from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ansible_collections.gpuhost.stack.plugins.module_utils.checks import model
from ansible_collections.gpuhost.stack.plugins.module_utils.model import outcomes

from tests.doubles import simulated_driver
from tests.unit.matrix import host as at
from tests.unit.matrix.host import Host

Apply = Callable[[Host], None]
Outcomes = dict[str, str]  # by check id


@dataclass(frozen=True)
class Fault:
    """A fault of a host.

    text: what is wrong, in one line; own: the checks for which it is meant, which must fail; follows: other checks that
    rightly do not pass, by id with their outcome; why: the reason for those; cause: that of each failure of a check
    whose own it is not
    """

    text: str
    apply: Apply
    own: tuple[str, ...]
    follows: Mapping[str, str] = field(default_factory=dict)
    why: str = ""
    outcome: str = outcomes.FAIL
    cause: str = model.STACK

    @property
    def is_known_cause(self) -> bool:
        """Whether a cause of the host or its boards explains it, or a warning or a skip is all."""
        return self.cause == model.HOST or self.outcome in (outcomes.SKIP, outcomes.WARN) or "gpu.inforom" in self.own

    @property
    def outcomes(self) -> dict[str, str]:
        """The checks that do not pass, with their outcomes."""
        return {**dict.fromkeys(self.own, self.outcome), **self.follows}


FAULTS: dict[str, Fault] = {}


def fault(
    text: str,
    *own: str,
    follows: Outcomes | None = None,
    why: str = "",
    outcome: str = outcomes.FAIL,
    cause: str = model.STACK,
) -> Callable[[Apply], Apply]:
    """Register a function that applies a fault, under its own name."""

    def register(apply: Apply) -> Apply:
        FAULTS[apply.__name__.replace("_", "-")] = Fault(text, apply, own, follows or {}, why, outcome, cause)
        return apply

    return register


def fails(*ids: str) -> Outcomes:
    return dict.fromkeys(ids, outcomes.FAIL)


def unknown(*ids: str) -> Outcomes:
    return dict.fromkeys(ids, outcomes.UNKNOWN)


def skips(*ids: str) -> Outcomes:
    return dict.fromkeys(ids, outcomes.SKIP)


FROM_THE_DOCUMENT = (
    *("gpu.answers", "gpu.recovery", "gpu.persistence", "gpu.ecc_errors", "gpu.memory_repair", "gpu.pcie_width"),
    *("gpu.pcie_generation", "gpu.fabric", "gpu.slowdown", "gpu.mig"),
    *("gpu.power_limit", "gpu.compute_mode", "gpu.inforom", "gpu.error_counters"),
)
# No version of a driver can cause or repair what these find, so that their failure rolls nothing back.
OF_THE_HARDWARE = {
    *("gpu.recovery", "gpu.ecc_errors", "gpu.memory_repair", "gpu.pcie_width", "gpu.pcie_generation", "gpu.slowdown"),
    *("gpu.inforom", "gpu.error_counters"),
}
ON_DEVICES = (
    *("cuda.device_query", "cuda.memory_copies", "cuda.peer_access", "cuda.cudnn_handle", "cuda.nccl_all_reduce"),
    *("cuda.bandwidth", "cuda.unprivileged"),
)
COMPUTATIONS = (
    *("tensorflow.matmul", "tensorflow.convolution"),
    *("pytorch.matmul", "pytorch.convolution", "pytorch.triton"),
)
A_GPU_REFUSED = ("cuda.devices", "cuda.memory_copies", "cuda.nccl_all_reduce", "tensorflow.matmul", "pytorch.matmul")
OF_TENSORFLOW = (
    *("tensorflow.version", "tensorflow.built_for_cuda", "tensorflow.devices", "tensorflow.libraries"),
    *("tensorflow.cudnn_version", "tensorflow.nccl_version", "tensorflow.matmul", "tensorflow.convolution"),
)
OF_PYTORCH = (
    *("pytorch.version", "pytorch.built_for_cuda", "pytorch.cuda_libraries", "pytorch.devices", "pytorch.matmul"),
    *("pytorch.convolution", "pytorch.triton"),
)
IN_SHELLS = ("env.login_shell", "env.ssh_no_profile", "env.sudo", "env.systemd_unit")
NO_NVIDIA_SMI = {
    **unknown(*FROM_THE_DOCUMENT, "driver.security_floor", "gpu.nvlink", "cuda.bandwidth", "idle.gpus"),
    **fails("driver.gpu_count"),
}
NO_CUDA = unknown(*ON_DEVICES, *COMPUTATIONS)
NO_DEVICE = {**NO_CUDA, **fails("cuda.devices", "tensorflow.devices", "pytorch.devices")}
ONE_GPU = {
    **unknown(*ON_DEVICES),
    **fails("cuda.devices", "cuda.nccl_all_reduce", "tensorflow.devices", "pytorch.devices", *COMPUTATIONS),
}
NOT_COMPILED = unknown("cuda.devices", *ON_DEVICES)
NO_PROGRAM = "Without the program nothing runs on a GPU"
A_GPU_LESS = "Every program sees a GPU less"


def smi_gpu(host: Host, number: int, **words: object) -> None:
    """Change the state of a GPU of the simulated nvidia-smi, in the words of its docstring."""
    host.smi["devices"][str(number)].update(words)


def smi_set(host: Host, number: int, **elements: str) -> None:
    """Change elements of a GPU's document, as simulated_driver.elements has them."""
    host.smi["devices"][str(number)]["set"] |= simulated_driver.elements(**elements)["set"]


def ecc_errors(host: Host, number: int, kind: str, count: int) -> None:
    smi_set(host, number, **{f"ecc_errors__{since}__{kind}": str(count) for since in ("volatile", "aggregate")})


def log(host: Host, line: str) -> None:
    with host.path(at.KERNEL_LOG).open("a") as stream:
        stream.write(f"2026-11-22T06:10:00+00:00 host kernel: {line}\n")


def part(answer: dict, key: str) -> dict:
    """Return the part of a framework's answer that has this key."""
    return next(found for found in answer["parts"] if key in found)


COMPUTED = ("matmul", "convolution", "triton")  # parts of an answer; TensorFlow's lacks the last one


def cut(answer: dict, key: str, signal: int = 11) -> None:
    """End a framework's process before it prints a part."""
    index = next(number for number, found in enumerate(answer["parts"]) if key in found)
    del answer["parts"][index:]
    answer["signal"] = signal


def lose_cuda(host: Host, error: str) -> None:
    """CUDA refuses to start with an error's number: no program sees a GPU."""
    host.cuda["settings"]["ERROR"] = error
    for answer, device in ((host.tensorflow, "/CPU:0"), (host.pytorch, "cpu")):
        part(answer, "devices")["devices"] = []
        compute_on(answer, device)


def compute_on(answer: dict, device: str) -> None:
    """Without a GPU, the probe computes on the CPU."""
    for found in answer["parts"]:
        for computation in (name for name in COMPUTED if name in found):
            found[computation] = [{"device": device, "ran_on": device, "difference": 4.7e-07}]


def keep_one_gpu(host: Host) -> None:
    """Programs see the first GPU alone."""
    host.cuda["settings"]["DEVICES"] = "1"
    for answer in (host.tensorflow, host.pytorch):
        for key in ("devices", *COMPUTED):
            for found in (found for found in answer["parts"] if key in found):
                found[key].pop()


def refuse_a_gpu(host: Host) -> None:
    """CUDA calls the second GPU busy or unavailable."""
    host.cuda["settings"]["FAIL"] = "cudaMalloc@1"
    texts = {
        "tensorflow": "cudaSetDevice() on GPU:1 failed. Status: all CUDA-capable devices are busy or unavailable",
        "pytorch": "AcceleratorError: CUDA error: CUDA-capable device(s) is/are busy or unavailable",
    }
    for answer, text in ((host.tensorflow, texts["tensorflow"]), (host.pytorch, texts["pytorch"])):
        results = part(answer, "matmul")["matmul"]
        results[1] = {"device": results[1]["device"], "error": text}


# The driver ---------------------------------------------------------------------------------------------------------


@fault(
    "The management library is missing (nvidia-smi exits with 12)",
    "driver.nvidia_smi",
    follows={**NO_NVIDIA_SMI, **fails("driver.module_matches_user_space"), **unknown("cuda.device_query")},
    why="nvidia-smi answers nothing, not even the version of the libraries",
)
def library_missing(host: Host) -> None:
    host.smi["state"] = "library_missing"


@fault(
    "The loaded module is of another version than the libraries (nvidia-smi exits with 18)",
    "driver.nvidia_smi",
    "driver.module_matches_user_space",
    follows={**NO_NVIDIA_SMI, **NO_DEVICE},
    why="Neither nvidia-smi nor CUDA can use the module",
)
def version_mismatch(host: Host) -> None:
    host.smi["state"] = "mismatch"
    host.edit("proc/driver/nvidia/version", at.DRIVER, "580.95.05")
    lose_cuda(host, "35")


@fault(
    "The driver is not loaded (nvidia-smi exits with 9)",
    "driver.nvidia_smi",
    "driver.module_matches_user_space",
    "driver.pci_binding",
    follows={**NO_NVIDIA_SMI, **NO_DEVICE},
    why="Neither nvidia-smi nor CUDA has a module",
)
def driver_not_loaded(host: Host) -> None:
    host.smi["state"] = "not_loaded"
    host.remove("proc/driver/nvidia/version")
    for address in at.ADDRESSES:
        host.path(f"sys/bus/pci/devices/{address}/driver").unlink()
    lose_cuda(host, "100")


@fault(
    "A blacklist keeps the driver's module, which is built, from loading",
    "driver.nvidia_smi",
    "driver.module_matches_user_space",
    "driver.pci_binding",
    follows={**NO_NVIDIA_SMI, **NO_DEVICE},
    why="Neither nvidia-smi nor CUDA has a module",
    cause=model.HOST,
)
def driver_blacklisted(host: Host) -> None:
    driver_not_loaded(host)
    host.write("etc/modprobe.d/no-gpu.conf", "# Of the passthrough test\nblacklist nvidia\n")


@fault(
    "The driver's module fails to load, on a host with a blacklist of it",
    "driver.nvidia_smi",
    "driver.module_matches_user_space",
    "driver.pci_binding",
    follows={**NO_NVIDIA_SMI, **NO_DEVICE},
    why="The blacklist is not the reason: something has loaded the module, and it ended",
)
def driver_fails_beside_a_blacklist(host: Host) -> None:
    driver_blacklisted(host)
    log(host, "NVRM: The NVIDIA probe routine failed for 2 device(s).")


# As in negativo17/nvidia-driver issue 97.
MAGIC = "nvidia: version magic '6.1.0-50-amd64 SMP mod_unload ' should be '6.1.0-56-amd64 SMP mod_unload '"


@fault(
    "The kernel refuses the driver's module, which is built for another one",
    "driver.nvidia_smi",
    "driver.module_matches_user_space",
    "driver.pci_binding",
    follows={**NO_NVIDIA_SMI, **NO_DEVICE, **skips(*ON_DEVICES, *COMPUTATIONS)},
    why="Neither nvidia-smi nor CUDA has a module",
)
def module_refused(host: Host) -> None:
    driver_not_loaded(host)
    log(host, MAGIC)


@fault(
    "The driver's module was unloaded, after the kernel had refused an older one",
    "driver.nvidia_smi",
    "driver.module_matches_user_space",
    "driver.pci_binding",
    follows={**NO_NVIDIA_SMI, **NO_DEVICE},
    why="Neither nvidia-smi nor CUDA has a module",
)
def module_refused_before(host: Host) -> None:
    module_refused(host)
    log(host, f"NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  {at.DRIVER}  Release Build")


@fault(
    "The GPUs are served by another branch of the driver alone",
    "driver.nvidia_smi",
    "driver.module_matches_user_space",
    "driver.pci_binding",
    follows={**NO_NVIDIA_SMI, **NO_DEVICE, **skips(*ON_DEVICES, *COMPUTATIONS)},
    why="No driver takes such a GPU",
    cause=model.HOST,
)
def gpus_not_served(host: Host) -> None:
    """As in NixOS/nixos-hardware issue 1880."""
    driver_not_loaded(host)
    log(host, "NVRM: The NVIDIA GeForce GTX 1050 GPU installed in this system is")
    log(host, "NVRM:  supported through the NVIDIA 580.xx Legacy drivers. Please")


@fault(
    "nvidia-smi reports another driver version",
    "driver.nvidia_smi",
    follows={
        **fails("driver.module_matches_user_space", "driver.fabric_manager"),
        "driver.security_floor": outcomes.WARN,
    },
    why="Module and Fabric Manager have the planned version, which is newer than that of the libraries",
)
def other_driver(host: Host) -> None:
    host.smi["driver_version"] = "590.48.01"


def unreadable(host: Host, column: int) -> None:
    """One value of the second GPU is an error, as in Megaminer issue 376."""
    host.filter(at.NVIDIA_SMI, rf"2s/^\(\([^,]*, \)\{{{column}\}}\)[^,]*/\1ERR!/", "--query-gpu=*")


@fault(
    "nvidia-smi prints an error in place of a GPU's compute capability",
    "cuda.device_query",
    follows={"driver.nvidia_smi": outcomes.WARN},
    why="It says that not every value could be read",
    outcome=outcomes.UNKNOWN,
)
def unreadable_capability(host: Host) -> None:
    unreadable(host, 5)


@fault(
    "nvidia-smi prints an error in place of a GPU's PCI address",
    "cuda.device_query",
    follows={"driver.nvidia_smi": outcomes.WARN, **unknown("cuda.bandwidth")},
    why="It says that not every value could be read",
    outcome=outcomes.UNKNOWN,
)
def unreadable_address(host: Host) -> None:
    unreadable(host, 6)


@fault("nvidia-smi prints an error in place of a GPU's memory", "driver.nvidia_smi", outcome=outcomes.WARN)
def unreadable_memory(host: Host) -> None:
    unreadable(host, 4)


@fault(
    "A later version of the driver's branch fixes published vulnerabilities",
    "driver.security_floor",
    outcome=outcomes.WARN,
)
def driver_below_the_floor(host: Host) -> None:
    host.plan["components"]["driver"]["security_floor"] = "595.84.01"


@fault(
    "A GPU is lost: nvidia-smi no longer lists it",
    "driver.gpu_count",
    "gpu.answers",
    "gpu.xid_errors",
    follows={
        **unknown(*FROM_THE_DOCUMENT[1:], "driver.security_floor", "gpu.nvlink", "idle.gpus"),
        **ONE_GPU,
        **fails("driver.nvidia_smi"),
        **unknown("driver.module_matches_user_space"),
    },
    why=f"{A_GPU_LESS}, and nvidia-smi ends with an error",
)
def lost_gpu(host: Host) -> None:
    smi_gpu(host, 1, failure={"mode": "fallen_off_bus"})
    log(host, "NVRM: Xid (PCI:0000:1b:00): 79, pid=1234, name=python3, GPU has fallen off the bus.")
    keep_one_gpu(host)


@fault(
    "A GPU is gone from the PCI bus",
    "driver.gpu_count",
    "gpu.answers",
    follows={**unknown(*FROM_THE_DOCUMENT[1:], "gpu.nvlink", "idle.gpus"), **ONE_GPU},
    why=A_GPU_LESS,
)
def gpu_off_the_bus(host: Host) -> None:
    directory = host.path(f"sys/bus/pci/devices/{at.ADDRESSES[1]}")
    directory.rename(host.path("gone"))
    keep_one_gpu(host)


@fault(
    "The PCI bus has a GPU that was not planned",
    "driver.gpu_count",
    follows={**fails("cuda.device_query"), **unknown("idle.gpus")},
    why="nvidia-smi lists the GPU, CUDA does not",
)
def unplanned_gpu(host: Host) -> None:
    host.add_device("0000:1c:00.0", at.H100, "0x030200", "nvidia")
    host.smi["devices"]["2"] = at.gpu(2)


@fault("The proprietary module is loaded instead of the open one", "driver.module_matches_user_space")
def other_flavour(host: Host) -> None:
    host.edit("proc/driver/nvidia/version", "NVIDIA UNIX Open Kernel Module", "NVIDIA UNIX x86_64 Kernel Module")


@fault("The module's file of the next-boot kernel is deleted", "driver.module_built")
def module_deleted(host: Host) -> None:
    host.remove(at.MODULE)


@fault("The module's file is of an older driver", "driver.module_built")
def module_outdated(host: Host) -> None:
    host.edit(at.MODULE, at.DRIVER, "580.95.05")


@fault("The module's file has another licence: it is the proprietary one", "driver.module_built")
def module_proprietary(host: Host) -> None:
    host.edit(at.MODULE, "Dual MIT/GPL", "NVIDIA")


@fault(
    "The prebuilt proprietary module is installed beside the open one, and depmod selected it", "driver.module_built"
)
def module_of_both_flavours(host: Host) -> None:
    host.write(f"lib/modules/{at.KERNEL}/kernel/nvidia-595/nvidia.ko", f"version={at.DRIVER}\nlicense=NVIDIA\n")
    host.write(f"lib/modules/{at.KERNEL}/modules.dep", "kernel/nvidia-595/nvidia.ko:\n")


@fault("With Secure Boot, the module's file has no signature", "driver.module_built")
def module_unsigned(host: Host) -> None:
    host.edit(at.MODULE, f"signer=DKMS module signing key\nsig_key={at.ENROLLED}\n", "")


@fault(
    "With Secure Boot, the module is signed with a key that neither the firmware nor the kernel has: DKMS has made a "
    "new one of the same name",
    "driver.module_built",
)
def module_of_unknown_key(host: Host) -> None:
    host.edit(at.MODULE, at.ENROLLED, at.NOT_ENROLLED)


@fault("DKMS has skipped the running kernel, and built a module for the next-boot kernel alone", "driver.module_built")
def running_kernel_without_module(host: Host) -> None:
    host.write("proc/sys/kernel/osrelease", "6.1.0-50-amd64\n")
    host.write("boot/vmlinuz-6.1.0-50-amd64", "")


@fault("The module of the running kernel is of an older driver, the next-boot one is right", "driver.module_built")
def running_kernel_with_old_module(host: Host) -> None:
    running_kernel_without_module(host)
    host.write(at.MODULE.replace(at.KERNEL, "6.1.0-50-amd64"), "version=580.95.05\nlicense=Dual MIT/GPL\n")


@fault("A newer kernel is installed, for which no module is built", "driver.module_built")
def kernel_without_module(host: Host) -> None:
    host.write("boot/vmlinuz-6.12.100+deb12-amd64", "")


@fault("nouveau is loaded", "driver.nouveau_absent")
def nouveau_loaded(host: Host) -> None:
    host.write("proc/modules", host.path("proc/modules").read_text() + "nouveau 3 0 - Live 0x0\n")


@fault("nouveau is bound to a GPU", "driver.nouveau_absent", "driver.pci_binding")
def nouveau_bound(host: Host) -> None:
    host.bind(at.ADDRESSES[1], "nouveau")


@fault("A GPU is bound to another driver of the kernel", "driver.pci_binding")
def gpu_of_another_driver(host: Host) -> None:
    host.bind(at.ADDRESSES[1], "nvidiafb")


WITHOUT_FABRIC_MANAGER = "Fabric Manager starts the subnet manager"


@fault("Fabric Manager is stopped", "driver.fabric_manager", follows=skips("driver.nvlsm"), why=WITHOUT_FABRIC_MANAGER)
def fabric_manager_stopped(host: Host) -> None:
    host.program(
        at.SYSTEMCTL,
        'case "$*" in *is-active*) echo inactive; exit 3 ;; '
        "*display*) echo ActiveState=active ;; *) echo enabled ;; esac\n",
    )


@fault("The display manager has failed", "driver.display_manager", outcome=outcomes.WARN)
def display_manager_failed(host: Host) -> None:
    host.write("run/units/display", "ActiveState=failed\n")


@fault("Fabric Manager has another version than the driver", "driver.fabric_manager", "packages.installed")
def fabric_manager_outdated(host: Host) -> None:
    package = "Package: nvidia-fabricmanager\nStatus: hold ok installed\nArchitecture: amd64\nVersion: "
    host.edit(at.STATUS, package + at.DRIVER, package + "580.95.05")


@fault("Fabric Manager runs, but its package is not installed", "driver.fabric_manager", "packages.installed",
       "packages.held")  # fmt: skip
def fabric_manager_without_package(host: Host) -> None:
    host.edit(at.STATUS, "Package: nvidia-fabricmanager\n", "Package: another\n")


NOT_NEEDED = "No NVSwitch is on the PCI bus, and no GPU reports a fabric"


@fault("Fabric Manager is installed where it has nothing to manage, and ends", "driver.fabric_manager",
       follows=skips("gpu.fabric", "driver.nvlsm"), why=NOT_NEEDED, outcome=outcomes.SKIP)  # fmt: skip
def fabric_manager_for_nothing(host: Host) -> None:
    """As in NVIDIA/gpu-operator issue 610 and leptonai/gpud issue 1206."""
    fabric_manager_stopped(host)
    host.path(f"sys/bus/pci/devices/{at.SWITCH}").rename(host.path("gone"))
    for number in range(2):
        smi_set(host, number, fabric__state="N/A", fabric__status="N/A")


@fault("Fabric Manager is stopped on a board whose NVSwitches the PCI bus does not show", "driver.fabric_manager",
       follows=skips("driver.nvlsm"), why=WITHOUT_FABRIC_MANAGER)  # fmt: skip
def fabric_manager_stopped_without_visible_switches(host: Host) -> None:
    fabric_manager_stopped(host)
    host.path(f"sys/bus/pci/devices/{at.SWITCH}").rename(host.path("gone"))


@fault("The NVLink subnet manager has ended beside Fabric Manager", "driver.nvlsm")
def subnet_manager_ended(host: Host) -> None:
    host.remove("proc/3060/comm")


@fault("Fabric Manager runs without an NVLink subnet manager", "driver.nvlsm")
def subnet_manager_missing(host: Host) -> None:
    subnet_manager_ended(host)
    host.remove("opt/nvidia/nvlsm/sbin/nvlsm")


# GPUs ---------------------------------------------------------------------------------------------------------------


def smi_value(host: Host, element: str, value: str) -> None:
    """Replace a value of the document that nvidia-smi prints, of each GPU."""
    host.filter(at.NVIDIA_SMI, f"s|<{element}>[^<]*<|<{element}>{value}<|", "*-q*-x*")


@fault("nvidia-smi prints `GPU is lost` in place of a value", "gpu.answers")
def value_lost(host: Host) -> None:
    smi_value(host, "gpu_temp", "GPU is lost")


@fault("The driver asks for a reset of a GPU", "gpu.recovery")
def reset_required(host: Host) -> None:
    smi_set(host, 1, gpu_recovery_action="GPU Reset")


@fault("Persistence mode is off", "gpu.persistence", outcome=outcomes.WARN)
def persistence_off(host: Host) -> None:
    host.remove("run/nvidia-persistenced/nvidia-persistenced.pid")


@fault("Uncorrectable errors of a GPU's DRAM", "gpu.ecc_errors")
def dram_errors(host: Host) -> None:
    ecc_errors(host, 1, "dram_uncorrectable", 5)


@fault("Uncorrectable errors of a GPU's SRAM", "gpu.ecc_errors")
def sram_errors(host: Host) -> None:
    ecc_errors(host, 0, "sram_uncorrectable_parity", 1)


@fault("ECC is switched off by the next reset", "gpu.ecc_errors", outcome=outcomes.WARN)
def ecc_off_after_a_reset(host: Host) -> None:
    smi_set(host, 1, ecc_mode__pending_ecc="Disabled")


@fault("A row remapping is pending", "gpu.memory_repair")
def remapping_pending(host: Host) -> None:
    smi_set(host, 1, remapped_rows__remapped_row_pending="Yes")


@fault("A row remapping failed", "gpu.memory_repair")
def remapping_failed(host: Host) -> None:
    smi_set(host, 1, remapped_rows__remapped_row_failure="Yes")


@fault("A link has 8 of its 16 lanes, the other GPU's has all", "gpu.pcie_width")
def half_the_lanes(host: Host) -> None:
    smi_set(host, 1, pci__pci_gpu_link_info__link_widths__current_link_width="8x")


@fault("Each link has 8 of its 16 lanes, in slots of unknown width", "gpu.pcie_width", outcome=outcomes.WARN)
def half_the_lanes_each(host: Host) -> None:
    for number in range(2):
        smi_set(host, number, pci__pci_gpu_link_info__link_widths__current_link_width="8x")


@fault("Under load, a link runs at generation 3 of 5", "gpu.pcie_generation")
def slow_link(host: Host) -> None:
    smi_set(host, 1, pci__pci_gpu_link_info__pcie_gen__current_link_gen="3")
    smi_gpu(host, 1, util=97, pstate=0, throttle=[])


@fault("A GPU has not joined the fabric", "gpu.fabric")
def fabric_not_joined(host: Host) -> None:
    smi_set(host, 1, fabric__state="In Progress", fabric__status="N/A")


@fault("The hardware slows a GPU down: too hot", "gpu.slowdown")
def too_hot(host: Host) -> None:
    smi_gpu(host, 1, throttle=["idle", "thermal"])


@fault("The hardware slows a GPU down: power brake", "gpu.slowdown")
def power_brake(host: Host) -> None:
    smi_gpu(host, 0, throttle=["idle", "power_brake"])


@fault("The clocks of a GPU are locked low", "gpu.slowdown", outcome=outcomes.WARN)
def clocks_locked(host: Host) -> None:
    smi_gpu(host, 1, throttle=["app_clocks"], clocks=210, util=98, pstate=0)


@fault("A change of the MIG mode waits for a reset", "gpu.mig")
def mig_pending(host: Host) -> None:
    smi_set(host, 1, mig_mode__pending_mig="Enabled")


@fault("The power limit of a GPU is below its default", "gpu.power_limit", outcome=outcomes.WARN)
def power_limit(host: Host) -> None:
    """As in stackhpc/ansible-slurm-appliance issue 975."""
    limits = {f"gpu_power_readings__{kind}_power_limit": "500.00 W" for kind in ("current", "requested")}
    smi_set(host, 1, **limits)


@fault("The compute mode of a GPU is Exclusive_Process, and no program is refused", "gpu.compute_mode",
       outcome=outcomes.WARN)  # fmt: skip
def exclusive_process(host: Host) -> None:
    smi_set(host, 1, compute_mode="Exclusive_Process")


@fault("The infoROM of a GPU is corrupted: nvidia-smi warns of it and exits with 14", "gpu.inforom")
def inforom_corrupted(host: Host) -> None:
    """As in NVIDIA/gpu-operator issue 285 and NVIDIA/DCGM issue 2."""
    smi_gpu(host, 0, corrupted_inforom=True)


@fault("The infoROM of a GPU is corrupted: nvidia-smi warns of it, and its exit code is 0", "gpu.inforom")
def inforom_corrupted_exit_0(host: Host) -> None:
    inforom_corrupted(host)
    host.smi["corrupted_exit"] = 0


@fault("nvidia-smi prints `Corrupted infoROM` in place of a value", "gpu.inforom")
def inforom_value(host: Host) -> None:
    smi_value(host, "gpu_temp", "Corrupted infoROM")


@fault("A wrapper of nvidia-smi prints lines of its own before each answer", "driver.nvidia_smi", outcome=outcomes.WARN)
def banner(host: Host) -> None:
    lines = ["Authorized users only", *(f"Rule {number}: {'be careful, ' * 20}please" for number in range(1, 9)), ""]
    host.write("etc/motd", "\n".join(lines))
    host.wrap(at.NVIDIA_SMI, f'cat {host.path("etc/motd")}\nexec "$REAL" "$@"\n')


@fault(
    "A wrapper of nvidia-smi prints another line before each answer", "driver.nvidia_smi", outcome=outcomes.WARN,
    follows={"gpu.answers": outcomes.WARN, **unknown("idle.gpus")},
    why="The line around its document is not the one around the rows, and one among processes may stand for one",
)  # fmt: skip
def banner_that_differs(host: Host) -> None:
    host.wrap(at.NVIDIA_SMI, 'echo "Logged: nvidia-smi $*"\nexec "$REAL" "$@"\n')


@fault(
    "nvidia-smi prints something else in place of a GPU's row",
    "driver.gpu_count",
    follows=unknown("driver.nvidia_smi", "driver.module_matches_user_space", "driver.security_floor", "gpu.nvlink",
                    *FROM_THE_DOCUMENT, "cuda.device_query", "cuda.bandwidth", "idle.gpus"),
    why="The other rows are not known to be all",
    outcome=outcomes.UNKNOWN,
)  # fmt: skip
def row_replaced(host: Host) -> None:
    host.filter(at.NVIDIA_SMI, "2s/.*/<html>502 Bad Gateway/", "--query-gpu=*")


@fault("One NVLink is down", "gpu.nvlink")
def link_down(host: Host) -> None:
    smi_gpu(host, 1, nvlink={"down": [3]})


@fault("One NVLink runs at a fraction of its speed", "gpu.nvlink")
def link_slow(host: Host) -> None:
    smi_gpu(host, 1, nvlink={"speed": {"2": 1.562}})


@fault("An NVLink had to recover before the training", "gpu.error_counters", outcome=outcomes.WARN)
def link_recoveries(host: Host) -> None:
    """As in marin-community/marin issue 9086, with the name that the counter has up to Hopper."""
    smi_gpu(host, 1, nvlink={"errors": {"14": {"Recovery Errors": 505}}})


@fault("All NVLinks of a GPU are down", "gpu.nvlink")
def links_down(host: Host) -> None:
    smi_gpu(host, 1, nvlink={"down": "all"})


@fault("nvidia-smi prints an error in place of the fan's speed alone", "gpu.answers", outcome=outcomes.WARN)
def fan_error(host: Host) -> None:
    host.filter(at.NVIDIA_SMI, "s|<fan_speed>.*</fan_speed>|<fan_speed>ERR!</fan_speed>|", "-q*")


@fault("Xid 48: an uncorrectable ECC error", "gpu.xid_errors", cause=model.HARDWARE)
def xid_memory(host: Host) -> None:
    log(host, "NVRM: Xid (PCI:0000:1a:00): 48, pid=77, name=python3, An uncorrectable double bit error (DBE)")


@fault("Xid 74: an NVLink error", "gpu.xid_errors")
def xid_nvlink(host: Host) -> None:
    log(host, "NVRM: Xid (PCI:0000:1b:00): 74, pid='<unknown>', name=<unknown>, NVLink: fatal error detected on link 6")


@fault("Xid 119: the GPU's own processor does not answer", "gpu.xid_errors")
def xid_gsp(host: Host) -> None:
    log(host, "NVRM: Xid (PCI:0000:1a:00): 119, pid=88, name=nvidia-smi, Timeout after 6s of waiting for RPC response")


@fault("Xid 95 of a MIG instance: an uncontained memory error", "gpu.xid_errors", cause=model.HARDWARE)
def xid_of_an_instance(host: Host) -> None:
    log(host, "NVRM: Xid (PCI:0000:1a:00 GPU-I:05 GPU-CI:00): 95, pid=7062, Uncontained: LTC TAG (0x2,0x0). RST: Yes")


@fault("Xid 48 beside Xid 119: an uncorrectable ECC error, and the GPU's own processor", "gpu.xid_errors")
def xid_memory_and_gsp(host: Host) -> None:
    xid_memory(host)
    xid_gsp(host)


@fault("Xid 155: a link was taken down by software", "gpu.xid_errors")
def xid_nvlink_software(host: Host) -> None:
    log(host, "NVRM: Xid (PCI:0000:1a:00): 155, NVLINK: SW Defined Error")


@fault("An Xid that the catalog does not know", "gpu.xid_errors", outcome=outcomes.WARN)
def xid_unknown(host: Host) -> None:
    log(host, "NVRM: Xid (PCI:0000:1a:00): 999, a message of a future driver")


@fault("The GSP firmware of a GPU does not start", "gpu.xid_errors", outcome=outcomes.WARN)
def gsp_boot(host: Host) -> None:
    log(host, "NVRM: RmInitAdapter: Cannot initialize GSP firmware RM")


@fault("A fatal SXid of an NVSwitch", "gpu.xid_errors")
def sxid(host: Host) -> None:
    log(host, "nvidia-nvswitch0: SXid (PCI:0000:c0:00.0): 12028, Fatal, Link 32 egress non-posted PRIV error")


@fault("An uncorrected PCIe error of a GPU, which then falls off the bus", "gpu.xid_errors", cause=model.HARDWARE)
def link_fails(host: Host) -> None:
    """As in wilicc/gpu-burn issue 1."""
    log(host, "pcieport 0000:00:02.0: AER: Uncorrected (Fatal) error received: 0000:1b:00.0")
    log(
        host, "nvidia 0000:1b:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer, (Receiver ID)"
    )
    log(host, "NVRM: Xid (PCI:0000:1b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.")
    log(host, "NVRM: GPU 0000:1b:00.0: GPU has fallen off the bus.")


@fault("The link of a GPU has 100 corrected PCIe errors", "gpu.xid_errors", outcome=outcomes.WARN)
def link_floods(host: Host) -> None:
    for _ in range(100):
        log(host, "pcieport 0000:00:03.1: AER: Correctable error message received from 0000:1b:00.0")
        log(host, "nvidia 0000:1b:00.0: PCIe Bus Error: severity=Correctable, type=Data Link Layer, (Receiver ID)")


# CUDA ---------------------------------------------------------------------------------------------------------------


def device_fault(kind: str, value: str) -> Apply:
    def apply(host: Host) -> None:
        host.cuda["settings"][kind] = value

    return apply


@fault("nvcc is of another release", "cuda.nvcc_version", "env.login_shell", "env.ssh_no_profile", "env.sudo",
       "env.systemd_unit")  # fmt: skip
def other_toolkit(host: Host) -> None:
    host.edit(at.NVCC, "release 13.2, V13.2.78", "release 12.9, V12.9.86")


@fault("cuDNN's header is missing", "cuda.compile_link_run", follows=NOT_COMPILED, why=NO_PROGRAM)
def header_missing(host: Host) -> None:
    host.remove("usr/include/cudnn.h")


@fault("NCCL's library is missing", "cuda.compile_link_run", follows=NOT_COMPILED, why=NO_PROGRAM)
def library_file_missing(host: Host) -> None:
    host.remove("usr/lib/libnccl.so")


@fault("The linker loads another cuDNN", "cuda.compile_link_run")
def other_cudnn(host: Host) -> None:
    host.cuda["values"]["versions.cudnn"] = 90100


@fault(
    "CUDA refuses to start: the fabric is not ready (error 802)",
    "cuda.devices",
    "tensorflow.devices",
    "pytorch.devices",
    follows=NO_CUDA,
    why="No program can use a GPU",
)
def system_not_ready(host: Host) -> None:
    lose_cuda(host, "802")


ALL_ON_DEVICES = ("cuda.devices", *ON_DEVICES, "tensorflow.devices", "pytorch.devices", *COMPUTATIONS)
NOT_MEASURED = {**skips(*ON_DEVICES, *COMPUTATIONS)}
REFUSED = ("cuda.devices", "tensorflow.devices", "pytorch.devices")


def other_libcuda(host: Host, configuration: str = "") -> None:
    """Install cuda-compat, as NVIDIA's package has it; `configuration` is a file of ld.so.conf.d that names it.

    The driver's own libraries are where Debian has them, as on a host of Debian 12 with NVIDIA's packages.
    """
    driver, compat = f"usr/lib/{at.TRIPLET}", "usr/local/cuda-13.0/compat"
    host.write("etc/ld.so.conf", "include /etc/ld.so.conf.d/*.conf\n")
    host.write(f"etc/ld.so.conf.d/{at.TRIPLET}.conf", f"# Multiarch support\n/{driver}\n")
    for directory, version in ((driver, at.DRIVER), (compat, "580.95.05")):
        host.write(f"{directory}/libcuda.so.{version}", "")
        host.path(f"{directory}/libcuda.so.1").symlink_to(f"libcuda.so.{version}")
    host.add_package("cuda-compat-13-0", "580.95.05-1", [f"/{compat}/libcuda.so.1", f"/{compat}/libcuda.so.580.95.05"])
    if configuration:
        host.write(f"etc/ld.so.conf.d/{configuration}", f"/{compat}\n")


@fault(
    "The libcuda of a `cuda-compat` package is in front of the driver's (error 803)",
    *REFUSED,
    follows=NOT_MEASURED,
    why="No program can use a GPU",
    cause=model.HOST,
)
def compat_in_front(host: Host) -> None:
    other_libcuda(host, "000-cuda-compat.conf")
    lose_cuda(host, "803")


@fault(
    "As before, with GPUs that forward compatibility does not serve (error 804)",
    *REFUSED,
    follows=NOT_MEASURED,
    why="No program can use a GPU",
    cause=model.HOST,
)
def compat_on_other_gpus(host: Host) -> None:
    other_libcuda(host, "000-cuda-compat.conf")
    lose_cuda(host, "804")


@fault(
    "The toolkit's stub is in front of the driver's libcuda (error 34)",
    *REFUSED,
    follows=NOT_MEASURED,
    why="No program can use a GPU",
    cause=model.HOST,
)
def stub_in_front(host: Host) -> None:
    other_libcuda(host)
    host.write("usr/local/cuda-13.2/lib64/stubs/libcuda.so", "")
    host.write("etc/ld.so.conf.d/000-cuda.conf", "/usr/local/cuda-13.2/lib64/stubs\n")
    lose_cuda(host, "34")


@fault(
    "A `cuda-compat` package is installed, behind the driver's libcuda, and CUDA refuses to start (error 803)",
    *REFUSED,
    follows=NO_CUDA,
    why="No program can use a GPU",
)
def compat_behind(host: Host) -> None:
    other_libcuda(host, "zz-cuda-compat.conf")
    lose_cuda(host, "803")


@fault(
    "A `cuda-compat` package is in front, but an older module is still loaded (error 803)",
    "driver.module_matches_user_space",
    *REFUSED,
    follows=NO_CUDA,
    why="No program can use a GPU",
)
def compat_and_old_module(host: Host) -> None:
    compat_in_front(host)
    host.edit("proc/driver/nvidia/version", at.DRIVER, "580.95.05")


@fault(
    "A `cuda-compat` package is in front, and CUDA finds no GPU (error 100)",
    *REFUSED,
    follows=NO_CUDA,
    why="No program can use a GPU",
)
def compat_and_no_device(host: Host) -> None:
    other_libcuda(host, "000-cuda-compat.conf")
    lose_cuda(host, "100")


@fault(
    "The compute mode of all GPUs is Prohibited (error 46)",
    *REFUSED,
    follows={**NOT_MEASURED, "gpu.compute_mode": outcomes.WARN},
    why="No program can use a GPU",
    cause=model.HOST,
)
def prohibited(host: Host) -> None:
    """As in NVIDIA/DIGITS issue 2005 and pytorch/pytorch issue 3871."""
    for number in range(2):
        smi_set(host, number, compute_mode="Prohibited")
    lose_cuda(host, "46")


@fault(
    "Another program holds a GPU in the compute mode Exclusive_Process (error 46 of that GPU)",
    "cuda.devices",
    follows={
        **fails(*A_GPU_REFUSED[1:]),
        **skips("cuda.peer_access", "cuda.bandwidth", "cuda.unprivileged"),
        "gpu.compute_mode": outcomes.WARN,
    },
    why="The programs leave out the GPU after that",
    cause=model.HOST,
)
def exclusive_process_held(host: Host) -> None:
    smi_set(host, 1, compute_mode="Exclusive_Process")
    refuse_a_gpu(host)


@fault(
    "The compute mode of one GPU is Exclusive_Process, and the other one refuses programs (error 46)",
    "cuda.devices",
    follows={
        **fails("cuda.memory_copies", "cuda.nccl_all_reduce"),
        **unknown("cuda.peer_access", "cuda.bandwidth", "cuda.unprivileged"),
        "gpu.compute_mode": outcomes.WARN,
    },
    why="The program leaves out the GPU after that",
)
def exclusive_process_elsewhere(host: Host) -> None:
    smi_set(host, 0, compute_mode="Exclusive_Process")
    host.cuda["settings"]["FAIL"] = "cudaMalloc@1"


@fault(
    "The compute mode of the GPUs is Exclusive_Process, and CUDA finds no GPU (error 100)",
    *REFUSED,
    follows={**NO_CUDA, "gpu.compute_mode": outcomes.WARN},
    why="No program can use a GPU",
)
def exclusive_process_and_no_device(host: Host) -> None:
    for number in range(2):
        smi_set(host, number, compute_mode="Exclusive_Process")
    lose_cuda(host, "100")


def confidential(host: Host, ready: str) -> None:
    """Turn on confidential computing: what `nvidia-smi conf-compute -q` prints in such a virtual machine."""
    host.write("run/conf-compute", (at.FIXTURES / "nvidia-smi/conf-compute.txt").read_text().replace("READY", ready))
    host.wrap(at.NVIDIA_SMI, f'case "$1" in conf-compute) cat {host.path("run/conf-compute")}; exit 0 ;; esac\n'
              'exec "$REAL" "$@"\n')  # fmt: skip


@fault(
    "Confidential computing is on, and the GPUs are not ready (error 802)",
    *REFUSED,
    follows=NOT_MEASURED,
    why="No program can use a GPU",
    cause=model.HOST,
)
def confidential_not_ready(host: Host) -> None:
    """As in NVIDIA/nvtrust issues 37 and 56."""
    confidential(host, "Not Ready")
    lose_cuda(host, "802")


@fault(
    "Confidential computing is on and ready, and CUDA refuses to start (error 802)",
    *REFUSED,
    follows=NO_CUDA,
    why="No program can use a GPU",
)
def confidential_ready(host: Host) -> None:
    confidential(host, "Ready")
    lose_cuda(host, "802")


# CUDA toolkit release notes, "Known Issues".
HMM = "nvidia-uvm: uvm_pmm_gpu.c:3176 devmem_alloc_pagemap[pid:92821] request_free_mem_region() err -34"


@fault(
    "The kernel's address space has no room for HMM, and CUDA refuses to start (error 3)",
    *REFUSED,
    follows=NOT_MEASURED,
    why="No program can use a GPU",
    cause=model.HOST,
)
def no_room_for_hmm(host: Host) -> None:
    """As in NVIDIA/open-gpu-kernel-modules issues 901 and 947."""
    log(host, HMM)
    lose_cuda(host, "3")


@fault(
    "nvidia-uvm was loaded again after HMM had no room, and CUDA refuses to start (error 3)",
    *REFUSED,
    follows=NO_CUDA,
    why="No program can use a GPU",
)
def room_for_hmm_since(host: Host) -> None:
    log(host, HMM)
    log(host, "nvidia-uvm: Loaded the UVM driver, major device number 511.")
    lose_cuda(host, "3")


@fault(
    "The kernel's address space has no room for HMM, and CUDA refuses to start for another reason (error 802)",
    *REFUSED,
    follows=NO_CUDA,
    why="No program can use a GPU",
)
def no_room_for_hmm_and_another_error(host: Host) -> None:
    log(host, HMM)
    lose_cuda(host, "802")


def without_window(host: Host, *addresses: str) -> None:
    """As in NVIDIA/open-gpu-kernel-modules issue 344. No GPU has a driver, and CUDA finds none."""
    for address in at.ADDRESSES:
        host.path(f"sys/bus/pci/devices/{address}/driver").unlink()
    for address in addresses:
        log(host, f"NVRM: BAR1 is 0M @ 0x0 (PCI:{address})")
    host.remove("proc/driver/nvidia/version")
    host.smi["state"] = "not_loaded"
    lose_cuda(host, "100")


@fault(
    "The firmware has given the GPUs no window for their memory",
    *("driver.nvidia_smi", "driver.pci_binding", "driver.module_matches_user_space", *REFUSED),
    follows={**NO_NVIDIA_SMI, **NOT_MEASURED},
    why="No driver takes such a GPU",
    cause=model.HOST,
)
def no_window(host: Host) -> None:
    without_window(host, *at.ADDRESSES)


@fault(
    "The firmware has given one GPU no window for its memory, and the other one has no driver either",
    *("driver.nvidia_smi", "driver.pci_binding", "driver.module_matches_user_space", *REFUSED),
    follows={**NO_NVIDIA_SMI, **NO_CUDA},
    why="No program can use a GPU",
)
def no_window_and_no_driver(host: Host) -> None:
    without_window(host, at.ADDRESSES[1])


NOT_STARTED = ("driver.nvidia_smi", "driver.gpu_count", *REFUSED)
WITHOUT_GPUS = {
    **unknown("driver.module_matches_user_space"),
    **{name: outcome for name, outcome in NO_NVIDIA_SMI.items() if name not in NOT_STARTED},
}


def give_up(host: Host, *before: str) -> None:
    """As in system76/firmware-open issue 160: the driver has both GPUs and starts none; nvidia-smi finds no device."""
    for address in at.ADDRESSES:
        for line in before:
            log(host, line.format(address))
        log(host, f"NVRM: GPU {address}: RmInitAdapter failed! (0x23:0x56:624)")
        log(host, f"NVRM: GPU {address}: rm_init_adapter failed, device minor number 0")
    host.smi["state"] = "no_devices"
    lose_cuda(host, "100")


@fault(
    "The GPUs do not wake up from a state of low power",
    *NOT_STARTED,
    follows={**WITHOUT_GPUS, **NOT_MEASURED, "gpu.xid_errors": outcomes.WARN},
    why="No program can use a GPU, and the driver has logged that",
    cause=model.HOST,
)
def not_woken(host: Host) -> None:
    give_up(host, "nvidia {}: Unable to change power state from D3cold to D0, device inaccessible")


@fault(
    "The driver could not start the GPUs, and finds what that left behind at each later try",
    *NOT_STARTED,
    follows={**WITHOUT_GPUS, **NOT_MEASURED, "gpu.xid_errors": outcomes.WARN},
    why="No program can use a GPU, and the driver has logged that",
)
def not_started_and_wpr2_up(host: Host) -> None:
    """As in NVIDIA/open-gpu-kernel-modules issue 1230: its first try may be the driver's own fault."""
    give_up(host, "NVRM: GPU0 RPC event history (CPU <- GSP):")
    give_up(host, "NVRM: GPU0 _kgspBootGspRm: unexpected WPR2 already up, cannot proceed with booting GSP")


@fault(
    "The session is within a job of Slurm that has no GPU",
    *NOT_STARTED,
    follows={**WITHOUT_GPUS, **NOT_MEASURED},
    why="No program can use a GPU",
    cause=model.HOST,
)
def within_a_job(host: Host) -> None:
    """As in NVIDIA/deepops issue 1192."""
    host.write("proc/self/cgroup", "0::/system.slice/slurmstepd.scope/job_402/step_extern/user/task_special\n")
    host.smi["state"] = "no_devices"
    lose_cuda(host, "100")


@fault(
    "The session is within a job of Slurm that has all GPUs, and CUDA finds none (error 100)",
    *REFUSED,
    follows=NO_CUDA,
    why="No program can use a GPU",
)
def within_a_job_with_all_gpus(host: Host) -> None:
    host.write("proc/self/cgroup", "5:devices:/slurm/uid_1000/job_402/step_extern\n")
    lose_cuda(host, "100")


@fault(
    "The driver did not serve a GPU that is gone, and CUDA refuses to start (error 802)",
    *REFUSED,
    follows=NO_CUDA,
    why="No program can use a GPU",
)
def gpu_not_served_and_another_error(host: Host) -> None:
    log(host, "NVRM: The NVIDIA GPU 0000:8a:00.0 (PCI ID: 10de:26b9)")
    log(host, "NVRM: installed in this system is not supported by the")
    log(host, "NVRM: NVIDIA 470.256.02 driver release.")
    lose_cuda(host, "802")


@fault(
    "A GPU waits for a reset, and CUDA calls it unavailable (error 46 of that GPU)",
    *("gpu.recovery", *A_GPU_REFUSED),
    follows=skips("cuda.peer_access", "cuda.bandwidth", "cuda.unprivileged"),
    why="The programs leave out the GPU after that",
    cause=model.HARDWARE,
)
def reset_required_and_refused(host: Host) -> None:
    """As in scitix/sichek pull request 121."""
    smi_set(host, 1, gpu_recovery_action="Reset")
    refuse_a_gpu(host)


@fault(
    "A GPU waits for a reset, and CUDA calls the other one unavailable (error 46 of that GPU)",
    *("gpu.recovery", *A_GPU_REFUSED),
    follows=unknown("cuda.peer_access", "cuda.bandwidth", "cuda.unprivileged"),
    why="The programs leave out the GPU after that",
)
def reset_required_and_another_refused(host: Host) -> None:
    smi_set(host, 0, gpu_recovery_action="Reset")
    refuse_a_gpu(host)


def divide(host: Host, *numbers: int) -> None:
    """Enable MIG on GPUs; a process then sees one instance of one GPU."""
    for number in numbers:
        smi_set(host, number, mig_mode__current_mig="Enabled", mig_mode__pending_mig="Enabled")
        smi_gpu(host, number, mig_devices=["3g.40gb", "3g.40gb"])
    keep_one_gpu(host)


SEES_AN_INSTANCE = "A process sees one instance, however many GPUs there are"


@fault(
    "MIG is enabled",
    *("cuda.devices", "cuda.nccl_all_reduce", "tensorflow.devices", "pytorch.devices", *COMPUTATIONS),
    follows=skips("gpu.nvlink", *ON_DEVICES),
    why=SEES_AN_INSTANCE,
    outcome=outcomes.SKIP,
)
def mig_enabled(host: Host) -> None:
    divide(host, 0, 1)


@fault(
    "MIG is enabled on one GPU, and the other one has uncorrectable errors",
    "gpu.ecc_errors",
    follows=skips(*ALL_ON_DEVICES),
    why=SEES_AN_INSTANCE,
)
def mig_and_memory_errors(host: Host) -> None:
    divide(host, 0)
    ecc_errors(host, 1, "dram_uncorrectable", 5)


@fault(
    "MIG is enabled, and a kernel on the instance does nothing",
    "cuda.devices",
    follows={
        **fails("cuda.memory_copies", "cuda.device_query"),
        **unknown(*(name for name in ON_DEVICES if name not in ("cuda.memory_copies", "cuda.device_query"))),
        **skips("gpu.nvlink", "tensorflow.devices", "pytorch.devices", *COMPUTATIONS),
    },
    why=f"{SEES_AN_INSTANCE}; the program leaves it out after that",
)
def mig_and_wrong_kernel(host: Host) -> None:
    divide(host, 0, 1)
    host.cuda["settings"]["WRONG"] = "kernel@0"


@fault(
    "The infoROM of a GPU is corrupted, and the other GPU is lost",
    "driver.gpu_count",
    "gpu.answers",
    "gpu.inforom",
    follows={
        **unknown(*(name for name in FROM_THE_DOCUMENT[1:] if name != "gpu.inforom"), "driver.security_floor"),
        **unknown("gpu.nvlink", "idle.gpus"),
        **ONE_GPU,
        **fails("driver.nvidia_smi"),
        **unknown("driver.module_matches_user_space"),
    },
    why=f"{A_GPU_LESS}, and nvidia-smi ends with an error",
)
def inforom_and_lost_gpu(host: Host) -> None:
    inforom_corrupted(host)
    smi_gpu(host, 1, failure={"mode": "fallen_off_bus"})
    keep_one_gpu(host)


@fault(
    "CUDA sees one GPU of two",
    "cuda.devices",
    "tensorflow.devices",
    "pytorch.devices",
    follows={**ONE_GPU, **fails("cuda.device_query")},
    why=f"{A_GPU_LESS}, which nvidia-smi still lists",
)
def hidden_gpu(host: Host) -> None:
    keep_one_gpu(host)


@fault(
    "A kernel on one GPU does nothing",
    "cuda.devices",
    follows={
        **fails("cuda.memory_copies", "cuda.nccl_all_reduce"),
        **unknown("cuda.peer_access", "cuda.bandwidth", "cuda.unprivileged"),
    },
    why="The program leaves out the GPU after that",
)
def kernel_wrong(host: Host) -> None:
    host.cuda["settings"]["WRONG"] = "kernel@1"


@fault("nvidia-smi and CUDA name different GPUs", "cuda.device_query")
def other_uuid(host: Host) -> None:
    smi_set(host, 1, uuid="GPU-00000000-0000-0000-0000-000000000000")


@fault("Only root may open the GPUs' device nodes", "cuda.unprivileged")
def device_nodes_of_root(host: Host) -> None:
    host.path("dev/nvidia0").chmod(0o600)


@fault("The driver makes its device nodes for a group alone", "cuda.unprivileged", cause=model.HOST)
def device_nodes_of_a_group(host: Host) -> None:
    """As in openSUSE/nvidia-driver-G06 issue 52."""
    host.write("proc/driver/nvidia/params", "DeviceFileUID: 0\nDeviceFileGID: 481\nDeviceFileMode: 432\n")
    host.write(
        "etc/modprobe.d/50-nvidia.conf", "options nvidia NVreg_DeviceFileGID=481 \\\n NVreg_DeviceFileMode=0660\n"
    )
    host.path("dev/nvidia0").chmod(0o600)


@fault(
    "The driver makes its device nodes for a group alone, and CUDA refuses to start for another reason (error 802)",
    *REFUSED,
    follows={**NO_CUDA, **skips("cuda.unprivileged")},
    why="No program can use a GPU, nor could a user without the group",
)
def device_nodes_of_a_group_and_another_error(host: Host) -> None:
    device_nodes_of_a_group(host)
    lose_cuda(host, "802")


@fault("A copy to a GPU arrives changed", "cuda.memory_copies")
def copy_wrong(host: Host) -> None:
    host.cuda["settings"]["WRONG"] = "to@1"


@fault("A copy within a GPU arrives changed", "cuda.memory_copies")
def memory_wrong(host: Host) -> None:
    host.cuda["settings"]["WRONG"] = "within@0"


@fault("A copy between GPUs arrives changed", "cuda.peer_access")
def peer_copy_wrong(host: Host) -> None:
    host.cuda["settings"]["WRONG"] = "peer@0-1"


def translate(host: Host) -> None:
    """Put each GPU into an IOMMU group of its own, whose traffic is translated."""
    for number, address in enumerate(at.ADDRESSES):
        host.write(f"sys/kernel/iommu_groups/{number}/type", "DMA-FQ\n")
        host.path(f"sys/bus/pci/devices/{address}/iommu_group").symlink_to(f"../../../../kernel/iommu_groups/{number}")


@fault("The IOMMU translates, and a copy between GPUs arrives changed", "cuda.peer_access", cause=model.HOST)
def iommu_and_peer_copy(host: Host) -> None:
    """As in NVIDIA/nccl issue 257."""
    translate(host)
    peer_copy_wrong(host)


def force_peers(host: Host) -> None:
    host.write("proc/driver/nvidia/params", 'RegistryDwords: "RMForceStaticBar1=1;PeerMappingOverride=1"\n')


@fault("An option forces peer access, and a copy between GPUs arrives changed", "cuda.peer_access", cause=model.HOST)
def forced_peers_and_peer_copy(host: Host) -> None:
    """As in NVIDIA/nccl issue 2335."""
    force_peers(host)
    peer_copy_wrong(host)


@fault("An option forces peer access, and a copy to a GPU arrives changed", "cuda.memory_copies")
def forced_peers_and_copy(host: Host) -> None:
    force_peers(host)
    copy_wrong(host)


@fault(
    "The IOMMU refuses what a GPU sends, as the kernel logs, and the sum of the all-reduce is wrong",
    "cuda.nccl_all_reduce",
    cause=model.HOST,
)
def iommu_and_sum(host: Host) -> None:
    log(host, "DMAR: [DMA Write NO_PASID] Request device [1b:00.0] fault addr 0x80000040 [fault reason 0x05] PTE Write")
    sum_wrong(host)


@fault("The IOMMU translates, and a copy to a GPU arrives changed", "cuda.memory_copies")
def iommu_and_copy(host: Host) -> None:
    translate(host)
    copy_wrong(host)


@fault("A GPU reads zeros in another one's memory", "cuda.peer_access")
def peer_read_wrong(host: Host) -> None:
    host.cuda["settings"]["WRONG"] = "read@1-0"


@fault("cuDNN cannot create a handle", "cuda.cudnn_handle")
def cudnn_broken(host: Host) -> None:
    host.cuda["settings"]["FAIL"] = "cudnnCreate@0"


@fault("The sum of the all-reduce is wrong on one GPU", "cuda.nccl_all_reduce")
def sum_wrong(host: Host) -> None:
    host.cuda["settings"]["WRONG"] = "sum@1"


@fault("NCCL cannot connect the GPUs", "cuda.nccl_all_reduce")
def nccl_broken(host: Host) -> None:
    host.cuda["settings"]["FAIL"] = "ncclCommInitAll@0"


@fault("Copies from and to the host are slow", "cuda.bandwidth")
def slow_host_copies(host: Host) -> None:
    host.cuda["settings"]["RATE"] = "2"


@fault("Copies between two GPUs are slower than the NVLinks between them", "cuda.bandwidth")
def slow_pair(host: Host) -> None:
    host.cuda["values"][at.PAIR_RATE] = 200.0


@fault("The all-reduce is slow", "cuda.bandwidth")
def slow_all_reduce(host: Host) -> None:
    host.cuda["values"][at.BUS_RATE] = 12.0


# The environment of programs ------------------------------------------------------------------------------------------


@fault("No profile puts nvcc into the PATH", "env.login_shell")
def profile_missing(host: Host) -> None:
    host.remove(at.PROFILE)


@fault("An older nvcc comes first in the PATH of a login", "env.login_shell")
def older_nvcc_first(host: Host) -> None:
    host.program("opt/old/bin/nvcc", 'echo "Cuda compilation tools, release 11.8, V11.8.89"\n')
    host.write(at.PROFILE, f'PATH="{host.root}/opt/old/bin:$PATH"\n')


@fault("/usr/local/bin has no nvcc", "env.ssh_no_profile", "env.sudo", "env.systemd_unit")
def link_missing(host: Host) -> None:
    host.remove("usr/local/bin/nvcc")


@fault("sudo does not search /usr/local/bin", "env.sudo")
def secure_path(host: Host) -> None:
    host.write("etc/sudoers", "secure_path=/usr/bin\n")


@fault("systemd's units do not search /usr/local/bin", "env.systemd_unit")
def unit_path(host: Host) -> None:
    host.write("etc/systemd/system.conf", "PATH=/bin\n")


# Packages -------------------------------------------------------------------------------------------------------------


@fault("A planned package has another version", "packages.installed")
def other_package(host: Host) -> None:
    host.edit(at.STATUS, at.PACKAGES["libnccl2"], "2.28.3-1+cuda13.0")


@fault("A planned package is half configured", "packages.installed")
def package_unfinished(host: Host) -> None:
    name = "Package: libcudnn9-cuda-13\nStatus: hold ok "
    host.edit(at.STATUS, name + "installed", name + "half-configured")


@fault("A planned package is gone", "packages.installed", "packages.held")
def package_missing(host: Host) -> None:
    host.edit(at.STATUS, "Package: libcudnn9-cuda-13\n", "Package: another\n")


@fault("A planned package is not held", "packages.held")
def package_not_held(host: Host) -> None:
    name = "Package: libnccl2\nStatus: "
    host.edit(at.STATUS, name + "hold", name + "install")


# Frameworks -----------------------------------------------------------------------------------------------------------


@fault("TensorFlow has another version", "tensorflow.version")
def other_tensorflow(host: Host) -> None:
    part(host.tensorflow, "version")["version"] = "2.20.0"


@fault(
    "TensorFlow cannot be imported",
    "tensorflow.version",
    follows=unknown(*OF_TENSORFLOW[1:]),
    why="The process ends at the import",
)
def tensorflow_broken(host: Host) -> None:
    host.tensorflow |= {"parts": [], "exit": 1}


@fault(
    "TensorFlow is a build without CUDA",
    "tensorflow.built_for_cuda",
    "tensorflow.devices",
    follows={
        **dict.fromkeys(("tensorflow.libraries", "tensorflow.cudnn_version", "tensorflow.nccl_version"), outcomes.SKIP),
        **unknown("tensorflow.matmul", "tensorflow.convolution"),
    },
    why="Such a build has no CUDA libraries, and computes on the CPU",
)
def tensorflow_for_cpu(host: Host) -> None:
    part(host.tensorflow, "build")["build"] = {"is_cuda_build": False}
    of_cuda = {"asked", "errors", "libraries", "called"}
    host.tensorflow["parts"] = [found for found in host.tensorflow["parts"] if not of_cuda & set(found)]
    part(host.tensorflow, "devices")["devices"] = []
    compute_on(host.tensorflow, "/CPU:0")


def small_gpu(host: Host, number: int, name: str) -> None:
    """TensorFlow ignores a display GPU; the line is from a host with a GTX 1050 Ti in place of its GeForce GT 1030."""
    host.tensorflow["stderr"] = (
        "2020-05-21 15:44:36.450426: I tensorflow/core/common_runtime/gpu/gpu_device.cc:1688] Ignoring visible gpu "
        f"device (device: {number}, name: {name}, pci bus id: {at.ADDRESSES[number]}, compute capability: 6.1) with "
        "core count: 6. The minimum required count is 8. You can adjust this requirement with the env var "
        "TF_MIN_GPU_MULTIPROCESSOR_COUNT.\n"
    )
    for key in ("devices", "matmul", "convolution"):
        part(host.tensorflow, key)[key].pop()


USED_BY_TENSORFLOW = ("tensorflow.devices", "tensorflow.matmul", "tensorflow.convolution")


@fault("TensorFlow ignores a GPU with few multiprocessors beside a larger one", *USED_BY_TENSORFLOW,
       outcome=outcomes.SKIP)  # fmt: skip
def gpu_ignored(host: Host) -> None:
    small_gpu(host, 1, "GeForce GTX 1050 Ti")


@fault("As before, with a release that lists the GPU and prints nothing", "tensorflow.matmul",
       "tensorflow.convolution", outcome=outcomes.SKIP)  # fmt: skip
def gpu_listed_and_ignored(host: Host) -> None:
    host.plan["gpus"][1] |= {"pci_id": "10de:1c82", "name": "NVIDIA GeForce GTX 1050 Ti", "left_out_by": "tensorflow"}
    for key in ("matmul", "convolution"):
        part(host.tensorflow, key)[key][1] = {
            "device": "/GPU:1",
            "error": "InvalidArgumentError: /job:localhost/replica:0/task:0/device:GPU:1 unknown device.",
        }


@fault("TensorFlow ignores a small GPU, and computes a wrong product on the larger one", "tensorflow.matmul",
       follows=skips("tensorflow.devices", "tensorflow.convolution"), why="The small GPU is ignored")  # fmt: skip
def gpu_ignored_and_wrong_product(host: Host) -> None:
    gpu_ignored(host)
    part(host.tensorflow, "matmul")["matmul"][0]["difference"] = 0.25


@fault(
    "TensorFlow sees no GPU",
    "tensorflow.devices",
    follows=unknown("tensorflow.matmul", "tensorflow.convolution"),
    why="It computes on the CPU",
)
def tensorflow_without_gpus(host: Host) -> None:
    part(host.tensorflow, "devices")["devices"] = []
    compute_on(host.tensorflow, "/CPU:0")


@fault("LD_LIBRARY_PATH in a profile puts the system's cuDNN before those of the environments", "tensorflow.libraries",
       "pytorch.cuda_libraries", cause=model.HOST)  # fmt: skip
def shadowed_libraries(host: Host) -> None:
    host.write("usr/local/cuda-13.2/lib64/libcudnn.so.9", "")
    host.write("etc/profile.d/old.sh", "export LD_LIBRARY_PATH=/usr/local/cuda-13.2/lib64\n")


@fault("PYTHONPATH in /etc/environment puts another NumPy before the environment's", "tensorflow.version",
       outcome=outcomes.WARN)  # fmt: skip
def python_path(host: Host) -> None:
    """As in ros2/ros2 issue 1094."""
    host.write("x/numpy/__init__.py", "")
    host.write("etc/environment", "PYTHONPATH=/x\n")


@fault("KERAS_BACKEND in a profile takes Keras away from TensorFlow", "tensorflow.version", outcome=outcomes.WARN)
def keras_backend(host: Host) -> None:
    host.write("etc/profile.d/keras.sh", "# Of our course\nexport OMP_NUM_THREADS=8 KERAS_BACKEND=torch\n")


@fault("CUDA_VISIBLE_DEVICES in /etc/environment hides a GPU from all users", "cuda.devices", "tensorflow.devices",
       "pytorch.devices", outcome=outcomes.WARN)  # fmt: skip
def visible_devices(host: Host) -> None:
    host.write("etc/environment", 'CUDA_VISIBLE_DEVICES="0"\n')


@fault(
    "A sitecustomize for each Python of the host keeps a module from being imported",
    "tensorflow.version",
    "pytorch.version",
    follows=unknown(*OF_TENSORFLOW[1:], *OF_PYTORCH[1:]),
    why="The process ends at the import",
    cause=model.HOST,
)
def sitecustomize(host: Host) -> None:
    host.write(at.SITECUSTOMIZE, "import sys\nsys.modules['typing_extensions'] = None\n")


@fault(
    "TensorFlow's own NCCL cannot be loaded",
    "tensorflow.libraries",
    follows=unknown("tensorflow.nccl_version"),
    why="The library is not there to be asked",
)
def tensorflow_library_missing(host: Host) -> None:
    libraries = part(host.tensorflow, "libraries")
    libraries["libraries"] = [path for path in libraries["libraries"] if "libnccl" not in path]
    part(host.tensorflow, "errors")["errors"] = {"libnccl.so.2": "libnccl.so.2: cannot open shared object file"}
    part(host.tensorflow, "called")["called"].pop("nccl")


@fault("TensorFlow's cuDNN is of another version than its wheel", "tensorflow.cudnn_version")
def tensorflow_cudnn(host: Host) -> None:
    part(host.tensorflow, "called")["called"]["cudnn"] = 91002


@fault("TensorFlow's NCCL is of another version than its wheel", "tensorflow.nccl_version")
def tensorflow_nccl(host: Host) -> None:
    part(host.tensorflow, "called")["called"]["nccl"] = 22703


@fault("TensorFlow computes a wrong product on a GPU", "tensorflow.matmul")
def tensorflow_product(host: Host) -> None:
    part(host.tensorflow, "matmul")["matmul"][1]["difference"] = 0.25


@fault("TensorFlow's product on a GPU is not a number", "tensorflow.matmul")
def tensorflow_nan(host: Host) -> None:
    part(host.tensorflow, "matmul")["matmul"][0]["difference"] = float("nan")


@fault("TensorFlow computes a wrong convolution on a GPU", "tensorflow.convolution")
def tensorflow_convolution(host: Host) -> None:
    part(host.tensorflow, "convolution")["convolution"][1]["difference"] = 0.25


@fault(
    "TensorFlow crashes at its first convolution, as with a system's cuDNN beside the wheel's",
    "tensorflow.convolution",
    follows=unknown("tensorflow.libraries"),
    why="What computing loads is not listed",
)
def tensorflow_crash(host: Host) -> None:
    cut(host.tensorflow, "convolution")


@fault("TensorFlow computes and crashes at its end", "tensorflow.libraries", outcome=outcomes.UNKNOWN)
def tensorflow_crash_at_the_end(host: Host) -> None:
    host.tensorflow["signal"] = 11


@fault("PyTorch has another version", "pytorch.version")
def other_pytorch(host: Host) -> None:
    part(host.pytorch, "version")["version"] = "2.14.1+cu132"


@fault("PyTorch is built for another CUDA", "pytorch.built_for_cuda")
def pytorch_for_another_cuda(host: Host) -> None:
    part(host.pytorch, "cuda")["cuda"] = "12.6"


@fault("PyTorch's cuDNN is of another version than its wheel", "pytorch.cuda_libraries")
def pytorch_cudnn(host: Host) -> None:
    part(host.pytorch, "called")["called"]["cudnn"] = 91002


@fault(
    "PyTorch sees no GPU",
    "pytorch.devices",
    follows=unknown("pytorch.matmul", "pytorch.convolution", "pytorch.triton"),
    why="It computes on the CPU",
)
def pytorch_without_gpus(host: Host) -> None:
    part(host.pytorch, "devices")["devices"] = []
    compute_on(host.pytorch, "cpu")


@fault(
    "PyTorch crashes at its first convolution, as with a system's cuDNN beside the wheel's",
    "pytorch.convolution",
    follows={**unknown("pytorch.cuda_libraries"), **fails("pytorch.triton")},
    why="What computing loads is not listed, and nothing more is computed",
)
def pytorch_crash(host: Host) -> None:
    cut(host.pytorch, "convolution")


@fault("PyTorch computes and ends with an error", "pytorch.cuda_libraries", outcome=outcomes.UNKNOWN)
def pytorch_error_at_the_end(host: Host) -> None:
    host.pytorch["exit"] = 1


@fault("PyTorch computes a wrong product on a GPU", "pytorch.matmul")
def pytorch_product(host: Host) -> None:
    part(host.pytorch, "matmul")["matmul"][1]["difference"] = 0.25


@fault("PyTorch runs on the CPU in place of a GPU", "pytorch.matmul")
def pytorch_on_cpu(host: Host) -> None:
    part(host.pytorch, "matmul")["matmul"][1]["ran_on"] = "cpu"


# What Triton 3.8 of the wheel 2.15.0 said on a machine without them, as under pytorch/pytorch issue 196977.
NO_HEADERS = (
    "Command '['/usr/bin/gcc', '/opt/gpuhost/environments/pytorch-2.15.0-py3.11-5fc5f6ce/lib/python3.11/site-packages/"
    "triton/backends/nvidia/driver.c', '-O3', '-shared', '-fPIC', '-Wno-psabi', '-o', '/tmp/tmp0dy1jou6/cuda_utils."
    "cpython-311-x86_64-linux-gnu.so', '-l:libcuda.so.1', '-L/opt/"
)
NO_COMPILER = "Failed to find C compiler. Please specify via CC environment variable or set triton.knobs.build.impl."


def fail_triton(host: Host, error: str, **compiles_with: object) -> None:
    found = part(host.pytorch, "triton")
    found["triton"] = [{"device": result["device"], "error": error} for result in found["triton"]]
    found["compiles_with"].update(compiles_with)


@fault("Python.h is missing, with which PyTorch's Triton compiles", "pytorch.triton")
def triton_without_headers(host: Host) -> None:
    fail_triton(host, NO_HEADERS, has_headers=False)


@fault("No C compiler is there for PyTorch's Triton", "pytorch.triton")
def triton_without_compiler(host: Host) -> None:
    fail_triton(host, NO_COMPILER, compiler=None)


@fault("Python.h is missing where gpuhost installs no packages", "pytorch.triton", cause=model.HOST)
def triton_without_headers_of_others(host: Host) -> None:
    host.plan["request"] = {"scope": "frameworks"}
    fail_triton(host, NO_HEADERS, has_headers=False)


@fault("A kernel of Triton does not run, and Python.h is missing as well", "pytorch.triton")
def triton_of_another_reason(host: Host) -> None:
    host.plan["request"] = {"scope": "frameworks"}
    fail_triton(host, "Triton Error [CUDA]: device kernel image is invalid", has_headers=False)


@fault("A program of the checks leaves memory in use on a GPU", "idle.gpus")
def memory_left(host: Host) -> None:
    uuid = at.uuid(1)
    edit = f'sed -i \'s/"{uuid}"/&, "fb_memory_usage\\/used": "9000 MiB"/\' {host.path(at.SMI_STATE)}'
    host.wrap(f"{at.TENSORFLOW}/bin/python", f'{edit}\nexec "$REAL" "$@"\n')


# Tools that give no answer --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Silence:
    """A tool or a file without which checks have no answer.

    text: what is silent, in one line; tools: its path, or several; checks: those that need it; when: the arguments for
    which it is silent, as a shell pattern; ways: how it can be silent; fails: the checks that fail, by way: the tool is
    what they check, or its silence is an answer
    """

    text: str
    tools: str | tuple[str, ...]
    checks: tuple[str, ...]
    when: str = "*"
    ways: tuple[str, ...] = ("missing", "hangs", "dies", "nonsense")
    fails: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def outcomes(self, way: str) -> dict[str, str]:
        """Return the checks that do not pass, with their outcomes."""
        return {**dict.fromkeys(self.checks, outcomes.UNKNOWN), **dict.fromkeys(self.fails.get(way, ()), outcomes.FAIL)}


def each(change: Callable[[Host, str, str], None]) -> Callable[[Host, Silence], None]:
    def silence_all(host: Host, silence: Silence) -> None:
        for tool in (silence.tools,) if isinstance(silence.tools, str) else silence.tools:
            change(host, tool, silence.when)

    return silence_all


WAYS = {
    "missing": each(lambda host, tool, _when: host.remove(tool)),
    "hangs": each(Host.hang),
    "dies": each(Host.die),
    "nonsense": each(Host.nonsense),
}
FILE = ("missing", "nonsense")

SILENCES = {
    "nvidia-smi": Silence(
        "`nvidia-smi`",
        at.NVIDIA_SMI,
        (
            *("driver.nvidia_smi", "driver.gpu_count", "driver.module_matches_user_space", "cuda.device_query"),
            *(*FROM_THE_DOCUMENT, "driver.security_floor", "gpu.nvlink", "cuda.bandwidth", "idle.gpus"),
        ),
        fails={"missing": ("driver.nvidia_smi",)},
    ),
    "nvidia-smi-document": Silence(
        "`nvidia-smi -q -x`",
        at.NVIDIA_SMI,
        (*FROM_THE_DOCUMENT, "gpu.nvlink"),
        when="*-q*-x*",
        ways=("hangs", "dies", "nonsense"),
    ),
    "nvidia-smi-links": Silence(
        "`nvidia-smi nvlink -s`",
        at.NVIDIA_SMI,
        ("gpu.nvlink", "cuda.bandwidth"),
        when="*nvlink*-s*",
        ways=("hangs", "dies", "nonsense"),
    ),
    "nvidia-smi-link-counters": Silence(
        "`nvidia-smi nvlink -e`",
        at.NVIDIA_SMI,
        ("gpu.error_counters",),
        when="*nvlink*-e*",
        ways=("hangs", "dies", "nonsense"),
    ),
    "nvidia-smi-topology": Silence(
        "`nvidia-smi topo -m`", at.NVIDIA_SMI, ("cuda.bandwidth",), when="*topo*", ways=("hangs", "dies", "nonsense")
    ),
    "loaded-module": Silence(
        "/proc/driver/nvidia/version, which is missing if no module is loaded",
        "proc/driver/nvidia/version",
        ("driver.module_matches_user_space",),
        ways=FILE,
        fails={"missing": ("driver.module_matches_user_space",)},
    ),
    "modules": Silence("/proc/modules", "proc/modules", ("driver.nouveau_absent",), ways=FILE),
    "modinfo": Silence("`modinfo`", at.MODINFO, ("driver.module_built",)),
    "trusted-keys": Silence(
        "/proc/keys, and the firmware's variables", (at.KERNEL_KEYS, at.OWNER_KEYS), ("driver.module_built",), ways=FILE
    ),
    "systemctl": Silence(
        "`systemctl`", at.SYSTEMCTL, ("driver.fabric_manager", "driver.nvlsm", "driver.display_manager")
    ),
    "processes": Silence("/proc for the processes of others", "proc/1/comm", ("driver.nvlsm",), ways=("missing",)),
    # Nonsense in the log cannot be distinguished from messages of other drivers.
    "kernel-log": Silence(
        "`journalctl` and `dmesg`", (at.JOURNALCTL, at.DMESG), ("gpu.xid_errors",), ways=("missing", "hangs", "dies")
    ),
    "nvcc": Silence(
        "`nvcc`",
        at.NVCC,
        ("cuda.nvcc_version", "cuda.compile_link_run", "cuda.devices", *ON_DEVICES, *IN_SHELLS),
        fails={
            "missing": ("cuda.nvcc_version", "cuda.compile_link_run", *IN_SHELLS),
            "dies": ("cuda.nvcc_version", "cuda.compile_link_run"),
            "nonsense": ("cuda.compile_link_run",),
        },
    ),
    "login-shell": Silence(
        "the login shell",
        at.BASH,
        ("env.login_shell",),
    ),
    "shell": Silence("`sh`", at.SHELL, ("env.ssh_no_profile",)),
    "setpriv": Silence("`setpriv`", at.SETPRIV, ("cuda.unprivileged",)),
    "sudo": Silence("`sudo`", at.SUDO, ("env.sudo",), ways=("hangs", "dies", "nonsense")),
    "systemd-run": Silence("`systemd-run`", at.SYSTEMD_RUN, ("env.systemd_unit",)),
    "tensorflow": Silence(
        "TensorFlow's Python",
        f"{at.TENSORFLOW}/bin/python",
        OF_TENSORFLOW,
        fails={"missing": ("tensorflow.version",), "dies": ("tensorflow.version",)},
    ),
    "pytorch": Silence(
        "PyTorch's Python",
        f"{at.PYTORCH}/bin/python",
        OF_PYTORCH,
        fails={"missing": ("pytorch.version",), "dies": ("pytorch.version",)},
    ),
    "dpkg": Silence(
        "dpkg's database", at.STATUS, ("packages.installed", "packages.held", "driver.fabric_manager"), ways=FILE
    ),
}

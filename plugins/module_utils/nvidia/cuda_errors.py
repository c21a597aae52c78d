# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Say what an error of CUDA, NCCL, cuDNN or cuBLAS means, by its number or as programs print it, and what to type.

CUDA's names and sentences are NVIDIA's (cuda.h and driver_types.h of CUDA 13.0, cudaGetErrorString), NCCL's those of
its source. A program that was compiled with an older CUDA knows no name for a newer number ("unrecognized error code"),
and frameworks print names or sentences in place of numbers. No I/O, and nothing of the collection: smoke_train.py has a
copy.
"""

from __future__ import annotations

import re
from typing import Iterable, NamedTuple


class Known(NamedTuple):
    """An error: names of runtime and driver, or of a library; a pattern of what is printed; meaning; what to type.

    cause: "hardware" or "host" where the error itself shows that no version of the software is the reason
    """

    runtime: str
    driver: str
    sentence: str
    meaning: str
    remedy: str
    cause: str = ""


_LIBCUDA = (
    "`ldconfig -p | grep libcuda.so.1` lists the files in the order of the dynamic linker, `dpkg -l 'cuda-compat*'` "
    "the packages with another one, `cat /proc/driver/nvidia/version` the loaded module: reboot if that is not the "
    "installed driver's."
)
_MPS = (
    "Programs that find a control daemon of MPS use it: `ps -C nvidia-cuda-mps-control`; `echo quit | "
    "nvidia-cuda-mps-control` ends it."
)
_MEMORY = "`nvidia-smi` lists the programs that hold the GPUs' memory. "
_OF_ALL = "`NCCL_DEBUG=INFO` in the environment of the program shows what it met. "
_ONE_BOARD = (
    "`journalctl -k -b -g Xid` shows on which GPU. Run the program on each GPU alone (`CUDA_VISIBLE_DEVICES=N`): if "
    "one fails and its twins do not, reset it (`nvidia-smi --gpu-reset -i N`), and if it comes back, contact the "
    "vendor of the board. If each GPU fails, it is the program, or one of its libraries."
)
CUDA: dict[int | str, Known] = {
    2: Known(
        "cudaErrorMemoryAllocation",
        "CUDA_ERROR_OUT_OF_MEMORY",
        "out of memory|OOM when allocating",
        "memory could not be allocated",
        _MEMORY
        + "Where it is free, the memory of processes is limited, and CUDA reserves more addresses than the GPUs "
        "have memory: `ulimit -v` must print unlimited (`as` in /etc/security/limits.conf), `sysctl "
        "vm.overcommit_memory` not 2, and the cgroup must have enough (`systemctl show -p MemoryMax UNIT`).",
    ),
    3: Known(
        "cudaErrorInitializationError",
        "CUDA_ERROR_NOT_INITIALIZED",
        "initialization error",
        "CUDA could not be initialized",
        "`journalctl -k -b -g 'NVRM|nvidia-uvm'` shows what the driver has logged; `lsmod | grep nvidia_uvm` whether "
        "the module that CUDA needs is loaded.",
    ),
    34: Known(
        "cudaErrorStubLibrary",
        "CUDA_ERROR_STUB_LIBRARY",
        "CUDA driver is a stub library",
        "the loaded libcuda is the toolkit's stub, which is there to link with",
        "Remove the directory `stubs` from /etc/ld.so.conf.d and run `ldconfig`. " + _LIBCUDA,
    ),
    35: Known(
        "cudaErrorInsufficientDriver",
        "",  # the runtime alone compares
        "CUDA driver version is insufficient for CUDA runtime version",
        "the driver is older than the CUDA runtime needs, or cannot be used",
        "If driver.nvidia_smi passes: " + _LIBCUDA,
    ),
    46: Known(
        "cudaErrorDevicesUnavailable",
        "CUDA_ERROR_DEVICE_UNAVAILABLE",
        "busy or unavailable",
        "the GPU admits no program, or no second one",
        "`nvidia-smi -q -d COMPUTE` shows the compute mode, which `nvidia-smi -i N -c 0` sets to the default; `fuser "
        "-v /dev/nvidia*` lists the programs that hold the GPU.",
    ),
    100: Known(
        "cudaErrorNoDevice",
        "CUDA_ERROR_NO_DEVICE",
        "no CUDA-capable device is detected",
        "CUDA detects no GPU",
        "Where `nvidia-smi -L` lists the GPUs, unset CUDA_VISIBLE_DEVICES and check that /dev/nvidia* exist; where it "
        "does not, `journalctl -k -b -g 'NVRM|nvidia'` shows why.",
    ),
    101: Known(
        "cudaErrorInvalidDevice",
        "CUDA_ERROR_INVALID_DEVICE",
        "invalid device ordinal",
        "CUDA has no GPU of that number",
        "Unset CUDA_VISIBLE_DEVICES; `nvidia-smi -L` lists the GPUs. A GPU that is missing there is in `journalctl -k "
        "-b -g NVRM`.",
    ),
    209: Known(
        "cudaErrorNoKernelImageForDevice",
        "CUDA_ERROR_NO_BINARY_FOR_GPU",
        "no kernel image is available for execution on the device|invalid device function",
        "the program has no code for this GPU",
        "The release of the framework, or its build for another CUDA, does not serve the GPU: the plan shows which "
        "does. Leave gpu_stack_pytorch and gpu_stack_tensorflow at their defaults, and install nothing else in their "
        "environments.",
    ),
    214: Known(
        "cudaErrorECCUncorrectable",
        "CUDA_ERROR_ECC_UNCORRECTABLE",
        "uncorrectable ECC error encountered",
        "the memory of a GPU has an uncorrectable error",
        "`nvidia-smi -q -d ECC,PAGE_RETIREMENT,ROW_REMAPPER` shows of which (see gpu.ecc_errors). End the programs on "
        "it and reset it (`nvidia-smi --gpu-reset -i N`), which retires the bad memory. If it comes back, contact the "
        "vendor: no other software repairs a board.",
        "hardware",
    ),
    220: Known(
        "cudaErrorNvlinkUncorrectable",
        "CUDA_ERROR_NVLINK_UNCORRECTABLE",
        "uncorrectable NVLink error detected",
        "an NVLink has had an uncorrectable error",
        "`nvidia-smi nvlink -s` and `nvidia-smi nvlink -e` show which link (see gpu.nvlink). End the programs on the "
        "GPUs and reset them (`nvidia-smi --gpu-reset`). If it comes back, reseat bridges or modules, and contact the "
        "vendor.",
        "hardware",
    ),
    221: Known(
        "cudaErrorJitCompilerNotFound",
        "CUDA_ERROR_JIT_COMPILER_NOT_FOUND",
        "PTX JIT compiler library not found",
        "the driver's compiler for PTX is missing, or is of another version than its libcuda",
        "`ldconfig -p | grep libnvidia-ptxjitcompiler` must list it, and the driver's packages be of one version. "
        + _LIBCUDA,
    ),
    222: Known(
        "cudaErrorUnsupportedPtxVersion",
        "CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
        "PTX was compiled with an unsupported toolchain",
        "the driver is older than the CUDA that has compiled the program, and cannot compile its PTX",
        "A driver that serves that CUDA compiles it, or a build of the program for an older CUDA. " + _LIBCUDA,
    ),
    304: Known(
        "cudaErrorOperatingSystem",
        "CUDA_ERROR_OPERATING_SYSTEM",
        "OS call failed or operation not supported on this OS",
        "a call of the operating system failed",
        "Check that /dev/nvidia-uvm exists (`nvidia-modprobe -u -c=0` creates it) and that `ulimit -a` and the cgroup "
        "limit no memory; `journalctl -k -b -g NVRM` shows what failed.",
    ),
    700: Known(
        "cudaErrorIllegalAddress",
        "CUDA_ERROR_ILLEGAL_ADDRESS",
        "an illegal memory access was encountered",
        "a kernel has used memory that is not its own",
        _ONE_BOARD,
    ),
    702: Known(
        "cudaErrorLaunchTimeout",
        "CUDA_ERROR_LAUNCH_TIMEOUT",
        "the launch timed out and was terminated",
        "the GPU drives a display, for which the driver ends a kernel after some seconds",
        "Compute on another GPU (CUDA_VISIBLE_DEVICES), let another one drive the display, or end the display: "
        "`systemctl isolate multi-user.target`. Without a display, `journalctl -k -b -g Xid` shows what has hung.",
        "host",
    ),
    711: Known(
        "cudaErrorTooManyPeers",
        "CUDA_ERROR_TOO_MANY_PEERS",
        "peer mapping resources exhausted",
        "a GPU can have eight peers, and a process has asked for more",
        "One process for each GPU, as PyTorch's, has no more than it uses. In one process for all, "
        "`NCCL_P2P_DISABLE=1` does without peers.",
        "host",
    ),
    715: Known(
        "cudaErrorIllegalInstruction",
        "CUDA_ERROR_ILLEGAL_INSTRUCTION",
        "an illegal instruction was encountered",
        "a GPU has met an instruction that is none",
        _ONE_BOARD,
    ),
    719: Known(
        "cudaErrorLaunchFailure",
        "CUDA_ERROR_LAUNCH_FAILED",
        "unspecified launch failure",
        "a kernel has ended with an exception",
        _ONE_BOARD,
    ),
    802: Known(
        "cudaErrorSystemNotReady",
        "CUDA_ERROR_SYSTEM_NOT_READY",
        "system not yet initialized",
        "the system is not ready: a daemon that sets up the GPUs has not done so",
        "With NVSwitches, Fabric Manager sets up the GPUs: `systemctl status nvidia-fabricmanager`. In a confidential "
        "virtual machine, the attestation verifier does: `nvidia-smi conf-compute -q` shows whether they are ready.",
    ),
    803: Known(
        "cudaErrorSystemDriverMismatch",
        "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
        "unsupported display driver / cuda driver combination",
        "libcuda and the loaded kernel module are of different versions",
        _LIBCUDA,
    ),
    804: Known(
        "cudaErrorCompatNotSupportedOnDevice",
        "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE",
        "forward compatibility was attempted on non supported HW",
        "libcuda is that of a `cuda-compat` package, which serves data-center GPUs alone",
        _LIBCUDA,
    ),
    805: Known(
        "cudaErrorMpsConnectionFailed",
        "CUDA_ERROR_MPS_CONNECTION_FAILED",
        "MPS client failed to connect to the MPS control daemon or the MPS server",
        "the control daemon of MPS or its server does not answer",
        _MPS,
        "host",
    ),
    806: Known(
        "cudaErrorMpsRpcFailure",
        "CUDA_ERROR_MPS_RPC_FAILURE",
        "the remote procedural call between the MPS server and the MPS client failed",
        "the server of MPS does not answer",
        _MPS,
        "host",
    ),
    807: Known(
        "cudaErrorMpsServerNotReady",
        "CUDA_ERROR_MPS_SERVER_NOT_READY",
        "MPS server is not ready to accept new MPS client requests",
        "the server of MPS is recovering from a failure",
        _MPS,
        "host",
    ),
    999: Known(
        "cudaErrorUnknown",
        "CUDA_ERROR_UNKNOWN",
        "unknown error",
        "an unknown error of the driver",
        "`journalctl -k -b -g NVRM` shows what the driver met. Without a program on the GPUs, `rmmod nvidia_uvm && "
        "modprobe nvidia_uvm` sets up CUDA's module again, as after a suspend; otherwise reboot.",
    ),
}
# More than a number says: these are read first.
NVLS, TOPOLOGY, FULL = "NCCL's NVLink SHARP", "NCCL's topology", "No space left on device"
OLDER_CUDNN, NOT_OPENED = "TensorFlow's cuDNN", "TensorFlow's libraries"
KILLED, TIMED_OUT = "SIGKILL", "a collective operation"
MIXED, NO_INTERFACE, UNREACHABLE = "CUDA's libraries", "NCCL's network interface", "NCCL's connections"
OPEN_FILES, THREADS, LOCKED = "open files", "threads", "locked memory"
_LIMITS = (
    "`ulimit -%s` shows the limit of a login: raise it in /etc/security/limits.conf (%s), and log in again. A service "
    "has its own: `systemctl show -p %s UNIT`."
)
_OF_ALL_LIBRARIES = (
    "The wheels of its lock have all of them: leave LD_LIBRARY_PATH unset, and install the environment anew, see "
    "tensorflow.libraries."
)
SAID: dict[int | str, Known] = {
    # NCCL's transport/nvls.cc. CUDA's error 401 is that of multicast there (NVIDIA/nccl issues 1788, 1672, 976).
    NVLS: Known(
        "",
        "",
        r"(?:bind NVLink SHARP|transport/nvls\.cc:\d+ NCCL WARN|cuMulticast)(?!.*out of memory)|"
        "operation cannot be performed in the present state",
        "the multicast memory of the NVSwitches cannot be set up: Fabric Manager does not run, or was started again "
        "without a reset of the GPUs",
        # Fabric Manager's guide, "Restarting Fabric Manager".
        "End the programs on all GPUs, `systemctl restart nvidia-fabricmanager`, then reset all GPUs at once "
        "(`nvidia-smi --gpu-reset`) or reboot. Until then, `NCCL_NVLS_ENABLE=0` in the environment of programs does "
        "without it.",
        "host",
    ),
    # NCCL's graph/xml.cc and xml.h.
    TOPOLOGY: Known(
        "",
        "",
        r"\bXML (?:Parse|Mismatch|Topology|parser|(?:sub)?nodes)|Attribute \S+ of node \S+ not found|"
        "node not found in XML|KV Convert to",
        "NCCL cannot use the description of the host's topology",
        "The file that NCCL_TOPO_FILE names in the environment, in /etc/nccl.conf or in ~/.nccl.conf is malformed, or "
        "of another host: leave the variable out, or take its vendor's file for this host. Where none is named, NCCL "
        "reads /sys: `NCCL_TOPO_DUMP_FILE=/tmp/topology.xml` shows what it found.",
    ),
    # tensorflow/compiler/xla/stream_executor/cuda/cuda_dnn.cc and core/common_runtime/gpu/gpu_device.cc of TensorFlow.
    OLDER_CUDNN: Known(
        "",
        "",
        r"Loaded runtime CuDNN library: \S+ but source was compiled with: \d",
        "the process has loaded an older cuDNN than the one that TensorFlow was built with",
        "`ldconfig -p | grep libcudnn` lists the system's. " + _OF_ALL_LIBRARIES,
    ),
    NOT_OPENED: Known(
        "",
        "",
        "Cannot dlopen some GPU libraries",
        "TensorFlow could not open a library of CUDA and leaves out all GPUs",
        "`TF_CPP_MAX_VLOG_LEVEL=3` in the environment of the program names the library. " + _OF_ALL_LIBRARIES,
    ),
    MIXED: Known(
        "",
        "",
        r"undefined symbol: (?:__nvJitLink|cu[a-zA-Z]*[A-Z]|nccl[A-Z])|not defined in file lib(?:cu|nv|nccl)|"
        r"CUDNN_STATUS_(?:SUBLIBRARY_\w+|VERSION_MISMATCH)|CUBLAS_STATUS_INVALID_VALUE|cuDNN version incompatibility|"
        r"libdevice not found|(?:[Uu]nable to load any of \{|[Cc]ould not load library |failed to open )lib(?:cudnn|"
        r"nvrtc)",
        "the process has loaded one of another version than the framework's own, or lacks one",
        "LD_LIBRARY_PATH must be unset, and XLA_FLAGS name no other toolkit (--xla_gpu_cuda_data_dir); `ldd FILE` "
        "shows what the named file loads, `ldconfig -p | grep libcudnn` the system's cuDNN, which can go if nothing "
        "needs it. The wheels of the frameworks' locks have all: `gpu_stack_converge=always` installs the environment "
        "anew.",
    ),
    OPEN_FILES: Known(
        "",
        "",
        "Too many open files",
        "a process may not open as many files and sockets as it needs",
        _LIMITS % ("n", "nofile", "LimitNOFILE"),
        "host",
    ),
    THREADS: Known(
        "",
        "",
        r"[Tt]hread creation (?:via \S+ )?failed|pthread_create\S* failed|can't start new thread",
        "the user or the cgroup may not have as many threads",
        _LIMITS % ("u", "nproc", "TasksMax"),
        "host",
    ),
    LOCKED: Known(
        "",
        "",
        r"Call to ibv_\w+ failed with error Cannot allocate memory",
        "the memory that a process may lock, as InfiniBand needs it, is limited",
        _LIMITS % ("l", "memlock, unlimited", "LimitMEMLOCK"),
        "host",
    ),
    # NCCL's misc/socket.cc and bootstrap.cc; NVIDIA/nccl issue 1837.
    NO_INTERFACE: Known(
        "",
        "",
        r"no (?:socket|\w+_SOCKET_IFNAME) interface found|is neither AF_INET\(2\) nor AF_INET6",
        "NCCL finds no interface that it may use",
        "NCCL_SOCKET_IFNAME in the environment, in /etc/nccl.conf or in ~/.nccl.conf must name one that has an address "
        "(`ip -br address`), or be left out.",
        "host",
    ),
    # NCCL's misc/socket.cc. Who refuses a connection is there: it has ended, or has met the first error.
    UNREACHABLE: Known(
        "",
        "",
        r"Connect to \S+ (?:failed|returned).*(?:No route to host|is unreachable|timed out|connection abort)",
        "a process of the computation cannot be reached",
        "NCCL uses any port: the firewall must let all those between the hosts through, also of a host to its own "
        "address (`ufw status`, `firewall-cmd --list-all`). NCCL_SOCKET_IFNAME chooses another interface.",
        "host",
    ),
    FULL: Known(
        "",
        "",
        "No space left on device|failed to extend /dev/shm|out of shared memory|killed by SIGBUS|Signal: Bus error",
        "a file system is full",
        "`df -h /dev/shm / /tmp` shows which. Processes of a training share memory in /dev/shm: remove what ended "
        "programs have left there (`ls -l /dev/shm`), or enlarge it (`mount -o remount,size=N /dev/shm`; in a "
        "container --shm-size).",
        "host",
    ),
}
# Less than the reason that is printed beside them: these are read last.
LIBRARIES: dict[int | str, Known] = {
    "ncclSystemError": Known(
        "ncclSystemError",
        "",
        "unhandled system error",
        "a call of the operating system failed",
        _OF_ALL
        + "Most often /dev/shm is full (`df -h /dev/shm`), a limit is too low (`ulimit -n`, `ulimit -l`), or no "
        "network interface can be used (NCCL_SOCKET_IFNAME).",
    ),
    "ncclInternalError": Known(
        "ncclInternalError",
        "",
        r"internal error - please report|\binternal error(?: \(3\)|, NCCL version)",
        "a check within NCCL failed",
        _OF_ALL + "A file that NCCL_TOPO_FILE names, in the environment or in /etc/nccl.conf, must be of this host.",
    ),
    "ncclRemoteError": Known(
        "ncclRemoteError",
        "",
        "remote process exited or there was a network error",
        "another process of the computation has ended, or cannot be reached",
        "The first error of the others, in their logs, is the reason; without one, the network between the hosts is.",
    ),
    KILLED: Known(
        "",
        "",
        "was killed by SIGKILL",
        "another process or the kernel has ended the program",
        "`journalctl -k -b -g 'oom-kill|Out of memory'` shows whether the host or a cgroup had no memory left "
        "(`systemctl show -p MemoryMax UNIT`): end other programs, or raise the limit.",
        "host",
    ),
    TIMED_OUT: Known(
        "",
        "",
        "collective operation timeout",
        "the GPUs have waited for each other in vain",
        "The first error of another process is the reason. Without one, data between GPUs get lost: see "
        "cuda.peer_access. Where `NCCL_P2P_DISABLE=1` in the environment of the program helps, the IOMMU or PCIe "
        "Access Control Services (ACS) are the reason.",
    ),
    "CUBLAS_STATUS_NOT_INITIALIZED": Known(
        "CUBLAS_STATUS_NOT_INITIALIZED",
        "CUBLAS_STATUS_ALLOC_FAILED",
        "",
        "cuBLAS could not start, mostly for lack of the GPU's memory",
        _MEMORY
        + "Where it is free, run the program with `CUDA_LAUNCH_BLOCKING=1`: an earlier error of it is the reason.",
    ),
    "CUDNN_STATUS_EXECUTION_FAILED": Known(
        "CUDNN_STATUS_EXECUTION_FAILED",
        "CUBLAS_STATUS_EXECUTION_FAILED",
        r"\b(?:CUDNN|CUBLAS)_STATUS_(?:INTERNAL|MAPPING)_ERROR\b",  # pytorch/pytorch issue 51382
        "an operation of cuDNN or cuBLAS has failed, for lack of memory or on a board",
        _MEMORY + _ONE_BOARD,
    ),
    "CUDNN_STATUS_NOT_INITIALIZED": Known(
        "CUDNN_STATUS_NOT_INITIALIZED",
        "CUDNN_STATUS_ALLOC_FAILED",
        "",
        "cuDNN could not start, mostly for lack of the GPU's memory",
        _MEMORY
        + "Where it is free: all libraries of cuDNN in the process must be of one version, which is built for this "
        "CUDA and this GPU (`ldconfig -p | grep libcudnn` lists the system's).",
    ),
}
BETWEEN = "data between GPUs"  # lost without an error, which no program prints
ERRORS = {**SAID, **CUDA, **LIBRARIES}
_UNRECOGNIZED = "unrecognized error code"
# As PyTorch prints it, and TensorFlow where it knows no name (cuda_driver.cc, ToString).
_NUMBER = re.compile(r"\bError (\d+): |\bUNKNOWN ERROR \((\d+)\)")
# PyTorch's own sentences for some (c10/cuda/CUDAFunctions.cpp, device_count_impl).
_OF_PYTORCH = {
    "CUDA unknown error - this may be due to an incorrectly set up environment": 999,
    "The NVIDIA driver on your system is too old": 35,
    "Found no NVIDIA driver on your system": 35,
}


def text(number: int, name: str) -> str:
    """Return name and number of an error of cuda_check's document."""
    known = CUDA.get(number)
    return "%s (%d)" % (known.runtime if known and name == _UNRECOGNIZED else name, number)


def meaning(key: int | str) -> str:
    """Return what an error of the table means."""
    return "%s: %s" % (key if isinstance(key, str) else "CUDA's error %d" % key, ERRORS[key].meaning)


def remedy(key: int | str) -> str | None:
    """Return what an error means and what to type, None if the table lacks it."""
    return "%s. %s" % (meaning(key), ERRORS[key].remedy) if key in ERRORS else None


def cause(keys: Iterable[int | str]) -> str:
    """Return what is the reason of all these errors, as they say themselves; empty if that is open."""
    causes = {ERRORS[key].cause if key in ERRORS else "" for key in keys}
    return causes.pop() if len(causes) == 1 else ""


def read(printed: str) -> frozenset[int | str]:
    """Return the errors that a program printed by number, name or sentence: those that say most."""
    numbers = {int(one or other) for one, other in _NUMBER.findall(printed)}
    numbers |= {number for sentence, number in _OF_PYTORCH.items() if sentence in printed}
    words = set(re.findall(r"\w+", printed))
    for table in (SAID, CUDA, LIBRARIES):
        found: set[int | str] = {key for key in table if key in numbers}
        for key, known in table.items():
            in_words = {known.runtime, known.driver} & words
            if in_words or (known.sentence and key != 999 and re.search(known.sentence, printed)):
                found.add(key)
        if found:
            return frozenset(found)
    return frozenset()

"""The options of script/plan, which are read before anything is installed: imports the standard library alone."""

from __future__ import annotations

from ansible_collections.gpuhost.stack.plugins.plugin_utils.base import command_line

ARCHITECTURE = "x86_64"  # of a described host, where --arch does not say another
HOST_OPTIONS = (
    "distro",
    "arch",
    "gpu",
    "pci",
    "python",
    "kernel",
    "next_kernel",
    "secure_boot",
    "loaded_driver",
)  # those that describe a host


def parser() -> command_line.Parser:
    """Return the parser of the command line."""
    result = command_line.Parser(
        "script/plan",
        description="Plan the driver, CUDA, cuDNN, NCCL, TensorFlow and PyTorch of a GPU host from its description.",
        epilog="Exit status: 0 a plan; 1 no plan, or one that the host of --probe refuses; 2 bad usage.",
    )
    result.add_argument("--distro", metavar="ID", help="distribution release, such as ubuntu-24.04")
    result.add_argument(
        "--arch", metavar="NAME", help=f"its CPU architecture as uname -m prints it (default: {ARCHITECTURE})"
    )
    result.add_argument(
        "--gpu",
        action="append",
        default=[],
        metavar="GPU",
        help="a product name, a PCI id (10de:2330) or cc:X.Y; 8xH100 for eight; repeats",
    )
    result.add_argument(
        "--pci",
        action="append",
        default=[],
        metavar="VENDOR:DEVICE",
        help="another function on the PCI bus, such as an NVSwitch: 10de:22a3, 4x10de:22a3 for four; 15b3:1021=SW_MNG "
        "for one that manages NVLink 5 switches (HGX B200); others change no plan; repeats",
    )
    result.add_argument(
        "--request",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a gpu_stack_* variable without its prefix, such as cuda=12.9; repeats",
    )
    result.add_argument("--python", metavar="X.Y", help="the host's Python (default: the distribution's)")
    result.add_argument("--kernel", metavar="RELEASE", help="the running kernel (default: the distribution's)")
    result.add_argument(
        "--next-kernel", metavar="RELEASE", help="the kernel that runs after a reboot (default: the running one)"
    )
    result.add_argument(
        "--secure-boot", choices=("on", "off"), help="whether the firmware has Secure Boot enabled (default: unknown)"
    )
    result.add_argument("--loaded-driver", metavar="VERSION", help="the loaded NVIDIA driver (default: none)")
    result.add_argument(
        "--probe",
        metavar="FILE",
        help="probe.json of a host's evidence, or what script/capture wrote there, in place of the options that "
        "describe a host: the host's own answer",
    )
    result.add_argument(
        "--save-versions",
        metavar="FILE",
        help="write the versions of the plan, for other hosts (gpu_stack_versions_file); with --probe, also those of "
        "what its packages depend on",
    )
    result.add_argument("--versions", metavar="FILE", help="plan exactly the versions of such a file")
    result.add_argument("--why", action="store_true", help="print the reasons for all versions, and lists whole")
    result.add_argument("--json", action="store_true", help="print the plan as JSON")
    result.add_argument(
        "--matrix",
        nargs="?",
        const="full",
        choices=("full", "short"),
        help="print what auto plans for every distribution release and GPU generation, as Markdown",
    )
    return result


if __name__ == "__main__":
    command_line.run(parser().check)

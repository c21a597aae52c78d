"""The damages of a host, one entry each: a later one needs an entry here and nothing else.

Names in commands: $CUDA is the toolkit's directory, $LIB the directory of system libraries, $ENV that of the TensorFlow
environment, $SITE its site-packages, $UNHOLD_CUDNN the command that releases cuDNN's hold.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

from tests import distributions
from tests.packages import Packages


@dataclasses.dataclass(frozen=True)
class Damage:
    """One damage: the command that does it, the part that repairs it, and what the run says about it.

    cleanup: a command that removes what the repair leaves on purpose. before: a command, followed by a run that records
    what it did. default: whether script/test has it, or the tier faults-long alone. environment: it is in the
    TensorFlow environment; scenario `default`, which has one, has those of script/test. options: of the run that
    repairs it. manager: the package manager on whose hosts it can be done, "" for each.
    """

    name: str
    command: str
    part: str
    words: str
    cleanup: str = "true"
    before: str = ""
    default: bool = False
    environment: bool = False
    options: tuple[str, ...] = ()
    manager: str = ""


DEEP = ("-e", "gpu_stack_converge=deep")
# Changes one byte, and restores the time of modification.
CORRUPT = """python3 - %s <<'END'
import os, sys
path = os.path.realpath(sys.argv[1])
found = os.stat(path)
with open(path, "r+b") as stream:
    stream.seek(found.st_size // 2)
    byte = stream.read(1)
    stream.seek(found.st_size // 2)
    stream.write(bytes([byte[0] ^ 255]))
os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))
END"""
PIN = "/etc/apt/preferences.d/nvidia-driver-pin"
FABRIC = """cat > /etc/systemd/system/nvidia-fabricmanager.service <<'END'
[Service]
Type=oneshot
ExecStart=/bin/true
RemainAfterExit=yes
[Install]
WantedBy=multi-user.target
END
systemctl daemon-reload && systemctl enable nvidia-fabricmanager"""

_ALL = [
    Damage("nvcc deleted", "rm $CUDA/bin/nvcc", "packages", "/bin/nvcc is missing", default=True),
    Damage("ptxas truncated", ": > $CUDA/bin/ptxas", "packages", "/bin/ptxas size was", default=True),
    Damage(
        "ptxas replaced",
        "rm $CUDA/bin/ptxas && ln -s /bin/true $CUDA/bin/ptxas",
        "packages",
        "ptxas was a file, is a link",
    ),
    Damage("toolkit deleted", "rm -rf $CUDA", "packages", "more"),
    Damage(
        "mode changed",
        "chmod 0700 $CUDA/bin/cuobjdump || chmod 0700 $CUDA/bin/nvcc",
        "packages",
        "mode was 755, is 700",
    ),
    Damage("owner changed", "chown nobody $CUDA/bin/nvcc", "packages", "owner was 0:0"),
    Damage("library's link deleted", "rm $LIB/libcudnn.so.9", "packages", "libcudnn.so.9 is missing", default=True),
    Damage("libnccl's link points elsewhere", "ln -sfn /bin/true $LIB/libnccl.so.2", "packages", "points to /bin/true"),
    Damage("pinning file deleted", f"rm {PIN}", "packages", "is missing", default=True, manager="apt"),
    Damage("pinning file edited", f"sed -i 's/1000/1/' {PIN}", "packages", PIN, manager="apt"),
    Damage(
        "library corrupted, size and time kept",
        CORRUPT % "$LIB/libnccl.so.2",
        "packages",
        "has another content",
        default=True,
        options=DEEP,
    ),
    # Before the next one, whose damage this command would repair.
    Damage(
        "alternative in automatic mode", "update-alternatives --auto cuda", "cuda_toolkit", "is mode=auto", default=True
    ),
    Damage(
        "/usr/local/cuda replaced",
        "ln -sfn /opt /usr/local/cuda",
        "cuda_toolkit",
        "link of the alternative cuda was points=/etc/alternatives/cuda, is points=/opt",
        default=True,
    ),
    Damage("library truncated", ": > $(readlink -f $LIB/libnccl.so.2)", "packages", "libnccl.so.2"),
    Damage(
        "nvidia-smi replaced", "echo 'echo garbage' > /usr/bin/nvidia-smi", "packages", "/usr/bin/nvidia-smi size was"
    ),
    Damage("libcudnn unheld", "$UNHOLD_CUDNN", "packages", "held=False"),
    Damage("default toolkit's link replaced", "ln -sfn /opt /etc/alternatives/cuda", "cuda_toolkit", "is value=/opt"),
    Damage("/usr/local/cuda deleted", "rm /usr/local/cuda", "cuda_toolkit", "is points=missing"),
    Damage(
        "another toolkit selected",
        "mkdir /opt/other && update-alternatives --install /usr/local/cuda cuda /opt/other 1 && "
        "update-alternatives --set cuda /opt/other",
        "cuda_toolkit",
        "value=/opt/other",
        cleanup="update-alternatives --remove cuda /opt/other && rmdir /opt/other",
    ),
    Damage(
        "persistenced disabled",
        "systemctl disable nvidia-persistenced",
        "nvidia_driver",
        "is enabled=disabled",
        default=True,
    ),
    Damage(
        "persistenced's link points elsewhere",
        "ln -sfn /bin/true /etc/systemd/system/multi-user.target.wants/nvidia-persistenced.service",
        "nvidia_driver",
        "is /bin/true",
    ),
    Damage(
        "fabric manager disabled",
        "systemctl disable --now nvidia-fabricmanager",
        "nvidia_driver",
        "is enabled=disabled",
        before=FABRIC,
    ),
    Damage(
        "module blacklisted",
        "echo 'blacklist nvidia' > /etc/modprobe.d/site.conf",
        "nvidia_driver",
        "blacklist in /etc/modprobe.d/site.conf was missing",
        cleanup="rm /etc/modprobe.d/site.conf",
        default=True,
    ),
    Damage(
        "LD_LIBRARY_PATH in /etc/environment",
        "echo LD_LIBRARY_PATH=/opt/shadow >> /etc/environment",
        "env_paths",
        "LD_LIBRARY_PATH in /etc/environment",
        cleanup="sed -i '/commented out by gpuhost/d' /etc/environment",
        default=True,
    ),
    Damage(
        "LD_LIBRARY_PATH in a profile",
        "echo 'export LD_LIBRARY_PATH=/opt/shadow' > /etc/profile.d/site.sh",
        "env_paths",
        "LD_LIBRARY_PATH in /etc/profile.d/site.sh",
        cleanup="rm /etc/profile.d/site.sh",
    ),
    Damage(
        "foreign setting of the linker",
        "echo /opt/shadow > /etc/ld.so.conf.d/zz-site.conf && touch -d '+1 hour' /etc/ld.so.conf.d/zz-site.conf",
        "env_paths",
        "is older than /etc/ld.so.conf.d/zz-site.conf",
        cleanup="rm /etc/ld.so.conf.d/zz-site.conf && ldconfig",
    ),
    Damage(
        "framework corrupted",
        CORRUPT % "$SITE/tensorflow/libtensorflow_cc.so.2",
        "tensorflow_env",
        "has another content",
        environment=True,
        options=DEEP,
    ),
    Damage("framework's directory deleted", "rm -rf $SITE/tensorflow", "tensorflow_env", "more", environment=True),
    Damage(
        "wheel's library deleted",
        "rm $SITE/nvidia/cudnn/lib/libcudnn.so.9",
        "tensorflow_env",
        "libcudnn.so.9 is missing",
        default=True,
        environment=True,
    ),
    Damage(
        "Python of the environment emptied",
        "rm $ENV/bin/python && : > $ENV/bin/python",
        "tensorflow_env",
        "bin/python was a link, is a file",
        environment=True,
    ),
    Damage("package removed from the environment", "rm -rf $SITE/h5py", "tensorflow_env", "h5py", environment=True),
    Damage(
        "foreign files in the environment",
        "echo 'import os' > $SITE/sitecustomize.py && echo 'import os' > $SITE/zz.pth",
        "tensorflow_env",
        "sitecustomize.py is new",
        environment=True,
    ),
    Damage("uv deleted", "rm -rf /opt/gpuhost/uv", "tensorflow_env", "files of /opt/gpuhost/uv", environment=True),
]
DAMAGES = [row for row in _ALL if row.manager in ("", distributions.MANAGER)]


# Damages that one run repairs together; those of one thing are not combined, as the second would hide the first.
_THINGS = (
    "$CUDA",
    "$LIB/libnccl",
    "libcudnn",
    "/cuda",
    "/usr/local/cuda",
    "nvidia-driver-pinning",
    "nvidia-persistenced",
)


def thing(row: Damage) -> str:
    """Return what a damage is of."""
    if "update-alternatives" in row.command:
        return "/cuda"
    return next((name for name in _THINGS if name in row.command), row.name).removeprefix("/usr/local")


def pairs() -> list[tuple[Damage, Damage]]:
    """Return every two damages that can be on a host without an environment at once."""
    alone = [row for row in DAMAGES if not (row.environment or row.options or row.before)]
    return [(one, other) for one, other in itertools.combinations(alone, 2) if thing(one) != thing(other)]


def run_on(host: Any, packages: Packages, *commands: str) -> None:
    """Run the commands of damages on a testinfra host as root; each must succeed."""
    home = host.run_expect([0], "readlink -f /etc/alternatives/cuda").stdout.strip()
    unhold = packages.words.unhold(packages.versions("libcudnn9-cuda-*"))
    names = f"CUDA={home} LIB={packages.LIBRARIES} ENV=/opt/gpuhost/tensorflow UNHOLD_CUDNN='{unhold}'"
    host.run_expect(
        [0],
        "bash -c %s",
        f"set -e; export {names}; SITE=$(echo $ENV/lib/python*/site-packages)\n" + "\n".join(commands),
    )


def missed(found: dict[str, list[str]], damages: list[Damage]) -> list[str]:
    """Return the names of the damages that the drift of a run, {part: reasons}, does not name."""
    return [row.name for row in damages if not any(row.words in reason for reason in found.get(row.part, []))]

"""The lab's virtual machines: hosts with their own kernel, which can load modules and reboot.

They boot as a server does: EFI firmware (OVMF), shim, GRUB and the distribution's signed kernel. With `lab_secure_boot`
the firmware enforces Secure Boot with Microsoft's keys. QEMU runs without root: it uses its user network, and emulates
the processor if KVM does not work. SSH is forwarded from a local port; machines reach the lab's repository at the IP
address of its container.
"""

import base64
import io
import os
import signal
import socket
import subprocess
import sys
import tarfile
import time
from pathlib import Path

from tests.doubles.lab import pci
from tests.doubles.lab.repository import HOST as REPOSITORY_HOST
from tests.doubles.lab.vm_image import Disk

CA_BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")
MARKER = "/usr/share/gpuhost-simulated"
QEMU = ["qemu-system-x86_64", "-cpu", "max", "-display", "none", "-monitor", "none"]
FIRMWARE = Path("/usr/share/OVMF")
# The owner of keys that the operator enrols: any identifier.
OWNER = "0b6d3a3c-8a52-4ffb-9d0f-5c1f7b0f4a11"
TRIAL_SECONDS = 10
READY_SECONDS, SSH_SECONDS = 900, 600
STOP_SECONDS = 10
# Mounts the simulated PCI devices over the machine's own, like the volume of the containers.
PCI_MOUNT = """[Unit]
Description=Simulated PCI devices of the lab
DefaultDependencies=no
After=sysinit.target
Before=ssh.service
[Mount]
What=/var/lib/gpuhost-lab/pci
Where=/sys/bus/pci/devices
Type=none
Options=bind,ro
[Install]
WantedBy=multi-user.target
"""


class Machine:
    """One virtual machine; the directory `state` has its disk, console log, process id and port."""

    def __init__(self, name: str, state: Path, key: Path) -> None:
        self.name, self.state, self.key = name, state, key

    @property
    def variables(self) -> Path:
        """The firmware's variables: boot entries and the keys of Secure Boot."""
        return self.state / "firmware-variables.fd"

    @property
    def port(self) -> int:
        """The local port that is forwarded to its sshd; it stays the same until the lab is removed."""
        path = self.state / "port"
        if not path.exists():
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                path.write_text(f"{free.getsockname()[1]}\n")
        return int(path.read_text())

    @property
    def process(self) -> int | None:
        """QEMU's process id, or None if it does not run, even if another process has its number now."""
        pid_file = self.state / "pid"
        if not pid_file.exists():
            return None
        pid = int(pid_file.read_text())
        command = Path(f"/proc/{pid}/cmdline")
        return pid if command.exists() and str(pid_file).encode() in command.read_bytes() else None

    def ensure(self, disk: Disk, secure_boot: bool = False) -> None:
        """Start the machine unless it runs already, on a copy of the disk that is kept until the lab is removed."""
        self.state.mkdir(parents=True, exist_ok=True)
        image = self.state / "disk.raw"
        if not image.exists():
            _run("cp", "--sparse=always", "--reflink=auto", str(disk.image), str(image))
        if not self.variables.exists():
            _run("cp", str(FIRMWARE / f"OVMF_VARS_4M{'.ms' if secure_boot else ''}.fd"), str(self.variables))
        if self.process is None:
            (self.state / "console.log").unlink(missing_ok=True)
            _run(*self._qemu(disk, image, secure_boot))

    def enrol(self, certificate: Path) -> None:
        """Add a certificate to the machine owner's keys, as confirming it in shim's MOK manager does.

        The machine must be off: only shim and the firmware may write the variable.
        """
        if self.process is not None:
            raise SystemExit(f"lab: virtual machine {self.name} is running; switch it off before you enrol a key")
        # As a module: the program virt-fw-vars names the environment in which it was installed, which may have moved.
        program = [sys.executable, "-m", "virt.firmware.vars"]
        _run(*program, "--inplace", str(self.variables), "--add-mok", OWNER, str(certificate))

    def _qemu(self, disk: Disk, image: Path, secure_boot: bool) -> list[str]:
        public_key = self.key.with_suffix(".pub").read_text().strip().encode()
        files = (
            "d /home/admin/.ssh 0700 admin admin\n"
            f"f~ /home/admin/.ssh/authorized_keys 0600 admin admin - {base64.b64encode(public_key).decode()}\n"
        )
        credential = base64.b64encode(files.encode()).decode()
        code = FIRMWARE / f"OVMF_CODE_4M{'.ms' if secure_boot else ''}.fd"
        # With Secure Boot only code in system management mode may write the firmware's variables.
        protected = ["-global", "driver=cfi.pflash01,property=secure,value=on", "-global", "ICH9-LPC.disable_s3=1"]
        return [
            *QEMU, "-accel", accelerator(disk), "-smp", "2", "-m", "2048",
            "-machine", f"q35,smm={'on' if secure_boot else 'off'}", *(protected if secure_boot else []),
            "-drive", f"if=pflash,unit=0,format=raw,readonly=on,file={code}",
            "-drive", f"if=pflash,unit=1,format=raw,file={self.variables}",
            "-serial", f"file:{self.state / 'console.log'}",
            "-daemonize", "-pidfile", str(self.state / "pid"),
            "-smbios", f"type=11,value=io.systemd.credential.binary:tmpfiles.extra={credential}",
            # Fast: the disk survives the end of QEMU, but not a crash of the computer that it runs on.
            "-drive", f"file={image},format=raw,if=none,id=disk,cache=unsafe",
            "-device", "virtio-blk-pci,drive=disk,bootindex=0",
            "-netdev", f"user,id=lab,hostfwd=tcp:127.0.0.1:{self.port}-:22",
            # Without its boot program, which the firmware would start.
            "-device", "virtio-net-pci,netdev=lab,romfile=",
            "-device", "virtio-rng-pci",
        ]  # fmt: skip

    def wait_until_ready(self) -> None:
        """Wait until SSH works. Raises SystemExit with the console's output."""
        deadline = time.monotonic() + READY_SECONDS
        while self._ssh("true").returncode:
            if time.monotonic() > deadline or self.process is None:
                console = (self.state / "console.log").read_text(errors="replace")
                raise SystemExit(
                    f"lab: virtual machine {self.name} does not answer on SSH; its console:\n{console[-3000:]}"
                )
            time.sleep(1)

    def configure(self, repository: str, gpus: list[pci.Device], tree: Path) -> None:
        """Install the repository's address, the controller's CA certificates and the simulated PCI devices."""
        folder = io.BytesIO()
        with tarfile.open(fileobj=folder, mode="w:gz") as tar:
            tar.add(tree, arcname="pci")
            if CA_BUNDLE.exists():
                tar.add(CA_BUNDLE.resolve(), arcname="ca-certificates.crt")
        script = f"""set -eu
cd /tmp
base64 -d > lab.tar.gz <<'END'
{base64.encodebytes(folder.getvalue()).decode()}END
mkdir -p /var/lib/gpuhost-lab {MARKER}
tar -xzf lab.tar.gz -C /var/lib/gpuhost-lab --no-same-owner
rm lab.tar.gz
[ ! -e /var/lib/gpuhost-lab/ca-certificates.crt ] || cp /var/lib/gpuhost-lab/ca-certificates.crt {CA_BUNDLE}
sed -i '/ {REPOSITORY_HOST}$/d' /etc/hosts 2>/dev/null || echo '127.0.0.1 localhost' > /etc/hosts
echo '{repository} {REPOSITORY_HOST}' >> /etc/hosts
echo '127.0.1.1 {self.name}' >> /etc/hosts
echo '{self.name}' > /etc/hostname
hostname '{self.name}'
grep -q menuentry /boot/grub/grub.cfg || update-grub
echo 'PCI devices ({pci.describe(gpus)})' > {MARKER}/pci-devices.txt
cat > /etc/systemd/system/sys-bus-pci-devices.mount <<'END'
{PCI_MOUNT}END
systemctl daemon-reload
systemctl enable --now sys-bus-pci-devices.mount
"""
        result = self._ssh("sudo sh -s", script)
        if result.returncode:
            raise SystemExit(f"lab: virtual machine {self.name} could not be configured:\n{result.stderr[-2000:]}")

    def stop(self) -> None:
        """Switch the machine off, as a power failure does."""
        pid = self.process
        if pid is None:
            return
        os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + STOP_SECONDS
        while self.process is not None:
            if time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
            time.sleep(0.2)

    def _ssh(self, command: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        options = "BatchMode=yes,ConnectTimeout=5,IdentitiesOnly=yes,LogLevel=ERROR,StrictHostKeyChecking=no"
        words = ["ssh", "-i", str(self.key), "-p", str(self.port), "-o", "UserKnownHostsFile=/dev/null"]
        words += [word for option in options.split(",") for word in ("-o", option)]
        try:
            return subprocess.run(
                [*words, "admin@127.0.0.1", command], input=stdin, capture_output=True, text=True, timeout=SSH_SECONDS
            )
        except subprocess.TimeoutExpired:
            return subprocess.CompletedProcess(words, 255, "", f"ssh did not end within {SSH_SECONDS} s")


def accelerator(disk: Disk) -> str:
    """Return "kvm" if a kernel starts with it, else "tcg": on some computers /dev/kvm exists, but guests hang."""
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        return "tcg"
    command = [*QEMU, "-machine", "pc", "-accel", "kvm", "-m", "512", "-serial", "stdio", "-kernel", str(disk.kernel)]
    command += ["-no-reboot", "-append", "console=ttyS0 panic=-1"]
    try:
        trial = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=TRIAL_SECONDS)
        output = trial.stdout
    except subprocess.TimeoutExpired as late:
        output = late.stdout or b""
    except FileNotFoundError:
        return "tcg"  # reported when the machine is started
    return "kvm" if b"Linux version" in output else "tcg"


def _run(*command: str) -> None:
    try:
        # QEMU would leave the caller's terminal or pipe non-blocking, which Ansible refuses to start with.
        result = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    except FileNotFoundError as error:
        raise SystemExit(
            f"lab: virtual machines need {error.filename}; on Debian or Ubuntu: "
            "sudo apt-get install -y --no-install-recommends qemu-system-x86 ovmf"
        ) from None
    if result.returncode:
        raise SystemExit(f"lab: {command[0]} ended {result.returncode}: {(result.stderr or result.stdout)[-2000:]}")

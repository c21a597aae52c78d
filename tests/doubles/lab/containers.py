"""The lab's containers: one per host of the inventory, one that serves the repository, and their network.

Virtual machines (vm.py) belong to the same lab.
"""

import hashlib
import shutil
import subprocess
import sys
import time
from pathlib import Path

from tests.doubles.lab import pci
from tests.doubles.lab.docker import docker, docker_succeeds
from tests.doubles.lab.images import Image
from tests.doubles.lab.repository import HOST as REPOSITORY_HOST
from tests.doubles.lab.repository import cache
from tests.doubles.lab.vm import Machine

# systemd as PID 1 without --privileged, which some kernels refuse. It needs SYS_ADMIN to mount, and its control groups.
SYSTEMD = (
    "--cap-add SYS_ADMIN --security-opt seccomp=unconfined --security-opt apparmor=unconfined --cgroupns=host "
    "--volume /sys/fs/cgroup:/sys/fs/cgroup:rw --tmpfs /run --tmpfs /run/lock --tmpfs /tmp:exec"
).split()
# NVIDIA's device nodes have major number 195. If they are allowed, the genuine nvidia-smi reports that no driver is
# loaded, as on a bare machine; otherwise it reports a device that the container forbids.
DEVICES = ["--device-cgroup-rule", "c 195:* rmw"]
CA_BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")
MARKER = "/usr/share/gpuhost-simulated"
READY_SECONDS, REMOVAL_SECONDS, RETRY_SECONDS = 90, 180, 2


class Lab:
    """The containers, virtual machines and state directory of one lab in one checkout of the project."""

    def __init__(self, name: str, project: Path) -> None:
        self.name = name
        self.state = project / ".lab" / name
        # Unique on the machine: two checkouts may run a lab of the same name.
        self.prefix = f"gpuhost-{name}-{hashlib.sha256(str(project).encode()).hexdigest()[:6]}"
        self.label = f"gpuhost.lab={self.prefix}"

    # State files ----------------------------------------------------------------------------------------------

    @property
    def key(self) -> Path:
        """The administrator's private SSH key."""
        return self.state / "id_ed25519"

    def pci_tree(self, host: str) -> Path:
        """Return the directory that a host sees as /sys/bus/pci/devices."""
        return self.state / "pci" / host

    def prepare_state(self) -> None:
        """Create the state directory and the administrator's SSH key."""
        self.state.mkdir(parents=True, exist_ok=True)
        if not self.key.exists():
            command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", self.prefix, "-f", str(self.key)]
            subprocess.run(command, check=True)

    def machine(self, host: str) -> Machine:
        """Return a host's virtual machine, whether it runs or not."""
        return Machine(host, self.state / "vm" / host, self.key)

    def write_ssh_config(self, hosts: list[str], machines: list[str]) -> None:
        """Write one stanza per host; host keys are not verified, because every lab has new ones."""
        forwarded = {host: ("127.0.0.1", self.machine(host).port) for host in machines}
        stanzas = [
            f"Host {host}\n  HostName {address}\n  Port {port}\n  User admin\n  IdentityFile {self.key}\n"
            f"  IdentitiesOnly yes\n  StrictHostKeyChecking no\n  UserKnownHostsFile /dev/null\n  LogLevel ERROR\n"
            for host in hosts
            for address, port in [forwarded.get(host) or (self._address(host), 22)]
        ]
        (self.state / "ssh_config").write_text("\n".join(stanzas))

    # Containers ---------------------------------------------------------------------------------------------------

    def container(self, host: str) -> str:
        """Return the name of a host's container."""
        return f"{self.prefix}-{host}"

    def ensure_network(self) -> None:
        """Create the lab's network unless it exists."""
        if not docker_succeeds("network", "inspect", self.prefix):
            docker("network", "create", "--label", self.label, self.prefix)

    @property
    def inner(self) -> str:
        """The network without a way out, of the hosts behind another one."""
        return f"{self.prefix}-inner"

    def put_behind(self, gateway: str) -> None:
        """Create the inner network unless it exists, with `gateway`, which has both, in it."""
        if not docker_succeeds("network", "inspect", self.inner):
            docker("network", "create", "--internal", "--label", self.label, self.inner)
        if self.inner not in docker("container", "inspect", self.container(gateway)):
            docker("network", "connect", "--alias", gateway, self.inner, self.container(gateway))

    def ensure_repository(self, image: Image, folder: Path) -> None:
        """Serve a directory read-only at http://repository.lab/ inside the lab's network."""
        name = self.container("repository")
        if self._runs(name):
            return
        docker(
            "run", "--detach", "--name", name, "--label", self.label, "--network", self.prefix,
            "--network-alias", REPOSITORY_HOST, "--volume", f"{folder}:/srv:ro", image.tag,
            "python3", "-m", "http.server", "--directory", "/srv", "80",
        )  # fmt: skip

    def ensure_host(self, host: str, image: Image, gpus: list[pci.Device], network: str | None = None) -> None:
        """Start and configure a host's container unless it runs already; network: by default the lab's."""
        name = self.container(host)
        if self._runs(name):
            return
        downloads = cache() / "uv"
        downloads.mkdir(parents=True, exist_ok=True)
        docker(
            "run", "--detach", "--name", name, "--hostname", host, "--label", self.label,
            "--network", network or self.prefix, *SYSTEMD, *DEVICES,
            "--volume", f"{self.pci_tree(host)}:/sys/bus/pci/devices:ro",
            "--volume", f"{downloads}:/var/cache/gpuhost/uv", image.tag, "/lib/systemd/systemd",
        )  # fmt: skip
        self._configure(name, gpus)

    def _configure(self, name: str, gpus: list[pci.Device]) -> None:
        """Install the administrator's key, the controller's CA certificates and the list of simulated GPUs."""
        ready = "systemctl is-system-running --wait"
        deadline = time.monotonic() + READY_SECONDS
        while not docker_succeeds(
            "exec", name, "sh", "-c", f"{ready} || test $(systemctl is-system-running) = degraded"
        ):
            if time.monotonic() > deadline:
                raise SystemExit(f"lab: systemd in {name} did not start:\n{docker('logs', '--tail', '30', name)}")
            time.sleep(0.5)
        if CA_BUNDLE.exists():
            docker("cp", "--follow-link", str(CA_BUNDLE), f"{name}:{CA_BUNDLE}")
        public_key = self.key.with_suffix(".pub").read_text().strip()
        script = (
            "set -eu\n"
            "install -d -m 0700 -o admin -g admin /home/admin/.ssh\n"
            f"echo '{public_key}' > /home/admin/.ssh/authorized_keys\n"
            "chown admin:admin /home/admin/.ssh/authorized_keys; chmod 0600 /home/admin/.ssh/authorized_keys\n"
            f"mkdir -p {MARKER}\n"
            f"echo 'PCI devices ({pci.describe(gpus)})' > {MARKER}/pci-devices.txt\n"
        )
        docker("exec", name, "sh", "-c", script)

    def wait_until_ready(self, hosts: list[str]) -> None:
        """Wait until sshd listens on each host. Raises SystemExit after READY_SECONDS."""
        for host in hosts:
            name, deadline = self.container(host), time.monotonic() + READY_SECONDS
            while not docker_succeeds("exec", name, "sh", "-c", "ss -ltn | grep -q ':22 '"):
                if time.monotonic() > deadline:
                    raise SystemExit(f"lab: no sshd on {host}:\n{docker('exec', name, 'systemctl', 'status', 'ssh')}")
                time.sleep(0.2)

    def remove(self) -> None:
        """Remove hosts, network and state; keep images, downloads and the built repository for the next lab."""
        for folder in (self.state / "vm").glob("*"):
            self.machine(folder.name).stop()
        self._remove_all(("ps", "--all"), ("rm", "--force", "--volumes"))
        self._remove_all(("network", "ls"), ("network", "rm"))
        if self.state.exists():
            shutil.rmtree(self.state)

    def _remove_all(self, listing: tuple[str, ...], removal: tuple[str, ...]) -> None:
        """Remove the lab's objects that `docker LISTING` lists. Raises SystemExit with docker's output.

        Docker waits a few seconds for a killed container to exit, then fails with "did not receive an exit event". On a
        slow disk the processes take longer, so the removal is tried again until REMOVAL_SECONDS have passed.
        """
        deadline = time.monotonic() + REMOVAL_SECONDS
        while found := docker(*listing, "--quiet", "--filter", f"label={self.label}").split():
            try:
                docker(*removal, *found)
            except SystemExit as refusal:
                if time.monotonic() > deadline:
                    raise
                print(f"{refusal}\nlab: retrying", file=sys.stderr, flush=True)
                time.sleep(RETRY_SECONDS)

    def repository_address(self) -> str:
        """Return the IP address of the repository's container, for virtual machines outside the lab's network."""
        return self._address("repository")

    # Queries ------------------------------------------------------------------------------------------------------

    def _runs(self, name: str) -> bool:
        if not docker_succeeds("container", "inspect", name):
            return False
        if docker("container", "inspect", "--format", "{{.State.Running}}", name).strip() != "true":
            docker("start", name)
        return True

    def _address(self, host: str) -> str:
        template = "{{range $name, $net := .NetworkSettings.Networks}}{{$name}} {{$net.IPAddress}} {{end}}"
        words = docker("container", "inspect", "--format", template, self.container(host)).split()
        addresses = dict(zip(words[::2], words[1::2], strict=True))
        return addresses.get(self.prefix) or addresses[self.inner]

"""The lab's containers: one for each host of the inventory, one that serves the repository, and their network.

Hosts that are virtual machines (vm.py) belong to the same lab.
"""

import hashlib
import subprocess
import sys
import time
from pathlib import Path

from tests.doubles.lab import pci
from tests.doubles.lab.docker import docker, docker_answers
from tests.doubles.lab.images import Image
from tests.doubles.lab.repository import HOST as REPOSITORY_HOST
from tests.doubles.lab.repository import cache
from tests.doubles.lab.vm import Machine

# systemd as PID 1 without --privileged, which some kernels refuse: it mounts, so SYS_ADMIN; it owns its control groups.
SYSTEMD = (
    "--cap-add SYS_ADMIN --security-opt seccomp=unconfined --security-opt apparmor=unconfined --cgroupns=host "
    "--volume /sys/fs/cgroup:/sys/fs/cgroup:rw --tmpfs /run --tmpfs /run/lock --tmpfs /tmp:exec"
).split()
# Major number 195 is NVIDIA's. With its nodes allowed, a genuine nvidia-smi learns that no driver is loaded, as on a
# bare machine; without, it learns that a container forbids the device.
DEVICES = ["--device-cgroup-rule", "c 195:* rmw"]
CA_BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")
MARKER = "/usr/share/gpuhost-simulated"
READY_SECONDS, GONE_SECONDS, AGAIN_SECONDS = 90, 180, 2


class Lab:
    """A named set of containers that belongs to one checkout of the project."""

    def __init__(self, name: str, project: Path) -> None:
        self.name = name
        self.state = project / ".lab" / name
        # Two checkouts may each run a lab of the same name on one machine.
        self.prefix = f"gpuhost-{name}-{hashlib.sha256(str(project).encode()).hexdigest()[:6]}"
        self.label = f"gpuhost.lab={self.prefix}"

    # State files ----------------------------------------------------------------------------------------------

    @property
    def key(self) -> Path:
        return self.state / "id_ed25519"

    def pci_tree(self, host: str) -> Path:
        return self.state / "pci" / host

    def prepare_state(self) -> None:
        self.state.mkdir(parents=True, exist_ok=True)
        if not self.key.exists():
            command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", self.prefix, "-f", str(self.key)]
            subprocess.run(command, check=True)

    def machine(self, host: str) -> Machine:
        return Machine(host, self.state / "vm" / host, self.key)

    def write_ssh_config(self, hosts: list[str], machines: list[str]) -> None:
        """One stanza a host. The hosts' keys are new each time, so they are not remembered between labs."""
        ways = {host: ("127.0.0.1", self.machine(host).port) for host in machines}
        stanzas = [
            f"Host {host}\n  HostName {address}\n  Port {port}\n  User admin\n  IdentityFile {self.key}\n"
            f"  IdentitiesOnly yes\n  StrictHostKeyChecking no\n  UserKnownHostsFile /dev/null\n  LogLevel ERROR\n"
            for host in hosts
            for address, port in [ways.get(host) or (self._address(host), 22)]
        ]
        (self.state / "ssh_config").write_text("\n".join(stanzas))

    # Containers ---------------------------------------------------------------------------------------------------

    def container(self, host: str) -> str:
        return f"{self.prefix}-{host}"

    def ensure_network(self) -> None:
        if not docker_answers("network", "inspect", self.prefix):
            docker("network", "create", "--label", self.label, self.prefix)

    def ensure_repository(self, image: Image, folder: Path) -> None:
        """Serves `folder` read-only at http://repository.lab/ inside the lab's network."""
        name = self.container("repository")
        if self._runs(name):
            return
        docker(
            "run", "--detach", "--name", name, "--label", self.label, "--network", self.prefix,
            "--network-alias", REPOSITORY_HOST, "--volume", f"{folder}:/srv:ro", image.tag,
            "python3", "-m", "http.server", "--directory", "/srv", "80",
        )  # fmt: skip

    def ensure_host(self, host: str, image: Image, gpus: list[pci.Device]) -> None:
        name = self.container(host)
        if self._runs(name):
            return
        downloads = cache() / "uv"
        downloads.mkdir(parents=True, exist_ok=True)
        docker(
            "run", "--detach", "--name", name, "--hostname", host, "--label", self.label, "--network", self.prefix,
            *SYSTEMD, *DEVICES, "--volume", f"{self.pci_tree(host)}:/sys/bus/pci/devices:ro",
            "--volume", f"{downloads}:/var/cache/gpuhost/uv", image.tag, "/lib/systemd/systemd",
        )  # fmt: skip
        self._furnish(name, gpus)

    def _furnish(self, name: str, gpus: list[pci.Device]) -> None:
        """The administrator's key, the CAs that the controller trusts, and the note that the GPUs are simulated."""
        ready = "systemctl is-system-running --wait"
        deadline = time.monotonic() + READY_SECONDS
        while not docker_answers(
            "exec", name, "sh", "-c", f"{ready} || test $(systemctl is-system-running) = degraded"
        ):
            if time.monotonic() > deadline:
                raise SystemExit(f"lab: systemd in {name} did not come up:\n{docker('logs', '--tail', '30', name)}")
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
        """Until sshd listens on each host."""
        for host in hosts:
            name, deadline = self.container(host), time.monotonic() + READY_SECONDS
            while not docker_answers("exec", name, "sh", "-c", "ss -ltn | grep -q ':22 '"):
                if time.monotonic() > deadline:
                    raise SystemExit(f"lab: no sshd on {host}:\n{docker('exec', name, 'systemctl', 'status', 'ssh')}")
                time.sleep(0.2)

    def remove(self) -> None:
        """Removes hosts, network and state. Images, downloads and the built repository stay for the next lab."""
        for folder in (self.state / "vm").glob("*"):
            self.machine(folder.name).stop()
        self._until_gone(("ps", "--all"), ("rm", "--force", "--volumes"))
        self._until_gone(("network", "ls"), ("network", "rm"))
        for path in sorted(self.state.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        if self.state.exists():
            self.state.rmdir()

    def _until_gone(self, listing: tuple[str, ...], removal: tuple[str, ...]) -> None:
        """Removes the lab's own of what `listing` lists. SystemExit with docker's words when they stay.

        Docker waits seconds for a killed container to end, and fails with "did not receive an exit event" where the
        disk keeps the processes for longer: they do end, and the next call removes them.
        """
        deadline = time.monotonic() + GONE_SECONDS
        while found := docker(*listing, "--quiet", "--filter", f"label={self.label}").split():
            try:
                docker(*removal, *found)
            except SystemExit as refusal:
                if time.monotonic() > deadline:
                    raise
                print(f"{refusal}\nlab: trying again", file=sys.stderr, flush=True)
                time.sleep(AGAIN_SECONDS)

    def repository_address(self) -> str:
        """Where hosts outside the lab's network reach the container that serves the repository."""
        return self._address("repository")

    # Questions ----------------------------------------------------------------------------------------------------

    def _runs(self, name: str) -> bool:
        if not docker_answers("container", "inspect", name):
            return False
        if docker("container", "inspect", "--format", "{{.State.Running}}", name).strip() != "true":
            docker("start", name)
        return True

    def _address(self, host: str) -> str:
        template = "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}"
        return docker("container", "inspect", "--format", template, self.container(host)).strip()

"""Which hosts the driver role never reboots, and what it reports instead."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from ansible.plugins.action.reboot import ActionModule

from tests.unit.ansible_runs import run_playbook

PROJECT = Path(__file__).resolve().parents[4]
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

# Hosts that must not be rebooted: their variables, and the reason in the message.
HOSTS = {
    "local": ({"ansible_connection": "local", "nvidia_driver_reboot": "if_needed"}, "it is the control node"),
    "itself": ({"ansible_connection": "ssh", "nvidia_driver_reboot": "if_needed"}, "it is the control node"),
    "never": ({"ansible_connection": "ssh", "nvidia_driver_reboot": "never"}, "nvidia_driver_reboot is never"),
}


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the output of a run in check mode, so that a broken condition does not reboot this machine."""
    folder = tmp_path_factory.mktemp("reboot")
    hosts = {}
    for name, (known, _) in HOSTS.items():
        # Over SSH to itself, only the boot ID identifies the control node.
        boot_id = BOOT_ID.read_text().strip() if name == "itself" else "of another machine"
        hosts[name] = {
            **known,
            "__nvidia_driver_module": {"reboot_needed": True, "reasons": ["nouveau is loaded"], "boot_id": boot_id},
        }
    (folder / "hosts.json").write_text(json.dumps({"all": {"hosts": hosts}}))
    play = {
        "hosts": "all",
        "gather_facts": False,
        "vars_files": [str(PROJECT / "roles/nvidia_driver/vars/main.yml")],
        "vars": {
            "nvidia_driver_version": "595.71.05",
            "nvidia_driver_kernel_modules": "open",
            "nvidia_driver_reboot_timeout": 1,
        },
        "tasks": [{"include_tasks": str(PROJECT / "roles/nvidia_driver/tasks/reboot.yml")}],
    }
    (folder / "play.yml").write_text(json.dumps([play]))
    # In another directory, so that the project's settings do not apply.
    done = run_playbook(folder, "--check", "-i", "hosts.json", "play.yml")
    assert done.returncode == 2, done.stdout + done.stderr
    return " ".join(done.stdout.split())


@pytest.mark.parametrize("host", HOSTS)
def test_host_that_must_not_be_rebooted_fails_with_the_reason_and_the_next_step(output: str, host: str) -> None:
    needs = "needs a reboot before the module of driver 595.71.05 can be loaded (nouveau is loaded)"
    expected = (
        f"{host} {needs}, and this run must not reboot it ({HOSTS[host][1]}). Reboot it, then run the same command"
    )
    assert expected in output
    assert "Reboot into the new driver" not in output


@pytest.mark.parametrize(
    "links", sorted((PROJECT / "tests/fixtures/molly_guard").glob("*.links")), ids=lambda p: p.stem
)
def test_the_command_that_reboots_is_none_of_those_that_molly_guard_replaces(links: Path, tmp_path: Path) -> None:
    """It asks for the host's name on a terminal that looks like SSH, and Ansible waits for the reboot in vain."""
    for directory in ("bin", "sbin"):
        (tmp_path / "usr" / directory).mkdir(parents=True)
        (tmp_path / directory).symlink_to(f"usr/{directory}")
    (tmp_path / "usr/bin/systemctl").touch()
    for line in links.read_text().splitlines():
        path, target = line.split(" -> ")
        (tmp_path / path).symlink_to(target)
    tasks = yaml.safe_load((PROJECT / "roles/nvidia_driver/tasks/reboot.yml").read_text())
    (arguments,) = [task["ansible.builtin.reboot"] for task in tasks if "ansible.builtin.reboot" in task]

    def find(module_args: dict[str, Any], **_unused: object) -> dict[str, Any]:
        (name,) = module_args["patterns"]
        found = [tmp_path / path.lstrip("/") / name for path in module_args["paths"]]
        return {"files": [{"path": str(path)} for path in found if path.is_symlink() or path.exists()]}

    action = ActionModule.__new__(ActionModule)
    action._task = SimpleNamespace(args=arguments, action="reboot")
    action._execute_module = find
    command = Path(action.get_shutdown_command({}, {"name": "debian", "version": "13", "family": "debian"}))
    assert command.relative_to(tmp_path).name == "systemctl"
    assert not command.is_symlink()
    assert (
        action.get_shutdown_command_args({"name": "debian", "version": "13", "family": "debian"}).split()[0] == "reboot"
    )

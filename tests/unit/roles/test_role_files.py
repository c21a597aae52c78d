"""What each role writes to a host, rendered as Ansible does: path, mode and content."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from syrupy.assertion import SnapshotAssertion

from tests.unit.playbooks import rendering

ROLES = rendering.PROJECT / "roles"
DRIVER = {"nvidia_driver_version": "580.126.09", "nvidia_driver_module_signing_key": ""}
SIGNED = {"nvidia_driver_module_signing_key": "/mok.key", "nvidia_driver_module_signing_certificate": "/mok.der"}
FACTS = {"distribution": "Ubuntu", "distribution_version": "24.04", "architecture": "x86_64"}
URL = "https://mirror.example/cuda/"
CASES: list[tuple[str, str, dict[str, Any]]] = [
    ("cuda_toolkit", "default", {"cuda_toolkit_home": "/usr/local/cuda-13.0"}),
    ("env_paths", "present", {}),
    ("env_paths", "absent", {"env_paths_state": "absent", "env_paths_commands": ["nsys"]}),
    ("fabric", "B300", {"fabric_modules": ["ib_umad"]}),
    ("fabric", "H100", {"fabric_modules": []}),
    ("host_verify", "default", {}),
    ("host_verify", "metrics", {"host_verify_prometheus": True, "host_verify_prometheus_directory": "/srv/metrics"}),
    ("nvidia_driver", "default", {**DRIVER, "__nvidia_driver_unit_text": {}}),
    (
        "nvidia_driver",
        "signed, no guard, no drop-in",
        {**DRIVER, **SIGNED, "nvidia_driver_kernel_guard": False, "nvidia_driver_persistence": False},
    ),
    ("nvidia_repo", "default", {"nvidia_repo_blocked_packages": ["cuda-drivers"], "nvidia_repo_url": URL}),
    ("nvidia_repo", "login", {"nvidia_repo_url": "https://me:secret@mirror.example/cuda/"}),
]


def rendered(role: str, variables: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the resources of a role; a template is rendered as its content."""
    known: dict[str, Any] = {}
    for name in ("defaults", "vars"):
        known |= yaml.safe_load((ROLES / role / name / "main.yml").read_text())
    known |= {
        "ansible_facts": FACTS,
        "role_path": str(ROLES / role),
        "__nvidia_driver_rivals": ["nouveau", "nova_core"],
    }
    known |= variables
    resources = [dict(each) for name, values in known.items() if name.endswith("_resources") for each in values]
    states = rendering.rendered(
        [{"variables": {**known, "each": each.get("state")}, "names": ["each"]} for each in resources]
    )
    for each, state in zip(resources, states, strict=True):
        if state["each"] == "absent":  # as the action, which renders nothing of it
            [each.pop(name, None) for name in ("content", "src", "template")]
        if template := each.pop("template", None):
            each["content"] = f"{{{{ lookup('ansible.builtin.template', '{ROLES / role}/templates/{template}') }}}}"
    (answer,) = rendering.rendered([{"variables": {**known, "each": resources}, "names": ["each"]}])
    assert isinstance(answer, dict), answer
    return list(answer["each"])


def text(resource: dict[str, Any]) -> str:
    """Return a resource as a person reads it: a line, and below it the content of a file."""
    fields = dict(resource)
    path, content, names = fields.pop("path", ""), fields.pop("content", ""), fields.pop("names", None)
    shown = [
        f"{name}={str(value).replace(str(ROLES), 'ROLES')}" for name, value in fields.items() if value != "present"
    ]
    lines = [" ".join([path if names is None else f"{path}/{{{','.join(names)}}}", *shown]).lstrip()]
    return "\n".join([*lines, *(f"  | {line}".rstrip() for line in content.splitlines())])


@pytest.mark.parametrize(("role", "case", "variables"), CASES, ids=[f"{role}-{case}" for role, case, _v in CASES])
def test_what_a_role_writes(role: str, case: str, variables: dict[str, Any], snapshot: SnapshotAssertion) -> None:
    assert "\n".join(map(text, rendered(role, variables))) == snapshot


def test_what_is_copied_is_there() -> None:
    roles = {role: variables for role, _case, variables in reversed(CASES)}
    sources = [(role, each["src"]) for role in roles for each in rendered(role, roles[role]) if each.get("src")]
    missing = [source for role, source in sources if not (ROLES / role / "files" / source).exists()]
    assert (len(sources), missing) == (6, [])


def test_the_mode_of_each_directory_is_a_roles() -> None:
    """It is watched, and what is watched must be repaired."""
    listed = [each for role, _case, variables in CASES for each in rendered(role, variables)]
    directories = [each for each in listed if not {"content", "src", "template", "target"} & each.keys()]
    present = [each for each in directories if each.get("state", "present") == "present"]
    assert present
    assert [each["path"] for each in present if not each.get("mode")] == []


def test_each_role_with_such_a_list_is_here() -> None:
    lists = {path.parents[1].name for path in ROLES.glob("*/vars/main.yml") if "_resources:\n" in path.read_text()}
    assert {role for role, _case, _variables in CASES} == lists

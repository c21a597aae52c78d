"""The command that was typed, without secrets, and those that continue a run, which can be pasted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.base import playbook_call
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base import paths
from ansible_collections.gpuhost.stack.plugins.plugin_utils.report import run_command
from ansible_collections.gpuhost.stack.plugins.plugin_utils.report.run_command import Commands

PROJECT = Path(__file__).resolve().parents[4]
OPTIONS: dict[str, Any] = {"args": ("playbooks/gpu_host.yml",), "inventory": ("inventories/lab",), "tags": ("all",)}


def parsed(words: str) -> dict[str, Any]:
    """Return the options as Ansible parses them."""
    code = "import json, sys; from ansible import context; from ansible.cli.playbook import PlaybookCLI as CLI; "
    code += "CLI(sys.argv[1:]).parse(); print(json.dumps(dict(context.CLIARGS), default=list))"
    command = [sys.executable, "-c", code, "ansible-playbook", *words.split()]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return dict(json.loads(done.stdout))


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({}, ""),
        ({"subset": "gpu01,gpu02"}, " --limit gpu01,gpu02"),
        ({"tags": ("verify",), "skip_tags": ["smoke_train"]}, " --tags verify --skip-tags smoke_train"),
        ({"check": True}, " --check"),
        ({"extra_vars": ("gpu_stack_cuda=13.2",)}, " -e gpu_stack_cuda=13.2"),
        ({"extra_vars": ("ansible_become_password=hunter2", '{"a": "b"}')}, " -e ... -e ..."),
        ({"extra_vars": ("token=hunter2 gpu_stack_cuda=13.2", "gpu_stack_cuda=13.2 token=hunter2")}, " -e ... -e ..."),
        (
            {"extra_vars": ("gpu_stack_cuda=13.2 gpu_stack_driver=595",)},
            " -e 'gpu_stack_cuda=13.2 gpu_stack_driver=595'",
        ),
        (
            {"extra_vars": ("gpu_stack_repository_url=https://me:hunter2@mirror.example.org/cuda",)},
            " -e gpu_stack_repository_url=https://mirror.example.org/cuda",
        ),
        ({"args": ("a b.yml",)}, None),
    ],
)
def test_the_command_has_what_says_what_it_did_and_no_secret(more: dict[str, Any], words: str | None) -> None:
    text = run_command.typed({**OPTIONS, **more})
    assert "hunter2" not in text
    if words is None:
        assert text == "ansible-playbook 'a b.yml' -i inventories/lab"
    else:
        assert text == f"ansible-playbook playbooks/gpu_host.yml -i inventories/lab{words}"


@pytest.mark.parametrize(
    "words",
    [
        "playbooks/gpu_host.yml -i inventories/lab --limit gpu01 -e gpu_stack_cuda=13.2 -K",
        "playbooks/gpu_host.yml -i inventories/lab -i /etc/ansible/hosts --private-key keys/lab -k",
        "gpuhost.stack.plan -i gpu01, --vault-password-file pass.txt -e @vault.yml -e gpu_stack_cuda=auto -b --check",
    ],
)
def test_a_command_without_secrets_can_be_typed_again(words: str) -> None:
    assert run_command.typed(parsed(words)) == f"ansible-playbook {words}"


RUN = "playbooks/plan.yml -i inventories/lab"
MAIN = "ansible-playbook playbooks/gpu_host.yml -i inventories/lab"


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (RUN, MAIN),
        (f"{RUN} -l gpu01,gpu02 -u me -K -J", f"{MAIN} --limit gpu01,gpu02 -u me -K -J"),
        (f"{RUN} --vault-id dev@prompt --vault-pass-file p", f"{MAIN} --vault-id dev@prompt --vault-password-file p"),
        (f"{RUN} -t verify --skip-tags smoke_train --check", MAIN),
        ("playbooks/plan.yml", "ansible-playbook playbooks/gpu_host.yml"),
        ("../{clone}/playbooks/plan.yml -i gpu01,", "ansible-playbook ../{clone}/playbooks/gpu_host.yml -i gpu01,"),
        ("gpuhost.stack.plan -i gpu01,", "ansible-playbook gpuhost.stack.gpu_host -i gpu01,"),
        ("site.yml -i gpu01,", "ansible-playbook playbooks/gpu_host.yml -i gpu01,"),
        (f"{RUN} -e gpu_stack_cuda=13.2 -e @more.yml", f"{MAIN} -e gpu_stack_cuda=13.2 -e @more.yml"),
        (f"{RUN} -e token=hunter2,gpu_stack_cuda=1 -e gpu_stack_cudda=13.2 -e ansible_become_pass=hunter2", MAIN),
        (f"{RUN} -e gpu_stack_cuda=13.1 -e gpu_stack_cuda=13.2", f"{MAIN} -e gpu_stack_cuda=13.2"),
        (f"{RUN} -e gpu_stack_module_signing_key=/root/hunter2.key", MAIN),
        (f"{RUN} -e {{\"gpu_stack_environment\":{{\"TOKEN\":\"hunter2\"}}}}", MAIN),
        (f"{RUN} -e {{\"gpu_stack_reboot\":true,\"token\":\"hunter2\"}}", f"{MAIN} -e '{{\"gpu_stack_reboot\":true}}'"),
        (
            f"{RUN} -e gpu_stack_repository_url=https://me:hunter2@mirror.example.org/cuda",
            f"{MAIN} -e gpu_stack_repository_url=https://mirror.example.org/cuda",
        ),
    ],
)  # fmt: skip
def test_a_command_that_continues_a_run_is_reached_and_decided_as_it_was(words: str, command: str) -> None:
    words, command = (text.replace("{clone}", PROJECT.name) for text in (words, command))
    found = Commands(parsed(words)).of("gpu_host")
    assert found == command
    assert "hunter2" not in found


def test_one_variable_may_have_several_words_of_a_shell() -> None:
    given = parsed(RUN) | {"extra_vars": ["gpu_stack_cuda=13.2 token=hunter2 gpu_stack_locks='/a b'"]}
    expected = f'{MAIN} -e gpu_stack_cuda=13.2 -e \'{{"gpu_stack_locks":"/a\\u0020b"}}\''
    assert Commands(given).of("gpu_host") == expected


def test_an_inventory_of_ansible_cfg_is_not_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_command.constants, "DEFAULT_HOST_LIST", ["/srv/hosts"])
    assert Commands({"args": ["gpuhost.stack.verify"], "inventory": ["/srv/hosts"]}).of("rollback") == (
        "ansible-playbook gpuhost.stack.rollback"
    )


def test_where_the_collection_is_installed_its_playbooks_have_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "PROJECT", Path("/usr/share/ansible/collections/ansible_collections/gpuhost/stack"))
    assert Commands({"args": ["site.yml"]}).of("verify") == "ansible-playbook gpuhost.stack.verify"


def test_a_program_that_is_not_in_path_is_named_as_it_was_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(PROJECT)
    monkeypatch.setattr(sys, "argv", [".venv/bin/ansible-playbook"])
    monkeypatch.setenv("PATH", "/usr/bin")
    assert Commands({"args": ["playbooks/plan.yml"]}).of("verify") == ".venv/bin/ansible-playbook playbooks/verify.yml"
    monkeypatch.setenv("PATH", f"{PROJECT}/.venv/bin")
    assert Commands({"args": ["playbooks/plan.yml"]}).of("verify") == "ansible-playbook playbooks/verify.yml"


def test_a_message_that_names_a_playbook_gets_its_command() -> None:
    commands = Commands(parsed(f"{RUN} -e gpu_stack_adopt=true -K"))
    text = f"run `{playbook_call.call('gpu_host', 'gpu_stack_adopt=false')}`, or {playbook_call.call('rollback')}"
    rollback = MAIN.replace("gpu_host", "rollback")
    filled = f"run `{MAIN} -e gpu_stack_adopt=false -K`, or {rollback} -e gpu_stack_adopt=true -K"
    assert commands.fill({"a": [text, 1], "b": None}) == {"a": [filled, 1], "b": None}


@pytest.mark.parametrize("text", ["[[ -f /x ]]", "[[rm]]", "[[plan; rm x]]", "[[plan gpu_stack_cuda=$(id)]]"])
def test_what_a_host_says_becomes_no_command_of_its_own(text: str) -> None:
    assert Commands(parsed(RUN)).fill(text) == text

# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Check that nvcc is found wherever people and services call it: login shell, ssh, sudo, systemd unit."""

from __future__ import annotations

import os

from ansible_collections.gpuhost.stack.plugins.module_utils.base import command, files
from ansible_collections.gpuhost.stack.plugins.module_utils.base.command import Answer
from ansible_collections.gpuhost.stack.plugins.module_utils.checks.cuda_checks import SHELL_TIMEOUT, compare_release
from ansible_collections.gpuhost.stack.plugins.module_utils.checks.model import (
    NOT_MANAGED,
    REAPPLY,
    Check,
    CheckSpec,
    Context,
    not_planned,
)
from ansible_collections.gpuhost.stack.plugins.module_utils.host import system

SSHD_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_RELEASE = "the planned release"
_WITHOUT_CUDA = "no CUDA is planned, or the host was adopted"

LOGIN_SHELL = CheckSpec(
    "env.login_shell",
    measures="`nvcc --version` in a login shell (`bash -l`)",
    expected=_RELEASE,
    skipped=_WITHOUT_CUDA,
    remedy=REAPPLY + " Login shells find nvcc through /etc/profile.d.",
)
SSH = CheckSpec(
    "env.ssh_no_profile",
    measures="`nvcc --version` with the PATH of `ssh HOST COMMAND`, which reads no profile",
    expected=_RELEASE,
    skipped=_WITHOUT_CUDA,
    remedy=REAPPLY + " Such a command finds nvcc in /usr/local/bin.",
)
SUDO = CheckSpec(
    "env.sudo",
    measures="`sudo nvcc --version`",
    expected=_RELEASE,
    skipped=_WITHOUT_CUDA + ", sudo is not installed, or it asks for a password",
    remedy=REAPPLY + " sudo searches the directories in its secure_path.",
)
SYSTEMD_UNIT = CheckSpec(
    "env.systemd_unit",
    measures="`nvcc --version` in a transient systemd unit",
    expected=_RELEASE,
    skipped=_WITHOUT_CUDA + ", systemd does not run, or gpu_verify does not run as root",
    remedy=REAPPLY + " Units find nvcc in /usr/local/bin.",
)
CHECKS = (LOGIN_SHELL, SSH, SUDO, SYSTEMD_UNIT)


def run(context: Context) -> list[Check]:
    """Run the environment checks."""
    if context.component("cuda") is None:
        return not_planned(CHECKS, "CUDA")
    if context.plan.is_adopted:
        return [spec.skip(NOT_MANAGED) for spec in CHECKS]
    return [
        _compare(context, LOGIN_SHELL, ["/bin/bash", "-lc", "nvcc --version"], _minimal_environment()),
        _ssh(context),
        _sudo(context),
        _systemd_unit(context),
    ]


def _minimal_environment() -> dict[str, str]:
    return {"HOME": "/root", "LC_ALL": "C", "PATH": "/usr/bin:/bin"}


def _compare(context: Context, spec: CheckSpec, argv: list[str], env: dict[str, str] | None = None) -> Check:
    """Fail if nvcc is not found or of another release; what starts it may be missing or fail, which is unknown."""
    return _judge(context, spec, argv, command.ask(context.run, argv, SHELL_TIMEOUT, env))


def _judge(context: Context, spec: CheckSpec, argv: list[str], answer: Answer) -> Check:
    text = answer.text()
    not_found = answer.exit_code in (126, 127) or "command not found" in text  # sudo exits with 1
    no_tool = answer.exit_code == command.NOT_STARTED and text.startswith(argv[0] + ": ") and "nvcc" not in text
    if no_tool or (answer.exit_code != 0 and not not_found):
        return spec.unknown("%s: %s" % (argv[0], answer.ending()))
    return compare_release(context, spec, answer)


def _ssh(context: Context) -> Check:
    try:
        environment = dict(_minimal_environment(), PATH=_ssh_path(context.root))
    except OSError as error:
        return SSH.unknown("/etc/environment cannot be read: %s" % error.strerror)
    return _compare(context, SSH, ["/bin/sh", "-c", "nvcc --version"], environment)


def _ssh_path(root: str) -> str:
    """Return the PATH of `ssh HOST COMMAND`: sshd's own, unless pam_env sets one from /etc/environment."""
    return system.login_environment(root).get("PATH") or SSHD_PATH


def _sudo(context: Context) -> Check:
    places = [directory + "/sudo" for directory in SSHD_PATH.split(":")]
    sudo = next((path for path in places if os.path.exists(files.under(context.root, path))), None)
    if sudo is None:
        return SUDO.skip("sudo is not installed")
    argv = [sudo, "-n", "nvcc", "--version"]
    answer = command.ask(context.run, argv, SHELL_TIMEOUT, _minimal_environment())
    if "password is required" in answer.text():
        return SUDO.skip("sudo asks this user for a password: run gpu_verify as root (`become: true`)")
    return _judge(context, SUDO, argv, answer)


def _systemd_unit(context: Context) -> Check:
    if not os.path.isdir(files.under(context.root, "/run/systemd/system")):
        return SYSTEMD_UNIT.skip("systemd does not run on this host")
    if os.geteuid() != 0:
        return SYSTEMD_UNIT.skip("only root can start a system unit: run gpu_verify as root (`become: true`)")
    unit = ["systemd-run", "--quiet", "--wait", "--pipe", "--collect", "/bin/sh", "-c", "exec nvcc --version"]
    return _compare(context, SYSTEMD_UNIT, unit)

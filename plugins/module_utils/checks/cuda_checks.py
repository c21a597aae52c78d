"""Checks of CUDA, cuDNN and NCCL: a program compiles, links, runs; nvcc is found by every shell. On the target."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from typing import Any

from ansible_collections.gpuhost.stack.plugins.module_utils.checks import cuda_device_checks
from ansible_collections.gpuhost.stack.plugins.module_utils.checks.model import (
    FAIL,
    PASS,
    Check,
    Context,
    compared,
    is_version,
    skipped,
)
from ansible_collections.gpuhost.stack.plugins.module_utils.host import files
from ansible_collections.gpuhost.stack.plugins.module_utils.host.command import Answer
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia import cuda_program

COMPILE_TIMEOUT, RUN_TIMEOUT, SHELL_TIMEOUT = 180, 120, 60  # seconds; a run takes some, with one hung GPU all of it
SSHD_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_RELEASE = re.compile(r"release (\d+\.\d+)")


def run(context: Context) -> list[Check]:
    """The toolkit itself."""
    ids = ("cuda.nvcc_version", "cuda.compile_link_run") + cuda_device_checks.IDS
    cuda = context.component("cuda")
    if cuda is None:
        return [skipped(check_id, context.without("CUDA")) for check_id in ids]
    return [_nvcc_version(context, cuda)] + _compile_link_run(context, cuda)


def environments(context: Context) -> list[Check]:
    """nvcc is found wherever people and services look for it."""
    cuda = context.component("cuda")
    ids = ("env.login_shell", "env.ssh_no_profile", "env.sudo", "env.systemd_unit")
    if cuda is None:
        return [skipped(check_id, context.without("CUDA")) for check_id in ids]
    return [
        _shell(context, ids[0], ["/bin/bash", "-lc", "nvcc --version"], _bare()),
        _shell(context, ids[1], ["/bin/sh", "-c", "nvcc --version"], dict(_bare(), PATH=_ssh_path(context.root))),
        _sudo(context, ids[2]),
        _systemd(context, ids[3]),
    ]


def _bare() -> dict[str, str]:
    return {"HOME": "/root", "LC_ALL": "C", "PATH": "/usr/bin:/bin"}


def _home(cuda: dict[str, Any]) -> str:
    return str(cuda.get("home") or "/usr/local/cuda-%s" % cuda["version"])


def _nvcc(cuda: dict[str, Any]) -> str:
    return _home(cuda) + "/bin/nvcc"


def _nvcc_version(context: Context, cuda: dict[str, Any]) -> Check:
    answer = context.run([_nvcc(cuda), "--version"], SHELL_TIMEOUT)
    return _release(context, "cuda.nvcc_version", answer, "Run the role cuda_toolkit again.")


def _release(context: Context, check_id: str, answer: Answer, remedy: str) -> Check:
    planned = str((context.component("cuda") or {})["version"])
    text = answer.text()
    match = _RELEASE.search(text)
    good = answer.exit_code == 0 and match is not None and is_version(match.group(1), planned)
    found = "release " + match.group(1) if match else "exit %s: %s" % (answer.exit_code, _end(text))
    return compared(check_id, good, found, "release " + planned, remedy)


def _end(text: str) -> str:
    return " | ".join(text.splitlines()[-4:])[-600:]


def _compile_link_run(context: Context, cuda: dict[str, Any]) -> list[Check]:
    check_id = "cuda.compile_link_run"
    if not context.cuda_check_source:
        raise ValueError("the source of the CUDA program was not handed over")
    libraries = tuple(name for name in cuda_program.LIBRARIES if context.component(name))
    planned = {name: str((context.component(name) or {})["version"]) for name in ("cuda",) + libraries}
    expected = _versions_text(planned)
    no_program = [
        skipped(name, "the CUDA program could not be run, see " + check_id) for name in cuda_device_checks.IDS
    ]
    folder = tempfile.mkdtemp(prefix="gpuhost-verify-")
    try:
        source, program = os.path.join(folder, "cuda_check.cu"), os.path.join(folder, "cuda_check")
        with open(source, "w", encoding="utf-8") as handle:
            handle.write(context.cuda_check_source)
        codes = _architectures(context, cuda)
        command = cuda_program.arguments(_nvcc(cuda), source, program, libraries, codes)
        built = context.run(command, COMPILE_TIMEOUT)
        if built.exit_code != 0:
            found = "nvcc: exit %d: %s" % (built.exit_code, _end(built.text()))
            remedy = (
                "See nvcc's message: a header or library of %s is missing, or the host's compiler does not fit."
                % (", ".join(planned))
            )
            return [compared(check_id, False, found, expected, remedy)] + no_program
        with context.gpus_alone if context.no_device_reason is None else contextlib.nullcontext():
            ran = context.run([program, "--time-limit", str(RUN_TIMEOUT)], RUN_TIMEOUT + 30)
    finally:
        shutil.rmtree(folder)
    document = _document(ran)
    if document is None:
        found = "the program: exit %d: %s" % (ran.exit_code, _end(ran.text()))
        remedy = "The dynamic linker must find the libraries: `ldconfig -p | grep -E 'cudart|cudnn|nccl'`."
        return [compared(check_id, False, found, expected, remedy)] + no_program
    return [_versions(check_id, document, planned, ran)] + cuda_device_checks.run(context, document)


def _architectures(context: Context, cuda: dict[str, Any]) -> list[str]:
    """Options for the planned GPUs; none where the plan names none, then nvcc's own choice is as good."""
    capabilities = [gpu.get("compute_capability") for gpu in context.plan.get("gpus") or []]
    known = [str(capability) for capability in capabilities if capability]
    if not known:
        return []
    listed = context.run([_nvcc(cuda), "--list-gpu-code"], SHELL_TIMEOUT)
    return cuda_program.architectures(known, listed.stdout.decode("utf-8", "replace"))


def _document(ran: Answer) -> cuda_program.Document | None:
    """What the program wrote; None where it did not come so far (a library that the linker does not find)."""
    output = ran.stdout.decode("utf-8", "replace")
    if not output.strip():
        return None
    return cuda_program.parse(output)


def _versions_text(versions: dict[str, str]) -> str:
    return ", ".join("%s %s" % (name, versions[name]) for name in versions)


def _versions(check_id: str, document: cuda_program.Document, planned: dict[str, str], ran: Answer) -> Check:
    """The program says three parts of cuDNN's four-part version, and CUDA's without the update."""
    versions = cuda_program.versions(document)
    good = set(versions) == set(planned) and all(is_version(planned[name] + ".", versions[name]) for name in planned)
    outcome = "%d devices" % len(document["devices"])
    if document["error"] is not None:
        outcome = "no device: " + cuda_device_checks.no_device(document)
    ended = cuda_program.unfinished_text(document)
    if ended is not None:
        outcome = "%s: %s" % (ended, _end(ran.stderr.decode("utf-8", "replace").strip()) or "without a word")
    remedy = "Another version lies in front: `ldconfig -p` and /etc/ld.so.conf.d tell which; run the playbook again."
    found = "%s; %s" % (_versions_text(versions), outcome)
    return Check(
        check_id,
        PASS if good else FAIL,
        found=found,
        expected=_versions_text(planned),
        remedy=None if good else remedy,
        versions=versions,
        data={"cuda_check": document},
    )


def _shell(context: Context, check_id: str, argv: list[str], env: dict[str, str]) -> Check:
    answer = context.run(argv, SHELL_TIMEOUT, env)
    return _release(context, check_id, answer, "Run the role env_paths again.")


def _ssh_path(root: str) -> str:
    """PATH of `ssh host command`: sshd's own, unless pam_env takes one from /etc/environment."""
    for line in (files.read_text(root, "/etc/environment") or "").splitlines():
        match = re.match(r"\s*(?:export\s+)?PATH=[\"']?([^\"'\s]+)", line)
        if match:
            return match.group(1)
    return SSHD_PATH


def _sudo(context: Context, check_id: str) -> Check:
    sudo = shutil.which("sudo", path=SSHD_PATH)
    if sudo is None:
        return skipped(check_id, "sudo is not installed")
    answer = context.run([sudo, "-n", "nvcc", "--version"], SHELL_TIMEOUT, _bare())
    if "password is required" in answer.text():
        return skipped(check_id, "sudo asks this user for a password: run the check with root rights")
    return _release(context, check_id, answer, "Run the role env_paths again; sudo looks where its secure_path says.")


def _systemd(context: Context, check_id: str) -> Check:
    if not os.path.isdir("/run/systemd/system"):
        return skipped(check_id, "systemd does not run on this host")
    if os.geteuid() != 0:
        return skipped(check_id, "starting a system unit needs root rights")
    unit = ["systemd-run", "--quiet", "--wait", "--pipe", "--collect", "/bin/sh", "-c", "exec nvcc --version"]
    answer = context.run(unit, SHELL_TIMEOUT)
    check = _release(context, check_id, answer, "Run the role env_paths again; units look in /usr/local/bin.")
    return check if check.status != FAIL or answer.exit_code != 127 else compared(
        check_id, False, "a unit does not find nvcc", check.expected or "", check.remedy or "",
    )  # fmt: skip

"""Checks of the packages' versions and holds and of the TensorFlow environment. Runs on the target."""

from __future__ import annotations

import json
from typing import Any

from ansible_collections.gpuhost.stack.plugins.module_utils import dpkg
from ansible_collections.gpuhost.stack.plugins.module_utils.checks import Check, Context, compared, is_version, skipped

PACKAGED = ("driver", "cuda", "cudnn", "nccl")
TENSORFLOW_TIMEOUT = 300
MARK = "GPUHOST-ANSWER "
# One process answers all three checks: importing TensorFlow takes six seconds.
TENSORFLOW_SCRIPT = (
    """
import json
import tensorflow as tf
build = tf.sysconfig.get_build_info()
print("%s" + json.dumps({
    "version": tf.__version__,
    "cuda_build": bool(build.get("is_cuda_build")),
    "cuda": build.get("cuda_version"), "cudnn": build.get("cudnn_version"),
    "devices": [device.name for device in tf.config.list_physical_devices("GPU")],
}))
"""
    % MARK
)


def packages(context: Context, machine: str) -> list[Check]:
    """Every planned package has its planned version and is held."""
    planned: dict[str, str] = {}
    for name in PACKAGED:
        component = context.component(name) or {}
        for item in list(component.get("packages") or []):
            package, _, version = str(item).partition("=")
            planned[package] = version
    if not planned:
        reason = "the plan has no package"
        return [skipped("packages.installed", reason), skipped("packages.held", reason)]
    found = dpkg.read(context.root, list(planned), machine)
    wrong = [_difference(name, planned[name], found.get(name)) for name in sorted(planned)]
    differences = [text for text in wrong if text]
    loose = [name for name in sorted(planned) if not (found.get(name) or {}).get("held")]
    total = "%d packages" % len(planned)
    return [
        compared(
            "packages.installed",
            not differences,
            "; ".join(differences) or "%s as planned" % total,
            "%s, each installed in the planned version" % total,
            "Run the playbook again; /var/log/apt/history.log tells what changed them.",
        ),
        compared(
            "packages.held",
            not loose,
            "not held: " + ", ".join(loose) if loose else "%s held" % total,
            "%s held, so that no upgrade takes one alone" % total,
            "apt-mark hold " + " ".join(loose),
        ),
    ]


def _difference(name: str, version: str, found: dict[str, Any] | None) -> str | None:
    if found is None or found["status"] == "not-installed":
        return "%s is not installed" % name
    if found["status"] != "installed":
        return "%s is %s" % (name, found["status"])
    if version and found["version"] != version:
        return "%s is %s instead of %s" % (name, found["version"], version)
    return None


def tensorflow(context: Context) -> list[Check]:
    ids = ("tensorflow.version", "tensorflow.built_for_cuda", "tensorflow.devices")
    component = context.component("tensorflow")
    if component is None:
        return [skipped(check_id, context.without("TensorFlow")) for check_id in ids]
    python = context.tensorflow_path + "/bin/python"
    env = {"HOME": "/root", "PATH": "/usr/bin:/bin", "TF_CPP_MIN_LOG_LEVEL": "2"}
    answer = context.run([python, "-c", TENSORFLOW_SCRIPT], TENSORFLOW_TIMEOUT, env)
    lines = [line for line in answer.stdout.decode("utf-8", "replace").splitlines() if line.startswith(MARK)]
    planned = str(component["version"])
    if answer.exit_code != 0 or not lines:
        end = " | ".join(answer.text().splitlines()[-4:])[-800:]
        found = "importing TensorFlow: exit %d: %s" % (answer.exit_code, end)
        remedy = "Run the role tensorflow_env again: it builds an environment that cannot import TensorFlow anew."
        missing = [skipped(check_id, "TensorFlow cannot be imported, see tensorflow.version") for check_id in ids[1:]]
        return [compared(ids[0], False, found, planned, remedy)] + missing
    return _tensorflow(context, planned, dict(json.loads(lines[-1][len(MARK) :])))


def _tensorflow(context: Context, planned: str, told: dict[str, Any]) -> list[Check]:
    version = str(told["version"])
    remedy = "Run the role tensorflow_env again: the environment is not the locked one."
    build = (
        "built for CUDA %s, cuDNN %s" % (told["cuda"], told["cudnn"]) if told["cuda_build"] else "built without CUDA"
    )
    return [
        compared("tensorflow.version", is_version(version, planned), version, planned, remedy, {"tensorflow": version}),
        compared("tensorflow.built_for_cuda", bool(told["cuda_build"]), build, "a build for CUDA", remedy),
        _devices(context, len(list(told["devices"]))),
    ]


def _devices(context: Context, count: int) -> Check:
    check_id = "tensorflow.devices"
    reason = context.no_device_reason
    if reason is not None and count == 0:
        return skipped(check_id, reason, "0")
    remedy = (
        "Run the environment's Python with TF_CPP_MAX_VLOG_LEVEL=3 and list_physical_devices('GPU'): it names the "
        "library that is missing. LD_LIBRARY_PATH must not be set for everybody."
    )
    return compared(check_id, count == context.expect_gpus, "%d" % count, "%d" % context.expect_gpus, remedy)

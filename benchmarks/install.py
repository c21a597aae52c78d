"""Measure a first install against the same apt and uv commands, typed by hand on an identical host."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog import lock_texts

from benchmarks import lab
from benchmarks.measure import Failed, Ratio, Sample, Timing, once, say
from benchmarks.results import Options, Result

ROLES = lab.PROJECT / "roles"
FOLDER = "/root/bench"  # on the host
DOWNLOADED = f"{FOLDER}/downloaded.txt"
SKIPPED = ("--skip-tags", "verify,smoke_train,report")
KEY = "/etc/apt/keyrings/nvidia-cuda.asc"
CA_BUNDLE = "/etc/ssl/certs/ca-certificates.crt"  # as in the inventory of the lab
INSTALL = "apt-get install -y --no-install-recommends"
FETCH = "import sys, urllib.request; sys.stdout.buffer.write(urllib.request.urlopen(sys.argv[1]).read())"
LISTED = "dpkg-query -W -f '${Package} ${Version} ${Status}\\n' | grep ' installed$'"


def manual_commands(plan: Mapping[str, Any], warm_up: bool = False) -> str:
    """Return a script that installs a plan as an administrator would: repository, packages, holds, environment.

    With `warm_up` it downloads everything but does not unpack packages; the environment consists of links into uv's
    cache, and their targets are listed in DOWNLOADED. The script reads uv.txt and the plan's lock in FOLDER.
    Raises Failed if the plan needs other commands.
    """
    parts = [component for component in plan["components"].values() if component]
    if any(part.get("apt_components") for part in parts) or plan["components"].get("pytorch"):
        raise Failed("first_install has commands for NVIDIA's repository and TensorFlow only; the plan needs others")
    driver, cuda, tensorflow = (plan["components"][name] for name in ("driver", "cuda", "tensorflow"))
    packages = [package for part in parts for package in part.get("packages", [])]
    names = [package.partition("=")[0] for package in packages]
    repository = plan["repository"]
    source = f"Types: deb\nURIs: {repository['url']}\nSuites: /\nSigned-By: {KEY}\n"
    environment, uv = "/opt/gpuhost/tensorflow", "/opt/gpuhost/uv/bin/uv"
    lines = [
        "set -eu",
        f"export DEBIAN_FRONTEND=noninteractive SSL_CERT_FILE={CA_BUNDLE} PIP_CERT={CA_BUNDLE}",
        "export UV_CACHE_DIR=/var/cache/gpuhost/uv UV_NO_PROGRESS=1 UV_HTTP_TIMEOUT=300",
        "mkdir -p /etc/apt/keyrings",
        f"python3 -c {shlex.quote(FETCH)} {shlex.quote(repository['key_url'])} > {KEY}",
        f"printf %s {shlex.quote(source)} > /etc/apt/sources.list.d/nvidia-cuda.sources",
        "apt-get update",
        f"{INSTALL} {shlex.join([*driver['pinning_packages'], 'python3-venv'])}",
        f"{INSTALL}{' --download-only' if warm_up else ''} {shlex.join([*packages, *cuda['host_compilers']])}",
        "" if warm_up else f"apt-mark hold {shlex.join(names)}",
        "python3 -m venv /opt/gpuhost/uv",
        f"/opt/gpuhost/uv/bin/pip install --quiet --require-hashes -r {FOLDER}/uv.txt",
        f"{uv} venv --quiet --no-project --python={tensorflow['python']} --python-preference=system {environment}",
        f"{uv} pip sync --quiet --require-hashes {'--link-mode=symlink ' if warm_up else ''}"
        f"--python={environment}/bin/python {FOLDER}/{tensorflow['lock']}",
        f"find {environment} -type l -exec realpath {{}} + | grep ^/var/cache/ > {DOWNLOADED}" if warm_up else "",
    ]
    return "\n".join(line for line in lines if line) + "\n"


def _upload(host: str, plan: Mapping[str, Any], warm_up: bool = False) -> str:
    """Copy the script and its input files to a host, and return the script's path there."""
    lock, python = (plan["components"]["tensorflow"][key] for key in ("lock", "python"))
    files = {
        "install.sh": manual_commands(plan, warm_up),
        "uv.txt": (ROLES / "framework_env/files/uv.txt").read_text(),
        lock: lock_texts.read(ROLES / f"tensorflow_env/files/{lock_texts.of_all(lock)}", python),
    }
    lab.put(host, FOLDER, files)
    return f"{FOLDER}/install.sh"


def _create_bare_hosts(downloaded: str) -> None:
    """Recreate both hosts, read the downloads into the page cache, and flush pending writes.

    An installation writes more than the memory holds: otherwise the second one would read from disk what the first one
    finds in memory.
    """
    lab.lab("down")
    lab.lab("up")
    lab.put("bench-1", FOLDER, {Path(DOWNLOADED).name: downloaded})
    lab.ssh("bench-1", f"xargs -d '\\n' cat < {DOWNLOADED} > /dev/null")
    os.sync()


def first_install(options: Options) -> Result:
    """Install a bare host by hand and one by the playbook, in turn; never both, since each needs gigabytes of disk."""
    lab.lab("up")
    say("first_install: downloading everything once")
    plan = lab.planned_for("bench-1")
    once(lab.over_ssh("warm-up", "bench-2", _upload("bench-2", plan, warm_up=True)), lab.LOGS / "warm-up.log")
    downloaded = lab.ssh("bench-2", f"cat {DOWNLOADED}")
    sides = {"by hand": _install_by_hand, "by the playbook": _install_by_playbook}
    samples: dict[str, list[Sample]] = {name: [] for name in sides}
    have: dict[str, set[str]] = {}
    runs = min(3, options.runs)
    for round_ in range(runs):
        for name, side in sides.items():
            _create_bare_hosts(downloaded)
            sample, have[name] = side(plan)
            say(f"first_install: {name}: run {round_ + 1} of {runs}: {sample.wall:.1f} s")
            samples[name].append(sample)
    bare, installed = (Timing(tuple(found)) for found in samples.values())
    ratio = Ratio.of(installed.walls(), bare.walls())
    note = (
        "first_install: downloads are cached; the playbook also simulates the transaction, keeps packages for a "
        "rollback, sets paths and imports TensorFlow to verify the environment"
    )
    figures = {"bare": bare.to_dict(), "first_install": installed.to_dict()}
    return Result({"first_install_over_bare": ratio}, figures, [note, *differences(*have.values())])


def _install_by_hand(plan: Mapping[str, Any]) -> tuple[Sample, set[str]]:
    """Return the time of the commands, and the packages that are installed afterwards."""
    sample = once(lab.over_ssh("bare", "bench-2", _upload("bench-2", plan)), lab.LOGS / "bare.log")
    return sample, packages("bench-2")


def _install_by_playbook(plan: Mapping[str, Any]) -> tuple[Sample, set[str]]:
    """Return the time of the playbook without verification, and the packages that are installed afterwards."""
    command = lab.playbook("first_install", "playbooks/gpu_host.yml", "--limit", "bench-1", *SKIPPED)
    sample = once(command, lab.LOGS / "first_install.log")
    if lab.applied_to("bench-1")["components"] != plan["components"]:
        raise Failed("first_install: the playbook applied a different plan than the one that was installed by hand")
    return sample, packages("bench-1")


def packages(host: str) -> set[str]:
    """Return "NAME VERSION" of each installed package of a host."""
    return {" ".join(line.split()[:2]) for line in lab.ssh(host, LISTED).splitlines()}


def differences(by_hand: set[str], by_playbook: set[str]) -> list[str]:
    """Return a note for each side with packages that the other one lacks."""
    sides = (("by hand", by_hand - by_playbook), ("by the playbook", by_playbook - by_hand))
    return [f"first_install: installed only {side}: {', '.join(sorted(more))}" for side, more in sides if more]

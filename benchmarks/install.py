"""A first install beside the same apt and uv commands typed by hand on a host like it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import lab
from benchmarks.measure import Failed, Sample, Timing, by_round, once, say
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


def typed(plan: Mapping[str, Any], warm_up: bool = False) -> str:
    """The commands that install a plan, as an administrator types them: repository, packages, holds, environment.

    warm_up: all is downloaded; packages are not unpacked, the environment is links into uv's cache, and the files that
    they lead to are listed in DOWNLOADED.
    Expects uv.txt and the plan's lock in FOLDER. Raises Failed for a plan that takes more than these commands.
    """
    parts = [component for component in plan["components"].values() if component]
    if any(part.get("apt_components") for part in parts) or plan["components"].get("pytorch"):
        raise Failed("first_install types the commands of NVIDIA's repository and TensorFlow; the plan has more")
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


def bring(host: str, plan: Mapping[str, Any], warm_up: bool = False) -> str:
    """Puts the commands and what they read on a host; the script's path there."""
    lock = plan["components"]["tensorflow"]["lock"]
    files = {
        "install.sh": typed(plan, warm_up),
        "uv.txt": (ROLES / "framework_env/files/uv.txt").read_text(),
        lock: (ROLES / "tensorflow_env/files" / lock).read_text(),
    }
    lab.put(host, FOLDER, files)
    return f"{FOLDER}/install.sh"


def bare_hosts(downloaded: str) -> None:
    """Both hosts new, with nothing on them; downloads in memory, and nothing left to write for the disk.

    What is measured writes more than the memory holds, so that the second side would read from the disk what the first
    one finds in memory.
    """
    lab.lab("down")
    lab.lab("up")
    lab.put("bench-1", FOLDER, {Path(DOWNLOADED).name: downloaded})
    lab.ssh("bench-1", f"xargs -d '\\n' cat < {DOWNLOADED} > /dev/null")
    os.sync()


def first_install(options: Options) -> Result:
    """A bare host by commands, then one by the playbook, in turn; never both, since each takes gigabytes of disk."""
    lab.lab("up")
    say("first_install: downloading once, for both")
    plan = lab.planned_for("bench-1")
    once(lab.over_ssh("warm-up", "bench-2", bring("bench-2", plan, warm_up=True)), lab.LOGS / "warm-up.log")
    downloaded = lab.ssh("bench-2", f"cat {DOWNLOADED}")
    sides = {"by hand": typed_side, "by the playbook": playbook_side}
    samples: dict[str, list[Sample]] = {name: [] for name in sides}
    have: dict[str, set[str]] = {}
    runs = min(3, options.runs)
    for round_ in range(runs):
        for name, side in sides.items():
            bare_hosts(downloaded)
            sample, have[name] = side(plan)
            say(f"first_install: {name}: run {round_ + 1} of {runs}: {sample.wall:.1f} s")
            samples[name].append(sample)
    bare, installed = (Timing(tuple(found)) for found in samples.values())
    ratio = by_round([sample.wall for sample in installed.samples], [sample.wall for sample in bare.samples])
    note = (
        "first_install: downloads warm; the playbook also simulates the transaction, keeps the packages for an undo, "
        "sets paths and proves the environment by importing TensorFlow"
    )
    figures = {"bare": bare.to_dict(), "first_install": installed.to_dict()}
    return Result({"first_install_over_bare": ratio}, figures, [note, *differences(*have.values())])


def typed_side(plan: Mapping[str, Any]) -> tuple[Sample, set[str]]:
    """The time of the commands, and the packages that the host has afterwards."""
    sample = once(lab.over_ssh("bare", "bench-2", bring("bench-2", plan)), lab.LOGS / "bare.log")
    return sample, packages("bench-2")


def playbook_side(plan: Mapping[str, Any]) -> tuple[Sample, set[str]]:
    """The same of the main job, as far as it installs."""
    command = lab.playbook("first_install", "playbooks/gpu_host.yml", "--limit", "bench-1", *SKIPPED)
    sample = once(command, lab.LOGS / "first_install.log")
    if lab.applied_to("bench-1")["components"] != plan["components"]:
        raise Failed("first_install: the playbook installed another plan than the one whose commands were typed")
    return sample, packages("bench-1")


def packages(host: str) -> set[str]:
    """The packages of a host with their versions."""
    return {" ".join(line.split()[:2]) for line in lab.ssh(host, LISTED).splitlines()}


def differences(by_hand: set[str], by_playbook: set[str]) -> list[str]:
    """A note for each side that has packages which the other one has not."""
    sides = (("by hand", by_hand - by_playbook), ("by the playbook", by_playbook - by_hand))
    return [f"first_install: installed only {side}: {', '.join(sorted(more))}" for side, more in sides if more]

"""Secrets through a run, a verification and a teardown: they are in the files that need them, and in the baseline.

The project's plays run on this machine in a mount namespace of their own, where all that they write below /etc, /opt,
/root, /usr and /var is in memory. There they replace a package, build an environment, and train, which fails.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import os
import shlex
import shutil
import stat
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.doubles.nvidia_repository.signing import signer
from tests.unit import web_server
from tests.unit.ansible_runs import COLLECTIONS, EACH_TASK, INTERPRETER, PIPELINING, PROJECT
from tests.unit.module_utils.real_dpkg import RealDpkg
from tests.unit.playbooks.test_guards import TASKS, task
from tests.unit.roles.framework_env.fake_host import PYTHON, TORCH

UNSHARE = ["unshare", "--mount"]
# In a directory of its own. Nothing but the mirror of the test is asked for packages.
IN_MEMORY = """set -e
mkdir memory && mount -t tmpfs tmpfs memory
for place in etc opt root usr var; do
    mkdir -p memory/host/$place memory/work/$place
    mount -t overlay overlay -o "lowerdir=/$place,upperdir=memory/host/$place,workdir=memory/work/$place" /$place
done
rm -rf /etc/apt/sources.list /etc/apt/sources.list.d/*
echo 'APT::Sandbox::User "root";' > /etc/apt/apt.conf.d/99test
dpkg --install GIVEN/debs/lab-tool_1_all.deb
mkdir -p /opt/gpuhost/uv/bin
ln -s UV /opt/gpuhost/uv/bin/uv
cp PROJECT/roles/framework_env/files/uv.txt /opt/gpuhost/uv/gpuhost.lock
"""
# Ansible removes the module of a job within five seconds of its end.
NO_JOB = "for _ in $(seq 100); do ls memory/host/root/.ansible/tmp/*/*.py 2> /dev/null || break; sleep 0.1; done"
pytestmark = pytest.mark.skipif(
    shutil.which("apt-get") is None
    or subprocess.run([*UNSHARE, "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True).returncode != 0,
    reason="needs apt-get and root's mounts in a namespace of their own",
)

AUTH = "/etc/apt/auth.conf.d/gpuhost-nvidia-repository.conf"
STATE = "/var/lib/gpuhost"
KEY = f"{STATE}/module_signing/key"
UV = PROJECT / ".venv-bootstrap/bin/uv"
# Of the mirror: before the first run, of the run, and as somebody has changed it since.
BEFORE, LOGIN, EDITED = "0ld-w0rd/3141", "p/s3cret-8153", "3dited-w0rd-2718"
PROXY = "pr0xy-w0rd-1618"


class Mirror(web_server.Handler):
    """A mirror of NVIDIA's repository, and an index of wheels beside it, that wants a password for everything."""

    files: dict[str, bytes] = {}  # noqa: RUF012

    def do_GET(self) -> None:
        content = self.files.get(self.path.rpartition("/")[2])
        if self.headers["Authorization"] != "Basic " + base64.b64encode(f"ann:{LOGIN}".encode()).decode():
            self.reply(401, b"", {"WWW-Authenticate": 'Basic realm="lab"'})
        else:
            self.reply(404 if content is None else 200, content or b"", {"Content-Type": "text/html"})


def wheel() -> bytes:
    """Return PyTorch in its size of this test."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("torch/__init__.py", f"__version__ = '2.15.0'\n{TORCH}")
        archive.writestr("torch-2.15.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: torch\nVersion: 2.15.0\n")
        archive.writestr("torch-2.15.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr("torch-2.15.0.dist-info/RECORD", "")
    return stream.getvalue()


@pytest.fixture
def given(tmp_path: Path) -> Path:
    """Return a folder with two versions of a package, and the lock of an environment."""
    folder = tmp_path / "given"
    dpkg = RealDpkg(folder / "debs/root")
    for version in ("1", "2"):
        dpkg.build("lab-tool", {"/usr/share/lab-tool": version}, version)
    (folder / "lock.txt").write_text(f"torch==2.15.0 \\\n    --hash=sha256:{hashlib.sha256(wheel()).hexdigest()}\n")
    return folder


@pytest.fixture
def mirror(tmp_path_factory: pytest.TempPathFactory, given: Path) -> Iterator[dict[str, str]]:
    """Return the variables of the mirror."""
    deb, name = (given / "debs/lab-tool_2_all.deb").read_bytes(), "torch-2.15.0-py3-none-any.whl"
    packages = (
        f"Package: lab-tool\nVersion: 2\nArchitecture: all\nMaintainer: lab\nDescription: lab\nSize: {len(deb)}\n"
        f"Filename: ./lab-tool_2_all.deb\nSHA256: {hashlib.sha256(deb).hexdigest()}\n"
    ).encode()
    lists = {"Packages": packages, "Packages.gz": gzip.compress(packages)}
    wheels = {name: wheel(), "": f'<a href="{name}#sha256={hashlib.sha256(wheel()).hexdigest()}">{name}</a>'.encode()}
    sums = "".join(f" {hashlib.sha256(text).hexdigest()} {len(text)} {name}\n" for name, text in lists.items())
    release = f"Origin: lab\nDate: Sat, 01 Nov 2025 00:00:00 UTC\nSHA256:\n{sums}".encode()
    with signer(tmp_path_factory.mktemp("key") / "secret") as key, web_server.serve(Mirror) as port:
        Mirror.files = {
            **lists,
            **wheels,
            "lab-tool_2_all.deb": deb,
            "InRelease": key.clearsign(release),
            "lab.pub": key.armoured_key(),
        }
        url = f"http://ann:{LOGIN.replace('/', '%2F')}@127.0.0.1:{port}/cuda"
        yield {"gpu_stack_repository_url": url, "gpu_stack_repository_key_fingerprint": key.fingerprint}


def run_of_the_parts_with_secrets(given: Path) -> list[dict[str, Any]]:
    """Return a playbook of the project's plays, tasks and roles; their inputs are those of a plan with packages."""
    (play,) = yaml.safe_load((TASKS.parent / "_record_verified.yml").read_text())
    (verified,) = [each for each in play["tasks"] if each["name"] == "Record the verified configuration on the host"]
    parts = {
        name: {"fingerprint": "f", "watch": {"files": f"{{{{ gpu_stack_managed.{name}.files }}}}"}}
        for name in ("nvidia_repo", "nvidia_driver")
    }
    parts["packages"] = {"fingerprint": "f", "watch": {"packages": ["lab-tool"]}}
    parts["pytorch_env"] = {"fingerprint": "f", "watch": {"environments": ["/opt/gpuhost/pytorch"]}}
    repository = {
        "nvidia_repo_key_url": "{{ nvidia_repo_url }}lab.pub",
        "nvidia_repo_key_fingerprint": "{{ gpu_stack_repository_key_fingerprint }}",
    }
    driver = {"nvidia_driver_version": "580.126.09", "nvidia_driver_kernel_modules": "open"}
    environment = {
        "pytorch_env_version": "2.15.0",
        "pytorch_env_python": PYTHON,
        "pytorch_env_lock": f"{given}/lock.txt",
        "pytorch_env_extra_index_url": "",
        "pytorch_env_damaged": [],
        "pytorch_env_index_url": "{{ gpu_stack_repository_url }}/simple",
        "pytorch_env_system_packages": [],
        "pytorch_env_build_packages": [],
    }
    training = {"include_role": {"name": "gpuhost.stack.smoke_train"}, "vars": {"smoke_train_framework": "pytorch"}}
    tasks = [
        {"setup": {"gather_subset": ["min", "pkg_mgr"]}},
        task("change.yml", "Record the baseline"),
        {"include_role": {"name": "gpuhost.stack.nvidia_repo"}, "vars": repository},
        {"include_role": {"name": "gpuhost.stack.nvidia_driver", "tasks_from": "prepare"}, "vars": driver},
        {"gpuhost.stack.package_transaction": {"packages": ["lab-tool=2"]}},
        {"include_role": {"name": "gpuhost.stack.pytorch_env"}, "vars": environment},
        {"block": [training], "rescue": [{"debug": {"msg": "It failed"}}]},
        {"import_tasks": str(TASKS / "record_applied.yml")},
        {**verified, "when": True, "vars": {"__gpu_stack_verification": {"evidence": {}}}},
    ]
    change = {"hosts": "gpu_hosts", "gather_facts": False, "environment": play["environment"]}
    return [
        {"import_playbook": str(TASKS.parent / "_plan.yml")},
        {**change, "vars": {"gpu_stack_parts": parts}, "tasks": tasks},
    ]


class Machine:
    """This machine with its plays; `folder` has what they write and print, and a copy of the host after each stage."""

    def __init__(self, folder: Path, given: Path, mirror: dict[str, str]) -> None:
        self.folder, self.given = folder, given
        # The command of docs/secure-boot.md.
        command = (
            "openssl req -new -x509 -newkey rsa:2048 -nodes -days 36500 -subj /CN=lab -keyout key -out certificate"
        )
        subprocess.run(command.split(), cwd=given, check=True, capture_output=True)
        variables = {
            **mirror,
            "gpu_stack_module_signing_key": str(given / "key"),
            "gpu_stack_module_signing_certificate": str(given / "certificate"),
            "gpu_stack_environment": {"https_proxy": f"http://ann:{PROXY}@proxy.invalid:3128"},
            "gpu_stack_expect_gpus": 0,
            "ansible_become": False,
        }
        (given / "group_vars").symlink_to(TASKS.parent / "group_vars")
        (given / "variables.json").write_text(json.dumps(variables))
        (given / "run.yml").write_text(json.dumps(run_of_the_parts_with_secrets(given)))
        self.secrets = {name: [name] for name in (BEFORE, LOGIN, EDITED, PROXY)}
        self.secrets["the signing key"] = (given / "key").read_text().splitlines()[1:-1]

    def play(self, playbook: Path, *words: str) -> str:
        """Return a line of a shell script that runs a playbook; its status and all that it prints are files."""
        program = Path(sys.executable).with_name("ansible-playbook")
        options = ["-vvv", "--diff", "-e", f"@{self.given}/variables.json", "-i", f"{PROJECT}/inventories/local"]
        name = "-".join([playbook.stem, *(word.strip("-") for word in words)])
        command = shlex.join(map(str, [program, playbook, *INTERPRETER, *options, *words]))
        return f"{command} > {name}.printed 2>&1 && echo 0 > {name}.status || echo $? > {name}.status"

    def run(self, *steps: str) -> dict[str, int]:
        """Run steps in a namespace, and return the status of each play."""
        settings = {
            "ANSIBLE_CACHE_PLUGIN": "jsonfile",
            "ANSIBLE_CACHE_PLUGIN_CONNECTION": str(self.folder / "cache"),
            "ANSIBLE_LOG_PATH": str(self.folder / "log"),
            "GPUHOST_REPORTS": str(self.folder / "reports"),
            "XDG_CACHE_HOME": str(self.folder / "cache"),
        }
        environment = {**os.environ, **COLLECTIONS, **PIPELINING, **EACH_TASK, **settings}
        places = {"GIVEN": self.given, "UV": UV, "PROJECT": PROJECT}
        prepare = IN_MEMORY
        for name, place in places.items():
            prepare = prepare.replace(name, str(place))
        script = "\n".join([prepare, *steps])
        done = subprocess.run([*UNSHARE, "sh", "-c", script], cwd=self.folder, env=environment, capture_output=True)
        assert done.returncode == 0, done.stderr.decode()
        return {path.stem: int(path.read_text()) for path in self.folder.glob("*.status")}

    def files_with(self, secret: str) -> set[str]:
        """Return the files with any piece of a secret: as it is, as in a URL, or in base64, wherever it begins."""
        texts = set()
        for piece in self.secrets[secret]:
            texts |= {piece.encode(), piece.replace("/", "%2F").encode()}
            for before in range(3):
                encoded = base64.b64encode(b"x" * before + piece.encode())
                texts.add(encoded[4 if before else 0 : -4])
        files = [path for path in self.folder.rglob("*") if path.is_file() and not path.is_symlink()]
        found = [path for path in files if any(text in path.read_bytes() for text in texts)]
        return {str(path.relative_to(self.folder)) for path in found}

    def printed(self, name: str) -> str:
        return (self.folder / f"{name}.printed").read_text()


def test_secrets_are_in_the_files_that_need_them_and_in_the_baseline(
    tmp_path: Path, given: Path, mirror: dict[str, str]
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    machine = Machine(folder, given, mirror)
    playbooks = TASKS.parent
    statuses = machine.run(
        f"umask 077; mkdir -p {Path(AUTH).parent}; echo 'machine x login ann password {BEFORE}' > {AUTH}; umask 022",
        machine.play(given / "run.yml", "--check"),
        machine.play(given / "run.yml"),
        NO_JOB,
        "cp -a memory/host after-run",
        f"echo 'machine x login ann password {EDITED}' > {AUTH}; sed -i '3d' {KEY}",
        machine.play(playbooks / "verify.yml"),
        "cp -a memory/host after-verify",
        machine.play(playbooks / "teardown.yml"),
        NO_JOB,
        "cp -a memory/host after-teardown",
    )
    said = {name: machine.printed(name)[-3000:] for name in statuses}
    assert statuses == {"run-check": 0, "run": 0, "verify": 2, "teardown": 0}, said
    found = {name: machine.files_with(name) for name in machine.secrets}
    records = [f"{stage}{STATE}/baseline.json" for stage in ("after-run", "after-verify")]
    assert found == {
        BEFORE: {*records, f"after-teardown{AUTH}"},
        LOGIN: {f"after-run{AUTH}"},
        EDITED: {f"after-verify{AUTH}"},
        PROXY: set(),
        "the signing key": {f"after-run{KEY}", f"after-verify{KEY}"},
    }
    # What else there was to keep silent about: package files, environments, trainings, checks and reports.
    kept = {
        f"after-run{STATE}/listings.json": "/usr/share/lab-tool|torch/__init__.py",
        f"after-run{STATE}/smoke_train/result.json": "the real data are unavailable",
        f"after-verify{STATE}/last_result.json": "checks",
    }
    texts = {name: (folder / name).read_text() for name in kept}
    assert [name for name, words in kept.items() for word in words.split("|") if word not in texts[name]] == []
    assert (folder / f"after-run{STATE}/packages/lab-tool_1_all.deb").exists()
    assert any(
        "training with PyTorch failed" in page.read_text()
        for page in folder.glob("reports/2*/localhost/certificate.html")
    )
    modes = [stat.S_IMODE((folder / name).stat().st_mode) for name in (*records, *found[LOGIN], f"after-run{KEY}")]
    assert modes == [0o600] * 4
    # So that there was something to keep silent about.
    for name in ("run-check", "run"):
        assert {AUTH, KEY} <= set(machine.printed(name).replace('"', " ").replace(",", " ").split()), name
    for path in (AUTH, KEY):
        assert f"file {path} has another content" in machine.printed("verify")
        assert path in machine.printed("teardown")

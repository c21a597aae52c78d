"""Create a user's environment on top of a framework's: gpuhost-env NAME [--framework tensorflow|pytorch] [--rebuild].

The environment has nothing of the framework but a search path that follows the link to the framework's environment, so
that a rebuild there is used at once. `pip install` installs into it; the framework's packages count as installed, and
pip refuses other versions of them. Runs with the host's Python (3.8 or newer), as an ordinary user.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

HOME = pathlib.Path(__file__).resolve().parents[1]  # /opt/gpuhost: this file is bin/gpuhost-env in it
FRAMEWORKS = ("tensorflow", "pytorch")
# Imported by Python at each start, through a .pth file. addsitedir appends, so that the user's own packages come first.
HOOK = '''"""The packages of %(framework)s for this environment; written by gpuhost-env."""
import os, site, sys
PATH = "%(link)s/lib/python%%d.%%d/site-packages" %% sys.version_info[:2]
if os.path.isdir(PATH):
    site.addsitedir(PATH)
else:
    sys.stderr.write("%(framework)s of %(link)s is not there for Python %%d.%%d any more; run: %(rebuild)s\\n"
                     %% sys.version_info[:2])
'''


def main() -> None:
    """Create, refresh or rebuild the environment."""
    parser = argparse.ArgumentParser(prog="gpuhost-env", description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("name", help="the environment's name; it is created in ~/gpuhost-envs, or in $GPUHOST_ENVS")
    parser.add_argument("--framework", choices=FRAMEWORKS, help="needed if both are installed")
    parser.add_argument(
        "--rebuild", action="store_true", help="for the framework's new Python; packages are reinstalled"
    )
    options = parser.parse_args()
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]*", options.name):
        parser.error(f"{options.name!r}: expected a name of letters, digits, '.', '_' and '-'")
    directory = pathlib.Path(os.environ.get("GPUHOST_ENVS") or pathlib.Path.home() / "gpuhost-envs", options.name)
    framework = options.framework or recorded(directory) or only_framework()
    link = HOME / framework
    python = link / "bin/python"
    if not python.exists():
        sys.exit(
            f"found no environment at {link}, expected {framework} to be installed: ask the machine's administrator"
        )
    if directory.exists() and recorded(directory) is None:
        sys.exit(f"{directory} exists and was not created by gpuhost-env: choose another name, or move it away")
    if options.rebuild and directory.exists():
        rebuild(directory, framework, link)
    elif not directory.exists():
        create(directory, framework, link)
    elif version(directory / "bin/python") != version(python):
        was = version(directory / "bin/python") or "that is gone"
        sys.exit(
            f"{directory} was made for Python {was}, and {framework} now has Python {version(python)}: "
            f"run gpuhost-env {options.name} --rebuild"
        )
    else:
        connect(directory, framework, link)
    print(f"{directory} uses {framework} of {link}. Activate it with: . {directory}/bin/activate")


def recorded(directory: pathlib.Path) -> str | None:
    """Return the framework that an environment was created for; None if this program did not create it."""
    record = directory / "gpuhost.json"
    return str(json.loads(record.read_text())["framework"]) if record.exists() else None


def only_framework() -> str:
    """Return the framework that is installed; end the program if that is not exactly one."""
    found = [name for name in FRAMEWORKS if (HOME / name / "bin/python").exists()]
    if len(found) != 1:
        sys.exit(f"found {' and '.join(found) or 'no framework'} in {HOME}: choose one with --framework")
    return found[0]


def version(python: pathlib.Path) -> str:
    """Return the version of an interpreter as X.Y; empty if it does not start."""
    script = "import sys; print('%d.%d' % sys.version_info[:2])"
    try:
        done = subprocess.run([str(python), "-I", "-S", "-c", script], stdout=subprocess.PIPE, check=False)
    except OSError:
        return ""
    return done.stdout.decode().strip() if done.returncode == 0 else ""


def create(directory: pathlib.Path, framework: str, link: pathlib.Path) -> None:
    """Create the environment with the framework's Python; nothing stays if that fails."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [str(link / "bin/python"), "-I", "-m", "venv", str(directory)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    if done.returncode:
        shutil.rmtree(str(directory), ignore_errors=True)
        sys.exit(f"python -m venv: status {done.returncode}\n{done.stdout.decode('utf-8', 'replace')}")
    connect(directory, framework, link)


def connect(directory: pathlib.Path, framework: str, link: pathlib.Path) -> None:
    """Write what connects the environment with the framework's."""
    packages = site_packages(directory)
    rebuild_command = f"gpuhost-env {directory.name} --rebuild"
    values = {"framework": framework, "link": link, "rebuild": rebuild_command}
    (packages / "_gpuhost.py").write_text(HOOK % values)
    (packages / "gpuhost.pth").write_text("import _gpuhost\n")
    # pip counts what it finds on the search path as installed, and would put another version of it in front.
    (directory / "pip.conf").write_text("[install]\nconstraint = %s\n" % (link / "gpuhost.freeze"))
    link_commands(directory, link)
    (directory / "gpuhost.json").write_text(json.dumps({"framework": framework}) + "\n")


def link_commands(directory: pathlib.Path, link: pathlib.Path) -> None:
    """Add the framework's commands, such as torchrun: programs by links, scripts with the environment's own Python."""
    theirs = str(link.resolve() / "bin/python")
    for command in sorted((link / "bin").iterdir()):
        target = directory / "bin" / command.name
        if re.match(r"python|pip|activate|deactivate|pydoc", command.name) or target.exists():
            continue
        if command.is_symlink():
            if target.is_symlink():
                target.unlink()
            target.symlink_to(command)
            continue
        head = command.read_bytes()[:512]
        if head.startswith(b"#!") and theirs.encode() in head:
            target.write_text(command.read_text().replace(theirs, str(directory / "bin/python")))
            target.chmod(0o755)


def site_packages(directory: pathlib.Path) -> pathlib.Path:
    """Return the directory of the environment's own packages."""
    return next(directory.glob("lib/python3.*/site-packages"))


def rebuild(directory: pathlib.Path, framework: str, link: pathlib.Path) -> None:
    """Create the environment again and reinstall its packages; the old one stays if that fails."""
    own = [path.name[: -len(".dist-info")] for path in sorted(site_packages(directory).glob("*.dist-info"))]
    names = [name.replace("-", "==", 1) for name in own]  # a dist-info's name has no other hyphen before the version
    names = [name for name in names if not re.match(r"(pip|setuptools|wheel)==", name)]
    old = directory.with_name(directory.name + ".old")
    if old.exists():
        sys.exit(f"{old} is there, from an earlier rebuild: remove it or move it away")
    directory.rename(old)
    try:
        create(directory, framework, link)
        if names:
            install = [str(directory / "bin/python"), "-m", "pip", "install", "--quiet", *names]
            if subprocess.run(install, check=False).returncode:
                sys.exit(f"found packages that cannot be installed again (above): {', '.join(names)}")
    except SystemExit:
        shutil.rmtree(str(directory), ignore_errors=True)
        old.rename(directory)
        raise
    shutil.rmtree(str(old))


if __name__ == "__main__":
    main()

"""NVIDIA's real module, built by Debian's real DKMS: a rerun sees that its file is damaged, and builds it again.

The module is for a kernel that is installed and does not run (`gpu_stack_kernel_module: built`).
"""

import re

import pytest


@pytest.fixture(scope="module")
def module(as_root) -> str:
    """Return the path of the driver's module."""
    (path,) = as_root.run_expect([0], "find /lib/modules -path '*/updates/*' -name nvidia-current.ko").stdout.split()
    return str(path)


def modinfo(host, path: str) -> str:
    return str(host.run_expect([0], f"/sbin/modinfo -F version -F vermagic {path}").stdout)


def test_a_truncated_module_is_built_again(playbook, as_root, module):
    whole, built = modinfo(as_root, module), as_root.file(module)
    size, modified = built.size, built.mtime
    as_root.run_expect([0], f"truncate --size {size // 2} {module}")
    assert as_root.run(f"/sbin/modinfo {module}").rc == 1
    done = playbook("gpu_host")
    kernel = module.split("/")[3]
    said = " ".join(done.stdout.split())
    assert f"nvidia_driver: NVIDIA modules of kernel {kernel} was nvidia-current.ko={size} bytes" in said
    assert "The host matches the plan: " not in done.stdout
    assert modinfo(as_root, module) == whole
    assert as_root.file(module).mtime > modified
    assert re.search(r"^nvidia-current/\S+, \S+, x86_64: installed$", as_root.run("dkms status").stdout, re.MULTILINE)


def test_the_next_run_has_nothing_to_do(playbook):
    done = playbook("gpu_host")
    assert "The host matches the plan: " in done.stdout
    assert re.search(r"^distro-hopper\s*: .*changed=0 .*failed=0", done.stdout, re.MULTILINE), done.stdout[-2000:]

"""Hosts whose kernel loads no module, or none without a trusted signature, by the files that say so."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.model.nvidia import ModulesDisabled, SignaturesEnforced
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia import module_loading

from tests.unit.module_utils.host_files import link, put

# As github.com/ChrisTitusTech/secure-linux (pull request 6) wrote it to /etc/sysctl.conf until 2024.
HARDENED = "kernel.dmesg_restrict = 1\nkernel.modules_disabled=1\nkernel.kptr_restrict = 1\n"
ETC, RUN, USR = "/etc/sysctl.d", "/run/sysctl.d", "/usr/lib/sysctl.d"


@pytest.mark.parametrize(
    ("settings", "by"),
    [
        pytest.param({}, [], id="a service"),
        pytest.param({"/etc/sysctl.conf": HARDENED}, ["/etc/sysctl.conf"], id="sysctl.conf"),
        pytest.param({f"{ETC}/a.conf": "-kernel/modules_disabled = 1"}, [f"{ETC}/a.conf"], id="slashes"),
        pytest.param({f"{ETC}/a.conf": "kernel.modules_* = 1"}, [f"kernel.modules_* in {ETC}/a.conf"], id="a glob"),
        pytest.param(
            {f"{ETC}/a.conf": "-*/modules_disable[a-e] = 1"},
            [f"*/modules_disable[a-e] in {ETC}/a.conf"],
            id="a glob with slashes",
        ),
        pytest.param({f"{ETC}/a.conf": "kernel.* = 1\n-kernel.modules_disabled\n"}, [], id="excluded from globs"),
        pytest.param(
            {f"{ETC}/b.conf": "kernel.* = 1\n", f"{USR}/a.conf": "kernel.modules_disabled=0"},
            [],
            id="set before a glob",
        ),
        pytest.param({f"{ETC}/a.conf": "net.*.modules_* = 1\n* = 1\nkernel.modules_? = 1"}, [], id="other globs"),
        pytest.param({f"{ETC}/a.conf": "#kernel.modules_disabled=1\n;kernel.modules_disabled=1"}, [], id="comments"),
        pytest.param({f"{ETC}/a.conf.bak": HARDENED, f"{ETC}/README": HARDENED}, [], id="other files"),
        pytest.param({f"{USR}/a.conf": HARDENED, f"{ETC}/a.conf": "\n"}, [], id="replaced by a file of that name"),
        pytest.param({f"{USR}/a.conf": HARDENED, f"{RUN}/a.conf": HARDENED}, [f"{RUN}/a.conf"], id="/run before /usr"),
        pytest.param({f"{USR}/a.conf": HARDENED, f"{ETC}/b.conf": "kernel.modules_disabled=0"}, [], id="a later one"),
        pytest.param(
            {f"{ETC}/b.conf": HARDENED, f"{USR}/a.conf": "kernel.modules_disabled=0"},
            [f"{ETC}/b.conf"],
            id="earlier",
        ),
        pytest.param(
            {f"{USR}/60-a.conf": HARDENED, f"{ETC}/50-b.conf": HARDENED, "/etc/sysctl.conf": HARDENED},
            [f"{ETC}/50-b.conf", f"{USR}/60-a.conf", "/etc/sysctl.conf"],
            id="all of several",
        ),
        pytest.param(
            {"/proc/cmdline": "BOOT_IMAGE=/vmlinuz root=/dev/sda1 sysctl.kernel.modules_disabled=1 quiet\n"},
            ["sysctl.kernel.modules_disabled=1"],
            id="kernel option",
        ),
    ],
)
def test_what_disables_modules_is_found_in_the_order_of_sysctl_d(
    tmp_path: Path, settings: dict[str, str], by: list[str]
) -> None:
    put(tmp_path, module_loading.MODULES_DISABLED, "1\n")
    for path, text in settings.items():
        put(tmp_path, path, text)
    assert module_loading.disabled(str(tmp_path)) == ModulesDisabled(tuple(by))


def test_links_are_followed_and_one_to_dev_null_masks(tmp_path: Path) -> None:
    put(tmp_path, module_loading.MODULES_DISABLED, "1\n")
    put(tmp_path, "/etc/sysctl.conf", HARDENED)
    link(tmp_path, "/etc/sysctl.d/99-sysctl.conf", "../sysctl.conf")  # as Debian 12 has it
    put(tmp_path, "/usr/lib/sysctl.d/30-hardening.conf", HARDENED)
    link(tmp_path, "/etc/sysctl.d/30-hardening.conf", "/dev/null")
    assert module_loading.disabled(str(tmp_path)) == ModulesDisabled(("/etc/sysctl.conf",))


@pytest.mark.parametrize("value", ["0\n", None])
def test_a_setting_that_is_not_in_force_disables_nothing(tmp_path: Path, value: str | None) -> None:
    put(tmp_path, "/etc/sysctl.conf", HARDENED)
    if value is not None:
        put(tmp_path, module_loading.MODULES_DISABLED, value)
    assert module_loading.disabled(str(tmp_path)) is None


SIGNATURES, LOCKDOWN = module_loading.SIGNATURES, module_loading.LOCKDOWN
RUNNING, NEXT = "6.8.0-90-generic", "6.8.0-149-generic"
CONFIG, NEXT_CONFIG = f"/boot/config-{RUNNING}", f"/boot/config-{NEXT}"
NOT_FORCED = "CONFIG_MODULE_SIG=y\n# CONFIG_MODULE_SIG_FORCE is not set\n"
FORCED = "CONFIG_MODULE_SIG=y\nCONFIG_MODULE_SIG_FORCE=y\n"


@pytest.mark.parametrize(
    ("contents", "by"),
    [
        # Kernel options of github.com/secureblue/secureblue (issue 1043): both.
        pytest.param(
            {
                SIGNATURES: "Y\n",
                LOCKDOWN: "none integrity [confidentiality]\n",
                "/proc/cmdline": "ro quiet lockdown=confidentiality module.sig_enforce=1 oops=panic\n",
            },
            ["module.sig_enforce=1", "lockdown=confidentiality"],
            id="options",
        ),
        pytest.param(
            {SIGNATURES: "Y\n", "/proc/cmdline": "module.sig_enforce"},
            ["module.sig_enforce"],
            id="option without value",
        ),
        # The kernel's own rules for options (kernel/params.c).
        pytest.param(
            {SIGNATURES: "Y\n", "/proc/cmdline": 'ro "module.sig-enforce=1" quiet'},
            ["module.sig-enforce=1"],
            id="option with a hyphen, in quotes",
        ),
        # Container-Optimized OS (GoogleCloudPlatform/cos-gpu-installer, issue 63) is built so.
        pytest.param({SIGNATURES: "Y\n", CONFIG: FORCED}, [f"CONFIG_MODULE_SIG_FORCE=y in {CONFIG}"], id="built so"),
        pytest.param({SIGNATURES: "Y\n", CONFIG: NOT_FORCED}, [SIGNATURES], id="since the boot"),
        pytest.param({LOCKDOWN: "none [integrity] confidentiality\n"}, [LOCKDOWN], id="locked since the boot"),
        pytest.param(
            {LOCKDOWN: "none [integrity] confidentiality\n", CONFIG: "CONFIG_LOCK_DOWN_KERNEL_FORCE_INTEGRITY=y\n"},
            [f"CONFIG_LOCK_DOWN_KERNEL_FORCE_INTEGRITY=y in {CONFIG}"],
            id="built locked",
        ),
        pytest.param(
            {SIGNATURES: "N\n", CONFIG: NOT_FORCED, NEXT_CONFIG: FORCED},
            [f"CONFIG_MODULE_SIG_FORCE=y in {NEXT_CONFIG}"],
            id="the next kernel",
        ),
        pytest.param({"/proc/cmdline": "module.sig_enforce=1"}, ["module.sig_enforce=1"], id="no sysfs"),
        pytest.param({CONFIG: FORCED}, [f"CONFIG_MODULE_SIG_FORCE=y in {CONFIG}"], id="no sysfs, built so"),
    ],
)
def test_what_enforces_signatures_is_named(tmp_path: Path, contents: dict[str, str], by: list[str]) -> None:
    for path, text in contents.items():
        put(tmp_path, path, text)
    assert module_loading.signatures_enforced(str(tmp_path), RUNNING, [NEXT, RUNNING]) == SignaturesEnforced(tuple(by))


@pytest.mark.parametrize(
    "contents",
    [
        pytest.param({}, id="nothing known"),
        pytest.param(
            {SIGNATURES: "N\n", LOCKDOWN: "[none] integrity confidentiality\n", CONFIG: NOT_FORCED}, id="a plain host"
        ),
        pytest.param({SIGNATURES: "N\n", "/proc/cmdline": "module.sig_enforce=0 lockdown=none"}, id="switched off"),
        pytest.param(
            {"/proc/cmdline": "module.sig_enforce=1", CONFIG: "# CONFIG_MODULE_SIG is not set\n"}, id="never checked"
        ),
        pytest.param({"/proc/cmdline": "nomodule.sig_enforce=1 x.lockdown=integrity"}, id="other options"),
    ],
)
def test_where_nothing_enforces_signatures_there_is_nothing(tmp_path: Path, contents: dict[str, str]) -> None:
    for path, text in contents.items():
        put(tmp_path, path, text)
    assert module_loading.signatures_enforced(str(tmp_path), RUNNING, [NEXT]) is None

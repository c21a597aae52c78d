"""Hosts whose kernel loads no module, or none without a trusted signature, by the files that say so."""

from __future__ import annotations

from pathlib import Path

import pytest
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
    assert module_loading.disabled(str(tmp_path)) == {"by": by}


def test_links_are_followed_and_one_to_dev_null_masks(tmp_path: Path) -> None:
    put(tmp_path, module_loading.MODULES_DISABLED, "1\n")
    put(tmp_path, "/etc/sysctl.conf", HARDENED)
    link(tmp_path, "/etc/sysctl.d/99-sysctl.conf", "../sysctl.conf")  # as Debian 12 has it
    put(tmp_path, "/usr/lib/sysctl.d/30-hardening.conf", HARDENED)
    link(tmp_path, "/etc/sysctl.d/30-hardening.conf", "/dev/null")
    assert module_loading.disabled(str(tmp_path)) == {"by": ["/etc/sysctl.conf"]}


@pytest.mark.parametrize("value", ["0\n", None])
def test_a_setting_that_is_not_in_force_disables_nothing(tmp_path: Path, value: str | None) -> None:
    put(tmp_path, "/etc/sysctl.conf", HARDENED)
    if value is not None:
        put(tmp_path, module_loading.MODULES_DISABLED, value)
    assert module_loading.disabled(str(tmp_path)) is None

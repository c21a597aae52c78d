"""The driver: its packages, nvidia-smi, the kernel module and the settings around it."""

import pytest

# nvidia-smi's message without a loaded driver, captured from 535.261.03 and 550.163.01.
NOT_LOADED = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."


def test_installed_packages_have_the_planned_versions(packages, component):
    specs = component("driver")["packages"] + component("driver")["pinning_packages"]
    assert specs
    for name, version in map(packages.parse, specs):
        assert version in ("", packages.versions(name)[name])


def test_every_part_has_the_version_of_the_driver(packages, component):
    """Those that no plan names too, which other packages need in this version or a newer one."""
    driver = component("driver")
    globs = "nvidia-* libnvidia-* kmod-nvidia* libcuda1 cuda-drivers* xserver-xorg-video-nvidia*".split()
    found = {name: version.rpartition(":")[2] for name, version in packages.versions(*globs).items()}
    parts = {name: version for name, version in found.items() if version[:3] == driver["branch"]}
    assert len(parts) >= len(driver["packages"]) > 0
    pins = [packages.parse(spec)[0] for spec in driver["pinning_packages"]]
    assert {n: v for n, v in parts.items() if n not in pins and not v.startswith(driver["version"])} == {}


def test_packages_are_held(packages, component):
    assert {packages.parse(spec)[0] for spec in component("driver")["packages"]} <= packages.held()


def test_nvidia_smi_lists_the_planned_gpus(host, plan, component, variables):
    driver = component("driver")
    if variables.get("gpu_stack_kernel_module") == "built":
        answer = host.run("nvidia-smi")
        assert answer.rc == 9
        assert NOT_LOADED in answer.stdout
        return
    answer = host.run("nvidia-smi --query-gpu=name,driver_version,compute_cap --format=csv,noheader")
    assert answer.rc == 0, answer.stdout
    rows = [line.split(", ") for line in answer.stdout.strip().splitlines()]
    assert len(rows) == len(plan["gpus"])
    assert sorted(row[0] for row in rows) == sorted(gpu["name"] for gpu in plan["gpus"])
    (version,) = {row[1] for row in rows}
    # Of a distribution's driver the plan knows the branch alone.
    assert f"{version}.".startswith(f"{driver['version']}.")
    assert sorted(row[2] for row in rows) == sorted(gpu["compute_capability"] for gpu in plan["gpus"])


def test_nvidia_smi_was_asked_nothing_that_its_double_cannot_answer(host):
    """The simulated one refuses what no published output answers, and notes it."""
    noted = host.file("/run/gpuhost-simulated/not-answered")
    assert not noted.exists, noted.content_string


def test_pci_bus_shows_the_planned_gpus(host, plan):
    rows = [line.split() for line in host.run_expect([0], "lspci -n -d 10de:").stdout.splitlines()]
    displays = [row[2] for row in rows if row[1].startswith("03")]  # no NVSwitch, and no card's audio function
    assert sorted(displays) == sorted(gpu["pci_id"] for gpu in plan["gpus"])


def test_fabric_manager_runs_in_the_drivers_version(host, component):
    for name in component("fabric")["services"]:
        assert host.service(name).is_running
        assert host.service(name).is_enabled
    assert component("fabric")["version"] == component("driver")["version"]


def test_kernel_module_is_built_for_a_packaged_kernel(host, component, variables):
    if variables.get("gpu_stack_kernel_module") != "built":
        pytest.skip("no kernel module is built on this host: its kernel is not its own, or the driver is simulated")
    driver = component("driver")
    status = host.run_expect([0], "dkms status").stdout
    built = [line for line in status.splitlines() if line.startswith("nvidia") and line.endswith(": installed")]
    assert len(built) == 1, status
    kernel = built[0].split(", ")[1]
    module = f"$(find /lib/modules/{kernel} -name 'nvidia*.ko*' | grep -E '/nvidia(-current)?[.]ko')"
    version = host.run_expect([0], f"/sbin/modinfo -F version {module}").stdout.strip()
    licence = host.run_expect([0], f"/sbin/modinfo -F license {module}").stdout.strip()
    assert version.startswith(driver["version"])
    assert licence == {"proprietary": "NVIDIA", "open": "Dual MIT/GPL"}[driver["kernel_modules"]]
    assert f"linux-headers-{kernel}" in driver["kernel_headers"]
    compiler = host.run_expect([0], f"grep -ao 'GCC: ([^)]*) [0-9]*' {module} | sort -u").stdout.split()[-1]
    assert [f"gcc-{compiler}"] == driver["kernel_compilers"], "the kernel's own, whatever the default is"


def test_nouveau_is_blacklisted(host, component):
    component("driver")
    settings = host.run_expect([0], "/sbin/modprobe --showconfig").stdout.splitlines()
    assert "blacklist nouveau" in settings


def test_unattended_upgrades_does_not_upgrade_the_driver(host, component):
    component("driver")
    if not host.exists("apt-config"):
        pytest.skip("this host has no Unattended-Upgrades: what dnf-automatic may upgrade, versionlock decides")
    settings = host.run_expect([0], "apt-config dump Unattended-Upgrade::Package-Blacklist").stdout
    assert '"nvidia-"' in settings
    assert '"libnvidia-"' in settings


def test_persistence_daemon_is_enabled(host, component):
    component("driver")
    assert host.service("nvidia-persistenced").is_enabled

#!/usr/bin/python
# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0 OR GPL-3.0-or-later
# Apache License 2.0, or GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
"""Probe a GPU host. Runs on the managed host; changes nothing."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_probe
short_description: Probe a GPU host in one round trip
description:
  - Reports the distribution, kernels, the GPUs on the PCI bus, the driver, the packages of the deep learning stack,
    what NVIDIA's repository offers, the plan that was applied last, and what could prevent a change (package manager,
    C(.run) installations, programs on the GPUs, disk space, Secure Boot, PCIe links).
  - Changes nothing, and needs no root rights, driver or GPU.
version_added: "0.1.0"
options:
  repository_url:
    description:
      - Base URL of the flat apt repository to read; takes precedence over O(repositories). Without either,
        C(repository) in RV(probe) is null.
    type: str
  repositories:
    description:
      - Base URLs by distribution id (V(debian-12), V(ubuntu-24.04)), of which the host's own is read. For a host whose
        distribution is not among them, C(repository) in RV(probe) is null.
      - A URL may also be a dictionary of URLs by CPU architecture (V(x86_64)), of which the host's own is read.
    type: dict
    default: {}
  repository_check:
    description:
      - Whether apt's lists on the host are used only while the repository's release file is unchanged; otherwise the
        package list is downloaded.
      - A repository that does not answer within 5 seconds counts as unchanged.
    type: bool
    default: true
  package_patterns:
    description:
      - Globs of the installed packages to report. The action plugin of this name adds the catalog's, and likewise for
        O(repository_patterns), O(driver_packages) and O(distro_cuda_package).
    type: list
    elements: str
  repository_patterns:
    description: Globs of the repository's packages to report.
    type: list
    elements: str
  driver_packages:
    description: Regular expression of the names of driver packages; those that another package needs are reported.
    type: str
  distro_cuda_package:
    description: The package of the distribution's own CUDA toolkit.
    type: str
  environment_paths:
    description: Paths of environments by the name of the framework; F(/opt/gpuhost/NAME) for those that are not named.
    type: dict
    default: {}
  tensorflow_path:
    description: Path of the TensorFlow environment; O(environment_paths) takes precedence.
    type: path
    default: /opt/gpuhost/tensorflow
  pytorch_path:
    description: Path of the PyTorch environment; O(environment_paths) takes precedence.
    type: path
    default: /opt/gpuhost/pytorch
  kernel_header_offers:
    description:
      - Whether to search apt's lists for headers and compilers of the running and the next-boot kernel, where some are
        missing. Needed for hosts that build kernel modules; takes a few tenths of a second.
    type: bool
    default: false
  kernel_tools:
    description:
      - Packages that every build of a kernel module needs. The action plugin of this name adds the catalog's, and
        likewise for O(module_compressors).
    type: list
    elements: str
  module_compressors:
    description: Packages by the compression of a kernel's modules, such as V(zst), for each distribution.
    type: dict
  archive_drivers:
    description:
      - Packages of the distribution's own drivers, by distribution, whose versions are asked of apt. The action plugin
        of this name adds the catalog's.
    type: dict
  prebuilt_modules:
    description: A glob of the packages with prebuilt modules. Apt's lists are searched where signatures may be needed.
    type: str
  switch_modules:
    description:
      - Kernel modules that NVSwitches of NVLink 5 need; on such hosts, the probe says which a kernel lacks. The action
        plugin of this name adds the catalog's, and likewise for O(extra_modules).
    type: list
    elements: str
  extra_modules:
    description: A glob of the packages with more modules of a kernel. Apt's lists are searched where one lacks some.
    type: str
  contents:
    description:
      - Whether to compare the content of all managed files with the checksums of their packages and wheels, which takes
        some ten seconds. Otherwise their size, time of modification, mode and owner are compared with the last record.
    type: bool
    default: false
  accept_damage:
    description: Names of damage that stays as it is, as C(damage) of C(applied) has them.
    type: list
    elements: str
    default: []
  directories:
    description:
      - Absolute paths of further directories whose space is reported in C(disk), such as a cache that was moved. A
        missing one counts as its nearest parent that exists.
    type: list
    elements: str
    default: []
  managed:
    description:
      - What each part of the stack manages, as the lookup P(gpuhost.stack.managed#lookup) has it. The content of parts
        that the last complete run has not recorded, or that a later one began to change, is always compared.
    type: dict
    default: {}
  state_directory:
    description: The directory of the host's records, as of M(gpuhost.stack.stack_state).
    type: path
    default: /var/lib/gpuhost
  timeout_factor:
    description: What the time limits of programs on the host, such as nvidia-smi, are multiplied by.
    type: float
    default: 1
extends_documentation_fragment:
  - gpuhost.stack.environment
attributes:
  action:
    description: An action plugin of the same name adds the catalog's package names on the controller.
    support: full
  check_mode:
    description: Changes nothing in either mode.
    support: full
  diff_mode:
    description: Changes nothing.
    support: none
author: gpuhost contributors (!UNKNOWN)
"""

EXAMPLES = r"""
- name: Probe the host
  gpuhost.stack.gpu_probe:
    repositories: "{{ lookup('gpuhost.stack.catalog', 'repositories_by_architecture') }}"
  register: gpu_host
"""

RETURN = r"""
probe:
  description: The probe. A part that cannot be read is null and has a message in C(errors).
  returned: success
  type: dict
  contains:
    gpus:
      description:
        - Each GPU with C(pci_address), C(pci_id), C(subsystem_id), C(class), C(kernel_driver). C(vgpu) is the
          hypervisor's driver version for a vGPU, null for a whole GPU.
      type: list
      elements: dict
    schema:
      description: Version of this structure.
      type: int
    uid:
      description: The effective user of the module; only root can change the host.
      type: int
    may_write:
      description: Whether the user of the tasks may write to (or create) gpuhost's own directory, by path.
      type: dict
    distribution:
      description: C(id) such as V(debian-12), C(name), C(version), C(codename), C(pretty_name).
      type: dict
    architecture:
      description: The machine as C(uname -m) prints it.
      type: str
    machine:
      description: C(vendor), C(model) and (for root) C(serial) of the machine, from its firmware; null without DMI.
      type: dict
    cpu:
      description: C(model) of the processor, and C(flags) of all processors as in F(/proc/cpuinfo); null on Arm.
      type: dict
    kernel:
      description:
        - Kernel releases. C(running), C(next_boot) or in C(next_boot_unknown) why it is not known, C(installed),
          C(headers) with installed headers, C(headers_from) with the packages that provide missing ones by release,
          C(held_back), which the kernel guard keeps GRUB from booting.
        - C(menu_entries) has the identifiers of kernels in GRUB's menu, C(grub_defaults) the C(GRUB_DEFAULT) of each
          file that sets it.
        - C(releases) has of the running kernel and each installed one the C(package) with its image, the metapackages
          (C(metas)) that follow its flavour, its C(compiler) with the major C(gcc), and its modules' C(compression).
        - C(installed_packages) and C(offers) are those of the packages for building modules that are installed, and
          that apt's lists have, with the kernels whose C(headers) and C(images) come with them.
        - C(build_jobs) is how many files DKMS compiles at a time.
        - C(prebuilt) has the kernels by package with prebuilt modules for them.
      type: dict
    python:
      description:
        - C(default) version of F(/usr/bin/python3), whether that has C(ensurepip) (without which it creates no
          environments), C(interpreters) by version, and the versions of those with C(headers).
      type: dict
    toolchain:
      description: Major version of C(gcc), version of C(glibc), and the C(c_compilers) that PyTorch's Triton can use.
      type: dict
    guest_settings:
      description:
        - "What gives devices to C(vfio-pci) or C(pci-stub) at boot: C(path), C(line) (0 for an option of the
          kernel or a file of driverctl) and C(text)."
      type: list
      elements: dict
    nvswitches:
      description: Each NVSwitch with C(pci_address) and C(pci_id).
      type: list
      elements: dict
    switch_managers:
      description:
        - Each function of a ConnectX that manages NVSwitches of NVLink 5, which are not on the PCI bus, with
          C(pci_address) and C(pci_id).
      type: list
      elements: dict
    pcie:
      description: C(gpus) by address, C(acs) controls that are on by bridge, C(kernel_options) about IOMMU and PCI.
      type: dict
    display:
      description:
        - C(manager), the service of the display manager or null; C(graphical), whether the host boots to
          F(graphical.target); C(connected) connectors of graphics cards, such as V(card1-HDMI-A-1).
      type: dict
    driver:
      description:
        - The C(loaded) module, C(nouveau_loaded), and C(nvidia_smi) with its exit code, message,
          GPUs, and the PCI addresses of those in MIG mode (C(mig)).
        - C(installed) has the C(version) of the driver's libcuda, the C(package) that has it, and in C(modules) the one
          with the source that DKMS builds it from, empty for none, and null if DKMS does not; all are null without
          a driver, C(package) after NVIDIA's C(.run) installer.
        - C(dkms_leftovers) has each C(module) of DKMS, V(NAME/VERSION), that no package has any more and that lacks its
          source or is a version of the driver.
      type: dict
    modules_of_others:
      description:
        - Kernel modules of others that the host depends on. C(name) is V(zfs) or V(ofed), C(found) the evidence,
          C(dkms) whether DKMS builds them, C(peermem) whether nvidia-peermem is loaded.
      type: list
      elements: dict
    foreign_driver:
      description:
        - C(kind) V(wsl), V(gpu-pv), V(driver-container), V(vgpu-host) or V(proxmox) of a host that is to have no
          driver of its own, and by what it was C(found); null for neither.
      type: dict
    gpu_processes:
      description: Programs that use the GPUs.
      type: list
      elements: dict
    packages:
      description:
        - C(version), C(status), C(held) and the names in C(depends) of the installed packages that match
          O(package_patterns), by name. A package of a foreign architecture is C(name:architecture).
      type: dict
    foreign_holds:
      description:
        - Versions of the packages on hold that gpuhost did not hold, by name; empty for one that is not installed and
          must not be.
      type: dict
    package_manager:
      description:
        - C(name), held C(locks), C(broken) packages and whether they are C(of_others), and whether dpkg was
          C(interrupted).
      type: dict
    transaction:
      description:
        - The process that runs a package transaction of this project in C(running), and in C(ended) the result of one
          whose run lost the connection or was killed.
      type: dict
    run:
      description: The run that changes the host, as M(gpuhost.stack.run_lock) records it, or null.
      type: dict
    cloud_init_running:
      description: Whether cloud-init still sets up the host. V(false) where cloud-init itself has started the probe.
      type: bool
    runfile:
      description: Driver and toolkits that were installed by C(.run) files.
      type: dict
    repository:
      description:
        - C(url), C(source) V(apt-lists) or V(http), C(packages) with their versions, C(sizes) by name and version,
          C(error) as text where it cannot be read, C(unreachable) where apt has lists that it cannot refresh.
      type: dict
    repository_files:
      description:
        - apt's C(entries) and C(keys) of NVIDIA's software, and the C(mixed) files with others as well. An entry's
          C(offers) says whether apt's lists of it have packages that a plan may install. Its C(keys) are the
          fingerprints of those that its C(Signed-By) names, where they are known.
        - C(preferred) has the sources of others whose packages apt would take in place of NVIDIA's or the
          distribution's, with the C(priority) and the files with C(pins) that give it.
        - C(archive) has the versions in which apt would take O(archive_drivers) from the distribution's archive, on a
          host of which no configuration was verified.
      type: dict
    cuda:
      description: C(installed) toolkits, the C(default) one, and the version of the C(distro)'s own.
      type: dict
    environments:
      description: >-
        C(path), C(version) and C(python) of each framework's environment, by the framework's name, and the beginning of
        the SHA-256 of its C(lock) if gpuhost built it; null without an environment.
      type: dict
    environments_in_the_way:
      description: >-
        What is at the path of each framework's environment and is not a link to an environment of gpuhost, or null.
      type: dict
    secure_boot:
      description: V(enabled), V(disabled) or V(unknown).
      type: str
    secure_boot_keys:
      description:
        - C(path) of each key that signs kernel modules, whether it is C(enrolled), and the C(key_id) by which the
          kernel knows it.
      type: list
      elements: dict
    trusted_certificates:
      description:
        - SHA-256 of each certificate that the firmware trusts or its owner has enrolled, and with which a kernel module
          may be signed therefore. None where the firmware's variables cannot be read.
      type: list
      elements: str
    signatures_enforced:
      description:
        - Where the kernel loads only modules with a trusted signature, whether Secure Boot is enabled or not, C(by)
          which kernel options, configurations and files; null elsewhere.
      type: dict
    kernel_keys:
      description: C(key_id) of each key that the kernel trusts, where C(signatures_enforced); null if unreadable.
      type: list
      elements: str
    modules_disabled:
      description:
        - Where the kernel loads no module until the next boot, C(by) which files, globs in files and kernel options;
          null elsewhere.
      type: dict
    root_in_memory:
      description: What has the root file system in memory, empty where it is on a disk.
      type: str
    selinux_enforcing:
      description: Whether SELinux is enforcing.
      type: bool
    module_blacklists:
      description: What keeps the driver's module from loading, lines of modprobe.d and kernel options, by file.
      type: dict
    disk:
      description: C(free_mib), C(total_mib) and C(mount) by directory, of O(directories), too.
      type: dict
    applied:
      description:
        - C(fingerprint), C(changed) things and C(repairs) by part of the last complete run. C(repairs) lists damaged
          C(packages) and C(environments), C(services) to enable, and C(lines) of settings that break the stack.
        - C(damage) has a message for each difference that neither gpuhost nor an upgrade of the system causes, by the
          name of what differs; C(accepted) those whose name is in O(accept_damage).
        - C(why) is the reason to apply a part whose record does not show whether it is whole, else empty.
      type: dict
    masked_services:
      description: The services of O(managed) that an administrator has masked.
      type: list
      elements: str
    verified:
      description:
        - "What verified the last verified configuration: C(at), C(stack), C(checks) (outcomes by id) and C(trainings)
          by framework."
        - Empty in a record of an earlier version, null if no configuration was verified.
      type: dict
    requested:
      description: The request of the last verified configuration; null if no configuration was verified.
      type: dict
    verified_plan:
      description:
        - C(components) of the last verified configuration, as in its plan, C(gpus), the PCI ids of its GPUs,
          and C(kept_driver), the driver that stayed as others installed it.
        - Null if no configuration was verified.
      type: dict
    changed_packages:
      description: The packages that gpuhost has changed on this host.
      type: list
      elements: str
    pending:
      description:
        - C(since) when a change waits to be verified, and C(before), what the checks found just before it; null if none
          does.
      type: dict
    undone:
      description: The change that was undone last, with C(at), C(checks) and C(versions); null if none was.
      type: dict
    last_result:
      description: What M(gpuhost.stack.gpu_verify) kept of its last run; null if it has not run.
      type: dict
    newer_state:
      description: The record in O(state_directory) that a later gpuhost wrote; null if there is none.
      type: str
    applied_plan:
      description: The plan that was applied last.
      type: dict
    simulated:
      description: What is simulated on this host, empty on a real one.
      type: list
      elements: str
    errors:
      description: A message for each part that could not be read.
      type: list
      elements: str
    tensorflow:
      description: As C(environments.tensorflow), for tasks that were written for 0.1.0; so are the following ones.
      type: dict
    tensorflow_in_the_way:
      description: As C(environments_in_the_way.tensorflow).
      type: str
    pytorch:
      description: As C(environments.pytorch).
      type: dict
    pytorch_in_the_way:
      description: As C(environments_in_the_way.pytorch).
      type: str
"""

import dataclasses
import os
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpuhost.stack.plugins.module_utils import probe_start
from ansible_collections.gpuhost.stack.plugins.module_utils.base import command, module_options, urls
from ansible_collections.gpuhost.stack.plugins.module_utils.model.records import to_json

# The frameworks whose environments had keys of their own in 0.1.0, which tasks of users may read.
EARLIER = ("tensorflow", "pytorch")


def with_earlier_names(found: dict[str, Any]) -> dict[str, Any]:
    """Return a probe's JSON with the keys of 0.1.0 as well."""
    for name in EARLIER:
        conflict = found["environments_in_the_way"][name]
        found = {**found, name: found["environments"][name], name + "_in_the_way": conflict}
    return found


def of_machine(repositories: dict[str, str | dict[str, str]], machine: str) -> dict[str, str]:
    """Return the URLs for a CPU architecture by distribution id; one that is no dictionary is for every machine."""
    found = {name: url if isinstance(url, str) else url.get(machine) for name, url in repositories.items()}
    return {name: url for name, url in found.items() if url}


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec=module_options.argument_spec(probe_start.Options),
        supports_check_mode=True,
    )
    spec = module_options.argument_spec(probe_start.Options)
    missing = [name for name in spec if name != "repository_url" and module.params[name] is None]
    if missing:
        module.fail_json(
            msg="%s missing: the action plugin of this name, which adds the catalog's package names, did not run. Call "
            "gpuhost.stack.gpu_probe from a task, with plugins/action/gpu_probe.py installed, or pass these options."
            % ", ".join(missing)
        )
    repositories = of_machine(module.params["repositories"], os.uname().machine)
    addresses = [module.params["repository_url"], *repositories.values()]
    secrets = [urls.user_info(address) for address in addresses if address]
    module.no_log_values.update(secret for secret in secrets if secret)  # they are in the invocation
    options = dataclasses.replace(module_options.read(probe_start.Options, module.params), repositories=repositories)
    run = command.patient(options.timeout_factor)
    compared = probe_start.compare("/", options, run)
    # Only now: Ansible sends sources, and the comparison runs while these are compiled.
    from ansible_collections.gpuhost.stack.plugins.module_utils import probe

    probed = probe.probe("/", options, run, compared)
    module.exit_json(changed=False, probe=urls.without_credentials(with_earlier_names(to_json(probed))))


if __name__ == "__main__":
    main()

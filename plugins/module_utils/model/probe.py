# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""A probe: what `gpuhost.stack.gpu_probe` reads on a host. The controller reads its JSON into a class of its own."""

from __future__ import annotations

import dataclasses
from typing import Any, Mapping

from ansible_collections.gpuhost.stack.plugins.module_utils.model.host import (
    Cpu,
    DiskSpace,
    Display,
    Distribution,
    Gpu,
    GuestSetting,
    Kernel,
    Machine,
    NvSwitch,
    Pcie,
    Python,
    SigningKey,
    SwitchManager,
    Toolchain,
)
from ansible_collections.gpuhost.stack.plugins.module_utils.model.nvidia import (
    Driver,
    Environment,
    ForeignDriver,
    GpuProcess,
    InstalledCuda,
    ModulesDisabled,
    Runfile,
    SignaturesEnforced,
)
from ansible_collections.gpuhost.stack.plugins.module_utils.model.packages import (
    ModulesOfOthers,
    PackageManagerState,
    ProbedPackage,
    Repository,
    RepositoryFiles,
    Transaction,
)
from ansible_collections.gpuhost.stack.plugins.module_utils.model.records import OMITTED
from ansible_collections.gpuhost.stack.plugins.module_utils.model.state import (
    AppliedPart,
)

SCHEMA = 1


@dataclasses.dataclass(frozen=True)
class Probe:
    """Everything that gpu_probe reads from a host; a part that could not be read is None, with a message in `errors`.

    architecture: as `uname -m` prints it. uid: the user that it read as, 0 for root; may_write: whether that user may
    write to a directory, by path. guest_settings: what gives devices to virtual machines. environments: that of each
    framework, by name; environments_in_the_way: what is at its path and is no link of gpuhost's. changed_packages:
    those that gpuhost changed. newer_state: which record a later gpuhost wrote. root_in_memory: what has the root file
    system there, empty on a disk. module_blacklists: what keeps the driver's module from loading, by file. errors: why
    parts could not be read, "PART: CAUSE".

    Records in the host's state directory, and the applied plan, are JSON as gpuhost of some version left it, which a
    host passes on: run (the run that changes the host), verified, requested and verified_plan (of the verified
    configuration), pending, undone, last_result, applied_plan.
    """

    gpus: tuple[Gpu, ...]
    schema: int = SCHEMA
    uid: int = 0
    may_write: Mapping[str, bool] = dataclasses.field(default_factory=dict)
    distribution: Distribution | None = None
    architecture: str = ""
    machine: Machine | None = None
    cpu: Cpu | None = None
    kernel: Kernel | None = None
    python: Python | None = None
    toolchain: Toolchain | None = None
    guest_settings: tuple[GuestSetting, ...] = ()
    nvswitches: tuple[NvSwitch, ...] = ()
    switch_managers: tuple[SwitchManager, ...] = ()
    pcie: Pcie | None = None
    display: Display | None = None
    driver: Driver = dataclasses.field(default_factory=Driver)
    modules_of_others: tuple[ModulesOfOthers, ...] = ()
    foreign_driver: ForeignDriver | None = None
    gpu_processes: tuple[GpuProcess, ...] | None = ()
    packages: Mapping[str, ProbedPackage] | None = None
    foreign_holds: Mapping[str, str] = dataclasses.field(default_factory=dict)
    package_manager: PackageManagerState | None = None
    transaction: Transaction | None = None
    run: Any = None
    cloud_init_running: bool = False
    runfile: Runfile | None = None
    repository: Repository | None = None
    repository_files: RepositoryFiles | None = None
    cuda: InstalledCuda | None = None
    environments: Mapping[str, Environment | None] = dataclasses.field(default_factory=dict)
    environments_in_the_way: Mapping[str, str | None] = dataclasses.field(default_factory=dict)
    secure_boot: str = "unknown"
    secure_boot_keys: tuple[SigningKey, ...] = ()
    trusted_certificates: tuple[str, ...] | None = None
    signatures_enforced: SignaturesEnforced | None = None
    kernel_keys: tuple[str, ...] | None = None
    modules_disabled: ModulesDisabled | None = None
    root_in_memory: str = ""
    selinux_enforcing: bool = dataclasses.field(default=False, metadata=OMITTED)
    module_blacklists: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    disk: Mapping[str, DiskSpace] | None = None
    applied: Mapping[str, AppliedPart] = dataclasses.field(default_factory=dict)
    masked_services: tuple[str, ...] = ()
    verified: Any = None
    requested: Any = None
    verified_plan: Any = None
    changed_packages: tuple[str, ...] = ()
    pending: Any = None
    undone: Any = None
    last_result: Any = None
    newer_state: str | None = None
    applied_plan: Any = None
    simulated: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()

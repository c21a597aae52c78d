"""The probe as the controller reads it: the records of module_utils/model, and those that gpuhost left on the host.

The module's JSON becomes a `Probe` where it enters the controller's code. A part that the module could not read is null
in the JSON and has its default here: None, or a record of which nothing is known.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from ansible_collections.gpuhost.stack.plugins.module_utils.model import packages, probe, records
from ansible_collections.gpuhost.stack.plugins.module_utils.model.frameworks import FRAMEWORKS
from ansible_collections.gpuhost.stack.plugins.module_utils.model.host import (
    DiskSpace,
    Display,
    Kernel,
    Pcie,
    Python,
    Toolchain,
    left_to,
)
from ansible_collections.gpuhost.stack.plugins.module_utils.model.nvidia import (
    Environment,
    GpuProcess,
    InstalledCuda,
    Runfile,
)
from ansible_collections.gpuhost.stack.plugins.module_utils.model.package import Package
from ansible_collections.gpuhost.stack.plugins.module_utils.model.packages import (
    PackageSize,
    ProbedPackage,
    RepositoryFiles,
)
from ansible_collections.gpuhost.stack.plugins.module_utils.model.plan import KeptDriver


@dataclasses.dataclass(frozen=True)
class VerifiedTraining:
    """A training that verified a configuration.

    finished: UTC, in ISO 8601; stack: the fingerprint of components and locks; hardware: the GPUs and the driver;
    result: its key figures; checks: the outcome of each of its checks by id, empty in records of earlier versions.
    """

    finished: str
    stack: str
    hardware: Mapping[str, Any]
    status: str
    result: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    checks: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Verified:
    """What verified the last verified configuration, and when (UTC, ISO 8601); empty in records of earlier versions.

    checks: the outcome of each check by id; trainings: by framework.
    """

    at: str = ""
    stack: str = ""
    checks: Mapping[str, str] = dataclasses.field(default_factory=dict)
    trainings: Mapping[str, VerifiedTraining] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class VerifiedComponent:
    """A component of the verified configuration, with what can be requested of it; as in a plan, of any release."""

    version: str
    release: str = ""
    source: str = ""
    kernel_modules: str = ""
    profile: str = ""
    module_source: str = ""
    cuda: str = ""
    cuda_libraries: str = ""
    packages: tuple[Package, ...] = ()
    pinning_packages: tuple[Package, ...] = ()


@dataclasses.dataclass(frozen=True)
class VerifiedPlan:
    """The components of the verified configuration by name, None where it left one out; gpus: their PCI ids then.

    kept_driver: the driver that stayed as others installed it.
    """

    components: Mapping[str, VerifiedComponent | None] = dataclasses.field(default_factory=dict)
    gpus: tuple[str, ...] = ()
    kept_driver: KeptDriver | None = None


@dataclasses.dataclass(frozen=True)
class EndedTransaction:
    """What a package transaction did whose run lost the connection or was killed; failed: its error."""

    what: str
    changes: int
    ended: str
    failed: str | None = None


@dataclasses.dataclass(frozen=True)
class Transaction(packages.Transaction):
    """gpuhost's package transactions, with the result of the last, if no run got it."""

    ended: EndedTransaction | None = None


@dataclasses.dataclass(frozen=True)
class Pending:
    """A change that was begun and is neither verified nor rolled back."""

    since: str = ""


@dataclasses.dataclass(frozen=True)
class Undone:
    """The change that was undone last: when, the checks that were worse after it, the versions by component."""

    at: str = ""
    checks: tuple[str, ...] = ()
    versions: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Probe(probe.Probe):
    """A probe of a host: what could not be read is empty, and what gpuhost recorded on the host is typed, too.

    distribution: None where os-release could not be read. run: the run that changes the host, as the module run_lock
    records it, if any. requested, verified_plan: of the verified configuration, if any.
    """

    kernel: Kernel = dataclasses.field(default_factory=Kernel)
    python: Python = dataclasses.field(default_factory=Python)
    toolchain: Toolchain = dataclasses.field(default_factory=Toolchain)
    pcie: Pcie = dataclasses.field(default_factory=Pcie)
    display: Display = dataclasses.field(default_factory=Display)
    gpu_processes: tuple[GpuProcess, ...] = ()
    transaction: Transaction = dataclasses.field(default_factory=Transaction)
    run: Mapping[str, Any] | None = None
    runfile: Runfile = dataclasses.field(default_factory=Runfile)
    repository_files: RepositoryFiles = dataclasses.field(default_factory=RepositoryFiles)
    cuda: InstalledCuda = dataclasses.field(default_factory=InstalledCuda)
    disk: Mapping[str, DiskSpace] = dataclasses.field(default_factory=dict)
    verified: Verified | None = None
    requested: Mapping[str, str] | None = None
    verified_plan: VerifiedPlan | None = None
    pending: Pending | None = None
    undone: Undone | None = None

    @classmethod
    def from_json(cls, data: Any) -> Probe:
        """Read the `probe` of gpuhost.stack.gpu_probe; raises records.RecordError with the path of a wrong field."""
        return records.from_json(cls, cls.of_this_release(data), "probe")

    @staticmethod
    def of_this_release(data: Any) -> Any:
        """Return the JSON of a probe as this release writes it.

        Earlier ones named the environment of each framework, and what is in its way, in a field of its own.
        """
        if isinstance(data, Mapping) and "environments" not in data:
            for key, suffix in (("environments", ""), ("environments_in_the_way", "_in_the_way")):
                values = {framework.name: data.get(f"{framework.name}{suffix}") for framework in FRAMEWORKS}
                data = {**data, key: {name: value for name, value in values.items() if value is not None}}
        return data

    @property
    def present_packages(self) -> dict[str, ProbedPackage]:
        """The packages with files on the host, by name; none where dpkg's database could not be read."""
        return {name: package for name, package in (self.packages or {}).items() if package.is_present}

    @property
    def package_sizes(self) -> Mapping[str, Mapping[str, PackageSize]]:
        """Sizes of the repository's packages by name and version; none where it could not be read."""
        return self.repository.sizes if self.repository else {}

    @property
    def trusts_dkms(self) -> bool:
        """Whether a module that DKMS signs can be loaded: its key is enrolled, or with signatures enforced, known."""
        return any(self.trusts(key.key_id, key.enrolled) for key in self.secure_boot_keys)

    def trusts(self, key_id: str | None, enrolled: bool | None) -> bool:
        """Return whether the kernel trusts a key: by its own list where signatures are enforced without Secure Boot."""
        if self.secure_boot == "enabled" or self.kernel_keys is None or key_id is None:
            return bool(enrolled)
        return key_id in self.kernel_keys

    @property
    def is_managed(self) -> bool:
        """Whether gpuhost has set up this host, and has not merely adopted what was there."""
        adopted = (self.requested or {}).get("adopt") == "true"
        return bool(self.applied) or (self.verified_plan is not None and not adopted)

    def without_others(self, ignored: str) -> Probe:
        """Return the probe with the GPUs of this stack alone; ignored: gpu_stack_ignore_gpus, as the request has it."""
        others = [g for g in self.gpus if left_to(g.kernel_driver, (g.pci_address, g.pci_id), ignored)]
        theirs = [gpu.pci_address for gpu in others]
        links = {address: gpu for address, gpu in self.pcie.gpus.items() if address not in theirs}
        pcie = dataclasses.replace(self.pcie, gpus=links)
        return dataclasses.replace(self, gpus=tuple(gpu for gpu in self.gpus if gpu not in others), pcie=pcie)

    def environment(self, framework: str) -> Environment | None:
        """Return the environment of a framework, by its name."""
        return self.environments.get(framework)

    def path_conflict(self, framework: str) -> str | None:
        """Return what occupies the path of a framework's environment, such as `a directory`; gpuhost's link is None."""
        return self.environments_in_the_way.get(framework)

"""Check that NVIDIA's repository can be read, and what other installers left."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ansible_collections.gpuhost.stack.plugins.module_utils.model.components import DriverComponent
from ansible_collections.gpuhost.stack.plugins.module_utils.model.findings import Findings, FindingSpec
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.catalogs import load_catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.registry import PACKAGED
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning import leftovers, repository
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.preflight.model import Context

REPOSITORY_UNREADABLE = FindingSpec(
    "repository-unreadable",
    "NVIDIA's repository cannot be read from the host, and packages of it have to be installed (else a warning)",
    "By cause, in the message; it comes before anything is changed",
)
REPOSITORY_DISABLED = FindingSpec(
    "repository-disabled",
    "A repository that the driver's packages need beside NVIDIA's, such as CRB and EPEL for DKMS, is not enabled",
    "Enable it with the commands of the message",
)
REPOSITORY_KEY_UNKNOWN = FindingSpec(
    "repository-key-unknown",
    "The catalog does not know the fingerprint of the key that signs NVIDIA's repository for this distribution",
    "set gpu_stack_repository_key_fingerprint to what NVIDIA publishes, 40 hexadecimal digits, in the inventory",
)


def check_key(context: Context, findings: Findings) -> None:
    """Check that the key of NVIDIA's repository can be verified before it is trusted."""
    repository, adopted = context.plan.repository, leftovers.adopted(context.plan, context.probe)
    if repository and not repository["key_fingerprint"] and not adopted and _is_used(context):
        REPOSITORY_KEY_UNKNOWN.add_problem(
            findings, f"the fingerprint of the key in {repository['key_url']} is not known, which is to be trusted"
        )


def _is_used(context: Context) -> bool:
    """Return whether something of NVIDIA's repository has to be installed."""
    parts = [p for p in PACKAGED if getattr(p.planned(context.components), "source", "nvidia") == "nvidia"]
    return any(context.is_changed(part.name) for part in parts)


def check_enabled(context: Context, findings: Findings) -> None:
    """Check that the repositories of others that the driver's packages depend on are enabled."""
    driver, enabled = DriverComponent.of(context.components), context.probe.repository_files.enabled
    if driver is None or enabled is None or not context.is_changed("driver"):
        return
    distro = load_catalog().distros[context.plan.distribution]
    missing = [name for name in driver.repositories or () if not _is_among(name, enabled, distro.same_repositories)]
    if missing:
        signed = next((e for e in distro.distro_drivers if e.signed and e.signed == driver.module_metas), None)
        needed = "driver and signed modules are" if signed else "driver's modules are built by DKMS, which is"
        REPOSITORY_DISABLED.add_problem(
            findings,
            f"{', '.join(missing)}: not enabled on this host (enabled are {', '.join(enabled) or 'none'}), and the "
            f"{needed} there",
            f"type: {(signed or distro).enable.format(architecture=context.probe.architecture)}",
        )


def _is_among(name: str, enabled: Iterable[str], same: Iterable[str]) -> bool:
    """Return whether a repository is enabled, by its name or by one that an expression of `same` matches as well."""
    others = [expression for expression in same if re.fullmatch(expression, name)]
    return any(each == name or any(re.fullmatch(other, each) for other in others) for each in enabled)


def check_repository(context: Context, findings: Findings) -> None:
    """Check that what the plan installs from NVIDIA's repository can be had."""
    read = context.probe.repository
    error = read and (read.error or read.unreachable)
    if not error or context.plan.repository is None:
        return
    why = repository.cause(error)
    message = f"NVIDIA's repository cannot be read: {error}" + (f"; {why.meaning}" if why.meaning else "")
    if _is_used(context):
        REPOSITORY_UNREADABLE.add_problem(findings, message, why.remedy)
    elif REPOSITORY_UNREADABLE.code not in [problem.code for problem in findings.problems]:  # such as of a repair
        REPOSITORY_UNREADABLE.add_warning(findings, f"{message}. Nothing has to be installed from it now: {why.remedy}")


def check_leftovers(context: Context, findings: Findings) -> None:
    """Add the leftovers; those that the user allows the run to remove are warnings."""
    for found in leftovers.find(context.plan, context.probe):
        if found.action and leftovers.may_remove(context.plan):
            found.spec.add_warning(findings, f"{found.message}; gpu_stack_leftovers=remove: {found.action}")
        elif found.blocks:
            found.spec.add_problem(findings, found.message, found.remedy)
        else:
            found.spec.add_warning(findings, found.message)


FINDINGS = (REPOSITORY_UNREADABLE, REPOSITORY_KEY_UNKNOWN, REPOSITORY_DISABLED)

# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Check the versions and holds of the planned packages."""

from __future__ import annotations

from ansible_collections.gpuhost.stack.plugins.module_utils.checks.model import (
    NOT_MANAGED,
    REAPPLY,
    Check,
    CheckSpec,
    Context,
)
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.database import any_of, database, words_of
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.installed import InstalledPackage

INSTALLED = CheckSpec(
    "packages.installed",
    measures="state and version of the packages in " + any_of(lambda words: words.DATABASE),
    expected="each planned package is installed in its planned version",
    skipped="no package is planned",
    remedy=REAPPLY + " %s shows which command changed the packages." % any_of(lambda words: words.HISTORY),
)
HELD = CheckSpec(
    "packages.held",
    measures="selection state of the packages in " + any_of(lambda words: words.DATABASE),
    expected="each planned package is held, so that no upgrade changes one of them alone",
    skipped="no package is planned, or they were adopted",
    remedy="Run %s with the named packages." % any_of(lambda words: "`%s`" % words.hold(()).strip()),
)
CHECKS = (INSTALLED, HELD)


def run(context: Context, machine: str | None = None) -> list[Check]:
    """Compare dpkg's status with the plan's packages; `machine` as in `uname -m`, this machine's by default."""
    components = context.plan.components.packaged()
    planned = {package.name: package.version for component in components for package in component.packages}
    if not planned:
        return [spec.skip("the plan has no package") for spec in CHECKS]
    found = database(context.root)
    unreadable = found.unreadable()
    if unreadable:
        return [spec.unknown(unreadable) for spec in CHECKS]
    packages = found.read(list(planned), machine)
    damaged = [name for name in sorted(packages) if not _is_complete(packages[name])]
    if damaged:
        reason = "%s has no complete paragraph of %s" % (found.path, ", ".join(damaged))
        return [spec.unknown(reason) for spec in CHECKS]
    differences = [text for text in (_difference(n, planned[n], packages.get(n)) for n in sorted(planned)) if text]
    not_held = [name for name in sorted(planned) if name not in packages or not packages[name].held]
    total, words = "%d packages" % len(planned), words_of(context.root)
    return [
        INSTALLED.compare(
            not differences,
            "; ".join(differences) or "%s as planned" % total,
            remedy=REAPPLY + " %s shows which command changed the packages." % words.HISTORY,
        ),
        HELD.compare(
            not not_held,
            "not held: " + ", ".join(not_held) if not_held else "%s held" % total,
            remedy="Run `%s`." % words.hold(not_held),
        )
        if not context.plan.is_adopted
        else HELD.skip(NOT_MANAGED),
    ]


def _is_complete(package: InstalledPackage) -> bool:
    return bool(package.status) and (bool(package.version) or package.status == "not-installed")


def _difference(name: str, version: str | None, package: InstalledPackage | None) -> str | None:
    if package is None or package.status == "not-installed":
        return "%s is not installed" % name
    if package.status != "installed":
        return "%s is %s" % (name, package.status)
    if version and package.version != version:
        return "%s is %s instead of %s" % (name, package.version, version)
    return None

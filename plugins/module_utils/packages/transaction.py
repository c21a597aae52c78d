# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Install exact package versions in one transaction: simulated first, held afterwards, undone when it fails.

Runs on the managed host.
"""

from __future__ import annotations

import os
import re
import tempfile
from typing import Any, NamedTuple, Sequence

from ansible_collections.gpuhost.stack.plugins.module_utils.base import store
from ansible_collections.gpuhost.stack.plugins.module_utils.model.package import Package
from ansible_collections.gpuhost.stack.plugins.module_utils.packages import decisions, restore, transaction_lock
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.installed import (
    Change,
    InstalledPackage,
    Journal,
    foreign_holds,
    foreign_unfinished,
)
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.port import (
    Operation,
    PackageError,
    PackageManager,
    UnmetDependencies,
)


class PackageRequest(NamedTuple):
    """What to install and which package names, as regular expressions, it concerns.

    packages: held afterwards; helpers: not held; pins: packages with preferences, which bind the transaction.
    replaces, pins_replace: purged where installed; may_remove: may go where they conflict; hold_dependencies: of those
    that `packages` depend on, the ones to hold too. reinstall: names of damaged packages; those of this request, and
    held ones that match hold_dependencies, are installed again in their version. needs: "label: expression" of packages
    that must be there afterwards, in the version needs_version (one item) or with its branch in their names.
    versions: of packages that are not asked for by name, if they are there or come as dependencies. metas: expressions
    of metapackages; one that owns no files may go where it conflicts, and what it depends on then stays.
    accept_no_return: names of packages that may change although no file of theirs can be kept for a rollback.
    """

    packages: list[Package]
    helpers: list[Package]
    pins: list[Package]
    pins_replace: list[str]
    hold_dependencies: list[str]
    replaces: list[str]
    may_remove: list[str]
    reinstall: Sequence[str] = ()
    needs: Sequence[str] = ()
    needs_version: Sequence[str] = ()
    versions: Sequence[Package] = ()
    metas: Sequence[str] = ()
    accept_no_return: Sequence[str] = ()

    @property
    def wanted(self) -> list[Package]:
        """All packages to install, those with preferences first."""
        return self.pins + self.packages + self.helpers

    @property
    def names(self) -> list[str]:
        """The names in `wanted`, in its order."""
        return [package.name for package in self.wanted]


class PackageState(NamedTuple):
    """The installed packages, and what remains: to install, names to purge, names to hold, to install again."""

    packages: dict[str, InstalledPackage]
    unmet: list[Package]
    obsolete: list[str]
    unheld: list[str]
    damaged: list[Package]

    @property
    def remaining(self) -> list[str]:
        """Everything that remains to do; empty when the request is met."""
        return [*map(str, self.unmet), *self.obsolete, *self.unheld, *map(str, self.damaged)]

    @property
    def changes_packages(self) -> bool:
        """Whether more than holds remains to do."""
        return bool(self.unmet or self.obsolete or self.damaged)


class Result(NamedTuple):
    """The state before and after, the changes as text, and replaced packages whose files no repository offers.

    left_out: helpers that would have installed another kernel.
    """

    before: PackageState
    after: PackageState
    changes: list[str]
    not_kept: list[str]
    left_out: Sequence[str] = ()

    def diff(self) -> str:
        """Return a line for each change and each new hold; the request itself where check mode cannot simulate it."""
        requested = [*map(str, self.before.unmet), *("%s (removed)" % name for name in self.before.obsolete)]
        lines = (self.changes or requested) + ["%s (hold)" % name for name in self.before.unheld]
        return "".join("%s\n" % line for line in lines)


class TransactionError(Exception):
    """The transaction was refused or failed. `details`: more results for the user, such as `unplanned`."""

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message)
        self.details = details


class RefusedError(TransactionError):
    """The transaction was refused and nothing was changed; code, found and remedy are those of a problem."""

    def __init__(self, code: str, found: str, remedy: str, **details: Any) -> None:
        problem = {"code": code, "message": found, "remedy": remedy}
        super().__init__("Nothing was changed: %s\n%s" % (found, remedy), problem=problem, **details)


class Transaction:
    """One transaction. `directory` holds the journal; `undo`: undo what fails; `check`: report, change nothing."""

    def __init__(
        self, request: PackageRequest, manager: PackageManager, directory: str, undo: bool = True, check: bool = False
    ) -> None:
        tools = map(Package, manager.tools if request.packages else ())
        self.request = request._replace(helpers=[*request.helpers, *tools])
        self.manager, self.directory = manager, directory
        self.manager.planned = request.names
        self.undo, self.check = undo, check
        self.unfinished = ""  # what could not be finished of an interrupted run
        self.reinstalled = False
        self.unmet = UnmetDependencies([], [])
        self.fix = False  # those may be repaired
        self.left_out: list[str] = []
        self.foreign: list[str] = []  # the packages that somebody else holds
        self.repaired: list[Change] = []
        self.freed: list[str] = []  # what removed metapackages depend on

    def run(self) -> Result:
        """Bring the packages to their versions. Raise TransactionError, whose message states what was undone."""
        if self.check:
            return self._run()
        try:
            what = "the installation of packages"
            with transaction_lock.hold(self.directory, what, self.manager.lock_timeout) as record:
                result = self._run()
                record["changes"] = len(result.changes)
        except ValueError as error:  # the lock is not free
            raise TransactionError(str(error)) from error
        return result

    def _run(self) -> Result:
        try:
            before = self.state()
            if not before.remaining:
                return Result(before, before, [], [])
            if not self.check:
                self.manager.wait_for_locks()
            with tempfile.TemporaryDirectory(prefix="gpuhost-packages-") as preferences:
                os.chmod(preferences, 0o755)  # the package manager's unprivileged user reads it
                changes, not_kept = self._change(before, preferences)
            after = self.state()
        except PackageError as error:
            raise self._error(str(error), rc=error.rc, make_logs=error.make_logs) from error
        except ValueError as error:
            raise self._error(str(error)) from error
        if after.remaining and not self.check:
            found = (self.manager.words.NAME, ", ".join(after.remaining))
            raise self._error("%s succeeded, but these packages are not as planned: %s" % found)
        before = before._replace(unmet=[package for package in before.unmet if package.name not in self.left_out])
        return Result(before, after, changes, not_kept, self.left_out)

    def state(self) -> PackageState:
        """Return the installed packages and what remains to do for the request."""
        packages = self.manager.packages()
        unmet = decisions.unmet([*self.request.wanted, *self._parts(packages)], packages)
        provided = [p for p in self.request.helpers if p.name not in packages and self.manager.is_provided(p.name)]
        unmet = [package for package in unmet if package not in provided]
        unheld = self._unheld(packages)
        return PackageState(packages, unmet, self._obsolete(packages), unheld, self._damaged(packages, unmet))

    def _unheld(self, packages: dict[str, InstalledPackage]) -> list[str]:
        """Return what the request holds and is not on hold, or by a stale lock of gpuhost."""
        names = [package.name for package in self.request.pins + self.request.packages]
        foreign = foreign_holds(packages, store.journal(self.directory))
        held = {name for name, state in packages.items() if state.held and (not state.lock_is_stale or name in foreign)}
        return [name for name in names + self._dependencies_to_hold(names, packages) if name not in held]

    def _damaged(self, packages: dict[str, InstalledPackage], unmet: list[Package]) -> list[Package]:
        """Return the damaged packages of this request that no other change replaces, in their versions."""
        replaced = [package.name for package in unmet]
        parts = [name for name in self.request.reinstall if name in packages and packages[name].held]
        names = self.request.names + [n for n in parts if decisions.matches(n, self.request.hold_dependencies)]
        return [
            Package(name, packages[name].version)
            for name in self.request.reinstall
            if not self.reinstalled and name in names and name in packages and name not in replaced
        ]

    def _parts(self, packages: dict[str, InstalledPackage]) -> list[Package]:
        """Return those of `versions` that are there, that are not on hold by others, and not requested by name."""
        names = {*self.request.names, *self.foreign}
        there = {name for name, state in packages.items() if state.is_installed} - names
        return [package for package in self.request.versions if package.name in there]

    def _follow(self, bound: dict[str, str]) -> None:
        """Add the versions of the parts that are held, such as those of a driver that goes back to an older patch.

        A newer one meets `>=`, and apt would leave it.
        """
        known = {package.name for package in self.request.versions}
        parts = [
            Package(name, version)
            for name, version in sorted(bound.items())
            if name not in known and decisions.matches(name, self.request.hold_dependencies)
        ]
        self.request = self.request._replace(versions=[*self.request.versions, *parts])

    def _dependencies_to_hold(self, names: list[str], packages: dict[str, InstalledPackage]) -> list[str]:
        return decisions.dependencies(names, packages, self.request.hold_dependencies)

    def _obsolete(self, packages: dict[str, InstalledPackage]) -> list[str]:
        """Return what the request replaces, and what earlier transactions removed and were interrupted before purging.

        The plan of the next run does not replace the latter: only their settings are left. Settings of a package that
        somebody else holds stay: they are purged without a simulation.
        """
        journal = store.journal(self.directory)
        replaced = decisions.replaced(self.request.names, packages, self.request.replaces)
        left = [name for name in journal if name in packages and name not in self.request.names]
        settings = [name for name in left if packages[name].has_only_settings and name not in replaced]
        pins = self._obsolete_pins(packages)
        found = pins + [name for name in replaced + sorted(settings) if name not in pins]
        foreign = foreign_holds(packages, journal)
        return [name for name in found if not (packages[name].has_only_settings and name in foreign)]

    def _obsolete_pins(self, packages: dict[str, InstalledPackage]) -> list[str]:
        return decisions.replaced(self.request.names, packages, self.request.pins_replace)

    def _error(self, message: str, **details: Any) -> TransactionError:
        if self.unfinished:
            message += "\nAn earlier interrupted run could not be finished:\n%s" % self.unfinished
        return TransactionError(message, **details)

    # The steps ----------------------------------------------------------------------------------------------------

    def _change(self, before: PackageState, preferences: str) -> tuple[list[str], list[str]]:
        """Run every step from the simulation to the holds; return (changes, packages whose files were not kept)."""
        journal = store.journal(self.directory)
        self.foreign = foreign_holds(before.packages, journal)
        if before.changes_packages:
            self._refuse_unfinished(before, journal)
            if self.check and any(state.unfinished for state in before.packages.values()):
                return [], []  # finished first, which cannot be simulated
        if not self._make_available(before):
            self.unmet = self.manager.unmet()
            self._refuse_unmet(journal)
            return [], []
        exact = self.manager.versions_to_bind([*self.request.wanted, *self.request.versions])
        exact.update((package.name, package.version) for package in self.request.versions if package.version)
        if before.changes_packages:
            self._follow(exact)
            before = self.state()
        # The preferences of an installed one are the host's, and no repository need be there for them.
        pins = [pin for pin in self.request.pins if pin in [*before.unmet, *before.damaged]]
        self.manager.bind(preferences, pins, self._obsolete_pins(before.packages), exact)
        if before.changes_packages and not self.check:
            self.unfinished = self.manager.recover(before.packages)
            before = self.state()
        changes: list[Change] = []
        if before.changes_packages:
            self.unmet = self.manager.unmet()
            before, changes = self._simulate(before, list(exact), journal)
        described = [change.describe() for change in self.repaired + changes]
        replaced = {change.name: change.old for change in changes if change.old}
        not_kept: list[str] = []
        if self.undo:
            lost = self.manager.lost(replaced) if self.check else self.manager.keep(replaced)
            not_kept = self._refuse_no_return(before, lost)
        if self.check:
            return described, not_kept
        automatic = self.manager.automatic()
        freed = [name for name in self.freed if name in automatic]
        changing = [change.name for change in changes]
        states = restore.states(changing + [n for n in freed if n not in changing], before.packages, automatic)
        store.record_packages(self.directory, states)
        if changes:
            self._install(before, states)
        self.manager.mark("manual", freed)  # else `apt-get autoremove` removes them
        # Left are the settings of what an interrupted run removed, and of what is removed to resolve conflicts.
        restore.purge_settings(self.manager, sorted({*before.obsolete, *self._obsolete(self.manager.packages())}))
        self._hold(before, automatic)
        return described, not_kept

    def _refuse_unfinished(self, before: PackageState, journal: Journal) -> None:
        """Refuse a host with unfinished packages of others: they would be finished, and no simulation shows how."""
        others = foreign_unfinished(before.packages, self.request.names, journal)
        if others:
            listed = ", ".join("%s is %s" % (name, before.packages[name].status) for name in others)
            raise RefusedError(
                "packages-broken",
                "%s and left packages of others unfinished, which %s would finish, too: %s"
                % (self.manager.words.INTERRUPTED, self.manager.words.NAME, listed),
                self.manager.words.FINISH,
            )

    def _refuse_unmet(self, journal: Journal) -> None:
        """Refuse a host on which the dependencies of packages of others are not met: they could be removed."""
        others = [name for name in self.unmet.names if name not in self.request.names and name not in journal]
        if others:
            raise RefusedError(
                "packages-broken",
                "dependencies of %s are not met, and this change does not meet them (%s):\n%s"
                % (", ".join(others), self.manager.words.CHECK, "\n".join(self.unmet.lines)),
                self.manager.words.REPAIR,
            )

    def _make_available(self, before: PackageState) -> bool:
        """Refresh the package lists if they lack a version; return False where check mode must not do that."""
        # What is installed and whole need not be on offer any more for a repair.
        wanted = (before.unmet if before.damaged else self._wanted(before)) + [
            package for package in before.damaged if not self.manager.is_kept(package)
        ]
        names = [package.name for package in wanted]
        offered = self.manager.offered(names)
        missing = decisions.not_offered(wanted, offered)
        if not missing and all(name in offered for name in names):
            return True
        if self.check:
            return False
        failed = self.manager.update()
        missing = decisions.not_offered(wanted, self.manager.offered(names))
        if missing:
            raise self._error(
                "No configured repository offers these versions:\n  %s\nCheck the repository's configuration, or plan "
                "again: a plan takes only versions that the repository offers.%s"
                % ("\n  ".join(missing), "\n" + failed if failed else "")
            )
        return True

    def _wanted(self, before: PackageState) -> list[Package]:
        """Return what to install.

        A helper that is there stays as it is, and need not be on offer any more, and so does what somebody else holds.
        """
        held = [package for package in self.request.wanted if package.name in self.foreign]
        there = {*self.request.helpers, *held} - set(before.unmet)
        parts = [package for package in self._parts(before.packages) if package in before.unmet]
        return [package for package in self.request.wanted if package not in there] + parts

    def _operation(self, before: PackageState) -> Operation:
        """Return what to change; where something is installed again, only what is not there: all of it would be."""
        return Operation(
            install=tuple(before.unmet if before.damaged else self._wanted(before)),
            restore=tuple(before.damaged),
            remove=tuple(before.obsolete),
            purge=bool(before.obsolete),
            reinstall=bool(before.damaged),
            fix=self.fix,
        )

    def _brings_kernel(self, changes: list[Change]) -> bool:
        names = self.request.names
        return any(self.manager.is_kernel(change.name) and change.name not in names for change in changes)

    def _without_other_kernels(self, before: PackageState) -> PackageState:
        """Leave out the metapackages that follow updates of the kernel where they would install another one.

        A plan takes none of those. But the lists may be newer now, or there were none, as in many images of servers.
        """
        helpers = [package for package in before.unmet if package in self.request.helpers]
        following = [package for package in helpers if self.manager.follows_kernels(package.name)]
        left_out = [p for p in following if self._brings_kernel(self.manager.simulate(Operation((p,), fix=self.fix)))]
        self.left_out = [package.name for package in left_out]
        self.request = self.request._replace(helpers=[p for p in self.request.helpers if p not in left_out])
        return before._replace(unmet=[package for package in before.unmet if package not in left_out])

    def _first_simulation(self, before: PackageState, journal: Journal) -> tuple[PackageState, list[Change]]:
        """Return what remains to do, and the changes; repair first what is gpuhost's where these do not meet it.

        Every operation is then refused: what is in its version already is no change, whatever it lacks.
        """
        try:
            return before, self.manager.simulate(self._operation(before))
        except PackageError:
            if not self.unmet.lines:
                raise
        self._refuse_unmet(journal)
        before = self._repair(before, journal)
        if self.check and self.repaired:
            return before, []
        try:
            return before, self.manager.simulate(self._operation(before))
        except PackageError:
            self.fix = True
            return before, self.manager.simulate(self._operation(before))

    def _repair(self, before: PackageState, journal: Journal) -> PackageState:
        """Meet the dependencies of gpuhost's packages, if that changes no package but these."""
        ours = {*self.request.names, *journal}
        try:
            repair = self.manager.simulate(Operation(fix=True))
        except PackageError:  # the planned packages may be the solution
            return before
        if not repair or any(change.name not in ours or change.name in self.foreign for change in repair):
            return before
        self.repaired = repair
        if self.check:
            return before
        states = restore.states([change.name for change in repair], before.packages, self.manager.automatic())
        store.record_packages(self.directory, states)
        if self.undo:
            self.manager.keep({change.name: change.old for change in repair if change.old})
        try:
            self.manager.install(Operation(fix=True))
        except PackageError as error:  # such as a kernel module that does not build: it may be replaced now
            self.unfinished = "\n".join(text for text in (self.unfinished, str(error)) if text)
        return self.state()

    def _simulate(self, before: PackageState, exact: list[str], journal: Journal) -> tuple[PackageState, list[Change]]:
        """Return what remains to do, and the changes. Raise TransactionError if one of them is unexpected.

        exact: the names of the exact dependencies of the request.
        """
        before, changes = self._first_simulation(before, journal)
        if self._brings_kernel(changes):
            before = self._without_other_kernels(before)
            if self.left_out:
                changes = self.manager.simulate(self._operation(before))
        ours = (
            self.request.names
            + [package.name for package in self._parts(before.packages)]
            + [package.name for package in before.damaged]
            + before.obsolete
            + self._dependencies_to_hold(self.request.names, before.packages)
            # After an interrupted run the package may be gone whose part this one is.
            + [name for name in exact if decisions.matches(name, self.request.hold_dependencies)]
        )
        removed = [change.name for change in changes if change.new is None]
        metas = self.manager.metapackages([n for n in removed if decisions.matches(n, [*self.request.metas])])
        self.freed = decisions.freed(metas, removed, before.packages)
        may_remove = self.request.may_remove + [re.escape(name) for name in before.obsolete + metas]
        held = self.foreign + [
            name
            for name, state in before.packages.items()
            if state.held and name not in ours and not decisions.matches(name, may_remove)
        ]
        unexpected = decisions.unexpected(changes, self.request.names, may_remove, held, self.manager.is_kernel)
        described = self.manager.describe(self._operation(before))
        if unexpected:
            raise self._refusal(described, unexpected)
        self._refuse_other_versions(changes, described)
        missing = decisions.missing(
            self.request.needs, self.request.needs_version, before.packages, changes, self.manager.is_of_release
        )
        if missing:
            raise RefusedError(
                "transaction-refused",
                "after installing %s the host would have no package with %s of version %s; %s "
                "would change\n  %s"
                % (
                    described,
                    " and ".join(missing),
                    ", ".join(self.request.needs_version),
                    self.manager.words.NAME,
                    "\n  ".join(change.describe() for change in changes),
                ),
                "the repository's packages of this version are incomplete, such as a metapackage without dependencies: "
                "choose another version or source of the driver",
                missing=missing,
            )
        return before, changes

    def _refuse_no_return(self, before: PackageState, lost: dict[str, str]) -> list[str]:
        """Refuse to replace packages that no rollback could restore; return those for which that is accepted.

        lost: why, by name. A package that is not wholly installed is no state to go back to.
        """
        whole = {name: why for name, why in lost.items() if before.packages[name].status == "installed"}
        refused = {name: why for name, why in whole.items() if name not in self.request.accept_no_return}
        if refused:
            listed = ["%s %s: %s" % (name, before.packages[name].version, why) for name, why in refused.items()]
            raise RefusedError(
                "cannot-go-back",
                "these packages would be replaced, no repository offers them any more, and they cannot be packed again "
                "from their files, so that nothing could restore them:\n  %s" % "\n  ".join(listed),
                "Repair them, add a repository that offers them, or accept that with gpu_stack_accept_no_return=[%s]."
                % ", ".join(refused),
            )
        return ["%s %s" % (name, before.packages[name].version) for name in lost]

    def _refuse_other_versions(self, changes: list[Change], described: str) -> None:
        """Refuse versions that are not those of the request, as where no repository offers these any more."""
        wanted = {package.name: package.version for package in self.request.versions}
        other = [change for change in changes if change.new and wanted.get(change.name, change.new) != change.new]
        if other:
            listed = ["%s, and not %s" % (change.describe(), wanted[change.name]) for change in other]
            raise RefusedError(
                "transaction-refused",
                "installing %s would bring\n  %s" % (described, "\n  ".join(listed)),
                "The repositories offer no such version: use a mirror that keeps it, or another file of versions.",
                unplanned=[change.describe() for change in other],
            )

    def _refusal(self, described: str, unexpected: list[Change]) -> RefusedError:
        kernels = [change for change in unexpected if self.manager.is_kernel(change.name)]
        held = sorted(change.name for change in unexpected if change.name in self.foreign)
        remedies = []
        if kernels:
            remedies.append(
                "gpuhost installs no other kernel. Run this again, since %s's lists may be newer than those of the "
                "plan, or install that kernel and boot it first." % self.manager.words.NAME
            )
        if held:
            remedies.append(self.manager.words.release(held))
        if any(change not in kernels and change.name not in held for change in unexpected):
            remedies.append("Remove the packages of others, or allow their removal, then run this again.")
        listed = [change.describe() for change in unexpected]
        return RefusedError(
            "package-held" if held else "transaction-refused",
            "installing %s would also change\n  %s" % (described, "\n  ".join(listed)),
            " ".join(remedies),
            unplanned=listed,
        )

    def _install(self, before: PackageState, states: dict[str, Any]) -> None:
        """Run one transaction; on failure restore `states`.

        A failure that changed nothing is tried once more with fresh lists: everything is downloaded before the first
        package is unpacked, and a repository that was published again in between has files of another size.
        """
        operation = self._operation(before)
        self.manager.discard_preferences([package.name for package in before.damaged])
        os.sync()  # what was written before the transaction must survive a power failure in the middle of it
        try:
            try:
                self.manager.install(operation)
            except PackageError as error:
                if not self._failed_unchanged(error, before):
                    raise
                self.manager.update()
                self.manager.install(operation)
        except PackageError as error:
            unchanged = self._failed_unchanged(error, before)
            outcome = "No package was changed." if unchanged else self._restore(states)
            raise self._error("%s\n%s" % (error, outcome), rc=error.rc, make_logs=error.make_logs) from error
        self.reinstalled = True

    def _failed_unchanged(self, error: PackageError, before: PackageState) -> bool:
        """Return whether the package manager ended by itself and changed no package."""
        return error.ended and self.manager.packages() == before.packages

    def _restore(self, states: dict[str, Any]) -> str:
        """Undo the transaction; return the outcome in words."""
        if not self.undo:
            return "It was not undone, because gpu_stack_rollback (the option undo) is false: the next run finishes it."
        self.manager.report("undoing the failed installation")
        self.manager.unbind()  # the preferences of the new packages must not bind the undo
        try:
            try:
                restore.restore(self.manager, states, self.foreign)
            except PackageError:
                # A killed run must be finished before another one can work. The first attempt goes without, because
                # finishing it builds a failed kernel module again, which takes minutes.
                self.manager.recover(self.manager.packages())
                restore.restore(self.manager, states, self.foreign)
        except (PackageError, ValueError) as error:
            return "It could not be undone: %s\nThe next run tries to finish the change." % error
        return "It was undone: all %d packages of the transaction are in their state before it." % len(states)

    def _hold(self, before: PackageState, automatic: set[str]) -> None:
        """Hold what the request holds, and what was held before it was installed again."""
        after = self.state()
        damaged = [package.name for package in before.damaged]
        lost = [n for n in damaged if before.packages[n].held and not after.packages[n].held and n not in after.unheld]
        unheld = after.unheld + lost
        store.record_packages(self.directory, restore.states(unheld, after.packages, automatic))
        self.manager.mark("hold", unheld)

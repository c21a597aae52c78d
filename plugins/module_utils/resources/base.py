# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""What the kinds of resources share: how two states of one are compared, and what a person reads of it.

A resource is a thing that a part of the stack manages: a file, a package, a service. Its kind is one module of this
directory, which alone knows how it is read, which differences are damage, and how it is repaired and restored. A state
is JSON, and None where there is nothing. Runs on the managed host.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, Iterable, Iterator, Mapping, NamedTuple

from ansible_collections.gpuhost.stack.plugins.module_utils.base.command import Run
from ansible_collections.gpuhost.stack.plugins.module_utils.model.state import Repairs
from ansible_collections.gpuhost.stack.plugins.module_utils.resources.effects import Effects, RunCommand

NAMED = 3  # how many damaged files a message names

States = Dict[str, Any]  # {key: state} of a kind
# What a part watches, as an option or a record names it: {name: keys}, {name: {key: planned state}}, or {name: whether}
# of what a host has once; null is nothing. `environments` are links to directories, `trees` directories;
# `exact_packages` those of `packages` whose version is planned; `driver` what is loaded, `modules` NVIDIA's modules.
Watch = Mapping[str, Any]


class Host(NamedTuple):
    """The host below the directory `root`, and what runs its commands."""

    root: str
    run: Run


class Begun(NamedTuple):
    """What a run found that began to change a part, and did not complete.

    states: of the resources of a kind that differed then; same_inputs: whether it was to apply the recorded inputs.
    """

    states: Mapping[str, Any]
    same_inputs: bool


class Difference(NamedTuple):
    """A difference between the recorded and the present state of a resource.

    name: as gpu_stack_accept_damage has it; text: the sentence that a person reads. is_damage: neither gpuhost nor the
    system's own upgrades cause it.
    """

    kind: str
    key: str
    name: str
    text: str
    is_damage: bool
    repairs: Repairs


@dataclasses.dataclass
class Restoration:
    """A rollback, as the kinds take part in it; with `check` nothing is changed.

    run_command: AnsibleModule's. effects: what has to follow, recorded before the change. packages: the states that the
    one transaction brings packages to. warnings: what is not restored, a sentence each. found: {kind: {key: state}} of
    what the last complete run recorded, as it was before this change and the unfinished ones that preceded it.
    """

    host: Host
    run_command: RunCommand
    effects: Effects
    check: bool
    packages: States = dataclasses.field(default_factory=dict)
    warnings: list[str] = dataclasses.field(default_factory=list)
    found: Mapping[str, States] = dataclasses.field(default_factory=dict)

    def run(self, command: list[str]) -> None:
        """Run a command. Raise ValueError if it fails: fail_json would leave no record of the transaction's result."""
        rc, _out, err = self.run_command(command)
        if rc:
            raise ValueError("`%s` failed with status %d: %s" % (" ".join(command), rc, err.strip()))

    def warn(self, text: str) -> None:
        """Add a warning, once."""
        self.warnings += [text] if text not in self.warnings else []


class Kind:
    """A kind of resource. The defaults are those of something that only gpuhost changes, and that its role repairs."""

    name: str  # in records
    title: str  # before the key, in names and sentences
    watches: tuple[str, ...]  # what it reads of what is watched
    is_long = False  # whether its states are recorded apart, as seldom read texts of thousands of lines
    is_foreign = False  # a setting of others, which no run of gpuhost brings into a damaged state
    record = ""  # the name of its states in the baseline and the verified configuration, "" for what is not restored
    follows_packages = False  # whether it is restored after the packages alone, which bring it

    def read(self, host: Host, watch: Watch) -> States:
        """Return the present states of what is watched."""
        raise NotImplementedError

    def differing(self, wanted: States, now: States) -> Iterable[str]:
        """Return the keys of what differs."""
        return [key for key in sorted({*wanted, *now}) if wanted.get(key) != now.get(key)]

    def found(self, wanted: States, now: States) -> States:
        """Return what is to be known later of the states that differ when a run begins."""
        return {key: now.get(key) for key in self.differing(wanted, now)}

    def is_damage(self, key: str, wanted: Any, now: Any, watch: Watch) -> bool:
        """Return whether a difference is damage, which a run brings back to the recorded state."""
        return True

    def text(self, key: str, wanted: Any, now: Any) -> str:
        """Return the sentence about a difference."""
        if isinstance(wanted, dict) and isinstance(now, dict):
            fields = [field for field in sorted({*wanted, *now}) if wanted.get(field) != now.get(field)]
            wanted, now = ({field: state.get(field) for field in fields} for state in (wanted, now))
        return "%s was %s, is %s" % (self.name_of(key), _shown(wanted), _shown(now))

    def left(self, key: str, wanted: Any, now: Any, begun: Begun) -> str:
        """Return the sentence about what is still as a run found it, "" for what that run has changed.

        With other variables or files than recorded, what it found may be right.
        """
        is_left = begun.same_inputs and key in begun.states and begun.states[key] == now
        return self.text(key, wanted, now) if is_left else ""

    def contents(self, host: Host, watch: Watch) -> dict[str, dict[str, str]]:
        """Return {key: {path: what is wrong}} of the content of files, which `read` does not look into."""
        return {}

    def unanswered(self, states: States) -> str:
        """Return why the states are not known, "" where they are."""
        return ""

    def repairs(self, host: Host, key: str, wanted: Any, now: Any) -> Repairs:
        """Return what roles need to know for the repair."""
        return Repairs()

    def capture(self, host: Host, watch: Watch, secrets: bool) -> States:
        """Return the states for a record, of which `write` restores; secrets: with the content of secret ones."""
        return self.read(host, watch)

    def is_same(self, before: States, now: States) -> bool:
        """Return whether records are of the same host; a release may record more than the one before it."""
        return all(before[key] == now[key] for key in before.keys() & now.keys())

    def write(self, work: Restoration, wanted: States) -> list[str]:
        """Bring resources into captured states; return what differed, as text. Raise ValueError where that fails.

        Before the packages change, and again after it, as their scripts may have changed it back.
        """
        raise NotImplementedError

    def reinstate(self, host: Host, watch: Watch, resources: Dict[str, States]) -> None:
        """Put what restoring leaves in another state than recorded into `resources`, the recorded ones of a part."""

    def name_of(self, key: str) -> str:
        """Return the name of a resource."""
        return ("%s %s" % (self.title, key)).rstrip()

    def differences(
        self, host: Host, wanted: States, now: States, watch: Watch, begun: Begun | None = None
    ) -> Iterator[Difference]:
        """Yield what differs; what an unfinished run has changed itself is no damage."""
        for key in self.differing(wanted, now):
            before, state = wanted.get(key), now.get(key)
            text, is_damage = self.text(key, before, state), self.is_damage(key, before, state, watch)
            if is_damage and begun is not None and not self.is_foreign:
                left = self.left(key, before, state, begun)
                text, is_damage = left or text, bool(left)
            yield Difference(self.name, key, self.name_of(key), text, is_damage, self.repairs(host, key, before, state))


def name_files(thing: str, wrong: Mapping[str, str]) -> str:
    """Return a sentence that names the first few of the files {path: what is wrong}."""
    named = ["%s %s" % pair for pair in sorted(wrong.items())[:NAMED]]
    more = len(wrong) - len(named)
    return "%s: %s%s" % (thing, "; ".join(named), "; and %d more" % more if more else "")


def _shown(state: Any) -> str:
    if state is None:
        return "missing"
    if isinstance(state, dict):
        return " ".join("%s=%s" % (field, str(state[field])[:40]) for field in sorted(state))
    return "; ".join(state).replace("\\\n", "") if isinstance(state, list) else str(state)

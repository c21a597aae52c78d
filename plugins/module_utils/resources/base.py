# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""What the kinds of resources share: how two states of one are compared, and what a person reads of it.

A resource is a thing that a part of the stack manages: a file, a package, a service. Its kind is one module of this
directory, which alone knows how it is read, which differences are damage, and how they are repaired. A state is JSON,
and None where there is nothing. Runs on the managed host.
"""

from __future__ import annotations

from typing import Any, Dict, Iterable, Iterator, Mapping, NamedTuple

from ansible_collections.gpuhost.stack.plugins.module_utils.base.command import Run
from ansible_collections.gpuhost.stack.plugins.module_utils.model.state import Repairs

NAMED = 3  # how many damaged files a message names

States = Dict[str, Any]  # {key: state} of a kind
# What a part watches, as an option or a record names it: {name: keys}, or {name: whether} of what a host has once; null
# is nothing. `environments` are links to directories, `trees` directories; `exact_packages` those of `packages` whose
# version is planned; `driver` what is loaded, `modules` the files of NVIDIA's modules.
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


class Kind:
    """A kind of resource. The defaults are those of something that only gpuhost changes, and that its role repairs."""

    name: str  # in records
    title: str  # before the key, in names and sentences
    watches: tuple[str, ...]  # what it reads of what is watched
    is_long = False  # whether its states are recorded apart, as seldom read texts of thousands of lines
    is_foreign = False  # a setting of others, which no run of gpuhost brings into a damaged state

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

    def repairs(self, host: Host, key: str, wanted: Any, now: Any) -> Repairs:
        """Return what roles need to know for the repair."""
        return Repairs()

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

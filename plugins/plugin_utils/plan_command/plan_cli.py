"""script/plan: plan for a described host, without a host and without Ansible.

Exit status 0: a plan; 1: no plan, or one that the host of --probe refuses; 2: bad usage. Uses no network.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

from ansible_collections.gpuhost.stack.plugins.module_utils.base import playbook_call
from ansible_collections.gpuhost.stack.plugins.module_utils.model.plan import Plan
from ansible_collections.gpuhost.stack.plugins.module_utils.model.records import to_json
from ansible_collections.gpuhost.stack.plugins.module_utils.model.request import PlanInputError
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia import foreign_driver
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.loader import CATALOG_FOLDER, CatalogError
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.schema import Catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components import adoption
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs import saved_versions, user_request
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.catalogs import load_catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.declared import of_runs
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.saved_versions import Saved
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.user_request import Reading
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.plans import host_of, plan_for_reading
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.host import Host, HostGpu
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.probe import Probe
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.user_variables import PREFIX
from ansible_collections.gpuhost.stack.plugins.plugin_utils.plan_command.plan_options import (
    ARCHITECTURE,
    HOST_OPTIONS,
    parser,
)
from ansible_collections.gpuhost.stack.plugins.plugin_utils.plan_command.typed_gpus import find_gpus, find_switches
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning import variables
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.plan_diff import plan_diff
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.plan_matrix import matrix, support
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.preflight import checks
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.preflight.model import Options
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.presentation.outlook import outlook
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.presentation.plan_screen import (
    HostView,
    Style,
    plan_screen,
)
from ansible_collections.gpuhost.stack.plugins.plugin_utils.report import durations
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver import distributions

_PROBE_EXPECTED = "expected a host's probe.json, as in reports/RUN/HOST/probe.json, or what script/capture wrote there"


class UsageError(Exception):
    """Options that cannot be used."""

    def __init__(self, mistakes: Sequence[str]) -> None:
        super().__init__("; ".join(mistakes))
        self.mistakes = mistakes


def _request(pairs: Sequence[str], catalog: Catalog, mistakes: list[str]) -> Reading:
    """Return the request of the options; adds what is wrong with them to the mistakes."""
    given: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = (part.strip() for part in pair.partition("="))
        name = name.removeprefix(PREFIX)
        if not equals:
            mistakes.append(f"--request {pair!r}: expected NAME=VALUE, such as cuda=13.2")
        elif given.get(name, value) != value:
            mistakes.append(f"--request gives {name}={given[name]} and {name}={value}; expected one of them")
        elif why := variables.not_ours(name):
            mistakes.append(why)
        elif name in of_runs():
            mistakes.append(
                f"{PREFIX}{name} changes no plan, and script/plan does not read it; set it in the inventory"
            )
        else:
            given[name] = value
    read = user_request.read(given, catalog)
    mistakes += read.errors.values()
    return read


LONGEST = 1000  # characters; Python reads no number of thousands of digits


def make_plan(arguments: argparse.Namespace, catalog: Catalog) -> tuple[Plan, Probe | None]:
    """Return the plan for a command line, and the probe of the host, if it has one.

    Raises UsageError for values that cannot be used.
    """
    if mistakes := _too_long(arguments):
        raise UsageError(mistakes)
    request = _request(arguments.request, catalog, mistakes)
    probe, host = None, None
    if arguments.probe is None:
        host = _described_host(arguments, catalog, mistakes)
    else:
        probe, host = _probed_host(arguments, catalog, request, mistakes)
    saved = _saved_versions(arguments.versions, mistakes)
    if mistakes or host is None:
        raise UsageError(mistakes)
    return plan_for_reading(catalog, request, host, saved), probe


def _too_long(arguments: argparse.Namespace) -> list[str]:
    """Return the mistakes of values that are longer than anything that describes a host."""
    found = []
    for name in HOST_OPTIONS:
        given = getattr(arguments, name) or ()
        for value in [given] if isinstance(given, str) else given:
            if len(value) > LONGEST:
                option = f"--{name.replace('_', '-')} {value[:20]!r}..."
                found.append(f"{option}: {len(value):,} characters; expected at most {LONGEST}")
    return found


def _saved_versions(path: str | None, mistakes: list[str]) -> Saved | None:
    """Return the content of the file of --versions, if any; adds what is wrong with it to the mistakes."""
    try:
        return Saved.read(Path(path)) if path else None
    except PlanInputError as error:
        mistakes.append(f"--versions {error}")
        return None


def _save_versions(arguments: argparse.Namespace, plan: Plan, probe: Probe | None, catalog: Catalog) -> None:
    """Write the file of --save-versions for a plan without problems; raises UsageError where it cannot be written."""
    architecture = probe.architecture if probe else arguments.arch
    try:
        text = saved_versions.text(plan, architecture or ARCHITECTURE, probe, catalog)
        Path(arguments.save_versions).write_text(text, encoding="utf-8")
    except PlanInputError as error:
        raise UsageError([f"--save-versions: {error}"]) from error
    except OSError as error:
        raise UsageError([f"--save-versions {arguments.save_versions}: {error.strerror}"]) from error


def _probe(path: str) -> Probe:
    found = json.loads(Path(path).read_text(encoding="utf-8"))
    is_capture = isinstance(found, dict) and "capture" in found
    return Probe.from_json(found["probe"] if is_capture else found)


def _probed_host(
    arguments: argparse.Namespace, catalog: Catalog, read: Reading, mistakes: list[str]
) -> tuple[Probe | None, Host | None]:
    """Return a probe, which may come from a pipe, and its host; adds what is wrong with the options to the mistakes."""
    given = [f"--{name.replace('_', '-')}" for name in HOST_OPTIONS if getattr(arguments, name)]
    if given:
        mistakes.append(
            f"--probe describes the host completely; remove {', '.join(given)}, or leave --probe out to describe a host"
        )
    try:
        probe = _probe(arguments.probe)
        return probe, host_of(catalog, read.request, probe)
    except OSError as error:
        mistakes.append(f"--probe {arguments.probe}: {error.strerror}; {_PROBE_EXPECTED}")
    except (ValueError, RecursionError) as error:  # not UTF-8, not JSON, or not a probe
        mistakes.append(f"--probe {arguments.probe}: {error}; {_PROBE_EXPECTED}")
    return None, None


def _described_host(arguments: argparse.Namespace, catalog: Catalog, mistakes: list[str]) -> Host:
    """Return the host of the options; adds what is wrong with them to the mistakes."""
    if not arguments.distro:
        mistakes.append(
            f"--distro is missing; one of {', '.join(catalog.distros)} (or --probe FILE, a host's probe.json)"
        )
    elif meant := distributions.meant(catalog, distributions.of_text(catalog, arguments.distro)[0]):
        mistakes.append(f"--distro {arguments.distro!r}; did you mean {meant}?")
    known = catalog.cpu.known_architectures
    if arguments.arch not in (None, *known):
        mistakes.append(f"--arch {arguments.arch!r}: expected one of {', '.join(known)}, as uname -m prints it")
    gpus: list[HostGpu] = []
    for text in arguments.gpu:
        try:
            gpus += find_gpus(catalog, text)
        except PlanInputError as error:
            mistakes.append(str(error))
    switches = find_switches(catalog, arguments.pci, mistakes)
    for name, like in (("python", "3.12"), ("kernel", "6.8.0-90-generic"), ("next_kernel", "6.8.0-90-generic")):
        value = getattr(arguments, name)
        if value is not None and not re.fullmatch(r"\d+\.\d+[\w.+~-]*", value, re.ASCII):
            mistakes.append(f"--{name.replace('_', '-')} {value!r}: expected a version such as {like}")
    loaded = arguments.loaded_driver
    if loaded is not None and not re.fullmatch(r"\d{3}(\.\d+)+", loaded, re.ASCII):
        mistakes.append(
            f"--loaded-driver {loaded!r}: expected a whole version such as 580.95.05, as in /proc/driver/nvidia/version"
        )
    python = ".".join(arguments.python.split(".")[:2]) if arguments.python else None
    distribution, release = distributions.of_text(catalog, arguments.distro or "")
    return Host(
        distribution=distribution,
        distribution_release=release,
        architecture=arguments.arch or ARCHITECTURE,
        gpus=tuple(gpus),
        nvswitches=switches.nvswitches,
        switch_managers=switches.managers,
        pythons=(python,) if python else (),
        default_python=python,
        kernel=arguments.kernel,
        next_kernel=arguments.next_kernel,
        secure_boot={"on": "enabled", "off": "disabled"}.get(arguments.secure_boot, "unknown"),
        loaded_driver=loaded,
        foreign_driver=foreign_driver.of_kernel(arguments.kernel or ""),
        described=True,
    )


def _filled(data: Any) -> Any:
    """Return text, or data with text, with the commands of the playbooks that it names."""
    return playbook_call.fill(data, playbook_call.in_a_clone)


def _view(plan: Plan, probe: Probe) -> HostView:
    """Return the diff and the preflight that a probed host would get."""
    diff = plan_diff(plan, probe)
    findings = (checks.without_change if adoption.is_asked(plan.request) else checks.preflight)(
        plan, probe, diff, Options()
    )
    minutes = durations.typical_minutes(Path("reports"), diff.changes)
    expected = outlook(plan, diff, probe)
    return HostView(diff, expected, warnings=findings.warnings, refused=findings.problems, minutes=minutes)


def _screen(arguments: argparse.Namespace, plan: Plan, view: HostView | None, out: TextIO) -> str:
    """Return the plan for people."""
    is_terminal = out.isatty()
    columns = max(shutil.get_terminal_size((80, 24)).columns, 60) if is_terminal else 80
    style = Style(columns, is_terminal and "NO_COLOR" not in os.environ, arguments.why, fill=_filled)
    pairs = [PREFIX + pair.strip().removeprefix(PREFIX) for pair in arguments.request]
    pairs += [f"{PREFIX}versions_file={Path(arguments.versions).absolute()}"] if arguments.versions else []
    command = playbook_call.in_a_clone("gpu_host", pairs)
    then = f"{command} --limit HOST" if view else f"{command}, with the host in inventories/lab/hosts.yml"
    return plan_screen(plan, view, style=style, then=then)


def _document(plan: Plan, view: HostView | None) -> dict[str, Any]:
    """Return the plan as JSON, with what the preflight of a probed host finds."""
    document = plan.to_json()
    if view:
        document["problems"] += to_json(view.refused)
        document["warnings"] += to_json(view.warnings)
        document["ok"] = plan.ok and not view.refused
    return dict(_filled(document))


def main(argv: Sequence[str] | None = None, out: TextIO = sys.stdout, err: TextIO = sys.stderr) -> int:
    """Run the command and return its exit status."""
    try:
        arguments = parser().parse_args(argv)
    except SystemExit as stop:
        return int(stop.code or 0)
    try:
        catalog = load_catalog(CATALOG_FOLDER)
        if arguments.matrix:
            print(matrix(catalog) if arguments.matrix == "full" else support(catalog), end="", file=out)
            return 0
        plan, probe = make_plan(arguments, catalog)
        if arguments.save_versions and plan.ok:
            _save_versions(arguments, plan, probe, catalog)
    except UsageError as error:
        print(*(f"script/plan: {mistake}" for mistake in error.mistakes), sep="\n", file=err)
        return 2
    except CatalogError as error:
        print(f"script/plan: {error}", file=err)
        return 2
    view = _view(plan, probe) if probe else None
    text = json.dumps(_document(plan, view), indent=2) if arguments.json else _screen(arguments, plan, view, out)
    print(text, file=out)
    return 1 if not plan.ok or (view and view.refused) else 0

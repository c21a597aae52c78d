"""Ask the product about a host, through its front doors alone: script/plan, the probe, the checks, a training."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from ansible_collections.gpuhost.stack.plugins.module_utils import probe as host_probe
from ansible_collections.gpuhost.stack.plugins.module_utils.model.packages import Repository
from ansible_collections.gpuhost.stack.plugins.module_utils.model.records import to_json
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia import nvidia_smi
from ansible_collections.gpuhost.stack.plugins.plugin_utils.actions import role_lists
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.facts import probe_options, repositories
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.catalogs import load_catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.plan_command import plan_cli
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.parts.managed import parts

from tests.field import hosts
from tests.unit.matrix.host import NVIDIA_SMI, Host
from tests.unit.matrix.training import TrainingHost

PROJECT = Path(__file__).parents[2]
PASS = "pass"


@dataclasses.dataclass(frozen=True)
class Answer:
    """What the product says.

    ok: a plan without problems, checks of which none failed. problems, warnings: their codes. checks: the outcomes of
    those that did not pass, with the cause of a failure. text: all that people read.
    """

    ok: bool
    text: str
    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    checks: Mapping[str, str] = dataclasses.field(default_factory=dict)


def _plan(words: list[str]) -> Answer:
    """Run script/plan, once for its document and once for its screen."""
    out, err, screen = io.StringIO(), io.StringIO(), io.StringIO()
    if plan_cli.main([*words, "--json"], out, err) == 2:
        return Answer(False, err.getvalue(), ("usage",))
    plan_cli.main([*words, "--why"], screen, err)
    document = json.loads(out.getvalue())
    del document["request"]  # what was asked is no answer
    codes = {kind: tuple(found["code"] for found in document[kind]) for kind in ("problems", "warnings")}
    # Unwrapped: what is said may be longer than a line of the screen.
    texts = [json.dumps(document, indent=1, ensure_ascii=False), re.sub(r"\s*\n\s+", " ", screen.getvalue())]
    return Answer(document["ok"], "\n".join(texts), **codes)


def _requested(report: Mapping[str, Any]) -> list[str]:
    return [word for name, value in report.get("request", {}).items() for word in ("--request", f"{name}={value}")]


def plan(report: Mapping[str, Any], _root: Path) -> Answer:
    """Ask script/plan about a host that its options describe: `options`, as they are typed."""
    return _plan([*map(str, report["options"]), *_requested(report)])


def preflight(report: Mapping[str, Any], root: Path) -> Answer:
    """Probe the host as a run does, and ask script/plan about that probe: plan, diff and preflight."""
    words = report.get("host", {})
    if "capture" in words:  # the file that script/capture wrote on the host itself
        hosts.check_words(words, ("capture",))
        return _plan(["--probe", words["capture"], *_requested(report)])
    hosts.lay_out(root, words)
    catalog = load_catalog()
    listed = {name: role.managed for name, role in role_lists.roles().items()}
    managed = {name: {"services": part.get("services", [])} for name, part in parts(listed).items()}
    machine = hosts.machine(words)
    urls = {name: each[machine] for name, each in repositories(catalog).items() if machine in each}
    given: dict[str, Any] = {**probe_options(catalog), "repositories": urls if "lists" in words else {}}
    # No archive is reached from a test; what apt has in its lists is read.
    given |= {"kernel_header_offers": "lists" in words, "repository_check": False}
    options = host_probe.Options(**given, managed=managed)
    run = hosts.answering(root, words)
    with _uname(machine), _own_nvidia_smi(root, is_probe="nvidia-smi" in words.get("answers", {})):
        probed = to_json(host_probe.probe(str(root), options, run))
    # Of the machine that the tests run on.
    plenty = {"free_mib": 10**6, "total_mib": 10**6, "mount": "/"}
    probed["disk"] = dict.fromkeys(probed["disk"], plenty)
    for path, space in words.get("disk", {}).items():
        probed["disk"][path] = {"free_mib": space["free"], "total_mib": space["total"], "mount": path}
    if error := words.get("repository_error"):  # the server's answer, which a directory cannot give
        url = repositories(catalog)[words.get("distribution", "ubuntu-24.04")][machine]
        probed["repository"] = to_json(Repository(url, error=error))
    probed |= {"uid": 0, "toolchain": {**probed["toolchain"], "gcc": None}}
    (root / "probe.json").write_text(json.dumps(probed))
    return _plan(["--probe", str(root / "probe.json"), *_requested(report)])


def verify(report: Mapping[str, Any], root: Path) -> Answer:
    """Ask all checks of an installed host."""
    host = Host(root)
    hosts.change(host, report.get("host", {}))
    with _own_nvidia_smi(root):
        return _checked(host.verify(), root)


def training(report: Mapping[str, Any], root: Path) -> Answer:
    """Train on an installed host, with a simulated worker."""
    host = TrainingHost(root)
    words = report.get("host", {})
    hosts.change(host, words)
    with _environment(words.get("environment", {})):
        return _checked(host.train(), root)


def _checked(found: dict[str, dict[str, Any]], root: Path) -> Answer:
    outcomes, texts = {}, []
    for name, check in found.items():
        if check["status"] != PASS:
            outcomes[name] = " ".join(str(check[key]) for key in ("status", "cause") if check.get(key))
        shown = check if name in outcomes else {key: check[key] for key in ("found", "reason") if key in check}
        texts.append(f"{name} {outcomes.get(name, PASS)}: {json.dumps(shown, ensure_ascii=False)}")
    failed = any(outcome.startswith(("fail", "unknown")) for outcome in outcomes.values())
    return Answer(not failed, "\n".join(texts).replace(str(root), ""), checks=outcomes)


@contextmanager
def _own_nvidia_smi(root: Path, is_probe: bool = False) -> Iterator[None]:
    """Let the host's own nvidia-smi be found, in place of the machine's; is_probe: answered by words of the report."""
    find, read = nvidia_smi.find, nvidia_smi.read
    path = root / NVIDIA_SMI
    nvidia_smi.find = lambda: str(path) if path.exists() else None
    if is_probe:
        nvidia_smi.read = lambda _path, run: read("/usr/bin/nvidia-smi", run)
    try:
        yield
    finally:
        nvidia_smi.find, nvidia_smi.read = find, read


@contextmanager
def _uname(machine: str) -> Iterator[None]:
    """Let this machine have another architecture, which no directory shows."""
    uname = os.uname
    os.uname = lambda: os.uname_result((*uname()[:4], machine))
    try:
        yield
    finally:
        os.uname = uname


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


ASK: dict[str, Callable[[Mapping[str, Any], Path], Answer]] = {
    "plan": plan,
    "preflight": preflight,
    "verify": verify,
    "training": training,
}


def differences(right: Mapping[str, Any], answer: Answer) -> list[str]:
    """Return how an answer differs from the right one, one line each; none where it is right.

    ok, and the list of problems, are exact; so are `checks`, by id or glob: what is not named must pass. Of the
    warnings those named must be there. says, never: regular expressions.
    """
    found = []
    if right["ok"] != answer.ok:
        found.append(f"ok: {answer.ok}, expected {right['ok']}")
    problems = sorted(right.get("problems", []))
    if problems != sorted(answer.problems):
        found.append(f"problems: {', '.join(answer.problems) or 'none'}, expected {', '.join(problems) or 'none'}")
    missing = [code for code in right.get("warnings", []) if code not in answer.warnings]
    if missing:
        found.append(f"warnings: {', '.join(answer.warnings) or 'none'}, expected {', '.join(missing)}, too")
    checks: Mapping[str, str] = right.get("checks", {})
    for name, outcome in answer.checks.items():
        expected = next((text for glob, text in checks.items() if fnmatch(name, glob)), PASS)
        if not fnmatch(outcome, expected):
            found.append(f"{name}: {outcome}, expected {expected}")
    for glob, outcome in checks.items():
        if outcome != PASS and not any(fnmatch(name, glob) for name in answer.checks):
            found.append(f"{glob}: pass, expected {outcome}")
    text = answer.text
    found += [f"does not say {wanted!r}" for wanted in right.get("says", []) if not re.search(wanted, text)]
    found += [f"says {unwanted!r}" for unwanted in right.get("never", []) if re.search(unwanted, text)]
    return found

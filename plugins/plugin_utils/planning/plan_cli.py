"""script/plan: plan for a described host, without a host and without Ansible.

Exit status 0: a plan (warnings allowed); 1: problems; 2: bad usage. Uses no network.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from ansible_collections.gpuhost.stack.plugins.plugin_utils import command_line, versions
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.loader import (
    CATALOG_FOLDER,
    CatalogError,
    load_catalog,
)
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.schema import Catalog, Product
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.host import Host, HostGpu, host_from_probe
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.plan import Plan, plan_table
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.probe import Probe
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.request import PlanInputError, Reading, Request
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.plan_matrix import matrix, support
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.resolve import plan_for_reading

_MOST = 8  # products that a message lists

HOST_OPTIONS = (
    "distro",
    "gpu",
    "python",
    "kernel",
    "next_kernel",
    "secure_boot",
    "loaded_driver",
)  # those that describe a host
_PROBE_EXPECTED = "expected a host's probe.json, as in reports/RUN/HOST/probe.json"


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    result = argparse.ArgumentParser(
        prog="script/plan",
        description="Plan the driver, CUDA, cuDNN, NCCL, TensorFlow and PyTorch of a GPU host from its description.",
        epilog="Exit status: 0 a plan (warnings allowed), 1 problems, 2 bad usage.",
        allow_abbrev=False,
    )
    result.add_argument("--distro", metavar="ID", help="distribution release, such as ubuntu-24.04")
    result.add_argument(
        "--gpu",
        action="append",
        default=[],
        metavar="GPU",
        help="a product name, a PCI id (10de:2330) or cc:X.Y; 8xH100 for eight; repeats",
    )
    result.add_argument(
        "--request",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a gpu_stack_* variable without its prefix, such as cuda=12.9; repeats",
    )
    result.add_argument("--python", metavar="X.Y", help="the host's Python (default: the distribution's)")
    result.add_argument("--kernel", metavar="RELEASE", help="the running kernel (default: the distribution's)")
    result.add_argument(
        "--next-kernel", metavar="RELEASE", help="the kernel that runs after a reboot (default: the running one)"
    )
    result.add_argument(
        "--secure-boot", choices=("on", "off"), help="whether the firmware has Secure Boot enabled (default: unknown)"
    )
    result.add_argument("--loaded-driver", metavar="VERSION", help="the loaded NVIDIA driver (default: none)")
    result.add_argument(
        "--probe",
        metavar="FILE",
        help="probe.json of a host's evidence, in place of the options that describe a host: the host's own answer",
    )
    result.add_argument("--json", action="store_true", help="print the plan as JSON")
    result.add_argument(
        "--matrix",
        nargs="?",
        const="full",
        choices=("full", "short"),
        help="print what auto plans for every distribution release and GPU generation, as Markdown",
    )
    return result


def find_gpus(catalog: Catalog, text: str) -> tuple[HostGpu, ...]:
    """Return the GPUs for an option, a GPU or a number of them such as `8xH100`; raises PlanInputError."""
    counted = re.fullmatch(r"([1-9]\d{0,2})\s*[xX*\u00d7]\s*(\S.*)", text.strip())
    return (find_gpu(catalog, counted.group(2)),) * int(counted.group(1)) if counted else (find_gpu(catalog, text),)


def find_gpu(catalog: Catalog, text: str) -> HostGpu:
    """Return the GPU for a PCI id, `cc:X.Y` (or `sm_XY`) or a name; raises PlanInputError if unknown or ambiguous."""
    if match := re.fullmatch(r"(?:0x)?10de:(?:0x)?([0-9a-f]{4})", text.strip().lower()):
        return HostGpu(f"10de:{match.group(1)}")
    if match := re.fullmatch(r"(?:cc:\s*(\d+)(?:\.(\d+))?|sm_?(\d+)(\d))", text.strip().lower()):
        major, minor = match.group(1) or match.group(3), match.group(2) or match.group(4) or "0"
        return _by_capability(catalog, f"{major}.{minor}")
    return _by_name(catalog, text)


def _by_capability(catalog: Catalog, capability: str) -> HostGpu:
    known = [c for a in catalog.gpu.architectures for c in a.compute_capabilities]
    if capability not in known:
        raise PlanInputError(
            f"no GPU has compute capability {capability}; known: {', '.join(sorted(known, key=versions.key))}"
        )
    return HostGpu(f"cc:{capability}", compute_capability=capability)


def _words(name: str) -> str:
    return " ".join(w for w in re.split(r"[\s/-]+", name.lower()) if w not in ("nvidia", "geforce", "tesla", ""))


def _by_name(catalog: Catalog, text: str) -> HostGpu:
    """Match the exact name, then the name without NVIDIA, GeForce and Tesla, then without blanks, then parts of it."""
    products = sorted(catalog.products.values(), key=lambda p: (p.source != "supported-gpus.json", p.device))
    products += [dataclasses.replace(catalog.products[n.device], name=n.name) for n in catalog.gpu_names]
    wanted = _words(text)
    tests = (
        lambda p: p.name.lower() == text.strip().lower(),
        lambda p: _words(p.name) == wanted,
        lambda p: _words(p.name).replace(" ", "") == wanted.replace(" ", ""),
        lambda p: f" {wanted} " in f" {_words(p.name)} ",
        lambda p: set(wanted.split()) <= set(_words(p.name).split()),
        lambda p: re.search(rf"(^| ){re.escape(wanted)}[a-z]( |$)", _words(p.name)),  # K40 for K40m, K40c
    )
    for test in tests if wanted else ():
        found = [p for p in products if test(p)]
        kinds = {(p.compute_capability, p.kernel_modules, p.last_driver_branch) for p in found}
        if len(kinds) > 1:
            raise PlanInputError(
                f"the name {text!r} fits GPUs of different generations: {_listed(found)}; give one of these names, or "
                "a PCI id"
            )
        if found:
            return HostGpu(f"10de:{found[0].device}")
    near = _similar(wanted, products)
    raise PlanInputError(
        f"no GPU has the name {text!r}; expected a product's name, a PCI id such as 10de:2330 (`lspci -n -d 10de:` "
        "shows it) or cc:9.0" + (f". Did you mean {_listed(near)}?" if near else "")
    )


def _similar(wanted: str, products: Sequence[Product]) -> list[Product]:
    """Return the products that have most words of a name, above all its numbers; else those that are spelt like it."""
    words = set(wanted.split())

    def common(product: Product) -> tuple[int, int]:
        shared = {word for word in words if any(w.startswith(word) for w in _words(product.name).split())}
        return sum(any(c.isdigit() for c in word) for word in shared), len(shared)

    best = max(map(common, products), default=(0, 0))
    named = products if best[0] == 0 else [p for p in products if common(p) == best]
    spelt = difflib.get_close_matches(wanted, [_words(p.name) for p in named], _MOST, 0.6 if best[0] == 0 else 0.0)
    return [next(p for p in named if _words(p.name) == name) for name in dict.fromkeys(spelt)]


def _listed(products: Sequence[Product]) -> str:
    """Return the products by name, each with its compute capability and a PCI id, the newest first."""
    named: dict[str, Product] = {}
    for product in products:
        named.setdefault(product.name, product)
    ordered = sorted(named.values(), key=lambda p: versions.key(p.compute_capability), reverse=True)
    shown = ", ".join(f"{p.name} ({p.compute_capability}, 10de:{p.device})" for p in ordered[:_MOST])
    return shown + (f" and {len(ordered) - _MOST} more" if len(ordered) > _MOST else "")


def _distribution(catalog: Catalog, text: str) -> str | None:
    """Return the distribution release that is written in another way, such as ubuntu24.04 or noble."""
    if text in catalog.distros:
        return None

    def plain(name: str) -> str:
        return re.sub(r"[^a-z0-9]", "", name.lower())

    return next(
        (d.id for d in catalog.distros.values() if plain(text) in (plain(d.id), plain(d.os_release.codename))), None
    )


def _request(pairs: Sequence[str]) -> Reading:
    values: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise PlanInputError(f"--request {pair!r}: expected NAME=VALUE, such as cuda=13.2")
        values[name.strip().removeprefix("gpu_stack_")] = value.strip()
    read = Request.read(values)
    if read.errors:
        raise PlanInputError("; ".join(read.errors.values()))
    return read


def make_plan(arguments: argparse.Namespace, catalog: Catalog) -> Plan:
    """Return the plan for a command line; raises PlanInputError for values that cannot be used."""
    if arguments.probe is not None:
        return plan_for_reading(catalog, _request(arguments.request), _probed_host(arguments))
    if not arguments.distro:
        raise PlanInputError(
            f"--distro is missing; one of {', '.join(catalog.distros)} (or --probe FILE, a host's probe.json)"
        )
    if meant := _distribution(catalog, arguments.distro):
        raise PlanInputError(f"--distro {arguments.distro!r}; did you mean {meant}?")
    return plan_for_reading(catalog, _request(arguments.request), _described_host(arguments, catalog))


def _probed_host(arguments: argparse.Namespace) -> Host:
    given = [f"--{name.replace('_', '-')}" for name in HOST_OPTIONS if getattr(arguments, name)]
    if given:
        raise PlanInputError(
            f"--probe describes the host completely; remove {', '.join(given)}, or leave --probe out to describe a host"
        )
    try:
        data = json.loads(Path(arguments.probe).read_text(encoding="utf-8"))
        return host_from_probe(Probe.from_json(data))
    except OSError as error:
        raise PlanInputError(f"--probe {arguments.probe}: {error.strerror}; {_PROBE_EXPECTED}") from error
    except ValueError as error:  # not UTF-8, not JSON, or not a probe
        raise PlanInputError(f"--probe {arguments.probe}: {error}; {_PROBE_EXPECTED}") from error


def _described_host(arguments: argparse.Namespace, catalog: Catalog) -> Host:
    gpus = tuple(gpu for text in arguments.gpu for gpu in find_gpus(catalog, text))
    for name, like in (("python", "3.12"), ("kernel", "6.8.0-90-generic"), ("next_kernel", "6.8.0-90-generic")):
        value = getattr(arguments, name)
        if value is not None and not re.fullmatch(r"\d+\.\d+[\w.+~-]*", value):
            raise PlanInputError(f"--{name.replace('_', '-')} {value!r}: expected a version such as {like}")
    loaded = arguments.loaded_driver
    if loaded is not None and not re.fullmatch(r"\d{3}(\.\d+)+", loaded):
        raise PlanInputError(
            f"--loaded-driver {loaded!r}: expected a whole version such as 580.95.05, as in /proc/driver/nvidia/version"
        )
    python = ".".join(arguments.python.split(".")[:2]) if arguments.python else None
    return Host(
        distribution=arguments.distro,
        gpus=gpus,
        pythons=(python,) if python else (),
        default_python=python,
        kernel=arguments.kernel,
        next_kernel=arguments.next_kernel,
        secure_boot={"on": "enabled", "off": "disabled"}.get(arguments.secure_boot, "unknown"),
        loaded_driver=loaded,
        described=True,
    )


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
        plan = make_plan(arguments, catalog)
    except (PlanInputError, CatalogError) as error:
        print(f"script/plan: {error}", file=err)
        return 2
    text = json.dumps(plan.to_json(), indent=2) if arguments.json else plan_table(plan, colour=out.isatty())
    print(text, file=out)
    return 0 if plan.ok else 1


if __name__ == "__main__":
    command_line.run(main)

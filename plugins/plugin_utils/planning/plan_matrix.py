"""The support table in Markdown: what `auto` plans for each distribution release and GPU generation.

script/plan --matrix prints it, script/docs copies it into the documents. Pure functions of the catalog.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence

from ansible_collections.gpuhost.stack.plugins.module_utils.model.components import (
    Components,
    CudaComponent,
    DriverComponent,
    PytorchComponent,
    TensorflowComponent,
)
from ansible_collections.gpuhost.stack.plugins.module_utils.model.plan import Plan
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base import versions
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base.tables import markdown_table
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.architectures import supported
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.schema import Catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.user_request import asking
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.plans import resolve
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.host import Host, HostGpu

# One compute capability for all of a generation that get the same versions: name, capability, examples.
GENERATIONS = (
    ("Kepler", "3.0", "GTX 680, GRID K520"),
    ("Kepler", "3.5", "K20, K40, K80"),
    ("Maxwell", "5.2", "GTX 980, M60"),
    ("Pascal", "6.1", "P100, GTX 1080"),
    ("Volta", "7.0", "V100"),
    ("Turing", "7.5", "T4, RTX 2080"),
    ("Ampere", "8.0", "A100, RTX 3090"),
    ("Ada", "8.9", "L40, RTX 4090"),
    ("Hopper", "9.0", "H100, H200"),
    ("Blackwell", "10.0", "B200, RTX 5090"),
    ("Rubin", "10.7", "GR100"),
)
ARCHITECTURE = "x86_64"  # of the short form
_HEAD = ("GPU", "driver", "CUDA", "cuDNN", "NCCL", "framework", "Python")


@dataclasses.dataclass(frozen=True)
class Row:
    """The plan for one generation on one distribution release; reason: why it has no framework, or is no plan."""

    distribution: str
    architecture: str
    generation: str
    examples: str
    plan: Plan
    reason: str


def families(catalog: Catalog) -> dict[str, list[str]]:
    """Return the distribution releases by the name of their file: one alone, or the members of a family."""
    found: dict[str, list[str]] = {}
    for distro in catalog.distros.values():
        found.setdefault(distro.file or distro.id, []).append(distro.id)
    return found


def rows(catalog: Catalog) -> Iterator[Row]:
    """Yield a row for each distribution release, CPU architecture and generation, in the catalog's order.

    Of a family its first member has the rows, since what `auto` selects is the same for all.
    """
    for distribution, *_others in families(catalog).values():
        for architecture, (generation, capability, examples) in itertools.product(
            supported(catalog, distribution), GENERATIONS
        ):
            gpu = HostGpu(f"cc:{capability}", compute_capability=capability)
            host = Host(distribution, architecture, gpus=(gpu,))
            yield Row(distribution, architecture, f"{generation} {capability}", examples, *_best(catalog, host))


def _best(catalog: Catalog, host: Host) -> tuple[Plan, str]:
    """Return the plan with TensorFlow, else without it, else without CUDA as well, else the refusal; and why."""
    first = resolve(catalog, asking(), host)
    if first.ok:
        return first, ""
    for request in (asking(tensorflow="none"), asking(tensorflow="none", cuda="none")):
        plan = resolve(catalog, request, host)
        if plan.ok:
            return plan, _short(first)
    return first, _short(first)


def _short(refused: Plan) -> str:
    """Return the problems of a plan in words that fit a table cell."""
    words = {
        "gpu-dropped-by-driver": "no driver offered here supports it",
        "gpu-too-new-for-driver": "no driver offered here supports it",
        "python-not-supported": "no TensorFlow for this Python",
        "no-lock": "PyTorch once you lock it",
        "host-toolchain-mismatch": "CUDA for it does not work with this compiler or glibc",
        "not-in-repository": "the CUDA it needs is not offered",
        "gpu-dropped-by-cuda": "the CUDA or the wheels offered here have no code for it",
        "gpu-too-old-for-tensorflow": "too old for a wheel of this Python",
        "tensorflow-cuda-mismatch": "the wheel's CUDA is not offered",
        "tensorflow-cudnn-mismatch": "the wheel's cuDNN is not offered",
        "driver-too-old-for-cuda": "its last driver is too old for the wheel's CUDA",
    }
    found = dict.fromkeys(words.get(p.code, p.code) for p in refused.problems)
    return "; ".join(found)


def _cells(row: Row) -> list[str]:
    parts = row.plan.components
    cells = [f"{row.generation} ({row.examples})"]
    if not row.plan.ok:
        return [*cells, "-", "-", "-", "-", f"none: {row.reason}", "-"]
    driver, cuda = DriverComponent.of(parts), CudaComponent.of(parts)
    tensorflow, pytorch = TensorflowComponent.of(parts), PytorchComponent.of(parts)
    cells.append(f"{driver.branch} {driver.kernel_modules}" if driver else "-")
    cells.append(cuda.version + _archive(cuda.source) if cuda else "-")
    cells += [versions.series(part.version, 3) if part else "-" for part in (parts["cudnn"], parts["nccl"])]
    if tensorflow:
        limited = next((r for r in tensorflow.requirements if "<=" in r), "")
        note = f" (cuDNN wheel at most {limited.partition('<=')[2]})" if limited else ""
        return [*cells, f"TensorFlow {tensorflow.version}{note}", tensorflow.python]
    if pytorch:
        return [*cells, f"PyTorch {pytorch.version}, CUDA {pytorch.cuda}", pytorch.python]
    return [*cells, f"none: {row.reason}" if row.reason else "-", "-"]


def _archive(source: str) -> str:
    return " (archive)" if source == "distro" else ""


def matrix(catalog: Catalog) -> str:
    """Return the whole table, one section for each distribution release, or family of them, and CPU architecture.

    Another architecture than that of the short form has the generations alone that it has a plan for.
    """
    lines: list[str] = []
    found = list(rows(catalog))
    for name, (distribution, *others) in families(catalog).items():
        distro = catalog.distros[distribution]
        python, glibc = distro.python.default, distro.glibc
        for architecture in supported(catalog, distribution):
            own = [row for row in found if (row.distribution, row.architecture) == (distribution, architecture)]
            title, software = f"### {name}", f"Python {python}, gcc {distro.gcc.default}, glibc {glibc}."
            if others:
                software = f"{', '.join(sorted((distribution, *others)))}. {software}"
            if architecture != ARCHITECTURE:
                title = f"{title} on {architecture}"
                own = [row for row in own if row.plan.ok]
            lines += [title, "", software, "", *markdown_table(_HEAD, map(_cells, own)), ""]
    return "\n".join(lines)


def support(catalog: Catalog) -> str:
    """Return the short form: a row for each generation, a column for each distribution release but EL's."""
    found = _short_columns(catalog)
    return _short_table(
        {name: cells for name, architecture, own, cells in found if own and architecture == ARCHITECTURE}
    )


def elsewhere(catalog: Catalog) -> str:
    """Return the short form's other columns, those of EL and of other architectures; equal ones are one."""
    merged: dict[tuple[str, ...], dict[str, list[str]]] = {}
    for name, architecture, own, cells in _short_columns(catalog):
        if not own or architecture != ARCHITECTURE:
            merged.setdefault(tuple(cells), {}).setdefault(architecture, []).append(name)
    heads = {
        "; ".join(f"{', '.join(names)} ({architecture})" for architecture, names in of.items()): list(cells)
        for cells, of in merged.items()
    }
    return _short_table(heads)


def _short_columns(catalog: Catalog) -> Iterator[tuple[str, str, bool, list[str]]]:
    """Yield the file of each distribution, an architecture, whether more than a plan is made there, and its cells."""
    found: dict[tuple[str, str], list[str]] = {}
    for row in rows(catalog):
        parts = row.plan.components if row.plan.ok else Components()
        driver, cuda = DriverComponent.of(parts), CudaComponent.of(parts)
        tensorflow, pytorch = TensorflowComponent.of(parts), PytorchComponent.of(parts)
        framework = tensorflow.version if tensorflow else "-"
        if pytorch:
            framework = f"PyTorch {pytorch.version}"
        cell = f"{driver.branch if driver else '-'}/{cuda.version if cuda else '-'}/{framework}"
        found.setdefault((row.distribution, row.architecture), []).append(cell)
    for name, (distribution, *_others) in families(catalog).items():
        for architecture in supported(catalog, distribution):
            own = not catalog.distros[distribution].planned_only
            yield name, architecture, own, found[distribution, architecture]


def _short_table(columns: Mapping[str, Sequence[str]]) -> str:
    table = []
    for number, (generation, _capability, examples) in enumerate(GENERATIONS):
        table.append([f"{generation} ({examples})", *(cells[number] for cells in columns.values())])
    return "\n".join(markdown_table(("driver/CUDA/TensorFlow", *columns), table)) + "\n"

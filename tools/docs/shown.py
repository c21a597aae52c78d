"""The table of what was shown where: each component on each distribution and CPU architecture.

A cell has the number of a reason where the catalog has a plan with the component for no GPU. Else it is what
docs/dev/shown.yml says, and planned where that says nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base.paths import PROJECT
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base.tables import markdown_table
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.architectures import supported
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.schema import Catalog, Distro
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.user_request import asking
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.plans import resolve
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.registry import BY_NAME
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.host import Host, HostGpu
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.plan_matrix import GENERATIONS

FILE = PROJECT / "docs" / "dev" / "shown.yml"
COMPONENTS = ("driver", "fabric", "cuda", "cudnn", "nccl", "tensorflow", "pytorch")
WORDS = {"real": "real", "shaped": "shaped"}
PLANNED = "planned"
# Hopper first, which has everything where anything has.
_CAPABILITIES = ("9.0", *(capability for _name, capability, _examples in GENERATIONS))
_SWITCHES = ("10de:22a3",) * 4


def table(catalog: Catalog, shown: Sequence[Mapping[str, Any]]) -> str:
    """Return the table in Markdown, and below it why something is refused, and what showed something."""
    how = _cells(shown)
    rows: dict[tuple[str, ...], list[str]] = {}
    reasons: dict[str, int] = {}
    for distro in catalog.distros.values():
        for architecture in supported(catalog, distro.id):
            cells = [_cell(catalog, distro, architecture, component, how) for component in COMPONENTS]
            for why in cells:
                if why not in (*WORDS.values(), PLANNED):
                    reasons.setdefault(why, len(reasons) + 1)
            numbered = [f"- ({reasons[cell]})" if cell in reasons else cell for cell in cells]
            rows.setdefault((distro.path, architecture, *numbered), []).append(distro.id)
    lines = [[", ".join(sorted(names)), *cells] for (_path, *cells), names in rows.items()]
    head = ("distribution", "architecture", *(BY_NAME[component].label for component in COMPONENTS))
    notes = [
        "Refused: " + "; ".join(f"({number}) {why}" for why, number in reasons.items()) + ".",
        "",
        *(f"- {WORDS[entry['how']]}: {_of(entry)}: {entry['by']}" for entry in shown),
    ]
    return "\n".join([*markdown_table(head, lines), "", *notes]) + "\n"


def read() -> list[dict[str, Any]]:
    """Return the entries of docs/dev/shown.yml."""
    entries: list[dict[str, Any]] = yaml.safe_load(FILE.read_text())["shown"]
    return entries


def _of(entry: Mapping[str, Any]) -> str:
    components = ", ".join(BY_NAME[component].label for component in entry["components"])
    return f"{components} on {', '.join(entry['distributions'])}"


def _cells(shown: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str, str], str]:
    """Return how a distribution, an architecture and a component were shown; raise ValueError for what no table has."""
    found: dict[tuple[str, str, str], str] = {}
    for entry in shown:
        for distribution, component in itertools.product(entry["distributions"], entry["components"]):
            if component not in COMPONENTS or entry["how"] not in WORDS:
                raise ValueError(
                    f"{FILE.name}: {entry['how']} {component}: expected one of {', '.join((*WORDS, *COMPONENTS))}"
                )
            found[distribution, entry["architecture"], component] = WORDS[entry["how"]]
    return found


def _cell(
    catalog: Catalog, distro: Distro, architecture: str, component: str, how: Mapping[tuple[str, str, str], str]
) -> str:
    known = how.get((distro.id, architecture, component))
    why = _refused(catalog, distro.id, architecture, component)
    if known and why:
        raise ValueError(f"{FILE.name}: {component} on {distro.id} is {known}, and {why}")
    return known or why or PLANNED


def _refused(catalog: Catalog, distribution: str, architecture: str, component: str) -> str:
    """Return why there is no plan with a component for any GPU."""
    why = ""
    for request, host in _asked(distribution, architecture, component):
        plan = resolve(catalog, request, host)
        if plan.ok and plan.components.get(component):
            return ""
        why = why or "; ".join(
            problem.message.removeprefix(f"{distribution}: ").replace(f" for {distribution}", "")
            for problem in plan.problems
        )
        why = why or "the catalog knows none in NVIDIA's repository"
    return why


def _asked(distribution: str, architecture: str, component: str) -> Iterator[tuple[Any, Host]]:
    frameworks = dict.fromkeys(("tensorflow", "pytorch"), "none")
    wanted = {**frameworks, component: "auto"} if component in frameworks else frameworks
    for capability in _CAPABILITIES:
        gpu = HostGpu(f"cc:{capability}", compute_capability=capability)
        switches = _SWITCHES if component == "fabric" else ()
        yield asking(**wanted), Host(distribution, architecture, gpus=(gpu,), nvswitches=switches)

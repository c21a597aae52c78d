"""The plan and what it is made from: request, host, components, findings; to JSON and to a text table.

Runs on the controller; pure functions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

SCHEMA = 1
COMPONENTS = ("driver", "cuda", "cudnn", "nccl", "tensorflow", "pytorch")
_REQUEST_CHOICES = {
    "tensorflow_cuda_libraries": ("auto", "wheel", "system"),
    "driver_source": ("auto", "nvidia", "distro"),
    "driver_kernel_modules": ("auto", "open", "proprietary"),
    "cuda_source": ("auto", "nvidia", "distro"),
    "leftovers": ("refuse", "remove"),
}


class PlanInputError(ValueError):
    """The request or the probe cannot be read; the message lists every reason."""


@dataclasses.dataclass(frozen=True)
class Request:
    """What the user wants; of each component `auto`, a version, a prefix of one, or `none`.

    keep_cuda: `all`, or how many toolkits stay; leftovers: whether what other installers left is removed or refused.
    """

    driver: str = "auto"
    cuda: str = "auto"
    cudnn: str = "auto"
    nccl: str = "auto"
    tensorflow: str = "auto"
    pytorch: str = "none"
    tensorflow_cuda_libraries: str = "auto"
    driver_source: str = "auto"
    driver_kernel_modules: str = "auto"
    cuda_source: str = "auto"
    keep_cuda: str = "all"
    leftovers: str = "refuse"
    expect_gpus: str = "auto"
    repository_url: str = "auto"
    repository_key_url: str = "auto"
    repository_key_fingerprint: str = "auto"

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Request:
        """Reads a mapping with the variables' names without `gpu_stack_`; raises PlanInputError."""
        request, wrong = cls.read(values)
        if wrong:
            raise PlanInputError("; ".join(wrong.values()))
        return request

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> tuple[Request, dict[str, str]]:
        """The request, wrong values left out of it, and by name what is wrong with each."""
        known = {f.name: str(f.default) for f in dataclasses.fields(cls)}
        strangers = {n: f"unknown request {n!r}; known: {', '.join(known)}" for n in values if n not in known}
        texts = {name: _request_text(name, values[name], known[name]) for name in known if name in values}
        wrong = {
            name: f"{name} is {text!r}; expected {e}" for name, text in texts.items() if (e := _expected(name, text))
        }
        return cls(**{name: text for name, text in texts.items() if name not in wrong}), {**strangers, **wrong}


def _expected(name: str, text: str) -> str | None:
    """What a request's value should be; None where it is."""
    choices = _REQUEST_CHOICES.get(name)
    if choices and text not in choices:
        return f"one of {', '.join(choices)}"
    if name in COMPONENTS and text not in ("auto", "none") and not all(part.isalnum() for part in text.split(".")):
        return "auto, none, a version or a prefix of one"
    if name == "expect_gpus" and text != "auto" and not text.isdecimal():
        return "auto or a number"
    if name == "keep_cuda" and text != "all" and not (text.isdecimal() and int(text) >= 1):
        return "all, or how many toolkits shall stay, at least 1"
    return None


def _request_text(name: str, value: Any, default: str) -> str:
    """YAML reads `13.2` as a number and an empty value as None."""
    if value is None or value == "":
        return "auto" if name in COMPONENTS else default
    text = str(value).strip()
    return text.lower() if text.lower() in ("auto", "none", "all") else text


@dataclasses.dataclass(frozen=True)
class HostGpu:
    """A GPU as the host shows it."""

    pci_id: str
    pci_address: str = ""
    name: str | None = None
    compute_capability: str | None = None


@dataclasses.dataclass(frozen=True)
class Host:
    """What of a host the resolver looks at. offers is None where no repository could be read."""

    distribution: str
    architecture: str = "x86_64"
    gpus: tuple[HostGpu, ...] = ()
    pythons: tuple[str, ...] = ()
    default_python: str | None = None
    gcc: int | None = None
    glibc: str | None = None
    kernel: str | None = None
    offers: Mapping[str, tuple[str, ...]] | None = None
    offers_error: str | None = None
    repository_url: str | None = None
    repository_configured: bool = False
    secure_boot: str = "unknown"
    loaded_driver: str | None = None


def host_from_probe(probe: Mapping[str, Any]) -> Host:
    """The resolver's view of a probe; raises PlanInputError where the probe lacks what a plan needs."""
    missing = [name for name in ("distribution", "gpus") if name not in probe]
    if "id" not in (probe.get("distribution") or {}):
        missing.append("distribution.id")
    if missing:
        raise PlanInputError(f"the probe lacks {', '.join(missing)}; expected the `probe` of gpuhost.stack.gpu_probe")
    repository = probe.get("repository") or {}
    offers = None
    if repository and not repository.get("error"):
        offers = {name: tuple(found) for name, found in (repository.get("packages") or {}).items()}
    toolchain, python = probe.get("toolchain") or {}, probe.get("python") or {}
    driver = probe.get("driver") or {}
    gcc = toolchain.get("gcc")
    return Host(
        distribution=probe["distribution"]["id"],
        architecture=probe.get("architecture") or "x86_64",
        gpus=_probe_gpus(probe["gpus"], (driver.get("nvidia_smi") or {}).get("gpus") or []),
        pythons=tuple((python.get("interpreters") or {}).keys()),
        default_python=python.get("default"),
        gcc=int(str(gcc).split(".")[0]) if gcc else None,
        glibc=toolchain.get("glibc"),
        kernel=(probe.get("kernel") or {}).get("running"),
        offers=offers,
        offers_error=repository.get("error") or None,
        repository_url=repository.get("url"),
        repository_configured=_is_configured(probe, repository.get("url")),
        secure_boot=probe.get("secure_boot") or "unknown",
        loaded_driver=(driver.get("loaded") or {}).get("version"),
    )


def _is_configured(probe: Mapping[str, Any], url: str | None) -> bool:
    """Whether the host's apt takes packages from NVIDIA's repository already."""
    entries = (probe.get("repository_files") or {}).get("entries") or []
    return url is not None and any(entry["uri"].rstrip("/") == url.rstrip("/") for entry in entries)


def _probe_gpus(devices: Iterable[Mapping[str, Any]], seen: Iterable[Mapping[str, Any]]) -> tuple[HostGpu, ...]:
    """Display and 3D controllers of NVIDIA's, with what a running driver says about each."""
    by_address = {gpu.get("pci_address"): gpu for gpu in seen}
    gpus = []
    for device in devices:
        if not str(device.get("class") or "03").startswith("03"):
            continue
        smi = by_address.get(device.get("pci_address")) or {}
        gpus.append(
            HostGpu(
                pci_id=device["pci_id"].lower(),
                pci_address=device.get("pci_address") or "",
                name=smi.get("name"),
                compute_capability=smi.get("compute_capability"),
            )
        )
    return tuple(gpus)


@dataclasses.dataclass(frozen=True)
class Problem:
    """Why there is no plan."""

    code: str
    message: str
    remedy: str


@dataclasses.dataclass(frozen=True)
class Remedy:
    """A change that was tried and plans: of the request, of the host (distribution, python, gpus), or of both."""

    text: str
    request: tuple[tuple[str, str], ...] = ()
    host: tuple[tuple[str, tuple[str, ...]], ...] = ()


@dataclasses.dataclass(frozen=True)
class PlanWarning:
    """What a user should know about a plan that can be carried out."""

    code: str
    message: str


@dataclasses.dataclass(frozen=True)
class Reason:
    """Why a component is as it is."""

    component: str
    choice: str
    because: str


@dataclasses.dataclass(frozen=True)
class Gpu:
    """A GPU that the catalog knows."""

    pci_id: str
    name: str
    compute_capability: str
    architecture: str
    kernel_modules: str
    last_driver_branch: str = ""


@dataclasses.dataclass(frozen=True)
class DriverComponent:
    """The driver to install."""

    version: str
    branch: str
    kernel_modules: str
    source: str
    packages: tuple[str, ...]
    pinning_packages: tuple[str, ...]
    kernel_headers: tuple[str, ...]
    apt_components: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class CudaComponent:
    """The CUDA toolkit to install."""

    version: str
    release: str
    source: str
    home: str
    packages: tuple[str, ...]
    host_compilers: tuple[str, ...]
    apt_components: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class LibraryComponent:
    """cuDNN or NCCL to install."""

    version: str
    packages: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class TensorflowComponent:
    """The TensorFlow environment to make."""

    version: str
    python: str
    cuda_libraries: str
    requirements: tuple[str, ...]
    lock: str


@dataclasses.dataclass(frozen=True)
class PytorchComponent:
    """The PyTorch environment to make."""

    version: str
    python: str
    cuda: str
    requirements: tuple[str, ...]
    lock: str


Component = DriverComponent | CudaComponent | LibraryComponent | TensorflowComponent | PytorchComponent


@dataclasses.dataclass(frozen=True)
class Plan:
    """What to do with a host, or why nothing can be done."""

    distribution: str
    request: Request
    gpus: tuple[Gpu, ...]
    components: Mapping[str, Component | None]
    repository: Mapping[str, str] | None
    reasons: tuple[Reason, ...]
    problems: tuple[Problem, ...]
    warnings: tuple[PlanWarning, ...]
    remedies: tuple[Remedy, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether the plan can be carried out."""
        return not self.problems

    def to_json(self) -> dict[str, Any]:
        """The plan as plain data, keys in a fixed order."""
        return {
            "schema": SCHEMA,
            "ok": self.ok,
            "distribution": self.distribution,
            "request": dataclasses.asdict(self.request),
            "gpus": [
                {name: getattr(gpu, name) for name in ("pci_id", "name", "compute_capability", "architecture")}
                for gpu in self.gpus
            ],
            "components": {name: _plain(self.components.get(name)) for name in COMPONENTS},
            "repository": dict(self.repository) if self.repository else None,
            "reasons": [_plain(reason) for reason in self.reasons],
            "problems": [_plain(problem) for problem in self.problems],
            "warnings": [_plain(warning) for warning in self.warnings],
            "remedies": [
                {"text": r.text, "request": dict(r.request), "host": {name: list(v) for name, v in r.host}}
                for r in self.remedies
            ],
        }


def _plain(value: Any) -> Any:
    if value is None:
        return None
    return {name: list(v) if isinstance(v, tuple) else v for name, v in dataclasses.asdict(value).items()}


LABELS = {
    "driver": "NVIDIA driver",
    "cuda": "CUDA toolkit",
    "cudnn": "cuDNN",
    "nccl": "NCCL",
    "tensorflow": "TensorFlow",
    "pytorch": "PyTorch",
}
_COLOURS = {"problem": "31", "warning": "33", "heading": "1", "remedy": "32"}


def plan_table(plan: Mapping[str, Any], colour: bool = False) -> str:
    """A plan's JSON as a table for people."""

    def paint(text: str, name: str) -> str:
        return f"\033[{_COLOURS[name]}m{text}\033[0m" if colour else text

    lines = [paint(f"{plan['distribution']}: {_gpu_summary(plan['gpus'])}", "heading")]
    because = {reason["component"]: reason["because"] for reason in plan["reasons"]}
    rows = [("COMPONENT", "VERSION", "FROM", "WHY")]
    for name in COMPONENTS:
        component = plan["components"][name]
        rows.append((LABELS[name], _choice(component), _origin(name, component), because.get(name, "")))
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    for row in rows:
        lines.append("  ".join(cell.ljust(width) for cell, width in zip(row, [*widths, 0], strict=True)).rstrip())
    for warning in plan["warnings"]:
        lines.append(paint(f"warning  {warning['code']}: {warning['message']}", "warning"))
    for problem in plan["problems"]:
        lines.append(paint(f"problem  {problem['code']}: {problem['message']}", "problem"))
        if not plan.get("remedies"):
            lines.append(f"         remedy: {problem['remedy']}")
    for remedy in plan.get("remedies", []):
        lines.append("         remedy: " + paint(remedy["text"], "remedy"))
    if not plan["ok"]:
        lines.append(f"No plan: {len(plan['problems'])} problem(s). Nothing has been changed.")
    return "\n".join(lines)


def _gpu_summary(gpus: Iterable[Mapping[str, str]]) -> str:
    counts: dict[str, int] = {}
    for gpu in gpus:
        label = f"{gpu['name']} ({gpu['compute_capability']})"
        counts[label] = counts.get(label, 0) + 1
    return ", ".join(f"{count} x {label}" for label, count in counts.items()) or "no GPU"


def _choice(component: Mapping[str, Any] | None) -> str:
    return "-" if component is None else component.get("release") or component["version"]


def _origin(name: str, component: Mapping[str, Any] | None) -> str:
    if component is None:
        return "-"
    if name == "driver":
        return f"{component['source']}, {component['kernel_modules']} modules"
    if name == "tensorflow":
        return f"Python {component['python']}, CUDA of the {component['cuda_libraries']}"
    if name == "pytorch":
        return f"Python {component['python']}, CUDA {component['cuda']}"
    return str(component.get("source", "nvidia"))

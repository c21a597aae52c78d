"""Properties on the live catalog: refusals have remedies, time stays linear. That plans are right: test_best_plan."""

from __future__ import annotations

import dataclasses
import gc
import sys

from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.loader import CATALOG_FOLDER, read_catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.catalogs import load_catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.user_request import asking
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.plans import resolve
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.host import Host, HostGpu
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.unit.plugin_utils.resolver.plain_catalog import raw
from tests.unit.plugin_utils.resolver.resolver_cases import GPUS, debian_offers
from tests.unit.requested import requested

DISTROS = sorted(load_catalog().distros)


def series(name, key, parts=2):
    """Return the versions of a catalog file, cut to series, as a user would request them."""
    found = {".".join(str(entry["version"]).split(".")[:parts]) for entry in raw(name)[key]}
    return ["auto", "auto", "none", *sorted(found)]


REQUESTS = st.fixed_dictionaries(
    {},
    optional={
        "driver": st.sampled_from(["auto", "none", *(b["branch"] for b in raw("driver")["branches"]), "999"]),
        "cuda": st.sampled_from([*series("cuda", "toolkits"), "12.7"]),
        "cudnn": st.sampled_from(series("cudnn", "versions")),
        "nccl": st.sampled_from(series("nccl", "builds")),
        "tensorflow": st.sampled_from(series("tensorflow", "releases")),
        "pytorch": st.sampled_from(series("pytorch", "releases")),
        "driver_source": st.sampled_from(["auto", "nvidia", "distro"]),
        "driver_kernel_modules": st.sampled_from(["auto", "open", "proprietary"]),
        "driver_profile": st.sampled_from(["auto", "compute", "full"]),
        "cuda_source": st.sampled_from(["auto", "nvidia", "distro"]),
        "tensorflow_cuda_libraries": st.sampled_from(["auto", "wheel", "system"]),
    },
)
HOSTS = st.builds(
    lambda distro, gpus, pythons, kernel: Host(
        distro,
        "x86_64",
        gpus=tuple(HostGpu(GPUS[g][0]) for g in gpus),
        pythons=pythons,
        default_python=(pythons or (None,))[0],
        kernel=kernel,
    ),
    st.sampled_from(DISTROS),
    st.lists(st.sampled_from(sorted(GPUS)), min_size=1, max_size=3),
    st.sampled_from([(), (), ("3.7",), ("3.11",), ("3.14",), ("3.9", "3.12")]),
    st.sampled_from([None, None, "6.11.0-26-generic", "6.18.5+deb13-amd64", "7.1.7+deb14-amd64"]),
)
GIVEN = settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


def applied(remedy, request, host):
    """Return the request and the host that a remedy changes to."""
    request = request.but(**dict(remedy.request))
    changes = dict(remedy.host)
    if "distribution" in changes:
        host = Host(changes["distribution"][0], "x86_64", gpus=host.gpus)
    if "python" in changes:
        distro = load_catalog().distros[host.distribution]
        own = host.pythons or distro.python.available
        default = host.default_python or distro.python.default
        host = dataclasses.replace(host, pythons=(*own, *changes["python"]), default_python=default)
    if "kernel" in changes:
        host = dataclasses.replace(host, kernel=changes["kernel"][0])
    if "gpus" in changes:
        host = dataclasses.replace(host, gpus=tuple(g for g in host.gpus if g.pci_id in changes["gpus"]))
    return request, host, changes.get("locks", ())


def holds(request, host, locks=()):
    """Return whether there is a plan, with further locks."""
    catalog = load_catalog()
    if locks:
        files = catalog.locks.files | {f"{name}.txt" for name in locks}
        catalog = dataclasses.replace(catalog, locks=dataclasses.replace(catalog.locks, files=files))
    return resolve(catalog, request, host).ok


@GIVEN
@given(host=HOSTS, asked=REQUESTS)
def test_the_same_question_has_the_same_answer_and_refusals_have_remedies_with_which_there_is_a_plan(host, asked):
    request = requested(asked)
    made = resolve(load_catalog(), request, host)
    assert made == resolve(load_catalog(), request, host)
    if made.ok:
        return
    assert made.problems
    assert made.remedies, [p.message for p in made.problems]
    for remedy in made.remedies:
        assert holds(*applied(remedy, request, host)), remedy
    texts = [r.text for r in made.remedies]
    assert all(p.remedy == "; or ".join(texts) for p in made.problems)


def _steps(catalog, hosts):
    """Return how many lines of Python planning these hosts executes: unlike time, independent of the machine's load."""
    request, count = asking(), 0

    def trace(_frame, event, _argument):
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    gc.disable()  # a collection may call back into Python
    sys.settrace(trace)
    try:
        for host in hosts:
            resolve(catalog, request, host)
    finally:
        sys.settrace(before)
        gc.enable()
    return count


def test_planning_stays_linear_in_the_hosts():
    """A host takes the same work however many were planned before it."""
    gpus = (HostGpu(GPUS["H200"][0]),) * 8
    hosts = [
        Host("debian-12", "x86_64", gpus=gpus, offers=debian_offers(), kernel=f"6.1.0-{n}-amd64")
        for n in range(1000, 1100)
    ]
    catalog = read_catalog(CATALOG_FOLDER)  # what other tests left in the caches belongs to other catalogs
    _steps(catalog, hosts[:10])  # the caches are warm
    first = _steps(catalog, hosts[10:20])
    for host in hosts[20:90]:
        resolve(catalog, asking(), host)
    assert first > 1000
    # A few comparisons depend on what other tests left in the caches. One line more for each of the 80 hosts that were
    # planned in between would be 800.
    assert abs(_steps(catalog, hosts[90:]) - first) < 100

"""Take PyTorch where no TensorFlow works and none is asked for, and keep it there.

Runs on the controller; pure functions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from ansible_collections.gpuhost.stack.plugins.module_utils.model.plan import Plan
from ansible_collections.gpuhost.stack.plugins.module_utils.model.request import Request
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.host import Present
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver import architectures
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.choices import Candidate
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.present import keeping
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.scenarios import Attempt


def is_in_place(request: Request, present: Present) -> bool:
    """Return whether the verified configuration has PyTorch in place of TensorFlow, which may stay so."""
    has_pytorch = present.verified.components.get("pytorch") is not None
    return has_pytorch and keeping.was_left_out(present, request, "tensorflow")


def attempts(request: Request, attempt: Attempt) -> list[Attempt]:
    """Return how remedies are planned: what gives a TensorFlow comes before what gives PyTorch in its place."""
    if request["pytorch"] != "fallback":
        return [attempt]
    return [lambda tried, there: attempt(tried.but(pytorch="none"), there), attempt]


def plan(
    request: Request,
    as_asked: Callable[[Request], Plan],
    tensorflows: Callable[[Plan], Sequence[Candidate]],
    has_releases: bool = True,
) -> Plan:
    """Return the plan for a request; where no TensorFlow works and none is asked for, it has PyTorch alone.

    as_asked: plans a request as it is; tensorflows: the candidates for the host of a plan; has_releases: whether the
    host's CPU architecture has any.
    """
    plan = as_asked(request)
    if plan.ok or request["pytorch"] == "none":
        return plan
    if (request["tensorflow"], request["tensorflow_cuda_libraries"]) != ("auto", "auto"):
        return plan
    if {problem.code for problem in plan.problems} == {"no-lock"}:  # it works, and its lock can be made
        return plan
    pytorch = "auto" if request["pytorch"] == "fallback" else request["pytorch"]
    other = as_asked(request.but(tensorflow="none", pytorch=pytorch))
    # Where the catalog has no TensorFlow, what is wrong besides decides, unless it has no more of other components.
    if not other.ok and not has_releases and {problem.code for problem in other.problems} != {architectures.CODE}:
        return dataclasses.replace(other, request=request)
    if {problem.code for problem in other.problems} == {"no-lock"}:  # PyTorch works, and its lock can be made
        return dataclasses.replace(plan, problems=tuple(dict.fromkeys((*plan.problems, *other.problems))))
    if not other.ok:  # where that is all about other components, PyTorch would be taken without them
        others = tuple(problem for problem in plan.problems if problem.code != "no-published-run")
        return dataclasses.replace(plan, problems=others or plan.problems)
    # Whatever is a problem here and none without TensorFlow is about TensorFlow.
    why = "; ".join(dict.fromkeys(problem.message for problem in plan.problems))
    # Those are of the closest release; the newest one may lack something else.
    found = tensorflows(plan)
    of_newest = found[0].problems if found else ()
    why = "; ".join([why, *(problem.message for problem in of_newest if problem.message not in why)])
    because = {"tensorflow": f"no release works here: {why}"}
    if request["pytorch"] == "fallback":
        because["pytorch"] = "in place of TensorFlow: " + next(
            r.because for r in other.reasons if r.component == "pytorch"
        )
    reasons = tuple(dataclasses.replace(r, because=because.get(r.component, r.because)) for r in other.reasons)
    return dataclasses.replace(other, request=request, reasons=reasons)

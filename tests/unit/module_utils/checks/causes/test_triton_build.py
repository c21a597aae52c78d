"""What PyTorch's Triton says without a compiler or Python's headers, and which packages the check names for it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.checks import model
from ansible_collections.gpuhost.stack.plugins.module_utils.checks.causes import triton_build
from ansible_collections.gpuhost.stack.plugins.module_utils.checks.pytorch_checks import TRITON
from syrupy.assertion import SnapshotAssertion

from tests.unit import plans
from tests.unit.module_utils.checks.contexts import probe_output

# Older releases of Triton compile copies in a temporary directory (sgl-project/sglang#1240).
NO_HEADERS_OLD = "Command '['/usr/bin/gcc', '/tmp/tmpiqsmmwlt/main.c', '-O3', '-I/usr/local/lib/python3.10/dist"
NO_HEADERS_UTILS = "Command '['/usr/bin/gcc', '/tmp/tmpx1k_9jbs/cuda_utils.c', '-O3', '-shared', '-fPIC', '-o', '/tmp/"
# Of Triton in the wheel 2.15.0, on a machine without each; shortened as the probe does it.
NO_HEADERS = "Command '['/usr/bin/gcc', '/opt/env/lib/python3.12/site-packages/triton/backends/nvidia/driver.c', '-O3'"
NO_COMPILER = "Failed to find C compiler. Please specify via CC environment variable or set triton.knobs.build.impl."
FOUND = {"compiler": "/usr/bin/gcc", "headers": "/usr/include/python3.12", "has_headers": True}


def explained(error: str, headers: tuple[str, ...] = ("python3.12-dev",), scope: str = "host", **found: Any) -> Any:
    """Return the check of two GPUs that failed with an error, on a host with these parts of FOUND changed."""
    planned = {"version": "2.15.0", "cuda": "13.2", "compiler_packages": ["gcc", "libc6-dev"]}
    planned["header_packages"] = list(headers)
    plan = plans.plan({"components": {"pytorch": planned}, "request": {"scope": scope}})
    results = [{"device": f"cuda:{n}", "error": error} for n in range(2)]
    output = probe_output(triton=results, compiles_with={**FOUND, **found})
    return triton_build.explain("/", plan, TRITON.compare(False, "", "", TRITON.remedy), output)


@pytest.mark.parametrize(
    ("error", "found", "package"),
    [
        (NO_HEADERS, {"has_headers": False}, "python3.12-dev"),
        (NO_HEADERS_OLD, {"has_headers": False}, "python3.12-dev"),
        (NO_HEADERS_UTILS, {"has_headers": False}, "python3.12-dev"),
        (NO_COMPILER, {"compiler": None}, "gcc libc6-dev"),
    ],
    ids=["headers", "headers, main.c", "headers, cuda_utils.c", "compiler"],
)
def test_the_package_is_named(error: str, found: dict[str, Any], package: str) -> None:
    ours, others = explained(error, **found), explained(error, scope="frameworks", **found)
    assert (ours.cause, others.cause) == (model.STACK, model.HOST)
    for check in ours, others:
        assert f"`apt-get install {package}`" in str(check.remedy)


@pytest.mark.parametrize(
    ("error", "found"),
    [
        ("Triton Error [CUDA]: device kernel image is invalid", {"has_headers": False}),
        ("Triton Error [CUDA]: device kernel image is invalid", {"compiler": None}),
        (NO_HEADERS, {}),  # a full /tmp
        (NO_HEADERS_OLD, {}),
        ("Command '['/usr/bin/gcc', '/tmp/tmpz/kernel.c', '-O3'", {"has_headers": False}),  # of other programs
        (NO_COMPILER, {}),
        ("", {"has_headers": False}),
    ],
)
def test_what_is_missing_and_not_the_reason_is_not_blamed(error: str, found: dict[str, Any]) -> None:
    check = explained(error, scope="frameworks", **found)
    assert (check.cause, check.remedy) == (model.STACK, TRITON.remedy)


def test_one_gpu_that_fails_of_something_else_is_not_explained() -> None:
    results = [{"device": "cuda:0", "error": NO_HEADERS}, {"device": "cuda:1", "difference": 0.5, "ran_on": "cuda:1"}]
    output = probe_output(triton=results, compiles_with={**FOUND, "has_headers": False})
    check = TRITON.compare(False, "", "", TRITON.remedy)
    assert triton_build.explain("/", plans.plan({"request": {"scope": "frameworks"}}), check, output) == check


def test_a_python_that_no_package_has_needs_its_own_headers(snapshot: SnapshotAssertion) -> None:
    check = explained(NO_HEADERS, (), has_headers=False)
    assert check.remedy == snapshot


TORCH = os.environ.get("GPUHOST_PYTORCH_PYTHON", "")
# Triton's library for CUDA, compiled as at its first kernel; the library needs no GPU to be made.
COMPILE = """
import json, sys, sysconfig
given = sysconfig.get_paths
if sys.argv[1:]:
    sysconfig.get_paths = lambda *words, **options: {**given(*words, **options), "include": sys.argv[1]}
from triton.backends.nvidia.driver import CudaUtils
try:
    CudaUtils()
except Exception as error:
    print(json.dumps(str(error).splitlines()[0][:300]))
"""


@pytest.mark.skipif(not shutil.which(TORCH), reason="no PyTorch here: GPUHOST_PYTORCH_PYTHON names one")
@pytest.mark.parametrize("missing", ["headers", "compiler"])
def test_triton_says_what_the_cause_expects(tmp_path: Path, missing: str) -> None:
    (tmp_path / "libcuda.c").write_text("int cuInit(unsigned flags) { return 0; }\n")
    words = ["gcc", "-shared", "-o", str(tmp_path / "libcuda.so.1"), str(tmp_path / "libcuda.c")]
    subprocess.run(words, check=True, capture_output=True)
    environment = {"HOME": str(tmp_path), "TRITON_LIBCUDA_PATH": str(tmp_path), "PATH": os.environ["PATH"]}
    arguments = [str(tmp_path)] if missing == "headers" else []
    if missing == "compiler":
        environment["PATH"] = str(tmp_path)
    ran = subprocess.run(
        [TORCH, "-c", COMPILE, *arguments], env=environment, capture_output=True, text=True, check=True
    )
    found = {"headers": {"has_headers": False}, "compiler": {"compiler": None}}[missing]
    assert "`apt-get install" in str(explained(json.loads(ran.stdout.splitlines()[-1]), **found).remedy)

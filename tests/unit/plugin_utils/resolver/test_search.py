"""Driver, toolkit and TensorFlow together."""

from __future__ import annotations

import re

import pytest

from tests.unit.plugin_utils.resolver.resolver_cases import (
    codes,
    debian_offers,
    picked,
    plan,
    plan_untried,
    reason,
    texts,
    with_published_run,
)


@pytest.mark.parametrize(
    "request_",
    [{"pytorch": "2.1"}, {"tensorflow": "2.2"}],
    ids=["exists only with the zero", "both exist"],
)
def test_a_zero_that_yaml_dropped_is_named(request_, snapshot):
    assert plan("ubuntu-24.04", "A100", **request_)["problems"][0]["message"] == snapshot


def test_a_zero_of_a_library_is_named(snapshot):
    (problem,) = plan("ubuntu-24.04", "A100", cudnn="9.1", cuda="13.0")["problems"]
    assert problem["code"] == "cudnn-cuda-mismatch"
    assert problem["message"] == snapshot


NEITHER = {"driver": "none", "cuda": "none"}


@pytest.mark.parametrize(
    ("distro", "gpus", "request_", "needs"),
    [
        ("ubuntu-22.04", ["K40c", "B200"], {"tensorflow": "none"}, ["CUDA 8.0 to 11.8", "CUDA 12.8 to 13.5"]),
        ("ubuntu-24.04", ["M60", "B200"], NEITHER, ["TensorFlow 2.16", "TensorFlow 2.20 to 2.21"]),
        (
            "ubuntu-22.04",
            ["M60", "B200"],
            {**NEITHER, "tensorflow_cuda_libraries": "wheel"},
            ["TensorFlow 2.14 to 2.16", "TensorFlow 2.20 to 2.21"],
        ),
        (
            "ubuntu-22.04",
            ["M60", "B200"],
            {**NEITHER, "tensorflow": "none", "pytorch": "auto"},
            ["PyTorch for CUDA 11.8 to 12.6", "PyTorch for CUDA 12.8 to 13.2"],
        ),
    ],
    ids=["CUDA", "TensorFlow", "TensorFlow's own libraries", "PyTorch"],
)
def test_gpus_that_nothing_serves_together_are_named_with_what_serves_each(distro, gpus, request_, needs):
    made = plan(distro, *gpus, catalog=with_published_run("2.20", "10.0"), **request_)
    assert set(codes(made)) == {"mixed-gpus-conflict"}
    message = next(p["message"] for p in made["problems"] if "serves all GPUs" in p["message"])
    assert re.findall(r"needs (.+?)(?:,|$)", message) == needs


def test_gpus_of_which_nothing_serves_one_are_no_mixed_gpus(snapshot):
    """A GRID K1, whose last driver was of branch 367, gets no plan without the T4 either."""
    made = plan_untried("ubuntu-22.04", "10de:0ff2", "T4", cuda="none", tensorflow="none")
    (problem,) = made["problems"]
    assert problem["code"] == "gpu-dropped-by-driver"
    assert problem["message"] == snapshot


MANY = tuple(f"580.{number}.01" for number in range(126, 136))


@pytest.mark.parametrize(
    ("distro", "offers", "request_"),
    [
        ("debian-12", None, {"driver": "545"}),
        ("debian-12", {}, {"driver": "545"}),
        ("debian-12", debian_offers(drivers=MANY), {"driver": "545"}),
        ("debian-12", debian_offers(), {"cudnn": "6"}),
        ("ubuntu-22.04", None, {"driver": "570", "driver_source": "distro"}),
        ("ubuntu-22.04", None, {"cuda": "12.4", "cuda_source": "distro"}),
    ],
    ids=["unread", "read, none", "read, the newest eight", "a library", "archive's drivers", "archive's CUDA"],
)
def test_what_is_offered_where_the_request_is_not(distro, offers, request_, snapshot):
    made = plan_untried(distro, "T4", offers=offers, tensorflow="none", **request_)
    assert codes(made) == ["not-in-repository"]
    assert texts(made["problems"]) == snapshot


# The choice ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "host", "nccl"),
    [
        ({"driver_source": "nvidia"}, {}, "2.13.4"),
        ({"driver_source": "distro"}, {}, None),
        ({"driver": "none"}, {}, None),
        ({"driver": "none"}, {"loaded_driver": "580.95.05"}, None),
    ],
    ids=["NVIDIA's driver", "the archive's driver", "no driver", "the loaded driver"],
)
def test_beside_the_archives_toolkit_nvidias_repository_is_used_only_for_a_driver_of_it(request_, host, nccl):
    made = plan("ubuntu-22.04", "A100", host=host, cuda_source="distro", tensorflow="none", **request_)
    assert made["ok"], made["problems"]
    assert (picked(made)["cuda"], picked(made)["nccl"]) == ("11.5.1", nccl)


@pytest.mark.parametrize(
    ("loaded", "tensorflow", "cuda"),
    [(None, "2.21.0", "13.5.0"), ("580.95.05", "2.21.0", "13.0.3"), ("535.309.01", "2.21.0", "12.2.2")],
    ids=["no driver", "580", "535"],
)
def test_the_toolkit_is_made_for_the_driver_that_stays(loaded, tensorflow, cuda, snapshot):
    made = plan("ubuntu-22.04", "A100", driver="none", host={"loaded_driver": loaded})
    assert made["ok"], made["problems"]
    assert (picked(made)["tensorflow"], picked(made)["cuda"]) == (tensorflow, cuda)
    chosen, because = reason(made, "driver")
    assert chosen == "none"
    assert because == snapshot


def test_a_host_without_gpus_gets_a_driver_only_on_request(snapshot):
    made = plan("ubuntu-22.04", expect_gpus="0", tensorflow="none")
    assert picked(made)["driver"] is None
    assert reason(made, "driver")[1] == snapshot
    made = plan("ubuntu-22.04", expect_gpus="0", tensorflow="none", driver="580")
    assert picked(made)["driver"] == "580.178.04"


# Conflicts ----------------------------------------------------------------------------------------------------------

FEW = {"tensorflow": "none"}


@pytest.mark.parametrize(
    ("distro", "gpu", "host", "request_"),
    [
        ("ubuntu-22.04", "A100", {}, {"driver": "470", "cuda": "12.4", **FEW}),
        ("ubuntu-22.04", "A100", {"loaded_driver": "470.256.02"}, {"driver": "none", "cuda": "12.4", **FEW}),
        ("ubuntu-22.04", "A100", {"loaded_driver": "390.157"}, {"scope": "frameworks"}),
        ("ubuntu-22.04", "A100", {"loaded_driver": "390.157"}, {"scope": "frameworks", "pytorch": "2.9", **FEW}),
        ("ubuntu-22.04", "A100", {}, {"driver": "470", "cuda_source": "distro", **FEW}),
        (
            "debian-12",
            "T4",
            {"kernel": "7.1.0-1", "offers": debian_offers(drivers=("580.126.16",))},
            {"cuda": "13.2", **FEW},
        ),
        (
            "debian-12",
            "T4",
            {"kernel": "6.1.0-1", "offers": debian_offers(drivers=("575.57.08",))},
            {"cuda": "13.2", "driver_source": "nvidia", **FEW},
        ),
    ],
    ids=["requested", "loaded", "TensorFlow", "PyTorch", "the archive's CUDA", "the kernel", "the repository"],
)
def test_a_driver_that_is_too_old(distro, gpu, host, request_, snapshot):
    made = plan_untried(distro, gpu, host=host, **request_)
    assert codes(made) == ["driver-too-old-for-cuda"]
    assert texts(made["problems"]) == snapshot


def test_a_driver_that_stays_was_not_requested():
    kept = {"keeping": ("driver",)}
    made = plan_untried(
        "ubuntu-22.04", "A100", host=kept, driver="470.256.02", driver_source="distro", cuda="12.4", **FEW
    )
    assert "; the verified driver is 470" in made["problems"][0]["message"]


def test_a_driver_that_is_too_old_for_the_toolkit_is_no_problem_of_a_tensorflow_that_finds_it():
    asked = {"driver": "470", "cuda": "12.5", "tensorflow_cuda_libraries": "system"}
    assert codes(plan_untried("ubuntu-22.04", "A100", **asked)) == ["driver-too-old-for-cuda"]


@pytest.mark.parametrize(("loaded", "ok"), [("418.39", False), ("440.33", True), ("440.33.01", True)])
def test_a_toolkit_before_cuda_11_needs_the_driver_that_it_was_released_with(loaded, ok):
    host = {"loaded_driver": loaded, "gcc": 8, "glibc": "2.28", "offers": {"cuda-toolkit-10-2": ("10.2.89-1",)}}
    made = plan_untried("ubuntu-20.04", "V100", host=host, driver="none", cuda="10.2", **FEW)
    assert codes(made) == ([] if ok else ["driver-too-old-for-cuda"])
    assert ok or "CUDA 10.2.89 needs driver 440.33 or newer" in made["problems"][0]["message"]


@pytest.mark.parametrize(
    ("gpu", "request_"),
    [
        ("A100", {"cuda": "none"}),
        ("A100", {"cuda": "12.1", "tensorflow": "2.18"}),
        ("A100", {"cuda": "12.1", "tensorflow": "2.12"}),
    ],
    ids=["no toolkit", "older release", "another major"],
)
def test_a_tensorflow_without_the_cuda_that_it_loads(gpu, request_, snapshot):
    made = plan_untried("ubuntu-22.04", gpu, tensorflow_cuda_libraries="system", **request_)
    assert codes(made) == ["tensorflow-cuda-mismatch"]
    assert texts(made["problems"]) == snapshot


@pytest.mark.parametrize(
    ("distro", "gpu", "host", "request_"),
    [
        ("debian-13", "K40c", {}, {"cuda": "none"}),
        ("ubuntu-24.04", "M60", {}, {"cuda": "13", "driver": "580"}),
        ("ubuntu-24.04", "H100", {}, {"cuda": "11"}),
        (
            "debian-12",
            "T4",
            {"kernel": "7.1.0", "offers": debian_offers(drivers=("580.126.16",))},
            {"driver": "580", "driver_source": "nvidia"},
        ),
    ],
    ids=["no driver", "the GPU", "the repository", "the kernel"],
)
def test_the_problems_are_those_of_the_candidate_that_is_closest(distro, gpu, host, request_, snapshot):
    made = plan_untried(distro, gpu, host=host, tensorflow="none", **request_)
    assert len(made["problems"]) == 1
    assert made["problems"][0]["message"] == snapshot


@pytest.mark.parametrize(
    ("host", "driver", "found"),
    [
        ({"loaded_driver": "470.256.02"}, "none", "the loaded driver is 470.256.02"),
        ({}, "470", "the requested driver is 470"),
    ],
)
def test_what_each_fits_alone_and_not_together_is_a_problem(host, driver, found):
    """The driver runs CUDA 11, the host can have the CUDA 12 that TensorFlow loads: no plan leaves TensorFlow out."""
    request = {"driver": driver, "tensorflow": "2.18", "tensorflow_cuda_libraries": "system"}
    made = plan_untried("ubuntu-22.04", "A100", host=host, **request)
    assert codes(made) == ["driver-too-old-for-cuda", "tensorflow-cuda-mismatch"]
    too_old, other = (problem["message"] for problem in made["problems"])
    assert re.fullmatch(rf"CUDA 12\.\S+ needs driver 525\.60\.13 or newer; {re.escape(found)}", too_old)
    assert re.match(r"TensorFlow 2\.18\.\S+ was built for CUDA 12\.5: .*CUDA 11\.", other), "why it is CUDA 12"
    assert plan_untried("ubuntu-22.04", "A100", host=host, **{**request, "tensorflow": "2.13"})["ok"]

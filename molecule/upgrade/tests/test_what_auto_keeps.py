"""A rerun without versions keeps what was verified, although the repository offers newer versions, on real apt."""

import json

AUTO = ("-e", "gpu_stack_driver=auto", "-e", "gpu_stack_cuda=auto")  # the inventory has the versions of the first run


def test_auto_keeps_the_verified_versions(playbook, read_installed):
    """The repository has newer ones, which the plan names; a run without versions changes no package."""
    before = read_installed()
    printed = " ".join(playbook("gpu_host", *AUTO, "-v", "--skip-tags=verify,smoke_train").stdout.split())
    assert "kept: verified " in printed
    assert "also fits (gpu_stack_cuda=latest)" in printed
    assert read_installed() == before


def test_latest_plans_the_newest_and_a_requested_version_keeps_the_rest(playbook, reports, read_installed):
    def planned(*options: str) -> dict[str, str]:
        playbook("plan", *AUTO, *options)
        plan = json.loads(next((reports / "newest").glob("*/plan.json")).read_text())
        return {name: part["version"] for name, part in plan["components"].items() if part}

    kept = planned()
    before = read_installed()
    assert kept["cuda"] == "13.0"
    newest = planned("-e", "gpu_stack_driver=latest", "-e", "gpu_stack_cuda=latest")
    assert (newest["driver"].partition(".")[0], newest["cuda"]) == ("595", "13.2")
    assert planned("-e", "gpu_stack_driver=595") == {**kept, "driver": newest["driver"]}
    assert read_installed() == before

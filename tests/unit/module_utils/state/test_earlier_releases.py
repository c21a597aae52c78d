"""State directories as earlier releases wrote them: what they say is read by this one."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.base import command, store
from ansible_collections.gpuhost.stack.plugins.module_utils.state import applied, last_result, recording

from tests.unit.module_utils.state.applied_host import differences

FIXTURES = Path(__file__).resolve().parents[3] / "fixtures" / "state"
DIRECTORIES = sorted(path for path in FIXTURES.glob("*/*") if path.is_dir())
PARTS = {
    "cuda_toolkit", "cudnn", "env_paths", "nccl", "nvidia_driver", "nvidia_repo", "packages", "plan", "tensorflow_env",
}  # fmt: skip
DAMAGE = {"failed_repair": {"LD_LIBRARY_PATH in /etc/profile.d/zz-evil.sh", "service nvidia-persistenced"}}


def no_systemd(argv: list[str], timeout: float, env: dict[str, str] | None = None) -> command.Answer:
    return command.Answer(1, b"System has not been booted with systemd as init system", b"")


@pytest.fixture(params=DIRECTORIES, ids=lambda path: f"{path.parent.name}-{path.name}")
def state(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Path]:
    """Return the name of a state, and a root with it from which everything else has been lost."""
    shutil.copytree(request.param, tmp_path / store.DIRECTORY.lstrip("/"))
    return request.param.name, tmp_path


def test_there_are_such_states() -> None:
    assert {path.name for path in DIRECTORIES} >= {
        "installed",
        "failed_check",
        "failed_repair",
        "pending",
        "rolled_back",
    }


def test_the_records_are_read(state: tuple[str, Path]) -> None:
    name, root = state
    directory = str(root / store.DIRECTORY.lstrip("/"))
    assert store.newer(directory) is None
    assert cuda(store.read(directory, store.VERIFIED)) == "13.2"
    assert cuda(store.read(directory, store.PREVIOUS)) == ("13.0" if name in ("rolled_back", "failed_repair") else None)
    assert (store.evidence(directory) or {})["at"].startswith("2026-11-25T22:")
    assert (store.requested(directory) or {})["cuda"] == "auto"
    assert store.journal(directory)["libnccl2"] is None  # it was not installed before gpuhost
    assert (store.read(directory, store.PENDING) is not None) is (name == "pending")
    damage = (store.read(directory, store.DAMAGE) or {}).get("parts", {})
    assert {thing for part in damage.values() for thing in part["things"]} == DAMAGE.get(name, set())


def test_a_change_of_an_earlier_release_has_nothing_to_compare_with(state: tuple[str, Path]) -> None:
    name, root = state
    directory = str(root / store.DIRECTORY.lstrip("/"))
    gpus = [{"pci_address": "0000:1a:00.0", "uuid": "GPU-1"}]
    assert last_result.read(directory) is None
    store.write(directory, store.LAST_RESULT, {"gpus": gpus, "checks": {"a.b": {"status": "pass"}}})
    assert last_result.answers(directory, gpus).before is None
    recording.record_pending(directory)
    began_before_the_result = name == "pending"
    assert last_result.answers(directory, gpus).before == (None if began_before_the_result else {"a.b": "pass"})


def cuda(record: dict[str, Any] | None) -> str | None:
    return None if record is None else record["plan"]["components"]["cuda"]["version"]


def test_what_was_recorded_is_missed(state: tuple[str, Path]) -> None:
    name, root = state
    found = differences(store.DIRECTORY, str(root), no_systemd)
    missed = {part for part, each in found.items() if any("libnccl2" in text for text in each["changed"])}
    has_record = name in ("installed", "pending")
    assert set(found) == (PARTS if has_record else set())
    assert missed == ({"packages"} if has_record else set())


def test_damage_that_an_earlier_release_kept_is_repaired(state: tuple[str, Path]) -> None:
    """That release refused to complete a run with it, for ever."""
    name, root = state
    profile = root / "etc/profile.d/zz-evil.sh"
    profile.parent.mkdir(parents=True)
    profile.write_text("export LD_LIBRARY_PATH=/opt/evil\n")
    managed: dict[str, dict[str, Any]] = {
        "env_paths": {"library_path": True},
        "nvidia_driver": {"services": ["nvidia-persistenced"]},
    }
    found = differences(store.DIRECTORY, str(root), masked, managed=managed)
    wanted = DAMAGE.get(name, set())
    assert {
        thing for part in found.values() for thing in part["damage"] if "evil" in thing or "service" in thing
    } >= wanted
    if not wanted:
        return
    assert found["env_paths"]["repairs"]["lines"] == [[f"/{profile.relative_to(root)}", profile.read_text().strip()]]
    assert found["nvidia_driver"]["repairs"]["services"] == ["nvidia-persistenced"]
    directory = str(root / store.DIRECTORY.lstrip("/"))
    parts = {part: {"fingerprint": "of this release", "watch": watch} for part, watch in managed.items()}
    with pytest.raises(ValueError, match="zz-evil"):
        applied.record(directory, parts, str(root), masked)
    profile.write_text("# export LD_LIBRARY_PATH=/opt/evil\n")
    assert applied.record(directory, parts, str(root), no_systemd)
    assert store.read(directory, store.DAMAGE) is None


def masked(argv: list[str], timeout: float, env: dict[str, str] | None = None) -> command.Answer:
    text = b"Id=nvidia-persistenced.service\nLoadState=masked\nUnitFileState=masked\nActiveState=inactive\n"
    return command.Answer(0, text, b"")

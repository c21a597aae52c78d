"""Nobody changes the steps of a part and forgets to say whether hosts that have the part get the change."""

from __future__ import annotations

import yaml
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.parts import fingerprints

from tests import revisions


def test_the_steps_of_each_part_are_those_that_were_recorded() -> None:
    recorded, now = yaml.safe_load(revisions.RECORDED.read_text()), revisions.steps()
    changed = [name for name in sorted({*recorded, *now}) if recorded.get(name) != now.get(name)]
    assert not changed, (
        f"the steps of {', '.join(changed)} have changed: where hosts that have the part must get that, raise its "
        "`revision` in __ROLE_managed of its vars/main.yml; then run "
        "`PYTHONPATH=collections .venv/bin/python -m tests.revisions`"
    )


def test_each_part_has_steps() -> None:
    digests = [each["steps"] for each in revisions.steps().values()]
    assert revisions.digest([]) not in digests
    assert len(set(digests)) == len(digests)


def test_a_file_of_a_role_is_content_on_the_host_or_a_program_of_its_steps() -> None:
    role = revisions.PROJECT / "roles/nvidia_driver"
    listed = {path.resolve().name for path in fingerprints.content(role).values()}
    programs = {path.name for path in revisions.programs(role)}
    assert {"grub.py", "kernel-guard.sh", "nouveau.conf.j2"} <= listed
    assert {"build_modules.sh", "rebuild_initramfs.sh"} <= programs
    assert listed & programs == set()
    files = {path.name for folder in ("files", "templates") for path in (role / folder).iterdir()}
    assert files <= listed | programs

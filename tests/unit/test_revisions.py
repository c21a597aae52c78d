"""Nobody changes the steps of a part and forgets to say whether hosts that have the part get the change."""

from __future__ import annotations

import yaml

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

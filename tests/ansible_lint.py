"""ansible-lint, to which one Ansible process says that the syntax of all playbooks and roles is right; same options.

ansible-lint starts ansible-playbook for each playbook, each role and once more for each playbook that one imports. What
these eighty processes do is load Ansible, which took three quarters of ansible-lint's time. Here one process reads a
playbook that imports all of them. Where that fails, ansible-lint asks one by one as it always does, and says which it
is and why.
"""

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import yaml
from ansiblelint.__main__ import main
from ansiblelint.errors import MatchError
from ansiblelint.file_utils import Lintable
from ansiblelint.runner import Runner

Check = Callable[[Lintable], list[MatchError]]
one_by_one = Runner._map_syntax_check_workers


def all_of(files: list[Lintable]) -> list[dict[str, object]]:
    """A playbook that imports these playbooks and roles."""
    playbooks = [str(file.path.resolve()) for file in files if file.kind == "playbook"]
    roles = [str(file.path.resolve()) for file in files if file.kind == "role"]
    imports = [{"ansible.builtin.import_role": {"name": role}} for role in roles]
    return [
        *({"ansible.builtin.import_playbook": playbook} for playbook in playbooks),
        {"hosts": "localhost", "tasks": imports},
    ]


def together(runner: Runner, check: Check, files: list[Lintable]) -> list[list[MatchError]]:
    """What `check` finds in each of the files, by one call where it finds nothing."""
    with tempfile.NamedTemporaryFile("w", suffix=".yml") as playbook:
        yaml.safe_dump(all_of(files), playbook)
        playbook.flush()
        if check(Lintable(Path(playbook.name), kind="playbook")):
            return one_by_one(runner, check, files)
    # Asked for each import of a playbook: it has just been read as a part of the one that imports it.
    runner.app.runtime.has_playbook = lambda playbook, **_: True
    return []


if __name__ == "__main__":
    Runner._map_syntax_check_workers = together
    sys.exit(main(sys.argv))

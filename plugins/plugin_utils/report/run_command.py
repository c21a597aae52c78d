"""The command of a run as it was typed, and those that continue it: other playbooks, reached and decided as it was."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from ansible import constants
from ansible.errors import AnsibleError
from ansible.parsing.splitter import parse_kv
from ansible_collections.gpuhost.stack.plugins.module_utils.base import playbook_call, urls
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base import paths
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.declared import declared
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.user_variables import PREFIX

_PROGRAM = "ansible-playbook"
_OURS = re.compile(rf"({PREFIX}\w+=\S*\s*)+")
# Options of ansible-playbook that say what a run does and how it connects, by the names that Ansible gives them; beside
# them the setting of ansible.cfg whose value need not be typed.
_OPTIONS = {
    "inventory": ("-i", "DEFAULT_HOST_LIST"),
    "subset": ("--limit", ""),
    "tags": ("--tags", ""),
    "skip_tags": ("--skip-tags", ""),
    "remote_user": ("-u", "DEFAULT_REMOTE_USER"),
    "private_key_file": ("--private-key", "DEFAULT_PRIVATE_KEY_FILE"),
    "ssh_common_args": ("--ssh-common-args", ""),
    "ssh_extra_args": ("--ssh-extra-args", ""),
    "connection": ("-c", "DEFAULT_TRANSPORT"),
    "become_method": ("--become-method", "DEFAULT_BECOME_METHOD"),
    "become_user": ("--become-user", ""),
    "vault_ids": ("--vault-id", ""),
    "vault_password_files": ("--vault-password-file", ""),
    "connection_password_file": ("--connection-password-file", "CONNECTION_PASSWORD_FILE"),
    "become_password_file": ("--become-password-file", "BECOME_PASSWORD_FILE"),
}
_FLAGS = {"ask_pass": "-k", "become_ask_pass": "-K", "ask_vault_pass": "-J", "become": "-b", "check": "--check"}
_OF_ONE_RUN = ("tags", "skip_tags", "check")  # another run is to do all that its playbook does


def typed(options: Mapping[str, Any]) -> str:
    """Return the command that was typed, without what may be a secret.

    options: ansible-playbook's, as Ansible parsed them (context.CLIARGS). Of -e the names of files and the values of
    our own variables are shown, without logins in URLs; others are `...`.
    """
    words = [_PROGRAM, *map(_near, options.get("args") or ()), *_settings(options)]
    for value in _values(options.get("extra_vars")):
        words += ["-e", _extra(value)]
    return _joined([*words, *_flags(options)])


class Commands:
    """The commands that continue a run, to be pasted where it was started."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        """Take ansible-playbook's options, as Ansible parsed them (context.CLIARGS)."""
        self._options = {name: value for name, value in options.items() if name not in _OF_ONE_RUN}
        called = [str(name) for name in options.get("args") or ()]
        self._called = next((name for name in called if paths.are_own([name])), "")
        self.playbook = _stem(self._called) if called and paths.are_own(called) else ""
        """The playbook of this collection that was called, such as `verify`; empty for a playbook of the user's own."""

    def of(self, playbook: str, variables: Sequence[str] = (), limit: str = "") -> str:
        """Return the command of a playbook of this collection.

        variables: NAME=VALUE, in place of the run's own. limit: other hosts than those of the run.
        """
        options = {**self._options, **({"subset": limit} if limit else {})}
        words = [_program(), self._named(playbook), *_settings(options)]
        for value in _pasted(options, dict(variable.split("=", 1) for variable in variables)):
            words += ["-e", value]
        return _joined([*words, *_flags(options)])

    def fill(self, data: Any) -> Any:
        """Return text, or data with text however nested, with the command of each playbook that it names."""
        return playbook_call.fill(data, self.of)

    def _named(self, playbook: str) -> str:
        """Return how a playbook is called where the run was started."""
        if self._called and not self._called.startswith(paths.COLLECTION):
            return _near(str(Path(self._called).with_name(f"{playbook}.yml")))
        if self._called or paths.is_installed():
            return f"{paths.COLLECTION}{playbook}"
        return _near(str(paths.PLAYBOOKS / f"{playbook}.yml"))


def _stem(called: str) -> str:
    return called.removeprefix(paths.COLLECTION) if called.startswith(paths.COLLECTION) else Path(called).stem


def _program() -> str:
    """Return what starts ansible-playbook here, if that is not in PATH its file."""
    started = sys.argv[0]
    found = shutil.which(_PROGRAM)
    is_other = Path(started).name == _PROGRAM and (not found or os.path.realpath(found) != os.path.realpath(started))
    return _near(os.path.abspath(started)) if is_other else _PROGRAM


def _settings(options: Mapping[str, Any]) -> Iterator[str]:
    for name, (option, setting) in _OPTIONS.items():
        values = [*_values(options.get(name))]
        if setting and values == [*_values(getattr(constants, setting))]:
            continue
        for value in values:
            if (name, value) != ("tags", "all"):
                yield from (option, _near(value))


def _flags(options: Mapping[str, Any]) -> list[str]:
    return [flag for name, flag in _FLAGS.items() if options.get(name)]


def _joined(words: Sequence[str]) -> str:
    return " ".join(word if word == "..." else shlex.quote(str(word)) for word in words)


def _extra(value: str) -> str:
    if value.startswith("@"):
        return f"@{_near(value[1:])}"
    return str(urls.without_credentials(value)) if _OURS.fullmatch(value) else "..."


def _pasted(options: Mapping[str, Any], others: Mapping[str, str]) -> Iterator[str]:
    """Yield the values of -e: files, and each of our own variables that is no secret, or the other value for it."""
    found: dict[str, Any] = {}
    for given in _values(options.get("extra_vars")):
        for name, value in [(given, None)] if given.startswith("@") else _variables(given).items():
            found.pop(name, None)
            found[name] = value
    for name, value in {**found, **others}.items():
        variable = declared().get(name)
        if name.startswith("@"):
            yield _extra(name)
        elif name.startswith(PREFIX) and variable and not variable.secret:
            shown = urls.without_credentials(value)
            is_word = isinstance(shown, str) and re.fullmatch(r"[^\s'\"\\]+", shown)
            # Without a space, where a terminal would break it.
            document = json.dumps({name: shown}, separators=(",", ":")).replace(" ", "\\u0020")
            yield f"{name}={shown}" if is_word else document


def _variables(given: str) -> dict[str, Any]:
    """Return the variables of one -e; none where Ansible has refused it."""
    try:
        found = yaml.safe_load(given) if given.lstrip()[:1] in ("{", "[") else parse_kv(given)
    except (yaml.YAMLError, AnsibleError):
        return {}
    return dict(found) if isinstance(found, Mapping) else {}


def _near(value: str) -> str:
    """Return a path as it is typed here; Ansible makes those of options absolute."""
    return os.path.relpath(value) if Path(value).is_relative_to(Path.cwd()) else value


def _values(given: Any) -> Iterator[str]:
    for value in [given] if isinstance(given, str) else given or ():
        yield str(value)

"""Keys in Docker's daemon.json, a file of others, as a module of `module_utils/resources` would have them.

`runtimes.nvidia` is the key `nvidia` of `runtimes`. It is watched with the value that is planned: what it is set to
instead is others' setting from then on. Their keys and the order of all keys stay, and so do the indentation, mode and
owner of the file; what else of its layout json.dumps does not know is lost, such as two keys on a line. A value that a
teardown puts back has its own keys sorted, as in all records.

In a record a state is {"value"}, or {"missing"}: the first thing that was not there, of the file (""), the objects that
hold the key and the key itself, so that we remove what we have added alone. A key with null counts as missing.
"""

from __future__ import annotations

import base64
import json
import os
import re
from typing import Any

from ansible_collections.gpuhost.stack.plugins.module_utils.base import files
from ansible_collections.gpuhost.stack.plugins.module_utils.resources import file
from ansible_collections.gpuhost.stack.plugins.module_utils.resources.base import Host, Kind, Restoration, States, Watch
from ansible_collections.gpuhost.stack.plugins.module_utils.resources.effects import RESTART

OTHERS = "set by others"
UNREADABLE = "unreadable: "
_NO_FILE = {"kind": "file", "mode": 0o644, "uid": None, "gid": None}


class DockerSetting(Kind):
    """A key of daemon.json."""

    name, title = "docker_setting", "Docker setting"
    watches = ("docker_settings",)
    record = "docker_settings"
    path = "/etc/docker/daemon.json"

    def read(self, host: Host, watch: Watch) -> States:
        planned = watch.get("docker_settings") or {}
        try:
            found = self.capture(host, watch, secrets=False)
        except ValueError as error:
            return dict.fromkeys(planned, UNREADABLE + str(error))
        values = {key: state.get("value") for key, state in found.items()}
        return {key: now if now in (None, planned[key]) else OTHERS for key, now in values.items()}

    def is_damage(self, key: str, wanted: Any, now: Any, watch: Watch) -> bool:
        return now is None and wanted != OTHERS

    def unanswered(self, states: States) -> str:
        return next((state for state in states.values() if str(state).startswith(UNREADABLE)), "")

    def capture(self, host: Host, watch: Watch, secrets: bool) -> States:
        content = self._content(host)
        return {key: self._state(content, key) for key in watch.get("docker_settings") or ()}

    def write(self, work: Restoration, wanted: States) -> list[str]:
        """Set or remove keys, but for those that were others' setting before the change."""
        found, changed = work.found.get(self.name) or {}, []
        try:
            content = self._content(work.host)
            content = {} if content is None else content
            for key, state in wanted.items():
                if self._state(content, key).get("value") == state.get("value"):
                    continue
                if found.get(key) == OTHERS:
                    work.warn(f"{key} of {self.path} was changed by others and stays as it is")
                    continue
                _put(content, key.split("."), state, state.get("missing", "").count("."))
                changed.append(key)
        except ValueError as error:  # the packages have to be restored nevertheless
            work.warn(f"{error}; nothing in it was restored")
            return []
        if changed and not work.check:
            work.effects.add_effects([f"{RESTART} docker.service"])
            no_file = any(state.get("missing") == "" for state in wanted.values())
            self._save(work.host, None if no_file and not content else content)
        return [self.name_of(key) for key in changed]

    def reinstate(self, host: Host, watch: Watch, resources: dict[str, States]) -> None:
        """Keep in mind what is others' setting."""
        now = self.read(host, watch)
        resources.get(self.name, {}).update({key: OTHERS for key in now if now[key] == OTHERS})

    def _content(self, host: Host) -> Any:
        data = files.read_bytes(host.root, self.path)
        try:
            return None if data is None else json.loads(data.decode())
        except ValueError as error:
            raise ValueError(f"{self.path} is not JSON ({error}): correct it") from error

    def _state(self, content: Any, key: str) -> dict[str, Any]:
        missing = ""
        for name in key.split("."):
            if content is None:
                break
            if not isinstance(content, dict):
                raise ValueError(f"{missing or 'all'} of {self.path} is not an object: correct it")
            content, missing = content.get(name), f"{missing}.{name}".lstrip(".")
        return {"missing": missing} if content is None else {"value": content}

    def _save(self, host: Host, content: dict[str, Any] | None) -> None:
        path = os.path.realpath(files.under(host.root, self.path))  # a link to it is others'
        now = file.capture(path)
        if content is None:
            file.write(path, None)
            return
        indent = re.search(r"\n([ \t]+)", file.content(now).decode() if now else "")
        text = json.dumps(content, indent=indent[1] if indent else 4, ensure_ascii=False) + "\n"
        file.write(path, {**(now or _NO_FILE), "content": base64.b64encode(text.encode()).decode()})


def _put(content: dict[str, Any], names: list[str], state: dict[str, Any], kept: int) -> None:
    """Bring a key into a state; of the objects that hold a removed one, the first `kept` stay, and those with more."""
    name, below = names[0], names[1:]
    if below:
        if content.get(name) is None:
            content[name] = {}
        _put(content[name], below, state, kept - 1)
    elif "value" in state:
        content[name] = state["value"]
    if "missing" in state and (not below or (kept < 1 and not content[name])):
        del content[name]

"""What several of these tests need."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog import loader


@pytest.fixture(autouse=True, scope="session")
def each_text_is_read_once() -> Iterator[None]:
    """Tests that change one file of the catalog read all the others as they were: those are not built again.

    Only what was read without a problem is kept, by the file's name and text; the checks across files always run.
    """
    read, known = loader._read_yaml, {}

    def again(path: Path, kind: type, problems: list[str]) -> Any:
        name = (path.name, kind, path.read_bytes() if path.exists() else None)
        if name not in known:
            found: list[str] = []
            made = read(path, kind, found)
            if found:
                problems += found
                return made
            known[name] = made
        return known[name]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loader, "_read_yaml", again)
        yield

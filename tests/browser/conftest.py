"""The pages of a report in a real browser: Chromium of this system, driven by Playwright."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base.escaping import for_file_name
from ansible_collections.gpuhost.stack.plugins.plugin_utils.report import pages
from ansible_collections.gpuhost.stack.plugins.plugin_utils.report.report import Report
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, sync_playwright

from tests.unit.plugin_utils.report import page_cases

BROWSERS = ("chromium", "google-chrome")
CASES: dict[str, Callable[[], Report]] = {
    "verified": page_cases.verified,
    "simulated": page_cases.simulated,
    "one_of_ten": page_cases.one_of_ten,
    "fleet": page_cases.fleet,
    "hostile": page_cases.hostile,
}


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    path = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if path is None:
        pytest.skip("found neither chromium nor google-chrome; on Debian, script/bootstrap test installs the first")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path)
        yield started
        started.close()


@pytest.fixture(scope="session")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that writes the pages of a case, as the callback does, and returns their folder."""
    written: dict[str, Path] = {}

    def write(case: str) -> Path:
        if case not in written:
            folder, report = tmp_path_factory.mktemp(case), CASES[case]()
            (folder / pages.RUN_PAGE).write_text(pages.run_page(report), encoding="utf-8")
            recordings = {"tensorflow": page_cases.recording(8)}
            for host in report.hosts[:20]:
                at = folder / for_file_name(host.host)
                at.mkdir()
                (at / pages.CERTIFICATE).write_text(pages.certificate(report, host, recordings), encoding="utf-8")
            written[case] = folder
        return written[case]

    return write


class Opened:
    """A page in a browser, with what it did besides showing itself."""

    def __init__(self, browser: Browser, path: Path, width: int = 1200, **options: Any) -> None:
        self.context = browser.new_context(viewport={"width": width, "height": 900}, **options)
        self.page: Page = self.context.new_page()
        self.noise: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.noise.append(message.text))
        self.page.on("pageerror", lambda error: self.noise.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.noise.append(f"dialog {dialog.message}"), dialog.dismiss()))
        self.context.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(path.as_uri())

    def violations(self) -> list[str]:
        """Return what axe-core finds, with the first element of each rule."""
        but_faint = {"exclude": [".watermark"]}  # which says again what is readable at the head of the page
        found = Axe().run(self.page, context=but_faint).response["violations"]
        nodes = [(rule["id"], rule["nodes"][0]) for rule in found]
        return [f"{name}: {node['html'][:200]} {node['failureSummary']}" for name, node in nodes]

    def too_wide(self) -> list[str]:
        """Return the elements that make the page scroll to the side: those that end beyond its right edge."""
        return list(
            self.page.evaluate(
                """() => document.documentElement.scrollWidth <= document.documentElement.clientWidth ? [] :
                [...document.querySelectorAll("*")]
                  .filter((each) => each.getBoundingClientRect().right > document.documentElement.clientWidth + 1)
                  .map((each) => each.outerHTML.slice(0, 200))"""
            )
        )


@pytest.fixture
def opened(browser: Browser, reports: Callable[[str], Path]) -> Iterator[Callable[..., Opened]]:
    """Return a function that opens a page of a case."""
    pages: list[Opened] = []

    def show(case: str, name: str = "report.html", **options: Any) -> Opened:
        pages.append(Opened(browser, reports(case) / name, **options))
        return pages[-1]

    yield show
    for each in pages:
        each.context.close()

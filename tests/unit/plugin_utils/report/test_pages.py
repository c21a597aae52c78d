"""The pages of a report as text; tests/browser looks at them in a browser."""

from __future__ import annotations

import html
import re
from html.parser import HTMLParser

import pytest
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base.escaping import for_terminal
from ansible_collections.gpuhost.stack.plugins.plugin_utils.report import pages
from ansible_collections.gpuhost.stack.plugins.plugin_utils.report.report import Report, build_report
from ansible_collections.gpuhost.stack.plugins.plugin_utils.report.verdict import RunMode
from syrupy.assertion import SnapshotAssertion

from tests.unit.plugin_utils.report import page_cases
from tests.unit.plugin_utils.report.report_cases import TRAINING, VERIFY, evidence, failing

RUN = build_report("r", {"hopper": page_cases.host(2)}, about=page_cases.RUN)
VOID = {"meta", "link", "br", "input", "img", "hr"}


class Text(HTMLParser):
    """The visible text of a page, its tags and its attributes; raise AssertionError for a tag that is not closed."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.words: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.tags: list[str] = []
        self.open: list[str] = []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not {"style", "script"} & set(self.open[-1:]):
            self.words.append(data)


def text(page: str) -> str:
    """Return what a page says, in one line."""
    return " ".join(" ".join(Text(page).words).split())


def shown(page: str) -> str:
    """Return what a page says, a line for each piece of text."""
    pieces = (" ".join(words.split()) for words in Text(page).words)
    return "\n".join(piece for piece in pieces if piece)


def bare(words: str) -> str:
    """Return words without spaces and backticks, which the elements of a page replace."""
    return "".join(words.replace("`", "").split())


def certificate(report: Report, number: int = 0) -> str:
    recording = page_cases.recording(2, 20)
    return pages.certificate(report, report.hosts[number], {"tensorflow": recording})


def test_a_certificate_has_everything_of_a_verified_host(snapshot: SnapshotAssertion) -> None:
    report = build_report("r", {"hopper": page_cases.host(2)}, about=page_cases.RUN)
    assert report.hosts[0].status == "verified"
    lines = shown(certificate(report))
    assert lines[: lines.index("\nChecks\n")] == snapshot
    page = text(certificate(report))
    checks = report.hosts[0].checks
    assert all(f"{entry.check.id} pass {entry.check.found}" in page for entry in checks.passed if entry.check.found)
    assert f"env.sudo skip {checks.skipped[0].check.reason}" in page


def test_charts_of_a_certificate() -> None:
    report = build_report("r", {"hopper": page_cases.host(2)}, about=page_cases.RUN)
    labels = re.findall(r'<svg [^>]*aria-label="([^":]*)', certificate(report))
    assert labels[0] == "loss of 60 steps"
    assert labels[1:5] == ["utilisation (%)", "GPU0 memory (GiB)", "GPU1 memory (GiB)", "power (W)"]
    assert "<svg" not in pages.certificate(report, build_report("r", {"h": evidence()}).hosts[0])


def test_a_host_that_is_not_verified_is_not_accepted() -> None:
    report = page_cases.one_of_ten()
    number = [host.status for host in report.hosts].index("failed")
    page = text(certificate(report, number))
    assert "Acceptance report" in page
    assert "This host is not accepted" in page
    assert "Acceptance certificate" not in page
    attention = page[page.index("What needs attention") : page.index("Name and UUID")]
    for failed in page_cases.failures():
        assert failed.id in attention
        assert bare(failed.remedy or failed.reason or "") in bare(attention)
    assert "Cause: host: LD_LIBRARY_PATH=/opt/x in /etc/environment, line 3" in attention
    assert attention.index("gpu.pcie_width") < attention.index("gpu.inforom") < attention.index("gpu.persistence")
    assert "187 below" in page


UNDONE = {
    "verify_after_undo": {**VERIFY, "counts": {"pass": 3, "fail": 0}},
    "restored": {"changes": ["driver 580 is back"]},
}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "This run changed the host:"),
        ({"changed": False, "recorded": False}, "Planned, and not begun:"),
        ({"failure": {"task": "Install", "message": "broken"}, "recorded": False}, "This run began these changes"),
        (UNDONE, "and rolled them back:"),
        ({"diff": {"changes": False}, "changed": False}, "Nothing was changed."),
        ({"diff": {"changes": False}}, "This run applied parts again; no component has another version."),
    ],
)
def test_whether_changes_were_made(changes: dict[str, object], expected: str) -> None:
    report = build_report("r", {"hopper": page_cases.host(2, **changes)})
    page = text(certificate(report))
    assert expected in page
    assert ("driver 580 is back" in page) == ("restored" in changes)


def test_reused_evidence_is_said_with_its_time() -> None:
    reused = {"id": "training", "status": "reused", "found": "pass", "reason": "trained on 2026-11-20T10:00:00Z"}
    training = {**TRAINING, "status": "reused", "finished": "2026-11-20T10:00:00Z", "checks": [reused]}
    page = text(certificate(build_report("r", {"h": evidence(smoke_train=training)})))
    assert "Reused: training, trained on 2026-11-20T10:00:00Z." in page
    assert "Outcome reused, trained 2026-11-20 10:00:00 UTC" in page


def test_a_training_of_an_earlier_run_is_said_to_be_one() -> None:
    earlier = {"tensorflow": {**TRAINING, "finished": "2026-11-20T10:00:00Z"}}
    report = build_report("r", {"h": evidence(smoke_train=None, earlier=earlier)})
    assert report.hosts[0].status == "not changed"
    page = text(certificate(report))
    assert "Smoke training: TensorFlow, of an earlier run Outcome pass, trained 2026-11-20 10:00:00 UTC" in page
    assert "TensorFlow (earlier run): pass, trained 2026-11-20 10:00:00 UTC, 2 replicas, loss 2.41 to 1.32" in page


def test_bandwidths_of_an_earlier_run_have_its_time() -> None:
    verify = page_cases.verify(2)
    verify["bandwidths"] = [{**each, "at": "2026-11-20T10:00:00Z"} for each in verify["bandwidths"]]
    page = text(certificate(build_report("r", {"h": page_cases.host(2, verify=verify)})))
    assert "Summary, bandwidths in GB/s, measured 2026-11-20 10:00:00 UTC" in page
    assert "Bandwidths, GB/s, measured 2026-11-20 10:00:00 UTC" in page


def test_a_summary_has_no_column_without_a_value() -> None:
    """Such as a desktop's: its GPUs tell no serial number, and nothing was measured between them."""
    verify = {**page_cases.verify(2), "bandwidths": []}
    verify["gpus"] = [{**gpu, "serial": None} for gpu in verify["gpus"]]
    page = text(certificate(build_report("r", {"h": page_cases.host(2, verify=verify)})))
    assert f"Summary GPU UUID 0 {page_cases.gpus(1)[0]['uuid']} 1 " in page


def test_equal_skips_are_one_line() -> None:
    page = text(certificate(page_cases.simulated()))
    assert re.search(r"skipped \d+ checks skip the driver is simulated gpu\.answers, gpu\.recovery, ", page)
    assert page.count("the driver is simulated") == 1
    assert "env.sudo skip sudo is not installed" in page


def test_the_page_of_a_run_says_what_changed_and_what_is_next() -> None:
    page = text(pages.run_page(page_cases.verified(), page_cases.COMMANDS))
    assert "Changes NVIDIA driver 580.126.16 -> 595.71.05, CUDA toolkit 13.2.1," in page
    assert f"Next {page_cases.COMMANDS.of('verify')} (checks again)" in page


def test_what_is_simulated_is_said_once() -> None:
    verify = {**VERIFY, "simulated": ["NVIDIA driver (simulated)"]}
    verify["checks"] = [{**check, "simulated": True} for check in VERIFY["checks"]]
    report = build_report("r", {name: evidence(verify=verify) for name in ("a", "b")})
    for page in (certificate(report), pages.run_page(report)):
        assert text(page).count("NVIDIA driver (simulated)") == 1
    assert "3 of the checks that passed judged values of a simulated driver" in text(certificate(report))


def test_a_run_begins_with_what_is_wrong_and_its_remedy(snapshot: SnapshotAssertion) -> None:
    lines = shown(pages.run_page(page_cases.one_of_ten(), page_cases.COMMANDS))
    assert lines[: lines.index("\nhopper-2\n")] == snapshot
    page = text(pages.run_page(page_cases.one_of_ten()))
    hosts = re.findall(r"hopper-\d+(?= (?:failed|verified) 8 x)", page)
    assert hosts == ["hopper-4", *(f"hopper-{number}" for number in (1, 2, 3, 5, 6, 7, 8, 9, 10))]


def test_what_hosts_have_in_common_is_said_once() -> None:
    broken = evidence(verify=failing(VERIFY, "packages.held"))
    report = build_report("r", {"a": broken, "b": broken, "c": evidence()})
    page = text(pages.run_page(report))
    assert page.count("do this") == 1
    assert "packages.held 2 hosts" in page


def test_a_host_that_failed_without_a_check_says_why() -> None:
    failure = {"task": "Install packages", "message": "the disk burst", "unreachable": False}
    report = build_report("r", {"a": {"failure": failure}, "b": {"failure": {**failure, "unreachable": True}}})
    page = text(pages.run_page(report))
    attention = page[page.index("What needs attention") : page.index("Hosts Filter")]
    assert attention.count("Install packages: the disk burst") == 2


def test_a_rollback_is_named_beside_the_check_that_failed() -> None:
    undone = {"restored": {"changes": ["a", "b"]}, "verify_after_undo": {**VERIFY, "counts": {"pass": 9, "fail": 0}}}
    page = text(pages.run_page(build_report("r", {"a": evidence(verify=failing(VERIFY, "packages.held"), **undone)})))
    attention = page[page.index("What needs attention") : page.index("Hosts Filter")]
    assert "packages.held" in attention
    assert "rolled back: 2 changes" in attention


def test_a_host_that_is_pending_says_why() -> None:
    page = text(pages.run_page(build_report("r", {"a": evidence(verify=None, changed=True)})))
    attention = page[page.index("What needs attention") : page.index("Hosts Filter")]
    assert "pending 1 host the checks were not run a" in attention


def test_notes_are_on_each_page() -> None:
    report = build_report("r", {"h": evidence(changed=True, running="Install")}, RunMode(interrupted=True))
    for page in (certificate(report), pages.run_page(report)):
        assert "This run was interrupted before its end." in text(page)


def test_a_run_without_hosts() -> None:
    page = text(pages.run_page(build_report("r", {})))
    assert "No evidence of any host: nothing was run." in page


def test_hostile_names_are_text() -> None:
    """In elements and attributes, with control characters visible."""
    report = page_cases.hostile()
    for page in (pages.run_page(report), *(certificate(report, at) for at in range(len(report.hosts)))):
        found = Text(page)
        assert (found.tags.count("script"), found.tags.count("img")) == (page.count('id="filter"'), 0)
        assert found.tags.count("svg") == page.count('role="img"')
        assert not [name for _tag, name, _value in found.attributes if name.startswith("on")]
        assert not set(page) & set("\x00\x07\x1b\u202e\u202c\u2028")
        links = [value for tag, name, value in found.attributes if (tag, name) == ("a", "href")]
        assert all(link.startswith(("#", "./")) for link in links)
    said = text(pages.run_page(report))
    assert all(" ".join(for_terminal(name).split()) in said for name in page_cases.HOSTILE)


def test_the_policy_allows_the_script_and_the_style_of_the_page_alone() -> None:
    page = pages.run_page(page_cases.verified())
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]+)"', page)
    rules = dict(rule.split(" ", 1) for rule in html.unescape(policy).split("; "))
    assert rules["default-src"] == "'none'"
    assert re.fullmatch(r"'sha256-[\w+/]{43}='", rules["script-src"])
    assert re.fullmatch(r"'sha256-[\w+/]{43}='", rules["style-src"])
    assert "script-src 'none'" in html.unescape(certificate(page_cases.verified()))


@pytest.mark.parametrize("case", [page_cases.fleet, page_cases.all_different])
def test_the_page_of_500_hosts_is_at_most_a_megabyte(case: type[Report]) -> None:
    report = case()
    page = pages.run_page(report)
    assert len(report.hosts) == 500
    assert all(f">{host.host}<" in page for host in report.hosts)
    assert len(page.encode()) < 1_000_000

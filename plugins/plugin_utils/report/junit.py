"""Write a run as JUnit XML, for CI: a test suite for each host, a test case for each check.

`unknown` is an error, `fail` a failure; `skip`, `deferred` and `waived` are skipped; all others pass. The elements and
attributes are those that Jenkins' JUnit plugin and GitLab read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from xml.etree import ElementTree

from ansible_collections.gpuhost.stack.plugins.module_utils.checks.model import Check
from ansible_collections.gpuhost.stack.plugins.module_utils.model.outcomes import FAIL, TABLE, UNKNOWN
from ansible_collections.gpuhost.stack.plugins.plugin_utils.report.report import HostReport, PartCheck, Report
from ansible_collections.gpuhost.stack.plugins.plugin_utils.report.verdict import FAILED, UNANSWERED, UNREACHABLE

# What XML 1.0 cannot have, whatever a program has printed.
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def document(report: Report) -> str:
    """Return the file of a run."""
    suites = ElementTree.Element("testsuites", name=_text(f"gpuhost {report.run}"))
    totals = {"tests": 0, "failures": 0, "errors": 0, "skipped": 0}
    for host in report.hosts:
        cases = list(_cases(host))
        elements = [element.tag for case in cases for element in case]
        counts = {"tests": len(cases), "failures": elements.count("failure"), "errors": elements.count("error")}
        counts["skipped"] = elements.count("skipped")
        totals = {name: totals[name] + number for name, number in counts.items()}
        suite = ElementTree.SubElement(suites, "testsuite", name=_text(host.host), hostname=_text(host.host), time="0")
        suite.attrib |= {name: str(number) for name, number in counts.items()}
        suite.extend(cases)
    suites.attrib |= {name: str(number) for name, number in totals.items()}
    ElementTree.indent(suites)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(suites, encoding="unicode") + "\n"


def _cases(host: HostReport) -> Iterator[ElementTree.Element]:
    """Yield the test cases of a host; of one that failed for another reason than a check, one with that reason."""
    checks = host.checks
    found = [*checks.failed, *checks.other, *checks.passed, *checks.skipped]
    for each in found:
        yield _case(host, each)
    wrong = {each.check.status for each in found} & {FAIL, UNKNOWN}
    if host.status in (FAILED, UNREACHABLE, UNANSWERED) and not wrong:
        case = ElementTree.Element("testcase", classname=_text(host.host), name="run", time="0")
        message = "; ".join(host.reasons) or host.status
        ElementTree.SubElement(case, "error", message=_text(message), type=host.status).text = _text(message)
        yield case


def _case(host: HostReport, each: PartCheck) -> ElementTree.Element:
    check = each.check
    case = ElementTree.Element("testcase", classname=_text(f"{host.host}.{each.part}"), name=_text(check.id), time="0")
    element = TABLE[check.status].element
    if element is None:
        if check.found or check.reason:
            ElementTree.SubElement(case, "system-out").text = _text(f"{check.status}: {_details(check)}")
        return case
    message = check.found if check.status == FAIL else check.reason
    inner = ElementTree.SubElement(case, element, message=_text(message or check.found or ""))
    if element != "skipped":
        inner.set("type", check.cause or check.status)
        inner.text = _text(_details(check))
    return case


def _details(check: Check) -> str:
    named = {
        "found": check.found,
        "expected": check.expected,
        "reason": check.reason,
        "setting": check.setting,
        "remedy": check.remedy,
    }
    return "\n".join(f"{name}: {text}" for name, text in named.items() if text)


def _text(text: str) -> str:
    return _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", text)

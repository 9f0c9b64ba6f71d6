"""JUnit XML: the verdict of the gate as tests, for GitLab, Jenkins and whatever else reads that format.

The format has no standard. What is written is what the schema ``junit-10`` of Jenkins' xUnit plugin allows, and GitLab
reads: reasons stand as text, since attributes are not shown there, and once more as the attribute that Jenkins shows.
"""

import xml.etree.ElementTree as etree
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from quantmedic.engine.contract.causes import RuleNote
from quantmedic.engine.contract.check_report import CheckReport, GateLine
from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.engine.rules.rule import FAMILIES
from quantmedic.reports.machines.alarms import (
    FINDINGS_SHOWN,
    MESSAGE_LIMIT,
    Alarm,
    alarm_lines,
    alarms_of,
    exemption_text,
    gate_text,
    is_let_pass,
)
from quantmedic.reports.sections.gate import check_of
from quantmedic.reports.text import name, visible

Outcome = Literal["passed", "failure", "skipped"]


@dataclass(frozen=True)
class _Case:
    """One test: where it belongs, what it is called, and what became of it."""

    group: str
    title: str
    outcome: Outcome = "passed"
    message: str = ""
    lines: tuple[str, ...] = ()


def render_junit(diagnosis: Diagnosis) -> str:
    """A test per gate, per cause, and per rule that passed or was not judged.

    A test fails where the gate fails: a cause that does not count against the policy passes, and its output describes
    it. What was not judged is skipped, and what the policy exempts, ignores or lets pass.

    Raises:
        QuantmedicError: The diagnosis was made without a gate.
    """
    check = check_of(diagnosis)
    cases = list(_cases(diagnosis, check))
    counts = {"tests": len(cases), "failures": sum(case.outcome == "failure" for case in cases), "errors": 0}
    skipped = sum(case.outcome == "skipped" for case in cases)
    totals = {key: str(value) for key, value in counts.items()}
    root = etree.Element("testsuites", {"name": "quantmedic", **totals})
    suite = etree.SubElement(root, "testsuite", {"name": name(check.model) or "?", **totals, "skipped": str(skipped)})
    titles: Counter[str] = Counter()
    for case in cases:
        titles[case.title] += 1
        place = titles[case.title]
        suite.append(_element(case, case.title if place == 1 else f"{case.title} ({place})"))
    etree.indent(root, " ")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{etree.tostring(root, encoding="unicode")}\n'


def _element(case: _Case, title: str) -> etree.Element:
    element = etree.Element("testcase", {"classname": f"quantmedic.{case.group}", "name": title})
    text = "\n".join([case.message, *case.lines])
    if case.outcome != "passed":
        etree.SubElement(element, case.outcome, {"message": case.message}).text = text
    elif text:
        etree.SubElement(element, "system-out").text = text
    return element


def _cases(diagnosis: Diagnosis, check: CheckReport) -> Iterator[_Case]:
    yield from (_gate_case(gate, check) for gate in check.gates)
    yield from (_cause_case(alarm, check) for alarm in alarms_of(diagnosis))
    yield from (_Case(_family(note), _title(note)) for note in diagnosis.passed)
    yield from (_unjudged_case(note) for note in diagnosis.not_judged)
    yield from (_Case(_family(n), _title(n), "skipped", "left out by the policy") for n in diagnosis.ignored)


def _gate_case(gate: GateLine, check: CheckReport) -> _Case:
    message, title = gate_text(gate), name(gate.name)
    if gate.status == "pass":
        return _Case("gate", title, "passed", message)
    if gate not in check.failed:
        return _Case("gate", title, "skipped", message)
    if is_let_pass(check):
        return _Case("gate", title, "skipped", f"{gate.status}, which the policy lets pass: {message}")
    return _Case("gate", title, "failure", f"{gate.status}: {message}")


def _cause_case(alarm: Alarm, check: CheckReport) -> _Case:
    title = f"{alarm.rule} {alarm.name}"
    if alarm.is_exempted:
        return _Case(alarm.family, title, "skipped", f"exempted: {'; '.join(_exemption_texts(alarm, check))}")
    lines = (
        f"severity {alarm.cause.severity}, confidence {100 * alarm.cause.confidence:.0f} %",
        *alarm_lines(alarm, check),
        f"manual: quantmedic explain {visible(alarm.rule)}",
    )
    return _Case(alarm.family, title, "failure" if alarm.is_gated else "passed", alarm.message, lines)


def _exemption_texts(alarm: Alarm, check: CheckReport) -> Iterable[str]:
    used = dict.fromkeys(finding.exemption for finding in alarm.exempted if finding.exemption is not None)
    return [exemption_text(check.exemptions[place]) for place in used][:FINDINGS_SHOWN]


def _unjudged_case(note: RuleNote) -> _Case:
    missing = ", ".join(name(fact) for fact in note.missing[:FINDINGS_SHOWN]) or "a fact"
    hint = (visible(note.hint, MESSAGE_LIMIT),) if note.hint else ()
    return _Case(_family(note), _title(note), "skipped", f"not judged: {missing} was not measured", hint)


def _title(note: RuleNote) -> str:
    return f"{visible(note.rule, 40)} {name(note.name)}"


def _family(note: RuleNote) -> str:
    return FAMILIES.get(note.rule[:1], "user")

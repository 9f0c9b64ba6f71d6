"""JUnit XML: read back by a schema, by an independent reader, and as GitLab documents its reading."""

import re
import xml.etree.ElementTree as etree
from collections import Counter
from pathlib import Path

import pytest
from builders.gates import accepted, check_report, regression, unmeasured, with_check

from quantmedic.engine.contract.causes import RuleNote
from quantmedic.engine.contract.check_report import EXIT_CODES, GateLine
from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.reports.machines.junit import render_junit

xmlschema = pytest.importorskip("xmlschema", reason="xmlschema is not installed")
junitparser = pytest.importorskip("junitparser", reason="junitparser is not installed")

SCHEMA = xmlschema.XMLSchema(Path(__file__).parent / "data" / "junit.xsd")


def cases_of(text: str) -> dict[str, junitparser.TestCase]:
    """The tests of a valid report by their names."""
    SCHEMA.validate(text)
    suites = junitparser.JUnitXml.fromstring(text.encode())
    (suite,) = suites
    cases = list(suite)
    assert suite.tests == suites.tests == len(cases)
    assert (
        suite.failures
        == suites.failures
        == sum(isinstance(r, junitparser.Failure) for case in cases for r in case.result)
    )
    assert suite.skipped == sum(isinstance(r, junitparser.Skipped) for case in cases for r in case.result)
    assert suite.errors == suites.errors == 0
    found = {case.name: case for case in cases}
    assert len(found) == len(cases), "GitLab drops a test whose name it has seen"
    return found


def as_gitlab_shows(text: str) -> dict[str, tuple[str, str, str]]:
    """Class, outcome and output of each test as GitLab takes them: the text of failure or skipped, no attribute."""
    found = {}
    for case in etree.fromstring(text).iter("testcase"):
        outcome = next((kind for kind in ("failure", "error", "skipped") if case.find(kind) is not None), "success")
        shown = case.findtext(outcome, default="") if outcome != "success" else ""
        found[case.attrib["name"]] = (case.attrib["classname"], outcome, shown)
    return found


def outcomes(diagnosis: Diagnosis) -> dict[str, str]:
    return {name: outcome for name, (_, outcome, _) in as_gitlab_shows(render_junit(diagnosis)).items()}


def test_gates_causes_and_rules_are_tests(checked: Diagnosis) -> None:
    ignored = (RuleNote(rule="A004", name="swish-range"),)
    cases = cases_of(render_junit(checked.model_copy(update={"ignored": ignored})))
    assert {name: (case.classname, type(case.result[0]).__name__ if case.result else "passed") for name, case in
            cases.items()} == {
        "accuracy top1": ("quantmedic.gate", "Failure"),
        "sqnr boxes": ("quantmedic.gate", "passed"),
        "agreement": ("quantmedic.gate", "Failure"),
        "findings": ("quantmedic.gate", "Failure"),
        "coverage": ("quantmedic.gate", "Skipped"),
        "W001 channel-range-imbalance": ("quantmedic.weights", "Failure"),
        "D001 too-few-samples": ("quantmedic.data", "passed"),
        "S001 not-quantized-at-all": ("quantmedic.sanity", "passed"),
        "R002 simulator-differs-from-device": ("quantmedic.runtime", "Skipped"),
        "A004 swish-range": ("quantmedic.activations", "Skipped"),
    }  # fmt: skip
    assert cases["accuracy top1"].result[0].message == "fail: drop 7.76 points (6.91 … 8.60), limit of the drop 1.00"
    assert "not judged: cpu_vnni was not measured" in cases["R002 simulator-differs-from-device"].result[0].message
    assert cases["A004 swish-range"].result[0].message == "left out by the policy"


def test_the_text_of_a_failure_holds_evidence_and_remedy(checked: Diagnosis) -> None:
    shown = as_gitlab_shows(render_junit(checked))["W001 channel-range-imbalance"][2]
    assert shown.splitlines() == [
        "one scale serves weight channels whose ranges differ 134x",
        "severity high, confidence 90 %",
        "- features.3.conv.0.0: weight.channel_range_ratio 148 > 16, new",
        "- features.4.conv.1.0: weight.channel_range_ratio 41 > 16, worse, baseline 22",
        "- 1 exempted",
        "help: Per-channel weights: one scale per output channel instead of one per tensor",
        "manual: quantmedic explain W001",
    ]


def test_reasons_to_skip_stand_as_text_and_as_attribute(checked: Diagnosis) -> None:
    for case in etree.fromstring(render_junit(checked)).iter("testcase"):
        if (skipped := case.find("skipped")) is not None:
            assert skipped.attrib["message"] and (skipped.text or "").startswith(skipped.attrib["message"])


def test_a_cause_that_does_not_count_passes_and_tells_of_itself(checked: Diagnosis) -> None:
    known = tuple(f.model_copy(update={"status": "known", "gated": False}) for f in check_report(checked).findings)
    case = cases_of(render_junit(with_check(checked, findings=known)))["W001 channel-range-imbalance"]
    assert not case.result and "features.3.conv.0.0" in (case.system_out or "") and "known" in (case.system_out or "")


def test_what_is_exempted_throughout_is_skipped_with_the_reason(checked: Diagnosis) -> None:
    findings = tuple(f.model_copy(update={"exemption": 0, "gated": False}) for f in check_report(checked).findings)
    (result,) = cases_of(render_junit(with_check(checked, findings=findings)))["W001 channel-range-imbalance"].result
    assert isinstance(result, junitparser.Skipped)
    assert result.message == "exempted: A004 on head/*: swish is fixed in the accelerator, VIS-214 (until 2026-11-30)"


def test_a_gate_fails_unless_the_policy_lets_it_pass(subtests: pytest.Subtests, healthy: Diagnosis) -> None:
    for verdict, status, code, warn_only, outcome in [
        ("REGRESSION", "fail", 1, False, "failure"),
        ("REGRESSION", "fail", 0, True, "failure"),
        ("INSUFFICIENT_DATA", "undecided", 3, False, "failure"),
        ("INSUFFICIENT_DATA", "undecided", 0, False, "skipped"),
        ("INSUFFICIENT_DATA", "undecided", 0, True, "failure"),
        ("ANOMALOUS", "anomalous", 4, False, "failure"),
        ("ANOMALOUS", "anomalous", 0, False, "skipped"),
        ("ACCEPT", "pass", 0, False, "success"),
    ]:
        with subtests.test(verdict=verdict, status=status):
            gate = GateLine(kind="accuracy", name="accuracy top1", status=status, message="drop 1.20 points")
            assert code in (0, EXIT_CODES[verdict])
            one = with_check(
                accepted(healthy), verdict=verdict, exit_code=code, warn_only=warn_only, gates=(gate,), findings=()
            )
            assert outcomes(one)["accuracy top1"] == outcome
            assert ("failure" in outcomes(one).values()) == (code != 0 or warn_only)


def test_a_rule_keeps_its_name_when_it_begins_to_fail(checked: Diagnosis) -> None:
    passed = checked.model_copy(
        update={"causes": (), "passed": (RuleNote(rule="W001", name="channel-range-imbalance"),)}
    )
    assert "W001 channel-range-imbalance" in outcomes(passed).keys() & outcomes(checked).keys()


def test_equal_names_are_told_apart(checked: Diagnosis) -> None:
    twice = checked.model_copy(update={"passed": checked.passed * 3})
    assert {"S001 not-quantized-at-all", "S001 not-quantized-at-all (2)"} < cases_of(render_junit(twice)).keys()


def test_hostile_names_are_inert(hostile_checked: Diagnosis) -> None:
    text = render_junit(hostile_checked)
    cases = cases_of(text)
    assert len(cases) > 60
    assert text.replace("\n", "").isprintable()
    assert "]]>" not in text and "<script" not in text and "<!" not in text
    assert not re.search(r"^\s*(::|##\[)", text, re.M)
    for case in etree.fromstring(text).iter("testcase"):
        outputs = Counter(child.tag for child in case)
        assert not (outputs["failure"] and outputs["system-out"]), "GitLab would look for attachments there"
        assert "type" not in {key for child in case for key in child.attrib}, "GitLab would act upon it"
    assert len(text) < 400_000, "a name of 10 kB is not repeated"


@pytest.mark.thorough
def test_many_causes_stay_within_what_gitlab_reads(diagnosis: Diagnosis) -> None:
    first = diagnosis.causes[0]
    causes = tuple(first.model_copy(update={"cause": f"cause-{place}"}) for place in range(5000))
    text = render_junit(regression(diagnosis.model_copy(update={"causes": causes})))
    assert len(text.encode()) < 30_000_000
    assert sum(1 for _ in etree.fromstring(text).iter()) < 250_000


def test_what_was_not_measured_fails_where_the_verdict_rests_on_it(healthy: Diagnosis) -> None:
    """Else a check that exits with 3 would be green here."""
    found = unmeasured(healthy)
    assert outcomes(found)["accuracy top1"] == "failure"
    assert outcomes(with_check(found, exit_code=0))["accuracy top1"] == "skipped"
    assert outcomes(with_check(found, verdict="ACCEPT", exit_code=0, static=True))["accuracy top1"] == "skipped"

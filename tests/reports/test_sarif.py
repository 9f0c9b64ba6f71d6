"""SARIF: read back by the standard's own schema, and by what GitHub documents of its reading."""

import gzip
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args
from urllib.parse import unquote

import pytest
from builders.gates import accepted, check_report, regression, unmeasured, with_check

from quantmedic.api.rulebase import load_manuals, load_rulebase
from quantmedic.engine.contract.check_report import GateLine
from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.reports.machines.sarif import render_sarif

jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")

SCHEMA = json.loads((Path(__file__).parent / "data" / "sarif-schema-2.1.0.json").read_text(encoding="utf-8"))
#: One brace alone: a placeholder of SARIF's messages, or none that the standard allows.
LONE_BRACE = re.compile(r"(?<!\{)(\{\{)*\{(?!\{)|(?<!\})(\}\})*\}(?!\})")


def run_of(text: str) -> dict[str, Any]:
    """The run of a valid log."""
    log = json.loads(text)
    checker = jsonschema.Draft202012Validator(SCHEMA, format_checker=jsonschema.FormatChecker())
    checker.validate(log)
    (run,) = log["runs"]
    return dict(run)


def strings(node: Any) -> Iterator[str]:
    """Every text of a log, its keys among them."""
    if isinstance(node, str):
        yield node
    for key, value in node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ():
        yield from (strings(value) if isinstance(key, int) else (key, *strings(value)))


def fingerprints(diagnosis: Diagnosis) -> list[str]:
    results = run_of(render_sarif(diagnosis, {}))["results"]
    return [result["partialFingerprints"]["primaryLocationLineHash"] for result in results]


def test_what_github_requires_is_there_and_not_empty(checked: Diagnosis, manuals: Mapping[str, str]) -> None:
    text = render_sarif(checked, manuals)
    run = run_of(text)
    assert json.loads(text)["version"] == "2.1.0" and json.loads(text)["$schema"].endswith("sarif-schema-2.1.0.json")
    driver = run["tool"]["driver"]
    assert driver["name"] == "quantmedic" and driver["version"] == "0.2.0"
    assert all(strings(run)), "GitHub takes an empty text for a missing one"
    for rule in driver["rules"]:
        assert rule["id"] and rule["help"]["text"]
        assert 0 < len(rule["shortDescription"]["text"]) <= 1024 and 0 < len(rule["fullDescription"]["text"]) <= 1024
        assert len(rule["properties"]["tags"]) <= 20
    for result in run["results"]:
        assert driver["rules"][result["ruleIndex"]]["id"] == result["ruleId"]
        place = result["locations"][0]["physicalLocation"]
        assert place["artifactLocation"] == {"uri": "ci/quantmedic.toml"}
        assert set(place["region"]) == {"startLine", "startColumn", "endLine", "endColumn"}
        assert re.fullmatch(r"[0-9a-f]{16}:\d+", result["partialFingerprints"]["primaryLocationLineHash"])


def test_a_result_per_gate_that_did_not_pass_and_per_cause(checked: Diagnosis, manuals: Mapping[str, str]) -> None:
    results = run_of(render_sarif(checked, manuals))["results"]
    assert [
        (r["ruleId"], r["level"], r["locations"][0]["physicalLocation"]["region"]["startLine"]) for r in results
    ] == [
        ("gate-accuracy", "error", 5),
        ("gate-agreement", "warning", 14),
        ("W001", "error", 2),
        ("D001", "warning", 2),
    ]
    assert results[0]["message"]["text"] == (
        "Accuracy top1: drop 7.76 points (6.91 … 8.60), limit of the drop 1.00 (mobilenet_v2_int8.onnx)."
    )
    assert results[0]["properties"]["value"] == 7.76 and results[0]["properties"]["samples"] == 5000
    first, *lines = results[2]["message"]["text"].splitlines()
    assert first.startswith("One scale serves weight channels whose ranges differ")
    assert first.endswith("(mobilenet_v2_int8.onnx, high, confidence 90 %).")
    assert lines[0] == "- features.3.conv.0.0: weight.channel_range_ratio 148 > 16, new"
    assert lines[1] == "- features.4.conv.1.0: weight.channel_range_ratio 41 > 16, worse, baseline 22"
    assert lines[2] == "- 1 exempted" and lines[3].startswith("help: Per-channel weights")
    names = [place["name"] for place in results[2]["locations"][0]["logicalLocations"]]
    assert names == ["features.3.conv.0.0", "features.4.conv.1.0"], "exempted layers are left out"


def test_a_gate_of_any_kind_can_fail(subtests: pytest.Subtests, checked: Diagnosis) -> None:
    """That of the findings speaks through its causes."""
    for kind in get_args(GateLine.model_fields["kind"].annotation):
        with subtests.test(kind=kind):
            gate = GateLine(kind=kind, name=kind, status="fail", message="too bad")
            results = run_of(render_sarif(with_check(checked, gates=(gate,)), {}))["results"]
            assert [r["ruleId"] for r in results if r["ruleId"].startswith("gate-")] == [f"gate-{kind}"] * (
                kind != "findings"
            )


def test_a_rule_s_help_is_its_page_without_links_to_files_that_are_not_there(
    checked: Diagnosis, manuals: Mapping[str, str]
) -> None:
    rules = {rule["id"]: rule for rule in run_of(render_sarif(checked, manuals))["tool"]["driver"]["rules"]}
    page = rules["W001"]["help"]["markdown"]
    assert "See too few samples and preprocessing." in page
    assert "[arXiv:1806.08342](https://arxiv.org/abs/1806.08342)" in page and "```python" in page
    described = rules["W001"]["fullDescription"]["text"]
    assert described == (
        "A per-tensor scale is set by the widest channel. Channels 148 times narrower keep two levels. See too few "
        "samples and preprocessing."
    )
    assert rules["W001"]["properties"]["precision"] == "very-high"


def test_every_page_of_the_manual_makes_a_valid_rule(checked: Diagnosis) -> None:
    pages = load_manuals(load_rulebase())
    first = checked.causes[0]
    codes = [code for code in pages if re.fullmatch(r"[A-Z]\d{3}", code)]
    causes = tuple(first.model_copy(update={"cause": f"of-{code}", "rules": (code,)}) for code in codes)
    many = with_check(checked.model_copy(update={"causes": causes}), findings=())
    rules = run_of(render_sarif(many, pages))["tool"]["driver"]["rules"]
    described = {rule["id"]: rule["fullDescription"]["text"] for rule in rules if rule["id"] in codes}
    assert set(described) == set(codes) and len(codes) > 50
    assert all(40 < len(text) <= 1024 and "](" not in text for text in described.values())


def test_the_baseline_gives_every_result_a_state_or_none(checked: Diagnosis, diagnosis: Diagnosis) -> None:
    states = [result["baselineState"] for result in run_of(render_sarif(checked, {}))["results"]]
    assert states == ["new", "new", "updated", "new"]
    known = tuple(found.model_copy(update={"status": "known"}) for found in check_report(checked).findings)
    results = run_of(render_sarif(with_check(checked, findings=known), {}))["results"]
    assert [result["baselineState"] for result in results] == ["new", "new", "unchanged", "unchanged"]
    without = run_of(render_sarif(with_check(checked, baseline=None), {}))
    assert not any("baselineState" in result or ", new" in result["message"]["text"] for result in without["results"])


def test_what_is_exempted_throughout_is_left_out(checked: Diagnosis) -> None:
    findings = tuple(
        found.model_copy(update={"exemption": 0, "gated": False}) for found in check_report(checked).findings
    )
    run = run_of(render_sarif(with_check(checked, findings=findings), {}))
    assert [result["ruleId"] for result in run["results"]] == ["gate-accuracy", "gate-agreement"]
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == ["gate-accuracy", "gate-agreement"]


def test_what_the_policy_lets_pass_is_no_error(checked: Diagnosis) -> None:
    gates = tuple(gate.model_copy(update={"status": "anomalous"}) for gate in check_report(checked).gates[:1])
    levels = {}
    for code, warn_only in ((4, False), (0, False), (0, True)):
        odd = with_check(checked, gates=gates, verdict="ANOMALOUS", exit_code=code, warn_only=warn_only)
        levels[code, warn_only] = run_of(render_sarif(odd, {}))["results"][0]["level"]
    assert levels == {(4, False): "error", (0, False): "warning", (0, True): "error"}


def test_an_accepted_model_without_causes_has_a_run_without_results(healthy: Diagnosis) -> None:
    run = run_of(render_sarif(accepted(healthy.model_copy(update={"causes": ()})), {}))
    assert run["results"] == [] and run["tool"]["driver"]["rules"] == []
    assert run["invocations"] == [{"executionSuccessful": True, "exitCode": 0, "exitCodeDescription": "ACCEPT"}]


def test_fingerprints_are_distinct_and_hang_on_rule_and_model_alone(checked: Diagnosis) -> None:
    before = fingerprints(checked)
    assert len(set(before)) == len(before) == 4
    assert before[0] == "d3804cafb56e4200:1", "with another hash, all alerts of all users are opened anew"
    assert fingerprints(checked) == before
    found = [
        found.model_copy(update={"value": 1e6 - place, "status": "known", "gated": False, "message": f"other {place}"})
        for place, found in enumerate(check_report(checked).findings)
    ]
    gates = [
        gate.model_copy(update={"value": 99.0, "message": "other", "line": 77}) for gate in check_report(checked).gates
    ]
    causes = tuple(cause.model_copy(update={"confidence": 0.2, "message": "other"}) for cause in checked.causes)
    later = with_check(
        checked.model_copy(update={"causes": causes}), findings=tuple(reversed(found)), gates=tuple(gates)
    )
    assert fingerprints(later) == before
    assert not set(fingerprints(with_check(checked, model="other.onnx"))) & set(before)


def test_two_rules_of_one_cause_give_the_same_alert_whichever_is_worse(checked: Diagnosis) -> None:
    lead = check_report(checked).findings[0]
    pair = (lead, lead.model_copy(update={"rule": "W009", "name": "another-rule", "subject": "x"}))
    one, two = (with_check(checked, findings=order) for order in (pair, pair[::-1]))
    assert fingerprints(one)[2] == fingerprints(two)[2]
    assert [r["ruleId"] for r in run_of(render_sarif(two, {}))["results"]][2] == "W001"


def test_numbers_that_json_lacks_are_left_out(checked: Diagnosis) -> None:
    findings = tuple(
        found.model_copy(update={"value": float("inf"), "before": float("nan")})
        for found in check_report(checked).findings
    )
    (found, *_) = run_of(render_sarif(with_check(checked, findings=findings), {}))["results"][2]["properties"][
        "findings"
    ]
    assert "value" not in found and "before" not in found and found["threshold"] == 16


def test_hostile_names_are_inert(hostile_checked: Diagnosis) -> None:
    pages = {"W001": "# \x1b[31mW001\n\n<script>alert(1)</script>\u202e\n\n[x](javascript:alert(1)) ![y](z.png)\n"}
    text = render_sarif(hostile_checked, pages)
    assert text.isascii() and not re.search(r"[<>&\x00-\x09\x0b-\x1f\x7f]", text)
    assert not re.search(r"^\s*(::|##\[)", text, re.M)
    run = run_of(text)
    assert all(strings(run))
    assert len(run["results"]) > 40
    for each in strings(run):
        assert each.replace("\n", "").isprintable(), "neither control nor bidi characters"
    for result in run["results"]:
        message = result["message"]["text"]
        assert not LONE_BRACE.search(message) and "](" not in message
        uri = result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
        assert re.fullmatch(r"[\w.~/%-]+", uri, re.ASCII) and ":" not in uri
    (page,) = [rule["help"]["markdown"] for rule in run["tool"]["driver"]["rules"] if rule["id"] == "W001"]
    assert page == "# \\u001b[31mW001\n\n<script>alert(1)</script>\\u202e\n\nx "
    hashes = fingerprints(hostile_checked)
    assert len(set(hashes)) == len(hashes)
    assert len(text) < 600_000, "a name of 10 kB is not repeated"


def test_the_place_is_a_relative_uri(checked: Diagnosis) -> None:
    for location, uri in (
        ("ci/höhe 100%.toml", "ci/höhe 100%.toml"),
        ("a:b.toml", "a:b.toml"),
        ("/home/canary/ci/quantmedic.toml", "quantmedic.toml"),
        ("C:\\Users\\canary\\quantmedic.toml", "quantmedic.toml"),
        ("", "quantmedic.toml"),
        ("odd\udc80.toml", "odd\\udc80.toml"),
    ):
        text = render_sarif(with_check(checked, location=location), {})
        shown = run_of(text)["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
        assert unquote(shown) == uri and ":" not in shown and "canary" not in text


@pytest.mark.nightly
def test_more_results_than_github_shows_are_left_out_and_it_is_said(diagnosis: Diagnosis) -> None:
    first = diagnosis.causes[0]
    causes = tuple(first.model_copy(update={"cause": f"cause-{place}", "absorbs": ()}) for place in range(5100))
    text = render_sarif(regression(diagnosis.model_copy(update={"causes": causes})), {"W001": "# W001\n\nWide.\n"})
    (run,) = json.loads(text)["runs"]
    assert len(run["results"]) == 5000 and len(run["tool"]["driver"]["rules"]) == 3
    (notice,) = run["invocations"][0]["toolExecutionNotifications"]
    assert notice["message"]["text"] == "102 results are left out: no more than 5000 are shown."
    hashes = {result["partialFingerprints"]["primaryLocationLineHash"] for result in run["results"]}
    assert len(hashes) == 5000
    assert len(gzip.compress(text.encode())) < 10_000_000


def test_what_was_not_measured_is_a_warning_where_the_verdict_rests_on_it(healthy: Diagnosis) -> None:
    result = run_of(render_sarif(unmeasured(healthy), {}))["results"][0]
    assert (result["ruleId"], result["level"]) == ("gate-accuracy", "warning")
    assert "top1 needs labels" in result["message"]["text"]
    static = with_check(unmeasured(healthy), verdict="ACCEPT", exit_code=0, static=True)
    assert not any(r["ruleId"].startswith("gate-") for r in run_of(render_sarif(static, {}))["results"])

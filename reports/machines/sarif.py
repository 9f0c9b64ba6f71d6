"""SARIF 2.1.0: the gate's verdict for code scanning.

The format is that of the OASIS standard; which of its properties are filled in, and the limits, are what GitHub reads
and takes.
"""

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Literal, NotRequired, TypedDict
from urllib.parse import quote

from quantmedic.engine.contract.check_report import CheckedFinding, CheckReport, GateLine
from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.reports.machines.alarms import (
    FINDINGS_SHOWN,
    LEVELS,
    Alarm,
    Level,
    alarm_lines,
    alarms_of,
    failed_gates,
    findings_line,
    gate_level,
    gate_text,
    location,
    remedy_text,
)
from quantmedic.reports.sections.gate import check_of
from quantmedic.reports.text import capital, inert_json, name, printable, sentence, visible, without_links

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
#: Results that GitHub shows, and characters of a description that it takes.
RESULTS_SHOWN, DESCRIPTION_LIMIT = 5000, 1024
#: Layers named in ``logicalLocations``: more would only make the file large.
LAYERS_NAMED, UNIT_LIMIT = 50, 24
#: Words for the probability that a rule is right, from the lowest probability that they stand for.
PRECISIONS = ((0.9, "very-high"), (0.75, "high"), (0.5, "medium"), (0.0, "low"))
#: Gates by kind: what they ask for, and what to do where they do not pass.
GATES: Mapping[str, tuple[str, str]] = {
    "accuracy": (
        "The quantized model may lose no more of the task metric than the policy allows.",
        "Follow the first remedy of the report. Where the interval straddles the limit, measure on more samples.",
    ),
    "agreement": (
        "Both models shall predict the same class for the share of the samples that the policy asks for.",
        "Follow the first remedy of the report. Where the interval straddles the limit, measure on more samples.",
    ),
    "sqnr": (
        "The noise that quantization adds to an output shall stay below the signal by what the policy asks for.",
        "Follow the first remedy of the report.",
    ),
    "data": (
        "The data shall be read to the end.",
        "Go on with the interrupted run: the same command with --resume.",
    ),
    "comparison": (
        "The float model shall be one that the quantized model can be held against.",
        "Give the model as it was before quantization, and data on which its outputs are finite.",
    ),
    "loss": (
        "Without a policy, a model that is measurably worse than the float model is not accepted.",
        "Follow the first remedy of the report, or write a policy that says how much may be lost.",
    ),
    "harm": (
        "It shall be known whether noise that a repair would take away costs accuracy.",
        "Measure the task metric on as many samples as the report names, or follow its first remedy.",
    ),
    "coverage": (
        "The share of the compute operators that run quantized shall reach what the policy asks for.",
        "Look for operators that the toolchain left in float, and for options that exclude them.",
    ),
    "gain": (
        "The quantized model is better than the float model by more than quantization can explain.",
        "Look for a fault of the evaluation: other data, preprocessing or labels for one of the two models.",
    ),
    "exemptions": (
        "The exemptions of the policy shall be in force and match something.",
        "Remove or renew what the message names.",
    ),
}


class _Rule(TypedDict):
    """A ``reportingDescriptor``."""

    id: str
    name: str
    shortDescription: dict[str, str]
    fullDescription: dict[str, str]
    help: Mapping[str, str]
    defaultConfiguration: dict[str, str]
    properties: dict[str, object]


class _Result(TypedDict):
    """A ``result``; what is not required is filled in once all results are known."""

    ruleId: str
    level: Literal["error", "warning", "note"]
    message: dict[str, str]
    locations: list[dict[str, object]]
    properties: dict[str, object]
    baselineState: NotRequired[str]
    partialFingerprints: NotRequired[dict[str, str]]
    ruleIndex: NotRequired[int]


def render_sarif(diagnosis: Diagnosis, manuals: Mapping[str, str]) -> str:
    """One run with a result per cause and per gate that did not pass; causes that are exempted throughout are left out.

    Fingerprints hang on rule and model alone, so that an alert stays the same whatever is measured, and is another one
    for another model. Beyond 5 000 results the last are left out, and a notification says so.

    Args:
        diagnosis: With the verdict of a gate.
        manuals: Pages of the manual by their path without suffix; a rule's page is its help.

    Raises:
        QuantmedicError: The diagnosis was made without a gate.
    """
    check = check_of(diagnosis)
    alarms = [alarm for alarm in alarms_of(diagnosis) if not alarm.is_exempted]
    gates = failed_gates(check)
    results = [*(_gate_result(gate, check) for gate in gates), *(_cause_result(alarm, check) for alarm in alarms)]
    shown = results[:RESULTS_SHOWN]
    described = [*(_gate_rule(g, check, manuals) for g in gates), *(_cause_rule(a, manuals) for a in alarms)]
    rules = _rules_with_results(described, shown)
    _add_fingerprints(shown, check)
    _add_rule_places(shown, rules)
    run = {
        "tool": {"driver": {"name": "quantmedic", "version": diagnosis.quantmedic_version, "rules": rules}},
        "automationDetails": {"id": f"quantmedic/{_quote_path(check.model)}/"},
        "invocations": [_invocation(check, len(results) - len(shown))],
        "results": shown,
    }
    log = {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}
    return inert_json(json.dumps(log, indent=1, allow_nan=False))


def _invocation(check: CheckReport, left_out: int) -> dict[str, object]:
    found: dict[str, object] = {
        "executionSuccessful": True,
        "exitCode": check.exit_code,
        "exitCodeDescription": check.verdict,
    }
    if left_out:
        text = f"{left_out} results are left out: no more than {RESULTS_SHOWN} are shown."
        found["toolExecutionNotifications"] = [{"level": "warning", "message": {"text": text}}]
    return found


def _rules_with_results(described: Iterable[_Rule], results: Iterable[_Result]) -> list[_Rule]:
    """Each rule once, and only those that have results."""
    used = {result["ruleId"] for result in results}
    rules: dict[str, _Rule] = {}
    for rule in described:
        if rule["id"] in used:
            rules.setdefault(rule["id"], rule)
    return list(rules.values())


def _cause_rule(alarm: Alarm, manuals: Mapping[str, str]) -> _Rule:
    page = manuals.get(alarm.rule, "")
    short = sentence(alarm.name.replace("-", " "))
    help_ = {"text": f"{_remedies(alarm)}\nquantmedic explain {alarm.rule} prints the page of the manual."}
    if page.strip():
        help_["markdown"] = without_links(printable(page))
    rule = _rule(alarm.rule, alarm.name, short, _first_paragraph(page) or short, help_, alarm.level, alarm.family)
    if len(alarm.cause.rules) == 1:  # Where several rules speak, the confidence is that of the surest, not of this one.
        likely = alarm.cause.confidence
        rule["properties"]["precision"] = next(word for least, word in PRECISIONS if likely >= least)
    return rule


def _remedies(alarm: Alarm) -> str:
    others = [f"Or: {capital(name(advice.title))}." for advice in alarm.cause.remedies[1:]]
    return "\n".join([sentence(remedy_text(alarm)), *others]) if alarm.cause.remedies else "No remedy is advised."


def _gate_rule(gate: GateLine, check: CheckReport, manuals: Mapping[str, str]) -> _Rule:
    asks, todo = GATES[gate.kind]
    help_ = {"text": todo}
    if page := manuals.get("general/check", "").strip():
        help_["markdown"] = f"{todo}\n\n{without_links(printable(page))}"
    short = f"The gate of {gate.kind} did not pass."
    return _rule(_gate_id(gate), f"gate of {gate.kind}", short, asks, help_, gate_level(gate, check), "gate")


def _gate_id(gate: GateLine) -> str:
    return f"gate-{gate.kind}"


def _sarif_level(level: Level) -> Literal["error", "warning", "note"]:
    return "note" if level == "notice" else level


def _rule(code: str, title: str, short: str, full: str, help_: Mapping[str, str], level: Level, tag: str) -> _Rule:
    return {
        "id": code,
        "name": title,
        "shortDescription": {"text": _shorten_description(short)},
        "fullDescription": {"text": _shorten_description(full)},
        "help": help_,
        "defaultConfiguration": {"level": _sarif_level(level)},
        "properties": {"tags": ["quantization", tag]},
    }


def _first_paragraph(page: str) -> str:
    """What a page of the manual says first, without links and marks."""
    for block in page.split("\n\n"):
        lines = [line for line in block.strip().splitlines() if not line.startswith("#")]
        if lines and not lines[0].startswith(("|", "```", "- ", "* ", "Also called: ")):
            return visible(without_links(" ".join(line.strip() for line in lines)).replace("`", ""))
    return ""


def _cause_result(alarm: Alarm, check: CheckReport) -> _Result:
    cause = alarm.cause
    said = f"{alarm.message} ({_model(check)}, {cause.severity}, confidence {100 * cause.confidence:.0f} %)"
    lines = [sentence(said), *alarm_lines(alarm, check)]
    subjects = list(dict.fromkeys(finding.subject for finding in alarm.counted)) or list(cause.subjects)
    properties: dict[str, object] = {
        "cause": name(cause.cause),
        "severity": cause.severity,
        "confidence": cause.confidence,
        "predictedGainDb": cause.predicted_gain_db,
        "measuredGainDb": cause.measured_gain_db,
        "findings": [_known_properties(_finding(finding, check)) for finding in alarm.counted[:FINDINGS_SHOWN]],
    }
    result = _result(alarm.rule, LEVELS[cause.severity], lines, check, findings_line(check), subjects, properties)
    _add_baseline_state(result, check, alarm.counted)
    return result


def _finding(finding: CheckedFinding, check: CheckReport) -> dict[str, object]:
    return {
        "rule": visible(finding.rule, 40),
        "subject": name(finding.subject),
        "fact": name(finding.fact or ""),
        "value": finding.value,
        "comparison": name(finding.comparison or ""),
        "threshold": finding.threshold,
        "unit": visible(finding.unit or "", UNIT_LIMIT),
        "before": finding.before,
        "status": finding.status if check.baseline is not None else None,
        "gated": finding.gated,
    }


def _gate_result(gate: GateLine, check: CheckReport) -> _Result:
    lines = [sentence(f"{name(gate.name)}: {gate_text(gate)} ({_model(check)})")]
    properties: dict[str, object] = {
        "gate": name(gate.name),
        "status": gate.status,
        "value": gate.value,
        "low": gate.low,
        "high": gate.high,
        "limit": gate.limit,
        "unit": visible(gate.unit or "", UNIT_LIMIT),
        "confidence": gate.confidence,
        "samples": gate.samples.now if gate.samples is not None else None,
    }
    result = _result(_gate_id(gate), gate_level(gate, check), lines, check, gate.line, [], properties)
    _add_baseline_state(result, check, ())
    return result


def _result(
    rule: str,
    level: Level,
    lines: Iterable[str],
    check: CheckReport,
    line: int,
    subjects: Iterable[str],
    properties: Mapping[str, object],
) -> _Result:
    place: dict[str, object] = {
        "physicalLocation": {
            "artifactLocation": {"uri": _quote_path(location(check))},
            "region": {"startLine": max(line, 1), "startColumn": 1, "endLine": max(line, 1), "endColumn": 1},
        }
    }
    if names := [name(subject) for subject in subjects if subject][:LAYERS_NAMED]:
        place["logicalLocations"] = [{"name": each, "fullyQualifiedName": each} for each in dict.fromkeys(names)]
    return {
        "ruleId": rule,
        "level": _sarif_level(level),
        "message": {"text": _sarif_message("\n".join(lines))},
        "locations": [place],
        "properties": _known_properties(properties),
    }


def _add_fingerprints(results: Iterable[_Result], check: CheckReport) -> None:
    """What tells results apart and is the same in the next run."""
    seen: Counter[str] = Counter()
    for result in results:
        identity = (result["ruleId"], result["properties"].get("gate", ""), check.model)
        digest = sha256(json.dumps(identity).encode()).hexdigest()[:16]
        seen[digest] += 1
        result["partialFingerprints"] = {"primaryLocationLineHash": f"{digest}:{seen[digest]}"}


def _add_rule_places(results: Iterable[_Result], rules: Iterable[_Rule]) -> None:
    """Where the rule of each result stands in the list of rules."""
    places = {rule["id"]: place for place, rule in enumerate(rules)}
    for result in results:
        result["ruleIndex"] = places[result["ruleId"]]


def _add_baseline_state(result: _Result, check: CheckReport, findings: Iterable[CheckedFinding]) -> None:
    """All results have a state or none has, says the standard; what no baseline holds, such as a gate, is new."""
    if check.baseline is None:
        return
    statuses = {finding.status for finding in findings}
    result["baselineState"] = "new" if statuses <= {"new"} else "unchanged" if statuses == {"known"} else "updated"


def _known_properties(values: Mapping[str, object]) -> dict[str, object]:
    """The properties that were measured; JSON has neither NaN nor infinity."""
    return {
        key: value
        for key, value in values.items()
        if value not in (None, "", []) and not (isinstance(value, float) and not math.isfinite(value))
    }


def _sarif_message(text: str) -> str:
    """A message of SARIF, in which braces are doubled, and nothing is a link."""
    return text.replace("](", "] (").replace("{", "{{").replace("}", "}}")


def _model(check: CheckReport) -> str:
    return name(check.model) or "?"


def _shorten_description(text: str) -> str:
    return text if len(text) <= DESCRIPTION_LIMIT else f"{text[: DESCRIPTION_LIMIT - 1]}…"


def _quote_path(path: str) -> str:
    return quote(path or "?", safe="/", errors="backslashreplace")

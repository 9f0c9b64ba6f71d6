"""The gate as text: every line that its verdict rests on, for console, page, Markdown and comment."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from quantmedic.engine.contract.causes import CauseReport, RuleNote
from quantmedic.engine.contract.check_report import (
    EXIT_CODES,
    BaselineUse,
    CheckedFinding,
    CheckReport,
    ExemptionStatus,
    ExemptionUse,
    GateLine,
    GateStatus,
    GateWord,
)
from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.engine.errors import QuantmedicError
from quantmedic.engine.gate.budget import rounded_up
from quantmedic.engine.rules.conditions import COMPARISONS
from quantmedic.engine.rules.rulebase import asks_for_data
from quantmedic.reports.blocks import (
    Block,
    Column,
    Details,
    Heading,
    Inline,
    Paragraph,
    Section,
    Span,
    Table,
    make_table,
)
from quantmedic.reports.text import capital, count, decibels, measure, name, number, visible

MESSAGE_LIMIT = 300
GATES_NAMED = 3
#: Findings that count and are not folded, and those of any list.
COUNTED_SHOWN, FOUND_SHOWN = 20, 200
PRUNE, WRITE = "quantmedic check CASE --prune-baseline", "quantmedic check CASE --write-baseline FILE"
#: What a status is called, and its mark: a word of at most four letters, and a sign that needs no colour.
WORDS: Mapping[GateStatus, str] = {
    "pass": "pass",
    "fail": "fail",
    "undecided": "open",
    "anomalous": "odd",
    "not-judged": "skip",
}
MARKS: Mapping[GateStatus, str] = {"pass": "✓", "fail": "✗", "undecided": "?", "anomalous": "!", "not-judged": "–"}
LOOKS: Mapping[GateWord, str] = {
    "ACCEPT": "healthy",
    "REGRESSION": "degraded",
    "INSUFFICIENT_DATA": "not-comparable",
    "ANOMALOUS": "not-comparable",
}
#: Gates whose limit is the most that they allow; the others ask for at least theirs.
UPPER = ("accuracy", "gain", "findings", "exemptions")
#: Why a finding does not count that is neither known nor exempted: it is less grave than the policy asks for, or makes
#: figures doubtful, which the gate of the data judges.
LEFT_OUT = "left out by fail_on"
#: Exemptions that somebody should look at.
CARE: tuple[ExemptionStatus, ...] = ("expires-soon", "expired", "unused")


@dataclass(frozen=True)
class GateRow:
    """One gate."""

    status: Annotated[str, "pass, fail, undecided, anomalous or not-judged"]
    word: Annotated[str, "the same in at most four letters: pass, fail, open, odd or skip"]
    label: Annotated[str, "the same as it stands in tables: not judged instead of skip"]
    mark: Annotated[str, "the same as a sign"]
    kind: Annotated[str, "accuracy, agreement, sqnr, data, comparison, loss, findings, coverage, gain or exemptions"]
    name: Annotated[str, "name of the gate"]
    message: Annotated[str, "figure, interval and limit, or why it was not judged"]
    figures: Annotated[bool, "value and limit are known: they say what the message says"]
    value: Annotated[str, "what was measured, with its unit"]
    interval: Annotated[str, "both ends of its interval; empty where it has none"]
    confidence: Annotated[str, "coverage of the interval as percent; empty where it has none"]
    limit: Annotated[str, "what the policy allows, with its unit; empty where that is no number"]
    samples: Annotated[str, "samples that were measured; empty where it is not about samples"]
    needed: Annotated[str, "samples that would decide, as the message says too; empty where the gate is decided"]
    mcnemar: Annotated[str, "p of McNemar's test, which is not used; empty where it was not computed"]


@dataclass(frozen=True)
class FoundRow:
    """One finding as the gate sees it."""

    rule: Annotated[str, "code of the rule"]
    name: Annotated[str, "name of the rule"]
    severity: Annotated[str, "high, medium, low or info"]
    subject: Annotated[str, "layer, tensor, data set, output or model"]
    figure: Annotated[str, "headline fact against its threshold, or what was found where no number was compared"]
    before: Annotated[str, "the same against the baseline: new, worse or known; empty where there is none"]
    gated: Annotated[bool, "counts against the policy"]
    standing: Annotated[str, "why it does not count: exempted, known or left out by fail_on; empty where it counts"]
    exempted: Annotated[str, "reason of its exemption, and until when; empty where none covers it"]


@dataclass(frozen=True)
class ExemptionRow:
    """One exemption of the policy."""

    rule: Annotated[str, "rule that it is for, as the policy names it"]
    layers: Annotated[str, "patterns of the layers that it is for"]
    reason: Annotated[str, "why it is there"]
    expires: Annotated[str, "last day on which it is in force, or never"]
    covers: Annotated[str, "findings that it covers, or would cover"]
    care: Annotated[bool, "somebody should look at it"]
    state: Annotated[str, "in force, or what is the matter with it"]


@dataclass(frozen=True)
class BaselineBox:
    """What became of the baseline."""

    origin: Annotated[str, "file name"]
    text: Annotated[str, "known, new, worse and gone findings, counted"]
    gone: Annotated[tuple[str, ...], "findings that are no longer there: 'W003 features.9.conv'"]
    not_judged: Annotated[tuple[str, ...], "findings that could not be judged this time"]
    prune: Annotated[str, "command that removes what is gone; empty where nothing is"]


@dataclass(frozen=True)
class GateBox:
    """The verdict of ``quantmedic check``, and every line that it rests on."""

    verdict: Annotated[str, "ACCEPT, REGRESSION, INSUFFICIENT_DATA or ANOMALOUS"]
    look: Annotated[str, "how it is drawn: healthy, degraded or not-comparable"]
    summary: Annotated[str, "what it rests on, in half a sentence"]
    exit_text: Annotated[str, "exit code of the check, and who set it to 0 where somebody did"]
    lenient: Annotated[bool, "the exit code is 0 although the verdict has another"]
    model: Annotated[str, "file name of the quantized model"]
    policy: Annotated[str, "policy file; empty where the defaults were used"]
    static: Annotated[str, "what a check without data leaves out; empty where data was used"]
    gates: Annotated[tuple[GateRow, ...], "every gate, in the order of the policy"]
    unbudgeted: Annotated[bool, "the task metric dropped for certain, and no budget says by how much it may"]
    counted: Annotated[tuple[FoundRow, ...], "findings that count against the policy, gravest first"]
    others: Annotated[tuple[FoundRow, ...], "findings that do not count"]
    others_text: Annotated[str, "the same counted by reason; empty where there are none"]
    exemptions: Annotated[tuple[ExemptionRow, ...], "exemptions of the policy"]
    baseline: Annotated[BaselineBox | None, "what became of the baseline; None where none was given"]


@dataclass(frozen=True)
class Exempted:
    """What the policy exempts of one cause."""

    whole: bool
    text: str


def check_of(diagnosis: Diagnosis) -> CheckReport:
    """The gate's answer.

    Raises:
        QuantmedicError: The diagnosis was made without a gate.
    """
    if diagnosis.check is None:
        raise QuantmedicError(
            "this diagnosis has no verdict of a gate to show",
            help="use quantmedic check instead of quantmedic diagnose",
        )
    return diagnosis.check


def gate_box(diagnosis: Diagnosis) -> GateBox | None:
    """The gate as text; None where no check was made."""
    return gate_of(diagnosis) if diagnosis.check is not None else None


def gate_of(diagnosis: Diagnosis) -> GateBox:
    """The gate as text.

    Raises:
        QuantmedicError: The diagnosis was made without a gate.
    """
    check = check_of(diagnosis)
    found = [(finding, _finding_row(finding, check)) for finding in check.findings]
    others = tuple(row for finding, row in found if not finding.gated)
    return GateBox(
        verdict=check.verdict,
        look=LOOKS[check.verdict],
        summary=f"{_verdict_summary(check)}{', judged without data' if check.static else ''}",
        exit_text=_exit_text(check),
        lenient=_is_lenient(check),
        model=name(check.model),
        policy=name(check.policy) if check.policy is not None else "",
        static=_static_text(diagnosis.not_judged) if check.static else "",
        gates=tuple(_gate_row(gate) for gate in check.gates),
        unbudgeted=diagnosis.evidence_strength.statement == "proven" and all(g.kind != "accuracy" for g in check.gates),
        counted=tuple(row for finding, row in found if finding.gated),
        others=others,
        others_text=_others_text([row.standing.partition(",")[0] for row in others]),
        exemptions=tuple(_exemption_row(use) for use in check.exemptions),
        baseline=_baseline_box(check.baseline) if check.baseline is not None else None,
    )


def gate_section(diagnosis: Diagnosis) -> Section | None:
    """The gate, and every line that its verdict rests on; None where no check was made."""
    if diagnosis.check is None:
        return None
    box = gate_of(diagnosis)
    policy = ["Policy ", Span(box.policy, "name"), "."] if box.policy else ["No policy file: the defaults apply."]
    static = [f" Static: {box.static}."] if box.static else []
    lead = [f"{capital(box.summary)}. {capital(box.exit_text)}. ", *policy, *static]
    blocks: list[Block] = [Paragraph(lead, "lead"), _gate_table(box)]
    if box.counted:
        blocks += [Heading("findings that count"), _found_table("Findings that count", box.counted[:COUNTED_SHOWN])]
        if rest := box.counted[COUNTED_SHOWN:]:
            blocks.append(Details(f"{len(rest)} more", _found_blocks("More findings that count", rest)))
    if box.others:
        title = f"Findings that do not count: {box.others_text}"
        blocks.append(Details(title, _found_blocks("Findings that do not count", box.others)))
    if box.exemptions:
        blocks += [Heading("exemptions"), _exemption_table(box.exemptions)]
    blocks += _baseline_blocks(box.baseline) if box.baseline is not None else []
    verdict = Span(box.verdict.replace("_", " "), f"verdict verdict-{box.look}")
    return Section("gate", ["Gate: ", verdict], "Gate", blocks)


def _gate_table(box: GateBox) -> Table:
    return make_table(
        "Gates",
        box.gates,
        [
            (
                Column("gate", "tight"),
                lambda row: [Span(f"{row.mark} {row.label}", f"status status-{row.status}"), f" {row.name}"],
            ),
            (Column("measured", "num"), lambda row: row.value if row.figures else ""),
            (Column("limit"), lambda row: row.limit if row.figures else capital(row.message)),
            (Column("interval"), _interval_text),
            (Column("samples"), lambda row: [row.samples, Span(row.needed, "note")]),
        ],
        "gates",
    )


def _gate_text(row: GateRow) -> Inline:
    return [Span(f"{row.mark} {row.label}", f"status status-{row.status}"), f" {row.name}"]


def _interval_text(row: GateRow) -> Inline:
    if not row.figures:
        return ""
    confidence = Span(f" ({row.confidence})" if row.confidence else "", "muted")
    mcnemar = Span(f"McNemar p {row.mcnemar}, not used" if row.mcnemar else "", "note")
    return [Span(row.interval, "tight"), confidence, mcnemar]


def _found_blocks(label: str, rows: Sequence[FoundRow]) -> list[Block]:
    """Findings, and how many more there are."""
    left = len(rows) - FOUND_SHOWN
    more = [Paragraph(f"report.json holds {left} more.", "muted")] if left > 0 else []
    return [_found_table(label, rows[:FOUND_SHOWN]), *more]


def _found_table(label: str, rows: Sequence[FoundRow]) -> Table:
    """What is exempted is struck through."""

    def mark(row: FoundRow, look: str = "") -> str:
        return "struck" if row.exempted else look

    return make_table(
        label,
        rows,
        [
            (Column("rule"), lambda row: [f"{row.rule} {row.name} ", Span(row.severity, f"chip chip-{row.severity}")]),
            (Column("where"), lambda row: Span(row.subject, mark(row, "name"))),
            (Column("found"), lambda row: Span(row.figure, mark(row))),
            (Column("against the baseline" if rows[0].gated else "why it does not count"), _standing_text),
        ],
        "found",
    )


def _standing_text(row: FoundRow) -> Inline:
    return [capital(row.standing or row.before or "no baseline"), Span(row.exempted, "note")]


def _exemption_table(rows: Sequence[ExemptionRow]) -> Table:
    return make_table(
        "Exemptions",
        rows,
        [
            (Column("rule and layers"), lambda row: [f"{row.rule} ", Span(row.layers, "name")]),
            (Column("state"), lambda row: Span(f"! {row.state}", "status status-undecided") if row.care else row.state),
            (Column("reason"), lambda row: row.reason),
            (Column("expires", "tight"), lambda row: row.expires),
            (Column("covers", "num"), lambda row: row.covers),
        ],
        "found",
    )


def _baseline_blocks(box: BaselineBox) -> list[Block]:
    prune = [" ", Span(box.prune, "code"), " removes what is gone."] if box.prune else []
    blocks: list[Block] = [Heading("baseline"), Paragraph([Span(box.origin, "name"), f": {box.text}.", *prune])]
    for title, rows in (("Gone", box.gone), ("Not judged this time", box.not_judged)):
        if rows:
            more = f" and {len(rows) - FOUND_SHOWN} more" if len(rows) > FOUND_SHOWN else ""
            blocks.append(
                Details(f"{title}: {len(rows)}", [Paragraph(f"{', '.join(rows[:FOUND_SHOWN])}{more}", "mono")])
            )
    return blocks


def exempted_of(cause: CauseReport, check: CheckReport | None) -> Exempted | None:
    """How far the policy exempts a cause, and why; None where it does not."""
    if check is None:
        return None
    places: dict[str, list[CheckedFinding]] = {}
    for finding in check.findings:
        if finding.cause == cause.cause:
            places.setdefault(finding.subject, []).append(finding)
    free = [rows for rows in places.values() if all(_exemption_of(row, check) is not None for row in rows)]
    if not free:
        return None
    reasons = dict.fromkeys(
        reason_text(use) for rows in free for row in rows if (use := _exemption_of(row, check)) is not None
    )
    whole = len(free) == len(places)
    noun = "layer" if cause.layers else "place"
    verb = "is" if len(free) == 1 else "are"
    head = "exempted" if whole else f"{len(free)} of {count(len(places), noun)} {verb} exempted"
    return Exempted(whole, f"{head}: {'; '.join(reasons)}")


def _exemption_of(finding: CheckedFinding, check: CheckReport) -> ExemptionUse | None:
    """The exemption in force that covers a finding."""
    return check.exemptions[finding.exemption] if finding.exemption is not None else None


def reason_text(use: ExemptionUse, limit: int = MESSAGE_LIMIT) -> str:
    """Why an exemption is there, and until when."""
    until = "for ever" if use.expires == "never" else f"until {visible(use.expires, 20)}"
    return f"{visible(use.reason.strip(), limit)} ({until})"


def _verdict_summary(check: CheckReport) -> str:
    """What the verdict rests on: gates counted, else the one that could not be decided."""
    by_status = {status: [gate for gate in check.gates if gate.status == status] for status in WORDS}
    failed, undecided, odd = by_status["fail"], by_status["undecided"], by_status["anomalous"]
    unclear = {"open": len(undecided), "not judged": len(by_status["not-judged"])}
    rest = "".join(f", {size} {word}" for word, size in unclear.items() if size)
    match check.verdict:
        case "REGRESSION":
            return f"{len(failed)} of {count(len(check.gates), 'gate')} failed ({_gate_names(failed)}){rest}"
        case "INSUFFICIENT_DATA" if undecided:
            first = undecided[0]
            more = f"; {count(len(undecided) - 1, 'more gate')} open" if len(undecided) > 1 else ""
            return f"{_gate_message(first)}{more}"
        case "INSUFFICIENT_DATA" if by_status["not-judged"]:
            return f"not judged: {_gate_message(by_status['not-judged'][0])}"
        case "ANOMALOUS" if odd:
            return _gate_message(odd[0])
    passed = len(by_status["pass"])
    return f"{count(passed, 'gate') if passed else 'no gate'} passed{rest}"


def _gate_names(gates: Sequence[GateLine]) -> str:
    shown = ", ".join(visible(gate.name, 40) for gate in gates[:GATES_NAMED])
    return f"{shown}, …" if len(gates) > GATES_NAMED else shown


def _gate_message(gate: GateLine) -> str:
    return f"{visible(gate.name, 40)}: {visible(gate.message, MESSAGE_LIMIT)}"


def _samples_needed(gate: GateLine) -> str:
    """Samples that would decide, as far as they are known."""
    if (samples := gate.samples) is None:
        return ""
    if samples.at_measured is not None:
        return f"about {rounded_up(samples.at_measured)} samples would decide"
    if samples.at_twice is not None:
        return f"{rounded_up(samples.at_twice)} samples would find twice the limit in 9 of 10 runs"
    return "how many samples would decide is not known"


def _is_lenient(check: CheckReport) -> bool:
    return check.exit_code != EXIT_CODES[check.verdict]


def _exit_text(check: CheckReport) -> str:
    if not _is_lenient(check):
        return f"exit code {check.exit_code}"
    return f"exit code {check.exit_code} by {'--warn-only' if check.warn_only else 'the policy'}"


def _static_text(not_judged: Iterable[RuleNote]) -> str:
    """What was left out for want of data; what supplies a fact stands in its hint."""
    awaited = [asks_for_data(note.hint) for note in not_judged]
    data = sum(awaited)
    others = f"; not judged for other reasons: {len(awaited) - data}" if len(awaited) > data else ""
    return f"weights, graph and quantization parameters only; needs data: {count(data, 'rule')}{others}"


def _gate_row(gate: GateLine) -> GateRow:
    ends = (gate.low, gate.high)
    has_interval = gate.low is not None or gate.high is not None
    bound = "at most" if gate.kind in UPPER else "at least"
    samples = gate.samples
    return GateRow(
        status=gate.status,
        word=WORDS[gate.status],
        label="not judged" if gate.status == "not-judged" else WORDS[gate.status],
        mark=MARKS[gate.status],
        kind=gate.kind,
        name=name(gate.name),
        message=visible(gate.message, MESSAGE_LIMIT),
        figures=gate.value is not None and gate.limit is not None,
        value=_gate_figure(gate.value, gate.unit),
        interval=" … ".join(_gate_figure(end, gate.unit, bare=True) for end in ends) if has_interval else "",
        confidence=f"{100 * gate.confidence:.4g} %" if has_interval and gate.confidence is not None else "",
        limit=f"{bound} {_gate_figure(gate.limit, gate.unit)}" if gate.limit is not None else "",
        samples=number(samples.now) if samples is not None else "",
        needed=_samples_needed(gate) if gate.status == "undecided" else "",
        mcnemar=number(gate.mcnemar_p, 2) if gate.mcnemar_p is not None else "",
    )


def _gate_figure(value: float | None, unit: str | None, *, bare: bool = False) -> str:
    """A figure of a gate in the unit of its limit; ``bare`` leaves the unit out."""
    if unit == "dB":
        return decibels(value).removesuffix(" dB") if bare else decibels(value)
    if value is None or unit is None:
        return number(value, 4)
    text = f"{value + 0.0:.2f}" if unit in ("points", "%", "percent") and abs(value) < 1e6 else number(value, 4)
    return text if bare else f"{text} {visible(unit, 24)}"


def _finding_row(finding: CheckedFinding, check: CheckReport) -> FoundRow:
    use = _exemption_of(finding, check)
    before = before_text(finding) if check.baseline is not None else ""
    return FoundRow(
        rule=visible(finding.rule, 40),
        name=name(finding.name),
        severity=finding.severity,
        subject=name(finding.subject),
        figure=_finding_figure(finding),
        before=before,
        gated=finding.gated,
        standing="" if finding.gated else _why_not_gated(finding, use, before),
        exempted=reason_text(use) if use is not None else "",
    )


def _finding_figure(finding: CheckedFinding) -> str:
    if finding.fact is None or finding.value is None or finding.threshold is None:
        return visible(finding.message.strip(), MESSAGE_LIMIT)
    sign = COMPARISONS.get(finding.comparison or "", "against")
    short = visible(finding.fact.rpartition(".")[2], 60)
    return f"{short} {measure(finding.value, finding.unit)} {sign} {measure(finding.threshold, finding.unit)}"


def before_text(finding: CheckedFinding) -> str:
    """What a finding is against the baseline: ``worse, baseline 22``."""
    if finding.status == "new" or finding.before is None:
        return finding.status
    return f"{finding.status}, baseline {measure(finding.before, finding.unit)}"


def _why_not_gated(finding: CheckedFinding, use: ExemptionUse | None, before: str) -> str:
    if use is not None:
        return "exempted"
    if finding.status == "known":
        return before or "known"
    return f"{LEFT_OUT}, {before}" if before else LEFT_OUT


def _others_text(reasons: Sequence[str]) -> str:
    """``3 known, 1 exempted, 12 left out by fail_on``."""
    return ", ".join(f"{reasons.count(reason)} {reason}" for reason in sorted(set(reasons)))


def _exemption_row(use: ExemptionUse) -> ExemptionRow:
    return ExemptionRow(
        rule=visible(use.rule, 60),
        layers=visible(", ".join(use.layers), 120),
        reason=visible(use.reason.strip(), MESSAGE_LIMIT),
        expires=visible(use.expires, 20),
        covers=count(use.findings, "finding"),
        care=use.status in CARE,
        state=_exemption_state(use),
    )


def _exemption_state(use: ExemptionUse) -> str:
    days = count(abs(use.days or 0), "day")
    match use.status:
        case "expires-soon":
            return f"expires {'today' if use.days == 0 else f'in {days}'}"
        case "expired":
            again = f"; {count(use.findings, 'finding counts', 'findings count')} again" if use.findings else ""
            return f"expired {days} ago{again}" if use.days is not None else f"expired{again}"
        case "unused":
            return "matches nothing, remove it"
        case "not-judged":
            return "its rule was not judged"
    return "in force"


def _baseline_box(use: BaselineUse) -> BaselineBox:
    if use.missing:
        text = f"not written yet, so every finding is new: {WRITE}"
        return BaselineBox(origin=name(use.origin), text=text, gone=(), not_judged=(), prune="")
    counts = {"known": use.known, "new": use.new, "worse": use.worse, "gone": len(use.gone)}
    parts = [f"{size} {word}" for word, size in counts.items() if size or word == "known"]
    parts += [f"{len(use.not_judged)} not judged"] if use.not_judged else []
    parts += [f"{count(use.renamed, 'layer')} renamed"] if use.renamed else []
    return BaselineBox(
        origin=name(use.origin),
        text=", ".join(parts),
        gone=tuple(f"{visible(gone.rule, 40)} {name(gone.subject)}" for gone in use.gone),
        not_judged=tuple(f"{visible(gone.rule, 40)} {name(gone.subject)}" for gone in use.not_judged),
        prune=PRUNE if use.gone else "",
    )

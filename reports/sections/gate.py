"""The gate as text: every line that its verdict rests on, for console, page, Markdown and comment."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

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
    GoneFinding,
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
from quantmedic.reports.text import NAME_LIMIT, capital, count, decibels, first_few, measure, name, number, visible

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
#: Statuses that decide a verdict, of which the first that occurs is named.
DECIDING: Mapping[GateWord, tuple[GateStatus, ...]] = {
    "ACCEPT": (),
    "REGRESSION": ("fail",),
    "INSUFFICIENT_DATA": ("undecided", "not-judged"),
    "ANOMALOUS": ("anomalous",),
}
#: Gates whose limit is the most that they allow; the others ask for at least theirs.
UPPER = ("accuracy", "gain", "findings", "exemptions")
#: Why a finding does not count that is neither known nor exempted: it is less grave than the policy asks for, or makes
#: figures doubtful, which the gate of the data judges.
LEFT_OUT = "left out by fail_on"
#: Exemptions that somebody should look at.
CARE: tuple[ExemptionStatus, ...] = ("expires-soon", "expired", "unused")


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


def gate_section(diagnosis: Diagnosis) -> Section | None:
    """The gate, and every line that its verdict rests on; None where no check was made."""
    check = diagnosis.check
    if check is None:
        return None
    policy = (
        ["Policy ", Span(name(check.policy), "name"), "."] if check.policy else ["No policy file: the defaults apply."]
    )
    static = [f" Static: {static_text(diagnosis.not_judged)}."] if check.static else []
    lead = [f"{capital(verdict_summary(check))}. {capital(exit_text(check))}. ", *policy, *static]
    blocks: list[Block] = [Paragraph(lead, "lead"), _gate_table(check.gates), *_finding_blocks(check)]
    if check.exemptions:
        blocks += [Heading("exemptions"), _exemption_table(check.exemptions)]
    blocks += _baseline_blocks(check.baseline) if check.baseline is not None else []
    verdict = Span(check.verdict.replace("_", " "), f"verdict verdict-{LOOKS[check.verdict]}")
    return Section("gate", ["Gate: ", verdict], "Gate", blocks)


def _gate_table(gates: Sequence[GateLine]) -> Table:
    return make_table(
        "Gates",
        gates,
        [
            (Column("gate", "tight"), _gate_text),
            (Column("measured", "num"), lambda gate: _gate_figure(gate.value, gate.unit) if _has_figures(gate) else ""),
            (Column("limit"), _limit_text),
            (Column("interval"), _interval_text),
            (Column("samples"), lambda gate: [samples_text(gate), Span(_samples_needed(gate), "note")]),
        ],
        "gates",
    )


def _gate_text(gate: GateLine) -> Inline:
    mark = f"{MARKS[gate.status]} {status_label(gate.status)}"
    return [Span(mark, f"status status-{gate.status}"), f" {name(gate.name)}"]


def _has_figures(gate: GateLine) -> bool:
    """Value and limit are known: they say what the message says."""
    return gate.value is not None and gate.limit is not None


def _limit_text(gate: GateLine) -> str:
    if not _has_figures(gate):
        return capital(message_text(gate))
    return f"{'at most' if gate.kind in UPPER else 'at least'} {_gate_figure(gate.limit, gate.unit)}"


def _interval_text(gate: GateLine) -> Inline:
    if not _has_figures(gate) or (gate.low is None and gate.high is None and gate.mcnemar_p is None):
        return ""
    ends = " … ".join(_gate_figure(end, gate.unit, bare=True) for end in (gate.low, gate.high))
    confidence, mcnemar = confidence_text(gate), mcnemar_text(gate)
    return [
        Span(ends if gate.low is not None or gate.high is not None else "", "tight"),
        Span(f" ({confidence})" if confidence else "", "muted"),
        Span(f"McNemar p {mcnemar}, not used" if mcnemar else "", "note"),
    ]


def _finding_blocks(check: CheckReport) -> Iterator[Block]:
    counted, others = split_findings(check)
    if counted:
        yield Heading("findings that count")
        yield _found_table("Findings that count", counted[:COUNTED_SHOWN], check)
    if rest := counted[COUNTED_SHOWN:]:
        yield Details(f"{len(rest)} more", _found_blocks("More findings that count", rest, check))
    if others:
        title = f"Findings that do not count: {others_text(check)}"
        yield Details(title, _found_blocks("Findings that do not count", others, check))


def _found_blocks(label: str, findings: Sequence[CheckedFinding], check: CheckReport) -> list[Block]:
    """Findings, and how many more there are."""
    left = len(findings) - FOUND_SHOWN
    more = [Paragraph(f"report.json holds {left} more.", "muted")] if left > 0 else []
    return [_found_table(label, findings[:FOUND_SHOWN], check), *more]


def _found_table(label: str, findings: Sequence[CheckedFinding], check: CheckReport) -> Table:
    """What is exempted is struck through."""

    def mark(finding: CheckedFinding, look: str = "") -> str:
        return "struck" if finding.exemption is not None else look

    def standing(finding: CheckedFinding) -> Inline:
        text = standing_text(finding, check) or "no baseline"
        return [capital(text), Span(exemption_text(finding, check), "note")]

    return make_table(
        label,
        findings,
        [
            (Column("rule"), lambda row: [f"{rule_text(row)} ", Span(row.severity, f"chip chip-{row.severity}")]),
            (Column("where"), lambda row: Span(name(row.subject), mark(row, "name"))),
            (Column("found"), lambda row: Span(finding_figure(row), mark(row))),
            (Column("against the baseline" if findings[0].gated else "why it does not count"), standing),
        ],
        "found",
    )


def _exemption_table(uses: Sequence[ExemptionUse]) -> Table:
    def state(use: ExemptionUse) -> Inline:
        text = exemption_state(use)
        return Span(f"! {text}", "status status-undecided") if use.status in CARE else text

    return make_table(
        "Exemptions",
        uses,
        [
            (Column("rule and layers"), lambda use: [f"{visible(use.rule, 60)} ", Span(_exempted_layers(use), "name")]),
            (Column("state"), state),
            (Column("reason"), lambda use: visible(use.reason.strip(), MESSAGE_LIMIT)),
            (Column("expires", "tight"), lambda use: visible(use.expires, 20)),
            (Column("covers", "num"), lambda use: count(use.findings, "finding")),
        ],
        "found",
    )


def _baseline_blocks(use: BaselineUse) -> list[Block]:
    prune = [" ", Span(PRUNE, "code"), " removes what is gone."] if use.gone else []
    text: Inline = [Span(name(use.origin), "name"), f": {baseline_text(use)}.", *prune]
    blocks: list[Block] = [Heading("baseline"), Paragraph(text)]
    for title, gone in (("Gone", use.gone), ("Not judged this time", use.not_judged)):
        if gone:
            named = first_few([gone_text(each) for each in gone], FOUND_SHOWN)
            blocks.append(Details(f"{title}: {len(gone)}", [Paragraph(named, "mono")]))
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


def verdict_summary(check: CheckReport) -> str:
    """What the verdict rests on, in half a sentence: the gates that decide it, and how many others are not decided."""
    names = {status: [visible(gate.name, 40) for gate in check.gates if gate.status == status] for status in WORDS}
    leading: GateStatus = next((status for status in DECIDING[check.verdict] if names[status]), "pass")
    open_: tuple[GateStatus, ...] = ("undecided", "not-judged")
    rest = [f", {len(names[status])} {status_label(status)}" for status in open_ if status != leading and names[status]]
    size = len(names[leading])
    said = f"{count(size, 'gate') if size else 'no gate'} passed"
    if leading != "pass":
        shown = ", ".join(names[leading][:GATES_NAMED]) + (", …" if size > GATES_NAMED else "")
        word = "failed" if leading == "fail" else status_label(leading)
        said = f"{size} of {count(len(check.gates), 'gate')} {word} ({shown})"
    return f"{said}{''.join(rest)}{', judged without data' if check.static else ''}"


def message_text(gate: GateLine) -> str:
    """Figure, interval and limit of a gate, or why it was not judged."""
    return visible(gate.message, MESSAGE_LIMIT)


def status_label(status: GateStatus) -> str:
    """A status as it stands in tables."""
    return "not judged" if status == "not-judged" else WORDS[status]


def samples_text(gate: GateLine) -> str:
    """Samples that were measured; empty where it is not about samples."""
    return number(gate.samples.now) if gate.samples is not None else ""


def confidence_text(gate: GateLine) -> str:
    """Coverage of the interval as percent; empty where it has none."""
    has_interval = gate.low is not None or gate.high is not None
    return f"{100 * gate.confidence:.4g} %" if has_interval and gate.confidence is not None else ""


def mcnemar_text(gate: GateLine) -> str:
    """The p of McNemar's test, which is not used; empty where it was not computed."""
    return number(gate.mcnemar_p, 2) if gate.mcnemar_p is not None else ""


def _samples_needed(gate: GateLine) -> str:
    """Samples that would decide, as far as they are known; empty where the gate is decided."""
    if (samples := gate.samples) is None or gate.status != "undecided":
        return ""
    if samples.at_measured is not None:
        return f"about {rounded_up(samples.at_measured)} samples would decide"
    if samples.at_twice is not None:
        return f"{rounded_up(samples.at_twice)} samples would find twice the limit in 9 of 10 runs"
    return "how many samples would decide is not known"


def is_lenient(check: CheckReport) -> bool:
    """The exit code is 0 although the verdict has another."""
    return check.exit_code != EXIT_CODES[check.verdict]


def exit_text(check: CheckReport) -> str:
    """Exit code of the check, and who set it to 0 where somebody did."""
    if not is_lenient(check):
        return f"exit code {check.exit_code}"
    return f"exit code {check.exit_code} by {'--warn-only' if check.warn_only else 'the policy'}"


def static_text(not_judged: Iterable[RuleNote]) -> str:
    """What was left out for want of data; what supplies a fact stands in its hint."""
    awaited = [asks_for_data(note.hint) for note in not_judged]
    data = sum(awaited)
    others = f"; not judged for other reasons: {len(awaited) - data}" if len(awaited) > data else ""
    return f"weights, graph and quantization parameters only; needs data: {count(data, 'rule')}{others}"


def is_unbudgeted(diagnosis: Diagnosis, check: CheckReport) -> bool:
    """The task metric dropped for certain, and no budget says by how much it may."""
    return diagnosis.evidence_strength.statement == "proven" and all(gate.kind != "accuracy" for gate in check.gates)


def _gate_figure(value: float | None, unit: str | None, *, bare: bool = False) -> str:
    """A figure of a gate in the unit of its limit; ``bare`` leaves the unit out."""
    if unit == "dB":
        return decibels(value).removesuffix(" dB") if bare else decibels(value)
    if value is None or unit is None:
        return number(value, 4)
    text = f"{value + 0.0:.2f}" if unit in ("points", "%", "percent") and abs(value) < 1e6 else number(value, 4)
    return text if bare else f"{text} {visible(unit, 24)}"


def split_findings(check: CheckReport) -> tuple[list[CheckedFinding], list[CheckedFinding]]:
    """Findings that count against the policy, gravest first, and those that do not."""
    counted = [finding for finding in check.findings if finding.gated]
    return counted, [finding for finding in check.findings if not finding.gated]


def rule_text(finding: CheckedFinding) -> str:
    """The rule by code and name."""
    return f"{visible(finding.rule, 40)} {name(finding.name)}"


def exemption_text(finding: CheckedFinding, check: CheckReport) -> str:
    """Reason of the exemption of a finding, and until when; empty where none covers it."""
    use = _exemption_of(finding, check)
    return reason_text(use) if use is not None else ""


def finding_figure(finding: CheckedFinding, *, whole: bool = False) -> str:
    """Headline fact, with its ``whole`` path, against its threshold, or what was found where none was compared."""
    if finding.fact is None or finding.value is None or finding.threshold is None:
        return visible(finding.message.strip(), MESSAGE_LIMIT)
    sign = COMPARISONS.get(finding.comparison or "", "against")
    fact = visible(finding.fact if whole else finding.fact.rpartition(".")[2], NAME_LIMIT if whole else 60)
    return f"{fact} {measure(finding.value, finding.unit)} {sign} {measure(finding.threshold, finding.unit)}"


def before_text(finding: CheckedFinding) -> str:
    """What a finding is against the baseline: ``worse, baseline 22``."""
    if finding.status == "new" or finding.before is None:
        return finding.status
    return f"{finding.status}, baseline {measure(finding.before, finding.unit)}"


def standing_text(finding: CheckedFinding, check: CheckReport) -> str:
    """Why a finding does not count, and what it is against the baseline; empty where there is neither to say."""
    before = before_text(finding) if check.baseline is not None else ""
    if finding.gated:
        return before
    if finding.exemption is not None:
        return "exempted"
    if finding.status == "known":
        return before or "known"
    return f"{LEFT_OUT}, {before}" if before else LEFT_OUT


def others_text(check: CheckReport) -> str:
    """What does not count, counted by reason: ``3 known, 1 exempted, 12 left out by fail_on``."""
    _, others = split_findings(check)
    reasons = Counter(standing_text(finding, check).partition(",")[0] for finding in others)
    return ", ".join(f"{size} {reason}" for reason, size in sorted(reasons.items()))


def exemption_line(use: ExemptionUse) -> Inline:
    """One exemption: what it is for, its state and its reason."""
    until = "" if use.expires == "never" else f" ({visible(use.expires, 20)})"
    state = Span(exemption_state(use), "strong")
    reason = f"{until}: {visible(use.reason.strip(), MESSAGE_LIMIT)}"
    return [f"{visible(use.rule, 60)} ", Span(_exempted_layers(use), "code"), " ", state, reason]


def _exempted_layers(use: ExemptionUse) -> str:
    return visible(", ".join(use.layers), 120)


def exemption_state(use: ExemptionUse) -> str:
    """Whether an exemption is in force, and what is to be done about one that is not."""
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


def baseline_text(use: BaselineUse) -> str:
    """Known, new, worse and gone findings, counted."""
    if use.missing:
        return f"not written yet, so every finding is new: {WRITE}"
    counts = {"known": use.known, "new": use.new, "worse": use.worse, "gone": len(use.gone)}
    parts = [f"{size} {word}" for word, size in counts.items() if size or word == "known"]
    parts += [f"{len(use.not_judged)} not judged"] if use.not_judged else []
    parts += [f"{count(use.renamed, 'layer')} renamed"] if use.renamed else []
    return ", ".join(parts)


def gone_text(gone: GoneFinding) -> str:
    """A finding of the baseline that is no longer there, or could not be judged: ``W003 features.9.conv``."""
    return f"{visible(gone.rule, 40)} {name(gone.subject)}"

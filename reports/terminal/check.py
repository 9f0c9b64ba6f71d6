"""What ``quantmedic check`` prints: one line per gate, what it rests on, what to do first, and last the verdict."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from quantmedic.engine.contract.check_report import BaselineUse, CheckedFinding, CheckReport, GateLine
from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.reports.context import ReportContext, build_context
from quantmedic.reports.sections.first_step import FirstStep
from quantmedic.reports.sections.gate import (
    CARE,
    LOOKS,
    PRUNE,
    WORDS,
    baseline_text,
    check_of,
    confidence_text,
    exemption_line,
    exemption_text,
    exit_text,
    finding_figure,
    gone_text,
    is_lenient,
    is_unbudgeted,
    mcnemar_text,
    message_text,
    others_text,
    samples_text,
    split_findings,
    standing_text,
    static_text,
    verdict_summary,
)
from quantmedic.reports.terminal.block_lines import plain_text
from quantmedic.reports.terminal.lines import WIDTH, Paint, Verbosity, paint_style, plain, terminal_text, wrap_line
from quantmedic.reports.terminal.summary import NAME_LIMIT, brings, card_called
from quantmedic.reports.text import name, visible

FINDINGS_SHOWN, EXEMPTIONS_SHOWN, NOTICES_SHOWN = 10, 10, 3
GATE_NAME_LIMIT = 32
#: Columns of a gate's status and of what stands between columns.
WORD, GAP = 4, 2
FIGURE_LEAST = 24
#: Models that ``quantmedic fix`` writes.
REPAIRED = (".onnx", ".tflite", ".xml")
STATUS_STYLES = {
    "pass": "healthy",
    "fail": "degraded",
    "open": "not-comparable",
    "odd": "not-comparable",
    "skip": "dim",
    "note": "dim",
    "warn": "medium",
}


def render_check(diagnosis: Diagnosis, *, verbosity: Verbosity, color: bool = False, ascii_only: bool = False) -> str:
    """The gate for the terminal, the same bytes for the same diagnosis; its last line is the verdict.

    Args:
        diagnosis: A diagnosis with the verdict of a gate.
        verbosity: ``quiet`` prints the last line alone, ``verbose`` every finding and exemption.
        color: Use the colours of the terminal.
        ascii_only: Write no character beyond ASCII.

    Raises:
        QuantmedicError: No gate was asked for.
    """
    check, paint = check_of(diagnosis), paint_style if color else plain
    lines = [] if verbosity == "quiet" else list(_check_lines(diagnosis, check, verbosity == "verbose", paint))
    return terminal_text([*lines, _verdict_line(check, paint)], ascii_only=ascii_only)


def _check_lines(diagnosis: Diagnosis, check: CheckReport, verbose: bool, paint: Paint) -> Iterator[str]:
    context = build_context(diagnosis, {})
    width = max([len("baseline"), *(min(len(name(gate.name)), GATE_NAME_LIMIT) for gate in check.gates)])
    if check.static:
        yield from wrap_line(f"static: {static_text(diagnosis.not_judged)}")
    yield from _gate_lines(check, verbose, width, paint)
    if check.baseline is not None:
        yield from _baseline_lines(check.baseline, verbose, width, paint)
    yield from _exemption_lines(check, verbose, width, paint)
    for word, label, text in _notes(diagnosis, check, context, verbose):
        yield from _status_lines(word, label, text, width, paint)
    if context.first is not None and any(gate.status in ("fail", "undecided", "anomalous") for gate in check.gates):
        yield from _first_step_lines(context, context.first)
    yield from _next_lines(diagnosis, check, context)


def _notes(
    diagnosis: Diagnosis, check: CheckReport, context: ReportContext, verbose: bool
) -> Iterator[tuple[str, str, str]]:
    """Status, what it is about and the text: notices, a drop without a budget, and where the policy is from."""
    shown = context.warnings if verbose else context.warnings[:NOTICES_SHOWN]
    yield from (("warn", "notice", notice) for notice in shown)
    if len(context.warnings) > len(shown):
        yield "warn", "notice", f"{len(context.warnings) - len(shown)} more (--verbose)"
    if is_unbudgeted(diagnosis, check) and (drop := context.drop) is not None:
        change = f"{drop.metric} {drop.float_value} → {drop.quantized_value}, {drop.word} {drop.change}"
        yield "note", "accuracy", f"{change}: no budget judges it"
    if not check.policy:
        yield "note", "policy", "no policy file: the defaults apply"
    elif name(check.policy).startswith("../"):
        yield "note", "policy", f"{name(check.policy)} is in force"


def _gate_lines(check: CheckReport, verbose: bool, width: int, paint: Paint) -> Iterator[str]:
    """Every gate; findings below the one that judges them."""
    judge = next((gate for gate in check.gates if gate.kind == "findings"), None)
    for gate in check.gates:
        label = visible(name(gate.name), GATE_NAME_LIMIT)
        yield from _status_lines(WORDS[gate.status], label, message_text(gate), width, paint)
        if verbose:
            yield from _detail_lines([_interval_text(gate)])
        if gate is judge:
            yield from _finding_lines(check, verbose)


def _baseline_lines(use: BaselineUse, verbose: bool, width: int, paint: Paint) -> Iterator[str]:
    prune = f": {PRUNE}" if use.gone else ""
    yield from _status_lines("note", "baseline", f"{baseline_text(use)}{prune}", width, paint)
    if verbose:
        yield from _detail_lines(f"gone {gone_text(gone)}" for gone in use.gone)
        yield from _detail_lines(f"not judged {gone_text(gone)}" for gone in use.not_judged)


def _exemption_lines(check: CheckReport, verbose: bool, width: int, paint: Paint) -> Iterator[str]:
    """Those that somebody should look at; verbose also those in force."""
    listed = [use for use in check.exemptions if use.status in CARE or verbose]
    shown = listed if verbose else listed[:EXEMPTIONS_SHOWN]
    for use in shown:
        word = "warn" if use.status in CARE else "note"
        yield from _status_lines(word, "ignore", plain_text(exemption_line(use)), width, paint)
    if len(listed) > len(shown):
        yield from _status_lines("warn", "ignore", f"{len(listed) - len(shown)} more (--verbose)", width, paint)


def _status_lines(word: str, label: str, text: str, width: int, paint: Paint) -> Iterator[str]:
    """Status, what it is about, and what there is to say."""
    start = f"{word:<{WORD}}{' ' * GAP}{label:<{width}}{' ' * GAP}"
    first, *rest = wrap_line(f"{start}{text}", hang=len(start))
    yield f"{paint(word, STATUS_STYLES[word])}{first[len(word) :]}"
    yield from rest


def _interval_text(gate: GateLine) -> str:
    """What a gate has beyond its line."""
    samples, confidence, mcnemar = samples_text(gate), confidence_text(gate), mcnemar_text(gate)
    facts = [f"n {samples}"] if samples else []
    facts += [f"{confidence} interval"] if confidence else []
    facts += [f"p of McNemar's test {mcnemar}, not used"] if mcnemar else []
    return ", ".join(facts)


def _detail_lines(texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        yield from wrap_line(text, indent=8)


def _finding_lines(check: CheckReport, verbose: bool) -> Iterator[str]:
    """Those that count; of the others how many there are."""
    counted, others = split_findings(check)
    shown = counted if verbose else counted[:FINDINGS_SHOWN]
    yield from _finding_rows(shown, check)
    if hidden := len(counted) - len(shown):
        yield f"        {hidden} more (--verbose)"
    if others:
        yield from wrap_line(f"not counted: {others_text(check)}", indent=8)
    if verbose:
        yield from _finding_rows(others, check, indent=10)


def _finding_rows(findings: Sequence[CheckedFinding], check: CheckReport, indent: int = 8) -> Iterator[str]:
    """Findings in columns as wide as they need to be; what stands in a column is cut before the line breaks."""
    cells = [
        (visible(row.rule, 40), visible(name(row.subject), NAME_LIMIT), standing_text(row, check)) for row in findings
    ]
    rule, subject, state = (max((len(row[column]) for row in cells), default=0) for column in range(3))
    room = max(WIDTH - indent - rule - subject - state - 3 * GAP, FIGURE_LEAST)
    figures = [visible(finding_figure(row), room) for row in findings]
    wide = max(map(len, figures), default=0)
    for finding, (code, where, how), figure in zip(findings, cells, figures, strict=True):
        line = f"{code:<{rule}} {where:<{subject}}  {figure:<{wide}}  {how}"
        yield from wrap_line(line.rstrip(), indent=indent)
        yield from wrap_line(exemption_text(finding, check), indent=indent + GAP)


def _first_step_lines(context: ReportContext, first: FirstStep) -> Iterator[str]:
    """What to do first, with the cause that it is for and what it brings."""
    cause = card_called(context, first.code)
    about = f" for {cause.code} {cause.name}" if cause is not None else ""
    yield from wrap_line(f"{first.label}: {first.named}{about}{brings(first.gain)}")


def _next_lines(diagnosis: Diagnosis, check: CheckReport, context: ReportContext) -> Iterator[str]:
    """The command to run next, where the gate is not met."""
    doubtful = next((cause.rules[0] for cause in diagnosis.causes if cause.doubt is not None and cause.rules), None)
    open_ = [gate.kind for gate in check.gates if gate.status in ("undecided", "not-judged")]
    failed = {gate.kind: gate for gate in check.gates if gate.status == "fail"}
    file = Path(diagnosis.model.name or "")
    runs = bool(diagnosis.datasets) and context.language is None
    counted = next((finding.rule for finding in check.findings if finding.gated), None)
    command = None
    if "data" in open_ and doubtful is not None:
        command = f"quantmedic explain {doubtful}"
    elif failed and runs and diagnosis.prescription is not None and file.suffix in REPAIRED:
        command = "quantmedic fix FLOAT QUANT -o FILE, with the same data"
    elif context.first is None and runs and file.suffix == ".onnx" and (found := failed.get("sqnr")) is not None:
        command = f"quantmedic search fallback FLOAT QUANT -v DATA --min-sqnr {found.limit:g}"
    elif context.first is None and counted is not None:
        command = f"quantmedic explain {counted}"
    elif not failed and open_:
        command = "quantmedic explain check"
    if command is not None and check.verdict != "ACCEPT":
        yield f"next: {visible(command, WIDTH)}"


def _verdict_line(check: CheckReport, paint: Paint) -> str:
    lenient = f"; {exit_text(check)}" if is_lenient(check) else ""
    return f"{paint(check.verdict, LOOKS[check.verdict])}  {verdict_summary(check)}{lenient}"

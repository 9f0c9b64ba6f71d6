"""What ``quantmedic check`` prints: one line per gate, what it rests on, what to do first, and last the verdict."""

from collections.abc import Iterable, Iterator, Sequence

from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.reports.context import ReportContext, build_context
from quantmedic.reports.sections.first_step import FirstStep
from quantmedic.reports.sections.gate import BaselineBox, ExemptionRow, FoundRow, GateBox, GateRow, gate_of
from quantmedic.reports.terminal.lines import WIDTH, Paint, Verbosity, paint_style, plain, terminal_text, wrap_line
from quantmedic.reports.terminal.summary import NAME_LIMIT, brings, card_called
from quantmedic.reports.text import visible

FINDINGS_SHOWN, EXEMPTIONS_SHOWN, NOTICES_SHOWN = 10, 10, 3
GATE_NAME_LIMIT = 32
#: Columns of a gate's status and of what stands between columns.
WORD, GAP = 4, 2
FIGURE_LEAST = 24
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
    context, box = build_context(diagnosis, {}), gate_of(diagnosis)
    paint = paint_style if color else plain
    lines = [] if verbosity == "quiet" else list(_check_lines(context, box, verbosity, paint))
    return terminal_text([*lines, _verdict_line(box, paint)], ascii_only=ascii_only)


def _check_lines(context: ReportContext, box: GateBox, verbosity: Verbosity, paint: Paint) -> Iterator[str]:
    verbose = verbosity == "verbose"
    width = max([len("baseline"), *(min(len(row.name), GATE_NAME_LIMIT) for row in box.gates)])
    if box.static:
        yield from wrap_line(f"static: {box.static}")
    yield from _gate_lines(box, verbose, width, paint)
    if box.baseline is not None:
        yield from _baseline_lines(box.baseline, verbose, width, paint)
    yield from _exemption_lines(box, verbose, width, paint)
    shown = context.warnings if verbose else context.warnings[:NOTICES_SHOWN]
    for notice in shown:
        yield from _status_lines("warn", "notice", notice, width, paint)
    if len(context.warnings) > len(shown):
        yield from _status_lines(
            "warn", "notice", f"{len(context.warnings) - len(shown)} more (--verbose)", width, paint
        )
    if box.unbudgeted and (drop := context.drop) is not None:
        text = (
            f"{drop.metric} {drop.float_value} → {drop.quantized_value}, {drop.word} {drop.change}: no budget judges it"
        )
        yield from _status_lines("note", "accuracy", text, width, paint)
    if not box.policy:
        yield from _status_lines("note", "policy", "no policy file: the defaults apply", width, paint)
    if box.policy.startswith("../"):
        yield from _status_lines("note", "policy", f"{box.policy} is in force", width, paint)
    if context.first is not None and any(row.status in ("fail", "undecided", "anomalous") for row in box.gates):
        yield from _first_step_lines(context, context.first)


def _gate_lines(box: GateBox, verbose: bool, width: int, paint: Paint) -> Iterator[str]:
    """Every gate; findings below the one that judges them."""
    judge = next((row for row in box.gates if row.kind == "findings"), None)
    for row in box.gates:
        yield from _status_lines(row.word, visible(row.name, GATE_NAME_LIMIT), row.message, width, paint)
        yield from _interval_lines(row, verbose)
        if row is judge:
            yield from _finding_lines(box, verbose)


def _baseline_lines(baseline: BaselineBox, verbose: bool, width: int, paint: Paint) -> Iterator[str]:
    prune = f": {baseline.prune}" if baseline.prune else ""
    yield from _status_lines("note", "baseline", f"{baseline.text}{prune}", width, paint)
    if verbose:
        yield from _detail_lines(f"gone {what}" for what in baseline.gone)
        yield from _detail_lines(f"not judged {what}" for what in baseline.not_judged)


def _exemption_lines(box: GateBox, verbose: bool, width: int, paint: Paint) -> Iterator[str]:
    """Those that somebody should look at; verbose also those in force."""
    listed = [row for row in box.exemptions if row.care or verbose]
    shown = listed if verbose else listed[:EXEMPTIONS_SHOWN]
    for row in shown:
        yield from _status_lines("warn" if row.care else "note", "ignore", _exemption_text(row), width, paint)
    if len(listed) > len(shown):
        yield from _status_lines("warn", "ignore", f"{len(listed) - len(shown)} more (--verbose)", width, paint)


def _status_lines(word: str, label: str, text: str, width: int, paint: Paint) -> Iterator[str]:
    """Status, what it is about, and what there is to say."""
    start = f"{word:<{WORD}}{' ' * GAP}{label:<{width}}{' ' * GAP}"
    first, *rest = wrap_line(f"{start}{text}", hang=len(start))
    yield f"{paint(word, STATUS_STYLES[word])}{first[len(word) :]}"
    yield from rest


def _interval_lines(row: GateRow, verbose: bool) -> Iterator[str]:
    """What a gate has beyond its line."""
    if not verbose:
        return
    facts = [f"n {row.samples}"] if row.samples else []
    facts += [f"{row.confidence} interval"] if row.confidence else []
    facts += [f"p of McNemar's test {row.mcnemar}, not used"] if row.mcnemar else []
    yield from _detail_lines([", ".join(facts)] if facts else [])


def _detail_lines(texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        yield from wrap_line(text, indent=8)


def _finding_lines(box: GateBox, verbose: bool) -> Iterator[str]:
    """Those that count; of the others how many there are."""
    shown = box.counted if verbose else box.counted[:FINDINGS_SHOWN]
    yield from _finding_rows(shown)
    if hidden := len(box.counted) - len(shown):
        yield f"        {hidden} more (--verbose)"
    if box.others_text:
        yield from wrap_line(f"not counted: {box.others_text}", indent=8)
    if verbose:
        yield from _finding_rows(box.others, indent=10)


def _finding_rows(rows: Sequence[FoundRow], indent: int = 8) -> Iterator[str]:
    """Findings in columns as wide as they need to be; what stands in a column is cut before the line breaks."""
    cells = [(row.rule, visible(row.subject, NAME_LIMIT), row.standing or row.before) for row in rows]
    rule, subject, state = (max((len(row[column]) for row in cells), default=0) for column in range(3))
    room = max(WIDTH - indent - rule - subject - state - 3 * GAP, FIGURE_LEAST)
    figures = [visible(row.figure, room) for row in rows]
    wide = max(map(len, figures), default=0)
    for row, (code, where, how), figure in zip(rows, cells, figures, strict=True):
        line = f"{code:<{rule}} {where:<{subject}}  {figure:<{wide}}  {how}"
        yield from wrap_line(line.rstrip(), indent=indent)
        yield from wrap_line(row.exempted, indent=indent + GAP)


def _exemption_text(row: ExemptionRow) -> str:
    until = "" if row.expires == "never" else f" ({row.expires})"
    return f"{row.rule} {row.layers} {row.state}{until}: {row.reason}"


def _first_step_lines(context: ReportContext, first: FirstStep) -> Iterator[str]:
    """What to do first, with the cause that it is for and what it brings."""
    cause = card_called(context, first.code)
    about = f" for {cause.code} {cause.name}" if cause is not None else ""
    yield from wrap_line(f"{first.label}: {first.named}{about}{brings(first.gain)}")


def _verdict_line(box: GateBox, paint: Paint) -> str:
    lenient = f"; {box.exit_text}" if box.lenient else ""
    return f"{paint(box.verdict, box.look)}  {box.summary}{lenient}"

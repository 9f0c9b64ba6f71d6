"""The terminal report: the same story in a hundred columns of plain text, on one screen or whole."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from quantmedic.engine.contract.causes import RuleNote
from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.reports.context import ReportContext, advice_text, build_context, failure_box
from quantmedic.reports.sections.cards import WHOLE, CauseCard, EvidenceLine, Example, RemedyCard
from quantmedic.reports.sections.imports import normalized_text, reported_rows, tells_text
from quantmedic.reports.sections.prescription import PrescriptionBox, prescription_box
from quantmedic.reports.sections.previous import previous_section
from quantmedic.reports.sections.proof import proof_section
from quantmedic.reports.sections.tables import comparison_section, comparison_table, layer_table
from quantmedic.reports.terminal.block_lines import NAME_WIDTH, render_table, section_lines
from quantmedic.reports.terminal.lines import WIDTH, Paint, Verbosity, paint_style, plain, terminal_text, wrap_line
from quantmedic.reports.terminal.summary import (
    NAME_LIMIT,
    brings,
    budget_lines,
    file_with,
    rules_text,
    summary_lines,
    verdict_lines,
)
from quantmedic.reports.text import count, decibels, number, visible

SNIPPET_LIMIT = 400
VALUE_LIMIT = 28
SNIPPET_LINES = 24


def render_console(
    diagnosis: Diagnosis, *, verbosity: Verbosity = "normal", color: bool = False, ascii_only: bool = False
) -> str:
    """Text for the terminal, the same bytes for the same diagnosis.

    Args:
        diagnosis: What to show.
        verbosity: ``quiet`` prints verdict and drop alone, ``normal`` what fits on one screen, ``verbose`` every
            layer and every subject.
        color: Use the colours of the terminal.
        ascii_only: Write no character beyond ASCII.
    """
    context, paint = build_context(diagnosis, {}), paint_style if color else plain
    if verbosity == "quiet":
        lines: Iterable[str] = verdict_lines(context, paint)
    elif verbosity == "normal":
        lines = summary_lines(context, diagnosis, paint)
    else:
        lines = _report_lines(diagnosis, context, paint)
    return terminal_text(lines, ascii_only=ascii_only)


def warning_lines(diagnosis: Diagnosis) -> list[str]:
    """One line per cause of medium or high severity: what is wrong, and its manual page."""
    return [
        f"WARNING {visible(cause.rules[0] if cause.rules else '?')} {visible(cause.shown)}: "
        f"{visible(cause.message.strip(), 300)}; quantmedic explain {visible(cause.rules[0] if cause.rules else '?')}"
        for cause in diagnosis.causes
        if cause.is_serious
    ]


def _report_lines(diagnosis: Diagnosis, context: ReportContext, paint: Paint) -> Iterator[str]:
    yield from verdict_lines(context, paint)
    yield from wrap_line(context.drop_text)
    if context.budget is not None:
        yield from budget_lines(context.budget, paint)
    if context.first is not None and (context.causes or context.tried):
        yield from wrap_line(f"{context.first.label}: {context.first.named}{brings(context.first.gain)}")
    for notice in context.warnings:
        yield from wrap_line(f"warning: {notice}", indent=2)
    if (failure := failure_box(diagnosis)) is not None:
        yield ""
        yield paint(failure.summary.removesuffix("."), "bold")
        for line in failure.lines:
            yield from wrap_line(line, indent=2)
        yield from wrap_line(failure.unknown)
    if (since := previous_section(diagnosis.previous)) is not None:
        yield from section_lines(since)
    if diagnosis.advice_place == "first":
        yield from _advice_lines(diagnosis)
    box = prescription_box(diagnosis)
    for card in context.causes:
        yield ""
        yield from _cause_block(card, paint, file_with(card, box))
    if (proof := proof_section(diagnosis)) is not None:
        yield from section_lines(proof)
    if box is not None:
        yield ""
        yield from _prescription_lines(box, paint)
    if diagnosis.advice_place in ("open", "folded"):
        yield from _advice_lines(diagnosis)
    if comparison_section(diagnosis) is not None:
        yield ""
        yield from render_table(comparison_table(diagnosis))
    if diagnosis.imports:
        yield ""
        yield from _import_lines(diagnosis, paint)
    yield ""
    yield paint(rules_text(diagnosis), "bold")
    for note in diagnosis.not_judged:
        yield from _missing_fact_lines(note)
    if failure is None:
        yield ""
        yield from render_table(layer_table(diagnosis))
        if any(len(visible(row.float_name or row.name)) > NAME_WIDTH for row in diagnosis.layers):
            yield "  whole names, and all facts of a layer: quantmedic show CASE --layer #"


def _advice_lines(diagnosis: Diagnosis) -> Iterator[str]:
    """General pages one by one; below causes that are still to be tried in one sentence."""
    yield ""
    stems = [visible(stem, NAME_LIMIT) for stem in diagnosis.advice]
    if diagnosis.advice_place != "folded":
        yield f"{advice_text(diagnosis)} Read in this order:"
        yield from (f"  quantmedic explain {stem}" for stem in stems)
        return
    yield from wrap_line(f"{advice_text(diagnosis)} In this order (quantmedic explain NAME): {', '.join(stems)}")


def _prescription_lines(box: PrescriptionBox, paint: Paint) -> Iterator[str]:
    """Where to find what is to be pasted, and what it cannot do; the snippets stand with their causes."""
    files = ", ".join(block.file for block in box.configurations)
    title = f"prescription for {box.toolchain}" if box.toolchain else "no prescription"
    yield paint(f"{title}{f': {files}' if files else ''}", "bold")
    yield from wrap_line(box.how, indent=2, hang=0)
    yield from wrap_line(box.together, indent=2, hang=0)
    yield from wrap_line("" if box.executed else box.basis, indent=2, hang=0)
    for place, line in enumerate(box.steps, 1):
        alone = box.executed and len(box.steps) == 1  # What it brings is said by the sentence on its run.
        facts = ", ".join(part for part in ("" if alone else line.gain, line.option) if part)
        yield from wrap_line(f"{place}. {line.title}: {facts}", indent=2, hang=3)
    yield from wrap_line(box.executed, indent=2, hang=0)
    for remark in box.remarks:
        yield from wrap_line(remark, indent=2, hang=0)


def _cause_block(card: CauseCard, paint: Paint, file: str) -> Iterator[str]:
    parts = [f"{card.rank}  {card.code} {visible(card.name, NAME_LIMIT)}", card.severity, card.scope]
    parts += [f"confidence {card.confidence}"]
    parts += [card.harm] if card.assumed else []
    parts += [gain.said for gain in card.gains]
    fits = len("   ".join(parts)) <= WIDTH
    head = parts if fits else parts[:3]
    yield "   ".join([paint(head[0], "bold"), paint(head[1], head[1]), *head[2:]])
    if not fits:
        yield from wrap_line("; ".join(parts[3:]), indent=3, hang=0)
    yield from wrap_line(card.message, indent=3, hang=0)
    yield from wrap_line(card.exempted, indent=3, hang=2)
    yield from wrap_line(card.tried, indent=3, hang=2)
    yield from _evidence_lines([*card.evidence, *card.more_evidence])
    for text in card.connections:
        yield from wrap_line(text, indent=3, hang=0)
    if card.explains is not None:
        yield f"   explains {count(len(card.explains.rows), 'finding')} ({card.explains_text})"
    for remedy in card.remedies:
        stands_above = any(gain.kind == "measured" for gain in card.gains) and remedy is card.remedies[0]
        yield from _remedy_lines(remedy, paint, stands_above, file if remedy is card.remedies[0] else "")
    if not card.remedies and card.withheld:
        yield "   help: none; every remedy is withheld"
    for held in card.withheld:
        yield from wrap_line(f"not advised: {held}", indent=3, hang=6)


def _evidence_lines(lines: Sequence[EvidenceLine]) -> Iterator[str]:
    """Facts against their thresholds; a subject that has no room beside any of them stands whole on a line above."""
    for subject, group in groupby(lines, key=lambda line: line.subject):
        texts = [(line, _compared_text(line)) for line in group]
        if not any(line.comparison and len(text) + len(subject) <= WIDTH for line, text in texts):
            yield f"     {subject}:"
        for line, text in texts:
            if not line.comparison:
                yield from wrap_line(text, indent=5)
            else:
                yield (text + subject if len(text) + len(subject) <= WIDTH else text).rstrip()


def _compared_text(line: EvidenceLine) -> str:
    if not line.comparison:
        return f"{line.fact}: {line.value}"
    start = f"     {line.fact:<36} {line.value:>12}  {line.comparison:<2} "
    return f"{start}{visible(line.threshold, max(WIDTH - len(start), VALUE_LIMIT)):<10}  "


def _remedy_lines(remedy: RemedyCard, paint: Paint, stands_above: bool, file: str) -> Iterator[str]:
    """A remedy, and what to copy.

    Args:
        remedy: The remedy.
        paint: Colours.
        stands_above: Its measured gain is printed already.
        file: The file of the prescription that holds it; empty where none does.
    """
    said = [f"help: {remedy.title}: {remedy.changes}"]
    said += [f"for {remedy.concerns}"] if remedy.concerns else []
    said += [f"now {', '.join(remedy.now)}"] if remedy.now else []
    said += [f"measured {remedy.measured}"] if remedy.measured and not stands_above else []
    said += [f"took integer kernels from {remedy.left_integer}"] if remedy.left_integer else []
    said += [f"predicted {remedy.predicted}"] if remedy.predicted else []
    said += [f"costs {remedy.cost}"]
    label, *rest = wrap_line("; ".join(said), indent=3, hang=6)
    yield label.replace("help:", paint("help:", "help"), 1)
    yield from rest
    if remedy.no_option:
        yield f"         {remedy.no_option}"
    for block in remedy.toolchains:
        if block.preferred and not remedy.no_option:
            if not block.own:
                yield f"         with {block.toolchain}:"
            yield from _snippet_lines(block.examples[0], file)


def _snippet_lines(example: Example, file: str) -> Iterator[str]:
    """A snippet whole or not at all: one that was cut would be copied and fail."""
    lines = example.code.splitlines()
    place = f"{file} has it, with all other settings" if file else "copy it from report.md or index.html"
    if max(map(len, lines), default=0) > SNIPPET_LIMIT:
        longest = max(lines, key=len)
        yield f"         the change lists {count(longest.count(', ') + 1, 'name')}: {place}"
        return
    if len(lines) > SNIPPET_LINES:
        yield f"         the change has {len(lines)} lines: {place}"
        return
    if file and example.caution != WHOLE:
        yield f"         the change alone; {file} keeps all other settings:"
    elif example.caution:
        yield f"         {example.caution}:"
    yield from (f"         {visible(line)}" for line in lines)


def _import_lines(diagnosis: Diagnosis, paint: Paint) -> Iterator[str]:
    yield paint("files of the toolchain", "bold")
    for row in diagnosis.imports:
        yield from wrap_line(f"{visible(row.file, 120)}: {tells_text(row)}", indent=2)
        if row.unknown:
            yield from wrap_line(f"unknown keys: {', '.join(visible(text, 200) for text in row.unknown)}", indent=4)
    for layer, reported in reported_rows(diagnosis.layers):
        figures = {
            "cosine": reported.cosine and number(reported.cosine, 6),
            "SQNR": reported.sqnr_db and decibels(reported.sqnr_db),
            "RMSE / scale": reported.rmse_over_scale and number(reported.rmse_over_scale),
            "MSE": reported.mse and number(reported.mse),
            "normalized MSE": normalized_text(reported),
        }
        text = ", ".join(f"{name} {figure}" for name, figure in figures.items() if figure not in (None, ""))
        yield f"    {visible(layer.name, NAME_LIMIT):<{NAME_LIMIT}} {text}"


def _missing_fact_lines(note: RuleNote) -> Iterator[str]:
    missing = visible(note.missing[0], NAME_LIMIT) if note.missing else "a fact"
    more = f" and {len(note.missing) - 1} more" if len(note.missing) > 1 else ""
    yield f"  {visible(note.rule)} {visible(note.name, NAME_LIMIT):<36} needs {missing}{more}"
    yield from wrap_line(visible((note.hint or "").strip()), indent=7)

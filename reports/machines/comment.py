"""The comment on a pull request: what a reviewer needs, in Markdown that stands by itself."""

from collections.abc import Callable, Iterator, Sequence
from urllib.parse import quote

from quantmedic.engine.contract.check_report import CheckedFinding, CheckReport, GateStatus, GateWord
from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.reports.block_markdown import Safe, blocks_markdown
from quantmedic.reports.blocks import Block, Bullets, Cell, Code, Column, Heading, Inline, Paragraph, Span, make_table
from quantmedic.reports.context import ReportContext, build_context
from quantmedic.reports.sections.cards import CauseCard
from quantmedic.reports.sections.first_step import FirstStep
from quantmedic.reports.sections.gate import (
    CARE,
    PRUNE,
    baseline_text,
    before_text,
    check_of,
    exemption_line,
    exit_text,
    finding_figure,
    is_lenient,
    is_unbudgeted,
    message_text,
    others_text,
    rule_text,
    split_findings,
    static_text,
    status_label,
    verdict_summary,
)
from quantmedic.reports.sections.run import run_lines
from quantmedic.reports.text import capital, count, name, visible

#: Characters that a comment may have at most: the smallest limit of the known hosts is 65 536.
LENGTH_LIMIT = 60_000
#: Rows of each list that are tried in turn until the comment is short enough; without any row it always is.
ROWS_SHOWN = (20, 10, 5, 2, 0)
SNIPPET_LIMIT = 3000
VERSIONS_SHOWN = 6
#: Characters of a file name that a hidden comment holds as they are; never one that could end it.
MARKER_SAFE = " /.:()+,=[]{}~"
SIGNS: dict[GateStatus, str] = {"pass": "✅", "fail": "❌", "undecided": "❔", "anomalous": "⚠️", "not-judged": "➖"}
VERDICT_SIGNS: dict[GateWord, str] = {
    "ACCEPT": "✅",
    "REGRESSION": "❌",
    "INSUFFICIENT_DATA": "⚠️",
    "ANOMALOUS": "⚠️",
}


def render_comment(diagnosis: Diagnosis) -> str:
    """Markdown of at most 60 000 characters that links to nothing; its first line names the model, hidden.

    Raises:
        QuantmedicError: No gate was asked for.
    """
    check, context = check_of(diagnosis), build_context(diagnosis, {})
    texts = (blocks_markdown(_comment_blocks(diagnosis, check, context, shown)) for shown in ROWS_SHOWN)
    return next(text for text in texts if len(text) <= LENGTH_LIMIT)


def _comment_blocks(diagnosis: Diagnosis, check: CheckReport, context: ReportContext, shown: int) -> Iterator[Block]:
    """The comment with ``shown`` rows of each list."""
    yield from _verdict_blocks(diagnosis, check, context)
    if shown:
        yield from _gate_blocks(check, shown)
    yield from _finding_blocks(check, shown)
    if text := others_text(check):
        yield Paragraph(f"Not counted: {text}.")
    if context.path:
        yield Paragraph(f"Where the noise comes from: {context.path}")
    if context.first is not None:
        yield from _first_blocks(context.first, _first_snippet(context))
    if shown:
        yield from _cause_blocks(context.causes, shown)
        care = [exemption_line(use) for use in check.exemptions if use.status in CARE]
        yield from _list_blocks("exemptions that need care", care, shown, "exemptions")
        yield from _list_blocks("notices of the measurement", context.warnings, shown, "notices")
    if (use := check.baseline) is not None:
        prune: Inline = [" (", Span(PRUNE, "code"), ")"] if use.gone else ""
        yield Paragraph(["Baseline ", Span(name(use.origin), "code"), f": {baseline_text(use)}", prune, "."])
    yield Paragraph([Safe("<sub>"), " · ".join(_versions(diagnosis, check)), Safe("</sub>")])


def _verdict_blocks(diagnosis: Diagnosis, check: CheckReport, context: ReportContext) -> Iterator[Block]:
    drop, marker = context.drop, quote(name(check.model), safe=MARKER_SAFE)
    change = f": {drop.metric} {drop.float_value} → {drop.quantized_value}, {drop.word} {drop.change}" if drop else ""
    head = Safe(f"<!-- quantmedic: {marker} -->\n## {VERDICT_SIGNS[check.verdict]} ")
    yield Paragraph([head, f"{check.verdict}{change}"])
    lenient = f"; {exit_text(check)}" if is_lenient(check) else ""
    yield Paragraph([Span(name(check.model), "code"), f": {verdict_summary(check)}{lenient}"])
    if is_unbudgeted(diagnosis, check):
        yield Paragraph(f"The policy has no budget for this {drop.word if drop else 'drop'}, so it was not judged.")
    if check.static:
        yield Paragraph(f"Static: {static_text(diagnosis.not_judged)}")


def _gate_blocks(check: CheckReport, shown: int) -> Iterator[Block]:
    if check.gates:
        yield make_table(
            "Gates",
            check.gates[:shown],
            [
                (Column("status"), lambda gate: f"{SIGNS[gate.status]} {status_label(gate.status)}"),
                (Column("gate"), lambda gate: name(gate.name)),
                (Column("found"), message_text),
            ],
        )
        yield from _more(check.gates, shown, "gates")


def _finding_blocks(check: CheckReport, shown: int) -> Iterator[Block]:
    """Findings to look at: against a baseline the new and worse ones, those that count first; else those that count."""
    counted, others = split_findings(check)
    compared = check.baseline is not None
    changed = [row for row in others if compared and row.exemption is None and row.status != "known"]
    found = [*counted, *changed]
    if not found:
        return
    yield Heading("new and worse findings" if compared else "findings that count")
    if not shown:
        yield Paragraph(f"{len(found)}, listed in the report.")
        return
    columns: list[tuple[Column, Callable[[CheckedFinding], Cell]]] = [
        (Column("rule"), rule_text),
        (Column("where"), lambda row: Span(name(row.subject), "code")),
        (Column("found"), finding_figure),
        (Column("against the baseline"), _standing_text),
    ]
    yield make_table("Findings", found[:shown], columns if compared else columns[:3])
    yield from _more(found, shown, "in the report")


def _standing_text(finding: CheckedFinding) -> Cell:
    return f"{before_text(finding)}{'' if finding.gated else ', not gated'}"


def _first_blocks(first: FirstStep, snippet: str) -> Iterator[Block]:
    yield Heading(f"{first.label}: {first.named}")
    gain = f"; {first.gain.said}" if first.gain is not None else ""
    why = [f". Why: {first.why} (", Span(f"quantmedic explain {first.code}", "code"), ")"] if first.code else []
    yield Paragraph([f"{capital(first.detail)}{gain}", *why])
    if snippet:
        yield Code(snippet)


def _cause_blocks(causes: Sequence[CauseCard], shown: int) -> Iterator[Block]:
    if causes:
        yield Paragraph(Safe(f"<details><summary>{count(len(causes), 'cause')}</summary>"))
        yield Bullets([_cause_text(card) for card in causes[:shown]], ordered=True)
        yield from _more(causes, shown, "in the report")
        yield Paragraph(Safe("</details>"))


def _cause_text(card: CauseCard) -> Inline:
    facts = " · ".join([card.severity, card.scope, *(gain.said for gain in card.gains)])
    exempted = f" ({card.exempted})" if card.exempted else ""
    named = Span(f"{', '.join(card.rules)} {card.name}", "struck" if card.struck else "strong")
    return [named, f" · {facts}: {card.message}{exempted}"]


def _list_blocks(title: str, items: Sequence[Inline], shown: int, what: str) -> Iterator[Block]:
    if items:
        yield Heading(title)
        yield Bullets(items[:shown])
        yield from _more(items, shown, what)


def _more(rows: Sequence[object], shown: int, what: str) -> Iterator[Block]:
    if len(rows) > shown:
        yield Paragraph(f"and {len(rows) - shown} more {what}")


def _first_snippet(context: ReportContext) -> str:
    """What to copy for the first step, in the toolchain that the report speaks for; empty where that is long."""
    code = context.first.code if context.first is not None else ""
    text = next((card.remedies[0].code for card in context.causes if code and card.code == code and card.remedies), "")
    return text if len(text) <= SNIPPET_LIMIT else ""


def _versions(diagnosis: Diagnosis, check: CheckReport) -> Iterator[str]:
    """What gave these figures; the report lists all of it."""
    yield f"quantmedic {visible(diagnosis.quantmedic_version)}"
    known = [(key, value) for key, value in run_lines(diagnosis.run) if key.startswith("versions")]
    for key, value in known[:VERSIONS_SHOWN]:
        yield f"{visible(key.rpartition(' · ')[2], 40)} {visible(value, 40)}"
    yield f"policy {name(check.policy)}" if check.policy else "no policy file: the defaults apply"

"""The comment on a pull request: what a reviewer needs, in Markdown that stands by itself."""

from collections.abc import Iterator
from urllib.parse import quote

from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.reports.context import ReportContext, build_context
from quantmedic.reports.sections.cards import CauseCard
from quantmedic.reports.sections.gate import FoundRow, GateBox, gate_of
from quantmedic.reports.sections.run import run_lines
from quantmedic.reports.templating import Safe, markdown_environment, template_variables
from quantmedic.reports.text import visible

#: Characters that a comment may have at most: the smallest limit of the known hosts is 65 536.
LENGTH_LIMIT = 60_000
#: Rows of each list that are tried in turn until the comment is short enough; without any row it always is.
ROWS_SHOWN = (20, 10, 5, 2, 0)
SNIPPET_LIMIT = 3000
VERSIONS_SHOWN = 6
#: Characters of a file name that a hidden comment holds as they are; never one that could end it.
MARKER_SAFE = " /.:()+,=[]{}~"


def render_comment(diagnosis: Diagnosis) -> str:
    """Markdown of at most 60 000 characters that links to nothing; its first line names the model, hidden.

    Raises:
        QuantmedicError: No gate was asked for.
    """
    context, box = build_context(diagnosis, {}), gate_of(diagnosis)
    found = _findings_to_look_at(box)
    variables = template_variables(context) | {
        "marker": Safe(quote(box.model, safe=MARKER_SAFE)),
        "heading": "New and worse findings" if box.baseline is not None else "Findings that count",
        "found": found,
        "care": [row for row in box.exemptions if row.care],
        "snippet": _first_snippet(context),
        "versions": list(_versions(diagnosis, box)),
    }
    template = markdown_environment().get_template("comment.md")
    texts = (template.render(**variables, shown=shown) for shown in ROWS_SHOWN)
    return next(text for text in texts if len(text) <= LENGTH_LIMIT)


def _findings_to_look_at(box: GateBox) -> list[FoundRow]:
    """Findings to look at: against a baseline the new and worse ones, those that count first; else those that count."""
    if box.baseline is None:
        return list(box.counted)
    changed = [row for row in box.others if not row.exempted and not row.before.startswith("known")]
    return [*box.counted, *changed]


def _first_snippet(context: ReportContext) -> str:
    """What to copy for the first step, in the toolchain that the report speaks for; empty where that is long."""
    code = context.first.code if context.first is not None else ""
    card: CauseCard | None = next((card for card in context.causes if code and card.code == code), None)
    if card is None or not card.remedies or card.remedies[0].no_option:
        return ""
    blocks = [block for block in card.remedies[0].toolchains if block.preferred]
    text = blocks[0].examples[0].code if blocks else ""
    return text if len(text) <= SNIPPET_LIMIT else ""


def _versions(diagnosis: Diagnosis, box: GateBox) -> Iterator[str]:
    """What gave these figures; the report lists all of it."""
    yield f"quantmedic {visible(diagnosis.quantmedic_version)}"
    known = [(key, value) for key, value in run_lines(diagnosis.run) if key.startswith("versions")]
    for key, value in known[:VERSIONS_SHOWN]:
        yield f"{visible(key.rpartition(' · ')[2], 40)} {visible(value, 40)}"
    yield f"policy {box.policy}" if box.policy else "no policy file: the defaults apply"

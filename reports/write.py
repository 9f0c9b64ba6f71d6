"""Write a report: all of it is new, or all as it was."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.engine.diagnosis.inspection import Inspection
from quantmedic.engine.diagnosis.prescription import FILES
from quantmedic.engine.errors import OutputError, QuantmedicError, RuleError
from quantmedic.engine.file_sets import write_together
from quantmedic.engine.garbage import without_garbage_collection
from quantmedic.engine.output_files import make_folder, remove_empty
from quantmedic.reports.block_markdown import blocks_markdown, inline_markdown, section_markdown
from quantmedic.reports.blocks import Block, Bullets, Code, Figure, Heading, Paragraph, Section, Span, all_blocks
from quantmedic.reports.charts.frame import Drawing
from quantmedic.reports.context import ReportContext, build_context
from quantmedic.reports.kept import kept_pages
from quantmedic.reports.machines.comment import render_comment
from quantmedic.reports.machines.json import render_json
from quantmedic.reports.machines.junit import render_junit
from quantmedic.reports.machines.metrics import render_metrics
from quantmedic.reports.machines.model_explorer import render_model_explorer
from quantmedic.reports.machines.sarif import render_sarif
from quantmedic.reports.page.html import INDEX, render_index, render_manual_page
from quantmedic.reports.sections.prescription import prescription_files
from quantmedic.reports.sections.prescription_run import run_files
from quantmedic.reports.sections.samples import samples_of
from quantmedic.reports.templating import svg
from quantmedic.reports.text import capital

FORMATS = ("html", "markdown", "json", "png", "model-explorer", "metrics", "sarif", "junit")
#: What a gate's verdict is written to, by format.
CHECK_FILES = {"markdown": "check.md", "sarif": "check.sarif", "junit": "check.xml"}
PAGE_NAME = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)*", re.ASCII)
OWN_GRAPH = re.compile(
    r"((mse|cosine|sqnr)-(representative|validation)|loss-budget|error-birth|histogram-\d+|samples-\w+)\.(svg|png)"
)


class Written(NamedTuple):
    """One file of a report."""

    path: Path
    size: int


def render_markdown(context: ReportContext) -> str:
    """``report.md``, for tickets and pull requests: links the manual's pages and shows the graphs beside it."""
    judged = f" ({context.judged_alone})" if context.judged_alone else ""
    title = inline_markdown(f"{context.verdict_word.replace('-', ' ').upper()}: {context.title}{judged}")
    causes = Section("causes", "Causes", "Causes", list(_cause_blocks(context)))
    budget = [context.budget.section] if context.budget is not None else []
    urgent = [context.urgent] if context.urgent is not None else []
    sections = (*context.opening, *budget, *urgent, causes, *context.parts)
    return f"# {title}\n\n{blocks_markdown(_head_blocks(context))}\n\n" + "\n".join(map(section_markdown, sections))


def _head_blocks(context: ReportContext) -> Iterator[Block]:
    """What stands above all sections: the verdict, and what to do first."""
    yield Paragraph(f"{context.model_text} · {context.samples_text}")
    language, first = context.language, context.first
    if (drop := context.drop) is not None:
        amount = language.amount if language is not None else f"n = {drop.samples} ({drop.dataset})"
        values = Span(f"{drop.metric} {drop.float_value} → {drop.quantized_value}", "strong")
        yield Paragraph([values, f", {drop.word} {drop.change}, 95 % interval {drop.interval}, {amount}"])
    if language is not None:
        yield Paragraph(" ".join(language.brief))
    reading = f"{capital(context.reading_text)}." if context.reading_text else ""
    yield Paragraph(" ".join(filter(None, [context.verdict_text, context.strength_text, context.drop_text, reading])))
    if context.warnings:
        yield Paragraph("Mind before you trust the numbers:")
        yield Bullets(context.warnings)
    if context.path:
        yield Paragraph(f"Where the noise comes from: {context.path}.")
    if first is not None:
        gain = f"; {first.gain.said}" if first.gain is not None else ""
        yield Paragraph([Span(f"{capital(first.label)}: {first.named}", "strong"), f" – {first.detail}{gain}"])
        if first.cause:
            yield Paragraph(f"Why: {first.code} {first.cause}, confidence {first.confidence}: {first.why}")
        if first.text:
            yield Code(first.text)
    yield Paragraph(" · ".join(context.counts))


def _cause_blocks(context: ReportContext) -> Iterator[Block]:
    if not context.causes:
        yield Paragraph(f"No cause was found.{f' {context.unjudged}, see below.' if context.unjudged else ''}")
    for card in context.causes:
        yield Heading([f"{card.rank}. ", Span(card.name, "struck" if card.struck else "")])
        yield Paragraph(" · ".join(chip.text for chip in card.chips))
        yield from card.blocks


@without_garbage_collection
def write_report(
    diagnosis: Diagnosis,
    manuals: Mapping[str, str],
    folder: Path,
    formats: Iterable[str] = ("html", "json"),
    inspection: Inspection | None = None,
) -> list[Written]:
    """Write the report in the formats asked for; beside ``html`` and ``markdown``, the manual that they link to.

    Files that are not part of a report stay where they are. A graph, prescription or verdict of an earlier report that
    this one does not have is removed, since it would be taken for part of this one.

    Args:
        diagnosis: What to report.
        manuals: Manual pages in Markdown by their path without suffix: ``W001``, ``general/preprocessing``.
        folder: Where to write; made if it does not exist.
        formats: Any of ``html``, ``markdown``, ``json``, ``png`` (the graphs as pictures), ``model-explorer`` (colours
            for that viewer), ``metrics`` (flat numbers) and, of the verdict of a gate, ``sarif`` and ``junit``.
        inspection: The case behind the diagnosis, for the tools of the page; without it the page can only be read.

    Returns:
        The files, reports first.

    Raises:
        OutputError: The folder cannot be written; nothing is left half-written.
        QuantmedicError: A format is unknown, shows the verdict of a gate where there is none, or ``png`` needs a
            package that is not installed.
    """
    wanted = list(dict.fromkeys(formats))
    files = dict(_report_files(diagnosis, manuals, wanted, inspection))
    with _output_folder(folder):
        return _write_together(files, folder, _stale_files(folder, files))


def place(files: Mapping[str, bytes], folder: Path) -> list[Written]:
    """Write files into a folder, all or none; the folder is made if it does not exist.

    Raises:
        OutputError: The folder cannot be written; nothing is left half-written.
    """
    with _output_folder(folder):
        return _write_together(files, folder)


@contextmanager
def _output_folder(folder: Path) -> Iterator[None]:
    """The folder exists inside; a failure to write it becomes an OutputError."""
    made: list[Path] = []
    try:
        made = make_folder(folder)
        yield
    except OSError as error:
        remove_empty(made)
        where = f"{error.filename or folder}: {error.strerror or error}"
        raise OutputError("cannot write the report", where=where, help="choose another folder with --output") from error


def _report_files(
    diagnosis: Diagnosis, manuals: Mapping[str, str], formats: list[str], inspection: Inspection | None
) -> Iterator[tuple[str, bytes]]:
    """Path and content of every file, reports first."""
    _check_request(formats, manuals, diagnosis)
    samples = samples_of(inspection.case) if inspection is not None else None
    context = build_context(diagnosis, manuals, samples)
    if "html" in formats:
        yield INDEX, render_index(context, diagnosis, inspection).encode()
    if "markdown" in formats:
        yield "report.md", render_markdown(context).encode()
        if diagnosis.check is not None:
            yield CHECK_FILES["markdown"], render_comment(diagnosis).encode()
    if "json" in formats:
        yield "report.json", render_json(diagnosis).encode()
    yield from _files_for_tools(diagnosis, formats)
    yield from _gate_files(diagnosis, manuals, formats)
    if set(formats) - {"png"}:
        yield from prescription_files(diagnosis)
        yield from run_files(diagnosis)
    if samples is not None and "markdown" in formats:
        yield from samples.files()
    yield from _graph_files(context, formats)
    yield from _manual_files(manuals, formats)


def _files_for_tools(diagnosis: Diagnosis, formats: list[str]) -> Iterator[tuple[str, bytes]]:
    """What viewers of networks and trackers of experiments read."""
    if "model-explorer" in formats:
        yield "model-explorer.json", render_model_explorer(diagnosis).encode()
    if "metrics" in formats:
        yield "metrics.json", render_metrics(diagnosis).encode()


def _gate_files(diagnosis: Diagnosis, manuals: Mapping[str, str], formats: list[str]) -> Iterator[tuple[str, bytes]]:
    """The verdict of a gate, where one was asked for."""
    if "sarif" in formats:
        yield CHECK_FILES["sarif"], render_sarif(diagnosis, manuals).encode()
    if "junit" in formats:
        yield CHECK_FILES["junit"], render_junit(diagnosis).encode()


def _check_request(formats: list[str], manuals: Mapping[str, str], diagnosis: Diagnosis) -> None:
    for unknown in set(formats) - set(FORMATS):
        raise QuantmedicError(f"unknown report format {unknown!r}", help=f"known formats: {', '.join(FORMATS)}")
    if diagnosis.check is None and (wanted := [form for form in formats if form in ("sarif", "junit")]):
        raise QuantmedicError(
            f"there is no verdict of a gate to write as {' and '.join(wanted)}",
            help="use quantmedic check instead of quantmedic diagnose",
        )
    for code in manuals:
        if not PAGE_NAME.fullmatch(code):
            raise RuleError(f"manual page {code!r} cannot be a file name", help="use letters, digits and hyphens")


def _graph_files(context: ReportContext, formats: list[str]) -> Iterator[tuple[str, bytes]]:
    budget = [context.budget.section] if context.budget is not None else []
    blocks = (block for part in (*budget, *context.parts) for block in all_blocks(part.blocks))
    for chart in (block.chart for block in blocks if isinstance(block, Figure)):
        if chart.note:
            continue
        if "html" in formats or "markdown" in formats:
            yield f"graphs/{chart.stem}.svg", svg(chart).encode()
        if "png" in formats:
            yield f"graphs/{chart.stem}.png", _png(chart)


def _png(chart: Drawing) -> bytes:
    try:
        import resvg_py  # optional: quantmedic[png]
    except ImportError as error:
        raise QuantmedicError(
            "PNG graphs need a package that is not installed", help="pip install 'quantmedic[png]'"
        ) from error
    return bytes(resvg_py.svg_to_bytes(svg_string=svg(chart), zoom=2))


def _manual_files(manuals: Mapping[str, str], formats: list[str]) -> Iterator[tuple[str, bytes]]:
    """The manual in the formats of the reports that link to it."""
    every = dict(sorted(manuals.items()))
    if "html" in formats:
        for code, page in kept_pages(every, render_manual_page).items():
            yield f"manual/{code}.html", page.encode()
    if "markdown" in formats:
        for code, text in every.items():
            yield f"manual/{code}.md", text.encode()


def _write_together(files: Mapping[str, bytes], folder: Path, stale: Collection[str] = ()) -> list[Written]:
    write_together(folder, files, stale)
    return [Written(folder / path, len(content)) for path, content in files.items()]


def _stale_files(folder: Path, files: Mapping[str, bytes]) -> list[str]:
    """What an earlier report has and this one has not."""
    graphs = folder / "graphs"
    drawn = [f"graphs/{path.name}" for path in graphs.iterdir()] if graphs.is_dir() else []
    own = [path for path in drawn if OWN_GRAPH.fullmatch(path.removeprefix("graphs/"))]
    return [path for path in (*own, *FILES.values(), *CHECK_FILES.values()) if path not in files]

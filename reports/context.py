"""The context of a report: every variable that templates and the console may use, documented and preformatted."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from quantmedic.engine.case.facts import DatasetFacts, FloatFacts
from quantmedic.engine.contract.check_report import CheckReport
from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.reports.blocks import EMBEDDED, Block, Bullets, Details, Inline, Paragraph, Section, Span, anchor
from quantmedic.reports.charts.birth import degraded_text
from quantmedic.reports.sections.asked import asked_section
from quantmedic.reports.sections.budget_box import BudgetBox, budget_box, path_text
from quantmedic.reports.sections.cards import CauseCard, cause_cards
from quantmedic.reports.sections.cost import cost_section
from quantmedic.reports.sections.data_sets import data_section
from quantmedic.reports.sections.error_charts import errors_section, outliers_section
from quantmedic.reports.sections.first_step import FirstStep, first_step, step_links
from quantmedic.reports.sections.gate import LOOKS, gate_section
from quantmedic.reports.sections.harm import AssumedGroup, Drop, assumed_group, drop_text, metric_drop, reading_text
from quantmedic.reports.sections.imports import files_section
from quantmedic.reports.sections.language import LanguageBox, blocks_section, language_box, samples_of_language
from quantmedic.reports.sections.prescription import prescription_section
from quantmedic.reports.sections.previous import previous_section
from quantmedic.reports.sections.proof import proof_section
from quantmedic.reports.sections.run_kind import (
    compares_checkpoints,
    float_alone,
)
from quantmedic.reports.sections.samples import Samples
from quantmedic.reports.sections.tables import (
    comparison_section,
    layers_section,
    not_judged_section,
    outputs_section,
    passed_section,
    run_section,
)
from quantmedic.reports.sections.verdict import judged_alone, strength_text, verdict_text, verdict_word
from quantmedic.reports.sections.workflow import workflow_section
from quantmedic.reports.text import (
    NAME_LIMIT,
    NOT_MEASURED,
    capital,
    count,
    name,
    number,
    percent,
    visible,
)

GENERAL = "general"
#: Characters of a line of a log.
LINE_LIMIT = 400
#: What to supply where no rule knows the failure.
UNKNOWN_FAILURE = (
    "No rule knows this failure, so no cause is named. Give the whole log with --log, from the first line of the "
    "command on, and the calibration data with --representative; a pattern of your own can be added "
    "(quantmedic explain failed)."
)


@dataclass(frozen=True)
class FailureBox:
    """How a quantization ended that gave no model."""

    summary: Annotated[str, "what its log says, as a sentence without a capital; a colon where lines follow"]
    lines: Annotated[tuple[str, ...], "its last lines that report an error"]
    unknown: Annotated[str, "what to supply, as sentences; empty where a rule knows the failure"]


@dataclass(frozen=True)
class Page:
    """One page of the manual."""

    code: Annotated[str, "path inside the manual folder without suffix"]
    anchor: Annotated[str, "id of the page where it is embedded"]
    title: Annotated[str, "first heading"]
    text: Annotated[str, "the page in Markdown"]


@dataclass(frozen=True)
class ReportContext:
    """All that a report shows."""

    title: Annotated[str, "what the quantized model is called"]
    model_text: Annotated[str, "format, size and coverage of the model in one line"]
    samples_text: Annotated[str, "samples of both data sets in one line"]
    version: Annotated[str, "version of quantmedic"]
    verdict: Annotated[str, "healthy, undecided, degraded, not-comparable or failed"]
    verdict_word: Annotated[str, "the verdict as it is shown: faulty where files alone show a fault, device-departs"]
    verdict_text: Annotated[str, "the verdict as a sentence"]
    judged_alone: Annotated[str, "what alone was judged where nothing was run; empty where data were given"]
    opening: Annotated[tuple[Section, ...], "what stands before all else: the previous case, the gate, a failure"]
    gate: Annotated[Span | None, "verdict of the gate, leading to what it rests on; None where none was asked for"]
    drop: Annotated[Drop | None, "task metric and drop; None where it was not measured"]
    language: Annotated[LanguageBox | None, "how language models differ on texts; None where none were run"]
    strength_text: Annotated[str, "how sure the drop is, as a sentence"]
    drop_text: Annotated[str, "what its size advises, and a metric that nobody named, as sentences; may be empty"]
    reading_text: Annotated[str, "how the task metric reads the outputs, where that was found out; may be empty"]
    first: Annotated[FirstStep | None, "what to do first; None where nothing needs to change"]
    first_links: Annotated[Inline, "where the page says more about it"]
    counts: Annotated[tuple[str, ...], "layers, flagged layers, causes, rules passed and not judged, notices"]
    warnings: Annotated[tuple[str, ...], "notices of the collectors"]
    budget: Annotated[BudgetBox | None, "where the noise comes from; None where that was not measured"]
    path: Annotated[str, "the path to the loss in one line; empty where nothing is lost, or it is not known"]
    path_leads: Annotated[bool, "no cause of medium or high severity names the loss: the path is the answer"]
    causes: Annotated[tuple[CauseCard, ...], "causes, best first"]
    assumed: Annotated[AssumedGroup | None, "what causes of assumed harm have in common; None where there are none"]
    tried: Annotated[bool, "remedies were tried on the model"]
    urgent: Annotated[Section | None, "general pages, where they stand in front of the causes"]
    parts: Annotated[tuple[Section, ...], "what stands behind the causes, in the order in which it stands"]
    unjudged: Annotated[str, "how many rules lacked a fact, as a sentence; empty where none did"]
    pages: Annotated[tuple[Page, ...], "manual pages of the rules that fired and of the advice"]


def build_context(diagnosis: Diagnosis, manuals: Mapping[str, str], samples: Samples | None = None) -> ReportContext:
    """Everything that a report shows of a diagnosis.

    Args:
        diagnosis: What to show.
        manuals: Manual pages in Markdown by their path without suffix: ``W001``, ``general/preprocessing``.
        samples: Thumbnails of the case behind it, where that is at hand.
    """
    causes = cause_cards(diagnosis, manuals)
    advice = _manual_pages([f"{GENERAL}/{stem}" for stem in diagnosis.advice], manuals)
    general = _advice_section(diagnosis, advice)
    behind = [
        workflow_section(diagnosis),
        general if diagnosis.advice_place != "first" else None,
        prescription_section(diagnosis),
    ]
    first = first_step(diagnosis, causes, _leading_titles(diagnosis, advice))
    in_doubt = diagnosis.undecided is not None and diagnosis.undecided.doubt is not None
    return ReportContext(
        title=name(diagnosis.model.name),
        model_text=_model_text(diagnosis),
        samples_text=_samples_text(diagnosis),
        version=visible(diagnosis.quantmedic_version),
        verdict=diagnosis.verdict,
        verdict_word=verdict_word(diagnosis),
        verdict_text=verdict_text(diagnosis),
        judged_alone=judged_alone(diagnosis),
        opening=tuple(
            filter(None, [previous_section(diagnosis.previous), gate_section(diagnosis), _failure_section(diagnosis)])
        ),
        gate=_gate_span(diagnosis.check),
        drop=metric_drop(diagnosis.metrics),
        language=language_box(diagnosis),
        strength_text=strength_text(diagnosis),
        drop_text=drop_text(diagnosis),
        reading_text=reading_text(diagnosis),
        first=first,
        first_links=step_links(first, diagnosis) if first is not None else "",
        counts=_count_texts(diagnosis),
        warnings=tuple(visible(text.strip(), 600) for text in diagnosis.warnings),
        budget=budget_box(diagnosis, manuals),
        path="" if in_doubt or diagnosis.verdict == "healthy" else path_text(diagnosis),
        path_leads=not any(cause.is_serious for cause in diagnosis.causes),
        causes=causes,
        assumed=assumed_group(diagnosis),
        tried=diagnosis.proof is not None,
        urgent=general if diagnosis.advice_place == "first" else None,
        parts=(*filter(None, behind), *_parts(diagnosis, manuals, samples)),
        unjudged=f"{count(unjudged, 'rule')} could not be judged" if (unjudged := len(diagnosis.not_judged)) else "",
        pages=_manual_pages(_codes_that_fired(diagnosis), manuals) + advice,
    )


def _parts(diagnosis: Diagnosis, manuals: Mapping[str, str], samples: Samples | None) -> Iterator[Section]:
    """Sections that are nothing but blocks; of a failed quantization there is no model to show."""
    yield from filter(None, [proof_section(diagnosis)])
    if not float_alone(diagnosis):
        yield from filter(None, [blocks_section(diagnosis), errors_section(diagnosis), outliers_section(diagnosis)])
        yield layers_section(diagnosis)
        if not compares_checkpoints(diagnosis):
            yield data_section(diagnosis, samples)
            yield outputs_section(diagnosis.outputs)
            yield cost_section(diagnosis)
        yield from filter(None, [comparison_section(diagnosis)])
    yield from filter(None, [files_section(diagnosis), asked_section(diagnosis.layers)])
    yield not_judged_section(diagnosis, manuals)
    yield passed_section(diagnosis, manuals)
    yield run_section(diagnosis)


def _gate_span(check: CheckReport | None) -> Span | None:
    return Span(check.verdict, f"gate-word gate-{LOOKS[check.verdict]}", "#gate") if check is not None else None


def page_title(code: str, text: str) -> str:
    """First heading of a manual page, else its code."""
    heading = next((line for line in text.splitlines() if line.startswith("# ")), "")
    return visible(heading.removeprefix("# ").strip() or code, 200)


def _manual_pages(codes: Iterable[str], manuals: Mapping[str, str]) -> tuple[Page, ...]:
    return tuple(
        Page(code, anchor(code), page_title(code, manuals[code]), manuals[code])
        for code in dict.fromkeys(codes)
        if code in manuals
    )


def _codes_that_fired(diagnosis: Diagnosis) -> list[str]:
    """Codes of all rules that fired, absorbed ones included, in the order of the causes."""
    return [code for cause in diagnosis.causes for code in (*cause.rules, *(found.rule for found in cause.absorbs))]


def failure_box(diagnosis: Diagnosis) -> FailureBox | None:
    """How quantization failed; None where there is a quantized model."""
    if not float_alone(diagnosis):
        return None
    failure = diagnosis.model.failure
    logs = ", ".join(visible(str(log), NAME_LIMIT) for log in diagnosis.run.get("logs", ()))
    lines = tuple(visible(line.strip(), LINE_LIMIT) for line in failure.lines or ())
    said = f", in words of {visible(failure.toolchain)}" if failure.toolchain and not failure.refused else ""
    source = "the runtime" if failure.refused else f"the log {logs}"
    known = any(cause.is_serious for cause in diagnosis.causes)
    return FailureBox(
        summary=f"{source} reports{said}:" if lines else f"no line of the log {logs} reports an error.",
        lines=lines,
        unknown=UNKNOWN_FAILURE if lines and not known else "",
    )


def _failure_section(diagnosis: Diagnosis) -> Section | None:
    box = failure_box(diagnosis)
    if box is None:
        return None
    lines: list[Block] = [Bullets([Span(line, "code") for line in box.lines])] if box.lines else []
    unknown: list[Block] = [Paragraph(box.unknown)] if box.unknown else []
    return Section("log", "What the log says", "Log", [Paragraph(capital(box.summary)), *lines, *unknown])


def _leading_titles(diagnosis: Diagnosis, pages: Sequence[Page]) -> list[str]:
    """Titles of the general pages that may be what is done first; by their names where no manual is at hand."""
    if diagnosis.advice_place == "folded":
        return []
    return [page.title for page in pages] or [capital(stem.replace("-", " ")) for stem in diagnosis.advice]


def advice_text(diagnosis: Diagnosis) -> str:
    """Why the general pages are to be read, as a sentence."""
    if diagnosis.advice_place == "folded":
        return "If the remedies of the causes do not help, the general measures are next."
    if diagnosis.advice_place == "first":
        return "What was tried for the causes had no effect."
    if diagnosis.causes:
        return "None of the causes found accounts for a loss."
    return "No rule named a cause."


def _advice_section(diagnosis: Diagnosis, pages: Sequence[Page]) -> Section | None:
    """General pages in the order in which to read them; folded below causes that are still to be tried."""
    items = [Span(page.title, target=f"{EMBEDDED}{page.code}") for page in pages]
    items = items or [Span(f"quantmedic explain {visible(stem)}", "code") for stem in diagnosis.advice]
    if not items:
        return None
    linked = Bullets(items, ordered=True)
    text, order = advice_text(diagnosis), "" if float_alone(diagnosis) else "; the size of the drop sets the order"
    blocks: list[Block] = [Paragraph(f"{text} Try these in order{order}.", "lead"), linked]
    if diagnosis.advice_place == "folded":
        summary = f"{len(items)} general measures, in the order in which to try them"
        blocks = [Paragraph(text, "lead"), Details(summary, [linked])]
    return Section("advice", "General advice", "Advice", blocks)


def _model_text(diagnosis: Diagnosis) -> str:
    model = diagnosis.model
    if float_alone(diagnosis):
        return _float_text(model.float_model)
    kind = " ".join(visible(part) for part in (model.framework, model.format) if part)
    parts = (kind, count(len(diagnosis.layers), "layer"), _coverage_text(model.quantized_share, model.integer_share))
    return ", ".join(part for part in parts if part)


def _coverage_text(share: float | None, integers: float | None) -> str:
    """How much is quantized of the layers with weights or a product of matrices, which the share is of.

    What is kept in few bits and computed in float is smaller, and no faster.
    """
    if share is None:
        return ""
    text = f"{percent(share, 0)} of compute layers quantized"
    return f"{text} and none computed in integers (smaller, not faster)" if share and integers == 0 else text


def _float_text(model: FloatFacts) -> str:
    """The float model in one line."""
    opset = f"opset {model.opset}" if model.opset is not None else ""
    operators = count(model.operators, "operator") if model.operators is not None else "not read"
    parts = ("float model", model.format, opset, operators, *(model.inputs or ()))
    return ", ".join(visible(part, NAME_LIMIT) for part in parts if part)


def _samples_text(diagnosis: Diagnosis) -> str:
    if float_alone(diagnosis) and diagnosis.model.failure.data_samples is not None:
        read = diagnosis.model.failure.data_samples
        fault = " before a fault" if diagnosis.model.failure.data_problem else ""
        return f"{count(read, 'calibration sample')} read{fault}"
    if judged_alone(diagnosis):
        return "no data"
    parts = [
        f"{dataset.role} {number(dataset.samples)}{' labelled' if dataset.labelled else ''}"
        + _samples_per_layer(diagnosis, dataset)
        for dataset in diagnosis.datasets
    ]
    return samples_of_language(diagnosis.model.language) or ", ".join(parts) or f"data sets {NOT_MEASURED}"


def _samples_per_layer(diagnosis: Diagnosis, dataset: DatasetFacts) -> str:
    """How many samples each layer was measured on, where that is not all of them."""
    if dataset.role is None:
        return ""
    counts = {getattr(row, dataset.role).samples for row in diagnosis.layers} - {None, 0, dataset.samples}
    fast = "fast mode: " if diagnosis.run.get("mode") == "fast" else ""
    return f" ({fast}layers on {number(min(counts))} or more of them)" if counts else ""


def _count_texts(diagnosis: Diagnosis) -> tuple[str, ...]:
    if float_alone(diagnosis):
        return (count(len(diagnosis.causes), "cause"), count(len(diagnosis.warnings), "notice"))
    known = [row.degraded for row in diagnosis.layers if row.degraded is not None]
    degraded = degraded_text(diagnosis.layers) if known else f"degraded {NOT_MEASURED}"
    return (
        count(len(diagnosis.layers), "layer"),
        *([] if compares_checkpoints(diagnosis) else [degraded]),
        count(len(diagnosis.causes), "cause"),
        f"{len(diagnosis.passed)} passed",
        f"{len(diagnosis.not_judged)} not judged",
        count(len(diagnosis.warnings), "notice"),
    )

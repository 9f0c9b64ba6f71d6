"""Cause cards: what is wrong, the proof, the remedy, and what it explains."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain, groupby
from typing import Annotated

from quantmedic.engine.diagnosis import CauseReport, Diagnosis, EvidenceRow, Explained
from quantmedic.engine.rule import COMPARISONS, SHOWN, Remedy
from quantmedic.reports.snippets import (
    TOOLCHAIN_NAMES,
    group_names,
    layer_names,
    preferred,
    render_snippet,
    tensor_names,
)
from quantmedic.reports.text import capital, count, decibels, fact_info, measure, metric_change, name, visible

SUBJECTS_SHOWN = 3


@dataclass(frozen=True)
class EvidenceLine:
    """One fact against its threshold."""

    fact: Annotated[str, "dotted path of the fact"]
    description: Annotated[str, "formula of the fact where it stands first, else empty"]
    value: Annotated[str, "what was measured"]
    comparison: Annotated[str, "sign between value and threshold: >, <, =, …; empty where nothing was compared"]
    threshold: Annotated[str, "limit that the value is compared with"]
    subject: Annotated[str, "layer, tensor, data set or output"]
    source: Annotated[str, "where the threshold comes from; empty for constants of the rule and where it was said"]


@dataclass(frozen=True)
class Example:
    """Text to copy."""

    code: Annotated[str, "the text, with this model's names"]
    note: Annotated[str, "remark, may be empty"]


@dataclass(frozen=True)
class ToolchainBlock:
    """How one toolchain applies a remedy to this model."""

    toolchain: Annotated[str, "name of the toolchain"]
    examples: Annotated[tuple[Example, ...], "one or more ways to do it"]
    preferred: Annotated[bool, "shown first: the toolchain that quantized this model, else the first offered"]


@dataclass(frozen=True)
class RemedyCard:
    """One way to repair a cause."""

    title: Annotated[str, "name of the remedy"]
    changes: Annotated[str, "what it changes"]
    cost: Annotated[str, "what it costs"]
    unsafe: Annotated[str, "when it is useless or unsafe"]
    toolchains: Annotated[tuple[ToolchainBlock, ...], "what to copy, per toolchain"]


@dataclass(frozen=True)
class ExplainedLine:
    """A finding that vanishes with the cause."""

    rule: Annotated[str, "code of the rule that found it"]
    name: Annotated[str, "name of that rule"]
    subject: Annotated[str, "layer, tensor, data set or output"]
    message: Annotated[str, "what was found"]


@dataclass(frozen=True)
class Gain:
    """What repairing a cause brings."""

    kind: Annotated[str, "measured (by a trial) or predicted (by simulation)"]
    text: Annotated[str, "the gain with its unit"]


@dataclass(frozen=True)
class CauseCard:
    """One cause, ready to be printed."""

    rank: Annotated[int, "place, 1 = look here first"]
    code: Annotated[str, "code of the leading rule; names anchor and manual page"]
    rules: Annotated[tuple[str, ...], "codes of all rules that speak for the cause"]
    cause: Annotated[str, "name of the cause"]
    severity: Annotated[str, "high, medium, low or info"]
    confidence: Annotated[str, "probability that the cause is real, as percent"]
    scope: Annotated[str, "how much it concerns: '9 layers', 'representative', 'model'"]
    message: Annotated[str, "what is wrong, one sentence"]
    gains: Annotated[tuple[Gain, ...], "measured and predicted gains, measured first"]
    layers: Annotated[tuple[str, ...], "names of the layers concerned, worst first"]
    evidence: Annotated[tuple[EvidenceLine, ...], "facts of the worst subjects"]
    more_evidence: Annotated[tuple[EvidenceLine, ...], "facts of the remaining subjects"]
    more_subjects: Annotated[int, "number of the remaining subjects"]
    remedies: Annotated[tuple[RemedyCard, ...], "what to do, best first"]
    explains: Annotated[tuple[ExplainedLine, ...], "findings that vanish when this cause is repaired"]
    explains_text: Annotated[str, "the same counted by rule: 'A001 ×3, A012'; empty where it explains none"]
    manual: Annotated[str, "page of the manual without suffix; empty where there is none"]


def cause_cards(diagnosis: Diagnosis, pages: Iterable[str]) -> tuple[CauseCard, ...]:
    """One card per cause in the order of the diagnosis; ``pages`` names the manual pages at hand."""
    known = set(pages)
    return tuple(_card(rank, cause, diagnosis, known) for rank, cause in enumerate(diagnosis.causes, 1))


def _card(rank: int, cause: CauseReport, diagnosis: Diagnosis, pages: set[str]) -> CauseCard:
    first, rest = _split(cause)
    code = cause.rules[0] if cause.rules else cause.manual.rpartition("/")[2]
    return CauseCard(
        rank=rank,
        code=visible(code),
        rules=tuple(visible(rule) for rule in cause.rules),
        cause=name(cause.cause),
        severity=cause.severity,
        confidence=f"{100 * cause.confidence:.0f} %",
        scope=_scope(cause),
        message=visible(cause.message.strip(), 600),
        gains=_gains(cause, diagnosis.metrics.name),
        layers=tuple(name(layer.float_name or layer.quantized_name) for layer in cause.layers),
        evidence=_evidence(first),
        more_evidence=_evidence(rest),
        more_subjects=len({row.subject for row in rest}),
        remedies=tuple(_remedy(remedy, cause, diagnosis.model.toolchain) for remedy in cause.remedies),
        explains=tuple(_explained(found) for found in cause.absorbs),
        explains_text=_explains_text(cause.absorbs),
        manual=f"manual/{code}" if code in pages else "",
    )


def _scope(cause: CauseReport) -> str:
    if cause.layers:
        return count(len(cause.layers), "layer")
    return ", ".join(name(subject) for subject in cause.subjects[:SUBJECTS_SHOWN])


def _split(cause: CauseReport) -> tuple[list[EvidenceRow], list[EvidenceRow]]:
    """Evidence of the worst subjects, each with its rows together, and that of the others."""
    by_subject: dict[str, list[EvidenceRow]] = {}
    for row in cause.evidence:
        by_subject.setdefault(row.subject, []).append(row)
    rows = list(by_subject.values())
    return list(chain.from_iterable(rows[:SUBJECTS_SHOWN])), list(chain.from_iterable(rows[SUBJECTS_SHOWN:]))


def _evidence(rows: Iterable[EvidenceRow]) -> tuple[EvidenceLine, ...]:
    """Rows as text; a description that stands above is not repeated."""
    lines: list[EvidenceLine] = []
    described: set[str] = set()
    for row in rows:
        info = fact_info(row.fact)
        seen = row.fact in described
        described.add(row.fact)
        compared = row.comparison != SHOWN
        lines.append(
            EvidenceLine(
                fact=visible(row.fact),
                description="" if seen else info.description,
                value=measure(row.value, info.unit),
                comparison=COMPARISONS.get(row.comparison, visible(row.comparison)) if compared else "",
                threshold=measure(row.threshold, info.unit) if compared else "",
                subject=name(row.subject),
                source="" if seen else visible(row.source or ""),
            )
        )
    return tuple(lines)


def _gains(cause: CauseReport, metric: str | None) -> tuple[Gain, ...]:
    measured = []
    if cause.measured_gain_db is not None:
        measured.append(decibels(cause.measured_gain_db, "+"))
    if (change := cause.measured_gain_metric) is not None:
        measured.append(f"{'+' if change >= 0 else ''}{metric_change(change, metric)}")
    gains = [Gain("measured", ", ".join(measured))] if measured else []
    if cause.predicted_gain_db is not None:
        gains.append(Gain("predicted", decibels(cause.predicted_gain_db, "+")))
    return tuple(gains)


def _remedy(remedy: Remedy, cause: CauseReport, toolchain: str | None) -> RemedyCard:
    layers, tensors = layer_names(cause), tensor_names(cause)
    examples: dict[str, list[Example]] = {}
    for snippet in remedy.snippets:
        text = render_snippet(snippet.code, layers, tensors, group_names(cause))
        examples.setdefault(snippet.toolchain, []).append(Example(text, snippet.note or ""))
    best = preferred(list(examples), toolchain)
    return RemedyCard(
        title=capital(remedy.title),
        changes=remedy.changes,
        cost=remedy.cost,
        unsafe=remedy.unsafe,
        toolchains=tuple(
            ToolchainBlock(TOOLCHAIN_NAMES.get(tool, tool), tuple(found), place == best)
            for place, (tool, found) in enumerate(examples.items())
        ),
    )


def _explained(found: Explained) -> ExplainedLine:
    return ExplainedLine(visible(found.rule), name(found.name), name(found.subject), visible(found.message, 600))


def _explains_text(found: Iterable[Explained]) -> str:
    counts = ((rule, len(list(rows))) for rule, rows in groupby(sorted(f.rule for f in found)))
    return ", ".join(f"{visible(rule)} ×{size}" if size > 1 else visible(rule) for rule, size in counts)

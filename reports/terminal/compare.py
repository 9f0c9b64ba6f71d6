"""Two diagnoses side by side as text: lines for the terminal, Markdown, JSON and a page of its own."""

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from markupsafe import Markup

from quantmedic.engine.case.facts import Role
from quantmedic.engine.contract.previous import Changed, SettingChange, Tried
from quantmedic.engine.diagnosis.headline import SHIFT_DB, is_beyond, is_number
from quantmedic.engine.errors import QuantmedicError
from quantmedic.engine.versus.cause_changes import CauseChange, Status, SubjectChange
from quantmedic.engine.versus.outcome import Direction, MetricChange, OutputChange
from quantmedic.engine.versus.side_by_side import ComparisonReport, FactChange, LayerChange, Side
from quantmedic.reports.charts.comparison import (
    CompareChart,
    Level,
    compare_chart,
    is_run,
    largest,
    levels,
    render_chart,
)
from quantmedic.reports.machines.json import inert_json
from quantmedic.reports.sections.previous import PLURALS
from quantmedic.reports.sections.proof import signed
from quantmedic.reports.terminal.console import WIDTH, terminal_text
from quantmedic.reports.text import (
    NOT_MEASURED,
    SHARE_METRICS,
    capital,
    count,
    decibels,
    level,
    measure,
    metric_change,
    metric_label,
    metric_value,
    name,
    number,
    percent,
    visible,
)

Verbosity = Literal["quiet", "normal", "verbose"]
FORMATS = ("html", "markdown", "json", "text")
#: What is shown of layers each way, subjects of a cause and names, in the terminal and in the documents.
SHOWN, SHOWN_IN_DOCUMENTS, NAMES_TOLD = 5, 20, 3
SUBJECTS_SHOWN, SUBJECTS_IN_DOCUMENTS = 3, 50
LABEL, COLUMN, NAME_LIMIT = 18, 24, 40
TITLES: dict[Status, str] = {
    "new": "broke: new",
    "worse": "broke: worse",
    "mixed": "better on some, worse on others",
    "healed": "healed",
    "better": "better",
    "unchanged": "as before",
    "explained": "found in both, and in one of them explained by another cause",
    "not-judged": "not judged in one of them",
    "gone": "on layers that only one of them has",
}
#: Words behind a number of causes.
COUNTED: dict[Status, str] = {"mixed": "better and worse", "unchanged": "as before", "not-judged": "not judged"}
LOOKS: dict[Status, str] = {"new": "bad", "worse": "bad", "healed": "good", "better": "good"}
#: Said in a notice, and no setting.
SHARE_OF_SAMPLES = "share of the same samples"
LABELS = {
    "bytes_float": "float model",
    "bytes_quantized": "quantized model",
    "operations": "multiply-adds",
    "integer_operations_share": "of them integer",
    "latency_float_ms": "float latency",
    "latency_quantized_ms": "latency",
}
#: Verdict of a report whose look a word has.
WORD_LOOKS = {
    "healed": "healthy",
    "better": "healthy",
    "broken": "degraded",
    "worse": "degraded",
    "unchanged": "unchanged",
}
COLOURS = {"healed": "1;32", "better": "1;32", "broken": "1;31", "worse": "1;31", "mixed": "1;33", "unchanged": "1"}


@dataclass(frozen=True)
class Row:
    """One quantity of both cases."""

    label: Annotated[str, "what it is"]
    before: Annotated[str, "in the first case"]
    after: Annotated[str, "in the second"]
    change: Annotated[str, "how it changed, and whether that is proven; empty where nothing can be said"]
    look: Annotated[str, "good, bad or empty"]


@dataclass(frozen=True)
class SubjectLine:
    """One layer, tensor or data set of a cause."""

    subject: Annotated[str, "its name"]
    status: Annotated[str, "what became of it"]
    before: Annotated[str, "headline fact before"]
    after: Annotated[str, "headline fact after"]
    look: Annotated[str, "good, bad or empty"]


@dataclass(frozen=True)
class CauseLine:
    """What became of one cause."""

    code: Annotated[str, "the first of its rules"]
    cause: Annotated[str, "its name"]
    status: Annotated[str, "what became of it"]
    severity: Annotated[str, "severity before and after, one where they are equal"]
    fact: Annotated[str, "headline fact; empty where it has none"]
    before: Annotated[str, "its worst value before"]
    after: Annotated[str, "its worst value after"]
    limit: Annotated[str, "comparison and threshold"]
    found: Annotated[str, "on how many subjects it was found"]
    note: Annotated[str, "what explains it, or what lacks to judge it; empty else"]
    subjects: Annotated[tuple[SubjectLine, ...], "the subjects shown"]
    more: Annotated[int, "subjects that are only in compare.json"]
    look: Annotated[str, "good, bad or empty"]


@dataclass(frozen=True)
class CauseGroup:
    """Causes with the same fate."""

    title: Annotated[str, "what became of them"]
    causes: Annotated[tuple[CauseLine, ...], "the causes"]
    look: Annotated[str, "good, bad or empty"]
    quiet: Annotated[bool, "nothing happened to them"]


@dataclass(frozen=True)
class LayerLine:
    """One layer whose error changed."""

    index: Annotated[int, "topological index in the second case"]
    layer: Annotated[str, "its name"]
    was: Annotated[str, "its name in the first case, where that is another"]
    op_type: Annotated[str, "operator type"]
    before: Annotated[str, "SQNR in dB before"]
    after: Annotated[str, "the same after"]
    gain: Annotated[str, "its change"]
    note: Annotated[str, "bits that changed, and thresholds that were crossed"]


@dataclass(frozen=True)
class LayerGroup:
    """Layers that changed one way, the largest change first."""

    title: Annotated[str, "which way, and how many"]
    rows: Annotated[tuple[LayerLine, ...], "the layers shown"]
    left_out: Annotated[int, "layers that are only in compare.json"]
    look: Annotated[str, "good or bad"]


@dataclass(frozen=True)
class ChangeLine:
    """One setting that changed."""

    setting: Annotated[str, "what was set"]
    where: Annotated[str, "on how many layers, activations or data sets; or model, run, rules"]
    example: Annotated[str, "the first of them; empty for the model itself"]
    before: Annotated[str, "value before"]
    after: Annotated[str, "value after"]


@dataclass(frozen=True)
class CompareContext:
    """All that a comparison shows."""

    title: Annotated[str, "names of both quantized models"]
    before_name: Annotated[str, "quantized model of the first case"]
    after_name: Annotated[str, "quantized model of the second case"]
    word: Annotated[str, "the answer in one word"]
    look: Annotated[str, "healthy, degraded, unchanged or not-comparable: how the word is shown"]
    answer: Annotated[str, "what the word rests on, in one line"]
    version: Annotated[str, "version of quantmedic"]
    notices: Annotated[tuple[str, ...], "what limits the comparison"]
    rows: Annotated[tuple[Row, ...], "both side by side"]
    groups: Annotated[tuple[CauseGroup, ...], "causes by what became of them"]
    matched: Annotated[str, "how layers were matched, as a sentence"]
    measured: Annotated[str, "what was measured of the layers"]
    layers: Annotated[tuple[LayerGroup, ...], "layers that got worse, then better"]
    chart: Annotated[CompareChart, "the graph"]
    changes: Annotated[tuple[ChangeLine, ...], "settings that changed"]
    tried: Annotated[tuple[str, ...], "remedies of the first diagnosis that were applied since"]
    run: Annotated[tuple[Row, ...], "files and hashes"]


def comparison_files(record: ComparisonReport, formats: Iterable[str]) -> dict[str, bytes]:
    """Files of a comparison by name.

    Raises:
        QuantmedicError: A format is unknown.
    """
    files: dict[str, bytes] = {}
    for form in dict.fromkeys(formats):
        if form not in FORMATS:
            raise QuantmedicError(f"unknown format {form!r}", help=f"known formats: {', '.join(FORMATS)}")
        files |= {file: text.encode() for file, text in _files(record, form)}
    return files


def _files(record: ComparisonReport, form: str) -> Iterator[tuple[str, str]]:
    match form:
        case "html":
            yield "compare.html", render_html(record)
        case "markdown":
            yield "compare.md", render_markdown(record, picture=True)
            yield "compare.svg", render_chart(record)
        case "json":
            yield "compare.json", render_json(record)
        case "text":
            yield "compare.txt", render_text(record)


def render(record: ComparisonReport, form: str, **options: Any) -> str:
    """One format as text; ``options`` are those of ``render_text``."""
    match form:
        case "html":
            return render_html(record)
        case "markdown":
            return render_markdown(record)
        case "json":
            return render_json(record)
    return render_text(record, **options)


def render_json(record: ComparisonReport) -> str:
    """``compare.json``: the record itself; ASCII, safe inside markup and terminals."""
    return inert_json(record.model_dump_json(indent=1, fallback=str))


def render_markdown(record: ComparisonReport, *, picture: bool = False) -> str:
    """``compare.md``; with ``picture`` it shows the graph beside it."""
    from quantmedic.reports.templating import markdown_environment

    context = compare_context(record, SHOWN_IN_DOCUMENTS, SUBJECTS_IN_DOCUMENTS)
    return markdown_environment().get_template("compare.md").render(record=context, picture=picture)


def render_html(record: ComparisonReport) -> str:
    """``compare.html``: opens from a file, loads nothing, runs nothing."""
    from quantmedic.reports.charts.comparison import INLINE
    from quantmedic.reports.templating import html_environment

    context = compare_context(record, SHOWN_IN_DOCUMENTS, SUBJECTS_IN_DOCUMENTS)
    drawing = Markup(render_chart(record, standalone=False))
    template = html_environment().get_template("compare.html")
    return template.render(record=context, drawing=drawing, palette=INLINE, script_hashes=[])


def render_text(
    record: ComparisonReport, *, verbosity: Verbosity = "normal", color: bool = False, ascii_only: bool = False
) -> str:
    """Text for the terminal, the answer first.

    Args:
        record: What to show.
        verbosity: ``quiet`` prints the answer alone, ``verbose`` every layer and every subject.
        color: Use the colours of the terminal.
        ascii_only: Write no character beyond ASCII.
    """
    most = None if verbosity == "verbose" else SHOWN
    context = compare_context(record, most, None if verbosity == "verbose" else SUBJECTS_SHOWN)
    return terminal_text(_lines(context, record.word, verbosity, color), ascii_only=ascii_only)


def compare_context(record: ComparisonReport, most: int | None, subjects: int | None) -> CompareContext:
    """A comparison as text.

    Args:
        record: What was compared.
        most: Layers to show each way; None for all.
        subjects: Subjects to show of each cause; None for all.
    """
    names = [name(side.quantized_model) for side in (record.before, record.after)]
    return CompareContext(
        title=f"{names[0]} → {names[1]}",
        before_name=names[0],
        after_name=names[1],
        word=record.word.replace("-", " "),
        look=WORD_LOOKS.get(record.word, "not-comparable"),
        answer=_answer(record),
        version=visible(record.quantmedic_version),
        notices=tuple(_notices(record)),
        rows=tuple(_rows(record)),
        groups=_groups(record, subjects),
        matched=_matched(record),
        measured="accumulated SQNR" if is_run(record) else "SQNR of the weights",
        layers=_layer_groups(record, most),
        chart=compare_chart(record),
        changes=tuple(_changes(record)),
        tried=_applied(record),
        run=tuple(_run(record)),
    )


# --- The answer ------------------------------------------------------------------------------------------------------


def _answer(record: ComparisonReport) -> str:
    parts = [_metric_answer(record)] if record.metric is not None else []
    parts += [_output_answer(record)] if record.outputs else []
    parts += [_cause_answer(record.causes)]
    return "; ".join(part for part in parts if part) or "nothing that both measured"


def _metric_answer(record: ComparisonReport) -> str:
    change = record.metric
    assert change is not None
    old, new = (metric_value(side.metric.quantized_value, change.name) for side in (record.before, record.after))
    label = metric_label(change.name)
    if change.paired and change.gain == 0 and old == new:
        return f"{label} {new} in both"
    unit = " %" if change.name in SHARE_METRICS else ""
    return f"{label} {old.removesuffix(unit)} → {new}, {metric_gain(change)}"


def metric_gain(change: MetricChange) -> str:
    """The change of the metric with its interval, and whether it is proven."""
    unit = " points" if change.name in SHARE_METRICS else ""
    low, high = (metric_change(end, change.name).removesuffix(unit) for end in (change.low, change.high))
    proven = "" if change.direction != "same" else ", not proven"
    return f"{signed(change.gain, change.name)} ({low} … {high}){proven}"


def _output_answer(record: ComparisonReport) -> str:
    first = record.outputs[0]
    if len(record.outputs) == 1 and first.gain_db == 0 and first.direction is not None:
        return f"output {decibels(first.after)} in both"
    if len(record.outputs) == 1:
        return f"output {_levels(first.before, first.after)}{_doubt(first)}"
    signs = [output.direction for output in record.outputs]
    told = [f"{signs.count(sign)} {word}" for sign, word in _OUTPUT_WORDS if signs.count(sign)]
    return f"{len(record.outputs)} outputs: {', '.join(told)}"


_OUTPUT_WORDS: tuple[tuple[Direction | None, str], ...] = (
    ("better", "better"),
    ("worse", "worse"),
    ("same", "as before"),
    (None, "not comparable"),
)


def _levels(before: float | None, after: float | None) -> str:
    return f"{level(before)} → {decibels(after)}"


def _doubt(change: OutputChange) -> str:
    if change.direction is None and change.gain_db is not None:
        return " on other samples"
    return ""


def _cause_answer(causes: Sequence[CauseChange]) -> str:
    statuses = [cause.status for cause in causes]
    told = [(status, statuses.count(status)) for status in TITLES if status in statuses]
    if not told:
        return "no cause in either"
    if statuses == ["unchanged"] * len(statuses):
        return "causes as before"
    (first, size), *rest = told
    texts = [f"{count(size, 'cause')} {COUNTED.get(first, first)}"]
    return ", ".join([*texts, *(f"{number_of} {COUNTED.get(status, status)}" for status, number_of in rest)])


def _notices(record: ComparisonReport) -> Iterator[str]:
    if record.same_float is False:
        yield "the cases are of different float models: what differs may be due to them, not to quantization"
    if record.same_float is None:
        yield "whether both cases are of one float model is not known: a case holds no hash of its file"
    roles = {True: record.before.samples.keys(), False: record.after.samples.keys()}
    for role in sorted(roles[True] ^ roles[False]):
        have, lack = ("first", "second") if role in roles[True] else ("second", "first")
        yield f"only the {have} case has a {role} set: what takes one is not judged in the {lack}"
    for shared in record.shared:
        if shared.share < 1.0:
            same = "no sample is" if not shared.share else f"{percent(shared.share, 1)} of the samples are"
            yield f"{same} in both {shared.role} sets"
    if not record.same_data and record.before.samples and record.after.samples:
        yield "the cases are not judged on the same samples: levels differ for that too, and no change of theirs counts"
    known = [side.metric.drop is not None for side in (record.before, record.after)]
    if any(known) and not all(known):
        yield f"only the {'first' if known[0] else 'second'} case has a task metric"
    if all(known) and record.same_metric and record.metric is None:
        yield "the task metrics are of other samples and not known to be of one float model: their change is not judged"
    if all(known) and not record.same_metric:
        labels = [metric_label(side.metric.name) for side in (record.before, record.after)]
        yield f"the task metrics are not the same: {labels[0]} and {labels[1]}"
    if not record.layers:
        yield "no layer of one case was found in the other"
    if record.thresholds:
        names = ", ".join(name(threshold.subject) for threshold in record.thresholds)
        yield f"the cases were judged with different thresholds: {names}"


# --- Both side by side -----------------------------------------------------------------------------------------------


def _verdict(side: Side) -> str:
    verdict = side.verdict.replace("-", " ")
    return verdict if side.samples else f"{verdict} (no data)"


def _rows(record: ComparisonReport) -> Iterator[Row]:
    sides = (record.before, record.after)
    yield _row("verdict", [_verdict(side) for side in sides])
    if any(side.metric.quantized_value is not None for side in sides):
        yield from _metric_rows(record)
    for output in record.outputs:
        label = "output SQNR" if len(record.outputs) == 1 else f"SQNR of {name(output.name)}"
        change = "" if output.gain_db is None else f"{decibels(output.gain_db, '+')}{_doubt(output)}"
        yield Row(label, decibels(output.before), decibels(output.after), change, _look(output.direction))
    if any(side.output_agreement is not None for side in sides):
        yield _row("same class", [_percent(side.output_agreement) for side in sides])
    yield _row("causes", [str(side.causes) for side in sides], _cause_answer(record.causes))
    if any(side.degraded_layers is not None for side in sides):
        yield _row("degraded layers", [_degraded(side) for side in sides])
    for role in dict.fromkeys(role for side in sides for role in side.samples):
        yield _row(role, [_samples(side, role) for side in sides], _share(record, role))
    for cost in record.costs:
        values = [_cost(value, cost.unit) for value in (cost.before, cost.after)]
        yield _row(_fact_label(cost.fact), values, _ratio(cost))


def _row(label: str, values: Sequence[str], change: str = "", look: str = "") -> Row:
    before, after = values
    return Row(label, before, after, change, look)


def _metric_rows(record: ComparisonReport) -> Iterator[Row]:
    metrics = [side.metric for side in (record.before, record.after)]
    change = record.metric
    label = metric_label(metrics[1].name or metrics[0].name)
    how = "" if change is None else f"{metric_gain(change)}, {_pairing(change)}"
    look = _look(change.direction) if change is not None else ""
    yield _row(label, [metric_value(metric.quantized_value, metric.name) for metric in metrics], how, look)
    yield _row(f"{label} of float", [metric_value(metric.float_value, metric.name) for metric in metrics])
    yield _row("drop, 95 %", [_drop(metric) for metric in metrics])


def _pairing(change: MetricChange) -> str:
    if change.paired:
        return f"paired on {count(change.samples, 'sample')}"
    return "not paired: the drops on different samples"


def _drop(metric: Any) -> str:
    if metric.drop is None:
        return NOT_MEASURED
    unit = " points" if metric.name in SHARE_METRICS else ""
    drop, low, high = (
        metric_change(v, metric.name).removesuffix(unit) for v in (metric.drop, metric.drop_low, metric.drop_high)
    )
    return f"{drop} ({low} … {high})"


def _look(direction: str | None) -> str:
    return {"better": "good", "worse": "bad"}.get(direction or "", "")


def _percent(value: float | None) -> str:
    return NOT_MEASURED if value is None else percent(value)


def _degraded(side: Side) -> str:
    return NOT_MEASURED if side.degraded_layers is None else f"{side.degraded_layers} of {side.layers}"


def _samples(side: Side, role: Role) -> str:
    return count(side.samples[role], "sample") if role in side.samples else "none"


def _share(record: ComparisonReport, role: Role) -> str:
    share = next((shared.share for shared in record.shared if shared.role == role), None)
    return "" if share is None else "the same samples" if share == 1.0 else f"{percent(share, 1)} of them in both"


def _fact_label(path: str) -> str:
    return LABELS.get(path, path.replace("_", " ").replace(".", " "))


def _cost(value: Any, unit: str | None) -> str:
    if value is None:
        return NOT_MEASURED
    if unit == "bytes":
        return _size(value)
    if unit == "share":
        return percent(value, 1)
    if unit == "ms":
        return f"{number(value)} ms"
    return f"{number(value / 1e6)} million" if isinstance(value, int) and value >= 1e6 else measure(value, unit)


def _size(value: float) -> str:
    return f"{value / 1000:.1f} kB" if value < 1e6 else f"{value / 1e6:.1f} MB"


def _ratio(cost: FactChange) -> str:
    if not is_number(cost.before) or not is_number(cost.after) or not cost.before or cost.unit in ("ratio", "share"):
        return ""
    ratio = number(cost.after / cost.before)
    return "" if ratio == "1" else f"× {ratio}"


# --- Causes ----------------------------------------------------------------------------------------------------------


def _groups(record: ComparisonReport, subjects: int | None) -> tuple[CauseGroup, ...]:
    return tuple(
        CauseGroup(
            title=title,
            causes=tuple(_cause(cause, subjects) for cause in record.causes if cause.status == status),
            look=LOOKS.get(status, ""),
            quiet=status == "unchanged",
        )
        for status, title in TITLES.items()
        if any(cause.status == status for cause in record.causes)
    )


def _cause(cause: CauseChange, subjects: int | None) -> CauseLine:
    severities = dict.fromkeys(s for s in (cause.severity_before, cause.severity_after) if s is not None)
    compared = {"gt": ">", "ge": "≥", "lt": "<", "le": "≤"}.get(cause.comparison or "", "")
    shown = cause.subjects[:subjects]
    return CauseLine(
        code=visible(cause.rules[0]) if cause.rules else "?",
        cause=name(cause.cause),
        status=cause.status.replace("-", " "),
        severity=" → ".join(severities),
        fact=name(cause.fact) if cause.fact is not None else "",
        before=measure(cause.before, cause.unit),
        after=measure(cause.after, cause.unit),
        limit=f"{compared} {measure(cause.threshold, cause.unit)}" if compared else "",
        found=_found(cause),
        note=_cause_note(cause),
        subjects=tuple(_subject(subject, cause) for subject in shown),
        more=len(cause.subjects) - len(shown),
        look=LOOKS.get(cause.status, ""),
    )


def _found(cause: CauseChange) -> str:
    if len(cause.subjects) == 1:
        return f"on {name(cause.subjects[0].subject)}"
    return f"on {cause.found_before} → {count(cause.found_after, 'subject')}"


def _cause_note(cause: CauseChange) -> str:
    if cause.status == "explained":
        which = "second" if cause.severity_after is None else "first"
        by = f" by {name(cause.explained_by)}" if cause.explained_by is not None else ""
        return f"in the {which} case it is explained{by}"
    if cause.status == "not-judged":
        which = "second" if cause.severity_after is None else "first"
        facts = ", ".join(name(fact) for fact in cause.missing[:NAMES_TOLD])
        return f"the {which} case lacks {facts or 'what it takes'}"
    silent = cause.after if cause.status == "healed" else cause.before if cause.status == "new" else None
    if silent is not None and is_beyond(silent, cause.comparison, cause.threshold):
        return f"another condition of its rule {'no longer holds' if cause.status == 'healed' else 'did not hold'}"
    return ""


def _subject(subject: SubjectChange, cause: CauseChange) -> SubjectLine:
    was = f" (was {name(subject.before_name)})" if subject.before_name is not None else ""
    return SubjectLine(
        subject=f"{name(subject.subject)}{was}",
        status=subject.status.replace("-", " "),
        before=measure(subject.before, cause.unit),
        after=measure(subject.after, cause.unit),
        look=LOOKS.get(subject.status, ""),
    )


# --- Layers ----------------------------------------------------------------------------------------------------------


def _matched(record: ComparisonReport) -> str:
    matched = record.matched
    parts = [f"{count(len(record.layers), 'layer')} in both"]
    parts += [f"{matched.by_name} matched by name"] if matched.by_name else []
    if matched.by_position:
        parts.append(f"{matched.by_position} by position and kind")
    for which, names in (("first", matched.only_before), ("second", matched.only_after)):
        if names:
            told = ", ".join(visible(text, NAME_LIMIT) for text in names[:NAMES_TOLD])
            more = f" and {len(names) - NAMES_TOLD} more" if len(names) > NAMES_TOLD else ""
            parts.append(f"{len(names)} only in the {which} ({told}{more})")
    if levels(record) and not any(found.look != "same" for found in levels(record)):
        parts.append(f"none changed by {number(SHIFT_DB)} dB or more")
    return ", ".join(parts)


def _layer_groups(record: ComparisonReport, most: int | None) -> tuple[LayerGroup, ...]:
    found = levels(record)
    groups = []
    for look, colour in (("worse", "bad"), ("better", "good")):
        rows = largest(found, look)
        if rows:
            shown = rows[:most]
            title = f"{count(len(rows), 'layer')} {look}, the largest change first"
            lines = tuple(_layer(row) for row in shown)
            groups.append(LayerGroup(title, lines, len(rows) - len(shown), colour))
    return tuple(groups)


def _layer(found: Level) -> LayerLine:
    layer = found.layer
    return LayerLine(
        index=layer.index,
        layer=name(layer.name),
        was=name(layer.before_name) if layer.before_name is not None else "",
        op_type=visible(layer.op_type, NAME_LIMIT),
        before=level(found.before),
        after=level(found.after),
        gain=level(found.gain, "+"),
        note=", ".join(_layer_notes(layer)),
    )


def _layer_notes(layer: LayerChange) -> Iterator[str]:
    if layer.degraded_before is not None and layer.degraded_after is not None:
        if layer.degraded_before and not layer.degraded_after:
            yield "was degraded"
        if layer.degraded_after and not layer.degraded_before:
            yield "degraded now"
    pairs = (("", layer.bits_before, layer.bits_after), ("weights ", layer.weight_bits_before, layer.weight_bits_after))
    for what, old, new in pairs:
        if old != new:
            yield f"{what}{_bits(old)} → {_bits(new)}"


def _bits(bits: int | None) -> str:
    return f"{bits} bit" if bits else "float"


# --- What was changed ------------------------------------------------------------------------------------------------


def _changes(record: ComparisonReport) -> Iterator[ChangeLine]:
    for fact in record.settings:
        old, new = (_value(value, fact.unit) for value in (fact.before, fact.after))
        yield ChangeLine(_fact_label(fact.fact), "model", "", old, new)
    yield from (_changed(changed) for changed in record.changed if changed.setting != SHARE_OF_SAMPLES)
    for where, changes in (("measurement", record.options), ("rules", record.thresholds)):
        for change in changes:
            yield _setting(change, where)


def _changed(changed: Changed) -> ChangeLine:
    example = changed.examples[0]
    where = count(changed.count, changed.of, PLURALS.get(changed.of))
    return ChangeLine(
        visible(changed.setting), where, name(example.subject), _value(example.before), _value(example.after)
    )


def _setting(change: SettingChange, where: str) -> ChangeLine:
    return ChangeLine(_fact_label(name(change.subject)), where, "", _value(change.before), _value(change.after))


def _value(value: Any, unit: str | None = None) -> str:
    if unit == "share" and isinstance(value, float):
        return percent(value, 1)
    if isinstance(value, tuple | list) and len(value) == 2 and all(isinstance(v, int | float) for v in value):
        return f"{number(value[0])} … {number(value[1])}"
    return "none" if value is None else measure(value, unit)


def _applied(record: ComparisonReport) -> tuple[str, ...]:
    """Remedies of the first diagnosis that were applied, each once with all causes that it is for."""
    found: dict[str, list[Tried]] = {}
    for tried in record.tried:
        found.setdefault(tried.title, []).append(tried)
    return tuple(_tried(title, rows) for title, rows in found.items())


def _tried(title: str, rows: Sequence[Tried]) -> str:
    subjects = list(dict.fromkeys(subject for row in rows for subject in row.subjects))
    more = f" and {len(subjects) - 1} more" if len(subjects) > 1 else ""
    causes = ", ".join(name(row.cause) for row in rows)
    return f"{capital(name(title))}, on {name(subjects[0])}{more}, for {causes}"


def _run(record: ComparisonReport) -> Iterator[Row]:
    same = {True: "the same", False: "differs", None: ""}
    sides = (record.before, record.after)
    yield _row("float model", [name(side.float_model) for side in sides], same[record.same_float])
    yield _row("its sha256", [_hash(side.float_sha256) for side in sides])
    yield _row("quantized model", [name(side.quantized_model) for side in sides], same[record.same_quantized])
    yield _row("its sha256", [_hash(side.quantized_sha256) for side in sides])
    yield _row("measured by", [f"quantmedic {visible(side.quantmedic_version)}" for side in sides])


def _hash(value: str | None) -> str:
    return "not recorded" if value is None else visible(value, 64)


# --- The terminal ----------------------------------------------------------------------------------------------------


def _lines(context: CompareContext, word: str, verbosity: Verbosity, color: bool) -> Iterator[str]:
    first, *rest = _wrapped(f"{context.word.upper()}  {context.answer}")
    head = context.word.upper()
    yield first.replace(head, f"\x1b[{COLOURS.get(word, '1;33')}m{head}\x1b[0m", 1) if color else first
    yield from rest
    if verbosity == "quiet":
        return
    for notice in context.notices:
        yield from _wrapped(f"notice: {notice}", indent=2)
    yield ""
    yield from _table(context)
    for group in context.groups:
        if group.quiet and verbosity != "verbose":
            continue
        yield ""
        yield f"{group.title} ({len(group.causes)})"
        for cause in group.causes:
            yield from _cause_lines(cause)
    yield ""
    yield from _wrapped(f"{context.matched}{f'; {context.measured} in dB' if context.layers else ''}")
    for layers in context.layers:
        yield from _layer_lines(layers)
    yield ""
    yield from _change_lines(context)


def _table(context: CompareContext) -> Iterator[str]:
    yield _columns("", context.before_name, context.after_name, "change")
    for row in context.rows:
        yield from _wrapped_row(row)


def _columns(label: str, before: str, after: str, change: str) -> str:
    cells = (visible(before, COLUMN - 2), visible(after, COLUMN - 2))
    return f"{visible(label, LABEL - 1):<{LABEL}}{cells[0]:<{COLUMN}}{cells[1]:<{COLUMN}}{change}".rstrip()


def _wrapped_row(row: Row) -> Iterator[str]:
    """A row whose last column goes on below itself."""
    room = WIDTH - LABEL - 2 * COLUMN
    first, *rest = textwrap.wrap(row.change, room, break_on_hyphens=False) or [""]
    yield _columns(row.label, row.before, row.after, first)
    yield from (" " * (LABEL + 2 * COLUMN) + text for text in rest)


def _cause_lines(cause: CauseLine) -> Iterator[str]:
    yield from _wrapped(f"{cause.code} {cause.cause}   {cause.severity}   {cause.found}", indent=2)
    if cause.fact:
        yield from _wrapped(f"{cause.fact}  {cause.before} → {cause.after}   threshold {cause.limit}", indent=5)
    if cause.note:
        yield from _wrapped(cause.note, indent=5)
    if len(cause.subjects) < 2:
        return
    for subject in cause.subjects:
        values = f"{subject.before} → {subject.after}" if cause.fact else ""
        yield f"       {visible(subject.subject, 46):<46} {subject.status:<12} {values}".rstrip()
    if cause.more:
        yield f"       {cause.more} more (--verbose)"


def _layer_lines(group: LayerGroup) -> Iterator[str]:
    yield f"  {group.title}"
    for row in group.rows:
        where = f"{row.index:>6}  {visible(row.layer, 40):<40} {visible(row.op_type, 12):<12}"
        text = f"{where} {row.before:>6} → {row.after:>6} {row.gain:>6}  {row.note}".rstrip()
        yield from [text] if len(text) <= WIDTH else [text.removesuffix(row.note).rstrip(), f"{'':8}{row.note}"]
    if group.left_out:
        yield f"        {group.left_out} more (--verbose)"


def _change_lines(context: CompareContext) -> Iterator[str]:
    if not context.changes:
        yield "no setting that is measured was changed"
    else:
        yield f"changed ({len(context.changes)})"
    for line in context.changes:
        example = f" ({line.example})" if line.example else ""
        yield from _wrapped(f"{line.setting}, {line.where}{example}: {line.before} → {line.after}", indent=2)
    for text in context.tried:
        yield from _wrapped(f"applied: {text}", indent=2)


def _wrapped(text: str, indent: int = 0, hang: int = 2) -> list[str]:
    """Text in lines of at most ``WIDTH`` columns; runs of spaces stay, since they part columns."""
    first, later = " " * indent, " " * (indent + hang)
    if len(first) + len(text) <= WIDTH:
        return [first + text]
    return textwrap.wrap(text, WIDTH, initial_indent=first, subsequent_indent=later, break_on_hyphens=False)

"""Two diagnoses side by side as text: the answer in one line, both beside each other, and what changed."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from quantmedic.engine.case.facts import MetricFacts, Role
from quantmedic.engine.diagnosis.headline import is_number
from quantmedic.engine.gate.policy import PERPLEXITY
from quantmedic.engine.metrics.kinds import is_share
from quantmedic.engine.versus.cause_changes import FactChange, Status
from quantmedic.engine.versus.outcome import Direction, MetricChange, OutputChange
from quantmedic.engine.versus.side_by_side import ComparisonReport, Side
from quantmedic.reports.blocks import (
    Block,
    Bullets,
    Column,
    Document,
    Figure,
    Heading,
    Inline,
    Paragraph,
    Section,
    Span,
    Table,
)
from quantmedic.reports.charts.comparison import compare_chart, is_run
from quantmedic.reports.sections.changes import (
    COUNTED,
    TITLES,
    applied_remedies,
    cause_blocks,
    fact_label,
    layer_blocks,
    match_text,
    setting_table,
)
from quantmedic.reports.sections.proof import signed_gain
from quantmedic.reports.text import (
    NOT_MEASURED,
    bare_change,
    bytes_text,
    capital,
    count,
    decibels,
    level,
    loss_word,
    measure,
    metric_change,
    metric_interval,
    metric_label,
    metric_value,
    name,
    number,
    percent,
    visible,
)

#: Layers each way and subjects of a cause that documents show.
SHOWN_IN_DOCUMENTS, SUBJECTS_IN_DOCUMENTS = 20, 50
#: The same in the terminal, unless all are asked for.
SHOWN_IN_TERMINAL, SUBJECTS_IN_TERMINAL = 5, 3
#: Verdict of a report whose look a word has.
WORD_LOOKS = {
    "healed": "healthy",
    "better": "healthy",
    "broken": "degraded",
    "worse": "degraded",
    "unchanged": "unchanged",
}


#: Label, the first case, the second, and how it changed; empty where nothing can be said.
SideRow = tuple[str, str, str, Inline]


def compare_document(record: ComparisonReport) -> Document:
    """A comparison with as much as documents show."""
    found = _document(record, SHOWN_IN_DOCUMENTS, SUBJECTS_IN_DOCUMENTS, brief=False)
    run = Table("Files and hashes", _side_columns(record, "mono hash"), list(_file_rows(record)), "sides both")
    return replace(found, sections=[*found.sections, Section("run", "Run", "Run", [run])])


def compare_summary(record: ComparisonReport, *, verbose: bool) -> Document:
    """The same for the terminal, without files and hashes; whole where that is asked for."""
    most, subjects = (None, None) if verbose else (SHOWN_IN_TERMINAL, SUBJECTS_IN_TERMINAL)
    return _document(record, most, subjects, brief=not verbose)


def _document(record: ComparisonReport, most: int | None, subjects: int | None, *, brief: bool) -> Document:
    names = [name(side.quantized_model) for side in (record.before, record.after)]
    return Document(
        kind="comparison",
        title=f"{names[0]} → {names[1]}",
        word=record.word.replace("-", " "),
        look=WORD_LOOKS.get(record.word, "not-comparable"),
        facts=[_answer(record)],
        notices=list(_limits_of_comparison(record)),
        sections=list(_sections(record, most, subjects, brief)),
        reading="how to read it",
        page="compare",
        start="causes",
    )


def _sections(record: ComparisonReport, most: int | None, subjects: int | None, brief: bool) -> Iterator[Section]:
    beside = Table("Both cases side by side", _side_columns(record), list(_side_rows(record)), "sides both")
    yield Section("sides", "Side by side", "Side by side", [beside])
    none = [Paragraph("Neither diagnosis names a cause.", "muted")] if not record.causes else []
    yield Section("causes", "Causes", "Causes", [*none, *cause_blocks(record, subjects, brief)])
    measured = "accumulated SQNR" if is_run(record) else "SQNR of the weights"
    matched = Paragraph(f"{capital(match_text(record))}.", "lead")
    graph = Figure(compare_chart(record))
    yield Section("layers", "Layers", "Layers", [matched, graph, *layer_blocks(record, most, measured)])
    yield Section("changes", "What was changed", "What was changed", list(_change_blocks(record)))


def _change_blocks(record: ComparisonReport) -> Iterator[Block]:
    yield setting_table(record) or Paragraph("No setting that is measured was changed.", "muted")
    if tried := applied_remedies(record):
        yield Heading("what changed as remedies of the first diagnosis ask for")
        said = (
            "Told from the two cases: settings and ranges are now as these remedies would have them, whatever was done."
        )
        yield Paragraph(said, "muted")
        yield Bullets(tried)


def _side_columns(record: ComparisonReport, look: str = "") -> list[Column]:
    sides = (("before", record.before), ("after", record.after))
    heads = [Column([f"{when}: ", Span(name(side.quantized_model), "name")], look) for when, side in sides]
    return [Column(""), *heads, Column("change")]


def _answer(record: ComparisonReport) -> str:
    parts = [_verdict_answer(record)] if _rests_on_verdicts(record) else []
    parts += [_metric_answer(record)] if record.metric is not None else []
    parts += [_output_answer(record)] if record.outputs else []
    parts += [_cause_answer([cause.status for cause in record.causes])]
    return "; ".join(part for part in parts if part) or "nothing that both measured"


def _rests_on_verdicts(record: ComparisonReport) -> bool:
    """Verdicts and causes changed; that of the metric is not proven."""
    return record.word in ("healed", "broken") and (record.metric is None or record.metric.direction == "same")


def _verdict_answer(record: ComparisonReport) -> str:
    return " → ".join(_side_verdict(side) for side in (record.before, record.after))


def _metric_answer(record: ComparisonReport) -> str:
    change = record.metric
    assert change is not None
    metrics = (record.before.metric, record.after.metric)
    values = (metrics[0].quantized_value, metrics[1].quantized_value)
    label = metric_label(change.name)
    if change.before is not None and any(change.samples < (metric.samples or 0) for metric in metrics):
        values, label = (change.before, change.after), f"{label} of the {_samples_text(change)} in both"
    old, new = (metric_value(value, change.name) for value in values)
    if change.paired and change.gain == 0 and old == new:
        return f"{label} {new} in both"
    unit = " %" if is_share(change.name) else ""
    return f"{label} {old.removesuffix(unit)} → {new}, {metric_gain(change)}"


def metric_gain(change: MetricChange) -> str:
    """The change of the metric with its interval, and whether it is proven.

    Of a metric that falls where a model gets better a sign would be read the wrong way: it is told in words.
    """
    proven = "" if change.direction != "same" else ", not proven"
    if change.name != PERPLEXITY:
        ends = metric_interval(change.low, change.high, change.name)
        return f"{signed_gain(change.gain, change.name)} ({ends}){proven}"
    worse = change.gain < 0
    low, high = (-change.high, -change.low) if worse else (change.low, change.high)
    by = f"{'worse' if worse else 'better'} by {metric_change(abs(change.gain), change.name)}"
    return f"{by} ({metric_interval(low, high, change.name)}){proven}"


def _output_answer(record: ComparisonReport) -> str:
    first = record.outputs[0]
    if len(record.outputs) == 1 and first.gain_db == 0 and first.direction is not None:
        return f"output {decibels(first.after)} in both"
    if len(record.outputs) == 1:
        return f"output {_level_change(first.before, first.after)}{_sample_doubt(first)}"
    signs = [output.direction for output in record.outputs]
    counts = [f"{signs.count(sign)} {word}" for sign, word in _OUTPUT_WORDS if signs.count(sign)]
    return f"{len(record.outputs)} outputs: {', '.join(counts)}"


_OUTPUT_WORDS: tuple[tuple[Direction | None, str], ...] = (
    ("better", "better"),
    ("worse", "worse"),
    ("same", "as before"),
    (None, "not comparable"),
)


def _level_change(before: float | None, after: float | None) -> str:
    return f"{level(before)} → {decibels(after)}"


def _sample_doubt(change: OutputChange) -> str:
    if change.direction is None and change.gain_db is not None:
        return " on other samples"
    return ""


def _cause_answer(statuses: Sequence[Status]) -> str:
    counts = [(status, statuses.count(status)) for status in TITLES if status in statuses]
    if not counts:
        return "no cause in either"
    if statuses == ["unchanged"] * len(statuses):
        return "causes as before"
    (first, size), *rest = counts
    texts = [f"{count(size, 'cause')} {COUNTED.get(first, first)}"]
    texts += [f"{number_of} {COUNTED.get(status, status)}" for status, number_of in rest]
    return ", ".join(texts)


def _limits_of_comparison(record: ComparisonReport) -> Iterator[str]:
    if record.same_float is False:
        yield "the cases are of different float models: what differs may be due to them, not to quantization"
    if record.same_float is None:
        yield "whether both cases are of one float model is not known: a case holds no hash of its file"
    roles = {True: record.before.samples.keys(), False: record.after.samples.keys()}
    for role in sorted(roles[True] ^ roles[False]):
        have, lack = ("first", "second") if role in roles[True] else ("second", "first")
        yield f"only the {have} case has a {role} set: rules that need one are not judged in the {lack}"
    for shared in record.shared:
        # Other samples calibrate after many a remedy; the table tells how many are the same.
        if shared.share < 1.0 and shared.role != "representative":
            word = _word_of_samples([record.before, record.after])
            same = f"no {word} is" if not shared.share else f"{percent(shared.share, 1)} of the {word}s are"
            yield f"{same} in both {'cases' if word == 'text' else f'{shared.role} sets'}"
    if not record.same_data and record.before.samples and record.after.samples:
        word = _word_of_samples([record.before, record.after])
        yield f"the cases are not judged on the same {word}s, which changes levels too: no change of a level counts"
    known = [side.metric.drop is not None for side in (record.before, record.after)]
    if any(known) and not all(known):
        yield f"only the {'first' if known[0] else 'second'} case has a task metric"
    if all(known) and record.same_metric and record.metric is None:
        yield "the task metrics are of different samples and maybe different float models: their change is not judged"
    if all(known) and not record.same_metric:
        labels = [metric_label(side.metric.name) for side in (record.before, record.after)]
        yield f"the task metrics are not the same: {labels[0]} and {labels[1]}"
    if not record.layers:
        yield "no layer of one case was found in the other"
    if record.thresholds:
        names = ", ".join(name(threshold.subject) for threshold in record.thresholds)
        yield f"the cases were judged with different thresholds: {names}"


def _side_verdict(side: Side) -> str:
    verdict = side.verdict.replace("-", " ")
    return verdict if side.samples else f"{verdict} (no data)"


def _side_rows(record: ComparisonReport) -> Iterator[SideRow]:
    sides = (record.before, record.after)
    yield _side_row("verdict", [_side_verdict(side) for side in sides])
    if any(side.metric.quantized_value is not None for side in sides):
        yield from _metric_rows(record)
    for output in record.outputs:
        label = "output SQNR" if len(record.outputs) == 1 else f"SQNR of {name(output.name)}"
        change = "" if output.gain_db is None else f"{decibels(output.gain_db, '+')}{_sample_doubt(output)}"
        shown = Span(change, _direction_look(output.direction))
        yield label, decibels(output.before), decibels(output.after), shown
    yield from _language_rows(sides)
    if any(side.output_agreement is not None for side in sides):
        yield _side_row("same class", [_percent_or_missing(side.output_agreement) for side in sides])
    yield _side_row("serious causes", [str(side.causes) for side in sides])
    if any(side.degraded_layers is not None for side in sides):
        yield _side_row("degraded layers", [_degraded_text(side) for side in sides])
    for role in dict.fromkeys(role for side in sides for role in side.samples):
        label = "texts" if _has_texts(sides) else role
        yield _side_row(label, [_sample_count(side, role) for side in sides], _shared_samples(record, role))
    for cost in record.costs:
        values = [_cost_text(value, cost.unit) for value in (cost.before, cost.after)]
        yield _side_row(fact_label(cost.fact), values, _cost_ratio(cost))


def _language_rows(sides: Sequence[Side]) -> Iterator[SideRow]:
    if any(side.kl_mean is not None for side in sides):
        values = [NOT_MEASURED if side.kl_mean is None else f"{number(side.kl_mean)} nats" for side in sides]
        yield _side_row("KL divergence per token", values)
    if any(side.same_top is not None for side in sides):
        yield _side_row("same token first", [_percent_or_missing(side.same_top) for side in sides])


def _side_row(label: str, values: Sequence[str], change: str = "", look: str = "") -> SideRow:
    before, after = values
    return label, before, after, Span(change, look)


def _metric_rows(record: ComparisonReport) -> Iterator[SideRow]:
    metrics = [side.metric for side in (record.before, record.after)]
    change = record.metric
    label = metric_label(metrics[1].name or metrics[0].name)
    how = "" if change is None else f"{metric_gain(change)}, {_pairing(change)}"
    look = _direction_look(change.direction) if change is not None else ""
    yield _side_row(label, [metric_value(metric.quantized_value, metric.name) for metric in metrics], how, look)
    yield _side_row(f"{label} of float", [metric_value(metric.float_value, metric.name) for metric in metrics])
    yield _side_row(f"{loss_word(metrics[1].higher_is_better)}, 95 %", [_drop_text(metric) for metric in metrics])


def _samples_text(change: MetricChange) -> str:
    """Samples that both cases saw; those of a language model are texts."""
    return count(change.samples, "text" if change.name == PERPLEXITY else "sample")


def _pairing(change: MetricChange) -> str:
    if change.paired:
        return f"paired on {_samples_text(change)}"
    return "not paired: the drops on different samples"


def _drop_text(metric: MetricFacts) -> str:
    if metric.drop is None:
        return NOT_MEASURED
    ends = metric_interval(metric.drop_low, metric.drop_high, metric.name)
    return f"{bare_change(metric.drop, metric.name)} ({ends})"


def _direction_look(direction: str | None) -> str:
    return {"better": "good", "worse": "bad"}.get(direction or "", "")


def _percent_or_missing(value: float | None) -> str:
    return NOT_MEASURED if value is None else percent(value)


def _degraded_text(side: Side) -> str:
    return NOT_MEASURED if side.degraded_layers is None else f"{side.degraded_layers} of {side.layers}"


def _sample_count(side: Side, role: Role) -> str:
    return count(side.samples[role], _word_of_samples([side])) if role in side.samples else "none"


def _has_texts(sides: Sequence[Side]) -> bool:
    """Language models were run, on texts."""
    return any(side.metric.name == PERPLEXITY or side.kl_mean is not None for side in sides)


def _word_of_samples(sides: Sequence[Side]) -> str:
    return "text" if _has_texts(sides) else "sample"


def _shared_samples(record: ComparisonReport, role: Role) -> str:
    share = next((shared.share for shared in record.shared if shared.role == role), None)
    word = _word_of_samples([record.before, record.after])
    return "" if share is None else f"the same {word}s" if share == 1.0 else f"{percent(share, 1)} of them in both"


def _cost_text(value: object, unit: str | None) -> str:
    if not is_number(value):
        return NOT_MEASURED if value is None else measure(value, unit)
    if unit == "bytes":
        return bytes_text(value)
    if unit == "share":
        return percent(value, 1)
    if unit == "ms":
        return f"{number(value)} ms"
    return f"{number(value / 1e6)} million" if isinstance(value, int) and value >= 1e6 else measure(value, unit)


def _cost_ratio(cost: FactChange) -> str:
    if not is_number(cost.before) or not is_number(cost.after) or not cost.before or cost.unit in ("ratio", "share"):
        return ""
    ratio = number(cost.after / cost.before)
    return "" if ratio == "1" else f"× {ratio}"


def _file_rows(record: ComparisonReport) -> Iterator[SideRow]:
    same = {True: "the same", False: "differs", None: ""}
    sides = (record.before, record.after)
    yield _side_row("float model", [name(side.float_model) for side in sides], same[record.same_float])
    yield _side_row("its sha256", [_hash_text(side.float_sha256) for side in sides])
    yield _side_row("quantized model", [name(side.quantized_model) for side in sides], same[record.same_quantized])
    yield _side_row("its sha256", [_hash_text(side.quantized_sha256) for side in sides])
    yield _side_row("measured by", [f"quantmedic {visible(side.quantmedic_version)}" for side in sides])


def _hash_text(value: str | None) -> str:
    return "not recorded" if value is None else visible(value, 64)

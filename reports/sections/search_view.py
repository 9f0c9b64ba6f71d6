"""What a search has found as a document: facts, and parts with sentences, a table, code to paste and notes.

Console, Markdown and page render the same document; the console shows fewer rows and columns.
"""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain

from quantmedic.engine.contract.searches import (
    CalibrationsRecord,
    DebuggerLayer,
    DebuggerRecord,
    DenylistOutcome,
    Estimate,
    FallbackRecord,
    FallbackVerdict,
    JudgedSetting,
    Mode,
    Outcome,
    SearchRecord,
    SensitivityRecord,
    SensitivityRun,
    Standing,
    WorstOutcome,
)
from quantmedic.engine.diagnosis.prediction import FAITHFUL_DB
from quantmedic.engine.metrics.kinds import is_share
from quantmedic.engine.text import literal
from quantmedic.reports.blocks import (
    Block,
    Bullets,
    Cell,
    Code,
    Column,
    Document,
    Figure,
    Paragraph,
    Section,
    Span,
    Table,
    make_table,
)
from quantmedic.reports.charts.layer_panels import PanelChart, debugger_chart, sensitivity_chart
from quantmedic.reports.sections.prescription import option_text
from quantmedic.reports.text import (
    NAME_LIMIT,
    NOT_MEASURED,
    bare_change,
    bytes_text,
    capital,
    count,
    decibels,
    first_few,
    level,
    loss_word,
    metric_change,
    metric_label,
    metric_value,
    name,
    number,
    percent,
    si_amount,
    tenths,
    visible,
)

#: Rows that the console shows of a table unless all are asked for, and a document: the rest is in the CSV file.
BRIEF_ROWS, DOCUMENT_ROWS = 10, 200
#: Names that a sentence lists, and columns that a name takes in a table of the console.
NAMES_SHOWN, NAME_WIDTH = 3, 60
#: Pairs of sets of which the larger is noisier that are shown.
REVERSALS_SHOWN = 3
MODE_TITLES: dict[Mode, str] = {
    "one": "one layer quantized, all others float (worst first)",
    "all-but-one": "all quantized but one layer (largest gain first)",
    "cumulative": "layers quantized one after another from the input",
}
SHARE_TITLES: dict[Mode, str] = {"one": "of all noise", "all-but-one": "noise gone", "cumulative": "of all noise"}
#: The agreement is a share, as top-1 is.
_AS = {"agreement": "top1"}
_VERDICTS: dict[FallbackVerdict, str] = {
    "met": "the goal is met",
    "unsure": "the goal may be met: the interval includes it, and more samples would decide",
    "missed": "the goal is missed on these samples",
    "none": "no set of layers meets the goal in the simulated network",
    "unchecked": "the set was not checked on the quantized model",
}
_MARKS: dict[Standing, str] = {"best": "*", "as-good": "=", "behind": "-", "failed": "!"}
_MEANINGS: dict[Standing, str] = {
    "best": "the winner",
    "as-good": "not proven worse than the winner: the interval of behind reaches zero",
    "behind": "proven worse than the winner: the interval of behind lies above zero",
    "failed": "failed, for the reason below",
}
_CONVERTER = """from tensorflow.lite.python import convert

converter._experimental_calibrate_only = True
calibrated = converter.convert()
model = convert.mlir_quantize(calibrated, denylisted_nodes=denylisted_nodes)
"""


def search_document(record: SearchRecord, *, rows: int = DOCUMENT_ROWS, brief: bool = False) -> Document:
    """What a search has found.

    Args:
        record: What was found.
        rows: Rows of a table at most, where it has one per layer.
        brief: Only the columns that a terminal has room for, and no graph.
    """
    if isinstance(record, SensitivityRecord):
        return _sensitivity_document(record, rows, brief)
    if isinstance(record, FallbackRecord):
        return _fallback_document(record)
    if isinstance(record, CalibrationsRecord):
        return _calibrations_document(record, brief)
    assert isinstance(record, DebuggerRecord)
    return _debugger_document(record, rows, brief)


def _document(
    kind: str,
    model: str,
    facts: Iterable[str],
    warnings: Iterable[str],
    parts: Iterable[Section],
    manual: tuple[str, str],
    chart: PanelChart | None = None,
) -> Document:
    graph = [Section("graph", "", "", [Figure(chart)])] if chart is not None else []
    numbered = (replace(part, anchor=f"part-{place}") for place, part in enumerate(parts, 1))
    reading, page = manual
    return Document(kind, name(model), "", "", tuple(facts), tuple(warnings), [*graph, *numbered], reading, page)


def _part(
    title: str = "",
    said: Iterable[str] = (),
    table: Table | None = None,
    code: str = "",
    notes: Sequence[str] = (),
) -> Section:
    """What belongs together: sentences, figures, text to paste, and what is to be known of both."""
    blocks: list[Block] = [Paragraph(capital(text)) for text in said]
    blocks += [table] if table is not None else []
    blocks += [Code(code)] if code else []
    blocks += [Bullets(notes)] if notes else []
    return Section("", title, "", blocks)


# --- sensitivity ---------------------------------------------------------------------------------------------------


def _sensitivity_document(record: SensitivityRecord, rows: int, brief: bool) -> Document:
    return _document(
        "sensitivity",
        record.quantized_model,
        _sensitivity_facts(record),
        _sensitivity_warnings(record),
        (_mode_part(record, mode, rows, brief) for mode in record.modes),
        ("what these numbers hide", "sensitivity"),
        None if brief else sensitivity_chart(record),
    )


def _sensitivity_facts(record: SensitivityRecord) -> Iterator[str]:
    samples, data = count(record.samples, "sample"), name(record.data)
    yield f"{count(len(record.units), 'layer')} with quantizers, {samples} of {data}, seed {record.seed}"
    yield f"all layers quantized: {_outcome_text(record, record.simulated)}"
    yield f"the quantized model itself: {_outcome_text(record, record.deployed)}"
    yield f"simulation gap: {decibels(record.simulation_gap_db, sign='+')} (deployed minus simulated)"
    if record.columns is not None:
        yield f"judged on the {count(record.columns, 'output column')} in which the noise hides"


def _outcome_text(record: SensitivityRecord, outcome: Outcome) -> str:
    parts = [f"SQNR {decibels(outcome.sqnr_db)}"]
    if outcome.agreement is not None:
        parts.append(f"same class {percent(outcome.agreement)}")
    if record.metric is not None:
        values = [metric_value(value, record.metric) for value in (record.float_metric, outcome.metric)]
        parts.append(f"{metric_label(record.metric)} {values[0]} → {values[1]}")
    return ", ".join(parts)


def _sensitivity_warnings(record: SensitivityRecord) -> Iterator[str]:
    if record.missing:
        done, planned = len(record.runs), len(record.planned)
        yield f"interrupted after {done} of {planned} runs"
    if abs(record.simulation_gap_db) > FAITHFUL_DB:
        yield (
            "the simulated network is not as noisy as the quantized model: what is shown of single layers may not hold "
            "for it"
        )
    if record.unsimulated:
        names = _list_names(record.unsimulated, 5)
        yield f"left in float in every run, for their quantizers cannot be simulated: {names}"


def _mode_part(record: SensitivityRecord, mode: Mode, most: int, brief: bool) -> Section:
    every = record.rank_runs(mode)
    runs: Sequence[SensitivityRun] = every
    if len(every) > most:
        runs = record.leading(mode, most) if mode == "cumulative" else every[:most]
    left_out = len(every) - len(runs)
    title = f"{MODE_TITLES[mode]}: the largest steps" if mode == "cumulative" and left_out else MODE_TITLES[mode]
    columns: list[tuple[Column, Callable[[SensitivityRun], Cell]]] = [
        (Column("#", "num"), lambda run: run.unit),
        (Column("layer", "name"), lambda run: record.units[run.unit].name),
        (Column("operator", "name"), lambda run: record.units[run.unit].op_type),
        (Column("SQNR dB", "num", level), lambda run: run.sqnr_db),
        (Column(SHARE_TITLES[mode], "num", tenths), lambda run: run.share),
        (Column("same class", "num", tenths), lambda run: run.agreement),
    ]
    if brief:
        del columns[2]
    if record.metric is not None:
        head = f"{loss_word(record.higher_is_better)} in {metric_label(record.metric)} [95 %]"
        columns.append((Column(head), lambda run: _drop_text(run, record.metric)))
    notes = (f"{left_out} more: --verbose, or sensitivity.csv",) if left_out else ()
    return _part(title, table=make_table(title, runs, columns), notes=notes)


def _drop_text(outcome: Outcome, metric: str | None) -> str:
    """How much of the metric is lost, with the paired 95 % interval."""
    if outcome.drop is None or outcome.drop_low is None or outcome.drop_high is None:
        return ""
    ends = f"{bare_change(outcome.drop_low, metric)}, {bare_change(outcome.drop_high, metric)}"
    return f"{metric_change(outcome.drop, metric)} [{ends}]"


# --- fallback ------------------------------------------------------------------------------------------------------


def _fallback_document(record: FallbackRecord) -> Document:
    parts = [
        _part(table=_fallback_table(record)) if record.layers else None,
        _check_part(record) if record.check is not None else None,
        _part(said=_verdict_lines(record)) if record.found else None,
        _part(said=chain(_cost_lines(record), _search_lines(record))),
        _prescription_part(record) if record.layers else None,
    ]
    return _document(
        "fallback",
        record.quantized_model,
        (f"goal: {_goal_text(record)}", _search_summary(record)),
        _fallback_warnings(record),
        filter(None, parts),
        ("how the set is found, and how to read this", "fallback"),
    )


def _goal_text(record: FallbackRecord) -> str:
    if record.goal.kind == "sqnr":
        return f"SQNR of at least {decibels(record.goal.limit)}, also of the worst output column"
    return f"{metric_label(record.goal.metric)} at most {_metric_change(record, record.goal.limit)} worse"


def _search_summary(record: FallbackRecord) -> str:
    if not record.found:
        said = "interrupted before any set met the goal" if record.interrupted else _VERDICTS["none"]
    else:
        size = count(len(record.units), "layer")
        said = f"the smallest set that was found: {len(record.layers)} of {size} leave int8"
        said = said if record.layers else f"none of {size} has to leave int8"
        said += ": the best set when it was interrupted" if record.interrupted else ""
    return f"{said}; {count(record.samples, 'sample')} of {name(record.data)} searched, seed {record.seed}"


def _fallback_warnings(record: FallbackRecord) -> Iterator[str]:
    if record.unsimulated:
        names = _list_names(record.unsimulated)
        yield f"not searched, for these quantizers cannot be simulated: {names}"
    if record.check is not None and record.check.failed is not None:
        yield f"the set could not be tried on the model: {visible(record.check.failed, 300)}"


def _fallback_table(record: FallbackRecord) -> Table:
    rows = []
    for place, layer in enumerate(record.layers, 1):
        readers = _list_names([visible(reader, 30) for reader in layer.readers], 1)
        rows.append((str(place), visible(layer.name, NAME_WIDTH), visible(layer.op_type, 18), readers))
    columns = [Column("#", "num"), Column("layer", "name"), Column("operator", "name"), Column("read by")]
    return Table("Layers in float", columns, rows)


def _check_part(record: FallbackRecord) -> Section:
    check = record.check
    assert check is not None
    where = "the same samples as the search, for there are few" if check.shared else "not those of the search"
    rows = [_level_cells(record, "as it is", check.before)]
    if check.after is not None:
        rows.append(_level_cells(record, "with fallback", check.after))
    task = [Column("of the worst")]
    if check.before.drop is not None:
        loss = f"{loss_word(record.goal.higher_is_better)} [95 %]"
        task = [Column(metric_label(record.goal.metric), "num"), Column(loss)]
    return _part(
        said=(f"measured on the quantized model itself, {count(check.samples, 'sample')}, {where}",),
        table=Table("Measured on the quantized model", [Column(""), Column("SQNR dB [95 %]"), *task], rows),
        notes=(f"not carried out: {_list_names(check.unedited)}",) if check.unedited else (),
    )


def _level_cells(record: FallbackRecord, title: str, found: WorstOutcome) -> tuple[str, ...]:
    sqnr = f"{level(found.sqnr_db)} [{level(found.sqnr_low)}, {level(found.sqnr_high)}]"
    if found.drop is None:
        return title, sqnr, _worst_text(found)
    kind = _metric_kind(record)
    return title, sqnr, metric_value(found.metric, kind), _drop_text(found, kind)


def _worst_text(found: WorstOutcome) -> str:
    """Which column or operand the SQNR is of."""
    if found.worst is None or found.whole_sqnr_db is None:
        return "output as a whole"
    return f"{visible(found.worst, 60)}; {level(found.whole_sqnr_db)} as a whole"


def _verdict_lines(record: FallbackRecord) -> Iterator[str]:
    yield _VERDICTS[record.verdict]
    if record.verdict == "missed":
        yield f"help: {_stricter_goal(record)}"


def _stricter_goal(record: FallbackRecord) -> str:
    """A goal for the search that leaves room for what the check lost."""
    assert record.check is not None
    after = record.check.after or record.check.before
    if record.goal.kind == "sqnr":
        return f"search again with --min-sqnr {record.goal.limit + (record.goal.limit - after.sqnr_db):.1f}"
    return "search again with more --samples, or with a smaller --max-drop"


def _cost_lines(record: FallbackRecord) -> Iterator[str]:
    cost = record.cost
    if cost is None or not record.layers:
        return
    parts = [f"weights take {bytes_text(cost.bytes)} more"]
    if cost.operations is not None and cost.operations_all:
        share = percent(cost.operations / cost.operations_all, 1)
        parts.append(
            f"{si_amount(cost.operations)} of {si_amount(cost.operations_all)} multiply-adds leave int8 ({share})"
        )
    elif cost.operations is not None:
        parts.append(f"{si_amount(cost.operations)} multiply-adds leave int8")
    else:
        parts.append("multiply-adds not known: shapes depend on the data, or layers are recurrent")
    dragged = f"{count(cost.readers, 'layer')} beside them run{'s' if cost.readers == 1 else ''} in float too"
    yield f"cost: {dragged}, for what they read is float; {'; '.join(parts)}"


def _search_lines(record: FallbackRecord) -> Iterator[str]:
    usual = f"one layer at a time takes {record.one_at_a_time}"
    yield f"search: {count(record.evaluations, 'evaluation')}, the ranking included; {usual}"
    for fewer, more in record.reversals[:REVERSALS_SHOWN]:
        a, b = record.steps[fewer], record.steps[more]
        added = _list_names([visible(record.units[i], 40) for i in b.layers if i not in a.layers])
        sizes = f"{count(len(a.layers), 'layer')} in float: {_goal_value(record, a.value)}"
        yield f"not monotone: {sizes}; with {added} in float too: {_goal_value(record, b.value)}, and more noise"
    if len(record.reversals) > REVERSALS_SHOWN:
        yield f"{len(record.reversals) - REVERSALS_SHOWN} more such pairs: --format json"


def _prescription_part(record: FallbackRecord) -> Section:
    """The set in the toolchain's own form, and what the user defines for it."""
    chosen, given = record.toolchain, record.prescription
    title = name(chosen.title) if chosen is not None and chosen.name else ""
    if chosen is None or given is None or not given.configurations:
        lacking = f"{title} has no option for it" if title else "the toolchain was not recognized"
        named = f"the layers and the nodes that read them: {literal(record.nodes_to_exclude)}"
        return _part(said=(f"{lacking}: name yours with --toolchain.", named))
    return _part(
        title=f"for {title} ({visible(chosen.how)}; --toolchain names another)",
        code="\n".join(block.code.rstrip("\n") for block in given.configurations),
        notes=(
            "calibrate with the data and the method that you use now",
            *(f"{user_name}: {what}" for user_name, what in given.given.items()),
            option_text(given.steps[0], chosen),
            *(f"note: {visible(note, 600)}" for note in given.steps[0].notes),
        ),
    )


def _metric_kind(record: FallbackRecord) -> str | None:
    return _AS.get(record.goal.metric or "", record.goal.metric)


def _metric_change(record: FallbackRecord, value: float) -> str:
    return metric_change(value, _metric_kind(record))


def _goal_value(record: FallbackRecord, value: float) -> str:
    if record.goal.kind == "sqnr":
        return decibels(value)
    return f"{loss_word(record.goal.higher_is_better)} {_metric_change(record, value)}"


# --- calibrations --------------------------------------------------------------------------------------------------


def _calibrations_document(record: CalibrationsRecord, brief: bool) -> Document:
    kinds = tuple(record.settings[0].choices)
    failures = tuple(
        f"{place + 1} failed: {visible(row.failed, 300)}"
        for place, row in enumerate(record.settings)
        if row.failed is not None
    )
    costs = (
        f"cost: {f'{number(record.seconds)} s' if record.seconds is not None else NOT_MEASURED}",
        *(f"not judged: {name(each.title)}: {visible(each.reason)}" for each in record.unjudged),
    )
    parts = (
        _part(table=_settings_table(record, kinds, brief), notes=(*_legend(record), *failures)),
        _part(said=_conclusion(record)),
        *_configuration_parts(record),
        _part(said=costs),
    )
    return _document(
        "calibrations",
        record.float_model,
        _calibrations_facts(record),
        (visible(each, 400) for each in record.warnings),
        parts,
        ("how the settings are judged, and how to read this", "calibration-search"),
    )


def _calibrations_facts(record: CalibrationsRecord) -> Iterator[str]:
    version = f" {record.toolchain_version}" if record.toolchain_version else ""
    yield f"{count(len(record.settings), 'setting')} of {record.toolchain}{version}"
    yield f"calibrated on {count(record.representative_samples, 'sample')} of {name(record.representative)}"
    judged = f"judged on {count(record.validation_samples, 'sample')} of {name(record.validation)}"
    if record.labelled_by is None:
        yield f"{judged}, by the SQNR at the output in dB, median over samples: there are no labels"
    else:
        plain = metric_value(record.float_metric, record.labelled_by)
        yield f"{judged}, by {metric_label(record.labelled_by)}, where the float model has {plain}"


def _settings_table(record: CalibrationsRecord, kinds: Sequence[str], brief: bool) -> Table:
    unit, change = _figure_units(record)
    label = metric_label(record.labelled_by) if record.labelled_by is not None else ""
    labelled = (f"{label}{unit}",) if label else ()
    agrees = not brief and any(row.agreement is not None for row in record.settings)
    agreement = ("same class",) if agrees else ()
    heads = ("", *kinds, *labelled, "dB" if label else "SQNR dB", *agreement, f"behind, {change}")
    rows = [_setting_cells(record, place, row, kinds, agrees) for place, row in enumerate(record.settings)]
    return Table("Settings", [Column("#", "num"), *map(Column, heads)], rows)


def _figure_units(record: CalibrationsRecord) -> tuple[str, str]:
    """Of the metric, and of how far a setting is behind."""
    if record.labelled_by is None:
        return "", "dB"
    return (" %", "points") if is_share(record.labelled_by) else ("", metric_label(record.labelled_by))


def _setting_cells(
    record: CalibrationsRecord, place: int, row: JudgedSetting, kinds: Sequence[str], agrees: bool
) -> tuple[str, ...]:
    labelled = record.labelled_by is not None
    return (
        str(place + 1),
        _MARKS[row.standing],
        *(visible(row.choices[kind], 40) for kind in kinds),
        *((_metric_text(record, row.metric),) if labelled else ()),
        level(row.sqnr_db.value) if row.sqnr_db is not None and labelled else _level_text(row.sqnr_db),
        *((percent(row.agreement, 1) if row.agreement is not None else "",) if agrees else ()),
        "failed" if row.standing == "failed" else _change_text(record, row.behind),
    )


def _change_text(record: CalibrationsRecord, found: Estimate | None) -> str:
    return _level_text(found) if record.labelled_by is None else _metric_text(record, found)


def _metric_text(record: CalibrationsRecord, found: Estimate | None) -> str:
    """A metric, or a difference of two; of a share in percent."""
    if found is None:
        return ""
    share = is_share(record.labelled_by)
    value, low, high = (f"{100 * x + 0.0:.1f}" if share else number(x, 4) for x in (found.value, found.low, found.high))
    return f"{value} [{low}, {high}]"


def _level_text(found: Estimate | None) -> str:
    return "" if found is None else f"{level(found.value)} [{level(found.low)}, {level(found.high)}]"


def _legend(record: CalibrationsRecord) -> Iterator[str]:
    """The marks that occur, in the order of the table, and how to read it."""
    present = {row.standing for row in record.settings}
    yield from (f"{mark} {_MEANINGS[each]}" for each, mark in _MARKS.items() if each in present)
    yield "in the order of the marks; among those of one mark, the nearest first"
    yield "behind: the winner against the setting, paired by sample; brackets are 95 % intervals"


def _conclusion(record: CalibrationsRecord) -> Iterator[str]:
    best = record.best
    if best is None:
        return
    yield f"take: {', '.join(f'{kind} {visible(choice, 40)}' for kind, choice in best.choices.items())}"
    equal = sum(row.standing == "as-good" for row in record.settings)
    if equal:
        yield f"{count(equal, 'setting')} marked = cannot be told from it on these samples"
    yield "its model was made by the text below, run as printed"


def _configuration_parts(record: CalibrationsRecord) -> Iterator[Section]:
    if record.configuration is not None:
        given = tuple(f"{user_name}: {what}" for user_name, what in record.given.items())
        yield _configuration_part(f"for {record.toolchain}", record.configuration.code, (*given, *record.notes))
    for other in record.others:
        lacking = tuple(f"it has no option for: {each}" for each in other.lacking)
        title = f"the same for {other.title}, {other.form} (from its documentation, not run here)"
        yield _configuration_part(title, other.configuration.code, (*lacking, *other.notes))


def _configuration_part(title: str, code: str, notes: Sequence[str]) -> Section:
    return _part(title=title, code=code, notes=tuple(f"note: {visible(note, 300)}" for note in notes))


# --- debugger ------------------------------------------------------------------------------------------------------


def _debugger_document(record: DebuggerRecord, rows: int, brief: bool) -> Document:
    measured = f"{count(len(record.layers), 'quantized operator')}, {count(record.samples, 'sample')} of"
    return _document(
        "debugger",
        record.quantized_model,
        (
            f"{measured} {name(record.data)}: every quantized operator against its float twin, both fed with what the "
            "deployed model computed before them",
            "√mse/scale: error in steps; 0.29 is ideal rounding. range: what all codes together span",
            "a large error with an ordinary range: the grid clips too much; an ordinary error with a range far above "
            "its neighbours': the grid is too coarse",
        ),
        (
            *(f"not measured apart from its neighbours: {name(text)}" for text in record.unmeasured),
            *map(visible, record.notices),
        ),
        (
            _layers_part(record, rows, brief),
            *_suspected_parts(record, brief),
            *((_denylists_part(record),) if record.denylists else ()),
        ),
        ("what these numbers are for", "debugger"),
        None if brief else debugger_chart(record),
    )


def _layers_part(record: DebuggerRecord, most: int, brief: bool) -> Section:
    layers, own = record.worst[:most], record.metrics[5:]
    figures = _brief_figures if brief else _all_figures
    heads = [key for key, _ in figures(record.layers[0], own)] if record.layers else []
    rows: list[Sequence[Cell]]
    rows = [(_tensor_text(layer, brief), layer.op_name, *(v for _, v in figures(layer, own))) for layer in layers]
    flagged = frozenset(place for place, layer in enumerate(layers) if layer in record.suspected)
    columns = [
        Column("tensor", "name"),
        Column("operator", "name"),
        *(Column(head, "num", _figure) for head in heads),
        *([Column("")] if flagged and not brief else []),
    ]
    if flagged and not brief:
        marks = [Span("suspected", "flag") if place in flagged else "" for place in range(len(rows))]
        rows = [(*row, mark) for row, mark in zip(rows, marks, strict=True)]
    more = len(record.layers) - len(layers)
    left = (f"{more} more (--verbose, or --output FILE)",) if more else ()
    outputs = (f"outputs: {name(metric)} {_figure(value)}" for metric, value in record.outputs.items())
    return _part(
        "" if brief else "layers, the largest error in steps first",
        table=Table("Layers", columns, rows, flagged=flagged),
        notes=(*left, *outputs),
    )


def _brief_figures(layer: DebuggerLayer, own: Sequence[str]) -> Iterator[tuple[str, float]]:
    """The figures that tell most, and the user's own."""
    yield "√mse/scale", layer.rmse_over_scale
    yield "range", layer.range
    yield "mean error", layer.metrics["mean_error"]
    yield "max error", layer.metrics["max_abs_error"]
    yield from ((key, layer.metrics[key]) for key in own)


def _all_figures(layer: DebuggerLayer, own: Sequence[str]) -> Iterator[tuple[str, float]]:
    yield "√mse/scale", layer.rmse_over_scale
    yield "range", layer.range
    yield "scale", layer.scale
    yield "zero point", layer.zero_point
    yield from layer.metrics.items()


def _tensor_text(layer: DebuggerLayer, brief: bool) -> str:
    """The tensor; of a fused one the first name, where there is little room."""
    if not brief:
        return visible(layer.tensor_name)
    return visible(layer.first_name, NAME_WIDTH) + (";…" if ";" in layer.tensor_name else "")


def _suspected_parts(record: DebuggerRecord, brief: bool) -> Iterator[Section]:
    over = f"√mse/scale above {number(record.suspect_steps)}"
    if not record.suspected:
        yield _part(said=(f"suspected: none, no layer has {over}",))
        return
    yield _names_part(f"suspected, for {over}", [layer.tensor_name for layer in record.suspected])
    if record.first_beside:
        names = [layer.tensor_name for layer in record.first_beside]
        yield _names_part("first layers, often worth leaving in float with them", names)
    lists = [f"denylisted_nodes = {_list_text(record.denylisted_nodes)}"]
    if record.denylisted_ops:
        types = _list_text(record.denylisted_ops)
        lists.append(f"denylisted_ops = {types}  # all layers of these types are suspected")
    yield _part(
        title="as a denylist",
        code="\n".join(lists),
        notes=(
            "next: quantmedic search fallback FLOAT QUANT -v DATA finds the smallest set of layers to leave in float",
            "a target that computes with integers only (EdgeTPU, Hexagon) is slowed down by float layers: quantmedic "
            "explain qat",
        ),
    )
    if record.framework == "litert" and not brief:
        yield _part(
            title="for TensorFlow's converter",
            code=_CONVERTER,
            notes=("calibrated once and quantized for as many lists as wanted; it was not run here",),
        )


def _names_part(title: str, names: Sequence[str]) -> Section:
    """Whole names, one a line."""
    return _part(title=title, code="\n".join(map(visible, names)))


def _list_text(names: Sequence[str]) -> str:
    """Names whole, as a list of Python that can be copied."""
    return visible(json.dumps(names, ensure_ascii=False))


def _denylists_part(record: DebuggerRecord) -> Section:
    """One row per denylist: how many layers run in float, and what the model gives then."""
    metric = record.metric
    task = [metric_label(metric)] if metric else []
    heads = ["in float", "SQNR of the worst output", "same class as the float model", *task]
    plain = ("float model", "0", "", "", *((metric_value(record.float_metric, metric),) if metric else ()))
    rows = (plain,) if record.float_metric is not None else ()
    litert = "note: evaluated on the ONNX translation of the LiteRT model; TensorFlow's converter was not run"
    return _part(
        title=f"denylists on one calibration, {count(record.judged_samples, 'sample')}",
        table=Table(
            "Denylists",
            [Column("denylist", "name"), *(Column(head, "num") for head in heads)],
            [*rows, *(_denylist_cells(each, metric) for each in record.denylists)],
        ),
        notes=(litert,) if record.framework == "litert" else (),
    )


def _denylist_cells(each: DenylistOutcome, metric: str | None) -> tuple[str, ...]:
    title, outcome = visible(each.name, NAME_LIMIT), each.outcome
    if outcome is None:
        return title, visible(each.failed or "", NAME_LIMIT), "", "", *(("",) if metric else ())
    return (
        title,
        str(len(each.layers)),
        decibels(outcome.sqnr_db),
        percent(outcome.agreement, 1) if outcome.agreement is not None else "",
        *((metric_value(outcome.metric, metric) if outcome.metric is not None else "",) if metric else ()),
    )


def _figure(value: float) -> str:
    if math.isnan(value):
        return "nan"
    return number(int(value) if float(value).is_integer() else value)


def _list_names(names: Sequence[str], most: int = NAMES_SHOWN) -> str:
    """Names, and how many more there are."""
    return first_few([name(each) for each in names], most)

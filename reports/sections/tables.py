"""The tables of a report: layers, data sets, outputs, comparisons, rules, thresholds and the run."""

import math
from collections.abc import Callable, Iterable, Sequence

from quantmedic.engine.case.facts import (
    ROLES,
    ComparisonFacts,
    DatasetFacts,
    Facts,
    OutputFacts,
    RelationFacts,
    Role,
    nested_facts,
)
from quantmedic.engine.contract.causes import RuleNote
from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.engine.contract.layers import ErrorRow, LayerRow
from quantmedic.reports.blocks import (
    Block,
    Bullets,
    Cell,
    Column,
    Details,
    Heading,
    Inline,
    PageOnly,
    Paragraph,
    Section,
    Span,
    Table,
    Tool,
    joined,
    make_table,
)
from quantmedic.reports.sections.run import run_lines
from quantmedic.reports.sections.run_kind import compares_checkpoints, judged_role, without_data
from quantmedic.reports.text import (
    NOT_MEASURED,
    count,
    field_info,
    level,
    measure,
    metric_value,
    name,
    number,
    percent,
    visible,
)

#: Layers that a page lists where it is only read.
LAYERS_SHOWN = 60
#: Facts of the model that have a table of their own.
OWN_TABLE = ("stages", "kernels")
#: Facts of a data set that matter first.
FIRST_FACTS = (
    "samples",
    "labelled",
    "unique_share",
    "blank_share",
    "stray_samples",
    "saturated_share",
    "nonfinite_samples",
    "min",
    "max",
    "mean",
    "std",
    "classes",
    "class_coverage",
    "range_growth",
    "clipped_share",
)
#: The others by what they are about.
FACT_GROUPS = {
    "Values": ("lattice_step", "lattice_low", "saturation_excess", "uniform_distance", "normal_distance"),
    "Variety": (
        "feature_spread",
        "effective_rank_ratio",
        "class_coverage_ratio",
        "unseen_channel_share",
    ),
    "Images": (
        "image",
        "brightness_ratio",
        "contrast_ratio",
        "spatial_correlation",
        "sharpness",
        "layout_roughness_ratio",
    ),
    "Ranges": (
        "halves_disagreement",
        "clipped_share_ratio",
        "range_lack",
        "ordinary_range_lack",
        "clipped_share_max",
        "clipped_share_median",
        "exact_range_share",
        "range_reach",
        "input_range_ratio",
        "input_clipped_share",
        "input_range_reading",
    ),
}
RELATIONS = {
    "same": "both sets were prepared alike",
    "scale": "the representative inputs are scaled differently",
    "offset": "the representative inputs are shifted",
    "not-normalized": "the representative inputs are raw: their normalization is missing",
    "normalized-twice": "the representative inputs were normalized twice",
    "partly-normalized": "the representative inputs are scaled, but mean and deviation are missing",
    "unexplained": "the two sets differ in a way that no common mistake explains",
}
#: Columns of a table of layers, each with what it shows of one.
LayerColumns = list[tuple[Column, Callable[[LayerRow], Cell]]]
_PLACE: tuple[Column, Callable[[LayerRow], Cell]] = (Column("#", "num"), lambda row: row.index)


def layers_section(diagnosis: Diagnosis) -> Section:
    """The layers, or the worst of them."""
    rows = _shown_layers(diagnosis)
    size, total = len(rows), len(diagnosis.layers)
    by_weights = compares_checkpoints(diagnosis) or without_data(diagnosis)
    if size < total:
        by = "the SQNR of their weights" if by_weights else "accumulated SQNR"
        lead = f"The {size} worst of {total} layers by {by}, worst first; report.json holds all."
    else:
        lead = f"All {total} layers {'by name' if compares_checkpoints(diagnosis) else 'in topological order'}."
    parts = [lead, _columns_text(diagnosis, rows), "A dash means not measured."]
    return Section(
        "layers",
        "Layers",
        "Layers",
        [Tool("table", [Paragraph(" ".join(parts), "lead"), layer_table(diagnosis, rows)])],
    )


def _shown_layers(diagnosis: Diagnosis) -> list[LayerRow]:
    """Layers in topological order, or the worst ones by SQNR (accumulated, or of weights) beyond a limit."""
    role = judged_role(diagnosis)
    by_weights = compares_checkpoints(diagnosis) or without_data(diagnosis)
    rows = sorted(diagnosis.layers, key=lambda row: row.index)

    def goodness(row: LayerRow) -> float:
        return _quality_key(row.weight_sqnr_db if by_weights else getattr(row, role).accumulated.sqnr_db)

    return sorted(rows, key=goodness)[:LAYERS_SHOWN] if len(rows) > LAYERS_SHOWN else rows


def _columns_text(diagnosis: Diagnosis, rows: Sequence[LayerRow]) -> str:
    """How to read the columns of the table."""
    if compares_checkpoints(diagnosis):
        return (
            "SQNR of the stored weights against the float ones in dB; of the worst group with its place, output "
            "channel / group."
        )
    if without_data(diagnosis):
        return "SQNR of the stored weights against the float ones in dB; bits of the output."
    role = judged_role(diagnosis)
    sliced = ", each layer on a part of its samples" if _is_sliced(rows, role) else ""
    return f"Bits of the output; SQNR in dB; rounding and worst channel on the {role} set{sliced}."


def _is_sliced(rows: Iterable[LayerRow], role: Role) -> bool:
    """Layers were measured on different samples of the set."""
    return len({getattr(row, role).samples for row in rows} - {None, 0}) > 1


def layer_table(diagnosis: Diagnosis, rows: Sequence[LayerRow] | None = None) -> Table:
    """A table of layers, of all unless some are named, with the columns that this kind of run knows."""
    shown = sorted(diagnosis.layers, key=lambda row: row.index) if rows is None else rows
    role = judged_role(diagnosis)
    if compares_checkpoints(diagnosis):
        columns, flagged = _weight_columns(), lambda row: row.findings
    else:
        known = _static_columns() if without_data(diagnosis) else _run_columns(role, _is_sliced(shown, role))
        columns, flagged = known, lambda row: row.degraded
    return make_table("Layers", shown, columns, "dense", flagged)


def _run_columns(role: Role, sliced: bool) -> LayerColumns:
    def judged(row: LayerRow) -> ErrorRow:
        return getattr(row, role)

    return [
        _PLACE,
        (Column("layer", "name"), _layer_name),
        (Column("operator"), operator_text),
        (Column("bits", "num", brief=False), lambda row: row.bits),
        (Column("weights", "tight", brief=False), _weight_text),
        (Column("weight rounding", "num", level, brief=False), lambda row: row.weight_sqnr_db),
        (Column("output rounding", "num", level), lambda row: judged(row).rounding.sqnr_db),
        *((Column(f"accumulated, {each}", "num", level, brief=each == role), _accumulated(each)) for each in ROLES),
        (Column("worst channel", "num", level, brief=False), lambda row: judged(row).accumulated.worst_channel_sqnr_db),
        (Column("range", "tight", brief=False), _values_text),
        *([(Column("samples", "num", brief=False), lambda row: judged(row).samples)] if sliced else ()),
        (Column("findings"), _findings_text),
    ]


def _accumulated(role: Role) -> Callable[[LayerRow], Cell]:
    return lambda row: getattr(row, role).accumulated.sqnr_db


def _static_columns() -> LayerColumns:
    return [
        _PLACE,
        (Column("layer", "name"), _layer_name),
        (Column("operator"), operator_text),
        (Column("bits", "num"), lambda row: row.bits),
        (Column("weights", "tight"), _weight_text),
        (Column("weights, SQNR", "num", level), lambda row: row.weight_sqnr_db),
        (Column("findings"), _findings_text),
    ]


def _weight_columns() -> LayerColumns:
    """Of what was left in float nothing is to be measured."""
    return [
        _PLACE,
        (Column("layer", "name"), _layer_name),
        (Column("for", "tight"), lambda row: row.role),
        (Column("weights", "tight"), lambda row: "in float" if _is_float(row) else _weight_text(row)),
        (Column("group size", "num", brief=False), lambda row: row.groups.size if row.groups else None),
        (Column("weights, SQNR", "num", level), lambda row: row.weight_sqnr_db),
        (
            Column("worst channel", "num", level),
            lambda row: row.groups.worst_channel_sqnr_db if row.groups else None,
        ),
        (Column("worst group", "num", brief=False), _worst_group),
        (Column("dead groups", "num"), lambda row: row.groups.dead if row.groups else None),
        (Column("findings"), _findings_text),
    ]


def _is_float(row: LayerRow) -> bool:
    return row.weight_bits is None and row.weight_sqnr_db is None


def _layer_name(row: LayerRow) -> Inline:
    """Its float name, and that in the quantized model where it is another and no longer form of it."""
    shown = row.float_name or row.name
    other = "" if (row.quantized_name or "").startswith(shown) else row.quantized_name
    return [Span(shown, "name"), Span(name(other), "hint")] if other else shown


def operator_text(row: LayerRow) -> Inline:
    """Its operator, and that it runs in float where it does."""
    return [row.op_type, Span("runs as float", "note")] if row.executed_as == "float" else row.op_type


def _values_text(row: LayerRow) -> Cell:
    return None if row.min is None else f"{number(row.min)} … {number(row.max)}"


def _findings_text(row: LayerRow) -> Inline:
    flag = [Span("degraded", "flag"), " "] if row.degraded else []
    return [*flag, ", ".join(row.findings)]


def _weight_text(row: LayerRow) -> Cell:
    if row.weight_bits is None:
        return None
    return f"{row.weight_bits} {(row.weight_granularity or '').replace('_', '-')}".strip()


def _worst_group(row: LayerRow) -> Cell:
    groups = row.groups
    if groups is None or groups.worst_group_sqnr_db is None:
        return None
    return f"{level(groups.worst_group_sqnr_db)} ({groups.worst_group or '?'})"


def _quality_key(sqnr_db: float | None) -> float:
    """Sort key, worst first: NaN before all numbers, not measured after them."""
    if sqnr_db is None:
        return math.inf
    return -math.inf if math.isnan(sqnr_db) else sqnr_db


def data_blocks(datasets: Sequence[DatasetFacts]) -> list[Block]:
    """Both data sets side by side: the facts that matter first, then all others that one of them has."""
    columns = _both_sets(datasets)
    measured = [field for field in _set_fields() if any(getattr(column, field) is not None for column in columns)]
    grouped = {*FIRST_FACTS, *(f for group in FACT_GROUPS.values() for f in group)}
    groups = {**FACT_GROUPS, "Others": tuple(f for f in measured if f not in grouped)}
    others: list[Block] = []
    for title, fields in groups.items():
        if known := [field for field in fields if field in measured]:
            others += [Heading(title), _sets_table(title, known, columns, explained=True)]
    if (relation := _relation_facts(datasets)) is not None:
        others += [Heading("Relation of the inputs"), fact_table("Relation of the inputs", relation)]
    if unmeasured := [_fact_name(field) for field in _set_fields() if field not in measured]:
        others.append(Paragraph(f"Not measured on either set: {', '.join(unmeasured)}.", "muted"))
    first = [field for field in FIRST_FACTS if field in measured]
    return [
        Heading("side by side"),
        _sets_table("Data sets side by side", first, columns),
        *([PageOnly([Details("All facts of the data sets", others)])] if others else []),
    ]


def relation_text(datasets: Sequence[DatasetFacts]) -> str:
    """How the two sets relate; the light of images differs behind equal preparation, too."""
    relation = _relation_facts(datasets)
    if relation is None:
        return NOT_MEASURED
    text = RELATIONS.get(relation.kind or "", NOT_MEASURED)
    light = next((c.brightness_reading for c in _both_sets(datasets) if c.brightness_reading is not None), None)
    return f"{text}, but {light}" if light is not None and relation.kind == "same" else text


def _relation_facts(datasets: Sequence[DatasetFacts]) -> RelationFacts | None:
    return next((d.relation for d in datasets if d.relation != RelationFacts()), None)


def _both_sets(datasets: Sequence[DatasetFacts]) -> list[DatasetFacts]:
    by_role = {dataset.role: dataset for dataset in datasets}
    return [by_role.get(role, DatasetFacts()) for role in ROLES]


def _set_fields() -> list[str]:
    return [f for f, info in DatasetFacts.model_fields.items() if f != "role" and not nested_facts(info.annotation)]


def _sets_table(
    label: str, fields: Iterable[str], columns: Sequence[DatasetFacts], *, explained: bool = False
) -> Table:
    rows = [
        _fact_row(DatasetFacts, field, [getattr(column, field) for column in columns], explained) for field in fields
    ]
    return Table(label, [Column("fact"), *map(Column, ROLES)], rows, "facts")


def fact_table(label: str, facts: Facts) -> Table:
    """The measured fields of one view, nested ones left out."""
    values = {f: getattr(facts, f) for f in type(facts).model_fields}
    rows = [
        _fact_row(type(facts), f, [value])
        for f, value in values.items()
        if value is not None and not isinstance(value, Facts) and f not in OWN_TABLE
    ]
    return Table(label, [Column("fact"), Column("value")], rows, "facts")


def _fact_row(cls: type[Facts], field: str, values: Iterable[object], explained: bool = True) -> tuple[Cell, ...]:
    info = field_info(cls.model_fields[field])
    label = [_fact_name(field), Span(info.description, "hint")] if explained else _fact_name(field)
    return (label, *(measure(value, info.unit) for value in values))


def _fact_name(field: str) -> str:
    return field.replace("_", " ")


def outputs_section(outputs: Sequence[OutputFacts]) -> Section:
    """Every output of the network."""
    table = make_table(
        "Outputs",
        outputs,
        [
            (Column("output", "name"), lambda output: output.name),
            *((Column(f"SQNR in dB, {role}", "num", level), _output_level(role)) for role in ROLES),
            (Column("worst column or operand in dB"), _worst_text),
            (Column("dead columns"), _dead_text),
            (Column("levels spanned", "num"), lambda output: output.levels),
            (Column("levels used in the poorest column", "num"), lambda output: output.distinct_levels_worst_column),
            (Column("step", "num"), lambda output: output.step),
            (Column("median margin", "num"), lambda output: output.margin_median),
            (Column("share of ties", "num"), lambda output: output.tie_share),
        ],
    )
    return Section(
        "outputs", "Outputs", "Outputs", [table if outputs else Paragraph("Outputs: not measured.", "muted")]
    )


def _output_level(role: Role) -> Callable[[OutputFacts], Cell]:
    return lambda output: getattr(output.tensor, role).accumulated.sqnr_db


def _worst_text(output: OutputFacts) -> Cell:
    """The level that the output is judged by, and what of it has it."""
    columns = output.columns
    if columns.worst_sqnr_db is None:
        return None
    return f"{level(columns.worst_sqnr_db)}, {visible(columns.worst, 60) if columns.worst else 'as a whole'}"


def _dead_text(output: OutputFacts) -> Cell:
    columns = output.columns
    if columns.dead is None:
        return None
    return visible(columns.dead_places, 60) if columns.dead_places else "none"


def comparison_section(diagnosis: Diagnosis) -> Section | None:
    """Outputs of framework, device and stages held against others; None where nothing was given."""
    model = diagnosis.model
    if not (model.reference.samples is not None or model.device.samples is not None or model.stages):
        return None
    lead = (
        "Largest difference over the size of the outputs. A stage is held against the first one; the largest step is "
        "the stage that departs most from the one before."
    )
    rows = []
    if model.reference.samples is not None:
        rows.append(_comparison_row("float model", "reference outputs", model.reference))
    if model.device.samples is not None:
        rows.append(_comparison_row("device outputs", "quantized model", model.device))
    steps = {stage.name: stage.previous_sqnr_db for stage in model.stages if stage.previous_sqnr_db is not None}
    largest = min(steps, key=lambda key: steps[key], default=None)
    jumps = []
    for stage in model.stages:
        against = "" if stage is model.stages[0] else name(model.stages[0].name)
        value = metric_value(stage.metric, diagnosis.metrics.name) if stage.metric is not None else ""
        jumps += [len(rows)] if stage.name == largest and steps[stage.name] < math.inf else []
        called = [name(stage.name), " ", Span("largest step", "flag")] if len(rows) in jumps else name(stage.name)
        rows.append(_comparison_row(called, against, stage, value))
    columns = [
        Column("outputs"),
        Column("against"),
        Column("samples", "num"),
        Column("SQNR in dB", "num", level),
        Column("largest difference", "num"),
        Column("same class", "num", percent),
        Column("metric", "num"),
    ]
    title = "Compared with other outputs"
    table = Table(title, columns, rows, flagged=frozenset(jumps))
    return Section("compared", title, "Compared", [Paragraph(lead, "lead"), table])


def _comparison_row(what: Inline, against: str, facts: ComparisonFacts, metric: str = "") -> tuple[Cell, ...]:
    return what, against, facts.samples, facts.sqnr_db, facts.relative_difference, facts.agreement, metric


def not_judged_section(diagnosis: Diagnosis, pages: Iterable[str]) -> Section:
    """Rules that lacked a fact, and how to supply it."""
    known = set(pages)
    if not diagnosis.not_judged:
        said = [Paragraph("Every rule that applies was judged.")]
        return Section("not-judged", "Not judged", "Not judged", said)
    table = make_table(
        "Rules not judged",
        diagnosis.not_judged,
        [
            (Column("rule"), lambda note: _rule_name(note, known)),
            (Column("missing fact"), lambda note: joined([Span(path, "code") for path in note.missing])),
            (Column("how to supply it"), lambda note: (note.hint or "").strip() or "no way known"),
        ],
    )
    lead = Paragraph("These rules lack a fact. They say neither yes nor no until it is supplied.", "lead")
    return Section("not-judged", "Not judged", "Not judged", [lead, table])


def passed_section(diagnosis: Diagnosis, pages: Iterable[str]) -> Section:
    """Rules that found nothing, were of no use, or were switched off."""
    known = set(pages)
    blocks: list[Block] = [Paragraph("No rule passed.", "muted")]
    if diagnosis.passed:
        said = "Beside each rule, how many layers, tensors or models it was held against."
        counted = [[_rule_name(note, known), " ", Span(_judged_text(note), "muted")] for note in diagnosis.passed]
        blocks = [Paragraph(said, "muted"), Bullets(counted, "rules")]
    if diagnosis.not_applicable:
        summary = (
            f"Not applicable: {count(len(diagnosis.not_applicable), 'rule')} (nothing of their kind occurs in this "
            "model)"
        )
        names = [_rule_name(note, known) for note in diagnosis.not_applicable]
        blocks.append(PageOnly([Details(summary, [Bullets(names, "rules")])]))
    if diagnosis.ignored:
        struck = [Span(f"{note.rule} {note.name}", "struck") for note in diagnosis.ignored]
        blocks += [Heading("ignored"), Paragraph("Switched off for this run.", "muted"), Bullets(struck, "rules")]
    return Section("passed", "Passed", "Passed", blocks)


def _rule_name(note: RuleNote, pages: set[str]) -> Inline:
    return [Span(note.rule, "", f"manual/{note.rule}" if note.rule in pages else ""), f" {name(note.name)}"]


def _judged_text(note: RuleNote) -> str:
    return f"{note.judged}, {note.unknown} not judged" if note.unknown else str(note.judged)


def run_section(diagnosis: Diagnosis) -> Section:
    """What gave these facts: versions, options, names and hashes, and the thresholds in force."""
    run = [*run_lines(diagnosis.run), ("quantmedic", diagnosis.quantmedic_version)]
    thresholds = make_table(
        "Thresholds",
        diagnosis.thresholds,
        [
            (Column("threshold"), lambda t: [Span(t.name, "code"), Span(t.description.strip(), "hint")]),
            (Column("value", "num"), lambda t: f"{number(t.value)} {t.unit}" if t.unit else t.value),
            (Column("source"), lambda t: t.source),
        ],
    )
    return Section(
        "run",
        "Run",
        "Run",
        [
            Table("What gave these facts", [Column(""), Column("", "name")], run),
            PageOnly([Details("Facts of the model", [fact_table("Facts of the model", diagnosis.model)])]),
            Details("Thresholds in force", [thresholds]),
        ],
    )

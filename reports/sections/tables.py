"""The tables of a report: layers, data sets, outputs, rules, thresholds and the run."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

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
from quantmedic.engine.contract.layers import LayerRow
from quantmedic.engine.rules.rulebase import Threshold
from quantmedic.reports.sections.run_kind import compares_checkpoints, judged_role, without_data
from quantmedic.reports.text import (
    NOT_MEASURED,
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
        "input_spread",
        "feature_spread",
        "effective_rank",
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


@dataclass(frozen=True)
class LayerLine:
    """One row of the layer table."""

    index: Annotated[int, "topological index"]
    name: Annotated[str, "name of the layer in the float model"]
    quantized_name: Annotated[str, "its name in the quantized model; empty where that is the float name with a suffix"]
    op_type: Annotated[str, "operator type"]
    executed_as: Annotated[str, "integer or float kernel"]
    bits: Annotated[str, "bits of the output"]
    weight: Annotated[str, "bits and granularity of the weights"]
    weight_sqnr: Annotated[str, "rounding SQNR of the weights in dB"]
    rounding: Annotated[str, "rounding SQNR of the output in dB"]
    representative: Annotated[str, "accumulated SQNR on the representative set in dB"]
    validation: Annotated[str, "accumulated SQNR on the validation set in dB"]
    worst_channel: Annotated[str, "accumulated SQNR of the worst channel in dB"]
    range: Annotated[str, "smallest and largest float value"]
    samples: Annotated[str, "samples of the set judged that it was measured on"]
    degraded: Annotated[bool, "accumulated error is over a threshold"]
    group_size: Annotated[str, "weights that share a scale, where checkpoints were compared"]
    worst_weight_channel: Annotated[str, "rounding SQNR of the worst output channel of the weights in dB"]
    worst_group: Annotated[str, "rounding SQNR of the worst group of weights in dB, and where it is"]
    dead_groups: Annotated[str, "groups of weights stored as one value"]
    role: Annotated[str, "what the weights of a language model are for"]
    findings: Annotated[tuple[str, ...], "codes of the rules that flagged it"]


@dataclass(frozen=True)
class LayerTable:
    """The layers shown, and how many there are."""

    rows: Annotated[tuple[LayerLine, ...], "rows in topological order, or worst first where some are left out"]
    total: Annotated[int, "layers of the model"]
    left_out: Annotated[int, "layers that are only in report.json"]
    judged_on: Annotated[str, "data set of rounding and worst channel"]
    sliced: Annotated[bool, "layers were measured on different samples of the set"]
    weights_only: Annotated[bool, "checkpoints were compared: nothing but weights is known of a layer"]
    without_data: Annotated[bool, "models were not run: of a layer, weights and quantizers are known"]


@dataclass(frozen=True)
class FactLine:
    """One fact of two data sets side by side, or of the model alone."""

    label: Annotated[str, "name of the fact"]
    description: Annotated[str, "formula of the fact, from the glossary"]
    values: Annotated[tuple[str, ...], "one value per column"]


@dataclass(frozen=True)
class FactGroup:
    """Facts that belong together."""

    title: Annotated[str, "what they are about"]
    rows: Annotated[tuple[FactLine, ...], "one line per fact"]


@dataclass(frozen=True)
class DatasetTable:
    """Representative and validation set side by side; facts that were measured on at least one of them."""

    roles: Annotated[tuple[str, ...], "column headings"]
    rows: Annotated[tuple[FactLine, ...], "the few that matter first"]
    groups: Annotated[tuple[FactGroup, ...], "all others"]
    unmeasured: Annotated[tuple[str, ...], "names of the facts measured on neither"]
    relation: Annotated[str, "how the two sets relate, one sentence"]
    relation_rows: Annotated[tuple[FactLine, ...], "the numbers behind that sentence"]


@dataclass(frozen=True)
class OutputLine:
    """One output of the network."""

    name: Annotated[str, "name of the output"]
    representative: Annotated[str, "accumulated SQNR on the representative set in dB"]
    validation: Annotated[str, "accumulated SQNR on the validation set in dB"]
    worst: Annotated[str, "SQNR in dB of its worst column or operand, and which that is"]
    dead: Annotated[str, "columns that hold one value in the quantized model alone"]
    levels: Annotated[str, "codes that its range spans"]
    distinct: Annotated[str, "codes in use"]
    worst_column: Annotated[str, "codes in use in the poorest column"]
    step: Annotated[str, "step of its integer grid"]
    margin: Annotated[str, "median distance of the two best scores"]
    ties: Annotated[str, "share of samples whose two best scores are equal"]


@dataclass(frozen=True)
class ComparisonLine:
    """Outputs held against other outputs: of the framework, of the device, of the toolchain's stages."""

    name: Annotated[str, "what was compared"]
    against: Annotated[str, "what it was held against; empty for the first stage"]
    samples: Annotated[str, "samples compared"]
    sqnr: Annotated[str, "SQNR in dB"]
    difference: Annotated[str, "largest difference over the size of the outputs"]
    agreement: Annotated[str, "share of samples with the same class"]
    metric: Annotated[str, "task metric of a stage; empty for others"]
    jump: Annotated[bool, "the stage that departs most from the one before"]


@dataclass(frozen=True)
class RuleLine:
    """A rule that named no cause."""

    rule: Annotated[str, "code"]
    name: Annotated[str, "name"]
    judged: Annotated[int, "subjects judged"]
    unknown: Annotated[int, "subjects that could not be judged"]
    missing: Annotated[tuple[str, ...], "facts that were not measured"]
    hint: Annotated[str, "how to supply them, empty where unknown"]
    manual: Annotated[str, "page of the manual without suffix; empty where there is none"]


@dataclass(frozen=True)
class ThresholdLine:
    """One threshold in force."""

    name: Annotated[str, "name"]
    value: Annotated[str, "value with unit"]
    source: Annotated[str, "where the value comes from"]
    description: Annotated[str, "what it decides"]


def layer_table(diagnosis: Diagnosis, limit: int | None = LAYERS_SHOWN) -> LayerTable:
    """Layers in topological order, or the worst ones by SQNR (accumulated, or of weights) beyond a limit."""
    role = judged_role(diagnosis)
    weights_only = compares_checkpoints(diagnosis)
    line = _checkpoint_line if weights_only else _layer_line
    rows = sorted(diagnosis.layers, key=lambda row: row.index)

    def goodness(row: LayerRow) -> float:
        by_weights = weights_only or without_data(diagnosis)
        return _quality_key(row.weight_sqnr_db if by_weights else getattr(row, role).accumulated.sqnr_db)

    if limit is not None and len(rows) > limit:
        rows = sorted(rows, key=goodness)[:limit]
    return LayerTable(
        rows=tuple(line(row, role) for row in rows),
        total=len(diagnosis.layers),
        left_out=len(diagnosis.layers) - len(rows),
        judged_on=role,
        sliced=len({getattr(row, role).samples for row in rows} - {None, 0}) > 1,
        weights_only=weights_only,
        without_data=without_data(diagnosis),
    )


def dataset_table(datasets: Sequence[DatasetFacts]) -> DatasetTable:
    """Facts of both sets in one table; what neither has is only named."""
    by_role = {dataset.role: dataset for dataset in datasets}
    columns = [by_role.get(role, DatasetFacts()) for role in ROLES]
    fields = [f for f, info in DatasetFacts.model_fields.items() if f != "role" and not nested_facts(info.annotation)]
    measured = [f for f in fields if any(getattr(column, f) is not None for column in columns)]
    relation = next((d.relation for d in datasets if d.relation != RelationFacts()), None)

    def lines(wanted: Iterable[str]) -> tuple[FactLine, ...]:
        shown = [f for f in wanted if f in measured]
        return tuple(_fact_line(DatasetFacts, f, [getattr(column, f) for column in columns]) for f in shown)

    grouped = {*FIRST_FACTS, *(f for group in FACT_GROUPS.values() for f in group)}
    groups = {**FACT_GROUPS, "Others": tuple(f for f in fields if f not in grouped)}
    return DatasetTable(
        roles=ROLES,
        rows=lines(FIRST_FACTS),
        groups=tuple(FactGroup(title, rows) for title, group in groups.items() if (rows := lines(group))),
        unmeasured=tuple(_fact_name(f) for f in fields if f not in measured),
        relation=_relation_text(relation, columns) if relation else NOT_MEASURED,
        relation_rows=fact_lines(relation) if relation else (),
    )


def _relation_text(relation: RelationFacts, columns: Sequence[DatasetFacts]) -> str:
    """How the two sets relate; the light of images differs behind equal preparation, too."""
    text = RELATIONS.get(relation.kind or "", NOT_MEASURED)
    light = next((c.brightness_reading for c in columns if c.brightness_reading is not None), None)
    return f"{text}, but {light}" if light is not None and relation.kind == "same" else text


def fact_lines(facts: Facts) -> tuple[FactLine, ...]:
    """The measured fields of one view, nested ones left out."""
    values = {f: getattr(facts, f) for f in type(facts).model_fields}
    return tuple(
        _fact_line(type(facts), f, [value])
        for f, value in values.items()
        if value is not None and not isinstance(value, Facts) and f not in OWN_TABLE
    )


def output_lines(outputs: Iterable[OutputFacts]) -> tuple[OutputLine, ...]:
    """One line per output of the network."""
    return tuple(
        OutputLine(
            name=name(output.name),
            representative=level(output.tensor.representative.accumulated.sqnr_db),
            validation=level(output.tensor.validation.accumulated.sqnr_db),
            worst=_worst_text(output),
            dead=_dead_text(output),
            levels=number(output.levels),
            distinct=number(output.distinct_levels),
            worst_column=number(output.distinct_levels_worst_column),
            step=number(output.step),
            margin=number(output.margin_median),
            ties=number(output.tie_share),
        )
        for output in outputs
    )


def _worst_text(output: OutputFacts) -> str:
    """The level that the output is judged by, and what of it has it."""
    columns = output.columns
    if columns.worst_sqnr_db is None:
        return NOT_MEASURED
    return f"{level(columns.worst_sqnr_db)}, {visible(columns.worst, 60) if columns.worst else 'as a whole'}"


def _dead_text(output: OutputFacts) -> str:
    columns = output.columns
    if columns.dead is None:
        return NOT_MEASURED
    return visible(columns.dead_places, 60) if columns.dead_places else "none"


def comparison_lines(diagnosis: Diagnosis) -> tuple[ComparisonLine, ...]:
    """What was compared beside the two models; empty where nothing was given."""
    model, metric = diagnosis.model, diagnosis.metrics.name
    rows = []
    if model.reference.samples is not None:
        rows.append(_comparison_line("float model", "reference outputs", model.reference))
    if model.device.samples is not None:
        rows.append(_comparison_line("device outputs", "quantized model", model.device))
    steps = {stage.name: stage.previous_sqnr_db for stage in model.stages if stage.previous_sqnr_db is not None}
    largest = min(steps, key=lambda key: steps[key], default=None)
    for stage in model.stages:
        first = stage is model.stages[0]
        row = _comparison_line(name(stage.name), "" if first else name(model.stages[0].name), stage)
        value = metric_value(stage.metric, metric) if stage.metric is not None else ""
        jump = stage.name == largest and steps[stage.name] < math.inf
        rows.append(replace(row, metric=value, jump=jump))
    return tuple(rows)


def _comparison_line(what: str, against: str, facts: ComparisonFacts) -> ComparisonLine:
    return ComparisonLine(
        name=what,
        against=against,
        samples=number(facts.samples),
        sqnr=level(facts.sqnr_db),
        difference=number(facts.relative_difference),
        agreement=percent(facts.agreement) if facts.agreement is not None else NOT_MEASURED,
        metric="",
        jump=False,
    )


def rule_lines(notes: Iterable[RuleNote], pages: Iterable[str]) -> tuple[RuleLine, ...]:
    """Rules that passed, were not judged, did not apply or were ignored."""
    known = set(pages)
    return tuple(
        RuleLine(
            rule=visible(note.rule),
            name=name(note.name),
            judged=note.judged,
            unknown=note.unknown,
            missing=tuple(visible(path) for path in note.missing),
            hint=visible((note.hint or "").strip()),
            manual=f"manual/{note.rule}" if note.rule in known else "",
        )
        for note in notes
    )


def threshold_lines(thresholds: Iterable[Threshold]) -> tuple[ThresholdLine, ...]:
    """All thresholds in force."""
    return tuple(
        ThresholdLine(
            name=visible(t.name),
            value=f"{number(t.value)} {t.unit}" if t.unit else number(t.value),
            source=visible(t.source),
            description=visible(t.description.strip()),
        )
        for t in thresholds
    )


def _layer_line(row: LayerRow, role: Role) -> LayerLine:
    errors = getattr(row, role)
    shown = row.float_name or row.name
    return LayerLine(
        index=row.index,
        name=name(shown),
        quantized_name="" if (row.quantized_name or "").startswith(shown) else name(row.quantized_name),
        op_type=visible(row.op_type),
        executed_as=row.executed_as or NOT_MEASURED,
        bits=number(row.bits),
        weight=_weight_text(row),
        weight_sqnr=level(row.weight_sqnr_db),
        rounding=level(errors.rounding.sqnr_db),
        representative=level(row.representative.accumulated.sqnr_db),
        validation=level(row.validation.accumulated.sqnr_db),
        worst_channel=level(errors.accumulated.worst_channel_sqnr_db),
        range=NOT_MEASURED if row.min is None else f"{number(row.min)} … {number(row.max)}",
        samples=number(errors.samples),
        degraded=row.degraded is True,
        group_size=number(row.groups.size) if row.groups else NOT_MEASURED,
        worst_weight_channel=level(row.groups.worst_channel_sqnr_db) if row.groups else NOT_MEASURED,
        worst_group=_worst_group(row),
        dead_groups=number(row.groups.dead) if row.groups else NOT_MEASURED,
        role=visible(row.role or NOT_MEASURED),
        findings=tuple(visible(code) for code in row.findings),
    )


def _checkpoint_line(row: LayerRow, role: Role) -> LayerLine:
    """What was left in float says so: of such a layer nothing is to be measured."""
    line = _layer_line(row, role)
    is_float = row.weight_bits is None and row.weight_sqnr_db is None
    return replace(line, weight="in float") if is_float else line


def _weight_text(row: LayerRow) -> str:
    if row.weight_bits is None:
        return NOT_MEASURED
    return f"{row.weight_bits} {visible(row.weight_granularity or '').replace('_', '-')}".strip()


def _worst_group(row: LayerRow) -> str:
    groups = row.groups
    if groups is None or groups.worst_group_sqnr_db is None:
        return NOT_MEASURED
    return f"{level(groups.worst_group_sqnr_db)} ({visible(groups.worst_group or '?')})"


def _quality_key(sqnr_db: float | None) -> float:
    """Sort key, worst first: NaN before all numbers, not measured after them."""
    if sqnr_db is None:
        return math.inf
    return -math.inf if math.isnan(sqnr_db) else sqnr_db


def _fact_line(cls: type[Facts], field: str, values: Iterable[object]) -> FactLine:
    info = field_info(cls.model_fields[field])
    return FactLine(_fact_name(field), info.description, tuple(measure(value, info.unit) for value in values))


def _fact_name(field: str) -> str:
    return field.replace("_", " ")

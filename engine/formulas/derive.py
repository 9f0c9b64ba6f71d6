"""From a case to its facts: formulas only, every number from the accumulators."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from quantmedic.engine.case.facts import (
    CaseFacts,
    DatasetFacts,
    ErrorFacts,
    KernelFacts,
    LayerFacts,
    MetricFacts,
    ModelFacts,
    OperandFacts,
    OutputColumnFacts,
    OutputFacts,
    SourceFacts,
    TensorFacts,
    WeightErrorFacts,
)
from quantmedic.engine.case.output_columns import has_selected_rows, mixes_scores, output_column_facts, parts_of
from quantmedic.engine.case.output_comparison import affine_facts, ending_facts
from quantmedic.engine.case.records import Case, OperatorRecord
from quantmedic.engine.case.statistics import SAMPLE_DTYPE, SampleTable
from quantmedic.engine.formulas.columns import FieldsByPlace, per_tensor, ratio, recorded_fields
from quantmedic.engine.formulas.datasets import dataset_facts
from quantmedic.engine.formulas.device_tensors import departure_fields, tensors_with_device
from quantmedic.engine.formulas.error_facts import divisor_steps, has_lost_channels, normalized_mse, weight_error_facts
from quantmedic.engine.formulas.first_input import lattices_of
from quantmedic.engine.formulas.language import block_fields, with_layers, with_share_of_blocks
from quantmedic.engine.formulas.noise_sources import (
    JOINING,
    budget_of_model,
    decoder_fields,
    half_fields,
    layer_source_fields,
    tensors_with_sources,
    upstream,
)
from quantmedic.engine.formulas.outside import outside_facts
from quantmedic.engine.formulas.reported import input_facts, reported_facts, toolchain_fields
from quantmedic.engine.formulas.simulate import Grid
from quantmedic.engine.formulas.stored_bins import main_role
from quantmedic.engine.formulas.stored_weights import hide_meaningless
from quantmedic.engine.formulas.task_metric import metric_facts, odd_set_reading, with_label_fit, with_odd_set
from quantmedic.engine.formulas.tensors import grid_of, predicted_sqnr, run_time_bits, tensor_facts, with_neighbour_bits
from quantmedic.engine.garbage import without_garbage_collection
from quantmedic.engine.metrics.kinds import is_share
from quantmedic.engine.thresholds import Thresholds

#: The models that have numbers which are no numbers.
Models = Literal["none", "float", "quantized", "both"]


@without_garbage_collection
def derive(case: Case, thresholds: Thresholds) -> CaseFacts:
    """All facts of a case; ``thresholds`` decide which layers are degraded and whether the network is harmed."""
    tensors = tensors_with_device(case, tensor_facts(case, thresholds), thresholds)
    return assemble(case, thresholds, tensors_with_sources(case, tensors))


@without_garbage_collection
def derive_with_budget(facts: CaseFacts, case: Case, thresholds: Thresholds) -> CaseFacts:
    """All facts of a case that has a loss budget, from those that it had before."""
    return assemble(case, thresholds, tensors_with_sources(case, facts.tensors))


def assemble(
    case: Case,
    thresholds: Thresholds,
    tensors: tuple[TensorFacts, ...],
    datasets: tuple[DatasetFacts, ...] | None = None,
) -> CaseFacts:
    """The views of all scopes over the given tensor facts (measured, or as they would be after a repair).

    ``datasets`` are those of the data sets where they are known already.
    """
    tensors = with_neighbour_bits(case, tensors)
    writers = {i: case.record.operators[k] for i, k in case.record.writers().items()}
    outputs = tuple(_output_facts(case, i, tensors, thresholds) for i in range(len(case.record.outputs)))
    worst = _worst_of_outputs(case, outputs)
    degraded = _degraded_tensors(case, tensors, outputs, thresholds)
    operators = case.record.operators
    errors = [weight_error_facts(case, op, tensors) for op in operators]
    pairs = zip(operators, errors, strict=True)
    layers = tuple(_layer_facts(op, tensors, degraded, worst, writers, error, thresholds) for op, error in pairs)
    layers = _with_fields(layers, _more_of_layers(layers, case, tensors, thresholds))
    model = _facts_of_model(case, thresholds, layers, tensors, outputs)
    odd = odd_set_reading(model.metric, thresholds)
    return CaseFacts(
        model=model,
        datasets=_facts_of_data(case, tensors, odd) if datasets is None else datasets,
        layers=layers,
        tensors=tensors,
        operands=tuple(_operand_facts(case, tensors)),
        outputs=outputs,
    )


def _facts_of_data(case: Case, tensors: tuple[TensorFacts, ...], odd: str) -> tuple[DatasetFacts, ...]:
    """Facts of the data sets, with how their images fit the settings, and which of both is to be changed."""
    found = []
    for view in dataset_facts(case, tensors):
        statistics = case.statistics.get(view.role or "validation")
        lattices = lattices_of(statistics) if statistics is not None else []
        found.append(with_odd_set(view.model_copy(update=input_facts(lattices, case.record.model.settings)), odd))
    return tuple(found)


def _layer_facts(
    op: OperatorRecord,
    tensors: tuple[TensorFacts, ...],
    degraded: Sequence[bool | None],
    worst: Mapping[int, float],
    writers: Mapping[int, OperatorRecord],
    weight_error: WeightErrorFacts,
    thresholds: Thresholds,
) -> LayerFacts:
    """One layer; ``degraded`` and ``worst`` are known of every tensor, see there."""
    index = next((i for i in op.outputs if i is not None), None)
    output = tensors[index] if index is not None else TensorFacts()
    here = degraded[index] if index is not None else None
    carried = [degraded[i] for i in op.inputs if i is not None]
    inputs = [tensors[i] for i in op.inputs if i is not None]
    found: dict[str, Any] = {
        **recorded_fields(op, LayerFacts),
        "executed_as": op.executed_as if op.executed_as in ("integer", "float") else None,
        "weight": hide_meaningless(op.weight, thresholds).model_copy(
            update={"normalized_mse": normalized_mse(op.weight)}
        ),
        "weight_error": weight_error,
        "input_worst_channel_sqnr_db": _least(tensor.data.rounding.worst_channel_sqnr_db for tensor in inputs),
        "run_time_bits": run_time_bits(op, tensors),
        "divisor_steps": divisor_steps(op, tensors),
        "output": output,
        "degraded": here,
        "worst_output_sqnr_db": worst.get(index) if index is not None else None,
        "feeders": _feeders(op, writers),
        "born": _is_born(here, carried, len(carried) < len(op.inputs)),
        "reads_unsigned": _reads_unsigned(op, tensors),
        "added_nmse": _added_nmse(output, inputs),
    }
    return LayerFacts(**found)


def _added_nmse(output: TensorFacts, inputs: Sequence[TensorFacts]) -> float | None:
    """Noise that a layer adds, over the signal: measured by itself, else what goes out less what came in."""
    if output.data.step.nmse is not None:
        return output.data.step.nmse
    out = output.data.accumulated.nmse
    carried = [nmse for tensor in inputs if (nmse := tensor.data.accumulated.nmse) is not None]
    return None if out is None or not carried else max(out - max(carried), 0.0)


def _more_of_layers(
    layers: tuple[LayerFacts, ...], case: Case, tensors: tuple[TensorFacts, ...], thresholds: Thresholds
) -> Iterator[FieldsByPlace]:
    """What depends on other layers, on the loss budget, and on what else was given."""
    yield _rank_fields(layers)
    yield _type_fields(layers)
    yield layer_source_fields(layers, case)
    yield half_fields(layers, case, tensors, thresholds)
    yield departure_fields(layers, case)
    yield decoder_fields(layers, case)
    yield _time_fields(layers, case.record.model.kernels)
    yield toolchain_fields(layers, case.record.model.settings)
    yield block_fields(layers, case.record.model, thresholds)


def _with_fields(layers: tuple[LayerFacts, ...], found: Iterable[FieldsByPlace]) -> tuple[LayerFacts, ...]:
    """The layers with these fields."""
    fields: list[dict[str, object]] = [{} for _ in layers]
    for by_place in found:
        for place, more in by_place.items():
            fields[place] |= more
    return tuple(layer.model_copy(update=more) if more else layer for layer, more in zip(layers, fields, strict=True))


def _rank_fields(layers: tuple[LayerFacts, ...]) -> FieldsByPlace:
    """Places of the compute operators: in the graph, and by the noise that they add."""
    compute = [place for place, layer in enumerate(layers) if layer.is_compute]
    known = [(noise, place) for place in compute if (noise := layers[place].added_nmse) is not None]
    ordered = sorted(known, key=lambda pair: -pair[0])
    ranks = {place: rank for rank, (_, place) in enumerate(ordered, 1)}
    return {place: {"compute_index": k, "error_rank": ranks.get(place)} for k, place in enumerate(compute)}


def _type_fields(layers: tuple[LayerFacts, ...]) -> FieldsByPlace:
    """Whether all of several layers with quantized weights are of one type."""
    quantized = [place for place, layer in enumerate(layers) if layer.weight.quantizer.bits is not None]
    are_alike = len(quantized) > 1 and len({layers[place].op_type for place in quantized}) == 1
    return {place: {"only_quantized_type": are_alike} for place in quantized}


def _time_fields(layers: tuple[LayerFacts, ...], kernels: Sequence[KernelFacts]) -> FieldsByPlace:
    """Share of the time of all kernels, where that was measured."""
    total = sum(kernel.time_ms or 0.0 for kernel in kernels)
    times = {place: layer.time_ms for place, layer in enumerate(layers) if layer.time_ms is not None}
    return {place: {"time_share": time / total} for place, time in times.items()} if total else {}


def _reads_unsigned(op: OperatorRecord, tensors: tuple[TensorFacts, ...]) -> bool | None:
    """The sign of the first activation's codes; None where it has no codes."""
    signs = [tensors[i].quantizer.signed for i in op.inputs if i is not None]
    return None if not signs or signs[0] is None else not signs[0]


def _feeders(op: OperatorRecord, writers: Mapping[int, OperatorRecord]) -> tuple[str, ...]:
    """Layers without weights upstream of one: with it, they are the group that a remedy has to cover."""
    return tuple(dict.fromkeys(w.name for w in upstream(op, writers) if not w.is_compute and w.name != op.name))


def _is_born(degraded: bool | None, carried: list[bool | None], unseen: bool) -> bool | None:
    """Degraded here, while all inputs were seen and none is degraded; None where an input was not seen."""
    if not degraded or any(carried):
        return degraded and False
    return None if unseen or None in carried else True


def _degraded_tensors(
    case: Case, tensors: tuple[TensorFacts, ...], outputs: tuple[OutputFacts, ...], thresholds: Thresholds
) -> list[bool | None]:
    """Of every tensor, whether its accumulated error is over a threshold, or it holds a spoiled column of an output."""
    degraded = [is_degraded(tensor.data.accumulated, thresholds) for tensor in tensors]
    for record, output in zip(case.record.outputs, outputs, strict=True):
        if output.columns.spoiled:
            for i in record.carriers:
                degraded[i] = True
    return degraded


def _worst_of_outputs(case: Case, outputs: tuple[OutputFacts, ...]) -> dict[int, float]:
    """By the tensors that hold the columns of a network output: the level of its worst column or operand."""
    worst: dict[int, float] = {}
    for record, output in zip(case.record.outputs, outputs, strict=True):
        level = output.columns.worst_sqnr_db
        if level is not None:
            worst |= {i: min(level, worst.get(i, math.inf)) for i in record.carriers}
    return worst


def is_degraded(error: ErrorFacts, thresholds: Thresholds) -> bool | None:
    """Over one of the error thresholds, each in its own direction; None where nothing was measured."""
    if error.mse is None:
        return None
    limits = (
        (error.mse, "quantize_error_mse", 1),
        (error.nmse, "quantize_error_nmse", 1),
        (error.cosine, "quantize_error_cosine", -1),
        (error.sqnr_db, "quantize_error_sqnr_db", -1),
    )
    return any(v is not None and sign * (v - thresholds.threshold(name)) > 0 for v, name, sign in limits)


def _operand_facts(case: Case, tensors: tuple[TensorFacts, ...]) -> list[OperandFacts]:
    rows: list[dict[str, Any]] = []
    pairs: list[tuple[dict[str, Any], str, int, Grid]] = []
    for op in case.record.operators:
        inputs = [(i, tensors[i], tensors[i].data.values) for i in op.inputs if i is not None]
        if op.op_type not in JOINING or len(inputs) < 2:
            continue
        output = next((tensors[i] for i in op.outputs if i is not None), None)
        joint = grid_of(output.quantizer) if output is not None else None
        bits = output.quantizer.bits if output is not None else None
        widest = max(values.width_with_zero or 0.0 for _, _, values in inputs)
        for position, (i, tensor, values) in enumerate(inputs):
            width = values.width
            row = {
                "layer": op.name,
                "op_type": op.op_type,
                "index": position,
                "tensor": tensor.float_name,
                "width": width,
                "range_ratio": ratio(widest, width),
                "levels": ratio(width, joint.step if joint is not None else None),
                "joint_source": output.source if output is not None else SourceFacts(),
            }
            rows.append(row)
            own = _own_grid(tensor, bits)
            if joint is not None and own is not None:
                pairs += [(row, "joint_sqnr_db", i, joint), (row, "own_sqnr_db", i, own)]
    grids = [(i, grid) for _, _, i, grid in pairs]
    predicted = predicted_sqnr(case, main_role(case), grids) if grids else []
    for (row, name, _, _), value in zip(pairs, predicted, strict=True):
        row[name] = value
    return [OperandFacts(**row) for row in rows]


def _own_grid(tensor: TensorFacts, bits: int | None) -> Grid | None:
    """The min-max grid of an operand's values; None where it is unknown or has no step."""
    values = tensor.data.values
    if not bits or values.min is None or values.max is None:
        return None
    grid = Grid.over(values.min, values.max, bits, symmetric=False)
    return grid if grid.step > 0 else None


def _output_facts(case: Case, position: int, tensors: tuple[TensorFacts, ...], thresholds: Thresholds) -> OutputFacts:
    record = case.record.outputs[position]
    tensor = tensors[record.tensor] if record.tensor is not None else TensorFacts()
    known: dict[str, Any] = {
        "name": record.name,
        "tensor": tensor,
        "is_integer": tensor.quantizer.scale is not None,
        "step": tensor.quantizer.scale,
        "is_codes": record.is_codes,
    }
    statistics = case.statistics.get(main_role(case))
    if statistics is None:
        return OutputFacts(**known)
    slots = [r.tensor for r in case.record.outputs if r.columns]
    used = statistics.codes[slots.index(record.tensor)] if record.columns else None
    step = tensor.quantizer.scale
    samples = statistics.samples
    margins = samples["margin"][np.isfinite(samples["margin"])] if position == 0 else np.zeros(0)
    classified = samples["class_float"] >= 0 if position == 0 else np.zeros(0, bool)
    margin = float(np.median(margins)) if margins.size else None
    return OutputFacts(
        **known,
        distinct_levels_worst_column=int(used.sum(axis=1).min()) if used is not None else None,
        levels=ratio(tensor.data.values.width, step),
        margin_median=margin,
        step_over_margin=ratio(step, margin),
        tie_share=float(samples["tie"][classified].mean()) if classified.any() else None,
        affine=affine_facts(statistics.comparisons.get(f"output.{position}")),
        ending=ending_facts(statistics.comparisons, position),
        columns=_column_facts(case, position, tensor, thresholds, classes=bool(classified.any())),
    )


def _column_facts(
    case: Case, position: int, tensor: TensorFacts, thresholds: Thresholds, *, classes: bool
) -> OutputColumnFacts:
    """An output column by column; unknown where it is not as measured."""
    record, comparisons = case.record.outputs[position], case.statistics[main_role(case)].comparisons
    if record.tensor is not None and tensor.data.accumulated.mse is None:
        return OutputColumnFacts()
    for key, by_operand in (("column", False), ("operand", True)):
        if (found := comparisons.get(f"{key}.{position}")) is not None:
            return output_column_facts(record, found, by_operand=by_operand, classes=classes, limits=thresholds)
    return OutputColumnFacts()


def _facts_of_model(
    case: Case,
    thresholds: Thresholds,
    layers: tuple[LayerFacts, ...],
    tensors: tuple[TensorFacts, ...],
    outputs: tuple[OutputFacts, ...],
) -> ModelFacts:
    judged = [layer.degraded for layer in layers if layer.degraded is not None]
    path = [layer.output.data.accumulated.sqnr_db for layer in layers]
    falls = [s for s in path if s is not None and math.isfinite(s)]
    first, where = first_nonfinite(case, layers)
    samples = case.statistics[main_role(case)].samples if case.statistics else np.zeros(0, SAMPLE_DTYPE)
    classified = samples[samples["class_float"] >= 0]
    metric = with_label_fit(metric_facts(case), case, thresholds)
    same = classified["class_float"] == classified["class_quantized"]
    agreement = float(same.mean()) if same.size else None
    update = {
        **budget_of_model(case),
        "half_share": _known_share([tensor.is_half for tensor in tensors]),
        "degraded_layers": sum(judged) if judged else None,
        "degraded_share": sum(judged) / len(judged) if judged else None,
        "rounding_sqnr_min_db": _least(t.data.rounding.sqnr_db for t in tensors if t.producer != "Input"),
        "weight_sqnr_min_db": _least(layer.weight.rounding.sqnr_db for layer in layers),
        "output_sqnr_db": _least(o.tensor.data.accumulated.sqnr_db for o in outputs),
        "output_agreement": agreement,
        "sqnr_slope_db": float(np.polyfit(np.arange(len(falls)), falls, 1)[0] * len(falls)) if len(falls) > 2 else None,
        "sqnr_worst_step_db": _worst_step(case, tensors),
        "first_nonfinite_layer": first,
        "nonfinite_in": where,
        "float_nonfinite": bool(nonfinite_tensors(case, "nonfinite")),
        "nonfinite_output": which_models(bool(samples["bad_float"].any()), bool(samples["bad_quantized"].any())),
        "input_nonfinite": any(bool((s.samples["nonfinite"] > 0).any()) for s in case.statistics.values()),
        "dead_output": _dead_output(classified),
        "metric": metric,
        "output_worst_sqnr_db": _least(o.worst_sqnr_db for o in outputs),
        "harmed": _is_harmed(case, metric, _agreement_of_classes(case, agreement), outputs, thresholds),
        "power_of_two_share": _known_share([tensor.quantizer.power_of_two for tensor in tensors]),
        **reported_facts(layers, case.record.model),
        **outside_facts(case, layers),
    }
    if not case.statistics:  # Nothing was run, so that no NaN could be seen.
        update |= dict.fromkeys(("float_nonfinite", "nonfinite_in", "nonfinite_output", "input_nonfinite"))
    update["checkpoint"] = with_layers(case.record.model.checkpoint, layers, thresholds)
    update["language"] = with_share_of_blocks(case.record.model.language)
    if (bad := case.record.model.language.nonfinite_tokens) is not None:
        update |= {"nonfinite_output": "quantized" if bad else "none", "harmed": bool(bad) or update["harmed"]}
    return case.record.model.model_copy(update=update)


def _worst_step(case: Case, tensors: tuple[TensorFacts, ...]) -> float | None:
    """Largest fall of the accumulated SQNR from an operator's worst input to its output."""
    falls = []
    for op in case.record.operators:
        before = _least(tensors[i].data.accumulated.sqnr_db for i in op.inputs if i is not None)
        after = _least(tensors[i].data.accumulated.sqnr_db for i in op.outputs if i is not None)
        if before is not None and after is not None and math.isfinite(before) and math.isfinite(after):
            falls.append(before - after)
    return max(falls, default=None)


def _agreement_of_classes(case: Case, agreement: float | None) -> float | None:
    """The agreement, unless scores stand beside something else in the first output: those columns are no classes."""
    if agreement is None or not case.record.outputs:
        return agreement
    found = case.statistics[main_role(case)].comparisons.get("column.0")
    return None if mixes_scores(parts_of(case.record.outputs[0], found)) else agreement


def _is_harmed(
    case: Case,
    metric: MetricFacts,
    agreement: float | None,
    outputs: tuple[OutputFacts, ...],
    thresholds: Thresholds,
) -> bool | None:
    """Measured harm: by the task metric, by a column that is dead, by classes that change, or by noise at an output."""
    if metric.drop_low is not None and metric.drop_low > 0:
        size = metric.drop if is_share(metric.name) else metric.relative_drop
        if size is not None and size > thresholds.threshold("drop_moderate"):
            return True
    if any(output.columns.dead for output in outputs):
        return True
    if agreement is not None:
        return agreement < thresholds.threshold("harmed_agreement") or any(o.columns.spoiled for o in outputs)
    found = [_is_noisy(case, position, output, thresholds) for position, output in enumerate(outputs)]
    if all(noisy is None for noisy in found):
        return None if metric.drop_low is None else False
    return metric.drop_low is None and any(found)


def _is_noisy(case: Case, position: int, output: OutputFacts, thresholds: Thresholds) -> bool | None:
    """An output without class scores, or a channel of it, carries too much noise; None where that was not measured."""
    record, error, columns = case.record.outputs[position], output.tensor.data.accumulated, output.columns
    if columns.spoiled is not None and has_selected_rows(record):
        return columns.spoiled
    if columns.spoiled is None:
        worst = _least((error.sqnr_db, error.worst_channel_sqnr_db))
    else:
        worst = _least((error.sqnr_db, columns.worst_sqnr_db if columns.spoiled else None))
    if worst is None:
        return None
    if columns.spoiled or worst < thresholds.threshold("quantize_error_sqnr_db"):
        return True
    if record.tensor is None or error.mse is None or columns.operands:
        return False
    return has_lost_channels(case, record.tensor)


def _dead_output(classified: SampleTable) -> bool | None:
    if classified.size < 16:
        return None
    return len(np.unique(classified["class_quantized"])) == 1 and len(np.unique(classified["class_float"])) > 1


def _known_share(flags: Sequence[bool | None]) -> float | None:
    """Share of true ones among those that are known."""
    known = [flag for flag in flags if flag is not None]
    return sum(known) / len(known) if known else None


def _least(values: Iterable[float | None]) -> float | None:
    return min((v for v in values if v is not None), default=None)


def first_nonfinite(case: Case, layers: tuple[LayerFacts, ...]) -> tuple[str | None, Models]:
    """First layer, in topological order, that only the quantized model spoils; else the first spoiled in any."""
    spoiled: list[tuple[str | None, Models]] = []
    bad_float, bad_quantized = nonfinite_tensors(case, "nonfinite"), nonfinite_tensors(case, "accumulated.nonfinite")
    for op, layer in zip(case.record.operators, layers, strict=True):
        for index in op.outputs:
            if index in bad_float or index in bad_quantized:
                spoiled.append((layer.name, which_models(index in bad_float, index in bad_quantized)))
    own = [found for found in spoiled if found[1] == "quantized"]
    return (own or spoiled or [(None, "none")])[0]


def nonfinite_tensors(case: Case, column: str) -> set[int | None]:
    """Tensors of which a count is not zero on any data set."""
    found: set[int | None] = set()
    for statistics in case.statistics.values():
        found |= set(np.flatnonzero(per_tensor(np.add, statistics.columns[column], statistics.offsets)).tolist())
    return found


def which_models(in_float: bool, in_quantized: bool) -> Models:
    """The word for it."""
    if in_float and in_quantized:
        return "both"
    return "float" if in_float else "quantized" if in_quantized else "none"

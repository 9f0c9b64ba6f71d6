"""From a case to its facts: formulas only, every number from the accumulators."""

import math
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from quantmedic.engine.case import Case, OperatorRecord, SetStatistics, TensorRecord, TensorStatistics
from quantmedic.engine.datasets import dataset_facts, metric_facts
from quantmedic.engine.diagnosis import Histogram
from quantmedic.engine.facts import (
    ROLES,
    CaseFacts,
    ClippingFacts,
    DistributionFacts,
    ErrorFacts,
    LayerFacts,
    MetricFacts,
    ModelFacts,
    OperandFacts,
    OutputFacts,
    QuantizerFacts,
    Role,
    TensorDataFacts,
    TensorFacts,
)
from quantmedic.engine.histogram import Bins
from quantmedic.engine.rule import RuleBase
from quantmedic.engine.simulate import Grid, best_grid, sqnr_db

#: Channels with less than this share of the loudest channel's power are not judged for their own error.
AUDIBLE = 1e-4
_JOINING = ("Concat", "Add")
#: Steps upstream that still belong to the group around an operator, such as the pieces of a layer norm.
FEEDER_STEPS = 3
#: Bins of a histogram that a report shows.
DISPLAY_BINS = 64


def derive(case: Case, base: RuleBase) -> CaseFacts:
    """All facts of a case; ``base`` supplies the thresholds of degraded layers."""
    tensors = tuple(_tensor_facts(case, i) for i in range(len(case.record.tensors)))
    return assemble(case, base, tensors)


def assemble(case: Case, base: RuleBase, tensors: tuple[TensorFacts, ...]) -> CaseFacts:
    """The views of all scopes over the given tensor facts (measured, or as they would be after a repair)."""
    writers = {i: op for op in case.record.operators for i in op.outputs if i is not None}
    layers = tuple(_layer_facts(op, tensors, base, writers) for op in case.record.operators)
    outputs = tuple(_output_facts(case, i, tensors) for i in range(len(case.record.outputs)))
    return CaseFacts(
        model=_model_facts(case, base, layers, tensors, outputs),
        datasets=tuple(dataset_facts(case, role, tensors) for role in ROLES),
        layers=layers,
        tensors=tensors,
        operands=tuple(_operands(case, tensors)),
        outputs=outputs,
    )


def main_role(case: Case) -> Role:
    """The data set that the facts under ``data`` come from: validation where there is one."""
    return "validation" if "validation" in case.statistics else "representative"


def tensor_bins(case: Case, role: Role, index: int) -> Bins | None:
    """Histogram of a float tensor on one data set; None where nothing finite was seen."""
    statistics = case.statistics.get(role)
    if statistics is None or index not in statistics.histograms:
        return None
    view = statistics.tensor(index)
    if not view.count.sum():
        return None
    return Bins.of(view.histogram, float(view.min.min()), float(view.max.max()))


def grid_of(quantizer: QuantizerFacts) -> Grid | None:
    """The per-tensor grid of a quantizer; None for per-channel, dynamic and missing ones."""
    if quantizer.low is None or quantizer.high is None or not quantizer.scale:
        return None
    return Grid(quantizer.low, quantizer.high, quantizer.scale)


def _tensor_facts(case: Case, index: int) -> TensorFacts:
    record = case.record.tensors[index]
    data = {role: _data_facts(case, role, index) for role in case.statistics}
    main = data[main_role(case)]
    values, quantizer = main.values, record.quantizer
    reach = None if quantizer.low is None or quantizer.high is None else max(-quantizer.low, quantizer.high)
    negative = None if values.min is None else max(-values.min, 0.0)
    return TensorFacts(
        name=record.name,
        float_name=record.float_name,
        producer=record.producer,
        producer_name=record.producer_name,
        consumers=record.consumers,
        channels=record.channels if record.axis is not None else None,
        quantizer=quantizer,
        representative=data.get("representative", TensorDataFacts()),
        validation=data.get("validation", TensorDataFacts()),
        data=main,
        negative_levels=_ratio(negative, quantizer.scale),
        negative_ratio=_ratio(negative, quantizer.high),
        range_excess_bits=_bits(reach, values.abs_p99_99),
        best_sqnr_db=_best_sqnr(case, record, index, main_role(case)),
    )


def _data_facts(case: Case, role: Role, index: int) -> TensorDataFacts:
    statistics, record = case.statistics[role], case.record.tensors[index]
    view = statistics.tensor(index)
    bins = tensor_bins(case, role, index)
    if bins is None:
        nonfinite = int(view.nonfinite.sum())
        return TensorDataFacts(dataset=role, values=DistributionFacts(nonfinite_count=nonfinite))
    scale = record.quantizer.scale
    rounding = error_facts(view.errors["rounding"], scale)
    accumulated = error_facts(view.errors["accumulated"], scale)
    carried = _input_nmse(case, role, index)
    gain, low, high = _predicted_gain(case, record, bins, role)
    return TensorDataFacts(
        dataset=role,
        values=_distribution(view, bins, statistics, index, record),
        rounding=rounding,
        accumulated=accumulated,
        operator=error_facts(view.errors["operator"], scale),
        clipping=_clipping(view, record),
        predicted_best_gain_db=gain,
        predicted_best_low=low,
        predicted_best_high=high,
        amplification=_ratio(accumulated.nmse, carried),
        input_sqnr_db=decibels(carried),
        rounding_share=_ratio(rounding.mse, accumulated.mse),
    )


def error_facts(columns: Mapping[str, NDArray[Any]], scale: float | None) -> ErrorFacts:
    """Errors from the sums of one kind: ``count``, ``sum`` Σd, ``square`` Σd², ``cross`` Σx·d, ``power`` Σx²."""
    count = int(columns["count"].sum())
    if count == 0:
        return ErrorFacts()
    total, square, cross, power = (float(columns[name].sum()) for name in ("sum", "square", "cross", "power"))
    mse, mean = square / count, total / count
    nmse = _defined(square / power) if power > 0 else None
    norm = math.sqrt(power * max(power + 2 * cross + square, 0.0))
    worst, channel = _worst_channel(columns)
    return ErrorFacts(
        mse=mse,
        nmse=nmse,
        sqnr_db=decibels(nmse),
        cosine=_defined(min((power + cross) / norm, 1.0)) if norm > 0 else None,
        mean=mean,
        std=_defined(math.sqrt(max(mse - mean * mean, 0.0))),
        max=float(columns["max"].max()),
        rmse_over_scale=math.sqrt(mse) / scale if scale else None,
        bias_over_std=_bias_over_std(columns),
        worst_channel_sqnr_db=worst,
        worst_channel=channel,
    )


def decibels(nmse: float | None) -> float | None:
    """-10·log10 of a noise-to-signal ratio; inf where there is no noise, None where the ratio is undefined."""
    if nmse is None or math.isnan(nmse):
        return None
    return -10.0 * math.log10(nmse) if nmse > 0 else math.inf


def _defined(value: float) -> float | None:
    """None for what is not a number: inf / inf, or inf - inf, after an overflow."""
    return None if math.isnan(value) else value


def _worst_channel(columns: Mapping[str, NDArray[Any]]) -> tuple[float | None, int | None]:
    power, square = columns["power"], columns["square"]
    if len(power) < 2 or not 0 < power.max() < math.inf:
        return None, None
    audible = power > AUDIBLE * power.max()
    nmse = np.where(audible, square / np.where(power > 0, power, 1.0), -1.0)
    channel = int(nmse.argmax())
    return decibels(float(nmse[channel])), channel


def _bias_over_std(columns: Mapping[str, NDArray[Any]]) -> float | None:
    count = np.maximum(columns["count"], 1)
    mean = columns["sum"] / count
    variance = columns["square"] / count - mean * mean
    known = variance > 0
    return float((np.abs(mean[known]) / np.sqrt(variance[known])).max()) if known.any() else None


def _distribution(
    view: TensorStatistics, bins: Bins, statistics: SetStatistics, index: int, record: TensorRecord
) -> DistributionFacts:
    count = int(view.count.sum())
    low, high = float(view.min.min()), float(view.max.max())
    mean = float((view.count * view.mean).sum() / count)
    m2 = float((view.m2 + view.count * (view.mean - mean) ** 2).sum())
    std = math.sqrt(m2 / count)
    top = max(abs(low), abs(high))
    magnitudes = bins.magnitudes()
    growth, disagreement = _halves(view) if record.bucketed else (None, None)
    abs_p99_99 = magnitudes.quantile(0.9999)
    return DistributionFacts(
        count=count,
        samples=int(statistics.tensor_samples[index]),
        nonfinite_count=int(view.nonfinite.sum()),
        min=low,
        max=high,
        absmax=top,
        mean=mean,
        std=std,
        p0_01=bins.quantile(0.0001),
        p1=bins.quantile(0.01),
        p50=bins.quantile(0.5),
        p99=bins.quantile(0.99),
        p99_99=bins.quantile(0.9999),
        abs_p99_99=abs_p99_99,
        zscore_max=max(high - mean, mean - low) / std if std > 0 else None,
        tail_share=magnitudes.share_above(top / 2) if top > 0 else None,
        range_inflation_bits=_bits(top, abs_p99_99),
        zero_share=float(bins.count[(bins.low == 0) & (bins.high == 0)].sum() / bins.total),
        negative_share=float(bins.count[bins.low < 0].sum() / bins.total),
        channel_absmax_ratio=_channel_ratio(view),
        range_growth=growth,
        halves_disagreement=disagreement,
    )


def _channel_ratio(view: TensorStatistics) -> float | None:
    if len(view.min) < 2:
        return None
    tops = np.maximum(np.abs(view.min), np.abs(view.max))
    tops = tops[np.isfinite(tops)]
    middle = float(np.median(tops)) if tops.size else 0.0
    return float(tops.max()) / middle if middle > 0 else None


def _halves(view: TensorStatistics) -> tuple[float | None, float | None]:
    """Growth and disagreement of the range between even and odd buckets."""
    widths = []
    for half in (slice(0, None, 2), slice(1, None, 2)):
        width = float(view.bucket_max[half].max() - view.bucket_min[half].min())
        if not math.isfinite(width):
            return None, None
        widths.append(width)
    whole = float(view.bucket_max.max() - view.bucket_min.min())
    if whole <= 0:
        return None, None
    return 1.0 - sum(widths) / 2 / whole, abs(widths[0] - widths[1]) / whole


def _clipping(view: TensorStatistics, record: TensorRecord) -> ClippingFacts:
    low, high = record.quantizer.low, record.quantizer.high
    count, square = int(view.errors["rounding"]["count"].sum()), float(view.errors["rounding"]["square"].sum())
    if low is None or high is None or high <= low or not count:
        return ClippingFacts()
    smallest, largest, width = float(view.min.min()), float(view.max.max()), high - low
    return ClippingFacts(
        share=float(view.clipped.sum()) / count,
        energy_share=float(view.clipped_energy.sum()) / square if square > 0 else 0.0,
        overshoot=max(largest - high, low - smallest, 0.0) / width,
        utilisation=max(min(largest, high) - max(smallest, low), 0.0) / width,
    )


def _is_lattice(case: Case, record: TensorRecord) -> bool:
    """8-bit images land on their own grid: noise predicted from a histogram is meaningless for them."""
    return record.is_input and case.record.image_input


def _predicted_gain(
    case: Case, record: TensorRecord, bins: Bins, role: Role
) -> tuple[float | None, float | None, float | None]:
    grid, bits = grid_of(record.quantizer), record.quantizer.bits
    if grid is None or bits is None or _is_lattice(case, record):
        return None, None, None
    best, predicted = best_grid(bins, bits, symmetric=bool(record.quantizer.symmetric and grid.low < 0))
    now = float(sqnr_db(bins, [grid])[0])
    if not math.isfinite(predicted) or not math.isfinite(now):
        return None, None, None
    return max(predicted - now, 0.0), best.low, best.high


def _best_sqnr(case: Case, record: TensorRecord, index: int, role: Role) -> float | None:
    bins = tensor_bins(case, role, index)
    bits = record.quantizer.bits
    if bins is None or bits is None or grid_of(record.quantizer) is None or _is_lattice(case, record):
        return None
    _, predicted = best_grid(bins, bits, symmetric=False)
    return predicted


def _accumulated_nmse(case: Case, role: Role, index: int) -> float | None:
    columns = case.statistics[role].tensor(index).errors["accumulated"]
    power = float(columns["power"].sum())
    return float(columns["square"].sum()) / power if power > 0 else None


def _input_nmse(case: Case, role: Role, index: int) -> float | None:
    """Largest accumulated nmse among the inputs of the operator that writes a tensor."""
    op = next((op for op in case.record.operators if index in op.outputs), None)
    inputs = [_accumulated_nmse(case, role, i) for i in op.inputs if i is not None] if op is not None else []
    return max((nmse for nmse in inputs if nmse is not None), default=None)


def _layer_facts(
    op: OperatorRecord, tensors: tuple[TensorFacts, ...], base: RuleBase, writers: Mapping[int, OperatorRecord]
) -> LayerFacts:
    index = next((i for i in op.outputs if i is not None), None)
    output = tensors[index] if index is not None else TensorFacts()
    degraded = is_degraded(output.data.accumulated, base)
    carried = [is_degraded(tensors[i].data.accumulated, base) for i in op.inputs if i is not None]
    return LayerFacts(
        name=op.name,
        float_name=op.float_name,
        quantized_name=op.quantized_name,
        op_type=op.op_type,
        index=op.index,
        is_compute=op.is_compute,
        is_first=op.is_first,
        is_last=op.is_last,
        executed_as="integer" if op.executed_as == "integer" else "float" if op.executed_as == "float" else None,
        weight=op.weight,
        bias=op.bias,
        output=output,
        degraded=degraded,
        feeders=_feeders(op, writers),
        born=_is_born(degraded, carried, len(carried) < len(op.inputs)),
    )


def _feeders(op: OperatorRecord, writers: Mapping[int, OperatorRecord]) -> tuple[str, ...]:
    """Layers without weights upstream of one: with it, they are the group that a remedy has to cover."""
    found: dict[str, None] = {}
    frontier = [op]
    for _ in range(FEEDER_STEPS):
        inputs = [i for reader in frontier for i in reader.inputs if i is not None and i in writers]
        frontier = [writer for i in inputs if not (writer := writers[i]).is_compute and writer.name != op.name]
        found |= dict.fromkeys(writer.name for writer in frontier)
    return tuple(found)


def _is_born(degraded: bool | None, carried: list[bool | None], unseen: bool) -> bool | None:
    """Degraded here, while all inputs were seen and none is degraded; None where an input was not seen."""
    if not degraded or any(carried):
        return degraded and False
    return None if unseen or None in carried else True


def is_degraded(error: ErrorFacts, base: RuleBase) -> bool | None:
    """Over one of the error thresholds, each in its own direction; None where nothing was measured."""
    if error.mse is None:
        return None
    limits = (
        (error.mse, "quantize_error_mse", 1),
        (error.nmse, "quantize_error_nmse", 1),
        (error.cosine, "quantize_error_cosine", -1),
        (error.sqnr_db, "quantize_error_sqnr_db", -1),
    )
    return any(v is not None and sign * (v - base.threshold(name)) > 0 for v, name, sign in limits)


def _operands(case: Case, tensors: tuple[TensorFacts, ...]) -> list[OperandFacts]:
    rows = []
    for op in case.record.operators:
        inputs = [(i, tensors[i]) for i in op.inputs if i is not None]
        if op.op_type not in _JOINING or len(inputs) < 2:
            continue
        output = next((tensors[i] for i in op.outputs if i is not None), None)
        widths = [_width(tensor) for _, tensor in inputs]
        widest = max((w for w in widths if w is not None), default=0.0)
        for position, ((i, tensor), width) in enumerate(zip(inputs, widths, strict=True)):
            rows.append(_operand(case, op, position, i, tensor, width, widest, output))
    return rows


def _operand(
    case: Case,
    op: OperatorRecord,
    position: int,
    index: int,
    tensor: TensorFacts,
    width: float | None,
    widest: float,
    output: TensorFacts | None,
) -> OperandFacts:
    joint = grid_of(output.quantizer) if output is not None else None
    bins = tensor_bins(case, main_role(case), index)
    joint_db = own_db = None
    if joint is not None and bins is not None and output is not None and output.quantizer.bits:
        own = Grid.over(float(bins.low[0]), float(bins.high[-1]), output.quantizer.bits, symmetric=False)
        if own.step > 0:
            joint_db, own_db = (float(v) for v in sqnr_db(bins, [joint, own]))
    return OperandFacts(
        layer=op.name,
        op_type=op.op_type,
        index=position,
        tensor=tensor.float_name,
        width=width,
        range_ratio=_ratio(widest, width),
        levels=_ratio(width, joint.step if joint is not None else None),
        joint_sqnr_db=joint_db,
        own_sqnr_db=own_db,
    )


def _width(tensor: TensorFacts) -> float | None:
    values = tensor.data.values
    return None if values.max is None or values.min is None else values.max - values.min


def _output_facts(case: Case, position: int, tensors: tuple[TensorFacts, ...]) -> OutputFacts:
    record = case.record.outputs[position]
    tensor = tensors[record.tensor] if record.tensor is not None else TensorFacts()
    role = main_role(case)
    statistics = case.statistics[role]
    slots = [r.tensor for r in case.record.outputs if r.columns]
    used = statistics.codes[slots.index(record.tensor)] if record.columns else None
    step = tensor.quantizer.scale
    samples = statistics.samples
    margins = samples["margin"][np.isfinite(samples["margin"])] if position == 0 else np.zeros(0)
    classified = samples["class_float"] >= 0 if position == 0 else np.zeros(0, bool)
    margin = float(np.median(margins)) if margins.size else None
    return OutputFacts(
        name=record.name,
        tensor=tensor,
        is_integer=step is not None,
        step=step,
        distinct_levels=int(used.any(axis=0).sum()) if used is not None else None,
        distinct_levels_worst_column=int(used.sum(axis=1).min()) if used is not None else None,
        levels=_ratio(_width(tensor), step),
        margin_median=margin,
        step_over_margin=_ratio(step, margin),
        tie_share=float(samples["tie"][classified].mean()) if classified.any() else None,
    )


def _model_facts(
    case: Case,
    base: RuleBase,
    layers: tuple[LayerFacts, ...],
    tensors: tuple[TensorFacts, ...],
    outputs: tuple[OutputFacts, ...],
) -> ModelFacts:
    judged = [layer.degraded for layer in layers if layer.degraded is not None]
    path = [layer.output.data.accumulated.sqnr_db for layer in layers]
    falls = [s for s in path if s is not None and math.isfinite(s)]
    first, where = _first_nonfinite(case, layers)
    samples = case.statistics[main_role(case)].samples
    classified = samples[samples["class_float"] >= 0]
    metric = metric_facts(case)
    same = classified["class_float"] == classified["class_quantized"]
    agreement = float(same.mean()) if same.size else None
    update = {
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
        "nonfinite_output": _which(bool(samples["bad_float"].any()), bool(samples["bad_quantized"].any())),
        "input_nonfinite": any(bool((s.samples["nonfinite"] > 0).any()) for s in case.statistics.values()),
        "dead_output": _dead_output(classified),
        "metric": metric,
        "harmed": _harmed(metric, agreement, outputs, base),
    }
    return case.record.model.model_copy(update=update)


def _first_nonfinite(
    case: Case, layers: tuple[LayerFacts, ...]
) -> tuple[str | None, Literal["none", "float", "quantized", "both"]]:
    """First layer, in topological order, that only the quantized model spoils; else the first spoiled in any."""
    spoiled: list[tuple[str | None, Literal["none", "float", "quantized", "both"]]] = []
    for op, layer in zip(case.record.operators, layers, strict=True):
        for index in op.outputs:
            if index is None:
                continue
            views = [s.tensor(index) for s in case.statistics.values()]
            in_float = any(int(v.nonfinite.sum()) for v in views)
            in_quantized = any(int(v.errors["accumulated"]["nonfinite"].sum()) for v in views)
            if in_float or in_quantized:
                spoiled.append((layer.name, _which(in_float, in_quantized)))
    own = [found for found in spoiled if found[1] == "quantized"]
    return (own or spoiled or [(None, "none")])[0]


def _which(in_float: bool, in_quantized: bool) -> Literal["none", "float", "quantized", "both"]:
    if in_float and in_quantized:
        return "both"
    return "float" if in_float else "quantized" if in_quantized else "none"


def _worst_step(case: Case, tensors: tuple[TensorFacts, ...]) -> float | None:
    """Largest fall of the accumulated SQNR from an operator's worst input to its output."""
    falls = []
    for op in case.record.operators:
        before = _least(tensors[i].data.accumulated.sqnr_db for i in op.inputs if i is not None)
        after = _least(tensors[i].data.accumulated.sqnr_db for i in op.outputs if i is not None)
        if before is not None and after is not None and math.isfinite(before) and math.isfinite(after):
            falls.append(before - after)
    return max(falls, default=None)


def _harmed(
    metric: MetricFacts, agreement: float | None, outputs: tuple[OutputFacts, ...], base: RuleBase
) -> bool | None:
    """Measured harm: by the task metric, by the classes that change, or by the noise at the outputs."""
    if metric.drop_low is not None and metric.drop_low > 0:
        size = metric.drop if metric.name in ("top1", "top5") else metric.relative_drop
        if size is not None and size > base.threshold("drop_moderate"):
            return True
    if agreement is not None:
        return agreement < base.threshold("harmed_agreement")
    errors = [output.tensor.data.accumulated for output in outputs]
    worst = _least(v for e in errors for v in (e.sqnr_db, e.worst_channel_sqnr_db))
    if worst is None:
        return None if metric.drop_low is None else False
    return metric.drop_low is None and worst < base.threshold("quantize_error_sqnr_db")


def _dead_output(classified: NDArray[Any]) -> bool | None:
    if classified.size < 16:
        return None
    return len(np.unique(classified["class_quantized"])) == 1 and len(np.unique(classified["class_float"])) > 1


def _least(values: Any) -> float | None:
    return min((v for v in values if v is not None), default=None)


def _ratio(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None or b <= 0 else a / b


def _bits(reach: float | None, bulk: float | None) -> float | None:
    return None if reach is None or bulk is None or reach <= 0 or bulk <= 0 else math.log2(reach / bulk)


def display_histogram(case: Case, tensor: TensorFacts) -> Histogram | None:
    """At most 64 even bins of a tensor's values, for the report; counts are spread evenly within stored bins."""
    index = next((i for i, t in enumerate(case.record.tensors) if t.name == tensor.name), None)
    role = main_role(case)
    bins = tensor_bins(case, role, index) if index is not None else None
    if bins is None or bins.high[-1] <= bins.low[0]:
        return None
    edges = np.linspace(bins.low[0], bins.high[-1], DISPLAY_BINS + 1)
    below = np.array([bins.total * (1.0 - bins.share_above(edge)) for edge in edges])
    below[0] = 0.0
    counts = np.diff(np.round(below)).astype(int)
    return Histogram(
        layer=tensor.producer_name or tensor.float_name or "?",
        dataset=role,
        edges=tuple(float(e) for e in edges),
        counts=tuple(int(c) for c in np.maximum(counts, 0)),
        low=tensor.quantizer.low,
        high=tensor.quantizer.high,
    )

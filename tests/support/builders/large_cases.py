"""Made-up cases of many layers: most are sound, and some of those that are not are explained by the data."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.pair.weight_arrays import weight_arrays
from quantmedic.engine.case.facts import ROLES, BiasFacts, ErrorFacts, ModelFacts, QuantizerFacts, Role, WeightFacts
from quantmedic.engine.case.histogram import BINS, SHIFT
from quantmedic.engine.case.records import (
    Case,
    CaseRecord,
    DatasetRecord,
    OperatorRecord,
    OutputRecord,
    TensorRecord,
    WeightArrays,
)
from quantmedic.engine.case.statistics import (
    BUCKETS,
    FEATURES,
    SAMPLE_DTYPE,
    SHOWN_BUCKETS,
    SetStatistics,
    TensorStatistics,
)
from quantmedic.engine.case.thumbnails import SIDE, THUMBNAIL_DTYPE, Thumbnails, places_to_keep

Array = NDArray[Any]
SEED = 7
SAMPLES, CLASSES = 256, 10
#: Values drawn per tensor and data set; each stands for so many that were seen.
DRAWN, SEEN_PER_DRAWN = 16_384, 64
#: Weights drawn per output channel.
WEIGHT_DRAWN = 64
#: Operators of one residual block; every CONCAT_EVERYth block joins by Concat.
BLOCK, CONCAT_EVERY = ("Conv", "Relu", "Conv", "Add"), 8
CONV_ATTRIBUTES = {
    "dilations": "1, 1",
    "group": "1",
    "kernel_shape": "3, 3",
    "pads": "1, 1, 1, 1",
    "strides": "1, 1",
}
FAULTS = ("outlier", "clipped", "wide-weights", "noisy")
FAULTY_SHARE = 0.05


def build(layers: int, channels: int | None = None) -> Case:
    """A case of so many layers, of 1 to 512 channels or of a given number."""
    rng = np.random.default_rng(SEED)
    operators = _operators(layers, rng)
    width = (
        np.exp(rng.uniform(0, math.log(512), layers + 1)).astype(int) if channels is None else [channels] * (layers + 1)
    )
    counts = [3, *(int(w) for w in width[1:layers]), CLASSES]
    faults = [rng.choice(FAULTS) if rng.random() < FAULTY_SHARE else "" for _ in counts]
    faults[0] = ""
    sets = {role: SetStatistics.empty(counts, 3, [(CLASSES, 256)]) for role in ROLES}
    tensors = []
    for i, (count, fault) in enumerate(zip(counts, faults, strict=True)):
        positive = i > 0 and operators[i - 1].op_type == "Relu"
        scale = float(np.exp(rng.normal()))
        values = {role: _values(rng, count, positive, scale, fault, role) for role in ROLES}
        quantizer = _quantizer(values["representative"])
        for role in ROLES:
            _observe(rng, values[role], quantizer, sets[role].tensor(i), 12.0 if fault == "noisy" else 36.0)
        tensors.append(_tensor(i, count, quantizer, operators))
    for role, shift in zip(ROLES, (0.0, 0.02), strict=True):
        _fill_set(rng, sets[role], shift)
    weights = [op.model_copy(update={"weight": _weight(op, faults[op.index + 1])}) for op in operators]
    # Numbers of their own, so that what is judged does not change with what is looked at.
    other = np.random.default_rng(SEED + 1)
    arrays = {op.index: _weight_arrays(other, counts[op.index + 1]) for op in operators if op.is_compute}
    return Case(_record(tensors, weights), sets, arrays)


def _operators(layers: int, rng: np.random.Generator) -> list[OperatorRecord]:
    operators: list[OperatorRecord] = []
    for i in range(layers):
        block, place = divmod(i, len(BLOCK))
        last = i == layers - 1
        kind = "Gemm" if last else BLOCK[place]
        if kind == "Add" and block % CONCAT_EVERY == 0:
            kind = "Concat"
        name = f"/features/block.{block}/{kind.lower()}{place}/{kind}"
        operators.append(
            OperatorRecord(
                index=i,
                name=name,
                float_name=name,
                quantized_name=f"{name}_quant",
                op_type=kind,
                inputs=(i, max(i - 3, 0)) if kind in ("Add", "Concat") else (i,),
                outputs=(i + 1,),
                is_compute=kind in ("Conv", "Gemm"),
                is_last=last,
                executed_as="integer",
                operations=1000 * (i + 1),
                time_ms=0.01 * (i % 7 + 1),
                weight=WeightFacts(),
                bias=BiasFacts(),
                attributes=CONV_ATTRIBUTES if kind == "Conv" else {},
            )
        )
    return operators


def _values(
    rng: np.random.Generator, channels: int, positive: bool, scale: float, fault: str, role: Role
) -> NDArray[np.float32]:
    """Activations of one tensor, shape ``[samples, channels, inner]``."""
    shape = (BUCKETS, channels, max(DRAWN // (BUCKETS * channels), 1))
    x = rng.standard_normal(shape, np.float32) * np.exp(0.3 * rng.standard_normal((1, channels, 1), np.float32)) * scale
    if fault == "clipped" and role == "validation":
        x *= 2.5
    if fault == "outlier":
        x[rng.integers(BUCKETS), 0, 0] = 60 * scale
    return np.maximum(x, 0) if positive else x


def _quantizer(values: NDArray[np.float32]) -> QuantizerFacts:
    low, high = min(float(values.min()), 0.0), max(float(values.max()), 1e-3)
    scale = (high - low) / 255
    zero_point = round(-low / scale)
    return QuantizerFacts(
        scale=scale,
        zero_point=zero_point,
        bits=8,
        signed=False,
        symmetric=zero_point == 0,
        granularity="per_tensor",
        low=-zero_point * scale,
        high=(255 - zero_point) * scale,
        dynamic=False,
    )


def _observe(
    rng: np.random.Generator, x: NDArray[np.float32], quantizer: QuantizerFacts, into: TensorStatistics, sqnr_db: float
) -> None:
    """What the collectors would have noted of these values, had they seen each of them many times."""
    wide = x.astype(np.float64)
    into.count[:] = wide[:, 0].size * SEEN_PER_DRAWN
    into.mean[:] = wide.mean(axis=(0, 2))
    into.m2[:] = wide.var(axis=(0, 2)) * into.count
    into.min[:], into.max[:] = wide.min(axis=(0, 2)), wide.max(axis=(0, 2))
    into.histogram += np.bincount(x.ravel().view(np.uint32) >> SHIFT, minlength=BINS) * SEEN_PER_DRAWN
    into.bucket_min[:], into.bucket_max[:] = wide.min(axis=(1, 2)), wide.max(axis=(1, 2))
    scale, low, high = quantizer.scale, quantizer.low, quantizer.high
    assert scale and low is not None and high is not None
    codes = np.round(wide / scale) * scale
    rounded = np.clip(codes, low, high)
    clipped = codes != rounded
    into.clipped[:] = clipped.sum(axis=(0, 2)) * SEEN_PER_DRAWN
    into.clipped_energy[:] = (((rounded - wide) ** 2) * clipped).sum(axis=(0, 2)) * SEEN_PER_DRAWN
    shown = rounded[:SHOWN_BUCKETS].astype(np.float32)
    into.quantized_histogram += np.bincount(shown.ravel().view(np.uint32) >> SHIFT, minlength=BINS) * SEEN_PER_DRAWN
    size = wide.std() * 10 ** (-(sqnr_db + rng.normal() * 3) / 20)
    noisy = rounded + size * rng.standard_normal(x.shape, np.float32)
    for kind, y in (("rounding", rounded), ("accumulated", noisy)):
        d = y - wide
        columns = into.errors[kind]
        columns["count"][:] = into.count
        columns["max"][:] = np.abs(d).max(axis=(0, 2))
        for name, product in (("sum", d), ("square", d * d), ("cross", wide * d), ("power", wide * wide)):
            columns[name][:] = product.sum(axis=(0, 2)) * SEEN_PER_DRAWN


def _tensor(index: int, channels: int, quantizer: QuantizerFacts, operators: list[OperatorRecord]) -> TensorRecord:
    writer = operators[index - 1] if index else None
    return TensorRecord(
        name=f"{writer.name}_output_0_quantized" if writer else "image_quantized",
        float_name=f"{writer.name}_output_0" if writer else "image",
        producer=writer.op_type if writer else "Input",
        producer_name=writer.name if writer else None,
        consumers=tuple(op.op_type for op in operators[index : index + 4] if index in op.inputs),
        axis=1,
        channels=channels,
        bucketed=True,
        is_input=not index,
        quantizer=quantizer,
    )


def _weight(op: OperatorRecord, fault: str) -> WeightFacts:
    if not op.is_compute:
        return WeightFacts()
    bad = fault == "wide-weights"
    return WeightFacts(
        name=f"{op.name}.weight",
        channels=64,
        quantizer=QuantizerFacts(scale=0.01, zero_point=0, bits=8, granularity="per_tensor" if bad else "per_channel"),
        min=-1.0,
        max=1.0,
        mean=0.0,
        std=0.2,
        absmax_over_std=5.0,
        channel_range_ratio=300.0 if bad else 3.0,
        dead_channels=0,
        rounding=ErrorFacts(
            mse=1e-5, nmse=3e-4, sqnr_db=35.0, cosine=0.9998, worst_channel_sqnr_db=4.0 if bad else 30.0
        ),
    )


def _weight_arrays(rng: np.random.Generator, channels: int) -> WeightArrays:
    weights = rng.normal(0, 0.2, (channels, WEIGHT_DRAWN)).astype(np.float32)
    weights *= np.exp(0.3 * rng.standard_normal((channels, 1), np.float32))
    scale = np.abs(weights).max() / np.float32(127)
    found = weight_arrays(weights, np.round(weights / scale) * scale, 0)
    assert found is not None
    return found


def _fill_set(rng: np.random.Generator, into: SetStatistics, drop: float) -> None:
    """Samples, features and codes of one data set."""
    samples = np.zeros(SAMPLES, SAMPLE_DTYPE)
    samples["hash"] = rng.integers(0, 2**63, SAMPLES)
    samples["deviation"], samples["margin"] = 1.0, rng.exponential(2.0, SAMPLES)
    samples["label"] = samples["class_float"] = rng.integers(0, CLASSES, SAMPLES)
    wrong = rng.random(SAMPLES) < 0.1 + drop
    samples["class_quantized"] = np.where(wrong, (samples["label"] + 1) % CLASSES, samples["label"])
    samples["metric_float"], samples["metric_quantized"] = 1.0, ~wrong
    features = rng.standard_normal((SAMPLES, FEATURES))
    into.samples, into.feature_count = samples, SAMPLES
    into.feature_sum, into.feature_outer = features.sum(axis=0), features.T @ features
    into.codes = [np.ones_like(codes) for codes in into.codes]
    into.thumbnails = _thumbnails(samples, drop)
    into.tensor_samples[:] = SAMPLES


def _thumbnails(samples: Array, drop: float) -> Thumbnails:
    """Colour pictures as large and as rich in detail as they can be."""
    table = np.zeros(len(samples), THUMBNAIL_DTYPE)
    table["hash"], table["deviation"], table["scale"] = samples["hash"], samples["deviation"], 1.0
    table = table[places_to_keep(table)]
    rng = np.random.default_rng(SEED)
    shades = np.add.outer(np.linspace(0, 1, SIDE), np.linspace(0, 2, SIDE))[..., np.newaxis] * (1.0, 0.7, 0.4)
    noise = rng.normal(0, 0.1, (len(table), SIDE, SIDE, 3))
    return Thumbnails(table, [(shades + drop + each).astype(np.float16) for each in noise])


def _record(tensors: list[TensorRecord], operators: list[OperatorRecord]) -> CaseRecord:
    return CaseRecord(
        quantmedic_version="0",
        model=ModelFacts(
            name="large.onnx",
            framework="onnx",
            format="QDQ",
            toolchain="onnx.quantize",
            operators=len(operators),
            quantized_share=1.0,
            integer_share=1.0,
            float_is_quantized=False,
        ),
        tensors=tuple(tensors),
        operators=tuple(operators),
        outputs=(
            OutputRecord(name="scores", tensor=len(tensors) - 1, quantizer=tensors[-1].quantizer, columns=CLASSES),
        ),
        input_tensor=0,
        image_input=False,
        metric="top1",
        metric_higher_is_better=True,
        unmatched=(),
        notices=(),
        run={"seed": 0},
        datasets={role: DatasetRecord(origin=f"{role}.npz", labelled=True, seen=SAMPLES) for role in ROLES},
    )

"""Cases and histograms of values that were measured here, without the models that they came from."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from builders import plain_loops as reference
from quantmedic.engine.case.facts import BiasFacts, ModelFacts, QuantizerFacts, WeightFacts
from quantmedic.engine.case.histogram import BINS, SHIFT, Bins
from quantmedic.engine.case.records import Case, CaseRecord, DatasetRecord, OperatorRecord, OutputRecord, TensorRecord
from quantmedic.engine.case.statistics import BUCKETS, SAMPLE_DTYPE, SetStatistics

#: Samples of a chain.
N = 32


def counts_of(values: Any) -> Any:
    """How many values fall into each bin of a stored histogram."""
    return np.bincount(np.asarray(values, np.float32).ravel().view(np.uint32) >> SHIFT, minlength=BINS)


def bins_of(values: Any) -> Bins:
    return Bins.of(counts_of(values), float(np.min(values)), float(np.max(values)))


def case_of_sets(
    statistics: Mapping[str, SetStatistics], quantizer: QuantizerFacts | None = None, **fields: Any
) -> Case:
    """A case of sets; the first tensor of each is the input of the network, the others have no operator behind them."""
    channels = next(iter(statistics.values())).channels
    known = {
        "tensors": tuple(_tensor(i, int(n), quantizer or QuantizerFacts()) for i, n in enumerate(channels)),
        "input_tensor": 0,
        "image_input": True,
        "datasets": {
            role: DatasetRecord(origin="x.npz", labelled=False, seen=len(own.samples), complete=True)
            for role, own in statistics.items()
        },
    }
    record = CaseRecord.of_files("0", ModelFacts(), (), {})
    return Case(record.model_copy(update={**known, **fields}), dict(statistics))  # type: ignore[arg-type]


def _tensor(place: int, channels: int, quantizer: QuantizerFacts, **fields: Any) -> TensorRecord:
    known: dict[str, Any] = {"producer": "Conv" if place else "Input", "producer_name": None, **fields}
    return TensorRecord(
        name=f"t{place}",
        float_name=f"f{place}",
        consumers=(),
        axis=1,
        channels=channels,
        bucketed=True,
        is_input=place == 0,
        quantizer=quantizer,
        **known,
    )


def per_tensor(low: float, high: float, bits: int = 8) -> QuantizerFacts:
    scale = (high - low) / (2**bits - 1)
    fields: dict[str, Any] = {"scale": scale, "bits": bits, "low": low, "high": high, "zero_point": round(-low / scale)}
    return QuantizerFacts(**fields, symmetric=False, granularity="per_tensor")


def chain_operator(index: int, name: str, op_type: str, inputs: tuple[int, ...]) -> OperatorRecord:
    return OperatorRecord(
        index=index,
        name=name,
        float_name=name,
        quantized_name=name,
        op_type=op_type,
        inputs=inputs,
        outputs=(index + 1,),
        is_compute=op_type == "Conv",
        is_last=False,
        executed_as="integer",
        weight=WeightFacts(),
        bias=BiasFacts(),
    )


OPERATORS = (
    chain_operator(0, "conv", "Conv", (0,)),
    chain_operator(1, "relu", "Relu", (1,)),
    chain_operator(2, "join", "Concat", (1, 2)),
)
#: Ranges that hold all values of a chain.
WIDE = [per_tensor(-5, 5), per_tensor(-16, 16), per_tensor(0, 16), per_tensor(-16, 16)]


def chain_values(seed: int = 0) -> list[Any]:
    """Float values ``[N, channels, inner]`` of a chain: its input, and what each of its operators gives."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(N, 2, 30)).astype(np.float32)
    y = (3 * rng.normal(size=(N, 3, 30)) - 1).astype(np.float32)
    z = np.maximum(y, 0)
    return [x, y, z, np.concatenate([y, z], axis=1)]


def chain_case(
    values: list[Any], quantizers: list[QuantizerFacts], noise: list[float] | None = None, *, samples: Any = None
) -> Case:
    """A chain input → conv → relu → join(conv, relu), or its beginning, with these values, noisy as deployed."""
    statistics = SetStatistics.empty([x.shape[1] for x in values])
    rng = np.random.default_rng(9)
    for i, (x, quantizer) in enumerate(zip(values, quantizers, strict=False)):
        into = statistics.tensor(i)
        reference.observe_values(x, into, np.arange(N) % BUCKETS)
        if quantizer.scale and quantizer.low is not None and quantizer.high is not None:
            ones = np.ones(x.shape[1], np.float32)
            low, high = round(quantizer.low / quantizer.scale), round(quantizer.high / quantizer.scale)
            reference.observe_rounding(x, ones * np.float32(quantizer.scale), low * ones, high * ones, into)
        if noise:
            y = x + np.float32(noise[i]) * rng.normal(size=x.shape).astype(np.float32)
            reference.observe_error(x, y, into, "accumulated")
    statistics.tensor_samples[:] = N
    statistics.samples = np.zeros(N, SAMPLE_DTYPE) if samples is None else samples
    if samples is None:
        statistics.samples["class_float"] = statistics.samples["class_quantized"] = -1
        statistics.samples["margin"] = np.nan
    operators = OPERATORS[: len(values) - 1]
    makers = [("Input", None), *((operator.op_type, operator.name) for operator in operators)]
    tensors = tuple(
        _tensor(i, x.shape[1], quantizer, producer=producer, producer_name=name)
        for i, (x, quantizer, (producer, name)) in enumerate(zip(values, quantizers, makers, strict=False))
    )
    last = len(values) - 1
    outputs = (OutputRecord(name="y", tensor=last, quantizer=quantizers[last], columns=0),)
    return case_of_sets(
        {"validation": statistics}, tensors=tensors, operators=operators, outputs=outputs, image_input=False
    )

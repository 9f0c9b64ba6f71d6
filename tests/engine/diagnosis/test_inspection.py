"""What is known of a layer beyond its facts, against plain numpy on the values themselves."""

from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders.properties import examples
from hypothesis import example, given
from hypothesis import strategies as st

from quantmedic.collectors.statistics import numpy_loops as reference
from quantmedic.engine.case.facts import BiasFacts, ModelFacts, QuantizerFacts, WeightFacts
from quantmedic.engine.case.histogram import BINS, SHIFT
from quantmedic.engine.case.records import Case, CaseRecord, DatasetRecord, OperatorRecord, TensorRecord, WeightArrays
from quantmedic.engine.case.statistics import BUCKETS, SAMPLE_DTYPE, SetStatistics
from quantmedic.engine.diagnosis.inspection import Inspection
from quantmedic.engine.formulas.derive import derive
from quantmedic.engine.formulas.spreads import CHANNELS, SPREAD_BINS, Spread
from quantmedic.engine.formulas.tensor_histogram import display_histogram
from quantmedic.engine.rules.load import load_rules
from quantmedic.engine.rules.rule import Rule

few = examples(40)
BASE = load_rules([Path(str(files("quantmedic.rules")))])
N = 32


def per_tensor(low: float, high: float, bits: int = 8) -> QuantizerFacts:
    scale = (high - low) / (2**bits - 1)
    return QuantizerFacts(scale=scale, bits=bits, low=low, high=high, granularity="per_tensor")


WIDE = [per_tensor(-5, 5), per_tensor(-16, 16), per_tensor(0, 16), per_tensor(-16, 16)]


def chain(seed: int = 0) -> list[Any]:
    """Values of an input and of three operators behind it."""
    rng = np.random.default_rng(seed)
    y = (3 * rng.normal(size=(N, 3, 30)) - 1).astype(np.float32)
    z = np.maximum(y, 0)
    return [rng.normal(size=(N, 2, 30)).astype(np.float32), y, z, np.concatenate([y, z], axis=1)]


def case_of(values: list[Any], quantizers: list[QuantizerFacts], noise: list[float] | None = None) -> Case:
    """A chain of operators with these float values ``[N, channels, inner]``, noisy as deployed."""
    statistics = SetStatistics.empty([x.shape[1] for x in values])
    rng = np.random.default_rng(9)
    for i, x in enumerate(values):
        reference.observe_values(x, statistics.tensor(i), np.arange(N) % BUCKETS)
        if noise:
            y = x + np.float32(noise[i]) * rng.normal(size=x.shape).astype(np.float32)
            reference.observe_error(x, y, statistics.tensor(i), "accumulated")
    statistics.tensor_samples[:] = N
    statistics.samples = np.zeros(N, SAMPLE_DTYPE)
    statistics.samples["class_float"] = statistics.samples["class_quantized"] = -1
    statistics.samples["margin"] = np.nan
    tensors = tuple(
        TensorRecord(
            name=f"t{i}",
            float_name=f"f{i}",
            producer="Conv" if i else "Input",
            producer_name=f"conv{i - 1}" if i else None,
            consumers=(),
            axis=1,
            channels=x.shape[1],
            bucketed=True,
            is_input=i == 0,
            quantizer=quantizer,
        )
        for i, (x, quantizer) in enumerate(zip(values, quantizers, strict=False))
    )
    operators = tuple(
        OperatorRecord(
            index=i,
            name=f"conv{i}",
            float_name=f"conv{i}",
            quantized_name=f"conv{i}",
            op_type="Conv",
            inputs=(i,),
            outputs=(i + 1,),
            is_compute=True,
            is_first=i == 0,
            is_last=False,
            executed_as="integer",
            weight=WeightFacts(),
            bias=BiasFacts(),
        )
        for i in range(len(values) - 1)
    )
    record = CaseRecord(
        quantmedic_version="0",
        model=ModelFacts(),
        tensors=tensors,
        operators=operators,
        outputs=(),
        input_tensor=0,
        image_input=False,
        metric=None,
        metric_higher_is_better=None,
        unmatched=(),
        notices=(),
        run={},
        datasets={"validation": DatasetRecord(origin="x", labelled=False, seen=N)},
    )
    return Case(record, {"validation": statistics})


def inspect(case: Case) -> Inspection:
    return Inspection(case, derive(case, BASE), BASE)


def stored(values: Any) -> Any:
    return np.bincount(np.asarray(values, np.float32).ravel().view(np.uint32) >> SHIFT, minlength=BINS)


def with_quantized(case: Case, values: dict[int, Any]) -> Case:
    statistics = case.statistics["validation"]
    histograms = {tensor: stored(quantized) for tensor, quantized in values.items()}
    statistics.quantized_histograms = histograms  # type: ignore[attr-defined,unused-ignore]
    return case


def edges_of(spread: Spread) -> Any:
    return np.linspace(spread.start, spread.stop, SPREAD_BINS + 1)


@given(st.integers(0, 2**32))
@few
def test_a_spread_counts_the_values_within_one_stored_bin(seed: int) -> None:
    values = chain(seed)
    inspection = inspect(case_of(values, WIDE))
    for place, detail in enumerate(inspection.details([0, 1, 2])):
        spread, x = detail.spreads["validation"], values[place + 1].ravel().astype(np.float64)
        assert sum(spread.floats) == x.size
        assert (spread.start, spread.stop) == (x.min(), x.max())
        for edge, below in zip(edges_of(spread)[1:-1], np.cumsum(spread.floats), strict=False):
            slack = np.abs(edge) / 8 + 1e-9
            assert np.sum(x < edge - slack) - 1 <= below <= np.sum(x <= edge + slack) + 1


def test_a_spread_is_the_histogram_of_the_report() -> None:
    case = case_of(chain(), WIDE)
    inspection = inspect(case)
    for place, detail in enumerate(inspection.details([0, 1, 2])):
        known = display_histogram(case, inspection.facts.tensors[place + 1])
        assert known is not None
        assert detail.spreads["validation"].floats == known.counts
        assert (detail.spreads["validation"].low, detail.spreads["validation"].high) == (known.low, known.high)


def test_details_do_not_depend_on_what_else_is_asked_for() -> None:
    inspection = inspect(case_of(chain(), WIDE, [0.1, 0.1, 0.1, 0.1]))
    together = inspection.details([2, 0, 1])
    assert [inspection.details([place])[0] for place in (2, 0, 1)] == together
    assert inspection.details([]) == []


@given(st.integers(0, 2**32), st.sampled_from([8, 6, 4]))
@example(3841, 8)  # a value beyond the range: a deployed model has no code for it
@few
def test_quantized_values_stand_for_the_step_around_them(seed: int, bits: int) -> None:
    values = chain(seed)
    quantizers = [*WIDE[:1], per_tensor(-16, 16, bits), *WIDE[2:]]
    scale, reach = quantizers[1].scale, quantizers[1].high
    assert scale is not None
    assert reach is not None
    last = np.floor(reach / scale)
    codes = np.clip(np.round(values[1].astype(np.float64) / scale), -last, last)
    case = with_quantized(case_of(values, quantizers), {1: codes * scale})
    (detail,) = inspect(case).details([0])
    spread = detail.spreads["validation"]
    assert spread.quantized is not None
    assert sum(spread.quantized) == codes.size
    assert spread.start <= min((codes.min() - 0.5) * scale, values[1].min())
    assert spread.stop >= max((codes.max() + 0.5) * scale, values[1].max())
    for edge, below in zip(edges_of(spread)[1:-1], np.cumsum(spread.quantized), strict=False):
        # Codes that share a stored bin, an eighth of their size, are spread evenly over it.
        slack = np.abs(edge) / 7 + 0.5 * scale
        assert np.sum(codes * scale < edge - slack) - 1 <= below <= np.sum(codes * scale <= edge + slack) + 1


def test_few_codes_are_counted_exactly() -> None:
    values = [*chain()[:1], np.tile(np.array([-1, 0, 0, 0, 1, 2], np.float32), 80).reshape(32, 3, 5)]
    grid = QuantizerFacts(scale=1.0, bits=2, low=-1.0, high=2.0, zero_point=1, granularity="per_tensor")
    case = with_quantized(case_of(values, [WIDE[0], grid]), {1: [-1] * 10 + [0] * 20 + [-0.0] * 4 + [2]})
    spread = inspect(case).details([0])[0].spreads["validation"]
    assert spread.quantized is not None
    assert (spread.start, spread.stop) == (-1.5, 2.5)
    assert np.reshape(spread.quantized, (4, 16)).sum(axis=1).tolist() == [10, 24, 0, 1]
    assert np.reshape(spread.floats, (4, 16)).sum(axis=1).tolist() == [80, 240, 80, 80]


def test_broken_models_reach_far_and_what_was_not_counted_is_left_out() -> None:
    values = chain()
    case = with_quantized(case_of(values, WIDE), {1: [1e30, -2.0], 2: []})
    first, second, third = (detail.spreads["validation"] for detail in inspect(case).details([0, 1, 2]))
    assert first.stop >= 1e30
    assert first.quantized is not None
    assert sum(first.quantized) == 2
    assert second.quantized is None
    assert third.quantized is None


def test_a_constant_has_no_distribution_and_a_grid_per_channel_no_range() -> None:
    values = chain()[:2]
    values[1] = np.full_like(values[1], 0.5)
    (detail,) = inspect(case_of(values, WIDE)).details([0])
    assert detail.spreads == {}
    grid = QuantizerFacts(scale=0.1, scale_min=0.05, bits=8, granularity="per_channel", axis=1)
    case = case_of(chain()[:2], [WIDE[0], WIDE[1]])
    tensors = (case.record.tensors[0], case.record.tensors[1].model_copy(update={"quantizer": grid}))
    case.record = case.record.model_copy(update={"tensors": tensors})
    (detail,) = inspect(case).details([0])
    assert (detail.spreads["validation"].low, detail.spreads["validation"].high) == (None, None)


# Channels


def test_channels_are_ordered_by_their_own_error() -> None:
    rng = np.random.default_rng(3)
    x = (rng.normal(size=(32, 5, 30)) * np.array([1, 100, 10, 1e-3, 0]).reshape(-1, 1)).astype(np.float32)
    case = case_of([*chain()[:1], x], WIDE, [0.1, 0.1])
    statistics = case.statistics["validation"].tensor(1).errors["accumulated"]
    channels = inspect(case).details([0])[0].channels["validation"]
    # The fourth is too quiet to be judged, the last carries nothing.
    assert channels.index == (0, 2, 1, 3, 4)
    assert channels.total == 5
    assert channels.low == tuple(float(x[:, i].min()) for i in channels.index)
    assert channels.high == tuple(float(x[:, i].max()) for i in channels.index)
    for place, i in enumerate(channels.index[:-1]):
        expected = -10 * np.log10(statistics["square"][i] / statistics["power"][i])
        assert channels.sqnr_db[place] == pytest.approx(expected)
    assert channels.sqnr_db[-1] is None


def test_the_worst_of_many_channels_are_kept() -> None:
    x = np.random.default_rng(4).normal(size=(32, CHANNELS + 44, 2)).astype(np.float32)
    channels = inspect(case_of([*chain()[:1], x], WIDE, [0.1, 0.1])).details([0])[0].channels["validation"]
    assert len(channels.index) == len(channels.low) == len(set(channels.index)) == CHANNELS
    assert channels.total == CHANNELS + 44
    levels = [level for level in channels.sqnr_db if level is not None]
    assert levels == sorted(levels)


# Weights


def weights(sqnr_db: list[float]) -> WeightArrays:
    n = len(sqnr_db)
    return WeightArrays(
        index=np.arange(n) * 10,
        low=-np.arange(1.0, n + 1),
        high=np.arange(1.0, n + 1),
        stored_low=-np.arange(2.0, n + 2),
        stored_high=np.arange(2.0, n + 2),
        sqnr_db=np.array(sqnr_db),
        start=-4.0,
        stop=4.0,
        floats=np.arange(64),
        stored=np.arange(64)[::-1],
    )


def test_weights_come_with_their_channels_the_worst_first() -> None:
    case = case_of(chain(), WIDE)
    quantizer = QuantizerFacts(scale=0.1, low=-3.5, high=3.5, granularity="per_tensor")
    operators = list(case.record.operators)
    operators[0] = operators[0].model_copy(update={"weight": WeightFacts(channels=40, quantizer=quantizer)})
    case.record = case.record.model_copy(update={"operators": tuple(operators)})
    case.weights[0] = weights([30.0, np.nan, 10.0, np.inf])
    first, second, _ = inspect(case).details([0, 1, 2])
    assert first.weight_channels is not None
    assert first.weight_channels.index == (20, 0, 30, 10)
    assert first.weight_channels.sqnr_db == (10.0, 30.0, np.inf, None)
    assert first.weight_channels.quantized_high == (4.0, 2.0, 5.0, 3.0)
    assert first.weight_channels.total == 40
    assert first.weight_spread is not None
    assert first.weight_spread.floats == tuple(range(64))
    assert (first.weight_spread.low, first.weight_spread.high) == (-3.5, 3.5)
    assert second.weight_spread is None
    assert second.weight_channels is None


def test_findings_are_known_by_layer() -> None:
    def rule(code: str, scope: str, limit: float) -> Rule:
        fact = "output.data.values.max" if scope == "layer" else "data.values.max"
        fields: dict[str, Any] = {"id": code, "name": "too-large", "cause": "too-large", "scope": scope}
        message = f"reaches {{{fact}:.2f}}"
        when = {"fact": fact, "gt": limit}
        fields |= {"severity": "low", "confidence": 0.5, "when": when, "message": message, "remedies": ["x"]}
        return Rule.model_validate(fields)

    case = case_of(chain(), WIDE)
    rules = (rule("X001", "layer", -100.0), rule("X002", "tensor", 2.0), rule("X003", "tensor", 100.0))
    inspection = Inspection(case, derive(case, BASE), BASE.model_copy(update={"rules": rules}))
    top = f"{inspection.facts.layers[0].output.data.values.max:.2f}"
    found = inspection.findings(["X001", "X002", "X003"])
    assert [(f.rule.id, f.message) for f in found["conv0"]] == [("X001", f"reaches {top}"), ("X002", f"reaches {top}")]
    assert [f.rule.id for f in inspection.findings(["X002"])["conv0"]] == ["X002"]
    assert inspection.findings([]) == {}

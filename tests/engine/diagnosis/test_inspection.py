"""What is known of a layer beyond its facts, against plain numpy on the values themselves."""

from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders.cases import WIDE, chain_case, chain_values, counts_of, per_tensor
from builders.properties import examples
from hypothesis import example, given
from hypothesis import strategies as st

from quantmedic.engine.case.facts import QuantizerFacts, WeightFacts
from quantmedic.engine.case.records import Case, WeightArrays
from quantmedic.engine.diagnosis.inspection import Inspection
from quantmedic.engine.formulas.derive import derive
from quantmedic.engine.formulas.spreads import CHANNELS, SPREAD_BINS, Spread, display_histogram
from quantmedic.engine.rules.load import load_rules
from quantmedic.engine.rules.rule import Rule

few = examples(12)
BASE = load_rules([Path(str(files("quantmedic.rules")))])


def inspect(case: Case) -> Inspection:
    return Inspection(case, derive(case, BASE), BASE)


def with_quantized(case: Case, values: dict[int, Any]) -> Case:
    statistics = case.statistics["validation"]
    histograms = {tensor: counts_of(quantized) for tensor, quantized in values.items()}
    statistics.quantized_histograms = histograms  # type: ignore[attr-defined,unused-ignore]
    return case


def edges_of(spread: Spread) -> Any:
    return np.linspace(spread.start, spread.stop, SPREAD_BINS + 1)


@given(st.integers(0, 2**32))
@few
def test_a_spread_counts_the_values_within_one_stored_bin(seed: int) -> None:
    values = chain_values(seed)
    case = chain_case(values, WIDE)
    inspection = inspect(case)
    for place, detail in enumerate(inspection.details([0, 1, 2])):
        spread, x = detail.spreads["validation"], values[place + 1].ravel().astype(np.float64)
        assert sum(spread.floats) == x.size
        assert (spread.start, spread.stop) == (x.min(), x.max())
        for edge, below in zip(edges_of(spread)[1:-1], np.cumsum(spread.floats), strict=False):
            slack = np.abs(edge) / 8 + 1e-9
            assert np.sum(x < edge - slack) - 1 <= below <= np.sum(x <= edge + slack) + 1
        known = display_histogram(case, inspection.facts.tensors[place + 1])
        assert known is not None and spread.floats == known.counts, "the histogram of the report"
        assert (spread.low, spread.high) == (known.low, known.high)


def test_details_do_not_depend_on_what_else_is_asked_for() -> None:
    inspection = inspect(chain_case(chain_values(), WIDE, [0.1, 0.1, 0.1, 0.1]))
    together = inspection.details([2, 0, 1])
    assert [inspection.details([place])[0] for place in (2, 0, 1)] == together
    assert inspection.details([]) == []


@given(st.integers(0, 2**32), st.sampled_from([8, 6, 4]))
@example(3841, 8)  # a value beyond the range: a deployed model has no code for it
@few
def test_quantized_values_stand_for_the_step_around_them(seed: int, bits: int) -> None:
    values = chain_values(seed)
    quantizers = [*WIDE[:1], per_tensor(-16, 16, bits), *WIDE[2:]]
    scale, reach = quantizers[1].scale, quantizers[1].high
    assert scale is not None
    assert reach is not None
    last = np.floor(reach / scale)
    codes = np.clip(np.round(values[1].astype(np.float64) / scale), -last, last)
    case = with_quantized(chain_case(values, quantizers), {1: codes * scale})
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
    values = [*chain_values()[:1], np.tile(np.array([-1, 0, 0, 0, 1, 2], np.float32), 80).reshape(32, 3, 5)]
    grid = QuantizerFacts(scale=1.0, bits=2, low=-1.0, high=2.0, zero_point=1, granularity="per_tensor")
    case = with_quantized(chain_case(values, [WIDE[0], grid]), {1: [-1] * 10 + [0] * 20 + [-0.0] * 4 + [2]})
    spread = inspect(case).details([0])[0].spreads["validation"]
    assert spread.quantized is not None
    assert (spread.start, spread.stop) == (-1.5, 2.5)
    assert np.reshape(spread.quantized, (4, 16)).sum(axis=1).tolist() == [10, 24, 0, 1]
    assert np.reshape(spread.floats, (4, 16)).sum(axis=1).tolist() == [80, 240, 80, 80]


def test_broken_models_reach_far_and_what_was_not_counted_is_left_out() -> None:
    values = chain_values()
    case = with_quantized(chain_case(values, WIDE), {1: [1e30, -2.0], 2: []})
    first, second, third = (detail.spreads["validation"] for detail in inspect(case).details([0, 1, 2]))
    assert first.stop >= 1e30
    assert first.quantized is not None
    assert sum(first.quantized) == 2
    assert second.quantized is None
    assert third.quantized is None


def test_a_constant_has_no_distribution_and_a_grid_per_channel_no_range() -> None:
    values = chain_values()[:2]
    values[1] = np.full_like(values[1], 0.5)
    (detail,) = inspect(chain_case(values, WIDE)).details([0])
    assert detail.spreads == {}
    grid = QuantizerFacts(scale=0.1, bits=8, granularity="per_channel", axis=1)
    case = chain_case(chain_values()[:2], [WIDE[0], WIDE[1]])
    tensors = (case.record.tensors[0], case.record.tensors[1].model_copy(update={"quantizer": grid}))
    case.record = case.record.model_copy(update={"tensors": tensors})
    (detail,) = inspect(case).details([0])
    assert (detail.spreads["validation"].low, detail.spreads["validation"].high) == (None, None)


# Channels


def test_channels_are_ordered_by_their_own_error() -> None:
    rng = np.random.default_rng(3)
    x = (rng.normal(size=(32, 5, 30)) * np.array([1, 100, 10, 1e-3, 0]).reshape(-1, 1)).astype(np.float32)
    case = chain_case([*chain_values()[:1], x], WIDE, [0.1, 0.1])
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
    channels = inspect(chain_case([*chain_values()[:1], x], WIDE, [0.1, 0.1])).details([0])[0].channels["validation"]
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
    case = chain_case(chain_values(), WIDE)
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

    case = chain_case(chain_values(), WIDE)
    rules = (rule("X001", "layer", -100.0), rule("X002", "tensor", 2.0), rule("X003", "tensor", 100.0))
    inspection = Inspection(case, derive(case, BASE), BASE.model_copy(update={"rules": rules}))
    top = f"{inspection.facts.layers[0].output.data.values.max:.2f}"
    found = inspection.findings(["X001", "X002", "X003"])
    assert [(f.rule.id, f.message) for f in found["conv"]] == [("X001", f"reaches {top}"), ("X002", f"reaches {top}")]
    assert [f.rule.id for f in inspection.findings(["X002"])["conv"]] == ["X002"]
    assert inspection.findings([]) == {}

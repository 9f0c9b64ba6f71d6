"""Formulas from accumulators to facts, against plain numpy on the values themselves."""

import math
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import plain_loops as reference
from builders.cases import WIDE, N, chain_case, chain_operator, chain_values, per_tensor
from builders.properties import examples
from hypothesis import given
from hypothesis import strategies as st

from quantmedic.engine.case.facts import (
    CaseFacts,
    DistributionFacts,
    ErrorFacts,
    QuantizerFacts,
    TensorFacts,
)
from quantmedic.engine.case.records import Case
from quantmedic.engine.case.statistics import SAMPLE_DTYPE, SetStatistics
from quantmedic.engine.diagnosis.repair import facts_after
from quantmedic.engine.formulas.change import Targets
from quantmedic.engine.formulas.derive import derive, is_degraded
from quantmedic.engine.formulas.error_facts import deployed_facts, error_facts
from quantmedic.engine.formulas.tensors import grid_facts
from quantmedic.engine.rules.load import load_rules
from quantmedic.engine.rules.remedy_kinds import change_of
from quantmedic.engine.rules.rulebase import RuleBase

few = examples(40)
LIMITS = {
    "quantize_error_mse": math.inf,
    "quantize_error_nmse": 0.01,
    "quantize_error_cosine": 0.99,
    "quantize_error_sqnr_db": 20.0,
}
BASE = load_rules([Path(str(files("quantmedic.rules")))]).with_thresholds(LIMITS, "test")


def chain_facts(noise: list[float] | None = None, quantizers: list[QuantizerFacts] = WIDE) -> CaseFacts:
    return derive(chain_case(chain_values(), quantizers, noise), BASE)


def tensor_facts(x: Any, quantizer: QuantizerFacts | None = None) -> TensorFacts:
    """Facts of the output of a convolution with these values."""
    return derive(chain_case([x, x], [QuantizerFacts(), quantizer or QuantizerFacts()]), BASE).tensors[1]


# Errors


@given(st.integers(0, 2**32), st.floats(1e-4, 2.0), st.floats(-1, 1), st.integers(1, 5))
@few
def test_error_formulas(seed: int, size: float, bias: float, channels: int) -> None:
    rng = np.random.default_rng(seed)
    x = (rng.normal(size=(6, channels, 20)) * np.arange(1, channels + 1).reshape(-1, 1)).astype(np.float32)
    y = (x + size * rng.normal(size=x.shape) + bias).astype(np.float32)
    statistics = SetStatistics.empty([channels])
    reference.observe_error(x, y, statistics.tensor(0), "step")
    found = error_facts(statistics.tensor(0).errors["step"], 0.5)
    a, d = x.astype(np.float64), y.astype(np.float64) - x
    assert found.mse == pytest.approx((d**2).mean())
    assert found.nmse == pytest.approx((d**2).sum() / (a**2).sum())
    assert found.sqnr_db == pytest.approx(-10 * math.log10(found.nmse), abs=1e-9)
    assert found.cosine == pytest.approx((a * (a + d)).sum() / np.linalg.norm(a) / np.linalg.norm(a + d))
    assert found.mean == pytest.approx(d.mean(), abs=1e-9)
    assert found.std == pytest.approx(d.std(), rel=1e-6)
    assert found.max == pytest.approx(np.abs(d).max())
    assert found.rmse_over_scale == pytest.approx(math.sqrt((d**2).mean()) / 0.5)
    ratio = np.abs(d.mean(axis=(0, 2))) / d.std(axis=(0, 2))
    assert found.bias_over_std == pytest.approx(ratio.max(), rel=1e-6)
    if channels == 1:
        assert (found.worst_channel, found.worst_channel_sqnr_db) == (None, None)
    else:
        worst = (a**2).sum(axis=(0, 2)) / (d**2).sum(axis=(0, 2))
        assert found.worst_channel == worst.argmin()
        assert found.worst_channel_sqnr_db == pytest.approx(10 * math.log10(worst.min()), abs=1e-9)


@pytest.mark.source("insights-normalized-mse")
@given(st.integers(0, 2**32), st.floats(1e-4, 2.0), st.floats(0.1, 4), st.floats(-3, 3), st.integers(1, 5))
@few
def test_normalized_mse(seed: int, size: float, gain: float, bias: float, channels: int) -> None:
    """Against the formula of Neural Compressor in plain numpy."""
    rng = np.random.default_rng(seed)
    x = (rng.normal(size=(6, channels, 20)) * np.arange(1, channels + 1).reshape(-1, 1)).astype(np.float32)
    y = (gain * x + size * rng.normal(size=x.shape) + bias).astype(np.float32)
    found = deployed_of(x, y)
    a, b = x.astype(np.float64), y.astype(np.float64)
    a, b = (a - a.min()) / (a.max() - a.min()), (b - b.min()) / (b.max() - b.min())
    assert found["normalized_mse"] == pytest.approx(((a - b) ** 2).mean(), rel=1e-6, abs=1e-12)


@pytest.mark.source("insights-normalized-mse")
def test_normalized_mse_at_its_limits() -> None:
    x = np.random.default_rng(0).normal(size=(2, 2, 9)).astype(np.float32)
    assert deployed_of(x, 4 * x)["normalized_mse"] == pytest.approx(0, abs=1e-12), "blind to a wrong scale"
    # A tensor of one value is not scaled.
    half = np.full_like(x, 0.5)
    scaled = (x.astype(np.float64) - x.min()) / (x.max().astype(np.float64) - x.min())
    assert deployed_of(x, half)["normalized_mse"] == pytest.approx(((scaled - 0.5) ** 2).mean())
    broken = x.copy()
    broken[0, 0, 0] = np.nan
    assert deployed_of(x, broken)["normalized_mse"] is deployed_of(broken, x)["normalized_mse"] is None
    nothing = SetStatistics.empty([2])
    assert deployed_facts(nothing.columns, nothing.offsets) == [{"normalized_mse": None}]


def deployed_of(x: Any, y: Any) -> dict[str, float | None]:
    statistics = SetStatistics.empty([x.shape[1]])
    ones, zeros = np.ones(x.shape[1], np.float32), np.zeros(x.shape[1], np.float32)
    reference.observe(x, statistics.tensor(0), np.full(len(x), -1), None, reference.Deployed(y, ones, zeros))
    return deployed_facts(statistics.columns, statistics.offsets)[0]


def errors_of(x: Any, y: Any) -> ErrorFacts:
    statistics = SetStatistics.empty([x.shape[1]])
    reference.observe_error(x, y, statistics.tensor(0), "step")
    return error_facts(statistics.tensor(0).errors["step"], None)


def test_errors_at_their_limits() -> None:
    x = np.random.default_rng(0).normal(size=(2, 2, 9)).astype(np.float32)
    assert error_facts(SetStatistics.empty([2]).tensor(0).errors["step"], 1.0) == ErrorFacts()
    equal = errors_of(x, x)
    assert (equal.mse, equal.nmse, equal.sqnr_db, equal.cosine, equal.max) == (0, 0, math.inf, pytest.approx(1), 0)
    assert (equal.bias_over_std, equal.rmse_over_scale) == (None, None)
    silent = errors_of(np.zeros_like(x), x)
    assert (silent.nmse, silent.sqnr_db, silent.cosine) == (None, None, None)
    assert silent.mse is not None and silent.mse > 0
    erased = errors_of(x, np.zeros_like(x))
    assert (erased.nmse, erased.sqnr_db, erased.cosine) == (pytest.approx(1), pytest.approx(0, abs=1e-9), None)
    turned = errors_of(x, -x)
    assert (turned.cosine, turned.nmse) == (pytest.approx(-1), pytest.approx(4))


def test_silent_channels_are_not_the_worst() -> None:
    x = np.random.default_rng(0).normal(size=(2, 3, 50)).astype(np.float32)
    x[:, 0] *= np.float32(1e-3)
    assert errors_of(x, x + np.float32(1e-2)).worst_channel != 0
    x[:, 0] *= np.float32(100)
    assert errors_of(x, x + np.float32(1e-2)).worst_channel == 0


def test_degraded() -> None:
    table: list[tuple[dict[str, float], bool | None]] = [
        ({}, None),
        ({"mse": 1.0}, False),
        ({"mse": 1.0, "nmse": 0.009, "cosine": 0.995, "sqnr_db": 21.0}, False),
        ({"mse": 1.0, "nmse": 0.01, "cosine": 0.99, "sqnr_db": 20.0}, False),
        ({"mse": 1.0, "nmse": 0.011}, True),
        ({"mse": 1.0, "cosine": 0.98}, True),
        ({"mse": 1.0, "sqnr_db": 19.0}, True),
        ({"mse": 0.0, "nmse": 0.0, "sqnr_db": math.inf}, False),
    ]
    assert not [error for error, expected in table if is_degraded(ErrorFacts(**error), BASE) is not expected]
    by_mse = BASE.with_thresholds({"quantize_error_mse": 4.9}, "test")
    assert is_degraded(ErrorFacts(mse=5.0, nmse=1e-9), by_mse) is True, "by an absolute error only where asked"


# Distribution and clipping


def test_distribution_of_a_tensor() -> None:
    x = chain_values()[2]
    found = chain_facts().tensors[2].data.values
    assert (found.count, found.samples, found.nonfinite_count) == (x.size, N, 0)
    assert (found.min, found.max, found.absmax) == (0.0, x.max(), x.max())
    assert found.mean == pytest.approx(x.mean(), rel=1e-5)
    assert found.std == pytest.approx(x.std(), rel=1e-5)
    assert found.zscore_max == pytest.approx((x.max() - x.mean()) / x.std(), rel=1e-5)
    assert found.negative_share == 0
    assert found.tail_share == pytest.approx((x > x.max() / 2).mean(), abs=0.01)
    tops = x.max(axis=(0, 2))
    assert found.channel_absmax_ratio == pytest.approx(tops.max() / np.median(tops))
    found = chain_facts().tensors[1].data.values
    assert found.negative_share == pytest.approx((chain_values()[1] < 0).mean())


def test_range_of_two_halves() -> None:
    x = np.zeros((N, 1, 4), np.float32)
    x[:, 0, 0] = 1.0
    x[::2, 0, 1] = -1.0  # samples of even buckets reach from -1 to 1, the others from 0 to 1
    found = tensor_facts(x).data.values
    assert found.range_growth == pytest.approx(1 - (2 + 1) / 2 / 2)
    assert found.halves_disagreement == pytest.approx(0.5)
    equal = tensor_facts(np.tile(np.linspace(-1, 1, 5, dtype=np.float32), (N, 1, 1))).data.values
    assert (equal.range_growth, equal.halves_disagreement) == (0, 0)


def test_channels_by_their_median() -> None:
    x, rng = np.ones((N, 5, 20), np.float32), np.random.default_rng(3)
    x *= np.array([1, 2, 3, 50, 0], np.float32)[:, None]
    y = x + rng.normal(0, 0.1, x.shape).astype(np.float32)
    statistics = SetStatistics.empty([5])
    reference.observe_error(x, y, statistics.tensor(0), "step")
    found = error_facts(statistics.tensor(0).errors["step"], None).median_channel_sqnr_db
    d = (y - x).astype(np.float64)
    loud = np.sort((d**2).sum(axis=(0, 2))[:4] / (x.astype(np.float64) ** 2).sum(axis=(0, 2))[:4])
    assert found == pytest.approx(-10 * math.log10((loud[1] + loud[2]) / 2), abs=1e-6)
    values = tensor_facts(x).data.values
    assert values.channel_shape_ratio == pytest.approx(1)
    assert values.channel_absmax_ratio == pytest.approx(50 / 2)


def test_median_magnitude_leaves_zeros_out() -> None:
    x = np.zeros((N, 1, 10), np.float32)
    x[:, 0, :3], x[0, 0, 3] = 0.5, -400.0
    found = tensor_facts(x, per_tensor(-400.0, 0.5))
    assert found.data.values.absmax_over_median == pytest.approx(800, rel=0.07)
    assert found.median_levels == pytest.approx(0.5 / found.quantizer.scale, rel=0.07)
    assert found.asymmetry_waste == pytest.approx(1 - 400.5 / 800)


def test_asymmetry_counts_zero_as_a_value() -> None:
    x = np.linspace(3, 8, N * 8, dtype=np.float32).reshape(N, 1, 8)
    free = tensor_facts(x, per_tensor(0, 8))
    symmetric = tensor_facts(x, per_tensor(-8, 8).model_copy(update={"symmetric": True}))
    assert free.asymmetry_waste == symmetric.asymmetry_waste == pytest.approx(0.5)
    assert free.zero_point_gain_db is None
    assert symmetric.zero_point_gain_db == pytest.approx(6.0, abs=0.3)
    assert symmetric.range_slack == pytest.approx(1.0)


def test_values_beside_a_mask_are_judged_by_themselves() -> None:
    rng = np.random.default_rng(5)
    x = rng.normal(0, 1, (N, 1, 200)).astype(np.float32)
    x[:, :, ::2] -= np.float32(1e6)
    case = chain_case([x, x], [QuantizerFacts(), per_tensor(-1e6 - 4, 4)])
    case.record.tensors[1].pattern = "softmax-input"
    found = derive(case, BASE).tensors[1]
    assert found.data.rounding.sqnr_db > 50
    assert found.unmasked_sqnr_db == pytest.approx(0, abs=0.1)
    width = max(x[:, :, 1::2].max(), 0) - min(x[:, :, 1::2].min(), 0)
    assert found.unmasked_levels == pytest.approx(width / found.quantizer.scale, rel=0.15)


def test_layers_by_the_noise_that_they_add() -> None:
    facts = chain_facts(noise=[0.01, 0.3, 0.3, 0.3])
    conv = next(layer for layer in facts.layers if layer.op_type == "Conv")
    inputs, outputs = (facts.tensors[i].data.accumulated.nmse for i in (0, 1))
    assert conv.added_nmse == pytest.approx(outputs - inputs)
    assert (conv.compute_index, conv.error_rank) == (0, 1)
    assert all(layer.error_rank is None for layer in facts.layers if not layer.is_compute)


def test_clipping() -> None:
    x = np.zeros((N, 1, 10), np.float32)
    x[:, 0, 0], x[:, 0, 1], x[:, 0, 2] = 6.0, -1.0, 0.26
    quantizer = per_tensor(0.0, 4.0)
    found = tensor_facts(x, quantizer)
    clipping = found.data.clipping
    assert clipping.share == pytest.approx(0.2)
    rounding = (np.rint(0.26 / quantizer.scale) * quantizer.scale - 0.26) ** 2
    assert clipping.energy_share == pytest.approx((4 + 1) / (4 + 1 + rounding), rel=1e-4)
    assert clipping.overshoot == pytest.approx(2.0 / 4.0)
    assert clipping.utilisation == pytest.approx(1.0)
    assert found.negative_levels == 0


def test_negative_values_have_the_levels_that_the_range_holds() -> None:
    x = np.zeros((N, 1, 10), np.float32)
    x[:, 0, 0], x[:, 0, 1] = 6.0, -1.0
    for low, levels in [(-0.5, 0.5), (-3.0, 1.0)]:
        quantizer = per_tensor(low, 4.0)
        found = tensor_facts(x, quantizer)
        assert found.negative_levels == pytest.approx(levels / quantizer.scale)
        assert found.negative_ratio == pytest.approx(1 / 4)
    below = tensor_facts(x, per_tensor(0.0, 8.0)).data.clipping
    assert (below.share, below.overshoot) == (pytest.approx(0.1), pytest.approx(1.0 / 8.0))
    assert below.utilisation == pytest.approx(6 / 8)
    unused = tensor_facts(x, per_tensor(-2.0, 12.0)).data.clipping
    assert (unused.share, unused.overshoot) == (0, 0)
    assert unused.utilisation == pytest.approx(7 / 14)


def test_range_excess() -> None:
    found = chain_facts().tensors[1]
    bulk = np.quantile(np.abs(chain_values()[1]), 0.9999)
    assert found.range_excess_bits == pytest.approx(math.log2(16 / bulk), abs=0.1)
    assert found.data.values.range_inflation_bits == pytest.approx(
        math.log2(np.abs(chain_values()[1]).max() / bulk), abs=0.1
    )


def test_nothing_finite_leaves_nothing_but_the_count() -> None:
    x = chain_values()
    x[1] = np.full_like(x[1], np.nan)
    found = derive(chain_case(x[:2], WIDE[:2], [0.1, 0.1]), BASE)
    values = found.tensors[1].data.values
    assert (values.nonfinite_count, values.count, values.max, values.p50) == (x[1].size, None, None, None)
    assert found.tensors[1].data.rounding == ErrorFacts()
    assert (found.model.first_nonfinite_layer, found.model.nonfinite_in) == ("conv", "both")


# Layers, operands, model


def test_noise_carried_and_born() -> None:
    """The relu adds nothing of its own; the conv multiplies the noise of its input."""
    found = chain_facts(noise=[0.01, 1.0, 0.5, 0.8])
    conv, relu, join = (layer.output.data for layer in found.layers)
    source = found.tensors[0].data.accumulated
    assert conv.amplification == pytest.approx((conv.accumulated.nmse - conv.rounding.nmse) / source.nmse)
    assert conv.input_sqnr_db == pytest.approx(source.sqnr_db)
    assert conv.rounding_share == pytest.approx(conv.rounding.mse / conv.accumulated.mse)
    assert join.input_sqnr_db == min(conv.accumulated.sqnr_db, relu.accumulated.sqnr_db)
    assert [layer.born for layer in found.layers] == [True, False, False]
    model = found.model
    assert (model.degraded_layers, model.degraded_share) == (3, 1.0)
    falls = [
        source.sqnr_db - conv.accumulated.sqnr_db,
        conv.accumulated.sqnr_db - relu.accumulated.sqnr_db,
        join.input_sqnr_db - join.accumulated.sqnr_db,
    ]
    assert model.sqnr_worst_step_db == pytest.approx(max(falls))
    assert model.output_sqnr_db == join.accumulated.sqnr_db
    assert model.harmed is True


def test_nothing_measured_is_unknown_not_zero() -> None:
    model = chain_facts().model
    assert (model.degraded_layers, model.degraded_share, model.output_sqnr_db, model.harmed) == (None,) * 4
    assert (model.sqnr_worst_step_db, model.sqnr_slope_db) == (None, None)
    assert [layer.degraded for layer in chain_facts().layers] == [None] * 3
    quiet = chain_facts(noise=[1e-3] * 4).model
    assert (quiet.degraded_layers, quiet.degraded_share, quiet.harmed) == (0, 0.0, False)
    assert quiet.rounding_sqnr_min_db is not None and quiet.rounding_sqnr_min_db > 30


def test_operands_of_a_join() -> None:
    values = chain_values()
    found = chain_facts().operands
    assert [(view.layer, view.index, view.tensor) for view in found] == [("join", 0, "f1"), ("join", 1, "f2")]
    widths = [float(np.ptp(values[i])) for i in (1, 2)]
    assert [view.width for view in found] == pytest.approx(widths)
    widest = max(max(float(values[i].max()), 0.0) - min(float(values[i].min()), 0.0) for i in (1, 2))
    assert [view.range_ratio for view in found] == pytest.approx([widest / width for width in widths])
    assert [view.levels for view in found] == pytest.approx([width / (32 / 255) for width in widths])
    assert all(view.own_sqnr_db > view.joint_sqnr_db for view in found)


def test_classes_and_margins_of_the_output() -> None:
    samples = np.zeros(N, SAMPLE_DTYPE)
    samples["class_float"] = np.arange(N) % 4
    samples["class_quantized"] = samples["class_float"]
    samples["class_quantized"][:8] = 9
    samples["margin"] = np.linspace(0.1, 0.3, N)
    samples["margin"][0] = np.nan
    samples["tie"][:4] = 1
    found = derive(chain_case(chain_values(), WIDE, samples=samples), BASE)
    assert found.model.output_agreement == 0.75
    assert found.model.dead_output is False
    (output,) = found.outputs
    assert output.margin_median == pytest.approx(np.median(samples["margin"][1:]))
    assert output.step_over_margin == pytest.approx(WIDE[-1].scale / output.margin_median)
    assert output.tie_share == 4 / N
    assert output.levels == pytest.approx(float(np.ptp(chain_values()[3])) / WIDE[-1].scale)
    samples["class_quantized"] = 2
    assert derive(chain_case(chain_values(), WIDE, samples=samples), BASE).model.dead_output is True


# Repair


NARROW = [per_tensor(-5, 5), per_tensor(-1, 1), per_tensor(0, 1), per_tensor(-200, 200)]


def recalibrated(case: Case, facts: CaseFacts, base: RuleBase) -> CaseFacts:
    return facts_after(case, facts, base, change_of("recalibrate", case, facts, Targets()), None)


def test_recalibration_takes_the_range_of_the_values() -> None:
    case = chain_case(chain_values(), NARROW, [0.5] * 4)
    before = derive(case, BASE)
    after = recalibrated(case, before, BASE)
    assert before.model.degraded_share == 1.0
    assert (after.model.degraded_share, after.model.output_sqnr_db, after.model.harmed) == (None, None, None)
    clipped = [role.clipped_share for facts in (before, after) for role in facts.datasets if role.role == "validation"]
    assert clipped[0] > 0.2 and clipped[1] == 0
    for i, x in enumerate(chain_values()):
        quantizer, data = after.tensors[i].quantizer, after.tensors[i].data
        low, high = min(float(x.min()), 0.0), max(float(x.max()), 0.0)
        assert quantizer.scale == pytest.approx((high - low) / 255)
        assert quantizer.low == pytest.approx(low, abs=quantizer.scale)
        assert quantizer.high == pytest.approx(high, abs=quantizer.scale)
        assert (data.clipping.share, data.clipping.overshoot) == (0, 0)
        assert data.accumulated == data.step == ErrorFacts()
        y = np.rint(x / quantizer.scale) * quantizer.scale
        real = 10 * math.log10((x.astype(np.float64) ** 2).sum() / ((y - x) ** 2).sum())
        assert data.rounding.sqnr_db == pytest.approx(real, abs=0.5)
        assert data == after.tensors[i].validation
        assert data.values == before.tensors[i].data.values, "the values themselves stay"
        assert quantizer.zero_point * quantizer.scale == pytest.approx(-quantizer.low)
    assert before.tensors[1].data.rounding.sqnr_db < 10 < 30 < after.tensors[1].data.rounding.sqnr_db
    assert after.tensors[2].quantizer.zero_point == 0
    assert after.outputs[0].step == after.tensors[3].quantizer.scale


def test_recalibration_of_what_has_no_fixed_range_changes_no_range() -> None:
    quantizers = [QuantizerFacts(), QuantizerFacts(scale=0.1, bits=8), QuantizerFacts(dynamic=True, bits=8), NARROW[3]]
    quantizers[1] = QuantizerFacts(bits=8)
    case = chain_case(chain_values(), quantizers, [0.1] * 4)
    after = recalibrated(case, derive(case, BASE), BASE)
    assert [t.quantizer for t in after.tensors[:3]] == quantizers[:3]


# Slices


def test_extremes_of_few_samples_of_a_larger_set_are_not_judged() -> None:
    """The largest of a few values says little of the largest of many; errors are averages and stay."""
    for seen, total, known in [(16, 64, False), (31, 64, False), (32, 64, True), (16, 16, True)]:
        case = chain_case(chain_values(), WIDE, [0.1] * len(WIDE), samples=np.zeros(total, SAMPLE_DTYPE))
        case.statistics["validation"].tensor_samples[:] = seen
        data = derive(case, BASE).tensors[1].data
        assert data.values.samples == seen
        extremes = (
            data.values.zscore_max,
            data.values.tail_share,
            data.values.range_inflation_bits,
            data.values.range_growth,
            data.clipping.overshoot,
            data.clipping.utilisation,
        )
        assert [value is not None for value in extremes] == [known] * len(extremes)
        averages = (data.rounding.sqnr_db, data.accumulated.mse, data.clipping.share, data.values.std, data.values.max)
        assert None not in averages


def test_divisors_are_measured_in_steps() -> None:
    for op_type, low, steps in [("Reciprocal", 0.002, 0.002), ("Div", 0.5, None), ("Log", -0.1, None)]:
        x = np.linspace(low, 4.0, N * 10, dtype=np.float32).reshape(N, 1, 10)
        quantizer = per_tensor(0.0, 4.0)
        case = chain_case([x, x], [quantizer, QuantizerFacts()])
        record = case.record.model_copy(update={"operators": (chain_operator(0, "inverse", op_type, (0,)),)})
        found = derive(replace(case, record=record), BASE).layers[0].divisor_steps
        assert found == (None if steps is None else pytest.approx(steps / quantizer.scale)), op_type


@given(value=st.floats(1e-6, 1e6), doublings=st.integers(-3, 8))
def test_what_rounding_up_to_a_power_of_two_explains(value: float, doublings: int) -> None:
    threshold = 2.0 ** math.ceil(math.log2(value))
    quantizer = QuantizerFacts(low=-threshold * 2.0**doublings, high=threshold, power_of_two=True)
    found = grid_facts(DistributionFacts(min=-value, max=value, absmax=value), quantizer)
    assert found["power_of_two_excess"] == pytest.approx(2.0 ** max(doublings, 0))
    free = grid_facts(DistributionFacts(absmax=value), quantizer.model_copy(update={"power_of_two": False}))
    assert free["power_of_two_excess"] is None, "nothing was rounded up"

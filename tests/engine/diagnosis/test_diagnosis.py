"""From findings to a report: grouping, order, absorption, verdict and advice, on a tiny rule base."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from quantmedic.engine.case.facts import CaseFacts, MetricFacts
from quantmedic.engine.case.records import RunRecord, SimulationRecord
from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.engine.diagnosis.assemble import Provenance, drop_class, evidence_strength, make_diagnosis
from quantmedic.engine.diagnosis.prediction import Prediction
from quantmedic.engine.diagnosis.repair_runs import Simulated
from quantmedic.engine.diagnosis.suspects import Repair, Suspect, suspects_of
from quantmedic.engine.formulas.change import Change, Targets
from quantmedic.engine.formulas.spreads import Histogram
from quantmedic.engine.rules.evaluate import Finding, evaluate
from quantmedic.engine.rules.load import load_rules
from quantmedic.engine.rules.rulebase import RuleBase

THRESHOLDS = {
    "drop_large": 0.04,
    "drop_moderate": 0.015,
    "degrade_layer_ratio": 0.5,
    "few": 100,
    "growing": 0.05,
    "zscore": 8,
    "noisy": 20,
    "ratio": 16,
    "negligible_gain_db": 0.5,
    "grave_share": 0.5,
    "carried_share": 0.2,
    "notable_share": 0.05,
    "assumed_harm_gain_db": 3,
    "clean_output_sqnr_db": 28,
    "healed_share": 0.75,
    "healed_sqnr_db": 15,
    "harmed_agreement": 0.9,
    "quantize_error_sqnr_db": 20,
}
REMEDIES = {
    "more-data": "recalibrate",
    "clip-range": "best-range",
    "equalize-layers": "per-channel-weights",
    "keep-float": "float",
}
HINTS = {"data.": "give validation data", "data.values.": "give float values"}
#: Rules of a base by their ids, but for names and messages.
RULES = {
    "D001": "cause: too-few-samples, scope: dataset, severity: medium, confidence: 0.75, remedies: [more-data], "
    "where: {fact: role, is: representative}, when: {fact: samples, lt: $few}",
    "A001": "cause: activation-outliers, scope: tensor, severity: high, confidence: 0.9, remedies: [clip-range], "
    "when: {fact: data.values.zscore_max, gt: $zscore}",
    "A002": "cause: activation-outliers, scope: tensor, severity: low, confidence: 0.5, "
    "remedies: [keep-float, clip-range], when: {fact: data.rounding.sqnr_db, lt: $noisy}",
    "A003": "cause: poor-range, scope: tensor, severity: medium, confidence: 0.7, remedies: [clip-range], "
    "when: {fact: data.predicted_best_gain_db, gt: 3}",
    "W001": "cause: weight-spread, scope: layer, severity: high, confidence: 0.8, remedies: [equalize-layers], "
    "when: {all: [{fact: name, known: true}, {fact: weight.channel_range_ratio, gt: $ratio}]}",
    "M001": "cause: noise-everywhere, scope: model, severity: info, confidence: 0.4, remedies: [keep-float], "
    "when: {fact: sqnr_slope_db, lt: -20}",
    "S001": "cause: not-quantized-at-all, scope: model, severity: medium, confidence: 0.95, remedies: [keep-float], "
    "when: {fact: quantized_share, lt: 0.5}",
}
MESSAGES = {
    "A001": "reaches {data.values.zscore_max:.0f} deviations",
    "A002": "has {data.rounding.sqnr_db:.0f} dB",
}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> RuleBase:
    folder = tmp_path_factory.mktemp("rules")
    for code, rule in RULES.items():
        message = MESSAGES.get(code, f"message of {code}")
        (folder / f"{code}.yaml").write_text(f"{{id: {code}, name: rule-{code.lower()}, message: '{message}', {rule}}}")
    thresholds = [f"{name}: {{value: {value}, source: a guess, description: d}}" for name, value in THRESHOLDS.items()]
    (folder / "thresholds.yaml").write_text("\n".join(thresholds))
    remedies = [
        f"{name}: {{title: {name}, changes: c, cost: c, unsafe: u, simulate: {kind}}}"
        for name, kind in REMEDIES.items()
    ]
    (folder / "remedies.yaml").write_text("\n".join(remedies))
    (folder / "hints.yaml").write_text("\n".join(f"{key}: {value}" for key, value in HINTS.items()))
    return load_rules([folder])


def tensor(
    layer: str, zscore: float | None = 3.0, sqnr: float | None = 40.0, gain: float | None = 0.0
) -> dict[str, Any]:
    data = {"values": {"zscore_max": zscore}, "rounding": {"sqnr_db": sqnr}, "predicted_best_gain_db": gain}
    return {
        "name": f"{layer}_out_q",
        "float_name": f"{layer}_out",
        "producer_name": layer,
        "producer": "Conv",
        "data": data,
    }


def layer(
    name: str, ratio: float | None = 2.0, degraded: bool | None = None, born: bool | None = None
) -> dict[str, Any]:
    names = {"name": name, "float_name": name, "quantized_name": f"{name}_quant", "op_type": "Conv", "index": 0}
    return {**names, "weight": {"channel_range_ratio": ratio}, "degraded": degraded, "born": born}


def facts(
    tensors: list[dict[str, Any]] | None = None,
    layers: list[dict[str, Any]] | None = None,
    samples: int = 500,
    **model: Any,
) -> CaseFacts:
    """A healthy case of two layers, unless told otherwise."""
    return CaseFacts.model_validate(
        {
            "model": {"sqnr_slope_db": -3.0, "quantized_share": 1.0, **model},
            "datasets": [{"role": "representative", "samples": samples}, {"role": "validation", "samples": 5}],
            "tensors": tensors if tensors is not None else [tensor("conv1"), tensor("conv2")],
            "layers": layers if layers is not None else [layer("conv1"), layer("conv2")],
        }
    )


Repairing = Callable[[Change, Prediction | None], CaseFacts]
#: What more data would change.
RECALIBRATION = Repair("more-data", "recalibrate:1", Change(grids={0: None}), Targets())


def unused(change: Change, outcome: Prediction | None) -> CaseFacts:
    raise AssertionError(f"nothing called for the repair {change}")


def repairs(findings: Sequence[Finding]) -> tuple[Repair, ...]:
    return (RECALIBRATION,) if any("more-data" in f.rule.remedies for f in findings) else ()


def judge(base: RuleBase, measured: CaseFacts, repair: Repairing = unused, **options: Any) -> Diagnosis:
    return make_diagnosis(base, measured, repairs, repair, **{"provenance": Provenance("1"), **options})


def causes(diagnosis: Diagnosis) -> list[str]:
    return [cause.cause for cause in diagnosis.causes]


def metric(drop: float | None, low: float | None = None, name: str = "top1", **fields: Any) -> dict[str, Any]:
    return {"name": name, "drop": drop, "drop_low": low, "samples": 900, **fields}


# Grouping


def test_findings_are_grouped_by_cause(base: RuleBase) -> None:
    measured = facts([tensor("conv1", zscore=9, sqnr=10), tensor("conv2", zscore=50), tensor("conv3", sqnr=15)])
    (cause,) = judge(base, measured).causes
    assert (cause.cause, cause.rules, cause.severity) == ("activation-outliers", ("A001", "A002"), "high")
    assert cause.confidence == 0.9
    assert cause.subjects == ("conv2", "conv1", "conv3"), "worst first, the severe rule before the mild one"
    assert cause.message == "reaches 50 deviations"
    assert cause.manual == "manual/A001"
    assert [remedy.id for remedy in cause.remedies] == ["clip-range", "keep-float"]
    rows = [(row.subject, row.fact, row.value, row.comparison, row.threshold, row.source) for row in cause.evidence]
    assert rows == [
        ("conv2", "data.values.zscore_max", 50, "gt", 8, "a guess"),
        ("conv1", "data.values.zscore_max", 9, "gt", 8, "a guess"),
        ("conv1", "data.rounding.sqnr_db", 10, "lt", 20, "a guess"),
        ("conv3", "data.rounding.sqnr_db", 15, "lt", 20, "a guess"),
    ]


def test_layers_carry_both_names(base: RuleBase) -> None:
    measured = facts([tensor("conv1", zscore=9), tensor("lost", zscore=9)], [layer("conv1")])
    (cause,) = judge(base, measured).causes
    assert [(x.float_name, x.quantized_name) for x in cause.layers] == [("conv1", "conv1_quant"), ("lost", None)]
    source = {**tensor("image", zscore=9), "producer_name": None, "producer": "Input"}
    (cause,) = judge(base, facts([source])).causes
    assert (cause.subjects, cause.layers) == (("image_out",), ()), "the input of the network is a subject, but no layer"


def test_selectors_are_no_evidence(base: RuleBase) -> None:
    (cause,) = judge(base, facts(layers=[layer("conv1", 64)])).causes
    assert [row.fact for row in cause.evidence] == ["weight.channel_range_ratio"]


def simulation(runs: Mapping[str, float], before: float = 1.0, deployed: float | None = None) -> SimulationRecord:
    """Noise per run over a signal of 1, on eight samples."""

    def run(noise: float) -> RunRecord:
        return RunRecord(noise=(noise / 8,) * 8)

    return SimulationRecord(
        dataset="validation",
        power=(1 / 8,) * 8,
        deployed=run(before if deployed is None else deployed),
        simulated=run(before),
        runs={key: run(noise) for key, noise in runs.items()},
    )


def remedies(findings: Sequence[Finding]) -> tuple[Repair, ...]:
    """Every remedy of a rule changes a tensor of its own."""
    names = dict.fromkeys(name for f in findings for name in f.rule.remedies)
    return tuple(
        Repair(REMEDIES[name], name, Change(grids={list(REMEDIES).index(name): None}), Targets()) for name in names
    )


def foretold(base: RuleBase, measured: CaseFacts, **options: Any) -> Diagnosis:
    return make_diagnosis(
        base, measured, remedies, lambda change, outcome: measured, provenance=Provenance("1"), **options
    )


def test_gain_is_that_of_the_first_remedy_that_recovers_about_the_most(base: RuleBase) -> None:
    measured = facts([tensor("conv1", sqnr=5)])
    found = foretold(base, measured, simulation=simulation({"keep-float": 0.01, "clip-range": 0.008})).causes[0]
    assert found.predicted_gain_db == pytest.approx(20)
    assert [(r.id, round(r.predicted.gain_db)) for r in found.remedies if r.predicted] == [
        ("keep-float", 20),
        ("clip-range", 21),
    ]
    found = foretold(base, measured, simulation=simulation({"keep-float": 0.5, "clip-range": 0.01})).causes[0]
    assert found.predicted_gain_db == pytest.approx(20)
    assert foretold(base, measured).causes[0].predicted_gain_db is None


def test_cause_whose_repair_recovers_most_goes_first(base: RuleBase) -> None:
    measured = facts([tensor("conv1", gain=5)], [layer("conv1", 64)])
    better = foretold(base, measured, simulation=simulation({"clip-range": 0.01, "equalize-layers": 0.5}))
    assert causes(better) == ["poor-range", "weight-spread"]
    worse = foretold(base, measured, simulation=simulation({"clip-range": 0.5, "equalize-layers": 0.01}))
    assert causes(worse) == ["weight-spread", "poor-range"]
    found = foretold(base, measured, simulation=simulation({"clip-range": 0.01, "equalize-layers": 1.0}))
    assert {cause.cause: cause.severity for cause in found.causes} == {"poor-range": "medium", "weight-spread": "low"}
    unlike = foretold(base, measured, simulation=simulation({"clip-range": 0.01}, deployed=100.0))
    assert unlike.causes[0].predicted_gain_db is None, "the simulation of another network predicts nothing"


@dataclass(frozen=True)
class Carried:
    """Stands for an attribution of which only the shares are asked."""

    shares: Mapping[str, float]

    def share_of_suspects(self, suspects: Iterable[Suspect]) -> Mapping[str, float]:
        return self.shares

    def report(self, suspects: Iterable[Suspect]) -> None:
        return None


def test_what_makes_most_of_a_loss_keeps_its_severity_although_no_remedy_heals_it(base: RuleBase) -> None:
    for share, harmed, severity in [
        (0.9, True, "high"),
        (0.3, True, "medium"),
        (0.1, True, "low"),
        (0.9, False, "low"),
    ]:
        measured = facts([tensor("conv1")], [layer("conv1", 64)], harmed=harmed)
        attribution = Carried({"weight-spread": share})
        found = foretold(base, measured, simulation=simulation({"equalize-layers": 1.0}), attribution=attribution)
        assert [(cause.cause, cause.severity) for cause in found.causes] == [("weight-spread", severity)]


def test_what_no_simulation_shows_recovers_no_more_than_what_no_quantizer_makes(base: RuleBase) -> None:
    """Kernels that saturate make 4 % of the noise: what a simulated repair recovers comes first.

    Where nothing is known of them, they claim no more than a grave cause recovers, and 5 dB were simulated.
    """
    change = {"shows": ("model.unsimulated_share",), "remedies": ()}
    rules = tuple(r.model_copy(update=change) if r.id == "W001" else r for r in base.rules)
    own = base.model_copy(update={"rules": rules})
    for share, severity in [(0.98, "high"), (0.04, "medium"), (-0.2, "medium"), (None, "high")]:
        layers = [layer("conv1", 64)]
        measured = facts([tensor("conv1", zscore=9)], layers, harmed=True, unsimulated_share=share)
        found = foretold(own, measured, simulation=simulation({"clip-range": 0.3}))
        assert {cause.cause: cause.severity for cause in found.causes}["weight-spread"] == severity
        assert causes(found)[0] == ("weight-spread" if share == 0.98 else "activation-outliers")


def test_remedy_that_makes_it_worse_is_held_back(base: RuleBase) -> None:
    measured = facts([tensor("conv1", sqnr=5)])
    found = foretold(base, measured, simulation=simulation({"keep-float": 0.01, "clip-range": 4.0})).causes[0]
    assert [advice.id for advice in found.remedies] == ["keep-float"]
    assert [(held.id, held.because) for held in found.withheld] == [
        ("clip-range", "simulated, it makes the output 6.0 dB noisier")
    ]


def test_what_another_fault_hides_keeps_its_severity(base: RuleBase) -> None:
    """Alone it recovers nothing; with the other one repaired, half of what is left."""
    measured = facts([tensor("conv1", gain=5)], [layer("conv1", 64)])
    suspects = suspects_of(evaluate(base, measured), remedies)
    noise = {(1,): 0.1, (2,): 1.0, (1, 2): 0.01}
    ran = Simulated(simulation({}), base).run_repairs(
        suspects,
        [],
        measured,
        lambda change: RunRecord(noise=(noise.get(tuple(sorted(change.grids)), 1.0) / 8,) * 8),
    )
    found = {cause.cause: cause for cause in foretold(base, measured, simulation=ran.record).causes}
    assert found["weight-spread"].severity == "high"
    assert found["weight-spread"].predicted_gain_db == pytest.approx(0)
    assert found["weight-spread"].predicted_last_gain_db == pytest.approx(10)
    assert found["poor-range"].predicted_gain_db == pytest.approx(10)


# Order


def test_causes_are_ordered_by_severity(base: RuleBase) -> None:
    tensors = [tensor("conv1", sqnr=10), tensor("conv2", gain=4)]
    measured = facts(tensors, [layer("conv1", 64)], quantized_share=0.1, sqnr_slope_db=-30)
    found = judge(base, measured)
    assert causes(found) == [
        "weight-spread",
        "not-quantized-at-all",
        "poor-range",
        "activation-outliers",
        "noise-everywhere",
    ], "high, two medium with the global one first, low, info"
    assert [cause.severity for cause in found.causes] == ["high", "medium", "medium", "low", "info"]
    turned = base.model_copy(update={"rules": base.rules[::-1]})
    assert causes(judge(turned, measured)) == causes(found), "whatever the order of the rules"


def test_equal_severity_goes_by_confidence(base: RuleBase) -> None:
    measured = facts([tensor("conv1", zscore=9)], [layer("conv1", 64)])
    assert causes(judge(base, measured)) == ["activation-outliers", "weight-spread"]
    surer = [r.model_copy(update={"confidence": 0.99}) if r.id == "W001" else r for r in base.rules]
    assert causes(judge(base.model_copy(update={"rules": tuple(surer)}), measured)) == [
        "weight-spread",
        "activation-outliers",
    ]


def test_where_the_error_is_born_goes_first(base: RuleBase) -> None:
    tensors = [tensor("conv1", zscore=9), tensor("conv2")]
    for layers, first in (
        ([layer("conv1", born=True), layer("conv2", 64, born=False)], "activation-outliers"),
        ([layer("conv1", born=False), layer("conv2", 64, born=True)], "weight-spread"),
    ):
        found = judge(base, facts(tensors, layers))
        assert causes(found)[0] == first
        assert len(found.causes) == 2


def test_of_causes_that_recover_the_same_the_smaller_change_leads(base: RuleBase) -> None:
    """Data before ranges; only a clearly larger gain leads with the larger change."""
    measured = facts([tensor("conv1", gain=5)], samples=8)
    for noise, first in [(0.01, "too-few-samples"), (0.0085, "too-few-samples"), (0.004, "poor-range")]:
        runs = {"more-data": 0.1, "clip-range": 10 * noise}
        assert causes(foretold(base, measured, simulation=simulation(runs)))[0] == first, noise


def test_untried_causes_of_the_model_lead_where_most_layers_are_degraded(base: RuleBase) -> None:
    for share, first in [(None, "poor-range"), (0.5, "poor-range"), (0.51, "too-few-samples")]:
        rules = [r.model_copy(update={"confidence": 0.3}) if r.id == "D001" else r for r in base.rules]
        measured = facts([tensor("conv1", gain=5)], samples=8, degraded_share=share)
        unmended = recalibration(tensors=measured.tensors)
        assert causes(judge(base.model_copy(update={"rules": tuple(rules)}), measured, unmended))[0] == first


# Absorption


def recalibration(**changes: Any) -> Repairing:
    def repair(change: Change, outcome: Prediction | None) -> CaseFacts:
        assert change == RECALIBRATION.change
        return facts(samples=8, **changes)

    return repair


def test_findings_that_vanish_are_absorbed(base: RuleBase) -> None:
    measured = facts([tensor("conv1", gain=5), tensor("conv2")], samples=8)
    found = judge(base, measured, recalibration())
    assert causes(found) == ["too-few-samples"]
    (row,) = found.causes[0].absorbs
    assert (row.rule, row.name, row.subject, row.message) == ("A003", "rule-a003", "conv1", "message of A003")


def test_second_independent_fault_stands(base: RuleBase) -> None:
    """The repaired facts still show the other fault, so it is not explained by the first."""
    tensors = [tensor("conv1", gain=5), tensor("conv2", gain=7)]
    found = judge(base, facts(tensors, samples=8), recalibration(tensors=[tensor("conv1"), tensor("conv2", gain=6)]))
    assert causes(found) == ["too-few-samples", "poor-range"]
    first, second = found.causes
    assert [row.subject for row in first.absorbs] == ["conv1"]
    assert second.subjects == ("conv2",)
    assert {row.subject for row in second.evidence} == {"conv2"}
    assert [x.float_name for x in second.layers] == ["conv2"]
    assert second.absorbs == ()


def test_finding_that_cannot_be_told_or_stays_stands(base: RuleBase) -> None:
    measured = facts([tensor("conv1", gain=5), tensor("conv2")], samples=8)
    untold = recalibration(tensors=[tensor("conv1", gain=None), tensor("conv2")])
    for repair in (untold, lambda change, outcome: measured):
        found = judge(base, measured, repair)
        assert causes(found) == ["too-few-samples", "poor-range"]
        assert not any(cause.absorbs for cause in found.causes)


def test_cause_that_lost_its_severe_rule_is_judged_by_what_is_left(base: RuleBase) -> None:
    """The outlier vanishes with recalibration, the noise of another layer does not."""
    measured = facts([tensor("conv1", zscore=50, sqnr=5)], samples=8)
    surest = {"severity": "high", "confidence": 0.95}
    rules = [r.model_copy(update=surest) if r.id == "D001" else r for r in base.rules]
    grave = base.model_copy(update={"rules": tuple(rules)})
    whole = judge(grave, measured, recalibration())
    assert causes(whole) == ["too-few-samples"], "a leading global cause absorbs severe findings"
    assert [row.rule for row in whole.causes[0].absorbs] == ["A001", "A002"]
    left = judge(grave, measured, recalibration(tensors=[tensor("conv1", sqnr=5)])).causes[1]
    assert (left.rules, left.message) == (("A002",), "has 5 dB")
    assert (left.severity, left.confidence, left.manual) == ("low", 0.5, "manual/A002")
    assert [row.fact for row in left.evidence] == ["data.rounding.sqnr_db"]


# The drop


def test_drop_class(base: RuleBase) -> None:
    classes: dict[tuple[float | None, float | None], str | None] = {
        (None, None): None,
        (0.03, None): None,
        (0.5, 0.0): "none",
        (-0.02, -0.05): "none",
        (0.001, 1e-9): "small",
        (0.015, 0.001): "small",
        (0.0151, 0.001): "moderate",
        (0.04, 0.001): "moderate",
        (0.0401, 0.001): "large",
    }
    for (drop, low), expected in classes.items():
        assert drop_class(MetricFacts(name="top1", drop=drop, drop_low=low), base) == expected
        assert judge(base, facts(metric=metric(drop, low))).drop_class == expected
    for relative, expected in [(0.01, "small"), (0.02, "moderate"), (0.05, "large"), (None, "small")]:
        error = MetricFacts(name="rmse", drop=7.0, drop_low=1.0, relative_drop=relative)
        assert drop_class(error, base) == expected, "the drop of an error is relative"
    points = MetricFacts(name="top5", drop=0.02, drop_low=0.01, relative_drop=0.9)
    assert drop_class(points, base) == "moderate"
    strict = base.with_thresholds({"drop_large": 0.01, "drop_moderate": 0.001}, "test")
    assert drop_class(points, strict) == "large"


def test_evidence_strength() -> None:
    table = [(None, None, "not-measured"), (0.1, None, "unproven"), (0.1, 0.0, "unproven"), (0.1, 0.01, "proven")]
    for drop, low, statement in table:
        found = evidence_strength(MetricFacts(drop=drop, drop_low=low, drop_high=0.2, samples=900))
        assert found.statement == statement
        expected = (None,) * 4 if drop is None else (900, drop, low, 0.2)
        assert (found.samples, found.drop, found.low, found.high) == expected


# Verdict and advice


def test_verdict(base: RuleBase) -> None:
    cases = {
        "nothing found": (facts(), "healthy"),
        "a remark": (facts(sqnr_slope_db=-30), "healthy"),
        "low severity": (facts([tensor("conv1", sqnr=10)]), "healthy"),
        "medium severity": (facts([tensor("conv1", gain=5)]), "degraded"),
        "high severity": (facts([tensor("conv1", zscore=50)]), "degraded"),
        "a proven drop without a cause": (facts(metric=metric(0.1, 0.05)), "degraded"),
        "a drop that is not proven": (facts(metric=metric(0.1, -0.01)), "healthy"),
        "a small drop": (facts(metric=metric(0.015, 0.01)), "healthy"),
        "an error of small numbers": (facts(metric=metric(0.002, 0.001, "rmse", relative_drop=0.5)), "degraded"),
        "an error of large numbers": (facts(metric=metric(3.0, 1.5, "mae", relative_drop=0.001)), "healthy"),
        "two quantized models": (facts(float_is_quantized=True), "not-comparable"),
        "a broken float model": (facts(nonfinite_output="float"), "not-comparable"),
        "both models broken": (facts(nonfinite_output="both"), "not-comparable"),
        "left to the rules": (facts(nonfinite_output="quantized"), "healthy"),
        "before all else": (facts([tensor("conv1", zscore=50)], float_is_quantized=True), "not-comparable"),
    }
    assert {name: judge(base, measured).verdict for name, (measured, _) in cases.items()} == {
        name: verdict for name, (_, verdict) in cases.items()
    }


@pytest.mark.source("horizon-loss-sizes", "horizon-qat", "mct-order")
def test_advice_follows_the_drop(base: RuleBase) -> None:
    large, moderate, small = (judge(base, facts(metric=metric(drop, 0.001))).advice for drop in (0.1, 0.02, 0.01))
    assert len(large) == len(set(large)) == 10
    assert set(large) == set(moderate) == set(small)
    assert large[:2] == ("preprocessing", "representative-data")
    assert moderate[0] == "threshold-error-method"
    assert moderate.index("calibration-search") < moderate.index("preprocessing") < moderate.index("qat")
    assert small[0] == "leave-layers-in-float"
    assert small[-1] == "representative-data"
    assert large[-1] == moderate[-1] == "qat"


def test_general_advice_is_folded_below_a_cause_and_absent_without_a_drop(base: RuleBase) -> None:
    beside = judge(base, facts([tensor("conv1", zscore=50)], metric=metric(0.1, 0.05)))
    assert (beside.advice[0], beside.advice_place) == ("preprocessing", "folded")
    mild = judge(base, facts([tensor("conv1", sqnr=10)], metric=metric(0.1, 0.05)))
    assert mild.advice_place == "open", "a mild cause explains no drop"
    for without in (facts(metric=metric(0.1, -0.05)), facts()):
        assert (judge(base, without).advice, judge(base, without).advice_place) == ((), None)


# What was not found


def test_not_judged_names_facts_and_hint(base: RuleBase) -> None:
    found = judge(base, facts([tensor("conv1", zscore=None, sqnr=None), tensor("conv2", zscore=None)]))
    notes = {note.rule: note for note in found.not_judged}
    assert set(notes) == {"A001"}
    note = notes["A001"]
    assert (note.name, note.judged, note.unknown) == ("rule-a001", 0, 2)
    assert note.missing == ("data.values.zscore_max",)
    assert note.hint == "give float values"
    passed = {note.rule: note for note in found.passed}["A002"]
    assert (passed.judged, passed.unknown, passed.missing) == (1, 1, ("data.rounding.sqnr_db",))
    assert passed.hint == "give validation data"
    (note,) = judge(base, facts(quantized_share=None)).not_judged
    assert (note.rule, note.missing, note.hint) == ("S001", ("quantized_share",), None)


def test_not_applicable_and_ignored(base: RuleBase) -> None:
    found = judge(base.choose(ignore=["A"]), facts(layers=[]))
    assert [note.rule for note in found.not_applicable] == ["W001"]
    assert [(note.rule, note.name) for note in found.ignored] == [
        (code, f"rule-{code.lower()}") for code in ("A001", "A002", "A003")
    ]
    assert "A001" not in {note.rule for note in (*found.passed, *found.not_judged)}


# The rest of the report


def test_layer_table_names_the_rules_that_fired(base: RuleBase) -> None:
    measured = facts([tensor("conv1", zscore=9, sqnr=3), tensor("conv2")], [layer("conv1", 64, True), layer("conv2")])
    rows = judge(base, measured).layers
    assert [(row.name, row.quantized_name, row.degraded) for row in rows] == [
        ("conv1", "conv1_quant", True),
        ("conv2", "conv2_quant", None),
    ]
    assert sorted(rows[0].findings) == ["A001", "A002", "W001"]
    assert rows[1].findings == ()


def test_histograms_of_flagged_tensors_only(base: RuleBase) -> None:
    def histogram(view: Any) -> Histogram | None:
        if view.producer_name == "conv3":
            return None
        return Histogram(layer=view.producer_name, dataset="validation", edges=(0, 1), counts=(1,), low=0, high=1)

    measured = facts([tensor("conv1", zscore=9), tensor("conv2", gain=9), tensor("conv3", zscore=9)])
    assert [h.layer for h in judge(base, measured, histogram=histogram).histograms] == ["conv1"]

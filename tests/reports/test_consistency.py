"""No report contradicts itself: verdict, order, gate and what was tried agree in every sentence."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders.comparisons import BASE as SMALL
from builders.comparisons import facts, judged, layer, table
from builders.contradictions import contradictions
from builders.gates import accepted, regression, unmeasured
from builders.properties import examples
from hypothesis import given
from hypothesis import strategies as st

import quantmedic
from quantmedic.api.rulebase import load_rulebase
from quantmedic.demo import patient
from quantmedic.engine.case.facts import CaseFacts
from quantmedic.engine.case.proof import MetricTrial, ProofRecord, TrialRecord
from quantmedic.engine.case.records import RunRecord, SimulationRecord
from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.engine.diagnosis.assemble import Provenance, make_diagnosis
from quantmedic.engine.diagnosis.prescription import prescribe
from quantmedic.engine.diagnosis.suspects import Repair
from quantmedic.engine.formulas.change import Change, Targets
from quantmedic.engine.gate.policy import Policy, PolicyFile
from quantmedic.engine.gate.verdict import Circumstances, Gate
from quantmedic.engine.rules.evaluate import Finding, evaluate
from quantmedic.engine.rules.remedy_kinds import BOUNDS
from quantmedic.engine.rules.rule import Rule
from quantmedic.engine.rules.rulebase import RuleBase

pytestmark = pytest.mark.thorough

REAL = load_rulebase()
#: Cause, severity, fact that finds it, remedies: one of each kind that a diagnosis can hold.
RULES = (
    ("S001", "hollow-model", "model", "high", {"fact": "quantized_share", "lt": 0.5}, ["refold-and-preprocess"]),
    (
        "W001",
        "weight-spread",
        "layer",
        "high",
        {"fact": "weight.channel_range_ratio", "gt": 16},
        ["per-channel-weights"],
    ),
    (
        "A001",
        "noisy-tensors",
        "tensor",
        "medium",
        {"fact": "data.rounding.sqnr_db", "lt": 20},
        ["limit-activation-range", "keep-layers-float"],
    ),
    (
        "D001",
        "few-samples",
        "dataset",
        "medium",
        {"fact": "range_growth", "gt": 0.05},
        ["recalibrate-on-proper-data"],
    ),
    ("A002", "odd-names", "tensor", "low", {"fact": "data.accumulated.sqnr_db", "lt": 25}, ["activations-16-bit"]),
)
BASE = RuleBase(
    rules=tuple(
        Rule.model_validate(
            {
                "id": code,
                "name": cause,
                "cause": cause,
                "scope": scope,
                "severity": severity,
                "confidence": 0.6,
                "when": when,
                "message": "something is the matter",
                "remedies": remedies,
            }
        )
        for code, cause, scope, severity, when, remedies in RULES
    ),
    thresholds=REAL.thresholds,
    remedies=REAL.remedies,
    toolchains=REAL.toolchains,
)
gains = st.sampled_from([-3.0, 0.0, 0.3, 1.0, 2.9, 3.1, 10.0, 30.0])
POLICIES: tuple[dict[str, Any] | None, ...] = (
    None,
    {"check": {"fail_on": {"severity": "never"}}},
    {"check": {"fail_on": {"severity": "medium"}}},
    {"check": {"budget": [{"metric": "top1", "max_drop": 50.0}]}},
)


@dataclass(frozen=True, repr=False)
class Drawn:
    """A case, with what simulated runs and trials gave."""

    facts: CaseFacts
    simulation: SimulationRecord | None
    proof: ProofRecord | None


def repairs(findings: Sequence[Finding]) -> tuple[Repair, ...]:
    """Every remedy changes a tensor of its own."""
    kinds = [REAL.remedies[name].simulate for name in dict.fromkeys(n for f in findings for n in f.rule.remedies)]
    known = sorted(kind for kind in kinds if kind)
    return tuple(
        Repair(kind, f"{kind}:{findings[0].rule.cause}", Change(grids={place: None}), Targets())
        for place, kind in enumerate(known)
    )


@st.composite
def cases(draw: st.DrawFn) -> Drawn:
    """Facts on which any of the rules fire, and what their remedies gain: simulated, tried, or neither."""
    pick = st.booleans
    layers = [
        layer(
            f"conv{place}",
            sqnr=draw(st.sampled_from([5.0, 22.0, 35.0])),
            ratio=64.0 if draw(pick()) else 2.0,
            rounding=12.0 if draw(pick()) else 40.0,
        )
        for place in range(2)
    ]
    name, drop = "top1", draw(st.sampled_from([None, -0.001, 0.001, 0.01, 0.02, 0.2]))
    width = draw(st.sampled_from([0.0005, 0.05]))
    metric = {} if drop is None else {
        "name": name, "higher_is_better": True, "dataset": "validation", "samples": 400, "float_value": 0.9,
        "quantized_value": 0.9 - drop, "drop": drop, "drop_low": drop - width, "drop_high": drop + width,
        "relative_drop": drop / 0.9,
    }  # fmt: skip
    found = facts(
        layers,
        growth=0.3 if draw(pick()) else 0.01,
        harmed=draw(st.sampled_from([None, False, True])),
        quantized_share=0.2 if draw(pick()) else 1.0,
        degraded_share=draw(st.sampled_from([None, 0.2, 0.9])),
        toolchain=draw(st.sampled_from([None, "onnx.quantize"])),
        same_as_float=draw(st.sampled_from([None, "no", "no", "no", "bytes", "weights"])),
        float_is_quantized=draw(st.sampled_from([None, False, False, False, True])),
        metric=metric,
    )
    suspects: dict[str, list[Finding]] = {}
    for result in evaluate(BASE, found):
        for finding in result.findings:
            suspects.setdefault(finding.rule.cause, []).append(finding)
    tried = [repair for own in suspects.values() for repair in repairs(own)]
    simulation = draw(simulations(tried)) if draw(pick()) else None
    return Drawn(found, simulation, draw(proofs(tried)) if draw(pick()) else None)


@st.composite
def simulations(draw: st.DrawFn, tried: Sequence[Repair]) -> SimulationRecord:
    def run(gain: float) -> RunRecord:
        return RunRecord(noise=(10 ** (-gain / 10) / 8,) * 8)

    runs = {repair.key: run(draw(gains)) for repair in tried}
    return SimulationRecord(dataset="validation", power=(1.0,) * 8, deployed=run(0), simulated=run(0), runs=runs)


@st.composite
def proofs(draw: st.DrawFn, tried: Sequence[Repair]) -> ProofRecord:
    """Trials of some repairs alone, and of some on top of the first that was proven."""
    alone = [draw(trials(repair)) for repair in tried if draw(st.booleans())]
    proven = [trial for trial in alone if trial.proven]
    chain = [trial.key for trial in proven[:1]]
    added = [draw(trials(r, (chain[0],))) for r in tried if chain and r.key != chain[0] and draw(st.booleans())]
    chain += [trial.key for trial in added if trial.proven][:1]
    return ProofRecord(
        dataset="validation", seed=0, fitted=100, judged=100, cross_fitted=False, budget_seconds=60.0,
        spent_seconds=3.0, stopped="tried-all", trials=(*alone, *added), chain=tuple(chain),
    )  # fmt: skip


@st.composite
def trials(draw: st.DrawFn, repair: Repair, after: tuple[str, ...] = ()) -> TrialRecord:
    if draw(st.integers(0, 9)) == 0:
        return TrialRecord(key=repair.key, kind=repair.kind, after=after, failed="the toolchain refused it")
    gain, width = draw(gains), draw(st.sampled_from([0.2, 5.0]))
    low, points = gain - width, draw(st.sampled_from([None, -0.1, 0.1]))
    metric = None if points is None else MetricTrial(
        name="top1", float_model=0.9, before=0.7, after=0.7 + points, gain=points, low=points - 0.02,
        high=points + 0.02, left=0.2 - points, left_low=0.1 - points, left_high=0.3 - points,
    )  # fmt: skip
    return TrialRecord(
        key=repair.key, kind=repair.kind, after=after, samples=100, sqnr_before=10.0, sqnr_after=10.0 + gain,
        gain_db=gain, low_db=low, high_db=gain + width, share=1 - 10 ** (-gain / 10), metric=metric,
        bound=repair.kind in BOUNDS,
    )  # fmt: skip


def diagnosis_of(drawn: Drawn, policy: dict[str, Any] | None) -> Diagnosis:
    """What is told of a case, with the verdict of a gate under a policy."""
    found = drawn.facts
    made = make_diagnosis(
        BASE,
        found,
        repairs,
        lambda change, outcome: found,
        simulation=drawn.simulation,
        proof=drawn.proof,
        provenance=Provenance("1"),
    )
    made = prescribe(made, BASE)
    case = judged(found, {"validation": table(350)}, base=SMALL).case
    file = PolicyFile(Policy.model_validate(policy or {}))
    given = Circumstances(today=date(2026, 11, 22), policy=None if policy is None else "quantmedic.toml")
    report = Gate(file, BASE, case, found, made, evaluate(BASE, found), given).judge()
    return made.model_copy(update={"check": report, "gate": report.verdict})


def contradicting(drawn: Drawn, policy: dict[str, Any] | None, page: bool) -> list[str]:
    """What does not agree in the reports of a case, with the verdict of a gate and without."""
    checked = diagnosis_of(drawn, policy)
    plain = checked.model_copy(update={"check": None, "gate": None})
    return contradictions(plain, page=False) + contradictions(checked, page=page)


#: Pages take ten times as long as all other texts.
pages = st.sampled_from([False, False, False, False, True])


@given(cases(), st.sampled_from(POLICIES), pages)
@examples(30)
def test_no_report_contradicts_itself(drawn: Drawn, policy: dict[str, Any] | None, page: bool) -> None:
    assert contradicting(drawn, policy, page) == []


@pytest.mark.nightly
@given(cases(), st.sampled_from(POLICIES), pages)
@examples(150)
def test_none_of_many_reports_contradicts_itself(drawn: Drawn, policy: dict[str, Any] | None, page: bool) -> None:
    assert contradicting(drawn, policy, page) == []


@pytest.mark.nightly
def test_no_golden_report_contradicts_itself(request: pytest.FixtureRequest) -> None:
    kinds = ("diagnosis", "proven", "healthy", "hostile", "hostile_proven")
    gates: dict[str, Any] = {"no gate": lambda found: found, "regression": regression, "unmeasured": unmeasured}
    wrong = {}
    for kind in kinds:
        found = request.getfixturevalue(kind)
        own = gates if kind.startswith("hostile") else gates | {"accepted": accepted}
        for name, gate in own.items():
            wrong[kind, name] = contradictions(gate(found), page=name == "regression")
    assert {key: said for key, said in wrong.items() if said} == {}


@pytest.mark.nightly
def test_no_report_of_the_demonstration_contradicts_itself(
    patient_case: Path, healthy_case: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for policy in ("", '[check]\nfail_on = {severity = "never"}\n'):
        (tmp_path / "quantmedic.toml").write_text(policy, encoding="utf-8")
        for path in (patient_case, healthy_case):
            found = quantmedic.check(quantmedic.load_case(path), policy=tmp_path / "quantmedic.toml")
            plain = found.model_copy(update={"check": None, "gate": None})
            assert contradictions(found, page=bool(policy)) + contradictions(plain, page=False) == [], policy


def test_a_model_given_twice_is_called_so(tmp_path: Path) -> None:
    """Every report says it, and no gate passes, whether or not the model is quantized."""
    (model, _), _ = patient()
    images = _validation(model.parent)
    for which in ("float.onnx", "int8.onnx"):
        copied = tmp_path / which
        copied.write_bytes((model.parent / which).read_bytes())
        found = quantmedic.diagnose(model.parent / which, copied, validation=images)
        assert (found.verdict, found.causes[0].rules) == ("not-comparable", ("S024",))
        assert found.model.same_as_float == "bytes"
        assert contradictions(found, page=False) == []


def _validation(folder: Path) -> Any:
    stored = np.load(folder / "validation.npz")
    images = ((stored["image"][:16].astype(np.float32) / 255 - 0.286) / 0.353).astype(np.float32)
    return {"image": images, "labels": stored["labels"][:16].astype(np.int64)}

"""Proof on real models: what is proven, what is not, and what happens when something goes wrong."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from builders.onnx_models import conv_net, images, residual_net, save_pair, static
from onnx import numpy_helper

import quantmedic
from quantmedic.api.options import ProofOptions, Prove, RuleOptions
from quantmedic.api.rulebase import rules_in_force
from quantmedic.collectors.measure.models import Fitting
from quantmedic.demo import patient
from quantmedic.engine.case.proof import ProofRecord
from quantmedic.engine.case.records import Case
from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.engine.diagnosis.prescription import code_of
from quantmedic.engine.errors import ModelError
from quantmedic.engine.formulas.change import Change
from quantmedic.reports.terminal.console import render_console
from quantmedic.trials import allowance, bench, workbench
from quantmedic.trials.from_onnx.onnx_remedies import OnnxEdited, edit

pytestmark = pytest.mark.thorough

RULES = quantmedic.load_rulebase()


@dataclass
class Scene:
    """A harmed pair of models with its data."""

    paths: tuple[Path, Path]
    options: dict[str, Any] = field(default_factory=dict)

    def collect(self, budget: Prove = True, **more: Any) -> Case:
        given = {"rules": RULES, **self.options, **more}
        return quantmedic.collect(*self.paths, prove=budget, threads=1, **given)

    def proof(self, budget: Prove = True, **more: Any) -> ProofRecord:
        """What was tried; how the loss is divided is not looked at."""
        found = self.collect(budget, **{"attribution": False, **more}).record.proof
        assert found is not None
        return found


@pytest.fixture(scope="module")
def demo() -> Scene:
    paths, options = patient()
    return Scene(paths, options)


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    """Calibrated with a tenth of the inputs' range; no labels, no classes to speak of."""
    folder, model = tmp_path_factory.mktemp("narrow"), residual_net()
    feed = {model.graph.input[0].name: images(64)}
    small = {name: array / 10 for name, array in feed.items()}
    return Scene(save_pair(folder, model, static(model, small, folder)), {"validation": feed, "representative": small})


@pytest.fixture(scope="module")
def repaired(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the repaired model of ``proven`` is written."""
    return tmp_path_factory.mktemp("repaired") / "fixed.onnx"


@pytest.fixture(scope="module")
def proven(demo: Scene, repaired: Path) -> tuple[Case, Diagnosis]:
    before = [path.read_bytes() for path in demo.paths]
    case = demo.collect(write_fixed=repaired)
    assert [path.read_bytes() for path in demo.paths] == before, "the user's files are never changed"
    return case, quantmedic.judge(case, RULES)


@pytest.fixture(scope="module")
def counted(narrow: Scene) -> ProofRecord:
    """What is tried on a few samples where no time is given."""
    return narrow.proof(True, samples=64)


@pytest.mark.nightly
def test_the_injected_mistake_is_proven(proven):
    _, diagnosis = proven
    proof, first = diagnosis.proof, diagnosis.causes[0]
    assert proof is not None
    assert first.cause == "preprocessing-mismatch"
    assert first.proven
    assert first.measured_low_db > 20
    assert first.measured_gain_metric > 0.7
    assert first.predicted_gain_db == pytest.approx(first.measured_gain_db, abs=3)
    assert proof.stopped == "explained"
    assert proof.explained > 0.98
    assert (proof.fitted, proof.judged, proof.cross_fitted) == (256, 256, False)
    # Ranges hurt here, weights do not.
    assert proof.activations.share > 0.99
    assert abs(proof.weights.share) < 0.1
    (undone,) = [row for row in proof.trials if row.trial.kind == "repaired-data"]
    assert (undone.causes, undone.trial.proven) == (("preprocessing-mismatch",), True)
    assert undone.remedy == "representative inputs mapped to 2.833·x -0.8102"


def test_a_report_is_made_again_without_models(proven, tmp_path):
    case, diagnosis = proven
    quantmedic.save_case(case, tmp_path / "c.case")
    again = quantmedic.judge(quantmedic.load_case(tmp_path / "c.case"), RULES)
    assert again == diagnosis


def test_the_executed_text_is_the_printed_one(proven):
    case, found = proven
    given, proof = found.prescription, case.record.proof
    assert given.grade == "executed" and given.basis == "proven"
    assert proof.executions[proof.best].code == code_of(given)
    assert given.executed.trial.proven and given.executed.trial.metric.gain > 0.7
    assert "representative set, 160 samples" in given.executed.reads
    assert given.executed.version
    # A text that other rules would print now is not called executed.
    rows = tuple(row.model_copy(update={"code": row.code + "# of older rules\n"}) for row in proof.executions)
    older = case.record.model_copy(update={"proof": proof.model_copy(update={"executions": rows})})
    otherwise = quantmedic.judge(replace(case, record=older)).prescription
    assert otherwise.executed is None and otherwise.grade == "edited"


@pytest.mark.nightly
def test_every_gain_is_measured_on_the_deployed_model(demo, proven, repaired):
    """The repaired file, run by onnxruntime on all samples, is as good as the trial said."""
    assert [path.name for path in repaired.parent.iterdir()] == ["fixed.onnx"], "nothing else is written"
    alone = {**demo.options, "representative": None}
    after = quantmedic.diagnose(demo.paths[0], repaired, threads=1, **alone)
    assert after.verdict == "healthy"
    executed = proven[1].prescription.executed.trial
    assert after.outputs[0].tensor.data.accumulated.sqnr_db == pytest.approx(executed.sqnr_after, abs=1)
    assert after.model.integer_share == proven[1].model.integer_share


@pytest.mark.nightly
def test_the_same_seed_gives_the_same_proof_and_no_times_but_where_time_is_limited(narrow, counted):
    assert narrow.proof(True, samples=64) == counted
    assert (counted.budget_seconds, counted.spent_seconds) == (None, None)
    assert {one.seconds for one in counted.trials} == {None}
    timed = narrow.proof(50.0, samples=64)
    assert timed.budget_seconds == 50.0
    assert timed.spent_seconds > 0
    assert all(one.seconds > 0 for one in timed.trials)
    first = counted.links()[0]
    assert first.proven and first.metric is None, "without labels or classes noise is the judge"
    assert first.sqnr_after - first.sqnr_before == pytest.approx(first.gain_db, abs=1e-6)
    assert first.sqnr_after > 20


@pytest.mark.nightly
def test_what_may_be_tried_is_counted_where_no_time_is_given(demo, monkeypatch):
    """A hundredth of a counted second holds no trial of these networks, however fast the machine is."""
    monkeypatch.setattr(ProofOptions, "budget", 0.2)
    proof = demo.proof(True, samples=64)
    assert proof.stopped == "budget"
    assert proof.trials
    assert demo.proof(True, samples=64) == proof


@pytest.mark.nightly
def test_what_leads_is_tried_on_small_sets_of_slow_networks(narrow, monkeypatch):
    monkeypatch.setattr(allowance, "VALUES_PER_SECOND", 2e4)
    monkeypatch.delenv("QUANTMEDIC_NO_PROVE", raising=False)
    assert narrow.proof("first", samples=12).trials


@pytest.mark.nightly
def test_few_samples_are_cross_fitted(narrow):
    proof = narrow.proof(samples=40)
    assert proof.cross_fitted
    assert (proof.judged, proof.fitted) == (40, 20)


# --- faults ----------------------------------------------------------------------------------------------------------


def test_the_budget_is_kept(narrow, monkeypatch):
    """Time that jumps by ten seconds with every trial: what half of the budget does not hold is not edited."""
    now = time.monotonic()

    def edited(models: Any, case: Case, change: Change, fitting: Fitting) -> OnnxEdited:
        nonlocal now
        now += 10.0
        return edit(models, case, change, fitting)

    monkeypatch.setattr(workbench, "edit", edited)
    for module in (allowance, bench):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now))
    proof = narrow.proof(budget=50.0, samples=64)
    assert proof.stopped == "budget"
    assert [one.kind for one in proof.trials] == ["without-weight-noise", "without-activation-noise"]


def test_ctrl_c_keeps_what_is_proven(narrow):
    calls = 0

    def interrupt(stage: str, done: int, total: int | None) -> None:
        nonlocal calls
        calls += stage == "trials"
        if calls == 5:
            raise KeyboardInterrupt

    proof = narrow.proof(samples=64, progress=interrupt)
    assert proof.stopped == "interrupted"
    assert [trial.kind for trial in proof.trials] == [
        "without-weight-noise",
        "without-activation-noise",
        "recalibrate",
    ]
    assert proof.chain == ()


def refuse(models: Any, case: Case, change: Change, fitting: Fitting) -> OnnxEdited:
    raise ModelError("the change cannot be carried out on the quantized model", where="conv1: no scale")


def tear(models: Any, case: Case, change: Change, fitting: Fitting) -> OnnxEdited:
    """A model that onnxruntime refuses."""
    edited = edit(models, case, change, fitting)
    edited.model.graph.node[0].op_type = "NoSuchOperator"
    return edited


def spoil(models: Any, case: Case, change: Change, fitting: Fitting) -> OnnxEdited:
    """A model that gives NaN."""
    edited = edit(models, case, change, fitting)
    for tensor in edited.model.graph.initializer:
        array = numpy_helper.to_array(tensor)
        if array.dtype == np.float32:
            tensor.CopyFrom(numpy_helper.from_array(np.full_like(array, np.nan), tensor.name))
    return edited


FAULTS: dict[Callable[..., OnnxEdited], str] = {
    refuse: "cannot be carried out on the quantized model: conv1: no scale",
    tear: "onnxruntime cannot load the model",
    spoil: "NaN or infinite values",
}


@pytest.mark.nightly
def test_a_trial_that_fails_is_recorded_and_the_rest_goes_on(narrow, monkeypatch):
    """The first three new ranges of the whole network fail, each otherwise, recalibration first."""
    left = list(FAULTS)

    def sometimes(models: Any, case: Case, change: Change, fitting: Fitting) -> OnnxEdited:
        whole = len(change.grids) > 5 and None not in change.grids.values()
        broken = left.pop(0) if whole and left else edit
        return broken(models, case, change, fitting)

    monkeypatch.setattr(workbench, "edit", sometimes)
    proof = narrow.proof(samples=64)
    failed = [one for one in proof.trials if one.failed is not None]
    assert failed[0].kind == "recalibrate"
    for one, reason in zip(failed, FAULTS.values(), strict=True):
        assert reason in one.failed
        assert one.gain_db is None and not one.proven
    assert any(one.failed is None for one in proof.trials[proof.trials.index(failed[-1]) + 1 :])


def test_trials_need_no_representative_data_and_nothing_is_executed_without(narrow):
    proof = narrow.proof(representative=None)
    assert proof.chain
    assert not [one for one in proof.trials if one.kind == "repaired-data"]
    assert proof.executions == () and proof.best is None
    assert "no representative data were given" in proof.unexecuted


def test_code_of_rules_that_are_not_built_in_is_never_run(narrow, tmp_path):
    """A rule folder may come from a stranger's pull request."""
    opens = f'\nopen({str(tmp_path / "ran")!r}, "w")\n'
    remedies = {}
    for name, remedy in RULES.remedies.items():
        own = tuple(snippet.model_copy(update={"code": snippet.code + opens}) for snippet in remedy.snippets)
        remedies[name] = remedy.model_copy(update={"snippets": own})
    proof = narrow.proof(rules=RULES.model_copy(update={"remedies": remedies}))
    assert proof.executions == ()
    assert "rules of your own" in proof.unexecuted
    assert not (tmp_path / "ran").exists()


def test_a_fixed_batch_is_split_whole(tmp_path):
    model = conv_net(batch=4)
    name = model.graph.input[0].name
    feed = {name: images(80)}
    calibration = {name: images(4) / 20}
    paths = save_pair(tmp_path, model, static(model, calibration, tmp_path))
    proof = Scene(paths, {"validation": feed}).proof()
    assert proof.fitted % 4 == proof.judged % 4 == 0
    assert proof.fitted + proof.judged == 80
    assert proof.links()[0].proven


@pytest.mark.attributed
def test_new_ranges_are_those_of_the_representative_data(narrow, monkeypatch):
    """As a toolchain would find them: they mend what was calibrated on other data, and are called by their remedy."""
    monkeypatch.delenv("QUANTMEDIC_NO_PROVE", raising=False)
    feed = narrow.options["validation"]
    for representative, gains in (feed, True), (narrow.options["representative"], False):
        data = {"validation": feed, "representative": representative}
        found = quantmedic.judge(quantmedic.collect(*narrow.paths, **data, prove="first", threads=1, attribution=True))
        clipped = next(cause for cause in found.causes if cause.cause == "over-clipped-activations")
        assert (clipped.predicted_gain_db > 3) == gains
        assert found.proof is not None and (found.causes[0].rules[0][0] == "D" or gains)
        titles = {remedy.title for remedy in quantmedic.load_rulebase().remedies.values()}
        assert {row.remedy for row in found.proof.trials if row.causes} <= titles


def test_what_heals_without_a_cause_is_run(narrow, monkeypatch):
    """No rule speaks, and the simulation shows what heals: that is tried, and leads."""
    monkeypatch.delenv("QUANTMEDIC_NO_PROVE", raising=False)
    base = rules_in_force(RuleOptions(select=["S030"]))
    case = quantmedic.collect(*narrow.paths, rules=base, prove="first", threads=1, attribution=True, **narrow.options)
    found = quantmedic.judge(case, base)
    assert found.causes == () and found.loss_budget is not None and found.proof is not None
    kinds = [family.healed_by for family in found.loss_budget.families if (family.healed or 0.0) > 0.5]
    assert [link.trial.kind for link in found.proof.chain] == kinds[:1] != []
    assert found.proof.chain[0].trial.low_db > 3
    assert found.advice_place == "folded"
    assert "do this first" in render_console(found) and "proven" in render_console(found)

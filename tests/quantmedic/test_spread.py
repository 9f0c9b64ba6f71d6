"""A remedy of what one setting of the toolchain spoils goes to every place that it helps, and is proven there."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from builders.onnx_models import deep_net, images
from builders.trial_bench import quantized
from onnx import numpy_helper

import quantmedic
from quantmedic.api.judging import inspect
from quantmedic.engine.case.records import Case
from quantmedic.engine.diagnosis.harm import with_assumed
from quantmedic.engine.diagnosis.prediction import predict
from quantmedic.engine.diagnosis.prescription import code_of
from quantmedic.engine.diagnosis.repair_runs import PREFERENCE_DB
from quantmedic.engine.diagnosis.suspects import Repairer, Suspect, suspects_of
from quantmedic.engine.formulas.change import HELPS_DB, everything, helped_places
from quantmedic.engine.rules.evaluate import evaluate
from quantmedic.engine.rules.remedy_kinds import REMEDY_KINDS, change_of
from quantmedic.reports.terminal.console import render_console

pytestmark = pytest.mark.thorough

DEPTH = 8
BASE = quantmedic.load_rulebase()


def cut(model: Path, share: float) -> None:
    """Every range behind a layer ends below the largest values; biases keep their values on the new scales."""
    graph = onnx.load(str(model))
    constants = {c.name: c for c in graph.graph.initializer}
    made_by = {node.output[0]: node for node in graph.graph.node}

    def multiply(name: str, factor: float) -> None:
        values = numpy_helper.to_array(constants[name])
        changed = np.rint(values * factor) if values.dtype == np.int32 else values * np.float32(factor)
        constants[name].CopyFrom(numpy_helper.from_array(changed.astype(values.dtype), name))

    scales = {node.input[1] for node in graph.graph.node if node.op_type == "QuantizeLinear" and "relu" in node.name}
    assert len(scales) == DEPTH
    for name in scales:
        multiply(name, share)
    for conv in (node for node in graph.graph.node if node.op_type in ("Conv", "Gemm") and len(node.input) > 2):
        bias = made_by[conv.input[2]]
        if made_by[conv.input[0]].input[1] in scales:
            multiply(bias.input[0], 1 / share)
            multiply(bias.input[1], share)
    onnx.save(graph, str(model))


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("cut")
    onnx.save(deep_net(16, DEPTH), str(folder / "float.onnx"))
    made = quantized(folder / "float.onnx", folder / "int8.onnx", "image", images(64, 3), per_channel=True)
    cut(made, 0.6)
    return folder / "float.onnx", made


@pytest.fixture(scope="module")
def case(patient: tuple[Path, Path]) -> Case:
    return quantmedic.collect(*patient, representative=images(64, 3), validation=images(96, 4))


def suspect(case: Case) -> Suspect:
    facts = inspect(case).facts
    found = suspects_of(with_assumed(evaluate(BASE, facts), BASE, facts), Repairer(BASE, case, facts))
    return next(each for each in found if each.cause == "over-clipped-activations")


def test_one_setting_is_repaired_in_every_place_although_the_rule_fired_in_few(case: Case) -> None:
    narrow, spread = suspect(case).repairs
    few, all_places = (predict(case.record.simulation, each.key) for each in (narrow, spread))
    assert few is not None and all_places is not None
    assert len(narrow.change.grids) < DEPTH == len(spread.change.grids)
    assert all_places.gain_db > few.gain_db + PREFERENCE_DB
    cause, *others = quantmedic.judge(case).causes
    assert cause.cause == "over-clipped-activations"
    assert {other.explained_by for other in others} <= {cause.cause}
    assert cause.predicted_gain_db == all_places.gain_db
    advice = cause.remedies[0]
    assert advice.spread and len(advice.tensors) == DEPTH > len(cause.subjects)
    console = " ".join(render_console(quantmedic.judge(case), verbosity="verbose").split())
    assert f"everywhere it helps: {DEPTH} tensors, among them {advice.tensors[0]}" in console
    # Where the rule fired comes first.
    assert advice.layers[: len(cause.subjects)] == cause.subjects


@pytest.mark.nightly
def test_what_is_proven_everywhere_is_what_is_printed(patient: tuple[Path, Path], tmp_path: Path) -> None:
    written = tmp_path / "fixed.onnx"
    inputs = {"representative": images(64, 3), "validation": images(96, 4)}
    found = quantmedic.judge(quantmedic.collect(*patient, **inputs, prove=600, write_fixed=written))
    cause = found.causes[0]
    trial = cause.remedies[0].measured
    assert cause.proven and trial is not None and cause.remedies[0].spread
    assert found.prescription is not None and found.prescription.executed is not None
    assert code_of(found.prescription) == found.prescription.executed.code
    again = quantmedic.collect(patient[0], written, **inputs)
    before, after = (
        inspect(each).facts.model.output_sqnr_db for each in (quantmedic.collect(*patient, **inputs), again)
    )
    assert before is not None and after is not None and after > before + 10


def test_a_healthy_network_is_given_no_remedy(tmp_path: Path) -> None:
    onnx.save(deep_net(16, DEPTH), str(tmp_path / "float.onnx"))
    made = quantized(tmp_path / "float.onnx", tmp_path / "int8.onnx", "image", images(64, 3), per_channel=True)
    found = quantmedic.diagnose(tmp_path / "float.onnx", made, representative=images(64, 3), validation=images(96, 4))
    assert (found.verdict, found.causes) == ("healthy", ())


def test_a_place_is_helped_where_its_own_rounding_is_predicted_to_improve(case: Case) -> None:
    facts = inspect(case).facts
    for kind in (name for name, row in REMEDY_KINDS.items() if row.spreads):
        change = change_of(kind, case, facts, everything(facts))
        helped = helped_places(case, facts, change)
        assert set(helped.tensors) <= change.grids.keys(), kind
        assert set(helped.operators) <= change.weights.keys() | change.biases, kind
        if kind == "best-range":
            gains = {i: tensor.data.predicted_best_gain_db or 0.0 for i, tensor in enumerate(facts.tensors)}
            assert set(helped.tensors) == {i for i, gain in gains.items() if gain >= HELPS_DB}
    # A zero point spares these ranges nothing: what the wider ones gain is no merit of it.
    assert not [repair for repair in suspect(case).repairs if repair.kind == "asymmetric-range"]

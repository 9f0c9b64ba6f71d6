"""The loss budget of real models: a fault that was put in is found at its place, with how it makes noise."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from builders.onnx_models import conv_net, images, save_pair, static
from onnx import numpy_helper

import quantmedic
from quantmedic.engine.case.records import Case
from quantmedic.engine.contract.budget_report import LossBudgetReport
from quantmedic.trials import budget_runs

pytestmark = pytest.mark.thorough

ZOO = Path(__file__).parents[2] / "benchmarks" / "zoo" / "networks"


Sick = tuple[Case, LossBudgetReport, str]


def sick(folder: Path, harm: Callable[[onnx.ModelProto], str]) -> Sick:
    """A mobile network with one fault, measured and judged, and the place of the fault."""
    float_model = onnx.load(ZOO / "mobile.onnx")
    name = float_model.graph.input[0].name
    sides = [d.dim_value for d in float_model.graph.input[0].type.tensor_type.shape.dim[1:]]
    data = np.random.default_rng(5).normal(size=(48, *sides)).astype(np.float32)
    model = static(float_model, {name: data}, folder)
    place = harm(model)
    case = quantmedic.collect(*save_pair(folder, float_model, model), validation=data, representative=data)
    report = quantmedic.judge(case).loss_budget
    assert report is not None
    return case, report, place


def scale_steps(model: onnx.ModelProto, factor: float) -> str:
    """Change the step of every quantizer of a tensor that is quantized by itself."""
    names = [n.input[0] for n in model.graph.node if n.op_type == "QuantizeLinear" and "Clip" in n.input[0]]
    name = names[len(names) // 2]
    constant = next(t for t in model.graph.initializer if t.name == f"{name}_scale")
    scaled = (numpy_helper.to_array(constant) * factor).astype(np.float32)
    constant.CopyFrom(numpy_helper.from_array(scaled, constant.name))
    return name


@pytest.fixture(scope="module")
def cut_off(tmp_path_factory: pytest.TempPathFactory) -> Sick:
    """A range is a tenth as wide as it should be."""
    return sick(tmp_path_factory.mktemp("cut"), lambda model: scale_steps(model, 0.1))


def test_a_range_that_cuts_values_off_is_found_with_the_side(cut_off: Sick) -> None:
    _, report, place = cut_off
    first = report.lines[0]
    assert (first.source, first.places, first.mechanism) == ("activation", (place,), "clipped-high")
    assert first.share > 0.8
    assert first.healed_by == "full-range"
    assert first.healed is not None and first.last is not None and first.healed > 0.9 * first.last
    assert "above its range" in first.words


def test_shares_make_up_the_noise_and_what_is_left_is_said(cut_off: Sick, tmp_path: Path) -> None:
    case, report, _ = cut_off
    budget = case.record.loss_budget
    assert budget is not None
    np.testing.assert_allclose(np.sum([piece.shares for piece in budget.pieces], axis=0), 1.0, atol=1e-9)
    assert sum(line.share for line in report.lines) + report.rest + report.unsimulated == pytest.approx(1.0)
    assert budget.runs >= 10
    assert report.outputs[0].unsimulated < 0.05
    quantmedic.save_case(case, tmp_path / "kept.case")
    assert quantmedic.judge(quantmedic.load_case(tmp_path / "kept.case")).loss_budget == report


def test_lines_interaction_and_what_is_left_make_up_what_the_task_loses(cut_off: Sick) -> None:
    """Without labels, the task is to find the classes of the float model."""
    case, report, place = cut_off
    budget, task = case.record.loss_budget, report.task
    assert budget is not None and budget.task is not None and task is not None
    assert task.measure == "agreement" and task.whole.judged and task.whole.lost > 0.1
    lines = [line.task.share.lost for line in report.lines if line.task is not None]
    assert len(lines) == len(report.lines)
    left = (task.interaction.lost, task.rest.lost, task.unassigned.lost)
    assert sum(lines) + sum(left) == pytest.approx(task.whole.lost, abs=1e-9)
    assert report.lines[0].places == (place,)
    assert lines[0] > 0.7 * task.whole.lost
    alone = next(piece.task for piece in budget.pieces if piece.task is not None)
    assert len(alone.share) == len(budget.task.deployed) == budget.samples


def test_a_range_that_is_too_wide_is_told_from_one_that_cuts_off(tmp_path: Path) -> None:
    _, report, place = sick(tmp_path, lambda model: scale_steps(model, 40.0))
    assert report.lines[0].places == (place,)
    assert report.lines[0].mechanism == "range-too-wide"


@pytest.mark.nightly
def test_weights_with_few_values_are_found_and_healed_by_rounding_them_anew(tmp_path: Path) -> None:
    """They lie in a container of eight bits, so that no further bits are needed."""

    def harm(model: onnx.ModelProto) -> str:
        conv = [n for n in model.graph.node if n.op_type == "Conv"][4]
        stored = conv.input[1].replace("_DequantizeLinear_Output", "_quantized")
        codes = next(t for t in model.graph.initializer if t.name == stored)
        values = np.round(numpy_helper.to_array(codes).astype(int) / 64) * 64
        codes.CopyFrom(numpy_helper.from_array(values.clip(-128, 127).astype(np.int8), codes.name))
        return conv.name

    _, report, place = sick(tmp_path, harm)
    first = report.lines[0]
    assert (first.source, first.places, first.healed_by) == ("weight", (place,), "best-weight-range")
    assert report.by_source["weight"] > 0.8


def test_a_healthy_model_has_one_and_stays_quiet(tmp_path: Path) -> None:
    data, model = images(48), conv_net()
    paths = save_pair(tmp_path, model, static(model, {model.graph.input[0].name: data}, tmp_path))
    diagnosis = quantmedic.judge(quantmedic.collect(*paths, validation=data))
    assert diagnosis.loss_budget is not None
    assert diagnosis.loss_budget.samples <= budget_runs.BRIEF * budget_runs.MAX_SAMPLES
    assert diagnosis.verdict == "healthy"
    assert not [cause for cause in diagnosis.causes if cause.is_serious]
    # Outputs that agree have none: another copy of the float model, told apart by a name, where nothing is quantized.
    model.producer_name = "another exporter"
    case = quantmedic.collect(*save_pair(tmp_path, conv_net(), model), validation=data)
    assert case.record.loss_budget is None
    assert quantmedic.judge(case).loss_budget is None

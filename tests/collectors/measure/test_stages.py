"""Stage models: run on the same samples, compared with the first and with the one before."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from builders.onnx_models import Net, conv_net, images, qdq, random, run

import quantmedic
from quantmedic.collectors.measure.stages import STAGE_SAMPLES
from quantmedic.engine.errors import CaseError, DataError, ModelError
from quantmedic.engine.formulas.derive import derive

X = images(40)
BASE = quantmedic.load_rulebase()


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("stages")
    quantized = qdq(conv_net(), {"image": X})
    models = {
        "float": conv_net(),
        "shifted": changed(conv_net(), "conv2.weight", 1.1),
        "quantized": quantized,
        "coarse": changed(quantized, "relu1_dq_codes_scale", 0.02),
    }
    for name, model in models.items():
        onnx.save(model, str(folder / f"{name}.onnx"))
    return {name: folder / f"{name}.onnx" for name in models}


def changed(model: onnx.ModelProto, name: str, factor: float) -> onnx.ModelProto:
    """A model with one constant multiplied."""
    result = onnx.ModelProto()
    result.CopyFrom(model)
    (tensor,) = (t for t in result.graph.initializer if t.name == name)
    tensor.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor) * np.float32(factor), name))
    return result


def measured(files, stages, **options):
    given = {"validation": X, "threads": 1, "rules": BASE} | options
    return quantmedic.collect(files["float"], files["quantized"], stages=stages, **given)


def facts_of(case):
    return derive(case, BASE).model


def fired(case) -> set[str]:
    return {rule for cause in quantmedic.judge(case, BASE).causes for rule in cause.rules}


@pytest.mark.thorough
@pytest.mark.source("horizon-original-float")
def test_stages_are_compared_with_the_first_and_the_one_before(files) -> None:
    stages = {"original": files["float"], "calibrated": files["quantized"], "compiled": files["coarse"]}
    labels = run(conv_net(), {"image": X})["scores"].argmax(axis=1)
    model = facts_of(measured(files, stages, validation={"image": X, "labels": labels}))
    outputs = {n: run(onnx.load(str(files[n])), {"image": X})["scores"].astype(np.float64) for n in files}
    first, second, third = model.stages
    assert (first.name, first.samples, first.sqnr_db, first.metric) == ("original", 40, None, 1.0)
    assert second.sqnr_db == pytest.approx(sqnr(outputs["float"], outputs["quantized"]), abs=0.01)
    assert second.previous_sqnr_db == second.sqnr_db
    assert third.previous_sqnr_db == pytest.approx(sqnr(outputs["quantized"], outputs["coarse"]), abs=0.01)
    noise = [((outputs[a] - outputs[b]) ** 2).mean() for a, b in (("quantized", "coarse"), ("float", "quantized"))]
    assert model.worst_stage_noise_ratio == pytest.approx(noise[0] / noise[1], rel=0.01)
    assert third.agreement == (outputs["coarse"].argmax(axis=1) == labels).mean() == third.metric
    assert model.worst_stage == "compiled"
    assert (model.worst_stage_agreement, model.worst_stage_sqnr_db) == (third.agreement, third.sqnr_db)
    assert model.worst_stage_drop_db == pytest.approx(second.sqnr_db - third.sqnr_db)
    assert model.float_stage is None


def sqnr(x, y) -> float:
    return 10 * np.log10((x**2).sum() / ((y - x) ** 2).sum())


@pytest.mark.thorough
@pytest.mark.source("horizon-stage-at-fault")
def test_the_stage_at_fault_is_named(files) -> None:
    sound = {"original": files["float"], "copy": files["float"], "quantized": files["quantized"]}
    assert not fired(measured(files, sound)) & {"S011", "S012"}
    case = measured(files, {"original": files["float"], "optimized": files["shifted"], "int8": files["quantized"]})
    assert "S011" in fired(case) and facts_of(case).float_stage == "optimized"
    case = measured(files, {"original": files["float"], "int8": files["quantized"], "compiled": files["coarse"]})
    assert "S012" in fired(case) and "S011" not in fired(case)


@pytest.mark.thorough
def test_report_shows_the_stages(files, tmp_path) -> None:
    stages = [("original", files["float"]), ("in<t>8", files["quantized"])]
    case = measured(files, stages)
    quantmedic.write_report(quantmedic.judge(case, BASE), tmp_path, rules=BASE)
    assert "| in&lt;t&gt;8 **largest step** | original | 40 |" in (tmp_path / "report.md").read_text()
    assert "in&lt;t&gt;8" in (tmp_path / "index.html").read_text()
    quantmedic.save_case(case, tmp_path / "s.case")
    assert facts_of(quantmedic.load_case(tmp_path / "s.case")) == facts_of(case)


@pytest.mark.thorough
def test_samples_are_bounded(files) -> None:
    model = facts_of(measured(files, {"a": files["float"], "b": files["quantized"]}, validation=images(300)))
    assert [stage.samples for stage in model.stages] == [STAGE_SAMPLES, STAGE_SAMPLES]
    model = facts_of(measured(files, {"a": files["float"], "b": files["quantized"]}, samples=9))
    assert [stage.samples for stage in model.stages] == [9, 9]


@pytest.mark.nightly
def test_shards_add_up(files) -> None:
    stages = {"a": files["float"], "b": files["quantized"], "c": files["coarse"]}
    whole = facts_of(measured(files, stages))
    parts = [measured(files, stages, validation=X[rows]) for rows in (slice(0, 11), slice(11, 40))]
    merged = facts_of(parts[0].merge(parts[1]))
    for mine, theirs in zip(whole.stages, merged.stages, strict=True):
        for name, value in mine.model_dump().items():
            expected = pytest.approx(value, rel=1e-9) if isinstance(value, float) else value
            assert getattr(theirs, name) == expected, name
    with pytest.raises(CaseError):
        parts[0].merge(measured(files, {"a": files["float"], "z": files["quantized"]}, validation=X[11:]))


def test_what_does_not_fit_is_refused(files, tmp_path) -> None:
    with pytest.raises(DataError, match="one stage alone"):
        measured(files, {"a": files["float"]})
    with pytest.raises(DataError, match="one name"):
        measured(files, [("a", files["float"]), ("a", files["quantized"])])
    with pytest.raises(ModelError, match="no such model"):
        measured(files, {"a": files["float"], "b": tmp_path / "none.onnx"})
    net = Net()
    net.const("w", random(1, 4, 5))
    net.add("MatMul", net.input("vector", ["n", 4]), "w", out="scores")
    net.output("scores")
    with pytest.raises(ModelError, match="stage other takes other inputs"):
        measured(files, {"a": files["float"], "other": net.save(tmp_path / "other.onnx")})
    vendor = Net()
    vendor.add("HzCalibration", vendor.input("image", ["n", 3, 8, 8]), out="scores", domain="horizon")
    vendor.output("scores")
    with pytest.raises(ModelError, match="stage calibrated cannot be run"):
        measured(files, {"a": files["float"], "calibrated": vendor.save(tmp_path / "vendor.onnx")})


@pytest.mark.thorough
def test_resumed_runs_keep_their_stages(files, tmp_path) -> None:
    stages = {"a": files["float"], "b": files["quantized"]}
    target = tmp_path / "c.case"
    case = measured(files, stages, checkpoint=target)
    quantmedic.save_case(case, target)
    again = measured(files, stages, checkpoint=target, resume=True)
    assert facts_of(again).stages == facts_of(case).stages
    with pytest.raises(CaseError, match="other options"):
        measured(files, {"a": files["float"], "c": files["quantized"]}, checkpoint=target, resume=True)

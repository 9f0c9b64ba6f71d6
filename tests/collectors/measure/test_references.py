"""Outputs that were computed elsewhere: read beside the validation data, held against both models, merged."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from builders.onnx_models import Net, conv_net, images, qdq, random, run, save_pair, two_way_net
from builders.tiers import others_nightly

import quantmedic
from quantmedic.engine.case.records import Case
from quantmedic.engine.errors import CaseError, DataError
from quantmedic.engine.formulas.derive import derive

X = images(40)
BASE = quantmedic.load_rulebase()


@pytest.fixture(scope="module")
def paths(tmp_path_factory) -> tuple[Path, Path]:
    return save_pair(tmp_path_factory.mktemp("pair"), conv_net(), qdq(conv_net(), {"image": X}))


@pytest.fixture(scope="module")
def scores(paths):
    return run(onnx.load(str(paths[0])), {"image": X})["scores"]


@pytest.fixture(scope="module")
def deployed(paths):
    return run(onnx.load(str(paths[1])), {"image": X})["scores"]


def measured(paths, **options) -> Case:
    given = {"validation": X, "threads": 1, "rules": BASE} | options
    return quantmedic.collect(*paths, **given)


def model_facts(case: Case):
    return derive(case, BASE).model


def fired(case: Case) -> set[str]:
    return {rule for cause in quantmedic.judge(case, BASE).causes for rule in cause.rules}


@pytest.mark.thorough
def test_another_model_is_told(paths, scores) -> None:
    case = measured(paths, reference_outputs=scores * 1.1)
    assert model_facts(case).reference.relative_difference == pytest.approx(0.1 / 1.1, rel=1e-3)
    assert "S005" in fired(case)
    assert "S005" not in fired(measured(paths, reference_outputs=scores))


@pytest.mark.thorough
def test_device_is_held_against_quantization(paths, scores, deployed) -> None:
    noise = 0.5 * random(9, *deployed.shape) * (deployed - scores).std()
    case = measured(paths, device_outputs={"scores": deployed + noise})
    quantization = deployed.astype(np.float64) - scores
    expected = (noise.astype(np.float64) ** 2).mean() / (quantization**2).mean()
    assert model_facts(case).device.noise_ratio == pytest.approx(expected, rel=1e-3)
    assert "R002" in fired(case)
    assert "R002" not in fired(measured(paths, device_outputs=deployed))


@pytest.mark.nightly
def test_every_form_gives_the_same(paths, scores, tmp_path) -> None:
    np.save(tmp_path / "plain.npy", scores)
    np.save(tmp_path / "fortran.npy", np.asfortranarray(scores))
    np.savez_compressed(tmp_path / "compressed.npz", scores=scores)
    for source in (*tmp_path.iterdir(), {"scores": scores}):
        facts = model_facts(measured(paths, reference_outputs=source, batch_size=7)).reference
        assert facts.samples == 40 and facts.agreement == 1.0 and facts.relative_difference < 1e-5, source


@pytest.mark.thorough
def test_random_slices_find_their_outputs(tmp_path) -> None:
    """Fast mode reads samples in another order, twice over the file; a wrong pairing would show at once."""
    x = images(96)
    pair = save_pair(tmp_path, conv_net(), qdq(conv_net(), {"image": x}))
    scores = run(conv_net(), {"image": x})["scores"]
    np.savez_compressed(tmp_path / "r.npz", scores=scores)
    case = measured(pair, validation=x, reference_outputs=tmp_path / "r.npz", mode="fast", batch_size=8)
    assert len(case.record.datasets["validation"].parts) > 1
    facts = model_facts(case).reference
    assert facts.samples == 96 and facts.relative_difference < 1e-5


@pytest.mark.thorough
def test_streams_and_limits(paths, scores) -> None:
    def batches():
        for start in range(0, 40, 9):
            yield X[start : start + 9]

    assert (
        model_facts(measured(paths, validation=batches, reference_outputs=scores)).reference.relative_difference < 1e-5
    )
    limited = measured(paths, samples=16, reference_outputs=scores)
    assert model_facts(limited).reference.samples == 16
    with pytest.raises(DataError, match="another number of samples"):
        measured(paths, validation=batches, reference_outputs=scores[:20])


def test_two_outputs_by_name(tmp_path) -> None:
    feed = {"a": random(1, 20, 4), "b": random(2, 20, 6)}
    pair = save_pair(tmp_path, two_way_net(), qdq(two_way_net(), feed))
    found = run(two_way_net(), feed)
    given = {"second": found["second"] + 1.0}
    facts = model_facts(measured(pair, validation=feed, reference_outputs=given)).reference
    assert facts.max_abs_difference == pytest.approx(1.0, rel=1e-4)
    with pytest.raises(DataError, match="named after no output") as error:
        measured(pair, validation=feed, reference_outputs={"secnd": found["second"]})
    assert "did you mean second?" in str(error.value)


def test_what_does_not_fit_is_refused(paths, scores) -> None:
    for given, message in (
        (scores[:39], "another number of samples"),
        (scores[:, :4], "do not have the shape"),
        (scores.astype(object), "Python objects"),
        (scores.astype(str), "no numbers"),
        ("nowhere.npz", "cannot be found"),
        (__file__, "of a kind that is not known"),
    ):
        with pytest.raises(DataError, match=message):
            measured(paths, reference_outputs=given)


def test_outputs_without_their_inputs(paths, scores) -> None:
    with pytest.raises(DataError, match="without the inputs"):
        measured(paths, validation=None, representative=X, device_outputs=scores)


@pytest.mark.nightly
def test_shards_add_up(paths, scores, deployed, tmp_path) -> None:
    options = {"reference_outputs": scores * 1.01, "device_outputs": deployed + 0.01}
    whole = measured(paths, **options)
    parts = [
        measured(paths, validation=X[rows], **{name: value[rows] for name, value in options.items()})
        for rows in (slice(0, 13), slice(13, 40))
    ]
    merged = parts[0].merge(parts[1])
    a, b = model_facts(whole), model_facts(merged)
    for mine, theirs in ((a.reference, b.reference), (a.device, b.device)):
        for name, value in mine.model_dump().items():
            expected = None if value is None else pytest.approx(value, rel=1e-9)
            assert getattr(theirs, name) == expected, name
    quantmedic.save_case(merged, tmp_path / "m.case")
    assert model_facts(quantmedic.load_case(tmp_path / "m.case")) == b
    with pytest.raises(CaseError, match="compared with different outputs"):
        parts[0].merge(measured(paths, validation=X[13:]))


@pytest.mark.thorough
def test_expected_metric(paths, scores) -> None:
    data = {"image": X, "labels": scores.argmax(axis=1)}
    case = measured(paths, validation=data, expected_float_metric=100)
    assert model_facts(case).metric.expected == 1.0
    assert model_facts(case).metric.expected_shortfall == 0.0
    wrong = {"image": X, "labels": (scores.argmax(axis=1) + 1) % 5}
    assert "S006" in fired(measured(paths, validation=wrong, expected_float_metric=0.9))
    assert "S006" not in fired(measured(paths, validation=wrong, expected_float_metric=0.0))
    with pytest.raises(DataError, match="none is measured"):
        measured(paths, expected_float_metric=0.9)
    with pytest.raises(DataError, match="is not a valid top1"):
        measured(paths, validation=data, expected_float_metric=760)


@pytest.mark.nightly
def test_another_evaluation_of_the_quantized_model(paths, scores, deployed) -> None:
    """Worse or better than what is measured here; where the float model is off as well, that is named instead."""
    data = {"image": X, "labels": scores.argmax(axis=1)}
    here = model_facts(measured(paths, validation=data)).metric.quantized_value
    assert here is not None and here > 0.9
    told = measured(paths, validation=data, expected_quantized_metric=40)
    facts = model_facts(told).metric
    assert facts.expected_quantized == 0.4 and 0.2 < (facts.expected_quantized_distance or 0) < here - 0.4
    assert "S034" in fired(told)
    assert "S034" not in fired(measured(paths, validation=data, expected_quantized_metric=here))
    both = measured(paths, validation=data, expected_quantized_metric=0.4, expected_float_metric=0.4)
    assert "S034" in fired(both), "a float model that is better than expected says nothing"
    wrong = {"image": X, "labels": (scores.argmax(axis=1) + 1) % 5}
    off = measured(paths, validation=wrong, expected_quantized_metric=0.9, expected_float_metric=0.9)
    assert "S006" in fired(off) and "S034" not in fired(off)
    with pytest.raises(DataError, match="the expected quantized metric is not a valid top1"):
        measured(paths, validation=data, expected_quantized_metric=760)


@pytest.mark.thorough
def test_a_gain_that_cannot_be(paths, scores, deployed) -> None:
    """Labels by the classes that the quantized model names, and a float model with one class only."""
    net = onnx.load(str(paths[0]))
    for tensor in net.graph.initializer:
        if tensor.name == "fc.bias":
            bias = np.array([50, 0, 0, 0, 0], np.float32)
            tensor.CopyFrom(onnx.numpy_helper.from_array(bias, tensor.name))
    broken = paths[0].with_name("broken.onnx")
    onnx.save(net, str(broken))
    data = {"image": X, "labels": deployed.argmax(axis=1)}
    assert "S008" in fired(measured((broken, paths[1]), validation=data))
    assert "S008" not in fired(measured(paths, validation=data))


def codes_as_output(model: onnx.ModelProto, *, cast: bool) -> onnx.ModelProto:
    """The quantized model with its last DequantizeLinear left out, or replaced by a Cast."""
    result = onnx.ModelProto()
    result.CopyFrom(model)
    last = result.graph.node.pop()
    assert last.op_type == "DequantizeLinear"
    output = result.graph.output[0]
    if cast:
        result.graph.node.append(onnx.helper.make_node("Cast", [last.input[0]], [output.name], to=1, name="cast"))
        return result
    for node in result.graph.node:
        node.output[:] = [output.name if name == last.input[0] else name for name in node.output]
    output.type.tensor_type.elem_type = onnx.TensorProto.UINT8
    return result


@pytest.mark.thorough
def test_codes_that_are_read_as_values(tmp_path, scores) -> None:
    model = qdq(conv_net(), {"image": X})
    cast = save_pair(tmp_path, conv_net(), codes_as_output(model, cast=True))
    case = measured(cast)
    line = derive(case, BASE).outputs[0].affine
    scale = next(
        float(onnx.numpy_helper.to_array(t)) for t in model.graph.initializer if t.name == "scores_codes_scale"
    )
    assert line.slope == pytest.approx(1 / scale, rel=0.05)
    assert "S009" in fired(case)
    codes = save_pair(tmp_path, conv_net(), codes_as_output(model, cast=False))
    found = fired(measured(codes))
    assert "S010" in found and "S009" not in found
    labelled = measured(codes, validation={"image": X, "labels": scores + 0.01}, metric="mae")
    found = fired(labelled)
    assert "S009" in found and "S010" not in found


def test_classes_of_codes_are_classes(tmp_path, scores) -> None:
    codes = save_pair(tmp_path, conv_net(), codes_as_output(qdq(conv_net(), {"image": X}), cast=False))
    assert model_facts(measured(codes)).output_agreement > 0.8


@pytest.mark.thorough
def test_sound_models_are_not_suspected(paths) -> None:
    assert not fired(measured(paths)) & {"S007", "S008", "S009", "S010", "R001", "R003", "R004"}


def training_net(kind: str) -> onnx.ModelProto:
    net = Net(17)
    x = net.conv(net.input("image", ["n", 3, 8, 8]), random(1, 4, 3, 3, 3, scale=0.3), out="conv")
    if kind == "dropout":
        net.const("ratio", np.float32(0.5))
        net.const("training", np.array(True))
        x = net.add("Dropout", x, "ratio", "training", out="dropped")
    elif kind == "random":
        x = net.add("Add", x, net.add("RandomNormalLike", x, out="noise"), out="noisy")
    else:
        names = [net.const(n, v) for n, v in zip("sbmv", np.float32([[1] * 4, [0] * 4, [0] * 4, [1] * 4]), strict=True)]
        training = int(kind == "batch statistics")
        outputs = ["normal", "mean", "var"] if training else ["normal"]
        net.nodes.append(
            onnx.helper.make_node("BatchNormalization", [x, *names], outputs, name="bn", training_mode=training)
        )
        x = "normal"
    x = net.add("Flatten", net.add("GlobalAveragePool", x, out="pool"), out="flat")
    net.const("fc", random(2, 4, 5))
    net.output(net.add("MatMul", x, "fc", out="scores"))
    return net.model()


@pytest.mark.thorough
@pytest.mark.parametrize("kind", others_nightly(["dropout", "random", "batch statistics", "none"]))
def test_a_float_model_in_training_mode(kind: str, tmp_path) -> None:
    sound = training_net("none")
    pair = save_pair(tmp_path, training_net(kind), qdq(sound, {"image": X}))
    case = measured(pair)
    assert ("S007" in fired(case)) == (kind != "none")
    facts = model_facts(case)
    assert facts.training_nodes == (kind in ("dropout", "batch statistics"))
    assert facts.float_rerun_difference > 0 or kind != "random"
    assert facts.float_rerun_difference == 0 or kind != "none"


def test_an_output_that_declares_more_dimensions_than_it_has_is_compared_as_a_whole(tmp_path) -> None:
    net = conv_net()
    quantized = qdq(net, {"image": X})
    net.graph.output[0].type.tensor_type.shape.dim.add().dim_value = 5
    comparisons = measured(save_pair(tmp_path, net, quantized)).statistics["validation"].comparisons
    assert "output.0" in comparisons and "column.0" not in comparisons

"""What the columns of an output are joined of, in the forms in which detectors are exported."""

import sys
from pathlib import Path

import pytest
from builders.detectors import Form, detector, detector_pair
from builders.onnx_models import branch_net, conv_net, images, qdq, save_pair
from networks import chain

import quantmedic
from quantmedic.collectors.from_onnx.models import open_models
from quantmedic.collectors.from_onnx.parse import parse
from quantmedic.collectors.from_onnx.types import static_shapes
from quantmedic.collectors.pair.output_parts import Joint, Part, joint_of
from quantmedic.demo import patient


def joints(folder: Path, form: Form) -> list[Joint]:
    float_model, quantized, _ = detector_pair(folder, form)
    models = open_models(float_model, quantized)
    return [joint_of(models.float_graph, models.shapes, root) for root in models.float_graph.output_roots]


@pytest.mark.parametrize(("form", "axis"), [("rows", 2), ("columns", 1), ("flat", 1)])
def test_boxes_and_scores_are_told_apart(form: Form, axis: int, tmp_path: Path) -> None:
    (joint,) = joints(tmp_path, form)
    suffix = "rows" if form == "rows" else "flat"
    assert joint.axis == axis
    assert joint.parts == (Part(0, 4, f"boxes_{suffix}", False), Part(4, 7, f"scores_{suffix}", True))
    assert joint.carriers == ("found",)


def test_joined_scales_have_the_columns_of_each(tmp_path: Path) -> None:
    (joint,) = joints(tmp_path, "scales")
    assert joint.axis == 2
    assert [part[:2] for part in joint.parts] == [(0, 4), (4, 7)]
    assert set(joint.carriers) == {"found", "joined_a", "joined_b"}


def test_what_is_joined_in_steps_is_taken_apart(tmp_path: Path) -> None:
    (joint,) = joints(tmp_path, "nested")
    assert [(part.start, part.stop, part.is_score) for part in joint.parts] == [
        (0, 4, False),
        (4, 5, True),
        (5, 8, True),
    ]


def test_two_outputs_have_no_parts(tmp_path: Path) -> None:
    boxes, scores = joints(tmp_path, "apart")
    assert boxes.parts == scores.parts == ()
    assert (boxes.axis, scores.axis) == (2, 2)
    assert (boxes.is_score, scores.is_score) == (False, True)


def test_logits_are_no_scores_and_have_no_parts(tmp_path: Path) -> None:
    for k, model in enumerate((conv_net(), branch_net())):
        (tmp_path / str(k)).mkdir()
        models = open_models(*save_pair(tmp_path / str(k), model, qdq(model, {"image": images()})))
        joint = joint_of(models.float_graph, models.shapes, models.float_graph.output_roots[0])
        assert (joint.axis, joint.parts, joint.is_score) == (1, (), False), model.graph.name


def test_unknown_shapes_are_left_alone(tmp_path: Path) -> None:
    model = detector()
    del model.graph.output[0].type.tensor_type.shape.dim[:]
    models = open_models(*save_pair(tmp_path, model, qdq(model, {"image": images()})))
    assert joint_of(models.float_graph, {}, "found") == Joint(None, carriers=("found",))


def test_shapes_of_a_batch_serve_where_the_model_leaves_them_open() -> None:
    """Exporters write the shapes of what they flatten as arithmetic."""
    models, options = patient(detection=True)
    opened = open_models(*models)
    assert joint_of(opened.float_graph, opened.shapes, opened.float_graph.output_roots[0]).parts == ()
    case = quantmedic.collect(*models, **options, samples=8)
    (output,) = case.record.outputs
    assert [(part.start, part.stop, part.is_score) for part in output.parts] == [(0, 4, False), (4, 7, True)]


def test_a_chain_longer_than_the_stack_is_walked(tmp_path: Path) -> None:
    layers = 2 * sys.getrecursionlimit()
    graph = parse(tmp_path / "chain.onnx", model := chain(layers, 1, 4))
    joint = joint_of(graph, static_shapes(model), graph.output_roots[0])
    assert joint.parts == () and not joint.is_score

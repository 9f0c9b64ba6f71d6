"""What the columns of an output are joined of, in the forms in which detectors are exported."""

import sys
from pathlib import Path

import pytest
from builders.detectors import Form, detector, detector_pair
from builders.onnx_models import Net, branch_net, conv_net, images, qdq, random, save_pair

import quantmedic
from quantmedic.collectors.from_onnx.onnx_models import open_models
from quantmedic.collectors.from_onnx.parse import parse
from quantmedic.collectors.from_onnx.types import static_shapes
from quantmedic.collectors.pair.detector_heads import Part, decoder_of
from quantmedic.collectors.pair.output_parts import Joint, joint_of, joints_of
from quantmedic.demo import patient


def joints(folder: Path, form: Form) -> list[Joint]:
    float_model, quantized, _ = detector_pair(folder, form)
    models = open_models(float_model, quantized)
    return [joint_of(models.float_graph, models.shapes, root) for root in models.float_graph.output_roots]


KINDS: dict[Form, list[tuple[int, int, str | None]]] = {
    "rows": [(0, 4, "boxes"), (4, 7, "scores")],
    "columns": [(0, 4, "boxes"), (4, 7, "scores")],
    "scales": [(0, 4, "boxes"), (4, 7, "scores")],
    "flat": [(0, 4, "boxes"), (4, 7, "scores")],
    "nested": [(0, 4, "boxes"), (4, 5, "objectness"), (5, 8, "scores")],
    "bins": [(0, 2, "boxes"), (2, 4, "boxes"), (4, 7, "scores")],
    "masks": [(0, 2, "boxes"), (2, 4, "boxes"), (4, 7, "scores"), (7, 13, "masks")],
    "selected": [(0, 4, "boxes"), (4, 5, "scores"), (5, 6, "classes")],
}


def test_what_columns_of_a_detector_hold_is_told_by_its_structure(tmp_path: Path, subtests: pytest.Subtests) -> None:
    """As in YOLOv5, YOLOv8 and its segmentation, YOLOX and YOLOv10."""
    for form, kinds in KINDS.items():
        with subtests.test(form):
            (folder := tmp_path / form).mkdir()
            models = open_models(*detector_pair(folder, form)[:2])
            joint = joints_of(models)[models.float_graph.outputs.index("found")]
            assert [(part.start, part.stop, part.kind) for part in joint.parts] == kinds
            types = {op.name: op.op_type for op in models.float_graph.operators}
            assert types[joint.decoder[-1]] == "Concat" and "Sigmoid" in {types[name] for name in joint.decoder}
            with_weights = {types[name] for name in joint.decoder} & {"Conv", "Gemm", "MatMul"}
            assert with_weights == ({"Conv"} if "expected" in joint.decoder else set()), "of bins the expectation alone"


def test_classifiers_and_two_outputs_have_no_decoder(tmp_path: Path) -> None:
    for joint in joints_of(open_models(*detector_pair(tmp_path, "apart")[:2])):
        assert joint.decoder == () and not any(part.kind for part in joint.parts)


def test_what_is_made_of_shapes_alone_decodes_nothing() -> None:
    """Exporters compute the places of the cells from the shapes of the maps."""
    net = Net()
    x = net.conv(net.input("image", ["n", 3, 8, 8]), random(1, 7, 3, 1, 1), out="raw")
    size = net.add("Cast", net.add("Shape", x, out="shape"), out="size", to=1)
    net.add("Sigmoid", net.add("Add", x, size, out="sum"), out="end")
    graph = parse(Path("net.onnx"), net.model())
    assert decoder_of(graph, "end") == ("sum", "end")


def test_boxes_and_scores_are_told_apart(tmp_path: Path) -> None:
    for form, axis in (("rows", 2), ("columns", 1), ("flat", 1)):
        (folder := tmp_path / form).mkdir()
        (joint,) = joints(folder, form)
        suffix = "rows" if form == "rows" else "flat"
        assert joint.axis == axis
        assert joint.parts == (Part(0, 4, f"boxes_{suffix}", False), Part(4, 7, f"scores_{suffix}", True))
        assert joint.carriers == ("found",)


def test_what_is_joined_in_steps_and_scales_is_taken_apart(tmp_path: Path) -> None:
    for form in ("scales", "nested"):
        (tmp_path / form).mkdir()
    (joint,) = joints(tmp_path / "scales", "scales")
    assert joint.axis == 2 and [part[:2] for part in joint.parts] == [(0, 4), (4, 7)]
    assert set(joint.carriers) == {"found", "joined_a", "joined_b"}
    (joint,) = joints(tmp_path / "nested", "nested")
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


@pytest.mark.thorough
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
    net = Net()
    x = net.input("image", ["n", 1, 4, 4])
    for layer in range(layers):
        x = net.add("Relu" if layer % 2 else "Neg", x, out=f"value{layer}")
    net.output(x)
    graph = parse(tmp_path / "chain.onnx", model := net.model())
    joint = joint_of(graph, static_shapes(model), graph.output_roots[0])
    assert joint.parts == () and not joint.is_score

"""Models that cannot be used: one error, which names the file and the next step, and never a traceback."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from builders.onnx_models import Net, conv_net, images, qdq, random, residual_net, save_pair
from onnx import TensorProto, helper, numpy_helper

import quantmedic
from quantmedic.engine.errors import ModelError, QuantmedicError

X = images(4)
FLOAT = conv_net()
QUANTIZED = qdq(FLOAT, {"image": X})
Edit = Callable[[onnx.ModelProto], object]


@pytest.fixture
def pair(tmp_path) -> tuple[Path, Path]:
    return save_pair(tmp_path, copied(FLOAT), copied(QUANTIZED))


def copied(model: onnx.ModelProto) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return copy


def refused(float_path: Path, quantized_path: Path) -> ModelError:
    with pytest.raises(ModelError) as error:
        quantmedic.collect(float_path, quantized_path, validation=X, threads=1)
    return error.value


def edited(pair: tuple[Path, Path], edit: Edit, which: int = 1) -> tuple[Path, Path]:
    """The pair with one model changed."""
    model = copied((FLOAT, QUANTIZED)[which])
    edit(model)
    onnx.save(model, str(pair[which]))
    return pair


def initializer(model: onnx.ModelProto, name: str) -> onnx.TensorProto:
    return next(tensor for tensor in model.graph.initializer if tensor.name == name)


# --- files that are no models --------------------------------------------------------------------------------------


CONTENTS = {
    "empty": b"",
    "text": b"hello world\n",
    "archive": b"PK\x03\x04" + bytes(100),
    "json": b'{"model": 1}',
    "image": b"\x89PNG\r\n\x1a\n" + bytes(range(256)),
    "zeros": bytes(1000),
}


@pytest.mark.parametrize("which", [0, 1], ids=["float", "quantized"])
@pytest.mark.parametrize("name", CONTENTS)
def test_files_that_are_not_onnx(pair, name, which):
    pair[which].write_bytes(CONTENTS[name])
    assert str(pair[which]) in str(refused(*pair))


@pytest.mark.parametrize("share", [0.001, 0.1, 0.5, 0.9, 0.9999])
def test_truncated_models(pair, share):
    raw = pair[1].read_bytes()
    pair[1].write_bytes(raw[: max(1, int(len(raw) * share))])
    error = refused(*pair)
    assert str(pair[1]) in str(error)
    assert error.help


def test_a_missing_file(pair, tmp_path):
    assert str(tmp_path / "none.onnx") in str(refused(pair[0], tmp_path / "none.onnx"))


def test_a_folder_instead_of_a_file(pair, tmp_path):
    assert str(tmp_path) in str(refused(pair[0], tmp_path))


@pytest.mark.parametrize("suffix", ["json", "textproto", "onnxjson", "pbtxt"])
def test_reports_and_texts_given_as_models(pair, tmp_path, suffix):
    path = tmp_path / f"report.{suffix}"
    path.write_text('{"verdict": "healthy"}', encoding="utf-8")
    refused(pair[0], path)


def test_a_model_may_have_any_name(pair, tmp_path):
    path = tmp_path / "model.json"
    path.write_bytes(pair[1].read_bytes())
    quantmedic.collect(pair[0], path, validation=X, threads=1)


def test_damaged_bytes_give_no_traceback(pair):
    """Some bytes overwritten: refused, or still a model."""
    raw = pair[1].read_bytes()
    for seed in range(60):
        rng, content = np.random.default_rng(seed), bytearray(raw)
        for at in rng.integers(len(raw), size=3):
            content[at] = rng.integers(256)
        pair[1].write_bytes(bytes(content))
        try:
            quantmedic.collect(*pair, validation=X[:1], threads=1)
        except QuantmedicError:
            continue


# --- graphs that make no sense -----------------------------------------------------------------------------------


def set_opset(model: onnx.ModelProto) -> None:
    model.opset_import[0].version = 99


def no_outputs(model: onnx.ModelProto) -> None:
    del model.graph.output[:]


def no_inputs(model: onnx.ModelProto) -> None:
    del model.graph.input[:]


def no_nodes(model: onnx.ModelProto) -> None:
    del model.graph.node[:]


def unknown_operator(model: onnx.ModelProto) -> None:
    next(node for node in model.graph.node if node.op_type == "Relu").op_type = "Nonsense"


def unwritten_tensor(model: onnx.ModelProto) -> None:
    next(node for node in model.graph.node if node.op_type == "Relu").input[0] = "ghost"


def unwritten_output(model: onnx.ModelProto) -> None:
    model.graph.output[0].name = "ghost"


def newer_format(model: onnx.ModelProto) -> None:
    model.ir_version = 99


def cycle(model: onnx.ModelProto) -> None:
    relu = next(node for node in model.graph.node if node.op_type == "Relu")
    relu.input[0] = relu.output[0]


SENSELESS: list[Edit] = [
    *(set_opset, no_inputs, no_nodes, unknown_operator),
    *(unwritten_tensor, unwritten_output, newer_format, cycle),
]


@pytest.mark.parametrize("which", [0, 1], ids=["float", "quantized"])
@pytest.mark.parametrize("edit", SENSELESS)
def test_models_that_the_runtime_refuses(pair, edit, which):
    error = refused(*edited(pair, edit, which))
    assert pair[which].name in str(error)


@pytest.mark.parametrize("which", [0, 1], ids=["float", "quantized"])
def test_models_without_outputs(pair, which):
    assert pair[which].name in str(refused(*edited(pair, no_outputs, which)))


def short_codes(model: onnx.ModelProto) -> None:
    initializer(model, "conv1.weight_q_codes").raw_data = b"abc"


def short_scale(model: onnx.ModelProto) -> None:
    initializer(model, "image_dq_codes_scale").raw_data = b"abc"


def unknown_type(model: onnx.ModelProto) -> None:
    initializer(model, "conv1.weight_q_codes").data_type = 77


def scale_of_other_size(model: onnx.ModelProto) -> None:
    name = "image_dq_codes_scale"
    initializer(model, name).CopyFrom(numpy_helper.from_array(np.ones(3, np.float32), name))


def zero_point_computed(model: onnx.ModelProto) -> None:
    node = next(node for node in model.graph.node if node.op_type == "QuantizeLinear")
    node.input[2] = node.input[0]


def quantizer_without_scale(model: onnx.ModelProto) -> None:
    del next(node for node in model.graph.node if node.op_type == "QuantizeLinear").input[1:]


def input_without_type(model: onnx.ModelProto) -> None:
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.UNDEFINED


DAMAGED: list[Edit] = [
    *(short_codes, short_scale, unknown_type, scale_of_other_size),
    *(zero_point_computed, quantizer_without_scale, input_without_type),
]


@pytest.mark.parametrize("edit", DAMAGED)
def test_graphs_with_damaged_constants_or_quantizers(pair, edit):
    refused(*edited(pair, edit))


@pytest.mark.parametrize("edit", [unknown_operator, newer_format, set_opset, unwritten_tensor, no_outputs, no_nodes])
def test_refused_models_name_the_next_step(pair, edit):
    assert refused(*edited(pair, edit)).help


@pytest.mark.parametrize("kind", ["missing", "folder", "empty"])
def test_files_that_are_not_there_name_the_next_step(pair, tmp_path, kind):
    path = {"missing": tmp_path / "none.onnx", "folder": tmp_path, "empty": tmp_path / "empty.onnx"}[kind]
    if kind == "empty":
        path.write_bytes(b"")
    assert refused(pair[0], path).help


# --- external data -------------------------------------------------------------------------------------------------


@pytest.fixture
def external(pair, tmp_path) -> Callable[[str], tuple[Path, Path]]:
    """The pair whose quantized model keeps its data in ``folder/data.bin``, with any location written into it."""
    folder = tmp_path / "folder"
    folder.mkdir()
    onnx.save(copied(QUANTIZED), folder / "m.onnx", save_as_external_data=True, location="data.bin", size_threshold=0)
    (tmp_path / "data.bin").write_bytes((folder / "data.bin").read_bytes())

    def at(location: str) -> tuple[Path, Path]:
        model = onnx.load(folder / "m.onnx", load_external_data=False)
        for tensor in model.graph.initializer:
            next(entry for entry in tensor.external_data if entry.key == "location").value = location
        onnx.save(model, folder / "m.onnx")
        return pair[0], folder / "m.onnx"

    return at


def test_external_data_beside_the_model_or_below(external, tmp_path):
    quantmedic.collect(*external("data.bin"), validation=X, threads=1)
    (tmp_path / "folder" / "below").mkdir()
    (tmp_path / "folder" / "data.bin").rename(tmp_path / "folder" / "below" / "data.bin")
    quantmedic.collect(*external("below/data.bin"), validation=X, threads=1)


def test_missing_external_data(external, tmp_path):
    (tmp_path / "folder" / "data.bin").unlink()
    error = refused(*external("data.bin"))
    assert "missing" in error.message
    assert "data.bin" in str(error)
    assert error.help


def test_truncated_external_data(external, tmp_path):
    data = tmp_path / "folder" / "data.bin"
    data.write_bytes(data.read_bytes()[:200])
    assert "m.onnx" in str(refused(*external("data.bin")))


def outside(error: ModelError) -> None:
    assert "outside" in error.message
    assert "m.onnx" in str(error)
    assert error.help


@pytest.mark.parametrize(
    "location", ["../data.bin", "./../data.bin", "below/../../data.bin", "../folder/../data.bin", ""]
)
def test_external_data_outside_the_folder(external, tmp_path, location):
    (tmp_path / "folder" / "below").mkdir()
    outside(refused(*external(location)))


def test_external_data_by_absolute_path(external, tmp_path):
    outside(refused(*external(str(tmp_path / "data.bin"))))


@pytest.mark.skipif(not hasattr(os, "symlink"), reason="no symbolic links")
def test_external_data_through_links(external, tmp_path):
    folder = tmp_path / "folder"
    (folder / "data.bin").unlink()
    (folder / "data.bin").symlink_to(tmp_path / "data.bin")
    outside(refused(*external("data.bin")))
    (folder / "link").symlink_to(tmp_path)
    outside(refused(*external("link/data.bin")))


def outer_tensor() -> onnx.TensorProto:
    tensor = TensorProto(name="outer", data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="../data.bin")
    return tensor


def in_a_constant(model: onnx.ModelProto) -> None:
    model.graph.node.insert(0, helper.make_node("Constant", [], ["outer"], value=outer_tensor()))


def in_a_branch(model: onnx.ModelProto) -> None:
    body = helper.make_graph(
        [helper.make_node("Identity", ["outer"], ["result"])],
        "branch",
        [],
        [helper.make_tensor_value_info("result", TensorProto.FLOAT, [4])],
        [outer_tensor()],
    )
    model.graph.initializer.append(numpy_helper.from_array(np.array(True), "condition"))
    model.graph.node.append(helper.make_node("If", ["condition"], ["unused"], then_branch=body, else_branch=body))


def in_a_function(model: onnx.ModelProto) -> None:
    body = [helper.make_node("Constant", [], ["o"], value=outer_tensor())]
    model.functions.append(helper.make_function("local", "Leak", [], ["o"], body, [helper.make_opsetid("", 17)]))
    model.opset_import.append(helper.make_opsetid("local", 1))
    model.ir_version = max(model.ir_version, 8)
    model.graph.node.append(helper.make_node("Leak", [], ["unused"], domain="local"))


@pytest.mark.parametrize("edit", [in_a_constant, in_a_branch, in_a_function])
def test_external_data_outside_the_folder_wherever_it_is_named(pair, tmp_path, edit):
    (tmp_path / "folder").mkdir()
    secret = tmp_path / "data.bin"
    secret.write_bytes(bytes(16))
    model = copied(QUANTIZED)
    edit(model)
    onnx.save(model, tmp_path / "folder" / "m.onnx")
    assert "data.bin" in str(refused(pair[0], tmp_path / "folder" / "m.onnx"))


def test_a_linked_model_finds_its_data_at_home(external, pair, tmp_path):
    external("data.bin")
    link = tmp_path / "link.onnx"
    link.symlink_to(tmp_path / "folder" / "m.onnx")
    (tmp_path / "data.bin").unlink()
    quantmedic.collect(pair[0], link, validation=X, threads=1)


# --- models that do not belong together ----------------------------------------------------------------------------


def test_exchanged_models(pair):
    error = refused(pair[1], pair[0])
    assert "swapped" in error.message
    assert all(str(path) in str(error) for path in pair)
    assert error.help


def other_input(shape: list[int | str], *more: str) -> onnx.ModelProto:
    net = Net()
    net.input("image", shape)
    x = net.add("Flatten", "image", out="flat")
    for name in more:
        x = net.add("Concat", x, net.input(name, ["n", 4]), out=f"with_{name}", axis=1)
    net.output(net.add("Relu", x, out="y"))
    return net.model()


@pytest.mark.parametrize(
    "model", [other_input(["n", 1, 8, 8]), other_input(["n", 3, 8]), other_input(["n", 3, 8, 8], "mask")]
)
def test_models_with_different_inputs(pair, model):
    feed = {v.name: np.zeros([d.dim_value or 2 for d in v.type.tensor_type.shape.dim], "f4") for v in model.graph.input}
    onnx.save(qdq(model, feed), pair[1])
    error = refused(*pair)
    assert "inputs differ" in error.message
    assert "image float32['?', 3, 8, 8]" in str(error)
    assert error.help


def test_models_without_a_common_layer(pair):
    net = Net()
    x = net.add("Flatten", net.input("image", ["n", 3, 8, 8]), out="numbers")
    net.output(net.add("LayerNormalization", x, net.const("scale", np.ones(192, np.float32)), out="y"))
    onnx.save(qdq(net.model(), {"image": X}), pair[1])
    error = refused(*pair)
    assert all(path.name in str(error) for path in pair)
    assert error.help


def test_unrelated_models_of_the_same_kind(pair):
    """Other weights, other widths, other outputs: not this model quantized."""
    net = Net()
    x = net.conv(net.input("image", ["n", 3, 8, 8]), random(99, 9, 3, 5, 5), out="other")
    net.output(net.conv(net.add("Relu", x, out="act"), random(98, 2, 9, 1, 1), out="map"))
    onnx.save(qdq(net.model(), {"image": X}), pair[1])
    try:
        case = quantmedic.collect(*pair, validation=X, threads=1)
    except ModelError:
        return
    assert case.record.notices or case.record.unmatched
    assert quantmedic.judge(case).verdict == "not-comparable"


def test_the_same_architecture_with_other_weights_does_not_pass_for_healthy(pair):
    onnx.save(residual_net(), pair[0])
    other = copied(residual_net())
    for number, tensor in enumerate(other.graph.initializer):
        shape = numpy_helper.to_array(tensor).shape
        tensor.CopyFrom(numpy_helper.from_array(random(1000 + number, *shape, scale=0.3), tensor.name))
    onnx.save(qdq(other, {"image": X}), pair[1])
    try:
        case = quantmedic.collect(*pair, validation=X, threads=1)
    except ModelError:
        return
    assert quantmedic.judge(case).verdict != "healthy"


# --- models and data -----------------------------------------------------------------------------------------------


def test_a_model_that_fails_on_the_data(pair):
    """A Reshape that fits no other number of samples than one."""

    def fixed(model: onnx.ModelProto) -> None:
        model.graph.initializer.append(numpy_helper.from_array(np.array([1, 6]), "shape"))
        node = next(node for node in model.graph.node if node.op_type == "Flatten")
        node.op_type = "Reshape"
        node.input.append("shape")

    error = refused(*edited(pair, fixed))
    assert str(pair[1]) in str(error)
    assert "image float32[4, 3, 8, 8]" in str(error)


def test_inputs_of_text(pair):
    def text(model: onnx.ModelProto) -> None:
        model.graph.input[0].type.tensor_type.elem_type = TensorProto.STRING

    with pytest.raises(QuantmedicError):
        quantmedic.collect(*edited(pair, text, which=0), validation=X, threads=1)

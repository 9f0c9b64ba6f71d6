"""Models that cannot be used: one error, which names the file and the next step, and never a traceback."""

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


def said_of(float_path: Path, quantized_path: Path) -> str:
    """What is said of models that cannot be run: an error, or the runtime's words in a case in which nothing ran."""
    try:
        record = quantmedic.collect(float_path, quantized_path, validation=X, threads=1).record
    except ModelError as error:
        assert error.help
        return str(error)
    assert record.model.failure.refused and record.notices
    return f"{record.run['quantized_model']}: {record.model.failure.line}"


def edited(pair: tuple[Path, Path], edit: Edit, which: int = 1) -> tuple[Path, Path]:
    """The pair with one model changed."""
    model = copied((FLOAT, QUANTIZED)[which])
    edit(model)
    onnx.save(model, str(pair[which]))
    return pair


def initializer(model: onnx.ModelProto, name: str) -> onnx.TensorProto:
    return next(tensor for tensor in model.graph.initializer if tensor.name == name)


# --- files that are no models --------------------------------------------------------------------------------------


CONTENTS = {"empty": b"", "text": b"hello world\n", "image": b"\x89PNG\r\n\x1a\n" + bytes(range(256))}


def test_what_is_no_model_is_refused_with_its_name_and_the_next_step(pair, tmp_path, subtests):
    raw = pair[1].read_bytes()
    contents = CONTENTS | {f"{share} of a model": raw[: int(len(raw) * share)] for share in (0.1, 0.9999)}
    for name, content in contents.items():
        for place in (0, 1):
            with subtests.test(f"{name}, {('float', 'quantized')[place]}"):
                given = [*pair]
                given[place] = tmp_path / "broken.onnx"
                given[place].write_bytes(content)
                error = refused(*given)
                assert str(given[place]) in str(error) and error.help
    for name in ("none.onnx", ""):
        error = refused(pair[0], tmp_path / name)
        assert str(tmp_path / name) in str(error) and error.help
    for suffix in ("json", "textproto", "onnxjson", "pbtxt"):
        path = tmp_path / f"report.{suffix}"
        path.write_text('{"verdict": "healthy"}', encoding="utf-8")
        refused(pair[0], path)


def test_a_model_may_have_any_name(pair, tmp_path):
    path = pair[1].rename(tmp_path / "model.json")
    quantmedic.collect(pair[0], path, validation=X, threads=1)


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


#: What the runtime refuses, whichever model it is.
SENSELESS: list[Edit] = [
    *(set_opset, no_inputs, no_nodes, unknown_operator, no_outputs),
    *(unwritten_tensor, unwritten_output, newer_format, cycle),
]


def scale_of_other_size(model: onnx.ModelProto) -> None:
    name = "image_dq_codes_scale"
    initializer(model, name).CopyFrom(numpy_helper.from_array(np.ones(3, np.float32), name))


def quantizer_without_scale(model: onnx.ModelProto) -> None:
    del next(node for node in model.graph.node if node.op_type == "QuantizeLinear").input[1:]


def test_graphs_that_make_no_sense_are_refused(pair, subtests):
    for edit in SENSELESS:
        for which in (0, 1):
            with subtests.test(f"{edit.__name__}, {('float', 'quantized')[which]}"):
                save_pair(pair[0].parent, FLOAT, QUANTIZED)
                assert pair[which].name in said_of(*edited(pair, edit, which))
    for edit in (scale_of_other_size, quantizer_without_scale):
        with subtests.test(edit.__name__):
            save_pair(pair[0].parent, FLOAT, QUANTIZED)
            said_of(*edited(pair, edit))


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


@pytest.mark.thorough
def test_external_data_beside_the_model_or_below(external, tmp_path):
    quantmedic.collect(*external("data.bin"), validation=X, threads=1)
    (tmp_path / "folder" / "below").mkdir()
    (tmp_path / "folder" / "data.bin").rename(tmp_path / "folder" / "below" / "data.bin")
    quantmedic.collect(*external("below/data.bin"), validation=X, threads=1)


def test_external_data_that_are_missing_or_cut_off(external, tmp_path):
    data = tmp_path / "folder" / "data.bin"
    content = data.read_bytes()
    data.write_bytes(content[:200])
    assert "m.onnx" in str(refused(*external("data.bin")))
    data.unlink()
    error = refused(*external("data.bin"))
    assert "missing" in error.message and "data.bin" in str(error) and error.help


def assert_outside(error: ModelError) -> None:
    assert "outside" in error.message and "m.onnx" in str(error) and error.help


def test_external_data_outside_the_folder(external, tmp_path, subtests):
    folder = tmp_path / "folder"
    (folder / "below").mkdir()
    ways = ("../data.bin", "./../data.bin", "below/../../data.bin", "../folder/../data.bin", "")
    for location in (*ways, str(tmp_path / "data.bin")):
        with subtests.test(location):
            assert_outside(refused(*external(location)))
    (folder / "data.bin").unlink()
    (folder / "data.bin").symlink_to(tmp_path / "data.bin")
    assert_outside(refused(*external("data.bin")))
    (folder / "link").symlink_to(tmp_path)
    assert_outside(refused(*external("link/data.bin")))


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


def test_external_data_outside_the_folder_wherever_it_is_named(pair, tmp_path):
    path = tmp_path / "folder" / "m.onnx"
    path.parent.mkdir()
    (tmp_path / "data.bin").write_bytes(bytes(16))
    for edit in (in_a_constant, in_a_branch, in_a_function):
        model = copied(QUANTIZED)
        edit(model)
        onnx.save(model, path)
        assert "data.bin" in str(refused(pair[0], path)), edit.__name__


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


def test_models_with_different_inputs(pair):
    for model in (other_input(["n", 1, 8, 8]), other_input(["n", 3, 8]), other_input(["n", 3, 8, 8], "mask")):
        shapes = {v.name: [d.dim_value or 2 for d in v.type.tensor_type.shape.dim] for v in model.graph.input}
        onnx.save(qdq(model, {name: np.zeros(shape, "f4") for name, shape in shapes.items()}), pair[1])
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

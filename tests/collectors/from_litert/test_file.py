"""LiteRT files: what is read of them, and that damaged ones are refused with one error."""

import tracemalloc
from collections.abc import Callable
from copy import copy
from pathlib import Path
from random import Random
from typing import Any

import flatbuffers
import numpy as np
import pytest
from builders.litert_models import Twins, channels_last, every_operator, quantized
from builders.onnx_models import images, random
from builders.recordings import RECORDINGS

from quantmedic.collectors.from_litert.litert_file import LiteModel, read_litert
from quantmedic.collectors.pair.quantizer import unpack_codes
from quantmedic.engine.errors import ModelError
from quantmedic.engine.reading_limits import LITERT_BYTES, LimitError

schema = pytest.importorskip("ai_edge_litert.schema_py_generated", reason="ai-edge-litert is not installed")

DATA = RECORDINGS / "litert"


def test_a_float_model():
    model = read_litert(DATA / "image_example1.float32.tflite")
    kinds = [operator.kind for operator in model.operators]
    assert kinds[:2] == ["CONV_2D", "AVERAGE_POOL_2D"] and kinds[-1] == "SOFTMAX"
    image, weight = model.tensors[model.inputs[0]], model.tensors[model.operators[0].inputs[1]]
    assert (image.shape, image.kind, image.data) == ((None, 96, 96, 1), "FLOAT32", None)
    assert weight.data is not None and weight.data.shape == weight.shape == (24, 3, 3, 1)
    assert all(tensor.quantizer is None for tensor in model.tensors)
    assert model.operators[0].options["strideH"] == 2


def test_a_file_beyond_its_limit_is_not_read(monkeypatch):
    monkeypatch.setenv(LITERT_BYTES.variable, "1000")
    with pytest.raises(LimitError, match="a LiteRT file has too many bytes"):
        read_litert(DATA / "image_example1.float32.tflite")


def test_a_quantized_model():
    model = read_litert(DATA / "image_example1.tflite")
    conv = next(operator for operator in model.operators if operator.kind == "CONV_2D")
    image, weight, bias = (model.tensors[i].quantizer for i in conv.inputs)
    assert image and weight and bias
    assert (image.axis, image.bits, image.signed, image.scale.shape) == (None, 8, True, ())
    assert (weight.axis, weight.bits, weight.scale.shape) == (0, 8, (24,))
    assert (bias.axis, bias.bits, bias.signed) == (0, 32, True)
    np.testing.assert_allclose(bias.scale, image.scale * weight.scale, rtol=1e-6)


def refused(path: Path) -> ModelError:
    with pytest.raises(ModelError) as error:
        read_litert(path)
    assert str(path) in str(error.value) and error.value.help
    return error.value


def test_what_is_no_litert_model_is_refused(tmp_path, subtests):
    raw = (DATA / "image_example1.tflite").read_bytes()
    contents = {"empty": b"", "text": b"hello world\n", "head": b"\x1c\x00\x00\x00TFL3"}
    contents |= {f"{share} of a file": raw[: int(len(raw) * share)] for share in (0.1, 0.9999)}
    for name, content in contents.items():
        with subtests.test(name):
            (tmp_path / "model.tflite").write_bytes(content)
            refused(tmp_path / "model.tflite")
    refused(tmp_path / "missing.tflite")
    refused(tmp_path)


# --- models written for these tests --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def written() -> bytes:
    return every_operator().litert()


def test_what_ai_edge_quantizer_writes(tmp_path, written, subtests):
    true = random(1, 8, 3, 3, 3, scale=0.3).transpose(0, 2, 3, 1)
    for mode in ("int8", "int16", "dynamic", "weights", "float16"):
        with subtests.test(mode):
            model = read(quantized(written, mode, {"image": channels_last(images())}), tmp_path / "model.tflite")
            weight = next(tensor for tensor in model.tensors if tensor.name == "stem/weight")
            assert weight.data is not None
            if mode == "float16":
                assert weight.data.dtype == np.float16 and weight.quantizer is None
                np.testing.assert_allclose(weight.data, true, atol=1e-3)
            else:
                assert weight.quantizer is not None and weight.quantizer.axis == 0
                step = np.abs(true).max() / 127
                np.testing.assert_allclose(weight.quantizer.dequantize(weight.data), true, atol=step * 0.51)
    model = read(quantized(written, "weights", per_tensor=True), tmp_path / "model.tflite")
    grids = [tensor.quantizer for tensor in model.tensors if tensor.quantizer]
    assert grids and all(grid.axis is None for grid in grids)


# --- what would end the interpreter's process ----------------------------------------------------------------------


def edited(content: bytes, path: Path, edit: Callable[[Any], object]) -> Path:
    """The model with its tree of objects changed."""
    model = objects(content)
    edit(model)
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), b"TFL3")
    path.write_bytes(bytes(builder.Output()))
    return path


def tensor(model: Any, name: str) -> Any:
    return next(one for one in model.subgraphs[0].tensors if one.name == name.encode())


def operator(model: Any, output: str) -> Any:
    tensors = model.subgraphs[0].tensors
    return next(one for one in model.subgraphs[0].operators if tensors[one.outputs[0]].name == output.encode())


def put(what: Any, **values: Any) -> None:
    for name, value in values.items():
        setattr(what, name, value)


HOSTILE: dict[str, tuple[Callable[[Any], object], str]] = {
    "place of a tensor": (lambda m: put(operator(m, "stem"), inputs=[0, 999, 1]), "place 999"),
    "place of a code": (lambda m: put(operator(m, "stem"), opcodeIndex=99), "place 99"),
    "unknown operator": (lambda m: put(m.operatorCodes[0], builtinCode=9999), "9999"),
    "size of a buffer": (lambda m: put(tensor(m, "stem/weight"), shape=[8, 3, 3, 4]), "216 bytes"),
    "negative side": (lambda m: put(tensor(m, "stem"), shape=[1, -8, 8, 8], shapeSignature=None), "-8"),
    "giant": (lambda m: put(tensor(m, "stem"), shape=[1, 65536, 65536, 8], shapeSignature=None), "65536"),
    "order": (lambda m: m.subgraphs[0].operators.reverse(), "before it is written"),
    "written twice": (lambda m: put(operator(m, "depth"), outputs=operator(m, "stem").outputs), "which is given"),
    "scales for an axis": (lambda m: put(tensor(m, "stem/weight").quantization, quantizedDimension=1), "axis 1"),
    "number of zero points": (lambda m: put(tensor(m, "stem").quantization, zeroPoint=[0, 0]), "2 zero points"),
    "zero point": (lambda m: put(tensor(m, "stem").quantization, zeroPoint=[-2130706441]), "zero point"),
    "scale": (lambda m: put(tensor(m, "stem").quantization, scale=[float("nan")]), "scale"),
    "step of a sum": (lambda m: put(tensor(m, "sum").quantization, scale=[1e-10]), "ADD"),
    "filter": (lambda m: put(operator(m, "average").builtinOptions, filterHeight=-(2**31)), "filterHeight"),
    "no options": (lambda m: put(operator(m, "max"), builtinOptions=None, builtinOptionsType=0), "strideH"),
    "text from numbers": (lambda m: put(tensor(m, "shares"), type=5, quantization=None), "writes STRING"),
    "no subgraph": (lambda m: put(m, subgraphs=[]), "no subgraph"),
    "a buffer outside": (lambda m: put(m.buffers[1], data=None, offset=10**6, size=10**9), "a buffer ends"),
    "a signature": (lambda m: put(m.signatureDefs[0], subgraphIndex=3), "signature"),
}


def test_a_hostile_model_is_refused_before_it_runs(tmp_path, written, subtests):
    integers = quantized(written, "int8", {"image": channels_last(images())})
    for name, (edit, words) in HOSTILE.items():
        with subtests.test(name):
            error = refused(edited(integers, tmp_path / "model.tflite", edit))
            assert "damaged" in error.message and words in error.where[1]


def test_real_values_of_a_constant_are_as_many_as_its_codes(tmp_path, written):
    weights = quantized(written, "weights")
    path = edited(weights, tmp_path / "model.tflite", lambda m: put(tensor(m, "scores/weight_dequant"), shape=[4, 1]))
    assert "DEQUANTIZE" in refused(path).where[1]


def test_subgraphs_that_call_each_other(tmp_path, written):
    def loop(model: Any) -> None:
        options = schema.WhileOptionsT(condSubgraphIndex=1, bodySubgraphIndex=1)
        model.subgraphs.append(copy(model.subgraphs[0]))
        put(operator(model, "open"), builtinOptions=options, builtinOptionsType=schema.BuiltinOptions.WhileOptions)

    assert "calls itself" in str(refused(edited(written, tmp_path / "model.tflite", loop)))


@pytest.mark.thorough
def test_lengths_that_are_larger_than_the_file_cost_no_memory(tmp_path, written):
    """Wherever four bytes stand, they say 2 147 483 647, which is a length in many places."""
    path = tmp_path / "model.tflite"
    tracemalloc.start()
    for at in Random(0).sample(range(0, len(written) - 4, 4), 80):
        path.write_bytes(written[:at] + b"\xff\xff\xff\x7f" + written[at + 4 :])
        try:
            read_litert(path)
        except ModelError as error:
            assert str(path) in str(error)
    assert tracemalloc.get_traced_memory()[1] < 64 << 20
    tracemalloc.stop()


# --- parts of the format -------------------------------------------------------------------------------------------


def test_codes_of_four_and_two_bits():
    assert unpack_codes(np.array([0xF1, 0x08], np.uint8), 4, 3, signed=True).tolist() == [1, -1, -8]
    assert unpack_codes(np.array([0xF1], np.uint8), 4, 2, signed=False).tolist() == [1, 15]
    assert unpack_codes(np.array([0b11_10_01_00], np.uint8), 2, 4, signed=True).tolist() == [0, 1, -2, -1]


def test_packed_weights_and_blocks(tmp_path, subtests):
    """As ai-edge-quantizer 0.10 writes them."""
    for bits, granularity in ((4, "CHANNELWISE"), (4, "BLOCKWISE_32"), (2, "BLOCKWISE_32")):
        with subtests.test(f"{bits} bits, {granularity}"):
            assert_packed(tmp_path, bits, granularity)


def assert_packed(folder: Path, bits: int, granularity: str) -> None:
    from ai_edge_quantizer import qtyping, quantizer

    twins = Twins()
    twins.output(twins.dense(twins.input("x", 64), random(1, 32, 64), random(2, 32), out="y"))
    maker = quantizer.Quantizer(twins.litert())
    maker.add_dynamic_config(".*", "*", bits, qtyping.QuantGranularity(granularity))
    model = read(bytes(maker.quantize(enable_progress_report=False).quantized_model), folder / "model.tflite")
    weight = next(one for one in model.tensors if one.name == "y/weight")
    assert weight.quantizer is not None and weight.data is not None and weight.kind == f"INT{bits}"
    blocked = granularity != "CHANNELWISE"
    assert (weight.quantizer.axis, weight.quantizer.block_size) == ((1, 32) if blocked else (0, None))
    step = weight.quantizer.steps(weight.shape)
    # Scales of blocks are rounded to 7 bits after the codes were chosen.
    assert (np.abs(weight.quantizer.dequantize(weight.data) - random(1, 32, 64)) <= step * 0.52).all()


def test_a_buffer_behind_the_flatbuffer(tmp_path, written):
    """Files of more than 2 GB keep their constants there; the format is written here by hand."""
    path = tmp_path / "model.tflite"
    true = next(t.data for t in read(written, path).tensors if t.name == "stem/weight")
    assert true is not None
    place = next(t for t in objects(written).subgraphs[0].tensors if t.name == b"stem/weight").buffer
    edited(written, path, lambda m: put(m.buffers[place], data=None, offset=1 << 20, size=true.nbytes))
    path.write_bytes(path.read_bytes().ljust(1 << 20, b"\0") + true.tobytes())
    found = next(t.data for t in read_litert(path).tensors if t.name == "stem/weight")
    np.testing.assert_array_equal(found, true)


def test_names_are_unique_and_custom_operators_have_theirs(tmp_path, written):
    def edit(model: Any) -> None:
        put(tensor(model, "product"), name="sum")
        put(tensor(model, "flat"), name="")
        code = next(c for c in model.operatorCodes if c.builtinCode == schema.BuiltinOperator.LOGISTIC)
        put(code, builtinCode=schema.BuiltinOperator.CUSTOM, deprecatedBuiltinCode=32, customCode="TFLite_Mine")

    model = read_litert(edited(written, tmp_path / "model.tflite", edit))
    names = [one.name for one in model.tensors]
    assert len(set(names)) == len(names) and "sum" in names and "" not in names
    assert [one.kind for one in model.operators if one.is_custom] == ["TFLite_Mine"]


def test_codes_of_old_files(tmp_path, written):
    """Files from before 2020 have but the deprecated field."""
    model = read_litert(
        edited(written, tmp_path / "m.tflite", lambda m: [put(code, builtinCode=0) for code in m.operatorCodes])
    )
    assert [one.kind for one in model.operators] == [one.kind for one in read(written, tmp_path / "n.tflite").operators]


def test_further_subgraphs_and_sparse_constants_are_told(tmp_path, written):
    def edit(model: Any) -> None:
        model.subgraphs.append(copy(model.subgraphs[0]))
        model.subgraphs[1].name = "body"
        tensor(model, "scores/weight").sparsity = schema.SparsityParametersT(traversalOrder=[0, 1])

    model = read_litert(edited(written, tmp_path / "model.tflite", edit))
    assert any("body" in notice for notice in model.notices)
    assert any("scores/weight" in notice for notice in model.notices)
    assert next(one for one in model.tensors if one.name == "scores/weight").data is None


def read(content: bytes, path: Path) -> LiteModel:
    path.write_bytes(content)
    return read_litert(path)


def objects(content: bytes) -> Any:
    return schema.ModelT.InitFromObj(schema.Model.GetRootAs(content, 0))

"""LiteRT files: what is read of them, and that damaged ones are refused with one error."""

from pathlib import Path
from random import Random

import numpy as np
import onnxruntime as ort
import pytest
from litert_models import channels_last, every_operator, quantized
from models import images, random

from quantmedic.collectors.litert_file import read_litert
from quantmedic.engine.errors import ModelError

DATA = Path(__file__).parent / "data" / "litert"


def test_a_float_model():
    model = read_litert(DATA / "image_example1.float32.tflite")
    kinds = [operator.kind for operator in model.operators]
    assert kinds[:2] == ["CONV_2D", "AVERAGE_POOL_2D"] and kinds[-1] == "SOFTMAX"
    image, weight = model.tensors[model.inputs[0]], model.tensors[model.operators[0].inputs[1]]
    assert (image.shape, image.kind, image.data) == ((None, 96, 96, 1), "FLOAT32", None)
    assert weight.data is not None and weight.data.shape == weight.shape == (24, 3, 3, 1)
    assert all(tensor.quantizer is None for tensor in model.tensors)
    assert model.operators[0].options["strideH"] == 2


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


CONTENTS = {"empty": b"", "text": b"hello world\n", "zeros": bytes(1000), "head": b"\x1c\x00\x00\x00TFL3"}


@pytest.mark.parametrize("name", CONTENTS)
def test_files_that_are_no_litert_models(tmp_path, name):
    (tmp_path / "model.tflite").write_bytes(CONTENTS[name])
    refused(tmp_path / "model.tflite")


def test_a_missing_file_and_a_folder(tmp_path):
    refused(tmp_path / "missing.tflite")
    refused(tmp_path)


@pytest.mark.parametrize("share", [0.01, 0.1, 0.5, 0.9, 0.9999])
def test_truncated_models(tmp_path, share):
    raw = (DATA / "image_example1.tflite").read_bytes()
    (tmp_path / "model.tflite").write_bytes(raw[: int(len(raw) * share)])
    refused(tmp_path / "model.tflite")


@pytest.mark.parametrize("seed", range(4))
def test_flipped_bytes_are_read_or_refused(tmp_path, seed):
    source, rng = (DATA / "image_example1.tflite").read_bytes(), Random(seed)
    path, refusals = tmp_path / "model.tflite", 0
    for _ in range(150):
        raw = bytearray(source)
        for _ in range(rng.choice([1, 2, 8])):
            raw[rng.randrange(len(raw))] = rng.choice([0, 1, 127, 128, 255])
        path.write_bytes(raw)
        try:
            read_litert(path)
        except ModelError:
            refusals += 1
    assert 0 < refusals < 150


# --- models written for these tests --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def written() -> bytes:
    return every_operator().litert()


def test_the_twins_compute_the_same(tmp_path):
    x = images(4)
    onnx_path, lite_path = every_operator().save(tmp_path)
    expected = ort.InferenceSession(str(onnx_path), providers=["CPUExecutionProvider"]).run(None, {"image": x})[0]
    found = [run(lite_path.read_bytes(), one[None]) for one in channels_last(x)]
    np.testing.assert_allclose(np.concatenate(found), expected, atol=1e-6)


def run(content: bytes, x: np.ndarray) -> np.ndarray:
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_content=content, num_threads=1)
    interpreter.allocate_tensors()
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], x)
    interpreter.invoke()
    return interpreter.get_tensor(interpreter.get_output_details()[0]["index"])


@pytest.mark.parametrize("mode", ["int8", "int16", "dynamic", "weights", "float16"])
def test_what_ai_edge_quantizer_writes(tmp_path, written, mode):
    path = tmp_path / "model.tflite"
    path.write_bytes(quantized(written, mode, {"image": channels_last(images())}))
    model = read_litert(path)
    weight = next(tensor for tensor in model.tensors if tensor.name == "stem/weight")
    true = random(1, 8, 3, 3, 3, scale=0.3).transpose(0, 2, 3, 1)
    assert weight.data is not None
    if mode == "float16":
        assert weight.data.dtype == np.float16 and weight.quantizer is None
        np.testing.assert_allclose(weight.data, true, atol=1e-3)
        return
    assert weight.quantizer is not None and weight.quantizer.axis == 0
    step = np.abs(true).max() / 127
    np.testing.assert_allclose(weight.quantizer.dequantize(weight.data), true, atol=step * 0.51)


def test_weights_with_one_scale(tmp_path, written):
    path = tmp_path / "model.tflite"
    path.write_bytes(quantized(written, "weights", per_tensor=True))
    grids = [tensor.quantizer for tensor in read_litert(path).tensors if tensor.quantizer]
    assert grids and all(grid.axis is None for grid in grids)

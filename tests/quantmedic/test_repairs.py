"""Repairs that quantmedic carries out itself: files in, files out, data from a reader, and refusals."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from builders.onnx_models import Net, conv_net, images, random, run, static
from onnxruntime.quantization import CalibrationDataReader, quantize_static

import quantmedic
from quantmedic.engine.errors import DataError, ModelError, OutputError

DATA = images(48)


class Once(CalibrationDataReader):
    """A user's reader, which gives its feeds once."""

    def __init__(self) -> None:
        self.feeds = iter([{"image": DATA[i : i + 16]} for i in range(0, len(DATA), 16)])

    def get_next(self) -> Any:
        return next(self.feeds, None)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a float model, and what onnxruntime's quantizer makes of it."""
    monkeypatch.chdir(tmp_path)
    onnx.save(static(conv_net(), {"image": DATA}, tmp_path), "int8.onnx")
    onnx.save(conv_net(), "float.onnx")
    return tmp_path


def outputs(path: str) -> np.ndarray:
    (found,) = run(onnx.load(path), {"image": DATA}).values()
    return found


@pytest.mark.thorough
def test_the_float_model_is_equalized_and_quantized_in_its_place(files: Path) -> None:
    before = Path("float.onnx").read_bytes()
    equalized = quantmedic.equalize("float.onnx", "equalized.onnx")
    assert [(pair.writers, pair.readers) for pair in equalized.pairs] == [
        (("conv1",), ("conv2",)),
        (("conv2",), ("scores",)),
    ]
    assert np.allclose(outputs("equalized.onnx"), outputs("float.onnx"), atol=1e-5)
    assert Path("float.onnx").read_bytes() == before
    quantize_static("equalized.onnx", "new.onnx", Once())
    assert quantmedic.diagnose("equalized.onnx", "new.onnx", validation=DATA).verdict == "healthy"


def test_one_reader_serves_every_step_of_a_script(files: Path) -> None:
    reader = quantmedic.rewindable(Once())
    smoothed = quantmedic.smooth("float.onnx", "smoothed.onnx", reader, alpha=0.5, insert=True)
    assert smoothed.inputs
    assert np.allclose(outputs("smoothed.onnx"), outputs("float.onnx"), atol=1e-5)
    quantize_static("smoothed.onnx", "new.onnx", reader)
    rounded = quantmedic.learn_rounding("smoothed.onnx", "new.onnx", reader, "new.onnx")
    corrected = quantmedic.correct_biases("smoothed.onnx", "new.onnx", reader, "new.onnx")
    assert len(rounded.layers) == len(corrected.layers) == 3
    assert onnx.load("new.onnx") == corrected.model
    assert sum(1 for _ in reader) == 3
    assert quantmedic.rewindable(reader) is reader


def test_a_reader_that_rewinds_by_itself_is_not_kept_in_memory() -> None:
    class Rewinding(Once):
        def rewind(self) -> None:
            self.__init__()

    reader = Rewinding()
    again = quantmedic.rewindable(reader)
    assert [sum(1 for _ in iter(again.get_next, None)) for _ in range(2)] == [3, 3]
    assert sum(1 for _ in again) == 3
    assert sum(1 for _ in iter(reader.get_next, None)) == 3, "it was left at its beginning"
    assert again.get_next() is not None
    assert sum(1 for _ in again) == 3
    reader.rewind = lambda: None
    reader.feeds = iter(())
    with pytest.raises(DataError, match="gives no feeds"):
        quantmedic.rewindable(reader).get_next()


def test_data_are_given_as_everywhere(files: Path) -> None:
    np.savez("rep.npz", image=DATA)
    found = [
        quantmedic.correct_biases("float.onnx", "int8.onnx", data, f"{name}.onnx").layers
        for name, data in {"file": "rep.npz", "array": DATA, "reader": Once(), "mapping": {"image": DATA}}.items()
    ]
    assert all(layers == found[0] for layers in found)
    part = quantmedic.correct_biases("float.onnx", "int8.onnx", DATA, "part.onnx", samples=16)
    assert part.layers != found[0]


def test_refusals_name_what_to_do(files: Path) -> None:
    for repair in (
        lambda: quantmedic.equalize("float.onnx", "float.onnx"),
        lambda: quantmedic.smooth("float.onnx", "./float.onnx", DATA),
        lambda: quantmedic.correct_biases("float.onnx", "int8.onnx", DATA, "float.onnx"),
        lambda: quantmedic.learn_rounding("float.onnx", "int8.onnx", DATA, files / "float.onnx"),
    ):
        with pytest.raises(OutputError, match="the float model would be replaced"):
            repair()
    with pytest.raises(DataError, match="alpha is outside of its range"):
        quantmedic.smooth("float.onnx", "out.onnx", DATA, alpha=1.5)
    with pytest.raises(DataError, match="not a calibration data reader"):
        quantmedic.rewindable([DATA])
    with pytest.raises(ModelError, match="no such model file"):
        quantmedic.equalize("missing.onnx", "out.onnx")
    with pytest.raises(ModelError, match="no layers that could be equalized"):
        quantmedic.equalize("int8.onnx", "out.onnx")
    with pytest.raises(DataError):
        quantmedic.smooth("float.onnx", "out.onnx", random(1, 4, 5))
    used = Once()
    used.feeds = iter(())
    with pytest.raises(DataError, match="gives no feeds"):
        quantmedic.correct_biases("float.onnx", "int8.onnx", used, "out.onnx")
    assert not Path("out.onnx").exists()
    assert not list(files.glob(".*"))


def test_readers_give_numbers_to_inputs_without_axes(files: Path) -> None:
    """As onnxruntime feeds them: every other input has a sample axis."""
    net = Net()
    x = net.input("x", ["n", 8])
    x = net.add("Mul", x, net.input("gain", []), out="louder", name="/gain")
    for name in ("first", "second"):
        net.const(f"{name}.weight", random(len(name), 8, 8))
        x = net.add("MatMul", x, f"{name}.weight", out=name, name=f"/{name}")
    net.output(x, shape=["n", 8])
    onnx.save(net.model(), "scalar.onnx")
    feed = {"x": random(3, 4, 8), "gain": np.array(2, np.float32)}

    class Feeds(Once):
        def __init__(self) -> None:
            self.feeds = iter([feed, feed])

    smoothed = quantmedic.smooth("scalar.onnx", "smoothed.onnx", Feeds())
    assert [each.readers for each in smoothed.inputs] == [("/second",)]
    assert smoothed.left == {"/first": "what writes or reads louder does not take up a factor"}
    before, after = (ort.InferenceSession(name).run(None, feed)[0] for name in ("scalar.onnx", "smoothed.onnx"))
    assert np.allclose(before, after, rtol=1e-4, atol=1e-5)

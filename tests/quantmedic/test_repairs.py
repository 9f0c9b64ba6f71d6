"""Repairs that quantmedic carries out itself: files in, files out, data from a reader, and refusals."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders.onnx_models import conv_net, images, random, run, static
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


def test_one_reader_serves_every_step_of_a_script(files: Path) -> None:
    reader = quantmedic.rewindable(Once())
    quantize_static("float.onnx", "new.onnx", reader)
    rounded = quantmedic.learn_rounding("float.onnx", "new.onnx", reader, "new.onnx")
    corrected = quantmedic.correct_biases("float.onnx", "new.onnx", reader, "new.onnx")
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
        lambda: quantmedic.correct_biases("float.onnx", "int8.onnx", DATA, "float.onnx"),
        lambda: quantmedic.learn_rounding("float.onnx", "int8.onnx", DATA, files / "float.onnx"),
    ):
        with pytest.raises(OutputError, match="the float model would be replaced"):
            repair()
    with pytest.raises(DataError, match="not a calibration data reader"):
        quantmedic.rewindable([DATA])
    with pytest.raises(ModelError, match="no such model file"):
        quantmedic.correct_biases("missing.onnx", "int8.onnx", DATA, "out.onnx")
    with pytest.raises(DataError):
        quantmedic.correct_biases("float.onnx", "int8.onnx", random(1, 4, 5), "out.onnx")
    used = Once()
    used.feeds = iter(())
    with pytest.raises(DataError, match="gives no feeds"):
        quantmedic.correct_biases("float.onnx", "int8.onnx", used, "out.onnx")
    assert not Path("out.onnx").exists()
    assert not list(files.glob(".*"))

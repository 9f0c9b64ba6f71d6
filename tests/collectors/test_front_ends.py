"""Which front end a model belongs to."""

from pathlib import Path

import pytest

from quantmedic.collectors.front_ends import FRONT_ENDS, front_end_named, front_end_of, front_end_of_pair
from quantmedic.engine.errors import ModelError

LITERT_BYTES = b"\x1c\0\0\0TFL3" + b"\0" * 8


class Module:
    """Neither a path nor anything that a front end knows."""


def test_a_model_belongs_to_one_front_end(tmp_path: Path) -> None:
    """Files by their names, and where these tell nothing by their marks; of a missing one the other file tells."""
    path = tmp_path / "model.bin"
    path.write_bytes(LITERT_BYTES)
    models = {"net.onnx": "onnx", "net": "onnx", "NET.TFLITE": "litert", Path("net.lite"): "litert", path: "litert"}
    models |= {Module(): "torch"}
    assert {model: front_end_of(model).name for model in models} == models
    assert front_end_of_pair(tmp_path / "missing", path).name == "litert"


def test_every_front_end_is_found_by_its_name() -> None:
    names = [each.name for each in FRONT_ENDS]
    assert len(set(names)) == len(names) and {"onnx", "litert", "torch", "toy"} <= set(names)
    assert all(front_end_named(each.name) is each for each in FRONT_ENDS)


def test_models_of_two_front_ends_are_refused(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").touch()
    (tmp_path / "model.tflite").touch()
    with pytest.raises(ModelError, match="one model is a LiteRT file, the other is not"):
        front_end_of_pair(tmp_path / "model.onnx", tmp_path / "model.tflite")
    with pytest.raises(ModelError, match="one model is a file, the other is not"):
        front_end_of_pair(tmp_path / "model.onnx", Module())

"""Other values in the constants of a LiteRT file: nothing but their bytes changes."""

from pathlib import Path

import numpy as np
import pytest
from builders.litert_models import every_operator, quantized
from builders.onnx_models import random

from quantmedic.collectors.from_litert.file import LiteModel, read_litert
from quantmedic.collectors.from_litert.stored import writable_constants, write_constants
from quantmedic.engine.errors import ModelError

pytest.importorskip("ai_edge_litert", reason="ai-edge-litert is not installed")


@pytest.fixture(scope="module", params=["float", "int8", "int16", "int4"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LiteModel:
    content = every_operator().litert()
    if request.param != "float":
        pytest.importorskip("ai_edge_quantizer", reason="ai-edge-quantizer is not installed")
        content = quantized(content, request.param, {"image": random(1, 8, 8, 8, 3)})
    path = tmp_path_factory.mktemp("files") / "model.tflite"
    path.write_bytes(content)
    return read_litert(path)


def test_own_values_give_the_same_file(model: LiteModel) -> None:
    places = writable_constants(model)
    assert {model.tensors[place].kind for place in places} >= {"INT32"}
    own = {place: data for place in places if (data := model.tensors[place].data) is not None}
    assert write_constants(model, own) == model.content


def test_one_value_changes_the_bytes_of_one_value(model: LiteModel, tmp_path: Path) -> None:
    for place in writable_constants(model):
        data = model.tensors[place].data
        assert data is not None
        changed = data.copy()
        changed.flat[-1] = 1 - changed.flat[-1] if abs(changed.flat[-1]) < 2 else 0
        content = write_constants(model, {place: changed})
        assert 1 <= sum(a != b for a, b in zip(content, model.content, strict=True)) <= data.itemsize
        (tmp_path / "changed.tflite").write_bytes(content)
        again = read_litert(tmp_path / "changed.tflite")
        for before, after in zip(model.tensors, again.tensors, strict=True):
            expected = changed if before.index == place else before.data
            np.testing.assert_array_equal(after.data, expected)


def test_what_does_not_fit_is_refused(model: LiteModel) -> None:
    whole = [place for place in writable_constants(model) if model.tensors[place].kind.startswith("INT")]
    for place in whole:
        tensor = model.tensors[place]
        assert tensor.data is not None
        bits = int(tensor.kind.removeprefix("INT"))
        with pytest.raises(ModelError, match=f"does not take these numbers as {tensor.kind}"):
            write_constants(model, {place: np.full(tensor.data.shape, 2.0 ** (bits - 1))})
        with pytest.raises(ModelError, match="does not take these numbers"):
            write_constants(model, {place: tensor.data.reshape(-1)[:0]})
    with pytest.raises(ModelError, match="cannot be overwritten: it shares its bytes"):
        write_constants(model, {model.inputs[0]: np.zeros(1)})


def test_what_two_operators_read_is_left_alone(model: LiteModel) -> None:
    readers: dict[int, int] = {}
    for op in model.operators:
        for place in op.inputs:
            readers[place] = readers.get(place, 0) + 1
    shared = {place for place, count in readers.items() if count > 1}
    assert not shared & writable_constants(model)

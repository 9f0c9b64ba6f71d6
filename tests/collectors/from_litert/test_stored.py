"""Other values in the constants of a LiteRT file: nothing but their bytes changes."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from builders.litert_models import every_operator, quantized
from builders.onnx_models import random

from quantmedic.collectors.from_litert.litert_file import LiteModel, read_litert
from quantmedic.collectors.from_litert.litert_graph import writable_constants, write_constants
from quantmedic.engine.errors import ModelError

pytestmark = pytest.mark.thorough

pytest.importorskip("ai_edge_litert", reason="ai-edge-litert is not installed")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, LiteModel]:
    pytest.importorskip("ai_edge_quantizer", reason="ai-edge-quantizer is not installed")
    folder, content, found = tmp_path_factory.mktemp("files"), every_operator().litert(), {}
    for kind in ("float", "int8", "int16", "int4"):
        own = content if kind == "float" else quantized(content, kind, {"image": random(1, 8, 8, 8, 3)})
        (folder / f"{kind}.tflite").write_bytes(own)
        found[kind] = read_litert(folder / f"{kind}.tflite")
    return found


def test_values_change_the_bytes_of_their_constant_alone(
    models: dict[str, LiteModel], tmp_path: Path, subtests: pytest.Subtests
) -> None:
    for kind, model in models.items():
        with subtests.test(kind):
            places = writable_constants(model)
            assert {model.tensors[place].kind for place in places} >= {"INT32"}
            readers = Counter(place for op in model.operators for place in op.inputs)
            assert not {place for place, count in readers.items() if count > 1} & places, "two operators read it"
            own = {place: data for place in places if (data := model.tensors[place].data) is not None}
            assert len(own) == len(places) and write_constants(model, own) == model.content
            for place, data in own.items():
                changed = data.copy()
                changed.flat[-1] = 1 - changed.flat[-1] if abs(changed.flat[-1]) < 2 else 0
                content = write_constants(model, {place: changed})
                assert 1 <= sum(a != b for a, b in zip(content, model.content, strict=True)) <= data.itemsize
                (tmp_path / "changed.tflite").write_bytes(content)
                again = read_litert(tmp_path / "changed.tflite")
                for before, after in zip(model.tensors, again.tensors, strict=True):
                    np.testing.assert_array_equal(after.data, changed if before.index == place else before.data)


def test_what_does_not_fit_is_refused(models: dict[str, LiteModel]) -> None:
    for model in models.values():
        for place in writable_constants(model):
            tensor = model.tensors[place]
            if not tensor.kind.startswith("INT"):
                continue
            assert tensor.data is not None
            bits = int(tensor.kind.removeprefix("INT"))
            with pytest.raises(ModelError, match=f"does not take these numbers as {tensor.kind}"):
                write_constants(model, {place: np.full(tensor.data.shape, 2.0 ** (bits - 1))})
            with pytest.raises(ModelError, match="does not take these numbers"):
                write_constants(model, {place: tensor.data.reshape(-1)[:0]})
        with pytest.raises(ModelError, match="cannot be overwritten: it shares its bytes"):
            write_constants(model, {model.inputs[0]: np.zeros(1)})

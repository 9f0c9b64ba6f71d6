"""Prescriptions are run as they are printed: what is shown as executed is what the text itself gives."""

import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import onnx_models

from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.from_onnx.onnx_models import open_models
from quantmedic.engine.errors import ModelError
from quantmedic.trials.bench import OutOfTimeError
from quantmedic.trials.from_onnx.onnx_remedies import EXECUTORS, copy_model
from quantmedic.trials.split import even_batches, even_size

RUNTIME = EXECUTORS[0]
#: The reader gives every sample once, and again after a rewind.
_READS = """
feeds = list(iter(reader.get_next, None))
reader.rewind()
again = list(iter(reader.get_next, None))
assert [feed["file"].shape[0] for feed in feeds] == [6, 6] == [feed["file"].shape[0] for feed in again]
raise SystemExit("all read")
"""


def samples(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, 3, 8, 8)).astype(np.float32)


def small_net() -> onnx.ModelProto:
    net = onnx_models.Net(17)
    x = net.conv(net.input("file", ["n", 3, 8, 8]), onnx_models.random(1, 4, 3, 3, 3), out="conv", name="/conv")
    net.output(net.add("Relu", x, out="relu", name="/relu"), shape=["n", 4, 6, 6])
    return net.model()


@pytest.mark.thorough
def test_what_the_toolchain_says_is_the_error(tmp_path: Path) -> None:
    onnx.save(small_net(), str(tmp_path / "net.onnx"))
    onnx.save(onnx_models.static(small_net(), {"file": samples(12)}, tmp_path), str(tmp_path / "net8.onnx"))
    models, batches = open_models(tmp_path / "net.onnx", tmp_path / "net8.onnx"), [Batch({"file": samples(6)})] * 2
    for code, said in {"print('nothing to do')": "without writing int8.onnx", _READS: "all read"}.items():
        with pytest.raises(ModelError, match=said):
            RUNTIME.execute(models, code, batches, None)
    with pytest.raises(OutOfTimeError):
        RUNTIME.execute(models, "while True: pass", batches, time.monotonic() + 0.5)


def test_external_data_are_copied_beside_the_model_unless_they_lie_outside_its_folder(tmp_path: Path) -> None:
    source, target = tmp_path / "from/net.onnx", tmp_path / "to/float.onnx"
    for folder in (source.parent, target.parent):
        folder.mkdir()
    onnx.save(small_net(), str(source), save_as_external_data=True, location="w.bin", size_threshold=0)
    copy_model(source, target)
    assert onnx.load(str(target)) == onnx.load(str(source))
    source.write_bytes(source.read_bytes().replace(b"w.bin", b"../ww"))
    (tmp_path / "ww").write_bytes(b"secret")
    with pytest.raises(ModelError, match="outside the model's folder"):
        copy_model(source, target)


def test_batches_of_one_size_leave_nothing_over() -> None:
    for total, size in [(160, 32), (97, 1), (48, 24), (7, 7), (33, 11)]:
        assert even_size(total) == size
        batches = even_batches([Batch({"file": part}) for part in np.array_split(samples(total), 3)])
        assert len({batch.samples for batch in batches}) == 1
        np.testing.assert_array_equal(np.concatenate([batch.inputs["file"] for batch in batches]), samples(total))
    halves = [Batch({"file": part}) for part in np.array_split(samples(36), 2)]
    assert [batch.samples for batch in even_batches(halves)] == [18, 18]
    assert [batch.samples for batch in even_batches(halves, largest=5)] == [4] * 9, "those of a large network are cut"

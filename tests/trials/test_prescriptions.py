"""Prescriptions are run as they are printed: what is shown as executed is what the text itself gives."""

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders import onnx_models

import quantmedic
from quantmedic.api.rulebase import load_rulebase
from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.from_onnx.models import open_models
from quantmedic.demo import patient
from quantmedic.engine.case.records import Case
from quantmedic.engine.diagnosis.prescription import code_of
from quantmedic.engine.errors import ModelError
from quantmedic.trials.bench import OutOfTimeError
from quantmedic.trials.from_onnx.execute import EXECUTORS, READER
from quantmedic.trials.from_onnx.made import copy_model
from quantmedic.trials.split import even_batches, even_size

RUNTIME = EXECUTORS[0]
PLAIN = """
from onnxruntime.quantization import quantize_static
quantize_static("float.onnx", "int8.onnx", reader)
"""


def samples(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, 3, 8, 8)).astype(np.float32)


def small_net() -> onnx.ModelProto:
    net = onnx_models.Net(17)
    x = net.conv(net.input("file", ["n", 3, 8, 8]), onnx_models.random(1, 4, 3, 3, 3), out="conv", name="/conv")
    net.output(net.add("Relu", x, out="relu", name="/relu"), shape=["n", 4, 6, 6])
    return net.model()


@dataclass
class Pair:
    """Two files of one network, and its calibration batches."""

    float_path: Path
    quantized: Path
    batches: list[Batch]


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    model, feed = small_net(), {"file": samples(12)}
    onnx.save(model, str(tmp_path / "net.onnx"))
    onnx.save(onnx_models.static(model, feed, tmp_path), str(tmp_path / "net8.onnx"))
    return Pair(
        tmp_path / "net.onnx", tmp_path / "net8.onnx", [Batch({"file": samples(6)}), Batch({"file": samples(6)})]
    )


@pytest.mark.thorough
def test_the_text_quantizes_the_float_model_anew(pair: Pair) -> None:
    models = open_models(pair.float_path, pair.quantized)
    before = set(pair.float_path.parent.iterdir())
    made = RUNTIME.execute(models, PLAIN, pair.batches, None)
    batch = Batch({"file": samples(4, 1)})
    (found,), (wanted,) = made.runner(1)(batch), models.float_runner(1)(batch)
    assert 0 < np.abs(found - wanted).max() < 0.1 * np.abs(wanted).max()
    assert made.unedited == () and made.save is not None
    assert set(pair.float_path.parent.iterdir()) == before


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("raise ValueError('no such method')", "no such method"),
        ("print('nothing to do')", "without writing int8.onnx"),
        ("unknown_name", "unknown_name"),
    ],
)
def test_what_the_toolchain_says_is_the_error(pair: Pair, code: str, said: str) -> None:
    models = open_models(pair.float_path, pair.quantized)
    with pytest.raises(ModelError, match=said):
        RUNTIME.execute(models, code, pair.batches, None)


def test_a_script_that_never_ends_is_killed_at_the_deadline(pair: Pair) -> None:
    models = open_models(pair.float_path, pair.quantized)
    begun = time.monotonic()
    with pytest.raises(OutOfTimeError):
        RUNTIME.execute(models, "while True: pass", pair.batches, begun + 0.5)
    assert time.monotonic() - begun < 30


@pytest.mark.thorough
def test_the_reader_gives_every_sample_once_and_again_after_a_rewind(pair: Pair) -> None:
    code = """
feeds = list(iter(reader.get_next, None))
reader.rewind()
again = list(iter(reader.get_next, None))
assert [feed["file"].shape[0] for feed in feeds] == [6, 6] == [feed["file"].shape[0] for feed in again]
raise SystemExit("all read")
"""
    models = open_models(pair.float_path, pair.quantized)
    with pytest.raises(ModelError, match="all read"):
        RUNTIME.execute(models, code, pair.batches, None)
    assert "reader" in READER


def test_external_data_are_copied_beside_the_model(tmp_path: Path) -> None:
    (tmp_path / "from").mkdir()
    (tmp_path / "to").mkdir()
    onnx.save(
        small_net(), str(tmp_path / "from/net.onnx"), save_as_external_data=True, location="w.bin", size_threshold=0
    )
    copy_model(tmp_path / "from/net.onnx", tmp_path / "to/float.onnx")
    assert onnx.load(str(tmp_path / "to/float.onnx")) == onnx.load(str(tmp_path / "from/net.onnx"))


def test_external_data_outside_the_folder_are_refused(tmp_path: Path) -> None:
    (tmp_path / "from").mkdir()
    onnx.save(
        small_net(), str(tmp_path / "from/net.onnx"), save_as_external_data=True, location="w.bin", size_threshold=0
    )
    stored = (tmp_path / "from/net.onnx").read_bytes().replace(b"w.bin", b"../ww")
    (tmp_path / "from/net.onnx").write_bytes(stored)
    (tmp_path / "ww").write_bytes(b"secret")
    (tmp_path / "to").mkdir()
    with pytest.raises(ModelError, match="outside the model's folder"):
        copy_model(tmp_path / "from/net.onnx", tmp_path / "to/float.onnx")


@pytest.mark.parametrize(("total", "size"), [(160, 32), (97, 1), (48, 24), (7, 7), (33, 11)])
def test_batches_of_one_size_leave_nothing_over(total: int, size: int) -> None:
    assert even_size(total) == size
    parts = np.array_split(samples(total), 3)
    batches = even_batches([Batch({"file": part}) for part in parts])
    assert len({batch.samples for batch in batches}) == 1
    np.testing.assert_array_equal(np.concatenate([batch.inputs["file"] for batch in batches]), samples(total))


def test_batches_of_a_large_network_are_cut() -> None:
    halves = [Batch({"file": part}) for part in np.array_split(samples(36), 2)]
    assert [batch.samples for batch in even_batches(halves)] == [18, 18]
    assert [batch.samples for batch in even_batches(halves, largest=5)] == [4] * 9


@pytest.fixture(scope="module")
def proven() -> tuple[Case, Any]:
    (source, quantized), data = patient()
    case = quantmedic.collect(source, quantized, prove=60.0, threads=1, **data)
    return case, quantmedic.judge(case)


@pytest.mark.thorough
def test_the_executed_text_is_the_printed_one(proven: tuple[Case, Any]) -> None:
    case, found = proven
    given, proof = found.prescription, case.record.proof
    assert given.grade == "executed" and given.basis == "proven"
    assert proof.executions[proof.best].code == code_of(given)
    assert given.executed.trial.proven and given.executed.trial.metric.gain > 0.7
    assert "representative set, 160 samples" in given.executed.reads
    assert given.executed.version


@pytest.mark.thorough
def test_a_text_that_is_printed_otherwise_now_is_not_called_executed(proven: tuple[Case, Any]) -> None:
    case, _ = proven
    proof = case.record.proof
    rows = tuple(row.model_copy(update={"code": row.code + "# of older rules\n"}) for row in proof.executions)
    older = case.record.model_copy(update={"proof": proof.model_copy(update={"executions": rows})})
    found = quantmedic.judge(replace(case, record=older)).prescription
    assert found.executed is None and found.grade == "edited"


@pytest.mark.thorough
def test_without_representative_data_nothing_is_executed_and_that_is_said() -> None:
    (source, quantized), data = patient()
    alone = {key: value for key, value in data.items() if key != "representative"}
    case = quantmedic.collect(source, quantized, prove=120.0, threads=1, **alone)
    proof = case.record.proof
    assert proof.executions == () and proof.best is None
    assert "no representative data were given" in proof.unexecuted


@pytest.mark.thorough
def test_code_of_rules_that_are_not_built_in_is_never_run(tmp_path: Path) -> None:
    """A rule folder may come from a stranger's pull request."""
    base = load_rulebase()
    remedies = {}
    for name, remedy in base.remedies.items():
        own = tuple(
            snippet.model_copy(update={"code": snippet.code + f'\nopen({str(tmp_path / "ran")!r}, "w")\n'})
            for snippet in remedy.snippets
        )
        remedies[name] = remedy.model_copy(update={"snippets": own})
    foreign = base.model_copy(update={"remedies": remedies})
    (source, quantized), data = patient()
    case = quantmedic.collect(source, quantized, rules=foreign, prove=120.0, threads=1, **data)
    assert case.record.proof.executions == ()
    assert "rules of your own" in case.record.proof.unexecuted
    assert not (tmp_path / "ran").exists()

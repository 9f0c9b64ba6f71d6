"""Facts of LiteRT pairs against the same numbers computed with plain interpreters.

The public pair is described in data/litert/README.md; other models are written by ``litert_models`` and quantized by
ai-edge-quantizer.
"""

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ai_edge_litert", reason="ai-edge-litert is not installed")
pytest.importorskip("ai_edge_quantizer", reason="ai-edge-quantizer is not installed")

import flatbuffers
from ai_edge_litert import schema_py_generated as schema
from ai_edge_litert.interpreter import Interpreter
from ai_edge_litert.schema_py_generated import ActivationFunctionType
from builders.commands import run_quantmedic
from builders.litert_models import LiteFile, Twins, channels_last, every_operator, quantized
from builders.onnx_models import Array, conv_net, images, random, save_pair
from builders.recordings import RECORDINGS
from builders.tiers import others_nightly

import quantmedic
from quantmedic.collectors.from_litert.first_run import require_survival
from quantmedic.collectors.from_litert.litert_file import read_litert
from quantmedic.collectors.from_litert.litert_session import Session
from quantmedic.engine.errors import DataError, ModelError
from quantmedic.engine.formulas.derive import derive

pytestmark = [pytest.mark.thorough, pytest.mark.attributed]

DATA = RECORDINGS / "litert"
PAIR = DATA / "image_example1.float32.tflite", DATA / "image_example1.tflite"
MODES = {"int8": "int8", "int16": "int16x8", "dynamic": "dynamic", "weights": "weight-only", "float16": "float16"}
X = channels_last(images(40))


def pictures(count: int = 24) -> Array:
    """Patches of grey with some noise, in the range that the public pair was made for."""
    rng = np.random.default_rng(5)
    coarse = np.kron(rng.random((count, 12, 12, 1)), np.ones((1, 8, 8, 1)))
    return (8.0 * (coarse + rng.normal(0, 0.02, coarse.shape)).clip(0, 1) - 3.7).astype(np.float32)


@functools.cache
def contents(mode: str) -> tuple[bytes, bytes]:
    content = every_operator().litert()
    return content, quantized(content, mode, {"image": X} if mode in ("int8", "int16") else None)


def files(folder: Path, floats: bytes, theirs: bytes) -> tuple[Path, Path]:
    paths = folder / "float.tflite", folder / "quantized.tflite"
    for path, content in zip(paths, (floats, theirs), strict=True):
        path.write_bytes(content)
    return paths


def plain(path: Path, x: Array) -> Array:
    """What the application gets: sample by sample, codes encoded and decoded by the tensors' own parameters."""
    interpreter = Interpreter(str(path))
    interpreter.allocate_tensors()
    fed, given = interpreter.get_input_details()[0], interpreter.get_output_details()[0]
    found = []
    for row in x:
        interpreter.set_tensor(fed["index"], encoded(row[None], fed))
        interpreter.invoke()
        found.append(decoded(interpreter.get_tensor(given["index"]), given))
    return np.concatenate(found)


def encoded(x: Array, details: Any) -> Array:
    scale, zero = details["quantization"]
    if not scale:
        return x
    ends = np.iinfo(details["dtype"])
    return np.clip(np.rint(x / np.float32(scale)) + zero, ends.min, ends.max).astype(details["dtype"])


def decoded(codes: Array, details: Any) -> Array:
    scale, zero = details["quantization"]
    return (codes.astype(np.float64) - zero) * scale if scale else codes.astype(np.float64)


def facts_of(case: Any) -> Any:
    return derive(case, quantmedic.load_rulebase())


def output_of(case: Any) -> Any:
    """The data facts of the network's output."""
    facts, place = facts_of(case), case.record.outputs[0].tensor
    return facts.tensors[place].data


# --- the public pair -------------------------------------------------------------------------------------------------

SEEN = pictures(6)


@pytest.fixture(scope="module")
def public() -> Any:
    return quantmedic.collect(*PAIR, validation=SEEN, threads=2, profile=True)


def test_every_operator_of_the_public_pair_is_measured(public):
    record = public.record
    assert (record.model.framework, record.model.format) == ("litert", "int8")
    assert not record.unmatched
    kinds = ["Conv", "AveragePool", "Conv", "Conv", "AveragePool", "Reshape", "Gemm", "Softmax"]
    assert [op.op_type for op in record.operators] == kinds
    assert len(record.tensors) == len(kinds) + 1
    assert {op.executed_as for op in record.operators} == {"integer"}
    assert [tensor.channels for tensor in record.tensors[:4]] == [1, 24, 24, 16]
    assert not [notice for notice in record.notices if "that simulation" in notice]
    assert record.model.bytes_float == PAIR[0].stat().st_size
    model = record.model
    assert model.latency_float_ms > 0 and model.latency_quantized_ms > 0 and model.latency_runs >= 5
    judged = quantmedic.judge(public)
    assert judged.toolchain.name == "TensorFlow converter" and "guessed" in judged.toolchain.how
    assert "R004" in {note.rule for note in judged.not_applicable}, "opsets are no open question"


def test_errors_are_those_of_plain_interpreters(public):
    floats, theirs = (plain(path, SEEN) for path in PAIR)
    found, difference = output_of(public), theirs - floats
    assert found.accumulated.mse == pytest.approx((difference**2).mean(), rel=1e-4)
    assert found.accumulated.max == pytest.approx(np.abs(difference).max(), rel=1e-4)
    sqnr = 10 * np.log10((floats**2).sum() / (difference**2).sum())
    assert found.accumulated.sqnr_db == pytest.approx(sqnr, abs=0.01)
    shown = []
    for path, column in zip(PAIR, ("float_name", "name"), strict=True):
        interpreter = Interpreter(str(path), experimental_preserve_all_tensors=True)
        interpreter.allocate_tensors()
        places = {each["name"]: each for each in interpreter.get_tensor_details()}
        details = [places[getattr(tensor, column)] for tensor in public.record.tensors[1:]]
        rows = []
        for row in SEEN:
            interpreter.set_tensor(interpreter.get_input_details()[0]["index"], row[None])
            interpreter.invoke()
            rows.append([decoded(interpreter.get_tensor(each["index"]), each) for each in details])
        shown.append([np.concatenate(each) for each in zip(*rows, strict=True)])
    for tensor, floats, theirs in zip(facts_of(public).tensors[1:], *shown, strict=True):
        assert tensor.data.accumulated.mse == pytest.approx(((theirs - floats) ** 2).mean(), rel=1e-4, abs=1e-12)


def test_rounding_error_is_that_of_the_grid(public):
    first = facts_of(public).tensors[0]
    scale, zero = 0.0329434908926487, -9
    codes = np.clip(np.rint(SEEN / np.float32(scale)) + zero, -128, 127)
    error = ((codes - zero) * scale - SEEN).astype(np.float64)
    assert first.quantizer.scale == pytest.approx(scale)
    assert first.data.rounding.mse == pytest.approx((error**2).mean(), rel=1e-3)
    # Nothing lies before the input: what has gathered there is its own rounding.
    assert first.data.accumulated.mse == pytest.approx(first.data.rounding.mse, rel=1e-3)


# --- models that were written and quantized here ---------------------------------------------------------------------


@pytest.mark.parametrize("mode", others_nightly(MODES))
def test_every_way_of_quantizing(mode, tmp_path):
    paths = files(tmp_path, *contents(mode))
    case = quantmedic.collect(*paths, validation=X, threads=2)
    record = case.record
    assert record.model.format == MODES[mode]
    assert not [notice for notice in record.notices if "that simulation" in notice]
    compute = {op.executed_as for op in record.operators if op.is_compute}
    assert compute == ({"float"} if mode in ("weights", "float16") else {"integer"})
    bits = {
        tensor.quantizer.bits for tensor in record.tensors if tensor.quantizer.bits and not tensor.quantizer.dynamic
    }
    assert bits == {"int8": {8}, "int16": {16}}.get(mode, set())
    # Kernels that quantize at run time look at the whole batch.
    assert (record.run["batch_size"] == 1) == (mode == "dynamic")
    floats, theirs = (plain(path, X) for path in paths)
    expected = ((theirs - floats) ** 2).mean()
    assert output_of(case).accumulated.mse == pytest.approx(expected, rel=1e-3, abs=1e-12)
    judged = quantmedic.judge(case)
    assert "not-quantized" not in [cause.cause for cause in judged.causes]
    if mode == "int8":
        # It takes and gives codes, the report speaks of what they stand for.
        assert record.tensors[0].is_input and record.tensors[0].quantizer.bits == 8
        assert record.outputs[0].is_codes is False and output_of(case).accumulated.sqnr_db > 25
        assert judged.toolchain.name == "ai-edge-quantizer"


def one_sample(*, constant: bool) -> bytes:
    """A dense layer behind a reshape to exactly one row; its input says so too, or leaves the number open."""
    file = LiteFile()
    file.inputs.append("x")
    file.tensors["x"] = (1, 4, 2), None
    target = file.const("shape", np.array([1, 8], np.int32))
    file.add("RESHAPE", "x", target, out="row", shape=[8], options=schema.ReshapeOptionsT(newShape=[1, 8]))
    names = file.const("weight", random(3, 4, 8)), file.const("bias", random(4, 4))
    options = schema.FullyConnectedOptionsT(fusedActivationFunction=ActivationFunctionType.NONE)
    file.outputs.append(file.add("FULLY_CONNECTED", "row", *names, out="y", shape=[4], options=options))
    content = file.content()
    said, fixed = (np.array([first, 4, 2], np.int32).tobytes() for first in (-1, 1))
    return content.replace(said, fixed) if constant else content


@pytest.mark.parametrize("constant", [True, False])
def test_models_that_take_one_sample(constant, tmp_path):
    content, x = one_sample(constant=constant), random(9, 12, 4, 2)
    paths = files(tmp_path, content, quantized(content, "int8", {"x": 2 * x[:1]}))
    case = quantmedic.collect(*paths, validation=x, threads=2)
    assert case.record.datasets["validation"].seen == 12
    floats, theirs = (plain(path, x) for path in paths)
    assert output_of(case).accumulated.mse == pytest.approx(((theirs - floats) ** 2).mean(), rel=1e-3)


def test_what_a_session_shows_outlives_the_next_run(tmp_path, monkeypatch):
    """Tensors are copied when they are asked for, and all that are left where their interpreter is needed again."""
    made, make = [], Session._make_interpreter
    monkeypatch.setattr(Session, "_make_interpreter", lambda own: made.append(1) or make(own))
    (tmp_path / "model.tflite").write_bytes(every_operator().litert())
    model = read_litert(tmp_path / "model.tflite")
    session, places = Session(model, 1, observed=True), list(model.outputs)
    feeds = [{place: random(k, 2, 8, 8, 3) for place in model.inputs} for k in (1, 2)]
    alone = [session.run(feed, places) for feed in feeds]
    first = session.show(feeds[0], places)
    second = session.show(feeds[1], places)
    for shown, expected in ((first, alone[0]), (second, alone[1])):
        for place in places:
            np.testing.assert_array_equal(shown[place], expected[place])
    assert len(made) == 1
    del first, second, shown
    session.run({place: array[:1] for place, array in feeds[0].items()}, places)
    assert len(made) == 2  # the first has room for more samples than are asked for, and would keep it


def test_what_has_the_shape_of_an_input_is_no_row_of_scores(tmp_path):
    twins = Twins()
    x = twins.input("signal", 16)
    twins.output(twins.dense(x, random(1, 16, 16, scale=0.001), random(2, 16, scale=0.001), out="restored"))
    x = random(3, 40, 16)
    paths = files(tmp_path, twins.litert(), quantized(twins.litert(), "int8", {"signal": x}))
    output = facts_of(quantmedic.collect(*paths, validation=x, threads=1)).outputs[0]
    assert output.step_over_margin is None and output.tie_share is None
    labelled = {"signal": x, "labels": np.arange(40) % 16}
    output = facts_of(quantmedic.collect(*paths, validation=labelled, metric="top1", threads=1)).outputs[0]
    assert output.step_over_margin is not None and output.tie_share is not None


# --- remedies --------------------------------------------------------------------------------------------------------


def damaged(folder: Path) -> tuple[Path, Path]:
    """Ranges of a quarter of the data."""
    content = every_operator().litert()
    return files(folder, content, quantized(content, "int8", {"image": X * np.float32(0.25)}))


@pytest.mark.nightly
def test_remedies_are_simulated_and_tried(tmp_path):
    case = quantmedic.collect(*damaged(tmp_path), validation=X, threads=2, prove=600)
    record = case.record
    assert record.simulation is not None and record.proof is not None
    deployed, simulated = (sum(run.noise) for run in (record.simulation.deployed, record.simulation.simulated))
    assert simulated == pytest.approx(deployed, rel=0.1)
    # New ranges reach the input, too, whose codes the application makes: without it, 16 dB at most.
    again = next(trial for trial in record.proof.trials if trial.kind == "recalibrate")
    assert again.sqnr_before < 15 and again.sqnr_after > 20
    assert any("translation" in notice and "interpreter" in notice for notice in record.notices)


def test_a_repaired_file_is_not_written(tmp_path):
    with pytest.raises(DataError, match="repaired LiteRT model is not written") as caught:
        quantmedic.collect(*PAIR, validation=pictures(2), write_fixed=tmp_path / "fixed.tflite")
    assert "prescription" in caught.value.help and not (tmp_path / "fixed.tflite").exists()


def test_layers_are_tried_one_by_one_and_left_in_float(tmp_path):
    paths = damaged(tmp_path)
    found = quantmedic.search("sensitivity", *paths, validation=X, modes=("one",), samples=16)
    assert len(found.units) > 8 and len(found.runs) == len(found.units)
    assert found.simulated.sqnr_db == pytest.approx(found.deployed.sqnr_db, abs=1.0)
    assert quantmedic.search("fallback", *paths, validation=X, min_sqnr_db=12.0, samples=16).units


def test_what_has_no_translation_is_measured_and_not_simulated(tmp_path):
    twins = Twins()
    x = twins.conv(twins.input("image", 3, 8, 8), random(1, 4, 3, 3, 3), random(2, 4), out="conv")
    shape = twins.shapes[x]
    twins.lite.outputs.append(twins.lite.add("ATAN2", x, x, out="angle", shape=(*shape[1:], shape[0])))
    content = twins.litert()
    paths = files(tmp_path, content, quantized(content, "int8", {"image": X * np.float32(0.1)}))
    case = quantmedic.collect(*paths, validation=X[:8], threads=1, prove=2.0)
    assert case.record.model.operators == 2 and case.record.simulation is None
    assert any("ATAN2" in notice for notice in case.record.notices)


# --- what is refused -------------------------------------------------------------------------------------------------


def test_what_does_not_belong_together_is_refused(tmp_path):
    with pytest.raises(ModelError, match="swapped"):
        quantmedic.collect(*reversed(PAIR), validation=pictures(2))
    with pytest.raises(ModelError, match="do not belong together"):
        quantmedic.collect(PAIR[0], DATA / "autoencoder_example.tflite", validation=pictures(2))
    with pytest.raises(DataError, match="do not fit the model input"):
        quantmedic.collect(*PAIR, validation=pictures(2)[:, :50])
    path, _ = save_pair(tmp_path, conv_net(), conv_net())
    for pair in ((path, PAIR[1]), (PAIR[0], path)):
        with pytest.raises(ModelError, match="one model is a LiteRT file, the other is not") as caught:
            quantmedic.collect(*pair, validation=pictures(2))
        assert "ONNX" in str(caught.value) and caught.value.help
    twins = every_operator()
    twins.lite.tensors["stem/weight"] = (8, 3, 3, 3), random(99, 8, 3, 3, 3)
    for name in ("half/weight", "scores/weight", "gate/weight", "depth/weight"):
        shape, data = twins.lite.tensors[name]
        twins.lite.tensors[name] = shape, random(len(name), *data.shape)
    with pytest.raises(ModelError, match="weights"):
        quantmedic.collect(*files(tmp_path, twins.litert(), contents("int8")[1]), validation=X[:2])


def test_a_crash_of_the_interpreter_is_an_error(tmp_path):
    """The operand that is left out here is one of those that the checks of files ask for."""
    model = schema.ModelT.InitFromPackedBuf(every_operator().litert(), 0)
    stem = model.subgraphs[0].operators[0]
    stem.inputs = [stem.inputs[0], -1, stem.inputs[2]]
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), b"TFL3")
    paths = files(tmp_path, every_operator().litert(), bytes(builder.Output()))
    with pytest.raises(ModelError, match="crashes") as caught:
        require_survival(paths)
    assert "quantized.tflite" in str(caught.value)
    require_survival([paths[0], PAIR[1]])


# --- without data, and from the command line -------------------------------------------------------------------------


def test_without_data_nothing_is_run():
    case = quantmedic.collect_static(*PAIR)
    assert case.record.model.framework == "litert" and not case.statistics
    assert {op.executed_as for op in case.record.operators} == {"integer"}
    assert [op.weight.quantizer.bits for op in case.record.operators if op.is_compute] == [8] * 4


def test_from_the_command_line(tmp_path):
    np.savez(tmp_path / "val.npz", image=pictures(8))
    done = run_quantmedic("diagnose", *PAIR, "-v", "val.npz", "-o", "report", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "litert int8, 8 layers, 100 % of compute layers quantized" in done.stdout
    assert "XNNPACK" not in done.stderr and "INFO" not in done.stderr
    text = (tmp_path / "report" / "report.md").read_text()
    assert "image_example1.tflite" in text and "litert" in text

"""Prescriptions for LiteRT carried out: the printed script makes the file, and that file is what is measured."""

import time
from pathlib import Path

import numpy as np
import pytest
from builders.litert_models import channels_last, every_operator, quantized
from builders.onnx_models import random
from builders.recordings import RECORDINGS

from quantmedic import collect, load_rulebase
from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.from_litert.litert_models import LiteRTModels, open_models
from quantmedic.collectors.measure.models import Runner
from quantmedic.engine.diagnosis.prescription import complete_code
from quantmedic.engine.diagnosis.settings_in_force import settings_in_force
from quantmedic.engine.errors import ModelError
from quantmedic.engine.formulas.derive import derive
from quantmedic.engine.rules.toolchain import find_toolchain, options_in_force
from quantmedic.engine.rules.toolchain_options import Options, merge_all, write
from quantmedic.trials.bench import OutOfTimeError
from quantmedic.trials.from_litert.litert_remedies import EXECUTORS, MADE

pytest.importorskip("ai_edge_litert", reason="ai-edge-litert is not installed")
pytest.importorskip("ai_edge_quantizer", reason="ai-edge-quantizer is not installed")

pytestmark = pytest.mark.thorough

BASE = load_rulebase()
LITERT = find_toolchain("litert", BASE.toolchains)
DATA = RECORDINGS / "debugger"
(EXECUTOR,) = EXECUTORS


@pytest.fixture(scope="module")
def models() -> LiteRTModels:
    found = open_models(DATA / "float.tflite", DATA / "int8.tflite")
    found.probe()
    return found


@pytest.fixture(scope="module")
def batches() -> list[Batch]:
    (array,) = np.load(DATA / "data.npz").values()
    return [Batch({"serving_default_keras_tensor:0": array[i : i + 1]}) for i in range(len(array))]


@pytest.fixture(scope="module")
def in_force() -> Options:
    case = collect(DATA / "float.tflite", DATA / "int8.tflite", validation=DATA / "data.npz", threads=1)
    return options_in_force(LITERT, "recipe", settings_in_force(derive(case, BASE)))


def script_of(options: Options, in_force: Options) -> str:
    return complete_code(write("recipe", LITERT.forms["recipe"], merge_all([options, in_force])), "python", LITERT)


def noise(models: LiteRTModels, batches: list[Batch], run: Runner) -> float:
    reference = models.float_runner(1)
    return float(sum(np.square(a - b).sum() for x in batches for a, b in zip(reference(x), run(x), strict=True)))


def test_it_is_the_toolchain_of_the_rules() -> None:
    assert EXECUTOR.toolchain == LITERT.name and EXECUTOR.missing() is None and EXECUTOR.version()
    assert EXECUTOR.supplies <= LITERT.given.keys()


@pytest.mark.nightly
def test_the_script_makes_the_file_that_is_run_and_saved(
    models: LiteRTModels, batches: list[Batch], in_force: Options, tmp_path: Path
) -> None:
    made = EXECUTOR.execute(models, script_of({}, in_force), batches, None)
    widest = script_of({"update": "=qsv_utils.min_max_update"}, in_force)
    healed = EXECUTOR.execute(models, widest, batches, time.monotonic() + 300)
    assert 0 < noise(models, batches, healed.runner(1)) < noise(models, batches, made.runner(1)) / 2
    assert made.save is not None
    made.save(tmp_path / "kept.tflite")
    again = open_models(DATA / "float.tflite", tmp_path / "kept.tflite")
    for batch in batches:
        for one, other in zip(made.runner(1)(batch), again.quantized_runner(1)(batch), strict=True):
            np.testing.assert_array_equal(one, other)
    assert [path.name for path in tmp_path.iterdir()] == ["kept.tflite"]


@pytest.mark.nightly
def test_outputs_are_those_of_the_pair_in_its_order(tmp_path: Path) -> None:
    content, feed = every_operator().litert(), {"image": channels_last(random(0, 4, 3, 8, 8))}
    (tmp_path / "float.tflite").write_bytes(content)
    (tmp_path / "int8.tflite").write_bytes(quantized(content, "int8", feed))
    pair = open_models(tmp_path / "float.tflite", tmp_path / "int8.tflite")
    case = collect(tmp_path / "float.tflite", tmp_path / "int8.tflite", validation=feed, threads=1)
    known = options_in_force(LITERT, "recipe", settings_in_force(derive(case, BASE)))
    batch = Batch(feed)
    pair.batched = True
    made = EXECUTOR.execute(pair, script_of({}, known), [batch], None)
    before, after = pair.quantized_runner(1)(batch), made.runner(1)(batch)
    assert [each.shape for each in after] == [each.shape for each in before]


@pytest.mark.nightly
def test_a_refusal_is_told_in_the_words_of_the_toolchain(
    models: LiteRTModels, batches: list[Batch], in_force: Options
) -> None:
    with pytest.raises(ModelError, match="ValueError: Unsupported algorithm key: no such"):
        EXECUTOR.execute(models, script_of({"algorithm": "no such"}, in_force), batches, None)
    with pytest.raises(ModelError, match=f"without writing {MADE}"):
        EXECUTOR.execute(models, "print(len(data))", batches, None)
    with pytest.raises(ModelError, match=r"damaged|no LiteRT model"):
        EXECUTOR.execute(models, f'open("{MADE}", "wb").write(b"1234TFL3")', batches, None)
    with pytest.raises(OutOfTimeError):
        EXECUTOR.execute(models, "while True: pass", batches, time.monotonic() + 0.5)


def test_data_can_be_read_again_and_holds_one_sample_at_a_time(models: LiteRTModels, batches: list[Batch]) -> None:
    code = """
(samples,) = data.values()
assert len(samples) == 10 and [set(each) for each in samples] == [set(each) for each in samples]
assert {each["keras_tensor"].shape[0] for each in samples} == {1}
raise RuntimeError("read")
"""
    (array,) = np.load(DATA / "data.npz").values()
    pieces = [Batch({"serving_default_keras_tensor:0": each}) for each in (array[:4], array[4:])]
    assert len(array) == 10
    with pytest.raises(ModelError, match="RuntimeError: read"):
        EXECUTOR.execute(models, code, pieces, None)

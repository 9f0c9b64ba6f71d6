"""What is learned on LiteRT files: the same as on ONNX models, kept in the file, and better on other samples."""

from collections.abc import Callable
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from builders.litert_models import Twins, channels_last, quantized
from builders.onnx_models import Array, random
from builders.recordings import RECORDINGS
from builders.tiers import others_nightly

import quantmedic
from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.from_litert.litert_file import LiteModel, read_litert
from quantmedic.collectors.from_litert.litert_models import LiteRTModels, open_models
from quantmedic.collectors.measure.models import Edited, Fitting, Runner
from quantmedic.engine.case.records import Case
from quantmedic.engine.decibels import sqnr_db
from quantmedic.engine.diagnosis.advice import general_advice
from quantmedic.engine.diagnosis.candidates import Candidates, Choice
from quantmedic.engine.diagnosis.prescription import code_of, write_prescription
from quantmedic.engine.errors import DataError, ModelError
from quantmedic.engine.formulas.change import Change
from quantmedic.engine.rules.toolchain import find_toolchain
from quantmedic.trials.from_litert.litert_remedies import EXECUTORS, edit

pytest.importorskip("ai_edge_litert", reason="ai-edge-litert is not installed")
pytest.importorskip("ai_edge_quantizer", reason="ai-edge-quantizer is not installed")

pytestmark = pytest.mark.thorough

BASE = quantmedic.load_rulebase()
BIASES, ROUNDING = (Change(learned=frozenset({what})) for what in ("biases", "rounding"))


def conv(act: str) -> Twins:
    twins = Twins()
    x = twins.input("x", 4, 7, 7)
    twins.output(twins.conv(x, random(1, 6, 4, 3, 3), random(2, 6), out="y", stride=2, act=act))
    return twins


def depthwise(act: str) -> Twins:
    twins = Twins()
    x = twins.input("x", 4, 7, 7)
    twins.output(twins.depthwise(x, random(1, 8, 1, 3, 3), random(2, 8), out="y", act=act, multiplier=2))
    return twins


def dense(act: str) -> Twins:
    twins = Twins()
    twins.output(twins.dense(twins.input("x", 24), random(1, 6, 24), random(2, 6), out="y", act=act))
    return twins


def files(twins: Twins, folder: Path, mode: str, x: Array) -> LiteRTModels:
    twins.save(folder)
    (folder / "small.tflite").write_bytes(quantized(twins.litert(), mode, {"x": x}))
    return opened(folder / "float.tflite", folder / "small.tflite", Batch({"x": x}))


def opened(float_path: Path, path: Path, first: Batch) -> LiteRTModels:
    models = open_models(float_path, path)
    models.probe()
    models.first = first
    return models


def learned(models: LiteRTModels, change: Change, fitting: Fitting) -> Edited:
    # What is learned alone reads nothing of the case.
    return edit(models.editable(), cast(Case, None), change, fitting)


def saved(edited: Edited, path: Path) -> Path:
    assert edited.save is not None
    edited.save(path)
    return path


def constants(file: LiteModel) -> dict[str, Array]:
    return {tensor.name: tensor.data for tensor in file.tensors if tensor.data is not None and tensor.quantizer}


@pytest.mark.parametrize(
    "layer, mode, act",
    others_nightly(
        [
            (conv, "int8", ""),
            (conv, "int4", "relu"),
            (depthwise, "int8", "relu"),
            (dense, "int8", "relu"),
            (dense, "int4", ""),
        ]
    ),
)
def test_what_is_learned_of_a_layer_is_kept_in_its_place(
    tmp_path: Path, layer: Callable[[str], Twins], mode: str, act: str
) -> None:
    twins = layer(act)
    x = channels_last(random(3, 48, *twins.shapes["x"]) + 0.3)
    models = files(twins, tmp_path, mode, x)
    batches = [Batch({"x": x})]
    fitting, before = Fitting(batches), constants(models.quantized.file)
    for change, dimensions in ((ROUNDING, {2, 4}), (BIASES, {1})):
        path = saved(learned(models, change, fitting), tmp_path / "learned.tflite")
        after = constants(read_litert(path))
        assert after.keys() == before.keys()
        (name,) = [name for name, codes in before.items() if (after[name] != codes).any()]
        assert before[name].ndim in dimensions
        again = opened(models.float_graph.path, path, batches[0])
        (float_output,), (old,), (new,) = (
            run(batches[0]) for run in (models.float_runner(1), models.quantized_runner(1), again.quantized_runner(1))
        )
        if change is ROUNDING:
            assert np.abs(after[name].astype(int) - before[name]).max() == 1
            assert mode == "int8" or np.square(new - float_output).sum() < np.square(old - float_output).sum()
        else:
            channels = tuple(range(float_output.ndim - 1))
            old_mean, new_mean = (np.abs((each - float_output).mean(axis=channels)).max() for each in (old, new))
            assert new_mean < 0.9 * old_mean


def noise_db(models: LiteRTModels, batches: list[Batch], run: Runner) -> float:
    reference, power, noise = models.float_runner(1), 0.0, 0.0
    for batch in batches:
        for wanted, found in zip(reference(batch), run(batch), strict=True):
            power += float(np.square(wanted, dtype=np.float64).sum())
            noise += float(np.square(found.astype(np.float64) - wanted).sum())
    return sqnr_db(power, noise)


def signals(count: int) -> Array:
    """Series of 140 values that change every tenth, as heart beats do."""
    return random(count, count, 14).repeat(10, axis=1)


@pytest.mark.nightly
def test_the_printed_script_heals(tmp_path: Path) -> None:
    """Run by a process of its own, and judged on samples that it did not read."""
    from ai_edge_litert.interpreter import Interpreter

    remedies = ("learned-rounding", "bias-correction-on")
    path, small, fitted = (
        RECORDINGS / "litert" / "autoencoder_example.float32.tflite",
        tmp_path / "int4.tflite",
        signals(64),
    )
    (signature,) = Interpreter(str(path)).get_signature_list().values()
    (name,) = signature["inputs"]
    small.write_bytes(quantized(path.read_bytes(), "int4", {name: fitted}))
    diagnosis = quantmedic.judge(quantmedic.collect(path, small, representative=fitted, validation=signals(48)))
    advised = [
        general_advice(BASE.remedies[remedy], [layer.op_type for layer in diagnosis.layers]) for remedy in remedies
    ]
    choices = [Choice(advice.id, ((None, advice),), advice.title, None) for advice in advised]
    given = write_prescription(diagnosis, choices, find_toolchain("litert", BASE.toolchains))
    code, nothing = code_of(given), Candidates(diagnosis, BASE, find_toolchain("litert", BASE.toolchains)).baseline
    assert nothing is not None and nothing.lead is not None and nothing.lead.id not in remedies
    assert code is not None and given.conflicts == () and given.mark == "run"
    tensor = read_litert(path).tensors[read_litert(path).inputs[0]].name
    models = opened(path, small, Batch({tensor: fitted}))
    healed = EXECUTORS[0].execute(models, code, [Batch({tensor: fitted})], None)
    judged = [Batch({tensor: signals(48)})]
    before = noise_db(models, judged, models.quantized_runner(1))
    assert noise_db(models, judged, healed.runner(1)) > before + 0.5


def test_files_are_repaired_with_the_samples_of_the_quantizer(tmp_path: Path) -> None:
    twins = dense("relu")
    x = random(3, 48, 24)
    models = files(twins, tmp_path, "int4", x)
    paths = models.float_graph.path, models.quantized.path
    samples = {"serving_default": [{"x": row[None]} for row in x]}
    rounded = [
        quantmedic.learn_rounding(*paths, data, tmp_path / f"{k}.tflite").layers
        for k, data in enumerate((samples, x, {"x": x}))
    ]
    assert rounded[0][0].error_after < rounded[0][0].error_before and rounded[1] == rounded[2]
    assert rounded[0][0].error_after == pytest.approx(rounded[1][0].error_after, rel=1e-3)
    quantmedic.correct_biases(*paths, samples, paths[1])
    assert read_litert(paths[1]).content != models.quantized.file.content
    with pytest.raises(DataError, match="serving_default has no input z"):
        quantmedic.learn_rounding(*paths, {"serving_default": [{"z": x[:1]}]}, tmp_path / "none.tflite")
    with pytest.raises(ModelError, match="no weights of the quantized model can be rounded anew"):
        quantmedic.learn_rounding(*paths[:1] * 2, x, tmp_path / "none.tflite")
    assert not (tmp_path / "none.tflite").exists()

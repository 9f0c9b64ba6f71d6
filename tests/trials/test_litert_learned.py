"""What is learned on LiteRT files: the same as on ONNX models, kept in the file, and better on other samples."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx
import pytest
from builders.litert_models import Twins, channels_last, quantized
from builders.onnx_models import Array, random
from builders.recordings import RECORDINGS
from onnx import TensorProto, helper, numpy_helper

import quantmedic
from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.from_litert.file import LiteModel, read_litert
from quantmedic.collectors.from_litert.models import LiteRTModels, open_models
from quantmedic.collectors.from_onnx.models import open_models as open_onnx
from quantmedic.collectors.measure.models import Fitting, Runner
from quantmedic.collectors.pair.quantizer import Quantizer
from quantmedic.engine.case.records import Case
from quantmedic.engine.decibels import sqnr_db
from quantmedic.engine.diagnosis.advice import general_advice
from quantmedic.engine.diagnosis.candidates import Choice, baseline
from quantmedic.engine.diagnosis.prescription import code_of, write_prescription
from quantmedic.engine.errors import DataError, ModelError
from quantmedic.engine.formulas.change import Change
from quantmedic.engine.rules.toolchain import find_toolchain
from quantmedic.trials.from_litert.edit import Edited, edit
from quantmedic.trials.from_litert.execute import AiEdgeQuantizer
from quantmedic.trials.from_onnx.bias_correction import correct_model
from quantmedic.trials.from_onnx.rounding import round_model

pytest.importorskip("ai_edge_litert", reason="ai-edge-litert is not installed")
pytest.importorskip("ai_edge_quantizer", reason="ai-edge-quantizer is not installed")

BASE = quantmedic.load_rulebase()
BIASES, ROUNDING = (Change(learned=frozenset({what})) for what in ("biases", "rounding"))
#: Orders of axes of LiteRT's weights that make them those of ONNX.
TO_ONNX = {"CONV_2D": (0, 3, 1, 2), "DEPTHWISE_CONV_2D": (3, 0, 1, 2), "FULLY_CONNECTED": (0, 1)}


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
    content = quantized(twins.litert(), mode, {"x": channels_last(x)})
    (folder / "small.tflite").write_bytes(content)
    return opened(folder / "float.tflite", folder / "small.tflite", Batch({"x": channels_last(x)}))


def opened(float_path: Path, path: Path, first: Batch) -> LiteRTModels:
    models = open_models(float_path, path)
    models.probe()
    models.first = first
    return models


def qdq_twin(file: LiteModel, act: str) -> onnx.ModelProto:
    """The one layer of a file in ONNX's layout, with the codes and grids of the file."""
    (op,) = (op for op in file.operators if op.kind in TO_ONNX)
    x, weight, bias, y = (file.tensors[place] for place in (*op.inputs, *op.outputs))
    nodes: list[onnx.NodeProto] = []
    constants: list[onnx.TensorProto] = []

    def constant(name: str, values: Any, kind: int) -> str:
        stored = np.asarray(values).astype(helper.tensor_dtype_to_np_dtype(kind))
        constants.append(numpy_helper.from_array(stored, name))
        return name

    def grid(name: str, quantizer: Quantizer, kind: int) -> list[str]:
        zero = np.broadcast_to(quantizer.zero_point, quantizer.scale.shape)
        return [constant(f"{name}_scale", quantizer.scale, TensorProto.FLOAT), constant(f"{name}_zero", zero, kind)]

    def rounded(name: str, source: str, quantizer: Quantizer) -> str:
        names = grid(name, quantizer, TensorProto.INT8)
        nodes.append(helper.make_node("QuantizeLinear", [source, *names], [f"{name}_codes"]))
        nodes.append(helper.make_node("DequantizeLinear", [f"{name}_codes", *names], [name]))
        return name

    def stored(name: str, codes: Array, quantizer: Quantizer, kind: int) -> str:
        names = [constant(f"{name}_codes", codes, kind), *grid(name, quantizer, kind)]
        nodes.append(helper.make_node("DequantizeLinear", names, [name], axis=0))
        return name

    assert x.quantizer and y.quantizer and weight.quantizer and bias.quantizer
    assert weight.data is not None and bias.data is not None
    kind = TensorProto.INT4 if weight.kind == "INT4" else TensorProto.INT8
    inputs = [
        rounded("x_real", "x", x.quantizer),
        stored("weight", weight.data.transpose(TO_ONNX[op.kind]), weight.quantizer, kind),
        stored("bias", bias.data, bias.quantizer, TensorProto.INT32),
    ]
    linear = "linear" if act else "raw"
    if op.kind == "FULLY_CONNECTED":
        nodes.append(helper.make_node("Gemm", inputs, [linear], transB=1))
    else:
        groups = 1 if op.kind == "CONV_2D" else (x.shape[-1] or 1)
        stride = op.options.integer("strideH", 1)
        nodes.append(
            helper.make_node("Conv", inputs, [linear], pads=[1, 1, 1, 1], strides=[stride, stride], group=groups)
        )
    if act:
        nodes.append(helper.make_node("Relu", [linear], ["raw"]))
    rounded("y", "raw", y.quantizer)
    sides = ["n", x.shape[-1], *x.shape[1:-1]]
    value = helper.make_tensor_value_info
    ends = [value("x", TensorProto.FLOAT, sides)], [value("y", TensorProto.FLOAT, None)]
    graph = helper.make_graph(nodes, "twin", *ends, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def weight_and_bias(file: LiteModel) -> tuple[Array, Array]:
    """As ONNX lays them out."""
    (op,) = (op for op in file.operators if op.kind in TO_ONNX)
    weight, bias = (file.tensors[place].data for place in op.inputs[1:3])
    assert weight is not None and bias is not None
    return weight.transpose(TO_ONNX[op.kind]), bias


def initializer(model: onnx.ModelProto, name: str) -> Array:
    (found,) = (numpy_helper.to_array(t) for t in model.graph.initializer if t.name == name)
    return found.astype(np.int32)


def learned(models: LiteRTModels, change: Change, fitting: Fitting) -> Edited:
    # What is learned alone reads nothing of the case.
    return edit(models.editable(), cast(Case, None), change, fitting)


def saved(edited: Edited, path: Path) -> Path:
    assert edited.save is not None
    edited.save(path)
    return path


@pytest.mark.thorough
@pytest.mark.parametrize(
    "layer, mode, act",
    [
        (conv, "int8", ""),
        (conv, "int4", "relu"),
        (depthwise, "int8", "relu"),
        (dense, "int8", "relu"),
        (dense, "int4", ""),
    ],
)
def test_a_layer_is_learned_as_in_onnx(tmp_path: Path, layer: Callable[[str], Twins], mode: str, act: str) -> None:
    twins = layer(act)
    x = random(3, 48, *twins.shapes["x"]) + 0.3
    models = files(twins, tmp_path, mode, x)
    onnx.save(qdq_twin(models.quantized.file, act), str(tmp_path / "small.onnx"))
    pair = open_onnx(tmp_path / "float.onnx", tmp_path / "small.onnx")
    fitting = Fitting([Batch({"x": channels_last(x)})])

    rounded = round_model(pair, lambda: [Batch({"x": x})], threads=1)
    own = read_litert(saved(learned(models, ROUNDING, fitting), tmp_path / "rounded.tflite"))
    weight, _ = weight_and_bias(own)
    assert np.mean(weight == initializer(rounded.model, "weight_codes")) > 0.995
    before, _ = weight_and_bias(models.quantized.file)
    assert (weight != before).any() and weight.min() >= before.min() and weight.max() <= before.max()

    corrected = correct_model(pair, lambda: [Batch({"x": x})], threads=1)
    own = read_litert(saved(learned(models, BIASES, fitting), tmp_path / "biased.tflite"))
    _, bias = weight_and_bias(own)
    assert np.abs(bias - initializer(corrected.model, "bias_codes")).max() <= 1
    assert (bias != weight_and_bias(models.quantized.file)[1]).any()


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


def photographs(count: int) -> Array:
    """Smooth images of values from 0 to 1."""
    coarse = np.random.default_rng(count).random((count, 12, 12, 1), np.float32)
    return coarse.repeat(8, axis=1).repeat(8, axis=2)


@pytest.mark.thorough
def test_a_real_network_is_better_on_other_samples(tmp_path: Path) -> None:
    """Weights of four bits of a network that TensorFlow Lite wrote; what the interpreter makes of the file counts."""
    path, small, calibrated = in_four_bits("image_example1", photographs, tmp_path)
    tensor = read_litert(path).tensors[read_litert(path).inputs[0]].name
    fitted, judged = ([Batch({tensor: array})] for array in (calibrated, photographs(48)))
    models = opened(path, small, fitted[0])
    before = noise_db(models, judged, models.quantized_runner(1))
    for what, change in {"rounding": ROUNDING, "both": ROUNDING.join(BIASES)}.items():
        edited = learned(models, change, Fitting(fitted))
        assert edited.unedited == ()
        again = opened(path, saved(edited, tmp_path / f"{what}.tflite"), fitted[0])
        assert noise_db(again, judged, again.quantized_runner(1)) > before + 0.5, what


def opened_names(path: Path) -> str:
    """Name that the signature gives the input."""
    from ai_edge_litert.interpreter import Interpreter

    (signature,) = Interpreter(str(path)).get_signature_list().values()
    (name,) = signature["inputs"]
    return str(name)


def in_four_bits(network: str, samples: Callable[[int], Array], folder: Path) -> tuple[Path, Path, Array]:
    """Both files, and the samples that the small one was calibrated with."""
    path, fitted = RECORDINGS / "litert" / f"{network}.float32.tflite", samples(64)
    name = opened_names(path)
    small = folder / "int4.tflite"
    small.write_bytes(quantized(path.read_bytes(), "int4", {name: fitted}))
    return path, small, fitted


@pytest.mark.thorough
def test_the_printed_script_heals(tmp_path: Path) -> None:
    """Run by a process of its own, and judged on samples that it did not read."""
    remedies = ("learned-rounding", "bias-correction-on")
    path, small, fitted = in_four_bits("autoencoder_example", signals, tmp_path)
    diagnosis = quantmedic.judge(quantmedic.collect(path, small, representative=fitted, validation=signals(48)))
    advised = [
        general_advice(BASE.remedies[remedy], [layer.op_type for layer in diagnosis.layers]) for remedy in remedies
    ]
    choices = [Choice(advice.id, ((None, advice),), advice.title, None) for advice in advised]
    given = write_prescription(diagnosis, choices, find_toolchain("litert", BASE.toolchains))
    code, nothing = code_of(given), baseline(diagnosis, BASE, find_toolchain("litert", BASE.toolchains))
    assert nothing is not None and nothing.lead is not None and nothing.lead.id not in remedies
    assert code is not None and given.conflicts == () and given.mark == "run"
    tensor = read_litert(path).tensors[read_litert(path).inputs[0]].name
    models = opened(path, small, Batch({tensor: fitted}))
    healed = AiEdgeQuantizer().execute(models, code, [Batch({tensor: fitted})], None)
    judged = [Batch({tensor: signals(48)})]
    before = noise_db(models, judged, models.quantized_runner(1))
    assert noise_db(models, judged, healed.runner(1)) > before + 0.5


@pytest.mark.thorough
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

"""Biases stored with another scale than input scale times weight scale: named, and what else is there is not."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders import litert_models
from builders.onnx_models import Net, dynamic, random, save_pair, static
from builders.tiers import others_nightly
from numpy.typing import NDArray
from onnx import numpy_helper
from onnxruntime.quantization import QuantFormat, QuantType

import quantmedic
from quantmedic.engine.case.facts import LayerFacts
from quantmedic.engine.case.records import Case
from quantmedic.engine.formulas.derive import derive

pytestmark = pytest.mark.thorough

Array = NDArray[Any]
DATA = random(3, 48, 3, 8, 8)
CODES = "second.bias_quantized"


def network(beta: float = 1.0) -> onnx.ModelProto:
    net = Net()
    x = net.input("image", ["n", 3, 8, 8])
    x = net.conv(x, random(1, 8, 3, 3, 3, scale=0.3), random(2, 8), out="first", pads=[1, 1, 1, 1])
    x = net.add("Relu", x, out="relu")
    x = net.conv(x, random(4, 8, 8, 3, 3, scale=0.2), random(5, 8, scale=3.0), out="second", pads=[1, 1, 1, 1])
    x = net.add("Flatten", net.add("GlobalAveragePool", x, out="pooled"), out="flat")
    net.const("fc.weight", random(6, 8, 5))
    net.const("fc.bias", random(7, 5))
    net.output(net.add("Gemm", x, "fc.weight", "fc.bias", out="scores", beta=beta))
    return net.model()


def make(folder: Path, **options: Any) -> onnx.ModelProto:
    return static(network(), {"image": DATA}, folder, **options)


def tensor(model: onnx.ModelProto, name: str) -> onnx.TensorProto:
    (found,) = (t for t in model.graph.initializer if t.name == name)
    return found


def rescale(model: onnx.ModelProto, factor: float | Array, name: str = CODES) -> None:
    """The bias keeps its values, but for rounding, and gets steps so many times as large."""
    scale, codes = tensor(model, f"{name}_scale"), tensor(model, name)
    stored = np.rint(numpy_helper.to_array(codes) / factor).astype(np.int32)
    scale.CopyFrom(numpy_helper.from_array(np.float32(numpy_helper.to_array(scale) * factor), scale.name))
    codes.CopyFrom(numpy_helper.from_array(stored, name))


def layers_of(case: Case) -> dict[str | None, LayerFacts]:
    return {layer.name: layer for layer in derive(case, quantmedic.load_rulebase()).layers}


def found(case: Case) -> dict[str, tuple[str, ...]]:
    """The places of each rule on the scales of biases."""
    causes = quantmedic.judge(case).causes
    return {rule: cause.subjects for cause in causes for rule in cause.rules if rule in ("W020", "R011")}


FORMATS: dict[str, Callable[[Path], onnx.ModelProto]] = {
    "qdq": make,
    "per-channel": lambda folder: make(folder, per_channel=True),
    "16-bit": lambda folder: make(folder, activation_type=QuantType.QUInt16, per_channel=True),
    "qoperator": lambda folder: make(folder, quant_format=QuantFormat.QOperator, per_channel=True),
    "float-bias": lambda folder: make(folder, extra_options={"QuantizeBias": False}),
    "dynamic": lambda folder: dynamic(network(), folder),
}


def test_what_onnxruntime_stores_is_healthy(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for name, quantize in FORMATS.items():
        with subtests.test(name):
            case = quantmedic.collect_static(*save_pair(tmp_path, network(), quantize(tmp_path)))
            assert found(case) == {}
            known = [op.bias.scale_departure for op in case.record.operators if op.bias.scale_departure is not None]
            assert bool(known) == (name not in ("float-bias", "dynamic"))
            assert max(known, default=0.0) < 1e-5


def test_another_scale_is_a_hazard_by_the_file_alone(tmp_path: Path) -> None:
    for per_channel, factor in ((False, 2.0), (True, 0.25)):
        model = make(tmp_path, per_channel=per_channel)
        rescale(model, factor)
        case = quantmedic.collect_static(*save_pair(tmp_path, network(), model))
        bias = layers_of(case)["second"].bias
        assert found(case) == {"W020": ("second",)}
        assert bias.scale_ratio == pytest.approx(factor, rel=1e-5)
        assert bias.misread_sqnr_db == pytest.approx(20 * np.log10(factor / abs(factor - 1)), abs=0.01)


def test_where_the_outputs_are_right_it_is_a_remark_and_no_cause_of_a_loss(tmp_path: Path) -> None:
    """This release of onnxruntime computes with the bias as it is stored."""
    model = make(tmp_path)
    rescale(model, 2.0)
    case = quantmedic.collect(*save_pair(tmp_path, network(), model), validation=DATA, threads=1)
    diagnosis = quantmedic.judge(case)
    assert [(cause.rules, cause.severity) for cause in diagnosis.causes] == [(("W020",), "low")]
    assert "none was seen to do so here" in diagnosis.causes[0].message
    assert layers_of(case)["second"].output.data.accumulated.sqnr_db > 30


def test_one_channel_is_enough_and_one_without_a_bias_is_not(tmp_path: Path) -> None:
    """The scale of a channel whose code is 0 makes nothing of it."""
    model = make(tmp_path, per_channel=True)
    factors = np.ones(8)
    factors[3] = 4.0
    rescale(model, factors)
    zeroed = onnx.ModelProto()
    zeroed.CopyFrom(model)
    codes = numpy_helper.to_array(tensor(zeroed, CODES)).copy()
    codes[3] = 0
    tensor(zeroed, CODES).CopyFrom(numpy_helper.from_array(codes, CODES))
    case = quantmedic.collect_static(*save_pair(tmp_path, network(), model))
    assert found(case) == {"W020": ("second",)}
    assert layers_of(case)["second"].bias.scale_ratio == pytest.approx(4.0, rel=1e-5)
    assert found(quantmedic.collect_static(*save_pair(tmp_path, network(), zeroed))) == {}


def test_the_grid_counts_that_the_layer_itself_reads(tmp_path: Path) -> None:
    """A tensor with 16 bits for one reader and 8 for another: the bias belongs to the 8."""
    overrides = {"relu": [{"quant_type": QuantType.QUInt16, "convert": {"quant_type": QuantType.QUInt8}}]}
    model = make(tmp_path, extra_options={"TensorQuantOverrides": overrides})
    case = quantmedic.collect_static(*save_pair(tmp_path, network(), model))
    assert layers_of(case)["second"].bias.scale_departure < 1e-5
    assert found(case) == {}


def test_onnxruntime_drops_beta_and_keeps_it_in_the_scale_of_the_bias(tmp_path: Path) -> None:
    case = quantmedic.collect_static(
        *save_pair(tmp_path, network(0.5), static(network(0.5), {"image": DATA}, tmp_path))
    )
    assert found(case) == {"W020": ("scores",)}
    assert layers_of(case)["scores"].bias.scale_ratio == pytest.approx(0.5, rel=1e-5)


def test_what_a_gemm_multiplies_its_bias_with_is_not_asked(tmp_path: Path) -> None:
    model = static(network(), {"image": DATA}, tmp_path)
    rescale(model, 2.0, "fc.bias_quantized")
    (gemm,) = (node for node in model.graph.node if node.op_type == "Gemm")
    del gemm.attribute[:]
    gemm.attribute.append(onnx.helper.make_attribute("beta", 0.5))
    assert found(quantmedic.collect_static(*save_pair(tmp_path, network(0.5), model))) == {}


@pytest.mark.parametrize("factor", others_nightly([1.0, 2.0]), ids=["sound", "twice"])
def test_litert_ignores_the_scale_of_a_bias(tmp_path: Path, factor: float) -> None:
    """As stored, the bias has the same values; the kernel makes half of it, and that is the cause of the loss."""
    pytest.importorskip("ai_edge_quantizer")
    twins, data = litert_models.Twins(), litert_models.channels_last(DATA)
    x = twins.input("image", 3, 8, 8)
    x = twins.conv(x, random(1, 8, 3, 3, 3, scale=0.3), random(2, 8), out="first", act="relu")
    x = twins.conv(x, random(4, 8, 8, 3, 3, scale=0.2), random(5, 8, scale=3.0), out="second")
    twins.output(twins.mean(x, out="means"))
    paths = tmp_path / "float.tflite", tmp_path / "int8.tflite"
    paths[0].write_bytes(twins.litert())
    paths[1].write_bytes(rescaled_bias(litert_models.quantized(twins.litert(), "int8", {"image": data}), factor))
    diagnosis = quantmedic.diagnose(*paths, validation=data, threads=1)
    rules = {rule: cause for cause in diagnosis.causes if cause.explained_by is None for rule in cause.rules[:1]}
    assert ("R011" in rules) == (factor != 1) and not rules.keys() & {"W020", "R005"}
    if factor != 1:
        assert rules["R011"].subjects == ("second",) and rules["R011"].severity == "high"


def rescaled_bias(content: bytes, factor: float) -> bytes:
    """A LiteRT file with one bias on steps so many times as large."""
    import flatbuffers
    from ai_edge_litert import schema_py_generated as schema

    model = schema.ModelT.InitFromObj(schema.Model.GetRootAs(content))
    (bias,) = (each for each in model.subgraphs[0].tensors if each.name == b"second/bias")
    assert bias.type == schema.TensorType.INT32
    codes = np.frombuffer(bytes(model.buffers[bias.buffer].data), np.int32)
    model.buffers[bias.buffer].data = np.rint(codes / factor).astype(np.int32).view(np.uint8)
    bias.quantization.scale = np.float32(np.asarray(bias.quantization.scale) * factor)
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())

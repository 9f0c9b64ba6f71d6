"""Snippets for onnxruntime, as rendered, change what they name and nothing else; that they heal is tried elsewhere."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import onnxruntime.quantization as ortq
import pytest
from builders import onnx_models
from builders.advised import advice_on
from onnx import TensorProto, numpy_helper
from onnxruntime.quantization.shape_inference import quant_pre_process

import quantmedic
from quantmedic import collect, judge, load_rulebase
from quantmedic.engine.case.facts import CaseFacts
from quantmedic.engine.case.proof import TrialRecord
from quantmedic.engine.case.records import Case
from quantmedic.engine.contract.advised_remedies import Prescription, Proof, TrialRow
from quantmedic.engine.contract.causes import CauseReport
from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.engine.diagnosis.prescription import prescribe
from quantmedic.engine.diagnosis.snippets import lines_behind, render_snippets
from quantmedic.engine.formulas.derive import derive

BASE = load_rulebase()
FEED = {"image": onnx_models.images()}


class Reader(ortq.CalibrationDataReader):
    """Feeds one batch."""

    def __init__(self) -> None:
        self.feeds = iter([FEED])

    def get_next(self) -> Any:
        return next(self.feeds, None)


def sample() -> onnx.ModelProto:
    """A convolution with ReLU, a softmax, a concatenation, and a product with weights."""
    net = onnx_models.Net(17)
    x = net.input("image", ["n", 3, 8, 8])
    bias = onnx_models.random(2, 4, scale=0.1)
    x = net.conv(x, onnx_models.random(1, 4, 3, 3, 3, scale=0.3), bias, out="conv", name="/conv", pads=[1, 1, 1, 1])
    x = net.add("Relu", x, out="relu", name="/relu")
    x = net.add("Flatten", net.add("GlobalAveragePool", x, out="pool", name="/pool"), out="flat", name="/flat")
    net.const("fc.weight", onnx_models.random(5, 4, 5))
    x = net.add("Softmax", net.add("MatMul", x, "fc.weight", out="product", name="/fc"), out="share", name="/softmax")
    net.const("head.weight", onnx_models.random(6, 5, 3))
    net.output(net.add("MatMul", x, "head.weight", out="scores", name="/head"), shape=["n", 3])
    return net.model()


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Case:
    """The network, quantized by default."""
    folder = tmp_path_factory.mktemp("models")
    onnx.save(onnx_models.static(sample(), FEED, folder), str(folder / "int8.onnx"))
    return collect(folder / "before.onnx", folder / "int8.onnx", validation=FEED)


@pytest.fixture(scope="module")
def facts(measured: Case) -> CaseFacts:
    return derive(measured, BASE)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> CaseFacts:
    """The same with a scale per channel, but for the weights of the convolution."""
    folder = tmp_path_factory.mktemp("mixed")
    options = {"per_channel": True, "extra_options": {"TensorQuantOverrides": {"conv.weight": [{}]}}}
    onnx.save(onnx_models.static(sample(), FEED, folder, **options), str(folder / "int8.onnx"))
    case = collect(folder / "before.onnx", folder / "int8.onnx", validation=FEED)
    return derive(case, BASE)


def code_of(remedy: str, number: int, facts: CaseFacts, layer: str) -> str:
    """One snippet of a remedy, rendered for a layer whatever the format of its model."""
    snippet = BASE.remedies[remedy].snippets[number].model_copy(update={"formats": ()})
    (code,) = render_snippets(advice_on(BASE, remedy, facts, layer, snippet), ["X001"])
    return code


@pytest.fixture
def execute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., onnx.ModelProto]]:
    """Runs a snippet in a folder with a float model, and gives what it wrote."""
    monkeypatch.chdir(tmp_path)
    onnx.save(sample(), "float.onnx")

    def run(code: str, name: str = "int8.onnx") -> onnx.ModelProto:
        names = {name: getattr(ortq, name) for name in dir(ortq) if not name.startswith("_")}
        names |= {
            "onnx": onnx,
            "quantmedic": quantmedic,
            "np": np,
            "os": os,
            "onnxruntime": ort,
            "quant_pre_process": quant_pre_process,
        }
        names |= {"reader": Reader()}
        exec(compile(code, "snippet", "exec"), names)
        onnx.checker.check_model(name)
        return onnx.load(name)

    yield run


def quantizers(model: onnx.ModelProto) -> dict[str, tuple[float, int, int]]:
    """Scale, zero point and type of every quantized activation."""
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    found = {}
    for node in model.graph.node:
        if node.op_type == "QuantizeLinear" and node.input[0] not in constants:
            scale, zero = (numpy_helper.to_array(constants[name]) for name in node.input[1:3])
            found[node.input[0]] = (float(scale), int(zero), constants[node.input[2]].data_type)
    return found


def weights(model: onnx.ModelProto) -> dict[str, Any]:
    """Codes and scales of every stored weight and bias."""
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    reads = [n for n in model.graph.node if n.op_type == "DequantizeLinear" and n.input[0] in constants]
    return {n.input[0]: (constants[n.input[0]], np.atleast_1d(constants[n.input[1]])) for n in reads}


def scale_of(range_: tuple[float, float]) -> float:
    return (max(range_[1], 0.0) - min(range_[0], 0.0)) / 255


@pytest.mark.thorough
def test_ranges_are_set_on_the_named_tensor_only(facts: CaseFacts, execute: Callable[..., onnx.ModelProto]) -> None:
    plain = quantizers(execute('quantize_static("float.onnx", "int8.onnx", reader)'))
    (relu,) = [tensor for tensor in facts.tensors if tensor.float_name == "relu"]
    best = quantizers(execute(code_of("limit-activation-range", 0, facts, "/conv")))
    assert {name for name in plain if plain[name] != best[name]} <= {"relu"}
    low, high = relu.data.predicted_best_low, relu.data.predicted_best_high
    assert best["relu"][0] == pytest.approx(scale_of((low, high)), rel=1e-3)
    widened = quantizers(execute(code_of("widen-activation-range", 1, facts, "/conv")))
    assert widened["relu"][0] == pytest.approx(scale_of((relu.data.values.min, relu.data.values.max)), rel=1e-3)
    fixed = quantizers(execute(code_of("fixed-softmax-scale", 0, facts, "/softmax")))
    assert fixed["share"] == (1 / 256, 0, TensorProto.UINT8)
    assert {name for name in plain if plain[name] != fixed[name]} == {"share"}


def test_calibration_methods_change_ranges(facts: CaseFacts, execute: Callable[..., onnx.ModelProto]) -> None:
    plain = quantizers(execute('quantize_static("float.onnx", "int8.onnx", reader)'))
    limited = quantizers(execute(code_of("limit-activation-range", 1, facts, "/conv")))
    assert limited["relu"][0] < plain["relu"][0]
    raised = quantizers(execute(code_of("minimum-range", 0, facts, "/conv").replace("0.0001", "100.0")))
    assert raised["relu"][0] > plain["relu"][0]


def test_sixteen_bits_are_given_to_the_named_tensor_only(
    facts: CaseFacts, execute: Callable[..., onnx.ModelProto]
) -> None:
    for remedy in ("activations-16-bit", "balance-addition"):
        model = execute(code_of(remedy, 0, facts, "/conv"))
        wide = {name for name, (_, _, kind) in quantizers(model).items() if kind == TensorProto.UINT16}
        assert wide == {"relu"}, "the tensor behind the ReLU, which carries the quantizer"
        assert model.opset_import[0].version == 21
    every = quantizers(execute(code_of("activations-16-bit", 1, facts, "/conv")))
    assert {kind for _, _, kind in every.values()} == {TensorProto.UINT16}


def test_unsigned_codes(facts: CaseFacts, execute: Callable[..., onnx.ModelProto]) -> None:
    found = quantizers(execute(code_of("unsigned-activations", 0, facts, "/conv")))
    assert {kind for _, _, kind in found.values()} == {TensorProto.UINT8}
    code = code_of("asymmetric-activations", 0, facts, "/conv")
    assert quantizers(execute(code))["relu"][1] == -128
    assert quantizers(execute(code.replace("False", "True")))["relu"][1] == 0


@pytest.mark.thorough
def test_weights_per_channel_and_back(
    facts: CaseFacts, mixed: CaseFacts, execute: Callable[..., onnx.ModelProto]
) -> None:
    for number, known in ((0, mixed), (1, facts)):
        every = weights(execute(code_of("per-channel-weights", number, known, "/conv")))
        assert every["conv.weight_quantized"][1].size == 4
        assert every["fc.weight_quantized"][1].size == 5
    one = weights(execute(code_of("per-tensor-for-named-weights", 0, facts, "/conv")))
    assert one["conv.weight_quantized"][1].size == 1
    with_product = weights(execute(code_of("fix-weight-axis", 0, facts, "/conv")))
    assert with_product["fc.weight_quantized"][1].size == 5
    four = 'quantize_static("float.onnx", "int8.onnx", reader, weight_type=QuantType.QInt4)'
    assert weights(execute(four))["conv.weight_quantized"][0].dtype == "int4"
    more = code_of("more-weight-bits", 0, facts, "/conv").replace("reader,", "reader, weight_type=QuantType.QInt4,")
    found = weights(execute(more))
    assert {name: str(codes.dtype) for name, (codes, _) in found.items() if "weight" in name} == {
        "conv.weight_quantized": "int8",
        "fc.weight_quantized": "int4",
        "head.weight_quantized": "int4",
    }


def test_more_bits_keep_the_granularity(mixed: CaseFacts, execute: Callable[..., onnx.ModelProto]) -> None:
    call = "reader, per_channel=True, weight_type=QuantType.QInt4,"
    for layer, scales in (("/fc", 5), ("/conv", 1)):
        found = weights(execute(code_of("more-weight-bits", 0, mixed, layer).replace("reader,", call)))
        codes, scale = found[f"{layer[1:]}.weight_quantized"]
        assert (str(codes.dtype), scale.size) == ("int8", scales)


def test_reduced_weights_stay_within_seven_bits(facts: CaseFacts, execute: Callable[..., onnx.ModelProto]) -> None:
    every = weights(execute(code_of("reduce-range", 0, facts, "/conv")))
    assert max(np.abs(codes).max() for name, (codes, _) in every.items() if "weight" in name) <= 64
    named = weights(execute(code_of("reduce-range", 1, facts, "/conv")))
    assert np.abs(named["conv.weight_quantized"][0]).max() <= 64
    assert np.abs(named["fc.weight_quantized"][0]).max() == 127


def test_the_bias_stays_in_float(facts: CaseFacts, execute: Callable[..., onnx.ModelProto]) -> None:
    model = execute(code_of("protect-int32-bias", 0, facts, "/conv"))
    assert not [name for name in weights(model) if "bias" in name]
    assert [name for name in weights(execute(code_of("protect-int32-bias", 1, facts, "/conv"))) if "bias" in name]


def test_named_layers_stay_in_float(facts: CaseFacts, execute: Callable[..., onnx.ModelProto]) -> None:
    conv, head = ("/conv", "relu", "conv.weight"), ("/head", "scores", "head.weight")
    for remedy in (
        "keep-layers-float",
        "float-first-layers",
        "balance-concatenation",
        "keep-group-float",
        "float-tail",
    ):
        layer, output, weight = head if remedy == "float-tail" else conv
        model = execute(code_of(remedy, 0, facts, layer))
        assert f"{weight}_quantized" not in weights(model), remedy
        assert weight in {tensor.name for tensor in model.graph.initializer}, remedy
        read = [name for name in quantizers(model) if name.startswith(output)]
        assert not read or remedy == "keep-group-float", f"{remedy}: a reader quantizes it"


def test_an_operator_type_stays_in_float(facts: CaseFacts, execute: Callable[..., onnx.ModelProto]) -> None:
    code = code_of("keep-operator-types-float", 0, facts, "/conv")
    assert '["/conv", "/relu"]' in code, "all convolutions, each with the activation that was fused into it"
    assert "conv.weight_quantized" not in weights(execute(code))


def test_the_model_is_rewritten(facts: CaseFacts, execute: Callable[..., onnx.ModelProto]) -> None:
    assert execute(code_of("raise-opset", 0, facts, "/conv"), "float_21.onnx").opset_import[0].version == 21
    dynamic = execute(code_of("dynamic-quantization", 0, facts, "/conv"))
    assert "DynamicQuantizeLinear" in {node.op_type for node in dynamic.graph.node}
    assert not onnx.load("float.onnx").graph.value_info
    shapes = execute(code_of("refold-and-preprocess", 0, facts, "/conv"), "prepared.onnx").graph.value_info
    assert shapes, "shapes are inferred"


def prescribed(diagnosis: Diagnosis, facts: CaseFacts, *wanted: tuple[str, str]) -> Prescription:
    """The prescription of remedies that were all proven, one on top of the other, each on one layer."""
    causes, chain = [], []
    for place, (remedy, layer) in enumerate(wanted):
        advice = advice_on(BASE, remedy, facts, layer)
        record = TrialRecord(key=f"{place}", kind=advice.simulate or "?", gain_db=1.0, low_db=0.5, high_db=1.5)
        name = f"any-cause-{place}"
        causes.append(diagnosis.causes[0].model_copy(update={"cause": name, "remedies": (advice,)}))
        chain.append(TrialRow(causes=(name,), remedy=advice.title, trial=record))
    proof = Proof(
        dataset="validation",
        fitted=1,
        judged=1,
        cross_fitted=False,
        budget_seconds=1,
        spent_seconds=1,
        stopped="tried-all",
        chain=tuple(chain),
    )
    given = diagnosis.model_copy(update={"causes": tuple(causes), "proof": proof, "verdict": "degraded"})
    found = prescribe(given, BASE).prescription
    assert found is not None
    return found


@pytest.fixture(scope="module")
def diagnosis(measured: Case) -> Diagnosis:
    """Any diagnosis of a network that onnxruntime quantized, with a cause to borrow."""
    lead = CauseReport(
        cause="any-cause",
        rules=("X001",),
        severity="high",
        confidence=0.5,
        subjects=(),
        layers=(),
        message="",
        evidence=(),
        remedies=(),
        manual="manual/X001",
    )
    return judge(measured).model_copy(update={"causes": (lead,)})


@pytest.mark.thorough
def test_several_remedies_become_one_call_that_does_it_all(
    diagnosis: Diagnosis, facts: CaseFacts, execute: Callable[..., onnx.ModelProto]
) -> None:
    found = prescribed(
        diagnosis,
        facts,
        ("per-channel-weights", "/conv"),
        ("limit-activation-range", "/conv"),
        ("activations-16-bit", "/conv"),
        ("activations-16-bit", "/pool"),
        ("keep-layers-float", "/head"),
        ("reduce-range", "/fc"),
    )
    (configuration,) = found.configurations
    assert (found.basis, found.mark, found.conflicts) == ("proven", "run", ())
    assert configuration.code.count("quantize_static(") == 1, "one call"
    model = execute(configuration.code)
    weights_, activations = weights(model), quantizers(model)
    assert weights_["conv.weight_quantized"][1].size == 4, "per channel"
    assert "head.weight_quantized" not in weights_ and "head.weight" in {t.name for t in model.graph.initializer}
    assert max(np.abs(codes).max() for name, (codes, _) in weights_.items() if "weight" in name) <= 64, "seven bits"
    assert activations["relu"][2] == TensorProto.UINT16 and activations["pool"][2] == TensorProto.UINT16
    best = next(tensor.data.predicted_best_high for tensor in facts.tensors if tensor.float_name == "relu")
    assert '"rmin": np.float32(' in configuration.code
    assert activations["relu"][0] * 65535 == pytest.approx(best, rel=1e-4)
    assert activations["image"][2] == TensorProto.INT8


@pytest.mark.thorough
def test_layers_of_two_remedies_are_joined(
    diagnosis: Diagnosis, facts: CaseFacts, execute: Callable[..., onnx.ModelProto]
) -> None:
    found = prescribed(
        diagnosis,
        facts,
        ("keep-layers-float", "/head"),
        ("activations-16-bit", "/conv"),
        ("keep-layers-float", "/conv"),
        ("float-tail", "/head"),
    )
    (configuration,) = found.configurations
    stored = weights(execute(configuration.code))
    assert not [name for name in stored if name.startswith(("head", "conv"))]
    assert configuration.code.count('"/head"') == 1


def test_a_prepared_model_is_what_is_quantized(
    diagnosis: Diagnosis, facts: CaseFacts, execute: Callable[..., onnx.ModelProto]
) -> None:
    found = prescribed(diagnosis, facts, ("raise-opset", "/conv"), ("per-channel-weights", "/fc"))
    (configuration,) = found.configurations
    model = execute(configuration.code)
    assert model.opset_import[0].version == 21
    assert weights(model)["fc.weight_quantized"][1].size == 5, "products get their axis named"


def test_what_contradicts_is_said_and_the_first_stands(diagnosis: Diagnosis, facts: CaseFacts) -> None:
    found = prescribed(diagnosis, facts, ("raise-opset", "/conv"), ("refold-and-preprocess", "/conv"))
    assert found.conflicts == (
        "quantize_static argument 1: prepare the graph before quantizing asks for another value",
    )
    assert 'quantize_static(\n    "float_21.onnx",  # changed by the remedy' in found.configurations[0].code


def test_repairs_before_and_behind_the_call_change_the_model(
    facts: CaseFacts, execute: Callable[..., onnx.ModelProto]
) -> None:
    plain = execute('quantize_static("float.onnx", "int8.onnx", reader)')
    code = code_of("bias-correction-on", 1, facts, "/conv")
    assert code.splitlines()[0] == "reader = quantmedic.rewindable(reader)"
    assert code.splitlines()[-1] == 'quantmedic.correct_biases("float.onnx", "int8.onnx", reader, "int8.onnx")'
    changed = {name for name, (codes, _) in weights(execute(code)).items() if (codes != weights(plain)[name][0]).any()}
    assert changed == {"conv.bias_quantized"}
    code = code_of("learned-rounding", 0, facts, "/conv")
    changed = {name for name, (codes, _) in weights(execute(code)).items() if (codes != weights(plain)[name][0]).any()}
    assert changed and all("weight" in name for name in changed)


def test_what_stands_behind_a_call_reads_the_model_that_was_quantized(facts: CaseFacts) -> None:
    """Both at once: the biases are corrected against the prepared model."""
    parts = [BASE.remedies[name].snippets for name in ("per-channel-weights-after-raising-opset", "bias-correction-on")]
    prepare, correct = (next(s for s in own if s.toolchain == "onnxruntime") for own in parts)
    options = prepare.options["quantize_static"]
    (line,) = lines_behind([prepare, correct], correct.forms["quantize_static"], options)
    assert line == 'quantmedic.correct_biases("prepared.onnx", "int8.onnx", reader, "int8.onnx")'

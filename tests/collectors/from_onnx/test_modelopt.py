"""Models of NVIDIA ModelOpt: those that it wrote, healthy and with one fault, and operators of TensorRT's domain."""

import runpy
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from builders.tiers import others_nightly
from onnx import TensorProto, helper, numpy_helper

import quantmedic
from quantmedic.collectors.from_onnx.onnx_file import load_model
from quantmedic.collectors.from_onnx.onnx_session import make_session
from quantmedic.collectors.from_onnx.parse import parse
from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.engine.errors import ModelError

pytestmark = [pytest.mark.thorough, pytest.mark.attributed]
RECORDED = Path(__file__).parents[2] / "recordings/modelopt"
SAMPLES = runpy.run_path(str(RECORDED / "make_modelopt.py"))["samples"]
IMAGES, LABELS = SAMPLES(1024, 4)


def recorded(mode: str) -> onnx.ModelProto:
    return onnx.load(RECORDED / f"{mode}.onnx")


def diagnosed(folder: Path, model: onnx.ModelProto, **options: Any) -> Diagnosis:
    path = folder / "quantized.onnx"
    onnx.save(model, path)
    data = {"validation": IMAGES, "representative": SAMPLES(64, 3)[0]}
    return quantmedic.diagnose(RECORDED / "float.onnx", path, **data, **{"prove": False, **options})


def with_scale(model: onnx.ModelProto, name: str, factor: float) -> onnx.ModelProto:
    tensor = next(own for own in model.graph.initializer if own.name == name)
    values = numpy_helper.to_array(tensor)
    tensor.CopyFrom(numpy_helper.from_array((values * factor).astype(values.dtype), name))
    return model


@pytest.mark.nightly
def test_what_it_wrote_is_healthy(tmp_path: Path) -> None:
    """Also where a scale of small floats is too large."""
    models = {mode: recorded(mode) for mode in ("int8", "fp8", "int4")}
    models["fp8, a scale too large"] = with_scale(recorded("fp8"), "image_scale", 8.0)
    verdicts = {name: diagnosed(tmp_path, model, labels=LABELS).verdict for name, model in models.items()}
    assert verdicts == dict.fromkeys(models, "healthy")


def test_weights_of_awq_are_no_foreign_ones(tmp_path: Path) -> None:
    """It loses a little here, for weights of four bits."""
    diagnosis = diagnosed(tmp_path, recorded("int4_awq"), labels=LABELS)
    assert not {"foreign-weights", "operator-departs"} & {cause.cause for cause in diagnosis.causes}


def test_a_trial_leaves_the_gains_of_awq_to_the_multiplication(tmp_path: Path) -> None:
    """Weights of eight bits are those of the file, which the layer's input is multiplied for."""
    found = diagnosed(tmp_path, recorded("int4_awq"), labels=LABELS, prove=600)
    assert found.proof is not None
    (trial,) = [row.trial for row in found.proof.trials if row.trial.kind == "eight-bit-weights"]
    assert trial.failed is None and trial.gain_db is not None and trial.gain_db > 20


@pytest.mark.parametrize(
    "mode, scale, factor, cause, layer",
    others_nightly(
        [
            ("int8", "r0_scale", 1 / 16, "over-clipped-activations", "/conv/Relu"),
            ("int8", "w0_scale", 1 / 8, "poor-threshold", "/conv/Conv"),
            ("fp8", "image_scale", 1 / 256, "float-codes-overflow", None),
            ("fp8", "w0_scale", 1 / 256, "float-codes-overflow", "/conv/Conv"),
            ("int4", "w1_scale", 0.25, "foreign-weights", "/fc1/MatMul"),
            ("int4_awq", "w1_scale", 0.25, "foreign-weights", "/fc1/MatMul"),
        ]
    ),
)
def test_one_wrong_scale_is_named_first(
    tmp_path: Path, mode: str, scale: str, factor: float, cause: str, layer: str | None
) -> None:
    found = diagnosed(tmp_path, with_scale(recorded(mode), scale, factor)).causes[0]
    assert found.cause == cause
    assert [own.float_name for own in found.layers] == ([] if layer is None else [layer])


def test_weights_of_small_floats_are_exact() -> None:
    """As onnxruntime dequantizes them, with the graph as it is written."""
    path = RECORDED / "fp8.onnx"
    graph = parse(path, load_model(path))
    (weight,) = (own for name, own in graph.constants.items() if name == "w0_DequantizeLinear_Output")
    shown = make_session(graph.model, path, 1, exposed=["w0_DequantizeLinear_Output"])
    outputs = dict(zip([o.name for o in shown.get_outputs()], shown.run(None, {"image": IMAGES[:1]}), strict=True))
    np.testing.assert_array_equal(weight.values, outputs["w0_DequantizeLinear_Output"])


def test_gains_of_awq_are_a_part_of_the_weights() -> None:
    path = RECORDED / "int4_awq.onnx"
    floats, graph = (parse(own, load_model(own)) for own in (RECORDED / "float.onnx", path))
    assert "Mul" not in {op.op_type for op in graph.operators}
    product = next(op for op in graph.operators if op.name == "/fc1/MatMul")
    stored = graph.constants[product.inputs[1]]
    original = floats.constants["w1"].values
    assert original is not None and stored.values is not None and stored.quantizer is not None
    assert ((stored.values - original) ** 2).sum() < 0.05 * (original**2).sum()
    np.testing.assert_allclose(stored.quantizer.dequantize(np.asarray(stored.codes)), stored.values, rtol=1e-6)


# operators of the domain trt


def in_domain(model: onnx.ModelProto, kind: str, opset: int | None = None) -> onnx.ModelProto:
    """The quantizers as ModelOpt's exporter for torch writes them: without zero point, the type in the name."""
    for node in model.graph.node:
        if "uantizeLinear" in node.op_type:
            node.op_type, node.domain = f"TRT_{kind}{node.op_type}", "trt"
            del node.input[2:]
    for entry in model.opset_import:
        entry.version = opset or entry.version
    model.opset_import.append(helper.make_opsetid("trt", 1))
    return model


def test_operators_with_an_equal_are_run_as_it(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for mode, kind in (("int8", "INT8"), ("fp8", "FP8"), ("int4", "INT4")):
        for opset in (17, None):
            with subtests.test(f"{mode}, opset {opset}"):
                path = tmp_path / "trt.onnx"
                onnx.save(in_domain(recorded(mode), kind, opset), path)
                graph = parse(path, load_model(path))
                assert f"TRT_{kind}DequantizeLinear" in " ".join(graph.notices)
                options = ort.SessionOptions()
                options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
                plain = ort.InferenceSession(
                    str(RECORDED / f"{mode}.onnx"), options, providers=["CPUExecutionProvider"]
                )
                mine = make_session(graph.model, path, 1, plain=True).run(None, {"image": IMAGES[:8]})
                np.testing.assert_array_equal(mine[0], plain.run(None, {"image": IMAGES[:8]})[0])


def test_a_model_of_that_domain_is_diagnosed(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, in_domain(recorded("int8"), "INT8", 17))
    assert diagnosis.verdict == "healthy"
    assert any("TRT_INT8QuantizeLinear" in text for text in diagnosis.warnings)


def nvfp4() -> onnx.ModelProto:
    nodes = [
        helper.make_node("Constant", [], ["scale"], value=helper.make_tensor("", TensorProto.FLOAT, [], [0.1])),
        helper.make_node("TRT_FP4DynamicQuantize", ["x", "scale"], ["x4", "s8"], "/fc/Quantize", domain="trt"),
        helper.make_node("DequantizeLinear", ["s8", "scale"], ["s"]),
        helper.make_node("DequantizeLinear", ["x4", "s"], ["y"], axis=-1, block_size=16),
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 32]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "net", ends[:1], ends[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23), helper.make_opsetid("trt", 1)])


def test_operators_without_an_equal_are_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "trt.onnx"
    for model in (nvfp4(), in_domain(recorded("fp8"), "MXFP8")):
        onnx.save(model, path)
        with pytest.raises(ModelError, match="no equal in standard ONNX") as error:
            parse(path, load_model(path))
        text = str(error.value)
        assert "trt::TRT_" in text and "trt.onnx" in text and "static int8, FP8 or INT4" in text

"""Networks are quantized again with the settings that their quantized models show, and come out the same."""

import contextlib
import runpy
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders import onnx_models
from numpy.typing import NDArray
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static
from onnxruntime.quantization.registry import QDQRegistry, QLinearOpsRegistry
from onnxruntime.quantization.shape_inference import quant_pre_process

from quantmedic import collect, load_rulebase
from quantmedic.collectors.from_onnx.quantized_types import USUAL, quantized_nodes
from quantmedic.engine.case.settings_in_force import SettingsInForce
from quantmedic.engine.diagnosis.prescription import complete_code
from quantmedic.engine.diagnosis.settings_in_force import settings_in_force
from quantmedic.engine.formulas.derive import derive
from quantmedic.engine.rules.toolchain import find_toolchain, options_in_force
from quantmedic.engine.rules.toolchain_options import Names, Options, merge_all, write

pytestmark = pytest.mark.thorough

Feed = dict[str, NDArray[np.float32]]
ROOT = Path(__file__).parents[2]
ZOO = ROOT / "benchmarks" / "zoo" / "networks"
NETWORKS = {"demo": ROOT / "quantmedic" / "demo" / "float.onnx", "csp": ZOO / "csp.onnx", "vit": ZOO / "vit.onnx"}
BASE = load_rulebase()
TOOLCHAIN = find_toolchain("onnxruntime", BASE.toolchains)
SETTINGS: Mapping[str, dict[str, Any]] = {
    "operators-per-channel": {"quant_format": QuantFormat.QOperator, "per_channel": True},
    "reduced": {"reduce_range": True, "per_channel": True},
    "symmetric-unsigned": {
        "activation_type": QuantType.QUInt8,
        "weight_type": QuantType.QUInt8,
        "extra_options": {"ActivationSymmetric": True, "WeightSymmetric": True},
    },
    "four-bits": {"activation_type": QuantType.QInt16, "weight_type": QuantType.QInt4},
    "float-convolution": {"nodes_to_exclude": ["/conv2", "/relu"]},
    "float-end": {"nodes_to_exclude": ["/fc", "/softmax"], "per_channel": True},
    "convolutions-only": {"op_types_to_quantize": ["Conv", "Clip"]},
    "wide-tensor": {"extra_options": {"TensorQuantOverrides": {"relu": [{"quant_type": QuantType.QUInt16}]}}},
    "wide-weight": {
        "weight_type": QuantType.QInt4,
        "extra_options": {"TensorQuantOverrides": {"conv.weight": [{"quant_type": QuantType.QInt8}]}},
    },
    "wide-channels": {
        "weight_type": QuantType.QInt4,
        "per_channel": True,
        "extra_options": {"TensorQuantOverrides": {"conv.weight": [{"quant_type": QuantType.QInt8, "axis": 0}]}},
    },
    "one-scale": {"per_channel": True, "extra_options": {"TensorQuantOverrides": {"conv.weight": [{}]}}},
    "convolutions-without-clip": {"op_types_to_quantize": ["Conv"]},
    "clips-without-convolutions": {"op_types_to_quantize": ["Clip", "MatMul"]},
    "symmetric-calibration": {"extra_options": {"CalibTensorRangeSymmetric": True}},
    "kept-activations": {"extra_options": {"QDQKeepRemovableActivations": True}},
    "quantizers-of-weights": {"extra_options": {"AddQDQPairToWeight": True}, "per_channel": True},
    "float-biases": {"extra_options": {"QuantizeBias": False}},
}


DYNAMIC: Mapping[str, dict[str, Any]] = {
    "default": {},
    "per-channel": {"per_channel": True, "reduce_range": True},
    "unsigned": {"weight_type": QuantType.QUInt8},
    "products-only": {"op_types_to_quantize": ["MatMul"]},
    "float-convolution": {"nodes_to_exclude": ["/conv2"]},
}


OPERATORS = {"quant_format": QuantFormat.QOperator, "activation_type": QuantType.QUInt8}
RECIPES: Mapping[str, dict[str, Any]] = {
    "default": {},
    "convolutions": {"op_types_to_quantize": ["Conv"], "per_channel": True},
    "linear-layers": {"op_types_to_quantize": ["Conv", "MatMul"]},
    "convolutions-and-activations": {
        "op_types_to_quantize": ["Conv", "Relu", "Gemm"],
        "extra_options": {"ActivationSymmetric": True},
    },
    "additions": {"op_types_to_quantize": ["Add", "Mul", "MatMul"]},
    "softmax": {"op_types_to_quantize": ["Conv", "Softmax"], "extra_options": {"WeightSymmetric": False}},
    "operators": OPERATORS,
    "linear-operators": OPERATORS | {"op_types_to_quantize": ["Conv", "MatMul", "Gemm"]},
    "unsigned-per-channel": {
        "activation_type": QuantType.QUInt8,
        "weight_type": QuantType.QUInt8,
        "per_channel": True,
    },
    "sixteen-bits": {"activation_type": QuantType.QUInt16, "per_channel": True},
}
#: A network has what makes a recipe hard: softmax and products in vit, joints in csp, fully connected layers in demo.
TRIED = {
    "demo": ("default", "convolutions-and-activations", "sixteen-bits", "linear-operators"),
    "csp": ("convolutions", "additions", "operators", "unsigned-per-channel"),
    "vit": ("default", "linear-layers", "additions", "softmax", "linear-operators"),
}
READER = """
import numpy as np
from onnxruntime.quantization import CalibrationDataReader
class Inputs(CalibrationDataReader):
    def __init__(self):
        self.feeds = iter([dict(np.load("feed.npz"))])
    def get_next(self):
        return next(self.feeds, None)
reader = Inputs()
exec(open("prescription.py").read())
"""


class Once(CalibrationDataReader):
    def __init__(self, feed: Feed) -> None:
        self.feeds = iter([feed])

    def get_next(self) -> Feed | None:
        return next(self.feeds, None)


def feed_for(model: onnx.ModelProto) -> Feed:
    rng, found = np.random.default_rng(0), {}
    for value in model.graph.input:
        shape = [side.dim_value or 8 for side in value.type.tensor_type.shape.dim]
        found[value.name] = rng.random(size=shape).astype(np.float32)
    return found


def clipped_net() -> onnx.ModelProto:
    """Two convolutions, the first with a Clip behind it, a product and a softmax."""
    net = onnx_models.Net(17)
    wide = onnx_models.random(1, 16, 3, 3, 3, scale=0.3)
    bias = onnx_models.random(2, 16, scale=0.1)
    x = net.conv(net.input("image", ["n", 3, 8, 8]), wide, bias, out="conv", name="/conv", pads=[1, 1, 1, 1])
    net.const("low", np.float32(0))
    net.const("high", np.float32(6))
    x = net.add("Clip", x, "low", "high", out="clip", name="/clip")
    weight, bias = onnx_models.random(3, 16, 16, 3, 3, scale=0.1), onnx_models.random(4, 16, scale=0.1)
    x = net.add("Relu", net.conv(x, weight, bias, out="conv2", name="/conv2"), out="relu", name="/relu")
    x = net.add("Flatten", net.add("GlobalAveragePool", x, out="pool", name="/pool"), out="flat", name="/flat")
    net.const("fc.weight", onnx_models.random(5, 16, 10))
    x = net.add("MatMul", x, "fc.weight", out="scores", name="/fc")
    net.output(net.add("Softmax", x, out="share", name="/softmax"), shape=["n", 10])
    return net.model()


def save_clipped_net(folder: Path) -> Feed:
    onnx.save(clipped_net(), str(folder / "float.onnx"))
    return {"image": onnx_models.random(0, 16, 3, 8, 8)}


def write_float(name: str, folder: Path) -> Feed:
    model = onnx.load(str(NETWORKS[name]))
    onnx.save(model, str(folder / "float.onnx"))
    return feed_for(model)


def quantize(folder: Path, feed: Feed, **options: Any) -> None:
    quantize_static(str(folder / "float.onnx"), str(folder / "patient.onnx"), Once(feed), **options)


def shown_settings(folder: Path, feed: Feed, name: str = "patient.onnx") -> SettingsInForce:
    samples = {name: array.reshape(array.shape or (1,)) for name, array in feed.items()}
    pair = folder / "float.onnx", folder / name
    return settings_in_force(derive(collect(*pair, validation=samples, threads=1, attribution=False), BASE))


def quantize_again(
    folder: Path, feed: Feed, shown: SettingsInForce, form: str = "quantize_static", asked: Sequence[Options] = ()
) -> str:
    """Runs the text that is printed for settings, and what remedies ask for on top of them; gives the text."""
    call = write(form, TOOLCHAIN.forms[form], merge_all([*asked, options_in_force(TOOLCHAIN, form, shown)]))
    text = complete_code(call, "python", TOOLCHAIN)
    np.savez(folder / "feed.npz", **feed)
    (folder / "prescription.py").write_text(text)
    (folder / "run.py").write_text(READER)
    with contextlib.chdir(folder):
        runpy.run_path("run.py", run_name="__main__")  # in names of its own; a process would import for half a second
    return text


def assert_same(folder: Path, text: str) -> None:
    """The same operators, quantizers among them, and every stored number to the byte."""
    made, patient = (onnx.load(str(folder / name)).graph for name in ("int8.onnx", "patient.onnx"))
    assert Counter(node.op_type for node in made.node) == Counter(node.op_type for node in patient.node), text
    stored = [{tensor.name: tensor.SerializeToString() for tensor in graph.initializer} for graph in (made, patient)]
    assert stored[0] == stored[1], text


@pytest.mark.nightly
def test_settings_give_the_same_model_again_and_a_remedy_changes_its_own_alone(
    subtests: pytest.Subtests, tmp_path: Path
) -> None:
    feed = save_clipped_net(tmp_path)
    for name, options in SETTINGS.items():
        with subtests.test(name):
            quantize(tmp_path, feed, **options)
            before = shown_settings(tmp_path, feed)
            assert_same(tmp_path, quantize_again(tmp_path, feed, before))
            text = quantize_again(tmp_path, feed, before, asked=[{"nodes_to_exclude": Names(["/pool"])}])
            after = shown_settings(tmp_path, feed, "int8.onnx")
            named = {"/pool"}.union(*before.float_layers.values())
            # What only moves values stays in float between two that do.
            assert named <= set().union(*after.float_layers.values()) <= named | {"/flat"}
            assert after.model_dump(exclude={"float_layers"}) == before.model_dump(exclude={"float_layers"}), text


@pytest.mark.nightly
def test_dynamic_quantization_gives_the_same_model_again(subtests: pytest.Subtests, tmp_path: Path) -> None:
    feed = save_clipped_net(tmp_path)
    for name, options in DYNAMIC.items():
        with subtests.test(name):
            quantize_dynamic(tmp_path / "float.onnx", tmp_path / "patient.onnx", **options)
            shown = shown_settings(tmp_path, feed)
            assert_same(tmp_path, quantize_again(tmp_path, feed, shown, "quantize_dynamic"))


def test_a_model_that_was_prepared_before_is_prepared_again(tmp_path: Path) -> None:
    net = onnx_models.Net(17)
    x = net.conv(net.input("image", ["n", 3, 8, 8]), onnx_models.random(1, 8, 3, 3, 3), out="conv", name="/conv")
    for name, values in (("scale", [2.0, 0.5] * 4), ("shift", [0.1] * 8), ("mean", [0.3] * 8), ("variance", [4.0] * 8)):
        net.const(name, np.array(values, np.float32))
    x = net.add("BatchNormalization", x, "scale", "shift", "mean", "variance", out="normal", name="/normal")
    x = net.add("GlobalAveragePool", net.add("Relu", x, out="relu", name="/relu"), out="pool", name="/pool")
    net.output(net.add("Flatten", x, out="scores", name="/flat"), shape=["n", 8])
    onnx.save(net.model(), str(tmp_path / "float.onnx"))
    quant_pre_process(str(tmp_path / "float.onnx"), str(tmp_path / "folded.onnx"), skip_symbolic_shape=True)
    feed = {"image": onnx_models.random(0, 16, 3, 8, 8)}
    quantize_static(str(tmp_path / "folded.onnx"), str(tmp_path / "patient.onnx"), Once(feed), per_channel=True)
    text = quantize_again(tmp_path, feed, shown_settings(tmp_path, feed))
    assert 'prepared("float.onnx")' in text
    assert_same(tmp_path, text)


@pytest.mark.nightly
def test_real_networks_come_out_the_same(subtests: pytest.Subtests, tmp_path: Path) -> None:
    for name, recipes in TRIED.items():
        feed = write_float(name, tmp_path)
        for recipe in recipes:
            with subtests.test(f"{name} {recipe}"):
                quantize(tmp_path, feed, **RECIPES[recipe])
                assert_same(tmp_path, quantize_again(tmp_path, feed, shown_settings(tmp_path, feed)))


@pytest.mark.nightly
def test_a_network_whose_nodes_have_no_names(tmp_path: Path) -> None:
    """swift-f0: nothing can be left out by name, and onnxruntime refuses to quantize its Softmax."""
    spec = find_spec("swift_f0")
    if spec is None or spec.origin is None:
        pytest.skip("swift-f0 is not installed")
    model = onnx.load(str(Path(spec.origin).parent / "model.onnx"))
    onnx.save(model, str(tmp_path / "float.onnx"))
    audio = (0.1 * np.random.default_rng(0).normal(size=(1, 16000))).astype(np.float32)
    feed = {"audio": audio, "fmin": np.array(46.875, np.float32), "fmax": np.array(2093.75, np.float32)}
    for recipe in ("linear-layers", "linear-operators"):
        quantize(tmp_path, feed, **RECIPES[recipe])
        text = quantize_again(tmp_path, feed, shown_settings(tmp_path, feed))
        assert "op_types_to_quantize=[" in text
        assert_same(tmp_path, text)


def test_the_usual_types_are_those_of_onnxruntime() -> None:
    assert {*QLinearOpsRegistry, *QDQRegistry} == USUAL


def test_types_that_are_quantized_unasked_need_not_be_named(tmp_path: Path) -> None:
    feed = write_float("vit", tmp_path)
    floats = onnx.load(str(tmp_path / "float.onnx"))
    for options, types in (({}, None), ({"op_types_to_quantize": ["Conv", "MatMul"]}, ("Conv", "MatMul"))):
        quantize_static(str(tmp_path / "float.onnx"), str(tmp_path / "patient.onnx"), Once(feed), **options)
        found = quantized_nodes(floats, onnx.load(str(tmp_path / "patient.onnx")), "QDQ")
        assert found is not None and found.types == types
        assert bool(found.in_float.get("Softmax")) == bool(types)


def test_models_of_other_tools_say_nothing_of_it(tmp_path: Path) -> None:
    feed = write_float("demo", tmp_path)
    quantize_static(str(tmp_path / "float.onnx"), str(tmp_path / "patient.onnx"), Once(feed))
    patient = onnx.load(str(tmp_path / "patient.onnx"))
    patient.producer_name = "other"
    del patient.metadata_props[:]
    assert quantized_nodes(onnx.load(str(tmp_path / "float.onnx")), patient, "QDQ") is None


def test_a_setting_that_the_model_does_not_show_is_not_stated(tmp_path: Path) -> None:
    assert not options_in_force(TOOLCHAIN, "quantize_static", SettingsInForce())
    assert options_in_force(TOOLCHAIN, "quantize_static", SettingsInForce(reduced_range=True)) == {"reduce_range": True}
    feed = save_clipped_net(tmp_path)
    shown = shown_settings(tmp_path, feed, "float.onnx")
    assert not shown.float_layers and shown.weight_type is None, "no quantizer, so no layers to keep in float"

"""Real networks are quantized again with the settings that their quantized models show, and come out the same."""

import contextlib
import runpy
from collections import Counter
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from onnxruntime.quantization.registry import QDQRegistry, QLinearOpsRegistry

from quantmedic import collect, load_rulebase
from quantmedic.collectors.from_onnx.quantized_types import USUAL, quantized_nodes
from quantmedic.engine.case.settings_in_force import SettingsInForce
from quantmedic.engine.diagnosis.prescription import complete_code
from quantmedic.engine.diagnosis.settings_in_force import settings_in_force
from quantmedic.engine.formulas.derive import derive
from quantmedic.engine.rules.options import write
from quantmedic.engine.rules.toolchain import find_toolchain, options_in_force

Feed = dict[str, NDArray[np.float32]]
ROOT = Path(__file__).parents[2]
ZOO = ROOT / "benchmarks" / "zoo" / "networks"
NETWORKS = {"demo": ROOT / "quantmedic" / "demo" / "float.onnx", "csp": ZOO / "csp.onnx", "vit": ZOO / "vit.onnx"}
BASE = load_rulebase()
TOOLCHAIN = find_toolchain("onnxruntime", BASE.toolchains)
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


def write_float(name: str, folder: Path) -> Feed:
    model = onnx.load(str(NETWORKS[name]))
    onnx.save(model, str(folder / "float.onnx"))
    return feed_for(model)


def shown_settings(folder: Path, feed: Feed) -> SettingsInForce:
    samples = {name: array.reshape(array.shape or (1,)) for name, array in feed.items()}
    pair = folder / "float.onnx", folder / "patient.onnx"
    return settings_in_force(derive(collect(*pair, validation=samples, threads=1, attribution=False), BASE))


def printed(shown: SettingsInForce) -> str:
    call = write(
        "quantize_static",
        TOOLCHAIN.forms["quantize_static"],
        options_in_force(TOOLCHAIN, "quantize_static", shown),
    )
    return complete_code(call, "python", TOOLCHAIN)


def quantize_again(folder: Path, feed: Feed, **options: Any) -> str:
    """Quantizes ``float.onnx``, then again with the text that is printed for what came out, which it gives."""
    quantize_static(str(folder / "float.onnx"), str(folder / "patient.onnx"), Once(feed), **options)
    np.savez(folder / "feed.npz", **feed)
    text = printed(shown_settings(folder, feed))
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


@pytest.mark.thorough
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("recipe", RECIPES)
def test_the_printed_settings_give_the_same_model_again(name: str, recipe: str, tmp_path: Path) -> None:
    feed = write_float(name, tmp_path)
    assert_same(tmp_path, quantize_again(tmp_path, feed, **RECIPES[recipe]))


@pytest.mark.thorough
@pytest.mark.parametrize("recipe", ["convolutions", "linear-layers", "additions", "linear-operators"])
def test_a_network_whose_nodes_have_no_names(recipe: str, tmp_path: Path) -> None:
    """swift-f0: nothing can be left out by name, and onnxruntime refuses to quantize its Softmax."""
    spec = find_spec("swift_f0")
    if spec is None or spec.origin is None:
        pytest.skip("swift-f0 is not installed")
    model = onnx.load(str(Path(spec.origin).parent / "model.onnx"))
    onnx.save(model, str(tmp_path / "float.onnx"))
    audio = (0.1 * np.random.default_rng(0).normal(size=(1, 16000))).astype(np.float32)
    feed = {"audio": audio, "fmin": np.array(46.875, np.float32), "fmax": np.array(2093.75, np.float32)}
    text = quantize_again(tmp_path, feed, **RECIPES[recipe])
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

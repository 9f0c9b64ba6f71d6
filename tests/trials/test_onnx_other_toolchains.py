"""Prescriptions of NNCF and Intel Neural Compressor for ONNX models: every option that heals is run where it can be."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import pytest
from builders import onnx_models
from numpy.typing import NDArray

from quantmedic import collect, load_rulebase
from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.from_onnx.models import OnnxModels, open_models
from quantmedic.collectors.measure.models import Edited, Runner
from quantmedic.engine.case.facts import CaseFacts
from quantmedic.engine.diagnosis.advice import advise
from quantmedic.engine.diagnosis.prescription import complete_code
from quantmedic.engine.diagnosis.settings_in_force import settings_in_force
from quantmedic.engine.diagnosis.snippets import filled_options
from quantmedic.engine.errors import ModelError
from quantmedic.engine.formulas.derive import derive
from quantmedic.engine.rules.evaluate import Finding
from quantmedic.engine.rules.options import Options, merge_all, write
from quantmedic.engine.rules.rule import Rule
from quantmedic.engine.rules.toolchain import find_toolchain, options_in_force
from quantmedic.trials.from_onnx.other_toolchains import EXECUTORS, NEURAL_COMPRESSOR, NNCF

pytestmark = pytest.mark.thorough

Array = NDArray[np.float32]
BASE = load_rulebase()
FORMS = {NNCF.toolchain: "nncf.quantize", NEURAL_COMPRESSOR.toolchain: "PostTrainingQuantConfig"}
needs_nncf = pytest.mark.skipif(NNCF.missing() is not None, reason=str(NNCF.missing()))
needs_inc = pytest.mark.skipif(NEURAL_COMPRESSOR.missing() is not None, reason=str(NEURAL_COMPRESSOR.missing()))


class Fault(NamedTuple):
    """Options that spoil a quantization, the factor of its samples, and the layer that a remedy is for."""

    options: Options
    layer: str = "/conv2"
    widest: float = 1.0
    outlier: float = 1.0
    left: float = 0.9


def advanced(**options: object) -> Options:
    return {"advanced_parameters": {"nncf.AdvancedQuantizationParameters()": options}}


PER_TENSOR = advanced(weights_quantization_params={"QuantizationParameters()": {"per_channel": False}})
MINMAX = advanced(activations_range_estimator_params="=RangeEstimatorParametersSet.MINMAX")
HEALED: Mapping[str, Fault] = {
    "per-channel-weights": Fault(PER_TENSOR, "/conv", widest=2000.0, left=0.2),
    "limit-activation-range": Fault(MINMAX, outlier=60.0, left=0.5),
    "keep-layers-float": Fault(PER_TENSOR, "/conv", widest=2000.0, left=0.2),
    "keep-group-float": Fault(PER_TENSOR, "/conv", widest=2000.0, left=0.2),
    "keep-operator-types-float": Fault(PER_TENSOR, "/conv", widest=2000.0, left=0.2),
    "float-first-layers": Fault(PER_TENSOR, "/conv", widest=2000.0, left=0.2),
    "float-tail": Fault({}, "/fc"),
}


def network(widest: float) -> onnx.ModelProto:
    """Two convolutions, the first with one channel of wide weights that a Clip behind it keeps in range."""
    net = onnx_models.Net(17)
    wide = onnx_models.random(1, 16, 3, 3, 3, scale=0.3)
    wide[0] *= widest
    bias = onnx_models.random(2, 16, scale=0.1)
    x = net.conv(net.input("image", ["n", 3, 8, 8]), wide, bias, out="conv", name="/conv", pads=[1, 1, 1, 1])
    net.const("low", np.float32(0))
    net.const("high", np.float32(6))
    x = net.add("Clip", x, "low", "high", out="clip", name="/clip")
    weight, bias = onnx_models.random(3, 16, 16, 3, 3, scale=0.1), onnx_models.random(4, 16, scale=0.1)
    x = net.add("Relu", net.conv(x, weight, bias, out="conv2", name="/conv2"), out="relu", name="/relu")
    x = net.add("Flatten", net.add("GlobalAveragePool", x, out="pool", name="/pool"), out="flat", name="/flat")
    net.const("fc.weight", onnx_models.random(5, 16, 10))
    net.output(net.add("MatMul", x, "fc.weight", out="scores", name="/fc"), shape=["n", 10])
    return net.model()


def images(seed: int, count: int = 64) -> Array:
    return np.random.default_rng(seed).normal(size=(count, 3, 8, 8)).astype(np.float32)


def script_of(toolchain: str, options: Options) -> str:
    chosen = find_toolchain(toolchain, BASE.toolchains)
    return complete_code(write(FORMS[toolchain], chosen.forms[FORMS[toolchain]], options), "python", chosen)


def options_of(remedy: str, toolchain: str, facts: CaseFacts, layer: str) -> Options:
    """The toolchain's first snippet of a remedy that was run, filled for a layer; conditions left out."""
    rule = {"id": "X001", "name": "any-rule", "cause": "any-cause", "severity": "low", "confidence": 0.5, "message": ""}
    rule |= {"scope": "layer", "when": {"fact": "name", "known": True}, "remedies": [remedy]}
    asked = BASE.remedies[remedy]
    snippet = next(each for each in asked.snippets if each.toolchain == toolchain and each.mark == "run")
    asked = asked.model_copy(update={"in_force": None, "withheld": (), "snippets": (snippet,)})
    finding = Finding(Rule.model_validate(rule), layer, layer, "", ())
    (advice,), _ = advise([finding], BASE.model_copy(update={"remedies": {remedy: asked}}), facts)
    return filled_options(advice.snippets[0], advice.fields, "X001")[FORMS[toolchain]]


def noise(models: OnnxModels, run: Runner, x: Array) -> float:
    batch = Batch({"image": x})
    return sum(float(np.square(a - b).sum()) for a, b in zip(models.float_runner(1)(batch), run(batch), strict=True))


class Ward:
    """A folder with a float model, and what a toolchain makes of it."""

    def __init__(self, folder: Path, widest: float) -> None:
        self.folder = folder
        onnx.save(network(widest), str(folder / "float.onnx"))
        self.pair = self.open_pair(onnx_models.static(network(widest), {"image": images(0, 8)}, folder))

    def open_pair(self, quantized: onnx.ModelProto) -> OnnxModels:
        onnx.save(quantized, str(self.folder / "patient.onnx"))
        return open_models(self.folder / "float.onnx", self.folder / "patient.onnx")

    def made(self, executor: Any, code: str, x: Array) -> Edited:
        found: Edited = executor.execute(self.pair, code, [Batch({"image": row[None]}) for row in x], None)
        return found


def test_they_are_toolchains_of_the_rules() -> None:
    for executor in EXECUTORS:
        chosen = find_toolchain(executor.toolchain, BASE.toolchains)
        assert executor.toolchain == chosen.name and executor.supplies <= chosen.given.keys()
        assert (executor.version() is None) <= (executor.missing() is not None)


@needs_nncf
@pytest.mark.parametrize("remedy", HEALED)
def test_the_script_of_nncf_heals_and_keeps_what_is_in_force(remedy: str, tmp_path: Path) -> None:
    fault, given, judged = HEALED[remedy], images(0), images(1)
    given[0] *= fault.outlier
    ward = Ward(tmp_path, fault.widest)
    patient = ward.made(NNCF, script_of("NNCF", fault.options), given)
    assert patient.save is not None
    patient.save(tmp_path / "patient.onnx")
    sets = {"representative": {"image": given}, "validation": {"image": judged}}
    facts = derive(collect(tmp_path / "float.onnx", tmp_path / "patient.onnx", **sets, threads=1), BASE)
    kept = options_in_force(find_toolchain("nncf", BASE.toolchains), FORMS["NNCF"], settings_in_force(facts))
    code = script_of("NNCF", merge_all([options_of(remedy, "NNCF", facts, fault.layer), kept]))
    healed = ward.made(NNCF, code, given)
    before, after = (noise(ward.pair, each.runner(1), judged) for each in (patient, healed))
    assert after < fault.left * before, code


@needs_nncf
def test_a_refusal_of_nncf_is_told_in_its_own_words(tmp_path: Path) -> None:
    code = script_of("NNCF", {"ignored_scope": {"nncf.IgnoredScope()": {"names": ["/no/such"]}}})
    with pytest.raises(ModelError, match="/no/such"):
        Ward(tmp_path, 1.0).made(NNCF, code, images(0, 4))


@needs_inc
def test_the_script_of_neural_compressor_makes_a_model(tmp_path: Path) -> None:
    ward = Ward(tmp_path, 1.0)
    code = script_of(NEURAL_COMPRESSOR.toolchain, {"quant_format": "QDQ"})
    assert noise(ward.pair, ward.made(NEURAL_COMPRESSOR, code, images(0)).runner(1), images(1)) > 0

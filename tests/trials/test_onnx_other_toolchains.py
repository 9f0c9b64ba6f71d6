"""Prescriptions of NNCF and Intel Neural Compressor for ONNX models: every snippet heals a patient of its own."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders import onnx_models
from builders.onnx_patients import Array, dead_channel, inputs, joined, network, prescribe, unchanged, with_giant

from quantmedic import collect, load_rulebase
from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.from_onnx.onnx_models import OnnxModels, open_models
from quantmedic.collectors.measure.host import has_vnni
from quantmedic.collectors.measure.models import Edited, Runner
from quantmedic.engine.diagnosis.prescription import complete_code
from quantmedic.engine.errors import ModelError
from quantmedic.engine.rules.toolchain import find_toolchain
from quantmedic.engine.rules.toolchain_options import Options, merge_all, write
from quantmedic.trials.from_onnx.onnx_remedies import EXECUTORS, NEURAL_COMPRESSOR, NNCF

pytestmark = pytest.mark.nightly

BASE = load_rulebase()
FORMS = {NNCF.toolchain: "nncf.quantize", NEURAL_COMPRESSOR.toolchain: "PostTrainingQuantConfig"}


def advanced(**options: object) -> Options:
    return {"advanced_parameters": {"nncf.AdvancedQuantizationParameters()": options}}


def weights(**options: object) -> Options:
    return {"op_type_dict": {".*": {"weight": options}}}


def wide_conv() -> onnx.ModelProto:
    return network("conv")


def uneven(x: Array) -> Array:
    """Every fourth sample is thirty times as bright as the others."""
    return x * np.where(np.arange(len(x)) % 4 == 0, np.float32(30), np.float32(1)).reshape(-1, 1, 1, 1)


def many(x: Array, largest: float = 60.0) -> Array:
    """One of some 400 000 values is far larger than all others."""
    first = np.arange(16 * x.size).reshape(-1, *x.shape[1:]) == 0
    return np.where(first, np.float32(largest), np.tile(x, (16, 1, 1, 1)))


def bright(x: Array) -> Array:
    """One pixel of each sample is as large as the largest of ``many``."""
    return np.where(np.arange(x[0].size).reshape(x[0].shape) == 70, np.float32(60), x)


def dark(x: Array) -> Array:
    return x * np.float32(0.01)


def shifted(x: Array) -> Array:
    return x * np.float32(0.2) + np.float32(3)


def lopsided(x: Array) -> Array:
    return x * np.float32(0.2) + np.float32(0.5)


def loud_column() -> onnx.ModelProto:
    """Two products; the first reads a loud column, which it hardly weighs."""
    net = onnx_models.Net(17)
    weight = onnx_models.random(1, 192, 16)
    weight[0] /= 300
    net.const("factor", np.where(np.arange(192) == 0, 300, 1).astype(np.float32))
    x = net.add("Flatten", net.input("image", ["n", 3, 8, 8]), out="flat", name="/flat")
    x = net.add("Mul", x, "factor", out="loud", name="/loud")
    net.const("up.weight", weight)
    x = net.add("Relu", net.add("MatMul", x, "up.weight", out="up", name="/up"), out="relu", name="/relu")
    net.const("fc.weight", onnx_models.random(5, 16, 10))
    net.output(net.add("MatMul", x, "fc.weight", out="scores", name="/fc"), shape=["n", 10])
    return net.model()


@dataclass(frozen=True)
class Patient:
    """A network that a toolchain spoils.

    Attributes:
        net: The float network.
        layers: Findings name these.
        options: Those that spoil it.
        calibrated: What the toolchain read, made of what the user's data set yields.
        reads: What that yields, made of proper inputs; these are the representative samples too.
        judged: What is judged, made of proper inputs.
        sound: Options without the fault; None: those that add no noise.
        cause: Found.
        batch: Samples that the toolchain gets at once.
        left: Share of the added noise that may be left.
    """

    net: Callable[[], onnx.ModelProto] = network
    layers: tuple[str, ...] = ("/conv",)
    options: Options = field(default_factory=dict)
    calibrated: Callable[[Array], Array] = unchanged
    reads: Callable[[Array], Array] = unchanged
    judged: Callable[[Array], Array] = unchanged
    sound: Options | None = None
    cause: str = "any-cause"
    batch: int = 1
    left: float = 0.2


PER_TENSOR = advanced(weights_quantization_params={"QuantizationParameters()": {"per_channel": False}})
MINMAX = advanced(activations_range_estimator_params="=RangeEstimatorParametersSet.MINMAX")
ONE_SCALE = Patient(wide_conv, options=PER_TENSOR)
DARK = Patient(reads=dark, cause="preprocessing-mismatch")
STALE = Patient(calibrated=dark)
INC_TENSOR = weights(granularity=["per_tensor"])
PATIENTS: Mapping[tuple[str, str, int], Patient] = {
    ("NNCF", "limit-activation-range", 0): Patient(options=MINMAX, reads=with_giant),
    ("NNCF", "widen-activation-range", 0): Patient(reads=uneven, judged=uneven),
    ("NNCF", "per-channel-weights", 0): ONE_SCALE,
    ("NNCF", "bias-correction-on", 0): Patient(
        lambda: network("conv", 8.0),
        options=merge_all([PER_TENSOR, advanced(disable_bias_correction=True)]),
        reads=shifted,
        judged=shifted,
    ),
    ("NNCF", "bias-correction-off", 0): Patient(
        lambda: network("conv", 8.0),
        options=merge_all([PER_TENSOR, {"fast_bias_correction": False}]),
        reads=shifted,
        judged=lambda x: x * np.float32(0.2),
        left=0.5,
    ),
    ("NNCF", "asymmetric-activations", 0): Patient(
        reads=lopsided,
        judged=lopsided,
        sound={"preset": "=nncf.QuantizationPreset.MIXED"},
    ),
    ("NNCF", "keep-layers-float", 0): ONE_SCALE,
    ("NNCF", "keep-group-float", 0): ONE_SCALE,
    ("NNCF", "keep-decoder-float", 0): ONE_SCALE,
    ("NNCF", "keep-operator-types-float", 0): ONE_SCALE,
    ("NNCF", "float-tail", 0): Patient(lambda: network("fc"), ("/fc",), PER_TENSOR),
    ("NNCF", "float-first-layers", 0): ONE_SCALE,
    ("NNCF", "balance-concatenation", 0): Patient(lambda: joined("Concat"), ("/joint",)),
    ("NNCF", "balance-addition", 0): Patient(lambda: joined("Add"), ("/joint",)),
    ("NNCF", "smooth-quant", 0): Patient(loud_column, ("/up",)),
    ("NNCF", "one-preprocessing", 0): DARK,
    ("NNCF", "one-preprocessing", 1): STALE,
    ("NNCF", "recalibrate-on-proper-data", 0): DARK,
    ("NNCF", "recalibrate-on-proper-data", 1): STALE,
    ("NNCF", "calibrate-again", 0): STALE,
    ("Intel Neural Compressor", "limit-activation-range", 0): Patient(reads=lambda x: many(x, 1000.0), batch=64),
    ("Intel Neural Compressor", "widen-activation-range", 0): Patient(
        options={"op_type_dict": {".*": {"activation": {"algorithm": ["percentile"]}}}},
        reads=many,
        judged=bright,
        sound={},
        batch=64,
    ),
    ("Intel Neural Compressor", "per-channel-weights", 0): Patient(wide_conv, options=INC_TENSOR),
    ("Intel Neural Compressor", "per-tensor-for-named-weights", 0): Patient(dead_channel),
    ("Intel Neural Compressor", "keep-layers-float", 0): Patient(wide_conv, options=INC_TENSOR),
    ("Intel Neural Compressor", "keep-operator-types-float", 0): Patient(wide_conv, options=INC_TENSOR),
    ("Intel Neural Compressor", "float-tail", 0): Patient(lambda: network("fc"), ("/fc",), INC_TENSOR),
    ("Intel Neural Compressor", "float-first-layers", 0): Patient(wide_conv, options=INC_TENSOR),
    ("Intel Neural Compressor", "smooth-quant", 0): Patient(loud_column, ("/up",)),
    ("Intel Neural Compressor", "dynamic-quantization", 0): Patient(calibrated=dark),
}


SATURATES = "heals sums that saturate, on processors that this test does not run on"
#: Snippets that were run, and heal nothing that can be measured here, and why.
EXEMPT = {
    ("NNCF", "reduce-range", 0): SATURATES,
    ("NNCF", "per-tensor-for-named-weights", 0): "NNCF leaves biases in float, and none of them overflows",
    ("Intel Neural Compressor", "reduce-range", 0): SATURATES,
}


def script_of(toolchain: str, options: Options) -> str:
    chosen = find_toolchain(toolchain, BASE.toolchains)
    return complete_code(write(FORMS[toolchain], chosen.forms[FORMS[toolchain]], options), "python", chosen)


class Ward:
    """A folder with a float model, and what a toolchain makes of it."""

    def __init__(self, folder: Path, executor: Any, net: onnx.ModelProto) -> None:
        self.folder, self.executor = folder, executor
        onnx.save(net, str(folder / "float.onnx"))
        onnx.save(onnx_models.static(net, {"image": inputs(0)[:8]}, folder), str(folder / "patient.onnx"))
        self.pair: OnnxModels = open_models(folder / "float.onnx", folder / "patient.onnx")

    def made(self, code: str, x: Array, batch: int = 1) -> Edited:
        batches = [Batch({"image": x[i : i + batch]}) for i in range(0, len(x), batch)]
        found: Edited = self.executor.execute(self.pair, code, batches, None)
        return found

    def noise(self, found: Edited, x: Array) -> float:
        batch = Batch({"image": x})
        run: Runner = found.runner(1)
        pairs = zip(self.pair.float_runner(1)(batch), run(batch), strict=True)
        return sum(float(np.square(a - b).sum()) for a, b in pairs)


def test_they_are_toolchains_of_the_rules() -> None:
    for executor in EXECUTORS:
        chosen = find_toolchain(executor.toolchain, BASE.toolchains)
        assert executor.toolchain == chosen.name and executor.supplies <= chosen.given.keys()
        assert (executor.version() is None) <= (executor.missing() is not None)


def test_every_snippet_has_a_patient_or_a_reason() -> None:
    found = set()
    for remedy in BASE.remedies.values():
        for toolchain in FORMS:
            own = [snippet for snippet in remedy.snippets if snippet.toolchain == toolchain]
            found |= {(toolchain, remedy.id, i) for i, snippet in enumerate(own) if snippet.mark == "run"}
    assert found == PATIENTS.keys() | EXEMPT.keys() and not PATIENTS.keys() & EXEMPT.keys()


def executor_of(toolchain: str) -> Any:
    (found,) = [executor for executor in EXECUTORS if executor.toolchain == toolchain]
    if found.missing() is not None:
        pytest.skip(found.missing())
    return found


@pytest.mark.parametrize("key", PATIENTS, ids=lambda key: f"{key[0]}-{key[1]}-{key[2]}")
def test_a_prescription_heals_its_patient(key: tuple[str, str, int], tmp_path: Path) -> None:
    toolchain, remedy, number = key
    patient, executor = PATIENTS[key], executor_of(toolchain)
    if key == ("Intel Neural Compressor", "widen-activation-range", 0) and has_vnni() is False:
        pytest.xfail("on a processor without VNNI the toolkit takes the algorithm and changes nothing: not understood")
    ward = Ward(tmp_path, executor, patient.net())
    given, judged = patient.reads(inputs(0)), patient.judged(inputs(2))
    ill = ward.made(script_of(toolchain, patient.options), patient.calibrated(given), patient.batch)
    assert ill.save is not None
    ill.save(tmp_path / "patient.onnx")
    sets = {"representative": {"image": given}, "validation": {"image": patient.judged(inputs(1))}}
    case = collect(tmp_path / "float.onnx", tmp_path / "patient.onnx", **sets, threads=1)
    snippet = [each for each in BASE.remedies[remedy].snippets if each.toolchain == toolchain][number]
    code = prescribe(case, BASE, remedy, snippet, patient.layers, patient.cause)
    noise = {"before": ward.noise(ill, judged), "after": ward.noise(ward.made(code, given, patient.batch), judged)}
    noise["sound"] = 0.0
    if patient.sound is not None:
        noise["sound"] = ward.noise(ward.made(script_of(toolchain, patient.sound), given, patient.batch), judged)
    assert noise["after"] - noise["sound"] <= patient.left * (noise["before"] - noise["sound"]), code
    assert noise["after"] < noise["before"], code


def test_a_refusal_of_nncf_is_told_in_its_own_words(tmp_path: Path) -> None:
    ward = Ward(tmp_path, executor_of(NNCF.toolchain), network())
    code = script_of("NNCF", {"ignored_scope": {"nncf.IgnoredScope()": {"names": ["/no/such"]}}})
    with pytest.raises(ModelError, match="/no/such"):
        ward.made(code, inputs(0)[:4])

"""Prescriptions for ai-edge-quantizer heal: every remedy on a patient of its own, and faults of data as diagnosed."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from builders.advised import advice_on
from builders.litert_models import gradient_images, two_convolutions
from builders.tiers import others_nightly
from numpy.typing import NDArray

from quantmedic import collect, judge, load_rulebase, search
from quantmedic.api.search import write_search
from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.from_litert.litert_models import open_models
from quantmedic.engine.case.facts import CaseFacts
from quantmedic.engine.diagnosis.prescription import complete_code
from quantmedic.engine.diagnosis.settings_in_force import settings_in_force
from quantmedic.engine.diagnosis.snippets import filled_options
from quantmedic.engine.formulas.derive import derive
from quantmedic.engine.rules.toolchain import find_toolchain, options_in_force
from quantmedic.engine.rules.toolchain_options import Options, merge_all, write
from quantmedic.reports.search_formats import render_search
from quantmedic.reports.sections.prescription import prescription_files

pytest.importorskip("ai_edge_litert", reason="ai-edge-litert is not installed")
pytest.importorskip("ai_edge_quantizer", reason="ai-edge-quantizer is not installed")

pytestmark = pytest.mark.thorough

Array = NDArray[np.float32]
BASE = load_rulebase()
LITERT = find_toolchain("litert", BASE.toolchains)
FORM = LITERT.forms["recipe"]
SOUND: Options = {
    "config": {
        "OpQuantizationConfig()": {
            "activation_tensor_config": {"TensorQuantizationConfig()": {"num_bits": 8, "symmetric": False}},
            "weight_tensor_config": {
                "TensorQuantizationConfig()": {"num_bits": 8, "granularity": "=QuantGranularity.CHANNELWISE"}
            },
            "compute_precision": "=ComputePrecision.INTEGER",
        }
    },
    "update": "=qsv_utils.min_max_update",
}


def of_all(part: str, **settings: object) -> Options:
    return {"config": {"OpQuantizationConfig()": {f"{part}_tensor_config": {"TensorQuantizationConfig()": settings}}}}


class Fault(NamedTuple):
    """Options that spoil a sound quantization, the layer that a remedy is for, and what noise it may leave."""

    options: Options
    layer: str = "mid"
    widest: float = 1.0
    tail: float = 1.0
    left: float = 0.5


COARSE = Fault({"ranges": {"mid": [0.0, 400.0]}})
NARROW = Fault({"ranges": {"mid": [0.0, 0.2]}})
ONE_SCALE = Fault(of_all("weight", granularity="=QuantGranularity.TENSORWISE"), "stem", widest=3000.0)
SYMMETRIC = Fault(of_all("activation", symmetric=True), "stem", left=0.95)
FEW_BITS = Fault({"layers": {"mid": {"weight_tensor_config": {"num_bits": 4}}}})
#: By remedy, or by remedy and place of the snippet.
HEALED: Mapping[str | tuple[str, int], Fault] = {
    "limit-activation-range": COARSE,
    "widen-activation-range": NARROW,
    "per-channel-weights": ONE_SCALE,
    "weight-threshold-search": Fault(of_all("weight", num_bits=4), tail=12.0, left=0.8),
    "more-weight-bits": FEW_BITS,
    ("more-weight-bits", 1): Fault(of_all("weight", num_bits=4)),
    "asymmetric-activations": SYMMETRIC,
    "unsigned-activations": SYMMETRIC,
    "activations-16-bit": COARSE,
    "keep-layers-float": COARSE,
    "keep-group-float": COARSE,
    "keep-decoder-float": COARSE,
    "keep-operator-types-float": COARSE,
    "float-tail": Fault({"ranges": {"scores": [-900.0, 900.0]}}, "scores"),
    "float-first-layers": Fault({"ranges": {"stem": [0.0, 400.0]}}, "stem"),
    "balance-concatenation": COARSE,
    "balance-addition": COARSE,
    "dynamic-quantization": NARROW,
}
#: The bias of a narrow channel overflows in no network as small as these; data are repaired below; what is learned on
#: samples heals in tests/trials/test_litert_learned.py.
ELSEWHERE = {"per-tensor-for-named-weights", "one-preprocessing", "recalibrate-on-proper-data", "calibrate-again"}
ELSEWHERE |= {"learned-rounding", "bias-correction-on"}
SNIPPETS = [
    (remedy.id, place, number)
    for remedy in BASE.remedies.values()
    for place, number in enumerate(
        i for i, each in enumerate(remedy.snippets) if each.toolchain == LITERT.name and each.mark == "run"
    )
]


class Ward:
    """A folder in which scripts are run."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.float = folder, folder / "float.tflite"
        self.float.write_bytes(two_convolutions())

    def run(self, code: str, x: Array) -> Path:
        """The model that a script makes of samples that are fed one by one."""
        (self.folder / "int8.tflite").unlink(missing_ok=True)
        exec(
            compile(code, "prescription.py", "exec"), {"data": {"serving_default": [{"image": row[None]} for row in x]}}
        )
        return self.folder / "int8.tflite"

    def patient(self, options: Options, x: Array) -> Path:
        made = self.run(script_of(merge_all([options, SOUND])), x)
        return made.rename(self.folder / "patient.tflite")

    def noise(self, quantized: Path, x: Array) -> float:
        pair = open_models(self.float, quantized)
        pair.batched = True
        (exact,), (rounded,) = (run(1)(Batch({"image": x})) for run in (pair.float_runner, pair.quantized_runner))
        return float(np.square(exact - rounded).sum())


@pytest.fixture
def ward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ward:
    monkeypatch.chdir(tmp_path)
    return Ward(tmp_path)


def script_of(options: Options) -> str:
    return complete_code(write("recipe", FORM, options), "python", LITERT)


def options_of(remedy: str, number: int, facts: CaseFacts, layer: str) -> Options:
    """One snippet of a remedy, filled for a layer."""
    advice = advice_on(BASE, remedy, facts, layer, BASE.remedies[remedy].snippets[number])
    return filled_options(advice.snippets[0], advice.fields, "X001")["recipe"]


def test_every_remedy_is_healed_by_here() -> None:
    assert {remedy for remedy, *_ in SNIPPETS} == {key for key in HEALED if isinstance(key, str)} | ELSEWHERE


@pytest.mark.nightly
def test_every_script_of_a_remedy_heals(subtests: pytest.Subtests, ward: Ward) -> None:
    together: dict[str, tuple[Fault, list[tuple[str, int]]]] = {}
    for remedy, place, number in SNIPPETS:
        if remedy in HEALED:
            fault = HEALED.get((remedy, place), HEALED[remedy])
            together.setdefault(repr(fault), (fault, []))[1].append((remedy, number))
    given, judged = gradient_images(0), gradient_images(1)
    sets = {"representative": {"image": given}, "validation": {"image": judged}}
    for fault, snippets in together.values():
        ward.float.write_bytes(two_convolutions(fault.widest, fault.tail))
        patient = ward.patient(fault.options, given)
        facts = derive(collect(ward.float, patient, **sets, threads=1, attribution=False), BASE)
        kept, before = options_in_force(LITERT, "recipe", settings_in_force(facts)), ward.noise(patient, judged)
        for remedy, number in snippets:
            with subtests.test(f"{remedy}-{number}"):
                code = script_of(merge_all([options_of(remedy, number, facts, fault.layer), kept]))
                assert ward.noise(ward.run(code, given), judged) < fault.left * before, code


MISTAKES = {
    "divided-again": lambda x: x / np.float32(8),
    "not-normalized": lambda x: x * np.float32(40) + np.float32(100),
    "turned": lambda x: np.ascontiguousarray(x[..., ::-1]),
    "blank": lambda x: x * (np.arange(len(x)) % 4 == 0).astype(np.float32)[:, None, None, None],
}


@pytest.mark.parametrize("name", others_nightly(MISTAKES))
def test_the_printed_script_repairs_the_samples(name: str, ward: Ward) -> None:
    proper, judged = gradient_images(0, 64), gradient_images(1, 64)
    if name == "turned":  # which harms only a network that does not hear all channels alike
        ward.float.write_bytes(two_convolutions(colours=(0.1, 0.3, 1.0)))
    reachable = ward.noise(ward.patient({}, proper), judged)
    given = MISTAKES[name](proper)
    patient = ward.patient({}, given)
    sets = {"representative": {"image": given}, "validation": {"image": judged}}
    found = judge(collect(ward.float, patient, **sets, threads=1))
    ((file, content),) = prescription_files(found)
    code = content.decode()
    assert file == "prescription.py" and "repaired_data(data)" in code, found.causes
    assert found.prescription is not None and set(found.prescription.given) == {"data"}
    assert re.search(r"^update = qsv_utils.min_max_update$", code, re.M), "the extremes of all samples stay the range"
    before, after = ward.noise(patient, judged), ward.noise(ward.run(code, given), judged)
    if name == "blank":  # which does not move the extremes
        assert after <= before, code
    elif name == "turned":  # which is undone exactly
        assert after == pytest.approx(reachable), code
    else:
        assert after < 0.2 * before and after < 2 * reachable, code


def test_ranges_of_other_samples_are_calibrated_again(ward: Ward) -> None:
    given, judged = gradient_images(0), gradient_images(1)
    patient = ward.patient({}, given * np.float32(255))
    sets = {"representative": {"image": given}, "validation": {"image": judged}}
    found = judge(collect(ward.float, patient, **sets, threads=1))
    ((_, content),) = prescription_files(found)
    assert "calibration.calibrate(data, manager)" in content.decode(), found.causes
    assert ward.noise(ward.run(content.decode(), given), judged) < 0.3 * ward.noise(patient, judged)


def test_a_moving_average_is_not_taken_for_extremes(ward: Ward) -> None:
    given = gradient_images(0)
    patient = ward.patient({"update": "=qsv_utils.moving_average_update"}, given)
    case = collect(ward.float, patient, representative={"image": given}, threads=1)
    assert settings_in_force(derive(case, BASE)).calibration_method is None


def test_a_fallback_set_is_a_script_whose_model_meets_the_goal(ward: Ward, tmp_path: Path) -> None:
    given, judged = gradient_images(0), gradient_images(1, 160)
    made = ward.run(script_of(merge_all([COARSE.options, {"config": SOUND["config"]}])), given)
    patient = made.rename(tmp_path / "patient.tflite")
    record = search("fallback", ward.float, patient, validation={"image": judged}, min_sqnr_db=20.0, threads=1)
    assert record.toolchain is not None and record.toolchain.name == LITERT.name and record.layers
    assert record.prescription is not None
    shown = record.prescription.configurations[0].code.splitlines()[0]
    files = {path.name: path for path, _ in write_search(record, tmp_path / "out")}
    code = files["prescription.py"].read_text(encoding="utf-8")
    assert shown in code and shown in render_search(record) and "quantize_static" not in render_search(record)
    before, after = ward.noise(patient, judged), ward.noise(ward.run(code, given), judged)
    assert after < 0.5 * before, code
    other = search(
        "fallback", ward.float, patient, validation={"image": judged}, min_sqnr_db=20.0, threads=1, toolchain="tflite"
    )
    assert other.prescription is not None and "denylisted_nodes=" in other.prescription.configurations[0].code

"""The simulated network against the deployed one, and what it foretells against what a real quantizer then gives."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders.onnx_models import own, session
from builders.tiers import others_nightly
from numpy.typing import NDArray
from onnx import numpy_helper
from onnxruntime.quantization import (
    CalibrationDataReader,
    CalibrationMethod,
    QuantFormat,
    QuantType,
    quantize_static,
)
from onnxruntime.quantization.quant_utils import quantize_data

import quantmedic
from quantmedic.collectors.data.datasets import open_dataset
from quantmedic.collectors.from_onnx.onnx_models import open_models
from quantmedic.collectors.measure.measurement import Measurement
from quantmedic.collectors.measure.options import Options
from quantmedic.collectors.measure.simulation import Simulation
from quantmedic.collectors.pair.weight_forms import round_to_best_grid, round_to_grid
from quantmedic.demo import patient
from quantmedic.engine.case.records import Case, RunRecord
from quantmedic.engine.diagnosis.prediction import output_sqnr_db, simulation_gap_db
from quantmedic.engine.formulas.change import Change, Targets
from quantmedic.engine.formulas.derive import derive
from quantmedic.engine.rules.remedy_kinds import change_of
from quantmedic.engine.rules.rulebase import RuleBase

pytestmark = pytest.mark.thorough

Images = NDArray[np.float32]
#: Samples of the validation set: all of them are simulated.
SAMPLES = 96


class Reader(CalibrationDataReader):
    def __init__(self, images: Images) -> None:
        self._feeds = iter([{"image": images[i : i + 16]} for i in range(0, len(images), 16)])

    def get_next(self) -> dict[str, Any] | None:
        return next(self._feeds, None)


@pytest.fixture(scope="module")
def float_path() -> Path:
    (path, _), _ = patient()
    return path


def images(name: str) -> Images:
    (path, _), _ = patient()
    raw = np.load(path.parent / f"{name}.npz")["image"].astype(np.float32)
    return (raw / 255 - 0.286) / 0.353


@pytest.fixture(scope="module")
def representative() -> Images:
    return images("representative_healthy")[:64]


@pytest.fixture(scope="module")
def validation() -> Images:
    return images("validation")[:SAMPLES]


@pytest.fixture(scope="module")
def base() -> RuleBase:
    return quantmedic.load_rulebase()


def quantized(source: Path, target: Path, calibration: Images, **options: Any) -> Path:
    quantize_static(own(source, target.parent), target, Reader(calibration), **options)
    return target


def measured(source: Path, target: Path, data: Images) -> tuple[Case, Simulation]:
    case = quantmedic.collect(source, target, validation=data)
    models = open_models(source, target)
    dataset = open_dataset(data, models.input_specs, role="validation")
    return case, Simulation(Measurement(models, {"validation": dataset}, Options()), "validation", case)


def deployed_sqnr_db(source: Path, target: Path, data: Images) -> float:
    """Output SQNR by onnxruntime alone."""
    x, y = (session(path).run(None, {"image": data})[0].astype(np.float64) for path in (source, target))
    return float(10 * np.log10((x**2).sum() / ((y - x) ** 2).sum()))


def foretold_sqnr_db(simulation: Simulation, run: RunRecord) -> float:
    return output_sqnr_db(np.array(simulation.record.power), run)


SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "unsigned per channel": {"activation_type": QuantType.QUInt8, "per_channel": True},
    "operators": {"quant_format": QuantFormat.QOperator, "activation_type": QuantType.QUInt8},
    "convolutions only": {"op_types_to_quantize": ["Conv"]},
    "clipping": {"calibrate_method": CalibrationMethod.Percentile, "extra_options": {"CalibPercentile": 98.0}},
    "sixteen bit": {"activation_type": QuantType.QUInt16},
    "four bit weights": {"weight_type": QuantType.QInt4, "activation_type": QuantType.QUInt8},
}


@pytest.mark.parametrize("options", others_nightly(SETTINGS.values()), ids=list(SETTINGS))
def test_simulated_network_is_as_noisy_as_the_deployed_one(
    float_path: Path, representative: Images, validation: Images, tmp_path: Path, options: Mapping[str, Any]
) -> None:
    target = quantized(float_path, tmp_path / "int8.onnx", representative, **options)
    _, simulation = measured(float_path, target, validation)
    assert len(simulation.record.power) == SAMPLES
    assert abs(simulation_gap_db(simulation.record)) < 0.5
    real = deployed_sqnr_db(float_path, target, validation)
    assert foretold_sqnr_db(simulation, simulation.record.deployed) == pytest.approx(real, abs=0.01)


def test_a_change_that_changes_nothing_gives_the_same_noise_and_floats_give_none(
    float_path: Path, representative: Images, validation: Images, tmp_path: Path, base: RuleBase
) -> None:
    target = quantized(float_path, tmp_path / "int8.onnx", representative)
    case, simulation = measured(float_path, target, validation)
    facts = derive(case, base)
    all_floats = Targets(tuple(range(len(facts.tensors))), tuple(range(len(facts.layers))))
    assert sum(simulation.run(change_of("float", case, facts, all_floats)).noise) < 1e-9
    known = simulation.record.simulated.noise
    found = simulation.run(Change()).noise
    assert 4 <= len(found) <= len(known)  # What recovers nothing ends with the first samples.
    assert found == known[: len(found)]
    every = Change(dict.fromkeys(simulation.network.tensors), dict.fromkeys(simulation.network.weighted, "float"))
    assert len(simulation.run(every).noise) == len(known)


@pytest.mark.parametrize(
    ("remedy", "options"),
    others_nightly(
        [
            ("per-channel-weights", {"weight_type": QuantType.QInt4, "per_channel": True}),
            ("eight-bit-weights", {"per_channel": True}),
        ]
    ),
)
def test_other_weights_recover_what_was_foretold(
    float_path: Path,
    representative: Images,
    validation: Images,
    tmp_path: Path,
    base: RuleBase,
    remedy: str,
    options: Mapping[str, Any],
) -> None:
    before = quantized(float_path, tmp_path / "before.onnx", representative, weight_type=QuantType.QInt4)
    after = quantized(float_path, tmp_path / "after.onnx", representative, **options)
    case, simulation = measured(float_path, before, validation)
    facts = derive(case, base)
    every = Targets(operators=tuple(range(len(facts.layers))))
    run = simulation.run(change_of(remedy, case, facts, every))
    real = deployed_sqnr_db(float_path, after, validation)
    assert real > deployed_sqnr_db(float_path, before, validation) + 3
    assert foretold_sqnr_db(simulation, run) == pytest.approx(real, abs=1.0)


@pytest.mark.parametrize("spoiled", others_nightly(["too narrow", "too wide"]))
def test_recalibration_recovers_what_was_foretold(
    float_path: Path, validation: Images, tmp_path: Path, base: RuleBase, spoiled: str
) -> None:
    wrong = validation * (0.25 if spoiled == "too narrow" else 12.0)
    before = quantized(float_path, tmp_path / "before.onnx", wrong)
    after = quantized(float_path, tmp_path / "after.onnx", validation)
    case, simulation = measured(float_path, before, validation)
    run = simulation.run(change_of("recalibrate", case, derive(case, base), Targets()))
    real = deployed_sqnr_db(float_path, after, validation)
    assert real > deployed_sqnr_db(float_path, before, validation) + 6
    assert foretold_sqnr_db(simulation, run) == pytest.approx(real, abs=1.0)


def test_noise_in_few_small_columns_is_not_hidden_by_large_ones(tmp_path: Path) -> None:
    """Boxes up to 640 and scores up to 1 in one tensor: the whole has 50 dB, the scores have none."""
    from onnx import TensorProto, helper

    rng = np.random.default_rng(5)
    weights = {"boxes.weight": rng.uniform(0, 80, (8, 4)), "scores.weight": rng.uniform(-0.02, 0.02, (8, 3))}
    nodes = [
        helper.make_node("MatMul", ["x", "boxes.weight"], ["boxes"], name="boxes"),
        helper.make_node("MatMul", ["x", "scores.weight"], ["scores"], name="scores"),
        helper.make_node("Concat", ["boxes", "scores"], ["y"], name="join", axis=1),
    ]
    graph = helper.make_graph(
        nodes,
        "detector",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 7])],
        [numpy_helper.from_array(w.astype(np.float32), name) for name, w in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "float.onnx")
    data = rng.uniform(0, 1, (64, 8)).astype(np.float32)

    class Rows(Reader):
        def __init__(self) -> None:
            self._feeds = iter([{"x": data}])

    quantize_static(tmp_path / "float.onnx", tmp_path / "int8.onnx", Rows())
    case, simulation = measured(tmp_path / "float.onnx", tmp_path / "int8.onnx", data)
    assert simulation.record.columns == 3
    assert foretold_sqnr_db(simulation, simulation.record.deployed) < 10
    facts = derive(case, quantmedic.load_rulebase())
    joint = next(i for i, layer in enumerate(facts.layers) if layer.op_type == "Concat")
    separate = change_of("separate-operands", case, facts, Targets(case.record.operators[joint].outputs, (joint,)))
    assert foretold_sqnr_db(simulation, simulation.run(separate)) > 25


def test_rounded_weights_are_those_of_onnxruntime() -> None:
    weight = np.random.default_rng(7).standard_normal((6, 5, 3)).astype(np.float32) * np.float32(3)
    for kind, bits in ((QuantType.QInt4, 4), (QuantType.QInt8, 8)):
        for axis in (None, 0, 1):
            found = round_to_grid(weight, bits, axis)
            parts = [weight] if axis is None else np.split(weight, weight.shape[axis], axis)
            results = [found] if axis is None else np.split(found, weight.shape[axis], axis)
            for part, result in zip(parts, results, strict=True):
                zero, scale, codes = quantize_data(part.ravel(), kind.tensor_type, symmetric=True)
                values = (codes.astype(np.float32) - zero.astype(np.float32)) * scale
                assert np.allclose(result.ravel(), values, atol=1e-5), (kind, axis)


def test_best_rounded_weights_clip_a_tail_and_spare_an_even_range() -> None:
    rng = np.random.default_rng(9)
    even = rng.uniform(-1, 1, (8, 64)).astype(np.float32)
    tailed = rng.laplace(0, 0.1, (8, 4096)).astype(np.float32)
    assert np.array_equal(round_to_best_grid(even, 8, None), round_to_grid(even, 8, None))
    for axis in (None, 0):
        clipped, plain = round_to_best_grid(tailed, 4, axis), round_to_grid(tailed, 4, axis)
        assert ((clipped - tailed) ** 2).sum() < 0.5 * ((plain - tailed) ** 2).sum()

"""Edited models against simulated ones, against onnxruntime's own quantizer, and against the runtime's kernels."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders.tiers import others_nightly
from builders.trial_bench import Array, Bench, agree, quantized
from onnx import numpy_helper
from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType

from quantmedic.demo import patient
from quantmedic.engine.errors import ModelError
from quantmedic.engine.formulas.change import Change, Targets
from quantmedic.engine.rules.remedy_kinds import SIMULATIONS
from quantmedic.trials.from_onnx.onnx_remedies import edit, left_integer

pytestmark = pytest.mark.thorough

KEEPING = ("recalibrate", "best-range", "per-channel-weights", "best-weight-range", "eight-bit-weights")


def images(name: str) -> Array:
    (path, _), _ = patient()
    return (np.load(path.parent / f"{name}.npz")["image"].astype(np.float32) / 255 - 0.286) / 0.353


@pytest.fixture(scope="module")
def demo() -> Bench:
    (float_path, quantized_path), _ = patient()
    return Bench(float_path, quantized_path, images("validation")[:96])


@pytest.mark.nightly
def test_edited_demo_is_as_noisy_as_foretold(demo: Bench) -> None:
    stored = demo.models.quantized.model.SerializeToString()
    every, half = demo.every, Targets(demo.every.tensors[::2], demo.every.operators[1::2])
    wrong = {}
    for kind in SIMULATIONS:
        for targets in (every, half) if kind in KINDS else (every,):
            change = demo.change(kind, targets)
            if not change or change.learned:  # there is nothing to change, or to foretell
                continue
            if not agree(real := demo.edited_db(change), foretold := demo.simulated_db(change)):
                wrong[kind, len(targets.tensors)] = (real, foretold)
    both = demo.change("recalibrate").join(demo.change("per-channel-weights"))
    assert agree(demo.edited_db(both), demo.simulated_db(both)), "remedies on top of each other are one change"
    for change in (both, *map(demo.change, KEEPING)):
        assert left_integer(demo.models, demo.case, demo.edit(change).model, change) == ()
    assert not wrong
    assert demo.models.quantized.model.SerializeToString() == stored, "the model given is never touched"


SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "symmetric": {"extra_options": {"ActivationSymmetric": True}},
    "signed operators per channel": {"quant_format": QuantFormat.QOperator, "per_channel": True},
    "clipping": {"calibrate_method": CalibrationMethod.Percentile, "extra_options": {"CalibPercentile": 98.0}},
    "sixteen bit": {"activation_type": QuantType.QUInt16},
    "four bit weights": {"weight_type": QuantType.QInt4, "activation_type": QuantType.QUInt8},
}
KINDS = ("recalibrate", "sixteen-bit", "float", "float-weights", "float-tensors", "per-channel-weights")


@pytest.mark.parametrize("options", others_nightly(SETTINGS.values()), ids=list(SETTINGS))
def test_edited_quantizations_are_as_noisy_as_foretold(tmp_path: Path, options: Mapping[str, Any]) -> None:
    (float_path, _), _ = patient()
    wrong = images("representative_healthy")[:32] * (1 if "calibrate_method" in options else 3)
    target = quantized(float_path, tmp_path / "int8.onnx", "image", wrong, **options)
    bench = Bench(float_path, target, images("validation")[:64])
    half = Targets(bench.every.tensors[::2], bench.every.operators[1::2])
    for kind in KINDS:
        for targets in (bench.every, half) if kind in ("recalibrate", "float") else (bench.every,):
            change = bench.change(kind, targets)
            assert agree(bench.edited_db(change), bench.simulated_db(change)), (kind, targets)
    for kind in KEEPING:
        change = bench.change(kind)
        assert left_integer(bench.models, bench.case, bench.edit(change).model, change) == ()


@pytest.mark.nightly
def test_other_calibration_gives_the_model_that_the_quantizer_would_make(tmp_path: Path) -> None:
    (float_path, _), _ = patient()
    samples = images("representative_healthy")[:32]
    for options in ({}, {"per_channel": True, "activation_type": QuantType.QUInt8}):
        before = quantized(float_path, tmp_path / "before.onnx", "image", samples * 3, **options)
        after = quantized(float_path, tmp_path / "after.onnx", "image", samples, **options)
        bench = Bench(float_path, before, images("validation")[:32])
        edited = bench.edit(Change(bench.grids_of(after)))
        wanted = onnx.load(after)
        step = max(float(numpy_helper.to_array(t).max()) for t in wanted.graph.initializer if t.name == "logits_scale")
        for found, theirs in zip(bench.outputs(edited.model), bench.outputs(wanted), strict=True):
            assert np.abs(found[0] - theirs[0]).max() <= 1.01 * step
            assert np.mean(found[0] == theirs[0]) > 0.98


def test_change_of_nothing_gives_the_same_model(demo: Bench) -> None:
    model = edit(demo.models, demo.case, Change()).model
    assert model is not demo.models.quantized.model
    assert model.SerializeToString() == demo.models.quantized.model.SerializeToString()


def test_outputs_keep_their_names(demo: Bench) -> None:
    names = [value.name for value in demo.models.quantized.model.graph.output]
    model = demo.edit(demo.change("float")).model
    assert [value.name for value in model.graph.output] == names
    assert {node.op_type for node in model.graph.node}.isdisjoint({"QuantizeLinear", "DequantizeLinear", "Identity"})


def test_what_cannot_be_carried_out_at_all_is_an_error(demo: Bench) -> None:
    flat = next(k for k, op in enumerate(demo.case.record.operators) if op.op_type == "Flatten")
    with pytest.raises(ModelError, match="cannot be carried out"):
        edit(demo.models, demo.case, Change(weights={flat: "float"}))
    first = demo.case.record.operators[0].index
    both = edit(demo.models, demo.case, Change(weights={flat: "float", first: "float"}))
    assert len(both.unedited) == 1
    assert demo.case.record.operators[flat].name in both.unedited[0]

"""Stored weights are held against what rounding to as many bits leaves, and are named by what they fall short of it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import checkpoints as made

import quantmedic
from quantmedic.collectors.from_checkpoint.layers.layer_facts import Steps, expected_rounding, round_to_nearest
from quantmedic.engine.case.facts import WeightFacts
from quantmedic.engine.contract.diagnosis import Diagnosis

FLOATS = made.language_model(layers=2)
PATIENT = "model.layers.1.mlp.up_proj"
WEIGHTS = np.random.default_rng(0).normal(size=(64, 128)).astype(np.float32)


def steps(bits: int, size: int = 32, *, is_symmetric: bool = True) -> Steps:
    return Steps(bits, np.arange(0, 129, size), is_symmetric)


def test_rounding_is_that_of_plain_numpy() -> None:
    groups = WEIGHTS.reshape(64, 4, 32).astype(float)
    for bits, most in (2, 0.9), (3, 0.98), (4, 1.0), (8, 1.0):
        found = round_to_nearest(WEIGHTS, steps(bits))
        step = np.abs(groups).max(axis=2, keepdims=True) / (2 ** (bits - 1) - 1)
        np.testing.assert_allclose(found, (np.rint(groups / step) * step).reshape(64, 128), rtol=1e-6, atol=1e-7)
        assert expected_rounding(WEIGHTS, found, steps(bits))["grid_similarity"] < most
    one_scale = round_to_nearest(WEIGHTS, replace(steps(4), span=(float(WEIGHTS.min()), float(WEIGHTS.max()))))
    assert len(np.unique(one_scale)) <= 16
    shifted = WEIGHTS + 4
    both_ends, symmetric = (round_to_nearest(shifted, steps(4, is_symmetric=own)) for own in (False, True))
    assert np.abs(both_ends - shifted).max() < np.abs(symmetric - shifted).max()


def test_what_is_stored_is_held_against_it() -> None:
    same = expected_rounding(WEIGHTS, round_to_nearest(WEIGHTS, steps(4)), steps(4))
    assert same["grid_gain_db"] == 0 and same["lost_inputs"] == 0
    worse = expected_rounding(WEIGHTS, np.clip(WEIGHTS, -0.5, 0.5), steps(4))
    assert (worse["grid_gain_db"] or 0.0) > 6
    small = np.concatenate([WEIGHTS[:, :96], WEIGHTS[:, 96:] / 100], axis=1)
    lost = expected_rounding(small, round_to_nearest(small, steps(4, 128)), steps(4, 128))
    assert lost["lost_inputs"] == 0.25
    assert expected_rounding(WEIGHTS[:8], WEIGHTS[:8], steps(4))["lost_inputs"] is None


def compared(folder: Path, damage: Any = None, bits: int = 4, size: int = made.GROUP) -> tuple[Diagnosis, WeightFacts]:
    """The float model against one in GPTQ, whose patient has other bits, groups or codes."""
    parts = made.quantize(made.from_bfloat16(FLOATS[f"{PATIENT}.weight"][1]), bits, size, symmetric=True)
    tensors = made.quantized_model(FLOATS, "gptq")
    tensors |= made.gptq(PATIENT, *(damage(*parts) if damage else parts), bits)
    case = made.collect(folder, FLOATS, tensors, made.configuration("gptq"))
    return quantmedic.judge(case), made.facts_of(case)[PATIENT]


@pytest.mark.thorough
def test_two_bits_are_no_other_weights(tmp_path: Path) -> None:
    """One scale for a row of 256: what rounding leaves is less like them than 4 bits are."""
    diagnosis, own = compared(tmp_path, bits=2, size=made.HIDDEN)
    assert (own.similarity or 1.0) < 0.9 and (own.similarity_kept or 0.0) > 0.95
    assert made.causes_of(diagnosis) == ["too-few-weight-bits"]


@pytest.mark.thorough
def test_codes_that_are_cut(tmp_path: Path) -> None:
    def cut(codes: Any, scale: Any, zero: Any) -> Any:
        x = made.from_bfloat16(FLOATS[f"{PATIENT}.weight"][1])
        floor = np.floor(x / np.repeat(scale, made.GROUP, axis=1)) + np.repeat(zero, made.GROUP, axis=1)
        return np.clip(floor, 0, 15).astype(np.uint8), scale, zero

    diagnosis, own = compared(tmp_path, cut)
    assert own.rounding_mean_steps == pytest.approx(-0.5, abs=0.05)
    assert made.causes_of(diagnosis) == ["weight-induced-bias-shift"]


@pytest.mark.thorough
def test_the_scale_of_one_group(tmp_path: Path) -> None:
    def damage(codes: Any, scale: Any, zero: Any) -> Any:
        scale = scale.copy()
        scale[5, 2] *= 8
        return codes, scale, zero

    diagnosis, own = compared(tmp_path, damage)
    assert (own.misscaled_groups, own.misscaled_group) == (1, "5 / 2") and own.group_gain == pytest.approx(8, rel=0.05)
    assert [(cause.cause, cause.rules) for cause in diagnosis.causes] == [("wrong-weight-scale", ("W039",))]


@pytest.mark.thorough
def test_a_layer_of_which_nothing_is_left(tmp_path: Path) -> None:
    """As GPTQ leaves an expert whose inputs it never saw."""
    diagnosis, own = compared(tmp_path, lambda codes, scale, zero: (np.full_like(codes, 8), scale, zero))
    assert own.dead_share == 1.0
    assert made.causes_of(diagnosis) == ["dead-weight-groups"]


@pytest.mark.thorough
def test_signs_of_bytes_are_another_reading(tmp_path: Path) -> None:
    """Codes from 0 to 255 where signed ones are read: all layers are unlike, and it is no other model."""
    tensors = dict(FLOATS)
    for name in made.linear_names(FLOATS):
        values = made.from_bfloat16(tensors.pop(f"{name}.weight")[1])
        scale = np.abs(values).max(axis=1, keepdims=True) / 127
        codes = np.rint(values / scale).astype(np.int8) ^ np.int8(-128)
        tensors |= {f"{name}.weight": ("I8", codes), f"{name}.weight_scale": ("F32", scale.astype(np.float32))}
    diagnosis = made.compare(tmp_path, FLOATS, tensors)
    assert made.causes_of(diagnosis) == ["misread-codes"]
    assert "highest bit" in diagnosis.causes[0].message


def exchanged(folder: Path, floats: made.Tensors, ends: tuple[str, str], part: str) -> str:
    """What is said of a model in which layers of two kinds have changed places."""
    names = {name: name.replace(*ends) if ends[0] in name else name.replace(*ends[::-1]) for name in floats}
    mixed = {name: floats[names[name]] if part in name and "_proj" in name else floats[name] for name in floats}
    diagnosis = made.compare(folder, floats, made.quantized_model(mixed, "gptq"), made.configuration("gptq"))
    assert made.causes_of(diagnosis) == ["exchanged-weights"]
    return diagnosis.causes[0].message


@pytest.mark.nightly
def test_exchanged_layers_are_told_from_blocks_and_copies(tmp_path: Path) -> None:
    for ends in ("gate_proj", "up_proj"), ("layers.0.", "layers.1."):
        said = exchanged(tmp_path, FLOATS, ends, "mlp")
        # of blocks, the rest of both stayed where it was
        assert "mlp." in said and "which changed places with it" in said
    said = exchanged(tmp_path, made.language_model(6), ("layers.3.", "layers.4."), "_proj")
    assert "as all of model.layers.3 and model.layers.4 changed places" in said
    copied = {**FLOATS, "model.layers.0.mlp.up_proj.weight": FLOATS["model.layers.1.mlp.up_proj.weight"]}
    tensors = made.quantized_model(copied, "gptq")
    diagnosis = made.compare(tmp_path, FLOATS, tensors, made.configuration("gptq"))
    assert made.causes_of(diagnosis) == ["exchanged-weights"]
    assert "which does not hold those of this one in turn" in diagnosis.causes[0].message

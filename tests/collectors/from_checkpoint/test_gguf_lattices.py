"""Checkpoints of two bits by lattices: sound ones are clean, and a layer with other scales is named."""

from pathlib import Path

import pytest
from builders import checkpoints as made
from builders import gguf_files as llama

import quantmedic
from quantmedic.collectors.from_checkpoint.gguf.blocks import lattice
from quantmedic.engine.contract.diagnosis import Diagnosis

pytestmark = pytest.mark.thorough

PATIENT = "model.layers.0.mlp.up_proj"


def judged(folder: Path, gain: float = 1.0) -> Diagnosis:
    model = made.language_model(1)
    floats = {name: tensor for name, tensor in model.items() if "down_proj" not in name}  # not in blocks of 256
    blocks = llama.converted(floats, lambda _: "F16")
    for name in made.linear_names(floats):
        own = llama.llama_name(f"{name}.weight")
        values = made.from_bfloat16(floats[f"{name}.weight"][1])
        if "q_proj" in name or "k_proj" in name:
            values = llama.permute(values, llama.HEADS if "q_proj" in name else llama.KV_HEADS)
        values = values * (gain if name == PATIENT else 1.0)
        blocks[own] = ("IQ2_S", values.shape, llama.iq2_s(values, lattice("IQ2_S")))
    before = made.write_folder(folder / "float", floats)
    return quantmedic.diagnose(before, llama.written(folder / "x.gguf", blocks), weights_only=True)


def test_sound_ones_are_clean(tmp_path: Path) -> None:
    diagnosis = judged(tmp_path)
    assert (diagnosis.verdict, diagnosis.causes) == ("healthy", ())
    assert all((row.weight_sqnr_db or 0.0) > 10 for row in diagnosis.layers if row.weight_bits)


def test_scales_that_are_too_large_are_named(tmp_path: Path) -> None:
    assert made.named(judged(tmp_path, gain=4.0)) == {("wrong-weight-scale", PATIENT)}

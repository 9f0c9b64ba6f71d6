"""Scales that a checkpoint stores without a configuration: something is quantized, and that is not kept quiet."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import checkpoints as made

import quantmedic
from quantmedic.collectors.from_checkpoint.declared.declared_facts import running_grids
from quantmedic.collectors.from_checkpoint.declared.stored_scales import StoredScales, stored_scales
from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.reports.terminal.console import render_console

ONE = ("F32", np.array([0.01], np.float32))


def test_scales_are_told_by_their_names(subtests: pytest.Subtests) -> None:
    for names, inputs, caches in (
        (["h.10.fc.input_scale", "h.9.fc.input_scale"], ("h.9.fc.input_scale", "h.10.fc.input_scale"), ()),
        (["h.0.fc.input_global_scale", "h.0.fc.weight_global_scale"], ("h.0.fc.input_global_scale",), ()),
        (["h.0.attn.k_scale", "h.0.v_proj.output_scale"], (), ("h.0.attn.k_scale",)),
        (["h.0.v_proj.v_scale", "h.0.k_proj.k_scale"], (), ("h.0.k_proj.k_scale", "h.0.v_proj.v_scale")),
        (["h.0.fc.weight", "h.0.fc.weight_scale", "h.0.fc.my_input_scale", "input_scale"], (), ()),
    ):
        with subtests.test(names=names):
            found = stored_scales(names, ())
            assert (found.inputs, found.caches[: len(caches)]) == (inputs, caches)
            assert stored_scales(names, names) == StoredScales(), "what the float network calls so is a parameter"


def test_what_no_configuration_says_is_said_so() -> None:
    stored = StoredScales(("fc.input_scale",), ("attn.k_scale",))
    assert (running_grids({}, stored) or "").count("no configuration says of which type") == 2
    said = {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}
    assert running_grids(said, stored) == running_grids(said, StoredScales())


def compared(folder: Path, more: made.Tensors, *, has_config: bool) -> Diagnosis:
    floats = made.language_model(1)
    before = made.write_folder(folder / "float", floats)
    after = made.write_folder(folder / "quantized", {**made.quantized_model(floats, "compressed"), **more})
    if not has_config:
        (after / "config.json").unlink()
    return quantmedic.diagnose(before, after, weights_only=True)


@pytest.mark.thorough
def test_a_folder_without_a_configuration_is_told_and_what_was_not_judged(tmp_path: Path) -> None:
    for has_config in (True, False):
        found = compared(tmp_path, {}, has_config=has_config)
        assert any("has no config.json" in notice for notice in found.warnings) is not has_config
        assert found.model.checkpoint.running_grids is None
    more: dict[str, Any] = {"model.layers.0.mlp.down_proj.input_scale": ONE}
    first = render_console(compared(tmp_path, more, has_config=False)).splitlines()[0]
    assert "only weights were judged, not inputs of layers (scales are stored" in first

"""The simulated network, for models of every opset that the quantizer of onnxruntime takes."""

from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from builders.onnx_models import conv_net, images, qdq, save_pair

import quantmedic
from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.from_onnx.onnx_models import open_models
from quantmedic.collectors.from_onnx.settable import grid_row
from quantmedic.collectors.from_onnx.simulated import MIN_OPSET, OnnxSimulated
from quantmedic.engine.errors import ModelError
from quantmedic.engine.formulas.change import Change, WeightForm
from quantmedic.engine.formulas.simulate import Grid

X = images(20)
#: Ranges come from smaller inputs: values are cut off at both ends.
NARROW = {"image": 0.4 * X}


def simulated(folder: Path, opset: int, ir_version: int) -> OnnxSimulated:
    """The network of a float model of an old opset, quantized at the same opset or the first that has quantizers."""
    network = conv_net(opset)
    network.ir_version = ir_version
    deployed = qdq(conv_net(max(opset, 10)), NARROW)
    paths = save_pair(folder, network, deployed)
    case = quantmedic.collect(*paths, validation=X, threads=1)
    return OnnxSimulated(open_models(*paths), case, 1)


@pytest.mark.thorough
def test_old_opsets_are_simulated_as_new_ones_are(tmp_path: Path, subtests: pytest.Subtests) -> None:
    batch = Batch({"image": X})
    new = simulated(tmp_path, 17, 8)
    (floats,), (changed,) = new.outputs(batch, None), new.outputs(batch, Change())
    assert np.abs(changed - floats).max() > 0.01
    for opset, ir_version in ((9, 3), (11, 6), (13, 7)):
        with subtests.test(f"opset {opset}"):
            (tmp_path / str(opset)).mkdir()
            old = simulated(tmp_path / str(opset), opset, ir_version)
            every_off = Change(dict.fromkeys(old.tensors), dict.fromkeys(old.weighted, "float"), old.weighted)
            assert old.tensors == new.tensors and len(old.tensors) > 3
            for change, expected in ((None, floats), (every_off, floats), (Change(), changed)):
                np.testing.assert_allclose(old.outputs(batch, change)[0], expected, rtol=1e-5, atol=1e-6)


def test_an_opset_without_what_a_quantizer_is_made_of_is_refused(tmp_path: Path) -> None:
    network = conv_net(13)
    network.opset_import[0].version = MIN_OPSET - 1
    paths = save_pair(tmp_path, network, qdq(conv_net(), NARROW))
    case = quantmedic.collect(*paths, validation=X, threads=1)
    with pytest.raises(ModelError, match="opset 8 is too old"):
        OnnxSimulated(open_models(*paths), case, 1)


def test_grids_of_eight_bits_and_others_round_and_clip_alike(tmp_path: Path) -> None:
    """One more step at an end makes a grid that the kernel for eight bits cannot hold: what lies inside stays."""
    network = simulated(tmp_path, 17, 8)
    batch = Batch({"image": X})
    whole, cut = Grid(-40 * 0.25, 215 * 0.25, 0.25), Grid(-0.5, -0.5 + 255 / 256, 1 / 256)
    for grid, end in ((whole, whole.step), (cut, -cut.step / 64)):
        beside = Grid(grid.low, grid.high + end, grid.step)
        assert grid_row(grid).is_coded and not grid_row(beside).is_coded
        for i in sorted(network.tensors):
            alone = dict.fromkeys(network.tensors)
            coded, general = (network.outputs(batch, Change({**alone, i: g}))[0] for g in (grid, beside))
            np.testing.assert_allclose(coded, general, atol=1e-3)


def test_what_codes_of_eight_bits_cannot_hold_is_computed_otherwise() -> None:
    for low, high in ((-0.5, 254.0), (0.0, 15.0), (1.0, 256.0), (-300.0, -45.0), (-1e38, 255.0)):
        assert grid_row(Grid(low, high, 1.0)) == (low, high, 1.0, 0, False, True)


@pytest.mark.thorough
def test_weights_that_are_constants_give_what_weights_that_are_inputs_give(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast = simulated(tmp_path, 17, 8)
    monkeypatch.setattr("quantmedic.collectors.from_onnx.simulated.CONSTANT_BYTES", 0)
    (tmp_path / "inputs").mkdir()
    plain = simulated(tmp_path / "inputs", 17, 8)
    batch, layers = Batch({"image": X}), sorted(fast.weighted)
    changes = [
        *(Change(weights=dict.fromkeys(layers, form)) for form in get_args(WeightForm)),
        *(Change(weights={k: "float"}) for k in layers),
        *(Change(biases=frozenset({k})) for k in layers),
        Change(),
        None,
    ]
    for change in changes:
        np.testing.assert_allclose(fast.outputs(batch, change)[0], plain.outputs(batch, change)[0], atol=2e-5)

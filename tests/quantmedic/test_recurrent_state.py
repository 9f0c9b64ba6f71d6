"""A voice detector as published ones are: audio, the state of its layers, which has no sample axis, and a number."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from builders.onnx_models import Net, conv_net, qdq, random, save_pair
from builders.onnx_models import images as pictures
from builders.tiers import others_nightly
from onnx import TensorProto
from onnxruntime.quantization import CalibrationDataReader, quantize_static

import quantmedic
from quantmedic.engine.contract.diagnosis import Diagnosis

pytestmark = pytest.mark.thorough

HIDDEN, AUDIO, RATE = 16, 64, 16000


def detector(batch: int | str, middle: int | str) -> onnx.ModelProto:
    """Two recurrent layers; ``middle`` is the axis of the state that the samples lie along."""
    net = Net()
    net.input("audio", [batch, AUDIO])
    net.input("state", [2, middle, HIDDEN])
    net.input("rate", [], TensorProto.INT64)
    for name, value in (("usual", np.float32(RATE)), ("first", np.int64(0)), ("second", np.int64(1))):
        net.const(name, np.array(value))
    net.const("layers", np.array([0], np.int64))
    gain = net.add("Div", net.add("Cast", "rate", out="cast", to=TensorProto.FLOAT), "usual", out="gain")
    frames = net.const("frames.weight", random(1, AUDIO, HIDDEN, scale=0.1))
    x = net.add("Relu", net.add("MatMul", "audio", frames, out="frames"), out="relu")
    x = net.add("Mul", x, gain, out="heard")
    for layer, place in enumerate(("first", "second")):
        before = net.add("Gather", "state", place, out=f"before{layer}", axis=0)
        own = net.const(f"own{layer}.weight", random(2 + layer, HIDDEN, HIDDEN, scale=0.3))
        past = net.const(f"past{layer}.weight", random(4 + layer, HIDDEN, HIDDEN, scale=0.3))
        both = net.add("MatMul", x, own, out=f"own{layer}"), net.add("MatMul", before, past, out=f"past{layer}")
        x = net.add("Tanh", net.add("Add", *both, out=f"sum{layer}"), out=f"hidden{layer}")
        net.add("Unsqueeze", x, "layers", out=f"kept{layer}")
    net.output(net.add("MatMul", x, net.const("head", random(7, HIDDEN, 1, scale=0.3)), out="speech"))
    net.output(net.add("Concat", "kept0", "kept1", out="next", axis=0))
    return net.model()


def data(samples: int, seed: int, loudness: float = 1.0) -> dict[str, np.ndarray]:
    audio = random(seed, samples, AUDIO, scale=loudness)
    state = np.tanh(random(seed + 1, samples, 2, 1, HIDDEN))
    return {"audio": audio, "state": state, "rate": np.array(RATE, np.int64)}


class Reader(CalibrationDataReader):
    def __init__(self, arrays: dict[str, np.ndarray]) -> None:
        self._feeds = feeds(arrays)

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._feeds, None)


def feeds(arrays: dict[str, np.ndarray]) -> Iterator[dict[str, np.ndarray]]:
    """One sample after the other, as the model takes it."""
    for i, audio in enumerate(arrays["audio"]):
        yield {"audio": audio[np.newaxis], "state": arrays["state"][i], "rate": arrays["rate"]}


def patient(folder: Path, batch: int | str, middle: int | str, calibration: dict[str, np.ndarray]) -> tuple[Path, Path]:
    paths = folder / "float.onnx", folder / "int8.onnx"
    onnx.save(detector(batch, middle), str(paths[0]))
    quantize_static(paths[0], paths[1], Reader(calibration))
    return paths


def loudness_is_wrong(found: Diagnosis) -> bool:
    return found.verdict == "degraded" and found.causes[0].cause == "preprocessing-mismatch"


@pytest.mark.parametrize(("batch", "middle"), others_nightly([(1, 1), ("n", "n"), ("n", 1)]))
def test_a_recurrent_network_is_diagnosed(tmp_path: Path, batch: int | str, middle: int | str) -> None:
    quiet, loud = data(48, 1, 0.25), data(64, 9)
    pair = patient(tmp_path, batch, middle, quiet)
    case = quantmedic.collect(*pair, representative=quiet, validation=loud, prove=False)
    assert not case.record.notices and case.record.simulation is not None and case.record.loss_budget is not None
    found = quantmedic.judge(case)
    assert loudness_is_wrong(found)
    assert (found.causes[0].predicted_gain_db or 0.0) > 6
    if batch == 1:
        # As a function that yields what the model takes, sample by sample, it is the same data set.
        same = {"representative": lambda: feeds(quiet), "validation": lambda: feeds(loud)}
        again = quantmedic.collect(*pair, **same, prove=False, attribution=False)
        assert quantmedic.judge(again).outputs == found.outputs


@pytest.mark.nightly
def test_its_prescription_is_proven(tmp_path: Path) -> None:
    quiet, loud = data(48, 1, 0.25), data(96, 9)
    pair = patient(tmp_path, 1, 1, quiet)
    found = quantmedic.diagnose(*pair, representative=quiet, validation=loud, prove=600)
    assert found.prescription is not None and found.prescription.executed is not None
    assert found.prescription.executed.trial.proven


@pytest.mark.nightly
def test_a_healthy_one_is_healthy(tmp_path: Path) -> None:
    pair = patient(tmp_path, 1, 1, data(64, 1))
    found = quantmedic.diagnose(*pair, representative=data(64, 1), validation=data(64, 9))
    assert found.verdict == "healthy"


@pytest.mark.nightly
def test_a_fixed_batch_of_one_is_attributed(tmp_path: Path) -> None:
    images = pictures(48)
    pair = save_pair(tmp_path, conv_net(batch=1), qdq(conv_net(batch=1), {"image": 0.3 * images[:1]}))
    case = quantmedic.collect(*pair, validation=images, prove=False)
    assert not case.record.notices
    assert case.record.loss_budget is not None and case.record.loss_budget.samples > 1

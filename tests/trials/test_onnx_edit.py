"""Edited models against simulated ones, against onnxruntime's own quantizer, and against the runtime's kernels."""

from pathlib import Path

import numpy as np
import onnx
import pytest

import quantmedic
from quantmedic.collectors.datasets import open_dataset
from quantmedic.collectors.onnx_observer import Options
from quantmedic.collectors.onnx_pair import Models, open_models
from quantmedic.collectors.onnx_plan import feed_of
from quantmedic.collectors.onnx_session import make_session, run
from quantmedic.collectors.simulation import Simulation
from quantmedic.demo import patient
from quantmedic.engine.case import Case
from quantmedic.engine.change import CHANGES, Change, Targets
from quantmedic.engine.derive import derive
from quantmedic.engine.prediction import sqnr_db
from quantmedic.trials.onnx_edit import edit, left_integer

#: Above this the output is float but for the order of sums.
FLOAT_DB = 90.0


class Bench:
    """One pair of models, measured and simulated; edits are run on the simulation's own samples."""

    def __init__(self, float_path: Path, quantized_path: Path, data) -> None:
        self.case: Case = quantmedic.collect(float_path, quantized_path, validation=data)
        self.models: Models = open_models(float_path, quantized_path)
        dataset = open_dataset(data, self.models.input_specs, role="validation")
        self.simulation = Simulation(self.models, dataset, "validation", self.case, Options())
        self.facts = derive(self.case, quantmedic.load_rulebase())
        self.power = np.array(self.simulation.record.power)
        self.every = Targets(tuple(range(len(self.facts.tensors))), tuple(range(len(self.facts.layers))))

    def change(self, kind: str, targets: Targets | None = None) -> Change:
        return CHANGES[kind](self.case, self.facts, targets or self.every)

    def outputs(self, model: onnx.ModelProto) -> list[list[np.ndarray]]:
        graph = self.models.quantized
        names = [graph.outputs[j] for _, j in self.models.match.outputs]
        session = make_session(model, graph.path, 1)
        return [
            [np.asarray(array, np.float32) for array in run(session, names, feed_of(batch, graph), graph.path)]
            for batch in self.simulation._batches
        ]

    def edited_db(self, change: Change) -> float:
        edited = edit(self.models, self.case, change)
        onnx.checker.check_model(edited.model)
        return sqnr_db(self.power, self.simulation._compared(self.outputs(edited.model)))

    def simulated_db(self, change: Change) -> float:
        return sqnr_db(self.power, self.simulation.run(change))


@pytest.fixture(scope="module")
def demo() -> Bench:
    (float_path, quantized_path), _ = patient()
    images = np.load(float_path.parent / "validation.npz")["image"].astype(np.float32)[:96]
    return Bench(float_path, quantized_path, (images / 255 - 0.286) / 0.353)


@pytest.mark.parametrize("part", ["all", "every other"])
@pytest.mark.parametrize("kind", CHANGES)
def test_edited_demo_is_as_noisy_as_foretold(demo: Bench, kind: str, part: str) -> None:
    targets = demo.every
    if part == "every other":
        targets = Targets(targets.tensors[::2], targets.operators[1::2])
    change = demo.change(kind, targets)
    if not change:
        pytest.skip("there is nothing to change")
    simulated, edited = demo.simulated_db(change), demo.edited_db(change)
    assert edited == pytest.approx(simulated, abs=1.0) or min(edited, simulated) > FLOAT_DB


@pytest.mark.parametrize("kind", ["recalibrate", "best-range", "per-channel-weights", "best-weight-range"])
def test_integer_kernels_stay(demo: Bench, kind: str) -> None:
    change = demo.change(kind)
    assert left_integer(demo.models, demo.case, edit(demo.models, demo.case, change).model, change) == ()


def test_change_of_nothing_gives_the_same_model(demo: Bench) -> None:
    model = edit(demo.models, demo.case, Change()).model
    assert model is not demo.models.quantized.model
    assert model.SerializeToString() == demo.models.quantized.model.SerializeToString()

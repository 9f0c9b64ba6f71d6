"""Activations with a range for each channel, as NNCF gives them in front of depthwise convolutions."""

import pickle
from pathlib import Path

import numpy as np
import pytest
from builders.openvino_models import CHANNELS, conv_net, images, save_openvino_pair

import quantmedic
from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.from_openvino.openvino_models import OpenVINOModels, open_models
from quantmedic.engine.case.records import Case
from quantmedic.engine.decibels import sqnr_db
from quantmedic.engine.diagnosis.repair import facts_after
from quantmedic.engine.formulas.change import Change, everything
from quantmedic.engine.formulas.derive import derive
from quantmedic.engine.formulas.simulate import ChannelGrid
from quantmedic.engine.rules.remedy_kinds import change_of
from quantmedic.trials.from_openvino.openvino_remedies import edit
from quantmedic.trials.tasks import EditTask

pytestmark = pytest.mark.thorough

X = images(40)
BATCH = Batch({"image": X}, None)
#: Half of the channels of the depthwise convolution's input are cut off at a fiftieth of what they reach.
CUT = np.where(np.arange(CHANNELS) % 2, 3.0, 0.06).reshape(1, CHANNELS, 1, 1)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[OpenVINOModels, Case]:
    folder: Path = tmp_path_factory.mktemp("pair")
    deployed = conv_net(True, ranges=((-4, 4), (np.zeros_like(CUT), CUT), (0, 3), (0, 3)))
    paths = save_openvino_pair(folder, quantized=deployed)
    models = open_models(*paths)
    models.view(dict(enumerate(models.pairs)), BATCH, 1)
    return models, quantmedic.collect(*paths, validation=X, threads=1)


def output_db(models: OpenVINOModels, found: np.ndarray) -> float:
    expected = models.float_runner(1)(BATCH)[0]
    return float(sqnr_db(float((expected**2).sum()), float(((expected - found) ** 2).sum())))


def fitted(case: Case, kind: str) -> Change:
    facts = derive(case, quantmedic.load_rulebase())
    return change_of(kind, case, facts, everything(facts))


def test_the_simulation_cuts_off_what_the_deployed_model_cuts_off(measured):
    models, case = measured
    network = models.simulate(case, 1)
    deployed = models.quantized_runner(1)(BATCH)[0]
    assert output_db(models, deployed) < 10
    simulated = network.outputs(BATCH, Change())[0]
    assert output_db(models, simulated) == pytest.approx(output_db(models, deployed), abs=0.5)
    off = Change(dict.fromkeys(network.tensors), dict.fromkeys(network.weighted, "float"), network.weighted)
    assert output_db(models, network.outputs(BATCH, off)[0]) > 60


def test_new_ranges_are_of_every_channel_in_the_simulation_and_on_a_copy(measured):
    models, case = measured
    for kind in ("recalibrate", "best-range", "percentile-range", "kl-range", "sixteen-bit"):
        change = fitted(case, kind)
        (grid,) = [own for own in change.grids.values() if isinstance(own, ChannelGrid)]
        assert grid.axis == 1 and len(grid.grids) == CHANNELS
        assert len({own.high for own in grid.grids}) == CHANNELS
        edited = edit(models.editable(), case, change)
        assert edited.unedited == ()
        on_copy, simulated = edited.runner(1)(BATCH)[0], models.simulate(case, 1).outputs(BATCH, change)[0]
        # The others clip the rest of the network.
        assert output_db(models, on_copy) > 30 or kind not in ("recalibrate", "sixteen-bit")
        assert output_db(models, on_copy) == pytest.approx(output_db(models, simulated), abs=1.0), kind
    task = EditTask(0, change)
    assert pickle.loads(pickle.dumps(task)) == task, "a cluster gets the same change"
    silent = fitted(case, "without-activation-noise").join(fitted(case, "without-weight-noise"))
    assert output_db(models, edit(models.editable(), case, silent).runner(1)(BATCH)[0]) > 60, "left in float"


def test_the_noise_of_the_channels_has_a_place_in_the_budget(measured):
    """Else it would be noise that no quantizer makes."""
    _, case = measured
    facts = derive(case, quantmedic.load_rulebase())
    assert abs(facts.model.unsimulated_share or 0.0) < 0.05
    budget = case.record.loss_budget
    assert budget is not None
    sources = (source for piece in budget.pieces for source in piece.sources)
    assert "relu" in {case.record.tensors[i].name for source in sources for i in source.tensors}


def test_facts_behind_new_ranges_of_channels_are_unknown_and_not_those_of_before(measured):
    _, case = measured
    base = quantmedic.load_rulebase()
    facts, change = derive(case, base), fitted(case, "recalibrate")
    i = next(i for i, own in change.grids.items() if isinstance(own, ChannelGrid))
    assert facts.tensors[i].data.rounding.sqnr_db is not None
    after = facts_after(case, facts, base, change, None).tensors[i]
    assert after.data.rounding.sqnr_db is None and after.quantizer.bits == 8
    assert after.quantizer.scale != facts.tensors[i].quantizer.scale

"""Two faults at once, each of which hides what repairing the other recovers: the pair is named and proven."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from builders.onnx_models import Net, random
from builders.trial_bench import quantized

import quantmedic
from quantmedic.engine.case.records import Case
from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.engine.diagnosis.prediction import predict
from quantmedic.engine.diagnosis.repair_runs import PREFERENCE_DB, SUFFICIENT_DB
from quantmedic.reports.context import build_context
from quantmedic.reports.page.html import render_index
from quantmedic.reports.terminal.console import render_console
from quantmedic.reports.write import render_markdown

pytestmark = pytest.mark.thorough

CHANNELS = 24


def uneven_net(span: float) -> onnx.ModelProto:
    """Channels whose ranges differ, in weights and values, until a depthwise layer makes them even again."""
    spread = np.geomspace(1, span, CHANNELS).astype(np.float32)[:, None, None, None]
    net = Net()
    x = net.conv(net.input("image", ["n", 3, 12, 12]), random(1, CHANNELS, 3, 3, 3, scale=0.2) * spread, out="stem")
    x = net.add("Relu", x, out="relu")
    x = net.conv(x, abs(random(2, CHANNELS, 1, 3, 3, scale=0.3)) / spread, out="depthwise", group=CHANNELS)
    x = net.conv(net.add("Relu", x, out="relu2"), random(3, 10, CHANNELS, 1, 1, scale=0.2), out="map")
    net.output(x)
    return net.model()


def images(samples: int, seed: int) -> np.ndarray:
    return random(seed, samples, 3, 12, 12)


DATA = {"representative": images(64, 3), "validation": images(96, 4)}


def patient(folder: Path, span: float, *, per_channel: bool) -> tuple[Path, Path]:
    onnx.save(uneven_net(span), str(folder / "float.onnx"))
    made = quantized(
        folder / "float.onnx", folder / "int8.onnx", "image", DATA["representative"], per_channel=per_channel
    )
    return folder / "float.onnx", made


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Weights on one scale, and activations for which 8 bits are too few."""
    return patient(tmp_path_factory.mktemp("both"), 300.0, per_channel=False)


@pytest.fixture(scope="module")
def case(both: tuple[Path, Path]) -> Case:
    return quantmedic.collect(*both, **DATA, prove=False)


@pytest.fixture(scope="module")
def found(case: Case) -> Diagnosis:
    return quantmedic.judge(case)


def test_two_remedies_that_are_needed_together_are_named(case: Case, found: Diagnosis) -> None:
    assert found.pair is not None and case.record.simulation is not None
    weights, activations = found.pair.remedies
    assert (weights.kind, activations.kind) == ("per-channel-weights", "sixteen-bit")
    assert weights.causes == ("channel-range-imbalance",)
    assert not activations.causes  # No rule noticed it: it is what heals all values in the loss budget.
    singles = [predict(case.record.simulation, key) for key in case.record.simulation.runs if "together" not in key]
    most = max(single.gain_db for single in singles if single is not None)
    assert most < SUFFICIENT_DB
    assert found.pair.predicted.gain_db > most + PREFERENCE_DB
    assert found.pair.predicted.gain_db > 20 > weights.predicted.gain_db > activations.predicted.gain_db


def test_the_prescription_holds_both_and_every_report_says_why(found: Diagnosis) -> None:
    assert found.prescription is not None and found.pair is not None
    assert [step.title for step in found.prescription.steps] == [remedy.title for remedy in found.pair.remedies]
    (configuration,) = found.prescription.configurations
    assert "per_channel=True" in configuration.code and "QUInt16" in configuration.code
    context = build_context(found, {})
    texts = [
        " ".join(text.split())
        for text in (render_console(found, verbosity="verbose"), render_markdown(context), render_index(context, found))
    ]
    assert all("No single remedy suffices. Give every weight channel its own scale, and 16" in text for text in texts)
    assert "do this first: Give every weight channel its own scale, and 16-bit activations" in texts[0]


def test_the_pair_is_proven_as_it_is_printed(both: tuple[Path, Path]) -> None:
    proven = quantmedic.diagnose(*both, **DATA, prove=600)
    assert proven.proof is not None and proven.prescription is not None
    assert [row.trial.kind for row in proven.proof.chain] == ["per-channel-weights", "sixteen-bit"]
    executed = proven.prescription.executed
    assert executed is not None and executed.trial.proven and (executed.trial.gain_db or 0.0) > 20
    assert len(executed.choices) == 2


AS_A_WHOLE = {"requantized:everywhere", "quantized-well:everywhere"}


def test_one_remedy_that_suffices_is_not_paired(tmp_path: Path) -> None:
    alone = quantmedic.collect(*patient(tmp_path, 3000.0, per_channel=True), **DATA, prove=False)
    simulation = alone.record.simulation
    assert simulation is not None
    best = max(outcome.gain_db for key in simulation.runs if (outcome := predict(simulation, key)) is not None)
    assert best >= SUFFICIENT_DB
    # No run was spent on it; those that were show what the file costs, and what its settings.
    assert {key for key in simulation.runs if key.endswith(":everywhere")} == AS_A_WHOLE
    judged = quantmedic.judge(alone)
    assert judged.verdict == "degraded" and judged.pair is None
    assert "No single remedy" not in render_console(judged, verbosity="verbose")


def test_no_run_is_spent_on_a_network_that_is_well(tmp_path: Path) -> None:
    well = quantmedic.collect(*patient(tmp_path, 2.0, per_channel=True), **DATA)
    runs = well.record.simulation.runs if well.record.simulation is not None else {}
    judged = quantmedic.judge(well)
    assert judged.verdict == "healthy" and judged.pair is None
    assert {key for key in runs if key.endswith(":everywhere")} <= AS_A_WHOLE

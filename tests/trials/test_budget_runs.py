"""How often the simulated network is run to divide its noise: as often on every machine, and nothing twice."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from builders.onnx_models import conv_net, images, qdq, save_pair

import quantmedic
from quantmedic.api.collect import collect_pair
from quantmedic.api.options import CollectOptions
from quantmedic.collectors.data.batches import Batch
from quantmedic.engine.case.records import Case
from quantmedic.engine.formulas.change import Change
from quantmedic.trials import budget_runs

X = images(48)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Ranges come from smaller inputs: values are cut off at both ends."""
    return save_pair(tmp_path_factory.mktemp("pair"), conv_net(), qdq(conv_net(), {"image": 0.3 * X}))


@pytest.fixture(scope="module")
def case(pair: tuple[Path, Path]) -> Case:
    return quantmedic.collect(*pair, validation=X, threads=1)


@pytest.mark.thorough
def test_no_run_is_made_twice(pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    effects: list[object] = []
    judge = budget_runs.BudgetRuns._judge

    def noted(self: budget_runs.BudgetRuns, change: Change) -> object:
        effect, before = self._known.effect_of(change), self.done
        found = judge(self, change)
        effects.extend([effect] * (self.done - before))
        return found

    monkeypatch.setattr(budget_runs.BudgetRuns, "_judge", noted)
    budget = quantmedic.collect(*pair, validation=X, threads=1).record.loss_budget
    assert budget is not None and len(effects) == len(set(effects)) == budget.runs


@pytest.mark.thorough
def test_its_runs_are_counted_by_the_samples_that_were_measured(
    pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[int, int | None]] = []

    def progress(stage: str, done: int, total: int | None) -> None:
        if stage == "loss budget":
            calls.append((done, total))

    monkeypatch.setattr(budget_runs, "MIN_RUNS", 5)
    monkeypatch.setattr(budget_runs, "PASSES", 8.0)
    case = quantmedic.collect(*pair, validation=X, threads=1, progress=progress)
    assert case.record.loss_budget is not None
    assert case.record.loss_budget.samples == 32
    assert calls[0] == (0, int(8.0 * 48 / 32))
    assert [done for done, _ in calls] == list(range(case.record.loss_budget.runs))


@pytest.mark.thorough
def test_its_samples_come_evenly_out_of_all_that_are_simulated(case: Case) -> None:
    """The first ones of a sorted set may all be of one class."""
    batches = [Batch({"image": X[k : k + 16]}, np.arange(k, k + 16)) for k in range(0, 48, 16)]
    (found,) = budget_runs._sample_evenly(batches, 1, case, 1.0)
    kept = found.labels
    assert len(kept) == 32 and kept[0] == 0 and kept[-1] == 47
    assert np.diff(kept).max() == 2
    np.testing.assert_array_equal(found.inputs["image"], X[kept])
    singles = [Batch({"image": X[k : k + 1]}) for k in range(48)]
    whole = budget_runs._sample_evenly(singles, 1, case, 1.0)
    assert len(whole) == 32
    assert {id(batch) for batch in whole} <= {id(batch) for batch in singles}, "what was computed is found by the batch"


def asked(pair: tuple[Path, Path], samples: int, *, attribution: bool = True) -> tuple[list[str], Case]:
    """What was announced, and the case."""
    said: list[str] = []
    options = CollectOptions(validation=images(samples), attribution=attribution)
    return said, collect_pair(*pair, options, announce=said.append)


@pytest.mark.nightly
def test_what_takes_longer_than_measuring_is_announced(
    pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    said, case = asked(pair, 48)
    assert not said  # A moment, whatever the machine.
    monkeypatch.setattr(budget_runs, "MOMENT", 0.0)
    said, case = asked(pair, 48)
    cost, budget = budget_runs.expected_cost(case), case.record.loss_budget
    assert budget is not None and budget.samples == cost.samples and budget.runs <= cost.runs
    assert case.record.simulation is not None and len(case.record.simulation.power) == cost.simulated
    (line,) = said
    assert f"up to {cost.runs} runs of {cost.samples} samples" in line and "--no-attribution" in line
    # The runs do not grow with the samples, so that many of them cost more to measure than to divide.
    assert not asked(pair, 3000)[0]
    said, case = asked(pair, 48, attribution=False)
    assert not said and case.record.loss_budget is None and case.record.simulation is None
    judged = quantmedic.judge(case)
    assert judged.verdict == "degraded" and judged.causes and judged.loss_budget is None


def test_runs_of_very_many_tensors_are_fewer(case: Case) -> None:

    def runs(tensors: int) -> int:
        some = case.record.tensors
        many = (some * (tensors // len(some) + 1))[:tensors]
        longer = replace(case, record=case.record.model_copy(update={"tensors": many}))
        return budget_runs._planned_runs(longer, 32, 1.0)

    few = runs(len(case.record.tensors))
    assert few == runs(200)
    assert runs(4000) == 25 < few
    assert runs(40_000) == budget_runs.LEAST_RUNS

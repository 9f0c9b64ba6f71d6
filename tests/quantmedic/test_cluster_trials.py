"""Workers of a Dask cluster try what one machine tries, to the bit, whatever becomes of them."""

import os
import pickle
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import current_thread, main_thread
from typing import Any

import numpy as np
import pytest
from builders.onnx_models import images, random, residual_net, save_pair, static, with_weights

pytest.importorskip("distributed", reason="dask and distributed are not installed")

from builders.clusters import cluster_of

import quantmedic
from quantmedic.cluster.units import describe_worker, run_errand
from quantmedic.engine.case.proof import ProofRecord
from quantmedic.engine.case.records import Case
from quantmedic.engine.errors import ModelError, QuantmedicError
from quantmedic.engine.formulas.change import Change
from quantmedic.engine.formulas.simulate import Grid
from quantmedic.trials import workbench
from quantmedic.trials.edit import edit
from quantmedic.trials.split import Pool
from quantmedic.trials.tasks import EditTask, TextTask

pytestmark = pytest.mark.thorough


@dataclass(frozen=True)
class Scene:
    """A harmed pair of models with its data, as files."""

    paths: tuple[Path, Path]
    data: dict[str, Path]

    def collect(self, prove: Any, **more: Any) -> Case:
        return quantmedic.collect(
            *self.paths, **{"prove": prove, "threads": 1, "attribution": False, **self.data, **more}
        )

    def proof(self, prove: Any, **more: Any) -> ProofRecord:
        found = self.collect(prove, **more).record.proof
        assert found is not None
        return found


def scene(folder: Path, samples: int, narrow: float, stale: float) -> Scene:
    """Weights on one scale for channels that differ, ranges of too small inputs, and weights of another checkpoint."""
    model = with_weights(
        residual_net(), lambda w: w * np.array([30.0, *[1.0] * (len(w) - 1)], np.float32).reshape(-1, 1, 1, 1)
    )
    older = with_weights(model, lambda w: w + random(w.size, *w.shape, scale=stale * float(w.std())))
    name, feed = model.graph.input[0].name, images(samples)
    small = feed[:40] / narrow
    paths = save_pair(folder, model, static(older, {name: small}, folder))
    np.savez(folder / "validation.npz", **{name: feed})
    np.savez(folder / "representative.npz", **{name: small})
    return Scene(paths, {role: folder / f"{role}.npz" for role in ("representative", "validation")})


@pytest.fixture(scope="module")
def simple(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    """Halves of the samples suffice, and what is prescribed is measured on all of them."""
    return scene(tmp_path_factory.mktemp("simple"), 64, 2.0, 0.0)


@pytest.fixture(scope="module")
def hard(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    """Nothing explains the whole loss, on few samples, which are cross-fitted: everything is tried."""
    return scene(tmp_path_factory.mktemp("hard"), 40, 3.0, 0.05)


@pytest.fixture(scope="module", autouse=True)
def proving() -> Iterator[None]:
    """Other tests try nothing where they do not ask for it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("QUANTMEDIC_NO_PROVE", raising=False)
        yield


@pytest.fixture(scope="module")
def led(simple: Scene) -> ProofRecord:
    return simple.proof("first")


def test_tasks_and_errors_travel():
    change = Change({3: Grid(-1.5, 2.0, 0.1), 7: None}, {2: "float"}, frozenset({4, 1}), frozenset({"biases"}))
    for task in (EditTask(1, change), TextTask("onnxruntime", "x = 1", None), TextTask("a", "b", 0, Pool(3, 32))):
        assert pickle.loads(pickle.dumps(task)) == task
    error = pickle.loads(pickle.dumps(ModelError("it fails", where="conv1", help="quantize it again")))
    assert str(error) == "it fails\n  conv1\nhelp: quantize it again"


@pytest.mark.nightly
def test_what_is_repaired_is_the_same_model(simple: Scene, tmp_path: Path):
    """No model travels: it is made again here."""
    here, there = tmp_path / "here.onnx", tmp_path / "there.onnx"
    alone = simple.proof(True, write_fixed=here)
    with cluster_of(2) as client:
        assert simple.proof(True, write_fixed=there, cluster=client) == alone
    assert here.read_bytes() == there.read_bytes()
    assert alone.executions[alone.best].trial.samples > alone.judged


@pytest.mark.nightly
def test_what_leads_is_tried_as_on_one_machine(simple: Scene, led: ProofRecord, monkeypatch: pytest.MonkeyPatch):
    """The case travels, as no folder is shared."""
    monkeypatch.setattr("quantmedic.cluster.connection.sees_file", lambda path: False)
    seen: list[str] = []
    with cluster_of(3) as client:
        # Units have one thread each, whatever this machine has.
        found = simple.proof("first", cluster=client, threads=None, progress=lambda *told: seen.append(told[0]))
    assert found == led
    assert len(led.trials) >= 1 and len(led.executions) >= 2
    assert "trials" in seen


@pytest.mark.nightly
def test_everything_is_tried_as_on_one_machine_though_a_worker_is_killed(hard: Scene, monkeypatch: pytest.MonkeyPatch):
    """The case travels to what is left of the workers, as they share no folder."""
    everything = hard.proof(True)
    assert everything.stopped == "tried-all" and everything.cross_fitted
    assert max(len(trial.after) for trial in everything.trials) >= 2
    assert any("not judged" in run.reads for run in everything.executions)
    monkeypatch.setattr("quantmedic.cluster.connection.sees_file", lambda path: False)
    with cluster_of(2, processes=True) as client:
        pids = list(client.run(os.getpid).values())
        calls = 0

        def progress(stage: str, done: int, total: int | None) -> None:
            nonlocal calls
            calls += stage == "trials"
            if calls == 5 and pids:
                os.kill(pids.pop(), signal.SIGKILL)
                pids.clear()

        found = hard.proof(True, cluster=client, progress=progress)
    assert not pids
    assert found == everything


@pytest.mark.nightly
def test_an_interrupt_keeps_what_was_tried(simple: Scene):
    def interrupted(**more: Any) -> Case:
        calls = 0

        def progress(stage: str, done: int, total: int | None) -> None:
            nonlocal calls
            calls += stage == "trials"
            if calls == 4:
                raise KeyboardInterrupt

        return simple.collect(True, progress=progress, **more)

    with cluster_of(2) as client:
        found = interrupted(cluster=client).record.proof
        assert client.run(len, ()) and found is not None
    assert found.stopped == "interrupted" and len(found.trials) == 2
    assert found == interrupted().record.proof


@pytest.mark.nightly
def test_a_trial_that_fails_says_what_it_says_on_one_machine(simple: Scene, monkeypatch: pytest.MonkeyPatch):
    def refuse(models: Any, case: Case, change: Change, fitting: Any) -> Any:
        if change.grids:
            raise ModelError("the change cannot be carried out on the quantized model", where="conv1: no scale")
        return edit(models, case, change, fitting)

    monkeypatch.setattr(workbench, "edit", refuse)
    alone = simple.proof("first")
    assert any(trial.failed and "no scale" in trial.failed for trial in alone.trials)
    with cluster_of(2) as client:
        assert simple.proof("first", cluster=client) == alone


@pytest.mark.nightly
def test_a_limit_of_the_user_is_kept(simple: Scene):
    with cluster_of(2) as client:
        found = simple.proof(60.0, cluster=client)
    assert found.budget_seconds == 60.0
    assert all(trial.seconds is not None and trial.seconds > 0 for trial in found.trials)
    assert found.stopped in ("explained", "tried-all", "budget")


def test_another_version_of_a_worker_is_named(simple: Scene, monkeypatch: pytest.MonkeyPatch):
    own = describe_worker()
    other = {**own, "onnxruntime": "1.0"}
    answer = run_errand("carry_out", other)
    assert answer.where[0].startswith("this process  onnxruntime ")
    # As if a worker had joined after all others were asked.
    monkeypatch.setattr(
        "quantmedic.cluster.units.describe_worker", lambda: other if current_thread() is main_thread() else own
    )
    with cluster_of(1) as client, pytest.raises(QuantmedicError, match="other figures than this machine") as caught:
        simple.collect("first", cluster=client)
    assert "onnxruntime" in caught.value.where[0]

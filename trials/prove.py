"""Proof: remedies are carried out on copies of the quantized model, until the loss is explained or the time is spent.

Remedies are fitted on one half of the samples and measured on the other. The causes are tried in the order of the
diagnosis, each alone; then, on top of the best one, what the others still add.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np
import onnx

from quantmedic.collectors.batches import Batch
from quantmedic.collectors.datasets import Dataset, open_dataset
from quantmedic.collectors.from_onnx import collect
from quantmedic.collectors.metrics import Metric, drop_interval
from quantmedic.collectors.onnx_observer import Options
from quantmedic.collectors.onnx_pair import Models
from quantmedic.collectors.onnx_plan import feed_of
from quantmedic.collectors.onnx_session import make_session, run
from quantmedic.engine.case import Case
from quantmedic.engine.change import HALVES, Change, change_of
from quantmedic.engine.derive import derive
from quantmedic.engine.errors import QuantmedicError
from quantmedic.engine.facts import CaseFacts
from quantmedic.engine.prediction import ENOUGH_DB, explains
from quantmedic.engine.proof import MetricTrial, ProofRecord, Stopped, TrialRecord, gain_of
from quantmedic.engine.rule import RuleBase
from quantmedic.engine.suspects import PREFERENCE_DB, Repair, Suspect, first_about_best, general_repairs
from quantmedic.engine.tensors import main_role
from quantmedic.trials.measure import Bench, Measured, OutOfTimeError
from quantmedic.trials.onnx_edit import edit, left_integer
from quantmedic.trials.split import Fold, folds, read_pool, samples_of

Progress = Callable[[str, int, int | None], None]
#: What is tried on the whole network where the causes do not explain the loss, cheapest first.
GENERAL = ("recalibrate", "best-range", "per-channel-weights", "float-bias", "sixteen-bit")
#: Share of the budget that one judged or fitted half may take per run of both networks.
HALF_SHARE = 0.03
MIN_HALF = 32


@dataclass(frozen=True)
class Proven:
    """What was tried, and the quantized model with all proven remedies, if there are any."""

    record: ProofRecord
    fixed: onnx.ModelProto | None


def prove(
    models: Models,
    case: Case,
    base: RuleBase,
    suspects: Sequence[Suspect],
    dataset: Dataset,
    *,
    options: Options,
    metric: Metric | None,
    budget: float,
    progress: Progress = lambda stage, done, total: None,
) -> Proven:
    """Try the remedies of the suspects.

    Ctrl-C ends the trials; what was measured until then is returned.

    Args:
        models: Both models; neither is changed.
        case: What was measured of them.
        base: Rules in force: they tell when a loss is explained.
        suspects: Suspected causes, the likeliest first.
        dataset: The data that the case judges on.
        options: How the case was collected.
        metric: Task metric, where the data are labelled.
        budget: Seconds for all trials, the preparation included.
        progress: Called with ``trials``, the seconds spent and the budget.

    Raises:
        QuantmedicError: The models cannot be run on these data.
    """
    started = time.monotonic()
    tried = _Trials(models, case, base, dataset, options, metric, started, budget, progress)
    try:
        stopped = tried.run(suspects)
    except KeyboardInterrupt:
        stopped = "interrupted"
    return Proven(tried.record(stopped), tried.fixed())


class _Half:
    """One fold: the case of its fitted samples, and the bench of its judged ones."""

    def __init__(self, case: Case, facts: CaseFacts, bench: Bench) -> None:
        self.case, self.facts, self.bench = case, facts, bench

    def change(self, repairs: Sequence[Repair]) -> Change:
        """All repairs together, fitted on this half."""
        changes = (change_of(repair.kind, self.case, self.facts, repair.targets) for repair in repairs)
        return reduce(Change.joined, changes, Change())


class _Trials:
    """The trials that ran, and what is needed for the next one."""

    def __init__(
        self,
        models: Models,
        case: Case,
        base: RuleBase,
        dataset: Dataset,
        options: Options,
        metric: Metric | None,
        started: float,
        budget: float,
        progress: Progress,
    ) -> None:
        self._models, self._case, self._base, self._metric = models, case, base, metric
        self._options, self._started, self._budget, self._progress = options, started, budget, progress
        self._role = main_role(case)
        self._done: list[TrialRecord] = []
        self._chain: list[Repair] = []
        self._longest = 0.0
        self._tell()
        wanted = max(int(HALF_SHARE * budget / self._speed(next(dataset.batches(1, options.samples)))), MIN_HALF)
        pool = read_pool(dataset, case.record.datasets[self._role].seen, options.samples, 2 * wanted, options.seed)
        found = folds(pool, dataset.unit, options.seed)
        self._fitted, self._judged = samples_of(found[0].fitted), samples_of(b for f in found for b in f.judged)
        self._crossed = len(found) > 1
        self._halves = [self._half(fold) for fold in found]
        self._known: dict[tuple[str, ...], Measured] = {(): _joined([half.bench.before for half in self._halves])}
        self._power = float(np.concatenate([half.bench.power for half in self._halves]).sum())
        self._float_metric = _together([half.bench.float_metric for half in self._halves])

    def run(self, suspects: Sequence[Suspect]) -> Stopped:
        """All trials, as far as the budget allows."""
        try:
            for half in general_repairs(HALVES, self._case, self._halves[0].facts):
                self._try(half)
            return self._search(suspects)
        except OutOfTimeError:
            return "budget"

    def _search(self, suspects: Sequence[Suspect]) -> Stopped:
        best: list[Repair] = []
        for suspect in suspects:
            repair = self._best_of(suspect)
            if repair is not None:
                best.append(repair)
                if self._explains(self._done_alone(repair)):
                    break
        for repair in sorted(best, key=self._standing, reverse=True)[:1]:
            self._chain.append(repair)
        general = general_repairs(GENERAL, self._case, self._halves[0].facts)
        others = [r for suspect in suspects for r in suspect.repairs]
        for repair in [*best, *others, *general]:
            if self._is_explained():
                return "explained"
            if all(repair.key != link.key and repair.kind != link.kind for link in self._chain):
                trial = self._try(repair, self._chain)
                if trial.proven and (trial.gain_db or 0) >= self._base.threshold("negligible_gain_db"):
                    self._chain.append(repair)
        return "explained" if self._is_explained() else "tried-all"

    def _best_of(self, suspect: Suspect) -> Repair | None:
        """The first proven remedy that recovers about as much as the best one of a cause."""
        found = []
        for repair in suspect.repairs:
            trial = self._try(repair)
            if trial.proven:
                found.append((min(trial.gain_db or 0.0, ENOUGH_DB), repair))
            if self._explains(trial):
                break
        return first_about_best(found)

    def _standing(self, repair: Repair) -> float:
        """What a proven repair is worth by itself; gains of about the same size leave the order of the causes."""
        gain = self._done_alone(repair).gain_db or 0.0
        return round(min(gain, ENOUGH_DB) / PREFERENCE_DB)

    def _done_alone(self, repair: Repair) -> TrialRecord:
        return next(trial for trial in self._done if trial.key == repair.key and not trial.after)

    def _is_explained(self) -> bool:
        if not self._chain:
            return False
        keys = [repair.key for repair in self._chain]
        start, now = self._known[()], self._known.get(tuple(keys))
        return now is not None and explains(
            share=1.0 - now.noise.sum() / start.noise.sum() if start.noise.sum() > 0 else 1.0,
            sqnr_db=_sqnr_db(self._power, now),
            agreement=now.agreement,
            base=self._base,
        )

    def _explains(self, trial: TrialRecord) -> bool:
        """Whether nothing is left to explain after one trial on the unchanged model."""
        if not trial.proven or trial.share is None or trial.sqnr_after is None:
            return False
        return explains(share=trial.share, sqnr_db=trial.sqnr_after, agreement=trial.agreement_after, base=self._base)

    def _try(self, repair: Repair, after: Sequence[Repair] = ()) -> TrialRecord:
        """Carry out a repair on a copy that holds others already; once.

        Raises:
            OutOfTimeError: The budget does not allow it.
        """
        keys = tuple(link.key for link in after)
        known = next((t for t in self._done if t.key == repair.key and t.after == keys), None)
        if known is not None:
            return known
        begun = time.monotonic()
        if begun + self._longest > self._started + self._budget:
            raise OutOfTimeError
        self._tell()
        trial = self._measured(repair, after, keys)
        seconds = time.monotonic() - begun
        self._longest = max(self._longest, seconds)
        self._done.append(trial.model_copy(update={"seconds": round(seconds, 3)}))
        return self._done[-1]

    def _measured(self, repair: Repair, after: Sequence[Repair], keys: tuple[str, ...]) -> TrialRecord:
        deadline = self._started + self._budget
        found, left = [], ()
        try:
            for half in self._halves:
                change = half.change([*after, repair])
                model = edit(self._models, half.case, change).model
                found.append(half.bench.measure(model, deadline))
                left = left or left_integer(self._models, half.case, model, change)
        except QuantmedicError as error:
            reason = " ".join([error.message, *error.where])
            return TrialRecord(key=repair.key, kind=repair.kind, after=keys, failed=reason)
        result = _joined(found)
        self._known[(*keys, repair.key)] = result
        return self._compared(repair, keys, self._known[keys], result).model_copy(update={"left_integer": left})

    def _compared(self, repair: Repair, keys: tuple[str, ...], before: Measured, now: Measured) -> TrialRecord:
        gain = gain_of(before.noise, now.noise, self._options.seed)
        return TrialRecord(
            key=repair.key,
            kind=repair.kind,
            after=keys,
            samples=self._judged,
            sqnr_before=_sqnr_db(self._power, before),
            sqnr_after=_sqnr_db(self._power, now),
            **gain._asdict(),
            agreement_before=before.agreement,
            agreement_after=now.agreement,
            metric=self._metric_trial(before, now),
        )

    def _metric_trial(self, before: Measured, now: Measured) -> MetricTrial | None:
        metric = self._metric
        if metric is None or self._float_metric is None or before.metric is None or now.metric is None:
            return None
        # What the changed model loses if the remedy is taken back.
        gain, low, high = drop_interval(
            now.metric,
            before.metric,
            higher_is_better=metric.higher_is_better,
            root=metric.root,
            seed=self._options.seed,
        )
        return MetricTrial(
            name=metric.name,
            float_model=metric.aggregate(self._float_metric),
            before=metric.aggregate(before.metric),
            after=metric.aggregate(now.metric),
            gain=gain,
            low=low,
            high=high,
        )

    def record(self, stopped: Stopped) -> ProofRecord:
        """All that is kept in the case."""
        return ProofRecord(
            dataset=self._role,
            seed=self._options.seed,
            fitted=self._fitted,
            judged=self._judged,
            cross_fitted=self._crossed,
            budget_seconds=self._budget,
            spent_seconds=round(time.monotonic() - self._started, 1),
            stopped=stopped,
            trials=tuple(self._done),
            chain=tuple(repair.key for repair in self._chain),
        )

    def fixed(self) -> onnx.ModelProto | None:
        """The model with the whole chain, as it was measured; after cross-fitting, fitted on all samples."""
        if not self._chain:
            return None
        half = self._halves[0]
        if self._crossed:
            half = _Half(self._case, derive(self._case, self._base), half.bench)
        return edit(self._models, half.case, half.change(self._chain)).model

    def _half(self, fold: Fold) -> _Half:
        def fitted() -> list[tuple[dict[str, np.ndarray], np.ndarray | None] | dict[str, np.ndarray]]:
            return [batch.inputs if b is None else (batch.inputs, b) for batch in fold.fitted for b in [batch.labels]]

        dataset = open_dataset(fitted, self._models.input_specs, role=self._role)
        options = replace(self._options, samples=None, operator_error=False, mode="exact")
        case = collect(
            self._models, {self._role: dataset}, options=options, version=self._case.record.quantmedic_version
        )
        classes = bool((self._case.statistics[self._role].samples["class_float"] >= 0).any())
        bench = Bench(self._models, fold.judged, metric=self._metric, classes=classes, threads=self._options.threads)
        return _Half(case, derive(case, self._base), bench)

    def _speed(self, batch: Batch) -> float:
        """Seconds per sample of both networks."""
        seconds = 0.0
        for graph in (self._models.float_graph, self._models.quantized):
            session = make_session(graph.model, graph.path, self._options.threads)
            feed = feed_of(batch, graph)
            run(session, graph.outputs, feed, graph.path)
            start = time.perf_counter()
            run(session, graph.outputs, feed, graph.path)
            seconds += time.perf_counter() - start
        return seconds / batch.samples

    def _tell(self) -> None:
        self._progress("trials", int(time.monotonic() - self._started), int(self._budget))


def _joined(found: Sequence[Measured]) -> Measured:
    """What was measured on all folds."""
    agreements = [m.agreement for m in found if m.agreement is not None]
    return Measured(
        np.concatenate([m.noise for m in found]),
        float(np.mean(agreements)) if agreements else None,
        _together([m.metric for m in found]),
        sum(m.seconds for m in found),
    )


def _together(values: Sequence[np.ndarray | None]) -> np.ndarray | None:
    known = [v for v in values if v is not None]
    return np.concatenate(known) if len(known) == len(values) else None


def _sqnr_db(power: float, measured: Measured) -> float:
    noise = float(measured.noise.sum())
    return float(10.0 * np.log10(power / noise)) if noise > 0 and power > 0 else float("inf")

"""The search for the calibration that suits a network best: every setting is built, raced, and the winner run again."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.data.batches import Batch, cut, rows_alike
from quantmedic.collectors.front_ends import front_end_named
from quantmedic.collectors.measure.models import Edited, Float32, Models, Runner
from quantmedic.collectors.measure.output_noise import OutputNoise
from quantmedic.collectors.metrics.metric import Metric
from quantmedic.collectors.statistics.accumulate import class_scores
from quantmedic.engine.case.tallies import Tally
from quantmedic.engine.contract.calibrations import Estimate, PrintedRun
from quantmedic.engine.errors import ModelError, QuantmedicError
from quantmedic.engine.metrics.kinds import is_share
from quantmedic.engine.rules.options import Options
from quantmedic.trials.calibration_settings import Setting
from quantmedic.trials.execute import Executor
from quantmedic.trials.racing import STRICT, Gap, Race, median_interval, part_sizes, race
from quantmedic.trials.split import samples_of
from quantmedic.trials.tasks import failure_in_words

Floats = NDArray[np.float64]
#: Samples of the first part of a race.
FIRST = 16
#: SQNR of an output without noise, in dB.
SILENT_DB = 120.0
#: A difference that does not matter: dB of the SQNR, and of a metric a share of one point or of the float value.
NEGLIGIBLE_DB, NEGLIGIBLE_SHARE = 0.1, 0.002
#: The best settings of a race that ended as a tie, which are judged on all samples.
FINALISTS = 3
#: Coverage of the intervals that are shown.
SHOWN = 0.95


class Maker(Protocol):
    """Builds the models of settings."""

    @property
    def passes(self) -> int:
        """How often the calibration samples were run."""

    def identities(self, rows: Sequence[Options]) -> list[object | None]:
        """Equal for options that make the same model; None where that is not known."""

    def make(self, options: Options) -> Edited:
        """The model of these options.

        Raises:
            ModelError: The toolchain refuses them.
        """


@runtime_checkable
class _SameModel(Protocol):
    """A model that was made, whose bytes can be compared."""

    @property
    def content(self) -> bytes:
        """The model."""


@dataclass
class ExecutedSettings:
    """Builds models by running the printed text of each setting; see ``Maker``."""

    models: Models
    executor: Executor
    batches: Iterable[Batch]
    texts: Mapping[int, str]
    passes: int = 0

    def identities(self, rows: Sequence[Options]) -> list[object | None]:
        """Not known before they are built."""
        return [None] * len(rows)

    def make(self, options: Options) -> Edited:
        """Run the text of the options."""
        self.passes += 1
        return self.executor.execute(self.models, self.texts[id(options)], self.batches, None)


def open_maker(
    models: Models, executor: Executor, settings: Sequence[Setting], batches: Iterable[Batch], folder: Path
) -> Maker:
    """What builds the models of a toolchain's settings: from one calibration pass where the toolchain permits that."""
    editor = front_end_named(models.framework).editor.rpartition(".")[0]
    shared = f"{editor}.calibrations"
    if find_spec(shared) is not None and executor.toolchain == import_module(shared).TOOLCHAIN:
        maker: Maker = import_module(shared).open_maker(models, batches, folder)
        return maker
    texts = {id(each.options): each.configuration.code for each in settings}
    return ExecutedSettings(models, executor, batches, texts)


class Judge:
    """Samples in parts, and how good networks are on them."""

    def __init__(
        self,
        models: Models,
        batches: Sequence[Batch],
        *,
        metric: Metric | None,
        unit: int,
        threads: int,
        seed: int,
    ) -> None:
        """Cut the samples into parts in random order, and run the float network.

        Args:
            models: The float model, as both of a pair.
            batches: The samples.
            metric: Task metric of labelled samples.
            unit: Samples that the model takes at a time and that stay together.
            threads: Processor threads.
            seed: Seed of the order.

        Raises:
            ModelError: The float model fails, or gives values that are not finite.
        """
        self.metric = metric
        self.parts = _parts(batches, unit, seed)
        names = [models.float_graph.outputs[i] for i, _ in models.match.outputs]
        run = models.float_runner(threads)
        self._parts = [_Part.of(part, run, names, metric) for part in self.parts]

    @property
    def sizes(self) -> list[int]:
        """Samples of each part."""
        return [samples_of(part) for part in self.parts]

    def judge(self, run: Runner, part: int) -> "Figures":
        """A network on one part.

        Raises:
            ModelError: It fails, or gives values that are not finite.
        """
        return self._parts[part].judge(run)

    @property
    def float_value(self) -> float | None:
        """The float network's metric; None without labels."""
        tallies = [part.float_tally for part in self._parts if part.float_tally is not None]
        return None if self.metric is None or not tallies else self.metric.aggregate(Tally.join(tallies))


@dataclass(frozen=True)
class Figures:
    """What was measured of a network, sample by sample.

    Attributes:
        sqnr: SQNR at the output, dB; NaN for a sample without signal.
        same: Share of its classes that are those of the float network; None without classes.
        tally: What the metric keeps; None without labels.
    """

    sqnr: Floats
    same: Floats | None
    tally: Tally | None

    @classmethod
    def join(cls, parts: Sequence["Figures"]) -> "Figures":
        """All parts as one."""
        same = [part.same for part in parts if part.same is not None]
        tallies = [part.tally for part in parts if part.tally is not None]
        return cls(
            np.concatenate([part.sqnr for part in parts]),
            np.concatenate(same) if len(same) == len(parts) else None,
            Tally.join(tallies) if tallies else None,
        )

    @property
    def median_db(self) -> float:
        """Median of the SQNR."""
        known = self.sqnr[~np.isnan(self.sqnr)]
        return float(np.median(known)) if len(known) else -math.inf

    @property
    def sqnr_estimate(self) -> Estimate:
        """Median of the SQNR with its interval."""
        low, high = median_interval(self.sqnr[~np.isnan(self.sqnr)], SHOWN)
        return Estimate(value=self.median_db, low=low, high=high)

    @property
    def agreement(self) -> float | None:
        """Share of samples with the float network's class."""
        return None if self.same is None else float(self.same.mean())


@dataclass(frozen=True)
class _Part:
    """Samples with what the float network makes of them."""

    batches: Sequence[Batch]
    names: Sequence[str]
    metric: Metric | None
    noise: OutputNoise
    float_tally: Tally | None

    @classmethod
    def of(cls, batches: Sequence[Batch], run: Runner, names: Sequence[str], metric: Metric | None) -> "_Part":
        outputs = [run(batch) for batch in batches]
        _refuse_non_finite(outputs, names, "the float model")
        classes = class_scores(outputs[0][0], batches[0].samples) is not None
        noise = OutputNoise(batches, outputs, outputs, classes=classes, whole=True)
        return cls(batches, names, metric, noise, _tally(metric, names, outputs, batches))

    def judge(self, run: Runner) -> Figures:
        outputs = [run(batch) for batch in self.batches]
        _refuse_non_finite(outputs, self.names, "the quantized model")
        power, noise = self.noise.power, np.array(self.noise.compare(outputs).noise)
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.minimum(10 * np.log10(power / noise), SILENT_DB)
        tally = _tally(self.metric, self.names, outputs, self.batches)
        return Figures(np.where(power > 0, ratio, np.nan), self.noise.same_classes(outputs), tally)


def _tally(
    metric: Metric | None, names: Sequence[str], outputs: Sequence[Sequence[Float32]], batches: Sequence[Batch]
) -> Tally | None:
    if metric is None:
        return None
    pairs = zip(outputs, batches, strict=True)
    rows = [(dict(zip(names, found, strict=True)), batch.labels) for found, batch in pairs]
    return Tally.join([metric.tally(found, labels) for found, labels in rows if labels is not None])


def _refuse_non_finite(outputs: Sequence[Sequence[Float32]], names: Sequence[str], model: str) -> None:
    for found in outputs:
        for name, array in zip(names, found, strict=True):
            if not np.isfinite(array).all():
                raise ModelError(f"{model} gives NaN or infinite values at output {name}")


def _parts(batches: Sequence[Batch], unit: int, seed: int) -> list[list[Batch]]:
    """The samples in random order, cut into the parts of a race; those that the model takes together stay so."""
    rng = np.random.default_rng(seed)
    if unit > 1 or any(rows_alike(batch) != rows_alike(batches[0]) for batch in batches):
        sizes = part_sizes(len(batches), max(1, FIRST // batches[0].samples))
        order = [batches[i] for i in rng.permutation(len(batches))]
        ends = np.cumsum([0, *sizes])
        return [order[start:end] for start, end in pairwise(ends)]
    # Models that take one sample at a time have batches of one.
    largest = max(batch.samples for batch in batches)
    sizes = part_sizes(samples_of(batches), FIRST)
    owner = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    parts = []
    for number in range(len(sizes)):
        rows, start = [], 0
        for batch in batches:
            own = np.flatnonzero(owner[start : start + batch.samples] == number)
            start += batch.samples
            rows += [batch.take(own)] if len(own) else []
        parts.append(list(cut(rows, largest)))
    return parts


@dataclass
class _Racer:
    """A setting in the race."""

    setting: Setting
    edited: Edited | None = None
    run: Runner | None = None
    figures: list[Figures] = field(default_factory=list)
    failed: str | None = None
    same_as: int | None = None

    @property
    def known(self) -> Figures:
        return Figures.join(self.figures)


class CalibrationSearch:
    """One search; it is the contest of its own race."""

    def __init__(self, settings: Sequence[Setting], maker: Maker, judge: Judge, threads: int, seed: int) -> None:
        """Nothing runs before ``search``.

        Args:
            settings: What is searched.
            maker: Builds their models.
            judge: Judges them.
            threads: Processor threads.
            seed: Seed of bootstrapped intervals.
        """
        self.racers = [_Racer(setting) for setting in settings]
        self.race: Race | None = None
        self.judging_runs = 0
        self._progress: Callable[[int], None] = lambda runs: None
        self._maker, self._judge, self._threads, self._seed = maker, judge, threads, seed

    def search(self, progress: Callable[[int], None] = lambda runs: None) -> Race:
        """Race all settings; those that make one model run as one."""
        first: dict[object, int] = {}
        identities = self._maker.identities([racer.setting.options for racer in self.racers])
        for number, identity in enumerate(identities):
            if identity is not None and first.setdefault(identity, number) != number:
                self.racers[number].same_as = first[identity]
        self._progress = progress
        alone = [number for number, racer in enumerate(self.racers) if racer.same_as is None]
        self.race = race(self, alone, self._judge.sizes, self.negligible)
        if self.race.ending == "tied":
            self._run_final(self.race)
        return self.race

    def _run_final(self, tied: Race) -> None:
        """What the race does not tell apart may still differ by what counts: the best are judged on all samples."""
        for number in sorted(tied.left, key=self._merit, reverse=True)[:FINALISTS]:
            for part in range(tied.parts, len(self._judge.sizes)):
                if not self.judge(number, part):
                    break

    def _merit(self, number: int) -> tuple[float, float]:
        """The value, and of equal ones the less noise."""
        return self.value(number), self.racers[number].known.median_db

    @property
    def negligible(self) -> float:
        """A difference that does not matter: dB, or in the unit of the metric."""
        metric = self._judge.metric
        if metric is None:
            return NEGLIGIBLE_DB
        return NEGLIGIBLE_SHARE * (1.0 if is_share(metric.name) else abs(self._judge.float_value or 0.0))

    def judge(self, candidate: int, part: int) -> bool:
        """See ``racing.Contest``."""
        racer = self.racers[candidate]
        self._let_go(part)
        try:
            if racer.run is None:
                racer.edited = self._maker.make(racer.setting.options)
                racer.run = racer.edited.runner(self._threads)
            racer.figures.append(self._judge.judge(racer.run, part))
        except QuantmedicError as error:
            racer.failed, racer.run = failure_in_words(error), None
            return False
        self.judging_runs += self._judge.sizes[part]
        self._progress(self.judging_runs)
        return True

    def _let_go(self, part: int) -> None:
        """The models that dropped out before this part of the race are no longer needed."""
        if self.race is not None:
            return
        for racer in self.racers:
            if len(racer.figures) < part:
                racer.edited = racer.run = None

    def value(self, candidate: int) -> float:
        """The metric, more being better; without labels the median SQNR."""
        metric = self._judge.metric
        value = self.reached(candidate, len(self.racers[candidate].figures))
        return value if metric is None or metric.higher_is_better else -value

    def gap(self, leader: int, other: int) -> Gap:
        """See ``racing.Contest``."""
        return self._gap(leader, other, STRICT)

    def _gap(self, leader: int, other: int, confidence: float) -> Gap:
        """On the samples of both, which are the first ones of each."""
        parts = min(len(self.racers[leader].figures), len(self.racers[other].figures))
        a, b = (Figures.join(self.racers[each].figures[:parts]) for each in (leader, other))
        metric = self._judge.metric
        if metric is None or a.tally is None or b.tally is None:
            difference = a.sqnr - b.sqnr
            known = difference[~np.isnan(difference)]
            return Gap(float(np.median(known)) if len(known) else 0.0, *median_interval(known, confidence))
        found = metric.kind.drop_interval(
            a.tally, b.tally, higher_is_better=metric.higher_is_better, confidence=confidence, seed=self._seed
        )
        return Gap(*found)

    def winner(self) -> int | None:
        """The best of those that were judged on most samples; None where all failed."""
        left = [each for each in self.race.left if self.racers[each].failed is None] if self.race is not None else []
        if not left:
            return None
        most = max(len(self.racers[each].figures) for each in left)
        return max((each for each in left if len(self.racers[each].figures) == most), key=self._merit)

    def behind(self, winner: int, other: int) -> Estimate | None:
        """How far a setting is behind the winner; None where it was not judged."""
        if not self.racers[other].figures:
            return None
        gap = self._gap(winner, other, SHOWN)
        return Estimate(value=gap.loss, low=gap.low, high=gap.high)

    def reached(self, number: int, parts: int) -> float:
        """The metric of a setting, or its median SQNR without labels, on the first parts that it was judged on."""
        figures, metric = Figures.join(self.racers[number].figures[:parts]), self._judge.metric
        return figures.median_db if metric is None or figures.tally is None else metric.aggregate(figures.tally)

    @property
    def raced_samples(self) -> int:
        """Samples that had been used when the race ended."""
        return sum(self._judge.sizes[: self.race.parts]) if self.race is not None else 0

    def metric_of(self, figures: Figures) -> Estimate | None:
        """The metric with its interval; None without labels."""
        metric = self._judge.metric
        if metric is None or figures.tally is None:
            return None
        low, high = metric.kind.value_interval(figures.tally, confidence=SHOWN, seed=self._seed)
        return Estimate(value=metric.aggregate(figures.tally), low=low, high=high)

    def run_printed(self, winner: int, executor: Executor, models: Models, batches: Iterable[Batch]) -> PrintedRun:
        """The winner's text, run as it is printed, and its model judged on all samples."""
        racer = self.racers[winner]
        try:
            made = executor.execute(models, racer.setting.configuration.code, batches, None)
            same = _is_same(racer.edited, made)
            known = racer.figures if same else []
            run = racer.run if same and racer.run is not None else made.runner(self._threads)
            rest = [self._judge.judge(run, part) for part in range(len(known), len(self._judge.sizes))]
        except QuantmedicError as error:
            return PrintedRun(samples=0, same_model=None, failed=failure_in_words(error))
        self.judging_runs += sum(self._judge.sizes[len(known) :])
        figures = Figures.join([*known, *rest])
        return PrintedRun(
            samples=sum(self._judge.sizes),
            same_model=same,
            metric=self.metric_of(figures),
            float_metric=self._judge.float_value,
            sqnr_db=figures.sqnr_estimate,
            agreement=figures.agreement,
        )


def _is_same(first: Edited | None, second: Edited) -> bool | None:
    """Whether two models are the same to the bit; None where they have no bytes."""
    if not isinstance(first, _SameModel) or not isinstance(second, _SameModel):
        return None
    return first.content == second.content

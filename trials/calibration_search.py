"""The search for the calibration that suits a network best: every setting is built, raced, and the winner run again."""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, product
from pathlib import Path
from typing import Protocol, get_args, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.data.batches import Batch, cut, rows_alike
from quantmedic.collectors.measure.models import Edited, Models, Runner
from quantmedic.collectors.metrics.metric import Metric
from quantmedic.engine.case.tallies import Tally
from quantmedic.engine.contract.advised_remedies import Configuration
from quantmedic.engine.contract.searches import Dropped, Estimate, JudgedSetting, PrintedRun, Standing
from quantmedic.engine.diagnosis.prescription import FILES, complete_code
from quantmedic.engine.errors import QuantmedicError, RuleError, failure_in_words
from quantmedic.engine.metrics.kinds import is_share
from quantmedic.engine.rules.toolchain import Toolchain
from quantmedic.engine.rules.toolchain_options import Options, merge_all, write
from quantmedic.engine.text import suggest
from quantmedic.trials.bench import Bench, Runners, require_finite
from quantmedic.trials.edit import find_open_maker
from quantmedic.trials.execute import Executor, Maker
from quantmedic.trials.racing import STRICT, Gap, Race, median_interval, part_sizes, race
from quantmedic.trials.split import samples_of

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
#: What is chosen that has a name in every toolchain.
METHOD = "method"


@dataclass(frozen=True)
class Setting:
    """One way to calibrate.

    Attributes:
        toolchain: Whose.
        form: The call or file that takes the options.
        choices: What is chosen, by kind.
        options: Options of the form.
    """

    toolchain: Toolchain
    form: str
    choices: Mapping[str, str]
    options: Options

    @property
    def configuration(self) -> Configuration:
        """What users paste, complete."""
        form = self.toolchain.forms[self.form]
        body = write(self.form, form, self.options)
        return Configuration(
            language=form.language,
            file=FILES[form.language],
            code=complete_code(body, form.language, self.toolchain),
        )


def settings_of(toolchain: Toolchain, methods: Collection[str]) -> list[Setting]:
    """All settings of a toolchain, or those with these methods."""
    return list(_settings(toolchain, methods))


def _settings(toolchain: Toolchain, methods: Collection[str]) -> Iterator[Setting]:
    for form, ways in toolchain.calibrations.items():
        for names in product(*ways.choices.values()):
            choices = dict(zip(ways.choices, names, strict=True))
            if methods and choices.get(METHOD) not in methods:
                continue
            rows = [ways.choices[kind][name] for kind, name in choices.items()]
            yield Setting(toolchain, form, choices, merge_all([*rows, ways.always]))


def same_choices(choices: Mapping[str, str], toolchain: Toolchain) -> list[tuple[Setting, tuple[str, ...]]]:
    """What chooses the same with another toolchain, one setting per form, and which choices it does not have."""
    found = []
    for form, ways in toolchain.calibrations.items():
        known = {kind: name for kind, name in choices.items() if name in ways.choices.get(kind, {})}
        lacking = tuple(f"{kind} {name}" for kind, name in choices.items() if kind not in known)
        rows = [ways.choices[kind][name] for kind, name in known.items()]
        found.append((Setting(toolchain, form, known, merge_all([*rows, ways.always])), lacking))
    return found


def check_methods(methods: Collection[str], toolchain: Toolchain) -> None:
    """Refuse a method that the toolchain does not have.

    Raises:
        RuleError: Names the nearest, and all that there are.
    """
    known = list(dict.fromkeys(name for ways in toolchain.calibrations.values() for name in ways.choices[METHOD]))
    for name in methods:
        if name not in known:
            raise RuleError(
                f"{toolchain.title} has no calibration method {name!r}{suggest(name, known)}",
                where="--methods",
                help=f"known: {', '.join(known)}",
            )


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
    open_shared = find_open_maker(models, executor.toolchain)
    if open_shared is not None:
        return open_shared(models, batches, folder)
    texts = {id(each.options): each.configuration.code for each in settings}
    return ExecutedSettings(models, executor, batches, texts)


class Judge:
    """Samples in parts, and how good networks are on them.

    Attributes:
        metric: Task metric of labelled samples.
        parts: The samples.
    """

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
        self.parts = _cut_parts(batches, unit, seed)
        self._names = [models.float_graph.outputs[i] for i, _ in models.match.outputs]
        run = require_finite(models.float_runner(threads), self._names, "the float model")
        runners = Runners(run, run)  # The deployed model of this pair is the float one.
        self._benches = [
            Bench(models, part, metric=metric, classes=None, threads=threads, whole=True, runners=runners)
            for part in self.parts
        ]

    @property
    def sizes(self) -> list[int]:
        """Samples of each part."""
        return [samples_of(part) for part in self.parts]

    def judge(self, run: Runner, part: int) -> "Figures":
        """A network on one part.

        Raises:
            ModelError: It fails, or gives values that are not finite.
        """
        bench = self._benches[part]
        outputs = bench.run_all(require_finite(run, self._names, "the quantized model"))
        measured = bench.judge_outputs(outputs)
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.minimum(10 * np.log10(bench.power / measured.noise), SILENT_DB)
        return Figures(np.where(bench.power > 0, ratio, np.nan), bench.same_classes(outputs), measured.metric)

    @property
    def float_value(self) -> float | None:
        """The float network's metric; None without labels."""
        tallies = [bench.float_metric for bench in self._benches if bench.float_metric is not None]
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


def _cut_parts(batches: Sequence[Batch], unit: int, seed: int) -> list[list[Batch]]:
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
        value = self.value_on(candidate, len(self.racers[candidate].figures))
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

    def value_on(self, number: int, parts: int) -> float:
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
            same = _same_bytes(racer.edited, made)
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


def _same_bytes(first: Edited | None, second: Edited) -> bool | None:
    """Whether two models are the same to the bit; None where they have no bytes."""
    if not isinstance(first, _SameModel) or not isinstance(second, _SameModel):
        return None
    return first.content == second.content


def rank_settings(search: CalibrationSearch, winner: int) -> tuple[JudgedSetting, ...]:
    """By standing; within one, what was judged on more samples first, then the nearest. Twins follow their model."""
    rows = {number: _row(search, winner, number) for number in range(len(search.racers))}
    steps = get_args(Standing)

    def order(number: int) -> tuple[int, int, float, int, bool, int]:
        twin_of = search.racers[number].same_as
        model = number if twin_of is None else twin_of
        row = rows[model]
        return steps.index(row.standing), -row.samples, _shown_loss(row), model, twin_of is not None, number

    ordered = sorted(rows, key=order)
    places = {number: place for place, number in enumerate(ordered)}
    return tuple(_with_places(rows[number], places) for number in ordered)


def _shown_loss(row: JudgedSetting) -> float:
    shown = row.dropped.behind if row.dropped is not None else row.behind
    return 0.0 if shown is None else shown.value


def _with_places(row: JudgedSetting, places: Mapping[int, int]) -> JudgedSetting:
    """The row, which names others by their numbers, with their places instead."""
    changes: dict[str, object] = {}
    if row.same_as is not None:
        changes["same_as"] = places[row.same_as]
    if row.dropped is not None:
        changes["dropped"] = row.dropped.model_copy(update={"leader": places[row.dropped.leader]})
    return row.model_copy(update=changes)


def _row(search: CalibrationSearch, winner: int, number: int) -> JudgedSetting:
    racer = search.racers[number]
    choices = dict(racer.setting.choices)
    title = racer.setting.toolchain.title
    if racer.same_as is not None:
        return JudgedSetting(toolchain=title, choices=choices, standing="same", samples=0, same_as=racer.same_as)
    if racer.failed is not None:
        return JudgedSetting(toolchain=title, choices=choices, standing="failed", samples=0, failed=racer.failed)
    figures = racer.known
    behind = search.behind(winner, number) if number != winner else None
    dropped = _drop_of(search, winner, number)
    return JudgedSetting(
        toolchain=title,
        choices=choices,
        standing="dropped" if dropped is not None else _standing(behind),
        samples=len(figures.sqnr),
        metric=search.metric_of(figures),
        sqnr_db=figures.sqnr_estimate,
        agreement=figures.agreement,
        behind=behind,
        winner_there=search.value_on(winner, len(racer.figures)) if number != winner else None,
        dropped=dropped,
    )


def _standing(behind: Estimate | None) -> Standing:
    """By how far a setting is behind the winner, which is not behind itself."""
    if behind is None:
        return "best"
    return "behind" if behind.low > 0 else "as-good"


def _drop_of(search: CalibrationSearch, winner: int, number: int) -> Dropped | None:
    """Why it left the race; what did so with its last samples is compared with the winner on all of them instead."""
    assert search.race is not None
    drop = search.race.dropped.get(number)
    if drop is None or drop.parts == len(search.racers[winner].figures):
        return None
    behind = Estimate(value=drop.gap.loss, low=drop.gap.low, high=drop.gap.high)
    return Dropped(leader=drop.leader, behind=behind, confidence=STRICT)

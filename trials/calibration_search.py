"""The search for the calibration that suits a network best: every setting is built by its text, and judged."""

import math
from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.measure.models import Edited, Models
from quantmedic.collectors.metrics.metric import Metric
from quantmedic.engine.case.tallies import Tally
from quantmedic.engine.contract.advised_remedies import Configuration
from quantmedic.engine.contract.searches import Estimate, JudgedSetting, Standing
from quantmedic.engine.diagnosis.prescription import FILES, complete_code
from quantmedic.engine.errors import QuantmedicError, RuleError, failure_in_words
from quantmedic.engine.rules.toolchain import Toolchain
from quantmedic.engine.rules.toolchain_options import Options, merge_all, write
from quantmedic.engine.special_functions import binomial_share
from quantmedic.engine.text import suggest
from quantmedic.trials.bench import Bench, Runners, require_finite

Floats = NDArray[np.float64]
#: SQNR of an output without noise, in dB.
SILENT_DB = 120.0
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
    found = []
    for form, ways in toolchain.calibrations.items():
        for names in product(*ways.choices.values()):
            choices = dict(zip(ways.choices, names, strict=True))
            if not methods or choices.get(METHOD) in methods:
                rows = [ways.choices[kind][name] for kind, name in choices.items()]
                found.append(Setting(toolchain, form, choices, merge_all([*rows, ways.always])))
    return found


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


class Judge:
    """Samples, and how good networks are on them: by the metric, without labels by the median SQNR."""

    def __init__(
        self, models: Models, batches: Sequence[Batch], *, metric: Metric | None, threads: int, seed: int
    ) -> None:
        """Run the float network.

        Args:
            models: The float model, as both of a pair.
            batches: The samples.
            metric: Task metric of labelled samples.
            threads: Processor threads.
            seed: Seed of bootstrapped intervals.

        Raises:
            ModelError: The float model fails, or gives values that are not finite.
        """
        self._metric, self._seed, self._threads = metric, seed, threads
        self._names = [models.float_graph.outputs[i] for i, _ in models.match.outputs]
        run = require_finite(models.float_runner(threads), self._names, "the float model")
        runners = Runners(run, run)  # The deployed model of this pair is the float one.
        self._bench = Bench(models, batches, metric=metric, classes=None, threads=threads, whole=True, runners=runners)
        self.samples, self.float_value = self._bench.samples, self._bench.float_value

    def judge(self, made: Edited) -> Figures:
        """Figures of a model.

        Raises:
            ModelError: It fails, or gives values that are not finite.
        """
        run = require_finite(made.runner(self._threads), self._names, "the quantized model")
        outputs = self._bench.run_all(run)
        measured = self._bench.judge_outputs(outputs)
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.minimum(10 * np.log10(self._bench.power / measured.noise), SILENT_DB)
        sqnr = np.where(self._bench.power > 0, ratio, np.nan)
        return Figures(sqnr, self._bench.same_classes(outputs), measured.metric)

    def merit(self, figures: Figures) -> tuple[float, float]:
        """How good a model is, more being better, and of equal ones the less noise."""
        noise = _median(figures.sqnr).value
        if self._metric is None or figures.tally is None:
            return noise, noise
        value = self._metric.aggregate(figures.tally)
        return value if self._metric.higher_is_better else -value, noise

    def behind(self, best: Figures, other: Figures) -> Estimate:
        """How far a model is behind another, paired by sample."""
        if self._metric is None or best.tally is None or other.tally is None:
            return _median(best.sqnr - other.sqnr)
        value, low, high = self._metric.drop_interval(best.tally, other.tally, self._seed)
        return Estimate(value=value, low=low, high=high)

    def row_of(self, setting: Setting, figures: Figures | str, best: Figures) -> JudgedSetting:
        """What is kept of a setting, which failed where a reason stands for its figures."""
        row = JudgedSetting(toolchain=setting.toolchain.title, choices=dict(setting.choices), standing="failed")
        if isinstance(figures, str):
            return row.model_copy(update={"failed": figures})
        behind = None if figures is best else self.behind(best, figures)
        found: dict[str, object] = {
            "standing": _standing(behind),
            "metric": self._metric_of(figures),
            "sqnr_db": _median(figures.sqnr),
            "agreement": None if figures.same is None else float(figures.same.mean()),
            "behind": behind,
        }
        return row.model_copy(update=found)

    def _metric_of(self, figures: Figures) -> Estimate | None:
        if self._metric is None or figures.tally is None:
            return None
        low, high = self._metric.kind.value_interval(figures.tally, confidence=SHOWN, seed=self._seed)
        return Estimate(value=self._metric.aggregate(figures.tally), low=low, high=high)


def judge_settings(
    settings: Sequence[Setting],
    make: Callable[[str], Edited],
    judge: Judge,
    progress: Callable[[int], None] = lambda done: None,
) -> list[tuple[Setting, JudgedSetting]]:
    """Build and judge all settings; the best first, then by standing and by how far they are behind it.

    Args:
        settings: What is searched.
        make: Gives the model that a text makes.
        judge: Judges it.
        progress: Called with the number of settings that are done.
    """
    found: list[Figures | str] = []
    for setting in settings:
        try:
            found.append(judge.judge(make(setting.configuration.code)))
        except QuantmedicError as error:
            found.append(failure_in_words(error))
        progress(len(found))
    judged = [figures for figures in found if not isinstance(figures, str)]
    best = max(judged, key=judge.merit, default=Figures(np.zeros(0), None, None))
    rows = [(setting, judge.row_of(setting, figures, best)) for setting, figures in zip(settings, found, strict=True)]
    return sorted(rows, key=lambda own: _place(own[1]))


def _place(row: JudgedSetting) -> tuple[int, float]:
    return get_args(Standing).index(row.standing), 0.0 if row.behind is None else row.behind.value


def _standing(behind: Estimate | None) -> Standing:
    """By how far a setting is behind the winner, which is not behind itself."""
    if behind is None:
        return "best"
    return "behind" if behind.low > 0 else "as-good"


def _median(values: Floats) -> Estimate:
    """Median of what is known, with its interval; -inf where nothing is."""
    known = values[~np.isnan(values)]
    low, high = median_interval(known, SHOWN)
    return Estimate(value=float(np.median(known)) if len(known) else -math.inf, low=low, high=high)


def median_interval(values: Floats, confidence: float) -> tuple[float, float]:
    """Interval of the median by order statistics (Thompson 1936): exact for every distribution, infinite for too few.

    Args:
        values: One per sample.
        confidence: Coverage, at least.
    """
    n = len(values)
    rank = bisect_right(range(n // 2 + 1), (1 - confidence) / 2, key=lambda k: binomial_share(k, n, 0.5)) - 1
    if rank < 0:
        return -math.inf, math.inf
    ordered = np.sort(values)
    return float(ordered[rank]), float(ordered[n - 1 - rank])

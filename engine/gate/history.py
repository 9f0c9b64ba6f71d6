"""Figures of earlier checks, and how they changed."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from quantmedic.engine.case.facts import ModelFacts
from quantmedic.engine.contract.check import Better, Figure, GateLine, HistoryRun, Trend
from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.engine.errors import HistoryError
from quantmedic.engine.metrics.kinds import is_share
from quantmedic.engine.rules.rule import Severity

#: What a gate measures, as the history calls it, and which way is better.
_OF_GATES: dict[str, tuple[str, str, Better]] = {
    "accuracy": ("accuracy", "drop", "lower"),
    "agreement": ("agreement", "agreement", "higher"),
    "sqnr": ("sqnr", "sqnr_db", "higher"),
    "coverage": ("coverage", "coverage", "higher"),
    "findings": ("findings", "findings", "lower"),
}
_DIRECTIONS: dict[bool | None, Better | None] = {True: "higher", False: "lower", None: None}
_COUNTED: tuple[Severity, ...] = ("high", "medium", "low")


@dataclass(frozen=True)
class Shift:
    """A figure against the one before it.

    Attributes:
        run: Number of the run that it is compared with.
        by: Present value minus the earlier one, in the figure's unit; infinite where one of them is.
        low: Lower end of its interval, None where one of both has none.
        high: Upper end of that interval.
    """

    run: int
    by: float
    low: float | None = None
    high: float | None = None

    @property
    def is_proven(self) -> bool | None:
        """Zero lies outside the interval; None where there is none."""
        return None if self.low is None or self.high is None else not self.low <= 0 <= self.high


@dataclass(frozen=True)
class Series:
    """One figure over the runs of a trend.

    Attributes:
        name: Name of the figure.
        unit: Its unit; a figure whose unit changed, as budgets may, makes two series.
        better: Which way is better, None where neither is.
        runs: Runs of the trend that hold it, oldest first, with their places in the trend.
        figures: The figure in each of them.
    """

    name: str
    unit: str | None
    better: Better | None
    runs: tuple[tuple[int, HistoryRun], ...]
    figures: tuple[Figure, ...]

    @property
    def is_count(self) -> bool:
        """Whole numbers of something, such as findings: a change is one, however small."""
        return self.unit is None and all(figure.value.is_integer() for figure in self.figures)

    @property
    def lowest(self) -> float:
        """Least value of all runs."""
        return min(figure.value for figure in self.figures)

    @property
    def highest(self) -> float:
        """Largest value of all runs."""
        return max(figure.value for figure in self.figures)

    @property
    def shift(self) -> Shift | None:
        """The last figure against the one before; None where there is one alone.

        The interval of the difference is that of two independent measurements, from the ends of both intervals by
        square-and-add (Zou and Donner 2008, doi:10.1002/sim.3095). Runs on the same samples are correlated, so that it
        is rather too wide: noise is not called a change.
        """
        if len(self.figures) < 2:
            return None
        before, now = self.figures[-2:]
        by = 0.0 if now.value == before.value else now.value - before.value
        ends = _difference_interval(now, before) if math.isfinite(by) else None
        low, high = ends if ends is not None else (None, None)
        return Shift(self.runs[-2][1].number, by, low, high)


def _difference_interval(now: Figure, before: Figure) -> tuple[float, float] | None:
    if now.low is None or now.high is None or before.low is None or before.high is None:
        return None
    by = now.value - before.value
    below = math.hypot(now.value - now.low, before.high - before.value)
    above = math.hypot(now.high - now.value, before.value - before.low)
    return by - below, by + above


def series_of(trend: Trend) -> tuple[Series, ...]:
    """Figures over the runs: those with a limit first, then in the order of the last run that holds them."""
    found: dict[tuple[str, str | None], list[tuple[int, HistoryRun, Figure]]] = {}
    for place, run in reversed(list(enumerate(trend.runs))):
        for figure in run.figures:
            found.setdefault((figure.name, figure.unit), []).append((place, run, figure))
    rows = [list(reversed(row)) for row in found.values()]
    rows.sort(key=lambda row: (row[-1][2].limit is None, -row[-1][0]))  # stable: else in the order of the run
    return tuple(
        Series(
            name=row[-1][2].name,
            unit=row[-1][2].unit,
            better=row[-1][2].better,
            runs=tuple((place, run) for place, run, _ in row),
            figures=tuple(figure for _, _, figure in row),
        )
        for row in rows
    )


def select_figures(trend: Trend, names: Sequence[str]) -> Trend:
    """The trend with these figures alone; ``drop`` also stands for ``drop top1``. Without names, all of it.

    Raises:
        HistoryError: No run holds a figure of that name.
    """
    if not names:
        return trend
    known = list(dict.fromkeys(figure.name for run in trend.runs for figure in run.figures))
    kept = {one for name in names for one in _match_figures(name, known)}
    runs = tuple(
        run.model_copy(update={"figures": tuple(figure for figure in run.figures if figure.name in kept)})
        for run in trend.runs
    )
    return trend.model_copy(update={"runs": runs})


def _match_figures(name: str, known: Sequence[str]) -> list[str]:
    found = [one for one in known if one == name] or [one for one in known if one.startswith(f"{name} ")]
    if found:
        return found
    near = get_close_matches(name, known, n=1, cutoff=0.5)
    raise HistoryError(
        f"no run holds a figure called {name!r}",
        help=f"did you mean {near[0]!r}?" if near else f"figures: {', '.join(map(repr, known)) or 'none'}",
    )


def figures_of(diagnosis: Diagnosis) -> tuple[Figure, ...]:
    """What a run adds to the history: the figures that gates judged, with limit and interval, then the diagnosis's.

    Only what was measured; the units are those of the gates: shares are percent, drops of shares are points.
    """
    asked = _gate_figures(diagnosis.check.gates) if diagnosis.check is not None else ()
    figures: dict[str, Figure] = {}
    for figure in (*asked, *_diagnosis_figures(diagnosis)):
        if not math.isnan(figure.value):
            figures.setdefault(figure.name, figure)
    return tuple(figures.values())


def _gate_figures(gates: Iterable[GateLine]) -> Iterator[Figure]:
    for gate in gates:
        if gate.kind not in _OF_GATES or gate.value is None:
            continue
        prefix, name, better = _OF_GATES[gate.kind]
        yield Figure(
            name=f"{name}{gate.name.removeprefix(prefix)}",
            unit=None if gate.unit == "absolute" else gate.unit,
            value=gate.value,
            low=_finite_end(gate.low),
            high=_finite_end(gate.high),
            limit=_finite_end(gate.limit),
            better=better,
        )


def _worst_level(model: ModelFacts) -> float | None:
    """Of the worst column or operand of any output; of an output as a whole in reports that do not have it."""
    return model.output_sqnr_db if model.output_worst_sqnr_db is None else model.output_worst_sqnr_db


def _diagnosis_figures(diagnosis: Diagnosis) -> Iterator[Figure]:
    yield from _metric_figures(diagnosis)
    model = diagnosis.model
    yield from _known_figure("agreement", model.output_agreement, "%", "higher", scale=100)
    yield from _known_figure("sqnr_db", _worst_level(model), "dB", "higher")
    if len(diagnosis.outputs) > 1:
        for output in diagnosis.outputs:
            yield from _known_figure(f"sqnr_db {output.name}", output.worst_sqnr_db, "dB", "higher")
    yield from _known_figure("coverage", model.quantized_share, "%", "higher", scale=100)
    if diagnosis.causes or diagnosis.passed:  # else no rule could be judged: 0 causes would mean nothing
        for severity in _COUNTED:
            found = sum(cause.severity == severity for cause in diagnosis.causes)
            yield from _known_figure(f"causes {severity}", found, None, "lower")
    yield from _known_figure("degraded layers", model.degraded_layers, None, "lower")
    yield from _known_figure("size ratio", model.size_ratio, "ratio", "lower")
    yield from _known_figure("latency ratio", model.latency_ratio, "ratio", "lower")


def _metric_figures(diagnosis: Diagnosis) -> Iterator[Figure]:
    metric = diagnosis.metrics
    in_percent = is_share(metric.name)
    scale = 100 if in_percent else 1
    if metric.drop is not None and not math.isnan(metric.drop):
        low, high = (None if end is None else _finite_end(scale * end) for end in (metric.drop_low, metric.drop_high))
        yield Figure(
            name=f"drop {metric.name}",
            unit="points" if in_percent else None,
            value=scale * metric.drop,
            low=low,
            high=high,
            better="lower",
        )
    for whose, value in (("quantized", metric.quantized_value), ("float", metric.float_value)):
        yield from _known_figure(
            f"{whose} {metric.name}",
            value,
            "%" if in_percent else None,
            _DIRECTIONS[metric.higher_is_better],
            scale=scale,
        )


def _known_figure(
    name: str, value: float | None, unit: str | None, better: Better | None, *, scale: float = 1
) -> Iterator[Figure]:
    if value is not None:
        yield Figure(name=name, unit=unit, value=scale * value, better=better)


def _finite_end(value: float | None) -> float | None:
    return None if value is None or math.isnan(value) else value

"""What became of the network's accuracy between two cases, and the one word for it."""

from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np
from pydantic import Field

from quantmedic.engine.case.facts import MetricFacts, OutputFacts, Role
from quantmedic.engine.case.records import Case, CaseRecord
from quantmedic.engine.case.statistics import SetStatistics
from quantmedic.engine.case.tallies import Tally
from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.engine.diagnosis.previous import level_gain
from quantmedic.engine.formulas.task_metric import metric_tallies
from quantmedic.engine.formulas.texts import pair_texts
from quantmedic.engine.json_record import Contract
from quantmedic.engine.metrics.kinds import kind_of
from quantmedic.engine.metrics.paired import independent_difference

#: The comparison in one word; ``answer`` says when which is chosen.
Word = Literal["healed", "broken", "better", "worse", "mixed", "unchanged", "undecided", "not-comparable"]
Direction = Literal["better", "worse", "same"]
#: Metrics are paired where the samples in both cases are at least this share of the smaller set.
PAIRED_SHARE = 0.5


class MetricChange(Contract):
    """The task metric of both quantized models; better is a positive gain."""

    name: str
    gain: float = Field(
        description="paired: metric after - before on the same samples; else drop before - drop after; sign turned "
        "where lower is better"
    )
    low: float = Field(
        description="lower end of its 95 % interval: corrected paired score interval (Tango 1998) for 0/1 metrics, "
        "seeded studentized bootstrap else; unpaired: square-and-add of both drops' intervals (Zou and Donner 2008)"
    )
    high: float = Field(description="upper end of that interval")
    paired: bool = Field(description="measured on the same samples, by content and label")
    samples: int = Field(description="paired: samples that both saw; else the smaller of both sets")
    direction: Direction = Field(description="better or worse only where the whole interval lies on one side of zero")
    before: float | None = Field(None, description="paired: the metric before, on the samples that both saw")
    after: float | None = Field(None, description="the same after")


class OutputChange(Contract):
    """The accumulated SQNR of one output of the network."""

    name: str | None
    before: float | None = Field(description="sqnr_db of the accumulated error before")
    after: float | None = Field(description="the same after")
    gain_db: float | None = Field(description="after - before; 0 where both are without error")
    direction: Direction | None = Field(
        description="better or worse from the threshold previous_effect_db on; None where the samples are not the same"
    )


def metric_change(
    before: Case, after: Case, then: MetricFacts, now: MetricFacts, *, same_float: bool
) -> MetricChange | None:
    """How the task metric changed; None where the two did not measure the same one.

    On different samples only the drops can be compared, and those only of one float model.
    """
    if then.drop is None or now.drop is None or not is_same_metric(before, after):
        return None
    assert then.dataset is not None and now.dataset is not None and now.name is not None
    pairs = _pair_cases(before, after, then.dataset, now.dataset)
    smaller = min(then.samples or 0, now.samples or 0)
    if len(pairs[0]) >= max(PAIRED_SHARE * smaller, 1):
        seed = int(after.record.run.get("seed", 0))
        kind = kind_of(now.name)
        drop, low, high = kind.drop_interval(*pairs, higher_is_better=bool(now.higher_is_better), seed=seed)
        change = _metric_change(now.name, -drop, -high, -low, paired=True, samples=len(pairs[0]))
        return change.model_copy(update={"before": kind.value(pairs[0]), "after": kind.value(pairs[1])})
    ends = (then.drop_low, then.drop_high, now.drop_low, now.drop_high)
    if not same_float or any(end is None for end in ends):
        return None
    gain, low, high = independent_difference(
        (then.drop, *ends[:2]),  # type: ignore[arg-type]
        (now.drop, *ends[2:]),  # type: ignore[arg-type]
    )
    return _metric_change(now.name, gain, low, high, paired=False, samples=smaller)


def is_same_metric(before: Case, after: Case) -> bool:
    """Both measured the same metric of the same output."""
    old, new = before.record, after.record
    return _metric_of(old) == _metric_of(new)


def _metric_of(record: CaseRecord) -> tuple[object, ...]:
    told = (record.run.get("metric_output"), record.run.get("metric_options"))
    return record.metric, record.metric_higher_is_better, *told


def _metric_change(name: str, gain: float, low: float, high: float, *, paired: bool, samples: int) -> MetricChange:
    direction: Direction = "better" if low > 0 else "worse" if high < 0 else "same"
    ends = {"gain": gain + 0.0, "low": low + 0.0, "high": high + 0.0}  # no negative zero
    return MetricChange(name=name, **ends, paired=paired, samples=samples, direction=direction)


def _pair_cases(before: Case, after: Case, then: Role, now: Role) -> tuple[Tally, Tally]:
    """The metric of both quantized models on what both cases saw: samples, or texts."""
    if then in before.statistics and now in after.statistics:
        return _pair_samples(before.statistics[then], after.statistics[now])
    return pair_texts(before.record.model.language, after.record.model.language)


def _pair_samples(then: SetStatistics, now: SetStatistics) -> tuple[Tally, Tally]:
    """The metric of both quantized models on samples of the same content and label, repetitions one by one."""
    (old, before), (new, after) = (_places_of_samples(statistics) for statistics in (then, now))
    shared = [key for key in old if key in new]  # in the order of the keys, whatever that of the samples
    rows = (np.array([places[key] for key in shared], np.int64) for places in (old, new))
    first, second = (tally.take(own) for tally, own in zip((before, after), rows, strict=True))
    return first, second


def _places_of_samples(statistics: SetStatistics) -> tuple[dict[tuple[int, int, int], int], Tally]:
    """Places in the table of the samples that both models have a metric of, by content, label and repetition."""
    found: dict[tuple[int, int, int], int] = {}
    seen: dict[tuple[int, int], int] = {}
    floats, quantized = metric_tallies(statistics)
    usable = np.flatnonzero(floats.known & quantized.known)
    samples, level = statistics.samples[usable], quantized.sums()[usable, 0]
    order = np.lexsort((level, samples["label"], samples["hash"]))
    columns = (samples["hash"][order].tolist(), samples["label"][order].tolist(), usable[order].tolist())
    for content, label, place in zip(*columns, strict=True):
        repetition = seen.get((content, label), 0)
        seen[content, label] = repetition + 1
        found[content, label, repetition] = place
    return found, quantized


def output_changes(
    then: Sequence[OutputFacts], now: Sequence[OutputFacts], *, same_data: bool, margin_db: float
) -> tuple[OutputChange, ...]:
    """The outputs by name, or one by one where names differ and their number does not.

    Args:
        then: Outputs of the first case.
        now: Outputs of the second.
        same_data: Both were measured on the same samples, so that levels can be compared.
        margin_db: Least change that counts.
    """
    names = {output.name: output for output in then}
    by_place = not any(output.name in names for output in now) and len(then) == len(now)
    pairs = zip(then, now, strict=True) if by_place else ((names[o.name], o) for o in now if o.name in names)
    found = []
    for old, new in pairs:
        levels = (old.tensor.data.accumulated.sqnr_db, new.tensor.data.accumulated.sqnr_db)
        gain = level_gain(*levels)
        direction = _direction(gain, margin_db) if same_data and gain is not None else None
        found.append(OutputChange(name=new.name, before=levels[0], after=levels[1], gain_db=gain, direction=direction))
    return tuple(found)


def _direction(gain: float, margin: float) -> Direction:
    return "same" if abs(gain) < margin else "better" if gain > 0 else "worse"


def direction_of(signs: Iterable[Direction | None]) -> Direction | Literal["mixed"] | None:
    """Several measurements together; None where there is none."""
    known = {sign for sign in signs if sign is not None}
    if {"better", "worse"} <= known:
        return "mixed"
    return next((sign for sign in ("better", "worse", "same") if sign in known), None)


def answer(
    before: Diagnosis,
    after: Diagnosis,
    measured: Direction | Literal["mixed"] | None,
    causes: Direction | Literal["mixed"] | None,
    *,
    all_healed: bool,
    all_new: bool,
) -> Word:
    """The comparison in one word.

    ``not-comparable``: one of the verdicts is, or one quantization failed. ``healed``: the verdict went from degraded
    to healthy, and the network is measurably better, if not by every measure (a cured task may have noisier outputs),
    or it is not worse and every cause of medium or high severity healed; ``broken`` is the same the other way. Else
    what was measured decides; where nothing was, as between cases without data, the causes of medium or high severity
    do. ``unchanged``: no change is proven. ``undecided``: nothing that both measured can decide.

    Args:
        before: The first diagnosis.
        after: The second.
        measured: Metric and outputs together.
        causes: The causes of medium and high severity together; None where the two cannot be compared by causes.
        all_healed: There were such causes before, and all of them are judged and gone.
        all_new: The same the other way.
    """
    if {"not-comparable", "failed"} & {before.verdict, after.verdict}:
        return "not-comparable"
    verdicts = (before.verdict, after.verdict)
    change = causes if measured is None else measured
    if verdicts == ("degraded", "healthy") and (
        measured in ("better", "mixed") or (all_healed and change in ("same", "better"))
    ):
        return "healed"
    if verdicts == ("healthy", "degraded") and (
        measured in ("worse", "mixed") or (all_new and change in ("same", "worse"))
    ):
        return "broken"
    if change is None:
        return "undecided"
    return "unchanged" if change == "same" else change

"""Facts of what the user gave beside models and data: outputs of the framework and of the device, and stage models."""

import math
from collections.abc import Sequence
from itertools import pairwise

from quantmedic.engine.case.facts import ComparisonFacts, DeviceFacts, LayerFacts, StageFacts
from quantmedic.engine.case.output_comparison import Comparison, comparison_facts, noise_ratio
from quantmedic.engine.case.records import Case
from quantmedic.engine.case.statistics import SetStatistics
from quantmedic.engine.formulas.device_tensors import departing_facts
from quantmedic.engine.formulas.task_metric import metric_tallies
from quantmedic.engine.metrics.kinds import is_share, kind_of


def outside_facts(case: Case, layers: Sequence[LayerFacts]) -> dict[str, object]:
    """Fields of ``ModelFacts``; those of what was not given stay as they are."""
    facts: dict[str, object] = {}
    departing = departing_facts(case, layers)
    if departing:
        facts["device"] = DeviceFacts().model_copy(update=departing)
    for statistics in case.statistics.values():
        if reference := _comparisons_of(statistics, "reference"):
            facts["reference"] = comparison_facts(reference)
        if device := _comparisons_of(statistics, "device"):
            here = _comparisons_of(statistics, "output")
            more = departing | _recording_facts(case, here) | _device_metric(case, statistics, device[0])
            facts["device"] = _device_facts(device, here).model_copy(update=more)
        if _comparisons_of(statistics, "stage.0"):
            facts |= _stages(case, statistics)
    return facts


def _recording_facts(case: Case, here: Sequence[Comparison]) -> dict[str, object]:
    """Where the outputs of the device were recorded, and how good they were there."""
    found = case.record.recording
    if found is None:
        return {}
    facts: dict[str, object] = {
        "runtime": found.runtime,
        "processor": found.processor,
        "recorded_sqnr_db": found.sqnr_db,
    }
    own = comparison_facts(here).sqnr_db
    return facts | ({"recorded_gain_db": found.sqnr_db - own} if own is not None and found.sqnr_db is not None else {})


def _comparisons_of(statistics: SetStatistics, kind: str) -> list[Comparison]:
    """Comparisons of one kind, by output; of an output that was not given an empty one."""
    numbers = [int(key.rpartition(".")[2]) for key in statistics.comparisons if key.rpartition(".")[0] == kind]
    return [statistics.comparisons.get(f"{kind}.{i}", Comparison.empty(1)) for i in range(max(numbers, default=-1) + 1)]


def _device_facts(device: Sequence[Comparison], outputs: Sequence[Comparison]) -> DeviceFacts:
    known = list(outputs[: len(device)])
    known += [Comparison.empty(1)] * (len(device) - len(known))
    return DeviceFacts(**comparison_facts(device).model_dump(), noise_ratio=noise_ratio(device, known))


def _stages(case: Case, statistics: SetStatistics) -> dict[str, object]:
    stages: list[StageFacts] = []
    added: list[float | None] = []
    for k, record in enumerate(case.record.stages):
        found = _comparisons_of(statistics, f"stage.{k}")
        facts = comparison_facts(found)
        # The second stage has but one before it, and the first has none.
        step = _comparisons_of(statistics, f"step.{k}") if k > 1 else found if k else []
        before = _comparisons_of(statistics, f"stage.{k - 1}") if k > 1 else []
        added.append(noise_ratio(step, before) if before else None)
        known = facts.model_dump() if k else {"samples": facts.samples}
        stages.append(
            StageFacts(
                **known,
                name=record.name,
                previous_sqnr_db=comparison_facts(step).sqnr_db,
                metric=_stage_metric(case, found),
            )
        )
    return {"stages": tuple(stages), **_float_stage(case, stages), **_worst_stage(case, stages, added)}


def _stage_metric(case: Case, found: Sequence[Comparison]) -> float | None:
    """The task metric stands with the first output."""
    mean = found[0].mean_metric if found else None
    return None if mean is None else kind_of(case.record.metric).mean_of(mean)


def _device_metric(case: Case, statistics: SetStatistics, device: Comparison) -> dict[str, object]:
    """The task metric of the device, and what that loses against the quantized model."""
    found = _stage_metric(case, [device])
    if found is None:
        return {}
    name, higher = case.record.metric, case.record.metric_higher_is_better
    floats, quantized = (kind_of(name).value(tally) for tally in metric_tallies(statistics))
    loss = quantized - found if higher is not False else found - quantized
    return {"metric": found, "metric_loss": loss if is_share(name) else loss / abs(floats) if floats else None}


def _float_stage(case: Case, stages: Sequence[StageFacts]) -> dict[str, object]:
    """The float stage that departs most from the first, if there is a second float stage."""
    floats = [
        (stage.relative_difference, stage)
        for record, stage in zip(case.record.stages, stages, strict=True)
        if not record.is_quantized and stage.relative_difference is not None
    ]
    if not floats or case.record.stages[0].is_quantized:
        return {}
    difference, stage = max(floats, key=lambda pair: pair[0])
    return {"float_stage": stage.name, "float_stage_difference": difference}


def _worst_stage(case: Case, stages: Sequence[StageFacts], added: Sequence[float | None]) -> dict[str, object]:
    """Of the stages made from a quantized one, the one that adds most noise to what it found."""
    found = [
        (ratio, before, stage)
        for record, (before, stage), ratio in zip(case.record.stages, pairwise(stages), added[1:], strict=False)
        if record.is_quantized and ratio is not None
    ]
    if not found:
        return {}
    ratio, before, stage = max(found, key=lambda entry: entry[0])
    return {
        "worst_stage": stage.name,
        "worst_stage_noise_ratio": ratio,
        "worst_stage_agreement": stage.agreement,
        "worst_stage_sqnr_db": stage.sqnr_db,
        "worst_stage_drop_db": _fall(before, stage),
    }


def _fall(before: ComparisonFacts, after: ComparisonFacts) -> float | None:
    """Decibels lost from one stage to the next; None where one of them has no noise at all."""
    levels = (before.sqnr_db, after.sqnr_db)
    if any(level is None or not math.isfinite(level) for level in levels):
        return None
    return levels[0] - levels[1]  # type: ignore[operator]

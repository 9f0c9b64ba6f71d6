"""A repaired model beside the one it was made from."""

from collections.abc import Iterator

from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.reports.sections.proof import signed_gain
from quantmedic.reports.text import count, decibels, first_few, metric_label, metric_value, percent, visible

#: Causes that are left, by name.
CAUSES_NAMED = 3


def fixed_lines(before: Diagnosis, after: Diagnosis, name: str) -> Iterator[str]:
    """Lines for the console: what the repaired model measures against the float one, before and after."""
    yield ""
    yield f"{visible(name)}, diagnosed on the same {_judged_set(before)}: {before.verdict} → {after.verdict}"
    metric = before.metrics.name
    if before.metrics.quantized_value is not None and after.metrics.quantized_value is not None:
        old, new, goal = (
            metric_value(value, metric)
            for value in (before.metrics.quantized_value, after.metrics.quantized_value, before.metrics.float_value)
        )
        yield f"  {metric_label(metric):12} {old} → {new}   float {goal}"
    if before.model.output_agreement is not None and after.model.output_agreement is not None:
        old, new = (percent(d.model.output_agreement) for d in (before, after))
        yield f"  {'agreement':12} {old} → {new}"
    for old_output, new_output in zip(before.outputs, after.outputs, strict=False):
        old_db, new_db = (output.tensor.data.accumulated.sqnr_db for output in (old_output, new_output))
        yield f"  {'output SQNR':12} {decibels(old_db)} → {decibels(new_db)}   {visible(old_output.name or '')}"
    old_db, new_db = (diagnosis.model.output_worst_sqnr_db for diagnosis in (before, after))
    pooled = (before.model.output_sqnr_db, after.model.output_sqnr_db)
    if old_db is not None and new_db is not None and (old_db, new_db) != pooled:
        yield f"  {'worst part':12} {decibels(old_db)} → {decibels(new_db)}   of all outputs, columns and operands"
    was, serious = (_named(diagnosis, serious=True) for diagnosis in (before, after))
    minor = _named(after, serious=False)
    left = [first_few(serious, CAUSES_NAMED)] if serious else []
    left += [f"{len(minor)} low left: {first_few(minor, CAUSES_NAMED)}"] if minor else []
    named = f" ({'; '.join(left)})" if left else ""
    yield f"  serious causes  {len(was)} → {len(serious)}{named}"


def calibration_lines(before: Diagnosis) -> Iterator[str]:
    """A line where the repaired model was calibrated on samples that judge it; nothing elsewhere."""
    run = before.prescription.executed if before.prescription is not None else None
    if before.proof is None or before.proof.best is None or run is None or before.proof.dataset not in run.reads:
        return
    gain = decibels(run.trial.gain_db, "+")
    others = f"on the {count(run.trial.samples, 'sample')} that did not calibrate it, it gains {gain}"
    yield f"  samples of the {before.proof.dataset} set calibrated it, and count above; {others}"
    if (tried := run.trial.metric) is not None:
        old, new, goal = (metric_value(value, tried.name) for value in (tried.before, tried.after, tried.float_model))
        low, high = (signed_gain(value, tried.name) for value in (tried.low, tried.high))
        yield f"  {metric_label(tried.name):12} of these {old} → {new}   float {goal}   gain {low} … {high}"


def _judged_set(before: Diagnosis) -> str:
    """The data set that judges both models."""
    roles = [dataset.role for dataset in before.datasets]
    return f"{'validation' if 'validation' in roles else 'representative'} data"


def _named(diagnosis: Diagnosis, *, serious: bool) -> list[str]:
    """Causes of high or medium severity, or all others, with their rules."""
    found = [cause for cause in diagnosis.causes if cause.is_serious == serious]
    return [visible(" ".join([*cause.rules[:1], cause.shown])) for cause in found]

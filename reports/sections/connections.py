"""What a cause has to do with the other causes and with the prescription: one defect may have several names."""

from collections.abc import Iterator

from quantmedic.engine.contract.causes import CauseReport
from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.reports.text import name, percent, visible

#: Two causes are about the same noise where they share this part of what either names.
SAME = 0.5
CAUSES_SHOWN = 3


def connections(cause: CauseReport, diagnosis: Diagnosis) -> tuple[str, ...]:
    """What else is about the noise of a cause, as sentences."""
    return (*_same_noise(cause, diagnosis), *_other_cure(cause, diagnosis))


def _same_noise(cause: CauseReport, diagnosis: Diagnosis) -> Iterator[str]:
    """Other causes whose layers and tensors make the same noise."""
    lines = diagnosis.loss_budget.lines if diagnosis.loss_budget is not None else ()
    held = {each.cause: sum(abs(x.share) for x in lines if each.cause in x.causes) for each in diagnosis.causes}
    found = []
    for other in diagnosis.causes:
        both = sum(abs(line.share) for line in lines if {cause.cause, other.cause} <= set(line.causes))
        if other.cause != cause.cause and both and both >= SAME * max(held[cause.cause], held[other.cause]):
            found.append(other)
    if found:
        names = ", ".join(f"{visible(other.rules[0])} {name(other.shown)}" for other in found[:CAUSES_SHOWN])
        advice = "One remedy may be enough for both."
        if not _is_of_data(cause) and any(map(_is_of_data, found)):
            advice = "If the data are wrong, they come first: with the same data, a remedy for this may change nothing."
        yield f"The same noise has another name: {names}. {advice}"


def _is_of_data(cause: CauseReport) -> bool:
    return any(rule.startswith("D") for rule in cause.rules)


def _other_cure(cause: CauseReport, diagnosis: Diagnosis) -> Iterator[str]:
    """The prescription recovers the loss by another remedy than those of the cause."""
    given = diagnosis.prescription
    if given is None or given.executed is None or given.grade != "executed" or not cause.is_serious:
        return
    share = given.executed.trial.share
    if share is None or share < SAME or any(cause.cause in step.causes for step in given.steps):
        return
    titles = " and ".join(visible(step.title) for step in given.steps)
    yield f"The prescription removes {percent(share, 0)} of the noise in another way: {titles}. It comes first."

"""Harm in words: what a cause costs now, and what is not decided."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from quantmedic.engine.contract.causes import CauseReport
from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.engine.contract.harm import Harm, Undecided
from quantmedic.engine.gate.budget import rounded_up
from quantmedic.reports.text import count, decibels, metric_change, metric_label, number

HARMS: Mapping[Harm, str] = {"proven": "costs accuracy", "latent": "withstood for now", "none": "costs nothing"}
#: Of a latent cause where it is open whether the network withstands it.
OPEN = "not decided"
#: Where no metric was measured, harm is seen in the outputs.
HARMFUL = "harms the outputs"
DECIDE = "A task metric would decide: give a validation set with labels."


@dataclass(frozen=True)
class LatentGroup:
    """Causes that no proven loss comes from."""

    title: Annotated[str, "what these causes have in common"]
    text: Annotated[str, "what that means, as a sentence"]
    folded: Annotated[bool, "they need not be read: the network withstands them"]


def harm_text(cause: CauseReport, diagnosis: Diagnosis) -> str:
    """What the cause costs now, in two or three words; empty where that was not measured."""
    if cause.harm is None:
        return ""
    if cause.harm == "latent" and diagnosis.verdict == "undecided":
        return OPEN
    if cause.harm == "proven" and diagnosis.evidence_strength.statement != "proven":
        return HARMFUL
    return HARMS[cause.harm]


def latent_group(diagnosis: Diagnosis) -> LatentGroup | None:
    """What stands above the latent causes; None where there are none."""
    if not any(cause.harm == "latent" for cause in diagnosis.causes):
        return None
    if diagnosis.verdict == "undecided":
        return LatentGroup(OPEN, "Whether the noise that a repair recovers costs accuracy is open.", folded=False)
    text = "No loss that matters is proven of what stands here. Its repair recovers noise that a harder task may feel."
    return LatentGroup(HARMS["latent"], text, folded=True)


def withstood_text(diagnosis: Diagnosis) -> str:
    """What is to be had of a healthy network, as a sentence; empty where nothing is."""
    latent = [cause for cause in diagnosis.causes if cause.harm == "latent"]
    gains = [cause.measured_gain_db or cause.predicted_gain_db or 0.0 for cause in latent]
    if not gains:
        return ""
    what = count(len(latent), "cause")
    return f"The model withstands {what} of noise for now; {decibels(max(gains))} of it are to be had."


def undecided_text(found: Undecided) -> str:
    """What is open, and what would decide."""
    gain = f"a repair recovers {decibels(found.gain_db)} of noise"
    if found.limit is None:
        return f"Whether quantization costs accuracy is undecided: {gain}, and no task metric was measured. {DECIDE}"
    limit = metric_change(found.limit, found.metric)
    open_ = f"the interval of the drop holds a loss that matters, more than {limit}, and one that does not"
    return (
        f"Whether quantization costs {metric_label(found.metric)} is undecided: {gain}, and {open_}. {_samples(found)}"
    )


def _samples(found: Undecided) -> str:
    now = f"now {number(found.samples)}"
    if found.needed is None:
        return f"If the drop stays as measured, it takes more than {found.most} labelled samples to decide ({now})."
    return f"If the drop stays as measured, about {rounded_up(found.needed)} labelled samples decide ({now})."

"""Harm in words: what the drop of the task metric means, what a cause costs now, and what is not decided."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from quantmedic.engine.case.facts import MetricFacts
from quantmedic.engine.contract.causes import CauseReport
from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.engine.contract.harm_report import Harm, Undecided
from quantmedic.engine.gate.budget import rounded_up
from quantmedic.engine.metrics.kinds import is_share
from quantmedic.reports.text import (
    NOT_MEASURED,
    bare_change,
    capital,
    count,
    decibels,
    loss_word,
    metric_change,
    metric_label,
    metric_value,
    number,
    percent,
)

HARMS: Mapping[Harm, str] = {"proven": "costs accuracy", "assumed": "no accuracy cost yet", "none": "costs nothing"}
#: Of a cause of assumed harm where it is open whether the network withstands it.
OPEN = "undecided"
#: Where no metric was measured, harm is seen in the outputs.
HARMFUL = "harms the outputs"
#: How notices on labels begin that no metric read.
UNUSED = "the labels were not used"
CLEAR_FIRST = "Fix that first: until then no figure here measures the cost of quantization."
DECIDE = "A task metric would decide: give a validation set with labels."


@dataclass(frozen=True)
class AssumedGroup:
    """Causes that no proven loss comes from."""

    title: Annotated[str, "what these causes have in common"]
    text: Annotated[str, "what that means, as a sentence"]
    folded: Annotated[bool, "they need not be read: the network withstands them"]


@dataclass(frozen=True)
class Drop:
    """The task metric of both models and what lies between."""

    metric: Annotated[str, "name of the metric"]
    float_value: Annotated[str, "metric of the float model"]
    quantized_value: Annotated[str, "metric of the quantized model"]
    word: Annotated[str, "drop, or rise where less of the metric is better; gain where the model got better"]
    change: Annotated[str, "size of what the word names"]
    interval: Annotated[str, "both ends with one unit"]
    samples: Annotated[str, "samples that it was measured on"]
    dataset: Annotated[str, "data set that it was measured on"]


def metric_drop(metrics: MetricFacts) -> Drop | None:
    """Of what was measured; None where that is not both models' metric."""
    if metrics.drop is None:
        return None
    ends, turn = (metrics.drop_low, metrics.drop_high), 1.0
    is_told = metric_change(-metrics.drop, metrics.name) != metric_change(0.0, metrics.name)
    if metrics.drop < 0 and is_told and loss_word(metrics.higher_is_better) == "drop":
        ends, turn = (metrics.drop_high, metrics.drop_low), -1.0
    low, high = (None if end is None else turn * end + 0.0 for end in ends)  # no negative zero
    texts = bare_change(low, metrics.name), metric_change(high, metrics.name)
    return Drop(
        metric=metric_label(metrics.name),
        float_value=metric_value(metrics.float_value, metrics.name),
        quantized_value=metric_value(metrics.quantized_value, metrics.name),
        word=loss_word(metrics.higher_is_better) if turn > 0 else "gain",
        change=f"{metric_change(turn * metrics.drop, metrics.name)}{_relative_change(metrics, turn)}",
        interval=NOT_MEASURED if NOT_MEASURED in texts else " … ".join(texts),
        samples=number(metrics.samples),
        dataset=metrics.dataset or NOT_MEASURED,
    )


def _relative_change(metrics: MetricFacts, turn: float) -> str:
    """The change of what is no share, in percent of the float model's value; nobody knows by heart how much 0.2 is."""
    if is_share(metrics.name) or metrics.relative_drop is None:
        return ""
    return f" ({number(turn * 100 * metrics.relative_drop)} %)"


def gains_much(diagnosis: Diagnosis) -> bool:
    """The gain is as large as a drop that is called moderate: rounding alone rarely brings so much."""
    metrics, limits = diagnosis.metrics, {threshold.name: threshold.value for threshold in diagnosis.thresholds}
    scale = 1.0 if is_share(metrics.name) else abs(metrics.float_value or 1.0)
    return -(metrics.drop or 0.0) > limits.get("drop_moderate", 0.0) * scale


def drop_text(diagnosis: Diagnosis) -> str:
    """The sentences; empty where there is nothing to say."""
    return " ".join(
        text for text in (_size_text(diagnosis), _metric_text(diagnosis), _agreement_text(diagnosis)) if text
    )


def _size_text(diagnosis: Diagnosis) -> str:
    """How large a proven drop is; what to do about it only where no cause says so itself."""
    limits = {threshold.name: threshold.value for threshold in diagnosis.thresholds}
    large, moderate = (f"{100 * limits.get(key, 0):.3g}" for key in ("drop_large", "drop_moderate"))
    unit = "points" if is_share(diagnosis.metrics.name) else "percent"
    loss = f"The {loss_word(diagnosis.metrics.higher_is_better)}"
    sizes = {
        "large": (
            f"{loss} is large, more than {large} {unit}",
            "suspect settings and data before any single layer",
        ),
        "moderate": (f"{loss} is moderate, between {moderate} and {large} {unit}", "tune the calibration first"),
        "small": (f"{loss} is small, at most {moderate} {unit}", "repair the few worst layers, or accept it"),
    }
    if diagnosis.drop_class in sizes and diagnosis.verdict not in ("not-comparable", "undecided"):
        size, what = sizes[diagnosis.drop_class]
        is_told = diagnosis.verdict == "healthy" or any(cause.is_serious for cause in diagnosis.causes)
        return f"{size}." if is_told else f"{size}: {what}."
    if diagnosis.drop_class == "none" and diagnosis.verdict == "healthy":
        return "No loss exceeds the noise of the measurement."
    return ""


def withstood_size(diagnosis: Diagnosis) -> str:
    """How large a proven loss of a healthy model is, and up to where that counts as none; empty where there is none."""
    metrics = diagnosis.metrics
    if diagnosis.verdict != "healthy" or diagnosis.evidence_strength.statement != "proven" or metrics.drop is None:
        return ""
    limit = next((each.value for each in diagnosis.thresholds if each.name == "drop_moderate"), None)
    size = metrics.drop if is_share(metrics.name) else metrics.drop / abs(metrics.float_value or 1.0)
    if limit is None or not 0 < size <= limit:
        return ""
    unit = "points" if is_share(metrics.name) else "%"
    return f"It is {100 * size:.2g} {unit}, and up to {100 * limit:.3g} count as no loss (threshold drop_moderate)."


def _metric_text(diagnosis: Diagnosis) -> str:
    """Which metric was taken where none was named, and why."""
    if diagnosis.metrics.drop is None or not diagnosis.run.get("metric_by_default"):
        return ""
    label = metric_label(diagnosis.metrics.name)
    if diagnosis.run.get("metric_reading"):
        return f"{label} was taken because the labels are boxes and no metric was named; --metric names another."
    return f"{capital(label)} was taken because the labels are classes and no metric was named; --metric names another."


def reading_text(diagnosis: Diagnosis) -> str:
    """How the metric reads the outputs, where that was found out; why no metric does, where labels were left out."""
    reading = diagnosis.run.get("metric_reading")
    if diagnosis.metrics.drop is None or not reading:
        return next((text for text in diagnosis.warnings if text.startswith(UNUSED)), "")
    return f"outputs read as: {reading} (--metric-option overrules it, see: quantmedic explain metrics)"


def _agreement_text(diagnosis: Diagnosis) -> str:
    """How often the answer is the float model's, and how loud the noise is, where no metric tells what that costs."""
    agreement, sqnr_db = diagnosis.model.output_agreement, diagnosis.model.output_worst_sqnr_db
    if diagnosis.metrics.drop is not None or agreement is None or diagnosis.verdict == "not-comparable":
        return ""
    noise = "" if sqnr_db is None else f", and the outputs keep {sqnr_db:.1f} dB"
    return f"The class is the float model's on {percent(agreement)} of the samples{noise}."


def harm_text(cause: CauseReport, diagnosis: Diagnosis) -> str:
    """What the cause costs now, in two or three words; empty where that was not measured."""
    if cause.harm is None:
        return ""
    if cause.harm == "assumed" and diagnosis.verdict == "undecided":
        return OPEN
    if cause.harm == "proven" and diagnosis.evidence_strength.statement != "proven":
        return HARMFUL
    return HARMS[cause.harm]


def assumed_group(diagnosis: Diagnosis) -> AssumedGroup | None:
    """What stands above the causes of assumed harm; None where there are none."""
    if not any(cause.harm == "assumed" for cause in diagnosis.causes):
        return None
    if diagnosis.verdict == "undecided":
        return AssumedGroup(OPEN, "Whether this noise costs accuracy is open.", folded=False)
    text = "These causes add noise, but no loss that matters is proven. A more sensitive task may need their repair."
    return AssumedGroup(HARMS["assumed"], text, folded=True)


def withstood_text(diagnosis: Diagnosis) -> str:
    """What repairs would gain on a healthy network, as a sentence; empty where nothing."""
    assumed = [cause for cause in diagnosis.causes if cause.harm == "assumed"]
    gains = [cause.measured_gain_db or cause.predicted_gain_db or 0.0 for cause in assumed]
    if not gains:
        return ""
    many = len(assumed) > 1
    adds = "add noise but cost" if many else "adds noise but costs"
    repair = "the best repair" if many else "repairing it"
    return f"{count(len(assumed), 'cause')} {adds} no accuracy yet; {repair} would gain {decibels(max(gains))}."


def undecided_text(found: Undecided, metrics: MetricFacts) -> str:
    """What is open, and what would decide."""
    if found.doubt is not None:
        return f"Whether quantization costs accuracy is undecided: {found.doubt}. {CLEAR_FIRST}"
    gain = f"a repair would gain {decibels(found.gain_db or 0.0)}"
    if found.limit is None:
        return f"Whether quantization costs accuracy is undecided: {gain}, and no task metric was measured. {DECIDE}"
    limit = metric_change(found.limit, found.metric)
    word = loss_word(metrics.higher_is_better)
    open_ = f"the interval of the {word} contains both a loss that matters (more than {limit}) and none"
    costs = f"Whether quantization costs {metric_label(found.metric)}"
    return f"{costs} is undecided: {gain}, and {open_}. {_samples(found, word)}"


def _samples(found: Undecided, word: str) -> str:
    now = f"now {number(found.samples)}"
    if found.needed is None:
        return f"If the {word} stays as measured, it takes more than {found.most} labelled samples to decide ({now})."
    return f"If the {word} stays as measured, about {rounded_up(found.needed)} labelled samples decide ({now})."

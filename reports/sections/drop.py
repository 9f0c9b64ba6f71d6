"""What the drop of the task metric means, as sentences: its size, its metric, and what is known without one."""

from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.engine.metrics.kinds import is_share
from quantmedic.reports.text import capital, metric_label, percent


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
    sizes = {
        "large": (f"The drop is large, more than {large} {unit}", "suspect settings and data before any single layer"),
        "moderate": (f"The drop is moderate, between {moderate} and {large} {unit}", "tune the calibration first"),
        "small": (f"The drop is small, at most {moderate} {unit}", "repair the few worst layers, or accept it"),
    }
    if diagnosis.drop_class in sizes and diagnosis.verdict not in ("not-comparable", "undecided"):
        size, what = sizes[diagnosis.drop_class]
        return f"{size}." if any(cause.is_serious for cause in diagnosis.causes) else f"{size}: {what}."
    if diagnosis.drop_class == "none" and diagnosis.verdict == "healthy":
        return "No loss stands out from the noise of the measurement."
    return ""


def _metric_text(diagnosis: Diagnosis) -> str:
    """Which metric was taken where none was named, and why."""
    if diagnosis.metrics.drop is None or not diagnosis.run.get("metric_by_default"):
        return ""
    label = capital(metric_label(diagnosis.metrics.name))
    return f"{label} was taken because the labels are classes and no metric was named; --metric names another."


def _agreement_text(diagnosis: Diagnosis) -> str:
    """How often the answer is the float model's, and how loud the noise is, where no metric tells what that costs."""
    agreement, sqnr_db = diagnosis.model.output_agreement, diagnosis.model.output_worst_sqnr_db
    if diagnosis.metrics.drop is not None or agreement is None or diagnosis.verdict == "not-comparable":
        return ""
    noise = "" if sqnr_db is None else f", and the outputs keep {sqnr_db:.1f} dB"
    return f"The class is the float model's on {percent(agreement)} of the samples{noise}."

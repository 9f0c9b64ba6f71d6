"""The verdict and the strength of its evidence in words."""

from collections.abc import Mapping, Sequence

from quantmedic.engine.case.facts import OutputFacts
from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.engine.metrics.labels import FAULT_WORDS
from quantmedic.reports.sections.harm import UNUSED, gains_much, undecided_text, withstood_size, withstood_text
from quantmedic.reports.sections.run_kind import device_alone, files_only, float_alone, weights_only, without_data
from quantmedic.reports.text import capital, decibels, loss_word, metric_label, metric_value, name, visible

VERDICTS = {
    "healthy": "No cause of medium or high severity was found.",
    "degraded": "Quantization costs accuracy.",
    "not-comparable": "The two models are not comparable.",
}
#: The same where the device alone is at fault.
DEVICE_ALONE = (
    "The device computes other values than the quantized model; in the model itself no fault of medium or high "
    "severity was found."
)
#: The same where weights alone were compared.
WEIGHT_VERDICTS = {
    "healthy": "No fault of medium or high severity was found in the weights.",
    "degraded": "The checkpoint has a fault.",
    "not-comparable": "The two checkpoints are not comparable.",
}
WEIGHTS_ONLY = (
    "Only weights were compared. How their errors affect outputs was not measured; --tokens runs language models."
)
#: Beside it, where the configuration quantizes more than weights.
RUNNING_GRIDS = "Not judged: what the configuration quantizes at run time, {grids}. Give texts with --tokens."
#: The same where both models were read and not run.
STATIC_VERDICTS = {
    "healthy": "No fault of medium or high severity was found in weights, graph and quantization parameters.",
    "degraded": "The quantized model has a fault.",
    "not-comparable": "The two models are not comparable.",
}
STATIC_ONLY = (
    "Only weights, graph and quantization parameters were judged: without data, neither accuracy nor activations were "
    "measured."
)
#: The same where nothing but files of a toolchain was read.
FILE_VERDICTS = {
    "degraded": "The toolchain's files show a fault.",
    "not-comparable": "The toolchain's files show no fault of medium or high severity. That is not a pass: the float "
    "and the quantized model were not compared.",
}
FILES_ONLY = "Only toolchain files were read: neither model was run, and whether accuracy is lost is unknown."
#: The same where quantization gave no model.
FAILED_VERDICTS = {
    "failed": "Quantization failed.",
    "not-comparable": "There is no quantized model, and the log shows no failure.",
}
FAILED_ALONE = "There is no quantized model, so nothing was measured: only the log and the float model were judged."
#: The same where its runtime refuses it.
REFUSED_MODEL = "The quantized model does not load."
REFUSED_ALONE = "Nothing was measured: only what the runtime says and the float model were judged."
STRENGTHS = {
    "proven": "The {word} is proven: its whole 95 % interval lies above zero.",
    "unproven": "No {word} is proven: zero lies inside the 95 % interval, so chance may explain what was measured.",
    "gained": "The quantized model is proven to be better: the whole 95 % interval lies below zero. Are they swapped?",
    "no-loss": "Nothing is lost: the whole 95 % interval of the {word} lies below zero.",
    "no-interval": "No {word} is proven: there is no interval, which needs several samples.",
    "no-number": "No {word} was measured: the quantized model predicts NaN.",
    "unused": "The drop in accuracy was not measured: no metric read the labels.",
    "not-measured": "The drop in accuracy was not measured: that needs a validation set with labels.",
}
#: The same of a drop that is not proven, where something else shows that the model is degraded.
UNDECIDED = "Whether that costs {metric} is undecided: zero lies inside the 95 % interval of the {word}."
SAME_MODEL = "Both files are the same model: nothing was compared."
FLOAT_IS_QUANTIZED = "The float model itself is quantized: the cost of quantization cannot be measured against it."
#: Why a gate that accepts a degraded model does, and one that refuses a healthy one.
ACCEPTED = "The gate still accepts it: no limit of the policy is exceeded."
REFUSED = "The gate refuses it: a limit of the policy is exceeded, or was not judged."


def verdict_word(diagnosis: Diagnosis) -> str:
    """Whether accuracy is lost is not known from files of a toolchain alone, nor from what a device computes."""
    if diagnosis.verdict == "degraded" and (files_only(diagnosis) or device_alone(diagnosis)):
        return "faulty" if files_only(diagnosis) else "device-departs"
    return diagnosis.verdict


def verdict_text(diagnosis: Diagnosis) -> str:
    """The verdict as one sentence, with that of a gate where the two differ."""
    text, gate = _finding_text(diagnosis), diagnosis.check
    if gate is not None and diagnosis.verdict == "degraded" and gate.verdict == "ACCEPT":
        return f"{text} {ACCEPTED}"
    if gate is not None and diagnosis.verdict == "healthy" and gate.verdict != "ACCEPT":
        return f"{text} {REFUSED}"
    return text


def _finding_text(diagnosis: Diagnosis) -> str:
    model = diagnosis.model
    if float_alone(diagnosis):
        return REFUSED_MODEL if model.failure.refused else FAILED_VERDICTS[diagnosis.verdict]
    if model.is_twice_the_same:
        return SAME_MODEL
    if model.float_is_quantized and diagnosis.verdict == "not-comparable":
        return FLOAT_IS_QUANTIZED
    if diagnosis.undecided is not None:
        return undecided_text(diagnosis.undecided, diagnosis.metrics)
    if diagnosis.verdict == "healthy":
        return f"{_verdicts(diagnosis)['healthy']} {withstood_text(diagnosis)}".rstrip()
    if diagnosis.verdict != "degraded" or judged_alone(diagnosis):
        return _verdicts(diagnosis)[diagnosis.verdict]
    grave = next((cause.severity for cause in diagnosis.causes if cause.is_serious), None)
    why = "" if grave is not None else ", and no rule found out why"
    if diagnosis.evidence_strength.statement == "proven":
        return f"Quantization costs accuracy{why}."
    if model.harmed or grave is None:
        return f"Quantization harms the outputs{why}{_place_of_harm(diagnosis)}."
    return _device_text(diagnosis) if device_alone(diagnosis) else f"A cause of {grave} severity was found."


def _device_text(diagnosis: Diagnosis) -> str:
    """What the device does, and what of the task metric is left there."""
    value, label = diagnosis.model.device.metric, metric_label(diagnosis.metrics.name)
    there = f" On the device {label} is {metric_value(value, diagnosis.metrics.name)}." if value is not None else ""
    return f"{DEVICE_ALONE}{there}"


def worst_part(outputs: Sequence[OutputFacts]) -> OutputFacts | None:
    """The output whose column or part is the worst of all outputs; None where an output as a whole is."""
    known = [output for output in outputs if output.worst_sqnr_db is not None]
    worst = min(known, key=lambda output: output.worst_sqnr_db or 0.0, default=None)
    return None if worst is None or worst.columns.worst is None else worst


def _place_of_harm(diagnosis: Diagnosis) -> str:
    """The worst part where an output is divided: the output as a whole may hide it."""
    worst = worst_part(diagnosis.outputs)
    if worst is None or not worst.columns.operands or not worst.columns.spoiled:
        return ""
    return f": {visible(worst.columns.worst or '', 60)} of {name(worst.name)} keep {decibels(worst.worst_sqnr_db)}"


def _verdicts(diagnosis: Diagnosis) -> Mapping[str, str]:
    """Sentences by verdict, for what was judged."""
    if weights_only(diagnosis):
        return WEIGHT_VERDICTS
    if files_only(diagnosis):
        return FILE_VERDICTS
    return STATIC_VERDICTS if without_data(diagnosis) else VERDICTS


def judged_alone(diagnosis: Diagnosis) -> str:
    """What a verdict without data rests on, in a few words to stand beside it; empty where models were run."""
    if float_alone(diagnosis):
        judged = "what the runtime says" if diagnosis.model.failure.refused else "the log"
        return f"only {judged} and the float model were judged"
    if weights_only(diagnosis):
        grids = diagnosis.model.checkpoint.running_grids
        return f"only weights were judged, not {grids}" if grids else "only weights were judged"
    if files_only(diagnosis):
        return "only toolchain files were judged"
    return "only weights, graph and parameters were judged" if without_data(diagnosis) else ""


def strength_text(diagnosis: Diagnosis) -> str:
    """How sure the drop is, as a sentence."""
    if float_alone(diagnosis):
        return REFUSED_ALONE if diagnosis.model.failure.refused else FAILED_ALONE
    if weights_only(diagnosis):
        grids = diagnosis.model.checkpoint.running_grids
        return f"{WEIGHTS_ONLY} {RUNNING_GRIDS.format(grids=grids)}" if grids else WEIGHTS_ONLY
    if files_only(diagnosis):
        return FILES_ONLY
    if without_data(diagnosis):
        return STATIC_ONLY
    if (fault := diagnosis.metrics.label_fault) not in (None, "none", "weak"):
        return f"{capital(metric_label(diagnosis.metrics.name))} is not judged: {FAULT_WORDS[fault]}."
    statement, word = diagnosis.evidence_strength.statement, loss_word(diagnosis.metrics.higher_is_better)
    if (high := diagnosis.evidence_strength.high) is not None and high < 0:
        return STRENGTHS["gained" if gains_much(diagnosis) else "no-loss"].format(word=word)
    if statement == "unproven" and diagnosis.evidence_strength.low is None:
        return STRENGTHS["no-interval"].format(word=word)
    if statement == "not-measured" and diagnosis.model.language.nonfinite_tokens:
        return STRENGTHS["no-number"].format(word="rise of the perplexity")
    if statement == "not-measured" and any(text.startswith(UNUSED) for text in diagnosis.warnings):
        return STRENGTHS["unused"]
    if diagnosis.verdict == "undecided":
        return ""
    if diagnosis.verdict == "not-comparable" and statement != "not-measured":
        return ""
    if diagnosis.verdict == "degraded" and statement == "unproven":
        if diagnosis.model.device.metric is not None:
            return ""
        return UNDECIDED.format(metric=metric_label(diagnosis.metrics.name), word=word)
    return f"{STRENGTHS[statement].format(word=word)} {withstood_size(diagnosis)}".rstrip()

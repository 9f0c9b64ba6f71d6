"""What a verdict and the strength of its evidence are in words."""

VERDICTS = {
    "healthy": "No cause of medium or high severity was found.",
    "degraded": "Quantization costs accuracy.",
    "not-comparable": "The two models are not comparable.",
}
#: The same where the device alone is at fault.
DEVICE_ALONE = (
    "The device computes other values than the quantized model, which has no fault of medium or high severity."
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
#: What to supply where no rule knows the failure.
UNKNOWN_FAILURE = (
    "No rule knows this failure, so no cause is named. Give the whole log with --log, from the first line of the "
    "command on, and the calibration data with --representative; a pattern of your own can be added "
    "(quantmedic explain failed)."
)
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


def weights_only_text(running_grids: str | None) -> str:
    """What a comparison of weights alone did not measure.

    Args:
        running_grids: What the configuration quantizes while the network runs.
    """
    return WEIGHTS_ONLY if not running_grids else f"{WEIGHTS_ONLY} {RUNNING_GRIDS.format(grids=running_grids)}"

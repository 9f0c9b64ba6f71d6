"""How a case was measured: versions, options, names and hashes, as pairs of key and value."""

from collections.abc import Mapping

from quantmedic.reports.text import measure, visible

#: Labels of entries of the run whose key is unclear, and what it means where one was not set.
RUN_LABELS = {
    "float_model": "float model",
    "float_sha256": "float model · sha256",
    "quantized_model": "quantized model",
    "quantized_sha256": "quantized model · sha256",
    "samples": "samples of each set at most",
    "batch_size": "batch size",
    "step_error": "operators measured on deployed inputs",
    "metric_by_default": "metric taken by default",
    "metric_output": "output that the metric reads",
    "metric_options": "options of the metric",
    "unmatched": "operators without a twin",
}
DATA_LABELS = {"samples_sha256": "sha256 of first inputs and labels, in any order"}
UNSET = {"samples": "all", "metric_output": "the first", "batch_size": "what suits the cache", "metric": "none"}


def run_lines(run: Mapping[str, object], prefix: str = "") -> tuple[tuple[str, str], ...]:
    """Nested entries of the run as flat pairs of key and value; what was not set says what that means."""
    lines: list[tuple[str, str]] = []
    for key, value in run.items():
        label = visible(prefix + (DATA_LABELS if prefix else RUN_LABELS).get(key, key))
        if isinstance(value, Mapping):
            lines += run_lines(value, f"{label} · ")
        elif value is None:
            lines.append((label, UNSET.get(key, "not set")))
        elif value != [] and value != ():
            lines.append((label, measure(value)))
    return tuple(lines)

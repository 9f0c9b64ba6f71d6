"""Which texts of a case are no names: words of tools, keys of changes, and prose that has to go.

Every text of a case that is listed nowhere here counts as a name. What is added to a case tomorrow is hidden, too.
"""

from collections.abc import Mapping

#: Put in the place of prose, so that it stays known that something was said.
LEFT_OUT = "left out of this case"
#: Texts that tools and formats define, by record; each stays where its words are public.
WORDS: Mapping[str, frozenset[str]] = {
    record: frozenset(fields.split())
    for record, fields in {
        "CaseRecord": "quantmedic_version metric",
        "ModelFacts": "framework format toolchain float_ends quantized_types runtime kernels_avoided_by",
        "KernelFacts": "op_type",
        "DeviceFacts": "runtime processor",
        "SearchFacts": "toolchain",
        "FailureFacts": "toolchain kind",
        "FloatFacts": "format",
        "CheckpointFacts": "kv_cache",
        "SettingsFacts": "activation_error_method weights_error_method distance_weighting toolchain calibration_method "
        "float_types input_order_runtime input_order_train norm_type chosen_method wide_types",
        "MetricFacts": "name",
        "MetricTrial": "name",
        "TensorRecord": "producer consumers",
        "QuantizerFacts": "code_type",
        "GateStep": "op_type",
        "RecordedFacts": "method",
        "OperatorRecord": "op_type executed_as",
        "FloatOperatorRecord": "op_type",
        "WeightFacts": "format dead_group worst_group better_reading",
        "FusionFacts": "activation also_read_by",
        "ReportedFacts": "device dtype",
        "Recording": "runtime processor",
        "TrialRecord": "kind",
        "ExecutionRecord": "toolchain version",
        "ImportRecord": "format toolchain",
    }.items()
}
#: Mappings whose keys are such texts.
WORD_KEYS = {("ModelFacts", "float_nodes"), ("CaseRecord", "compared")}
#: Names of changes, in texts or as keys of a mapping.
KEYS: Mapping[str, frozenset[str]] = {
    "SimulationRecord": frozenset({"runs"}),
    "PieceRecord": frozenset({"heals"}),
    "ChangesRecord": frozenset({"heals"}),
    "FamilyRecord": frozenset({"heals"}),
    "ProofRecord": frozenset({"chain"}),
    "TrialRecord": frozenset({"key", "after"}),
    "ExecutionRecord": frozenset({"choices"}),
}
#: Texts that are public as a whole, or a name.
PHRASES = {("ExecutionRecord", "titles")}
#: Prose, code and lines of logs, which may quote anything.
PROSE: Mapping[str, frozenset[str]] = {
    record: frozenset(fields.split())
    for record, fields in {
        "SearchFacts": "target line",
        "FailureFacts": "subject line lines data_problem",
        "FloatFacts": "problem shape_error inputs",
        "CheckpointFacts": "config_differences declared_groups declared_cache untied",
        "OverrideFacts": "reasons",
        "SettingsFacts": "inert_options unknown_keys",
        "ReportedFacts": "own_metrics",
        "TrialRecord": "detail failed unedited",
        "ProofRecord": "unexecuted",
        "ExecutionRecord": "code reads",
        "ImportRecord": "tells lacks unknown",
        "TextFacts": "beginning",
        "LanguageFacts": "activations cache not_simulated",
    }.items()
}
#: Options of a run that stay: numbers, choices and words.
RUN_OPTIONS = frozenset(
    {
        *("samples", "batch_size", "mode", "operator_error", "step_error", "seed", "preprocessing", "device"),
        *("metric_by_default", "metric_options", "metric_reading", "thumbnails", "profile", "attribution"),
        *("python", "machine", "onnxruntime", "onnx", "numpy", "torch", "openvino", "ai_edge_litert"),
    }
)
#: Entries of a run that name files, or something of the model, and those that are checksums.
RUN_NAMES = frozenset({"float_model", "quantized_model", "metric_output"})
RUN_CHECKSUMS = frozenset({"float_sha256", "quantized_sha256"})

"""Facts that are read and not measured: settings and logs of a toolchain, the float model alone, a checkpoint."""

from typing import Literal

from quantmedic.engine.case.fact_base import Facts, Prose, Words, fact


class SearchFacts(Facts):
    """The mixed-precision or accuracy-driven search of a toolchain, as its log reports it."""

    toolchain: Words[str | None] = fact("toolchain whose words were recognized")
    images: int | None = fact("images that the search judges a choice of bit widths by (smallest number named)")
    unreachable: bool | None = fact("the toolchain says that its target cannot be met")
    target: Prose[str | None] = fact("resource or accuracy whose target it is, as the toolchain names it")
    target_value: float | None = fact("value of that target, in the toolchain's unit")
    several_targets: bool | None = fact("more than one resource was restricted")
    line: Prose[str | None] = fact("the line of the log that says so")


#: ``model.framework`` where there is a float model alone, whose quantization failed.
FLOAT_ALONE = "float"


class FailureFacts(Facts):
    """How a quantization failed that produced no model, by its log."""

    toolchain: Words[str | None] = fact("toolchain whose words were recognized")
    failed: bool | None = fact("the log ends without a model: one of its lines reports an error")
    refused: bool | None = fact("a quantized model was written, and its runtime does not load it")
    kind: Words[str | None] = fact("name of the failure in rules/logs.yaml; None where its words are not known")
    subject: Prose[str | None] = fact("operator, tensor or file that the line names")
    line: Prose[str | None] = fact("the line of the log that says so")
    lines: Prose[tuple[str, ...] | None] = fact("the last lines of the log that report an error, in its order")
    data_problem: Prose[str | None] = fact(
        "what is wrong with the calibration data given, and where; None where nothing is"
    )
    data_samples: int | None = fact("calibration samples that were read without a complaint")


class FloatFacts(Facts):
    """The float model by itself, where no quantized model was made of it."""

    format: Words[Literal["onnx", "litert", "openvino", "torch"] | None] = fact("format of the float model")
    problem: Prose[str | None] = fact("why the file cannot be read; None where it can, or where there is none")
    opset: int | None = fact("opset of the default domain of the float model")
    operators: int | None = fact("operators of the float model")
    inputs: Prose[tuple[str, ...] | None] = fact("its inputs with shape and type; N and ? are open")
    dynamic_inputs: tuple[str, ...] | None = fact("inputs with an open side other than the first")
    foreign_types: tuple[str, ...] | None = fact("operator types of domains that neither ONNX nor onnxruntime define")
    constant_bytes: int | None = fact("bytes of all constants, those in external data included", "bytes")
    nonfinite_constants: int | None = fact("constants that hold NaN or infinity")
    first_nonfinite_constant: str | None = fact("name of the first of them")
    repeated_names: int | None = fact("operators whose name another one has too")
    first_repeated_name: str | None = fact("the first such name")
    matrix_biases: int | None = fact("biases of convolutions and Gemm that are not vectors, such as (1, 10)")
    first_matrix_bias: str | None = fact("operator of the first of them")
    first_unshaped: str | None = fact("first tensor whose shape inference finds neither type nor rank")
    shape_error: Prose[str | None] = fact("what shape inference complains about; None where it does not")


class CheckpointFacts(Facts):
    """Two checkpoints compared tensor by tensor, without running a model."""

    tensors: int | None = fact("tensors of the float checkpoint")
    missing: int | None = fact(
        "tensors of the float checkpoint without a counterpart; tied output weights and stored constants of the "
        "architecture do not count"
    )
    first_missing: str | None = fact("name of the first of them")
    mismatched: int | None = fact("tensors whose counterpart has another shape, or codes that cannot be read")
    first_mismatched: str | None = fact("name of the first of them, and what does not fit")
    altered: int | None = fact(
        "tensors that are not quantized, biases left out, and differ by more than a rounding to bfloat16"
    )
    unexplained: int | None = fact(
        "of these, those whose change no gains of layers explain, and that are no misfolded norms either"
    )
    first_unexplained: str | None = fact("name of the first of them")
    faults: int | None = fact(
        "layers with other weights, scales, codes or gains than the float ones (as W014, W016, W018, W025, W027, W028, "
        "W032, W034, W035 and W039 name them), unexplained, misfolded_norms and unscaled_biases"
    )
    coarse_share: float | None = fact(
        "share of the quantized layers most of whose output channels keep under 10 dB (weight.coarse_share above "
        "ruined_channel_share)",
        "share",
    )
    wide_groups_share: float | None = fact(
        "share of the quantized layers that keep less than wide_group_sqnr_db, and in which more weights than "
        "wide_group_size share a scale",
        "share",
    )
    config_differences: Prose[tuple[str, ...] | None] = fact(
        "settings of the network that both configurations name and that differ, quantized (float), the first eight"
    )
    differing_settings: int | None = fact("number of config_differences")
    rescaled_layers: int | None = fact("layers that hold gains of input channels (input_gain_ratio above 1.1)")
    misfolded_norms: int | None = fact(
        "norms that were divided by gains of the layers behind them as x · w where the architecture computes "
        "x · (1 + w), or the other way round, or that have 1 more or less than before in all channels"
    )
    first_misfolded_norm: str | None = fact("name of the first of them")
    unscaled_biases: int | None = fact(
        "biases, also of norms, that stayed as they were where the weights of most of their channels were multiplied "
        "by gains more than 1.1 times as large or small as the middle one"
    )
    first_unscaled_bias: str | None = fact("name of the first of them")
    running_grids: str | None = fact(
        "what the configuration quantizes while the network runs, with the types of the codes: inputs of layers, K/V "
        "cache; also where scales are stored and no configuration says of what type; none where weights alone are "
        "quantized"
    )
    declared_group_size: int | None = fact(
        "weights that share a scale, as the configuration of the quantization says; -1: all of an output channel"
    )
    declared_groups: Prose[str | None] = fact(
        "how weights and inputs of layers are quantized: config_groups of compressed-tensors, as JSON, without what is "
        "not said and what recipes do not take"
    )
    declared_cache: Prose[str | None] = fact("the same of keys and values: kv_cache_scheme")
    declared_symmetric: bool | None = fact("the configuration says that weights have no zero points (sym)")
    declared_order: bool | None = fact(
        "the configuration says that columns were quantized in the order of their activations (desc_act)"
    )
    gptq_layers: int | None = fact(
        "layers whose codes are held against the nearest ones, where the configuration says GPTQ"
    )
    gptq_moved_share: float | None = fact("largest moved_share of these", "share")
    kv_cache: Words[str | None] = fact(
        "type of the codes of the K and V cache that the configuration asks for with stored scales, such as float8"
    )
    kv_blocks: int | None = fact("attention layers, where the configuration asks for such a cache")
    kv_missing: int | None = fact("of these, those without a scale of K or of V")
    first_kv_missing: str | None = fact("name of the first of them")
    kv_of_one: int | None = fact("of these, those whose scales of K and V are both 1, as nothing calibrated them")
    cache_reach: float | None = fact(
        "largest key or value that its stored scale has a code for, over the deviation of the loudest channel, which "
        "norms and weights tell where inputs point anywhere; of the scale that reaches least",
        "ratio",
    )
    cache_reach_scale: str | None = fact("name of that scale")
    cache_excess: float | None = fact(
        "the same over the largest key or value that norms and weights allow, of the scale that reaches most; of codes "
        "that are integers",
        "ratio",
    )
    cache_excess_scale: str | None = fact("name of that scale")
    cache_steps: float | None = fact(
        "deviation of the median channel of keys or values, which norms and weights tell, in steps of a stored scale; "
        "of the scale that leaves fewest; of codes that are integers",
        "steps",
    )
    cache_steps_scale: str | None = fact("name of that scale")
    input_reach: float | None = fact(
        "largest input of a layer that its stored scale has a code for, over the deviation of inputs, which norms and "
        "weights tell; of the scale that reaches least. Behind gate and up, over four times the largest product of "
        "their deviations",
        "ratio",
    )
    input_reach_scale: str | None = fact("name of that scale")
    fused_layers: int | None = fact(
        "layers that runtimes put together from several (q, k, v; gate, up), of parts with a scale per tensor beside "
        "scales per block"
    )
    fused_ratio: float | None = fact("largest / smallest scale of such parts, of the layer where it is most", "ratio")
    fused_differing: int | None = fact("fused layers whose parts have different scales, by over 1 %")
    first_fused: str | None = fact("name of the one whose scales differ most")
    idle_targets: int | None = fact("patterns of modules to be quantized that match none; classes do not count")
    first_idle_target: str | None = fact("the first of them")
    idle_ignores: int | None = fact(
        "patterns of modules to be left in float that match none; classes and the output weights do not count"
    )
    first_idle_ignore: str | None = fact("the first of them")
    declared_float: int | None = fact("layers that the configuration leaves in float, and that have codes")
    first_declared_float: str | None = fact("name of the first of them")
    declared_quantized: int | None = fact(
        "linear layers of attention, MLP and experts that the configuration quantizes, and that are stored in float"
    )
    first_declared_quantized: str | None = fact("name of the first of them")
    unmet_overrides: int | None = fact(
        "layers that the configuration gives bits or a group size by name, and that have others"
    )
    first_unmet_override: str | None = fact("name of the first of them")
    untied: Prose[str | None] = fact(
        "how embeddings and output weights differ that the configuration says are one tensor; empty where they do not"
    )


class CoverageFacts(Facts):
    """Encodings or a calibration cache, which list every activation that gets a grid, against the model's activations.

    Activations need a grid that the quantized model rounds to a fixed one. Functions of known range, such as Softmax,
    do not count, nor operators that hand on values, nor what only an activation function with a grid of its own reads.
    """

    files: tuple[str, ...] | None = fact("names of the files")
    tensors: int | None = fact("activations of the model that need a grid")
    recorded_share: float | None = fact("share of them that the files list", "share")
    unrecorded: int | None = fact(
        "how many they do not list, less the names in the files that match nothing in the model: as many may be there "
        "by another name"
    )
    unrecorded_names: tuple[str, ...] | None = fact("the first five that they do not list")


class AskedFacts(Facts):
    """What a configuration asks of one layer by its name, and whether the quantized model shows it."""

    origin: str | None = fact("name of the file that asks")
    in_float: bool | None = fact("its weights are to stay in float; None where that is not asked")
    weight_bits: int | None = fact("bits that its weights are to have", "bits")
    bits: int | None = fact("bits that its output is to have", "bits")
    is_shown: bool | None = fact("the model shows all that is asked of it; None where nothing is, or it cannot be told")


class OverrideFacts(Facts):
    """What configurations ask of single layers, tensors or operator types, against what the quantized model shows."""

    asked: int | None = fact("names and operator types that something is asked of")
    without_effect: int | None = fact(
        "how many requests the model does not show: the name is in neither model, or the layer's weights are quantized "
        "that were to stay in float, or have other bits"
    )
    reasons: Prose[tuple[str, ...] | None] = fact("the first five of them, and what is there instead")


class SettingsFacts(Facts):
    """Settings of the toolchain, where its configuration or its own log was given."""

    activation_error_method: Words[str | None] = fact(
        "error that activation thresholds are chosen by: MSE, NOCLIPPING, …"
    )
    weights_error_method: Words[str | None] = fact("error that weight thresholds are chosen by: MSE, HMSE, …")
    z_threshold: float | None = fact(
        "activation values further than this from the mean are left out of the choice; infinity: none are", "σ"
    )
    min_threshold: float | None = fact("least threshold that the toolchain writes", "value")
    shift_negative: bool | None = fact("outputs with a small negative part are shifted to be non-negative")
    shift_negative_ratio: float | None = fact("largest |min| / threshold that is shifted", "ratio")
    channel_equalization: bool | None = fact("activation channels of neighbouring layers are equalized")
    bias_correction: bool | None = fact("the mean error of the weights is taken out of the biases")
    activation_bias_correction: bool | None = fact("the mean error of the activations is taken out of the biases")
    concat_threshold_update: bool | None = fact("operands of a concatenation are raised to its threshold")
    mixed_precision: bool | None = fact("bit widths were searched for")
    distance_weighting: Words[str | None] = fact(
        "how the search weighs the layers' distances: AVG, LAST_LAYER, EXP, HESSIAN"
    )
    hessian_scores: bool | None = fact("the search weighs the layers by Hessian scores")
    learned_rounding: bool | None = fact("weights were tuned by gradients after quantization")
    toolchain: Words[str | None] = fact("toolchain whose configuration or log was read")
    calibration_method: Words[str | None] = fact(
        "how thresholds of activations are chosen: minmax, percentile, entropy, kl, mse, moving-average, mix, search "
        "(the toolchain tries several), load (from a file), skip"
    )
    percentile: float | None = fact("share of the values that a percentile threshold covers", "%")
    per_channel_weights: bool | None = fact("weights have a scale per output channel")
    per_channel_activations: bool | None = fact("feature maps have a scale per channel")
    asymmetric_activations: bool | None = fact("grids of activations have a zero point of their own")
    activation_bits: int | None = fact("bits of activations where nothing else is said", "bits")
    weight_bits: int | None = fact("bits of weights where nothing else is said", "bits")
    dynamic: bool | None = fact("ranges of activations are found at run time")
    reduce_range: bool | None = fact("weights are kept to 7 bits")
    smooth_quant: bool | None = fact("outliers of activations are moved into the weights")
    float_layers: tuple[str, ...] | None = fact("layers that are left in float by name")
    float_types: Words[tuple[str, ...] | None] = fact("operator types that are left in float")
    wide_layers: tuple[str, ...] | None = fact("layers that compute with 16 bits by name")
    host_layers: tuple[str, ...] | None = fact("layers that are moved from the accelerator to the CPU by name")
    input_order_runtime: Words[str | None] = fact(
        "colour format that the deployed model is fed with: rgb, bgr, nv12, gray …"
    )
    input_order_train: Words[str | None] = fact("colour format that the float model was trained with")
    input_mean: tuple[float, ...] | None = fact("means that the toolchain builds into the model, per channel", "value")
    input_scale: tuple[float, ...] | None = fact(
        "factors that the toolchain builds into the model, per channel: (pixel - mean) · factor", "1/value"
    )
    unknown_keys: Prose[tuple[str, ...] | None] = fact("keys of the configuration that the toolchain does not know")
    unknown_key_count: int | None = fact("how many these are")
    norm_type: Words[str | None] = fact("what the toolchain builds in front of the model, by its own word: data_mean …")
    calibrates_raw: bool | None = fact(
        "calibration samples pass the means and factors that the toolchain builds into the model: they have to be "
        "given without them"
    )
    input_factor: float | None = fact("largest of input_scale", "1/value")
    swaps_channels: bool | None = fact(
        "the toolchain turns the order of colours around: one of input_order_runtime and input_order_train is rgb, the "
        "other bgr"
    )
    chosen_method: Words[str | None] = fact("calibration method that the toolchain's own search ended with, by its log")
    chosen_percentile: float | None = fact("share of the values that its threshold covers", "%")
    output_bits: int | None = fact("bits that the outputs of the model are computed with", "bits")
    inert_options: Prose[tuple[str, ...] | None] = fact("options that are set and do nothing, and why")
    inert_option_count: int | None = fact("how many these are")

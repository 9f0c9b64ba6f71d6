"""Facts: what was measured, typed and frozen. No verdict lives here.

Every field is one entry of the glossary: its description holds the formula, its unit stands beside it.
A field that was not measured is ``None``, never 0. Rules range over the scopes at the end of this file.
"""

from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field

Role = Literal["representative", "validation"]
Pattern = Literal["swish", "softmax-input", "none"]
Scope = Literal["model", "dataset", "layer", "tensor", "operand", "output"]
ROLES: tuple[Role, ...] = get_args(Role)


def fact(description: str, unit: str | None = None) -> Any:
    """Declare one measurable field; ``unit`` is None for counts, names and flags."""
    return Field(default=None, description=description, json_schema_extra={"unit": unit})


class Facts(BaseModel):
    """Base of all facts: frozen, and a misspelt field is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=True)


class ErrorFacts(Facts):
    """Difference d = y - x of a quantized tensor y and its float twin x over all elements seen."""

    mse: float | None = fact("mean of d²", "value²")
    nmse: float | None = fact("sum of d² / sum of x²: noise power over signal power", "ratio")
    sqnr_db: float | None = fact("-10 · log10(nmse): signal-to-quantization-noise ratio", "dB")
    cosine: float | None = fact("Σxy / (|x|·|y|): cosine similarity of the flattened tensors", "ratio")
    mean: float | None = fact("mean of d: the bias that quantization adds", "value")
    std: float | None = fact("standard deviation of d", "value")
    max: float | None = fact("largest |d|", "value")
    rmse_over_scale: float | None = fact(
        "√mse / scale of the tensor's quantizer; 1/√12 ≈ 0.289 is ideal rounding", "steps"
    )
    bias_over_std: float | None = fact("largest |mean of d| / std of d of any channel", "ratio")
    worst_channel_sqnr_db: float | None = fact(
        "lowest sqnr_db of a channel that carries at least 1e-4 of the largest channel's power; of weights, of any "
        "that is not dead",
        "dB",
    )
    worst_channel: int | None = fact("index of that channel")
    lost_channels: int | None = fact("channels whose noise power exceeds half of their own power, however quiet")
    median_channel_sqnr_db: float | None = fact("median sqnr_db of the channels that carry any signal", "dB")


class DistributionFacts(Facts):
    """Distribution of a float tensor over all samples of one data set."""

    count: int | None = fact("finite elements seen")
    samples: int | None = fact("samples seen")
    nonfinite_count: int | None = fact("NaN and infinite elements seen; kept out of every other statistic")
    min: float | None = fact("smallest finite value, exact", "value")
    max: float | None = fact("largest finite value, exact", "value")
    absmax: float | None = fact("largest magnitude, exact", "value")
    mean: float | None = fact("mean", "value")
    std: float | None = fact("population standard deviation", "value")
    p0_01: float | None = fact("0.01 % quantile, within one histogram bin (6.3 % of its value)", "value")
    p1: float | None = fact("1 % quantile, within one histogram bin", "value")
    p50: float | None = fact("median, within one histogram bin", "value")
    p99: float | None = fact("99 % quantile, within one histogram bin", "value")
    p99_99: float | None = fact("99.99 % quantile, within one histogram bin", "value")
    abs_p99_99: float | None = fact("99.99 % quantile of the magnitude, within one histogram bin", "value")
    zscore_max: float | None = fact("largest |x - mean| / std", "σ")
    tail_share: float | None = fact(
        "share of elements in the upper half of the range of magnitudes: |x| > absmax / 2", "share"
    )
    tail_body_ratio: float | None = fact(
        "elements between 1/16 and 1/2 of absmax / elements above 1/2 of it: the tail of a distribution has a body, a "
        "few giants stand alone",
        "ratio",
    )
    range_inflation_bits: float | None = fact("log2(absmax / abs_p99_99): bits that the rarest values cost", "bits")
    zero_share: float | None = fact("share of exact zeros", "share")
    negative_share: float | None = fact("share of elements < 0", "share")
    channel_absmax_ratio: float | None = fact("largest channel absmax / median channel absmax", "ratio")
    channel_rms_ratio: float | None = fact(
        "largest √mean(x²) of a channel / median over the channels: large only where a channel is large throughout",
        "ratio",
    )
    channel_shape_ratio: float | None = fact(
        "channel_rms_ratio / channel_absmax_ratio: near 1 where the loudest channel is shaped like the others and only "
        "larger, small where a few values make it loud",
        "ratio",
    )
    absmax_over_median: float | None = fact(
        "absmax / median of |x| over the values that are not 0, within one histogram bin", "ratio"
    )
    sample_range_ratio: float | None = fact(
        "mean over samples of the sample's range width / range width of the whole set", "ratio"
    )
    range_growth: float | None = fact(
        "1 - mean range width of two disjoint halves of the set / range width of the whole set", "ratio"
    )
    halves_disagreement: float | None = fact(
        "difference of the range widths of two disjoint halves / range width of the whole set", "ratio"
    )


class ClippingFacts(Facts):
    """The float tensor against the range that its quantizer can represent."""

    share: float | None = fact("share of elements outside the quantizer's range by more than half a step", "share")
    energy_share: float | None = fact("share of the rounding error's power that comes from clipped elements", "share")
    overshoot: float | None = fact(
        "how far the values reach beyond the quantizer's range / the range's width (0 = all covered)", "ratio"
    )
    utilisation: float | None = fact(
        "width of the values' range inside the quantizer's range / width of the quantizer's range", "ratio"
    )


class TensorDataFacts(Facts):
    """What one data set showed of one activation tensor."""

    dataset: Role | None = fact("the data set these facts were measured on")
    values: DistributionFacts = DistributionFacts()
    rounding: ErrorFacts = ErrorFacts()
    accumulated: ErrorFacts = ErrorFacts()
    operator: ErrorFacts = ErrorFacts()
    step: ErrorFacts = Field(
        default=ErrorFacts(),
        description="the deployed tensor against its float operator, both fed with what the deployed model computed "
        "before them; a network input that it takes as floats reaches the float operator unrounded",
    )
    clipping: ClippingFacts = ClippingFacts()
    predicted_best_gain_db: float | None = fact(
        "sqnr_db of the best range found on the stored histogram (min-max, percentiles, least squares) minus that of "
        "the range in force",
        "dB",
    )
    predicted_best_low: float | None = fact("lower end of that range", "value")
    predicted_best_high: float | None = fact("upper end of that range", "value")
    amplification: float | None = fact(
        "accumulated nmse of this tensor / largest accumulated nmse among the inputs of its operator", "ratio"
    )
    input_sqnr_db: float | None = fact("lowest accumulated sqnr_db among the inputs of its operator", "dB")
    rounding_share: float | None = fact(
        "rounding mse / accumulated mse: how much of the noise found here this tensor's own quantizer can have made; "
        "the rest was carried in",
        "ratio",
    )


class QuantizerFacts(Facts):
    """The quantizer of one tensor: real = scale · (code - zero_point)."""

    scale: float | None = fact("step between two codes (largest of all channels)", "value")
    scale_min: float | None = fact("smallest step of all channels", "value")
    zero_point: int | None = fact("code of 0.0 (first channel)")
    bits: int | None = fact("bits of a code", "bits")
    signed: bool | None = fact("codes are signed integers")
    symmetric: bool | None = fact("0.0 is the middle code of the signed range or the lowest of the unsigned one")
    granularity: Literal["per_tensor", "per_channel", "per_block"] | None = fact("how many scales there are")
    axis: int | None = fact("channel axis of a per-channel quantizer")
    low: float | None = fact("smallest representable value (per tensor)", "value")
    high: float | None = fact("largest representable value (per tensor)", "value")
    dynamic: bool | None = fact("the scale is computed at run time from the values themselves")
    power_of_two: bool | None = fact("every scale is a power of two")


class RecordedFacts(Facts):
    """What a file of the toolchain records of one tensor: encodings, calibration table or cache."""

    origin: str | None = fact("name of the file that says so")
    method: str | None = fact("how the threshold was chosen, as SettingsFacts.calibration_method names it")
    low: float | None = fact("smallest value that the recorded threshold covers", "value")
    high: float | None = fact("largest value that the recorded threshold covers", "value")
    scale: float | None = fact("recorded step between two codes", "value")
    zero_point: int | None = fact("recorded code of 0.0")
    bits: int | None = fact("recorded bits of a code", "bits")
    symmetric: bool | None = fact("recorded as symmetric")
    overshoot: float | None = fact(
        "how far the values of the data that was given reach beyond the recorded threshold / its width (0 = all "
        "covered); the larger of both data sets",
        "ratio",
    )
    bulk_overshoot: float | None = fact(
        "the same of 98 % of the values, those between their 1 % and 99 % quantiles: above 0, more than 1 % of them "
        "lie beyond an end of the recorded threshold",
        "ratio",
    )
    slack: float | None = fact(
        "reach of the recorded threshold (largest magnitude it covers) / largest magnitude of the values of the data "
        "that was given, of both sets",
        "ratio",
    )
    deployed_ratio: float | None = fact(
        "width of the recorded threshold / width of the deployed quantizer's range, or its inverse where that is "
        "larger; 1 = the model holds what the file records",
        "ratio",
    )


class ReportedFacts(Facts):
    """What another tool measured of one layer, in our units and directions; its own words are in the manual."""

    origin: str | None = fact("name of the file that says so")
    cosine: float | None = fact("cosine similarity of float and quantized output", "ratio")
    sqnr_db: float | None = fact("-10 · log10(noise power / signal power) of the output", "dB")
    mse: float | None = fact("mean squared difference of the output", "value²")
    normalized_mse: float | None = fact(
        "mean squared difference of the saved tensor, float and quantized, after each was scaled to 0 … 1 by its own "
        "extremes (Intel Neural Compressor's MSE): blind to a wrong scale or offset. It saves the first input of a "
        "layer of an ONNX model, and takes one sample of it; of other models it saves the output",
        "ratio",
    )
    saved_cosine: float | None = fact("cosine similarity of the saved tensor, float and quantized", "ratio")
    saved_sqnr_db: float | None = fact("-10 · log10(noise power / signal power) of the saved tensor", "dB")
    weight_normalized_mse: float | None = fact("the same of the weights", "ratio")
    weight_sqnr_db: float | None = fact("-10 · log10(noise power / signal power) of the weights", "dB")
    rmse_over_scale: float | None = fact("√mse / scale; 1/√12 ≈ 0.289 is ideal rounding", "steps")
    min: float | None = fact("smallest value of the float output", "value")
    max: float | None = fact("largest value of the float output", "value")
    weight_min: float | None = fact("smallest float weight", "value")
    weight_max: float | None = fact("largest float weight", "value")
    weight_mean: float | None = fact("mean of the float weights", "value")
    weight_std: float | None = fact("standard deviation of the float weights", "value")
    device: str | None = fact("where the toolchain puts it: BPU, CPU …")
    dtype: str | None = fact("type that it computes with: int8, int16, float …")


class TensorFacts(Facts):
    """Scope ``tensor``: one activation, the input of the network included."""

    name: str | None = fact("name in the quantized model")
    float_name: str | None = fact("name of its twin in the float model")
    producer: str | None = fact("operator type that produces it; 'Input' for a network input")
    producer_name: str | None = fact("name of the producing layer")
    consumers: tuple[str, ...] = Field(default=(), description="operator types that read it")
    readers: tuple[str, ...] = Field(
        default=(), description="names of the float nodes that compute with it, also behind operators that only move it"
    )
    channels: int | None = fact("channels measured; None where the channel axis is unknown")
    is_half: bool | None = fact("the quantized model holds it as float16 numbers")
    is_squared: bool | None = fact("an operator of the quantized model squares it: Pow by 2, or Mul with itself")
    quantizer: QuantizerFacts = QuantizerFacts()
    representative: TensorDataFacts = TensorDataFacts()
    validation: TensorDataFacts = TensorDataFacts()
    data: TensorDataFacts = Field(
        default=TensorDataFacts(), description="facts on the validation set where it was given, else representative"
    )
    negative_levels: float | None = fact("|min| / scale: codes left for the negative values", "levels")
    negative_ratio: float | None = fact("|min| / quantizer's high end", "ratio")
    shift_excess: float | None = fact(
        "|min| / (quantizer's reach · shift_negative_ratio of the settings), where the toolchain's shift of negative "
        "values is on: above 1 it does nothing",
        "ratio",
    )
    range_excess_bits: float | None = fact(
        "log2(quantizer's reach / abs_p99_99 of the values): bits spent beyond 99.99 % of the values", "bits"
    )
    best_sqnr_db: float | None = fact(
        "rounding sqnr_db that this tensor would have with the best range for its bits", "dB"
    )
    pattern: Pattern | None = fact(
        "what the graph makes of it: swish (a product of two functions of one tensor, as Swish and GELU become in "
        "pieces), softmax-input (a Softmax reads it, directly or through operators that only move values), none"
    )
    range_slack: float | None = fact("quantizer's reach (largest magnitude it represents) / absmax", "ratio")
    asymmetry_waste: float | None = fact(
        "1 - (max - min) / (2 · absmax), with 0.0 as a value: share of a symmetric range that the values leave empty",
        "share",
    )
    zero_point_gain_db: float | None = fact(
        "sqnr_db of the best range with a free zero point minus that of the best symmetric range; for symmetric "
        "quantizers of either sign",
        "dB",
    )
    sample_levels: float | None = fact("mean range width of a single sample / scale", "levels")
    median_levels: float | None = fact(
        "median of |x| over the values that are not 0 / scale: steps that a typical value spans", "levels"
    )
    unmasked_levels: float | None = fact(
        "range width of the values above min / 2, taken with 0.0, / scale: codes left beside a huge negative mask",
        "levels",
    )
    unmasked_sqnr_db: float | None = fact(
        "sqnr_db of the values above min / 2 on the quantizer's grid, predicted from the histogram", "dB"
    )
    inner_sqnr_db: float | None = fact(
        "pattern swish: sqnr_db of the product when the tensor and every step on the way to it are rounded to their "
        "own grids, but not the product itself; from the histogram of the tensor it is a function of",
        "dB",
    )
    inner_share: float | None = fact("pattern swish: that noise / accumulated mse of the product", "share")
    clip_low: float | None = fact("lower bound of the Clip that ends this tensor in the float model", "value")
    clip_high: float | None = fact("upper bound of that Clip; 6 for ReLU6", "value")
    clip_lost: bool | None = fact(
        "the float model clips this tensor, while in the quantized one neither a Clip nor the quantizer's range does"
    )
    recorded: RecordedFacts = RecordedFacts()


class WeightFacts(Facts):
    """The weights of one layer, float values against the integers that replace them."""

    name: str | None = fact("name of the float initializer")
    channels: int | None = fact("output channels")
    quantizer: QuantizerFacts = QuantizerFacts()
    min: float | None = fact("smallest float weight", "value")
    max: float | None = fact("largest float weight", "value")
    mean: float | None = fact("mean of the float weights", "value")
    std: float | None = fact("standard deviation of the float weights", "value")
    stored_min: float | None = fact("smallest weight that the quantized model computes with, dequantized", "value")
    stored_max: float | None = fact("largest weight that the quantized model computes with, dequantized", "value")
    stored_mean: float | None = fact("mean of the weights that the quantized model computes with", "value")
    stored_std: float | None = fact("standard deviation of the weights that the quantized model computes with", "value")
    absmax_over_std: float | None = fact("absmax / std", "ratio")
    channel_range_ratio: float | None = fact(
        "widest / narrowest channel absmax; channels under 1e-6 of the widest are left out as dead", "ratio"
    )
    dead_channels: int | None = fact("channels with absmax < 1e-6 of the tensor's absmax")
    rounding: ErrorFacts = ErrorFacts()
    normalized_mse: float | None = fact(
        "mean squared difference of float and stored weights after each were scaled to 0 … 1 by their own extremes, as "
        "Intel Neural Compressor takes it: blind to a wrong scale or offset",
        "ratio",
    )
    kurtosis: float | None = fact("mean of ((w - mean) / std)⁴ - 3: excess kurtosis, 0 for a Gaussian", "ratio")
    outlier_ratio: float | None = fact(
        "absmax / root mean square without the largest 1 % of the weights (at least one), of the output channel where "
        "it is largest, with the median magnitude of each input channel divided out; channels of fewer than 8 weights "
        "are not judged",
        "ratio",
    )
    widest_outlier_ratio: float | None = fact(
        "outlier_ratio of the widest channel: 1 to 6 where it is wide throughout, more where few weights make it so",
        "ratio",
    )
    input_channel_range_ratio: float | None = fact(
        "widest / narrowest absmax of the weights that meet one input channel; those under 1e-6 of the widest are left "
        "out",
        "ratio",
    )
    rounding_mean_steps: float | None = fact(
        "mean of stored - float weight / scale, of each weight's own step: 0 for rounding to nearest, ±0.5 for "
        "truncation",
        "steps",
    )
    coarse_share: float | None = fact("share of the channels that are not dead whose rounding sqnr_db is < 10", "share")
    erased_channels: int | None = fact("channels that are not dead in float and all zeros as stored")
    misplaced_share: float | None = fact(
        "share of weights stored more than 1.5 steps from the float weight, although the grid reaches that far: no "
        "rounding explains them",
        "share",
    )
    similarity: float | None = fact(
        "cosine of stored and float weights, as they are or with the gains of output and input channels taken out "
        "(rows and columns scaled to one norm in turn), whichever is larger",
        "ratio",
    )
    found_as: Literal["same", "transposed", "reordered", "other"] | None = fact(
        "what the stored weights are, told by cosines over 0.8: the float ones; the float ones with the first two axes "
        "swapped; the float ones with the output channels in another order; something else"
    )
    output_axis: int | None = fact("axis of the output channels")
    axis_gain_db: float | None = fact(
        "sqnr_db of the weights with their scales along another axis, minus that in force, of the whole tensor or of "
        "the worst channel, whichever gains more: the stored codes read along another axis of equal length, or, where "
        "the scales do not lie along the output channels, a grid per output channel",
        "dB",
    )
    predicted_per_channel_sqnr_db: float | None = fact(
        "rounding sqnr_db of the float weights on a symmetric grid per output channel with the same bits", "dB"
    )
    predicted_best_sqnr_db: float | None = fact(
        "rounding sqnr_db of the float weights at the granularity, symmetry and bits in force with the best range: 5 % "
        "to 100 % of the full one in steps of 5 %, the least squared error of each scale",
        "dB",
    )
    predicted_best_gain_db: float | None = fact(
        "predicted_best_sqnr_db - rounding sqnr_db, where the stored weights are a rounding of the float ones", "dB"
    )
    predicted_best_channel_sqnr_db: float | None = fact(
        "lowest sqnr_db of a channel that is not dead with the best range of each scale", "dB"
    )
    predicted_8bit_sqnr_db: float | None = fact(
        "rounding sqnr_db with 8 bits over the full range, at the granularity and symmetry in force; where there are "
        "fewer now",
        "dB",
    )
    batch_norm_gain: float | None = fact(
        "largest |γ| / √(variance + ε) of the batch normalization that was folded into the stored weights", "ratio"
    )
    batch_norm_gain_ratio: float | None = fact("batch_norm_gain / median of its channels", "ratio")
    batch_norm_variance_ratio: float | None = fact(
        "median variance of the channels / variance + ε of the channel with the largest gain", "ratio"
    )
    max_code: int | None = fact("largest |code - zero point| of the stored weights", "codes")
    format: str | None = fact(
        "how the codes are stored: gptq, awq, pack-quantized, int8, fp8, bitsandbytes, torchao …, or fake-quantized"
    )
    groups: int | None = fact("groups of weights that share a scale, over all output channels")
    group_size: int | None = fact("weights of a group, of the largest where they differ")
    dead_groups: int | None = fact(
        "groups stored as one value, or with a scale that is 0 or no number, whose float weights differ and have at "
        "least 1 % of the layer's root mean square"
    )
    dead_group: str | None = fact("the first of them: output channel / group")
    worst_group_sqnr_db: float | None = fact(
        "lowest rounding sqnr_db of a group whose root mean square is at least 1 % of the layer's", "dB"
    )
    worst_group: str | None = fact("that group: output channel / group")
    outlier_groups: int | None = fact(
        "groups whose range one weight takes: it is at least 8 times the root mean square of the others, and the scale "
        "at least 2 times, so that most of the others become 0"
    )
    outlier_noise_share: float | None = fact("share of the layer's squared error that lies in these groups", "share")
    group_outlier_ratio: float | None = fact(
        "largest weight of a group / root mean square of the others, of the outlier group where it is most", "ratio"
    )
    widest_input_channel: int | None = fact("input channel with the largest weight")
    clipped_share: float | None = fact(
        "share of weights beyond the ends of their grid by more than half a step", "share"
    )
    end_share: float | None = fact("share of weights stored as the lowest or highest code", "share")
    reading_gain_db: float | None = fact(
        "rounding sqnr_db of the first 64 output channels with the codes read in the best other way that is known of "
        "their format, minus that as declared",
        "dB",
    )
    better_reading: str | None = fact("that other way: another order of codes, zero points, or groups")
    input_gain_ratio: float | None = fact(
        "largest / smallest gain of an input channel, stored over float weights, where gains of input and output "
        "channels explain at least three quarters of the squared error (AWQ and SmoothQuant fold such gains in); every "
        "other fact then holds the stored weights against the float ones with these gains. 1 where there are none. "
        "Channels that rounding has erased look like small gains",
        "ratio",
    )
    peers: int | None = fact("quantized layers with the same format, bits and granularity, itself included")
    peer_gap_db: float | None = fact(
        "median rounding sqnr_db of these layers minus its own; where there are at least 5", "dB"
    )
    peer_zscore: float | None = fact(
        "0.6745 · peer_gap_db / median absolute deviation of their sqnr_db: the modified z-score of Iglewicz and "
        "Hoaglin; at least 0.1 dB are taken as deviation",
        "σ",
    )


class BiasFacts(Facts):
    """The bias of one layer on its int32 grid of step s_x · s_w."""

    max_code: float | None = fact("largest |float bias| / (s_x·s_w[c]): must stay below 2³¹ - 1", "codes")
    max_code_per_channel: float | None = fact(
        "the same if every channel c had a weight scale of its own: s_w[c] = channel absmax / (2^(bits-1) - 1)", "codes"
    )
    bits: int | None = fact("bits of the stored bias; 32, or 0 where it stays float", "bits")
    max_error: float | None = fact("largest |stored bias - float bias|", "value")
    max_error_steps: float | None = fact(
        "largest |stored bias - float bias| / (s_x·s_w[c]): up to 0.5 for rounding to nearest", "steps"
    )
    overflowing_channels: int | None = fact("channels whose code is beyond or at the end of int32, or of int64")
    overflowing_dead_channels: int | None = fact(
        "those among them whose weights are dead (absmax < 1e-6 of the tensor's)"
    )
    rounding: ErrorFacts = ErrorFacts()


class WeightErrorFacts(Facts):
    """What the errors of the stored weights and bias, ΔW and Δb, do to the layer's output.

    Computed from the statistics of the float input x, before the activation that follows. Zero padding counts as if x
    went on beyond the border.
    """

    dataset: Role | None = fact("the data set that x comes from")
    sqnr_db: float | None = fact(
        "power of the float output / Σ over channels of Σ ΔW² · E[x²], the noise that rounding errors make whose signs "
        "do not agree",
        "dB",
    )
    worst_channel_sqnr_db: float | None = fact(
        "lowest of that for one channel, among those with 1e-4 of the loudest channel's power", "dB"
    )
    noise_share: float | None = fact(
        "that noise power / power of the accumulated error of the output: how much of it the weights can have made",
        "share",
    )
    shift: float | None = fact(
        "largest |Σ ΔW · E[x] + Δb| of an output channel: the constant that weights and bias add", "value"
    )
    shift_over_std: float | None = fact(
        "largest constant of a channel / std of its accumulated error; as constant counts the smaller of "
        "|Σ ΔW · E[x] + Δb| and the mean error measured, 0 where their signs differ",
        "ratio",
    )
    shift_share: float | None = fact(
        "Σ over channels of that constant squared / power of the accumulated error: what a corrected bias would take "
        "away",
        "share",
    )


class LayerFacts(Facts):
    """Scope ``layer``: one operator of the quantized model and its twin in the float model."""

    name: str | None = fact("name of the float layer, else of the quantized one")
    float_name: str | None = fact("node name in the float model")
    quantized_name: str | None = fact("node name in the quantized model")
    float_nodes: tuple[str, ...] | None = fact(
        "names of the float nodes that it stands for, its fused activation included; none where its own has no name"
    )
    op_type: str | None = fact("operator type without its quantization (Conv, not QLinearConv)")
    index: int | None = fact("topological index")
    is_compute: bool | None = fact("operator with weights or a matrix product: Conv, Gemm, MatMul, …")
    is_first: bool | None = fact("first compute operator")
    is_last: bool | None = fact("last compute operator")
    executed_as: Literal["integer", "float"] | None = fact("kernel in the optimized graph of the runtime")
    operations: int | None = fact("multiply-adds of one sample")
    time_ms: float | None = fact(
        "median time of one run in the quantized model, the quantizers of its output included; from --profile", "ms"
    )
    time_share: float | None = fact("time_ms / that of all operators of the quantized model", "share")
    weight: WeightFacts = WeightFacts()
    weight_error: WeightErrorFacts = WeightErrorFacts()
    bias: BiasFacts = BiasFacts()
    input_worst_channel_sqnr_db: float | None = fact(
        "lowest worst_channel_sqnr_db of the rounding error among its inputs", "dB"
    )
    output: TensorFacts = TensorFacts()
    degraded: bool | None = fact(
        "accumulated error of its output over a threshold: nmse, cosine or sqnr_db (thresholds quantize_error_*)"
    )
    feeders: tuple[str, ...] = Field(
        default=(),
        description="names of the layers without weights that feed it, up to three steps upstream, nearest first",
    )
    born: bool | None = fact("its output is degraded although none of its inputs is: the error is born here")
    compute_index: int | None = fact("place among the compute operators, 0 = first")
    added_nmse: float | None = fact(
        "operator nmse of its output where it was measured, else accumulated nmse of its output minus the largest of "
        "its inputs, at least 0: noise that this layer adds",
        "ratio",
    )
    error_rank: int | None = fact("place among the compute operators by added_nmse, 1 = largest")
    reads_unsigned: bool | None = fact("the first activation that it reads is stored as unsigned codes")
    reported: ReportedFacts = ReportedFacts()
    reported_level_db: float | None = fact(
        "reported.sqnr_db, else what reported.cosine amounts to for noise that does not depend on the signal: "
        "10 · log10(cosine² / (1 - cosine²)), at least -60",
        "dB",
    )
    reported_before_db: float | None = fact(
        "reported_level_db of the nearest layer before it that has one; 90 where there is none", "dB"
    )
    layers_behind: int | None = fact("layers behind it in the order of the network; 0: the last one")
    inner_host: bool | None = fact(
        "the toolchain put it on the CPU, and layers before and behind it on the accelerator"
    )
    wide_asked: bool | None = fact("the settings ask for 16 bits for it by name (wide_layers)")


class OperandFacts(Facts):
    """Scope ``operand``: one measured input of a Concat or Add."""

    layer: str | None = fact("name of the layer that joins the operands")
    op_type: str | None = fact("Concat or Add")
    index: int | None = fact("position among the operands")
    tensor: str | None = fact("name of the operand's tensor in the float model")
    width: float | None = fact("range width of the operand's values", "value")
    range_ratio: float | None = fact("widest operand's range width / this operand's range width", "ratio")
    levels: float | None = fact("this operand's range width / scale of the joint quantizer", "levels")
    joint_sqnr_db: float | None = fact("sqnr_db of this operand's values on the joint quantizer's grid", "dB")
    own_sqnr_db: float | None = fact("sqnr_db of this operand on a min-max grid of its own with as many bits", "dB")
    joint_excess_bits: float | None = fact("range_excess_bits of the joint tensor", "bits")
    joint_rounding_share: float | None = fact("rounding_share of the joint tensor", "share")


class RelationFacts(Facts):
    """The representative inputs against the validation inputs: representative ≈ slope · validation + offset."""

    method: Literal["lattice", "quantiles"] | None = fact(
        "lattice: both inputs lie on an evenly spaced grid (8-bit images), compared exactly; quantiles: fit of 99 "
        "quantiles of the two distributions"
    )
    slope: float | None = fact("slope of the channel that deviates most from 1", "ratio")
    slope_low: float | None = fact("lower end of the slope's 95 % interval (bootstrap over buckets)", "ratio")
    slope_high: float | None = fact("upper end of the slope's 95 % interval", "ratio")
    scale_mismatch: float | None = fact("max(slope, 1 / slope) over channels, 1 = equal scales", "ratio")
    offset: float | None = fact(
        "offset of that channel, or of the one with the largest where the channels agree in slope; of two lattices "
        "whose points coincide, the smallest shift that lays one within the other",
        "value",
    )
    offset_over_std: float | None = fact(
        "largest |offset| of any channel / standard deviation of the validation inputs; on a lattice, 0 up to 16 steps",
        "σ",
    )
    kind: (
        Literal["same", "scale", "offset", "not-normalized", "normalized-twice", "partly-normalized", "unexplained"]
        | None
    ) = fact(
        "name of the relation: not-normalized (the representative inputs are raw), normalized-twice (the map from raw "
        "to validation was applied again), partly-normalized (scaled, but mean and deviation are missing), scale, "
        "offset, same, unexplained"
    )
    reading: str | None = fact(
        "the preprocessing of both sets as read off their lattices, with x for a pixel of 0 … 255; None where a set "
        "does not reach from 0 to 255"
    )
    certainty: float | None = fact("1 for a lattice, else R² of the quantile fit", "ratio")
    flipped_distance_ratio: float | None = fact(
        "distance of the channel means and deviations to the validation set's as stored / with the channels reversed; "
        "> 1: reversed fits better",
        "ratio",
    )
    layout_roughness_excess: float | None = fact(
        "layout_roughness_ratio of the representative images / of the validation images", "ratio"
    )
    flipped_pixel_ratio: float | None = fact(
        "flipped_distance_ratio in pixels, (value - lowest lattice point) / lattice step, where both sets lie on one "
        "lattice per channel",
        "ratio",
    )
    flipped_feature_ratio: float | None = fact(
        "distance of the float network's mean features to the validation set's as stored / with the channels reversed",
        "ratio",
    )
    sharpness_ratio: float | None = fact("sharpness of the representative / of the validation images", "ratio")
    sharpness_mismatch_low: float | None = fact(
        "least factor between the two sharpnesses, either way, that the 95 % interval of their ratio allows (bootstrap "
        "over buckets of samples); 1 where it includes 1",
        "ratio",
    )
    correlation_drop: float | None = fact(
        "spatial_correlation of the validation images - that of the representative images", "ratio"
    )
    feature_distance: float | None = fact(
        "distance between the two sets' mean features / √(summed feature variance of the validation set)", "σ"
    )


class DatasetFacts(Facts):
    """Scope ``dataset``: one data set as the network received it, first input unless said otherwise."""

    role: Role | None = fact("representative (calibration) or validation")
    samples: int | None = fact("samples read")
    labelled: bool | None = fact("labels were given")
    unique_share: float | None = fact("distinct samples / samples, by content hash", "share")
    blank_share: float | None = fact(
        "share of samples whose deviation is under 5e-3 of the set's, or of the validation set's where that is larger",
        "share",
    )
    saturated_share: float | None = fact("mean share of elements of a sample that equal its largest value", "share")
    nonfinite_samples: int | None = fact("samples with a NaN or infinite element")
    min: float | None = fact("smallest input value", "value")
    max: float | None = fact("largest input value", "value")
    mean: tuple[float, ...] | None = fact("mean per channel", "value")
    std: tuple[float, ...] | None = fact("standard deviation per channel", "value")
    lattice_step: tuple[float, ...] | None = fact(
        "per channel: distance of neighbouring grid points when all distinct values lie on a grid of ≤ 256 points",
        "value",
    )
    lattice_low: tuple[float, ...] | None = fact("per channel: lowest grid point", "value")
    lattice_span: tuple[int, ...] | None = fact("per channel: steps from there to the highest grid point", "steps")
    range_growth: float | None = fact(
        "median over activation tensors of their range_growth: how much the ranges still widen with more samples",
        "ratio",
    )
    halves_disagreement: float | None = fact("median over activation tensors of their halves_disagreement", "ratio")
    input_spread: float | None = fact("std of this set's inputs / std of the validation inputs", "ratio")
    feature_spread: float | None = fact(
        "summed variance of the float network's features on this set / on the validation set", "ratio"
    )
    effective_rank: float | None = fact("exp(entropy of the feature covariance's normalized eigenvalues)")
    effective_rank_ratio: float | None = fact("effective_rank / effective_rank of the validation set", "ratio")
    classes: int | None = fact("distinct classes that the float network predicts on this set")
    class_coverage: float | None = fact("classes seen in this set / classes seen in the validation set", "share")
    clipped_share: float | None = fact(
        "share of activations outside their quantizers' ranges, over all quantized tensors", "share"
    )
    clipped_share_ratio: float | None = fact(
        "clipped_share of the validation set / clipped_share of the representative set", "ratio"
    )
    image: bool | None = fact("the first input is an image: four axes, and 1, 3 or 4 channels")
    spatial_correlation: float | None = fact(
        "1 - mean squared difference of neighbouring pixels / (2 · variance within a channel of an image): 1 for even "
        "surfaces, 0 for noise; images only",
        "ratio",
    )
    sharpness: float | None = fact(
        "energy of second differences / energy of first differences of neighbouring pixels: 0 for smooth shades, 2 for "
        "hard edges, 3 for noise; does not depend on contrast or on how many edges there are; images only",
        "ratio",
    )
    layout_roughness_ratio: float | None = fact(
        "mean squared difference of neighbouring pixels / variance, as stored / where the same numbers are read with "
        "the channels at the other end (NCHW as NHWC); > 1: the other layout is smoother; images of several channels "
        "only",
        "ratio",
    )
    uniform_distance: float | None = fact(
        "largest distance of the cumulative distribution of the inputs from an even one over their range "
        "(Kolmogorov and Smirnov)",
        "share",
    )
    normal_distance: float | None = fact(
        "largest distance of the cumulative distribution of the inputs from a normal one of their mean and deviation",
        "share",
    )
    saturation_excess: float | None = fact(
        "mean share of elements of a sample that equal its largest value, minus that of the validation set; blank "
        "samples left out",
        "share",
    )
    class_coverage_ratio: float | None = fact(
        "class_coverage / the share of classes that as many distinct samples drawn from the validation set would show "
        "on average",
        "ratio",
    )
    unseen_channel_share: float | None = fact(
        "share of the channels that vary on the validation set and are constant, or never computed, on this set",
        "share",
    )
    clipped_share_max: float | None = fact(
        "largest share of elements of one quantized activation outside its quantizer's range", "share"
    )
    clipped_share_median: float | None = fact(
        "median over quantized activations of the share of elements outside the quantizer's range", "share"
    )
    exact_range_share: float | None = fact(
        "share of quantized activations whose range ends, on the side of this set's largest magnitude, within 1 % "
        "of it",
        "share",
    )
    range_reach: float | None = fact(
        "median over quantized activations of: end of the quantizer's range on the side of this set's largest "
        "magnitude / that magnitude; 1 where these samples gave the ranges by min-max, below where it clips on purpose",
        "ratio",
    )
    relation: RelationFacts = RelationFacts()
    input_reading: Literal["pixels", "unit", "other"] | None = fact(
        "how images come in, where their values lie on a grid: pixels 0 … 255, unit 0 … 1, or otherwise"
    )
    settings_scale_mismatch: float | None = fact(
        "max(ratio, 1 / ratio) of the lattice's step and settings.input_scale, worst channel; 1 = the samples are "
        "scaled as the toolchain is told to scale pixels",
        "ratio",
    )
    settings_mean_difference: float | None = fact(
        "largest distance between the pixel that lies at 0 and settings.input_mean; where the lattice spans all of a "
        "pixel's 256 values",
        "levels",
    )


class AffineFacts(Facts):
    """Line y ≈ slope · x + offset of the quantized model's output y, as it is returned, over the float model's x."""

    slope: float | None = fact("covariance of x and y / variance of x", "ratio")
    offset: float | None = fact("mean of y - slope · mean of x", "value")
    r2: float | None = fact("R²: squared correlation of x and y", "ratio")
    slope_mismatch: float | None = fact("max(|slope|, 1 / |slope|); 1 = equal scales", "ratio")
    offset_over_std: float | None = fact("|offset| / standard deviation of x", "σ")


class OutputFacts(Facts):
    """Scope ``output``: one output of the network."""

    name: str | None = fact("name of the output in the float model")
    tensor: TensorFacts = TensorFacts()
    is_integer: bool | None = fact("the last operation on the way to the output ends on an integer grid")
    step: float | None = fact("step of that grid", "value")
    distinct_levels: int | None = fact("codes that the whole output uses on the data", "levels")
    distinct_levels_worst_column: int | None = fact("codes that the poorest column of the last axis uses", "levels")
    levels: float | None = fact("range width of the float output / step: codes that its range spans", "levels")
    margin_median: float | None = fact("median of top-1 minus top-2 of the float output", "value")
    step_over_margin: float | None = fact("step / margin_median", "ratio")
    tie_share: float | None = fact("share of samples whose two best quantized scores are equal", "share")
    is_codes: bool | None = fact("the quantized model returns integers where the float model returns real values")
    affine: AffineFacts = AffineFacts()


class MetricFacts(Facts):
    """The task metric of both models on the labelled set; the drop is float minus quantized, worse is positive."""

    name: str | None = fact("top1, top5, mae, rmse or module:function")
    higher_is_better: bool | None = fact("direction of the metric")
    dataset: Role | None = fact("data set it was measured on")
    samples: int | None = fact("samples it was measured on")
    float_value: float | None = fact("metric of the float model; share for top1 and top5", "metric")
    quantized_value: float | None = fact("metric of the quantized model", "metric")
    drop: float | None = fact("float - quantized (sign turned where lower is better)", "metric")
    drop_low: float | None = fact(
        "lower end of the drop's 95 % interval: corrected paired score interval (Tango 1998) for 0/1 metrics, seeded "
        "studentized bootstrap over samples else",
        "metric",
    )
    drop_high: float | None = fact("upper end of that interval", "metric")
    relative_drop: float | None = fact("drop / |float|", "ratio")
    gain_share: float | None = fact(
        "lower end of the 95 % interval of the gain (-drop_high) / scale of the metric: 1 for top1 and top5, else the "
        "larger magnitude of both models' values",
        "ratio",
    )
    expected: float | None = fact(
        "metric of the float model that the user knows, from --expected-float-metric", "metric"
    )
    expected_shortfall: float | None = fact(
        "distance of the expected metric to the 99 % interval of the float model's measured one (corrected Wilson "
        "score for 0/1 metrics, seeded studentized bootstrap over samples else) / scale of the metric; 0 inside it and "
        "where the model is better",
        "ratio",
    )


class ComparisonFacts(Facts):
    """Difference d = y - x of an output y and what it is held against, x; the worst output where there are several."""

    samples: int | None = fact("samples compared")
    max_abs_difference: float | None = fact("largest |d|", "value")
    relative_difference: float | None = fact(
        "largest |d| of a column / its largest |x|, or a hundredth of the output's where that is more; columns lie on "
        "the shorter of axis 1 and the last axis",
        "ratio",
    )
    sqnr_db: float | None = fact("-10 · log10(sum of d² / sum of x²)", "dB")
    agreement: float | None = fact("share of samples where both name the same class", "share")
    nonfinite: int | None = fact("pairs left out because one of them is NaN or infinite")


class DeviceFacts(ComparisonFacts):
    """Outputs of the device (y) against those of the quantized model here (x)."""

    noise_ratio: float | None = fact(
        "mean d² of device and quantized model / mean d² of quantized and float model, for the output where it is most",
        "ratio",
    )


class StageFacts(ComparisonFacts):
    """One model of the toolchain's way from float to quantized (y) against the first of them (x)."""

    name: str | None = fact("name of the stage, from --stage")
    is_quantized: bool | None = fact("the stage's model holds quantizers")
    previous_sqnr_db: float | None = fact("sqnr_db against the stage before instead of the first", "dB")
    added_noise_ratio: float | None = fact(
        "mean d² against the stage before / mean d² of the stage before against the first", "ratio"
    )
    metric: float | None = fact("task metric of the stage's model", "metric")


class SearchFacts(Facts):
    """What the log of a toolchain tells of its mixed-precision or accuracy-driven search."""

    toolchain: str | None = fact("toolchain whose words were recognised")
    images: int | None = fact("images that the search judges a choice of bit widths by (smallest number named)")
    unreachable: bool | None = fact("the toolchain says that its target cannot be met")
    target: str | None = fact("resource or accuracy whose target it is, as the toolchain names it")
    target_value: float | None = fact("value of that target, in the toolchain's unit")
    least_value: float | None = fact("least value that the toolchain can reach, in its unit")
    several_targets: bool | None = fact("more than one resource was restricted")
    line: str | None = fact("the line of the log that says so")


#: ``model.framework`` where there is a float model alone, whose quantization failed.
FLOAT_ALONE = "float"


class FailureFacts(Facts):
    """How a quantization ended that produced no model, as its log tells."""

    toolchain: str | None = fact("toolchain whose words were recognised")
    failed: bool | None = fact("the log ends without a model: one of its lines reports an error")
    kind: str | None = fact("name of the failure in rules/logs.yaml; None where its words are not known")
    subject: str | None = fact("operator, tensor or file that the line names")
    line: str | None = fact("the line of the log that says so")
    lines: tuple[str, ...] | None = fact("the last lines of the log that report an error, in its order")
    data_problem: str | None = fact("what is wrong with the calibration data given, and where; None where nothing is")
    data_samples: int | None = fact("calibration samples that were read without a complaint")


class FloatFacts(Facts):
    """What a float model tells by itself, where no quantized one was made of it."""

    format: Literal["onnx", "litert", "torch"] | None = fact("format of the float model")
    problem: str | None = fact("why the file cannot be read; None where it can, or where there is none")
    opset: int | None = fact("opset of the default domain of the float model")
    operators: int | None = fact("operators of the float model")
    inputs: tuple[str, ...] | None = fact("its inputs with shape and type; N and ? are open")
    dynamic_inputs: tuple[str, ...] | None = fact("inputs with an open side other than the first")
    foreign_types: tuple[str, ...] | None = fact("operator types of domains that neither ONNX nor onnxruntime define")
    constant_bytes: int | None = fact("bytes of all constants, those in external data included", "bytes")
    nonfinite_constants: int | None = fact("constants that hold NaN or infinity")
    first_nonfinite_constant: str | None = fact("name of the first of them")
    repeated_names: int | None = fact("operators whose name another one has too")
    first_repeated_name: str | None = fact("the first such name")
    matrix_biases: int | None = fact("biases of convolutions and Gemm that are no vector, such as (1, 10)")
    first_matrix_bias: str | None = fact("operator of the first of them")
    unshaped: int | None = fact("tensors whose shape inference finds neither type nor rank")
    first_unshaped: str | None = fact("name of the first of them")
    shape_error: str | None = fact("what shape inference complains about; None where it does not")


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
    first_altered: str | None = fact("name of the first of them")
    rescaled_layers: int | None = fact("quantized layers that hold gains of input channels (input_gain_ratio above 1)")


class SettingsFacts(Facts):
    """What the toolchain was told, where its configuration or its own log was given."""

    activation_error_method: str | None = fact("error that activation thresholds are chosen by: MSE, NOCLIPPING, …")
    weights_error_method: str | None = fact("error that weight thresholds are chosen by: MSE, HMSE, …")
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
    distance_weighting: str | None = fact("how the search weighs the layers' distances: AVG, LAST_LAYER, EXP, HESSIAN")
    hessian_scores: bool | None = fact("the search weighs the layers by Hessian scores")
    configuration_overwrite: bool | None = fact("the choice of bit widths is given by the user")
    learned_rounding: bool | None = fact("weights were tuned by gradients after quantization")
    edits: int | None = fact("edits of single layers: rules of the network editor and bit widths set by hand")
    toolchain: str | None = fact("toolchain whose configuration or log was read")
    calibration_method: str | None = fact(
        "how thresholds of activations are chosen: minmax, percentile, entropy, kl, mse, moving-average, mix, search "
        "(the toolchain tries several), load (from a file), skip"
    )
    percentile: float | None = fact("share of the values that a percentile threshold covers", "%")
    calibration_samples: int | None = fact("samples that calibration reads")
    per_channel_weights: bool | None = fact("weights have a scale per output channel")
    per_channel_activations: bool | None = fact("feature maps have a scale per channel")
    asymmetric_activations: bool | None = fact("grids of activations have a zero point of their own")
    asymmetric_weights: bool | None = fact("grids of weights have a zero point of their own")
    activation_bits: int | None = fact("bits of activations where nothing else is said", "bits")
    weight_bits: int | None = fact("bits of weights where nothing else is said", "bits")
    dynamic: bool | None = fact("ranges of activations are found at run time")
    reduce_range: bool | None = fact("weights are kept to 7 bits")
    smooth_quant: bool | None = fact("outliers of activations are moved into the weights")
    float_layers: tuple[str, ...] | None = fact("layers that are left in float by name")
    float_types: tuple[str, ...] | None = fact("operator types that are left in float")
    wide_layers: tuple[str, ...] | None = fact("layers that compute with 16 bits by name")
    host_layers: tuple[str, ...] | None = fact("layers that are moved from the accelerator to the CPU by name")
    input_order_runtime: str | None = fact("colour format that the deployed model is fed with: rgb, bgr, nv12, gray …")
    input_order_train: str | None = fact("colour format that the float model was trained with")
    input_mean: tuple[float, ...] | None = fact("means that the toolchain builds into the model, per channel", "value")
    input_scale: tuple[float, ...] | None = fact(
        "factors that the toolchain builds into the model, per channel: (pixel - mean) · factor", "1/value"
    )
    unknown_keys: tuple[str, ...] | None = fact("keys of the configuration that the toolchain does not know")
    unknown_key_count: int | None = fact("how many these are")
    norm_type: str | None = fact("what the toolchain builds in front of the model, by its own word: data_mean …")
    calibrates_raw: bool | None = fact(
        "calibration samples pass the means and factors that the toolchain builds into the model: they have to be "
        "given without them"
    )
    inputs_differ: bool | None = fact("the model has several inputs with different settings; those of the first count")
    input_factor: float | None = fact("largest of input_scale", "1/value")
    swaps_channels: bool | None = fact(
        "the toolchain turns the order of colours around: one of input_order_runtime and input_order_train is rgb, the "
        "other bgr"
    )
    chosen_method: str | None = fact("calibration method that the toolchain's own search ended with, by its log")
    chosen_percentile: float | None = fact("share of the values that its threshold covers", "%")
    output_bits: int | None = fact("bits that the outputs of the model are computed with", "bits")
    wide_types: tuple[str, ...] | None = fact("operator types that compute with 16 bits")
    inert_options: tuple[str, ...] | None = fact("options that are set and do nothing, and why")
    inert_option_count: int | None = fact("how many these are")


class KernelFacts(Facts):
    """All operators of one kind in the quantized model as the runtime executes it, from --profile."""

    op_type: str | None = fact("kind of operator that the runtime executes, such as QLinearConv")
    count: int | None = fact("operators of this kind")
    time_ms: float | None = fact("median time of one run, summed over them", "ms")
    time_share: float | None = fact("time_ms / that of all operators", "share")


class ModelFacts(Facts):
    """Scope ``model``: the pair of models as a whole; every rule may read it as ``model.…``."""

    name: str | None = fact("file name of the quantized model without its folder")
    framework: str | None = fact(
        "onnx, torch, litert, safetensors where only weights were compared, imported where only files of a toolchain "
        "were read, or float where no quantized model was made"
    )
    format: str | None = fact(
        "QDQ, QOperator, dynamic or none; of LiteRT models int8, uint8, int16x8, dynamic, weight-only, float16 or none"
    )
    toolchain: str | None = fact("producer recorded in the quantized model")
    toolchain_marks: tuple[str, ...] | None = fact(
        "what tells the tool that quantized: keys of metadata, domains and operators of its own, names of a quantizer"
    )
    opset: int | None = fact("opset of the default domain of the quantized model")
    operators: int | None = fact("operators of the quantized model without quantizers")
    compute_operators: int | None = fact("operators with weights or a matrix product")
    half_share: float | None = fact("share of the measured tensors that the quantized model holds as float16", "share")
    quantized_share: float | None = fact("share of compute operators with quantized inputs or weights", "share")
    integer_share: float | None = fact("share of compute operators that the runtime executes with integers", "share")
    matched_share: float | None = fact("share of measured tensors whose float twin was found", "share")
    bytes_float: int | None = fact("bytes of the float model with its external data", "bytes")
    bytes_quantized: int | None = fact("bytes of the quantized model with its external data", "bytes")
    size_ratio: float | None = fact("bytes_quantized / bytes_float", "ratio")
    operations: int | None = fact(
        "multiply-adds of one sample, over all layers; None where those of one layer are not known"
    )
    integer_operations_share: float | None = fact(
        "share of these operations that the runtime executes with integers", "share"
    )
    latency_float_ms: float | None = fact(
        "median time of one run of the float model as deployed, from --profile: both models in turn, after a warm-up",
        "ms",
    )
    latency_float_low_ms: float | None = fact("lower quartile of these times", "ms")
    latency_float_high_ms: float | None = fact("upper quartile of these times", "ms")
    latency_quantized_ms: float | None = fact("the same of the quantized model", "ms")
    latency_quantized_low_ms: float | None = fact("lower quartile of these times", "ms")
    latency_quantized_high_ms: float | None = fact("upper quartile of these times", "ms")
    latency_ratio: float | None = fact("latency_quantized_ms / latency_float_ms", "ratio")
    latency_runs: int | None = fact("runs of each model that were timed")
    latency_threads: int | None = fact("processor threads that they used")
    latency_batch: int | None = fact("samples of one run")
    kernels: tuple[KernelFacts, ...] = Field(
        default=(), description="time by kind of operator of the quantized model, slowest first; from --profile"
    )
    observed: Literal["deployed", "simulated"] | None = fact(
        "deployed: exposing tensors left the outputs bit-equal on the first batch; simulated: it changed them"
    )
    observed_difference: float | None = fact("largest output change by observing / largest output magnitude", "ratio")
    dropped_taps: int | None = fact("tensors not observed because exposing them changed the output")
    degraded_layers: int | None = fact("layers whose accumulated error is over a threshold")
    degraded_share: float | None = fact("degraded layers / layers measured", "share")
    rounding_sqnr_min_db: float | None = fact("lowest rounding sqnr_db of any quantized activation", "dB")
    weight_sqnr_min_db: float | None = fact("lowest rounding sqnr_db of any layer's weights", "dB")
    output_sqnr_db: float | None = fact("lowest accumulated sqnr_db of the network's outputs", "dB")
    output_agreement: float | None = fact("share of samples where both models predict the same class", "share")
    reported_cosine_min: float | None = fact("lowest cosine similarity that the toolchain reported of a layer", "ratio")
    reported_cosine_median: float | None = fact("median over the layers of what it reported", "ratio")
    inner_host_layers: int | None = fact(
        "layers that the toolchain put on the CPU between two that it put on the accelerator (inner_host)"
    )
    sqnr_slope_db: float | None = fact(
        "least-squares slope of the accumulated sqnr_db over the layers, first to last, times their number: total fall",
        "dB",
    )
    sqnr_worst_step_db: float | None = fact("largest fall of accumulated sqnr_db within one layer", "dB")
    float_is_quantized: bool | None = fact("the float model holds quantizers too")
    first_nonfinite_layer: str | None = fact(
        "first layer in topological order with a NaN or infinite value that the float model does not have, else the "
        "first with any"
    )
    float_nonfinite: bool | None = fact("the float model shows NaN or infinite values somewhere")
    nonfinite_in: Literal["none", "float", "quantized", "both"] | None = fact(
        "models that show non-finite values there"
    )
    nonfinite_output: Literal["none", "float", "quantized", "both"] | None = fact(
        "models with a NaN or infinite value in an output"
    )
    input_nonfinite: bool | None = fact("the input data itself holds non-finite values")
    harmed: bool | None = fact(
        "quantization measurably hurts: the metric's proven drop exceeds the threshold drop_moderate, or both models "
        "predict the same class for a share under harmed_agreement; where the outputs are no classes, the sqnr_db of "
        "an output or of its worst channel is under quantize_error_sqnr_db, or one of its channels is lost"
    )
    power_of_two_share: float | None = fact("share of activation quantizers whose scale is a power of two", "share")
    dead_output: bool | None = fact("the quantized output is the same for every sample while the float one is not")
    cpu_vnni: bool | None = fact("the host's CPU has VNNI (avx512_vnni or avx_vnni)")
    integer_kernel_noise: float | None = fact(
        "mean d² of the outputs with integer kernels and without graph optimizations / mean d² of the latter and the "
        "float model, first batch; measured on CPUs without VNNI only",
        "ratio",
    )
    required_opset: int | None = fact(
        "opset that the quantizers of the default domain need: 10, 13 for scales per channel, 19 for float8, 21 for "
        "blocks and for codes of 16 or 4 bits"
    )
    opset_deficit: int | None = fact("required_opset - opset, 0 where the opset suffices")
    float_rerun_difference: float | None = fact(
        "largest change of an output of the float model in a second run of the first batch / its largest magnitude",
        "ratio",
    )
    training_nodes: int | None = fact(
        "operators of the float model in training mode: BatchNormalization that takes the batch's statistics, Dropout "
        "that drops"
    )
    first_training_node: str | None = fact("name of the first of them")
    reference: ComparisonFacts = Field(
        default=ComparisonFacts(), description="float model (y) against the outputs of --reference-outputs (x)"
    )
    device: DeviceFacts = DeviceFacts()
    stages: tuple[StageFacts, ...] = Field(default=(), description="the models of --stage, in the order given")
    float_stage: str | None = fact("stage without quantizers that departs most from the first")
    float_stage_difference: float | None = fact("relative_difference of that stage", "ratio")
    worst_stage: str | None = fact(
        "stage behind the first quantized one with the largest added_noise_ratio: what is made of a model that is "
        "quantized already"
    )
    worst_stage_noise_ratio: float | None = fact("added_noise_ratio of that stage", "ratio")
    worst_stage_agreement: float | None = fact("agreement of that stage with the first", "share")
    worst_stage_sqnr_db: float | None = fact("sqnr_db of that stage against the first", "dB")
    worst_stage_drop_db: float | None = fact("sqnr_db of the stage before minus that of worst_stage", "dB")
    search: SearchFacts = SearchFacts()
    failure: FailureFacts = FailureFacts()
    float_model: FloatFacts = FloatFacts()
    checkpoint: CheckpointFacts = CheckpointFacts()
    settings: SettingsFacts = SettingsFacts()
    metric: MetricFacts = MetricFacts()


class CaseFacts(Facts):
    """All facts of one case: the views that rules range over."""

    model: ModelFacts = ModelFacts()
    datasets: tuple[DatasetFacts, ...] = ()
    layers: tuple[LayerFacts, ...] = ()
    tensors: tuple[TensorFacts, ...] = ()
    operands: tuple[OperandFacts, ...] = ()
    outputs: tuple[OutputFacts, ...] = ()

    @property
    def without_data(self) -> bool:
        """No data set was given, so that whatever data would tell is missing."""
        return bool(self.datasets) and all(own == DatasetFacts(role=own.role) for own in self.datasets)


SCOPES: dict[Scope, type[Facts]] = {
    "model": ModelFacts,
    "dataset": DatasetFacts,
    "layer": LayerFacts,
    "tensor": TensorFacts,
    "operand": OperandFacts,
    "output": OutputFacts,
}


def nested_facts(annotation: Any) -> type[Facts] | None:
    """The ``Facts`` class that a field holds directly, or None for a leaf."""
    return annotation if isinstance(annotation, type) and issubclass(annotation, Facts) else None


def fact_paths(scope: Scope) -> dict[str, Any]:
    """Every dotted path that a rule of this scope may name, with its field info."""
    paths = _paths(SCOPES[scope])
    if scope != "model":
        paths |= {f"model.{path}": field for path, field in _paths(ModelFacts).items()}
    return paths


def _paths(cls: type[Facts], prefix: str = "") -> dict[str, Any]:
    paths: dict[str, Any] = {}
    for name, field in cls.model_fields.items():
        nested = nested_facts(field.annotation)
        paths |= _paths(nested, f"{prefix}{name}.") if nested else {prefix + name: field}
    return paths

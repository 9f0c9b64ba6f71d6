"""Facts of one activation: its distribution, its quantizer, its errors, and what a toolchain records of it."""

from typing import Literal

from pydantic import Field

from quantmedic.engine.case.budget_record import Mechanism
from quantmedic.engine.case.fact_base import Facts, Pattern, Role, Words, fact


class OutcomeFacts(Facts):
    """What changes of quantizers recover: shares of the noise that these make at the leading output.

    By simulated runs of the loss budget. A change that alters nothing recovers 0; None where none was tried.
    """

    full_range: float | None = fact("with a range that holds all values", "share")
    percentile_range: float | None = fact("with a range that leaves out the rarest values", "share")
    best_range: float | None = fact("with the range of least squared error", "share")
    asymmetric_range: float | None = fact("with a range that has a zero point", "share")
    zero_point: float | None = fact(
        "asymmetric_range less the larger of full_range and best_range: what the zero point alone adds", "share"
    )
    sixteen_bit: float | None = fact("with 16 bits for the same range", "share")
    best_weight_range: float | None = fact("with the weights' range of least squared error", "share")
    per_channel_weights: float | None = fact("with one scale per channel, of weights", "share")
    eight_bit_weights: float | None = fact("with 8 bits and one scale per channel, of weights", "share")


class SourceFacts(Facts):
    """What one quantizer does to the noise at the network's leading output, by the experiments of the loss budget.

    What goes is a share of that noise; it is known where the quantizer makes a part that matters.
    """

    share: float | None = fact(
        "share of the noise at the leading output that it makes (loss budget: the mean of what it adds before and "
        "after the others); negative where it makes up for others",
        "ratio",
    )
    last: float | None = fact("what of this noise goes where only this quantizer is taken away", "ratio")
    amplification_db: float | None = fact(
        "sqnr_db of this tensor's own rounding error minus that of the output where everything else is in float: how "
        "much larger, relative to the signal, its noise arrives there",
        "dB",
    )
    mechanism: Mechanism | None = fact(
        "how it makes noise, by what takes most of that away: nothing cut off below, above or on either side "
        "(clipped-low, clipped-high, clipped), a narrower range (range-too-wide), a range with a zero point (grid), "
        "16 bits (step)"
    )
    outcome: OutcomeFacts = OutcomeFacts()


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
    p1: float | None = fact("1 % quantile, within one histogram bin (6.3 % of its value)", "value")
    p50: float | None = fact("median, within one histogram bin", "value")
    p99: float | None = fact("99 % quantile, within one histogram bin", "value")
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
    negative_share: float | None = fact("share of elements < 0", "share")
    channel_absmax_ratio: float | None = fact("largest channel absmax / median channel absmax", "ratio")
    channel_shape_ratio: float | None = fact(
        "largest √mean(x²) of a channel over the median one, as a share of channel_absmax_ratio: near 1 where the "
        "loudest channel is shaped like the others and only larger, small where a few values make it loud",
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

    @property
    def width(self) -> float | None:
        """Width of the range of the values; None where they were not seen."""
        return None if self.max is None or self.min is None else self.max - self.min

    @property
    def width_with_zero(self) -> float | None:
        """Width of the range of the values and zero, which every grid holds; None where they were not seen."""
        return None if self.max is None or self.min is None else max(self.max, 0.0) - min(self.min, 0.0)


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
    step: ErrorFacts = Field(
        default=ErrorFacts(),
        description="the deployed tensor against its float operator, both fed with what the deployed model computed "
        "before them; a network input that it takes as floats reaches the float operator unrounded",
    )
    clipping: ClippingFacts = ClippingFacts()
    normalized_mse: float | None = fact(
        "mean squared difference of float and deployed tensor after each was scaled to 0 … 1 by its own extremes: the "
        "MSE of Neural Compressor's diagnosis, which sees no wrong scale and no offset",
        "ratio",
    )
    predicted_best_gain_db: float | None = fact(
        "sqnr_db of the best range found on the stored histogram (min-max, percentiles, least squares) minus that of "
        "the range in force",
        "dB",
    )
    local_sqnr_db: float | None = fact(
        "rounding.sqnr_db; infinite where the noise was carried in: where rounding_share is at most own_noise_share",
        "dB",
    )
    predicted_best_low: float | None = fact("lower end of that range", "value")
    predicted_best_high: float | None = fact("upper end of that range", "value")
    amplification: float | None = fact(
        "accumulated nmse of this tensor, less that of its own rounding / largest accumulated nmse among the inputs of "
        "its operator",
        "ratio",
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
    code_type: Words[str | None] = fact("type of codes that are small floats, whose grid is uneven: float8e4m3fn …")
    reach: float | None = fact("largest magnitude that codes of small floats stand for, of all channels", "value")


class RecordedFacts(Facts):
    """What a file of the toolchain records of one tensor: encodings, calibration table or cache."""

    origin: str | None = fact("name of the file that says so")
    method: Words[str | None] = fact("how the threshold was chosen, as SettingsFacts.calibration_method names it")
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


class DeviceTensorFacts(Facts):
    """The tensor that the device computed, from --device-tensors, against that of the quantized model here."""

    samples: int | None = fact("samples compared")
    sqnr_db: float | None = fact("-10 · log10(sum of d² / sum of x²), d = device - quantized model here (x)", "dB")
    own_sqnr_db: float | None = fact(
        "the same of what begins here: d is the device's tensor less what the tensor's operator makes of the device's "
        "own tensors before it. Differences of one step of the grid are rounding and left out; what the model here "
        "shows of the same is taken off twice",
        "dB",
    )
    own_steps: float | None = fact("mean of that d² in steps of the grid", "steps²")
    factor: float | None = fact(
        "device's tensor / what the tensor's operator makes of the device's own tensors before it, by least squares",
        "ratio",
    )
    factor_sqnr_db: float | None = fact("SQNR that this one factor leaves", "dB")
    taken_scale: float | None = fact("scale of the grid / factor: on this scale the device seems to take the codes")
    layers: tuple[str, ...] = Field(
        default=(), description="names of the layers that compute it from tensors that were compared, in their order"
    )
    begins: bool | None = fact(
        "a departure begins here: own_sqnr_db is under device_begins_sqnr_db, and own_steps over device_begins_steps "
        "where there is a grid; None where it is not known, as behind another departure where operators cannot be fed"
    )


class TensorFacts(Facts):
    """Scope ``tensor``: one activation, the input of the network included."""

    name: str | None = fact("name in the quantized model")
    float_name: str | None = fact("name of its twin in the float model")
    producer: str | None = fact("operator type that produces it; 'Input' for a network input")
    producer_name: str | None = fact("name of the producing layer")
    consumers: tuple[str, ...] = Field(default=(), description="operator types that read it")
    read_by_relu: bool | None = fact("nothing but ReLUs reads it, so that its negative values are not needed")
    readers: tuple[str, ...] = Field(
        default=(), description="names of the float nodes that compute with it, also behind operators that only move it"
    )
    channels: int | None = fact("channels measured; None where the channel axis is unknown")
    is_half: bool | None = fact("the quantized model holds it as float16 numbers")
    is_squared: bool | None = fact("an operator of the quantized model squares it: Pow by 2, or Mul with itself")
    quantizer: QuantizerFacts = QuantizerFacts()
    bits_below_neighbours: int | None = fact(
        "bits that its grid has fewer than the narrowest of the quantized tensors that its producer reads and its "
        "readers write; None where one of the two sides has none",
        "bits",
    )
    source: SourceFacts = SourceFacts()
    departure_share: float | None = fact(
        "share of the noise at the leading output that begins here and that no quantizer makes: what the deployed "
        "model computes here otherwise than its weights and grids say, added to the simulated network alone (loss "
        "budget)",
        "share",
    )
    departure_sqnr_db: float | None = fact(
        "the deployed tensor against its float operator with the stored weights, fed with what the deployed model "
        "computed before it and rounded on the tensor's own grid; where they differ by more than rounding (budget)",
        "dB",
    )
    device: DeviceTensorFacts = DeviceTensorFacts()
    representative: TensorDataFacts = TensorDataFacts()
    validation: TensorDataFacts = TensorDataFacts()
    data: TensorDataFacts = Field(
        default=TensorDataFacts(), description="facts on the validation set where it was given, else representative"
    )
    negative_levels: float | None = fact(
        "smaller of |min| and |low| / scale: codes left for the negative values, on a grid that reaches no further "
        "than the values; 0 where the range begins at zero",
        "levels",
    )
    negative_ratio: float | None = fact("|min| / quantizer's high end", "ratio")
    shift_excess: float | None = fact(
        "|min| / (quantizer's reach · shift_negative_ratio of the settings), where the toolchain's shift of negative "
        "values is on: above 1 it does nothing",
        "ratio",
    )
    range_excess_bits: float | None = fact(
        "log2(quantizer's reach / abs_p99_99 of the values): bits spent beyond 99.99 % of the values", "bits"
    )
    outlier_bits: float | None = fact(
        "range_excess_bits; behind operators with long tails by nature (Exp, Softmax, Sigmoid, Pow, Div, Reciprocal, "
        "Sqrt, ReduceMean) no more than data.predicted_best_gain_db / 6.02, the bits that another range regains",
        "bits",
    )
    outlier_ratio: float | None = fact(
        "data.values.absmax_over_median; 0 behind operators with long tails by nature, as outlier_bits", "ratio"
    )
    best_sqnr_db: float | None = fact(
        "rounding sqnr_db that this tensor would have with the best range for its bits", "dB"
    )
    pattern: Pattern | None = fact(
        "what the graph makes of it: swish (a product of two functions of one tensor, as Swish and GELU become in "
        "pieces), softmax-input (a Softmax reads it, directly or through operators that only move values), none"
    )
    overflow_ratio: float | None = fact("absmax / quantizer.reach, of codes that are small floats", "ratio")
    range_slack: float | None = fact("quantizer's reach (largest magnitude it represents) / absmax", "ratio")
    power_of_two_excess: float | None = fact(
        "quantizer's reach / the next power of two at or above absmax, where every scale is a power of two: 1 where "
        "rounding up explains the range, 2 and more where values beyond these set it",
        "ratio",
    )
    asymmetry_waste: float | None = fact(
        "1 - (max - min) / (2 · absmax), with 0.0 as a value: share of a symmetric range that the values leave empty",
        "share",
    )
    zero_point_gain_db: float | None = fact(
        "sqnr_db of the best range with a free zero point minus that of the best symmetric range; 0 where the latter "
        "gains as much over the range in force; for symmetric quantizers of either sign",
        "dB",
    )
    sample_levels: float | None = fact(
        "mean range width of a single sample / scale, on a grid that reaches no further than the values", "levels"
    )
    median_levels: float | None = fact(
        "median of |x| over the values that are not 0 / scale: steps that a typical value spans", "levels"
    )
    fill: float | None = fact(
        "constant at which its values or its range end: one that the float model puts among them (Pad, Where, Concat, "
        "Max, …), and of a softmax's input the smallest value where that is a mask"
    )
    unmasked_end: float | None = fact(
        "constant that may stand for fill: the end of the values beside it; before a softmax their width and 16 further"
    )
    unmasked_levels: float | None = fact(
        "range width of the values on this side of fill / 2, taken with 0.0, / scale: codes left beside a constant",
        "levels",
    )
    unmasked_sqnr_db: float | None = fact(
        "sqnr_db of the values on this side of fill / 2 on the quantizer's grid, predicted from the histogram", "dB"
    )
    inner_sqnr_db: float | None = fact(
        "pattern swish: sqnr_db of the product when the tensor and every step on the way to it are rounded to their "
        "own grids, but not the product itself; from the histogram of the tensor it is a function of",
        "dB",
    )
    inner_share: float | None = fact("pattern swish: that noise / accumulated mse of the product", "share")
    clip_high: float | None = fact("upper bound of that Clip; 6 for ReLU6", "value")
    clip_lost: bool | None = fact(
        "the float model clips this tensor, while in the quantized one neither a Clip nor the quantizer's range does"
    )
    floor_lost: bool | None = fact(
        "a ReLU or Clip bounds this tensor from below in the float model, while in the quantized one neither an "
        "operator does nor the quantizer's range, within 5 % of its width"
    )
    recorded: RecordedFacts = RecordedFacts()


class OperandFacts(Facts):
    """Scope ``operand``: one measured input of a Concat or Add."""

    layer: str | None = fact("name of the layer that joins the operands")
    op_type: str | None = fact("Concat or Add")
    index: int | None = fact("position among the operands")
    tensor: str | None = fact("name of the operand's tensor in the float model")
    width: float | None = fact("range width of the operand's values", "value")
    range_ratio: float | None = fact(
        "widest range of an operand and zero, which the joint grid has to hold / this operand's range width", "ratio"
    )
    levels: float | None = fact("this operand's range width / scale of the joint quantizer", "levels")
    joint_sqnr_db: float | None = fact("sqnr_db of this operand's values on the joint quantizer's grid", "dB")
    own_sqnr_db: float | None = fact("sqnr_db of this operand on a min-max grid of its own with as many bits", "dB")
    joint_source: SourceFacts = SourceFacts()

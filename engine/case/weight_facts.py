"""Facts of the weights and the bias of one layer."""

from typing import Literal

from quantmedic.engine.case.fact_base import Facts, Role, Words, fact
from quantmedic.engine.case.tensor_facts import ErrorFacts, QuantizerFacts

#: What a weight of a language model is for.
TensorRole = Literal["embedding", "norm", "attention", "mlp", "expert", "router", "lm_head"]


class WeightFacts(Facts):
    """The weights of one layer, float values against the integers that replace them."""

    name: str | None = fact("name of the float initializer")
    channels: int | None = fact("output channels")
    quantizer: QuantizerFacts = QuantizerFacts()
    overflow_ratio: float | None = fact(
        "largest float weight / largest magnitude that codes of small floats stand for, of the worst channel",
        "ratio",
    )
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
    shift_error_share: float | None = fact(
        "share of the squared error in steps that rounding_mean_steps makes: 0.75 of truncation, near 0 where weights "
        "are off in many ways",
        "share",
    )
    coarse_share: float | None = fact("share of the channels that are not dead whose rounding sqnr_db is < 10", "share")
    misplaced_share: float | None = fact(
        "share of weights stored more than 1.5 steps of the effective bits from the float weight, although the grid "
        "reaches that far: no rounding explains them; in networks None where another axis or one shift does",
        "share",
    )
    misplaced_error_share: float | None = fact(
        "share of the squared error of the stored weights that these make: near 0 for any rounding, near 1 where a few "
        "codes were damaged and the others are as they were",
        "share",
    )
    disordered_share: float | None = fact(
        "share of neighbours in the order of an output channel's float weights that are stored the other way round, by "
        "more than a step: 0 where the stored weights follow from the float ones by any rounding, shift or cut, about "
        "a half of other weights",
        "share",
    )
    gain_error_share: float | None = fact(
        "share of the squared error of the stored weights that goes where each output channel is multiplied by the "
        "factor that suits it best: near 0 for any rounding, near 1 where scales are those of other channels or were "
        "changed",
        "share",
    )
    unrounded_sqnr_db: float | None = fact(
        "of weights that are stored as floats: power of the float model's weights / that of the difference to them; "
        "None where they are equal",
        "dB",
    )
    unrounded_gain_share: float | None = fact(
        "share of that difference that goes where each output channel is multiplied by the factor that suits it best",
        "share",
    )
    similarity: float | None = fact(
        "cosine of stored and float weights, as they are or with the gains of output and input channels taken out "
        "(rows and columns scaled to one norm in turn), whichever is larger",
        "ratio",
    )
    found_as: Literal["same", "transposed", "reordered", "other"] | None = fact(
        "what the stored weights are, by cosines over 0.8: the float ones; the float ones with the first two axes "
        "swapped; the float ones with the output channels in another order; something else"
    )
    output_axis: int | None = fact("axis of the output channels")
    axis_gain_db: float | None = fact(
        "sqnr_db of the weights with their scales along another axis, minus that in force, of the whole tensor or of "
        "the worst channel, whichever gains more: the stored codes read along another axis of equal length, or, where "
        "the scales do not lie along the output channels or are those of another axis, a grid per output channel",
        "dB",
    )
    scale_axis: int | None = fact(
        "another axis than that of the output channels whose largest magnitudes the scales follow: at least nine of "
        "ten are the same multiple of them within 2 %, and are not of those of the output channels"
    )
    distinct_codes: int | None = fact("different codes among the stored weights", "codes")
    effective_bits: int | None = fact(
        "bits that the codes in use take, ⌈log2 of distinct_codes⌉, where the float weights over the full range would "
        "use at least twice as many codes, and those in use lie apart (every second is free) or end at 2ᵏ or 2ᵏ - 1, "
        "as codes of fewer bits do; the bits of the quantizer otherwise",
        "bits",
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
        "predicted_best_sqnr_db - rounding sqnr_db, where the stored weights are a rounding of the float ones with all "
        "bits",
        "dB",
    )
    predicted_best_channel_sqnr_db: float | None = fact(
        "of such weights, lowest sqnr_db of a channel that is not dead with the best range of each scale", "dB"
    )
    predicted_8bit_sqnr_db: float | None = fact(
        "rounding sqnr_db with 8 bits over the full range, at the granularity and symmetry in force; where there are "
        "fewer now, or the codes in use take fewer",
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
    format: Words[str | None] = fact(
        "how the codes are stored: gptq, awq, pack-quantized, int8, fp8, bitsandbytes, torchao, gguf q4_k …, or "
        "fake-quantized"
    )
    groups: int | None = fact("groups of weights that share a scale, over all output channels; between checkpoints")
    group_size: int | None = fact("weights of a group, of the largest where they differ")
    dead_groups: int | None = fact(
        "groups stored as one value, or with a scale that is 0 or no number, whose float weights differ and have at "
        "least 1 % of the layer's root mean square"
    )
    dead_group: Words[str | None] = fact("the first of them: output channel / group")
    broken_scales: int | None = fact("groups whose stored scale is infinite or no number; between checkpoints")
    broken_scale: str | None = fact("the first of them: output channel / group")
    worst_group_sqnr_db: float | None = fact(
        "lowest rounding sqnr_db of a group whose root mean square is at least 1 % of the layer's", "dB"
    )
    worst_group: Words[str | None] = fact("that group: output channel / group")
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
    better_reading: Words[str | None] = fact("that other way: another order of codes, zero points, or groups")
    input_gain_ratio: float | None = fact(
        "largest / smallest gain of an input channel, stored over float weights, where gains of input and output "
        "channels explain at least three quarters of the squared error (AWQ and SmoothQuant fold such gains in); every "
        "other fact then holds the stored weights against the float ones with these gains. 1 where there are none. "
        "Channels that rounding has erased look like small gains",
        "ratio",
    )
    is_router: bool | None = fact(
        "by its name and shape, the layer of a checkpoint chooses among experts; between checkpoints"
    )
    block_scale_top_share: float | None = fact(
        "share of the scales per block (NVFP4: float8, MXFP4: powers of two) that are the largest number of their "
        "type, one left out: a tensor's scale is chosen so that one block has it",
        "share",
    )
    block_scale_low_share: float | None = fact(
        "share of these scales that are subnormal, so that few bits are left of them", "share"
    )
    lacks_global_scale: bool | None = fact(
        "scales per block are stored without the scale of the tensor that their format asks for"
    )
    role: TensorRole | None = fact(
        "what the weights of a language model are for, by their name or else their shape; between checkpoints"
    )
    left_gain_channels: int | None = fact(
        "output channels that are stored over 1.25 times, or under half, as large as the float ones (by least "
        "squares, with a cosine above 0.95), where no layer that reads so many inputs divides by as much; between "
        "checkpoints"
    )
    left_gain: float | None = fact(
        "of these channels the stored over the float weights, where that is furthest from 1; 1 where there are none",
        "ratio",
    )
    left_input_channels: int | None = fact(
        "input channels that count over 1.25 times, or under half, as much as in the float model beside the others, "
        "because weights were multiplied (with a cosine above 0.95) and no norm, layer or scale before them divides "
        "by as much, or because a norm was divided and these weights were left out; between checkpoints"
    )
    left_input_gain: float | None = fact(
        "of these channels what they count against the float model, where that is furthest from 1; 1 where there are "
        "none",
        "ratio",
    )
    grid_similarity: float | None = fact(
        "cosine of the float weights and of themselves rounded to nearest on a grid of the same bits, groups and "
        "symmetry that covers them, of 32 to 256 output channels; between checkpoints",
        "ratio",
    )
    similarity_kept: float | None = fact(
        "similarity / grid_similarity: 1 for any rounding, whatever the bits, near 0 for other weights; between "
        "checkpoints",
        "ratio",
    )
    grid_gain_db: float | None = fact(
        "rounding sqnr_db of the float weights rounded to nearest on such a grid, minus that of the stored ones, of "
        "the same output channels: below 0 where the stored ones are better, a few dB where GPTQ traded it for better "
        "outputs; between checkpoints, where steps are even",
        "dB",
    )
    moved_share: float | None = fact(
        "share of the weights of 32 to 256 output channels whose code is not the nearest one to the float weight, "
        "beyond what a scale rounded to 16 bits explains: 0 for rounding to nearest, a tenth and more where GPTQ moves "
        "weights to cancel the errors of others; between checkpoints, where steps are even",
        "share",
    )
    lost_inputs: float | None = fact(
        "share of the input channels whose stored weights are off by more than half of the power of the float ones, "
        "of 32 to 256 output channels, dead ones left out; between checkpoints, of weights without outlier groups and "
        "folded gains whose channels are not coarse throughout",
        "share",
    )
    dead_share: float | None = fact("dead_groups / groups; between checkpoints", "share")
    misscaled_groups: int | None = fact(
        "groups of at least 16 weights that are the float ones (with a cosine above 0.95) times over 1.5, or under "
        "half, the usual factor of their output channel, whose median group is as alike; between checkpoints"
    )
    misscaled_group: str | None = fact("the one that is furthest off, output channel / group")
    group_gain: float | None = fact("its factor over the usual one; 1 where there is none", "ratio")
    twin: str | None = fact(
        "another layer of the float checkpoint that the stored weights are those of, by a cosine above 0.5 where that "
        "to the layer's own float weights is below; looked for where similarity_kept is under 0.8"
    )
    twin_similarity: float | None = fact("cosine of the stored weights and of that layer's float ones", "ratio")
    twin_exchange: str | None = fact("whether that layer holds the weights of this one in turn, in words")
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

    name: str | None = fact("name of the float bias")
    rms: float | None = fact("root mean square of the float bias", "value")
    absmax: float | None = fact("largest |float bias|", "value")
    recorded_bits: int | None = fact("bits that encodings of the toolchain give the bias, with one scale", "bits")
    recorded_step: float | None = fact(
        "the scale recorded with them; where none is, that of a symmetric grid up to absmax", "value"
    )
    recorded_steps: float | None = fact(
        "recorded_step / step of the grid on which the layer's output is rounded: above 1, rounding the bias moves a "
        "channel further than rounding the output does",
        "steps",
    )
    max_code: float | None = fact("largest |float bias| / (s_x·s_w[c]): must stay below 2³¹ - 1", "codes")
    max_code_per_channel: float | None = fact(
        "the same if every channel c had a weight scale of its own: s_w[c] = channel absmax / (2^(bits-1) - 1)", "codes"
    )
    bits: int | None = fact("bits of the stored bias; 32, or 0 where it stays float", "bits")
    max_error: float | None = fact("largest |stored bias - float bias|, also of a stored bias in float", "value")
    max_error_steps: float | None = fact(
        "largest |stored bias - float bias| / (s_x·s_w[c]): up to 0.5 for rounding to nearest", "steps"
    )
    overflowing_channels: int | None = fact(
        "channels whose code is beyond or at the end of int32, or of int64, or of the fewer bits of cut_bits; or that "
        "are stored as one value that all channels end at, where that explains several that are off"
    )
    cut_bits: int | None = fact(
        "bits of the signed numbers at whose ends the stored codes were cut off, or wrapped around: with them all "
        "codes are as they should be that are off by more than rounding",
        "bits",
    )
    scale_ratio: float | None = fact(
        "scale stored with an integer bias / (s_x·s_w[c]), of the channel where it is furthest from 1 among those "
        "whose bias is not 0; not known of a bias that has no scale of its own",
        "ratio",
    )
    scale_departure: float | None = fact("|scale_ratio - 1|", "ratio")
    misread_sqnr_db: float | None = fact(
        "power of the stored bias / power of what changes where its codes are read on steps of s_x·s_w[c]: what is "
        "left of it in a kernel that ignores the stored scale",
        "dB",
    )
    overflowing_dead_channels: int | None = fact(
        "those among them whose weights are dead (absmax < 1e-6 of the tensor's)"
    )
    rounding: ErrorFacts = ErrorFacts()


class ConstantFacts(Facts):
    """A constant operand held as codes that is neither weights nor bias: an addend, a norm's gain, a table.

    Where an operator has several of them, the one that is furthest off, in steps.
    """

    name: str | None = fact("name of the float constant")
    bits: int | None = fact("bits of its codes", "bits")
    max_error: float | None = fact("largest |stored value - float value|", "value")
    max_error_steps: float | None = fact(
        "largest |stored value - float value| / step of its own grid: up to 0.5 for rounding to nearest", "steps"
    )
    misplaced_steps: float | None = fact(
        "the same with the float values cut off at the ends of that grid: more than rounding shows that other values "
        "were stored, whatever the grid",
        "steps",
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

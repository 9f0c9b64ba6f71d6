"""Facts of one data set, and of the representative inputs against the validation inputs."""

from typing import Literal

from quantmedic.engine.case.fact_base import Facts, Role, fact


class RelationFacts(Facts):
    """The representative inputs against the validation inputs: representative ≈ slope · validation + offset."""

    method: Literal["lattice", "quantiles", "channels"] | None = fact(
        "lattice: both inputs lie on an evenly spaced grid (8-bit images), compared exactly; quantiles: fit of 99 "
        "quantiles of the two distributions; channels: a line for each colour, through extremes. Channels that are in "
        "another order are turned first"
    )
    input: str | None = fact(
        "of several inputs that which was compared: the first, or where that is the same in both sets, the one that "
        "differs most, by a line that is certain"
    )
    input_mean: float | None = fact("of an input besides the first: mean of its validation values", "value")
    input_std: float | None = fact("of the same: their standard deviation", "value")
    reordered: bool | None = fact(
        "the channels of the representative images are in another order than those of the validation images: "
        "flipped_pixel_ratio is above 3, or flipped_distance_ratio above 2 and flipped_feature_ratio above 1.2"
    )
    order: tuple[int, ...] | None = fact("the order that fits best: where the channel is stored that belongs there")
    undoing_slopes: tuple[float, ...] | None = fact(
        "of what maps the representative inputs, in that order, to the validation inputs: factor of each channel, or "
        "one for all",
        "ratio",
    )
    undoing_offsets: tuple[float, ...] | None = fact("of the same: offset of each channel, or one for all", "value")
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
    certainty: float | None = fact(
        "1 for a lattice, R² of the quantile fit, and for channels 1 - squared distance of means and log deviations "
        "from the lines",
        "ratio",
    )
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
        "lattice per channel, else in shares of each channel's range; with the channels in that order which fits best, "
        "reversed or any other",
        "ratio",
    )
    flipped_fit_ratio: float | None = fact("the larger of flipped_distance_ratio and flipped_pixel_ratio", "ratio")
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
    smoothness_ratio: float | None = fact(
        "(1 - spatial_correlation) of the validation images / of the representative images; > 1: these are smoother",
        "ratio",
    )
    correlation_drop: float | None = fact(
        "spatial_correlation of the validation images - that of the representative images", "ratio"
    )
    constant_channels: int | None = fact(
        "channels, or columns of a table, that hold one value in all representative samples and vary in so many of the "
        "validation samples that this is no chance (below 0.02, over all channels)"
    )
    channel_scale_mismatch: float | None = fact(
        "largest factor between the deviations of a channel in both sets, over that of the median channel, either way, "
        "that is left without the value furthest out; of channels that are a multiple by their width and mean, too; 1 "
        "where none is",
        "ratio",
    )
    channel_reading: str | None = fact("which channels these are, counted from 0; the constant ones where there are")
    channel_distance: float | None = fact(
        "how far mean and log deviation of the channels lie from those of the validation set's, root mean square", "σ"
    )
    ordered_channel_distance: float | None = fact("the same with the channels in the order that fits best", "σ")


class DatasetFacts(Facts):
    """Scope ``dataset``: one data set as the network received it, first input unless said otherwise."""

    role: Role | None = fact("representative (calibration) or validation")
    input: str | None = fact("name of the first input in the float model")
    channel_axis: int | None = fact("axis of its channels; None where it has none or they are not known")
    samples: int | None = fact("samples read")
    read_in_part: bool | None = fact("no more were read than --samples allows: the set may hold more")
    labelled: bool | None = fact("labels were given")
    unique_share: float | None = fact("distinct samples / samples, by content hash", "share")
    blank_share: float | None = fact(
        "share of samples whose deviation is under 5e-3 of the set's, or of the validation set's where that is larger; "
        "of a set in other units for certain, of what the validation set's would be in these; strays left out",
        "share",
    )
    kept_deviation_ratio: float | None = fact(
        "root mean square deviation of the samples that are not blank / that of the validation samples", "ratio"
    )
    stray_samples: tuple[int, ...] | None = fact(
        "samples far above all others, by their place in the set from 0 on: a twentieth of the set at most; root mean "
        "square at least 3 times that of any other, and ln(n) + 3 spreads above the middle one of n, in logarithms; "
        "the other set shows none of that size. None for fewer than 16 samples"
    )
    stray_factor: float | None = fact(
        "root mean square of the smallest of them / of the middle sample; 1 where there are none", "ratio"
    )
    stray_limit: float | None = fact("root mean square between theirs and those of all other samples", "value")
    stray_reading: str | None = fact("which samples they are, and their factor, in words")
    saturated_share: float | None = fact("mean share of elements of a sample that equal its largest value", "share")
    nonfinite_samples: int | None = fact("samples with a NaN or infinite element")
    nonfinite_reading: str | None = fact("which samples these are, in words; None where there are none")
    min: float | None = fact("smallest input value", "value")
    max: float | None = fact("largest input value", "value")
    mean: tuple[float, ...] | None = fact("mean per channel", "value")
    std: tuple[float, ...] | None = fact("standard deviation per channel", "value")
    lattice_step: tuple[float, ...] | None = fact(
        "per channel: distance of neighbouring grid points when all distinct values lie on a grid of ≤ 256 points",
        "value",
    )
    lattice_low: tuple[float, ...] | None = fact("per channel: lowest grid point", "value")
    range_growth: float | None = fact(
        "median over activation tensors of their range_growth: how much the ranges still widen with more samples",
        "ratio",
    )
    halves_disagreement: float | None = fact("median over activation tensors of their halves_disagreement", "ratio")
    level_spread: float | None = fact(
        "deviation of the samples' means / deviation of all values, over the same of the validation set: 1 where "
        "samples differ from each other as those do, whatever their contrast; resizing keeps it, copies and blends of "
        "samples do not",
        "ratio",
    )
    feature_spread: float | None = fact(
        "summed variance of the float network's features on this set / on the validation set", "ratio"
    )
    feature_excursion: float | None = fact(
        "mean squared distance of the representative set's features from the mean of the validation set's / summed "
        "variance of those: 1 for a set of the same kind, less for a part of it near the middle, more for others",
        "ratio",
    )
    effective_rank_ratio: float | None = fact(
        "exp(entropy of the normalized eigenvalues of the features' covariance) / that of the validation set", "ratio"
    )
    classes: int | None = fact("distinct classes that the float network predicts on this set")
    class_coverage: float | None = fact("classes seen in this set / classes seen in the validation set", "share")
    clipped_share: float | None = fact(
        "share of activations outside their quantizers' ranges, over all quantized tensors", "share"
    )
    clipped_share_ratio: float | None = fact(
        "clipped_share of the validation set / clipped_share of the representative set", "ratio"
    )
    clipped_reading: str | None = fact("clipped_share of both sets against each other, in words")
    range_lack: float | None = fact(
        "share of the range of the validation set that the representative set does not cover, over quantized "
        "activations and inputs: the fourth root of the mean fourth power, in which those that lack most count most",
        "share",
    )
    ordinary_range_lack: float | None = fact(
        "the same of as many samples drawn from the validation set, the middle one of 400 draws; None where that holds "
        "less than twice as many, or where they are fewer than 4",
        "share",
    )
    ordinary_lack_share: float | None = fact(
        "ordinary_range_lack / range_lack: 1 where as few ordinary samples lack as much, near 0 where others are "
        "missing than samples",
        "ratio",
    )
    ordinary_quantile: float | None = fact("share of these draws that lack as much as range_lack or more", "share")
    brightness_ratio: float | None = fact(
        "mean pixel above black of the representative / of the validation images; where black is known: by a declared "
        "mean, by a grid of all 256 pixels, or by inputs that begin at 0",
        "ratio",
    )
    contrast_ratio: float | None = fact("the same of the deviation within the channels", "ratio")
    brightness_reading: str | None = fact(
        "what of both differs by more than a quarter and three standard errors, in words; None where neither does"
    )
    domain_reading: str | None = fact("clipped_reading, brightness_reading and ordinary_quantile in one sentence")
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
        "mean squared difference of neighbouring pixels, as stored / in the smoothest other layout: the same numbers "
        "read by pixels, by planes or by lines, or moved back from there with each channel normalized; > 1: another "
        "layout is smoother; images of several channels only",
        "ratio",
    )
    layout_reread: bool | None = fact(
        "that other layout is one in which the same numbers are read otherwise: no channel was normalized in between"
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
        "mean share of elements of a sample that equal its largest value, minus the validation set's, and at most "
        "the share of all values that lie at the set's largest one; blank samples left out",
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
    clipped_share_peak: float | None = fact(
        "clipped_share_max / clipped_share_median, that taken as 0.1 % at least: a percentile cuts off the same share "
        "at every end of a range, so at most twice that of the middle activation",
        "ratio",
    )
    ranges_both_ways: float | None = fact(
        "share of quantized activations whose range ends over 5 % beyond this set's largest magnitude, or share of "
        "those whose range ends as far short of it, whichever is smaller: no calibrator does both with one set",
        "share",
    )
    constant_inputs: int | None = fact(
        "inputs of the network that have one value in the whole representative set, and vary in the validation set",
        "inputs",
    )
    constant_input_reading: str | None = fact("which they are, and that value, in words")
    common_range_share: float | None = fact(
        "share of quantized activations that share the most frequent scale and range, of six at least", "share"
    )
    common_range_reading: str | None = fact("how many they are, and their range, in words")
    exact_range_share: float | None = fact(
        "share of quantized activations whose range ends, on the side of this set's largest magnitude, within 1 % "
        "of it",
        "share",
    )
    representative_range_share: float | None = fact(
        "of the validation set: exact_range_share of the representative set", "share"
    )
    labels_elsewhere: bool | None = fact("of the validation set: labels were given with the representative set alone")
    range_reach: float | None = fact(
        "median over quantized activations of: end of the quantizer's range on the side of this set's largest "
        "magnitude / that magnitude; 1 where these samples gave the ranges by min-max, below where it clips on purpose",
        "ratio",
    )
    range_method: str | None = fact(
        "what explains best the ranges that end over 10 % beside this set's largest magnitude, four at least: factor "
        "(over that magnitude), one range (for all), percentile or deviations (from the mean)"
    )
    range_method_setting: float | None = fact(
        "of range_method: the factor, the end of the range, the share beyond it, or the number of deviations"
    )
    range_method_error: float | None = fact(
        "how far three in four of those ranges end from where range_method, with one setting for all, ends them, |log| "
        "of the ratio. About 0 where these samples and one method gave the ranges, large where other data or weights "
        "did",
        "ratio",
    )
    misfit_share: float | None = fact(
        "share of the noise at the output that would not be there if the grids of activations held the validation "
        "values as well, in dB, as they hold the representative ones; from the loss budget. About 0 where ranges are "
        "poor for both, large where they were fitted to other data",
        "share",
    )
    odd_range_share: float | None = fact(
        "share of the noise at the output that goes with the range of the judged values, of quantizers that see usual "
        "samples as wide in both sets and half a bit more of range in the representative one; from the loss budget",
        "share",
    )
    input_range_ratio: float | None = fact(
        "width of the range of a quantized network input / width of this set's values, both with 0.0; on a symmetric "
        "grid reach / absmax; of several inputs that of the one whose range fits least. An input that stays in "
        "float counts by the first quantized tensors behind it, before any layer with weights. Where half of the codes "
        "alone fits both ends (reduced range), that half counts. 1: the range is of such data",
        "ratio",
    )
    input_clipped_share: float | None = fact("share of that input's values outside its quantizer's range", "share")
    input_clipped_ratio: float | None = fact(
        "input_clipped_share / clipped_share_median, that taken as 0.1 % at least: a method that clips on purpose "
        "cuts off about the same share everywhere, and gives about 1",
        "ratio",
    )
    odd_set_reading: str | None = fact(
        "of the representative set: which of both sets is the one to change where they differ, in words; the float "
        "model's kappa on the validation labels tells"
    )
    input_unused_side: float | None = fact(
        "share of that range on a side of zero that none of these values reaches, 0 where values lie on both sides. "
        "Of a symmetric grid it counts where activations without negative values have grids that begin at zero",
        "share",
    )
    nearest_range_ratio: float | None = fact(
        "input_range_ratio of the set that fills the range best: what calibrated the model, where that was given",
        "ratio",
    )
    nearest_unused_side: float | None = fact("input_unused_side of the set that has the smaller one", "share")
    input_fit_reading: str | None = fact("that range and what these samples span, in words")
    input_range_reading: str | None = fact(
        "that range against the values of this set in words, with the factor between the two and what is left as offset"
    )
    relation: RelationFacts = RelationFacts()
    input_reading: Literal["pixels", "unit", "other"] | None = fact(
        "how images come in, where their values lie on a grid: pixels 0 … 255, unit 0 … 1, or otherwise"
    )
    settings_scale_mismatch: float | None = fact(
        "max(ratio, 1 / ratio) of the lattice's step and settings.input_scale, worst channel; 1 = the samples are "
        "scaled as the settings of the toolchain scale pixels",
        "ratio",
    )
    settings_mean_difference: float | None = fact(
        "largest distance between the pixel that lies at 0 and settings.input_mean; where the lattice spans all of a "
        "pixel's 256 values",
        "levels",
    )
    settings_reading: str | None = fact("what of both differs, in words; None where neither does")

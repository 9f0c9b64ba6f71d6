"""Stored weights against the float ones: which faults are seen, and which facts mean nothing beside them."""

from collections.abc import Callable

from quantmedic.engine.case.facts import WeightFacts
from quantmedic.engine.thresholds import Thresholds

#: Gives a threshold by its name.
Limit = Callable[[str], float]
#: Tells whether the weights have a fault.
Seen = Callable[[WeightFacts, Limit], bool]


def _is_above(value: float | None, limit: float) -> bool:
    return value is not None and value > limit


def _is_mostly_dead(weight: WeightFacts, limit: Limit) -> bool:
    return _is_above(weight.dead_share, limit("majority"))


def _is_misread(weight: WeightFacts, limit: Limit) -> bool:
    return _is_above(weight.reading_gain_db, limit("bit_gain_db"))


def _is_exchanged(weight: WeightFacts, limit: Limit) -> bool:
    return _is_above(weight.twin_similarity, limit("weight_similarity_coarse"))


def _is_unlike(weight: WeightFacts, limit: Limit) -> bool:
    kept = weight.similarity if weight.similarity_kept is None else weight.similarity_kept
    return kept is not None and kept < limit("weight_similarity")


def _has_extreme_block_scales(weight: WeightFacts, limit: Limit) -> bool:
    shares = (weight.block_scale_top_share, weight.block_scale_low_share)
    return bool(weight.lacks_global_scale) or any(_is_above(own, limit("block_scale_end_share")) for own in shares)


def _has_other_gains(weight: WeightFacts, limit: Limit) -> bool:
    return bool(weight.left_gain_channels or weight.left_input_channels)


def _has_broken_scales(weight: WeightFacts, limit: Limit) -> bool:
    return bool(weight.broken_scales)


def _has_dead_groups(weight: WeightFacts, limit: Limit) -> bool:
    return bool(weight.dead_groups)


def _has_misscaled_groups(weight: WeightFacts, limit: Limit) -> bool:
    return bool(weight.misscaled_groups)


def _is_clipped(weight: WeightFacts, limit: Limit) -> bool:
    is_beyond = _is_above(weight.clipped_share, limit("clipped_share"))
    return is_beyond and _is_above(weight.grid_gain_db, limit("bit_gain_db"))


def _is_shifted(weight: WeightFacts, limit: Limit) -> bool:
    return abs(weight.rounding_mean_steps or 0.0) > limit("rounding_mean_steps")


def _has_outliers(weight: WeightFacts, limit: Limit) -> bool:
    return bool(weight.outlier_groups) and _is_above(weight.outlier_noise_share, limit("dominant_share"))


#: Faults of a layer between checkpoints, the deepest first, with the fact that shows each. A fault makes those of later
#: rows meaningless: the groups of misread codes are not misscaled. What no other fault brings about stays: "".
_FAULTS: tuple[tuple[Seen, str], ...] = (
    (_is_mostly_dead, ""),
    (_is_misread, ""),
    (_is_exchanged, "twin_similarity"),
    (_is_unlike, "similarity_kept"),
    (_has_extreme_block_scales, "block_scale_top_share"),
    (_has_other_gains, "left_gain_channels"),
    (_has_broken_scales, ""),
    (_has_dead_groups, ""),
    (_has_misscaled_groups, "misscaled_groups"),
    (_is_clipped, "clipped_share"),
    (_is_shifted, "rounding_mean_steps"),
)
#: Single broken or dead groups leave the rest of a layer as it should be.
_LOCAL = (_has_broken_scales, _has_dead_groups)
#: What rounding does to weights that have no fault.
_OF_ROUNDING = ("outlier_groups", "lost_inputs", "coarse_share", "peer_zscore")


def is_faulty(weight: WeightFacts, thresholds: Thresholds) -> bool:
    """Other weights, scales, codes or gains than the float ones, between checkpoints: more bits do not help."""
    return any(is_seen(weight, thresholds.threshold) for is_seen, _ in _FAULTS if is_seen not in _LOCAL)


def hide_meaningless(weight: WeightFacts, thresholds: Thresholds) -> WeightFacts:
    """The weights without the facts that mean nothing beside a fault of theirs."""
    limit = thresholds.threshold
    hidden = _hidden_by_faults(weight, limit) if weight.format is not None else _hidden_by_grids(weight, limit)
    return weight.model_copy(update=dict.fromkeys(hidden)) if hidden else weight


def _hidden_by_faults(weight: WeightFacts, limit: Limit) -> list[str]:
    seen = next((place for place, (is_seen, _) in enumerate(_FAULTS) if is_seen(weight, limit)), None)
    if seen is not None:
        broken = ["dead_groups"] if weight.broken_scales else []
        return [*(fact for _, fact in _FAULTS[seen + 1 :] if fact), *_OF_ROUNDING, *broken]
    # Gains that are folded in make columns small whose inputs are small; where all channels are coarse, bits are few.
    is_folded = _is_above(weight.input_gain_ratio, limit("lattice_scale_mismatch"))
    loses_all = is_folded or _is_above(weight.coarse_share, limit("majority"))
    has_outliers = _has_outliers(weight, limit)
    return ["lost_inputs"] * (loses_all or has_outliers) + ["peer_zscore"] * has_outliers


def _hidden_by_grids(weight: WeightFacts, limit: Limit) -> list[str]:
    """In a network: another axis or one shift explains weights that are off; then no better range is known either."""
    order_is_kept = not _is_above(weight.disordered_share, limit("weight_disordered_share"))
    # Where the weights themselves are turned, their scales have another axis, too.
    is_other_axis = weight.found_as != "transposed" and _is_above(weight.axis_gain_db, limit("bit_gain_db"))
    is_explained = is_other_axis or (_is_above(weight.shift_error_share, limit("quarter_share")) and order_is_kept)
    # A bit or two that lie idle are those of a range that is too wide.
    bits, used = weight.quantizer.bits, weight.effective_bits
    is_other_grid = is_explained or (
        bits is not None and used is not None and used < bits and used <= limit("few_bits")
    )
    hidden = ["misplaced_share", "misplaced_error_share"] if is_explained else []
    is_misplaced = _is_above(weight.misplaced_share, limit("weight_misplaced_share"))
    if is_other_grid or is_misplaced or _is_above(weight.misplaced_error_share, limit("dominant_share")):
        hidden += ["predicted_best_gain_db", "predicted_best_channel_sqnr_db"]
    return hidden

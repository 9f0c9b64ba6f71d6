"""Facts of language models: what a block means for its layers, and faults beside which its noise is no finding."""

from collections.abc import Sequence

from quantmedic.engine.case.facts import CheckpointFacts, LanguageFacts, LayerFacts, ModelFacts, WeightFacts
from quantmedic.engine.case.language_facts import RunningInputFacts
from quantmedic.engine.formulas.columns import FieldsByPlace
from quantmedic.engine.thresholds import Thresholds

_NO_INPUTS = RunningInputFacts()


def block_fields(layers: tuple[LayerFacts, ...], model: ModelFacts, thresholds: Thresholds) -> FieldsByPlace:
    """What was measured of the inputs of layers, and what was tried.

    That is the worst block, the output layer, the embedding and routers with their float weights.
    """
    if model.language.texts is None:
        return {}
    inside = [layer for layer in layers if _is_inside(layer, model.language.worst_block)]
    tried = {
        "block_gain": model.language.worst_block_gain,
        "block_erased_layers": sum(_is_erased(layer.weight, thresholds) for layer in inside),
    }
    inputs = {own.layer: own for block in model.language.blocks for own in block.inputs}
    return {
        place: {
            **_gain_of_part(layer, model.language),
            **(tried if _is_inside(layer, model.language.worst_block) else {}),
            "running_input": inputs.get(layer.float_name or layer.name, _NO_INPUTS),
        }
        for place, layer in enumerate(layers)
    }


def _is_inside(layer: LayerFacts, block: str | None) -> bool:
    return block is not None and f"{layer.float_name or layer.name}.".startswith(f"{block}.")


def _gain_of_part(layer: LayerFacts, language: LanguageFacts) -> dict[str, float | None]:
    gains = {"lm_head": language.head_gain, "embedding": language.embedding_gain, "router": language.router_gain}
    return {"part_gain": gains.get(layer.weight.role or "")} if layer.weight.rounding.mse is not None else {}


def _is_erased(weight: WeightFacts, thresholds: Thresholds) -> bool:
    """W036 and W040."""
    lost, ratio = weight.lost_inputs or 0.0, weight.input_channel_range_ratio or 1.0
    is_folded = (weight.input_gain_ratio or 1.0) > thresholds.threshold("folded_input_gains")
    is_uneven = ratio > thresholds.threshold("weight_channel_range_ratio")
    is_coarse = (weight.coarse_share or 0.0) > thresholds.threshold("ruined_channel_share")
    return lost > thresholds.threshold("lost_input_share") and is_uneven and not is_folded and not is_coarse


def with_layers(own: CheckpointFacts, layers: Sequence[LayerFacts], thresholds: Thresholds) -> CheckpointFacts:
    """What was told of two checkpoints with what their layers show together; as it was where none were compared.

    These are the layers and tensors that are no rounding of the float ones, and the shares of the quantized layers that
    are coarse in most of their channels, and that smaller groups would make finer.
    """
    if own.tensors is None:
        return own
    others = (own.unexplained or 0) + (own.misfolded_norms or 0) + (own.unscaled_biases or 0)
    shares = (layer.weight.coarse_share for layer in layers)
    coarse = [share > thresholds.threshold("ruined_channel_share") for share in shares if share is not None]
    wide = [_has_wide_groups(x.weight, thresholds) for x in layers if x.weight.quantizer.bits is not None]
    return own.model_copy(
        update={
            "faults": sum(_is_faulty(layer.weight, thresholds) for layer in layers) + others,
            "coarse_share": sum(coarse) / len(coarse) if coarse else None,
            "wide_groups_share": sum(wide) / len(wide) if wide else None,
        }
    )


def _has_wide_groups(weight: WeightFacts, thresholds: Thresholds) -> bool:
    """More weights share a scale than tools let share one at the least, and little is left of them."""
    size, kept = weight.group_size or 0, weight.rounding.sqnr_db
    limits = thresholds.threshold("wide_group_size"), thresholds.threshold("wide_group_sqnr_db")
    return kept is not None and size > limits[0] and kept < limits[1]


def _is_faulty(weight: WeightFacts, thresholds: Thresholds) -> bool:
    """Other weights, scales, codes or gains than the float ones: what rules on checkpoints name as such."""
    kept = weight.similarity if weight.similarity_kept is None else weight.similarity_kept
    above = {
        "weight_reading_gain_db": weight.reading_gain_db,  # W016
        "dead_layer_share": weight.dead_share,  # W014
        "block_scale_end_share": max(weight.block_scale_top_share or 0.0, weight.block_scale_low_share or 0.0),  # W028
        "rounding_mean_steps": abs(weight.rounding_mean_steps or 0.0),  # W035
    }
    unlike = kept is not None and kept < thresholds.threshold("weight_similarity")  # W018, W032
    moved = weight.left_gain_channels or weight.left_input_channels or weight.misscaled_groups  # W025, W027, W039
    too_far = any((own or 0.0) > thresholds.threshold(name) for name, own in above.items())
    return unlike or bool(moved) or too_far or _is_clipped(weight, thresholds)


def _is_clipped(weight: WeightFacts, thresholds: Thresholds) -> bool:
    """W034."""
    gain, clipped = weight.grid_gain_db or 0.0, weight.clipped_share or 0.0
    limits = thresholds.threshold("weight_grid_gain_db"), thresholds.threshold("weight_clipped_share")
    return gain > limits[0] and clipped > limits[1]

"""Facts of language models: what a block means for its layers, and faults beside which its noise is no finding."""

from collections.abc import Sequence

from quantmedic.engine.case.facts import CheckpointFacts, LanguageFacts, LayerFacts, ModelFacts, WeightFacts
from quantmedic.engine.case.language_facts import RunningInputFacts
from quantmedic.engine.formulas.columns import FieldsByPlace
from quantmedic.engine.formulas.stored_weights import is_faulty
from quantmedic.engine.thresholds import Thresholds

_NO_INPUTS = RunningInputFacts()


def block_fields(layers: tuple[LayerFacts, ...], model: ModelFacts, thresholds: Thresholds) -> FieldsByPlace:
    """What was measured of the inputs of layers, and what was tried.

    That is the worst block, the output layer, the embedding and routers with their float weights.
    """
    if model.language.texts is None:
        return {}
    inside = [layer for layer in layers if _is_inside(layer, model.language.worst_block)]
    stands_out = not _are_all_coarse(with_layers(model.checkpoint, layers, thresholds), thresholds)
    stands_out = stands_out and not any(_is_erased(layer.weight, thresholds) for layer in inside)
    tried = {"block_gain": model.language.worst_block_gain if stands_out else None}
    inputs = {own.layer: own for block in model.language.blocks for own in block.inputs}
    return {
        place: {
            **({} if is_faulty(layer.weight, thresholds) else _gain_of_part(layer, model.language)),
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
    lost, ratio = weight.lost_inputs or 0.0, weight.input_channel_range_ratio or 1.0
    limits = thresholds.threshold("lost_input_share"), thresholds.threshold("weight_channel_range_ratio")
    return lost > limits[0] and ratio > limits[1]


def _are_all_coarse(own: CheckpointFacts, thresholds: Thresholds) -> bool:
    shares = (own.coarse_share, own.wide_groups_share)
    return any((share or 0.0) > thresholds.threshold("majority") for share in shares)


def with_share_of_blocks(own: LanguageFacts) -> LanguageFacts:
    """What was tried with the share of the divergence that no other part takes away; as it was without texts."""
    if own.texts is None:
        return own
    gains = (own.head_gain, own.embedding_gain, own.router_gain, own.activations_gain, own.cache_gain)
    return own.model_copy(update={"left_to_blocks": 1.0 - max((gain or 0.0 for gain in gains), default=0.0)})


def with_layers(own: CheckpointFacts, layers: Sequence[LayerFacts], thresholds: Thresholds) -> CheckpointFacts:
    """What was told of two checkpoints with what their layers show together; as it was where none were compared.

    These are the layers and tensors that are no rounding of the float ones, and of the other quantized layers the
    shares that are coarse in most of their channels, and that smaller groups would make finer.
    """
    if own.tensors is None:
        return own
    others = (own.unexplained or 0) + (own.misfolded_norms or 0) + (own.unscaled_biases or 0)
    shares = (layer.weight.coarse_share for layer in layers)
    coarse = [share > thresholds.threshold("majority") for share in shares if share is not None]
    sound = [layer.weight for layer in layers if not is_faulty(layer.weight, thresholds)]
    wide = [_has_wide_groups(weight, thresholds) for weight in sound if weight.quantizer.bits is not None]
    return own.model_copy(
        update={
            "faults": len(layers) - len(sound) + others,
            "coarse_share": sum(coarse) / len(coarse) if coarse else None,
            "wide_groups_share": sum(wide) / len(wide) if wide else None,
        }
    )


def _has_wide_groups(weight: WeightFacts, thresholds: Thresholds) -> bool:
    """More weights share a scale than tools let share one at the least, and little is left of them."""
    size, kept = weight.group_size or 0, weight.rounding.sqnr_db
    limits = thresholds.threshold("wide_group_size"), thresholds.threshold("wide_group_sqnr_db")
    return kept is not None and size > limits[0] and kept < limits[1]

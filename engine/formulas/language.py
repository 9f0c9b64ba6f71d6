"""Facts of language models: what a block means for its layers, and faults beside which its noise is no finding."""

from collections.abc import Sequence
from typing import Protocol

from quantmedic.engine.case.facts import LayerFacts, ModelFacts, WeightFacts


class Thresholds(Protocol):
    """Where limits come from."""

    def threshold(self, name: str) -> float:
        """Value in force of a named threshold."""


def layers_with_blocks(layers: tuple[LayerFacts, ...], model: ModelFacts) -> tuple[LayerFacts, ...]:
    """The layers, those of the block that was tried with its float weights with what that took away."""
    language = model.language
    if language.worst_block is None or language.worst_block_gain is None:
        return layers
    inside, found = f"{language.worst_block}.", {"block_gain": language.worst_block_gain}
    return tuple(
        layer.model_copy(update=found) if f"{layer.float_name or layer.name}.".startswith(inside) else layer
        for layer in layers
    )


def count_faults(layers: Sequence[LayerFacts], model: ModelFacts, thresholds: Thresholds) -> int | None:
    """Layers and tensors that are no rounding of the float ones; None where no checkpoints were compared."""
    if model.checkpoint.tensors is None:
        return None
    return sum(_is_faulty(layer.weight, thresholds) for layer in layers) + (model.checkpoint.unexplained or 0)


def _is_faulty(weight: WeightFacts, thresholds: Thresholds) -> bool:
    """Other weights, scales or gains than the float ones: what W016, W018, W025 and W027 name."""
    unlike = weight.similarity is not None and weight.similarity < thresholds.threshold("weight_similarity")
    misread = (weight.reading_gain_db or 0.0) > thresholds.threshold("weight_reading_gain_db")
    return unlike or misread or bool(weight.left_gain_channels) or bool(weight.left_input_channels)

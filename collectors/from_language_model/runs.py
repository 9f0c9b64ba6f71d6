"""Both models on the same texts, and their output layers: what is scored again for every trial."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from quantmedic.collectors.from_checkpoint.weight_values import WeightValues
from quantmedic.collectors.from_language_model.blocks import spans_of
from quantmedic.collectors.from_language_model.rooms import States
from quantmedic.collectors.from_language_model.scores import Head, Scores, score_tokens
from quantmedic.collectors.from_language_model.simulation import Simulation
from quantmedic.collectors.from_language_model.skeleton import Skeleton
from quantmedic.collectors.from_language_model.tokens import Ids
from quantmedic.engine.errors import ModelError


@dataclass(frozen=True)
class Run:
    """Both models on the same texts.

    Attributes:
        skeleton: The network without weights.
        texts: Token ids.
        states: Hidden states of both behind the norm.
        heads: Output layers of both.
        simulation: What is quantized beside the weights.
    """

    skeleton: Skeleton
    texts: Sequence[Ids]
    states: States
    heads: tuple[Head, Head]
    simulation: Simulation

    def score(self, heads: tuple[Head, Head] | None = None) -> Scores:
        """What both models predict of the next tokens, from the states that their blocks have left.

        Args:
            heads: Other output layers than those of both.
        """
        before = np.concatenate([np.arange(span.start, span.stop - 1) for span in spans_of(self.texts)])
        return score_tokens(
            (self.states.floats, self.states.quantized),
            before,
            np.concatenate([ids[1:] for ids in self.texts]),
            heads or self.heads,
            shape_of_head(self.skeleton)[0],
            _logit_shape(self.skeleton.model.config),
        )


def shape_of_head(skeleton: Skeleton) -> tuple[int, int]:
    """Tokens of the vocabulary, and width of the hidden states."""
    rows, width = skeleton.head.weight.shape
    return int(rows), int(width)


def head_of(skeleton: Skeleton, weights: WeightValues) -> Head:
    """Rows of the output layer; of tied ones those of the embedding, where the checkpoint has no others."""
    layer = skeleton.head
    shape = tuple(layer.weight.shape)
    names = [f"{skeleton.name_of(part)}.weight" for part in (layer, skeleton.embedding)]
    tied = bool(getattr(skeleton.model.config, "tie_word_embeddings", False))
    name = next((own for own in names if own in weights.names), None)
    if name is None or (name != names[0] and not tied):
        raise ModelError(
            "the checkpoint has no output layer",
            where=[f"file    {weights.checkpoint.path}", f"tensor  {names[0]}"],
            help="look whether a shard is missing; tied embeddings need tie_word_embeddings in config.json",
        )
    bias = None
    if layer.bias is not None:
        bias = weights.load(f"{skeleton.name_of(layer)}.bias", tuple(layer.bias.shape))

    def rows_of(rows: slice) -> tuple[torch.Tensor, torch.Tensor | None]:
        found = weights.load(name, shape, rows)
        assert found is not None  # its name is known
        return torch.from_numpy(found), None if bias is None else torch.from_numpy(bias[rows])

    rows_of(slice(0, 1))  # a shape that does not fit is told before anything is run
    return rows_of


def _logit_shape(config: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    """What the architecture does to logits: Gemma bends them, Cohere and Granite scale them."""
    cap, factor = getattr(config, "final_logit_softcapping", None), getattr(config, "logit_scale", None) or 1.0
    factor = factor / (getattr(config, "logits_scaling", None) or 1.0)

    def shape(logits: torch.Tensor) -> torch.Tensor:
        scaled = logits * factor if factor != 1.0 else logits
        return cap * torch.tanh(scaled / cap) if cap else scaled

    return shape

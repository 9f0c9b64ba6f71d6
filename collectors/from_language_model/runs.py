"""Both models on the same texts, and their output layers: what is scored again for every trial."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from quantmedic.collectors.from_language_model.network import Network
from quantmedic.collectors.from_language_model.rooms import States
from quantmedic.collectors.from_language_model.scores import Head, Scores, ScoreSums, score_tokens
from quantmedic.collectors.from_language_model.simulation import Simulation
from quantmedic.collectors.from_language_model.skeleton import Skeleton
from quantmedic.collectors.from_language_model.tokens import Ids, groups_of

#: Tokens that are scored together: of each some numbers are kept until all rows of the output layers were there.
_TOKENS = 1 << 14


@dataclass(frozen=True)
class Run:
    """Both models on the same texts.

    Attributes:
        floats: The float model.
        quantized: The quantized one, of the same skeleton.
        texts: Token ids.
        states: Hidden states of both behind the norm.
        spans: Where the tokens of each text stand there, of both models.
        heads: Output layers of both.
        simulation: What is quantized beside the weights.
    """

    floats: Network
    quantized: Network
    texts: Sequence[Ids]
    states: States
    spans: tuple[Sequence[slice], Sequence[slice]]
    heads: tuple[Head, Head]
    simulation: Simulation

    @property
    def skeleton(self) -> Skeleton:
        """The network without weights."""
        return self.floats.skeleton

    def score(self, heads: tuple[Head, Head] | None = None) -> Scores:
        """What both models predict of the next tokens, from the states that their blocks have left.

        Args:
            heads: Other output layers than those of both.
        """
        sums = ScoreSums([len(ids) for ids in self.texts])
        for group in groups_of(self.texts, _TOKENS):
            texts = [self.texts[place] for place in group]
            floats, quantized = (_followed_places(spans[group.start : group.stop]) for spans in self.spans)
            found = score_tokens(
                (self.states.floats, self.states.quantized),
                (floats, quantized),
                np.concatenate([ids[1:] for ids in texts]),
                heads or self.heads,
                self.skeleton.head.weight.shape[0],
                _logit_shape(self.skeleton.model.config),
                self.skeleton.device,
            )
            sums.add(found, [len(ids) for ids in texts])
        return sums.scores()


def _followed_places(spans: Sequence[slice]) -> NDArray[np.int64]:
    """Places of the tokens that are followed by another one in their text."""
    return np.concatenate([np.arange(span.start, span.stop - 1) for span in spans])


def _logit_shape(config: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    """What the architecture does to logits: Gemma bends them, Cohere and Granite scale them."""
    cap, factor = getattr(config, "final_logit_softcapping", None), getattr(config, "logit_scale", None) or 1.0
    factor = factor / (getattr(config, "logits_scaling", None) or 1.0)

    def shape(logits: torch.Tensor) -> torch.Tensor:
        scaled = logits * factor if factor != 1.0 else logits
        return cap * torch.tanh(scaled / cap) if cap else scaled

    return shape

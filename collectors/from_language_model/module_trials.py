"""Parts of a quantized module that are tried with those of the float one in their place: what each of them costs."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from quantmedic.collectors.from_checkpoint.weight_values import WeightValues
from quantmedic.collectors.from_language_model.bench import Gain, texts_of_trials
from quantmedic.collectors.from_language_model.module_weights import checkpoint_of_module, value_in_force
from quantmedic.collectors.from_language_model.modules import ModulePair, scores_with_float_parts
from quantmedic.collectors.from_language_model.parts_tried import TRIED_SHARE, changed_routers, facts_of_worst
from quantmedic.collectors.from_language_model.scores import Scores
from quantmedic.collectors.from_language_model.tokens import Ids
from quantmedic.engine.case.facts import LanguageFacts

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class _Trials:
    """Runs the quantized model with parts of the float one on the texts of trials.

    Attributes:
        pair: Both models.
        texts: Those of trials.
        before: Divergence of each of these as the models are, summed over its tokens, in nats.
    """

    pair: ModulePair
    texts: Sequence[Ids]
    before: Floats

    def gain_of(self, *parts: str) -> tuple[Gain, float] | None:
        """What parts in float take away, and the mean divergence that is left; None where they do not run there."""
        scores = scores_with_float_parts(self.pair, self.texts, parts)
        if scores is None:
            return None
        return Gain.of(self.before, scores.divergence), float(scores.divergence.sum()) / scores.count


def try_float_parts(
    pair: ModulePair, texts: Sequence[Ids], scores: Scores, found: LanguageFacts, share_of_front: float | None
) -> LanguageFacts:
    """The facts with what is left of the divergence where a part is the float one: an end, routers, the worst block.

    Args:
        pair: Both models; neither is changed.
        texts: Token ids.
        scores: What both models predict of them.
        found: What is known without trials.
        share_of_front: What the embedding makes of the noise of it and all blocks.

    Raises:
        ModelError: The float model fails.
    """
    if not found.kl_mean:
        return found
    chosen = texts_of_trials(scores)
    own = [texts[place] for place in chosen]
    before = scores.divergence[chosen]
    tried = {
        "trial_texts": tuple(place + 1 for place in chosen),
        "kl_tried": float(before.sum()) / sum(len(ids) - 1 for ids in own),
    }
    trials = _Trials(pair, own, before)
    return found.model_copy(
        update=tried | _try_ends(trials, share_of_front) | _try_routers(trials) | _try_worst(trials, found)
    )


def _try_ends(trials: _Trials, share_of_front: float | None) -> dict[str, object]:
    """The output layer, where it is another one, and the embedding, where it makes much of the noise."""
    pair, gains = trials.pair, dict[str, object]()
    head, embedding = (_name_of_end(pair, kind) for kind in ("output", "input"))
    if head is not None and _has_other_weights(pair, head):
        gains["head_gain"] = _gain_share(trials.gain_of(head))
    if embedding is not None and (share_of_front or 0.0) > TRIED_SHARE:
        # Tied, both are one tensor, and it is mended in both places.
        is_tied = head is not None and _is_tied(pair.quantized, head, embedding)
        gains["embedding_gain"] = _gain_share(trials.gain_of(embedding, *([cast("str", head)] if is_tied else [])))
    return gains


def _try_routers(trials: _Trials) -> dict[str, object]:
    """All at once: one in float changes what those behind it are given."""
    routers = changed_routers((_weights_of_module(trials.pair.floats), _weights_of_module(trials.pair.quantized)))
    return {"router_gain": _gain_share(trials.gain_of(*routers))} if routers else {}


def _weights_of_module(model: nn.Module) -> WeightValues:
    checkpoint = checkpoint_of_module(model)
    return WeightValues(checkpoint, {}, {}, {name: name for name in checkpoint.tensors})


def _try_worst(trials: _Trials, found: LanguageFacts) -> dict[str, object]:
    if found.worst_block is None or (found.worst_block_share or 0.0) <= TRIED_SHARE:
        return {}
    tried = trials.gain_of(found.worst_block)
    return {} if tried is None else {"kl_mended": tried[1], **facts_of_worst(tried[0])}


def _gain_share(tried: tuple[Gain, float] | None) -> float | None:
    return None if tried is None else tried[0].share


def _name_of_end(pair: ModulePair, kind: str) -> str | None:
    """Name of the embedding (input) or of the output layer, the same in both models; None where it is not known."""
    find = getattr(pair.floats, f"get_{kind}_embeddings", None)
    part = find() if find is not None else None
    return None if part is None else pair.name_of(part)


def _has_other_weights(pair: ModulePair, part: str) -> bool:
    """The weights that both compute with differ, or are not known."""
    parts = [model.get_submodule(part) for model in (pair.floats, pair.quantized)]
    if any(getattr(own, "weight", None) is None for own in parts):
        return True
    ours, theirs = (value_in_force(own, "weight") for own in parts)
    return not torch.equal(ours, theirs)


def _is_tied(model: nn.Module, head: str, embedding: str) -> bool:
    weights = [getattr(model.get_submodule(part), "weight", None) for part in (head, embedding)]
    return weights[0] is not None and weights[0] is weights[1]

"""What both models predict of texts, as facts: with intervals over texts, and the texts on which they differ most."""

import hashlib
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.from_language_model.blocks import Noises
from quantmedic.collectors.from_language_model.scores import Scores
from quantmedic.collectors.from_language_model.source_noise import shares_of_sources
from quantmedic.collectors.from_language_model.tokenizer import decode
from quantmedic.collectors.from_language_model.tokens import Ids
from quantmedic.engine.case.facts import LanguageFacts, MetricFacts
from quantmedic.engine.case.language_facts import BlockFacts, TextFacts
from quantmedic.engine.case.tallies import Tally
from quantmedic.engine.errors import QuantmedicError
from quantmedic.engine.metrics.kinds import kind_of
from quantmedic.engine.metrics.paired import mean_interval

METRIC = "perplexity"
Floats = NDArray[np.float64]
#: Texts that are named, and how much is shown of each.
_NAMED, _TOKENS, _CHARACTERS = 10, 24, 80


def language_facts(scores: Scores, texts: Sequence[Ids], vocabulary: int, noises: Noises) -> LanguageFacts:
    """What both models predict, with intervals over texts, and where the noise is made."""
    sound = LanguageFacts(
        texts=len(texts),
        tokens=scores.count,
        vocabulary=vocabulary,
        nonfinite_tokens=int(scores.nonfinite.sum()),
        float_surprise=float(scores.float_surprise.sum()) / scores.count / math.log(vocabulary),
    )
    if sound.nonfinite_tokens:
        return sound
    same = scores.same_top / scores.tokens
    divergence = scores.divergence / scores.tokens
    worst = max(noises.blocks, key=lambda block: block.own_share or 0.0, default=BlockFacts())
    several = len(texts) > 1  # one text alone has no interval
    kl_low, kl_high = np.maximum(mean_interval(divergence), 0.0).tolist() if several else (None, None)
    same_low, same_high = np.clip(mean_interval(same), 0.0, 1.0).tolist() if several else (None, None)
    return sound.model_copy(
        update={
            "kl_mean": float(scores.divergence.sum()) / scores.count,
            "kl_low": kl_low,
            "kl_high": kl_high,
            "kl_tail": scores.tail,
            "same_top": float(scores.same_top.sum()) / scores.count,
            "same_top_low": same_low,
            "same_top_high": same_high,
            "delta_p": math.sqrt(float(scores.delta_p.sum()) / scores.count),
            "blocks": tuple(noises.blocks),
            "worst_block": worst.name if worst.own_share is not None else None,
            "worst_block_share": worst.own_share,
            **shares_of_sources(noises.blocks),
            "positions": scores.starts,
            "kl_by_position": scores.by_place,
            "kl_by_text": tuple(divergence.tolist()),
            "tokens_by_text": tuple(len(ids) - 1 for ids in texts),
            "surprise_by_text": tuple(scores.quantized_surprise.tolist()),
            "text_hashes": tuple(map(hash_of_text, texts)),
            **_worst_router(noises.blocks),
        }
    )


def _worst_router(blocks: Sequence[BlockFacts]) -> dict[str, object]:
    known = [block for block in blocks if block.router_agreement is not None]
    if not known:
        return {}
    worst = min(known, key=lambda block: block.router_agreement or 0.0)
    return {"router_agreement": worst.router_agreement, "router_block": worst.name}


def perplexity_facts(scores: Scores) -> MetricFacts:
    """Perplexities of both models over all tokens, and the interval of their difference over texts."""
    if scores.nonfinite.any():
        return MetricFacts(name=METRIC, higher_is_better=False)
    tallies = [_tally(surprise, scores) for surprise in (scores.float_surprise, scores.quantized_surprise)]
    before, after = (kind_of(METRIC).value(tally) for tally in tallies)
    low, high = _growth_interval(scores, before) if len(scores.tokens) > 1 else (None, None)
    return MetricFacts(
        name=METRIC,
        higher_is_better=False,
        dataset="validation",
        samples=len(scores.tokens),
        float_value=before,
        quantized_value=after,
        drop=after - before,
        drop_low=low,
        drop_high=high,
        relative_drop=after / before - 1,
        gain_share=None if high is None else -high / max(before, after),
    )


def _growth_interval(scores: Scores, before: float) -> tuple[float, float]:
    """Interval of the growth of the perplexity: that of the difference of the mean log-likelihoods, exponentiated.

    The perplexity of the quantized model is that of the float one times the exponential of this difference, so that the
    spread of texts that both find hard is not in it. Texts of several lengths count as in a ratio of sums.
    """
    extra = scores.quantized_surprise - scores.float_surprise
    mean = float(extra.sum()) / scores.count
    parts = mean + (extra - mean * scores.tokens) / scores.tokens.mean()
    low, high = mean_interval(parts)
    with np.errstate(over="ignore"):
        return before * float(np.expm1(low)), before * float(np.expm1(high))


def _tally(surprise: Floats, scores: Scores) -> Tally:
    """Negative log-likelihood and tokens of each text."""
    return Tally.of_rows(np.stack([surprise, scores.tokens], axis=1))


def worst_texts(divergence: Sequence[float], texts: Sequence[Ids], folder: Path) -> dict[str, object]:
    """The texts with the largest divergence, the worst first.

    Args:
        divergence: Of each text, in nats; empty where nothing was compared.
        texts: Token ids.
        folder: Of the float model, whose ``tokenizer.json`` makes words of ids, where it has one.
    """
    order = sorted(range(len(divergence)), key=lambda place: -divergence[place])[:_NAMED]
    beginnings = _beginnings([texts[place] for place in order], folder)
    return {
        "worst_texts": tuple(
            TextFacts(place=place + 1, tokens=len(texts[place]) - 1, kl=divergence[place], beginning=beginning)
            for place, beginning in zip(order, beginnings, strict=True)
        )
    }


def hash_of_text(ids: Ids) -> int:
    """A number by which the same text is found in another case: 48 bits, which JSON and doubles hold exactly."""
    return int.from_bytes(hashlib.sha256(np.ascontiguousarray(ids, "<i8").tobytes()).digest()[:6], "big")


def _beginnings(texts: Sequence[Ids], folder: Path) -> list[str]:
    """First words; token ids where there is no tokenizer that can be read."""
    first = [ids[:_TOKENS].tolist() for ids in texts]
    words = _words_of(first, folder)
    if len(words) != len(first):
        words = [" ".join(map(str, ids)) for ids in first]
    return [" ".join(text.split())[:_CHARACTERS].rstrip() for text in words]


def _words_of(texts: Sequence[Sequence[int]], folder: Path) -> list[str]:
    """Nothing where there is no tokenizer, or none that can be used."""
    try:
        return decode(folder, texts)
    except QuantmedicError:
        return []

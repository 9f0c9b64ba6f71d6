"""The texts on which both models differ most, by their first words."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from quantmedic.collectors.from_language_model.tokenizer import decode
from quantmedic.collectors.from_language_model.tokens import Ids
from quantmedic.engine.case.language_facts import TextFacts
from quantmedic.engine.errors import QuantmedicError

#: Texts that are named, and how much is shown of each.
_NAMED, _TOKENS, _CHARACTERS = 10, 24, 80


def worst_texts(divergence: Sequence[float], texts: Sequence[Ids], folder: Path | None) -> dict[str, object]:
    """The texts with the largest divergence, the worst first.

    Args:
        divergence: Of each text, in nats; empty where nothing was compared.
        texts: Token ids.
        folder: Of the float model, whose ``tokenizer.json`` makes words of ids; None where it has none.
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


def _beginnings(texts: Sequence[Ids], folder: Path | None) -> list[str]:
    """First words; token ids where there is no tokenizer that can be read."""
    first = [ids[:_TOKENS].tolist() for ids in texts]
    words = [] if folder is None else _words_of(first, folder)
    if len(words) != len(first):
        words = [" ".join(map(str, ids)) for ids in first]
    return [" ".join(text.split())[:_CHARACTERS].rstrip() for text in words]


def _words_of(texts: Sequence[Sequence[int]], folder: Path) -> list[str]:
    """Nothing where there is no tokenizer, or none that can be used."""
    try:
        return decode(folder, texts)
    except QuantmedicError:
        return []

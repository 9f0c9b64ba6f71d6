"""Texts that two cases of language models have in common, and what both quantized models make of them."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from quantmedic.engine.case.language_facts import LanguageFacts
from quantmedic.engine.case.tallies import Tally


def share_of_texts(before: LanguageFacts, after: LanguageFacts) -> float | None:
    """Texts that both were run on, of all that either was run on; None where one case does not tell its texts."""
    then, now = set(before.text_hashes), set(after.text_hashes)
    return len(then & now) / len(then | now) if then and now else None


def pair_texts(before: LanguageFacts, after: LanguageFacts) -> tuple[Tally, Tally]:
    """Negative log-likelihood and tokens of the texts that both have, repetitions one by one.

    Empty where they have less than two in common: one text does not tell how much texts differ.

    Args:
        before: Of the first case.
        after: Of the second.
    """
    places = [_places_of_texts(facts.text_hashes) for facts in (before, after)]
    common = [key for key in places[0] if key in places[1]]
    shared = common if len(common) > 1 else []
    first, second = (
        Tally.of_rows(_rows(facts)[[own[key] for key in shared]])
        for facts, own in zip((before, after), places, strict=True)
    )
    return first, second


def _places_of_texts(hashes: Sequence[int]) -> dict[tuple[int, int], int]:
    """Places of texts by hash and repetition, in the order of the hashes: none depends on the order of the texts."""
    seen: Counter[int] = Counter()
    found = {}
    for content, place in sorted(zip(hashes, range(len(hashes)), strict=True)):
        found[content, seen[content]] = place
        seen[content] += 1
    return found


def _rows(facts: LanguageFacts) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """``[texts, 2]``: the columns that perplexity is computed of."""
    columns = [facts.surprise_by_text, facts.tokens_by_text]
    return np.array(columns, np.float64).reshape(2, -1).T

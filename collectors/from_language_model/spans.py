"""Where texts stand among all tokens, and texts taken together."""

from collections.abc import Iterator, Sequence

import numpy as np

from quantmedic.collectors.from_language_model.tokens import Ids


def spans_of(texts: Sequence[Ids]) -> list[slice]:
    """Where the tokens of each text are among all."""
    ends = np.cumsum([len(ids) for ids in texts]).tolist()
    return [slice(end - len(ids), end) for end, ids in zip(ends, texts, strict=True)]


def groups_of(texts: Sequence[Ids], tokens: int) -> Iterator[range]:
    """Texts in a row that have no more tokens together than so many, or a single one that has more."""
    start, held = 0, 0
    for place, ids in enumerate(texts):
        if place > start and held + len(ids) > tokens:
            yield range(start, place)
            start, held = place, 0
        held += len(ids)
    yield range(start, len(texts))

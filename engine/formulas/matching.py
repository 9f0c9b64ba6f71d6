"""Which layers of two cases are the same: by the float model's names, and by place and kind where names shifted."""

import re
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Literal

from quantmedic.engine.case.facts import LayerFacts

How = Literal["name", "position"]
#: Layers between two that match by name are aligned in full up to this many pairs, else from both ends only.
ALIGNED = 1_000_000
#: Operator type, channels of the weights and channels of the output.
LayerKind = tuple[str | None, int | None, int | None]
_OPERAND = re.compile(r"(.*)(\[\d+\])", re.DOTALL)


@dataclass(frozen=True)
class Pair:
    """The same layer by its place in both cases."""

    before: int
    after: int
    how: How


@dataclass(frozen=True)
class Matching:
    """All pairs in the order of the second case, and the places of layers that only one case has."""

    pairs: tuple[Pair, ...]
    only_before: tuple[int, ...]
    only_after: tuple[int, ...]


def match_layers(before: Sequence[LayerFacts], after: Sequence[LayerFacts]) -> Matching:
    """Layers by name, and the rest by their order between these.

    What is left between two neighbours that match by name is aligned by operator type, channels of the weights and
    channels of the output: the longest runs that agree. A layer matches once.
    """
    pairs = {pair.after: pair for pair in _by_name(before, after)}
    taken = {pair.before for pair in pairs.values()}
    for own, other in _gaps(pairs, taken, len(before), len(after)):
        for old, new in _align([_kind_of_layer(before[i]) for i in own], [_kind_of_layer(after[i]) for i in other]):
            pairs[other[new]] = Pair(own[old], other[new], "position")
    found = tuple(pairs[place] for place in sorted(pairs))
    matched = {pair.before for pair in found}
    return Matching(
        pairs=found,
        only_before=tuple(place for place in range(len(before)) if place not in matched),
        only_after=tuple(place for place in range(len(after)) if place not in pairs),
    )


def new_names(matching: Matching, before: Sequence[LayerFacts], after: Sequence[LayerFacts]) -> dict[str, str]:
    """Names of layers in the first case with those in the second, where they differ."""
    names: dict[str, str] = {}
    for pair in matching.pairs:
        old, new = before[pair.before], after[pair.after]
        for was, is_ in ((old.name, new.name), (old.float_name, new.float_name)):
            if was is not None and is_ is not None and was != is_:
                names.setdefault(was, is_)
    return names


def renamer(names: Mapping[str, str]) -> Callable[[str], str]:
    """Gives the name in the second case of a subject of the first; an operand is called after its layer."""

    def rename(subject: str) -> str:
        operand = _OPERAND.fullmatch(subject)
        if subject in names or operand is None:
            return names.get(subject, subject)
        return names.get(operand[1], operand[1]) + operand[2]

    return rename


def _by_name(before: Sequence[LayerFacts], after: Sequence[LayerFacts]) -> list[Pair]:
    old, new = _places_by_name(before), _places_by_name(after)
    return [Pair(old[name], place, "name") for name, place in new.items() if name in old]


def _places_by_name(layers: Sequence[LayerFacts]) -> dict[str, int]:
    """Places by name, the first of each."""
    found: dict[str, int] = {}
    for place, layer in enumerate(layers):
        if name := layer.float_name or layer.name:
            found.setdefault(name, place)
    return found


def _gaps(pairs: dict[int, Pair], taken: set[int], before: int, after: int) -> list[tuple[list[int], list[int]]]:
    """Places left over in both cases between neighbours that match by name and stand in the same order."""
    ends = [*_ascending([pairs[place] for place in sorted(pairs)]), Pair(before, after, "name")]
    gaps, start = [], (0, 0)
    for end in ends:
        own = [i for i in range(start[0], end.before) if i not in taken]
        other = [i for i in range(start[1], end.after) if i not in pairs]
        if own and other:
            gaps.append((own, other))
        start = (end.before + 1, end.after + 1)
    return gaps


def _ascending(pairs: Sequence[Pair]) -> list[Pair]:
    """The longest part of the pairs that has the same order in both cases (patience sorting)."""
    tails: list[int] = []
    at: list[int] = []
    previous: list[int] = []
    for place, pair in enumerate(pairs):
        rank = bisect_left(tails, pair.before)
        tails[rank : rank + 1] = [pair.before]
        at[rank : rank + 1] = [place]
        previous.append(at[rank - 1] if rank else -1)
    kept, place = [], at[-1] if at else -1
    while place >= 0:
        kept.append(pairs[place])
        place = previous[place]
    return kept[::-1]


def _kind_of_layer(layer: LayerFacts) -> LayerKind:
    return layer.op_type, layer.weight.channels, layer.output.channels


def _align(own: Sequence[LayerKind], other: Sequence[LayerKind]) -> list[tuple[int, int]]:
    """Places that agree: from both ends, and in between where that is not too much work."""
    head = _agreeing(own, other)
    tail = _agreeing(own[head:][::-1], other[head:][::-1])
    ends = [(i, i) for i in range(head)]
    ends += [(len(own) - 1 - i, len(other) - 1 - i) for i in range(tail)]
    rest, others = own[head : len(own) - tail], other[head : len(other) - tail]
    if len(rest) * len(others) > ALIGNED:
        return ends
    blocks = SequenceMatcher(None, rest, others, autojunk=False).get_matching_blocks()
    return ends + [(head + block.a + i, head + block.b + i) for block in blocks for i in range(block.size)]


def _agreeing(own: Sequence[LayerKind], other: Sequence[LayerKind]) -> int:
    """How many of the first places agree without a break."""
    for place, (a, b) in enumerate(zip(own, other, strict=False)):
        if a != b:
            return place
    return min(len(own), len(other))

"""Detection curves: how often a fault is named, by how much it harms."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from .row import Row, Said
from .scores import Answers, Share, is_silent, names_among_three, names_first, own
from .svg import Svg, Text

#: Noise above what healing leaves, in dB.
EDGES = (3.0, 6.0, 12.0, 24.0)
CURVES: tuple[tuple[str, str, Callable[[Row, Said], bool]], ...] = (
    ("named first", "series", names_first),
    ("among three", "good", names_among_three),
    ("something listed", "muted", lambda row, said: not is_silent(row, said)),
)


@dataclass(frozen=True)
class Level:
    """Faults of one strength of harm; ``shares`` in the order of ``CURVES``."""

    title: str
    shares: tuple[Share, ...]


def detection(rows: Sequence[Row], answers: Answers = own) -> list[Level]:
    """Single faults by the noise that they add, those that cost nothing in their case with them."""
    known = [(row, said) for row in rows if _has_strength(row) and (said := answers(row)) is not None]
    levels = []
    for k, title in enumerate(_titles()):
        own_level = [(row, said) for row, said in known if _level(row.gain_db or 0.0) == k]
        shares = tuple(Share(sum(good(row, said) for row, said in own_level), len(own_level)) for *_, good in CURVES)
        levels.append(Level(title, shares))
    return levels


def _has_strength(row: Row) -> bool:
    return row.group == "single" and row.harms and row.gain_db is not None


def _level(gain_db: float) -> int:
    return sum(gain_db >= edge for edge in EDGES)


def _titles() -> list[str]:
    ends = [f"{low:.0f}-{high:.0f}" for low, high in pairwise(EDGES)]
    return [f"< {EDGES[0]:.0f}", *ends, f">= {EDGES[-1]:.0f}"]


def render_detection(version: str, levels: Sequence[Level]) -> list[str]:
    """The curves as text."""
    head = "".join(f"{title:>18s}" for title, *_ in CURVES)
    text = [
        f"\nsingle faults by their harm, in dB of noise above what healing leaves, {version}:",
        f"  {'dB':>8s}{head}",
    ]
    return text + [f"  {level.title:>8s}{''.join(f'{share!s:>18s}' for share in level.shares)}" for level in levels]


def draw_detection(levels: Sequence[Level]) -> str:
    """The curves as a picture, one mark per level."""
    last = len(levels) - 1
    picture = Svg("Detection by harm", (-0.4, last + 0.4), (0.0, 1.0))
    picture.axes("dB of noise above what healing leaves", "share of single faults", [], [k / 5 for k in range(6)])
    for place, level in enumerate(levels):
        picture.text(Text((place, 0.0), f"{level.title} ({level.shares[0].whole})", rise=-16.0))
    # The first curve is drawn last: where curves meet, it is the one that is seen.
    for number, (title, colour, _) in reversed(list(enumerate(CURVES))):
        points = [
            (float(place), value)
            for place, level in enumerate(levels)
            if (value := level.shares[number].value) is not None
        ]
        picture.line(points, colour)
        for point, share in zip(points, (s for level in levels if (s := level.shares[number]).whole), strict=True):
            picture.dot(point, 3.5, colour, f"{title}: {share}")
        picture.key(number, title, colour)
    picture.heading("How often a fault is found, by how much it harms")
    return picture.written()

"""Detection curves: how often a fault is named, by how much it harms."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from .row import Row, Said
from .scores import Answers, Share, is_silent, names_among_three, names_first, own

#: Noise above what healing leaves, in dB.
EDGES = (3.0, 6.0, 12.0, 24.0)
CURVES: tuple[tuple[str, Callable[[Row, Said], bool]], ...] = (
    ("named first", names_first),
    ("among three", names_among_three),
    ("something listed", lambda row, said: not is_silent(row, said)),
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
        shares = tuple(Share(sum(good(row, said) for row, said in own_level), len(own_level)) for _, good in CURVES)
        levels.append(Level(title, shares))
    return levels


def _has_strength(row: Row) -> bool:
    return row.group == "single" and row.harms and row.gain_db is not None


def _level(gain_db: float) -> int:
    return sum(gain_db >= edge for edge in EDGES)


def _titles() -> list[str]:
    ends = [f"{low:.0f}-{high:.0f}" for low, high in pairwise(EDGES)]
    return [f"< {EDGES[0]:.0f}", *ends, f">= {EDGES[-1]:.0f}"]


def render_detection(levels: Sequence[Level]) -> list[str]:
    """The curves as text."""
    head = "".join(f"{title:>18s}" for title, _ in CURVES)
    text = [
        "\nsingle faults by their harm, in dB of noise above what healing leaves:",
        f"  {'dB':>8s}{head}",
    ]
    return text + [f"  {level.title:>8s}{''.join(f'{share!s:>18s}' for share in level.shares)}" for level in levels]

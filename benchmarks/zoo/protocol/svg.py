"""Small pictures with two axes, in the colours and sizes of the report's charts."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from quantmedic.reports.charts.frame import HEIGHT, LEFT, PALETTE, RIGHT, TOP, WIDTH, upwards

BELOW = 46.0
BOTTOM = TOP + HEIGHT
KEY_STEP, KEY_ROOM = 130.0, 16.0
#: A point in the units of the axes.
Point = tuple[float, float]


@dataclass(frozen=True)
class Text:
    """Words at a point, so many pixels above it."""

    at: Point
    words: str
    rise: float = 0.0


class Svg:
    """A picture that is drawn from the back to the front."""

    def __init__(self, title: str, horizontal: tuple[float, float], vertical: tuple[float, float]) -> None:
        """Span the axes between two ends each."""
        self._low, self._high = horizontal
        self._y = upwards(vertical[1], vertical[0])
        self._foot = vertical[0]
        self._parts = [f"<title>{escape(title)}</title>"]

    def _x(self, value: float) -> float:
        return round(LEFT + (WIDTH - RIGHT - LEFT) * (value - self._low) / (self._high - self._low), 1)

    def axes(self, across: str, up: str, columns: Sequence[float], rows: Sequence[float]) -> None:
        """Lines and numbers at the marks, and what the axes are."""
        for value in rows:
            y = self._y(value)
            self._parts.append(f'<path d="M{LEFT} {y}H{WIDTH - RIGHT}" stroke="{PALETTE["grid"]}"/>')
            self._words(LEFT - 6, y + 4, f"{value:g}", "end")
        for value in columns:
            self._words(self._x(value), BOTTOM + 16, f"{value:g}", "middle")
        self._words((LEFT + WIDTH - RIGHT) / 2, BOTTOM + 36, across, "middle")
        middle = (TOP + BOTTOM) / 2
        turned = f'transform="rotate(-90 16 {middle})"'
        self._words(16, middle, up, "middle", turned)

    def line(self, points: Sequence[Point], colour: str, *, dashed: bool = False) -> None:
        """A line through points."""
        path = " ".join(f"{self._x(x)},{self._y(y)}" for x, y in points)
        dashes = ' stroke-dasharray="4 4"' if dashed else ""
        self._parts.append(
            f'<polyline points="{path}" fill="none" stroke="{PALETTE[colour]}" stroke-width="2"{dashes}/>'
        )

    def dot(self, at: Point, radius: float, colour: str, tip: str) -> None:
        """A dot, with words under the pointer."""
        place = f'cx="{self._x(at[0])}" cy="{self._y(at[1])}" r="{radius:.1f}"'
        look = f'fill="{PALETTE[colour]}" fill-opacity="0.75"'
        self._parts.append(f"<circle {place} {look}><title>{escape(tip)}</title></circle>")

    def text(self, text: Text) -> None:
        """Words at a point."""
        self._words(self._x(text.at[0]), self._y(text.at[1]) - text.rise, text.words, "middle")

    def key(self, number: int, words: str, colour: str) -> None:
        """What a colour means."""
        x = LEFT + number * KEY_STEP
        self._parts.append(f'<rect x="{x}" y="{TOP - 18}" width="10" height="10" fill="{PALETTE[colour]}"/>')
        self._words(x + KEY_ROOM, TOP - 9, words, "start")

    def heading(self, words: str) -> None:
        """Words above everything."""
        self._parts.append(f'<text x="{LEFT}" y="18" font-size="14" fill="{PALETTE["ink"]}">{escape(words)}</text>')

    def _words(self, x: float, y: float, words: str, anchor: str, more: str = "") -> None:
        look = f'font-size="11" fill="{PALETTE["muted"]}" text-anchor="{anchor}" {more}'
        self._parts.append(f'<text x="{x:.1f}" y="{y:.1f}" {look}>{escape(words)}</text>')

    def written(self) -> str:
        """The whole file."""
        height = BOTTOM + BELOW
        paper = f'<rect width="{WIDTH}" height="{height}" fill="{PALETTE["paper"]}"/>'
        parts = "\n".join([paper, *self._parts])
        box = f'viewBox="0 0 {WIDTH:g} {height:g}" width="{WIDTH:g}" height="{height:g}"'
        return f'<svg xmlns="http://www.w3.org/2000/svg" {box} font-family="sans-serif">\n{parts}\n</svg>\n'

"""The pictures of a run: the reliability diagram and the detection curves."""

from collections.abc import Sequence
from pathlib import Path

from .calibration import draw_reliability, reliability, stated
from .curves import detection, draw_detection
from .row import Row


def write_pictures(folder: Path, rows: Sequence[Row]) -> list[Path]:
    """Write what can be drawn as SVG."""
    drawn = {"detection": draw_detection(detection(rows))}
    for stem, title, first in (
        ("confidence-first", "the first cause", True),
        ("confidence-serious", "causes of medium or high severity", False),
    ):
        found = reliability(stated(rows, first=first))
        if found is not None:
            drawn[stem] = draw_reliability(title, found)
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for stem, text in drawn.items():
        path = folder / f"{stem}.svg"
        path.write_text(text, encoding="utf-8")
        written.append(path)
    return written

"""Labelled boxes in the text files of YOLO, one beside each image or in the folder ``labels`` beside ``images``."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from quantmedic.engine.errors import DataError
from quantmedic.engine.files import read_text
from quantmedic.engine.limits import LABEL_ROWS

Values = NDArray[np.float64]
#: Numbers of a row: the class, and centre and sides of a box; a polygon has three corners or more.
_BOX = 5
_PADDING = -1.0


def yolo_labels(paths: Sequence[Path]) -> Values | None:
    """Class, centre, width and height of the boxes of each image, ``[images, boxes, 5]``, all 0…1 but the class.

    Images without a file have no boxes; fewer boxes than the most are filled up with -1. Of a polygon the box around it
    counts.

    Returns:
        None where no image has a file, or the first that is not empty holds something else, such as a caption.

    Raises:
        DataError: A later row is no box.
        LimitError: There are too many rows.
    """
    files = [file for path in paths if (file := _file_of(path)) is not None]
    try:
        first = next((line for file in files for line in _lines(file) if line.strip()), None)
    except UnicodeDecodeError:
        return None
    if first is None or _box_of(first) is None:
        return None
    rows = [_boxes_of(_file_of(path)) for path in paths]
    LABEL_ROWS.check(sum(map(len, rows)), files[0].parent)
    found = np.full((len(rows), max(map(len, rows)), _BOX), _PADDING)
    for own, boxes in zip(found, rows, strict=True):
        own[: len(boxes)] = boxes
    return found


def _file_of(image: Path) -> Path | None:
    """The text file of an image: beside it, or in the twin of the folder ``images``."""
    beside = image.with_suffix(".txt")
    if beside.is_file():
        return beside
    parts = list(beside.parts)
    places = [i for i, part in enumerate(parts[:-1]) if part == "images"]
    if not places:
        return None
    parts[places[-1]] = "labels"
    twin = Path(*parts)
    return twin if twin.is_file() else None


def _boxes_of(file: Path | None) -> Values:
    """The boxes of one file, ``[boxes, 5]``."""
    if file is None:
        return np.zeros((0, _BOX))
    try:
        lines = _lines(file)
    except UnicodeDecodeError as error:
        raise DataError("a label file is not text", where=str(file), help="write one box per line, UTF-8") from error
    found = []
    for number, line in enumerate(lines, 1):
        box = _box_of(line)
        if not line.strip():
            continue
        if box is None:
            raise DataError(
                "a row of a label file is no box",
                where=f"{file}:{number}  {line.strip()[:60]}",
                help="write class, centre, width and height, all but the class as shares of the picture: 0 0.5 0.5 1 1",
            )
        found.append(box)
    return np.array(found).reshape(-1, _BOX)


def _lines(file: Path) -> list[str]:
    return read_text(file).splitlines()


def _box_of(line: str) -> Values | None:
    """Class, centre and sides; None where the row has other numbers, or is no row of numbers."""
    try:
        numbers = np.array([float(word) for word in line.split()])
    except ValueError:
        return None
    is_polygon = len(numbers) > _BOX + 1 and len(numbers) % 2 == 1
    if not (len(numbers) == _BOX or is_polygon) or not np.isfinite(numbers).all() or numbers[0] != np.floor(numbers[0]):
        return None
    if numbers[0] < 0:
        return None
    if is_polygon:
        corners = numbers[1:].reshape(-1, 2)
        low, high = corners.min(axis=0), corners.max(axis=0)
        return np.concatenate([numbers[:1], (low + high) / 2, high - low])
    return numbers

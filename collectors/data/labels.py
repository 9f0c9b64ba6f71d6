"""Labels: read from files, arrays and class folders, and checked."""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.data.arrays import NPY_MAGIC, Array, as_array, first_bytes, npy_column, npz_columns
from quantmedic.collectors.data.messages import missing_path_error
from quantmedic.engine.case.facts import Role
from quantmedic.engine.errors import DataError
from quantmedic.engine.input_files import read_text
from quantmedic.engine.reading_limits import ARRAY_BYTES, LABEL_ROWS

LABELS = "labels"
Values = NDArray[np.float64]
#: Numbers of a row: the class, and centre and sides of a box; a polygon has three corners or more.
_BOX = 5
_PADDING = -1.0


@dataclass(frozen=True)
class Labels:
    """Labels, and where they come from for error messages."""

    values: Array
    where: str


def read_labels(source: "str | Path | Array") -> Labels:
    """Labels from a file of one of the documented kinds, or from an array."""
    if not isinstance(source, str | Path):
        return Labels(checked_labels(as_array(source, LABELS), "labels array"), "labels array")
    path = Path(source).expanduser()
    if not path.is_file():
        raise missing_path_error(path, LABELS)
    return Labels(checked_labels(_labels_of_file(path), str(path)), path.name)


def folder_labels(folder: Path) -> Labels | None:
    """Labels of a file beside the samples, if there is one."""
    path = folder / f"{LABELS}.npy"
    return read_labels(path) if path.exists() else None


def class_labels(folder: Path, paths: Sequence[Path], role: Role) -> tuple[Array | None, Sequence[str]]:
    """Index of each image's class folder among the sorted class folders; ``None`` for a flat folder."""
    parts = [path.relative_to(folder).parts for path in paths]
    flat = [len(part) == 1 for part in parts]
    if all(flat):
        return None, ()
    if any(flat):
        raise DataError(
            f"{role} folder holds images both beside and inside class folders",
            where=[
                str(folder),
                f"beside  {paths[flat.index(True)].name}",
                f"inside  {'/'.join(parts[flat.index(False)])}",
            ],
            help="move every image into the folder of its class, or all of them into one flat folder",
        )
    classes = sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith((".", "__")))
    notices = []
    if all(name.isdecimal() for name in classes) and classes != sorted(classes, key=int):
        notices.append(
            f"{role} data: class folders are numbered in alphabetical order ({', '.join(classes[:3])}, ...), "
            "not by the numbers they are named after"
        )
    index = {name: i for i, name in enumerate(classes)}
    return np.array([index[part[0]] for part in parts], np.int64), notices


def checked_labels(labels: Array, where: str) -> Array:
    """Labels that are numbers or texts, one row per sample."""
    if labels.dtype.kind not in "fiubU":
        raise DataError(
            "labels are neither numbers nor texts",
            where=f"{where}  {labels.dtype}",
            help="give class indices, numbers for mae and rmse, or texts for cer and wer",
        )
    labels = np.atleast_1d(labels)  # a batch of one sample may come with a number
    return labels.reshape(-1) if labels.size == len(labels) else labels


def label_count_error(role: Role, labels: Labels, origin: str, samples: str) -> DataError:
    """The error for labels that do not pair up with the samples."""
    return DataError(
        f"{role} data have another number of labels than of samples",
        where=[f"{labels.where}  {len(labels.values)} labels", f"{origin}  {samples} samples"],
        help="give one label per sample, in the order of the samples (files: sorted by name)",
    )


def _labels_of_file(path: Path) -> Array:
    start = first_bytes(path)
    if start.startswith(NPY_MAGIC):
        return npy_column(path).load()
    if start.startswith(b"PK"):
        columns = npz_columns(path)
        if LABELS not in columns and len(columns) > 1:
            raise DataError(
                "labels archive holds several arrays and none named labels",
                where=f"{path}  {', '.join(columns)}",
                help="name the array labels",
            )
        return columns.get(LABELS, next(iter(columns.values()))).load()
    if path.suffix.lower() in (".txt", ".csv"):
        return _labels_of_text(path)
    raise DataError("unrecognized format of a labels file", where=str(path), help="give .npy, .npz, .txt or .csv")


def _labels_of_text(path: Path) -> Array:
    """One number per line, where a first line of words is a heading; in a .txt without any number, one text per line.

    Empty lines count for nothing.
    """
    try:
        text = read_text(path)
        lines = islice(csv.reader(io.StringIO(text, newline="")), LABEL_ROWS.in_force + 1)
        rows = [(line, row) for line, row in enumerate(lines, 1) if any(cell.strip() for cell in row)]
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError("labels file is not text", where=str(path), help="write one label per line, UTF-8") from error
    LABEL_ROWS.check(len(rows), path)
    if path.suffix.lower() == ".txt" and (texts := _texts_of(path, text, rows)) is not None:
        return texts
    values: list[float] = []
    for position, (line, row) in enumerate(rows):
        try:
            (cell,) = row
            values.append(float(cell))
        except ValueError:
            if position or len(row) > 1:
                raise DataError(
                    "labels file does not hold one number per line",
                    where=f"{path}:{line}  {','.join(row)[:60]}",
                    help="write one label per line: a class index, or a number for mae and rmse",
                ) from None
    array = np.array(values)
    return array.astype(np.int64) if np.all(array == np.floor(array)) and np.all(np.abs(array) < 2**53) else array


def _texts_of(path: Path, text: str, rows: Sequence[tuple[int, list[str]]]) -> Array | None:
    """The lines as they are, where there are several and none is a number."""
    if len(rows) < 2 or any(_is_number(row[0]) for _, row in rows):
        return None
    found = [line for line in text.splitlines() if line.strip()]
    # Numpy gives every text the room of the longest.
    ARRAY_BYTES.check(4 * max(map(len, found)) * len(found), path)
    return np.array(found)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


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

"""Folders that ``accuracy_analysis`` of rknn-toolkit2 writes, of one input.

``golden`` holds the tensors of the float network, ``simulator`` those of the quantized one on the computer, ``runtime``
those of the board, where one was connected. Each has a ``.txt`` per tensor, a value on each line, and most the same in
``npy``. ``map_name_to_file.txt`` beside them names the tensor of each file. The board itself calls its files
``025_ConvClip_385_shape_1_384_14_14_float.npy``: place, operator, tensor, sides and type.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from quantmedic.collectors.data.arrays import Column, memory_column, npy_column
from quantmedic.engine.errors import DataError
from quantmedic.engine.files import leads_out, read_text
from quantmedic.engine.limits import IMPORTED_LAYERS

_MAP = "map_name_to_file.txt"
_BOARD = "runtime"
_SIDES = (_BOARD, "simulator", "golden")
#: Where arrays stand within a side, the surest first.
_PLACES = ("npy/*.npy", "*.npy", "dumps/*.npy", "*.txt")
_OF_BOARD = re.compile(r"\d{3,}_[A-Za-z0-9]+_(.+)_shape_[\d_]+_[a-z]+\d*")


def is_rknn(folder: Path) -> bool:
    """The folder of an analysis, or one side of it that holds ``npy``."""
    return (folder / _MAP).is_file() or (folder.name in _SIDES and (folder / "npy").is_dir())


def read_rknn(folder: Path, option: str) -> Iterator[tuple[str, Column]]:
    """Names and values of the tensors of the board, or of the side that was given.

    Raises:
        DataError: There is no board, or a file is damaged or leads out of the folder.
        LimitError: A file is too large, or there are too many.
    """
    names = _read_map(folder / _MAP, folder) if (folder / _MAP).is_file() else {}
    side = folder / _BOARD if names or folder.name not in _SIDES else folder
    found = [path for place in _PLACES for path in sorted(side.glob(place)) if path.is_file()]
    if not found:
        raise _no_board(folder, option)
    IMPORTED_LAYERS.check(len(found), side)
    read: set[str] = set()
    for path in found:
        name = names.get(path.stem) or _name_of(path.stem)
        if name not in read:
            read.add(name)
            _confine(path, folder, option)
            yield name, npy_column(path) if path.suffix == ".npy" else _text_column(path, name)


def _read_map(path: Path, folder: Path) -> Mapping[str, str]:
    """Names of tensors by those of files without their ending; the table has a heading and a rule."""
    if leads_out(path, folder):
        return {}
    rows = [line.rsplit(None, 1) for line in _text(path).splitlines()]
    return {Path(row[1]).stem: row[0].strip() for row in rows if len(row) == 2 and row[1] != "file_name"}


def _name_of(stem: str) -> str:
    of_board = _OF_BOARD.fullmatch(stem)
    return stem if of_board is None else of_board[1]


def _text_column(path: Path, name: str) -> Column:
    """Values of one sample in one row, ``[1, values]``; the model knows their shape."""
    try:
        values = np.array(_text(path).split(), np.float32)
    except ValueError as error:
        raise _analysis_error(path, error) from error
    return memory_column(name, values[None])


def _text(path: Path) -> str:
    try:
        return read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        raise _analysis_error(path, error) from error


def _confine(path: Path, folder: Path, option: str) -> None:
    if leads_out(path, folder):
        raise DataError(
            f"a link in {option} leads out of its folder", where=str(path), help="put the file itself there"
        )


def _no_board(folder: Path, option: str) -> DataError:
    there = [side for side in _SIDES if (folder / side).is_dir()]
    return DataError(
        f"the analysis of RKNN in {option} holds no tensors of the board",
        where=f"{folder}  holds {', '.join(there) or 'neither simulator nor golden'}, no {_BOARD}",
        help="connect the board and name it: rknn.accuracy_analysis(inputs=[…], target='rk3588'); to hold RKNN's "
        f"simulator against the model, give {folder / 'simulator'}",
    )


def _analysis_error(path: Path, cause: object) -> DataError:
    return DataError(
        "a file of RKNN's analysis is damaged",
        where=[str(path), f"cause  {cause}"],
        help="run rknn.accuracy_analysis again",
    )

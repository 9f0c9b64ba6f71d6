"""Outputs that Polygraphy saves (``polygraphy run --save-outputs``): JSON with arrays as base64 of ``.npy``.

The content is ``{"lst": [[runner, [{"outputs": {name: {"values": {"array": BASE64}}}}, …]], …]}``, one entry for each
iteration, and one list of them for each runner. What is nested otherwise is refused.
"""

import binascii
from base64 import b64decode
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from quantmedic.collectors.data.arrays import Array, array_of_npy
from quantmedic.engine.errors import DataError
from quantmedic.engine.json_text import read_json


def read_polygraphy(path: Path, option: str) -> tuple[dict[str, Array], list[str]]:
    """Arrays by name, iterations one after the other along axis 0, of the first runner; and what was left out.

    Raises:
        DataError: The file is not of this form, or an array in it is damaged.
        LimitError: It is too large.
    """
    try:
        content = read_json(path)
    except (OSError, ValueError) as error:
        raise _unreadable(path, option, error) from error
    runs = content.get("lst") if isinstance(content, Mapping) else None
    if not isinstance(runs, Sequence) or not runs or not all(_is_run(run) for run in runs):
        raise _unreadable(path, option, "it holds no results of runners")
    runner, iterations = runs[0]
    notices = [f"of {len(runs)} runners the first was read, {runner}"] if len(runs) > 1 else []
    found: dict[str, list[Array]] = {}
    for iteration in iterations:
        for name, value in iteration["outputs"].items():
            found.setdefault(name, []).append(_array(value, path, name, option))
    arrays: dict[str, Array] = {}
    for name, parts in found.items():
        if len(parts) != len(iterations) or len({(part.shape[1:], part.dtype) for part in parts}) > 1:
            notices.append(f"{name}: its iterations differ")
        elif all(part.ndim for part in parts):
            arrays[name] = np.concatenate(parts)
    return arrays, notices


def _is_run(run: object) -> bool:
    """Name of a runner, and what it returned in each iteration."""
    if not (isinstance(run, Sequence) and len(run) == 2 and isinstance(run[0], str) and isinstance(run[1], list)):
        return False
    return all(isinstance(each, Mapping) and isinstance(each.get("outputs"), Mapping) for each in run[1])


def _array(value: object, path: Path, name: str, option: str) -> Array:
    """An array, or one that stands under ``values`` as newer versions write it."""
    inner = value.get("values", value) if isinstance(value, Mapping) else None
    text = inner.get("array") if isinstance(inner, Mapping) else None
    if not isinstance(text, str):
        raise _unreadable(path, option, f"{name} is no array of numpy")
    try:
        return array_of_npy(b64decode(text.encode(), validate=True), str(path), name)
    except (binascii.Error, UnicodeEncodeError) as error:
        raise _unreadable(path, option, f"{name}: {error}") from error


def _unreadable(path: Path, option: str, cause: object) -> DataError:
    return DataError(
        f"the JSON of {option} cannot be read as outputs of Polygraphy",
        where=[str(path), f"cause  {cause}"],
        help="write it with polygraphy run … --save-outputs, or save the tensors with numpy.savez",
    )

"""Calibration data as onnxruntime's tools read it."""

from collections.abc import Iterable, Mapping
from typing import Any

from numpy.typing import NDArray
from onnxruntime.quantization import CalibrationDataReader


class Feeds(CalibrationDataReader):  # type: ignore[misc]
    """Batches, one after the other."""

    def __init__(self, batches: Iterable[Mapping[str, NDArray[Any]]]) -> None:
        self._left = iter(batches)

    def get_next(self) -> Mapping[str, NDArray[Any]] | None:
        return next(self._left, None)

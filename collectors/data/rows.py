"""Arrays that have an axis for the samples, also of a single one."""

from collections.abc import Iterator, Mapping
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.generic]
_Key = TypeVar("_Key", str, int)
_Scalar = TypeVar("_Scalar", bound=np.generic)


class Rows(Mapping[_Key, Array]):
    """Arrays with an axis for the samples, each read when it is asked for: a view may hold them in groups."""

    def __init__(self, arrays: Mapping[_Key, Array]) -> None:
        self._arrays: Mapping[_Key, Array] = arrays

    def __getitem__(self, key: _Key) -> Array:
        return row_of(self._arrays[key])

    def __iter__(self) -> Iterator[_Key]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)


def row_of(x: NDArray[_Scalar]) -> NDArray[_Scalar]:
    """An array of one number as one row; what runtimes return as other objects as it is."""
    return x.reshape(1) if isinstance(x, np.ndarray) and not x.ndim else x

"""Arrays that are found when they are asked for, and that have an axis for the samples, also of a single one."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.generic]
_Key = TypeVar("_Key", str, int)
_Scalar = TypeVar("_Scalar", bound=np.generic)


class OnDemand(Mapping[_Key, Array]):
    """Arrays of which each is found when it is asked for, and not kept."""

    def __init__(self, find: Callable[[_Key], Array], keys: Iterable[_Key]) -> None:
        self._find: Callable[[_Key], Array] = find
        self._keys: dict[_Key, None] = dict.fromkeys(keys)

    def __getitem__(self, key: _Key) -> Array:
        if key not in self._keys:
            raise KeyError(key)
        return self._find(key)

    def __iter__(self) -> Iterator[_Key]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)


def row_of(x: NDArray[_Scalar]) -> NDArray[_Scalar]:
    """An array of one number as one row; what runtimes return as other objects as it is."""
    return x.reshape(1) if isinstance(x, np.ndarray) and not x.ndim else x

"""Tensors that stay on the device that computed them: what measuring asks of them, whatever their framework."""

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.statistics.numpy_loops import Deployed, Ends, Rounding
from quantmedic.engine.case.statistics import TensorStatistics

Array = NDArray[np.generic]


class DeviceValues(ABC):
    """A tensor on a device, which computes its statistics there: only sums come back.

    It has the shape and type that an array of it would have; ``np.asarray`` copies it to the processor's memory.
    """

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """Sides of the tensor."""

    @property
    @abstractmethod
    def dtype(self) -> np.dtype[np.generic]:
        """Type of an array of it: float32, or that of its codes."""

    @abstractmethod
    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        """A copy in the processor's memory."""

    @abstractmethod
    def as_rows(self, axis: int | None) -> "DeviceValues":
        """The same values as ``accumulate.as_rows`` arranges them, on the device."""

    @abstractmethod
    def pooled(self) -> Array:
        """Means over all axes behind the second, as an array; of a tensor without such axes all values."""

    @abstractmethod
    def observe(
        self,
        into: TensorStatistics,
        buckets: NDArray[np.int64],
        rounding: Rounding | None = None,
        deployed: Deployed | None = None,
    ) -> Ends:
        """See ``numpy_loops.observe``; the deployed codes are on a device too."""

    @property
    def size(self) -> int:
        """Number of values."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)


def in_one_place(values: Array, codes: Array | None) -> tuple[Array, Array | None]:
    """A tensor of both models where it can be compared: on the device where both are, else in the processor's memory.

    Args:
        values: Of the float model.
        codes: Of the quantized one, where it is seen.
    """
    if codes is None or isinstance(values, DeviceValues) == isinstance(codes, DeviceValues):
        return values, codes
    return np.asarray(values), np.asarray(codes)

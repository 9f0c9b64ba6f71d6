"""Tensors of torch that stay on their device while they are measured."""

import math
import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from quantmedic.collectors.from_torch import torch_loops
from quantmedic.collectors.statistics.accumulate import SHORT_ROW
from quantmedic.collectors.statistics.device_values import DeviceValues
from quantmedic.collectors.statistics.numpy_loops import Deployed, Ends, Rounding
from quantmedic.engine.case.statistics import TensorStatistics

Array = NDArray[np.generic]
#: Environment variable with which torch measures the tensors in the processor's memory, too; for tests.
TORCH_LOOPS = "QUANTMEDIC_TORCH_LOOPS"


def is_measured_in_place(tensor: torch.Tensor) -> bool:
    """Whether the statistics of a tensor are computed by torch where it lies: on any device but the processor."""
    return tensor.device.type != "cpu" or bool(os.environ.get(TORCH_LOOPS))


@dataclass(frozen=True, eq=False)
class TorchValues(DeviceValues):
    """A plain tensor in float32 or of codes; see ``DeviceValues``."""

    tensor: torch.Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape)

    @property
    def dtype(self) -> np.dtype[np.generic]:
        return np.dtype(str(self.tensor.dtype).removeprefix("torch."))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        found = self.tensor.cpu().numpy()
        return found if dtype is None else found.astype(dtype, copy=False)

    def as_rows(self, axis: int | None) -> "TorchValues":
        x = self.tensor.contiguous()
        if axis is None:
            return TorchValues(x.reshape(x.shape[0] if x.dim() else 1, 1, -1))
        rows = x.reshape(math.prod(x.shape[:axis]), x.shape[axis], math.prod(x.shape[axis + 1 :]))
        if rows.shape[2] >= SHORT_ROW or rows.shape[0] == 1 or rows.shape[1] == 1:
            return TorchValues(rows)
        return TorchValues(rows.transpose(0, 1).reshape(1, rows.shape[1], -1))

    def pooled(self) -> Array:
        x = self.tensor
        means = x if x.dim() < 3 else x.flatten(2).mean(2, dtype=torch_loops.widest(x))
        return TorchValues(means).__array__()

    def observe(
        self,
        into: TensorStatistics,
        buckets: NDArray[np.int64],
        rounding: Rounding | None = None,
        deployed: Deployed | None = None,
    ) -> Ends:
        seen = None
        if deployed is not None:
            assert isinstance(deployed.codes, TorchValues)
            seen = torch_loops.DeployedTensor(deployed.codes.tensor, deployed.scale, deployed.zero)
        return torch_loops.observe(self.tensor, into, buckets, rounding, seen)

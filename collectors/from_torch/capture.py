"""Runs of a module whose calls are known: an error where they differ, and chosen results kept."""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from quantmedic.collectors.from_torch import torch_loops
from quantmedic.collectors.from_torch.calls import Interception, Kwargs, tensors_of
from quantmedic.collectors.from_torch.module import to_array, to_plain
from quantmedic.collectors.from_torch.torch_graph import TorchGraph
from quantmedic.collectors.statistics.accumulate import SHORT_ROW
from quantmedic.collectors.statistics.device_values import DeviceValues
from quantmedic.collectors.statistics.numpy_loops import Deployed, Ends, Rounding
from quantmedic.engine.case.statistics import TensorStatistics
from quantmedic.engine.errors import ModelError

Array = NDArray[np.generic]
#: Environment variable with which torch measures the tensors in the processor's memory, too; for tests.
TORCH_LOOPS = "QUANTMEDIC_TORCH_LOOPS"
#: What to do about a module that does something else from batch to batch.
ONE_KIND = "give batches of one kind, or a module whose forward does not depend on the data"


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


class Repeated(Interception):
    """A run that makes the calls of a graph; a subclass looks at their results, or replaces them.

    Raises:
        ModelError: The module makes another call than it did on the first batch.
    """

    def __init__(self, graph: TorchGraph, what: str) -> None:
        super().__init__()
        self._calls, self._what = graph.calls, what

    def is_known(self, number: int, name: str) -> bool:
        """This is the call of that number, and not one without tensors that comes before it."""
        return number < len(self._calls) and self._calls[number] == name

    def after(self, number: int, name: str, args: Sequence[object], kwargs: Kwargs, result: object) -> object:
        if not self.is_known(number, name):
            before = self._calls[number] if number < len(self._calls) else "its end"
            raise ModelError(
                f"the {self._what} computes something else from batch to batch",
                where=f"call {number}: {before} on the first batch, now {name}",
                help=ONE_KIND,
            )
        return self.result_of(number, tensors_of([args, kwargs]), result)

    def result_of(self, number: int, given: Sequence[torch.Tensor], result: object) -> object:
        """What to go on with in place of a call's result; ``given`` are the tensors among its arguments."""
        return result


class Capture(Repeated):
    """Keeps chosen results of calls in ``found``: as arrays, or, on a device, where they are."""

    def __init__(self, graph: TorchGraph, names: Sequence[str], what: str) -> None:
        super().__init__(graph, what)
        self._rewritten = graph.rewritten
        self.found: dict[str, Array] = {}
        self._wanted: Mapping[int, list[tuple[int, str]]] = _by_call(graph, names)

    def result_of(self, number: int, given: Sequence[torch.Tensor], result: object) -> object:
        for place, name in self._wanted.get(number, ()):
            tensor = (tensors_of(result) or given)[place]
            self.found[name] = _values_to_measure(tensor.clone() if name in self._rewritten else tensor)
        return result


def _values_to_measure(tensor: torch.Tensor) -> Array:
    """What measuring gets of a tensor; one on a device has all that is asked of an array."""
    return cast(Array, TorchValues(to_plain(tensor))) if is_measured_in_place(tensor) else to_array(tensor)


def _by_call(graph: TorchGraph, names: Sequence[str]) -> dict[int, list[tuple[int, str]]]:
    found: dict[int, list[tuple[int, str]]] = {}
    for name in names:
        made = graph.written[name]
        found.setdefault(made.call, []).append((made.place, name))
    return found

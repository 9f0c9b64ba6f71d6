"""The loops of torch as the other kernels are called: with arrays, on the processor as a device."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.statistics.numpy_loops import Deployed, Rounding
from quantmedic.engine.case.statistics import TensorStatistics

Array = NDArray[Any]


@dataclass(frozen=True)
class TorchKernels:
    """``single``: as on a device without float64."""

    single: bool

    def observe(
        self,
        x: Array,
        into: TensorStatistics,
        buckets: NDArray[np.int64],
        rounding: Rounding | None = None,
        deployed: Deployed | None = None,
    ) -> Array:
        from quantmedic.collectors.from_torch.capture import TorchValues

        if deployed is not None:
            deployed = deployed._replace(codes=TorchValues(_tensor(deployed.codes)))
        with self._device():
            return TorchValues(_tensor(x)).observe(into, buckets, rounding, deployed)

    def observe_error(self, x: Array, y: Array, into: TensorStatistics, kind: str) -> None:
        from quantmedic.collectors.from_torch.torch_loops import observe_error

        with self._device():
            observe_error(_tensor(x), _tensor(y), into, kind)

    @contextmanager
    def _device(self) -> Iterator[None]:
        from quantmedic.collectors.from_torch import torch_loops

        before = torch_loops.SINGLE
        torch_loops.SINGLE = frozenset({"cpu"}) if self.single else frozenset()
        try:
            yield
        finally:
            torch_loops.SINGLE = before


def _tensor(x: Array) -> Any:
    import torch

    return torch.from_numpy(np.ascontiguousarray(x))


#: By name; none where torch is not installed.
ON_DEVICES = (
    {"torch": TorchKernels(single=False), "torch in float32": TorchKernels(single=True)} if find_spec("torch") else {}
)

"""Changes of what a torch module computes, made while it runs: other arguments for chosen calls, other results."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from quantmedic.collectors.from_torch.calls import Kwargs, tensors_of, with_tensors
from quantmedic.collectors.from_torch.capture import Repeated
from quantmedic.collectors.from_torch.torch_graph import Place, TorchGraph
from quantmedic.engine.formulas.simulate import AnyGrid, ChannelGrid

Replace = Callable[[torch.Tensor], torch.Tensor]
#: Gets the first tensor argument and the result of a call.
Redo = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class Changed(Repeated):
    """Runs a module with some tensor arguments replaced before calls, and some results after them."""

    def __init__(
        self, graph: TorchGraph, arguments: Mapping[Place, Replace], results: Mapping[int, Redo], what: str
    ) -> None:
        super().__init__(graph, what)
        self._results = results
        self._arguments: dict[int, dict[int, Replace]] = {}
        for place, replace in arguments.items():
            self._arguments.setdefault(place.call, {})[place.place] = replace

    def before(self, number: int, name: str, args: Sequence[object], kwargs: Kwargs) -> tuple[Sequence[object], Kwargs]:
        wanted = self._arguments.get(number)
        if wanted is None or not self.is_known(number, name):
            return args, kwargs
        return with_tensors(args, kwargs, lambda place, tensor: wanted[place](tensor) if place in wanted else tensor)

    def result_of(self, number: int, given: Sequence[torch.Tensor], result: object) -> object:
        redo = self._results.get(number)
        return result if redo is None else redo(given[0], tensors_of(result)[0])


def on_grid(grid: AnyGrid) -> Replace:
    """Rounds to a grid, ``clip(round(x / step) · step, low, high)``; ends beyond all numbers of the type are none."""

    def replace(x: torch.Tensor) -> torch.Tensor:
        values = x.dequantize() if x.is_quantized else x
        wide = values.to(torch.promote_types(values.dtype, torch.float32))  # Grids may reach beyond half precision.
        if isinstance(grid, ChannelGrid):
            channels = zip(wide.unbind(grid.axis), grid.grids, strict=True)
            rounded = [torch.clamp(torch.round(own / g.step) * g.step, g.low, g.high) for own, g in channels]
            return torch.stack(rounded, grid.axis).to(values.dtype)
        top = torch.finfo(wide.dtype).max
        low, high = max(grid.low, -top), min(grid.high, top)
        return torch.clamp(torch.round(wide / grid.step) * grid.step, low, high).to(values.dtype)

    return replace


def constant(values: NDArray[np.float32]) -> Replace:
    """Hands over these numbers, on the device and in the type of the tensor that they replace; sent there once."""
    sent: dict[tuple[torch.device, torch.dtype], torch.Tensor] = {}

    def replace(x: torch.Tensor) -> torch.Tensor:
        plain = type(x) in (torch.Tensor, torch.nn.Parameter)
        key = (x.device, x.dtype if plain else torch.float32)
        if key not in sent:
            sent[key] = torch.from_numpy(values).to(*key)
        return sent[key]

    return replace


def along_channels(bias: NDArray[np.float32]) -> Redo:
    """Adds one number per channel to the argument, in place of what the call would do with it."""

    def redo(x: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
        shape = (1, -1, *(1 for _ in range(x.dim() - 2)))
        return x + torch.from_numpy(bias).to(x.device, x.dtype).reshape(shape)

    return redo

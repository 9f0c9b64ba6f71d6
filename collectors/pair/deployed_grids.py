"""The grids of the activations of a deployed model, one for all values of a tensor or one for each channel."""

from collections.abc import Iterable

import numpy as np

from quantmedic.collectors.pair.graph import Graph
from quantmedic.collectors.pair.quantizer import Quantizer
from quantmedic.engine.case.records import Case
from quantmedic.engine.formulas.simulate import AnyGrid, ChannelGrid, Grid
from quantmedic.engine.formulas.tensors import grid_of


def deployed_grids(case: Case, quantized: Graph) -> list[AnyGrid | None]:
    """The fixed grid of every tensor of a case; None where it has none, or one that is not uniform.

    A case holds grids of whole tensors; those of channels stand in the model.
    """
    found: list[AnyGrid | None] = []
    for tensor in case.record.tensors:
        taps = quantized.quantizers.get(tensor.name, [])
        found.append(grid_of(tensor.quantizer) or _first_known(_channel_grid(tap.quantizer) for tap in taps))
    return found


def _first_known(grids: Iterable[ChannelGrid | None]) -> ChannelGrid | None:
    return next((grid for grid in grids if grid is not None), None)


def _channel_grid(quantizer: Quantizer | None) -> ChannelGrid | None:
    """The grids of all channels; None where there is one grid for all values, or for blocks, or none that is fixed."""
    if quantizer is None or quantizer.dynamic or quantizer.axis is None or quantizer.block_size:
        return None
    if quantizer.axis < 0 or quantizer.scale.ndim != 1 or quantizer.scale.size < 2:
        return None
    scale = quantizer.scale.astype(np.float64)
    zero = np.broadcast_to(quantizer.zero_point, scale.shape)
    columns = np.stack([(quantizer.qmin - zero) * scale, (quantizer.qmax - zero) * scale, scale])
    return ChannelGrid(quantizer.axis, tuple(Grid(*column) for column in columns.T.tolist()))

"""Inputs and outputs of OpenVINO models."""

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.from_openvino.graph import OpenVINOGraph
from quantmedic.collectors.pair.feed import feed_of

Array = NDArray[np.generic]


def arrays_of(batch: Batch, graph: OpenVINOGraph) -> list[Array]:
    """What the inputs of a model take of a batch, in their order and types."""
    fed = feed_of(batch, graph)
    return [_as_typed(fed[spec.name], spec.dtype) for spec in graph.input_specs]


def _as_typed(array: Array, kind: np.dtype[np.generic] | None) -> Array:
    return array if kind is None or array.dtype == kind else array.astype(kind)

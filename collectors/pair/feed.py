"""Inputs of a graph: what they take, and how a batch is handed to them."""

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.data.inputs import InputSpec
from quantmedic.collectors.pair.graph import Graph, TensorSpec

Array = NDArray[np.generic]


def input_specs(graph: Graph) -> list[InputSpec]:
    """What a data set has to supply."""
    # A scalar input is one number per sample: a data set holds them as a vector, fed one by one.
    return [
        InputSpec(spec.name, spec.shape or (1,), np.dtype(object) if spec.dtype is None else spec.dtype)
        for spec in graph.input_specs
    ]


def feed_of(batch: Batch, graph: Graph) -> dict[str, Array]:
    """Inputs under the names of one graph; both models name them alike or list them in the same order."""
    arrays = list(batch.inputs.values())
    feed = {
        name: batch.inputs[name] if name in batch.inputs else arrays[position]
        for position, name in enumerate(graph.inputs)
    }
    return {spec.name: _as_taken(feed[spec.name], spec, graph) for spec in graph.input_specs}


def _as_taken(array: Array, spec: TensorSpec, graph: Graph) -> Array:
    """What an input takes: a number where it is a scalar, codes where the graph dequantizes it."""
    taps = graph.quantizers.get(spec.name, [])
    takes_codes = spec.dtype is not None and spec.dtype.kind in "iu"
    if array.dtype.kind == "f" and takes_codes and taps and taps[0].quantizer is not None:
        array = taps[0].quantizer.encode(np.asarray(array, np.float32)).astype(spec.dtype)
    return array if spec.shape else array.reshape(())

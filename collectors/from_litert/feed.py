"""Inputs and outputs of LiteRT files: codes where their tensors hold codes, real values outside."""

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.from_litert.file import LiteTensor
from quantmedic.collectors.from_litert.graph import LiteRTGraph
from quantmedic.collectors.from_litert.session import dtype_of
from quantmedic.collectors.pair import feed

Array = NDArray[np.generic]
Float32 = NDArray[np.float32]


def feed_of(batch: Batch, graph: LiteRTGraph) -> dict[int, Array]:
    """What the inputs of a file take of a batch, by their places: codes where they hold codes."""
    arrays = feed.feed_of(batch, graph)
    inputs = zip(graph.inputs, graph.file.inputs, strict=True)
    return {place: _encode(graph.file.tensors[place], arrays[name]) for name, place in inputs}


def outputs_of(graph: LiteRTGraph) -> dict[str, int]:
    """Places of the outputs in the interpreter, by their names in the translation, in order."""
    return dict(zip(graph.outputs, dict.fromkeys(graph.file.outputs), strict=True))


def decode(graph: LiteRTGraph, place: int, array: Array) -> Float32:
    """Real values of an output, as the application makes them of codes by the parameters that its tensor has."""
    quantizer = graph.file.tensors[place].quantizer
    if array.dtype.kind in "iu" and quantizer is not None:
        return quantizer.dequantize(array)
    return np.asarray(array, np.float32)


def _encode(tensor: LiteTensor, array: Array) -> Array:
    """Codes of real values, as the application makes them by the parameters of the tensor."""
    dtype = dtype_of(tensor)
    if array.dtype.kind != "f" or dtype.kind == "f" or tensor.quantizer is None:
        return array
    return tensor.quantizer.encode(np.asarray(array, np.float32)).astype(dtype)

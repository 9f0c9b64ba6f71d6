"""Inputs of a graph: what they take, and how a batch is handed to them."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.data.model_inputs import InputSpec
from quantmedic.collectors.pair.graph import Graph, TensorSpec
from quantmedic.engine.errors import ModelError

Array = NDArray[np.generic]


def input_specs(graph: Graph) -> list[InputSpec]:
    """What a data set has to supply."""
    whole = _taken_whole(graph.input_specs)
    return [
        InputSpec(
            spec.name,
            (1, *(spec.shape or ())) if spec.name in whole else spec.shape or (),
            np.dtype(object) if spec.dtype is None else spec.dtype,
            whole=spec.name in whole,
        )
        for spec in graph.input_specs
    ]


def _taken_whole(specs: Sequence[TensorSpec]) -> set[str]:
    """Inputs without a sample axis: a data set holds one array of their shape per sample, and they are fed one by one.

    So are scalars; an input whose first axis is fixed and counts something else, as the layers of a recurrent state,
    where that of another is 1; and one whose samples lie along a later axis, where they lead the other inputs.
    """
    leading = {spec.name: spec.shape[0] for spec in specs if spec.shape}
    scalars = {spec.name for spec in specs if not spec.shape}
    if 1 in leading.values():
        return scalars | {name for name, size in leading.items() if size not in (None, 1)}
    if None in leading.values():
        later = (spec for spec in specs if spec.shape and spec.shape[0] is not None and None in spec.shape[1:])
        return scalars | {spec.name for spec in later}
    return scalars


def feed_of(batch: Batch, graph: Graph) -> dict[str, Array]:
    """Inputs under the names of one graph; both models name them alike or list them in the same order."""
    arrays = list(batch.inputs.values())
    feed = {
        name: batch.inputs[name] if name in batch.inputs else arrays[position]
        for position, name in enumerate(graph.inputs)
    }
    return {spec.name: _as_taken(feed[spec.name], spec, graph) for spec in graph.input_specs}


def _as_taken(array: Array, spec: TensorSpec, graph: Graph) -> Array:
    """What an input takes: the array itself where it has no sample axis, codes where the graph dequantizes it.

    One model of a pair may take float16 where the other takes float32.
    """
    taps = graph.quantizers.get(spec.name, [])
    takes_codes = spec.dtype is not None and spec.dtype.kind in "iu"
    if array.dtype.kind == "f" and takes_codes and taps and taps[0].quantizer is not None:
        array = taps[0].quantizer.encode(np.asarray(array, np.float32)).astype(spec.dtype)
    if spec.dtype is not None and {array.dtype.kind, spec.dtype.kind} == {"f"}:
        array = array.astype(spec.dtype, copy=False)
    # What has no sample axis comes as a batch of one.
    return array if array.ndim == len(spec.shape or ()) else array.reshape(array.shape[1:])


def feed_error(where: str, fed: Mapping[str, Array] | Sequence[Array], what: str = "model") -> ModelError:
    """The error of a model that fails on what it is fed with; ``where`` is its file with the words of its runtime."""
    arrays = fed.items() if isinstance(fed, Mapping) else (("", array) for array in fed)
    shapes = ", ".join(f"{name} {array.dtype}{list(array.shape)}".strip() for name, array in arrays)
    return ModelError(
        f"the {what} fails on this data",
        where=[where, f"fed with {shapes}"],
        help="do shape, type and preprocessing of the data fit the model?",
    )

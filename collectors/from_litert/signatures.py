"""Samples as ai-edge-quantizer calibrates with them, by the names of tensors."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.from_litert.litert_graph import LiteRTGraph
from quantmedic.engine.errors import DataError

Array = NDArray[np.generic]
Source = TypeVar("Source")
Samples = Mapping[str, Iterable[Mapping[str, Array]]]


def feeds_by_tensor(graph: LiteRTGraph, data: Source) -> Source | Callable[[], Iterator[dict[str, Array]]]:
    """Samples of a signature under the names of the tensors that they feed; other data come back as they are.

    Args:
        graph: The float file.
        data: A signature to its samples, each an input's name to its array; or any other data.

    Raises:
        DataError: A sample names an input that the signature does not have.
    """
    if not isinstance(data, Mapping):
        return data
    names = _signatures(graph)
    if not data or not data.keys() <= names.keys() or data.keys() & set(graph.inputs):
        return data
    samples = cast(Samples, data)

    def rename_feeds() -> Iterator[dict[str, Array]]:
        for key, feeds in samples.items():
            for feed in feeds:
                if unknown := feed.keys() - names[key].keys():
                    raise DataError(
                        f"signature {key} has no input {', '.join(sorted(unknown))}",
                        where=str(graph.path),
                        help=f"name the inputs as the signature does: {', '.join(names[key])}",
                    )
                yield {names[key][name]: np.asarray(array) for name, array in feed.items()}

    return rename_feeds


def _signatures(graph: LiteRTGraph) -> dict[str, dict[str, str]]:
    """For each signature of the main graph the tensor that each of its inputs feeds."""
    from ai_edge_litert.interpreter import Interpreter  # an optional package

    interpreter = Interpreter(model_content=graph.file.content)
    found = {}
    for key in interpreter.get_signature_list():
        details = interpreter.get_signature_runner(key).get_input_details()
        places = {name: int(each["index"]) for name, each in details.items()}
        if set(places.values()) <= set(graph.file.inputs):
            found[key] = {name: graph.file.tensors[place].name for name, place in places.items()}
    return found

"""Runs of a module whose calls are known: an error where they differ, and chosen results kept."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from quantmedic.collectors.from_torch.calls import Interception, Kwargs, tensors_of
from quantmedic.collectors.from_torch.module import to_array
from quantmedic.collectors.from_torch.torch_graph import TorchGraph
from quantmedic.engine.errors import ModelError

Array = NDArray[np.generic]
#: What to do about a module that does something else from batch to batch.
ONE_KIND = "give batches of one kind, or a module whose forward does not depend on the data"


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
    """Keeps chosen results of calls in ``found``."""

    def __init__(self, graph: TorchGraph, names: Sequence[str], what: str) -> None:
        super().__init__(graph, what)
        self._rewritten = graph.rewritten
        self.found: dict[str, Array] = {}
        self._wanted: Mapping[int, list[tuple[int, str]]] = _by_call(graph, names)

    def result_of(self, number: int, given: Sequence[torch.Tensor], result: object) -> object:
        for place, name in self._wanted.get(number, ()):
            tensor = (tensors_of(result) or given)[place]
            self.found[name] = to_array(tensor.clone() if name in self._rewritten else tensor)
        return result


def _by_call(graph: TorchGraph, names: Sequence[str]) -> dict[int, list[tuple[int, str]]]:
    found: dict[int, list[tuple[int, str]]] = {}
    for name in names:
        made = graph.written[name]
        found.setdefault(made.call, []).append((made.place, name))
    return found

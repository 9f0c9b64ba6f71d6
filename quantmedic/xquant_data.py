"""Data sets as XQuant's users write them, in the form that ``quantmedic.collect`` takes."""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

#: Batches, or a function that gives them; XQuant passes None for a set that is not there.
Dataset = Callable[[], Iterable[object]] | Iterable[object] | None
#: Inputs of a model, in its order or by name.
ModelInputs = list[object] | Mapping[str, object]


def collectable(dataset: Dataset, model: "torch.nn.Module", *, labelled: bool) -> object:
    """The data set as ``collect`` takes it; what can be read only once is left as it is, and refused there."""
    return dataset if dataset is None or isinstance(dataset, Iterator) else XQuantData(dataset, model, labelled)


class XQuantData:
    """XQuant's data sets as batches: a list of inputs each, or a pair of it and class numbers."""

    def __init__(
        self, dataset: Callable[[], Iterable[object]] | Iterable[object], model: "torch.nn.Module", labelled: bool
    ):
        self._dataset = dataset
        self._labelled = labelled
        self._inputs = _required_inputs(model)
        self.__name__ = getattr(dataset, "__name__", type(dataset).__name__)

    def __call__(self) -> Iterator[object]:
        for inputs, labels in self._pairs():
            yield inputs if labels is None else (inputs, labels)

    def inputs(self) -> Iterator[ModelInputs]:
        """The inputs alone."""
        return (inputs for inputs, _ in self._pairs())

    def _pairs(self) -> Iterator[tuple[ModelInputs, object | None]]:
        for batch in self._dataset() if callable(self._dataset) else self._dataset:
            yield self._split(batch)

    def _split(self, batch: object) -> tuple[ModelInputs, object | None]:
        """Inputs and usable labels: a pair of validation data is inputs and labels, as XQuant has it.

        A list of tensors alone is taken for inputs where the model wants as many.
        """
        if not isinstance(batch, list | tuple):
            return (batch if isinstance(batch, Mapping) else [batch]), None
        is_inputs = not self._labelled or len(batch) == 1 or (self._inputs > 1 and len(batch) == self._inputs)
        if is_inputs and not isinstance(batch[0], list | tuple | Mapping):
            return list(batch), None
        return _listed_inputs(batch[0]), _class_numbers(batch[1]) if len(batch) > 1 else None


def _listed_inputs(inputs: object) -> ModelInputs:
    if isinstance(inputs, Mapping):
        return inputs
    return list(inputs) if isinstance(inputs, list | tuple) else [inputs]


def _required_inputs(model: "torch.nn.Module") -> int:
    """How many inputs the model cannot do without; 0 where that is not known."""
    try:
        parameters = inspect.signature(model.forward).parameters.values()
    except (TypeError, ValueError):
        return 0
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.kind in positional and p.default is inspect.Parameter.empty for p in parameters)


def _class_numbers(labels: object) -> object | None:
    """Labels that the accuracy can be measured with: one integer per sample; else None."""
    kind = str(getattr(labels, "dtype", "")).removeprefix("torch.")
    is_integer = kind.startswith(("int", "uint"))
    return labels if is_integer and getattr(labels, "ndim", 0) == 1 else None

"""Functions of the user: imported by name, and called for batches."""

import importlib
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from quantmedic.collectors.data.arrays import Array, ArrayInfo, as_array
from quantmedic.collectors.data.batches import Piece, Selection
from quantmedic.collectors.data.labels import LABELS, Labels, checked_labels
from quantmedic.collectors.data.messages import aligned_rows, cause_line, did_you_mean, shape_text
from quantmedic.collectors.data.model_inputs import InputSpec, bind
from quantmedic.engine.case.facts import Role
from quantmedic.engine.errors import DataError, QuantmedicError

#: A function of the user: what it takes and returns is checked where it is called.
UserFunction = Callable[..., Any]
FUNCTION = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


def import_function(spec: str, what: str) -> UserFunction:
    """Import ``module:function``; the working directory comes first on the module path while it is imported.

    Args:
        spec: The text the user gave.
        what: What it is for, named in errors.

    Raises:
        DataError: The module fails to import or holds no such callable.
    """
    if not FUNCTION.fullmatch(spec):
        raise DataError(f"{what} is not of the form module:function", where=spec, help="write for example loader:load")
    module_name, name = spec.split(":")

    def refusal(cause: str) -> DataError:
        help = f"run from the folder that holds the module, then try: python -c 'import {module_name}'"
        return DataError(f"the module of the {what} cannot be imported", where=[spec, cause], help=help)

    importlib.invalidate_caches()
    with working_directory_first(), failing_as(refusal):
        module = importlib.import_module(module_name)
    function = getattr(module, name, None)
    if not callable(function):
        near = did_you_mean(name, [key for key, value in vars(module).items() if callable(value)])
        raise DataError(f"the module of the {what} has no such function", where=f"{spec}{near}", help="name a function")
    imported: UserFunction = function
    return imported


@contextmanager
def working_directory_first() -> Iterator[None]:
    """Let the user's module, and what it imports, be found in the working directory; nothing else that we import is.

    What is imported already is not looked for, so that no ``numpy.py`` in that directory takes the place of ours. A
    function that imports from there when it is called finds the directory last on the path. No compiled code is left
    there: it is the user's folder, and no output.
    """
    here, before, writes_nothing = str(Path.cwd()), list(sys.path), sys.dont_write_bytecode
    sys.path[:] = [here, *(place for place in before if place not in ("", here))]
    sys.dont_write_bytecode = True
    try:
        yield
    finally:
        sys.dont_write_bytecode = writes_nothing
        added = [place for place in sys.path if place not in before and place != here]
        sys.path[:] = [*added, *(place for place in before if place not in ("", here)), here]


@contextmanager
def failing_as(refusal: Callable[[str], QuantmedicError]) -> Iterator[None]:
    """Run code of the user: whatever it raises becomes the error that is made of its cause, ``SystemExit`` too.

    Ctrl-C stays what it is, and so do errors of ours.
    """
    try:
        yield
    except (QuantmedicError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise refusal(cause_line(error)) from error


def items_of(returned: Any, refusal: Callable[[str], QuantmedicError]) -> Iterator[object]:
    """The items of an iterable of the user; what it raises becomes the error that is made of its cause."""
    with failing_as(refusal):
        iterator = iter(returned)
    end = object()
    while True:
        with failing_as(refusal):
            item = next(iterator, end)
        if item is end:
            return
        yield item


class FunctionSource:
    """A function of the user that yields batches; called anew for every pass.

    The first batch is read when the set is opened, to check it early; the first pass goes on from there.
    """

    samples: int | None = None
    labels: Labels | None = None
    is_images = False
    alike = False
    notices: Sequence[str] = ()

    def __init__(self, function: UserFunction, origin: str, inputs: Sequence[InputSpec], role: Role):
        self.origin = origin
        self._function, self._inputs, self._role = function, inputs, role
        self._returned: object = None
        pieces = self._call()
        first = next(pieces)
        self._ahead: Iterator[Piece] | None = chain((first,), pieces)
        self.labelled = first.labels is not None
        self.preview = {
            name: ArrayInfo(origin, f"{first.place}, {name}", array.shape, array.dtype)
            for name, array in first.inputs.items()
        }

    def pieces(self, size: int, wanted: Selection) -> Iterator[Piece]:
        pieces, self._ahead = self._ahead or self._call(), None
        return pieces

    def marks(self) -> None:
        return None

    def _call(self) -> Iterator[Piece]:
        """One pass: batches that hold samples, of which there is at least one, all labelled or none."""
        labelled: bool | None = None
        first = 0
        for number, item in enumerate(self._items()):
            piece = self._piece(item, f"batch {number}", first)
            if not piece.samples:
                continue
            first += piece.samples
            if labelled not in (None, piece.labels is not None):
                raise self._error("some batches have labels, others none", piece.place, "give all batches labels")
            labelled = piece.labels is not None
            yield piece
        if labelled is None:
            raise self._error("the function yielded no samples", [], "yield at least one batch")

    def _items(self) -> Iterator[object]:
        """The items that the function yields; an exception in it becomes a `DataError`."""
        with failing_as(self._failure):
            returned = self._function()
        if returned is self._returned and isinstance(returned, Iterator):
            raise self._error(
                "the function returned the iterator of an earlier call, which is used up",
                f"{type(returned).__name__} object",
                "make a new iterator at every call: the data are read several times",
            )
        self._returned = returned
        yield from items_of(returned, self._failure)

    def _failure(self, cause: str) -> DataError:
        help = "it is called without arguments and must return an iterable of batches"
        return self._error("the function failed", cause, help)

    def _piece(self, item: object, place: str, first: int) -> Piece:
        arrays, labels = self._split_labels(item, place)
        inputs, labels_inside = bind(arrays, self._inputs, f"{self.origin} {place}", self._role)
        inputs = _with_constants(inputs, self._inputs)
        labels = labels_inside if labels is None else labels
        checked = None if labels is None else checked_labels(labels, f"{self.origin}  {place}, {LABELS}")
        lengths = {array.shape[:1] for array in inputs.values()} | (set() if checked is None else {checked.shape[:1]})
        if len(lengths) > 1:
            rows = [(place, name, shape_text(array.shape)) for name, array in inputs.items()]
            if checked is not None:
                rows.append((place, LABELS, shape_text(checked.shape)))
            lines = aligned_rows(*rows)
            raise self._error("the arrays of a batch differ in length", lines, "axis 0 counts the same samples")
        if lengths == {()}:
            raise self._error("a batch is a single number", place, "yield arrays whose axis 0 counts samples")
        return Piece(inputs, checked, rows=slice(first, first + len(next(iter(inputs.values())))), place=place)

    def _split_labels(self, item: object, place: str) -> tuple[dict[str, Array], Array | None]:
        """Arrays by name and labels of one yielded item."""
        count = len(self._inputs)
        if (
            isinstance(item, tuple | list)
            and len(item) == 2
            and (count == 1 or isinstance(item[0], Mapping | tuple | list))
        ):
            labels = None if item[1] is None else as_array(item[1], f"{place}, {LABELS}")
            return self._arrays_by_name(item[0], place), labels
        return self._arrays_by_name(item, place), None

    def _arrays_by_name(self, item: object, place: str) -> dict[str, Array]:
        if isinstance(item, Mapping):
            return {str(name): as_array(value, f"{place}, {name}") for name, value in item.items()}
        values = item if isinstance(item, tuple | list) else (item,)
        if len(values) != len(self._inputs):
            names = ", ".join(spec.name for spec in self._inputs)
            raise self._error(
                f"a batch has {len(values)} arrays, the model takes {len(self._inputs)}",
                [place, f"model  {names}"],
                "yield the arrays in this order or as a dict; with labels yield (inputs, labels)",
            )
        pairs = zip(self._inputs, values, strict=True)
        return {spec.name: as_array(value, f"{place}, {spec.name}") for spec, value in pairs}

    def _error(self, message: str, where: str | Sequence[str], help: str) -> DataError:
        lines = [where] if isinstance(where, str) else where
        return DataError(f"{self._role} data: {message}", where=[self.origin, *lines], help=help)


def _with_constants(inputs: Mapping[str, Array], specs: Sequence[InputSpec]) -> dict[str, Array]:
    """An array for an input without sample axis, as onnxruntime's readers give it, is that of all samples."""
    same = {spec.name for spec in specs if spec.name in inputs and spec.is_constant(inputs[spec.name].shape)}
    lengths = {len(array) for name, array in inputs.items() if name not in same and array.ndim}
    if len(lengths) != 1:
        return dict(inputs)
    (length,) = lengths
    return {
        name: np.broadcast_to(array, (length, *array.shape)) if name in same else array
        for name, array in inputs.items()
    }

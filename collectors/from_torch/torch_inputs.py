"""Data that users feed torch modules with, as named arrays: batches that are tensors, tuples, lists or mappings."""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from quantmedic.collectors.data.arrays import npy_column, npz_columns
from quantmedic.collectors.data.functions import FUNCTION, failing_as, import_function, items_of
from quantmedic.collectors.data.messages import did_you_mean, first_line, missing_path_error
from quantmedic.collectors.data.model_inputs import InputSpec
from quantmedic.collectors.from_torch.module import device_of, to_array
from quantmedic.engine.errors import DataError

Array = NDArray[np.generic]
#: Inputs of a batch, by name or in the order of the module.
Values = Mapping[object, object] | Sequence[object]
#: Name of inputs that the module's signature does not name.
_UNNAMED = "input"
_LABELS = "labels"
_FORMS = "yield tensors, or tuples, lists or dicts of them"


@dataclass(frozen=True)
class TorchInputs:
    """Inputs of a module: their names, whether they are handed over by name, and the types that samples came in."""

    names: tuple[str, ...]
    by_name: bool
    dtypes: tuple[torch.dtype, ...]
    specs: tuple[InputSpec, ...]

    def tensors(self, arrays: Mapping[str, Array], module: torch.nn.Module) -> dict[str, torch.Tensor]:
        """A batch as tensors; copies, for modules may write to their inputs.

        They come where the module's parameters are and in the precision that these have, else in the type that the
        user gave: the two modules of a pair may differ in both.
        """
        device, precision = device_of(module), _precision(module)
        pairs = zip(self.names, self.dtypes, strict=True)
        types = {name: precision if precision is not None and own.is_floating_point else own for name, own in pairs}
        return {name: torch.tensor(arrays[name]).to(device, dtype) for name, dtype in types.items()}

    def in_batches_of(self, samples: int | None) -> "TorchInputs":
        """The same inputs of modules that take so many samples at once; None: any number."""
        specs = tuple(InputSpec(spec.name, (samples, *spec.shape[1:]), spec.dtype) for spec in self.specs)
        return replace(self, specs=specs)

    def call(self, module: torch.nn.Module, tensors: Mapping[str, torch.Tensor]) -> object:
        """What the module makes of a batch."""
        result: object = module(**tensors) if self.by_name else module(*tensors.values())
        return result


@dataclass
class _Given:
    """Data as the user gave them, read once or more often."""

    source: Callable[..., object] | Iterable[object]
    last: object = None

    @property
    def name(self) -> str:
        return str(getattr(self.source, "__name__", type(self.source).__name__))

    def items(self) -> Iterator[object]:
        """One pass; whatever the user's code raises becomes a ``DataError``."""
        with failing_as(self._failure):
            # Whatever ``iter`` takes, which is more than what isinstance calls an Iterable.
            returned: Any = self.source() if callable(self.source) else self.source
        if isinstance(returned, Iterator) and returned is self.last:
            raise DataError(
                "the function returned the iterator of an earlier call, which is used up",
                where=[self.name, type(returned).__name__],
                help="make a new generator at every call: the data are read several times",
            )
        self.last = returned
        yield from items_of(returned, self._failure)

    def _failure(self, cause: str) -> DataError:
        help = "give a function without arguments that returns an iterable of batches, or an iterable of batches"
        return DataError("the data cannot be read", where=[self.name, cause], help=help)


class TorchData:
    """The data sets of one collection, in the forms that users of torch have them in."""

    def __init__(self, module: torch.nn.Module, given: Mapping[str, object]) -> None:
        self._module = module
        self._given = {role: _open_source(source, f"{role} data") for role, source in given.items()}

    def inputs(self) -> TorchInputs:
        """The inputs, by the first batch of the first source whose batches can be read.

        Raises:
            DataError: No source yields a batch, or its batches are no tensors.
        """
        for source in self._given.values():
            for item in _first_batch(source):
                return _inputs_of_item(self._module, item)
        raise DataError(
            "the data do not tell the inputs of the module",
            where=[f"{role}: {source}" for role, source in self._given.items()],
            help="give a function that yields batches, an iterable of batches, a tensor, a mapping of input names to "
            "tensors or arrays, or an .npz file",
        )

    def source(self, role: str, inputs: TorchInputs) -> object:
        """A data set in a form that data sets read: mappings of arrays, paired with labels where there are any."""
        source = self._given[role]
        if isinstance(source, Mapping):
            return {str(name): _to_array(value, str(name)) for name, value in source.items()}
        if isinstance(source, torch.Tensor):
            return {inputs.names[0]: _to_array(source, inputs.names[0])}
        if not isinstance(source, _Given):
            return source
        number = _forward_parameters(self._module).required

        def batches() -> Iterator[object]:
            for item in source.items():
                values, labels = _split_labels(item, number)
                arrays = _arrays_by_name(values, inputs)
                yield arrays if labels is None else (arrays, _to_array(labels, _LABELS))

        batches.__name__ = source.name
        return batches


def _open_source(source: object, what: str) -> object:
    """Files, mappings and arrays as they are; functions and iterables of batches as ``_Given``.

    Raises:
        DataError: The source can be read only once, or not at all.
    """
    if isinstance(source, str) and FUNCTION.fullmatch(source) and not Path(source).exists():
        return _Given(import_function(source, what))
    if isinstance(source, str | Path):
        path = Path(source).expanduser()
        if not path.exists():
            raise missing_path_error(path, what)
        return path
    if isinstance(source, Mapping | torch.Tensor) or hasattr(source, "__array__"):
        return source
    if isinstance(source, Iterator):
        raise DataError(
            f"the {what} can be read only once",
            where=type(source).__name__,
            help="give the function that makes the generator, not the generator: the data are read several times",
        )
    if isinstance(source, torch.utils.data.Dataset):
        raise DataError(
            f"the {what} are single samples",
            where=type(source).__name__,
            help="give batches: torch.utils.data.DataLoader(dataset, batch_size=32)",
        )
    if isinstance(source, torch.nn.Module) or not (callable(source) or isinstance(source, Iterable)):
        raise DataError(
            f"the {what} are of a kind that is not known",
            where=type(source).__name__,
            help="give a function that yields batches, an iterable of batches, a tensor, a mapping, or a file",
        )
    return _Given(source)


def _first_batch(source: object) -> Iterator[object]:
    """The first batch, or the whole set where it is one nest of arrays; nothing for files without names of inputs."""
    if isinstance(source, Path):
        yield from _first_of_file(source)
    elif not isinstance(source, _Given):
        yield source
    else:
        for item in source.items():
            yield item
            return
        raise DataError(
            "the data hold no batch",
            where=source.name,
            help="yield at least one batch at every call; a generator that was used up before yields none",
        )


def _first_of_file(path: Path) -> Iterator[object]:
    """One sample of each array of a file of numpy."""
    if path.suffix == ".npz" and path.is_file():
        columns = npz_columns(path)
        yield {name: next(column.blocks([slice(0, 1)])) for name, column in columns.items() if name != _LABELS}
    elif path.suffix == ".npy" and path.is_file():
        yield next(npy_column(path).blocks([slice(0, 1)]))


def _inputs_of_item(module: torch.nn.Module, item: object) -> TorchInputs:
    known = _forward_parameters(module)
    values, _ = _split_labels(item, known.required)
    if isinstance(values, Mapping):
        names = [str(name) for name in values if str(name) != _LABELS]
        tensors = [values[name] for name in values if str(name) != _LABELS]
        by_name = len(names) > 1 or bool(set(names) & set(known.all))
        if by_name:
            _refuse_unknown(names, known, module)
    else:
        tensors = list(values)
        names = [*known.by_place, *known.by_name][: len(tensors)]
        by_name = bool(known.by_name) and not known.by_place
        if len(names) < len(tensors):
            names = [f"{_UNNAMED}{k}" if len(tensors) > 1 else _UNNAMED for k in range(len(tensors))]
    if not tensors:
        raise DataError("a batch holds no tensor", where=type(item).__name__, help=_FORMS)
    arrays = {name: _to_array(value, name) for name, value in zip(names, tensors, strict=True)}
    for name, array in arrays.items():
        if not array.ndim:
            raise DataError("an input has no sample axis", where=name, help="axis 0 of every input counts samples")
    specs = tuple(_spec(name, array) for name, array in arrays.items())
    return TorchInputs(tuple(names), by_name, tuple(_fed_as(value) for value in tensors), specs)


def _refuse_unknown(names: Sequence[str], known: "_Parameters", module: torch.nn.Module) -> None:
    strange = [name for name in names if name not in known.all]
    if strange and not known.open:
        raise DataError(
            f"{type(module).__name__} has no such input",
            where=[f"{name}{did_you_mean(name, known.all)}" for name in strange],
            help=f"name the inputs as its forward does: {', '.join(known.all)}",
        )


def _fed_as(value: object) -> torch.dtype:
    """Arrays of doubles are what numpy makes by default; modules want single precision. Codes come as their values."""
    if isinstance(value, torch.Tensor) and value.is_quantized:
        return torch.float32
    dtype = value.dtype if isinstance(value, torch.Tensor) else torch.as_tensor(np.asarray(value)[:1].copy()).dtype
    return torch.float32 if dtype == torch.float64 else dtype


def _precision(module: torch.nn.Module) -> torch.dtype | None:
    """The floating type of all parameters of a module; None where they have none, or several."""
    found = {own.dtype for own in module.parameters() if own.dtype in _PRECISIONS}
    return found.pop() if len(found) == 1 else None


_PRECISIONS = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})


def _spec(name: str, array: Array) -> InputSpec:
    """Axes may change from batch to batch, but for the channels of images."""
    channels = array.shape[1] if array.ndim == 4 and array.dtype.kind == "f" else None
    shape = tuple(channels if axis == 1 else None for axis in range(array.ndim))
    return InputSpec(name, shape, np.dtype(np.float32) if array.dtype == np.float64 else array.dtype)


@dataclass(frozen=True)
class _Parameters:
    """Arguments of ``forward``.

    Attributes:
        by_place: Those handed over by place.
        by_name: Those handed over only by name.
        open: It takes any others.
        required: How many inputs it must be given; None where its signature leaves that open.
    """

    by_place: tuple[str, ...] = ()
    by_name: tuple[str, ...] = ()
    open: bool = True
    required: int | None = None

    @property
    def all(self) -> tuple[str, ...]:
        return (*self.by_place, *self.by_name)


def _forward_parameters(module: torch.nn.Module) -> _Parameters:
    try:
        found = list(inspect.signature(module.forward).parameters.values())
    except (TypeError, ValueError):
        return _Parameters()
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    required = sum(p.default is p.empty and p.kind not in kinds for p in found)
    return _Parameters(
        tuple(p.name for p in found if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)),
        tuple(p.name for p in found if p.kind == p.KEYWORD_ONLY),
        any(p.kind in kinds for p in found),
        None if any(p.kind == p.VAR_POSITIONAL for p in found) else required,
    )


def _split_labels(item: object, count: int | None) -> tuple[Values, object]:
    """Inputs, and labels where a batch is a pair of both, or one longer than the module has inputs."""
    if isinstance(item, torch.Tensor) or hasattr(item, "__array__"):
        return [item], None
    if isinstance(item, Mapping):
        return item, item.get(_LABELS)
    if not isinstance(item, tuple | list) or not item:
        raise DataError("a batch is no tensor", where=type(item).__name__, help=_FORMS)
    if len(item) == 2 and (count == 1 or isinstance(item[0], Mapping | tuple | list)):
        inputs = item[0]
        return (inputs if isinstance(inputs, Mapping | tuple | list) else [inputs]), item[1]
    if count is not None and len(item) == count + 1 > 2:
        return item[:-1], item[-1]
    return item, None


def _arrays_by_name(values: Values, inputs: TorchInputs) -> dict[str, Array]:
    if isinstance(values, Mapping):
        return {str(name): _to_array(value, str(name)) for name, value in values.items() if str(name) in inputs.names}
    if len(values) != len(inputs.names):
        raise DataError(
            f"a batch has {len(values)} inputs, the first one had {len(inputs.names)}",
            where=", ".join(inputs.names),
            help="give the inputs in all batches alike; with labels yield (inputs, labels)",
        )
    return {name: _to_array(value, name) for name, value in zip(inputs.names, values, strict=True)}


def _to_array(value: object, name: str) -> Array:
    """Numbers of a tensor, or of what numpy can read.

    Raises:
        DataError: It holds none that can be read.
    """
    try:
        if isinstance(value, torch.Tensor):
            value = value.dequantize() if value.is_quantized else value
            return to_array(value)
        array = np.asarray(value)
    except Exception as error:
        raise DataError(
            "a tensor of the data cannot be read",
            where=[
                f"{name}  {_describe_value(value)}",
                f"cause  {type(error).__name__}: {first_line(error)[:200]}",
            ],
            help="give dense tensors of numbers",
        ) from error
    if array.dtype.kind not in "fiubc":
        raise DataError("a batch holds no numbers", where=f"{name}  {_describe_value(value)}", help=_FORMS)
    return array


def _describe_value(value: object) -> str:
    if isinstance(value, torch.Tensor):
        kind, layout = (str(own).removeprefix("torch.") for own in (value.dtype, value.layout))
        return f"{kind} tensor, {layout}, {value.device}"
    return type(value).__name__

"""What users feed torch modules with, as named arrays: batches that are tensors, tuples, lists or mappings."""

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from quantmedic.collectors.functions import FUNCTION, import_function
from quantmedic.collectors.inputs import InputSpec
from quantmedic.collectors.torch_module import to_array
from quantmedic.engine.errors import DataError

Array = NDArray[np.generic]
#: Name of inputs that the module's signature does not name.
_UNNAMED = "input"


@dataclass(frozen=True)
class TorchInputs:
    """Inputs of a module: their names, whether they are handed over by name, and the types that samples came in."""

    names: tuple[str, ...]
    by_name: bool
    dtypes: tuple[torch.dtype, ...]
    specs: tuple[InputSpec, ...]

    def tensors(self, arrays: Mapping[str, Array], device: torch.device) -> dict[str, torch.Tensor]:
        """A batch as tensors of the types that the user gave; copies, for modules may write to their inputs."""
        pairs = zip(self.names, self.dtypes, strict=True)
        return {name: torch.tensor(arrays[name]).to(device, dtype) for name, dtype in pairs}

    def call(self, module: torch.nn.Module, tensors: Mapping[str, torch.Tensor]) -> Any:
        """What the module makes of a batch."""
        return module(**tensors) if self.by_name else module(*tensors.values())


def inputs_of(module: torch.nn.Module, sources: Iterable[object]) -> TorchInputs:
    """The inputs, as the first batch of the first source that can tell shows them.

    Raises:
        DataError: No source yields a batch, or its batches are no tensors.
    """
    for source in sources:
        item = _first_item(source)
        if item is not None:
            return _inputs(module, item)
    raise DataError(
        "the data do not tell the inputs of the module",
        help="give a function that yields batches, an iterable of batches, a tensor, or a mapping of input names to "
        "tensors or arrays",
    )


def as_source(source: object, module: torch.nn.Module, inputs: TorchInputs) -> object:
    """The source in a form that data sets read: mappings of arrays, paired with labels where there are any."""
    if isinstance(source, str) and FUNCTION.fullmatch(source) and not Path(source).exists():
        source = import_function(source, "data")
    if isinstance(source, Mapping):
        return {str(name): _array(value) for name, value in source.items()}
    if isinstance(source, torch.Tensor):
        return {inputs.names[0]: _array(source)}
    if isinstance(source, str | Path) or hasattr(source, "__array__"):
        return source
    if not callable(source) and (isinstance(source, Iterator) or not isinstance(source, Iterable)):
        return source  # told apart, and refused, where data sets are opened
    given: Any = source
    number = _count(module)

    def batches() -> Iterator[object]:
        for item in given() if callable(given) else given:
            values, labels = _parted(item, number)
            arrays = _named(values, inputs)
            yield arrays if labels is None else (arrays, _array(labels))

    batches.__name__ = getattr(given, "__name__", type(given).__name__)
    return batches


def _first_item(source: object) -> Any:
    """The first batch, or the whole set where it is one nest of arrays; None for files."""
    if isinstance(source, str) and FUNCTION.fullmatch(source) and not Path(source).exists():
        source = import_function(source, "data")
    if isinstance(source, str | Path):
        return _first_of_file(Path(source).expanduser())
    if isinstance(source, Mapping | torch.Tensor) or hasattr(source, "__array__"):
        return source
    given: Any = source
    if isinstance(given, Iterator):
        raise DataError(
            "the data can be read only once",
            where=type(given).__name__,
            help="give the function that makes the generator, not the generator: the data are read several times",
        )
    try:
        return next(iter(given() if callable(given) else given))
    except StopIteration:
        raise DataError(
            "the data hold no batch",
            where=getattr(given, "__name__", type(given).__name__),
            help="yield at least one batch at every call; a generator that was used up before yields none",
        ) from None
    except TypeError as error:
        raise DataError(
            "the data cannot be read",
            where=f"{type(given).__name__}: {error}",
            help="give a function without arguments",
        ) from error


def _first_of_file(path: Path) -> Any:
    """Arrays of a file that tells its inputs by name."""
    if path.suffix == ".npz" and path.is_file():
        with np.load(path, allow_pickle=False) as stored:
            return {name: stored[name][:1] for name in stored.files if name != "labels"}
    if path.suffix == ".npy" and path.is_file():
        return np.load(path, mmap_mode="r", allow_pickle=False)[:1]
    return None


def _inputs(module: torch.nn.Module, item: Any) -> TorchInputs:
    values, _ = _parted(item, _count(module))
    if isinstance(values, Mapping):
        names, tensors = [str(name) for name in values if str(name) != "labels"], list(values.values())
        tensors = [values[name] for name in values if str(name) != "labels"]
        by_name = len(names) > 1 or names[0] in _parameters(module)
    else:
        tensors = list(values)
        known = [*_parameters(module), *(f"{_UNNAMED}{k}" for k in range(len(tensors)))]
        names, by_name = known[: len(tensors)], False
        if len(set(names)) < len(names) or len(_parameters(module)) < len(tensors):
            names = [f"{_UNNAMED}{k}" if len(tensors) > 1 else _UNNAMED for k in range(len(tensors))]
    found = [torch.as_tensor(tensor) for tensor in tensors]
    for name, tensor in zip(names, found, strict=True):
        if not tensor.dim():
            raise DataError("an input has no sample axis", where=name, help="axis 0 of every input counts samples")
    specs = tuple(_spec(name, tensor) for name, tensor in zip(names, found, strict=True))
    return TorchInputs(tuple(names), by_name, tuple(_fed_as(tensor) for tensor in found), specs)


def _fed_as(tensor: torch.Tensor) -> torch.dtype:
    """Arrays of doubles are what numpy makes by default; modules want single precision."""
    return torch.float32 if tensor.dtype == torch.float64 else tensor.dtype


def _spec(name: str, tensor: torch.Tensor) -> InputSpec:
    """Axes may change from batch to batch, but for the channels of images."""
    channels = tensor.shape[1] if tensor.dim() == 4 and tensor.is_floating_point() else None
    shape = tuple(channels if axis == 1 else None for axis in range(tensor.dim()))
    return InputSpec(name, shape, np.dtype(to_array(tensor[:1]).dtype if tensor.dtype != torch.float64 else np.float32))


def _parameters(module: torch.nn.Module) -> list[str]:
    """Names of the arguments of ``forward`` that can be handed over by place."""
    try:
        found = inspect.signature(module.forward).parameters.values()
    except (TypeError, ValueError):
        return []
    return [p.name for p in found if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]


def _count(module: torch.nn.Module) -> int | None:
    """How many inputs the module must be given; None where its signature does not tell."""
    try:
        found = list(inspect.signature(module.forward).parameters.values())
    except (TypeError, ValueError):
        return None
    if any(p.kind == p.VAR_POSITIONAL for p in found):
        return None
    return sum(p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in found)


def _parted(item: Any, count: int | None) -> tuple[Any, Any]:
    """Inputs, and labels where a batch is a pair of both."""
    if isinstance(item, torch.Tensor) or hasattr(item, "__array__"):
        return [item], None
    if isinstance(item, Mapping):
        return item, item.get("labels")
    if not isinstance(item, tuple | list) or not item:
        raise DataError(
            "a batch is no tensor", where=type(item).__name__, help="yield tensors, or tuples, lists or dicts of them"
        )
    if len(item) == 2 and (count == 1 or isinstance(item[0], Mapping | tuple | list)):
        inputs = item[0]
        return (inputs if isinstance(inputs, Mapping | tuple | list) else [inputs]), item[1]
    return item, None


def _named(values: Any, inputs: TorchInputs) -> dict[str, Array]:
    if isinstance(values, Mapping):
        return {str(name): _array(value) for name, value in values.items() if str(name) in inputs.names}
    given: Sequence[Any] = values
    if len(given) != len(inputs.names):
        raise DataError(
            f"a batch has {len(given)} inputs, the first one had {len(inputs.names)}", where=", ".join(inputs.names)
        )
    return {name: _array(value) for name, value in zip(inputs.names, given, strict=True)}


def _array(value: Any) -> Array:
    return to_array(value) if isinstance(value, torch.Tensor) else np.asarray(value)

"""The calls of one run of a module, kept with the part of the module that made them."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch

from quantmedic.collectors.from_torch.calls import Interception, Kwargs, tensors_of
from quantmedic.collectors.from_torch.quantizers import Quantized, quantization_of
from quantmedic.collectors.from_torch.torch_operators import is_alias

#: Wrappers whose inner layer goes by their own name.
_WRAPPERS = frozenset({"PytorchQuantizationWrapper"})


@dataclass(frozen=True)
class Call:
    """One call of a torch function, with the module in whose ``forward`` it was made.

    Attributes:
        name: Name of the function, see ``name_of``.
        args: Its arguments by place.
        kwargs: Its arguments by name.
        result: What it returned.
        path: Name of the module.
        versions: How often the memory of each result was written to; None for tensors that do not count it.
    """

    name: str
    args: Sequence[object]
    kwargs: Kwargs
    result: object
    path: str
    versions: tuple[int | None, ...]

    @property
    def inputs(self) -> list[torch.Tensor]:
        return [*tensors_of(self.args), *tensors_of(self.kwargs)]

    @property
    def results(self) -> list[torch.Tensor]:
        """Tensors that the call makes; of one that writes into its argument, that argument."""
        found = list(tensors_of(self.result))
        return found or self.inputs[:1]

    @cached_property
    def is_alias(self) -> bool:
        """It returns the numbers that it was given."""
        return is_alias(self.name, self.args, self.result)

    @cached_property
    def quantization(self) -> Quantized | None:
        """What it does to a tensor if it is a quantizer's."""
        return quantization_of(self.name, self.args, self.kwargs, self.result)


class Recorder(Interception):
    """Keeps all calls of one run, with the module in whose ``forward`` each was made."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.calls: list[Call] = []
        self._paths = _module_paths(module)

    def after(self, number: int, name: str, args: Sequence[object], kwargs: Kwargs, result: object) -> object:
        call = Call(name, args, kwargs, result, self._path(), ())
        versions = tuple(None if tensor.is_inference() else tensor._version for tensor in call.results)
        self.calls.append(replace(call, versions=versions))
        return result

    def _path(self) -> str:
        """Name of the innermost module of which a method runs, as the Python frames tell."""
        frame = sys._getframe(2)
        while frame is not None:
            names = frame.f_code.co_varnames
            own = frame.f_locals.get(names[0]) if names and frame.f_code.co_argcount else None
            if isinstance(own, torch.nn.Module) and id(own) in self._paths:
                return self._paths[id(own)]
            frame = frame.f_back  # type: ignore[assignment]
        return ""


def _module_paths(module: torch.nn.Module) -> dict[int, str]:
    """Name of every module by its identity; the layer within a wrapper goes by the wrapper's name."""
    known = dict(module.named_modules())
    found: dict[int, str] = {}
    for path, part in known.items():
        parent, _, last = path.rpartition(".")
        wrapped = last == "layer" and type(known.get(parent)).__name__ in _WRAPPERS
        found.setdefault(id(part), parent if wrapped else path)
    return found

"""Observing and changing the function calls of a torch module while it runs.

A ``TorchFunctionMode`` is handed every call of a torch function or tensor method, also the functional ones that no
module stands for, in the order in which the module really makes them. Nothing is traced ahead, hooked or rewritten:
the module runs as it is deployed.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import FunctionType

import torch
from torch.overrides import TorchFunctionMode

Kwargs = Mapping[str, object]
#: Functions whose results are tensors that an operator is written for, although they return None.
_WRITES = frozenset({"__setitem__"})


class Interception(TorchFunctionMode):
    """Numbers the calls that result in tensors; a subclass looks at them, or changes what they are given.

    A call has one number in every run of the same module, as long as the module does not decide anew from batch to
    batch what to compute.
    """

    def __init__(self) -> None:
        super().__init__()
        self.number = 0

    def before(self, number: int, name: str, args: Sequence[object], kwargs: Kwargs) -> tuple[Sequence[object], Kwargs]:
        """Arguments to call with in place of those given."""
        return args, kwargs

    def after(self, number: int, name: str, args: Sequence[object], kwargs: Kwargs, result: object) -> object:
        """Result to go on with in place of the one computed."""
        return result

    def __torch_function__(
        self,
        function: Callable[..., object],
        types: Iterable[type],
        args: Sequence[object] = (),
        kwargs: Kwargs | None = None,
    ) -> object:
        kwargs = kwargs or {}
        if function in _OPENED:
            with self:
                opened: object = _OPENED[function](*args, **kwargs)
                return opened
        name, number = name_of(function), self.number
        args, kwargs = self.before(number, name, args, kwargs)
        result = function(*args, **kwargs)
        if name not in _WRITES and not any(True for _ in tensors_of(result)):
            return result
        self.number += 1
        return self.after(number, name, args, kwargs, result)


def name_of(function: Callable[..., object]) -> str:
    """Name of a torch function; operators of other namespaces than aten go by ``namespace::name``."""
    if isinstance(function, torch._ops.OpOverload):
        function = function.overloadpacket
    if isinstance(function, torch._ops.OpOverloadPacket):
        namespace, _, name = str(function._qualified_op_name).partition("::")
        return name if namespace == "aten" else f"{namespace}::{name}"
    name = getattr(function, "__name__", type(function).__name__)
    if name == "__get__":  # of a property, such as ``x.T``
        return f"get {getattr(getattr(function, '__self__', None), '__name__', '')}"
    return str(name)


def tensors_of(value: object) -> list[torch.Tensor]:
    """All tensors of nested tuples, lists and mappings, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, Mapping):
        return [tensor for item in value.values() for tensor in tensors_of(item)]
    if isinstance(value, tuple | list):
        return [tensor for item in value for tensor in tensors_of(item)]
    return []


def with_tensors(
    args: Sequence[object], kwargs: Kwargs, replacement: Callable[[int, torch.Tensor], torch.Tensor]
) -> tuple[list[object], dict[str, object]]:
    """The arguments of a call, every tensor replaced; ``replacement`` gets its place in ``tensors_of`` and itself."""
    place = -1

    def walk(item: object) -> object:
        nonlocal place
        if isinstance(item, torch.Tensor):
            place += 1
            return replacement(place, item)
        if isinstance(item, Mapping):
            return {key: walk(own) for key, own in item.items()}
        if isinstance(item, tuple | list):
            walked = [walk(own) for own in item]
            return walked if isinstance(item, list) else tuple(walked)
        return item

    return [walk(own) for own in args], {name: walk(own) for name, own in kwargs.items()}


def _without_dispatch(function: FunctionType) -> FunctionType:
    """A Python function of torch that no longer asks whether it is intercepted, so that what it calls is seen."""
    names = {**function.__globals__, "has_torch_function": lambda *tensors: False}
    opened = FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)
    opened.__kwdefaults__ = function.__kwdefaults__
    return opened


#: Functions that consist of operators which are worth measuring one by one.
_OPENED = {
    function: _without_dispatch(function)
    for function in (torch.nn.functional.multi_head_attention_forward,)
    if isinstance(function, FunctionType)
}

"""A device of torch that is none: its tensors lie in the processor's memory, and refuse what a GPU refuses.

Operators do not take tensors of two devices, and numpy makes no arrays of what lies there. Kernels are those of the
processor, so that results are the same to the bit where nothing is left behind. It is stricter than a GPU in one thing:
indices have to lie there too. Like a GPU, it takes numbers that are tensors of no axis from anywhere.

Torch has one such device for a process, and goes on having it: use it in a process of its own.
"""

import weakref
from collections.abc import Mapping
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "elsewhere"
_setup_privateuseone_for_python_backend(NAME)
PLACE = torch.device(NAME, 0)
PROCESSOR = torch.device("cpu")
#: Operators that carry values from one device to another.
_COPIES = frozenset(("aten::copy_", "aten::_copy_from"))


class Memory:
    """Bytes of the tensors that are there, and the most that there were."""

    def __init__(self) -> None:
        """Nothing is there."""
        self.now = self.most = 0
        self._users: dict[int, int] = {}

    def add(self, tensor: "Elsewhere") -> None:
        """Tensors that share their values count once."""
        values = tensor.raw.untyped_storage()
        place, size = values.data_ptr(), values.nbytes()
        if place not in self._users:
            self.now += size
            self.most = max(self.most, self.now)
        self._users[place] = self._users.get(place, 0) + 1
        weakref.finalize(tensor, self._remove, place, size)

    def _remove(self, place: int, size: int) -> None:
        self._users[place] -= 1
        if not self._users[place]:
            del self._users[place]
            self.now -= size


MEMORY = Memory()


class Elsewhere(torch.Tensor):
    """A tensor there, and the one of the processor that stands for it."""

    raw: torch.Tensor

    @staticmethod
    def __new__(cls, raw: torch.Tensor) -> "Elsewhere":
        with torch.inference_mode(False):  # so that its parts may be changed in place
            found: Elsewhere = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
                cls,
                raw.size(),
                strides=raw.stride(),
                storage_offset=raw.storage_offset(),
                dtype=raw.dtype,
                device=PLACE,
            )
        found.raw = raw
        MEMORY.add(found)
        return found

    def untyped_storage(self) -> Any:
        return self.raw.untyped_storage()

    def tolist(self) -> Any:
        return self.raw.tolist()

    def numpy(self, *_: Any, **__: Any) -> Any:
        raise TypeError(f"can't convert {PLACE} device type tensor to numpy")

    def __array__(self, *_: Any, **__: Any) -> Any:
        return self.numpy()

    def __repr__(self, **_: Any) -> str:
        return f"{NAME}: {self.raw!r}"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        leaves = tree_leaves((args, kwargs or {}))
        name = func._schema.name
        if name not in _COPIES:
            _refuse_others(func, leaves)
        known = {id(own.raw): own for own in leaves if isinstance(own, Elsewhere)}
        out = func(*tree_map(_raw, args), **tree_map(_raw, kwargs or {}))
        if name in _COPIES:
            return args[0] if name == "aten::copy_" else args[1]
        if any(isinstance(own, torch.device) and own.type == "cpu" for own in leaves):
            return tree_map(lambda own: own.clone() if id(own) in known else own, out)
        return tree_map(lambda own: _there(own, known), out)


def _refuse_others(func: Any, leaves: list[Any]) -> None:
    others = [tuple(own.shape) for own in leaves if isinstance(own, torch.Tensor) and not isinstance(own, Elsewhere)]
    if any(others):
        raise RuntimeError(f"{func} got tensors on {PLACE} and on cpu, those of shape {others}")


def _raw(value: Any) -> Any:
    if isinstance(value, torch.device):
        return PROCESSOR
    return value.raw if isinstance(value, Elsewhere) else value


def _there(value: Any, known: Mapping[int, Elsewhere]) -> Any:
    """What an operator gave: one of its arguments, which it has changed, or something new."""
    if not isinstance(value, torch.Tensor):
        return value
    return known[id(value)] if id(value) in known else Elsewhere(value)


def _empty(size: Any, *, dtype: Any = None, **_: Any) -> Elsewhere:
    return Elsewhere(torch.empty(size, dtype=dtype))


def _empty_strided(size: Any, stride: Any, *, dtype: Any = None, **_: Any) -> Elsewhere:
    return Elsewhere(torch.empty_strided(size, stride, dtype=dtype))


def _copy_from(source: Any, target: Any, non_blocking: bool = False) -> Any:
    """As called where numbers become a tensor there."""
    _raw(target).copy_(_raw(source))
    return target


_LIBRARY = torch.library.Library("aten", "IMPL")
_LIBRARY.impl("empty.memory_format", _empty, "PrivateUse1")
_LIBRARY.impl("empty_strided", _empty_strided, "PrivateUse1")
_LIBRARY.impl("_copy_from", _copy_from, "PrivateUse1")

"""Pickles of plain values and numpy arrays, read without unpickling: nothing that a file names is imported or called.

``pickletools`` lists the opcodes, and those that such files need (protocols 4 and 5) are carried out here on a stack of
our own. Of the functions that a pickle may name, the few that make an array are known by name, and done here too.
"""

import pickletools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np

from quantmedic.collectors.data.arrays import Array
from quantmedic.collectors.toolchain_files.settings_files import read_bytes
from quantmedic.engine.errors import DataError
from quantmedic.engine.reading_limits import TEXT_BYTES

#: Opcodes that are carried out at most: no file of saved tensors needs more.
MAX_OPCODES = 2_000_000
KINDS = frozenset("biuf")
_HELP = "a pickle can run anything, so that it is not loaded: give the tables in CSV, or the printed log"


@dataclass(frozen=True)
class _Name:
    """A function or class that the file names."""

    text: str


@dataclass
class _Array:
    """An array, which the file fills after it was made."""

    value: Array | None = None


class _Mark:
    """Where a group of values begins on the stack."""


_MARK = _Mark()
#: What the opcodes work on: values of any kind, checked where they are used.
Stack = list[object]
_MAKERS = {f"numpy.{core}.multiarray._reconstruct" for core in ("core", "_core")}
_FROM_BUFFER = {f"numpy.{core}.numeric._frombuffer" for core in ("core", "_core")}
_SCALARS = {f"numpy.{core}.multiarray.scalar" for core in ("core", "_core")}
_LITERALS: Mapping[str, Callable[[], object]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_DICT": dict,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
}
#: Opcodes whose argument is the value.
_VALUES = {"BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"}
_VALUES |= {"SHORT_BINBYTES", "BINBYTES", "BINBYTES8", "BYTEARRAY8"}


def read_arrays(path: Path) -> object:
    """The dictionaries, lists and arrays of a pickle.

    Raises:
        DataError: It cannot be read, is damaged, or holds anything but plain values and arrays of numbers.
    """
    content = read_bytes(path)
    try:
        return _carry_out(content)
    except _Refused as error:
        raise DataError(f"the pickle holds more than arrays: {error}", where=str(path), help=_HELP) from error
    # Whatever a hostile file breaks on its way over the stack is a damaged file.
    except (ValueError, LookupError, StopIteration, TypeError, AttributeError, OverflowError, MemoryError) as error:
        raise DataError("the pickle is damaged", where=f"{path}: {str(error)[:200]}", help=_HELP) from error


class _Refused(Exception):
    """What the file asks for is not done."""


def _carry_out(content: bytes) -> object:
    """Carry out the opcodes; the value that STOP leaves."""
    stack: Stack = []
    memo: dict[int, object] = {}
    for number, (opcode, argument, _) in enumerate(pickletools.genops(content)):
        if number > MAX_OPCODES:
            raise _Refused("too many values")
        name = opcode.name
        if name == "STOP":
            return _without_names(stack.pop())
        if name in ("PROTO", "FRAME"):
            continue
        if name in _VALUES:
            stack.append(argument)
        elif name in _LITERALS:
            stack.append(_LITERALS[name]())
        elif name == "MARK":
            stack.append(_MARK)
        elif name == "MEMOIZE":
            memo[len(memo)] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(memo[int(argument or 0)])
        elif name in _STEPS:
            count, step = _STEPS[name]
            step(stack, _pop_to_mark(stack) if count is None else [stack.pop() for _ in range(count)][::-1])
        else:
            raise _Refused(f"opcode {name}")
    raise ValueError("it ends early")


def _pop_to_mark(stack: Stack) -> list[object]:
    """The values above the last mark."""
    place = next(place for place in reversed(range(len(stack))) if stack[place] is _MARK)
    values = stack[place + 1 :]
    del stack[place:]
    return values


def _make_tuple(stack: Stack, values: list[object]) -> None:
    stack.append(tuple(values))


def _set_items(stack: Stack, values: list[object]) -> None:
    target = stack[-1]
    if not isinstance(target, dict):
        raise _Refused("items of something that is not a dictionary")
    for key, value in zip(values[::2], values[1::2], strict=True):
        # The hash of a tuple goes through all tuples in it: deep ones crash the interpreter, shared ones take for ever.
        if not all(isinstance(part, str | int | float) for part in (key if isinstance(key, tuple) else (key,))):
            raise _Refused("keys that are not names")
        target[key] = value


def _extend_list(stack: Stack, values: list[object]) -> None:
    target = stack[-1]
    if not isinstance(target, list):
        raise _Refused("entries of something that is not a list")
    target.extend(values)


def _make_name(stack: Stack, values: list[object]) -> None:
    stack.append(_Name(".".join(map(str, values))))


def _carry_out_call(stack: Stack, values: list[object]) -> None:
    """A call: only of what makes arrays, their types, and empty dictionaries."""
    function, arguments = values[0], _sequence(values[1])
    name = function.text if isinstance(function, _Name) else "?"
    if name in _MAKERS:
        stack.append(_Array())
    elif name == "numpy.dtype":
        stack.append(_number_type(arguments[0]))
    elif name in _SCALARS:
        stack.append(float(_array_of((), arguments[0], arguments[1], False)))
    elif name in _FROM_BUFFER:
        buffer, dtype, shape, order = arguments
        stack.append(_Array(_array_of(shape, dtype, buffer, order == "F")))
    elif name == "collections.OrderedDict" and not arguments:
        stack.append({})
    else:
        raise _Refused(f"a call of {name[:80]}")


def _build(stack: Stack, values: list[object]) -> None:
    """Fill an object: an array with its values; the state of a type is its byte order, which must be little-endian."""
    state, target = _sequence(values[0]), stack[-1]
    if isinstance(target, _Array):
        _, shape, dtype, is_fortran, buffer = state
        target.value = _array_of(shape, dtype, buffer, bool(is_fortran))
    elif isinstance(target, np.dtype):
        if state[1] not in ("<", "|"):
            raise _Refused("numbers of another byte order")
    else:
        raise _Refused("a state of something that is not an array")


def _sequence(value: object) -> Sequence[object]:
    if not isinstance(value, list | tuple):
        raise ValueError("arguments that are not a list")
    return value


def _number_type(text: object) -> np.dtype[np.generic]:
    """A type of numbers by its code such as f4."""
    if isinstance(text, str) and len(text) <= 3 and text[:1] in KINDS and text[1:].isdigit():
        return np.dtype(text)
    raise _Refused(f"an array of {str(text)[:20]}")


def _array_of(shape: object, dtype: object, buffer: object, is_fortran: bool) -> Array:
    if not isinstance(dtype, np.dtype) or not isinstance(buffer, bytes | bytearray):
        raise _Refused("an array of objects")
    sides = [side for side in _sequence(shape) if type(side) is int and side >= 0]
    if len(sides) != len(_sequence(shape)) or prod(sides) * dtype.itemsize != len(buffer):
        raise ValueError("an array whose shape does not fit its values")
    return np.frombuffer(buffer, dtype).reshape(sides, order="F" if is_fortran else "C")


def _without_names(value: object) -> object:
    """The value with its arrays in place.

    Raises:
        _Refused: It refers to itself, is nested deeper than saved tensors are, or is a name.
    """
    # Values, and bytes of arrays: one that is named often is compared as often.
    budget = [MAX_OPCODES, TEXT_BYTES.in_force]

    def walk(each: object, depth: int) -> object:
        budget[0] -= 1
        if depth > 8 or budget[0] < 0:
            raise _Refused("values nested too deeply")
        if isinstance(each, _Array):
            budget[1] -= 0 if each.value is None else each.value.nbytes
            if budget[1] < 0:
                raise _Refused("the same arrays again and again")
            return each.value
        if isinstance(each, dict):
            return {walk(key, depth + 1): walk(inner, depth + 1) for key, inner in each.items()}
        if isinstance(each, list):
            return [walk(inner, depth + 1) for inner in each]
        if isinstance(each, tuple):
            return tuple(walk(inner, depth + 1) for inner in each)
        if isinstance(each, _Name | _Mark | np.dtype):
            raise _Refused("a name instead of a value")
        return each

    return walk(value, 0)


#: How many values an opcode takes from the stack, None for those above the last mark, and what it does with them.
_STEPS: Mapping[str, tuple[int | None, Callable[[Stack, list[object]], None]]] = {
    "TUPLE": (None, _make_tuple),
    "TUPLE1": (1, _make_tuple),
    "TUPLE2": (2, _make_tuple),
    "TUPLE3": (3, _make_tuple),
    "SETITEMS": (None, _set_items),
    "SETITEM": (2, _set_items),
    "APPENDS": (None, _extend_list),
    "APPEND": (1, _extend_list),
    "STACK_GLOBAL": (2, _make_name),
    "REDUCE": (2, _carry_out_call),
    "BUILD": (1, _build),
}

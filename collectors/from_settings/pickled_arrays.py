"""Pickles of plain values and numpy arrays, read without unpickling: nothing that a file names is imported or called.

``pickletools`` lists the opcodes, and those that such files need (protocols 4 and 5) are carried out here on a stack of
our own. Of the functions that a pickle may name, the few that make an array are known by name, and done here too.
"""

import pickletools
from collections.abc import Callable, Iterable, Mapping, Sequence
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
            _STEPS[name](stack)
        else:
            raise _Refused(f"opcode {name}")
    raise ValueError("it ends early")


def _pop_to_mark(stack: Stack) -> list[object]:
    """The values above the last mark."""
    place = next(place for place in reversed(range(len(stack))) if stack[place] is _MARK)
    values = stack[place + 1 :]
    del stack[place:]
    return values


def _tuple_step(count: int | None) -> Callable[[Stack], None]:
    def step(stack: Stack) -> None:
        values = _pop_to_mark(stack) if count is None else [stack.pop() for _ in range(count)][::-1]
        stack.append(tuple(values))

    return step


def _set_items(stack: Stack) -> None:
    values = _pop_to_mark(stack)
    _set_entries(stack[-1], zip(values[::2], values[1::2], strict=True))


def _set_item(stack: Stack) -> None:
    value, key = stack.pop(), stack.pop()
    _set_entries(stack[-1], [(key, value)])


def _set_entries(target: object, pairs: Iterable[tuple[object, object]]) -> None:
    if not isinstance(target, dict):
        raise _Refused("items of something that is not a dictionary")
    for key, value in pairs:
        # The hash of a tuple goes through all tuples in it: deep ones crash the interpreter, shared ones take for ever.
        if not all(isinstance(part, str | int | float) for part in (key if isinstance(key, tuple) else (key,))):
            raise _Refused("keys that are not names")
        target[key] = value


def _append(stack: Stack) -> None:
    value = stack.pop()
    _extend_list(stack[-1], [value])


def _appends(stack: Stack) -> None:
    values = _pop_to_mark(stack)
    _extend_list(stack[-1], values)


def _extend_list(target: object, values: list[object]) -> None:
    if not isinstance(target, list):
        raise _Refused("entries of something that is not a list")
    target.extend(values)


def _stack_global(stack: Stack) -> None:
    name, module = stack.pop(), stack.pop()
    stack.append(_Name(f"{module}.{name}"))


def _carry_out_call(stack: Stack) -> None:
    """A call: only of what makes arrays, their types, and empty dictionaries."""
    arguments, function = _sequence(stack.pop()), stack.pop()
    name = function.text if isinstance(function, _Name) else "?"
    if name in _MAKERS:
        stack.append(_Array())
    elif name == "numpy.dtype":
        stack.append(_number_type(arguments[0]))
    elif name in _SCALARS:
        stack.append(_scalar_value(arguments[0], arguments[1]))
    elif name in _FROM_BUFFER:
        buffer, dtype, shape, order = arguments
        stack.append(_Array(_array_of(shape, dtype, buffer, order == "F")))
    elif name == "collections.OrderedDict" and not arguments:
        stack.append({})
    else:
        raise _Refused(f"a call of {name[:80]}")


def _build(stack: Stack) -> None:
    """Fill an object: an array with its values; the state of a type is its byte order, which must be little-endian."""
    state, target = _sequence(stack.pop()), stack[-1]
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


def _scalar_value(dtype: object, buffer: object) -> float:
    return float(_array_of((), dtype, buffer, False))


def _without_names(value: object) -> object:
    """The value with its arrays in place.

    Raises:
        _Refused: It refers to itself, is nested deeper than saved tensors are, or is a name.
    """
    budget = [
        MAX_OPCODES,
        TEXT_BYTES.in_force,
    ]  # Values, and bytes of arrays: one that is named often is compared as often.

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


_STEPS: Mapping[str, Callable[[Stack], None]] = {
    "TUPLE": _tuple_step(None),
    "TUPLE1": _tuple_step(1),
    "TUPLE2": _tuple_step(2),
    "TUPLE3": _tuple_step(3),
    "SETITEMS": _set_items,
    "SETITEM": _set_item,
    "APPEND": _append,
    "APPENDS": _appends,
    "STACK_GLOBAL": _stack_global,
    "REDUCE": _carry_out_call,
    "BUILD": _build,
}

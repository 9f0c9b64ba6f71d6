"""Numbers in float32 and their bits, within compiled loops."""

from collections.abc import Callable
from typing import Any

import numba
from llvmlite import ir
from numba.extending import intrinsic

#: What decorates the code generators below: numba makes of each a function of one argument, and states no types.
_as_function: Callable[[Callable[..., object]], Callable[[Any], Any]] = intrinsic


@_as_function
def bits_of(typing_context: object, value: object) -> object:
    """The bits of a float32 as int32: the largest of many floats vectorizes only over their bits."""

    def generate(context: object, builder: ir.IRBuilder, signature: object, arguments: list[ir.Value]) -> object:
        return builder.bitcast(arguments[0], ir.IntType(32))

    return numba.types.int32(numba.types.float32), generate


@_as_function
def float_of(typing_context: object, bits: object) -> object:
    """The float32 of the given bits."""

    def generate(context: object, builder: ir.IRBuilder, signature: object, arguments: list[ir.Value]) -> object:
        return builder.bitcast(arguments[0], ir.FloatType())

    return numba.types.float32(numba.types.int32), generate


@_as_function
def borrow(typing_context: object, array: Any) -> object:
    """An array whose owner nobody counts: its slices cost nothing, and it must not outlive the array."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: list[ir.Value]) -> object:
        borrowed = context.make_array(array)(context, builder, arguments[0])
        borrowed.meminfo = ir.Constant(borrowed.meminfo.type, None)
        return borrowed._getvalue()

    return array(array), generate

"""A FakeQuantize that writes codes, and the operators behind it that make values of them again.

What an ONNX model has as QuantizeLinear and DequantizeLinear, OpenVINO reads as FakeQuantize, Convert to integers,
Convert to numbers, Subtract, Multiply. When it converts a model it joins these to one FakeQuantize where there are 256
or 65536 levels, and leaves those of fewer bits as they are. Together they are one quantizer, and are read as one.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from quantmedic.collectors.from_openvino.constants import Held
from quantmedic.collectors.from_openvino.folding import REAL
from quantmedic.collectors.from_openvino.grids import Floats, Ranges

if TYPE_CHECKING:
    import openvino

#: Codes that integers of these types hold.
_HELD_CODES = {f"{'i' if low else 'u'}{bits}": bits for bits in (2, 4, 8, 16) for low in (0, 1)}
#: A constant, wherever it stands in the order of execution.
Lookup = Callable[["openvino.Output"], Held | None]


class CodeChain(NamedTuple):
    """The operators behind a FakeQuantize that make values of its codes.

    Attributes:
        ranges: Of the FakeQuantize, as if it wrote the values itself.
        between: Operators that nothing else reads, in order; the FakeQuantize is the first.
        last: Writes the values.
    """

    ranges: Ranges
    between: tuple["openvino.Node", ...]
    last: "openvino.Node"


def code_chain(op: "openvino.Node", levels: int, ranges: Ranges, held: Lookup) -> CodeChain | None:
    """What makes values of the codes that a FakeQuantize writes; None where it writes values, or others read the codes.

    Args:
        op: The FakeQuantize.
        levels: Number of its levels.
        ranges: Its ranges.
        held: Finds constants.
    """
    chain = list(_readers(op))
    if len(chain) < 2 or not _is_conversion_of_codes(chain[0], chain[1], levels, ranges):
        return None
    low, high, kept = ranges.output_low, ranges.output_high, 2
    for kind in ("Subtract", "Multiply"):
        constant = _constant_of(chain[kept], held) if kept < len(chain) and _kind(chain[kept]) == kind else None
        if constant is not None:
            low, high = (each - constant if kind == "Subtract" else each * constant for each in (low, high))
            kept += 1
    values = ranges._replace(output_low=low, output_high=high)
    return CodeChain(values, (op, *chain[: kept - 1]), chain[kept - 1])


def _kind(op: "openvino.Node") -> str:
    return str(op.get_type_name())


def _readers(op: "openvino.Node", most: int = 4) -> Iterator["openvino.Node"]:
    """The only reader of an operator's result, the only one of that, and so on."""
    for _ in range(most):
        readers = list(op.output(0).get_target_inputs())
        if len(readers) != 1 or readers[0].get_index() != 0:
            return
        op = readers[0].get_node()
        yield op


def _is_conversion_of_codes(first: "openvino.Node", second: "openvino.Node", levels: int, ranges: Ranges) -> bool:
    """One makes integers of whole numbers that their type holds, and the other numbers of these."""
    if (_kind(first), _kind(second)) != ("Convert", "Convert"):
        return False
    name, low, high = first.get_element_type().get_type_name(), ranges.output_low, ranges.output_high
    if name not in _HELD_CODES or second.get_element_type().get_type_name() not in REAL:
        return False
    lowest = -(1 << (_HELD_CODES[name] - 1)) if name.startswith("i") else 0
    fits = (low >= lowest).all() and (high <= lowest + (1 << _HELD_CODES[name]) - 1).all()
    return bool(fits and (high - low == levels - 1).all() and (low == np.rint(low)).all())


def _constant_of(op: "openvino.Node", held: Lookup) -> Floats | None:
    found = held(op.input_value(1))
    return None if found is None else np.asarray(found.values, np.float64)

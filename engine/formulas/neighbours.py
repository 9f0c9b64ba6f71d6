"""Bits of tensors beside those of their neighbours, and of inputs that are quantized at run time."""

from collections.abc import Iterable, Sequence

from quantmedic.engine.case.facts import TensorFacts
from quantmedic.engine.case.records import Case, OperatorRecord


def with_neighbour_bits(case: Case, tensors: tuple[TensorFacts, ...]) -> tuple[TensorFacts, ...]:
    """The tensors with ``bits_below_neighbours``, which is None where all grids of a network have as many bits."""
    bits = [None if tensor.quantizer.dynamic else tensor.quantizer.bits for tensor in tensors]
    if len({own for own in bits if own is not None}) < 2:
        return tensors
    read: dict[int, list[int]] = {}
    written: dict[int, list[int]] = {}
    for op in case.record.operators:
        inputs, outputs = ([i for i in ends if i is not None] for ends in (op.inputs, op.outputs))
        for i in outputs:
            read.setdefault(i, []).extend(inputs)
        for i in inputs:
            written.setdefault(i, []).extend(outputs)
    found = list(tensors)
    for i, own in enumerate(bits):
        sides = [_fewest(bits, places.get(i, ())) for places in (read, written)]
        known = [side for side in sides if side is not None]
        if own is not None and len(known) == len(sides):
            found[i] = tensors[i].model_copy(update={"bits_below_neighbours": min(known) - own})
    return tuple(found)


def _fewest(bits: Sequence[int | None], places: Iterable[int]) -> int | None:
    return min((own for place in places if (own := bits[place]) is not None), default=None)


def run_time_bits(op: OperatorRecord, tensors: Sequence[TensorFacts]) -> int | None:
    """Bits of an input that is quantized anew at every run, on one grid."""
    grids = (tensors[i].quantizer for i in op.inputs if i is not None)
    return min((grid.bits for grid in grids if grid.dynamic and grid.bits is not None), default=None)

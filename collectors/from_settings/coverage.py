"""Activations of a model that the encodings of a toolchain leave out."""

from collections import Counter
from collections.abc import Iterable

from quantmedic.engine.case.facts import CoverageFacts
from quantmedic.engine.case.records import CaseRecord, TensorRecord
from quantmedic.engine.operator_types import FUSED_FUNCTIONS, LAYOUTS, RESAMPLING, SELECTIONS

#: Operators that hand values on: what they write lies on the grid of what they read.
_MOVES = (LAYOUTS | SELECTIONS | RESAMPLING) | {*("Dropout", "Cast", "Relu", "Clip", "Max", "Min", "Concat")}
#: Names that are kept.
_NAMED = 5
#: Their range is known beforehand, and toolchains set it themselves.
_BOUNDED = frozenset({"Softmax", "LogSoftmax", "Sigmoid", "HardSigmoid", "Tanh", "ArgMax"})


def coverage_of(record: CaseRecord, files: Iterable[str], floats: Iterable[str], strangers: int) -> CoverageFacts:
    """How many activations that the quantized model rounds to a fixed grid have one in files which list all of them.

    Left out are those whose range is known beforehand, those that only hand on what has a grid, and those that only an
    activation function reads whose result has one.

    Args:
        record: The case, with the thresholds of the files.
        files: Names of the files that list all activations.
        floats: Names that they list as float.
        strangers: Names in them that match nothing in the model: as many activations may be there by another name.
    """
    named = set(floats)
    known = [t.recorded.origin is not None or bool({t.name, t.float_name} & named) for t in record.tensors]
    readers = Counter(i for op in record.operators for i in op.inputs if i is not None)
    for op in record.operators:  # In the order of the network.
        read, written = ([i for i in places if i is not None] for places in (op.inputs, op.outputs))
        if op.op_type in _MOVES and read and all(known[i] for i in read):
            for i in written:
                known[i] = True
        if op.op_type in FUSED_FUNCTIONS and len(read) == 1 == readers[read[0]] and any(known[i] for i in written):
            known[read[0]] = True
    needed = [i for i, tensor in enumerate(record.tensors) if _needs_a_grid(tensor)]
    if not needed:
        return CoverageFacts()
    lacking = tuple(record.tensors[i].float_name or record.tensors[i].name for i in needed if not known[i])
    return CoverageFacts(
        files=tuple(files),
        tensors=len(needed),
        recorded_share=1 - len(lacking) / len(needed),
        unrecorded=max(len(lacking) - strangers, 0),
        unrecorded_names=lacking[:_NAMED],
    )


def _needs_a_grid(tensor: TensorRecord) -> bool:
    rounded = tensor.quantizer.scale is not None and not tensor.quantizer.dynamic
    return rounded and tensor.producer not in _BOUNDED

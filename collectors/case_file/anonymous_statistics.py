"""Statistics of a data set without what shows its samples: thumbnails, histograms and values of the inputs."""

import hashlib
import re
from collections.abc import Collection, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from quantmedic.engine.case.records import CaseRecord
from quantmedic.engine.case.statistics import BUCKETS, LEVELS, SampleTable, SetStatistics, slots_of
from quantmedic.engine.case.thumbnails import Thumbnails
from quantmedic.engine.formulas.inputs import lattice_of

#: Operators that hand values on, or shift and scale them: what they make of an input alone shows it as well.
_HANDS_ON = frozenset(
    {
        *(
            "Identity",
            "Cast",
            "Reshape",
            "Flatten",
            "Squeeze",
            "Unsqueeze",
            "Transpose",
            "Pad",
            "Slice",
            "Gather",
            "Split",
        ),
        *("Concat", "Dropout", "Add", "Sub", "Mul", "Div", "Neg", "BatchNormalization", "Clip"),
    }
)
#: Names of compared outputs; see `SetStatistics.comparisons`.
_COMPARED = re.compile(
    r"(?:(?:Sigmoid|Softmax) )?(?:float|quantized|output|column|operand|reference|device|stage|step)(?:\.\d{1,6})+"
)


def hide_statistics(statistics: SetStatistics, record: CaseRecord, key: bytes) -> SetStatistics:
    """The statistics of a data set as others may see them.

    Distinct values of an input stay where they are an even grid, as those of 8-bit images are: a grid shows its step
    and its ends. Others are the values of the samples themselves. Hashes of samples are hashed again: they would show
    whether a known sample was among them.
    """
    shown = inputs_of(record)
    return replace(
        statistics,
        histograms=_without(statistics.histograms, shown),
        quantized_histograms=_without(statistics.quantized_histograms, shown),
        lattice=[own if lattice_of(own) is not None else own[:0] for own in statistics.lattice],
        samples=_hide_hashes(statistics.samples, key),
        thumbnails=Thumbnails(),
        comparisons={name: own for name, own in statistics.comparisons.items() if _COMPARED.fullmatch(name)},
    )


def inputs_of(record: CaseRecord) -> frozenset[int]:
    """Tensors that hold the values of a network's inputs: these, and what is made of them without a product."""
    found = {place for place, tensor in enumerate(record.tensors) if tensor.is_input or place == record.input_tensor}
    for op in record.operators:  # in the order of execution
        read = {place for place in op.inputs if place is not None}
        if op.op_type in _HANDS_ON and read and read <= found:
            found |= {place for place in op.outputs if place is not None}
    return frozenset(found)


def _without(histograms: Mapping[int, NDArray[np.int64]], hidden: Collection[int]) -> dict[int, NDArray[np.int64]]:
    return {place: histograms[place] for place in histograms if place not in hidden}


def _hide_hashes(samples: SampleTable, key: bytes) -> SampleTable:
    """Equal samples keep equal hashes, and each stays in its slot."""
    known, first, places = np.unique(samples["hash"], return_index=True, return_inverse=True)
    digests = [hashlib.blake2b(own.tobytes(), key=key, digest_size=8).digest() for own in known]
    level = (slots_of(samples[first]) // BUCKETS).astype(np.uint64)
    rest = np.frombuffer(b"".join(digests), "<u8") // BUCKETS >> level << level
    rest |= np.where(level < LEVELS - 1, np.uint64(1) << level, np.uint64(0))
    changed = samples.copy()
    changed["hash"] = (rest * np.uint64(BUCKETS) + known % BUCKETS)[places]
    return changed

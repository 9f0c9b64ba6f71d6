"""Where numbers that are no numbers come up first."""

from typing import Literal

import numpy as np

from quantmedic.engine.case.facts import LayerFacts
from quantmedic.engine.case.records import Case
from quantmedic.engine.formulas.columns import per_tensor

#: The models that have them.
Models = Literal["none", "float", "quantized", "both"]


def first_nonfinite(case: Case, layers: tuple[LayerFacts, ...]) -> tuple[str | None, Models]:
    """First layer, in topological order, that only the quantized model spoils; else the first spoiled in any."""
    spoiled: list[tuple[str | None, Models]] = []
    bad_float, bad_quantized = nonfinite_tensors(case, "nonfinite"), nonfinite_tensors(case, "accumulated.nonfinite")
    for op, layer in zip(case.record.operators, layers, strict=True):
        for index in op.outputs:
            if index in bad_float or index in bad_quantized:
                spoiled.append((layer.name, which_models(index in bad_float, index in bad_quantized)))
    own = [found for found in spoiled if found[1] == "quantized"]
    return (own or spoiled or [(None, "none")])[0]


def nonfinite_tensors(case: Case, column: str) -> set[int | None]:
    """Tensors of which a count is not zero on any data set."""
    found: set[int | None] = set()
    for statistics in case.statistics.values():
        found |= set(np.flatnonzero(per_tensor(np.add, statistics.columns[column], statistics.offsets)).tolist())
    return found


def which_models(in_float: bool, in_quantized: bool) -> Models:
    """The word for it."""
    if in_float and in_quantized:
        return "both"
    return "float" if in_float else "quantized" if in_quantized else "none"

"""Whether two models are one network: they are not swapped, take the same inputs, and have layers in common."""

from collections.abc import Sequence

import numpy as np

from quantmedic.collectors.data.model_inputs import InputSpec, shapes_agree
from quantmedic.collectors.pair.feed import input_specs
from quantmedic.collectors.pair.graph import Graph, Operator
from quantmedic.collectors.pair.likeness import refuse_other_weights
from quantmedic.collectors.pair.match import Match, match
from quantmedic.engine.case.fact_base import SameModel
from quantmedic.engine.errors import ModelError

_NOT_MADE_FROM = "is the quantized model made from this float model?"


def match_files(float_graph: Graph, quantized: Graph) -> Match:
    """Match two graphs that were read from files.

    Raises:
        ModelError: They are swapped, their inputs or weights differ, or no layer matches.
    """
    refuse_swapped(float_graph, quantized)
    _refuse_other_inputs(input_specs(float_graph), input_specs(quantized))
    matched = match(float_graph, quantized)
    if not matched.operators:
        raise ModelError(
            "no layer of the two models matches",
            where=[
                f"float     {float_graph.path.name}: {len(float_graph.operators)} operators",
                f"quantized {quantized.path.name}: {len(quantized.operators)} operators",
            ],
            help=_NOT_MADE_FROM,
        )
    refuse_other_weights(float_graph, quantized, matched.operators)
    return matched


def refuse_swapped(float_graph: Graph, quantized: Graph) -> None:
    """Refuse a pair of which only the float model is quantized.

    Raises:
        ModelError: Only the float model holds quantizers.
    """
    if float_graph.is_quantized and not quantized.is_quantized:
        raise ModelError(
            "the models seem to be swapped: the float model holds quantizers, the quantized one none",
            where=[f"float     {float_graph.path}", f"quantized {quantized.path}"],
            help="give the float model first: quantmedic diagnose FLOAT QUANT",
        )


def _refuse_other_inputs(mine: Sequence[InputSpec], theirs: Sequence[InputSpec]) -> None:
    """Models that take different inputs are not made from each other."""
    names = [spec.name for spec in mine]
    if set(names) == {spec.name for spec in theirs}:
        theirs = sorted(theirs, key=lambda spec: names.index(spec.name))
    if len(mine) == len(theirs) and all(shapes_agree(a.shape, b.shape) for a, b in zip(mine, theirs, strict=True)):
        return
    raise ModelError(
        "the two models do not belong together: their inputs differ",
        where=[f"float     {_describe_inputs(mine)}", f"quantized {_describe_inputs(theirs)}"],
        help=_NOT_MADE_FROM,
    )


def _describe_inputs(specs: Sequence[InputSpec]) -> str:
    return ", ".join(f"{s.name} {s.dtype}{['?' if d is None else d for d in s.shape]}" for s in specs)


def same_model(float_graph: Graph, quantized: Graph, matched: Match, hashes: tuple[str, str]) -> SameModel:
    """Whether the model that is given as quantized is the float model itself, so that nothing can be compared.

    Args:
        float_graph: The float model.
        quantized: What is given as its quantized version.
        matched: Their twins.
        hashes: Of both files, or of what stands for them.
    """
    types = [[op.op_type for op in graph.operators] for graph in (float_graph, quantized)]
    if types[0] != types[1] or float_graph.is_quantized != quantized.is_quantized:
        return "no"
    if hashes[0] == hashes[1]:
        return "bytes"
    if quantized.is_quantized:
        return "no"
    twins = [(matched.operators.get(op.index), op) for op in quantized.operators]
    same = all(twin is not None and _share_constants(twin, op, float_graph, quantized) for twin, op in twins)
    return "weights" if same else "no"


def _share_constants(twin: Operator, op: Operator, float_graph: Graph, quantized: Graph) -> bool:
    """Both operators read the same constants, value by value."""
    mine = [float_graph.constants[name].values for name in twin.inputs if name in float_graph.constants]
    theirs = [quantized.constants[name].values for name in op.inputs if name in quantized.constants]
    return len(mine) == len(theirs) and all(
        a is b or (a is not None and b is not None and np.array_equal(a, b)) for a, b in zip(mine, theirs, strict=True)
    )

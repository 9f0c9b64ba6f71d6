"""Grids of codes behind operators that move, pick or compute with codes."""

import onnx

from quantmedic.collectors.from_onnx.onnx_graph import DEFAULT_DOMAINS
from quantmedic.collectors.pair.graph import Graph
from quantmedic.collectors.pair.quantizer import Quantizer
from quantmedic.engine.operator_types import LAYOUTS, RESAMPLING, SELECTIONS

#: Operators that hand on codes of their first input, or limit them.
MOVES = (LAYOUTS | SELECTIONS | RESAMPLING) | {
    *("Dropout", "Compress", "ReverseSequence", "TopK", "ReduceMax", "ReduceMin", "Relu", "Clip")
}
#: Operators that pick codes from several inputs: their result keeps the grid that these share.
_PICKS = frozenset({"Concat", "Max", "Min", "Where", "ScatterElements", "ScatterND"})
#: Operators whose result does not depend on the values of a tensor.
_ASKS = frozenset({"Shape", "Size"})


def carry_codes(graph: Graph, node: onnx.NodeProto) -> None:
    """Note that an operator makes codes of codes: on their grid where it only moves them, else on an unknown one."""
    grids = _grids_read(graph, node)
    if not grids or node.op_type in _ASKS or node.domain not in DEFAULT_DOMAINS:
        return
    moves = node.op_type in MOVES | _PICKS
    if not moves and node.op_type != "Cast" and all(grid is None for grid in grids):
        return  # Arithmetic on numbers of unknown meaning is how a graph turns them into real ones.
    for name in node.output if node.op_type == "Split" else node.output[:1]:
        graph.write_codes(name, _common_grid(grids) if moves else None)


def _common_grid(grids: list[Quantizer | None]) -> Quantizer | None:
    """The grid that all of them are; None where one is unknown, differs, or belongs to the places of a tensor."""
    first = grids[0]
    return first if first and all(grid is not None and first.same_grid(grid) for grid in grids) else None


def _grids_read(graph: Graph, node: onnx.NodeProto) -> list[Quantizer | None]:
    """Grids of the codes that an operator reads; a constant counts where it is what the operator moves."""
    names = node.input[:1] if node.op_type in MOVES else node.input
    activations = [graph.codes[name] for name in names if name in graph.codes and name not in graph.constants]
    if activations or node.op_type not in MOVES:
        return activations
    table = graph.constants.get(node.input[0])
    if table is None or (table.quantizer is not None and node.input[0] not in graph.codes):
        return []
    stored = table.codes is not None and table.bits[0] <= 16
    return [table.quantizer] if stored or node.input[0] in graph.codes else []

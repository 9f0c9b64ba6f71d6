"""Faults of the runtime and of the files: boards and operators that compute something else, models that differ."""

from collections.abc import Callable

import numpy as np
import onnx
from numpy.typing import NDArray

from ..cuts import classes, deployed, kept, reading_on_the_board, with_outputs
from ..patient import Patient
from ..quantizing import run
from ..signals import WAVE
from ..surgery import Inapplicable, Surgeon, require

# --- what a board hands out ------------------------------------------------------------------------------------------


def board_stops_a_turn_early(patient: Patient) -> Patient:
    """The loop on the board ends one turn before it should; the model on the desk is sound."""
    short = patient.with_(model=without_turn(patient).model)
    return with_outputs(patient, "device_outputs", run(patient.network, short.quantized(), patient.validation))


def board_keeps_the_first_dials(patient: Patient) -> Patient:
    """The board reads the dials once, at the start, and goes on with them; the model on the desk is sound."""
    if patient.network.name != "dials":
        raise Inapplicable("no dials")
    inputs = patient.validation.copy()
    inputs[:, WAVE:] = inputs[0, WAVE:]
    return reading_on_the_board(patient, inputs)


def without_turn(patient: Patient) -> Surgeon:
    """What follows a repeated step reads what came before it.

    Raises:
        Inapplicable: Nothing is repeated.
    """
    surgeon = patient.surgeon()
    free_cells = next((n for n in surgeon.nodes("Sub") if surgeon.constant(n.input[0]) is not None), None)
    states = [n.output[0] for n in surgeon.nodes("Mul") if free_cells is not None and free_cells.output[0] in n.input]
    if patient.network.name != "mazes" or len(states) < 3:
        raise Inapplicable("nothing is repeated")
    surgeon.reroute(states[-1], states[-2])
    return surgeon


# --- operators that compute something else ---------------------------------------------------------------------------


def at_work(
    patient: Patient, nodes: list[onnx.NodeProto], change: Callable[[Surgeon, onnx.NodeProto], None]
) -> Patient:
    """Some operators of the quantized model changed, by name."""
    names = [node.name for node in nodes]

    def edit(_: Patient, surgeon: Surgeon) -> None:
        found = [node for node in surgeon.graph.node if node.name in names]
        if len(found) < len(names):
            raise Inapplicable("an operator was fused")
        for node in found:
            change(surgeon, node)

    return patient.with_(recipe=kept(patient.recipe)).at(*names).edited(edit)


def inputs_by_name(patient: Patient, nodes: list[onnx.NodeProto]) -> dict[str, NDArray]:
    """What operators read on validation inputs."""
    return dict(zip((n.name for n in nodes), patient.values(*(n.input[0] for n in nodes)), strict=True))


def curves_from_a_short_table(patient: Patient, amount: float) -> Patient:
    """The kernel looks curves up in a table of few entries and does not interpolate: it takes the entry below."""
    nodes = require(patient.surgeon().nodes("Sigmoid", "HardSwish"), "no curves")
    spread = {name: float(x.std()) for name, x in inputs_by_name(patient, nodes).items()}
    text = "at = Div(x, entry); entry_below = Floor(at); taken = Mul(entry_below, entry)"

    def change(surgeon: Surgeon, node: onnx.NodeProto) -> None:
        given = {"x": node.input[0], "entry": amount * spread[node.name]}
        node.input[0] = surgeon.wire(node.input[0], text, name=node.name, **given)["taken"]

    return at_work(patient, nodes, change)


def mean_over_a_padded_length(patient: Patient, amount: float) -> Patient:
    """Sums are right, but divided by a length that was filled up to what the vector unit likes."""
    nodes = require(patient.surgeon().nodes("ReduceMean"), "nothing is averaged")

    def change(surgeon: Surgeon, node: onnx.NodeProto) -> None:
        share, out = surgeon.put(f"{node.name}_share_of_length", 1 / (1 + amount)), node.output[0]
        node.output[0] = f"{out}_over_its_length"
        surgeon.add("Mul", [node.output[0], share], out, node)

    return at_work(patient, nodes, change)


# --- models that differ ----------------------------------------------------------------------------------------------


def classes_in_alphabetical_order(patient: Patient) -> Patient:
    """The deployed model counts some classes in the order of their names, the float model in that of the training."""
    surgeon = patient.surgeon()
    head = classes(patient, surgeon)
    size = surgeon.outputs(head)
    order, moved = np.arange(size), patient.random("names").permutation(size)[: max(2, size // 3)]
    order[moved] = np.roll(moved, 1)
    surgeon.put(surgeon.own(head, 1), np.take(surgeon.constant(head.weight), order, head.out))
    if head.bias:
        surgeon.put(surgeon.own(head, 2), surgeon.constant(head.bias)[order])
    return deployed(patient, surgeon, head)

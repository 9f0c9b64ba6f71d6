"""Faults that users and maintainers told of in public; ``benchmarks/zoo/reports.md`` says where."""

import numpy as np

from ..cuts import (
    deployed,
    has_channels,
    picked,
)
from ..patient import Patient
from .data import change_numbers

# --- calibration -----------------------------------------------------------------------------------------------------


# --- codes -----------------------------------------------------------------------------------------------------------


# --- operators of the deployed model ---------------------------------------------------------------------------------


def halves_joined_the_other_way(patient: Patient) -> Patient:
    """The converter keeps what is joined in a set, and takes it out in another order."""
    surgeon = patient.surgeon()
    node = picked(patient, [n for n in surgeon.nodes("Concat") if has_channels(surgeon, n.output[0])], 0.5)[0]
    node.input[:] = list(node.input)[::-1]
    return deployed(patient, surgeon, node.name)


def one_buffer_for_all(patient: Patient, buffers: int) -> Patient:
    """The loader hands out the same few buffers in turn, and the list holds what was read into them last."""
    inputs = change_numbers(patient, lambda x: x).calibration
    return patient.with_(calibration=np.resize(inputs[-buffers:], inputs.shape))


def variance_from_squares(patient: Patient, amount: float) -> Patient:
    """A norm takes the square of the mean off the mean of the squares, and what it reads has a large mean."""
    surgeon = patient.surgeon()
    found = [n for n in surgeon.nodes("LayerNormalization") if surgeon.producer(n.input[0]) is not None]
    node = picked(patient, found, 0.5)[0]
    tensor, out = node.input[0], node.output[0]
    spread = float(patient.values(tensor)[0].std())
    text = """
        raised = Add(x, far)
        mean = ReduceMean(raised, last)
        squares = Mul(raised, raised)
        mean_of_squares = ReduceMean(squares, last)
        square_of_mean = Mul(mean, mean)
        difference = Sub(mean_of_squares, square_of_mean)
        variance = Max(difference, least)
        root = Sqrt(variance)
        centred = Sub(raised, mean)
        even = Div(centred, root)
        gained = Mul(even, gain)
    """
    given = {"far": np.float32(amount * spread), "last": [-1], "least": np.float32(0.02 * spread**2)}
    name = node.name.strip("/").replace("/", "_")
    made = surgeon.wire(tensor, text, "squares square_of_mean", name=name, x=tensor, gain=node.input[1], **given)
    last = surgeon.producer(made["gained"])
    offset = node.input[2]
    surgeon.graph.node.remove(node)
    surgeon.add("Add", [made["gained"], offset], out, last)
    return patient.cut(surgeon)

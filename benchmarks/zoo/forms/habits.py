"""Mistakes that practitioners make often, in further realizations: of data, ranges, weights, sums and exports."""

import numpy as np
from numpy.typing import NDArray

from ..cuts import (
    covered,
    extremes,
    free,
    has_channels,
    inner,
    joining,
    multiply_ends,
    on_multiples,
    picked,
    recoded,
    set_ranges,
    top_of,
)
from ..patient import Patient
from ..surgery import require
from .controls import with_ends
from .data import by_percentile, dullest, measured

# --- calibration sets ------------------------------------------------------------------------------------------------


def _longest(inputs: NDArray) -> int:
    """The axis with the most places, which is time where samples have one."""
    return int(np.argmax(inputs.shape[1:])) + 1


def smoothed_in_time(patient: Patient, amount: float) -> Patient:
    """Recordings of the calibration set went through a lower rate and back: what is fast is gone."""
    inputs = measured(patient)
    along = _longest(inputs)
    places = np.arange(inputs.shape[along])
    kernel = np.exp(-np.square((places[:, None] - places) / amount) / 2)
    kernel /= kernel.sum(1, keepdims=True)
    smooth = np.moveaxis(np.tensordot(kernel, inputs, (1, along)), 0, along)
    return patient.with_(calibration=smooth.astype(np.float32))


def a_few_of_a_quiet_hour(patient: Patient, count: int) -> Patient:
    """So many samples, of the third that stirs the network least."""
    quiet = dullest(patient, len(patient.calibration) // 3)
    chosen = patient.random("hour").permutation(len(quiet))[:count]
    return by_percentile(patient, quiet[chosen])


# --- ranges and grids ------------------------------------------------------------------------------------------------


def ends_times(patient: Patient, amount: float, *shares: float, wide: int = 0) -> Patient:
    """Both ends of some ranges are too near by a factor, or too far."""
    factor = 1 + amount if wide else 1 / (1 + amount)
    return set_ranges(patient, multiply_ends(patient, patient.pick(free(patient), *shares), factor))


def negatives_cut_short(patient: Patient, amount: float) -> Patient:
    """Curves that go a little below zero have ranges that hardly do."""
    tensors = patient.activations("Mul", "HardSwish", "Gelu")
    ends = {t: own for t, own in extremes(patient, *tensors).items() if 0 < -own[0] < own[1] / 3}
    return set_ranges(patient, {t: (low / (1 + amount), high) for t, (low, high) in require(ends, "no curves").items()})


def shares_on_a_wide_grid(patient: Patient, amount: float) -> Patient:
    """Gates and shares, which end at one, have a range that ends far beyond."""
    surgeon, curves = patient.surgeon(), ("Sigmoid", "Softmax", "HardSigmoid")
    outputs = {value.name for value in surgeon.graph.output}
    found = [n.output[0] for n in surgeon.nodes(*curves) if n.output[0] not in outputs]
    return set_ranges(patient, dict.fromkeys(require(found, "no gates"), (0.0, 1.0 + amount)))


# --- weights ---------------------------------------------------------------------------------------------------------


def layers_of_few_levels(patient: Patient, amount: float, *places: int) -> Patient:
    """Some layers, by their number, have few levels."""
    layers = covered(patient)
    return recoded(patient, [layers[place] for place in places], on_multiples(amount))


def loud_weights_of_a_dead_input(patient: Patient, amount: float) -> Patient:
    """A layer reads one more channel, which never tells anything, and has huge weights for it."""
    surgeon = patient.surgeon()
    found = [n for n in inner(patient, surgeon) if not n.depthwise and surgeon.producer(n.node.input[0]) is not None]
    found = [n for n in found if has_channels(surgeon, n.node.input[0])]
    linear = patient.pick([n for n in found if surgeon.channels(n.node.input[0]) == surgeon.inputs(n)], 0.6)[0]
    tensor, name, axis = linear.node.input[0], linear.node.name, surgeon.channel_axis(linear.node.input[0])
    text = f"one = Slice(x, from_, to, axes); never = Mul(one, nothing); more = Concat(x, never, axis={axis})"
    given = {"from_": [0], "to": [1], "axes": [axis], "nothing": 0.0}
    linear.node.input[0] = surgeon.wire(tensor, text, name=name, x=tensor, **given)["more"]
    weight = surgeon.constant(linear.weight)
    loud = np.zeros_like(np.take(weight, [0], linear.into))
    loud[...] = (1 + amount) * np.abs(weight).max()
    surgeon.put(surgeon.own(linear, 1), np.concatenate([weight, loud], linear.into))
    return patient.cut(surgeon, linear)


# --- sums, joints and exports ----------------------------------------------------------------------------------------


def stored_with_an_offset(patient: Patient, amount: float) -> Patient:
    """One side of a sum is stored with a constant that keeps it positive, taken off behind the sum."""
    surgeon = patient.surgeon()
    node = picked(patient, joining(surgeon, "Add"), 0.5)[0]
    offset = np.float32(amount * top_of(patient, node.output[0]))
    made = surgeon.wire(
        node.input[0], "raised = Add(x, raise_)", name=f"{node.name}_part", x=node.input[0], raise_=offset
    )
    node.input[0] = made["raised"]
    surgeon.splice(node.output[0], "lowered = Sub(x, lower)", lower=offset)
    return patient.cut(surgeon, node.name)


# --- what does not hurt, or not here ---------------------------------------------------------------------------------


def left_in_float(patient: Patient, *words: str) -> Patient:
    """A list of what is to be left out matches more than it should."""
    names = [n.name for n in patient.model.graph.node if any(word in n.name for word in words)]
    return patient.without(*require(names, "nothing has such a name"))


def ends_rounded_up(patient: Patient, factor: float) -> Patient:
    """Every range is a little wider than it must be."""
    return with_ends(patient, lambda low, high: (low * factor, high * factor))


def part_of_the_set(patient: Patient, start: int, step: int) -> Patient:
    """Some of the set, which suffices."""
    return patient.with_(calibration=patient.calibration[start::step].copy())

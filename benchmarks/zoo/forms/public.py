"""Further faults that users and maintainers told of in public; ``benchmarks/zoo/reports.md`` says where."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ..cuts import deployed, ends_of, free, inner, picked, set_ranges
from ..patient import Patient
from ..surgery import Surgeon, attribute, require, with_attributes
from .data import change_measured, change_pictures, inputs_of
from .weights import apart

#: What full circle and the step of stored numbers are in the units of turns.
CIRCLE, STORED = 2 * np.pi / 0.4, 0.001

# --- calibration -----------------------------------------------------------------------------------------------------


def fourteen_bits_of_sixteen(patient: Patient) -> Patient:
    """The camera fills fourteen bits of sixteen, and the script takes sixteen for full: what is light is cut."""
    dark = change_pictures(patient, lambda pixels: pixels / 4)
    return dark.with_(recipe=replace(patient.recipe, symmetric=False))


def brightened_twice(patient: Patient, amount: float) -> Patient:
    """Pictures of the calibration set went through the curve of screens twice: all but white is too bright."""
    return change_pictures(patient, lambda pixels: 255 * (pixels / 255) ** (1 / (1 + amount)))


def turns_not_wrapped(patient: Patient) -> Patient:
    """Turns of the calibration set are differences of headings, and who passes the south turns by a full circle."""
    inputs = inputs_of(patient, "trips")
    start = patient.random("heading").uniform(-0.5, 0.5, len(inputs))[:, None] * CIRCLE
    heading = start + inputs[..., 1].cumsum(1)
    told = (heading + CIRCLE / 2) % CIRCLE - CIRCLE / 2
    inputs[:, 1:, 1] = np.diff(told, axis=1)
    return patient.with_(calibration=inputs)


def bytes_in_the_other_order(patient: Patient) -> Patient:
    """Numbers of the calibration set are stored in two bytes each, and read with the upper one for the lower one."""

    def swapped(inputs: NDArray) -> NDArray:
        return np.rint(inputs / STORED).clip(-32768, 32767).astype(np.int16).byteswap() * STORED

    return change_measured(patient, swapped)


def ends_at_powers_below(patient: Patient, amount: float) -> Patient:
    """Scales are kept as powers of a number, and are rounded down to one: what lies beyond is cut."""
    step = np.log1p(amount)

    def below(end: float) -> float:
        return float(np.sign(end) * np.exp(np.floor(np.log(max(abs(end), 1e-6)) / step) * step))

    tensors = free(patient)
    ends = map(ends_of, patient.values(*tensors))
    return set_ranges(patient, {t: (below(low), below(high)) for t, (low, high) in zip(tensors, ends, strict=True)})


# --- weights ---------------------------------------------------------------------------------------------------------


def biases_added_by_each_part(patient: Patient, amount: float) -> Patient:
    """Layers are computed in two parts, and in some of them both add the bias before the parts are summed up."""
    surgeon = patient.surgeon()
    found = require([n for n in apart(patient, surgeon) if n.bias], "no biases")
    order = patient.random("parts").permutation(len(found))[: max(1, round(min(amount, 1) * len(found)))]
    for linear in (found[i] for i in order):
        surgeon.put(surgeon.own(linear, 2), 2 * surgeon.constant(linear.bias))
    return deployed(patient, surgeon, *(found[i] for i in order))


def layers_loaded_by_their_order(patient: Patient) -> Patient:
    """Weights are loaded one after the other, not by name: two layers of the same shape got those of each other."""
    surgeon = patient.surgeon()
    layers = inner(patient, surgeon)
    shapes = [surgeon.constant(n.weight).shape for n in layers]
    pairs = [(i, k) for i in range(len(layers)) for k in range(i + 1, len(layers)) if shapes[i] == shapes[k]]
    near = [(layers[i], layers[k]) for i, k in pairs if k - i <= 2]
    one, other = picked(patient, require(near, "no two layers of one shape"), 0.5)[0]
    for place in (1, 2) if one.bias and other.bias else (1,):
        names = [surgeon.own(n, place) for n in (one, other)]
        for name, value in zip(names, [surgeon.constant(name) for name in reversed(names)], strict=True):
            surgeon.put(name, value)
    return deployed(patient, surgeon, one, other)


# --- operators of the deployed model ---------------------------------------------------------------------------------


def rectified_before_the_sum(patient: Patient) -> Patient:
    """A rectifier behind a sum was fused into the layer that makes one of the operands: it works before the sum."""
    surgeon = patient.surgeon()
    found = [n for n in surgeon.nodes("Relu") if surgeon.producer(n.input[0]).op_type == "Add"]
    node = picked(patient, require(found, "no sum is rectified"), 0.5)[0]
    total = surgeon.producer(node.input[0])
    total.input[1] = surgeon.add("Relu", [total.input[1]], f"{total.input[1]}_fused", surgeon.producer(total.input[1]))
    surgeon.reroute(node.output[0], total.output[0])
    surgeon.graph.node.remove(node)
    return deployed(patient, surgeon, total.input[1])


def rest_from_behind_the_norm(patient: Patient) -> Patient:
    """What a block is added to is taken behind its norm in the deployed model, not before."""
    surgeon = patient.surgeon()
    norms = {n.input[0]: n.output[0] for n in surgeon.nodes("LayerNormalization")}
    found = [n for n in surgeon.nodes("Add") if set(n.input) & set(norms)]
    node = picked(patient, require(found, "nothing is added beside a norm"), 0.6)[0]
    place = next(i for i, tensor in enumerate(node.input) if tensor in norms)
    node.input[place] = norms[node.input[place]]
    return deployed(patient, surgeon, node.name)


def frame_counted_in_the_mean(patient: Patient) -> Patient:
    """Means of windows at the edge are sums over all places of the window, also those beyond the edge."""
    surgeon = patient.surgeon()
    nodes = require([n for n in surgeon.nodes("AveragePool") if any(attribute(n, "pads", [0]))], "no framed means")
    for node in nodes:
        with_attributes(node, count_include_pad=1)
    return deployed(patient, surgeon, *(n.name for n in nodes))


def slope_of_another_release(patient: Patient, amount: float) -> Patient:
    """Rectifiers leak as much as they do by default in another library, which is more than in training."""
    surgeon = patient.surgeon()
    nodes = require(surgeon.nodes("LeakyRelu"), "nothing leaks")
    for node in nodes:
        with_attributes(node, alpha=attribute(node, "alpha", 0.01) * (1 + amount))
    return deployed(patient, surgeon, *(n.name for n in nodes))


def frames_at_the_far_side(patient: Patient) -> Patient:
    """A kernel with stride has its frame below and to the right in the deployed model, and on all sides in training."""
    surgeon = patient.surgeon()
    found = [n for n in surgeon.nodes("Conv") if max(attribute(n, "strides", [1])) == 2]
    node = picked(patient, [n for n in found if attribute(n, "pads", []) == [1, 1, 1, 1]], 0.5)[0]
    with_attributes(node, pads=[0, 0, 1, 1])
    return deployed(patient, surgeon, node.name)


def places_counted_from_one(patient: Patient) -> Patient:
    """The table of places has rows in reserve before the first one, and the deployed model counts without them."""
    surgeon = patient.surgeon()
    found = [n for n in surgeon.nodes("Add") if any(_is_table(surgeon, name) for name in n.input)]
    node = require(found, "no table of places")[0]
    name = next(name for name in node.input if _is_table(surgeon, name))
    surgeon.put(name, np.roll(surgeon.constant(name), 2, -2))
    return deployed(patient, surgeon, node.name)


def _is_table(surgeon: Surgeon, name: str) -> bool:
    """Whether it is a constant with a row for each place."""
    value = surgeon.constant(name)
    return value is not None and value.ndim == 3 and min(value.shape[1:]) > 1


def down_before_across(patient: Patient) -> Patient:
    """The exporter tells how far down a corner is before how far to the right: each is taken for the other."""

    def edit(p: Patient, surgeon: Surgeon) -> None:
        inputs_of(p, "slides")
        columns = np.array([1, 0, 3, 2, 4, 5, 6, 7])
        surgeon.insert_after(surgeon.output, "Gather", [surgeon.put("columns_of_the_exporter", columns)], axis=2)

    return patient.edited(edit)

"""Mistakes made where work is handed over: to the script of calibration, to the converter, to the board."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ..cuts import (
    covered,
    deployed,
    ends_of,
    extremes,
    free,
    inner,
    joining,
    kept,
    mix_ends,
    on_multiples,
    picked,
    recoded,
    set_ranges,
    spots,
    top_of,
    with_outputs,
)
from ..patient import Patient
from ..quantizing import run
from ..signals import READ
from ..surgery import Inapplicable, Linear, attribute, require
from .data import Change, change_measured, change_pictures, inputs_of, set_stale_ranges, whole
from .weights import apart, rewritten

#: Below this a level is not heard; the largest number of 16 bits, and what one more of these is worth in a byte.
FLOOR, WHOLE, WIDER = 0.01, 32768.0, 257

# --- recordings of bells ---------------------------------------------------------------------------------------------


def _other_levels(patient: Patient, change: Change) -> Patient:
    """Levels of the calibration set, which are no logarithms yet, are changed."""
    inputs_of(patient, "bells")
    return change_measured(patient, lambda x: np.log(change(np.maximum(np.exp(x) - FLOOR, 0)) + FLOOR))


def amplitudes_told_for_powers(patient: Patient) -> Patient:
    """The network wants logarithms of powers, and the script of calibration takes those of amplitudes."""
    inputs_of(patient, "bells")
    return change_measured(patient, lambda x: x / 2)


def sampled_as_whole_numbers(patient: Patient) -> Patient:
    """The script reads samples as numbers of 16 bits, not as parts of one, and all logarithms are far larger."""
    return _other_levels(patient, lambda levels: levels * WHOLE)


def floor_of_another_release(patient: Patient, amount: float) -> Patient:
    """What is added before the logarithm is taken is more in the script of calibration."""
    return _other_levels(patient, lambda levels: levels + FLOOR * amount)


def heard_from_afar(patient: Patient, amount: float) -> Patient:
    """The calibration set was recorded from the other side of the valley."""
    return _other_levels(patient, lambda levels: levels / (1 + amount))


# --- readings of kilns -----------------------------------------------------------------------------------------------


def _cooler(patient: Patient, amount: float) -> NDArray:
    """Firings that never get hot: heat is counted from that of the yard, gas and draught from their middle."""
    inputs = inputs_of(patient, "kilns")
    inputs[..., 1] = (inputs[..., 1] + 1.5) / (1 + amount) - 1.5
    inputs[:, :READ, 2] = (inputs[:, :READ, 2] + 1.5) / (1 + amount) - 1.5
    inputs[:, :READ, 3:5] /= 1 + amount
    return inputs


def first_firings_alone(patient: Patient, amount: float) -> Patient:
    """All of the calibration set are first firings, which are much cooler than those with a glaze."""
    return patient.with_(calibration=_cooler(patient, amount))


def ranges_of_the_small_kiln(patient: Patient, amount: float) -> Patient:
    """Ranges were set at the kiln for samples, which is not that hot; the set that is shown is of the large one."""
    return set_stale_ranges(patient, _cooler(patient, amount))


def wire_burnt_through(patient: Patient, amount: float) -> Patient:
    """A thermometer whose wire is broken tells the end of its scale, and some readings of the calibration set do."""
    inputs = inputs_of(patient, "kilns")
    broken = patient.random("wire").random(inputs[:, :READ].shape[:2]) < 0.002
    inputs[:, :READ, 1][broken] = np.float32(amount * np.abs(inputs[..., 1]).max())
    return patient.with_(calibration=inputs)


def columns_in_the_order_of_the_panel(patient: Patient) -> Patient:
    """Columns of the calibration set are told as they stand on the panel: gas, draught, door, hour, top, bottom."""
    return patient.with_(calibration=np.ascontiguousarray(inputs_of(patient, "kilns")[..., [3, 4, 5, 0, 1, 2]]))


# --- tiles of land ---------------------------------------------------------------------------------------------------


def ink_taken_for_light(patient: Patient) -> Patient:
    """Tiles of the calibration set are stored for print, where a large number is much ink, and nobody turned it."""
    inputs_of(patient, "acres")
    return change_pictures(patient, lambda pixels: 255.0 - pixels)


def cut_off_at_a_byte(patient: Patient) -> Patient:
    """Tiles of 16 bits are made bytes by cutting off what is larger: nearly all is white."""
    inputs_of(patient, "acres")
    return change_pictures(patient, lambda pixels: np.minimum(pixels.astype(np.int64) * WIDER, 255))


def divided_without_a_rest(patient: Patient) -> Patient:
    """Bytes are divided by 255 before they are made real numbers: one where they are full, and nothing elsewhere."""
    inputs_of(patient, "acres")
    return change_pictures(patient, lambda pixels: 255 * (pixels.astype(np.int64) // 255))


def flown_in_the_evening(patient: Patient, amount: float) -> Patient:
    """Tiles of the calibration set were taken late, when there is less light, and of blue the most."""
    inputs_of(patient, "acres")
    light = np.power(1 + amount, -np.array([1.2, 1.0, 0.8])).reshape(1, 3, 1, 1)
    return change_pictures(patient, lambda pixels: whole(pixels * light))


def from_a_coarser_level(patient: Patient, amount: float) -> Patient:
    """Tiles of the calibration set are drawn from a coarser level of the map: what is fine is smoothed away."""
    inputs_of(patient, "acres")

    def smoothed(pixels: NDArray) -> NDArray:
        places = np.arange(pixels.shape[-1])
        share = np.maximum(1 - np.abs(places[:, None] - places) / (1 + amount), 0)
        share /= share.sum(1, keepdims=True)
        return np.einsum("ay,bx,ncyx->ncab", share, share, pixels.astype(np.float64))

    return change_pictures(patient, smoothed)


def open_sea_alone(patient: Patient) -> Patient:
    """The area of the calibration set was drawn too far out: all of its tiles are sea, and hold nothing."""
    inputs_of(patient, "acres")

    def emptied(pixels: NDArray) -> NDArray:
        rng = patient.random("sea")
        water = np.array([52, 74, 98]) * rng.uniform(0.9, 1.1, (len(pixels), 1)) + rng.normal(0, 2, (len(pixels), 3))
        return whole(water[..., None, None] + rng.normal(0, 1, pixels.shape))

    return change_pictures(patient, emptied)


# --- weights and biases ----------------------------------------------------------------------------------------------


def kernels_turned_by_half(patient: Patient, amount: float) -> Patient:
    """Kernels come from a library that turns them by half before it uses them, and some stayed as they were there."""
    surgeon = patient.surgeon()
    found = [n for n in apart(patient, surgeon) if surgeon.constant(n.weight)[0, 0].size > 1]
    chosen = patient.pick(require(found, "no kernels"), 0.2, 0.6)

    def change(weight: NDArray, _: Linear) -> NDArray:
        axes = tuple(range(2, weight.ndim))
        odd = np.abs(weight - np.flip(weight, axes)).reshape(len(weight), -1).sum(1)
        rows = np.argsort(odd)[: max(1, round(min(amount, 1) * len(weight)))]
        turned = weight.copy()
        turned[rows] = np.flip(weight[rows], axes)
        return turned

    return rewritten(patient, chosen, surgeon, change)


def means_left_out_of_the_fold(patient: Patient, amount: float) -> Patient:
    """A norm was folded into the layer before it, and in some channels its mean was not: they are too large by it."""
    surgeon = patient.surgeon()
    found = [n for n in apart(patient, surgeon) if n.bias and n.node.op_type == "Conv"]
    chosen = patient.pick(require(found, "no norms"), 0.1, 0.4, 0.7)
    for linear, x in zip(chosen, patient.values(*(n.node.output[0] for n in chosen)), strict=True):
        bias, middle = surgeon.constant(linear.bias), x.mean((0, 2, 3))
        place = np.argsort(np.argsort(np.abs(middle - bias)))
        left_out = np.clip(min(amount, 1) * len(bias) - place, 0, 1)  # of one channel, a part
        surgeon.put(surgeon.own(linear, 2), (bias + left_out * (middle - bias)).astype(np.float32))
    return deployed(patient, surgeon, *chosen)


def keys_and_values_changed_places(patient: Patient) -> Patient:
    """Weights of an attention lie in one block, and the loader takes keys for values, and the other way round."""
    surgeon = patient.surgeon()
    chains = [
        [n for n in surgeon.linears() if f"/{part}/" in n.node.name and surgeon.inputs(n) == surgeon.outputs(n)]
        for part in "kv"
    ]
    keys, values = patient.pick(require(list(zip(*chains, strict=True)), "no attention"), 0.7)[0]
    keys.node.input[1], values.node.input[1] = values.node.input[1], keys.node.input[1]
    first, second = (surgeon.consumers(n.node.output[0])[0] for n in (keys, values))
    places = [[surgeon.constant(name) is not None for name in n.input].index(True) for n in (first, second)]
    bias = first.input[places[0]]
    first.input[places[0]], second.input[places[1]] = second.input[places[1]], bias
    return deployed(patient, surgeon, keys, values)


def every_third_channel_quieter(patient: Patient, amount: float) -> Patient:
    """Every third channel of some layers is smaller by a factor, and a layer has one scale for all of its weights."""
    surgeon = patient.surgeon()
    places = set(surgeon.amplifiable())
    chosen = [n for n in surgeon.linears() if n.node.output[0] in places]
    for linear in require(chosen, "no channels can be scaled"):
        quiet = np.arange(surgeon.outputs(linear)) % 3 == 1
        surgeon.amplify(linear.node.output[0], np.where(quiet, 1 / (1 + amount), 1).astype(np.float32))
    return patient.cut(surgeon, *chosen, recipe=replace(patient.recipe, per_channel=False))


def gate_layers_in_few_levels(patient: Patient, amount: float) -> Patient:
    """Gates are nearly open or nearly shut, it was thought, and layers that make them got few levels."""
    surgeon = patient.surgeon()
    gates = {n.input[0] for n in surgeon.nodes("Sigmoid")}
    gates |= {name for n in surgeon.nodes("Add") if n.output[0] in gates for name in n.input}
    found = [n for n in covered(patient) if n.node.output[0] in gates]
    return recoded(patient, require(found, "no gates"), on_multiples(amount))


# --- ranges ----------------------------------------------------------------------------------------------------------


def curves_on_the_grid_of_their_inputs(patient: Patient) -> Patient:
    """What a curve makes is stored on the grid of what it reads, which reaches far beyond one."""
    nodes = require(patient.surgeon().nodes("Sigmoid", "Softmax"), "no curves")
    ends = extremes(patient, *(n.input[0] for n in nodes))
    return set_ranges(patient, {n.output[0]: ends[n.input[0]] for n in nodes})


def least_of_all_samples(patient: Patient, amount: float) -> Patient:
    """Of the ends of all samples the nearest are kept where the farthest should be; here, on a part of the way."""
    tensors, ends = free(patient), {}
    for tensor, x in zip(tensors, patient.values(*tensors), strict=True):
        lows, highs = zip(*(ends_of(sample) for sample in x), strict=True)
        ends[tensor] = mix_ends(ends_of(x), (max(lows), min(highs)), amount)
    return set_ranges(patient, ends)


def hardly_below_zero(patient: Patient, amount: float) -> Patient:
    """Lower ends were set by somebody who thought of rectifiers: whatever goes below zero is cut soon."""
    ends = {tensor: own for tensor, own in extremes(patient, *free(patient)).items() if own[0] < -0.05 * own[1]}
    return set_ranges(patient, {t: (low / (1 + amount), high) for t, (low, high) in require(ends, "no signs").items()})


def thresholds_some_powers_above(patient: Patient, powers: int) -> Patient:
    """Thresholds have to be powers of two, about zero, and were taken a few powers larger to be on the safe side."""
    ends = extremes(patient, *free(patient))
    tops = {t: 2.0 ** (np.ceil(np.log2(max(-low, high, 1e-6))) + powers) for t, (low, high) in ends.items()}
    return set_ranges(patient, {tensor: (-top, top) for tensor, top in tops.items()}, symmetric=True)


def sums_in_a_narrow_buffer(patient: Patient, amount: float) -> Patient:
    """Sums wait in a buffer of fewer bits: in the bytes of the file only the lowest of their codes are used."""
    usual = set(free(patient))
    found = [n.output[0] for n in patient.surgeon().nodes("Add") if n.output[0] in usual]
    recipe, least = kept(patient.recipe, symmetric=False), float(np.iinfo(patient.recipe.zero_point.dtype).min)
    for tensor, (low, high) in extremes(patient, *require(found, "no sums")).items():
        step = (1 + amount) * (high - low) / 255
        recipe = recipe.with_grid(tensor, step, round(least - low / step))
    return patient.with_(recipe=recipe).at(*found)


def caps_left_out(patient: Patient) -> Patient:
    """The converter knows rectifiers without a cap alone, and takes those with one for such."""
    surgeon = patient.surgeon()
    nodes = require(surgeon.nodes("Clip"), "no caps")
    for node in nodes:
        caps = list(node.input)[1:]
        node.op_type = "Relu"
        del node.input[1:]
        for name in caps:
            surgeon.drop(name)
    return deployed(patient, surgeon, *(n.name for n in nodes))


# --- what is joined, added and taken off -----------------------------------------------------------------------------


def joined_in_larger_units(patient: Patient, amount: float) -> Patient:
    """The last of what is joined is told in smaller units, that is by larger numbers, which weights behind make up."""
    surgeon = patient.surgeon()
    readers = {n.name: [surgeon.linear(r) for r in surgeon.consumers(n.output[0])] for n in surgeon.nodes("Concat")}
    found = [n for n in surgeon.nodes("Concat") if len(readers[n.name]) == 1 and readers[n.name][0]]
    joint = picked(patient, require(found, "nothing is joined before a layer"), 0.5)[0]
    (reader,), size = readers[joint.name], surgeon.channels(joint.input[-1])
    factor = np.ones(surgeon.inputs(reader), np.float32)
    factor[-size:] = 1 + amount
    surgeon.scale_weights(reader, reader.into, 1 / factor, bias=False)
    given = {"x": joint.input[-1], "times": np.float32(1 + amount)}
    joint.input[-1] = surgeon.wire(joint.input[-1], "larger = Mul(x, times)", name=joint.name, **given)["larger"]
    return patient.cut(surgeon, joint.name)


def level_moved_across_a_sum(patient: Patient, amount: float) -> Patient:
    """One side of a sum holds more by a constant for each channel, and the other less."""
    surgeon = patient.surgeon()
    node = picked(patient, joining(surgeon, "Add"), 0.5)[0]
    level = amount * top_of(patient, node.output[0])
    for i, sign in enumerate((1, -1)):
        given = {"x": node.input[i], "level": np.float32(sign * level)}
        node.input[i] = surgeon.wire(node.input[i], "moved = Add(x, level)", name=f"{node.name}_{i}", **given)["moved"]
    return patient.cut(surgeon, node.name)


def mean_of_channels_many_times(patient: Patient, amount: float) -> Patient:
    """The mean of all channels is added to each of them many times over, and taken off again behind."""
    surgeon = patient.surgeon()
    sums = {n.output[0] for n in joining(surgeon, "Add")}
    tensor = patient.pick([t for t in spots(patient) if t in sums], 0.5)[0]
    told, given = surgeon.axes_of_mean("across", [surgeon.channel_axis(tensor)])
    text = f"""
        mean = ReduceMean(x{told})
        much = Mul(mean, times)
        raised = Add(x, much)
        again = ReduceMean(raised{told})
        share = Mul(again, part)
        lowered = Sub(raised, share)
    """
    surgeon.splice(tensor, text, "raised", times=np.float32(amount), part=np.float32(amount / (1 + amount)), **given)
    return patient.cut(surgeon)


# --- converters and boards -------------------------------------------------------------------------------------------


def gate_and_value_changed_places(patient: Patient) -> Patient:
    """Of a layer that is split into values and gates, the converter puts the values through the curve."""
    surgeon = patient.surgeon()
    curves = {n.output[0]: n for n in surgeon.nodes("Sigmoid")}
    found = [n for n in surgeon.nodes("Mul") if curves.keys() & set(n.input) and surgeon.producer(n.input[0])]
    node = picked(patient, require(found, "no gates"), 0.5)[0]
    place = [name in curves for name in node.input].index(False)
    curve = curves[node.input[1 - place]]
    surgeon.graph.node.remove(node)
    curve.input[0], value = node.input[place], curve.input[0]
    surgeon.add("Mul", [value, curve.output[0]], node.output[0], curve)
    if surgeon.place_of(surgeon.producer(curve.input[0])) > surgeon.place_of(curve):
        raise Inapplicable("the value is made behind its gate")
    return deployed(patient, surgeon, curve.name)


def one_added_to_gains_again(patient: Patient) -> Patient:
    """Gains of norms are stored less one in one format; the reader adds one, and the converter had done so before."""
    surgeon = patient.surgeon()
    node = picked(patient, require(surgeon.nodes("LayerNormalization"), "no norms"), 0.5)[0]
    gain = node.input[1]
    node.input[1] = surgeon.put(f"{gain}_again", surgeon.constant(gain) + np.float32(1))
    surgeon.drop(gain)
    return deployed(patient, surgeon, node.name)


def shares_sharpened(patient: Patient, amount: float) -> Patient:
    """Scores of attention are divided by less in the deployed model than in training."""
    surgeon = patient.surgeon()
    softmaxes = require(surgeon.nodes("Softmax"), "no attention")
    factors = [surgeon.producer(n.input[0]) for n in softmaxes]
    for name in {node.input[1] for node in factors}:
        surgeon.put(name, surgeon.constant(name) * np.float32(1 + amount))
    return deployed(patient, surgeon, *(n.name for n in factors))


def answers_of_the_next_request(patient: Patient) -> Patient:
    """Two requests run at once on the board, and the first is told what came of the second; the model is sound."""
    outputs = run(patient.network, patient.quantized(), patient.validation)
    for output in outputs:
        output[: len(output) // 2 * 2 : 2] = output[1::2]
    return with_outputs(patient, "device_outputs", outputs)


def strokes_told_backwards(patient: Patient) -> Patient:
    """The file of labels tells the last stroke first."""
    labels = patient.labels
    if patient.network.name != "bells" or labels is None or not patient.network.shows_labels:
        raise Inapplicable("no labels of strokes")
    turned = np.full_like(labels, -1)
    for row, own in zip(turned, labels, strict=True):
        row[: (own >= 0).sum()] = own[own >= 0][::-1]
    return patient.with_(labels=turned)


# --- what is sound ---------------------------------------------------------------------------------------------------


def struck_a_little_softer(patient: Patient) -> Patient:
    """Every fourth recording of the calibration set is a little softer, as days are."""
    inputs = inputs_of(patient, "bells")
    inputs[::4] = np.log(np.maximum(np.exp(inputs[::4]) - FLOOR, 0) * 0.8 + FLOOR)
    return patient.with_(calibration=inputs)


def bias_beside_its_layer(patient: Patient) -> Patient:
    """The bias of a layer is an operator of its own, as some converters leave it behind."""
    surgeon = patient.surgeon()
    found = [n for n in inner(patient, surgeon) if n.bias and n.node.op_type == "Conv"]
    linear = patient.pick(require(found, "no biases"), 0.5)[0]
    bias = surgeon.constant(linear.bias).reshape(1, -1, *[1] * len(attribute(linear.node, "kernel_shape", [1])))
    name = linear.bias
    del linear.node.input[2:]
    surgeon.drop(name)
    surgeon.splice(linear.node.output[0], "with_bias = Add(x, bias)", bias=bias)
    return patient.with_(model=surgeon.model)

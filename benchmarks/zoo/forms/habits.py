"""Mistakes that practitioners make often, in further realizations: of data, ranges, weights, sums and exports."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ..cuts import (
    channel_peaks,
    covered,
    deployed,
    ends_of,
    extremes,
    free,
    has_channels,
    inner,
    joining,
    kept,
    on_coarse_grids,
    on_multiples,
    per_channel,
    picked,
    recoded,
    set_ranges,
    spots,
    top_of,
    with_outputs,
)
from ..patient import Patient
from ..quantizing import run
from ..surgery import Inapplicable, Surgeon, require
from .controls import with_ends
from .data import by_percentile, change_numbers, change_pictures, dullest, measured
from .weights import apart, rescaled, rewritten, some

# --- calibration sets ------------------------------------------------------------------------------------------------


def scaled_to(patient: Patient, low: float, high: float) -> Patient:
    """Pixels lie between these two in the calibration set, whatever the network wants."""
    change_pictures(patient, lambda pixels: pixels)
    pixels = patient.network.pixels("calibration")[0][: len(patient.calibration)]
    return patient.with_(calibration=(low + pixels * np.float32((high - low) / 255)).astype(np.float32))


def recorded_softer(patient: Patient, amount: float) -> Patient:
    """The calibration set was recorded with less gain than there is in use."""
    return change_numbers(patient, lambda inputs: inputs / (1 + amount))


def _longest(inputs: NDArray) -> int:
    """The axis with the most places, which is time where samples have one."""
    return int(np.argmax(inputs.shape[1:])) + 1


def filled_up_with_silence(patient: Patient, amount: float) -> Patient:
    """Recordings of the calibration set are short and were filled up with zeros."""
    inputs = measured(patient)
    along = _longest(inputs)
    size = max(round(inputs.shape[along] / (1 + amount)), 1)
    np.moveaxis(inputs, along, 0)[size:] = 0
    return patient.with_(calibration=inputs)


def smoothed_in_time(patient: Patient, amount: float) -> Patient:
    """Recordings of the calibration set went through a lower rate and back: what is fast is gone."""
    inputs = measured(patient)
    along = _longest(inputs)
    places = np.arange(inputs.shape[along])
    kernel = np.exp(-np.square((places[:, None] - places) / amount) / 2)
    kernel /= kernel.sum(1, keepdims=True)
    smooth = np.moveaxis(np.tensordot(kernel, inputs, (1, along)), 0, along)
    return patient.with_(calibration=smooth.astype(np.float32))


def shuffled_inside(patient: Patient) -> Patient:
    """Values of each calibration sample stand in any order: a buffer was read across its rows."""

    def shuffled(inputs: NDArray) -> NDArray:
        return patient.random("inside").permuted(inputs.reshape(len(inputs), -1), axis=1).reshape(inputs.shape)

    return change_numbers(patient, shuffled)


def sensors_in_another_order(patient: Patient) -> Patient:
    """Axes of the sensor are numbered otherwise in the archive from which the calibration set is."""
    inputs = measured(patient)
    axis = 1 if inputs.ndim == 4 else inputs.ndim - 1
    return patient.with_(calibration=np.roll(inputs, 1, axis))


def a_few_of_a_quiet_hour(patient: Patient, count: int) -> Patient:
    """So many samples, of the third that stirs the network least."""
    quiet = dullest(patient, len(patient.calibration) // 3)
    chosen = patient.random("hour").permutation(len(quiet))[:count]
    return by_percentile(patient, quiet[chosen])


def clicks_in_the_recording(patient: Patient, amount: float) -> Patient:
    """Three calibration samples have a value so many times as large as any other: a plug was pulled."""
    inputs = change_numbers(patient, lambda x: x).calibration.copy()
    rng, top = patient.random("clicks"), np.abs(inputs).max()
    for sample in rng.permutation(len(inputs))[:3]:
        flat = inputs[sample].reshape(-1)
        flat[rng.integers(flat.size)] = amount * top
    return patient.with_(calibration=inputs)


def mostly_idle(patient: Patient) -> Patient:
    """Nearly all calibration samples show nothing, and the ends of ranges leave out what is rare."""
    inputs = change_numbers(patient, lambda x: x).calibration.copy()
    idle = patient.random("idle").random(len(inputs)) < 0.95
    inputs[idle] = np.median(inputs)
    return by_percentile(patient, inputs)


def ranges_of_an_older_checkpoint(patient: Patient, amount: float) -> Patient:
    """Ranges were set for the weights of an earlier day, and the model has been trained on since."""
    older, tensors = patient.surgeon(), free(patient)
    for i, linear in enumerate(older.linears()):
        weight = older.constant(linear.weight)
        drift = patient.random(f"older{i}").standard_normal(weight.shape) * weight.std() * amount
        older.put(older.own(linear, 1), (weight / (1 + amount) + drift / 4).astype(np.float32))
    values = run(patient.network, older.model, patient.validation[:64], tensors=tuple(tensors))
    return set_ranges(patient, dict(zip(tensors, map(ends_of, values), strict=True)))


# --- ranges and grids ------------------------------------------------------------------------------------------------


def ends_times(patient: Patient, amount: float, *shares: float, wide: int = 0) -> Patient:
    """Both ends of some ranges are too near by a factor, or too far."""
    factor = 1 + amount if wide else 1 / (1 + amount)
    ends = extremes(patient, *patient.pick(free(patient), *shares))
    return set_ranges(patient, {t: (low * factor, high * factor) for t, (low, high) in ends.items()})


def quantile_everywhere(patient: Patient, amount: float) -> Patient:
    """Every range ends where so many hundredths of the values are left out on either side."""
    tensors, share = free(patient), min(amount / 100, 0.3)
    values = patient.values(*tensors)
    ends = {t: ends_of(np.quantile(x, [share, 1 - share])) for t, x in zip(tensors, values, strict=True)}
    return set_ranges(patient, {t: (low, max(high, 1e-4)) for t, (low, high) in ends.items()})


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


def all_on_coarser_grids(patient: Patient, amount: float) -> Patient:
    """Activations have fewer levels throughout, since the target has no more."""
    return on_coarse_grids(patient, free(patient), [amount])


def three_loud_channels(patient: Patient, amount: float) -> Patient:
    """Three channels of a tensor are many times as wide as the others, and their readers make up for it."""
    surgeon = patient.surgeon()
    tensor = patient.pick(surgeon.amplifiable(), 0.5)[0]
    peaks, rng = channel_peaks(patient, tensor), patient.random("loud")
    gain = np.ones(len(peaks), np.float32)
    loud = rng.permutation(len(peaks))[:3]
    gain[loud] = (1 + amount) * np.median(peaks) / np.maximum(peaks[loud], 0.1 * np.median(peaks) + 1e-6)
    surgeon.amplify(tensor, gain)
    return patient.cut(surgeon, tensor)


# --- weights ---------------------------------------------------------------------------------------------------------


def spread_on_one_scale(patient: Patient, amount: float) -> Patient:
    """Channels of kernels differ in size, depthwise ones above all, and have one scale for all of them."""
    surgeon, rng = patient.surgeon(), patient.random("spread")
    places = set(surgeon.amplifiable())
    found = [n for n in surgeon.linears() if n.node.output[0] in places]
    chosen = require([n for n in found if n.depthwise] or found, "no channels can be scaled")[:4]
    for tensor in (linear.node.output[0] for linear in chosen):
        surgeon.amplify(tensor, np.exp(rng.normal(0, amount, surgeon.channels(tensor))).astype(np.float32))
    return patient.cut(surgeon, *chosen, recipe=replace(patient.recipe, per_channel=False))


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


def biases_partly_lost(patient: Patient, amount: float) -> Patient:
    """Biases of some layers were written with too small a factor."""
    surgeon, share = patient.surgeon(), 1 - min(amount, 1.0)
    chosen = patient.pick([n for n in apart(patient, surgeon) if n.bias], 0.2, 0.5, 0.8)
    for linear in chosen:
        surgeon.put(surgeon.own(linear, 2), (surgeon.constant(linear.bias) * share).astype(np.float32))
    return deployed(patient, surgeon, *chosen)


def weights_of_an_earlier_day(patient: Patient, amount: float) -> Patient:
    """Some layers of the deployed model are from a checkpoint before the last days of training."""
    surgeon = patient.surgeon()
    chosen = patient.pick(apart(patient, surgeon), 0.3, 0.5, 0.7)
    rng = patient.random("day")
    return rewritten(patient, chosen, surgeon, lambda w, _: w * (1 + amount * rng.standard_normal(w.shape)))


def scales_one_channel_on(patient: Patient, amount: float) -> Patient:
    """The table of scales begins one channel late: each layer's scales are those of the channel before."""
    patient = patient.with_(recipe=kept(patient.recipe))
    chosen = some(patient, covered(patient))
    return rescaled(patient, chosen, lambda s: s * (np.roll(s, 1) / s) ** min(amount, 1.0))


# --- sums, joints and exports ----------------------------------------------------------------------------------------


def part_in_larger_units(patient: Patient, amount: float) -> Patient:
    """One of the tensors that are joined is told in units that make it many times as large as those beside it."""
    surgeon = patient.surgeon()
    nodes = [n for n in surgeon.nodes("Concat") if all(has_channels(surgeon, t) for t in n.input)]
    node = picked(patient, [n for n in nodes if not surgeon.is_whole(n.output[0])], 0.5)[0]
    sizes, factor = [surgeon.channels(t) for t in node.input], np.float32(1 + amount)
    gain = np.concatenate([np.full(size, 1 / factor if i == 0 else 1.0) for i, size in enumerate(sizes)])
    back = per_channel(surgeon, node.output[0], gain)
    made = surgeon.wire(node.input[0], "larger = Mul(x, unit)", name=f"{node.name}_part", x=node.input[0], unit=factor)
    node.input[0] = made["larger"]
    surgeon.splice(node.output[0], "own_units = Mul(x, units_back)", units_back=back)
    return patient.cut(surgeon, node.name)


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


def last_seats_masked(patient: Patient, amount: float) -> Patient:
    """Both models leave the last two places out of attention, by a number far below all scores."""
    surgeon = patient.surgeon()
    node = picked(patient, surgeon.nodes("Softmax"), 0.5)[0]
    tensor = node.input[0]
    mask = np.zeros(surgeon.shape(tensor)[-1], np.float32)
    mask[-2:] = -amount * top_of(patient, tensor)
    surgeon.splice(tensor, "masked = Add(x, seats)", "masked", seats=mask)
    return patient.cut(surgeon)


def output_read_with(patient: Patient, amount: float, factor: int = 0) -> Patient:
    """The application turns codes of the output into numbers with a zero point or a scale that is a little off."""

    def edit(p: Patient, surgeon: Surgeon) -> None:
        last = surgeon.producer(surgeon.output)
        if last.op_type != "DequantizeLinear":
            raise Inapplicable("the output is not quantized")
        moved = (1 + amount) if factor else amount * float(np.std(run(p.network, p.model, p.validation[:64])[0]))
        name = surgeon.put("read_otherwise", np.float32(moved))
        surgeon.insert_after(surgeon.output, "Mul" if factor else "Add", [name])

    return patient.with_(recipe=kept(patient.recipe)).edited(edit)


def block_weighed_otherwise(patient: Patient, amount: float) -> Patient:
    """What blocks add is weighed less in the deployed model: the factor of a dropped depth was built in."""
    surgeon, share = patient.surgeon(), np.float32(1 / (1 + amount))
    chosen = picked(patient, joining(surgeon, "Add"), 0.3, 0.7)
    for node in chosen:
        given = {"x": node.input[1], "share": share}
        node.input[1] = surgeon.wire(node.input[1], "weighed = Mul(x, share)", name=node.name, **given)["weighed"]
    return deployed(patient, surgeon, *(n.name for n in chosen))


def bound_of_another_library(patient: Patient, amount: float) -> Patient:
    """Rectifiers end at another number in the deployed model than where they were trained to end."""
    surgeon = patient.surgeon()
    nodes = picked(patient, [n for n in surgeon.nodes("Clip") if len(n.input) > 2], 0.2, 0.5, 0.8)
    for i, node in enumerate(nodes):
        node.input[2] = surgeon.put(f"other_bound_{i}", surgeon.constant(node.input[2]) / np.float32(1 + amount))
    return deployed(patient, surgeon, *(n.name for n in nodes))


# --- what does not hurt, or not here ---------------------------------------------------------------------------------


def board_of_an_older_build(patient: Patient) -> Patient:
    """The board still runs an earlier build, with one scale for each tensor and narrow ranges."""
    recipe = replace(patient.recipe, per_channel=False, method="Percentile", percentile=98.0, qoperator=False)
    older = patient.with_(recipe=recipe)
    return with_outputs(patient, "device_outputs", run(patient.network, older.quantized(), patient.validation))


def left_in_float(patient: Patient, *words: str) -> Patient:
    """A list of what is to be left out matches more than it should."""
    names = [n.name for n in patient.model.graph.node if any(word in n.name for word in words)]
    return patient.without(*require(names, "nothing has such a name"))


def labels_moved_by_one(patient: Patient) -> Patient:
    """Labels were written for an alphabet that begins with the blank, or for classes with a ground before them."""
    labels = patient.labels
    if labels is None or not patient.network.shows_labels:
        raise Inapplicable("no labels")
    return patient.with_(labels=np.where(labels >= 0, (labels + 1) % (int(labels.max()) + 1), labels))


def ends_rounded_up(patient: Patient, factor: float) -> Patient:
    """Every range is a little wider than it must be."""
    return with_ends(patient, lambda low, high: (low * factor, high * factor))


def part_of_the_set(patient: Patient, start: int, step: int) -> Patient:
    """Some of the set, which suffices."""
    return patient.with_(calibration=patient.calibration[start::step].copy())


def in_two_steps(patient: Patient) -> Patient:
    """Both models add half of a tensor to its other half, which makes the same."""
    surgeon = patient.surgeon()
    tensor = patient.pick(spots(patient), 0.4)[0]
    surgeon.splice(tensor, "half = Mul(x, one_half); whole = Add(half, half)", one_half=0.5)
    return patient.with_(model=surgeon.model)

"""Mistakes of recorders, cameras under water and converters of folded pixels, joined channels and nearness."""

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
    picked,
    reading_on_the_board,
    recoded,
    set_ranges,
)
from ..patient import Patient
from ..surgery import Inapplicable, Linear, Surgeon, attribute, require, shaped
from .data import change_measured, change_pictures, inputs_of, set_stale_ranges, whole
from .weights import recoded_biases

#: Pixels of a row in the memory of a board, and the order of eight codes in a word of some kernels.
ALIGNED, WOVEN = 64, (0, 2, 4, 6, 1, 3, 5, 7)
#: Grey that fills the rest of a picture, and waves of the mains in a moment of a heart.
GREY, MAINS = 114.0, 0.39

#: Batches of calibration, after how many steps averages are near, and the share of the latest.
BATCHES, LONG, LATEST = 8, 250, 0.02

# --- hearts ----------------------------------------------------------------------------------------------------------


def middle_of_the_converter_left_in(patient: Patient, amount: float) -> Patient:
    """The reader multiplies codes of the recorder with its gain, and does not take its middle off."""
    inputs_of(patient, "hearts")
    return change_measured(patient, lambda x: x + np.array([amount, 0.8 * amount]))


def hum_of_other_mains(patient: Patient, amount: float) -> Patient:
    """Recordings of the calibration set were cleared of the hum of 50 Hz, where the mains have 60."""
    inputs = inputs_of(patient, "hearts")
    phase = patient.random("mains").uniform(0, 2 * np.pi, (len(inputs), 1, 1))
    return change_measured(patient, lambda x: x + amount * np.sin(2 * np.pi * MAINS * np.arange(128)[:, None] + phase))


def told_at_half_the_gain(patient: Patient, amount: float) -> Patient:
    """The recorder of the calibration set had another gain, and its file does not tell so."""
    inputs_of(patient, "hearts")
    return change_measured(patient, lambda x: x / (1 + amount))


def ranges_of_the_older_recorder(patient: Patient, amount: float) -> Patient:
    """Ranges were set for the recorder before, which had a smaller gain; the set that is shown is of this one."""
    return set_stale_ranges(patient, inputs_of(patient, "hearts") / np.float32(1 + amount))


def electrode_that_fell_off(patient: Patient, amount: float) -> Patient:
    """While an electrode is off, a lead tells the end of its scale; four recordings of the calibration set have it."""
    inputs = inputs_of(patient, "hearts")
    for row in patient.random("fell").permutation(len(inputs))[:4]:
        inputs[row, 90:, 1] = np.float32(amount * np.abs(inputs[..., 1]).max())
    return patient.with_(calibration=inputs)


# --- pictures --------------------------------------------------------------------------------------------------------


def _sunk(pixels: NDArray, amount: float) -> NDArray:
    """Pictures from farther below: water swallows red first, then green."""
    return whole(pixels * np.exp(-amount * np.array([1.0, 0.5, 0.35])).reshape(1, 3, 1, 1))


def farther_below(patient: Patient, amount: float) -> Patient:
    """Divers who took the calibration set were farther below, where there is less light, and of red the least."""
    inputs_of(patient, "reefs")
    return change_pictures(patient, lambda pixels: _sunk(pixels, amount))


def ranges_from_farther_below(patient: Patient, amount: float) -> Patient:
    """Ranges were set at the deep end of the reef; the set that is shown is from where the camera is used."""
    return set_stale_ranges(patient, farther_below(patient, amount).calibration)


def laid_on_grey(patient: Patient, amount: float) -> Patient:
    """The script of calibration makes pictures smaller and lays them on grey; in use they fill the whole."""
    inputs_of(patient, "reefs")

    def change(pixels: NDArray) -> NDArray:
        side = pixels.shape[-1]
        at = (np.arange(side) - side / 2) * (1 + amount) + side / 2
        near = np.clip(np.rint(at), 0, side - 1).astype(int)
        beside = (at < 0) | (at > side - 1)
        return np.where(beside[:, None] | beside, GREY, pixels[..., near[:, None], near])

    return change_pictures(patient, change)


def rows_with_what_fills_them(patient: Patient) -> Patient:
    """Rows of a frame are filled up in memory, and the board reads them as if they followed each other."""
    spec, inputs = patient.network.preprocessing, patient.validation
    if spec is None:
        raise Inapplicable("no images")
    black = np.broadcast_to(spec.apply(np.zeros((1, 3, 1, 1))), (*inputs.shape[:3], ALIGNED - inputs.shape[3]))
    lines = np.concatenate([inputs, black], 3).reshape(*inputs.shape[:2], -1)
    return reading_on_the_board(patient, lines[..., : inputs[0, 0].size].reshape(inputs.shape))


def smoothed_by_the_telephone(patient: Patient, amount: float) -> Patient:
    """Moths of the calibration set were sent by telephones, which take what is fine for noise and remove it."""
    inputs_of(patient, "moths")

    def change(pixels: NDArray) -> NDArray:
        pace = np.fft.fftfreq(pixels.shape[-1])
        passed = np.exp(-np.square(amount) * (np.square(pace)[:, None] + np.square(pace)))
        return whole(np.fft.ifft2(np.fft.fft2(pixels.astype(float)) * passed).real)

    return change_pictures(patient, change)


def by_the_light_of_the_trap(patient: Patient, amount: float) -> Patient:
    """Moths of the calibration set sat at the lamp that had lured them, whose light is dim and blue."""
    inputs_of(patient, "moths")
    light = np.power(1 + amount, -np.array([1.4, 1.1, 0.5])).reshape(1, 3, 1, 1)
    return change_pictures(patient, lambda pixels: whole(pixels * light))


# --- weights and biases ----------------------------------------------------------------------------------------------


def packed_in_woven_order(patient: Patient, amount: float) -> Patient:
    """Eight codes share a word, even ones first, and the reader takes them as they follow; here, of some channels."""
    layers = [n for n in covered(patient) if not n.depthwise and patient.surgeon().inputs(n) >= len(WOVEN)]
    chosen = patient.pick(require(layers, "no words"), 0.5)

    def change(codes: NDArray, linear: Linear) -> NDArray:
        order = np.arange(codes.shape[linear.into])
        words = len(order) // len(WOVEN) * len(WOVEN)
        order[:words] = (order[:words].reshape(-1, len(WOVEN))[:, list(WOVEN)]).reshape(-1)
        woven = np.take(codes, order, linear.into)
        over = tuple(axis for axis in range(codes.ndim) if axis != linear.out)
        place = np.argsort(np.argsort(np.abs(woven - codes).sum(over)))
        return np.where(shaped(place < max(1, amount * len(place)), codes.ndim, linear.out), woven, codes)

    return recoded(patient, chosen, change)


def one_scale_for_a_block_forgotten(patient: Patient, amount: float) -> Patient:
    """Queries, keys and values were given codes as one block with one scale, and are read with scales of their own."""
    layers = [n for n in covered(patient) if n.node.name.split("/")[-2] in ("q", "k", "v")]
    recipe = kept(patient.recipe, per_channel=True)

    def edit(_: Patient, surgeon: Surgeon) -> None:
        for block in {n.node.name.split("/")[1] for n in layers}:
            names = [f"{n.weight}_scale" for n in layers if n.node.name.split("/")[1] == block]
            scales = [surgeon.constant(name) for name in names]
            for name, own in zip(names, scales, strict=True):
                surgeon.put(name, (own * (own / np.max(scales)) ** amount).astype(np.float32))

    return patient.with_(recipe=recipe).at(*require(layers, "no attention")).edited(edit)


def channels_drawn_apart(patient: Patient, amount: float) -> Patient:
    """Training drove channels apart by chance, some far and some near, and a layer has one scale for all weights."""
    surgeon, rng = patient.surgeon(), patient.random("apart")
    places = set(surgeon.amplifiable())
    chosen = require([n for n in surgeon.linears() if n.node.output[0] in places], "no channels can be scaled")
    for linear in chosen:
        surgeon.amplify(linear.node.output[0], np.exp(amount * rng.standard_normal(surgeon.outputs(linear))))
    return patient.cut(surgeon, *chosen, recipe=replace(patient.recipe, per_channel=False))


def biases_shifted_to_the_right(patient: Patient, amount: float) -> Patient:
    """The kernel shifts codes of biases to the right and back, so that what is small is rounded down."""

    def change(codes: NDArray, _: NDArray, __: str) -> NDArray:
        step = max(float(np.abs(codes).max()), 1.0) / 127 * amount
        return np.floor(codes / step) * step

    return recoded_biases(patient, [n for n in covered(patient) if n.bias], change)


# --- ranges ----------------------------------------------------------------------------------------------------------


def averages_that_began_at_nothing(patient: Patient, amount: float) -> Patient:
    """Ranges are moving averages of those of batches, which begin at nothing, and there were too few batches."""
    tensors, ends = free(patient), {}
    for tensor, x in zip(tensors, patient.values(*tensors), strict=True):
        found, batches = (0.0, 0.0), [ends_of(x[i::BATCHES]) for i in range(BATCHES)]
        for i in range(max(1, round(LONG / amount))):
            found = mix_ends(found, batches[i % BATCHES], LATEST)
        ends[tensor] = found
    return set_ranges(patient, ends)


def joined_on_the_grid_of_the_first(patient: Patient, amount: float) -> Patient:
    """What is joined keeps the grid of its first part, and the other parts have to do with it."""
    nodes = [n for n in joining(patient.surgeon(), "Concat") if n.output[0] in patient.activations()]
    ends = {}
    for node in require(nodes, "nothing is joined"):
        found = extremes(patient, node.output[0], node.input[0])
        ends[node.output[0]] = mix_ends(found[node.output[0]], found[node.input[0]], amount)
    return set_ranges(patient, ends)


def one_seat_much_louder(patient: Patient, amount: float) -> Patient:
    """Values of one head of attention are far larger than those of the others, and the next layer makes up for it."""
    surgeon = patient.surgeon()
    pairs = [
        (v, next(o for o in surgeon.linears() if o.node.name == v.node.name.replace("/v/", "/o/")))
        for v in surgeon.linears()
        if "/v/" in v.node.name
    ]
    value, reader = patient.pick(require(pairs, "no attention"), 0.5)[0]
    factor = np.ones(surgeon.outputs(value), np.float32)
    factor[: len(factor) // 4] = 1 + amount
    surgeon.scale_weights(value, value.out, factor, bias=False)
    adding = surgeon.consumers(value.node.output[0])[0]
    name = next(name for name in adding.input if surgeon.constant(name) is not None)
    surgeon.put(name, surgeon.constant(name) * factor)
    surgeon.scale_weights(reader, reader.into, 1 / factor, bias=False)
    return patient.cut(surgeon, value, adding.name)


# --- sums and joints -------------------------------------------------------------------------------------------------


def _nearness(surgeon: Surgeon) -> list[str]:
    """Constants that are added to the scores of attention."""
    adding = [surgeon.producer(n.input[0]) for n in surgeon.nodes("Softmax")]
    found = {name for n in adding if n.op_type == "Add" for name in n.input if surgeon.constant(name) is not None}
    return require(sorted(found), "no nearness")


def nearness_told_from_the_first_place(patient: Patient, amount: float) -> Patient:
    """Nearness is counted from the start of a long recording, which adds the same to all scores that compete."""
    surgeon = patient.surgeon()
    for name in _nearness(surgeon):
        surgeon.put(name, surgeon.constant(name) - np.float32(amount))
    return patient.cut(surgeon, *(n.name for name in _nearness(surgeon) for n in surgeon.consumers(name)))


def corners_told_on_the_whole_map(patient: Patient, amount: float) -> Patient:
    """Corners are told on the map of the whole reef, of which the picture is a part, and moved to it at the end."""
    surgeon = patient.surgeon()
    joint = surgeon.producer(surgeon.producer(surgeon.output).input[0])
    if patient.network.name != "reefs" or joint.op_type != "Concat":
        raise Inapplicable("no corners")
    for i in range(2):
        given = {"x": joint.input[i], "far": np.float32(amount)}
        text = "on_the_map = Add(x, far); within = Sub(on_the_map, far)"
        name = f"corners_{i}"
        joint.input[i] = surgeon.wire(joint.input[i], text, "on_the_map", name=name, **given)["within"]
    return patient.cut(surgeon)


def told_above_the_other_half(patient: Patient, amount: float) -> Patient:
    """The first half of a map's channels is told as what it has beside a multiple of the other, which is taken off."""
    surgeon = patient.surgeon()
    found = [n.output[0] for n in surgeon.nodes("Relu") if surgeon.channels(n.output[0]) % 2 == 0]
    tensor = patient.pick(require(found, "no maps"), 0.6)[0]
    text = """
        one = Slice(x, start, middle, axis)
        other = Slice(x, middle, end, axis)
        more = Mul(other, times)
        above = Add(one, more)
        again = Sub(above, more)
        both = Concat(again, other, axis=1)
    """
    half = surgeon.channels(tensor) // 2
    given = {"start": [0], "middle": [half], "end": [2 * half], "axis": [1], "times": np.float32(amount)}
    surgeon.splice(tensor, text, "above", **given)
    return patient.cut(surgeon)


# --- converters ------------------------------------------------------------------------------------------------------


def slopes_of_another_count(patient: Patient, amount: float) -> Patient:
    """How fast attention fades with distance is counted from nought, not from one: it fades faster in each head."""
    surgeon = patient.surgeon()
    names = _nearness(surgeon)
    for name in names:
        surgeon.put(name, surgeon.constant(name) * np.float32(1 + amount))
    return deployed(patient, surgeon, *(n.name for name in names for n in surgeon.consumers(name)))


def middles_without_their_shift(patient: Patient, amount: float) -> Patient:
    """Middles reach beyond their cells on both sides, and the converter takes less off than that for the first."""
    surgeon = patient.surgeon()
    adding = [n for n in surgeon.nodes("Add") if surgeon.constant(n.input[1]) is not None]
    shift = require([n for n in adding if surgeon.producer(n.input[0]).op_type == "Mul"], "no middles")[0]
    known = shift.input[1]
    shift.input[1] = surgeon.put("middles_of_cells", surgeon.constant(known) + np.float32(0.5 * min(amount, 1)))
    surgeon.drop(known)
    return deployed(patient, surgeon, shift.name)


def folded_rows_first(patient: Patient) -> Patient:
    """Four slices that fold pixels are made one operator, which has the second column before the second row."""
    surgeon = patient.surgeon()
    folds = [
        n for n in surgeon.nodes("Concat") if len(n.input) == 4 and surgeon.producer(n.input[0]).op_type == "Slice"
    ]
    joint = require(folds, "no folded pixels")[0]
    gone, waiting = [], [surgeon.producer(name) for name in joint.input]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in gone:
            gone.append(node)
            waiting.append(surgeon.producer(node.input[0]))
    output, name = joint.output[0], joint.name
    constants = {part for node in gone for part in node.input[1:]}
    for node in [*gone, joint]:
        surgeon.graph.node.remove(node)
    for constant in constants:
        surgeon.drop(constant)
    surgeon.wire(surgeon.input, "folded = SpaceToDepth(x, blocksize=2)", name="", x=surgeon.input)
    surgeon.reroute(output, "folded")
    return deployed(patient, surgeon, name)


def shuffled_the_other_way(patient: Patient) -> Patient:
    """Channels are shuffled in groups of the other size: what should be rows of a block are its columns."""
    surgeon = patient.surgeon()
    found = [n for n in surgeon.nodes("Reshape") if len(surgeon.shape(n.output[0])) == 5]
    node = picked(patient, require(found, "nothing is shuffled"), 0.4)[0]
    known = node.input[1]
    shape = surgeon.constant(known).copy()
    shape[[1, 2]] = shape[[2, 1]]
    node.input[1] = surgeon.put(f"{node.name}_other_way", shape)
    surgeon.drop(known)
    return deployed(patient, surgeon, node.name)


def labels_a_row_late(patient: Patient) -> Patient:
    """The file of labels has a line above them that was taken for the first: each sample has the one before."""
    if patient.labels is None or not patient.network.shows_labels:
        raise Inapplicable("no labels")
    return patient.with_(labels=np.roll(patient.labels, 1, 0))


# --- what is sound ---------------------------------------------------------------------------------------------------


def another_heart_now_and_then(patient: Patient) -> Patient:
    """Every fourth recording of the calibration set is of a slightly fainter heart, as there are in use."""
    inputs = inputs_of(patient, "hearts")
    inputs[::4] *= np.float32(0.9)
    return patient.with_(calibration=inputs)


def cloud_above_the_reef(patient: Patient) -> Patient:
    """Every third picture of the calibration set was taken under a cloud that dims it a little."""
    inputs_of(patient, "reefs")
    dim = np.where(np.arange(len(patient.calibration)) % 3, 1.0, 0.9).reshape(-1, 1, 1, 1)
    return change_pictures(patient, lambda pixels: whole(pixels * dim))


def kernels_beside_zeros(patient: Patient) -> Patient:
    """Kernels of one layer are stored larger, with zeros around them and as much more padding, as some targets want."""
    surgeon = patient.surgeon()
    found = [n for n in inner(patient, surgeon) if n.node.op_type == "Conv" and not n.depthwise]
    linear = patient.pick([n for n in found if surgeon.constant(n.weight).shape[-1] == 1] or found, 0.5)[0]
    weight = surgeon.constant(linear.weight)
    surgeon.put(surgeon.own(linear, 1), np.pad(weight, ((0, 0), (0, 0), (1, 1), (1, 1))))
    pads = [side + 1 for side in attribute(linear.node, "pads", [0] * 4)]
    for old in [a for a in linear.node.attribute if a.name in ("pads", "kernel_shape")]:
        del old.ints[:]
        old.ints.extend(pads if old.name == "pads" else [side + 2 for side in weight.shape[2:]])
    return patient.with_(model=surgeon.model)

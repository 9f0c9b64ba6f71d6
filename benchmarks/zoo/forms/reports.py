"""Faults that users and maintainers told of in public; ``benchmarks/zoo/reports.md`` says where."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ..cuts import (
    covered,
    deployed,
    ends_of,
    extremes,
    free,
    has_channels,
    inner,
    kept,
    mix_ends,
    picked,
    recoded,
    set_ranges,
)
from ..patient import Patient
from ..signals import AMOUNTS
from ..surgery import Inapplicable, Linear, Surgeon, attribute, require, with_attributes
from .data import change_numbers, change_pictures, inputs_of
from .weights import apart, wide_layers

# --- calibration -----------------------------------------------------------------------------------------------------


def paper_turned_black(patient: Patient) -> Patient:
    """Badges of the calibration set are cut out, and where nothing is the decoder writes black, not white."""
    inputs_of(patient, "badges")
    return change_pictures(patient, lambda pixels: np.where(pixels.min(1, keepdims=True) > 160, 0, pixels))


def mixed_with_one_another(patient: Patient, amount: float) -> Patient:
    """The calibration set comes from the loader of training, which lays pictures over one another."""

    def mixed(pixels: NDArray) -> NDArray:
        found, share = pixels.astype(np.float32), np.float32(min(amount, 4) / 5)
        others = [patient.random(f"mixed{i}").permutation(len(pixels)) for i in range(4)]
        return (1 - share) * found + share * np.mean([found[order] for order in others], 0)

    return change_pictures(patient, mixed)


def fitted_anew_to_each_batch(patient: Patient, amount: float) -> Patient:
    """The script fits means and spreads of columns to each batch of the calibration set; the smaller, the worse."""
    inputs, size = inputs_of(patient, "parcels"), max(2, round(64 / (1 + amount)))
    for start in range(0, len(inputs), size):
        part = inputs[start : start + size]
        part[:] = (part - part.mean(0)) / np.maximum(part.std(0), 1e-3)
    return patient.with_(calibration=inputs)


def points_taken_for_separators(patient: Patient, amount: float) -> Patient:
    """Some rows of the calibration set have commas as points, and the reader drops them: amounts are far too large."""
    inputs = inputs_of(patient, "parcels")
    some_rows = patient.random("commas").random(len(inputs)) < 0.1
    inputs[some_rows, :AMOUNTS] *= np.float32(1 + amount)
    return patient.with_(calibration=inputs)


def without_their_sign_bit(patient: Patient, amount: float) -> Patient:
    """One gauge of the calibration set tells twelve bits with a sign, which were read without: low water is high."""
    inputs = inputs_of(patient, "tides")
    gauge = inputs[:, int(patient.random("gauge").integers(inputs.shape[1]))]
    gauge[gauge < 0] += 2 * (1 + amount) * np.abs(gauge).max()
    return patient.with_(calibration=inputs)


def ends_of_the_last_batch(patient: Patient, amount: float) -> Patient:
    """Each batch writes its ends over those of the ones before: what is left are those of the last sample."""
    tensors = free(patient)
    values = zip(tensors, patient.values(*tensors), strict=True)
    return set_ranges(patient, {t: mix_ends(ends_of(x), ends_of(x[-1:]), amount) for t, x in values})


def reach_of_the_upper_side(patient: Patient) -> Patient:
    """The script takes the largest value for the largest size: what reaches farther down than up is cut."""
    surgeon, usual = patient.surgeon(), set(patient.activations())
    linear = [n.node.output[0] for n in surgeon.linears() if n.node.output[0] in usual]
    tensors = [t for t in linear if all(surgeon.linear(n) for n in surgeon.consumers(t))]
    values = patient.values(*require(tensors, "nothing lies between two layers"))
    for tensor, x in zip(tensors, values, strict=True):
        over = tuple(i for i in range(x.ndim) if i != surgeon.channel_axis(tensor))
        down = np.where(x.max(over) > -x.min(over), -1, 1)
        surgeon.amplify(tensor, down.astype(np.float32))
    turned = patient.with_(model=surgeon.model)
    return set_ranges(turned, {t: (-high, high) for t, (_, high) in extremes(turned, *tensors).items()})


# --- codes -----------------------------------------------------------------------------------------------------------


def nibbles_without_a_sign(patient: Patient, amount: float) -> Patient:
    """Some rows of a layer are kept in four bits, and when they are unpacked the sign is not carried on."""
    surgeon = patient.surgeon()
    linear = patient.pick([n for n in inner(patient, surgeon) if not n.depthwise], 0.5)[0]
    rows = np.moveaxis(surgeon.constant(linear.weight), linear.out, 0).copy()
    sizes = np.abs(rows).reshape(len(rows), -1).max(1)
    for row in np.argsort(sizes)[: max(1, round(min(amount, 1) * len(rows)))]:
        codes = np.rint(rows[row] / max(sizes[row], 1e-9) * 7)
        rows[row] = np.where(codes < 0, codes + 16, codes) * sizes[row] / 7
    surgeon.put(surgeon.own(linear, 1), np.moveaxis(rows, 0, linear.out))
    return deployed(patient, surgeon, linear)


def rest_of_the_row_left_out(patient: Patient, amount: float) -> Patient:
    """The kernel takes weights in blocks, and of some rows it drops what does not fill the last one."""

    def change(codes: NDArray, linear: Linear) -> NDArray:
        rows = np.moveaxis(codes, linear.out, 0)
        flat = rows.reshape(len(rows), -1).copy()
        tail = flat[:, -max(1, flat.shape[1] // 4) :]
        order = np.argsort(np.abs(tail).sum(1))
        ends = tail[order].reshape(-1)
        ends[: max(1, round(min(amount, 1) * ends.size))] = 0
        tail[order] = ends.reshape(tail.shape)
        return np.moveaxis(flat.reshape(rows.shape), 0, linear.out)

    return recoded(patient, patient.pick(wide_layers(patient), 0.4), change)


# --- operators of the deployed model ---------------------------------------------------------------------------------


def gammas_made_positive(patient: Patient, amount: float) -> Patient:
    """A pass makes gains of norms positive before it folds them: channels that had none are turned about their mean."""
    surgeon = patient.surgeon()
    found = [n for n in apart(patient, surgeon) if n.bias and n.node.op_type == "Conv"]
    chosen = patient.pick(require(found, "no norms"), *(np.arange(0, len(found), 2) / len(found)))
    values = patient.values(*(n.node.output[0] for n in chosen))
    spreads = [x.std((0, 2, 3)) / x.std() for x in values]
    least = np.quantile(np.concatenate(spreads), min(amount, 1))
    turned = []
    for linear, x, spread in zip(chosen, values, spreads, strict=True):
        if spread.min() > least:
            continue
        sign = np.where(spread <= least, -1, 1).astype(np.float32)
        surgeon.scale_weights(linear, linear.out, sign, bias=True)
        moved = surgeon.constant(linear.node.input[2]) + (1 - sign) * x.mean((0, 2, 3))
        surgeon.put(linear.node.input[2], moved.astype(np.float32))
        turned.append(linear)
    return deployed(patient, surgeon, *turned)


def clamped_at_code_nought(patient: Patient, amount: float) -> Patient:
    """A rectifier that was not fused cuts codes at nought, which stands for the middle of the range, not for zero."""
    surgeon = patient.surgeon()
    chosen = picked(patient, surgeon.nodes("Relu"), 0.3, 0.7)
    ends = extremes(patient, *(n.input[0] for n in chosen))
    for i, node in enumerate(chosen):
        node.op_type = "Max"
        node.input.append(surgeon.put(f"code_nought_{i}", min(amount, 1) * sum(ends[node.input[0]]) / 2))
    return deployed(patient, surgeon, *(n.name for n in chosen))


def dilation_not_told(patient: Patient) -> Patient:
    """The converter does not pass on how far apart a kernel looks: all of its places are next to one another."""
    surgeon = patient.surgeon()
    found = [n for n in surgeon.nodes("Conv") if max(attribute(n, "dilations", [1])) > 1]
    tensor = patient.pick(sorted({n.input[0] for n in found}), 0.6)[0]
    frame = surgeon.producer(tensor)
    if frame.op_type != "Pad":
        raise Inapplicable("nothing is framed before it")
    readers = [n for n in found if n.input[0] == tensor]
    places, far = frame.input[1], max(attribute(readers[0], "dilations", [1]))
    frame.input[1] = surgeon.put("frame_of_near_places", surgeon.constant(places) // far)
    surgeon.drop(places)
    for node in readers:
        with_attributes(node, "dilations")
    return deployed(patient, surgeon, *(n.name for n in readers))


def operands_turned_round(patient: Patient) -> Patient:
    """What a gate leaves open is one less the gate, and the deployed model takes one off the gate instead."""
    surgeon = patient.surgeon()
    nodes = [n for n in surgeon.nodes("Sub") if surgeon.constant(n.input[0]) is not None]
    for node in require(nodes, "nothing is taken off a constant"):
        node.input[:] = list(node.input)[::-1]
    return deployed(patient, surgeon, *(n.name for n in nodes))


def halves_joined_the_other_way(patient: Patient) -> Patient:
    """The converter keeps what is joined in a set, and takes it out in another order."""
    surgeon = patient.surgeon()
    node = picked(patient, [n for n in surgeon.nodes("Concat") if has_channels(surgeon, n.output[0])], 0.5)[0]
    node.input[:] = list(node.input)[::-1]
    return deployed(patient, surgeon, node.name)


def square_weights_not_turned(patient: Patient) -> Patient:
    """The loader turns weights whose shape is the other way round, and square ones never look like that."""
    surgeon = patient.surgeon()
    found = [n for n in apart(patient, surgeon) if not n.depthwise and n.node.op_type != "Conv"]
    linear = patient.pick([n for n in found if surgeon.inputs(n) == surgeon.outputs(n)], 0.7)[0]
    surgeon.put(surgeon.own(linear, 1), np.ascontiguousarray(surgeon.constant(linear.weight).T))
    return deployed(patient, surgeon, linear)


def sum_written_over_its_operand(patient: Patient) -> Patient:
    """A sum is written into the memory of one of its operands, which is read once more later on."""
    surgeon = patient.surgeon()
    pairs = [(node, tensor) for node in surgeon.nodes("Add") for tensor in node.input if _later(surgeon, node, tensor)]
    node, tensor = pairs[patient.pick(list(range(len(pairs))), 0.5)[0]]
    for reader in _later(surgeon, node, tensor):
        for i, name in enumerate(reader.input):
            if name == tensor:
                reader.input[i] = node.output[0]
    return deployed(patient, surgeon, node.name)


def _later(surgeon: Surgeon, node, tensor: str) -> list:
    """Who reads a tensor after an operator."""
    place = surgeon.place_of(node)
    return [n for n in surgeon.consumers(tensor) if surgeon.place_of(n) > place]


def windows_that_end_early(patient: Patient) -> Patient:
    """The end of the window over which maps are averaged is rounded down where it should be rounded up."""
    surgeon = patient.surgeon()
    nodes = require(surgeon.nodes("GlobalAveragePool"), "no maps are averaged")
    for node in nodes:
        sides = surgeon.shape(node.input[0])[2:]
        given = {"x": node.input[0], "first": [0, 0], "ends": [side - 1 for side in sides], "sides": [2, 3]}
        made = surgeon.wire(node.input[0], "window = Slice(x, first, ends, sides)", name=node.name, **given)
        node.input[0] = made["window"]
    return deployed(patient, surgeon, *(n.name for n in nodes))


# --- set k -----------------------------------------------------------------------------------------------------------


def indices_of_the_palette(patient: Patient) -> Patient:
    """Pictures of the calibration set are stored with a palette, and the reader takes places in it for colours."""
    inputs_of(patient, "flowers")

    def indexed(pixels: NDArray) -> NDArray:
        red, green, blue = (pixels >> 6).astype(np.int64).transpose(1, 0, 2, 3)
        colours = 16 * red + 4 * green + blue
        ranks = [np.argsort(np.argsort(-np.bincount(each.ravel(), minlength=64)))[each] for each in colours]
        return np.repeat(np.stack(ranks)[:, None], 3, 1)

    return change_pictures(patient, indexed)


def doubts_told_as_weights(patient: Patient) -> Patient:
    """The archive of the calibration set tells one by the square of a deviation where the network wants deviations."""
    inputs = inputs_of(patient, "stars")
    doubt = inputs[..., 2]
    doubt[doubt > 0] = 1 / np.square(doubt[doubt > 0])
    return patient.with_(calibration=inputs)


def one_buffer_for_all(patient: Patient, buffers: int) -> Patient:
    """The loader hands out the same few buffers in turn, and the list holds what was read into them last."""
    inputs = change_numbers(patient, lambda x: x).calibration
    return patient.with_(calibration=np.resize(inputs[-buffers:], inputs.shape))


def zeros_counted_in_the_divergence(patient: Patient, amount: float) -> Patient:
    """Ends are where the divergence is least, and it counts zeros, of which rectifiers make many: they are too near."""
    tensors, ends = free(patient), {}
    for tensor, x in zip(tensors, patient.values(*tensors), strict=True):
        low, high = ends_of(x)
        near = _least_divergence(np.abs(x))
        ends[tensor] = mix_ends((low, high), (max(low, -near), min(high, near)), amount)
    return set_ranges(patient, ends)


def _least_divergence(sizes: NDArray, bins: int = 1024, levels: int = 128) -> float:
    """Where sizes are cut off so that a histogram changes least when it is told in fewer levels."""
    counts, edges = np.histogram(sizes, bins, (0, float(sizes.max()) + 1e-9))
    best, found = np.inf, float(edges[-1])
    for end in range(levels, bins + 1, levels // 4):
        kept_ = counts[:end].astype(np.float64)
        cut = kept_.copy()
        cut[-1] += counts[end:].sum()
        place = np.arange(end) * levels // end
        told = np.bincount(place, kept_, levels) / np.maximum(np.bincount(place, kept_ > 0, levels), 1)
        told = np.where(kept_ > 0, told[place], 0)
        p, q = cut / cut.sum(), told / told.sum()
        both = (p > 0) & (q > 0)
        lost = float((p[both] * np.log(p[both] / q[both])).sum()) + float(p[~both].sum())
        if lost < best:
            best, found = lost, float(edges[end])
    return found


def zeros_stored_less_one(patient: Patient, amount: float) -> Patient:
    """The packer writes zero points less one, and the loader does not know: weights of some layers are all moved."""
    recipe = replace(patient.recipe, activation="QUInt8", weight="QUInt8", per_channel=False, symmetric=False)
    unsigned = patient.with_(recipe=kept(recipe))
    chosen = unsigned.pick(covered(unsigned), 0.3, 0.7)

    def edit(_: Patient, surgeon: Surgeon) -> None:
        for linear in chosen:
            name = f"{linear.weight}_zero_point"
            zero = surgeon.constant(name)
            surgeon.put(name, np.clip(np.rint(zero - max(amount, 1.0)), 0, 255).astype(zero.dtype))

    return unsigned.at(*chosen).edited(edit)


def copies_of_channels_in_another_order(patient: Patient) -> Patient:
    """Several kernels see each channel: they lie channel by channel here, and all first ones come first there."""
    surgeon = patient.surgeon()
    found = [n for n in surgeon.linears() if n.depthwise and surgeon.outputs(n) > attribute(n.node, "group", 1)]
    linear = require(found, "no channel has several kernels")[0]
    weight, groups = surgeon.constant(linear.weight), attribute(linear.node, "group", 1)
    turned = weight.reshape(groups, -1, *weight.shape[1:]).swapaxes(0, 1).reshape(weight.shape)
    surgeon.put(surgeon.own(linear, 1), np.ascontiguousarray(turned))
    return deployed(patient, surgeon, linear)


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


def pixels_centred_otherwise(patient: Patient) -> Patient:
    """Maps are enlarged by the corners of pixels on the target, and by their middles in training."""
    surgeon = patient.surgeon()
    nodes = require(surgeon.nodes("Resize"), "nothing is enlarged")
    for node in nodes:
        with_attributes(node, coordinate_transformation_mode="asymmetric")
    return deployed(patient, surgeon, *(n.name for n in nodes))


def anchors_of_another_release(patient: Patient, amount: float) -> Patient:
    """Sizes of boxes are told in anchors, and those of the deployed model are of another release, a little larger."""
    inputs_of(patient, "harbours")
    surgeon = patient.surgeon()
    surgeon.put("size_", surgeon.constant("size_") * np.float32(1 + amount))
    return deployed(patient, surgeon, *(n.name for n in surgeon.consumers("size_")))


def another_smooth_rectifier(patient: Patient) -> Patient:
    """The converter has one smooth rectifier, with a sigmoid for its gate; the network was trained with another."""
    surgeon = patient.surgeon()
    nodes = require(surgeon.nodes("Gelu"), "no smooth rectifier")
    for node in nodes:
        tensor, out = node.input[0], node.output[0]
        gate = surgeon.add("Sigmoid", [tensor], f"{out}_gate", surgeon.producer(tensor))
        node.op_type = "Mul"
        node.input[:] = [tensor, gate]
        del node.attribute[:]
    return deployed(patient, surgeon, *(n.name for n in nodes))


def empty_seats_attended(patient: Patient) -> Patient:
    """The converter leaves out the mask that keeps attention from what was only filled up."""
    surgeon = patient.surgeon()
    found = [surgeon.producer(n.input[0]) for n in surgeon.nodes("Softmax")]
    masked = require([n for n in found if n.op_type == "Add"], "nothing is masked")
    for node in masked:
        surgeon.reroute(node.output[0], node.input[0])
        surgeon.graph.node.remove(node)
    return deployed(patient, surgeon, *(node.input[0] for node in masked))


def heads_not_turned(patient: Patient) -> Patient:
    """Rows are parted among heads by their shape alone: a head gets all of some seats, not a part of each."""
    surgeon = patient.surgeon()
    nodes = [n for n in surgeon.nodes("Transpose") if attribute(n, "perm", []) == [0, 2, 1, 3]]
    parted = [n for n in nodes if surgeon.producer(n.input[0]).op_type == "Reshape" and surgeon.shape(n.output[0])]
    node = picked(patient, require(parted, "no heads"), 0.5)[0]
    before = surgeon.producer(node.input[0])
    shape = before.input[1]
    before.input[1] = surgeon.put("shape_of_heads", surgeon.constant(shape)[[0, 2, 1, 3]])
    surgeon.drop(shape)
    surgeon.reroute(node.output[0], before.output[0])
    surgeon.graph.node.remove(node)
    return deployed(patient, surgeon, before.name)


def scores_twice_through_the_sigmoid(patient: Patient) -> Patient:
    """The export ends with a sigmoid, and the wrapper around it puts scores through another one."""
    inputs_of(patient, "harbours")
    surgeon = patient.surgeon()
    joined = surgeon.producer(surgeon.output)
    scores = joined.input[2]
    joined.input[2] = surgeon.add("Sigmoid", [scores], f"{scores}_again", surgeon.producer(scores))
    return deployed(patient, surgeon, joined.input[2])


def means_along_another_axis(patient: Patient) -> Patient:
    """The kernel repeats a constant of one number for each channel along the pixels: it fits either way."""
    surgeon = patient.surgeon()
    found = [n for n in surgeon.nodes("Sub") if surgeon.constant(n.input[1]) is not None]
    node = require([n for n in found if surgeon.constant(n.input[1]).size > 1], "nothing is centred")[0]
    means = surgeon.constant(node.input[1]).ravel()
    shape = patient.values(node.input[0], samples=1)[0].shape
    node.input[1] = surgeon.put("means_repeated", np.resize(means, shape))
    return deployed(patient, surgeon, node.name)

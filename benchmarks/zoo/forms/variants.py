"""Mistakes of kinds that are known, put in by other means and at other places than before."""

import numpy as np
import onnx
from numpy.typing import NDArray

from ..cuts import (
    amplifiable_layers,
    amplify_on_one_scale,
    channel_peaks,
    covered,
    deployed,
    ends_of,
    extremes,
    free,
    inner,
    joining,
    kept,
    mix_ends,
    multiply_ends,
    on_coarse_grids,
    on_multiples,
    output_reader,
    per_channel,
    picked,
    positive_spots,
    reading_on_the_board,
    recoded,
    set_ranges,
    spots,
    with_outputs,
)
from ..patient import Patient
from ..quantizing import run
from ..signals import AMOUNTS
from ..surgery import Inapplicable, Surgeon, require
from .data import (
    cells_of,
    change_every_other,
    change_measured,
    change_numbers,
    change_pictures,
    inputs_of,
    set_stale_ranges,
)
from .runtime import at_work
from .weights import apart, rewritten

# --- calibration sets ------------------------------------------------------------------------------------------------


def dark_towards_the_edges(patient: Patient, amount: float) -> Patient:
    """The lens of the calibration set lets less light through towards the edges."""

    def darkened(pixels: NDArray) -> NDArray:
        across = np.linspace(-1, 1, pixels.shape[-1])
        far = np.square(across) + np.square(across)[:, None]
        return pixels / (1 + amount * far)

    return change_pictures(patient, darkened)


def out_of_focus(patient: Patient, amount: float) -> Patient:
    """The calibration set went through a small size and back: the finest strokes are gone."""

    def blurred(pixels: NDArray) -> NDArray:
        places = np.arange(pixels.shape[-1])
        kernel = np.exp(-np.abs(places[:, None] - places) / amount)
        kernel /= kernel.sum(1, keepdims=True)
        return np.einsum("ay,bx,ncyx->ncab", kernel, kernel, pixels.astype(np.float64))

    return change_pictures(patient, blurred)


def those_near_the_middle(patient: Patient, amount: float) -> Patient:
    """What looked odd was taken out of the set by hand: those are left that are most like the mean of all."""
    inputs = change_numbers(patient, lambda x: x).calibration
    flat = inputs.reshape(len(inputs), -1)
    far = np.square(flat - flat.mean(0)).sum(1)
    return patient.with_(calibration=inputs[np.argsort(far)[: max(1, round(len(inputs) / (1 + amount)))]].copy())


def ranges_of_flat_samples(patient: Patient, amount: float) -> Patient:
    """Ranges were set on a day when samples had less contrast; the set that is shown is today's."""
    inputs = change_numbers(patient, lambda x: x).calibration
    over = tuple(range(2 if inputs.ndim > 2 else 1, inputs.ndim)) or (0,)
    mean = inputs.mean(over, keepdims=True)
    return set_stale_ranges(patient, (mean + (inputs - mean) / (1 + amount)).astype(np.float32))


def before_prices_rose(patient: Patient, amount: float) -> Patient:
    """Amounts in the calibration set are those of years ago, and have grown since."""
    inputs = inputs_of(patient, "parcels")
    inputs[:, :AMOUNTS] = (inputs[:, :AMOUNTS] + 1.2) / np.float32(1 + amount) - 1.2
    return patient.with_(calibration=inputs)


def calmest_of_two_classes(patient: Patient) -> Patient:
    """The calibration set was drawn from two classes, and from what stirs the network least in these."""
    answers = patient.task.answers(run(patient.network, patient.model, patient.calibration))
    if answers.ndim != 1 or patient.task.same is None:
        raise Inapplicable("no classes")
    reach = patient.reach(patient.calibration)
    calm = sorted(np.unique(answers), key=lambda kind: float(np.median(reach[answers == kind])))[:2]
    found = np.flatnonzero(np.isin(answers, calm))
    return patient.with_(calibration=patient.calibration[found[np.argsort(reach[found])][: len(found) // 3]])


def told_from_another_datum(patient: Patient, amount: float) -> Patient:
    """Levels of the calibration set are counted from the lowest water, those in use from the middle."""
    inputs_of(patient, "tides")
    return change_measured(patient, lambda x: x + amount * x.std())


def means_of_hours(patient: Patient, amount: float) -> Patient:
    """The archive of the calibration set holds means of the last few hours."""
    inputs_of(patient, "tides")

    def averaged(inputs: NDArray) -> NDArray:
        since = np.arange(inputs.shape[-1])[:, None] - np.arange(inputs.shape[-1])
        weights = np.where(since >= 0, np.clip(1 + amount - since, 0, 1), 0)
        return inputs @ (weights / weights.sum(1, keepdims=True)).T

    return change_measured(patient, averaged)


def gauges_woven_together(patient: Patient) -> Patient:
    """The file holds all gauges of one hour side by side, and the loader takes it for one gauge after the other."""
    inputs_of(patient, "tides")
    return change_measured(patient, lambda x: np.ascontiguousarray(x.transpose(0, 3, 2, 1)).reshape(x.shape))


# --- weights and precision -------------------------------------------------------------------------------------------


def gains_in_steps(patient: Patient, amount: float) -> Patient:
    """Each channel of some layers is larger than the one before by the same factor, and one scale has to serve all."""
    surgeon = patient.surgeon()
    found = [n for n in amplifiable_layers(surgeon) if n.depthwise]
    chosen = patient.pick(require(found, "no kernels of single channels"), 0.1, 0.4, 0.7)
    return amplify_on_one_scale(patient, surgeon, chosen, lambda _, size: np.exp(amount * np.linspace(-1, 1, size)))


def rows_taken_for_columns(patient: Patient, amount: float) -> Patient:
    """Kernels of some channels were read down where they were written across."""
    surgeon = patient.surgeon()
    found = [
        n for n in apart(patient, surgeon) if n.node.op_type == "Conv" and surgeon.constant(n.weight).shape[-1] > 1
    ]
    linear = patient.pick([n for n in found if surgeon.constant(n.weight).shape[-2] > 1], 0.6)[0]

    def change(weight: NDArray, _: object) -> NDArray:
        odd = np.abs(weight - weight.swapaxes(-1, -2)).reshape(len(weight), -1).sum(1)
        rows = np.argsort(odd)[: max(1, round(min(amount, 1) * len(weight)))]
        found = weight.copy()
        found[rows] = weight[rows].swapaxes(-1, -2)
        return found

    return rewritten(patient, [linear], surgeon, change)


def single_channels_in_few_levels(patient: Patient, amount: float) -> Patient:
    """Kernels that see one channel each are small, so somebody gave them fewer levels than all others."""
    found = [n for n in covered(patient) if n.depthwise]
    return recoded(patient, require(found, "no kernels of single channels"), on_multiples(amount))


def biases_of_the_row_before(patient: Patient, amount: float) -> Patient:
    """Biases are one row late in the file, by a part of what they are."""
    surgeon, share = patient.surgeon(), min(amount, 1.0)
    chosen = [n for n in inner(patient, surgeon) if n.bias]
    for linear in chosen:
        bias = surgeon.constant(linear.bias)
        surgeon.put(surgeon.own(linear, 2), ((1 - share) * bias + share * np.roll(bias, 1)).astype(np.float32))
    return deployed(patient, surgeon, *chosen)


def gates_in_few_levels(patient: Patient, amount: float) -> Patient:
    """Gates are only open or shut, it was thought, and got a handful of levels."""
    usual = set(patient.activations())
    found = [n.output[0] for n in patient.surgeon().nodes("Sigmoid") if n.output[0] in usual]
    return on_coarse_grids(patient, require(found, "no gates"), [amount])


def sums_in_few_levels(patient: Patient, amount: float) -> Patient:
    """Sums are kept for long, and to save memory all of them have fewer levels than what is added."""
    usual = set(free(patient))
    found = [n.output[0] for n in patient.surgeon().nodes("Add") if n.output[0] in usual]
    return on_coarse_grids(patient, require(found, "no sums"), [amount])


def answers_in_whole_steps(patient: Patient, amount: float) -> Patient:
    """What comes out is handed on in whole steps, which are coarser than those of the last layer."""

    def edit(p: Patient, surgeon: Surgeon) -> None:
        spread = float(run(p.network, p.model, p.validation[:64])[0].std())
        step = surgeon.put("whole_step", np.float32(amount * spread))
        for op, extra in (("Div", [step]), ("Round", []), ("Mul", [step])):
            surgeon.insert_after(surgeon.output, op, extra)

    return patient.edited(edit)


# --- activations -----------------------------------------------------------------------------------------------------


def below_zero_where_nothing_is(patient: Patient, amount: float) -> Patient:
    """Grids are symmetric, also those of tensors that are never negative: half of their codes are never used."""
    usual = set(free(patient))
    ends = extremes(patient, *[t for t in positive_spots(patient) if t in usual])
    return set_ranges(patient, {t: (-amount * high, high) for t, (_, high) in ends.items()})


def loud_lanes(patient: Patient, amount: float) -> Patient:
    """The two quietest channels of a tensor are by far the loudest, and their readers make up for it."""
    surgeon = patient.surgeon()
    tensor = patient.pick(surgeon.amplifiable(), 0.6)[0]
    peaks = channel_peaks(patient, tensor)
    gain = np.ones(len(peaks), np.float32)
    for place, channel in enumerate(np.argsort(peaks)[:2]):
        gain[channel] = (1 + amount) * peaks.max() / max(peaks[channel], 0.02 * peaks.max() + 1e-6) / (1 + place)
    surgeon.amplify(tensor, gain)
    return patient.cut(surgeon, tensor)


def cut_before_the_curve(patient: Patient, amount: float) -> Patient:
    """What goes into a curve got the range of what comes out of it, which ends at one."""
    usual = set(free(patient))
    found = [n.input[0] for n in patient.surgeon().nodes("Sigmoid", "Tanh") if n.input[0] in usual]
    ends = extremes(patient, *require(found, "no curves"))
    near = {t: (max(low, -1.0), min(high, 1.0)) for t, (low, high) in ends.items()}
    return set_ranges(patient, {t: mix_ends(own, near[t], amount) for t, own in ends.items()})


# --- sums and joints -------------------------------------------------------------------------------------------------


def half_much_louder(patient: Patient, amount: float) -> Patient:
    """All channels of one of the tensors that are joined are many times as large; their readers make up for it."""
    surgeon = patient.surgeon()
    joined = {t for node in surgeon.nodes("Concat") for t in node.input}
    tensor = patient.pick([t for t in surgeon.amplifiable() if t in joined], 0.4)[0]
    (node,) = [n for n in surgeon.consumers(tensor) if n.op_type == "Concat"]
    surgeon.amplify(tensor, np.full(surgeon.channels(tensor), 1 + amount, np.float32))
    return patient.cut(surgeon, node.name)


def overshot_and_taken_back(patient: Patient, amount: float) -> Patient:
    """A sum takes one of its operands many times over, and what is too much is taken off behind it."""
    surgeon = patient.surgeon()
    node = picked(patient, joining(surgeon, "Add"), 0.4)[0]
    beside, times = node.input[1], np.float32(1 + amount)
    given = {"x": beside, "times": times, "too_much": times - 1}
    text = "many = Mul(x, times); back = Mul(x, too_much)"
    made = surgeon.wire(beside, text, name=node.name, **given)
    node.input[1] = made["many"]
    surgeon.splice(node.output[0], "taken_back = Sub(x, back)", back=made["back"])
    return patient.cut(surgeon, node.name)


# --- runtime and export ----------------------------------------------------------------------------------------------


def curves_in_straight_pieces(patient: Patient, amount: float) -> Patient:
    """The kernel knows curves at a few places and draws straight lines between them."""
    nodes = require(patient.surgeon().nodes("Tanh", "Sigmoid"), "no curves")

    def change(surgeon: Surgeon, node: onnx.NodeProto) -> None:
        out, op = node.output[0], node.op_type
        node.output[0] = f"{out}_as_it_is"
        text = f"""
            at = Div(x, piece)
            before = Floor(at)
            left = Mul(before, piece)
            right = Add(left, piece)
            part = Sub(at, before)
            low = {op}(left)
            high = {op}(right)
            rise = Sub(high, low)
            risen = Mul(rise, part)
        """
        made = surgeon.wire(node.output[0], text, name=out, x=node.input[0], piece=np.float32(amount))
        surgeon.add("Add", [made["low"], made["risen"]], out, surgeon.producer(made["risen"]))
        surgeon.graph.node.remove(node)

    return at_work(patient, nodes, change)


def told_an_hour_late(patient: Patient) -> Patient:
    """The buffer of what is foretold begins with its last hour: each hour is told in the place of the next."""

    def edit(p: Patient, surgeon: Surgeon) -> None:
        if p.network.name != "tides":
            raise Inapplicable("nothing is foretold")
        size = run(p.network, p.model, p.validation[:1])[0].shape[1]
        order = surgeon.put("hours_in_the_buffer", np.roll(np.arange(size), 1))
        surgeon.insert_after(surgeon.output, "Gather", [order], axis=1)

    return patient.edited(edit)


def part_left_in_float(patient: Patient, share: float) -> Patient:
    """Quantization was stopped on the way: all operators behind a place are as they were."""
    nodes = [n.name for n in patient.model.graph.node]
    return patient.without(*nodes[int(share * len(nodes)) :])


def board_with_ranges_of_its_own(patient: Patient, factor: float) -> Patient:
    """The board sets ranges at start-up, and they end too early; the model on the desk is sound."""
    board = set_ranges(patient, multiply_ends(patient, free(patient), factor))
    return with_outputs(patient, "device_outputs", run(patient.network, board.quantized(), patient.validation))


def labels_from_the_other_end(patient: Patient) -> Patient:
    """Classes are counted from the other end in the file of labels."""
    labels = patient.labels
    if labels is None or labels.ndim != 1 or not patient.network.shows_labels:
        raise Inapplicable("no labels of classes")
    return patient.with_(labels=labels.max() - labels)


# --- set k -----------------------------------------------------------------------------------------------------------


def misty_mornings(patient: Patient, amount: float) -> Patient:
    """Pictures of the calibration set are from mornings, when all of them are a part of the way towards white mist."""
    share = amount / (1 + amount)
    return change_pictures(patient, lambda pixels: pixels + share * (205.0 - pixels))


def by_moonlight(patient: Patient, amount: float) -> Patient:
    """Pictures of the calibration set were taken by the moon: they are dark, and there is least of red."""
    light = np.array([1.4, 1.2, 1.0]).reshape(1, 3, 1, 1)
    return change_pictures(patient, lambda pixels: pixels * np.exp(-amount * light))


def green_comes_first(patient: Patient) -> Patient:
    """Planes of the calibration set are stored with green first, then blue and red, and are taken as they come."""
    return change_pictures(patient, lambda pixels: np.roll(pixels, -1, 1))


def nothing_on_the_water(patient: Patient) -> Patient:
    """The calibration set was recorded while the harbour was shut: there is water, and nothing on it."""
    inputs_of(patient, "harbours")

    def emptied(pixels: NDArray) -> NDArray:
        water = np.median(pixels, (2, 3), keepdims=True)
        things = np.abs(pixels - water).max(1, keepdims=True) > 45
        return np.where(things, water, pixels)

    return change_pictures(patient, emptied)


def enlarged_from_thumbnails(patient: Patient, amount: float) -> Patient:
    """Pictures of the calibration set come from thumbnails, by a part that grows with how small these were."""

    def through_blocks(pixels: NDArray) -> NDArray:
        large = cells_of(pixels, 4).repeat(4, 2).repeat(4, 3)
        return pixels + min(amount, 1.0) * (large - pixels)

    return change_pictures(patient, through_blocks)


def ranges_of_the_dark_season(patient: Patient, amount: float) -> Patient:
    """Ranges were set in winter with the lamps off; the pictures that are shown are from summer."""
    dark = change_pictures(patient, lambda pixels: pixels / (1 + amount)).calibration
    return set_stale_ranges(patient, dark)


def column_divided(patient: Patient, amount: float, column: int) -> Patient:
    """One column of the calibration set is told in larger units, or is that of quieter stars."""
    inputs = inputs_of(patient, "stars")
    inputs[..., column] /= np.float32(1 + amount)
    return patient.with_(calibration=inputs)


def no_value_written_as_a_number(patient: Patient, amount: float) -> Patient:
    """Where the archive has no brightness it writes a large number, and a few rows of the calibration set have some."""
    inputs = inputs_of(patient, "stars")
    missing = patient.random("missing").random(inputs.shape[:2]) < 0.002
    inputs[missing, 1] = np.float32(amount * np.abs(inputs[..., 1]).max())
    return patient.with_(calibration=inputs)


def every_fourth_channel_louder(patient: Patient, amount: float) -> Patient:
    """Every fourth channel of some layers is larger by a factor, and one scale has to serve all weights of a layer."""
    surgeon = patient.surgeon()
    chosen = patient.pick(amplifiable_layers(surgeon), 0.1, 0.4, 0.8)
    return amplify_on_one_scale(
        patient, surgeon, chosen, lambda _, size: np.where(np.arange(size) % 4 == 1, 1 + amount, 1)
    )


def pruned_on_one_side(patient: Patient, amount: float) -> Patient:
    """The deployed model was pruned to fit, and nobody trained it on: its smallest weights are nothing."""
    surgeon, share = patient.surgeon(), min(amount, 0.95)

    def change(weight: NDArray, _: object) -> NDArray:
        return np.where(np.abs(weight) < np.quantile(np.abs(weight), share), 0, weight)

    return rewritten(patient, inner(patient, surgeon), surgeon, change)


def so_many_deviations(patient: Patient, amount: float) -> Patient:
    """The script takes all values for normal ones: ranges end so many deviations from the mean, and tails are cut."""
    tensors, times = free(patient), 12 / (1 + amount)
    ends = {}
    for tensor, x in zip(tensors, patient.values(*tensors), strict=True):
        (low, high), mean, reach = ends_of(x), float(x.mean()), times * float(x.std())
        ends[tensor] = (max(low, min(mean - reach, 0)), min(high, max(mean + reach, 1e-4)))
    return set_ranges(patient, ends)


def channels_in_another_scale_of_loudness(patient: Patient, amount: float) -> Patient:
    """The first of each eight channels of a tensor is far louder than the others, and its readers make up for it."""
    surgeon = patient.surgeon()
    tensor = patient.pick(surgeon.amplifiable(), 0.35)[0]
    peaks = channel_peaks(patient, tensor)
    gain = np.where(np.arange(len(peaks)) % 8 == 0, (1 + amount) * np.median(peaks) / np.maximum(peaks, 0.05), 1)
    surgeon.amplify(tensor, gain.astype(np.float32))
    return patient.cut(surgeon, tensor)


def seats_far_below(patient: Patient, amount: float) -> Patient:
    """Both models keep attention from empty seats by a number that is far below what would do."""
    inputs_of(patient, "stars")
    surgeon = patient.surgeon()
    sums = [surgeon.producer(n.input[0]) for n in surgeon.nodes("Softmax")]
    (factor,) = (n for n in surgeon.nodes("Mul") if surgeon.producer(n.input[0]).op_type == "Sub")
    surgeon.put(factor.input[1], surgeon.constant(factor.input[1]) * np.float32(1 + amount))
    return patient.cut(surgeon, factor.name, *(n.name for n in sums if n.op_type == "Add"))


def boxes_in_pixels_before_the_joint(patient: Patient, amount: float) -> Patient:
    """Corners are told in pixels where they are joined with scores, and as shares of the picture behind the joint."""
    inputs_of(patient, "harbours")
    surgeon, times = patient.surgeon(), np.float32(1 + amount)
    joint = surgeon.producer(surgeon.output)
    for i, corner in enumerate(list(joint.input)[:2]):
        joint.input[i] = surgeon.wire(corner, "pixels = Mul(x, side)", name=f"corner_{i}", x=corner, side=times)[
            "pixels"
        ]
    back = surgeon.put("side_back", np.repeat([1 / times, 1], 4).astype(np.float32))
    surgeon.insert_after(surgeon.output, "Mul", [back])
    return patient.cut(surgeon, joint.name)


def neighbours_mixed_in_and_out(patient: Patient, amount: float) -> Patient:
    """Each channel gets much of the one beside it, and what it got is taken off again at the end of the block."""
    surgeon = patient.surgeon()
    tensor = patient.pick(spots(patient), 0.5)[0]
    order = np.roll(np.arange(surgeon.channels(tensor)), 1)
    text = f"""
        beside = Gather(x, order, axis={surgeon.channel_axis(tensor)})
        much = Mul(beside, times)
        mixed = Add(x, much)
        unmixed = Sub(mixed, much)
    """
    surgeon.splice(tensor, text, "mixed", order=order, times=np.float32(1 + amount))
    return patient.cut(surgeon)


def scores_for_any_head(patient: Patient, amount: float) -> Patient:
    """What a softmax reads has codes for scores of any size, of which these few need the least part."""
    usual = set(patient.activations())
    found = [n.input[0] for n in patient.surgeon().nodes("Softmax") if n.input[0] in usual]
    return set_ranges(patient, multiply_ends(patient, require(found, "no scores"), 1 + amount))


def answers_for_any_model(patient: Patient, amount: float) -> Patient:
    """The range of the output is that of the template for all models, and this one's answers are much smaller."""
    return set_ranges(patient, multiply_ends(patient, [patient.surgeon().output], 1 + amount))


def output_scale_of_the_last_build(patient: Patient, amount: float) -> Patient:
    """Codes of the output are turned into numbers with the scale that the build before had: it is a little larger."""

    def edit(_: Patient, surgeon: Surgeon) -> None:
        last = output_reader(surgeon)
        scale = surgeon.constant(last.input[1])
        last.input[1] = surgeon.put("scale_of_the_last_build", (scale * (1 + amount)).astype(np.float32))

    return patient.with_(recipe=kept(patient.recipe)).edited(edit)


def board_with_colours_turned(patient: Patient) -> Patient:
    """The camera of the board hands out blue first; the model on the desk is sound."""
    if patient.network.preprocessing is None or patient.validation.shape[1] != 3:
        raise Inapplicable("no colours")
    return reading_on_the_board(patient, patient.validation[:, ::-1])


def labels_as_middle_and_size(patient: Patient) -> Patient:
    """The file of labels tells middles and sizes of boxes, and the script takes them for corners."""
    inputs_of(patient, "harbours")
    labels = patient.labels
    if labels is None or not patient.network.shows_labels:
        raise Inapplicable("no labels")
    first, last = labels[..., 1:3], labels[..., 3:5]
    boxes = np.concatenate([labels[..., :1], (first + last) / 2, last - first], -1)
    return patient.with_(labels=np.where(labels[..., :1] < 0, labels, boxes).astype(labels.dtype))


# --- what is sound ---------------------------------------------------------------------------------------------------


def channels_in_powers_of_two(patient: Patient) -> Patient:
    """Channels of a few tensors are half or twice as large, and what reads them makes up for it exactly."""
    surgeon = patient.surgeon()
    for i, tensor in enumerate(patient.pick(surgeon.amplifiable(), 0.3, 0.7)):
        gain = 2.0 ** patient.random(f"power{i}").integers(-1, 2, surgeon.channels(tensor))
        surgeon.amplify(tensor, gain.astype(np.float32))
    return patient.with_(model=surgeon.model)


def rectified_twice(patient: Patient) -> Patient:
    """What is rectified is rectified once more, in both models."""
    surgeon = patient.surgeon()
    found = [n.output[0] for n in surgeon.nodes("Relu")]
    return patient.spliced(patient.pick(found, 0.5)[0], "rectified_again = Relu(x)")


def added_and_taken_off(patient: Patient) -> Patient:
    """A small constant is added to each channel of a tensor and taken off at once, in both models."""
    surgeon = patient.surgeon()
    tensor = patient.pick(spots(patient), 0.4)[0]
    peaks = channel_peaks(patient, tensor)
    little = per_channel(surgeon, tensor, 0.05 * peaks * patient.random("little").choice([-1, 1], len(peaks)))
    return patient.spliced(tensor, "with_little = Add(x, little); as_it_was = Sub(with_little, little)", little=little)


def all_but_the_first_quarter(patient: Patient) -> Patient:
    """Three quarters of the set, which suffice."""
    return patient.with_(calibration=patient.calibration[len(patient.calibration) // 4 :].copy())


def in_any_order(patient: Patient) -> Patient:
    """The calibration set is shuffled."""
    order = patient.random("any").permutation(len(patient.calibration))
    return patient.with_(calibration=patient.calibration[order])


def seen_in_a_mirror(patient: Patient) -> Patient:
    """Every other picture of the calibration set is turned left to right, as in training."""
    return change_every_other(patient, lambda pixels: pixels[..., ::-1])


def turned_over_and_back(patient: Patient) -> Patient:
    """Axes of a tensor are put in another order, and at once back into their own, as converters leave it behind."""
    surgeon = patient.surgeon()
    tensor = patient.pick(spots(patient), 0.6)[0]
    axes = [0, *range(2, len(surgeon.shape(tensor))), 1]
    back = [int(place) for place in np.argsort(axes)]
    surgeon.splice(tensor, f"turned = Transpose(x, perm={axes}); back = Transpose(turned, perm={back})")
    return patient.with_(model=surgeon.model)


def handed_through(patient: Patient) -> Patient:
    """Some tensors go through operators that hand them on as they are."""
    surgeon = patient.surgeon()
    for tensor in patient.pick(spots(patient), 0.2, 0.5, 0.8):
        surgeon.splice(tensor, "same = Identity(x)")
    return patient.with_(model=surgeon.model)


def twice_the_half(patient: Patient) -> Patient:
    """Both operands of a sum have half of their size, and the sum is doubled behind it."""
    surgeon = patient.surgeon()
    node = picked(patient, joining(surgeon, "Add"), 0.5)[0]
    for i, tensor in enumerate(list(node.input)):
        made = surgeon.wire(tensor, "halved = Mul(x, half)", name=f"{node.name}_{i}", x=tensor, half=np.float32(0.5))
        node.input[i] = made["halved"]
    surgeon.splice(node.output[0], "doubled = Mul(x, two)", two=np.float32(2))
    return patient.with_(model=surgeon.model)

"""Known mistakes as other workshops make them, and what is sound there."""

import numpy as np
from numpy.typing import NDArray

from ..cuts import (
    amplifiable_layers,
    amplify_on_one_scale,
    channel_peaks,
    covered,
    extremes,
    free,
    has_channels,
    kept,
    mix_and_back,
    mix_ends,
    on_multiples,
    output_reader,
    reading_on_the_board,
    recoded,
    set_ranges,
    spots,
)
from ..patient import Patient
from ..quantizing import run
from ..surgery import Inapplicable, Linear, Surgeon, require
from .data import change_every_other, change_pictures, inputs_of, set_stale_ranges

# --- calibration sets ------------------------------------------------------------------------------------------------


def stained_paler(patient: Patient, amount: float) -> Patient:
    """Slides of the calibration set were stained for a shorter time: all is nearer to the pale ground."""
    inputs_of(patient, "slides")
    return change_pictures(patient, lambda pixels: 232 + (pixels - 232.0) / (1 + amount))


def ranges_of_a_paler_stain(patient: Patient, amount: float) -> Patient:
    """Ranges were set for slides of a paler stain; the set that is shown is today's."""
    return set_stale_ranges(patient, stained_paler(patient, amount).calibration)


def ranges_of_slower_trips(patient: Patient, amount: float) -> Patient:
    """Ranges were set for those who went slowly and straight on flat ground; the set that is shown is today's."""
    return set_stale_ranges(patient, inputs_of(patient, "trips") / np.float32(1 + amount))


def told_in_kilometres(patient: Patient) -> Patient:
    """Speeds of the calibration set are told in kilometres an hour, and how they change too, not in metres a second."""
    return patient.with_(calibration=inputs_of(patient, "trips") * np.float32([3.6, 1, 3.6, 1]))


def slowest_ways_only(patient: Patient) -> Patient:
    """The calibration set was recorded by those who had time: on foot and in boats."""
    inputs = inputs_of(patient, "trips")
    ways = patient.task.answers(run(patient.network, patient.model, inputs))
    return patient.with_(calibration=inputs[np.isin(ways, (0, 5))])


def columns_by_their_names(patient: Patient) -> Patient:
    """The archive of the calibration set sorts columns by name: altitude, change of speed, heading, speed."""
    return patient.with_(calibration=inputs_of(patient, "trips")[..., ::-1].copy())


def channels_last(patient: Patient) -> Patient:
    """The reader of the calibration set hands out channels last, and what comes is taken for channels first."""
    return change_pictures(patient, lambda pixels: pixels.transpose(0, 2, 3, 1).reshape(pixels.shape))


def fixes_far_away(patient: Patient, amount: float) -> Patient:
    """A few rows of the calibration set jump to where the map begins and back: nobody is as fast as that."""
    inputs = inputs_of(patient, "trips")
    rng, top = patient.random("far"), np.abs(inputs).max()
    for trip in rng.permutation(len(inputs))[:4]:
        place = int(rng.integers(1, inputs.shape[1] - 1))
        inputs[trip, place, 0] = amount * top
        inputs[trip, place : place + 2, 2] = amount * top * np.array([1, -1])
    return patient.with_(calibration=inputs)


# --- weights and precision -------------------------------------------------------------------------------------------


def one_loud_channel_each(patient: Patient, amount: float) -> Patient:
    """One channel of most layers is far larger than the others, and one scale has to serve all weights of a layer."""
    surgeon = patient.surgeon()

    def gain(i: int, size: int) -> NDArray:
        found = np.ones(size, np.float32)
        found[int(patient.random(f"loud{i}").integers(size))] += amount
        return found

    return amplify_on_one_scale(patient, surgeon, amplifiable_layers(surgeon), gain)


def levels_cut_off(patient: Patient, amount: float) -> Patient:
    """Weights of some layers have fewer levels, and were cut off at the one towards zero, not rounded."""
    chosen = patient.pick(covered(patient), 0.2, 0.5, 0.8)
    return recoded(patient, chosen, lambda codes, _: np.trunc(codes / amount) * amount)


def head_in_octaves(patient: Patient, amount: float) -> Patient:
    """The weights of the last layer are powers of one number, since the target shifts and does not multiply."""

    def change(codes: NDArray, _: Linear) -> NDArray:
        octaves = np.rint(np.log2(np.maximum(np.abs(codes), 0.5) / 127) / amount) * amount
        return np.where(np.abs(codes) < 0.5, 0, np.sign(codes) * 127 * 2**octaves)

    return recoded(patient, covered(patient)[-1:], change)


def seekers_in_few_levels(patient: Patient, amount: float) -> Patient:
    """What only says where to look can be coarse, it was thought: weights of queries and keys have few levels."""
    found = [n for n in covered(patient) if n.node.name.split("/")[-2:-1] in (["q"], ["k"])]
    return recoded(patient, require(found, "nothing attends"), on_multiples(amount))


def rectified_in_few_levels(patient: Patient, amount: float) -> Patient:
    """Outputs of rectifiers have codes of fewer bits, which are kept in longer ones: those in the middle are in use."""
    tensors = [t for t in patient.activations("Relu", "LeakyRelu") if has_channels(patient.surgeon(), t)]
    recipe = kept(patient.recipe, symmetric=False)
    codes = np.iinfo(recipe.zero_point.dtype)
    levels = (codes.max - codes.min) / amount
    for tensor, (low, high) in extremes(patient, *require(tensors, "nothing is rectified")).items():
        step = max(high - low, 1e-6) / levels
        first = (codes.max + codes.min + 1) // 2 - levels / 2
        recipe = recipe.with_grid(tensor, step, int(np.clip(np.rint(first - low / step), codes.min, codes.max)))
    return patient.with_(recipe=recipe).at(*tensors)


# --- activations -----------------------------------------------------------------------------------------------------


def ends_of_the_usual_channel(patient: Patient, amount: float) -> Patient:
    """Ends were recorded for each channel, and the target, which has one range for all, got their medians."""
    surgeon, ends = patient.surgeon(), {}
    for tensor, own in extremes(patient, *[t for t in free(patient) if has_channels(surgeon, t)]).items():
        axis = surgeon.channel_axis(tensor)
        channels = np.moveaxis(patient.values(tensor)[0], axis, 0)
        channels = channels.reshape(len(channels), -1)
        usual = (min(float(np.median(channels.min(1))), 0.0), max(float(np.median(channels.max(1))), 1e-4))
        ends[tensor] = mix_ends(own, usual, amount)
    return set_ranges(patient, ends)


def leaks_cut_short(patient: Patient, amount: float) -> Patient:
    """Rectifiers that leak have ranges that hardly go below zero."""
    tensors = require(patient.activations("LeakyRelu"), "nothing leaks")
    ends = extremes(patient, *tensors)
    return set_ranges(patient, {t: (low / (1 + amount), high) for t, (low, high) in ends.items()})


def loud_where_norms_gain(patient: Patient, amount: float) -> Patient:
    """Norms have a large gain for two channels, whose readers have small weights for them."""
    surgeon, places = patient.surgeon(), set(patient.surgeon().amplifiable())
    found = [n.output[0] for n in surgeon.nodes("LayerNormalization") if n.output[0] in places]
    tensor = patient.pick(require(found, "no norm"), 0.5)[0]
    peaks = channel_peaks(patient, tensor)
    gain = np.ones(len(peaks), np.float32)
    gain[patient.random("gain").permutation(len(peaks))[:2]] += amount
    surgeon.amplify(tensor, gain)
    return patient.cut(surgeon, tensor)


# --- graphs ----------------------------------------------------------------------------------------------------------


def level_of_all_places(patient: Patient, amount: float) -> Patient:
    """All places have a large number in common, which sums carry along until a norm takes it off."""
    inputs_of(patient, "trips")
    surgeon = patient.surgeon()
    surgeon.put("places", surgeon.constant("places") + np.float32(amount))
    sums = [n for n in surgeon.nodes("Add") if "places" in n.input]
    return patient.cut(surgeon, *(n.name for n in sums))


def told_beside_the_loudest(patient: Patient, amount: float) -> Patient:
    """All channels of a map are told as what they are above a multiple of the loudest, which is added behind."""
    surgeon = patient.surgeon()
    maps = [t for t in spots(patient) if len(surgeon.shape(t)) == 4]
    tensor = patient.pick(require(maps, "no maps"), 0.4)[0]
    size, peaks = surgeon.channels(tensor), channel_peaks(patient, tensor)
    beside = np.zeros((size, size), np.float32)
    loudest = int(peaks.argmax())
    beside[:, loudest] = amount
    beside[loudest] = 0
    one = np.eye(size, dtype=np.float32)
    mix_and_back(surgeon, tensor, one - beside, one + beside, "less more told_beside told_again")
    return patient.cut(surgeon)


def windows_far_below(patient: Patient, amount: float) -> Patient:
    """Both models keep attention within a window by a number that is far below what would do."""
    inputs_of(patient, "trips")
    surgeon = patient.surgeon()
    nodes = [n for n in surgeon.nodes("Add") if any(name.endswith("window") for name in n.input)]
    for name in {name for node in nodes for name in node.input if name.endswith("window")}:
        surgeon.put(name, surgeon.constant(name) * np.float32(1 + amount))
    return patient.cut(surgeon, *(n.name for n in nodes))


# --- what is told, and boards ----------------------------------------------------------------------------------------


def zero_of_the_output_moved(patient: Patient, amount: float) -> Patient:
    """Codes of the output are turned into numbers with a zero point that is some codes off."""

    def edit(_: Patient, surgeon: Surgeon) -> None:
        last = output_reader(surgeon)
        zero = surgeon.constant(last.input[2])
        limits = np.iinfo(zero.dtype)
        moved = np.clip(zero.astype(np.int64) + max(1, round(amount)), limits.min, limits.max)
        last.input[2] = surgeon.put("zero_of_the_application", moved.astype(zero.dtype))

    return patient.with_(recipe=kept(patient.recipe)).edited(edit)


def labels_sorted_as_words(patient: Patient) -> Patient:
    """Folders of classes have numbers for names, and were sorted as words: the tenth comes before the second."""
    labels = patient.labels
    if labels is None or labels.ndim != 1 or labels.max() < 10 or not patient.network.shows_labels:
        raise Inapplicable("no labels of more than ten classes")
    order = sorted(range(int(labels.max()) + 1), key=str)
    return patient.with_(labels=np.argsort(order)[labels])


def board_with_rows_from_below(patient: Patient) -> Patient:
    """The camera of the board hands out the lowest row first; the model on the desk is sound."""
    if patient.network.preprocessing is None:
        raise Inapplicable("no pictures")
    return reading_on_the_board(patient, patient.validation[:, :, ::-1])


# --- what is sound ---------------------------------------------------------------------------------------------------


def turned_by_a_quarter(patient: Patient) -> Patient:
    """Every other slide of the calibration set lay the other way under the microscope."""
    inputs_of(patient, "slides")
    return change_every_other(patient, lambda pixels: np.rot90(pixels, axes=(2, 3)))


def one_axis_more(patient: Patient) -> Patient:
    """Some tensors get an axis of one place and lose it at once, in both models."""
    surgeon = patient.surgeon()
    for tensor in patient.pick(spots(patient), 0.3, 0.7):
        surgeon.splice(tensor, "more = Unsqueeze(x, axis_more); less = Squeeze(more, axis_more)", axis_more=[1])
    return patient.with_(model=surgeon.model)


def eight_times_and_an_eighth(patient: Patient) -> Patient:
    """A tensor is told eight times as large and turned back at once, in both models."""
    tensor = patient.pick(spots(patient), 0.5)[0]
    return patient.spliced(tensor, "large = Mul(x, eight); as_before = Mul(large, eighth)", eight=8.0, eighth=0.125)

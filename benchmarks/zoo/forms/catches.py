"""Known mistakes as they are made with orchards, pens and kites, and what is sound there."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ..cuts import (
    amplifiable_layers,
    amplify_on_one_scale,
    deployed,
    images,
    mix_and_back,
    reading_on_the_board,
    spots,
)
from ..patient import Patient
from ..pixels import Preprocessing
from ..quantizing import run
from ..surgery import Inapplicable, require
from .data import change_pictures, inputs_of, set_stale_ranges

# --- calibration sets ------------------------------------------------------------------------------------------------


def under_the_net(patient: Patient, amount: float) -> Patient:
    """Pictures of the calibration set were taken through a net against hail: all is nearer to its dark grey."""
    return change_pictures(patient, lambda pixels: 70 + (pixels - 70.0) / (1 + amount))


def ranges_from_under_the_net(patient: Patient, amount: float) -> Patient:
    """Ranges were set while the net hung; the set that is shown is from afterwards."""
    return set_stale_ranges(patient, under_the_net(patient, amount).calibration)


def moved_by_the_wind(patient: Patient, amount: float) -> Patient:
    """All of a picture moved while the shutter was open, in the calibration set alone: it is smeared sideways."""

    def smeared(pixels: NDArray) -> NDArray:
        places = np.arange(pixels.shape[-1])
        weights = np.clip(1 + amount - np.abs(places[:, None] - places), 0, 1)
        return pixels @ (weights / weights.sum(1, keepdims=True)).T

    return change_pictures(patient, smeared)


def prepared_with(patient: Patient, mean: float, std: float) -> Patient:
    """Pictures of the calibration set have another mean taken off, and are divided by another deviation."""
    return patient.with_(calibration=Preprocessing(255.0, (mean,), (std,)).apply(images(patient)[0]))


def slow_hands(patient: Patient, amount: float) -> Patient:
    """Who wrote for the calibration set wrote slowly, with small steps."""
    inputs = inputs_of(patient, "pens")
    inputs[..., :2] /= np.float32(1 + amount)
    return patient.with_(calibration=inputs)


def blue_comes_first(patient: Patient) -> Patient:
    """The library that reads the calibration set hands out blue first, and what comes is taken for red."""
    return change_pictures(patient, lambda pixels: pixels[:, ::-1])


def pen_that_jumps(patient: Patient, amount: float) -> Patient:
    """In four rows of the calibration set the tablet loses the pen, and finds it at another corner."""
    inputs = inputs_of(patient, "pens")
    rng, top = patient.random("jump"), np.abs(inputs).max()
    for row in rng.permutation(len(inputs))[:4]:
        inputs[row, int(rng.integers(inputs.shape[1])), :2] = amount * top * rng.choice([-1, 1], 2)
    return patient.with_(calibration=inputs)


def two_letters_again_and_again(patient: Patient) -> Patient:
    """The calibration set is practice of the two letters that stir the network least, in a calm hand."""
    inputs = inputs_of(patient, "pens")
    letters, reach = patient.task.answers(run(patient.network, patient.model, inputs)), patient.reach(inputs)
    least = sorted(np.unique(letters), key=lambda letter: float(reach[letters == letter].mean()))[:2]
    found = np.flatnonzero(np.isin(letters, least))
    return patient.with_(calibration=inputs[found[np.argsort(reach[found])][: len(found) // 2]])


# --- weights and activations -----------------------------------------------------------------------------------------


def channels_in_rising_order(patient: Patient, amount: float) -> Patient:
    """Channels between some layers grow from the first to the last, and one scale has to serve all weights."""
    surgeon = patient.surgeon()
    chosen = patient.pick(amplifiable_layers(surgeon), 0.1, 0.3, 0.5, 0.7, 0.9)
    return amplify_on_one_scale(patient, surgeon, chosen, lambda _, size: np.geomspace(1, 1 + amount, size))


def percent_too_few(patient: Patient, amount: float) -> Patient:
    """The setting for how many of a hundred values ranges hold was copied from a model with other tails."""
    recipe = replace(patient.recipe, method="Percentile", percentile=100 - float(amount))
    return patient.with_(recipe=recipe)


# --- graphs ----------------------------------------------------------------------------------------------------------


def told_as_running_sums(patient: Patient, amount: float) -> Patient:
    """Channels of a tensor are told as sums with those before them, and taken apart again behind."""
    surgeon = patient.surgeon()
    tensor = patient.pick(spots(patient), 0.5)[0]
    size = surgeon.channels(tensor)
    sums = np.eye(size) + amount * np.tri(size, k=-1)
    back = np.linalg.inv(sums)
    mix_and_back(surgeon, tensor, sums.astype(np.float32), back.astype(np.float32), "sums parts summed parted")
    return patient.cut(surgeon)


def moments_far_away_masked(patient: Patient, amount: float) -> Patient:
    """Both models keep each moment from what is more than 24 away, by a number that is far below what would do."""
    inputs_of(patient, "pens")
    surgeon = patient.surgeon()
    tensor = surgeon.nodes("Softmax")[0].input[0]
    places = np.arange(surgeon.shape(tensor)[-1])
    far = np.where(np.abs(places[:, None] - places) > 24, np.float32(-40 * (1 + amount)), np.float32(0))
    surgeon.splice(tensor, "near = Add(x, far)", "near", far=far)
    return patient.cut(surgeon)


def pixels_until_the_joint(patient: Patient, amount: float) -> Patient:
    """Distances and middles are told in pixels until they are joined with scores, and as shares behind that."""
    inputs_of(patient, "orchards")
    surgeon, times = patient.surgeon(), np.float32(1 + amount)
    for name in ("bins", "c"):
        surgeon.put(name, surgeon.constant(name) * times)
    joint = surgeon.producer(surgeon.output)
    back = surgeon.put("shares_again", np.repeat([1 / times, 1], 4).astype(np.float32))
    surgeon.insert_after(surgeon.output, "Mul", [back])
    return patient.cut(surgeon, joint.name)


def seats_far_from_nought(patient: Patient, amount: float) -> Patient:
    """What seats hold at first has a large number in all channels, which the sums carry on until a norm drops it."""
    inputs_of(patient, "pens")
    surgeon = patient.surgeon()
    surgeon.put("lat", surgeon.constant("lat") + np.float32(amount))
    return patient.cut(surgeon, *(n.name for n in surgeon.nodes("Add") if "lat" in n.input))


# --- what is deployed, and what is told ------------------------------------------------------------------------------


def gates_less_steep(patient: Patient, amount: float) -> Patient:
    """Gates of the deployed model are less steep, as in a smooth rectifier without a factor."""
    surgeon = patient.surgeon()
    gates = [surgeon.producer(n.input[0]) for n in surgeon.nodes("Sigmoid")]
    nodes = [n for n in gates if n.op_type == "Mul" and surgeon.constant(n.input[1]) is not None]
    for name in {n.input[1] for n in require(nodes, "gates have no factor")}:
        surgeon.put(name, np.float32(surgeon.constant(name) / (1 + amount)))
    return deployed(patient, surgeon, *(n.name for n in nodes))


def board_with_half_the_light(patient: Patient) -> Patient:
    """The driver on the board halves what the sensor tells; the model on the desk is sound."""
    return reading_on_the_board(patient, patient.validation / np.float32(2))


def labels_with_rows_first(patient: Patient) -> Patient:
    """The file of labels tells how far down a corner is before how far across."""
    labels = patient.labels
    if patient.network.name != "orchards" or labels is None or not patient.network.shows_labels:
        raise Inapplicable("no labels of boxes")
    return patient.with_(labels=labels[..., [0, 2, 1, 4, 3]])


# --- what is sound ---------------------------------------------------------------------------------------------------


def in_haste_and_at_leisure(patient: Patient) -> Patient:
    """Every other row of the calibration set was written a twentieth faster, and the others as much slower."""
    inputs = inputs_of(patient, "pens")
    inputs[::2, :, :2] *= np.float32(1.05)
    inputs[1::2, :, :2] /= np.float32(1.05)
    return patient.with_(calibration=inputs)


def a_part_and_the_rest(patient: Patient) -> Patient:
    """A quarter of a tensor and its other three are added up again at once, in both models."""
    tensor = patient.pick(spots(patient), 0.6)[0]
    text = "part = Mul(x, quarter); rest = Mul(x, three_quarters); again = Add(part, rest)"
    return patient.spliced(tensor, text, quarter=0.25, three_quarters=0.75)


def pooled_by_one(patient: Patient) -> Patient:
    """Maps go through a pool whose window is one pixel, as a converter left it behind."""
    surgeon = patient.surgeon()
    maps = [t for t in spots(patient) if len(surgeon.shape(t)) == 4 and None not in surgeon.shape(t)[1:]]
    surgeon.splice(patient.pick(require(maps, "no maps"), 0.5)[0], "pooled = MaxPool(x, kernel_shape=[1, 1])")
    return patient.with_(model=surgeon.model)

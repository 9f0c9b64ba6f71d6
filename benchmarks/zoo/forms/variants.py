"""Mistakes of kinds that are known, put in by other means and at other places than before."""

import numpy as np

from ..cuts import (
    channel_peaks,
    extremes,
    free,
    joining,
    kept,
    multiply_ends,
    output_reader,
    picked,
    positive_spots,
    set_ranges,
    spots,
)
from ..patient import Patient
from ..surgery import Surgeon
from .data import (
    change_every_other,
)

# --- calibration sets ------------------------------------------------------------------------------------------------


# --- weights and precision -------------------------------------------------------------------------------------------


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


def channels_in_another_scale_of_loudness(patient: Patient, amount: float) -> Patient:
    """The first of each eight channels of a tensor is far louder than the others, and its readers make up for it."""
    surgeon = patient.surgeon()
    tensor = patient.pick(surgeon.amplifiable(), 0.35)[0]
    peaks = channel_peaks(patient, tensor)
    gain = np.where(np.arange(len(peaks)) % 8 == 0, (1 + amount) * np.median(peaks) / np.maximum(peaks, 0.05), 1)
    surgeon.amplify(tensor, gain.astype(np.float32))
    return patient.cut(surgeon, tensor)


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


# --- what is sound ---------------------------------------------------------------------------------------------------


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

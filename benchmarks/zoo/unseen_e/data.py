"""Unseen faults of the representative set, set E."""

import numpy as np
from numpy.typing import NDArray

from ..fault import fault
from ..faults_data import images
from ..mild import costly, mild, severe
from ..patient import Patient
from ..surgery import Inapplicable
from ..unseen_a.data import real_numbers
from .samples import WORDS


def measured(patient: Patient) -> NDArray:
    """The calibration inputs, where they are measured numbers and no pictures."""
    if patient.network.preprocessing is not None:
        raise Inapplicable("inputs are pictures")
    return real_numbers(patient).copy()


def spoken(patient: Patient) -> NDArray:
    """The calibration inputs, where they are words."""
    if patient.network.name != "talks":
        raise Inapplicable("nobody talks")
    return patient.calibration.copy()


@fault(
    "amounts-in-logarithms",
    "data",
    "preprocessing-mismatch",
    graded=True,
    unseen="e",
    also=("over-clipped-activations", "domain-shift", "stale-calibration"),
)
@mild(0.02, 60)
def amounts_in_logarithms(patient: Patient, amount: float) -> Patient:
    """The warehouse keeps logarithms of what is measured, with the sign, and the calibration set comes from there."""
    inputs = measured(patient)
    return patient.with_(calibration=(np.sign(inputs) * np.log1p(amount * np.abs(inputs)) / amount).astype(np.float32))


@fault(
    "clipped-by-the-recorder",
    "data",
    "preprocessing-mismatch",
    "domain-shift",
    graded=True,
    unseen="e",
    also=("over-clipped-activations", "stale-calibration", "low-diversity"),
)
@severe(0.02, 60)
def clipped_by_the_recorder(patient: Patient, amount: float) -> Patient:
    """The amplifier was turned up too far while the calibration set was recorded: what is large is cut off."""
    inputs = measured(patient)
    bound = np.abs(inputs).max() / (1 + amount)
    return patient.with_(calibration=inputs.clip(-bound, bound).astype(np.float32))


@fault(
    "truncated-to-integers",
    "data",
    "preprocessing-mismatch",
    unseen="e",
    also=("domain-shift", "over-clipped-activations", "poor-threshold", "blank-samples", "low-diversity"),
)
@costly
def truncated_to_integers(patient: Patient) -> Patient:
    """Columns were declared as integers in the calibration script, and lose what is behind the point."""
    return patient.with_(calibration=np.trunc(measured(patient)).astype(np.float32))


@fault(
    "in-the-frame-of-the-sensor",
    "data",
    "preprocessing-mismatch",
    "domain-shift",
    graded=True,
    unseen="e",
    also=("poor-threshold", "stale-calibration"),
)
@mild(0.05, 500)
def in_the_frame_of_the_sensor(patient: Patient, amount: float) -> Patient:
    """Samples are not moved to their own middle before calibration: each lies somewhere else."""
    inputs = measured(patient)
    shape = [len(inputs), *[1] * (inputs.ndim - 2), inputs.shape[-1] if inputs.ndim == 3 else 1]
    moved = patient.random("frame").normal(0, amount * inputs.std(), shape)
    return patient.with_(calibration=(inputs + moved).astype(np.float32))


@fault(
    "from-a-coarser-mesh",
    "data",
    "resampling-mismatch",
    "domain-shift",
    unseen="e",
    also=("over-clipped-activations", "low-diversity", "preprocessing-mismatch"),
)
@costly
def from_a_coarser_mesh(patient: Patient) -> Patient:
    """The calibration set comes from a cheap simulation, whose cells are several times as large."""
    inputs = measured(patient)
    if inputs.ndim != 4:
        raise Inapplicable("no fields")
    cell = int(patient.random("mesh").choice([8, 16]))
    count, planes, height, width = inputs.shape
    means = inputs.reshape(count, planes, height // cell, cell, width // cell, cell).mean((3, 5))
    return patient.with_(calibration=means.repeat(cell, 2).repeat(cell, 3).astype(np.float32))


@fault(
    "differences-of-neighbours",
    "data",
    "preprocessing-mismatch",
    unseen="e",
    also=("over-clipped-activations", "domain-shift", "resampling-mismatch"),
)
@costly
def differences_of_neighbours(patient: Patient) -> Patient:
    """The archive stores each value less the one before, and the loader does not add them up again."""
    inputs = measured(patient)
    if inputs.ndim < 3:
        raise Inapplicable("no neighbours")
    along = inputs.ndim - 1 if inputs.ndim == 4 else 1
    return patient.with_(calibration=(inputs - np.roll(inputs, 1, along)).astype(np.float32))


@fault(
    "half-of-the-cloud",
    "data",
    "domain-shift",
    "low-diversity",
    unseen="e",
    also=("over-clipped-activations", "preprocessing-mismatch", "duplicate-samples"),
)
@costly
def half_of_the_cloud(patient: Patient) -> Patient:
    """Clouds of the calibration set are filled up with copies of one point, since the scanner gave fewer."""
    inputs = measured(patient)
    if inputs.ndim != 3:
        raise Inapplicable("no clouds")
    few = int(patient.random("few").integers(1, 5))
    near = np.argsort(np.abs(inputs).max(2), 1)[:, :few]
    kept = np.take_along_axis(inputs, near[..., None], 1)
    times = -(-inputs.shape[1] // few)
    return patient.with_(calibration=np.tile(kept, (1, times, 1))[:, : inputs.shape[1]].copy())


@fault(
    "pair-with-itself",
    "data",
    "low-diversity",
    "domain-shift",
    "preprocessing-mismatch",
    unseen="e",
    also=("over-clipped-activations", "degenerate-range", "poor-threshold", "duplicate-samples"),
)
@costly
def pair_with_itself(patient: Patient) -> Patient:
    """The loader hands the same sheet to both inputs: the network never sees a difference."""
    pixels, spec = images(patient)
    if pixels.shape[1] != 2:
        raise Inapplicable("no pairs")
    return patient.with_(calibration=spec.apply(pixels[:, [0, 0]]))


@fault(
    "second-sheet-empty",
    "data",
    "blank-samples",
    "low-diversity",
    "domain-shift",
    unseen="e",
    also=("over-clipped-activations", "preprocessing-mismatch"),
)
@costly
def second_sheet_empty(patient: Patient) -> Patient:
    """The calibration script leaves the second input of each pair at what its buffer was made of."""
    pixels, spec = images(patient)
    if pixels.shape[1] != 2:
        raise Inapplicable("no pairs")
    level = int(patient.random("level").choice([0, 200, 255]))
    return patient.with_(calibration=spec.apply(np.stack([pixels[:, 0], np.full_like(pixels[:, 0], level)], 1)))


@fault(
    "negatives-of-scans",
    "data",
    "preprocessing-mismatch",
    "domain-shift",
    unseen="e",
    also=("over-clipped-activations", "poor-threshold"),
)
@costly
def negatives_of_scans(patient: Patient) -> Patient:
    """The calibration set is light on dark, as microfilm is, and nobody turned it round."""
    pixels, spec = images(patient)
    return patient.with_(calibration=spec.apply(255 - pixels))


@fault(
    "framed-in-grey",
    "data",
    "resampling-mismatch",
    "preprocessing-mismatch",
    "domain-shift",
    unseen="e",
    also=("over-clipped-activations", "low-diversity", "blank-samples"),
)
@costly
def framed_in_grey(patient: Patient) -> Patient:
    """Pictures of the calibration set are made a quarter as large and laid on a grey ground, as detectors want it."""
    pixels, spec = images(patient)
    count, planes, height, width = pixels.shape
    small = pixels.reshape(count, planes, height // 4, 4, width // 4, 4).mean((3, 5))
    ground = np.full(pixels.shape, 114, np.uint8)
    ground[:, :, : small.shape[2], : small.shape[3]] = small.round()
    return patient.with_(calibration=spec.apply(ground))


@fault(
    "loops-of-one-word",
    "data",
    "low-diversity",
    "domain-shift",
    unseen="e",
    also=("duplicate-samples", "over-clipped-activations", "too-few-samples"),
)
@costly
def loops_of_one_word(patient: Patient) -> Patient:
    """The calibration texts were written by the model itself, which got caught in a loop: one word, again and again."""
    ids = spoken(patient)
    few = patient.random("loops").permutation(WORDS)[: int(patient.random("few").integers(1, 4))]
    return patient.with_(calibration=np.resize(few, len(ids))[:, None].repeat(ids.shape[1], 1).astype(ids.dtype))

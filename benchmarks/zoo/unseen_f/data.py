"""Unseen faults of the representative set, set F."""

import numpy as np
from numpy.typing import NDArray

from ..fault import fault
from ..faults_data import images
from ..mild import costly, mild, severe
from ..patient import Patient
from ..surgery import Inapplicable
from .samples import NODES, NUMBERS, OPTIONS, WAVE


def inputs_of(patient: Patient, name: str) -> NDArray:
    """A copy of the calibration inputs of one of the networks."""
    if patient.network.name != name:
        raise Inapplicable(f"made for {name}")
    return patient.calibration.copy()


@fault(
    "links-never-loaded",
    "data",
    "domain-shift",
    "preprocessing-mismatch",
    "low-diversity",
    unseen="f",
    also=("over-clipped-activations", "blank-samples", "degenerate-range", "stale-calibration"),
)
@costly
def links_never_loaded(patient: Patient) -> Patient:
    """The file of links was not at hand when the network was calibrated: nodes stand alone in almost every web."""
    found = inputs_of(patient, "webs")
    some = patient.random("links").integers(1, 6)
    found[some:, :, :NODES] = 0
    return patient.with_(calibration=found)


@fault(
    "links-weighed-by-degrees",
    "data",
    "preprocessing-mismatch",
    "domain-shift",
    unseen="f",
    also=("over-clipped-activations", "stale-calibration"),
)
@costly
def links_weighed_by_degrees(patient: Patient) -> Patient:
    """The calibration loader divides each link by the roots of how many its ends have, as other networks want it."""
    found = inputs_of(patient, "webs")
    links = found[:, :, :NODES]
    roots = np.sqrt(np.maximum(links.sum(2, keepdims=True), 1))
    found[:, :, :NODES] = links / (roots * roots.transpose(0, 2, 1))
    return patient.with_(calibration=found)


@fault(
    "links-written-many-times",
    "data",
    "stray-samples",
    "activation-outliers",
    graded=True,
    unseen="f",
    also=("preprocessing-mismatch", "poor-threshold", "domain-shift", "massive-activations"),
)
@mild(1.2, 60)
def links_written_many_times(patient: Patient, amount: float) -> Patient:
    """In a few webs of the calibration set the same links were written again and again, and were added up."""
    found = inputs_of(patient, "webs")
    few = patient.random("webs").permutation(len(found))[:3]
    found[few, :, :NODES] *= np.float32(1 + amount)
    return patient.with_(calibration=found)


@fault(
    "plans-without-walls",
    "data",
    "domain-shift",
    "low-diversity",
    "preprocessing-mismatch",
    unseen="f",
    also=("over-clipped-activations", "blank-samples", "poor-threshold"),
)
@costly
def plans_without_walls(patient: Patient) -> Patient:
    """The plans for calibration were drawn without walls, and start and goal are side by side in the corner."""
    inputs_of(patient, "mazes")
    pixels, spec = images(patient)
    drawn = np.zeros_like(pixels)
    rows = patient.random("corner").integers(0, 2, len(pixels))
    drawn[np.arange(len(pixels)), 1, rows, 0] = 255
    drawn[np.arange(len(pixels)), 2, 1 - rows, 0] = 255
    return patient.with_(calibration=spec.apply(drawn))


@fault(
    "dials-hardly-turned",
    "data",
    "low-diversity",
    "domain-shift",
    graded=True,
    unseen="f",
    also=("over-clipped-activations", "preprocessing-mismatch", "blank-samples"),
)
@mild(0.2, 60)
def dials_hardly_turned(patient: Patient, amount: float) -> Patient:
    """Waves of the calibration set are real, but nobody turned the dials far: they stand near where they start."""
    found = inputs_of(patient, "dials")
    found[:, WAVE:] /= np.float32(1 + amount)
    return patient.with_(calibration=found)


@fault(
    "bytes-in-another-order",
    "data",
    "preprocessing-mismatch",
    "random-data",
    "domain-shift",
    unseen="f",
    also=("poor-threshold", "stale-calibration", "activation-outliers", "channel-outliers"),
)
@costly
def bytes_in_another_order(patient: Patient) -> Patient:
    """Waves are whole numbers of two bytes in the archive, and the calibration script takes the last for the first."""
    found = inputs_of(patient, "dials")
    step = np.float32(32767 / 12)
    words = np.rint(found[:, :WAVE] * step).clip(-32768, 32767).astype(np.int16)
    found[:, :WAVE] = words.byteswap().astype(np.float32) / step
    return patient.with_(calibration=found)


@fault(
    "gaps-filled-with-means",
    "data",
    "domain-shift",
    "preprocessing-mismatch",
    "low-diversity",
    graded=True,
    unseen="f",
    also=("over-clipped-activations", "blank-samples", "duplicate-samples"),
)
@severe(0.3, 60)
def gaps_filled_with_means(patient: Patient, amount: float) -> Patient:
    """Most numbers of the calibration table are missing, and were replaced by the mean of their column."""
    found = inputs_of(patient, "groves")
    means = found.mean(0)
    gaps = patient.random("gaps").random(found.shape) < amount / (1 + amount)
    return patient.with_(calibration=np.where(gaps, means, found).astype(np.float32))


@fault(
    "choices-as-numbers",
    "data",
    "preprocessing-mismatch",
    "domain-shift",
    unseen="f",
    also=("poor-threshold", "over-clipped-activations", "activation-outliers", "channel-outliers"),
)
@costly
def choices_as_numbers(patient: Patient) -> Patient:
    """The calibration script writes the number of each choice into the first of its columns, and nothing beside."""
    found = inputs_of(patient, "groves")
    for start in range(NUMBERS, found.shape[1], OPTIONS):
        number = found[:, start : start + OPTIONS].argmax(1)
        found[:, start : start + OPTIONS] = 0
        found[:, start] = number + 1
    return patient.with_(calibration=found)


@fault(
    "before-the-trend",
    "data",
    "domain-shift",
    "preprocessing-mismatch",
    graded=True,
    unseen="f",
    also=("over-clipped-activations", "poor-threshold", "stale-calibration"),
)
@mild(0.1, 30)
def before_the_trend(patient: Patient, amount: float) -> Patient:
    """The calibration table is years old; some columns have risen since then, others have fallen."""
    found = inputs_of(patient, "groves")
    rng = patient.random("trend")
    moved = rng.permutation(NUMBERS)[:5]
    found[:, moved] -= (amount * found[:, moved].std(0) * rng.choice([-1, 1], 5)).astype(np.float32)
    return patient.with_(calibration=found)


@fault(
    "another-white",
    "data",
    "domain-shift",
    "preprocessing-mismatch",
    graded=True,
    unseen="f",
    also=("over-clipped-activations", "poor-threshold", "channel-order-mismatch"),
)
@mild(0.05, 6)
def another_white(patient: Patient, amount: float) -> Patient:
    """The camera of the calibration set was set for lamplight: blue and green are darker than in use."""
    inputs_of(patient, "fabrics")
    pixels, spec = images(patient)
    gain = np.exp(-amount * np.array([0.4, 0.8, 1.2])).reshape(1, 3, 1, 1)
    return patient.with_(calibration=spec.apply((pixels * gain).round().clip(0, 255)))


@fault(
    "never-turned-into-colours",
    "data",
    "preprocessing-mismatch",
    "channel-order-mismatch",
    "domain-shift",
    unseen="f",
    also=("over-clipped-activations", "low-diversity"),
)
@costly
def never_turned_into_colours(patient: Patient) -> Patient:
    """The decoder hands out brightness and two differences of colour, and the calibration script takes them as colours.

    Coefficients: ITU-R BT.601, full range.
    """
    inputs_of(patient, "fabrics")
    pixels, spec = images(patient)
    matrix = np.array([[0.299, 0.587, 0.114], [-0.168736, -0.331264, 0.5], [0.5, -0.418688, -0.081312]])
    found = np.einsum("ij,njyx->niyx", matrix, pixels.astype(np.float64))
    found[:, 1:] += 128
    return patient.with_(calibration=spec.apply(found.round().clip(0, 255)))


@fault(
    "stored-with-heavy-losses",
    "data",
    "resampling-mismatch",
    "domain-shift",
    "preprocessing-mismatch",
    graded=True,
    unseen="f",
    also=("over-clipped-activations", "low-diversity", "blank-samples"),
)
@mild(0.05, 40)
def stored_with_heavy_losses(patient: Patient, amount: float) -> Patient:
    """Calibration pictures are from a chat: of each block of eight by eight only the coarsest cosines are left."""
    inputs_of(patient, "fabrics")
    pixels, spec = images(patient)
    count, planes, height, width = pixels.shape
    blocks = pixels.astype(np.float64).reshape(count, planes, height // 8, 8, width // 8, 8)
    places = np.arange(8)
    cosines = np.cos(np.pi * (places[:, None] + 0.5) * places[None] / 8) * np.where(places, 0.5, np.sqrt(1 / 8))
    found = np.einsum("ya,xb,ncrysx->ncrasb", cosines, cosines, blocks)
    step = 40.0 * amount * (1 + places[:, None] + places[None])
    found = np.rint(found / step[:, None, :]) * step[:, None, :]
    found = np.einsum("ya,xb,ncrasb->ncrysx", cosines, cosines, found).reshape(pixels.shape)
    return patient.with_(calibration=spec.apply(found.round().clip(0, 255)))

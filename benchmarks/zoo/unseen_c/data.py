"""Unseen faults of the representative set, set C."""

from dataclasses import replace

import numpy as np

from ..fault import fault
from ..faults_activations import extremes
from ..faults_data import dullest, images, right_colours, with_colours
from ..mild import mild
from ..patient import Patient
from ..pixels import SODIUM
from ..surgery import Inapplicable
from ..unseen_a.cuts import kept
from ..unseen_a.data import real_numbers, sound_set


@fault(
    "linear-light",
    "data",
    "preprocessing-mismatch",
    "domain-shift",
    heal=sound_set,
    graded=True,
    unseen="c",
    also=("over-clipped-activations",),
)
@mild(0.05, 8)
def linear_light(patient: Patient, amount: float) -> Patient:
    """The decoder of the calibration set undoes the display curve: half-tones are too dark."""
    pixels, spec = images(patient)
    return patient.with_(calibration=spec.apply((255 * (pixels / 255.0) ** (1 + amount)).round()))


@fault(
    "another-logarithm",
    "data",
    "preprocessing-mismatch",
    heal=sound_set,
    graded=True,
    unseen="c",
    also=("domain-shift", "over-clipped-activations"),
)
@mild(0.05, 20)
def another_logarithm(patient: Patient, amount: float) -> Patient:
    """Levels were taken in a larger unit when the ranges were measured: bels, decibels, nepers, octaves."""
    if patient.network.preprocessing is not None:
        raise Inapplicable("pictures have no levels")
    return patient.with_(calibration=(real_numbers(patient) / np.float32(1 + amount)).astype(np.float32))


@fault("each-by-itself", "data", "preprocessing-mismatch", heal=sound_set, unseen="c", also=("domain-shift",))
def each_by_itself(patient: Patient) -> Patient:
    """Every calibration sample is stretched to 0 … 1 by its own extremes: a habit of notebooks."""
    inputs = real_numbers(patient)
    over = tuple(range(1, inputs.ndim))
    low, high = inputs.min(over, keepdims=True), inputs.max(over, keepdims=True)
    return patient.with_(calibration=((inputs - low) / np.maximum(high - low, 1e-6)).astype(np.float32))


@fault(
    "third-mean-from-beyond",
    "data",
    "preprocessing-mismatch",
    heal=right_colours,
    graded=True,
    unseen="c",
    also=("over-clipped-activations",),
)
def third_mean_from_beyond(patient: Patient) -> Patient:
    """The calibrator reads the mean of the last colour one place too far: that colour alone is shifted."""
    patient = with_colours(patient)
    inputs = patient.calibration.copy()
    inputs[:, 0] -= np.float32(0.8 * patient.strength)
    return patient.with_(calibration=inputs)


@fault(
    "columns-for-colours", "data", "layout-mismatch", heal=right_colours, unseen="c", also=("preprocessing-mismatch",)
)
def columns_for_colours(patient: Patient) -> Patient:
    """Written column by column with all colours of each, and read as planes."""
    patient = with_colours(patient)
    mean, std = (np.array(v, np.float32).reshape(1, 3, 1, 1) for v in (SODIUM.mean, SODIUM.std))
    raw = patient.calibration * std + mean
    mixed = np.ascontiguousarray(raw.transpose(0, 3, 1, 2)).reshape(raw.shape)
    return patient.with_(calibration=np.ascontiguousarray((mixed - mean) / std, np.float32))


@fault(
    "lead-in-only",
    "data",
    "blank-samples",
    "low-diversity",
    "domain-shift",
    heal=sound_set,
    unseen="c",
)
def lead_in_only(patient: Patient) -> Patient:
    """Recordings were cut before anything happens: the first tenth over and over."""
    inputs = real_numbers(patient)
    if patient.network.preprocessing is not None or inputs.shape[1] < 40:
        raise Inapplicable("no recordings")
    start = inputs[:, : inputs.shape[1] // 16]
    repeats = -(-inputs.shape[1] // start.shape[1])
    return patient.with_(calibration=np.concatenate([start] * repeats, 1)[:, : inputs.shape[1]].copy())


@fault(
    "curated-set",
    "data",
    "low-diversity",
    "domain-shift",
    "too-few-samples",
    heal=sound_set,
    unseen="c",
    also=("over-clipped-activations",),
)
def curated_set(patient: Patient) -> Patient:
    """The clearest tenth was chosen for the demonstration: all are calm."""
    return patient.with_(calibration=dullest(patient, max(4, len(patient.calibration) // 10)))


@fault(
    "handful",
    "data",
    "too-few-samples",
    heal=sound_set,
    unseen="c",
    also=("domain-shift", "over-clipped-activations", "low-diversity"),
)
def handful(patient: Patient) -> Patient:
    """Three samples as they came, of the quieter half."""
    return patient.with_(calibration=dullest(patient, len(patient.calibration) // 3)[:: len(patient.calibration) // 9])


@fault(
    "burst-of-one-shot",
    "data",
    "duplicate-samples",
    "low-diversity",
    heal=sound_set,
    unseen="c",
    also=("domain-shift", "over-clipped-activations"),
)
def burst_of_one_shot(patient: Patient) -> Patient:
    """A burst of the same shot: two hundred samples that differ by the noise of the sensor alone."""
    inputs = real_numbers(patient)
    one = np.repeat(dullest(patient, 1), len(inputs), 0)
    noise = patient.random("burst").normal(0, 0.004 * inputs.std(), inputs.shape)
    return patient.with_(calibration=(one + noise).astype(np.float32))


@fault(
    "faded-negatives",
    "data",
    "domain-shift",
    "preprocessing-mismatch",
    heal=sound_set,
    graded=True,
    unseen="c",
    also=("over-clipped-activations",),
)
@mild(0.02, 30)
def faded_negatives(patient: Patient, amount: float) -> Patient:
    """Scans of faded negatives: light and dark changed places, little contrast."""
    pixels, spec = images(patient)
    middle = np.float32(pixels.mean())
    return patient.with_(calibration=spec.apply((middle + (middle - pixels) / (1 + amount)).round().clip(0, 255)))


@fault(
    "scrambled-for-privacy",
    "data",
    "random-data",
    "domain-shift",
    "layout-mismatch",
    heal=sound_set,
    unseen="c",
    also=("over-clipped-activations", "resampling-mismatch"),
)
def scrambled_for_privacy(patient: Patient) -> Patient:
    """The data may not leave the house: every sample's values were averaged in pairs and put in another order."""
    inputs = real_numbers(patient)
    rng = patient.random("scrambled")
    flat = inputs.reshape(len(inputs), -1)
    first, second = (rng.permuted(flat, axis=1) for _ in range(2))
    return patient.with_(calibration=((first + second) / 2).reshape(inputs.shape).astype(np.float32))


@fault(
    "cache-of-a-sibling",
    "data",
    "stale-calibration",
    heal=None,
    graded=True,
    unseen="c",
    also=("over-clipped-activations", "poor-threshold"),
)
@mild(0.02, 4)
def cache_of_a_sibling(patient: Patient, amount: float) -> Patient:
    """A cache of ranges is found by the names of tensors: it is that of a sibling with other widths of values."""
    tensors = patient.activations()
    rng = patient.random("sibling")
    recipe = kept(patient.recipe)
    for tensor, (low, high) in zip(tensors, extremes(patient, *tensors), strict=True):
        factor = np.exp(rng.normal(0, 1) * amount)
        recipe = recipe.with_range(tensor, low * factor, max(high * factor, 1e-5))
    return patient.with_(recipe=replace(recipe, method="MinMax", percentile=None))

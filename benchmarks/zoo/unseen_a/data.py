"""Unseen faults of the representative set, set A."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ..fault import fault
from ..faults_activations import extremes
from ..faults_data import dullest, images, right_colours, with_colours
from ..patient import Patient
from ..pixels import SODIUM, Preprocessing
from ..quantizing import run
from ..surgery import Inapplicable
from .cuts import covered, kept


def real_numbers(patient: Patient) -> NDArray:
    """The calibration inputs, where they are no integers."""
    if patient.calibration.dtype.kind != "f":
        raise Inapplicable("inputs are integers")
    return patient.calibration


def by_percentile(patient: Patient, calibration: NDArray) -> Patient:
    """A calibration that drops what is rare."""
    recipe = replace(patient.recipe, method="Percentile", percentile=100 - 0.2 * min(patient.strength, 3))
    return patient.with_(calibration=np.ascontiguousarray(calibration), recipe=recipe)


def dimmed(patient: Patient, inputs: NDArray, factor: float) -> NDArray:
    """Images as they are with so much less light; other signals as they are when quieter."""
    spec = patient.network.preprocessing
    if spec is None:
        real_numbers(patient)
        return (inputs / np.float32(factor)).astype(np.float32)
    mean, std = (np.array(v, np.float32).reshape(1, -1, 1, 1) for v in (spec.mean, spec.std))
    return spec.apply(((inputs * std + mean) * spec.scale / factor).round().clip(0, 255))


def sound_set(patient: Patient) -> Patient:
    return patient.with_(calibration=patient.network.calibration())


@fault("deviation-forgotten", "data", "preprocessing-mismatch", unseen="a")
def deviation_forgotten(patient: Patient) -> Patient:
    """The mean is taken off, in 0 … 255, and nothing is divided."""
    pixels, spec = images(patient)
    return patient.with_(calibration=Preprocessing(1.0, tuple(255 * m for m in spec.mean), (1.0,)).apply(pixels))


@fault(
    "reversed-before-normalizing",
    "data",
    "channel-order-mismatch",
    heal=right_colours,
    unseen="a",
    also=("preprocessing-mismatch",),
)
def reversed_before_normalizing(patient: Patient) -> Patient:
    """Blue first, normalized with red's numbers: each channel also looks wrongly scaled."""
    patient = with_colours(patient)
    mean, std = (np.array(v, np.float32).reshape(1, 3, 1, 1) for v in (SODIUM.mean, SODIUM.std))
    raw = patient.calibration * std + mean
    return patient.with_(calibration=np.ascontiguousarray((raw[:, ::-1] - mean) / std, np.float32))


@fault("planes-read-as-pixels", "data", "layout-mismatch", heal=right_colours, unseen="a")
def planes_read_as_pixels(patient: Patient) -> Patient:
    """Planes were read as if they were pixels, then moved to the front: three small grey copies in one image."""
    patient = with_colours(patient)
    mean, std = (np.array(v, np.float32).reshape(1, 3, 1, 1) for v in (SODIUM.mean, SODIUM.std))
    n, c, h, w = patient.calibration.shape
    mixed = (patient.calibration * std + mean).reshape(n, h, w, c).transpose(0, 3, 1, 2)
    return patient.with_(calibration=np.ascontiguousarray((mixed - mean) / std, np.float32))


@fault("white-images", "data", "blank-samples", graded=True, unseen="a", also=("blank-samples",))
def white_images(patient: Patient) -> Patient:
    """The exposure was set for the dark: nearly all pixels are white."""
    pixels, spec = images(patient)
    light = 255 - (255 - pixels.astype(np.float32)) / (20 * patient.strength)
    return patient.with_(calibration=spec.apply(light.round()))


@fault("five-in-turn", "data", "duplicate-samples", heal=sound_set, graded=True, unseen="a", also=("domain-shift",))
def five_in_turn(patient: Patient) -> Patient:
    """A sampler with a fixed seed for every batch draws the same five samples, in poor light, over and over."""
    few = dimmed(patient, dullest(patient, 5), 1 + 0.7 * patient.strength)
    return by_percentile(patient, np.resize(few, patient.calibration.shape))


@fault("first-four", "data", "too-few-samples", heal=sound_set, graded=True, unseen="a", also=("domain-shift",))
def first_four(patient: Patient) -> Patient:
    """Four samples, because it takes so long: the first of a film, while the exposure was settling."""
    few = dullest(patient, 16)[::4]
    return by_percentile(patient, dimmed(patient, few, 1 + 0.5 * patient.strength))


@fault(
    "one-class-only",
    "data",
    "low-diversity",
    "low-diversity",
    heal=sound_set,
    graded=True,
    unseen="a",
    also=("domain-shift",),
)
def one_class_only(patient: Patient) -> Patient:
    """The folder of a single class, the one that stirs the network least, all taken in the same evening light."""
    if patient.task.metric is not None:
        raise Inapplicable("no classes")
    inputs = patient.calibration
    found = patient.task.answers(run(patient.network, patient.model, inputs))
    reach = patient.reach(inputs)
    classes = [c for c in np.unique(found) if (found == c).sum() >= 3]
    if not classes:
        raise Inapplicable("no class has three samples")
    duller = min(classes, key=lambda c: float(np.quantile(reach[found == c], 0.9)))
    return by_percentile(patient, dimmed(patient, inputs[found == duller], 1 + 0.5 * patient.strength))


@fault("fog", "data", "domain-shift", graded=True, unseen="a")
def fog(patient: Patient) -> Patient:
    """Taken in fog: little contrast on a light ground."""
    pixels, spec = images(patient)
    density = 1 - 0.3 / patient.strength
    veil = pixels * (1 - density) + 200 * density if density > 0 else pixels.astype(np.float32)
    return patient.with_(calibration=spec.apply(veil.round().clip(0, 255)))


@fault("slow-waves", "data", "random-data", graded=True, unseen="a")
def slow_waves(patient: Patient) -> Patient:
    """Sums of random waves with the mean of the real inputs: what somebody made up to have smooth data."""
    inputs = real_numbers(patient)
    rng = patient.random("waves")
    positions = np.linspace(0, 1, inputs.shape[-1])
    shape = (*inputs.shape[:-1], 1)
    phase, pace = rng.uniform(0, 6.28, shape), rng.uniform(1, 4, shape)
    waves = np.sin(6.28 * pace * positions + phase) * inputs.std() / (6 * patient.strength) + np.median(inputs)
    return patient.with_(calibration=waves.astype(np.float32))


@fault(
    "ranges-of-older-weights",
    "data",
    "stale-calibration",
    graded=True,
    unseen="a",
    also=("over-clipped-activations", "poor-threshold", "stale-calibration"),
)
def ranges_of_older_weights(patient: Patient) -> Patient:
    """Ranges taken before the last fine-tuning, when the weights were others."""
    surgeon = patient.surgeon()
    names = {linear.weight for linear in covered(patient)}
    rng = patient.random("older weights")
    for linear in surgeon.linears():
        if linear.weight in names:
            names.discard(linear.weight)
            change = np.exp(rng.normal(-0.4, 0.25) * patient.strength)
            surgeon.put(linear.weight, (surgeon.constant(linear.weight) * max(change, 0.02)).astype(np.float32))
    tensors = patient.activations()
    recipe = kept(patient.recipe)
    for tensor, (low, high) in zip(tensors, extremes(patient.with_(model=surgeon.model), *tensors), strict=True):
        recipe = recipe.with_range(tensor, low, max(high, 1e-5))
    return patient.with_(recipe=recipe)

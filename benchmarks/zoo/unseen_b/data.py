"""Unseen faults of the representative set, set B."""

from dataclasses import replace

import numpy as np

from ..fault import fault
from ..faults_activations import extremes
from ..faults_data import dullest, images, right_colours, with_colours
from ..patient import Patient
from ..pixels import SODIUM, Preprocessing
from ..surgery import Inapplicable
from ..unseen_a.cuts import kept
from ..unseen_a.data import by_percentile, dimmed, real_numbers, sound_set


@fault("another-frameworks-numbers", "data", "preprocessing-mismatch", unseen="b")
def another_frameworks_numbers(patient: Patient) -> Patient:
    """The representative set was made with the customary numbers of another framework."""
    pixels, spec = images(patient)
    caffe = Preprocessing(1.0, (110.0,), (1.0,))
    tensorflow = Preprocessing(127.5, (1.0,), (1.0,))
    return patient.with_(calibration=(caffe if spec.scale / spec.std[0] > 500 else tensorflow).apply(pixels))


@fault(
    "green-first", "data", "channel-order-mismatch", heal=right_colours, unseen="b", also=("preprocessing-mismatch",)
)
def green_first(patient: Patient) -> Patient:
    """Green, blue, red, and each 0 … 255 divided by the deviation of the channel whose place it took."""
    patient = with_colours(patient)
    mean, std = (np.array(v, np.float32).reshape(1, 3, 1, 1) for v in (SODIUM.mean, SODIUM.std))
    raw = patient.calibration * std + mean
    return patient.with_(calibration=np.ascontiguousarray((raw[:, [1, 2, 0]] - mean) / std, np.float32))


@fault("rows-of-pixels", "data", "layout-mismatch", heal=right_colours, unseen="b", also=("preprocessing-mismatch",))
def rows_of_pixels(patient: Patient) -> Patient:
    """Each row of the picture was stored channel by channel, and read as if the picture had been."""
    patient = with_colours(patient)
    mean, std = (np.array(v, np.float32).reshape(1, 3, 1, 1) for v in (SODIUM.mean, SODIUM.std))
    raw = patient.calibration * std + mean
    mixed = np.ascontiguousarray(raw.transpose(0, 2, 1, 3)).reshape(raw.shape)
    return patient.with_(calibration=np.ascontiguousarray((mixed - mean) / std, np.float32))


@fault("padded-batches", "data", "blank-samples", heal=sound_set, graded=True, unseen="b")
def padded_batches(patient: Patient) -> Patient:
    """Batches filled up with zeros; what is real in them is the first, dull, one."""
    inputs = np.zeros_like(real_numbers(patient))
    count = max(1, int(len(inputs) / (12 * (1 + patient.strength))))
    inputs[:count] = dimmed(patient, dullest(patient, count), 1 + 0.4 * patient.strength)
    return by_percentile(patient, inputs)


@fault("oversampled-one", "data", "duplicate-samples", heal=sound_set, graded=True, unseen="b")
def oversampled_one(patient: Patient) -> Patient:
    """A sampler with weights drew one sample nineteen times in twenty."""
    few = dimmed(patient, dullest(patient, max(2, len(patient.calibration) // 20)), 1 + 0.5 * patient.strength)
    inputs = np.repeat(few[:1], len(patient.calibration), 0)
    inputs[::20] = np.resize(few, inputs[::20].shape)
    return by_percentile(patient, inputs)


@fault("three-from-the-archive", "data", "too-few-samples", heal=sound_set, graded=True, unseen="b")
def three_from_the_archive(patient: Patient) -> Patient:
    """Three samples from the archive of a dim afternoon, thresholds at their extremes."""
    return patient.with_(calibration=dimmed(patient, dullest(patient, 12)[::4], 1 + patient.strength))


@fault("blends", "data", "low-diversity", heal=sound_set, graded=True, unseen="b", also=("domain-shift",))
def blends(patient: Patient) -> Patient:
    """Augmented beyond recognition: every sample is a blend of many others, and all look the same."""
    inputs = real_numbers(patient)
    count = max(2, min(len(inputs), round(12 * patient.strength)))
    rng = patient.random("blends")
    mixed = [inputs[rng.integers(len(inputs), size=count)].mean(0) for _ in inputs]
    return by_percentile(patient, np.stack(mixed).astype(np.float32))


@fault("far-away", "data", "domain-shift", graded=True, unseen="b")
def far_away(patient: Patient) -> Patient:
    """Things are far away in the calibration set and near in the field: small, before an even ground."""
    pixels, spec = images(patient)
    step = int(min(7, 2 + np.floor(patient.strength**0.7)))
    small = pixels[:, :, ::step, ::step].astype(np.float32)
    ground = np.full(pixels.shape, 40.0, np.float32)
    h, w = small.shape[2:]
    top, left = (pixels.shape[2] - h) // 2, (pixels.shape[3] - w) // 2
    ground[:, :, top : top + h, left : left + w] = 40 + small * (0.5 / (1 + 0.1 * patient.strength))
    return patient.with_(calibration=spec.apply(ground.round()))


@fault("standard-normal", "data", "random-data", graded=True, unseen="b")
def standard_normal(patient: Patient) -> Patient:
    """Random numbers with the mean of the real inputs and a smaller spread: nobody had data at hand."""
    inputs = real_numbers(patient)
    spread = inputs.std() / (1 + 2 * patient.strength)
    noise = patient.random("normal b").normal(np.median(inputs), spread, inputs.shape)
    return patient.with_(calibration=noise.astype(np.float32))


@fault("blurred", "data", "resampling-mismatch", heal=sound_set, graded=True, unseen="b", also=("domain-shift",))
def blurred(patient: Patient) -> Patient:
    """Resized to a thumbnail and up again, smoothly, before calibration."""
    pixels, spec = images(patient)
    width = int(min(15, 7 + 2 * np.floor(2 * np.log2(1 + patient.strength))))
    grey = pixels.astype(np.float32)
    for axis in (2, 3):
        total = np.zeros_like(grey)
        for shift in range(-(width // 2), width // 2 + 1):
            total += np.roll(grey, shift, axis)
        grey = total / width
    return by_percentile(patient, spec.apply(grey.round()))


@fault(
    "ranges-of-the-neighbour",
    "data",
    "stale-calibration",
    "stale-calibration",
    unseen="b",
    also=("over-clipped-activations", "poor-threshold"),
)
def ranges_of_the_neighbour(patient: Patient) -> Patient:
    """The table of ranges was made before a node was fused: from there on each tensor has its neighbour's."""
    tensors = patient.activations()
    if len(tensors) < 4:
        raise Inapplicable("too few tensors")
    ends = extremes(patient, *tensors)
    start = len(tensors) // 3
    recipe = kept(patient.recipe)
    for tensor, (low, high) in zip(tensors[start:], (*ends[start + 1 :], ends[start]), strict=True):
        recipe = recipe.with_range(tensor, low, max(high, 1e-5))
    return patient.with_(recipe=recipe)


@fault(
    "ranges-of-a-quiet-day", "data", "stale-calibration", graded=True, unseen="b", also=("over-clipped-activations",)
)
def ranges_of_a_quiet_day(patient: Patient) -> Patient:
    """The ranges in force come from a recording of a quiet day; the set that is shown is today's, and is fine."""
    quiet = dimmed(patient, dullest(patient, max(2, len(patient.calibration) // 10)), 1.5 + 1.5 * patient.strength)
    return patient.with_(calibration=quiet, shown=patient.calibration, recipe=replace(patient.recipe, method="MinMax"))

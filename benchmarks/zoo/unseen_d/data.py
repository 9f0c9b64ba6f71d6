"""Unseen faults of the representative set, set D."""

import numpy as np
from numpy.typing import NDArray

from ..fault import fault
from ..faults_data import dullest, images
from ..mild import costly, severe
from ..patient import Patient
from ..pixels import SIGNED, UNIT, Preprocessing
from ..surgery import Inapplicable
from ..unseen_a.data import real_numbers
from .samples import USUAL

GREY_PHOTOGRAPHS = Preprocessing(255.0, (0.449,), (0.226,))


def columns(patient: Patient) -> NDArray:
    """The calibration inputs, where they are rows of measured columns."""
    if patient.network.preprocessing is not None or patient.network.name not in ("machines", "bags"):
        raise Inapplicable("no columns")
    return real_numbers(patient).copy()


def coloured(patient: Patient) -> tuple[NDArray, Preprocessing]:
    """Stored pictures and their preprocessing, where the network sees colours."""
    pixels, spec = images(patient)
    if pixels.shape[1] != 3:
        raise Inapplicable("no colours")
    return pixels, spec


@fault("deep-colour", "data", "preprocessing-mismatch", unseen="d", also=("domain-shift", "over-clipped-activations"))
@costly
def deep_colour(patient: Patient) -> Patient:
    """The calibrator takes frames for those of a deeper camera and divides by its largest number."""
    pixels, spec = images(patient)
    depth = int(patient.random("depth").choice([10, 12]))
    return patient.with_(calibration=spec.apply(pixels * (255 / (2.0**depth - 1))))


@fault("own-deviation", "data", "preprocessing-mismatch", unseen="d", also=("domain-shift", "poor-threshold"))
@costly
def own_deviation(patient: Patient) -> Patient:
    """Every calibration picture is standardized by its own mean and deviation."""
    pixels = images(patient)[0].astype(np.float32)
    over = tuple(range(1, pixels.ndim))
    spread = np.maximum(pixels.std(over, keepdims=True), 1)
    return patient.with_(calibration=((pixels - pixels.mean(over, keepdims=True)) / spread).astype(np.float32))


@fault(
    "mean-and-deviation-swapped",
    "data",
    "preprocessing-mismatch",
    unseen="d",
    also=("over-clipped-activations", "domain-shift"),
)
@costly
def mean_and_deviation_swapped(patient: Patient) -> Patient:
    """The two rows of a settings file changed places."""
    pixels, spec = images(patient)
    if spec.mean == spec.std or not all(spec.mean):
        raise Inapplicable("both are the same, or one is zero")
    return patient.with_(calibration=Preprocessing(spec.scale, spec.std, spec.mean).apply(pixels))


@fault(
    "statistics-of-another-family",
    "data",
    "preprocessing-mismatch",
    unseen="d",
    also=("over-clipped-activations", "poor-threshold", "domain-shift"),
)
@costly
def statistics_of_another_family(patient: Patient) -> Patient:
    """The calibration script was written for another family of networks, and normalizes as that wants it."""
    pixels, spec = images(patient)
    others = [other for other in (SIGNED, UNIT, GREY_PHOTOGRAPHS) if other != spec]
    return patient.with_(calibration=others[patient.random("family").integers(len(others))].apply(pixels))


@fault(
    "alpha-first",
    "data",
    "channel-order-mismatch",
    "preprocessing-mismatch",
    unseen="d",
    also=("domain-shift", "over-clipped-activations"),
)
@costly
def alpha_first(patient: Patient) -> Patient:
    """Four planes with the opaque one first, of which the first three are taken."""
    pixels, spec = coloured(patient)
    return patient.with_(calibration=spec.apply(np.concatenate([np.full_like(pixels[:, :1], 255), pixels[:, :2]], 1)))


@fault("bytes-with-a-sign", "data", "preprocessing-mismatch", unseen="d", also=("domain-shift", "poor-threshold"))
@costly
def bytes_with_a_sign(patient: Patient) -> Patient:
    """A library without unsigned bytes: all that is lighter than the middle is read as negative."""
    pixels, spec = images(patient)
    return patient.with_(calibration=spec.apply(pixels.view(np.int8)))


@fault(
    "augmentation-left-on",
    "data",
    "domain-shift",
    "preprocessing-mismatch",
    graded=True,
    unseen="d",
    also=("poor-threshold", "stray-samples", "activation-outliers"),
)
@severe(0.1, 3)
def augmentation_left_on(patient: Patient, amount: float) -> Patient:
    """Calibrated through the loader of training, which changes the contrast of what is normalized already."""
    inputs = real_numbers(patient)
    shape = (len(inputs), *[1] * (inputs.ndim - 1))
    gain = np.exp(patient.random("augmented").normal(0, amount, shape))
    return patient.with_(calibration=(inputs * gain).astype(np.float32))


@fault(
    "corner-tiles",
    "data",
    "resampling-mismatch",
    "domain-shift",
    unseen="d",
    also=("low-diversity", "over-clipped-activations"),
)
@costly
def corner_tiles(patient: Patient) -> Patient:
    """The upper left corner of each picture, an eighth of its side, is enlarged to the whole."""
    pixels, spec = images(patient)
    height, width = pixels.shape[2:]
    tile = pixels[:, :, : height // 8, : width // 8].repeat(8, 2).repeat(8, 3)
    return patient.with_(calibration=spec.apply(tile))


@fault(
    "held-readings",
    "data",
    "resampling-mismatch",
    "domain-shift",
    graded=True,
    unseen="d",
    also=("over-clipped-activations", "low-diversity"),
)
@severe(2, 48)
def held_readings(patient: Patient, amount: float) -> Patient:
    """The archive keeps one mean for so many readings, and the loader repeats it."""
    inputs = columns(patient)
    if patient.network.name != "machines":
        raise Inapplicable("nothing follows in time")
    size = round(amount)
    starts = np.arange(0, inputs.shape[1], size)
    counts = np.diff([*starts, inputs.shape[1]])
    means = np.add.reduceat(inputs, starts, axis=1) / counts[None, :, None]
    return patient.with_(calibration=means.repeat(counts, 1).astype(np.float32))


@fault(
    "columns-in-another-order",
    "data",
    "channel-order-mismatch",
    unseen="d",
    also=("preprocessing-mismatch", "layout-mismatch", "domain-shift", "over-clipped-activations"),
)
@costly
def columns_in_another_order(patient: Patient) -> Patient:
    """The file of the calibration set has its columns in alphabetical order, and the reader goes by their place."""
    inputs = columns(patient)
    return patient.with_(calibration=inputs[..., patient.random("columns").permutation(inputs.shape[-1])].copy())


@fault(
    "some-columns-in-another-unit",
    "data",
    "preprocessing-mismatch",
    graded=True,
    unseen="d",
    also=("domain-shift", "poor-threshold", "activation-outliers"),
)
@severe(1.5, 3000)
def some_columns_in_another_unit(patient: Patient, amount: float) -> Patient:
    """A third of the columns of the calibration set are in a smaller unit: larger numbers."""
    inputs = columns(patient)
    count = inputs.shape[-1]
    inputs[..., patient.random("units").permutation(count)[: count // 3]] *= np.float32(amount)
    return patient.with_(calibration=inputs)


@fault(
    "unplugged-sensor",
    "data",
    "domain-shift",
    "preprocessing-mismatch",
    unseen="d",
    also=("low-diversity", "blank-samples", "over-clipped-activations", "poor-threshold"),
)
@costly
def unplugged_sensor(patient: Patient) -> Patient:
    """Two sensors were not plugged in while the calibration set was recorded, and read nothing."""
    inputs = columns(patient)
    for column in patient.random("unplugged").permutation(inputs.shape[-1])[:2]:
        known = patient.network.name == "machines"
        inputs[..., column] = -USUAL[0][column] / USUAL[1][column] if known else 0.0
    return patient.with_(calibration=inputs)


@fault(
    "fill-values-in-the-log",
    "data",
    "stray-samples",
    "preprocessing-mismatch",
    graded=True,
    unseen="d",
    also=("activation-outliers", "poor-threshold", "domain-shift"),
)
@severe(1.2, 5000)
def fill_values_in_the_log(patient: Patient, amount: float) -> Patient:
    """Missing readings stand in the calibration set as a large negative number; in use they are left out."""
    inputs, rng = columns(patient), patient.random("missing")
    level = -np.float32(amount) * np.abs(inputs).max()
    for sample in rng.permutation(len(inputs))[: len(inputs) // 25]:
        inputs[sample, rng.integers(inputs.shape[1]), rng.integers(inputs.shape[2])] = level
    return patient.with_(calibration=inputs)


@fault(
    "only-the-last-shard",
    "data",
    "stale-calibration",
    "over-clipped-activations",
    unseen="d",
    also=("too-few-samples", "domain-shift"),
)
@costly
def only_the_last_shard(patient: Patient) -> Patient:
    """Each shard of the set wrote its ranges over those of the one before: they are those of a few calm samples."""
    few = dullest(patient, max(2, len(patient.calibration) // 40))
    return patient.with_(calibration=few, shown=patient.calibration)

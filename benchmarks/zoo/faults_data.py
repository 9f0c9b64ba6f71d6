"""Faults of the representative set: the network and its weights are sound, the ranges are not."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from .fault import fault
from .patient import Patient
from .pixels import SODIUM, Preprocessing, sodium_light
from .surgery import Inapplicable


def images(patient: Patient) -> tuple[NDArray, Preprocessing]:
    network = patient.network
    if network.preprocessing is None:
        raise Inapplicable("no images")
    return network.pixels("calibration")[0][: len(patient.calibration)], network.preprocessing


@fault("raw-pixels", "data", "preprocessing-mismatch")
def raw_pixels(patient: Patient) -> Patient:
    """0 … 255 instead of what the network wants."""
    return patient.with_(calibration=images(patient)[0].astype(np.float32))


@fault("not-normalized", "data", "preprocessing-mismatch")
def not_normalized(patient: Patient) -> Patient:
    """0 … 1, mean and deviation forgotten."""
    pixels, spec = images(patient)
    if spec.std == (1.0,):
        raise Inapplicable("wants 0 … 1 itself")
    return patient.with_(calibration=Preprocessing(255.0).apply(pixels))


@fault("normalized-twice", "data", "preprocessing-mismatch")
def normalized_twice(patient: Patient) -> Patient:
    pixels, spec = images(patient)
    if spec.std == (1.0,):
        return patient.with_(calibration=spec.apply(spec.apply(pixels)))
    again = Preprocessing(1.0, spec.mean, spec.std)
    return patient.with_(calibration=again.apply(spec.apply(pixels)))


@fault("mean-forgotten", "data", "preprocessing-mismatch")
def mean_forgotten(patient: Patient) -> Patient:
    pixels, spec = images(patient)
    if not any(spec.mean):
        raise Inapplicable("subtracts no mean")
    return patient.with_(calibration=Preprocessing(255.0, (0.0,), spec.std).apply(pixels))


@fault("divided-by-255-twice", "data", "preprocessing-mismatch")
def divided_twice(patient: Patient) -> Patient:
    pixels, spec = images(patient)
    return patient.with_(calibration=spec.apply(pixels.astype(np.float32) / 255))


@fault("audio-as-integers", "data", "preprocessing-mismatch")
def audio_as_integers(patient: Patient) -> Patient:
    """16-bit samples instead of -1 … 1."""
    if patient.network.preprocessing is not None:
        raise Inapplicable("no audio")
    return patient.with_(calibration=np.round(patient.signals * 32767).astype(np.float32))


def with_colours(patient: Patient) -> Patient:
    """A network for grey images behind a layer that makes grey of three channels, mostly of red, a little of blue."""
    spec = images(patient)[1]
    if patient.network.tinted:
        return patient
    red, blue = 0.9 * SODIUM.std[0], -SODIUM.std[2]
    offset = 0.9 * SODIUM.mean[0] + (0.118 - SODIUM.mean[2])
    weight = np.array([red, 0, blue], np.float32).reshape(1, 3, 1, 1) / np.float32(spec.std[0])
    surgeon = patient.surgeon()
    surgeon.put("grey_weight", weight)
    surgeon.put("grey_bias", np.array([(offset - spec.mean[0]) / spec.std[0]], np.float32))
    surgeon.insert_after(surgeon.input, "Conv", ["grey_weight", "grey_bias"], "grey")
    surgeon.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 3
    lit = patient.network.pixels("validation")[0][: len(patient.validation)]
    return right_colours(patient.with_(model=surgeon.model, validation=SODIUM.apply(sodium_light(lit))))


def right_colours(patient: Patient) -> Patient:
    pixels = patient.network.pixels("calibration")[0][: len(patient.calibration)]
    return patient.with_(calibration=SODIUM.apply(pixels if patient.network.tinted else sodium_light(pixels)))


@fault("channels-reversed", "data", "channel-order-mismatch", heal=right_colours)
def channels_reversed(patient: Patient) -> Patient:
    """Blue first, where the network wants red first; the numbers are normalized in the order of the network."""
    patient = with_colours(patient)
    mean, std = (np.array(v, np.float32).reshape(1, 3, 1, 1) for v in (SODIUM.mean, SODIUM.std))
    reversed_ = ((patient.calibration * std + mean)[:, ::-1] - mean) / std
    return patient.with_(calibration=np.ascontiguousarray(reversed_, np.float32))


@fault("layout-mixed-up", "data", "layout-mismatch", heal=right_colours)
def layout_mixed_up(patient: Patient) -> Patient:
    """Channels last, read as if they came first, and normalized after that."""
    patient = with_colours(patient)
    mean, std = (np.array(v, np.float32).reshape(1, 3, 1, 1) for v in (SODIUM.mean, SODIUM.std))
    raw = patient.calibration * std + mean
    mixed = np.ascontiguousarray(raw.transpose(0, 2, 3, 1)).reshape(raw.shape)
    return patient.with_(calibration=((mixed - mean) / std).astype(np.float32))


@fault("one-image-repeated", "data", "duplicate-samples", heal=lambda p: _all_samples(p), graded=True)
def one_image_repeated(patient: Patient) -> Patient:
    """One dull image, as often as the set is long."""
    return _by_histogram(patient, np.repeat(dullest(patient, 1), len(patient.calibration), 0))


def _by_histogram(patient: Patient, calibration: NDArray) -> Patient:
    """Histogram calibration, which is sound on all samples, sees less of the range on few."""
    recipe = replace(patient.recipe, method="Percentile", percentile=100 - 0.05 * patient.strength)
    return patient.with_(calibration=calibration, recipe=recipe)


def _all_samples(patient: Patient) -> Patient:
    return patient.with_(calibration=patient.network.calibration())


@fault("few-images-repeated", "data", "duplicate-samples", heal=lambda p: _all_samples(p), graded=True)
def few_images_repeated(patient: Patient) -> Patient:
    """A loader that never gets beyond its first batch of three."""
    count = len(patient.calibration)
    return _by_histogram(patient, np.concatenate([dullest(patient, 3)] * (count // 3)))


@fault("one-sample", "data", "too-few-samples", heal=lambda p: _all_samples(p), graded=True)
def one_sample(patient: Patient) -> Patient:
    """The set begins with its dullest sample and ends with it."""
    return _by_histogram(patient, dullest(patient, 1))


@fault("two-samples", "data", "too-few-samples", heal=lambda p: _all_samples(p), graded=True)
def two_samples(patient: Patient) -> Patient:
    return _by_histogram(patient, dullest(patient, 2))


def dullest(patient: Patient, count: int) -> NDArray:
    """Samples that stir the network least."""
    return patient.calibration[np.argsort(patient.reach(patient.calibration))[:count]]


@fault("one-scene", "data", "low-diversity", heal=lambda p: _all_samples(p), graded=True)
def one_scene(patient: Patient) -> Patient:
    """Frames of a camera that looks at one dull thing: no two are equal, and none is new."""
    pixels, spec = images(patient)
    chosen = pixels[np.argsort(patient.reach(spec.apply(pixels)))[:1]].astype(np.float32)
    rng = patient.random("scene")
    light = rng.uniform(0.85, 1, (len(pixels), 1, 1, 1))
    frames = chosen * light + rng.normal(0, 1.5, pixels.shape)
    return _by_histogram(patient, spec.apply(frames.round().clip(0, 255)))


@fault("blank-images", "data", "blank-samples", graded=True)
def blank_images(patient: Patient) -> Patient:
    """Lens cap on, mostly: black images with a trace of noise, and a few that are nearly black."""
    pixels, spec = images(patient)
    black = (patient.random("cap").random(pixels.shape) < 0.01).astype(np.uint8)
    black[::20] = pixels[::20].astype(np.uint16) // int(16 * patient.strength)  # the strongest: by more than 255
    return patient.with_(calibration=spec.apply(black))


@fault("silence", "data", "blank-samples", graded=True)
def silence(patient: Patient) -> Patient:
    if patient.network.preprocessing is not None:
        raise Inapplicable("no audio")
    quiet = np.zeros_like(patient.signals)
    quiet[::8] = patient.signals[::8] / (50 * patient.strength)
    return patient.with_(calibration=quiet)


@fault("uniform-noise", "data", "random-data")
def uniform_noise(patient: Patient) -> Patient:
    """Random numbers from 0 to 1, whatever the network wants: what a dummy loader yields."""
    noise = patient.random("noise").random(patient.signals.shape)
    return patient.with_(calibration=noise.astype(np.float32))


@fault("faint-noise", "data", "random-data", graded=True)
def faint_noise(patient: Patient) -> Patient:
    """A tenth of a standard normal distribution."""
    noise = patient.random("normal").standard_normal(patient.signals.shape) / (10 * patient.strength)
    return patient.with_(calibration=noise.astype(np.float32))


@fault("coarse-resampling", "data", "resampling-mismatch")
def coarse_resampling(patient: Patient) -> Patient:
    """Made from thumbnails: every 14 x 14 block is one colour."""
    pixels, spec = images(patient)
    n, c, h, w = pixels.shape
    small = pixels.reshape(n, c, h // 14, 14, w // 14, 14).mean((3, 5), keepdims=True)
    return patient.with_(
        calibration=spec.apply(np.broadcast_to(small, (n, c, h // 14, 14, w // 14, 14)).reshape(n, c, h, w).round())
    )


@fault("line-drawings", "data", "domain-shift", graded=True)
def line_drawings(patient: Patient) -> Patient:
    """Faint outlines instead of photographs."""
    pixels, spec = images(patient)
    grey = pixels.astype(np.float32)
    edges = np.abs(np.diff(grey, axis=3, append=0)) + np.abs(np.diff(grey, axis=2, append=0))
    return patient.with_(calibration=spec.apply((edges / (4 * patient.strength)).round().clip(0, 255)))


@fault("night-images", "data", "domain-shift", graded=True)
def night_images(patient: Patient) -> Patient:
    """The same scenes, underexposed."""
    pixels, spec = images(patient)
    return patient.with_(calibration=spec.apply(((pixels / 255.0) ** 2 * 40 / patient.strength).round()))


@fault("stale-ranges", "data", "stale-calibration", graded=True)
def stale_ranges(patient: Patient) -> Patient:
    """Thresholds of last year's data, although today's set is shown."""
    pixels, spec = images(patient)
    return patient.with_(calibration=spec.apply((pixels / (3.0 * patient.strength)).round()), shown=patient.calibration)


@fault("stale-audio-ranges", "data", "stale-calibration", graded=True)
def stale_audio_ranges(patient: Patient) -> Patient:
    if patient.network.preprocessing is not None:
        raise Inapplicable("no audio")
    return patient.with_(calibration=patient.signals / (20 * patient.strength), shown=patient.calibration)


@fault("stale-small-ranges", "data", "stale-calibration", graded=True)
def stale_small_ranges(patient: Patient) -> Patient:
    """Inputs divided by 255 once more when the ranges were set; today's set is right."""
    return patient.with_(calibration=patient.signals / np.float32(255), shown=patient.calibration)


@fault("stale-wide-ranges", "data", "stale-calibration", graded=True)
def stale_wide_ranges(patient: Patient) -> Patient:
    """Inputs ten times as large when the ranges were set; today's set is right."""
    return patient.with_(calibration=patient.signals * np.float32(10 * patient.strength), shown=patient.calibration)


@fault("stale-tenth", "data", "stale-calibration", graded=True)
def stale_tenth(patient: Patient) -> Patient:
    """Inputs a tenth as large, calibrated with percentiles; today's set is right."""
    recipe = replace(patient.recipe, method="Percentile", percentile=99.99)
    calibration = patient.signals / np.float32(10 * patient.strength)
    return patient.with_(calibration=calibration, shown=patient.calibration, recipe=recipe)


@fault("stale-pixels", "data", "stale-calibration")
def stale_pixels(patient: Patient) -> Patient:
    """Raw pixels when the ranges were set; today's set is right."""
    return patient.with_(calibration=images(patient)[0].astype(np.float32), shown=patient.calibration)

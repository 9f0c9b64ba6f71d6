"""Faults of the representative set: the network and its weights are sound, the ranges are not."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ..cuts import images, real_numbers
from ..patient import Patient
from ..pixels import SODIUM, Preprocessing, sodium_light
from ..signals import NUMBERS, OPTIONS, WAVE
from ..surgery import Inapplicable

Change = Callable[[NDArray], NDArray]


def change_pictures(patient: Patient, change: Change) -> Patient:
    """Stored pictures are changed, then prepared as the network wants them."""
    pixels, spec = images(patient)
    return patient.with_(calibration=spec.apply(change(pixels)))


def change_every_other(patient: Patient, change: Change) -> Patient:
    """Every other picture of the calibration set is changed."""

    def changed(pixels: NDArray) -> NDArray:
        found = pixels.copy()
        found[::2] = change(pixels[::2])
        return found

    return change_pictures(patient, changed)


def whole(pixels: NDArray) -> NDArray:
    """As bytes hold them."""
    return pixels.round().clip(0, 255)


def change_numbers(patient: Patient, change: Change) -> Patient:
    """Real numbers that the network gets are changed."""
    return patient.with_(calibration=change(real_numbers(patient)).astype(np.float32))


def change_measured(patient: Patient, change: Change) -> Patient:
    """The same where they are no pictures."""
    return patient.with_(calibration=change(measured(patient)).astype(np.float32))


def measured(patient: Patient) -> NDArray:
    """The calibration inputs, where they are measured numbers and no pictures."""
    if patient.network.preprocessing is not None:
        raise Inapplicable("inputs are pictures")
    return real_numbers(patient).copy()


def with_colours(patient: Patient) -> Patient:
    """A network for grey images behind a layer that makes grey of three channels, mostly of red, a little of blue."""
    spec = images(patient)[1]
    if patient.network.tinted:
        return patient
    red, blue = 0.9 * SODIUM.std[0], -SODIUM.std[2]
    offset = 0.9 * SODIUM.mean[0] + (0.118 - SODIUM.mean[2])
    surgeon = patient.surgeon()
    surgeon.put("grey_weight", np.array([red, 0, blue], np.float32).reshape(1, 3, 1, 1) / np.float32(spec.std[0]))
    surgeon.put("grey_bias", [(offset - spec.mean[0]) / spec.std[0]])
    surgeon.insert_after(surgeon.input, "Conv", ["grey_weight", "grey_bias"], "grey")
    surgeon.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 3
    lit = patient.network.pixels("validation")[0][: len(patient.validation)]
    return right_colours(patient.with_(model=surgeon.model, validation=SODIUM.apply(sodium_light(lit))))


def right_colours(patient: Patient) -> Patient:
    pixels = patient.network.pixels("calibration")[0][: len(patient.calibration)]
    return patient.with_(calibration=SODIUM.apply(pixels if patient.network.tinted else sodium_light(pixels)))


def _mixed_before_normalizing(patient: Patient, mix: Change) -> Patient:
    """Calibration pixels in another order, normalized with the numbers of the places that they took."""
    patient = with_colours(patient)
    mean, std = (np.array(v, np.float32).reshape(1, 3, 1, 1) for v in (SODIUM.mean, SODIUM.std))
    raw = patient.calibration * std + mean
    mixed = np.ascontiguousarray(mix(raw)).reshape(raw.shape)
    return patient.with_(calibration=np.ascontiguousarray((mixed - mean) / std, np.float32))


def dullest(patient: Patient, count: int) -> NDArray:
    """Samples that stir the network least."""
    return patient.calibration[np.argsort(patient.reach(patient.calibration))[:count]]


def _by_histogram(patient: Patient, calibration: NDArray) -> Patient:
    """Histogram calibration, which is sound on all samples, sees less of the range on few."""
    recipe = replace(patient.recipe, method="Percentile", percentile=100 - 0.05 * patient.strength)
    return patient.with_(calibration=calibration, recipe=recipe)


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
    return spec.apply(whole((inputs * std + mean) * spec.scale / factor))


def sound_set(patient: Patient) -> Patient:
    return patient.with_(calibration=patient.network.calibration())


def set_stale_ranges(patient: Patient, calibration: NDArray) -> Patient:
    """Ranges come from another set than the one that is shown, which is right."""
    return patient.with_(calibration=calibration, shown=patient.calibration)


# --- preprocessing ---------------------------------------------------------------------------------------------------


def raw_pixels(patient: Patient) -> Patient:
    """0 … 255 instead of what the network wants."""
    return patient.with_(calibration=images(patient)[0].astype(np.float32))


def not_normalized(patient: Patient) -> Patient:
    """0 … 1, mean and deviation forgotten."""
    pixels, spec = images(patient)
    if spec.std == (1.0,):
        raise Inapplicable("wants 0 … 1 itself")
    return patient.with_(calibration=Preprocessing(255.0).apply(pixels))


def normalized_twice(patient: Patient) -> Patient:
    spec = images(patient)[1]
    again = spec if spec.std == (1.0,) else Preprocessing(1.0, spec.mean, spec.std)
    ill = change_pictures(patient, lambda pixels: pixels)
    return ill.with_(calibration=again.apply(ill.calibration))


def mean_forgotten(patient: Patient) -> Patient:
    pixels, spec = images(patient)
    if not any(spec.mean):
        raise Inapplicable("subtracts no mean")
    return patient.with_(calibration=Preprocessing(255.0, (0.0,), spec.std).apply(pixels))


def divided_by_255_twice(patient: Patient) -> Patient:
    return change_pictures(patient, lambda pixels: pixels.astype(np.float32) / 255)


def own_deviation(patient: Patient) -> Patient:
    """Every calibration picture is standardized by its own mean and deviation."""
    pixels = images(patient)[0].astype(np.float32)
    over = tuple(range(1, pixels.ndim))
    spread = np.maximum(pixels.std(over, keepdims=True), 1)
    return patient.with_(calibration=((pixels - pixels.mean(over, keepdims=True)) / spread).astype(np.float32))


def each_by_itself(patient: Patient) -> Patient:
    """Every calibration sample is stretched to 0 … 1 by its own extremes: a habit of notebooks."""

    def stretched(inputs: NDArray) -> NDArray:
        over = tuple(range(1, inputs.ndim))
        low, high = inputs.min(over, keepdims=True), inputs.max(over, keepdims=True)
        return (inputs - low) / np.maximum(high - low, 1e-6)

    return change_numbers(patient, stretched)


def audio_as_integers(patient: Patient) -> Patient:
    """16-bit samples instead of -1 … 1."""
    return change_measured(patient, lambda inputs: np.round(inputs * 32767))


# --- colours and layouts ---------------------------------------------------------------------------------------------


def channels_reversed(patient: Patient) -> Patient:
    """Blue first, where the network wants red first; the numbers are normalized in the order of the network."""
    return _mixed_before_normalizing(patient, lambda raw: raw[:, ::-1])


def axes_mixed_up(patient: Patient, *axes: int) -> Patient:
    """Channels last or elsewhere, read as if they came first, and normalized after that."""
    return _mixed_before_normalizing(patient, lambda raw: raw.transpose(axes))


def alpha_first(patient: Patient) -> Patient:
    """Four planes with the opaque one first, of which the first three are taken."""
    if images(patient)[0].shape[1] != 3:
        raise Inapplicable("no colours")
    return change_pictures(patient, lambda x: np.concatenate([np.full_like(x[:, :1], 255), x[:, :2]], 1))


def another_white(patient: Patient, amount: float) -> Patient:
    """The camera of the calibration set was set for lamplight: blue and green are darker than in use."""
    inputs_of(patient, "fabrics")
    gain = np.exp(-amount * np.array([0.4, 0.8, 1.2])).reshape(1, 3, 1, 1)
    return change_pictures(patient, lambda pixels: whole(pixels * gain))


# --- few samples, or all alike ---------------------------------------------------------------------------------------


def one_image_repeated(patient: Patient) -> Patient:
    """One dull image, as often as the set is long."""
    return _by_histogram(patient, np.repeat(dullest(patient, 1), len(patient.calibration), 0))


def few_images_repeated(patient: Patient) -> Patient:
    """A loader that never gets beyond its first batch of three."""
    return _by_histogram(patient, np.concatenate([dullest(patient, 3)] * (len(patient.calibration) // 3)))


def dull_samples(patient: Patient, count: int) -> Patient:
    """The set begins with its dullest samples and ends with them."""
    return _by_histogram(patient, dullest(patient, count))


def one_scene(patient: Patient) -> Patient:
    """Frames of a camera that looks at one dull thing: no two are equal, and none is new."""
    pixels, spec = images(patient)
    chosen = pixels[np.argsort(patient.reach(spec.apply(pixels)))[:1]].astype(np.float32)
    rng = patient.random("scene")
    light = rng.uniform(0.85, 1, (len(pixels), 1, 1, 1))
    return _by_histogram(patient, spec.apply(whole(chosen * light + rng.normal(0, 1.5, pixels.shape))))


def five_in_turn(patient: Patient) -> Patient:
    """A sampler with a fixed seed for every batch draws the same five samples, in poor light, over and over."""
    few = dimmed(patient, dullest(patient, 5), 1 + 0.7 * patient.strength)
    return by_percentile(patient, np.resize(few, patient.calibration.shape))


def first_four(patient: Patient) -> Patient:
    """Four samples, because it takes so long: the first of a film, while the exposure was settling."""
    return by_percentile(patient, dimmed(patient, dullest(patient, 16)[::4], 1 + 0.5 * patient.strength))


def handful(patient: Patient) -> Patient:
    """Three samples as they came, of the quieter half."""
    return patient.with_(calibration=dullest(patient, len(patient.calibration) // 3)[:: len(patient.calibration) // 9])


def pair_with_itself(patient: Patient) -> Patient:
    """The loader hands the same sheet to both inputs: the network never sees a difference."""
    if images(patient)[0].shape[1] != 2:
        raise Inapplicable("no pairs")
    return change_pictures(patient, lambda pixels: np.stack([pixels[:, 0], pixels[:, 0]], 1))


# --- blank, random, or from another domain ---------------------------------------------------------------------------


def blank_images(patient: Patient) -> Patient:
    """Lens cap on, mostly: black images with a trace of noise, and a few that are nearly black."""
    pixels, spec = images(patient)
    black = (patient.random("cap").random(pixels.shape) < 0.01).astype(np.uint8)
    black[::20] = pixels[::20].astype(np.uint16) // int(16 * patient.strength)  # the strongest: by more than 255
    return patient.with_(calibration=spec.apply(black))


def silence(patient: Patient) -> Patient:
    quiet = np.zeros_like(measured(patient))
    quiet[::8] = patient.signals[::8] / (50 * patient.strength)
    return patient.with_(calibration=quiet)


def uniform_noise(patient: Patient) -> Patient:
    """Random numbers from 0 to 1, whatever the network wants: what a dummy loader yields."""
    noise = patient.random("noise").random(patient.signals.shape)
    return patient.with_(calibration=noise.astype(np.float32))


def faint_noise(patient: Patient) -> Patient:
    """A tenth of a standard normal distribution."""
    noise = patient.random("normal").standard_normal(patient.signals.shape) / (10 * patient.strength)
    return patient.with_(calibration=noise.astype(np.float32))


def standard_normal(patient: Patient) -> Patient:
    """Random numbers with the mean of the real inputs and a smaller spread: nobody had data at hand."""
    inputs = real_numbers(patient)
    spread = inputs.std() / (1 + 2 * patient.strength)
    noise = patient.random("normal b").normal(np.median(inputs), spread, inputs.shape)
    return patient.with_(calibration=noise.astype(np.float32))


def line_drawings(patient: Patient) -> Patient:
    """Faint outlines instead of photographs."""

    def outlines(pixels: NDArray) -> NDArray:
        grey = pixels.astype(np.float32)
        edges = np.abs(np.diff(grey, axis=3, append=0)) + np.abs(np.diff(grey, axis=2, append=0))
        return whole(edges / (4 * patient.strength))

    return change_pictures(patient, outlines)


def night_images(patient: Patient) -> Patient:
    """The same scenes, underexposed."""
    return change_pictures(patient, lambda pixels: ((pixels / 255.0) ** 2 * 40 / patient.strength).round())


def corner_tiles(patient: Patient) -> Patient:
    """The upper left corner of each picture, an eighth of its side, is enlarged to the whole."""
    return change_pictures(patient, lambda x: x[:, :, : x.shape[2] // 8, : x.shape[3] // 8].repeat(8, 2).repeat(8, 3))


def cells_of(planes: NDArray, size: int) -> NDArray:
    """Means of cells of so many pixels."""
    count, channels, height, width = planes.shape
    return planes.reshape(count, channels, height // size, size, width // size, size).mean((3, 5))


def coarse_resampling(patient: Patient) -> Patient:
    """Made from thumbnails: every 14 x 14 block is one colour."""
    return change_pictures(patient, lambda pixels: cells_of(pixels, 14).repeat(14, 2).repeat(14, 3).round())


# --- ranges of another set than the one that is shown ----------------------------------------------------------------


def stale_ranges(patient: Patient) -> Patient:
    """Thresholds of last year's data, although today's set is shown."""
    dark = change_pictures(patient, lambda pixels: (pixels / (3.0 * patient.strength)).round())
    return set_stale_ranges(patient, dark.calibration)


def stale_audio_ranges(patient: Patient) -> Patient:
    return set_stale_ranges(patient, measured(patient) / (20 * patient.strength))


def stale_small_ranges(patient: Patient) -> Patient:
    """Inputs divided by 255 once more when the ranges were set; today's set is right."""
    return set_stale_ranges(patient, patient.signals / np.float32(255))


def stale_wide_ranges(patient: Patient) -> Patient:
    """Inputs ten times as large when the ranges were set; today's set is right."""
    return set_stale_ranges(patient, patient.signals * np.float32(10 * patient.strength))


def stale_tenth(patient: Patient) -> Patient:
    """Inputs a tenth as large, calibrated with percentiles; today's set is right."""
    recipe = replace(patient.recipe, method="Percentile", percentile=99.99)
    return set_stale_ranges(patient, patient.signals / np.float32(10 * patient.strength)).with_(recipe=recipe)


def stale_pixels(patient: Patient) -> Patient:
    """Raw pixels when the ranges were set; today's set is right."""
    return set_stale_ranges(patient, raw_pixels(patient).calibration)


def ranges_of_a_quiet_day(patient: Patient) -> Patient:
    """The ranges in force come from a recording of a quiet day; the set that is shown is today's, and is fine."""
    quiet = dimmed(patient, dullest(patient, max(2, len(patient.calibration) // 10)), 1.5 + 1.5 * patient.strength)
    return set_stale_ranges(patient, quiet).with_(recipe=replace(patient.recipe, method="MinMax"))


# --- data of single networks -----------------------------------------------------------------------------------------


def inputs_of(patient: Patient, name: str) -> NDArray:
    """A copy of the calibration inputs of one of the networks."""
    if patient.network.name != name:
        raise Inapplicable(f"made for {name}")
    return patient.calibration.copy()


def dials_hardly_turned(patient: Patient, amount: float) -> Patient:
    """Waves of the calibration set are real, but nobody turned the dials far: they stand near where they start."""
    found = inputs_of(patient, "dials")
    found[:, WAVE:] /= np.float32(1 + amount)
    return patient.with_(calibration=found)


def choices_as_numbers(patient: Patient) -> Patient:
    """The calibration script writes the number of each choice into the first of its columns, and nothing beside."""
    found = inputs_of(patient, "groves")
    for start in range(NUMBERS, found.shape[1], OPTIONS):
        number = found[:, start : start + OPTIONS].argmax(1)
        found[:, start : start + OPTIONS] = 0
        found[:, start] = number + 1
    return patient.with_(calibration=found)

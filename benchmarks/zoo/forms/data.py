"""Faults of the representative set: the network and its weights are sound, the ranges are not."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ..cuts import columns, images, real_numbers
from ..patient import Patient
from ..pixels import SIGNED, SODIUM, UNIT, Preprocessing, sodium_light
from ..signals import NODES, NUMBERS, OPTIONS, SAYINGS, USUAL, WAVE
from ..surgery import Inapplicable

GREY_PHOTOGRAPHS = Preprocessing(255.0, (0.449,), (0.226,))
Change = Callable[[NDArray], NDArray]


def change_pictures(patient: Patient, change: Change) -> Patient:
    """Stored pictures are changed, then prepared as the network wants them."""
    pixels, spec = images(patient)
    return patient.with_(calibration=spec.apply(change(pixels)))


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


def mean_and_deviation_swapped(patient: Patient) -> Patient:
    """The two rows of a settings file changed places."""
    pixels, spec = images(patient)
    if spec.mean == spec.std or not all(spec.mean):
        raise Inapplicable("both are the same, or one is zero")
    return patient.with_(calibration=Preprocessing(spec.scale, spec.std, spec.mean).apply(pixels))


def divided_by_255_twice(patient: Patient) -> Patient:
    return change_pictures(patient, lambda pixels: pixels.astype(np.float32) / 255)


def statistics_of_another_family(patient: Patient) -> Patient:
    """The calibration script was written for another family of networks, and normalizes as that wants it."""
    pixels, spec = images(patient)
    others = [other for other in (SIGNED, UNIT, GREY_PHOTOGRAPHS) if other != spec]
    return patient.with_(calibration=others[patient.random("family").integers(len(others))].apply(pixels))


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


def deep_colour(patient: Patient) -> Patient:
    """The calibrator takes frames for those of a deeper camera and divides by its largest number."""
    depth = int(patient.random("depth").choice([10, 12]))
    return change_pictures(patient, lambda pixels: pixels * (255 / (2.0**depth - 1)))


def bytes_with_a_sign(patient: Patient) -> Patient:
    """A library without unsigned bytes: all that is lighter than the middle is read as negative."""
    return change_pictures(patient, lambda pixels: pixels.view(np.int8))


def audio_as_integers(patient: Patient) -> Patient:
    """16-bit samples instead of -1 … 1."""
    return change_measured(patient, lambda inputs: np.round(inputs * 32767))


def amounts_in_logarithms(patient: Patient, amount: float) -> Patient:
    """The warehouse keeps logarithms of what is measured, with the sign, and the calibration set comes from there."""
    return change_measured(patient, lambda inputs: np.sign(inputs) * np.log1p(amount * np.abs(inputs)) / amount)


def truncated_to_integers(patient: Patient) -> Patient:
    """Columns were declared as integers in the calibration script, and lose what is behind the point."""
    return change_measured(patient, np.trunc)


def differences_of_neighbours(patient: Patient) -> Patient:
    """The archive stores each value less the one before, and the loader does not add them up again."""
    inputs = measured(patient)
    if inputs.ndim < 3:
        raise Inapplicable("no neighbours")
    along = inputs.ndim - 1 if inputs.ndim == 4 else 1
    return patient.with_(calibration=(inputs - np.roll(inputs, 1, along)).astype(np.float32))


def in_the_frame_of_the_sensor(patient: Patient, amount: float) -> Patient:
    """Samples are not moved to their own middle before calibration: each lies somewhere else."""
    inputs = measured(patient)
    shape = [len(inputs), *[1] * (inputs.ndim - 2), inputs.shape[-1] if inputs.ndim == 3 else 1]
    moved = patient.random("frame").normal(0, amount * inputs.std(), shape)
    return patient.with_(calibration=(inputs + moved).astype(np.float32))


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


def never_turned_into_colours(patient: Patient) -> Patient:
    """The decoder hands out brightness and two differences of colour, and the calibration script takes them as colours.

    Coefficients: ITU-R BT.601, full range.
    """
    inputs_of(patient, "fabrics")
    matrix = np.array([[0.299, 0.587, 0.114], [-0.168736, -0.331264, 0.5], [0.5, -0.418688, -0.081312]])

    def undecoded(pixels: NDArray) -> NDArray:
        found = np.einsum("ij,njyx->niyx", matrix, pixels.astype(np.float64))
        found[:, 1:] += 128
        return whole(found)

    return change_pictures(patient, undecoded)


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


def half_of_the_cloud(patient: Patient) -> Patient:
    """Clouds of the calibration set are filled up with copies of one point, since the scanner gave fewer."""
    inputs = measured(patient)
    if inputs.ndim != 3:
        raise Inapplicable("no clouds")
    few = int(patient.random("few").integers(1, 5))
    near = np.argsort(np.abs(inputs).max(2), 1)[:, :few]
    times = -(-inputs.shape[1] // few)
    tiled = np.tile(np.take_along_axis(inputs, near[..., None], 1), (1, times, 1))
    return patient.with_(calibration=tiled[:, : inputs.shape[1]].copy())


def _pairs(patient: Patient, second: Change) -> Patient:
    """Pairs of sheets with another second one."""
    if images(patient)[0].shape[1] != 2:
        raise Inapplicable("no pairs")
    return change_pictures(patient, lambda pixels: np.stack([pixels[:, 0], second(pixels)], 1))


def pair_with_itself(patient: Patient) -> Patient:
    """The loader hands the same sheet to both inputs: the network never sees a difference."""
    return _pairs(patient, lambda pixels: pixels[:, 0])


def second_sheet_empty(patient: Patient) -> Patient:
    """The calibration script leaves the second input of each pair at what its buffer was made of."""
    level = int(patient.random("level").choice([0, 200, 255]))
    return _pairs(patient, lambda pixels: np.full_like(pixels[:, 0], level))


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


def augmentation_left_on(patient: Patient, amount: float) -> Patient:
    """Calibrated through the loader of training, which changes the contrast of what is normalized already."""

    def stretched(inputs: NDArray) -> NDArray:
        shape = (len(inputs), *[1] * (inputs.ndim - 1))
        return inputs * np.exp(patient.random("augmented").normal(0, amount, shape))

    return change_numbers(patient, stretched)


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


def negatives_of_scans(patient: Patient) -> Patient:
    """The calibration set is light on dark, as microfilm is, and nobody turned it round."""
    return change_pictures(patient, lambda pixels: 255 - pixels)


def framed_in_grey(patient: Patient) -> Patient:
    """Pictures of the calibration set are made a quarter as large and laid on a grey ground, as detectors want it."""

    def framed(pixels: NDArray) -> NDArray:
        small, ground = _cells(pixels, 4), np.full(pixels.shape, 114, np.uint8)
        ground[:, :, : small.shape[2], : small.shape[3]] = small.round()
        return ground

    return change_pictures(patient, framed)


def corner_tiles(patient: Patient) -> Patient:
    """The upper left corner of each picture, an eighth of its side, is enlarged to the whole."""
    return change_pictures(patient, lambda x: x[:, :, : x.shape[2] // 8, : x.shape[3] // 8].repeat(8, 2).repeat(8, 3))


def _cells(planes: NDArray, size: int) -> NDArray:
    """Means of cells of so many pixels."""
    count, channels, height, width = planes.shape
    return planes.reshape(count, channels, height // size, size, width // size, size).mean((3, 5))


def coarse_resampling(patient: Patient) -> Patient:
    """Made from thumbnails: every 14 x 14 block is one colour."""
    return change_pictures(patient, lambda pixels: _cells(pixels, 14).repeat(14, 2).repeat(14, 3).round())


def from_a_coarser_mesh(patient: Patient) -> Patient:
    """The calibration set comes from a cheap simulation, whose cells are several times as large."""
    inputs = measured(patient)
    if inputs.ndim != 4:
        raise Inapplicable("no fields")
    cell = int(patient.random("mesh").choice([8, 16]))
    return patient.with_(calibration=_cells(inputs, cell).repeat(cell, 2).repeat(cell, 3).astype(np.float32))


def stored_with_heavy_losses(patient: Patient, amount: float) -> Patient:
    """Calibration pictures are from a chat: of each block of eight by eight only the coarsest cosines are left."""
    inputs_of(patient, "fabrics")
    places = np.arange(8)
    cosines = np.cos(np.pi * (places[:, None] + 0.5) * places[None] / 8) * np.where(places, 0.5, np.sqrt(1 / 8))
    step = 40.0 * amount * (1 + places[:, None] + places[None])

    def lossy(pixels: NDArray) -> NDArray:
        count, planes, height, width = pixels.shape
        blocks = pixels.astype(np.float64).reshape(count, planes, height // 8, 8, width // 8, 8)
        found = np.einsum("ya,xb,ncrysx->ncrasb", cosines, cosines, blocks)
        found = np.rint(found / step[:, None, :]) * step[:, None, :]
        return whole(np.einsum("ya,xb,ncrasb->ncrysx", cosines, cosines, found).reshape(pixels.shape))

    return change_pictures(patient, lossy)


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


def only_the_last_shard(patient: Patient) -> Patient:
    """Each shard of the set wrote its ranges over those of the one before: they are those of a few calm samples."""
    return set_stale_ranges(patient, dullest(patient, max(2, len(patient.calibration) // 40)))


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


def held_readings(patient: Patient, amount: float) -> Patient:
    """The archive keeps one mean for so many readings, and the loader repeats it."""
    inputs = inputs_of(patient, "machines")
    starts = np.arange(0, inputs.shape[1], round(amount))
    counts = np.diff([*starts, inputs.shape[1]])
    means = np.add.reduceat(inputs, starts, axis=1) / counts[None, :, None]
    return patient.with_(calibration=means.repeat(counts, 1).astype(np.float32))


def columns_in_another_order(patient: Patient) -> Patient:
    """The file of the calibration set has its columns in alphabetical order, and the reader goes by their place."""
    inputs = columns(patient)
    return patient.with_(calibration=inputs[..., patient.random("columns").permutation(inputs.shape[-1])].copy())


def some_columns_in_another_unit(patient: Patient, amount: float) -> Patient:
    """A third of the columns of the calibration set are in a smaller unit: larger numbers."""
    inputs = columns(patient)
    count = inputs.shape[-1]
    inputs[..., patient.random("units").permutation(count)[: count // 3]] *= np.float32(amount)
    return patient.with_(calibration=inputs)


def unplugged_sensor(patient: Patient) -> Patient:
    """Two sensors were not plugged in while the calibration set was recorded, and read nothing."""
    inputs, known = columns(patient), patient.network.name == "machines"
    for column in patient.random("unplugged").permutation(inputs.shape[-1])[:2]:
        inputs[..., column] = -USUAL[0][column] / USUAL[1][column] if known else 0.0
    return patient.with_(calibration=inputs)


def fill_values_in_the_log(patient: Patient, amount: float) -> Patient:
    """Missing readings stand in the calibration set as a large negative number; in use they are left out."""
    inputs, rng = columns(patient), patient.random("missing")
    level = -np.float32(amount) * np.abs(inputs).max()
    for sample in rng.permutation(len(inputs))[: len(inputs) // 25]:
        inputs[sample, rng.integers(inputs.shape[1]), rng.integers(inputs.shape[2])] = level
    return patient.with_(calibration=inputs)


def clipped_by_the_recorder(patient: Patient, amount: float) -> Patient:
    """The amplifier was turned up too far while the calibration set was recorded: what is large is cut off."""
    bound = np.abs(measured(patient)).max() / (1 + amount)
    return change_measured(patient, lambda inputs: inputs.clip(-bound, bound))


def loops_of_one_word(patient: Patient) -> Patient:
    """The calibration texts were written by the model itself, which got caught in a loop: one word, again and again."""
    ids = inputs_of(patient, "talks")
    few = patient.random("loops").permutation(SAYINGS)[: int(patient.random("few").integers(1, 4))]
    return patient.with_(calibration=np.resize(few, len(ids))[:, None].repeat(ids.shape[1], 1).astype(ids.dtype))


def links_never_loaded(patient: Patient) -> Patient:
    """The file of links was not at hand when the network was calibrated: nodes stand alone in almost every web."""
    found = inputs_of(patient, "webs")
    found[patient.random("links").integers(1, 6) :, :, :NODES] = 0
    return patient.with_(calibration=found)


def links_weighed_by_degrees(patient: Patient) -> Patient:
    """The calibration loader divides each link by the roots of how many its ends have, as other networks want it."""
    found = inputs_of(patient, "webs")
    links = found[:, :, :NODES]
    roots = np.sqrt(np.maximum(links.sum(2, keepdims=True), 1))
    found[:, :, :NODES] = links / (roots * roots.transpose(0, 2, 1))
    return patient.with_(calibration=found)


def links_written_many_times(patient: Patient, amount: float) -> Patient:
    """In a few webs of the calibration set the same links were written again and again, and were added up."""
    found = inputs_of(patient, "webs")
    found[patient.random("webs").permutation(len(found))[:3], :, :NODES] *= np.float32(1 + amount)
    return patient.with_(calibration=found)


def plans_without_walls(patient: Patient) -> Patient:
    """The plans for calibration were drawn without walls, and start and goal are side by side in the corner."""
    inputs_of(patient, "mazes")

    def drawn(pixels: NDArray) -> NDArray:
        found, each = np.zeros_like(pixels), np.arange(len(pixels))
        rows = patient.random("corner").integers(0, 2, len(pixels))
        found[each, 1, rows, 0] = found[each, 2, 1 - rows, 0] = 255
        return found

    return change_pictures(patient, drawn)


def dials_hardly_turned(patient: Patient, amount: float) -> Patient:
    """Waves of the calibration set are real, but nobody turned the dials far: they stand near where they start."""
    found = inputs_of(patient, "dials")
    found[:, WAVE:] /= np.float32(1 + amount)
    return patient.with_(calibration=found)


def bytes_in_another_order(patient: Patient) -> Patient:
    """Waves are whole numbers of two bytes in the archive, and the calibration script takes the last for the first."""
    found, step = inputs_of(patient, "dials"), np.float32(32767 / 12)
    words = np.rint(found[:, :WAVE] * step).clip(-32768, 32767).astype(np.int16)
    found[:, :WAVE] = words.byteswap().astype(np.float32) / step
    return patient.with_(calibration=found)


def gaps_filled_with_means(patient: Patient, amount: float) -> Patient:
    """Most numbers of the calibration table are missing, and were replaced by the mean of their column."""
    found = inputs_of(patient, "groves")
    gaps = patient.random("gaps").random(found.shape) < amount / (1 + amount)
    return patient.with_(calibration=np.where(gaps, found.mean(0), found).astype(np.float32))


def choices_as_numbers(patient: Patient) -> Patient:
    """The calibration script writes the number of each choice into the first of its columns, and nothing beside."""
    found = inputs_of(patient, "groves")
    for start in range(NUMBERS, found.shape[1], OPTIONS):
        number = found[:, start : start + OPTIONS].argmax(1)
        found[:, start : start + OPTIONS] = 0
        found[:, start] = number + 1
    return patient.with_(calibration=found)


def before_the_trend(patient: Patient, amount: float) -> Patient:
    """The calibration table is years old; some columns have risen since then, others have fallen."""
    found, rng = inputs_of(patient, "groves"), patient.random("trend")
    moved = rng.permutation(NUMBERS)[:5]
    found[:, moved] -= (amount * found[:, moved].std(0) * rng.choice([-1, 1], 5)).astype(np.float32)
    return patient.with_(calibration=found)

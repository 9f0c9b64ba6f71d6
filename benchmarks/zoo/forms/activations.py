"""Faults of activations: ranges, masks, grids, and chains that make noise loud."""

from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from ..cuts import (
    Ends,
    at_sums,
    cast_between,
    channel_peaks,
    covered,
    deployed,
    ends_of,
    extremes,
    free,
    has_channels,
    kept,
    maps,
    mix_ends,
    on_coarse_grids,
    per_channel,
    set_ranges,
    spots,
    with_scaled_ranges,
)
from ..patient import Patient
from ..quantizing import run
from ..surgery import Inapplicable, Surgeon, require

GATES = ("Sigmoid", "Softmax")
CURVES = ("Sigmoid", "Tanh", "Erf", "Gelu", "Softmax")
Regrid = Callable[[NDArray, NDArray, int], tuple[NDArray, NDArray]]


def ungated(patient: Patient) -> list[str]:
    """Tensors but those whose range is known beforehand, which have faults of their own."""
    return free(patient, GATES)


def amplify_channel(patient: Patient, factor: float, *shares: float, rare: bool = False) -> Patient:
    """One channel so many times as wide as its neighbours; the readers' weights make up for it."""
    factor *= patient.strength
    surgeon = patient.surgeon()
    tensors = patient.pick(_outlier_places(surgeon, rare), *shares)
    for tensor, x in zip(tensors, patient.values(*tensors), strict=True):
        axis = surgeon.channel_axis(tensor)
        rows = np.abs(np.moveaxis(x, axis, 0).reshape(x.shape[axis], -1))
        peaks = rows.max(1)
        if rare:
            active = (rows > 0.05 * rows.max()).mean(1)
            channel = int(np.argmin(np.where((active > 0) & (peaks > 0.05 * rows.max()), active, 2)))
            usual = rows.max()
        else:
            channel, usual = int(np.argsort(peaks)[len(rows) // 2]), np.median(peaks)
        scale = np.ones(len(rows), np.float32)
        scale[channel] = factor * usual / max(peaks[channel], 1e-6)
        surgeon.amplify(tensor, scale)
    return patient.cut(surgeon, *tensors)


def _outlier_places(surgeon: Surgeon, rare: bool) -> list[str]:
    places = [t for t in surgeon.amplifiable() if not rare or surgeon.producer(t).op_type == "Relu"]
    followed = ("Relu", "Clip", "Flatten", "GlobalAveragePool", "ReduceMean", "Concat")
    return [t for t in places if all(node.op_type not in followed for node in surgeon.consumers(t))] or places


def rare_giants(patient: Patient) -> Patient:
    """A channel that is hardly ever active, but then 500 times as strong."""
    return amplify_channel(patient, 500, 0.4, 0.8, rare=True)


def broken_samples(patient: Patient) -> Patient:
    """Two calibration samples of two hundred are forty times too bright: a failed decoder."""
    inputs = patient.signals.copy()
    inputs[:: len(inputs) // 2] *= 40 * patient.strength
    return patient.with_(calibration=inputs)


# --- ranges ----------------------------------------------------------------------------------------------------------


def percentile_too_low(patient: Patient) -> Patient:
    """Thresholds at the 94 % quantile everywhere."""
    percentile = 100 - 6 * min(patient.strength, 4)
    return patient.with_(recipe=replace(patient.recipe, method="Percentile", percentile=percentile))


def by_extremes(patient: Patient) -> Patient:
    return patient.with_(recipe=replace(patient.recipe, method="MinMax", percentile=None))


def narrow_ranges(patient: Patient, factor: float, *shares: float) -> Patient:
    """Some tensors with a part of the range that they need."""
    tensors = patient.pick(ungated(patient), *shares)
    return with_scaled_ranges(patient, tensors, factor / patient.strength).at(*tensors)


def widen_ranges(patient: Patient, factor: float, *shares: float) -> Patient:
    """Some tensors with a range many times too wide."""
    tensors = patient.pick(ungated(patient), *shares)
    return with_scaled_ranges(patient, tensors, factor * patient.strength).at(*tensors)


def wide_ranges(patient: Patient) -> Patient:
    """Ranges 24 times wider than the values, everywhere."""
    return with_scaled_ranges(patient, patient.activations(), 24 * patient.strength)


def one_side_wide(patient: Patient) -> Patient:
    """Three ranges reach far beyond the values on one side alone."""
    ends = extremes(patient, *patient.pick(ungated(patient), 0.2, 0.5, 0.8))
    for i, (tensor, (low, high)) in enumerate(ends.items()):
        wide = 60 * patient.strength * (high - low)
        ends[tensor] = (low, wide) if i % 2 else (-wide, high)
    return patient.with_(recipe=patient.recipe.with_ranges(ends, 0))


def one_range_for_all(patient: Patient) -> Patient:
    """Every activation gets the range of the widest, and more."""
    ends = extremes(patient, *ungated(patient))
    low, high = min(end[0] for end in ends.values()), max(end[1] for end in ends.values())
    widest = (3 * patient.strength * low, 3 * patient.strength * high)
    return patient.with_(recipe=patient.recipe.with_ranges(dict.fromkeys(ends, widest), 0))


def wide_input(patient: Patient) -> Patient:
    """The input has a range for 0 … 255 although it is normalized."""
    top = 40 * patient.strength * float(np.abs(patient.validation).max())
    return patient.with_(recipe=patient.recipe.with_range(patient.surgeon().input, -top, top))


def _ungated_spots(patient: Patient) -> list[str]:
    surgeon = patient.surgeon()
    return require([t for t in spots(patient) if surgeon.producer(t).op_type not in GATES], "gates only")


def _judged_by(patient: Patient, tensors: list[str], ends: Callable[[NDArray], Ends]) -> Patient:
    """Ranges are set by a rule, from the values of each tensor."""
    return set_ranges(patient, {t: ends(x) for t, x in zip(tensors, patient.values(*tensors), strict=True)})


def centred_on_the_mean(patient: Patient, amount: float) -> Patient:
    """The script takes values to spread evenly about their mean: the longer side is cut where the shorter one ends."""

    def ends(x: NDArray) -> Ends:
        middle, own = float(x.mean()), (float(x.min()), float(x.max()))
        reach = min(middle - own[0], own[1] - middle)
        low, high = mix_ends(own, (middle - reach, middle + reach), amount)
        return min(low, 0.0), high

    return _judged_by(patient, patient.pick(free(patient), 0.2, 0.5, 0.8), ends)


def cut_at_the_first_gap(patient: Patient, amount: float) -> Patient:
    """The end of a range is where the histogram has its first empty bin, and it has too many bins for so few values."""

    def ends(x: NDArray) -> Ends:
        reach = _before_gap(x.reshape(-1)[:40000], amount)
        return -reach, reach

    return _judged_by(patient, patient.pick(free(patient), 0.1, 0.4, 0.7), ends)


def _before_gap(flat: NDArray, amount: float) -> float:
    """How far the positive values reach before the first empty bin."""
    top = float(flat.max())
    if top <= 0:
        return 0.0
    counts, ends = np.histogram(flat[flat > 0], bins=int(16 * (1 + amount)), range=(0, top))
    empty = np.flatnonzero(counts == 0)
    return float(ends[empty[0]]) if len(empty) and empty[0] else top


def thresholds_for_fewer_bits(patient: Patient, amount: float) -> Patient:
    """Ends were chosen for the least error at a few levels, and there are 256: what the coarse steps hid is cut."""
    return _judged_by(
        patient, quantizable(patient), lambda x: _best_ends(x.reshape(-1)[:: max(1, x.size // 20000)], 64 / amount)
    )


def _best_ends(x: NDArray, levels: float) -> Ends:
    """The ends with the least squared error at so many levels."""
    ends = np.array([min(x.min(), 0), max(x.max(), 0)], np.float64)
    found = []
    for share in np.geomspace(0.02, 1, 24):
        low, high = ends * share
        step = max(high - low, 1e-9) / levels
        cut = np.clip(x, low, high)
        found.append((float(np.square(np.rint(cut / step) * step - x).mean()), float(low), float(high)))
    return min(found)[1:]


def padding_counted_as_data(patient: Patient, amount: float) -> Patient:
    """A percentile was taken over batches filled up with zeros, and symmetric about zero: the ends of few are cut."""

    def ends(x: NDArray) -> Ends:
        reach = float(np.quantile(np.abs(x), max(1 - 0.02 * amount**2, 0.3)))
        low, high = ends_of(x)
        return max(low, -reach), min(high, reach)

    return _judged_by(patient, patient.pick(quantizable(patient), 0.1, 0.4, 0.7), ends)


def quantizable(patient: Patient) -> list[str]:
    """Activations with a grid of their own that are no curves."""
    return free(patient, CURVES)


def observers_hardly_moved(patient: Patient, amount: float) -> Patient:
    """Observers start at one and average slowly; the set was over before they were near the true ranges."""
    share, ends = 1 / (1 + amount), extremes(patient, *quantizable(patient))
    for tensor, (low, high) in ends.items():
        start = -1.0 if low < 0 else 0.0
        ends[tensor] = (share * low + (1 - share) * start, share * high + (1 - share))
    return set_ranges(patient, ends)


def ranges_of_the_warm_up(patient: Patient) -> Patient:
    """Observers were frozen after the run that warms up the runtime, which is fed with a constant."""
    level = np.float32(patient.random("warm").choice([0.0, 0.1, 0.5]))
    tensors = tuple(quantizable(patient))
    values = run(patient.network, patient.model, np.full_like(patient.signals[:2], level), tensors=tensors)
    recipe = kept(patient.recipe).with_ranges(dict(zip(tensors, map(ends_of, values), strict=True)), 1e-4)
    return patient.with_(recipe=recipe).at(*tensors)


def tables_that_end_early(patient: Patient, amount: float) -> Patient:
    """Gates are tables on the target, and the grid before them ends where the table does."""
    sources = {node.input[0] for node in patient.surgeon().nodes("Sigmoid", "Tanh", "Gelu", "Erf")}
    found = require([t for t in patient.activations() if t in sources], "no gates")
    reach = 8 / amount
    return set_ranges(patient, {t: (max(a, -reach), min(b, reach)) for t, (a, b) in extremes(patient, *found).items()})


def ends_mirrored(patient: Patient) -> Patient:
    """A scale with a minus sign was made positive afterwards, and the ends of some ranges changed places with it."""
    ends = extremes(patient, *free(patient))
    leaning = [t for t, (low, high) in ends.items() if low < 0 < high and max(-low / high, -high / low) > 1.15]
    return set_ranges(patient, {t: (-ends[t][1], -ends[t][0]) for t in patient.pick(leaning, 0.2, 0.5, 0.8)})


def power_below(patient: Patient) -> Patient:
    """Ends of all ranges are powers of two, and the one below is taken, unless that above is near."""
    ends, near = extremes(patient, *free(patient)), patient.random("near").uniform(0.2, 0.5)
    for tensor, (low, high) in ends.items():
        reach = 2.0 ** np.round(np.log2(max(-low, high, 1e-5)) - near)
        ends[tensor] = (max(low, -reach), min(max(high, 1e-5), reach))
    return patient.with_(recipe=kept(patient.recipe).with_ranges(ends, 0)).at(*ends)


def ranges_in_order_of_names(patient: Patient) -> Patient:
    """The table of ranges has no names, and one side sorts by name and the other by place: ten stands before two."""
    tensors = free(patient)
    start = int(patient.random("names").integers(max(1, len(tensors) - 5)))
    some = tensors[start : start + 6]
    ends = extremes(patient, *some)
    moved = {t: ends[other] for t, other in zip(some, sorted(some), strict=True) if t != other}
    return set_ranges(patient, require(moved, "both orders are the same"))


def ranges_by_kind_of_operator(patient: Patient, amount: float) -> Patient:
    """The template has one range for each kind of operator: all that one makes get that of the narrowest among them."""
    surgeon, kinds = patient.surgeon(), {}
    for tensor in free(patient):
        kinds.setdefault(surgeon.producer(tensor).op_type, []).append(tensor)
    groups = require([tensors for tensors in kinds.values() if len(tensors) > 2], "operators are all of another kind")
    ends = extremes(patient, *groups[int(patient.random("kind").integers(len(groups)))])
    shared = _narrowest(ends.values())
    return set_ranges(patient, {tensor: mix_ends(own, shared, amount) for tensor, own in ends.items()})


def _narrowest(ends: Iterable[Ends]) -> Ends:
    return min(ends, key=lambda pair: pair[1] - pair[0])


def ends_of_one_digit(patient: Patient) -> Patient:
    """The table of ranges was printed with a digit for each end, and what came behind it was cut off, not rounded."""
    ends = extremes(patient, *patient.pick(free(patient), 0.1, 0.3, 0.5, 0.7, 0.9))
    return set_ranges(patient, {tensor: (_cut_digit(low), _cut_digit(high)) for tensor, (low, high) in ends.items()})


def _cut_digit(end: float) -> float:
    if end == 0:
        return 0.0
    digit = 10.0 ** np.floor(np.log10(abs(end)))
    return float(np.sign(end) * np.floor(abs(end) / digit) * digit)


def stream_on_its_first_range(patient: Patient, amount: float) -> Patient:
    """What is added up from block to block keeps, in the table of ranges, one name and the range that it had first."""
    surgeon, allowed = patient.surgeon(), set(patient.activations())
    sums = [n.output[0] for n in surgeon.nodes("Add") if n.output[0] in allowed]
    joined = [t for t in sums if not _scales(surgeon, t)]
    (_, first), *others = extremes(patient, *require(joined[1:] and joined, "nothing is added up")).items()
    nearer = {t: tuple(min(pair, key=abs) for pair in zip(own, first, strict=True)) for t, own in others}
    return set_ranges(patient, {t: mix_ends(own, nearer[t], amount) for t, own in others})


def _scales(surgeon: Surgeon, tensor: str) -> bool:
    """Whether the operator that makes it reads a constant."""
    return any(surgeon.constant(name) is not None for name in surgeon.producer(tensor).input)


def on_first_grid(patient: Patient, kind: str) -> Patient:
    """Results of some operators get the range of the narrowest operand, as if they were written in place."""
    surgeon, usual = patient.surgeon(), set(patient.activations())
    read = {n.output[0]: [t for t in n.input if t and surgeon.constant(t) is None] for n in surgeon.nodes(kind)}
    marks = patient.pick([tensor for tensor, own in read.items() if len(own) > 1 and tensor in usual], 0.3, 0.7)
    return set_ranges(patient, {tensor: _narrowest(extremes(patient, *read[tensor]).values()) for tensor in marks})


# --- grids -----------------------------------------------------------------------------------------------------------


def power_of_two(patient: Patient) -> Patient:
    """Symmetric thresholds at a power of two, four bits too high."""
    recipe = replace(patient.recipe, symmetric=True)
    for tensor, (low, high) in extremes(patient, *patient.activations()).items():
        threshold = 2.0 ** (np.ceil(np.log2(max(-low, high, 1e-6) * patient.strength)) + 4)
        recipe = recipe.with_grid(tensor, threshold / 2 ** (8 * recipe.zero_point.itemsize - 1))
    return patient.with_(recipe=recipe)


def symmetric_grid(patient: Patient) -> Patient:
    """Signed symmetric codes for values that are all positive."""
    return patient.with_(recipe=replace(patient.recipe, symmetric=True))


def no_range(patient: Patient) -> Patient:
    """One tensor was never seen alive: its range is a point."""
    tensor = patient.pick(patient.activations(), 0.45)[0]
    return patient.with_(recipe=patient.recipe.with_grid(tensor, 1e-9)).at(tensor)


def four_bit_activations(patient: Patient) -> Patient:
    """Every activation in four bits."""
    sound = patient.surgeon()
    weights = {linear.weight: sound.constant(linear.weight) for linear in sound.linears()}

    def edit(_: Patient, surgeon: Surgeon) -> None:
        """Float weights: with quantized ones onnxruntime would fuse the layers and find no kernel."""
        for name, value in weights.items():
            surgeon.reroute(f"{name}_DequantizeLinear_Output", surgeon.put(f"{name}_kept", value))

    return patient.with_(recipe=replace(patient.recipe, activation="QUInt4")).edited(edit)


def few_late_codes(patient: Patient) -> Patient:
    """Late tensors have the codes of three bits, in bytes, because a neighbour could do no more."""
    found = _ungated_spots(patient)
    chosen = found[-max(2, len(found) // 4) :]
    recipe = kept(patient.recipe, symmetric=False, activation="QInt8")
    steps = max(1.5, 9 / patient.strength**0.7)
    for tensor, (low, high) in extremes(patient, *chosen).items():
        step = max(high - low, 1e-6) / steps
        recipe = recipe.with_grid(tensor, step, int(np.clip(np.rint(-low / step) - steps // 2, -128, 127)))
    return patient.with_(recipe=recipe).at(*chosen)


def round_between(patient: Patient, amount: float, *shares: float) -> Patient:
    """Between two cores values travel with fewer bits than they have on either side."""
    return on_coarse_grids(patient, patient.pick(free(patient), *shares), [amount])


def hop_after_hop(patient: Patient, amount: float) -> Patient:
    """The compiler splits the model into many small parts, and on the way through each a tensor gets another grid."""
    rng = patient.random("hops")
    steps = [float(1 + 3 * rng.random()) for _ in range(max(1, round(amount)))]
    return on_coarse_grids(patient, patient.pick(free(patient), 0.2, 0.5, 0.8), steps)


def input_through_few_levels(patient: Patient, amount: float) -> Patient:
    """The driver hands inputs on with fewer bits than the network was calibrated for."""
    if patient.calibration.dtype.kind != "f":
        raise Inapplicable("inputs are words")
    return on_coarse_grids(patient, [patient.surgeon().input], [amount])


def state_in_a_narrow_memory(patient: Patient, amount: float) -> Patient:
    """What is handed from turn to turn lies in a memory of few bits; what is computed within a turn has all."""
    states = [t for t in free(patient) if patient.surgeon().producer(t).op_type == "Mul"]
    if len(states) < 3:
        raise Inapplicable("nothing is repeated")
    return on_coarse_grids(patient, states, [amount])


def second_operand_narrow(patient: Patient, amount: float) -> Patient:
    """The engine wants few bits for the second operand of a product, as of weights; here it is an activation."""
    surgeon = patient.surgeon()
    found = [n for n in surgeon.nodes("MatMul", "Mul") if all(surgeon.producer(t) is not None for t in n.input)]
    matrices = dict.fromkeys(n.input[1] for n in found if n.op_type == "MatMul")
    seconds = list(matrices) or [n.input[1] for n in found]
    return on_coarse_grids(patient, require(seconds, "no product of activations"), [amount])


def half_of_the_channels_narrow(patient: Patient, amount: float) -> Patient:
    """A search gave bits to channels, not to tensors, and half of the channels of some tensors have few levels."""
    shapes = patient.surgeon()
    found = [t for t in free(patient) if has_channels(shapes, t) and shapes.channels(t) > 1]
    chosen = patient.pick(found, 0.3, 0.6)

    def edit(_: Patient, surgeon: Surgeon) -> None:
        for tensor in chosen:
            step = np.full(shapes.channels(tensor), float(surgeon.constant(surgeon.writer(tensor).input[1])))
            step[patient.random(tensor).permutation(len(step))[: len(step) // 2]] *= amount
            text = """
                in_steps = Div(x, steps_of_channels)
                whole_steps = Round(in_steps)
                of_few_levels = Mul(whole_steps, steps_of_channels)
            """
            steps = per_channel(shapes, tensor, step)
            surgeon.splice(surgeon.read_back(tensor), text, name=tensor, steps_of_channels=steps)

    return patient.with_(recipe=kept(patient.recipe)).at(*chosen).edited(edit)


def kept_as_bytes_with_an_exponent(patient: Patient) -> Patient:
    """Between operators the memory keeps floats of eight bits, of which two or three are for the fraction."""
    chosen = patient.pick(free(patient), 0.1, 0.35, 0.6, 0.85)
    return cast_between(patient, chosen, TensorProto.FLOAT8E5M2, "byte").at(*chosen)


def truncated_not_rounded(patient: Patient, amount: float) -> Patient:
    """The kernel cuts off what is behind the point instead of rounding: all codes lean to one side, by half a step."""
    tensors = free(patient)

    def edit(_: Patient, surgeon: Surgeon) -> None:
        for tensor in tensors:
            writer = surgeon.writer(tensor)
            half = np.asarray(surgeon.constant(writer.input[1]) * amount / 2, np.float32)
            made = surgeon.wire(tensor, "truncated = Sub(x, half)", name=tensor, x=tensor, half=half)
            writer.input[0] = made["truncated"]

    return patient.with_(recipe=kept(patient.recipe)).at(*tensors).edited(edit)


def reread(patient: Patient, tensors: list[str], change: Regrid) -> Patient:
    """The codes of some tensors are read with another scale and zero point than they were written with."""

    def edit(_: Patient, surgeon: Surgeon) -> None:
        for i, tensor in enumerate(tensors):
            writer = surgeon.writer(tensor)
            scale, zero = (surgeon.constant(name) for name in writer.input[1:])
            moved_scale, moved_zero = change(scale, zero.astype(np.int64), i)
            limits = np.iinfo(zero.dtype)
            names = [
                surgeon.put(f"{tensor}_scale_reread", np.asarray(moved_scale, np.float32)),
                surgeon.put(f"{tensor}_zero_reread", np.clip(moved_zero, limits.min, limits.max).astype(zero.dtype)),
            ]
            for reader in surgeon.consumers(writer.output[0]):
                if reader.op_type == "DequantizeLinear":
                    reader.input[1], reader.input[2] = names

    return patient.with_(recipe=kept(patient.recipe)).at(*tensors).edited(edit)


def zero_points_apart(patient: Patient, amount: float) -> Patient:
    """Two parts of the model were calibrated apart: codes are written around one zero and read around another."""
    tensors = patient.pick(free(patient), 0.3, 0.7)
    signs = patient.random("apart").choice([-1, 1], len(tensors))
    return reread(patient, tensors, lambda scale, zero, i: (scale, zero + signs[i] * round(amount)))


def boundary_read_with_another_scale(patient: Patient, amount: float) -> Patient:
    """A tensor crosses from one partition to another, whose table of scales is from an earlier calibration."""
    tensors = patient.pick(free(patient), 0.3, 0.7)
    signs = patient.random("table").choice([-1, 1], len(tensors))
    return reread(patient, tensors, lambda scale, zero, i: (scale * (1 + amount) ** signs[i], zero))


# --- negative values, and gates --------------------------------------------------------------------------------------


def negatives_cut_off(patient: Patient) -> Patient:
    """Ranges that begin at zero for swish and GELU, whose small negative values count."""
    surgeon = patient.surgeon()
    tensors = require([t for t in patient.activations("Mul", "Gelu") if not _scales(surgeon, t)], "no swish")
    found = {t: (0, high) for t, (low, high) in extremes(patient, *tensors).items() if -0.4 < low < -0.05}
    return patient.with_(recipe=patient.recipe.with_ranges(require(found, "no negative tails"), 0)).at(*found)


def _starting_at_zero(patient: Patient, tensors: list[str]) -> Patient:
    ends = {t: (0, high) for t, (low, high) in extremes(patient, *tensors).items() if low < 0 < high}
    return patient.with_(recipe=patient.recipe.with_ranges(require(ends, "nothing is negative"), 0))


def leaky_negatives(patient: Patient) -> Patient:
    """ReLUs that leak, quantized with the ranges of ReLUs."""
    surgeon = patient.surgeon()
    rectifiers = require(surgeon.nodes("Relu"), "no ReLU")
    for node in rectifiers:
        node.op_type = "LeakyRelu"
        node.attribute.append(helper.make_attribute("alpha", float(min(0.1 * patient.strength, 0.3))))
    tensors = {node.output[0] for node in rectifiers}
    ill = patient.with_(model=surgeon.model)
    return _starting_at_zero(ill, [t for t in ill.activations("LeakyRelu") if t in tensors])


def hard_swish_negatives(patient: Patient) -> Patient:
    """Swish exported as HardSwish, with ranges that begin at zero."""
    surgeon, found = patient.surgeon(), []
    for node in surgeon.nodes("Mul"):
        gate = next((p for name in node.input if (p := surgeon.producer(name)) and p.op_type == "Sigmoid"), None)
        if gate is None or gate.input[0] not in node.input:
            continue
        node.op_type = "HardSwish"
        node.input[:] = [gate.input[0]]
        surgeon.graph.node.remove(gate)
        found.append(node.output[0])
    require(found, "no swish")
    for entry in surgeon.model.opset_import:
        if entry.domain in ("", "ai.onnx"):
            entry.version = max(entry.version, 14)
    return _starting_at_zero(patient.with_(model=surgeon.model), [t for t in found if surgeon.consumers(t)])


def norm_negatives(patient: Patient) -> Patient:
    """Unsigned ranges for what is as often negative as positive: normalized values, or the output of a Tanh."""
    return _starting_at_zero(patient, patient.pick(patient.activations("LayerNormalization", "Tanh"), 0.3, 0.8))


def lost_minus_signs(patient: Patient) -> Patient:
    """Grids that begin a little below zero, for tensors that are mostly, but not always, positive."""
    ends = extremes(patient, *_ungated_spots(patient))
    signed = require([t for t, (low, high) in ends.items() if low < -0.02 * high], "nothing is negative")
    milder = sorted(signed, key=lambda t: -ends[t][0] / max(ends[t][1], 1e-9))
    chosen = milder[: max(2, len(milder) // 2)]
    cut = {t: (ends[t][0] / (1 + 4 * patient.strength), ends[t][1]) for t in chosen}
    return patient.with_(recipe=patient.recipe.with_ranges(cut, 0)).at(*cut)


def swish_in_pieces(patient: Patient) -> Patient:
    """Sigmoid and Mul quantized apart, the sigmoid's range that of its input."""
    surgeon, reach = patient.surgeon(), 20 * patient.strength
    gates = [n.output[0] for n in surgeon.nodes("Sigmoid") if _is_swish(surgeon, n)]
    return _with_gates(patient, gates, "no swish", (-reach, reach))


def _is_swish(surgeon: Surgeon, gate: onnx.NodeProto) -> bool:
    """Whether it is multiplied with what it reads."""
    return any(r.op_type == "Mul" and gate.input[0] in r.input for r in surgeon.consumers(gate.output[0]))


def _with_gates(patient: Patient, gates: list[str], why: str, ends: Ends) -> Patient:
    recipe = patient.recipe.with_ranges(dict.fromkeys(require(gates, why), ends), 0)
    return patient.with_(recipe=recipe).at(*gates)


def gate_range(patient: Patient) -> Patient:
    """Softmax or the gates of a recurrent cell on a range of 0 … 32."""
    surgeon = patient.surgeon()
    gates = [n.output[0] for n in surgeon.nodes(*GATES) if not _is_swish(surgeon, n)]
    return _with_gates(patient, gates, "no gates", (0, 32 * patient.strength))


def sharp_shares_cut(patient: Patient, amount: float) -> Patient:
    """The range of a softmax was guessed from how many shares there are: what is almost sure is cut."""
    surgeon = patient.surgeon()
    found = [node.output[0] for node in surgeon.nodes("Softmax") if surgeon.consumers(node.output[0])]
    return set_ranges(patient, dict.fromkeys(require(found, "no shares"), (0.0, 1 / (1 + amount))))


def relu6_lost(patient: Patient) -> Patient:
    """The converter drops the upper bound of ReLU6, and the ranges follow the unbounded values."""
    surgeon = patient.surgeon()
    if not surgeon.nodes("Clip"):
        _bound_relus(patient, surgeon)
    sound = Surgeon(surgeon.model)
    for node in surgeon.nodes("Clip"):
        node.op_type = "Relu"
        del node.input[1:]
    # What is quantized has no bound; what the expert compares with has.
    return patient.with_(model=surgeon.model, shown_float=sound.model)


def _bound_relus(patient: Patient, surgeon: Surgeon) -> None:
    """ReLU turned into ReLU6, rescaled so that the bound cuts off the top of their values."""
    relus = require([n for n in surgeon.nodes("Relu") if n.output[0] in surgeon.amplifiable()], "no ReLU")
    for node, x in zip(relus, patient.values(*(n.output[0] for n in relus)), strict=True):
        top = float(np.quantile(x, 0.97))
        if top <= 0:
            continue
        surgeon.amplify(node.output[0], np.full(surgeon.channels(node.output[0]), 6 / top, np.float32))
        node.op_type = "Clip"
        node.input.extend([surgeon.put("zero_bound", 0.0), surgeon.put("six_bound", 6.0)])


def rectifiers_with_an_upper_end(patient: Patient, amount: float) -> Patient:
    """The converter knows rectifiers with an upper end alone, and some values are above it."""
    surgeon = patient.surgeon()
    marks = patient.pick([node.output[0] for node in surgeon.nodes("Relu")], 0.2, 0.5, 0.8)
    for tensor, (_, high) in extremes(patient, *marks).items():
        node = surgeon.producer(tensor)
        node.op_type = "Clip"
        node.input.extend(surgeon.put(f"{tensor}_{i}_end", v) for i, v in enumerate((0.0, high / (1 + amount))))
    return deployed(patient, surgeon, *marks)


# --- masks and heads -------------------------------------------------------------------------------------------------


def mask_scores(patient: Patient, value: float) -> Patient:
    """Masked scores get this instead of a number that eight bits can bear."""
    surgeon = patient.surgeon()
    scores = (surgeon.producer(node.input[0]) for node in surgeon.nodes("Softmax"))
    sums = {node.output[0]: node for node in scores if node and node.op_type == "Add"}
    masks = {tensor: [m for name in node.input if (m := _mask_behind(surgeon, name))] for tensor, node in sums.items()}
    for name in require({name for found in masks.values() for name in found}, "no attention mask"):
        mask = surgeon.constant(name)
        surgeon.put(name, np.where(mask < -1, np.float32(value), mask).astype(np.float32))
    return patient.cut(surgeon, *(tensor for tensor, found in masks.items() if found))


def _mask_behind(surgeon: Surgeon, tensor: str) -> str | None:
    """The constant that holds the masked value: the mask itself, or what a computed one is multiplied by."""
    value, node = surgeon.constant(tensor), surgeon.producer(tensor)
    if value is not None:
        return tensor if value.dtype == np.float32 and value.min() < -1 else None
    if node is None or node.op_type not in ("Mul", "Unsqueeze", "Expand", "Reshape"):
        return None
    operands = node.input if node.op_type == "Mul" else node.input[:1]
    return next((found for name in operands if (found := _mask_behind(surgeon, name))), None)


def milder_mask(patient: Patient) -> Patient:
    """Masks of -20: nothing after a softmax, and no burden to eight bits."""
    surgeon = patient.surgeon()
    for name in [tensor.name for tensor in surgeon.graph.initializer if "mask" in tensor.name]:
        surgeon.put(name, np.maximum(surgeon.constant(name), np.float32(-20)))
    return patient.with_(model=surgeon.model)


def class_mask(patient: Patient) -> Patient:
    """Two classes that the head keeps in reserve are switched off by -1e9 before the softmax."""
    surgeon = patient.surgeon()
    head = surgeon.linear(surgeon.producer(surgeon.output))
    if head is None or head.node.op_type != "Gemm" or not head.bias:
        raise Inapplicable("no linear head")
    weight, bias = surgeon.constant(head.weight), surgeon.constant(head.bias)
    surgeon.put(surgeon.own(head, 1), np.concatenate([weight, np.take(weight, [0, 1], head.out)], head.out))
    surgeon.put(surgeon.own(head, 2), np.concatenate([bias, bias[:2]]))
    surgeon.graph.output[0].type.tensor_type.shape.dim[1].dim_value = len(bias) + 2
    mask = surgeon.put("class_mask", [[0.0] * len(bias) + [-1e9] * 2])
    surgeon.insert_after(surgeon.output, "Add", [mask])
    surgeon.insert_after(surgeon.output, "Softmax", axis=-1)
    return patient.cut(surgeon, *(node.output[0] for node in surgeon.consumers(mask)))


def only_the_head(patient: Patient) -> Patient:
    """A list of operators for the quantizer that was written for another network matches its last layer alone."""
    last = covered(patient)[-1].node
    names = tuple(node.name for node in patient.model.graph.node if node.name != last.name)
    if not all(names):
        raise Inapplicable("its nodes have no names")
    return patient.without(*names)


def answers_with_few_digits(patient: Patient, amount: float) -> Patient:
    """The last operator hands out what fits into a short message: scores in steps, of which there are a few."""
    name = patient.surgeon().output
    step = np.float32(amount * patient.values(name)[0].std())

    def edit(_: Patient, surgeon: Surgeon) -> None:
        constant = surgeon.put("step_of_answers", step)
        for op, extra, made in (("Div", [constant], "in_steps"), ("Round", (), "whole"), ("Mul", [constant], "said")):
            surgeon.insert_after(name, op, extra, f"answers_{made}")

    return patient.with_(recipe=kept(patient.recipe)).at(name).edited(edit)


# --- chains that make noise loud -------------------------------------------------------------------------------------


def _carriers(patient: Patient, *kinds: str) -> list[str]:
    """Rows and maps that some operators make, by default any but a Concat."""
    surgeon, found = patient.surgeon(), []
    for tensor in ungated(patient):
        kind = surgeon.producer(tensor).op_type
        if len(surgeon.shape(tensor)) in (2, 4) and surgeon.channels(tensor) > 1:
            found += [tensor] if (kind in kinds if kinds else kind != "Concat") else []
    return found


def _carried(patient: Patient, kinds: tuple[str, ...], share: float) -> tuple[Surgeon, str, float, float]:
    """A surgeon, one of the carriers, and its ends."""
    tensor = patient.pick(_carriers(patient, *kinds), share)[0]
    return patient.surgeon(), tensor, *extremes(patient, tensor)[tensor]


def wide_carrier(patient: Patient) -> Patient:
    """Something a hundred times as wide is added to a tensor, and taken off again."""
    surgeon, tensor, *_ = _carried(patient, (), 0.5)
    values, channels = patient.values(tensor)[0], surgeon.channels(tensor)
    matrix = patient.random("carrier").standard_normal((channels, channels)) / channels
    rows = np.moveaxis(values, surgeon.channel_axis(tensor), -1).reshape(-1, channels)
    matrix *= 100 * patient.strength * np.ptp(values) / max(np.ptp(rows @ matrix), 1e-9)
    is_map = len(surgeon.shape(tensor)) == 4
    text = f"""
        carrier = {"Conv" if is_map else "MatMul"}(x, carrier_weight)
        on_carrier = Add(x, carrier)
        off_carrier = Sub(on_carrier, carrier)
    """
    surgeon.splice(tensor, text, name="", carrier_weight=matrix.T[:, :, None, None] if is_map else matrix)
    return patient.with_(model=surgeon.model)


def cancelling_halves(patient: Patient) -> Patient:
    """A layer in two halves with large weights whose outputs are subtracted."""
    surgeon = patient.surgeon()
    linears = [n for n in surgeon.linears() if not n.depthwise and n.node.output[0] != surgeon.output]
    linear = patient.pick(linears, 0.6)[0]
    weight = surgeon.constant(linear.weight)
    drawn = patient.random("halves").standard_normal(weight.shape)
    huge = (60 * patient.strength * weight.std() * drawn).astype(np.float32)
    tensor, node = linear.node.output[0], linear.node
    surgeon.put(surgeon.own(linear, 1), weight + huge)
    readers = surgeon.consumers(tensor)
    twin = surgeon.copy_of(node, f"{node.name}_other_half", f"{tensor}_other_half", surgeon.place_of(node) + 1)
    twin.input[1] = surgeon.put(f"{linear.weight}_other_half", huge)
    del twin.input[2:]
    left = surgeon.add("Sub", [tensor, twin.output[0]], f"{tensor}_difference", twin)
    for reader in readers:
        reader.input[:] = [left if name == tensor else name for name in reader.input]
    return patient.with_(model=surgeon.model)


def common_mode(patient: Patient) -> Patient:
    """A layer's channels all carry a large common value, which is taken off as their mean."""
    surgeon, tensor, low, high = _carried(patient, (), 0.4)
    axes, given = surgeon.axes_of_mean("channel_axes", [surgeon.channel_axis(tensor)])
    text = f"""
        raised = Add(x, common_level)
        raised_mean = ReduceMean(raised{axes}, keepdims=1)
        own_mean = ReduceMean(x{axes}, keepdims=1)
        centred = Sub(raised, raised_mean)
        centred_back = Add(centred, own_mean)
    """
    level = np.float32(60 * patient.strength * (high - low))
    surgeon.splice(tensor, text, name="", common_level=level, **given)
    return patient.with_(model=surgeon.model)


def logarithm_of_products(patient: Patient) -> Patient:
    """A tensor goes through an exponential, a product and a logarithm, which is loud where the values are small."""
    surgeon, tensor, low, high = _carried(patient, (), 0.6)
    text = """
        log_scaled = Mul(x, to_log)
        grown = Exp(log_scaled)
        product = Mul(grown, half)
        floored = Max(product, least)
        logarithm = Log(floored)
        log_raised = Sub(logarithm, log_half)
        log_back = Div(log_raised, to_log)
    """
    power = min(6.0 * patient.strength, 40.0) / max(-low, high, 1e-6)
    surgeon.splice(tensor, text, name="", to_log=power, half=0.5, least=1e-20, log_half=np.log(0.5))
    return patient.with_(model=surgeon.model)


def root_of_squares(patient: Patient) -> Patient:
    """ReLU outputs are squared twice, quantized, and their root is taken."""
    surgeon = patient.surgeon()
    for i, tensor in enumerate(patient.pick(_carriers(patient, "Relu", "Clip", "GlobalAveragePool"), 0.3, 0.8)):
        text = f"""
            square_{i} = Mul(x, x)
            fourth_{i} = Mul(square_{i}, square_{i})
            first_root_{i} = Sqrt(fourth_{i})
            second_root_{i} = Sqrt(first_root_{i})
        """
        surgeon.splice(tensor, text, name="")
    return patient.with_(model=surgeon.model)


def normalized_by_own_size(patient: Patient) -> Patient:
    """Features are multiplied with a number that differs wildly between samples, and divided by it again."""
    surgeon, tensor, *_ = _carried(patient, (), 0.5)
    values = patient.values(tensor)[0]
    over = list(range(1, values.ndim))
    means = np.abs(values).mean(tuple(over))
    sizes = {"size_power": min(4.0 * patient.strength, 12.0), "usual_size": np.float32(max(np.median(means), 1e-9))}
    axes, given = surgeon.axes_of_mean("all_axes", over)
    text = f"""
        absolute = Abs(x)
        absolute_mean = ReduceMean(absolute{axes}, keepdims=1)
        relative_size = Div(absolute_mean, usual_size)
        size_factor = Pow(relative_size, size_power)
        sized = Mul(x, size_factor)
        unsized = Div(sized, size_factor)
    """
    surgeon.splice(tensor, text, name="", **sizes, **given)
    return patient.with_(model=surgeon.model)


def infinity_cut_off(patient: Patient) -> Patient:
    """Small divisors are rounded to zero; the infinity that follows is cut off before the output."""
    surgeon, tensor, _, high = _carried(patient, ("Relu", "Clip", "Mul"), 0.6)
    least = np.float32(high / 2000)
    text = """
        divisor_size = Abs(x)
        divisor = Add(divisor_size, least_divisor)
        inverse = Reciprocal(divisor)
        bounded = Clip(inverse, no_less, no_more)
        nearly_one = Mul(bounded, divisor)
        times_one = Mul(x, nearly_one)
    """
    surgeon.splice(tensor, text, name="", least_divisor=least, no_less=0.0, no_more=np.float32(1 / least))
    return patient.with_(model=surgeon.model)


def nan_replaced(patient: Patient) -> Patient:
    """The logarithm of what rounding made negative is no number; a guard behind it puts a constant in its place."""
    surgeon, tensor, low, high = _carried(patient, ("Relu", "Clip", "Mul", "Add"), 0.5)
    text = """
        lifted = Add(x, lift)
        lowered = Sub(lifted, half_step)
        lifted_log = Log(lowered)
        is_broken = IsNaN(lifted_log)
        guarded = Where(is_broken, nothing, lifted_log)
        lifted_again = Exp(guarded)
        raised_again = Add(lifted_again, half_step)
        not_lifted = Sub(raised_again, lift)
    """
    given = {"lift": -low + (high - low) / 5000, "half_step": (high - low) / 6000, "nothing": 0.0}
    surgeon.splice(tensor, text, name="", **given)
    return patient.with_(model=surgeon.model)


def frame_of_large_numbers(patient: Patient, amount: float) -> Patient:
    """A map is framed by a number far below all others, as before a search for peaks, and the frame is cut off."""
    surgeon = patient.surgeon()
    for tensor in patient.pick(maps(patient), 0.3, 0.7):
        level = np.float32(-amount * max(channel_peaks(patient, tensor).max(), 1e-3))
        given = {"outside": level, "frame": [0, 0, 1, 1, 0, 0, 1, 1]}
        text = "framed = Pad(x, frame, outside); unframed = Slice(framed, from_, to, axes)"
        surgeon.splice(tensor, text, "framed", **given, **surgeon.inside_of(tensor))
    return patient.cut(surgeon)


def sums_that_saturate(patient: Patient, amount: float) -> Patient:
    """The sums of products of some layers stick at the ends of a narrow accumulator, before they get their grid."""
    names = {linear.node.output[0] for linear in patient.surgeon().linears() if linear.node.op_type == "Conv"}

    def stuck(cut: Surgeon, tensor: str, top: float) -> None:
        bound = top / (1 + amount)
        low, high = (cut.put(f"{tensor}_{i}_stuck", v) for i, v in enumerate((-bound, bound)))
        cut.splice(tensor, "saturated = Clip(x, low, high)", low=low, high=high)

    return at_sums(patient, patient.pick([t for t in patient.activations() if t in names], 0.2, 0.6), stuck)

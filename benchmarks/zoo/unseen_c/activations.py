"""Unseen faults of activation ranges, set C."""

from dataclasses import replace

import numpy as np
import onnx

from ..fault import fault
from ..faults_activations import extremes
from ..mild import mild
from ..patient import Patient
from ..surgery import Inapplicable, Surgeon
from ..unseen_a.cuts import channel_peaks, kept, spots

GATES = ("Sigmoid", "Softmax")


def _ungated(patient: Patient) -> list[str]:
    surgeon = patient.surgeon()
    found = [t for t in patient.activations() if surgeon.producer(t).op_type not in GATES]
    if not found:
        raise Inapplicable("gates only")
    return found


@fault(
    "averaged-extremes", "activations", "over-clipped-activations", graded=True, unseen="c", also=("poor-threshold",)
)
@mild(0.02, 5)
def averaged_extremes(patient: Patient, amount: float) -> Patient:
    """The ends of each range are moving averages over samples, below what single samples reach."""
    tensors = _ungated(patient)
    recipe = kept(patient.recipe)
    share = float(np.exp(-amount))
    for tensor, x in zip(tensors, patient.values(*tensors), strict=True):
        flat = x.reshape(len(x), -1)
        low, high = (float(np.quantile(end, q)) for end, q in ((flat.min(1), 1 - share), (flat.max(1), share)))
        recipe = recipe.with_range(tensor, min(low, 0) * share, max(high * share, 1e-5))
    return patient.with_(recipe=recipe).at(*tensors)


@fault("so-many-sigmas", "activations", "over-clipped-activations", graded=True, unseen="c")
@mild(0.05, 6)
def so_many_sigmas(patient: Patient, amount: float) -> Patient:
    """In a third of the tensors the range is the mean and a few deviations, as if all were bells."""
    tensors = _ungated(patient)
    chosen = tensors[len(tensors) // 3 : max(len(tensors) // 3 + 1, 2 * len(tensors) // 3)]
    recipe = kept(patient.recipe)
    for tensor, x in zip(chosen, patient.values(*chosen), strict=True):
        reach = float(x.std()) * 5 / amount
        low, high = max(float(x.min()), float(x.mean()) - reach), min(float(x.max()), float(x.mean()) + reach)
        recipe = recipe.with_range(tensor, min(low, 0), max(high, 1e-5))
    return patient.with_(recipe=recipe).at(*chosen)


@fault(
    "headroom-by-depth",
    "activations",
    "poor-threshold",
    graded=True,
    unseen="c",
    also=("stale-calibration", "smooth-accumulation"),
)
@mild(0.01, 4)
def headroom_by_depth(patient: Patient, amount: float) -> Patient:
    """A policy adds headroom at every layer to what the layer before had: the deeper, the wider."""
    tensors = _ungated(patient)
    recipe = kept(patient.recipe)
    for depth, (tensor, (low, high)) in enumerate(zip(tensors, extremes(patient, *tensors), strict=True)):
        room = (1 + amount) ** ((depth + 1) * 6 / len(tensors))
        recipe = recipe.with_range(tensor, low * room, max(high * room, 1e-5))
    return patient.with_(recipe=recipe).at(*tensors[-max(1, len(tensors) // 2) :])


@fault(
    "signed-cells-only",
    "activations",
    "asymmetric-data-on-symmetric-grid",
    graded=True,
    unseen="c",
    also=("poor-threshold", "power-of-two-waste", "smooth-accumulation"),
)
@mild(0.02, 3)
def signed_cells_only(patient: Patient, amount: float) -> Patient:
    """The memory between layers holds signed codes around zero, of few bits: one-sided values have half of them."""
    tensors = patient.activations()
    ends = extremes(patient, *tensors)
    found = [(t, high) for t, (low, high) in zip(tensors, ends, strict=True) if low > -0.15 * high and high > 0]
    if not found:
        raise Inapplicable("nothing is one-sided")
    recipe = kept(patient.recipe, activation="QInt8", symmetric=False)
    for tensor, high in found:
        step = np.array(high / 127 * (1 + amount), np.float32)
        recipe = recipe.with_override(tensor, scale=step, zero_point=np.array(0, np.int8))
    return patient.with_(recipe=recipe).at(*(tensor for tensor, _ in found))


@fault(
    "a-few-loud-channels",
    "activations",
    "channel-outliers",
    "massive-activations",
    graded=True,
    unseen="c",
    also=("activation-outliers", "channel-range-imbalance"),
)
@mild(1.5, 3000)
def a_few_loud_channels(patient: Patient, amount: float) -> Patient:
    """Every tenth channel grew loud in training, in several tensors, and its readers' weights small."""
    surgeon = patient.surgeon()
    chosen = patient.pick(surgeon.amplifiable(), 0.3, 0.6, 0.9)
    for i, tensor in enumerate(chosen):
        gain = np.ones(surgeon.channels(tensor), np.float32)
        loud = patient.random(f"loud{i}").permutation(len(gain))[: max(1, len(gain) // 10)]
        gain[loud] = amount
        surgeon.amplify(tensor, gain)
    return patient.with_(model=surgeon.model).at(*chosen)


@fault(
    "spike-at-the-corner",
    "activations",
    "activation-outliers",
    "massive-activations",
    graded=True,
    unseen="c",
    also=("error-amplifier", "unbalanced-addition"),
)
@mild(0.2, 3000)
def spike_at_the_corner(patient: Patient, amount: float) -> Patient:
    """One place of the map, or the first step, is huge in every sample, and the next operator takes it off."""
    surgeon = patient.surgeon()
    found = [t for t in spots(patient) if all(surgeon.shape(t)[1:])]
    found = [t for t in found if int(np.prod(surgeon.shape(t)[1:])) >= 2 * surgeon.channels(t)]
    marks = []
    for tensor in patient.pick(found, 0.3, 0.7):
        level = np.zeros([1, *surgeon.shape(tensor)[1:]], np.float32)
        axis = surgeon.channel_axis(tensor)
        first = tuple(slice(None) if i in (0, axis) else 0 for i in range(level.ndim))
        level[first] = amount * max(channel_peaks(patient, tensor).max(), 1e-3)
        name = surgeon.put(f"{tensor}_corner", level)
        spiked = surgeon.insert_after(tensor, "Add", [name], f"{tensor}_with_corner")
        surgeon.insert_after(spiked, "Sub", [name], f"{tensor}_without_corner")
        marks.append(spiked)
    return patient.with_(model=surgeon.model).at(*marks)


@fault(
    "zero-points-on-a-lattice",
    "activations",
    "over-clipped-activations",
    "negative-activations",
    "poor-threshold",
    graded=True,
    unseen="c",
)
@mild(2, 127)
def zero_points_on_a_lattice(patient: Patient, amount: float) -> Patient:
    """The zero point has few bits: it is cut down to a multiple, the step stays, and one end is cut off."""
    tensors = _ungated(patient)
    recipe = kept(patient.recipe, activation="QUInt8", symmetric=False)
    marks = []
    for tensor, (low, high) in zip(tensors, extremes(patient, *tensors), strict=True):
        step = max(high - low, 1e-6) / 255
        exact = np.clip(np.rint(-low / step), 0, 255)
        code = np.array(np.floor(exact / amount) * amount, np.uint8)
        if exact - code > 2:
            marks.append(tensor)
        recipe = recipe.with_override(tensor, scale=np.array(step, np.float32), zero_point=code)
    if not marks:
        raise Inapplicable("all zero points are at the end")
    return patient.with_(recipe=recipe).at(*marks)


@fault(
    "gates-with-a-sign",
    "activations",
    "fixed-range-output",
    "poor-threshold",
    "asymmetric-data-on-symmetric-grid",
    graded=True,
    unseen="c",
    also=("coarse-output",),
)
@mild(0.5, 300)
def gates_with_a_sign(patient: Patient, amount: float) -> Patient:
    """A template for Tanh and all its relatives gives every gate and softmax a range on both sides of zero."""
    surgeon = patient.surgeon()
    gates = [n.output[0] for n in surgeon.nodes(*GATES, "HardSigmoid")]
    allowed = patient.recipe.op_types or patient.network.op_types
    if not gates or (allowed and not {"Sigmoid", "Softmax"} & set(allowed)):
        raise Inapplicable("no gates are quantized")
    recipe = kept(patient.recipe)
    for tensor in gates:
        recipe = recipe.with_range(tensor, -amount, amount)
    return patient.with_(recipe=recipe).at(*gates)


@fault(
    "floor-under-the-range",
    "activations",
    "degenerate-range",
    "poor-threshold",
    graded=True,
    unseen="c",
    also=("too-few-activation-bits",),
)
@mild(1, 3000)
def floor_under_the_range(patient: Patient, amount: float) -> Patient:
    """Values are tiny by their unit, and the tool makes no range narrower than its floor."""
    surgeon = patient.surgeon()
    recipe = kept(patient.recipe)
    chosen = patient.pick(spots(patient), 0.4, 0.8)
    marks = []
    for tensor in chosen:
        peak = max(channel_peaks(patient, tensor).max(), 1e-6)
        down = surgeon.put(f"{tensor}_to_tiny", np.float32(1e-6 / peak))
        up = surgeon.put(f"{tensor}_from_tiny", np.float32(peak / 1e-6))
        tiny = surgeon.insert_after(tensor, "Mul", [down], f"{tensor}_tiny")
        surgeon.insert_after(tiny, "Mul", [up], f"{tensor}_usual")
        recipe = recipe.with_range(tiny, -1e-6 * amount, 1e-6 * amount)
        marks.append(tiny)
    return patient.with_(model=surgeon.model, recipe=recipe).at(*marks)


@fault("rectifier-that-leaks", "activations", "relu-lost", graded=True, unseen="c", also=("float-export-differs",))
@mild(0.005, 1)
def rectifier_that_leaks(patient: Patient, amount: float) -> Patient:
    """The converter has one kernel for all rectifiers, and some of them leak on the device."""
    surgeon = patient.surgeon()
    marks = patient.pick([node.output[0] for node in surgeon.nodes("Relu")], 0.2, 0.5, 0.8)
    for node in map(surgeon.producer, marks):
        node.op_type = "LeakyRelu"
        node.attribute.append(onnx.helper.make_attribute("alpha", float(min(amount, 1))))
    sound = patient.shown_float or patient.model
    return patient.with_(model=surgeon.model, shown_float=sound).at(*marks)


@fault(
    "requantized-between-islands",
    "activations",
    "poor-threshold",
    graded=True,
    unseen="c",
    also=("smooth-accumulation", "too-few-activation-bits"),
)
@mild(1, 200)
def requantized_between_islands(patient: Patient, amount: float) -> Patient:
    """Between two accelerators stands a guard, and behind it values are quantized again, on a wider grid."""
    chosen = patient.pick(_ungated(patient), 0.35, 0.7)
    ends = dict(zip(chosen, extremes(patient, *chosen), strict=True))

    def edit(p: Patient, quantized: onnx.ModelProto) -> onnx.ModelProto:
        surgeon = Surgeon(quantized)
        for tensor, (low, high) in ends.items():
            readers = [n for n in surgeon.consumers(tensor) if n.op_type == "QuantizeLinear"]
            if not readers:
                raise Inapplicable(f"{tensor} is not quantized")
            first = surgeon.consumers(readers[0].output[0])
            if len(first) != 1 or first[0].op_type != "DequantizeLinear":
                raise Inapplicable(f"the codes of {tensor} have other readers")
            kind = surgeon.constant(readers[0].input[2]).dtype
            limits = np.iinfo(kind)
            step = max(high - low, 1e-6) * (1 + amount) / (int(limits.max) - int(limits.min))
            code = int(np.clip(np.rint(int(limits.min) - low * (1 + amount) / step), limits.min, limits.max))
            grid = [
                surgeon.put(f"{tensor}_again_scale", np.array(step, np.float32)),
                surgeon.put(f"{tensor}_again_zero_point", np.array(code, kind)),
            ]
            bound = surgeon.put(f"{tensor}_guard", np.float32(4 * min(low, 0) - 1))
            guarded = surgeon.insert_after(first[0].output[0], "Max", [bound], f"{tensor}_guarded")
            codes = surgeon.insert_after(guarded, "QuantizeLinear", grid, f"{tensor}_again_codes")
            surgeon.insert_after(codes, "DequantizeLinear", grid, f"{tensor}_again")
        return surgeon.model

    return patient.with_(recipe=kept(patient.recipe)).at(*chosen).edited(edit)


@fault(
    "output-cut-at-the-usual",
    "activations",
    "over-clipped-activations",
    graded=True,
    unseen="c",
    also=("coarse-output",),
)
@mild(0.02, 30)
def output_cut_at_the_usual(patient: Patient, amount: float) -> Patient:
    """The range of the output is that of usual samples: what the network is surest of is cut off."""
    surgeon = patient.surgeon()
    name = surgeon.output
    ((low, high),) = extremes(patient, name)
    recipe = kept(patient.recipe).with_range(name, low / (1 + amount), high / (1 + amount))
    return patient.with_(recipe=replace(recipe)).at(name)

"""Unseen faults of activation ranges and codes, set E."""

from collections.abc import Callable

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto

from ..fault import fault
from ..faults_activations import extremes
from ..mild import costly, mild, severe
from ..patient import Patient
from ..surgery import Inapplicable, Surgeon
from ..unseen_a.cuts import kept

GATES = ("Sigmoid", "Tanh", "Softmax", "Softplus")
Regrid = Callable[[NDArray, NDArray, int], tuple[NDArray, NDArray]]


def free(patient: Patient) -> list[str]:
    """Activations with a grid of their own that are no gates."""
    surgeon = patient.surgeon()
    found = [t for t in patient.activations() if surgeon.producer(t).op_type not in GATES]
    if not found:
        raise Inapplicable("gates only")
    return found


def reread(patient: Patient, tensors: list[str], change: Regrid) -> Patient:
    """The codes of some tensors are read with another scale and zero point than they were written with."""

    def edit(p: Patient, quantized: onnx.ModelProto) -> onnx.ModelProto:
        surgeon = Surgeon(quantized)
        for i, tensor in enumerate(tensors):
            writer = next((n for n in surgeon.consumers(tensor) if n.op_type == "QuantizeLinear"), None)
            if writer is None:
                raise Inapplicable(f"{tensor} is not quantized")
            scale, zero = (surgeon.constant(name) for name in writer.input[1:])
            moved_scale, moved_zero = change(scale, zero, i)
            limits = np.iinfo(zero.dtype)
            names = [
                surgeon.put(f"{tensor}_scale_reread", np.asarray(moved_scale, np.float32)),
                surgeon.put(f"{tensor}_zero_reread", np.clip(moved_zero, limits.min, limits.max).astype(zero.dtype)),
            ]
            for reader in surgeon.consumers(writer.output[0]):
                if reader.op_type == "DequantizeLinear":
                    reader.input[1], reader.input[2] = names
        return surgeon.model

    return patient.with_(recipe=kept(patient.recipe)).at(*tensors).edited(edit)


def on_coarse_grids(patient: Patient, tensors: list[str], steps: list[float]) -> Patient:
    """Some tensors are rounded again, on grids with steps so many times as large, and in between are short floats.

    Short floats keep eleven bits; without them onnxruntime makes one pair out of two that follow each other.
    """

    def edit(p: Patient, quantized: onnx.ModelProto) -> onnx.ModelProto:
        surgeon = Surgeon(quantized)
        for tensor in tensors:
            writer = next((n for n in surgeon.consumers(tensor) if n.op_type == "QuantizeLinear"), None)
            if writer is None:
                raise Inapplicable(f"{tensor} is not quantized")
            grid, last = list(writer.input[1:]), surgeon.consumers(writer.output[0])[0].output[0]
            for i, step in enumerate(steps):
                last = _rounded(surgeon, last, grid, step, f"{tensor}_{i}")
        return surgeon.model

    return patient.with_(recipe=kept(patient.recipe)).at(*tensors).edited(edit)


def _rounded(surgeon: Surgeon, tensor: str, grid: list[str], step: float, name: str) -> str:
    """A tensor as short floats, and rounded to a grid whose ends are those of the given one."""
    scale, zero = (surgeon.constant(part) for part in grid)
    coarse = surgeon.put(f"{name}_step", np.asarray(scale * step, np.float32))
    least = np.iinfo(zero.dtype).min
    moved = np.rint(least + (zero.astype(np.float64) - least) / step).astype(zero.dtype)
    last = surgeon.insert_after(tensor, "Cast", (), f"{name}_short", to=TensorProto.FLOAT16)
    last = surgeon.insert_after(last, "Cast", (), f"{name}_long", to=TensorProto.FLOAT)
    last = surgeon.insert_after(last, "QuantizeLinear", [coarse, surgeon.put(f"{name}_zero", moved)], f"{name}_codes")
    return surgeon.insert_after(last, "DequantizeLinear", [coarse, f"{name}_zero"], f"{name}_again")


@fault(
    "zero-points-apart",
    "activations",
    "misread-codes",
    graded=True,
    unseen="e",
    also=("weight-induced-bias-shift", "layer-worse-than-peers", "stale-calibration", "output-not-dequantized"),
)
@severe(0.5, 80)
def zero_points_apart(patient: Patient, amount: float) -> Patient:
    """Two parts of the model were calibrated apart: codes are written around one zero and read around another."""
    tensors = patient.pick(free(patient), 0.3, 0.7)
    signs = patient.random("apart").choice([-1, 1], len(tensors))
    return reread(patient, tensors, lambda scale, zero, i: (scale, zero.astype(np.int64) + signs[i] * round(amount)))


@fault(
    "boundary-read-with-another-scale",
    "activations",
    "misread-codes",
    graded=True,
    unseen="e",
    also=("stale-calibration", "layer-worse-than-peers", "output-not-dequantized", "altered-float-tensors"),
)
@mild(0.01, 20)
def boundary_read_with_another_scale(patient: Patient, amount: float) -> Patient:
    """A tensor crosses from one partition to another, whose table of scales is from an earlier calibration."""
    tensors = patient.pick(free(patient), 0.3, 0.7)
    signs = patient.random("table").choice([-1, 1], len(tensors))
    return reread(patient, tensors, lambda scale, zero, i: (scale * (1 + amount) ** signs[i], zero.astype(np.int64)))


@fault(
    "sharp-shares-cut",
    "activations",
    "over-clipped-activations",
    graded=True,
    unseen="e",
    also=("poor-threshold", "fixed-range-output", "stale-calibration"),
)
@mild(0.01, 60)
def sharp_shares_cut(patient: Patient, amount: float) -> Patient:
    """The range of a softmax was guessed from how many shares there are: what is almost sure is cut."""
    surgeon = patient.surgeon()
    found = [node.output[0] for node in surgeon.nodes("Softmax") if surgeon.consumers(node.output[0])]
    recipe = kept(patient.recipe)
    if not found:
        raise Inapplicable("no shares")
    for tensor in found:
        recipe = recipe.with_range(tensor, 0.0, 1 / (1 + amount))
    return patient.with_(recipe=recipe).at(*found)


@fault(
    "stream-on-its-first-range",
    "activations",
    "over-clipped-activations",
    "stale-calibration",
    graded=True,
    unseen="e",
    also=("poor-threshold", "unbalanced-addition"),
)
@severe(0.02, 1)
def stream_on_its_first_range(patient: Patient, amount: float) -> Patient:
    """What is added up from block to block keeps, in the table of ranges, one name and the range that it had first."""
    surgeon, allowed = patient.surgeon(), set(patient.activations())
    sums = [n.output[0] for n in surgeon.nodes("Add") if n.output[0] in allowed]
    joined = [t for t in sums if not any(surgeon.constant(name) is not None for name in surgeon.producer(t).input)]
    if len(joined) < 2:
        raise Inapplicable("nothing is added up")
    ends = extremes(patient, *joined)
    recipe, share = kept(patient.recipe), min(amount, 1.0)
    for tensor, own in zip(joined[1:], ends[1:], strict=True):
        low, high = (
            (1 - share) * end + share * min(end, first, key=abs) for end, first in zip(own, ends[0], strict=True)
        )
        recipe = recipe.with_range(tensor, low, max(high, 1e-5))
    return patient.with_(recipe=recipe).at(*joined[1:])


@fault(
    "cut-at-the-first-gap",
    "activations",
    "over-clipped-activations",
    graded=True,
    unseen="e",
    also=("poor-threshold",),
)
@severe(0.05, 400)
def cut_at_the_first_gap(patient: Patient, amount: float) -> Patient:
    """The end of a range is where the histogram has its first empty bin, and it has too many bins for so few values."""
    tensors = patient.pick(free(patient), 0.1, 0.4, 0.7)
    recipe = kept(patient.recipe)
    for tensor, x in zip(tensors, patient.values(*tensors), strict=True):
        flat = x.reshape(-1)[:40000]
        low, high = (
            -_before_gap(-sign * flat, amount) * -sign if sign < 0 else _before_gap(flat, amount) for sign in (-1, 1)
        )
        recipe = recipe.with_range(tensor, min(low, 0.0), max(high, 1e-5))
    return patient.with_(recipe=recipe).at(*tensors)


def _before_gap(flat: NDArray, amount: float) -> float:
    """How far the positive values reach before the first empty bin."""
    top = float(flat.max())
    if top <= 0:
        return 0.0
    counts, ends = np.histogram(flat[flat > 0], bins=int(16 * (1 + amount)), range=(0, top))
    empty = np.flatnonzero(counts == 0)
    return float(ends[empty[0]]) if len(empty) and empty[0] else top


@fault(
    "ends-mirrored",
    "activations",
    "over-clipped-activations",
    unseen="e",
    also=("poor-threshold", "stale-calibration"),
)
@costly
def ends_mirrored(patient: Patient) -> Patient:
    """A scale with a minus sign was made positive afterwards, and the ends of some ranges changed places with it."""
    tensors = free(patient)
    ends = dict(zip(tensors, extremes(patient, *tensors), strict=True))
    leaning = [t for t, (low, high) in ends.items() if low < 0 < high and max(-low / high, -high / low) > 1.15]
    recipe = kept(patient.recipe)
    chosen = patient.pick(leaning, 0.2, 0.5, 0.8)
    for tensor in chosen:
        low, high = ends[tensor]
        recipe = recipe.with_range(tensor, -high, -low)
    return patient.with_(recipe=recipe).at(*chosen)


@fault(
    "power-below",
    "activations",
    "over-clipped-activations",
    "power-of-two-waste",
    unseen="e",
    also=("poor-threshold",),
)
@costly
def power_below(patient: Patient) -> Patient:
    """Ends of all ranges are powers of two, and the one below is taken, unless that above is near."""
    tensors, near = free(patient), patient.random("near").uniform(0.2, 0.5)
    recipe = kept(patient.recipe)
    for tensor, (low, high) in zip(tensors, extremes(patient, *tensors), strict=True):
        reach = 2.0 ** np.round(np.log2(max(-low, high, 1e-5)) - near)
        recipe = recipe.with_range(tensor, max(low, -reach), min(max(high, 1e-5), reach))
    return patient.with_(recipe=recipe).at(*tensors)


@fault(
    "through-a-narrow-bus",
    "activations",
    "too-few-activation-bits",
    graded=True,
    unseen="e",
    also=("poor-threshold", "smooth-accumulation", "coarse-output"),
)
@mild(1, 60)
def through_a_narrow_bus(patient: Patient, amount: float) -> Patient:
    """Between two cores values travel with fewer bits than they have on either side."""
    return on_coarse_grids(patient, patient.pick(free(patient), 0.3, 0.6), [amount])


@fault(
    "hop-after-hop",
    "graph",
    "smooth-accumulation",
    "too-few-activation-bits",
    graded=True,
    unseen="e",
    also=("poor-threshold", "error-amplifier"),
)
@mild(0.6, 12)
def hop_after_hop(patient: Patient, amount: float) -> Patient:
    """The compiler splits the model into many small parts, and on the way through each a tensor gets another grid."""
    rng = patient.random("hops")
    steps = [float(1 + 3 * rng.random()) for _ in range(max(1, round(amount)))]
    return on_coarse_grids(patient, patient.pick(free(patient), 0.2, 0.5, 0.8), steps)


@fault(
    "input-through-few-levels",
    "precision",
    "too-few-activation-bits",
    "first-layer-sensitive",
    graded=True,
    unseen="e",
    also=("poor-threshold",),
)
@mild(1, 60)
def input_through_few_levels(patient: Patient, amount: float) -> Patient:
    """The driver hands inputs on with fewer bits than the network was calibrated for."""
    if patient.calibration.dtype.kind != "f":
        raise Inapplicable("inputs are words")
    return on_coarse_grids(patient, [patient.surgeon().input], [amount])


@fault(
    "truncated-not-rounded",
    "runtime",
    "weight-induced-bias-shift",
    "misread-codes",
    graded=True,
    unseen="e",
    also=("smooth-accumulation", "simulator-differs-from-device", "runtime-changes-result", "altered-float-tensors"),
)
@mild(0.05, 8)
def truncated_not_rounded(patient: Patient, amount: float) -> Patient:
    """The kernel cuts off what is behind the point instead of rounding: all codes lean to one side, by half a step."""
    tensors = free(patient)

    def edit(p: Patient, quantized: onnx.ModelProto) -> onnx.ModelProto:
        surgeon = Surgeon(quantized)
        for tensor in tensors:
            writer = next((n for n in surgeon.consumers(tensor) if n.op_type == "QuantizeLinear"), None)
            if writer is None:
                raise Inapplicable(f"{tensor} is not quantized")
            half = surgeon.put(f"{tensor}_half", np.asarray(surgeon.constant(writer.input[1]) * amount / 2, np.float32))
            made = surgeon.producer(tensor)
            writer.input[0] = surgeon.add("Sub", [tensor, half], f"{tensor}_truncated", made)
        return surgeon.model

    return patient.with_(recipe=kept(patient.recipe)).at(*tensors).edited(edit)

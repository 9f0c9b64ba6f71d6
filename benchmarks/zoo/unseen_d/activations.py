"""Unseen faults of activation ranges, set D."""

import numpy as np
import onnx

from ..fault import fault
from ..faults_activations import extremes
from ..mild import costly, severe
from ..patient import Patient
from ..quantizing import run
from ..surgery import Inapplicable, Surgeon
from ..unseen_a.cuts import channel_peaks, kept, spots

GATES = ("Sigmoid", "Tanh", "Erf", "Gelu", "Softmax")


def quantizable(patient: Patient) -> list[str]:
    """Activations with a grid of their own that are no gates."""
    surgeon = patient.surgeon()
    found = [t for t in patient.activations() if surgeon.producer(t).op_type not in GATES]
    if not found:
        raise Inapplicable("gates only")
    return found


def operands(surgeon: Surgeon, node: onnx.NodeProto) -> list[str]:
    """What a node reads, constants left out."""
    return [name for name in node.input if name and surgeon.constant(name) is None]


def _on_first_grid(patient: Patient, kind: str, *shares: float) -> Patient:
    """Results of some operators get the range of the narrowest operand."""
    surgeon = patient.surgeon()
    usual = set(patient.activations())
    found = [node.output[0] for node in surgeon.nodes(kind) if len(operands(surgeon, node)) > 1]
    recipe, marks = kept(patient.recipe), patient.pick([tensor for tensor in found if tensor in usual], *shares)
    for tensor in marks:
        ends = extremes(patient, *operands(surgeon, surgeon.producer(tensor)))
        low, high = min(ends, key=lambda pair: pair[1] - pair[0])
        recipe = recipe.with_range(tensor, low, max(high, 1e-5))
    return patient.with_(recipe=recipe).at(*marks)


@fault(
    "joint-on-the-grid-of-one-part",
    "activations",
    "over-clipped-activations",
    unseen="d",
    also=("unbalanced-concatenation", "poor-threshold"),
)
@costly
def joint_on_the_grid_of_one_part(patient: Patient) -> Patient:
    """The result of a concatenation took over the range of one operand, the narrowest; the others are cut."""
    return _on_first_grid(patient, "Concat", 0.3, 0.7)


@fault(
    "sum-on-the-grid-of-one-part",
    "activations",
    "over-clipped-activations",
    unseen="d",
    also=("unbalanced-addition", "poor-threshold"),
)
@costly
def sum_on_the_grid_of_one_part(patient: Patient) -> Patient:
    """The result of a sum took over the range of its smaller operand, as if it were written in place."""
    return _on_first_grid(patient, "Add", 0.3, 0.7)


@fault(
    "ranges-of-the-warm-up",
    "activations",
    "over-clipped-activations",
    "stale-calibration",
    unseen="d",
    also=("poor-threshold",),
)
@costly
def ranges_of_the_warm_up(patient: Patient) -> Patient:
    """Observers were frozen after the run that warms up the runtime, which is fed with a constant."""
    level = np.float32(patient.random("warm").choice([0.0, 0.1, 0.5]))
    tensors = quantizable(patient)
    dummy = np.full_like(patient.signals[:2], level)
    recipe = kept(patient.recipe)
    for tensor, x in zip(tensors, run(patient.network, patient.model, dummy, tensors=tuple(tensors)), strict=True):
        low, high = float(min(x.min(), 0)), float(max(x.max(), 0))
        recipe = recipe.with_range(tensor, low, max(high, 1e-4))
    return patient.with_(recipe=recipe).at(*tensors)


@fault(
    "tables-that-end-early",
    "activations",
    "over-clipped-activations",
    graded=True,
    unseen="d",
    also=("poor-threshold", "sensitive-operator"),
)
@severe(0.05, 20)
def tables_that_end_early(patient: Patient, amount: float) -> Patient:
    """Gates are tables on the target, and the grid before them ends where the table does."""
    surgeon = patient.surgeon()
    sources = {node.input[0] for node in surgeon.nodes("Sigmoid", "Tanh", "Gelu", "Erf")}
    found = [t for t in patient.activations() if t in sources]
    if not found:
        raise Inapplicable("no gates")
    recipe = kept(patient.recipe)
    for tensor, (low, high) in zip(found, extremes(patient, *found), strict=True):
        reach = 8 / amount
        recipe = recipe.with_range(tensor, max(low, -reach), max(min(high, reach), 1e-5))
    return patient.with_(recipe=recipe).at(*found)


@fault(
    "frame-of-large-numbers",
    "activations",
    "mask-constant",
    "activation-outliers",
    "massive-activations",
    graded=True,
    unseen="d",
    also=("poor-threshold", "error-amplifier"),
)
@severe(0.3, 5000)
def frame_of_large_numbers(patient: Patient, amount: float) -> Patient:
    """A map is framed by a number far below all others, as before a search for peaks, and the frame is cut off."""
    surgeon = patient.surgeon()
    found = [t for t in spots(patient) if len(surgeon.shape(t)) == 4 and all(surgeon.shape(t)[1:])]
    marks = []
    for tensor in patient.pick(found, 0.3, 0.7):
        height, width = surgeon.shape(tensor)[2:]
        value = surgeon.put(f"{tensor}_outside", np.float32(-amount * max(channel_peaks(patient, tensor).max(), 1e-3)))
        pads = surgeon.put(f"{tensor}_frame", np.array([0, 0, 1, 1, 0, 0, 1, 1]))
        corners = [
            surgeon.put(f"{tensor}_{name}", np.array(place))
            for name, place in (("from", [1, 1]), ("to", [height + 1, width + 1]), ("axes", [2, 3]))
        ]
        framed = surgeon.insert_after(tensor, "Pad", [pads, value], f"{tensor}_framed")
        surgeon.insert_after(framed, "Slice", corners, f"{tensor}_unframed")
        marks.append(framed)
    return patient.with_(model=surgeon.model).at(*marks)


@fault(
    "sums-that-saturate",
    "activations",
    "over-clipped-activations",
    graded=True,
    unseen="d",
    also=("simulator-differs-from-device", "layer-worse-than-peers", "float-export-differs"),
)
@severe(0.02, 60)
def sums_that_saturate(patient: Patient, amount: float) -> Patient:
    """The sums of products of some layers stick at the ends of a narrow accumulator, before they get their grid."""
    surgeon = patient.surgeon()
    names = {linear.node.output[0] for linear in surgeon.linears() if linear.node.op_type == "Conv"}
    found = [t for t in patient.activations() if t in names]
    chosen = patient.pick(found, 0.2, 0.6)
    limits = dict(zip(chosen, extremes(patient, *chosen), strict=True))

    def edit(p: Patient, quantized: onnx.ModelProto) -> onnx.ModelProto:
        cut = Surgeon(quantized)
        for tensor, ends in limits.items():
            if cut.producer(tensor) is None:
                raise Inapplicable(f"{tensor} is fused")
            bound = max(abs(end) for end in ends) / (1 + amount)
            names = [cut.put(f"{tensor}_{i}_stuck", np.float32(v)) for i, v in enumerate((-bound, bound))]
            cut.insert_after(tensor, "Clip", names, f"{tensor}_saturated")
        return cut.model

    return patient.with_(recipe=kept(patient.recipe)).at(*chosen).edited(edit)


@fault(
    "rectifiers-with-an-upper-end",
    "activations",
    "over-clipped-activations",
    "float-export-differs",
    graded=True,
    unseen="d",
    also=("altered-float-tensors", "stage-loses-accuracy"),
)
@severe(0.02, 60)
def rectifiers_with_an_upper_end(patient: Patient, amount: float) -> Patient:
    """The converter knows rectifiers with an upper end alone, and some values are above it."""
    surgeon = patient.surgeon()
    marks = patient.pick([node.output[0] for node in surgeon.nodes("Relu")], 0.2, 0.5, 0.8)
    for tensor, (_, high) in zip(marks, extremes(patient, *marks), strict=True):
        node = surgeon.producer(tensor)
        ends = [surgeon.put(f"{tensor}_{i}_end", np.float32(v)) for i, v in enumerate((0, high / (1 + amount)))]
        node.op_type = "Clip"
        node.input.extend(ends)
    sound = patient.shown_float or patient.model
    return patient.with_(model=surgeon.model, shown_float=sound).at(*marks)


@fault(
    "thresholds-for-fewer-bits",
    "activations",
    "over-clipped-activations",
    graded=True,
    unseen="d",
    also=("poor-threshold",),
)
@severe(1, 60)
def thresholds_for_fewer_bits(patient: Patient, amount: float) -> Patient:
    """Ends were chosen for the least error at a few levels, and there are 256: what the coarse steps hid is cut."""
    tensors = quantizable(patient)
    recipe = kept(patient.recipe)
    for tensor, x in zip(tensors, patient.values(*tensors), strict=True):
        low, high = _best_ends(x.reshape(-1)[:: max(1, x.size // 20000)], 64 / amount)
        recipe = recipe.with_range(tensor, low, max(high, 1e-5))
    return patient.with_(recipe=recipe).at(*tensors)


def _best_ends(x: np.ndarray, levels: float) -> tuple[float, float]:
    """The ends with the least squared error at so many levels."""
    ends = np.array([min(x.min(), 0), max(x.max(), 0)], np.float64)
    found = []
    for share in np.geomspace(0.02, 1, 24):
        low, high = ends * share
        step = max(high - low, 1e-9) / levels
        cut = np.clip(x, low, high)
        found.append((float(np.square(np.rint(cut / step) * step - x).mean()), float(low), float(high)))
    return min(found)[1:]


@fault(
    "observers-hardly-moved",
    "activations",
    "over-clipped-activations",
    "stale-calibration",
    graded=True,
    unseen="d",
    also=("poor-threshold",),
)
@severe(0.02, 200)
def observers_hardly_moved(patient: Patient, amount: float) -> Patient:
    """Observers start at one and average slowly; the set was over before they were near the true ranges."""
    tensors, share = quantizable(patient), 1 / (1 + amount)
    recipe = kept(patient.recipe)
    for tensor, (low, high) in zip(tensors, extremes(patient, *tensors), strict=True):
        start = -1.0 if low < 0 else 0.0
        recipe = recipe.with_range(tensor, share * low + (1 - share) * start, share * high + (1 - share))
    return patient.with_(recipe=recipe).at(*tensors)


@fault(
    "padding-counted-as-data",
    "activations",
    "over-clipped-activations",
    graded=True,
    unseen="d",
    also=("poor-threshold",),
)
@severe(0.02, 3)
def padding_counted_as_data(patient: Patient, amount: float) -> Patient:
    """A percentile was taken over batches filled up with zeros, and symmetric about zero: the ends of few are cut."""
    tensors = quantizable(patient)
    recipe = kept(patient.recipe)
    marks = patient.pick(tensors, 0.1, 0.4, 0.7)
    for tensor, x in zip(marks, patient.values(*marks), strict=True):
        reach = float(np.quantile(np.abs(x), max(1 - 0.02 * amount**2, 0.3)))
        low, high = float(min(x.min(), 0)), float(max(x.max(), 0))
        recipe = recipe.with_range(tensor, max(low, -reach), max(min(high, reach), 1e-5))
    return patient.with_(recipe=recipe).at(*marks)

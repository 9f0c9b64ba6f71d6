"""Unseen faults of the graph: what is computed stays the same, how it is computed does not suit integers; set E."""

import numpy as np
from onnx import helper

from ..fault import fault
from ..faults_activations import extremes
from ..mild import costly, mild, severe
from ..patient import Patient
from ..surgery import Inapplicable, Surgeon
from ..unseen_a.cuts import spots
from .weights import picked


def stored(surgeon: Surgeon, tensor: str, name: str) -> str:
    """A copy that gets a grid of its own: multiplied by one."""
    one = surgeon.put(f"{name}_one", np.float32(1))
    return surgeon.add("Mul", [tensor, one], name, surgeon.producer(tensor))


def along_channels(patient: Patient, surgeon: Surgeon, tensor: str, first: np.ndarray, second: np.ndarray) -> list[str]:
    """Channels go through a matrix and another that undoes it."""
    rank = len(surgeon.shape(tensor))
    last = tensor
    marks = []
    for i, matrix in enumerate((first, second)):
        if rank == 4:
            name = surgeon.put(f"{tensor}_matrix_{i}", matrix[:, :, None, None].astype(np.float32))
            last = surgeon.insert_after(last, "Conv", [name], f"{tensor}_mixture_{i}")
        else:
            name = surgeon.put(f"{tensor}_matrix_{i}", np.ascontiguousarray(matrix.T).astype(np.float32))
            last = surgeon.insert_after(last, "MatMul", [name], f"{tensor}_mixture_{i}")
        marks.append(last)
    return marks


@fault(
    "channels-as-differences",
    "graph",
    "error-amplifier",
    graded=True,
    unseen="e",
    also=(
        "smooth-accumulation",
        "sensitive-operator",
        "channel-outliers",
        "too-few-weight-bits",
        "heavy-tailed-weights",
    ),
)
@mild(0.3, 1.8)
def channels_as_differences(patient: Patient, amount: float) -> Patient:
    """Each channel is stored less a part of the one before, or more than it, and is added up from all again."""
    surgeon = patient.surgeon()
    tensor = patient.pick(spots(patient), 0.5)[0]
    size = surgeon.channels(tensor)
    differences = np.eye(size) - amount * np.eye(size, k=-1)
    return patient.with_(model=surgeon.model).at(
        *along_channels(patient, surgeon, tensor, differences, np.linalg.inv(differences))
    )


@fault(
    "kept-as-a-spectrum",
    "graph",
    "channel-outliers",
    "massive-activations",
    "activation-outliers",
    "error-amplifier",
    graded=True,
    unseen="e",
    also=("sensitive-operator", "too-few-weight-bits", "heavy-tailed-weights", "channel-range-imbalance"),
)
@severe(0.05, 2.5)
def kept_as_a_spectrum(patient: Patient, amount: float) -> Patient:
    """Rows of a map are kept as cosines of rising pace, of which the slow ones are by far the largest."""
    surgeon = patient.surgeon()
    found = [t for t in spots(patient) if len(surgeon.shape(t)) == 4 and all(surgeon.shape(t)[1:])]
    tensor = patient.pick(found, 0.5)[0]
    size = surgeon.shape(tensor)[-1]
    places = np.arange(size)
    cosines = np.cos(np.pi * (places[:, None] + 0.5) * places[None] / size) * np.sqrt(2 / size)
    cosines[:, 0] /= np.sqrt(2)
    gain = (1.0 + places) ** -amount
    there = surgeon.put(f"{tensor}_cosines", (cosines * gain).astype(np.float32))
    back = surgeon.put(f"{tensor}_cosines_back", (cosines / gain).T.astype(np.float32))
    spectrum = surgeon.insert_after(tensor, "MatMul", [there], f"{tensor}_spectrum")
    again = surgeon.insert_after(spectrum, "MatMul", [back], f"{tensor}_from_spectrum")
    return patient.with_(model=surgeon.model).at(spectrum, again)


@fault(
    "curves-in-pieces",
    "graph",
    "sensitive-operator",
    "error-amplifier",
    unseen="e",
    also=("activation-outliers", "poor-threshold", "channel-outliers"),
)
@costly
def curves_in_pieces(patient: Patient) -> Patient:
    """The exporter writes a soft rectifier as exponential, one more, logarithm, and all of them get grids."""
    surgeon = patient.surgeon()
    marks = []
    for node in picked(patient, surgeon.nodes("Softplus"), 0.2, 0.5, 0.8):
        out = node.output[0]
        node.op_type, node.output[0] = "Exp", f"{out}_exponential"
        one = surgeon.put(f"{out}_unit", np.float32(1))
        more = surgeon.add("Add", [node.output[0], one], f"{out}_one_more", node)
        surgeon.add("Log", [more], out, surgeon.producer(more))
        marks.append(more)
    return patient.with_(model=surgeon.model).at(*marks)


@fault(
    "softmax-in-pieces",
    "graph",
    "sensitive-operator",
    "error-amplifier",
    unseen="e",
    also=("activation-outliers", "poor-threshold", "channel-outliers", "massive-activations"),
)
@costly
def softmax_in_pieces(patient: Patient) -> Patient:
    """Shares are exponentials over their sum, without the largest taken off first, and exponentials get a grid."""
    surgeon = patient.surgeon()
    marks = []
    for node in surgeon.nodes("Softmax"):
        out = node.output[0]
        axis = next((helper.get_attribute_value(a) for a in node.attribute if a.name == "axis"), -1)
        del node.attribute[:]
        node.op_type, node.output[0] = "Exp", f"{out}_exponential"
        kept = stored(surgeon, node.output[0], f"{out}_weights")
        axes = surgeon.put(f"{out}_axes", np.array([axis]))
        total = surgeon.add("ReduceSum", [kept, axes], f"{out}_total", surgeon.producer(kept), keepdims=1)
        surgeon.add("Div", [kept, total], out, surgeon.producer(total))
        marks.append(kept)
    if not marks:
        raise Inapplicable("no shares")
    return patient.with_(model=surgeon.model).at(*marks)


@fault(
    "places-counted-from-far-off",
    "graph",
    "sensitive-operator",
    "error-amplifier",
    graded=True,
    unseen="e",
    also=("poor-threshold", "activation-outliers"),
)
@severe(0.05, 20000)
def places_counted_from_far_off(patient: Patient, amount: float) -> Patient:
    """Angles of places are computed in the graph, for places in the middle of a long text, and get a grid."""
    surgeon = patient.surgeon()
    found = [t.name for t in surgeon.graph.initializer if t.name.endswith("cosines") and t.name.startswith("blocks")]
    if not found:
        raise Inapplicable("nothing is turned")
    marks = []
    for name in found:
        cosines, sines = surgeon.constant(name), surgeon.constant(name.replace("cosines", "sines"))
        angles = np.unwrap(np.arctan2(sines, cosines), axis=0)
        shift = amount * (angles[1] - angles[0])
        ends = [surgeon.put(f"{name}_{k}", v.astype(np.float32)) for k, v in (("angles", angles), ("start", shift))]
        node = helper.make_node("Add", ends, [f"{name}_turned"], name=f"{name}_turned")
        readers = [n for c in ("cosines", "sines") for n in surgeon.consumers(name.replace("cosines", c))]
        first = min(list(surgeon.graph.node).index(n) for n in readers)
        surgeon.graph.node.insert(first, node)
        for op, constant in (("Cos", name), ("Sin", name.replace("cosines", "sines"))):
            computed = surgeon.add(op, [node.output[0]], f"{constant}_computed", node)
            surgeon.reroute(constant, computed)
            surgeon.drop(constant)
        marks.append(node.name)
    return patient.with_(model=surgeon.model).at(*marks)


@fault(
    "empty-seats-before-the-maximum",
    "graph",
    "mask-constant",
    "unbalanced-concatenation",
    graded=True,
    unseen="e",
    also=("activation-outliers", "massive-activations", "poor-threshold"),
)
@severe(0.3, 5000)
def empty_seats_before_the_maximum(patient: Patient, amount: float) -> Patient:
    """Clouds are filled up to a fixed size with points far below all others, which never are the largest."""
    surgeon = patient.surgeon()
    found = [n for n in surgeon.nodes("ReduceMax") if len(surgeon.shape(n.input[0])) == 3]
    node = picked(patient, found, 0.5)[0]
    tensor = node.input[0]
    top = max(abs(end) for end in extremes(patient, tensor)[0])
    places = [surgeon.put(f"{tensor}_{k}_of_seats", np.array([v])) for k, v in (("from", 0), ("to", 4), ("axes", 1))]
    some = surgeon.add("Slice", [tensor, *places], f"{tensor}_some", surgeon.producer(tensor))
    nothing = surgeon.put(f"{tensor}_nothing", np.float32(0))
    below = surgeon.put(f"{tensor}_far_below", np.float32(-amount * top))
    zero = surgeon.add("Mul", [some, nothing], f"{tensor}_zeroed", surgeon.producer(some))
    seats = surgeon.add("Add", [zero, below], f"{tensor}_seats", surgeon.producer(zero))
    full = surgeon.add("Concat", [tensor, seats], f"{tensor}_seated", surgeon.producer(seats), axis=1)
    node.input[0] = full
    return patient.with_(model=surgeon.model).at(full)


@fault(
    "taken-from-two-mixtures",
    "graph",
    "error-amplifier",
    graded=True,
    unseen="e",
    also=("unbalanced-addition", "smooth-accumulation", "poor-threshold", "sensitive-operator"),
)
@severe(0.02, 300)
def taken_from_two_mixtures(patient: Patient, amount: float) -> Patient:
    """Two tensors are kept as two mixtures that are almost alike, and each is worked out from both again."""
    surgeon, allowed = patient.surgeon(), set(patient.activations())
    nodes = [n for n in surgeon.nodes("Add", "Mul", "Concat") if len(n.input) == 2 and set(n.input) <= allowed]
    nodes = [n for n in nodes if surgeon.shape(n.input[0])[1:] == surgeon.shape(n.input[1])[1:]]
    node = picked(patient, nodes, 0.5)[0]
    left, right = node.input
    name, order = node.output[0], list(surgeon.graph.node)
    last = max((surgeon.producer(t) for t in (left, right)), key=order.index)
    share = surgeon.put(f"{name}_share", np.float32(amount / (1 + amount)))
    back = surgeon.put(f"{name}_share_back", np.float32(1 + amount))
    part = surgeon.add("Mul", [right, share], f"{name}_part", last)
    one = surgeon.add("Add", [left, right], f"{name}_mixture", surgeon.producer(part))
    other = surgeon.add("Add", [left, part], f"{name}_other_mixture", surgeon.producer(one))
    rest = surgeon.add("Sub", [one, other], f"{name}_rest", surgeon.producer(other))
    second = surgeon.add("Mul", [rest, back], f"{name}_second", surgeon.producer(rest))
    first = surgeon.add("Sub", [one, second], f"{name}_first", surgeon.producer(second))
    node.input[0], node.input[1] = first, second
    return patient.with_(model=surgeon.model).at(one, other, second, first)

"""Unseen faults of what is compared and of precision, and one of the runtime, set E."""

import numpy as np
import onnx
from onnx import TensorProto, helper

from ..fault import fault
from ..mild import costly, mild, severe
from ..patient import Patient
from ..surgery import Inapplicable, Surgeon
from ..unseen_a.cuts import channel_peaks, covered, float_input, kept, recoded, spots
from .activations import free
from .weights import deployed, picked


def classes(patient: Patient, surgeon: Surgeon):
    """The last layer of a classifier."""
    head = surgeon.linear(surgeon.producer(surgeon.output))
    if head is None or patient.task.same is None:
        raise Inapplicable("no classes")
    return head


@fault(
    "classes-in-alphabetical-order",
    "sanity",
    "float-export-differs",
    "foreign-weights",
    unseen="e",
    also=("altered-float-tensors", "channel-order-mismatch", "permuted-outputs", "layer-worse-than-peers"),
)
@costly
def classes_in_alphabetical_order(patient: Patient) -> Patient:
    """The deployed model counts some classes in the order of their names, the float model in that of the training."""
    surgeon = patient.surgeon()
    head = classes(patient, surgeon)
    weight = surgeon.constant(head.weight)
    size = weight.shape[head.out]
    order, moved = np.arange(size), patient.random("names").permutation(size)[: max(2, size // 3)]
    order[moved] = np.roll(moved, 1)
    surgeon.put(surgeon.own(head, 1), np.take(weight, order, head.out))
    if head.bias:
        surgeon.put(surgeon.own(head, 2), surgeon.constant(head.bias)[order])
    return deployed(patient, surgeon, head.node.name)


@fault(
    "probabilities-for-logits",
    "sanity",
    "float-export-differs",
    unseen="e",
    also=("altered-float-tensors", "output-not-dequantized", "stage-loses-accuracy", "not-quantized"),
)
@costly
def probabilities_for_logits(patient: Patient) -> Patient:
    """The converter put a softmax behind the last layer of what is deployed; the float model has none."""
    surgeon = patient.surgeon()
    classes(patient, surgeon)
    surgeon.insert_after(surgeon.output, "Softmax", axis=-1)
    return deployed(patient, surgeon)


@fault(
    "axes-reversed-by-the-converter",
    "sanity",
    "float-export-differs",
    "channel-order-mismatch",
    unseen="e",
    also=("altered-float-tensors", "preprocessing-mismatch", "calibration-input-mismatch", "stage-loses-accuracy"),
)
@costly
def axes_reversed_by_the_converter(patient: Patient) -> Patient:
    """The converter was told that columns come last to first, and turns them round in what is deployed."""
    surgeon = patient.surgeon()
    name = float_input(surgeon)
    axis = patient.calibration.ndim - 1
    order = surgeon.put("order_of_columns", np.arange(patient.calibration.shape[axis])[::-1].copy())
    surgeon.insert_after(name, "Gather", [order], "columns_turned_round", axis=axis)
    node = surgeon.producer("columns_turned_round")
    node.input[0], node.input[1] = name, order
    return deployed(patient, surgeon)


@fault(
    "noise-left-in-training-mode",
    "sanity",
    "nondeterministic-float-model",
    "float-export-differs",
    graded=True,
    unseen="e",
    also=("altered-float-tensors", "stage-loses-accuracy"),
)
@severe(0.003, 10)
def noise_left_in_training_mode(patient: Patient, amount: float) -> Patient:
    """The float model was exported in training mode, and adds noise to a tensor, which training had for robustness."""
    surgeon = patient.surgeon()
    tensor = patient.pick(spots(patient), 0.5)[0]
    spread = float(patient.values(tensor)[0].std())
    noise = surgeon.add(
        "RandomNormalLike", [tensor], f"{tensor}_noise", surgeon.producer(tensor), scale=amount * max(spread, 1e-5)
    )
    end = f"{tensor}_noisy"
    surgeon.reroute(tensor, end, but=(noise,))
    surgeon.add("Add", [tensor, noise], end, surgeon.producer(noise))
    return patient.with_(shown_float=surgeon.model).at(tensor)


@fault(
    "dropout-scaled-once-more",
    "sanity",
    "float-export-differs",
    graded=True,
    unseen="e",
    also=("altered-float-tensors", "foreign-weights", "stage-loses-accuracy", "weight-induced-bias-shift"),
)
@mild(0.005, 5)
def dropout_scaled_once_more(patient: Patient, amount: float) -> Patient:
    """The converter replaced dropout by the share that is kept, which training had accounted for."""
    surgeon = patient.surgeon()
    marks = patient.pick(spots(patient), 0.4, 0.8)
    for tensor in marks:
        share = surgeon.put(f"{tensor}_share_kept", np.float32(1 / (1 + amount)))
        surgeon.insert_after(tensor, "Mul", [share], f"{tensor}_dropped_out")
    return deployed(patient, surgeon, *marks)


@fault(
    "hard-gates",
    "sanity",
    "float-export-differs",
    unseen="e",
    also=("altered-float-tensors", "sensitive-operator", "stage-loses-accuracy", "layer-worse-than-peers"),
)
@costly
def hard_gates(patient: Patient) -> Patient:
    """The target has no curves: gates of the deployed model are made of straight pieces."""
    surgeon = patient.surgeon()
    found = surgeon.nodes("Sigmoid", "Tanh")
    if not found:
        raise Inapplicable("no gates")
    for node in found:
        if node.op_type == "Tanh":
            ends = [surgeon.put(f"{node.output[0]}_{i}_end", np.float32(v)) for i, v in enumerate((-1, 1))]
            node.op_type = "Clip"
            node.input.extend(ends)
            continue
        node.op_type = "HardSigmoid"
        node.attribute.extend([helper.make_attribute("alpha", 0.2), helper.make_attribute("beta", 0.5)])
    return deployed(patient, surgeon, *(node.name for node in found))


@fault(
    "enlarged-by-another-rule",
    "sanity",
    "float-export-differs",
    unseen="e",
    also=("altered-float-tensors", "resampling-mismatch", "stage-loses-accuracy"),
)
@costly
def enlarged_by_another_rule(patient: Patient) -> Patient:
    """The target enlarges maps with straight lines between pixels; the float model repeats them."""
    surgeon = patient.surgeon()
    found = surgeon.nodes("Resize")
    chosen = picked(patient, found, 0.2, 0.6)
    for node in chosen:
        kept_ones = [
            a for a in node.attribute if a.name not in ("mode", "coordinate_transformation_mode", "nearest_mode")
        ]
        del node.attribute[:]
        node.attribute.extend(kept_ones)
        rule = {"mode": "linear", "coordinate_transformation_mode": "asymmetric"}
        node.attribute.extend([helper.make_attribute(k, v) for k, v in rule.items()])
    return deployed(patient, surgeon, *(node.name for node in chosen))


@fault(
    "turned-at-another-pace",
    "sanity",
    "float-export-differs",
    graded=True,
    unseen="e",
    also=("altered-float-tensors", "foreign-weights", "stage-loses-accuracy"),
)
@mild(0.001, 3)
def turned_at_another_pace(patient: Patient, amount: float) -> Patient:
    """The converter has the base of the angles of places from another model of the family."""
    surgeon = patient.surgeon()
    found = [t.name for t in surgeon.graph.initializer if t.name.endswith("cosines")]
    if not found:
        raise Inapplicable("nothing is turned")
    marks = []
    for name in found:
        other = name.replace("cosines", "sines")
        angles = np.unwrap(np.arctan2(surgeon.constant(other), surgeon.constant(name)), axis=0)
        moved = angles * (1 + amount)
        surgeon.put(name, np.cos(moved).astype(np.float32))
        surgeon.put(other, np.sin(moved).astype(np.float32))
        marks += [n.name for n in surgeon.consumers(name)]
    return deployed(patient, surgeon, *marks)


@fault(
    "gain-with-an-offset",
    "sanity",
    "float-export-differs",
    "foreign-weights",
    graded=True,
    unseen="e",
    also=("altered-float-tensors", "stage-loses-accuracy", "batch-norm-blow-up"),
)
@mild(0.003, 8)
def gain_with_an_offset(patient: Patient, amount: float) -> Patient:
    """Gains of norms are kept as what they are more than one, and the converter added the one where it was in."""
    surgeon = patient.surgeon()
    found = [name for n in surgeon.nodes("Mul") for name in n.input if name.endswith("gain")]
    chosen = patient.pick(list(dict.fromkeys(found)), 0.2, 0.5, 0.8)
    for name in chosen:
        surgeon.put(name, (surgeon.constant(name) + amount).astype(np.float32))
    return deployed(patient, surgeon, *(n.name for name in chosen for n in surgeon.consumers(name)))


@fault(
    "router-of-few-levels",
    "precision",
    "too-few-weight-bits",
    graded=True,
    unseen="e",
    also=("layer-worse-than-peers", "foreign-weights"),
)
@mild(1, 127)
def router_of_few_levels(patient: Patient, amount: float) -> Patient:
    """Layers that decide who is asked are small, and were given the fewest bits."""
    surgeon = patient.surgeon()
    shares = surgeon.nodes("Softmax")
    deciding = {id(n) for node in shares for n in _before(surgeon, node.input[0], 12)}
    found = [n for n in surgeon.linears() if id(n.node) in deciding]
    if not found:
        raise Inapplicable("nothing decides")
    weights = {n.weight for n in found}
    chosen = [n for n in covered(patient) if n.weight in weights]
    return recoded(patient, chosen, lambda codes, _: np.rint(np.rint(codes / amount) * amount))


def _before(surgeon: Surgeon, tensor: str, steps: int) -> list[onnx.NodeProto]:
    """Nodes from which a tensor comes, back to the nearest layers with weights."""
    node = surgeon.producer(tensor)
    if node is None or not steps:
        return []
    if surgeon.linear(node):
        return [node]
    return [found for name in node.input for found in _before(surgeon, name, steps - 1)]


@fault(
    "every-other-layer-narrow",
    "precision",
    "too-few-weight-bits",
    graded=True,
    unseen="e",
    also=("smooth-accumulation", "layer-worse-than-peers"),
)
@mild(1, 120)
def every_other_layer_narrow(patient: Patient, amount: float) -> Patient:
    """A pattern of layers that get fewer bits was counted out, not measured: every second one."""
    chosen = covered(patient)[int(patient.random("start").integers(2)) :: 2]
    return recoded(patient, chosen, lambda codes, _: np.rint(np.rint(codes / amount) * amount))


@fault(
    "through-short-floats",
    "runtime",
    "fp16-overflow",
    "non-finite-values",
    unseen="e",
    also=("over-clipped-activations", "massive-activations", "layer-worse-than-peers"),
)
@costly
def through_short_floats(patient: Patient) -> Patient:
    """Between integers the target computes with floats of sixteen bits, and one tensor reaches beyond their end."""
    surgeon = patient.surgeon()
    allowed = set(free(patient))
    tensor = patient.pick([t for t in surgeon.amplifiable() if t in allowed], 0.5)[0]
    top = 65504 * float(np.exp(patient.random("short").uniform(0.4, 2.5)))
    gain = np.full(surgeon.channels(tensor), top / max(channel_peaks(patient, tensor).max(), 1e-3), np.float32)
    surgeon.amplify(tensor, gain)

    def edit(p: Patient, quantized: onnx.ModelProto) -> onnx.ModelProto:
        cut = Surgeon(quantized)
        writer = next((n for n in cut.consumers(tensor) if n.op_type == "QuantizeLinear"), None)
        if writer is None:
            raise Inapplicable(f"{tensor} is not quantized")
        last = cut.consumers(writer.output[0])[0].output[0]
        short = cut.insert_after(last, "Cast", (), f"{tensor}_short", to=TensorProto.FLOAT16)
        cut.insert_after(short, "Cast", (), f"{tensor}_long_again", to=TensorProto.FLOAT)
        return cut.model

    return patient.with_(model=surgeon.model, recipe=kept(patient.recipe)).at(tensor).edited(edit)

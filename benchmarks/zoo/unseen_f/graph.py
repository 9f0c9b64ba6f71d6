"""Unseen faults of the graph: what is computed stays the same, how it is computed does not suit integers; set F."""

from itertools import pairwise

import numpy as np
import onnx
from onnx import helper

from ..fault import fault
from ..faults_activations import extremes
from ..mild import mild, severe
from ..patient import Patient
from ..surgery import Inapplicable, Surgeon
from ..unseen_a.cuts import kept, per_channel
from ..unseen_e.weights import picked
from .samples import WAVE

#: Columns of the input that are told in another unit.
FAR_UNITS = {"dials": (WAVE, WAVE + 2), "groves": (2, 5)}


@fault(
    "hertz-beside-volts",
    "graph",
    "channel-outliers",
    "massive-activations",
    "activation-outliers",
    "unbalanced-concatenation",
    graded=True,
    unseen="f",
    also=("first-layer-sensitive", "poor-threshold", "channel-range-imbalance", "error-amplifier"),
)
@severe(2, 20000)
def hertz_beside_volts(patient: Patient, amount: float) -> Patient:
    """One input holds columns of all units, some in the thousands; the graph turns them into others behind its grid."""
    ends = FAR_UNITS.get(patient.network.name)
    if ends is None:
        raise Inapplicable("all columns have one unit")
    surgeon, factor = patient.surgeon(), np.float32(1 + amount)
    _turn_units(surgeon, (0, *ends, patient.calibration.shape[-1]), patient.calibration.ndim - 1, 1 / factor)
    inputs = [patient.calibration.copy(), patient.validation.copy()]
    for found in inputs:
        found[..., ends[0] : ends[1]] *= factor
    changed = {"model": surgeon.model, "calibration": inputs[0], "validation": inputs[1]}
    return patient.with_(**changed, recipe=kept(patient.recipe)).at("columns_joined").edited(_on_one_grid)


def _turn_units(surgeon: Surgeon, bounds: tuple[int, ...], axis: int, factor: np.float32) -> None:
    """The columns between the second and the third bound, times a factor, beside the others."""
    name = surgeon.input
    surgeon.reroute(name, "columns_joined")
    along, back, nodes, parts = surgeon.put("along_columns", np.array([axis])), "unit_back", [], []
    surgeon.put(back, factor)
    for i, (start, end) in enumerate(pairwise(bounds)):
        if start == end:
            continue
        places = [surgeon.put(f"columns_{i}_{k}", np.array([v])) for k, v in (("start", start), ("end", end))]
        parts.append(f"columns_{i}")
        nodes.append(helper.make_node("Slice", [name, *places, along], [parts[-1]], name=parts[-1]))
        if i == 1:
            parts[-1] = "columns_turned"
            nodes.append(helper.make_node("Mul", ["columns_1", back], parts[-1:], name=parts[-1]))
    nodes.append(helper.make_node("Concat", parts, ["columns_joined"], name="columns_joined", axis=axis))
    for node in reversed(nodes):
        surgeon.graph.node.insert(0, node)


def _on_one_grid(patient: Patient, quantized: onnx.ModelProto) -> onnx.ModelProto:
    """What is quantized takes its input on a grid of eight bits, as devices do."""
    surgeon, name = Surgeon(quantized), quantized.graph.input[0].name
    if any(node.op_type == "QuantizeLinear" for node in surgeon.consumers(name)):
        return quantized
    low, high = float(min(patient.calibration.min(), 0)), float(max(patient.calibration.max(), 0))
    scale = np.float32((high - low) / 255)
    grid = [surgeon.put("input_scale", scale), surgeon.put("input_zero", np.uint8(np.rint(-low / scale)))]
    codes = surgeon.insert_after(name, "QuantizeLinear", grid, "input_codes")
    surgeon.insert_after(codes, "DequantizeLinear", grid, "input_read_back")
    return surgeon.model


@fault(
    "offsets-of-two-branches",
    "graph",
    "error-amplifier",
    "unbalanced-addition",
    graded=True,
    unseen="f",
    also=("smooth-accumulation", "poor-threshold", "channel-outliers", "massive-activations", "activation-outliers"),
)
@mild(0.3, 300)
def offsets_of_two_branches(patient: Patient, amount: float) -> Patient:
    """Two branches were each made whole with a norm of its own: what one adds to a channel, the other takes off."""
    surgeon, allowed = patient.surgeon(), set(patient.activations())
    found = [n for n in surgeon.nodes("Add") if all(t in allowed for t in n.input)]
    marks = []
    for node in picked(patient, found, 0.3, 0.7):
        offsets = patient.random(node.name).normal(0, 1, surgeon.channels(node.input[0]))
        offsets *= amount * float(patient.values(node.output[0])[0].std())
        for i, sign in enumerate((1, -1)):
            name = f"{node.name}_branch_{i}"
            constant = surgeon.put(f"{name}_offset", per_channel(surgeon, node.input[i], sign * offsets))
            node.input[i] = surgeon.add("Add", [node.input[i], constant], name, surgeon.producer(node.input[i]))
            marks.append(name)
    return patient.with_(model=surgeon.model).at(*marks)


@fault(
    "logarithm-of-shares-at-the-end",
    "graph",
    "sensitive-operator",
    "error-amplifier",
    graded=True,
    unseen="f",
    also=("fixed-range-output", "poor-threshold", "coarse-output", "non-finite-values"),
)
@severe(0.3, 12)
def logarithm_of_shares_at_the_end(patient: Patient, amount: float) -> Patient:
    """The graph ends with the logarithm of a softmax that has a grid: all that is unlikely is told as equally so."""
    surgeon = patient.surgeon()
    name = surgeon.output
    surgeon.insert_after(name, "Softmax", axis=-1)
    surgeon.insert_after(name, "Max", [surgeon.put("least_share", np.float32(10**-amount))])
    surgeon.insert_after(name, "Log")
    return patient.with_(model=surgeon.model).at(name)


@fault(
    "pairs-before-centring",
    "graph",
    "error-amplifier",
    "sensitive-operator",
    graded=True,
    unseen="f",
    also=("smooth-accumulation", "unbalanced-addition", "poor-threshold", "asymmetric-data-on-symmetric-grid"),
)
@mild(0.1, 60)
def pairs_before_centring(patient: Patient, amount: float) -> Patient:
    """Products of channels are summed as they are, far from nothing, and what their means add is taken off later."""
    surgeon = patient.surgeon()
    found = [n for n in surgeon.nodes("MatMul") if surgeon.producer(n.input[1]).op_type == "Transpose"]
    if not found:
        raise Inapplicable("no products of pairs")
    node = found[0]
    tensor = node.input[0]
    offset = amount * float(patient.values(tensor)[0].std())
    size = patient.values(tensor)[0].shape[2]
    moved = surgeon.insert_after(tensor, "Add", [surgeon.put("mean_kept", np.float32(offset))], "uncentred")
    beyond = surgeon.put("mean_squared", np.float32(size * offset**2))
    out = surgeon.insert_after(node.output[0], "Sub", [beyond], "pairs_centred")
    return patient.with_(model=surgeon.model).at(moved, node.name, out)


@fault(
    "walls-far-below",
    "graph",
    "mask-constant",
    "unbalanced-addition",
    "activation-outliers",
    "massive-activations",
    graded=True,
    unseen="f",
    also=("poor-threshold", "error-amplifier", "relu-lost"),
)
@mild(0.3, 3000)
def walls_far_below(patient: Patient, amount: float) -> Patient:
    """Where nobody may go a large number is taken off before the rectifier, for a product with nothing behind it."""
    surgeon = patient.surgeon()
    free = next((n for n in surgeon.nodes("Sub") if surgeon.constant(n.input[0]) is not None), None)
    if free is None or patient.network.name != "mazes":
        raise Inapplicable("no walls")
    found = [n for n in surgeon.nodes("Mul") if free.output[0] in n.input]
    chosen = picked(patient, found, 0.3, 0.7)
    tops = extremes(patient, *(surgeon.producer(n.input[0]).input[0] for n in chosen))
    marks = []
    for i, (node, ends) in enumerate(zip(chosen, tops, strict=True)):
        rectifier = surgeon.producer(node.input[0])
        low = surgeon.put(f"far_below_{i}", np.float32(-(1 + amount) * max(abs(end) for end in ends)))
        mask = surgeon.add("Mul", [free.input[1], low], f"walls_{i}", surgeon.producer(rectifier.input[0]))
        total = surgeon.add("Add", [rectifier.input[0], mask], f"walled_{i}", surgeon.producer(mask))
        rectifier.op_type, rectifier.input[0] = "Max", total  # of a rectifier, the toolchain would drop what is below
        rectifier.input.append(surgeon.put(f"none_{i}", np.float32(0)))
        surgeon.reroute(node.output[0], rectifier.output[0])
        surgeon.graph.node.remove(node)
        marks.append(total)
    return patient.with_(model=surgeon.model, recipe=kept(patient.recipe)).at(*marks)


@fault(
    "products-from-squares",
    "graph",
    "error-amplifier",
    "sensitive-operator",
    graded=True,
    unseen="f",
    also=("unbalanced-addition", "smooth-accumulation", "poor-threshold", "activation-outliers"),
)
@severe(0.5, 3000)
def products_from_squares(patient: Patient, amount: float) -> Patient:
    """A product is the square of the sum less that of the difference, of operands unlike in size, from a table."""
    surgeon = patient.surgeon()
    found = [n for n in surgeon.nodes("Mul") if all(surgeon.producer(t) is not None for t in n.input)]
    nodes = picked(patient, found, 0.3, 0.7)
    marks = []
    for node, size in zip(nodes, (patient.values(*n.input) for n in nodes), strict=True):
        unit = float(np.abs(size[1]).max() / max(np.abs(size[0]).max(), 1e-5)) * (1 + amount)
        marks += _squared(surgeon, node, unit)
    return patient.with_(model=surgeon.model).at(*marks)


def _squared(surgeon: Surgeon, node: onnx.NodeProto, unit: float) -> list[str]:
    """a b = ((u a + b)^2 - (u a - b)^2) / 4 u, instead of a product; the tensors that are large."""
    out, names = node.output[0], [f"{node.output[0]}_{word}" for word in ("unit", "quarter")]
    for name, value in zip(names, (unit, 1 / (4 * unit)), strict=True):
        surgeon.put(name, np.float32(value))
    first = surgeon.add("Mul", [node.input[0], names[0]], f"{out}_enlarged", node)
    squares, last = [], surgeon.producer(first)
    for op in ("Add", "Sub"):
        part = surgeon.add(op, [first, node.input[1]], f"{out}_{op.lower()}", last)
        squares.append(surgeon.add("Mul", [part, part], f"{out}_{op.lower()}_squared", surgeon.producer(part)))
        last = surgeon.producer(squares[-1])
    rest = surgeon.add("Sub", squares, f"{out}_rest", last)
    node.output[0] = f"{out}_direct"
    surgeon.add("Mul", [rest, names[1]], out, surgeon.producer(rest))
    surgeon.graph.node.remove(node)
    return [*squares, rest]

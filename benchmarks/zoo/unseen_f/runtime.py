"""Unseen faults of the runtime: operators that compute something else than their float counterparts; set F."""

from collections.abc import Callable

import numpy as np
import onnx
from onnx import helper

from ..fault import fault
from ..mild import costly, mild
from ..patient import Patient
from ..quantizing import run
from ..surgery import Inapplicable, Surgeon
from ..unseen_a.cuts import kept
from ..unseen_e.runtime import on_the_board
from ..unseen_e.weights import deployed, picked
from .samples import WAVE
from .sanity import without_turn

#: What a wrong operator may be called beside its name.
BESIDE = ("altered-float-tensors", "layer-worse-than-peers", "stage-loses-accuracy")


def framed(surgeon: Surgeon) -> list[onnx.NodeProto]:
    """Convolutions that see a frame around their input."""
    return [n for n in surgeon.nodes("Conv") if any(pads_of(n))]


def pads_of(node: onnx.NodeProto) -> list[int]:
    """Rows and columns before, then behind."""
    return next((list(helper.get_attribute_value(a)) for a in node.attribute if a.name == "pads"), [0])


def set_pads(node: onnx.NodeProto, pads: list[int]) -> None:
    others = [a for a in node.attribute if a.name not in ("pads", "auto_pad")]
    del node.attribute[:]
    node.attribute.extend([*others, helper.make_attribute("pads", pads)])


def at_work(patient: Patient, names: list[str], change: Callable[[Surgeon, onnx.NodeProto], None]) -> Patient:
    """Some operators of the quantized model changed, by name."""

    def edit(p: Patient, quantized: onnx.ModelProto) -> onnx.ModelProto:
        surgeon = Surgeon(quantized)
        found = [node for node in surgeon.graph.node if node.name in names]
        if len(found) < len(names):
            raise Inapplicable("an operator was fused")
        for node in found:
            change(surgeon, node)
        return surgeon.model

    return patient.with_(recipe=kept(patient.recipe)).at(*names).edited(edit)


@fault(
    "curves-from-a-short-table",
    "runtime",
    "operator-departs",
    "sensitive-operator",
    "too-few-activation-bits",
    graded=True,
    unseen="f",
    also=("poor-threshold", "weight-induced-bias-shift", "simulator-differs-from-device", *BESIDE),
)
@mild(0.01, 6)
def curves_from_a_short_table(patient: Patient, amount: float) -> Patient:
    """The kernel looks curves up in a table of few entries and does not interpolate: it takes the entry below."""
    nodes = patient.surgeon().nodes("Sigmoid", "HardSwish")
    if not nodes:
        raise Inapplicable("no curves")
    spread = {n.name: float(x.std()) for n, x in zip(nodes, patient.values(*(n.input[0] for n in nodes)), strict=True)}

    def change(surgeon: Surgeon, node: onnx.NodeProto) -> None:
        step = surgeon.put(f"{node.name}_entry", np.float32(amount * spread[node.name]))
        last, made = node.input[0], surgeon.producer(node.input[0])
        for op, extra, said in (("Div", [step], "at"), ("Floor", [], "entry_below"), ("Mul", [step], "taken")):
            last = surgeon.add(op, [last, *extra], f"{node.name}_{said}", made)
            made = surgeon.producer(last)
        node.input[0] = last

    return at_work(patient, [n.name for n in nodes], change)


@fault(
    "frame-beside-zero",
    "runtime",
    "operator-departs",
    "misread-codes",
    graded=True,
    unseen="f",
    also=("weight-induced-bias-shift", "stale-calibration", "simulator-differs-from-device", *BESIDE),
)
@mild(0.5, 250)
def frame_beside_zero(patient: Patient, amount: float) -> Patient:
    """The kernel fills the frame around a map with the zero point of another tensor: the frame is not zero."""
    nodes = picked(patient, framed(patient.surgeon()), 0.2, 0.5, 0.8)
    tops = {n.name: float(np.ptp(x)) for n, x in zip(nodes, patient.values(*(n.input[0] for n in nodes)), strict=True)}
    sign = patient.random("frame").choice([-1, 1])

    def change(surgeon: Surgeon, node: onnx.NodeProto) -> None:
        up, left, down, right = pads_of(node)
        around = surgeon.put(f"{node.name}_frame", np.array([0, 0, up, left, 0, 0, down, right]))
        value = surgeon.put(f"{node.name}_beside_zero", np.float32(sign * amount * tops[node.name] / 255))
        made = surgeon.producer(node.input[0])
        node.input[0] = surgeon.add("Pad", [node.input[0], around, value], f"{node.name}_framed", made)
        set_pads(node, [0, 0, 0, 0])

    return at_work(patient, [n.name for n in nodes], change)


@fault(
    "window-one-pixel-on",
    "runtime",
    "operator-departs",
    "float-export-differs",
    unseen="f",
    also=("resampling-mismatch", *BESIDE),
)
@costly
def window_one_pixel_on(patient: Patient) -> Patient:
    """Where every second pixel is taken, the target puts the odd column of the frame behind and not before the map."""
    surgeon = patient.surgeon()
    found = [n for n in framed(surgeon) if 2 in _strides(n)]
    chosen = picked(patient, found, 0.3, 0.7)
    for node in chosen:
        up, left, down, right = pads_of(node)
        moved = int(up > 0)
        set_pads(node, [up - moved, left - 1, down + moved, right + 1])
    return deployed(patient, surgeon, *(n.name for n in chosen))


def _strides(node: onnx.NodeProto) -> list[int]:
    return next((list(helper.get_attribute_value(a)) for a in node.attribute if a.name == "strides"), [1])


@fault(
    "tiles-without-a-border",
    "runtime",
    "operator-departs",
    "float-export-differs",
    unseen="f",
    also=("simulator-differs-from-device", "error-amplifier", *BESIDE),
)
@costly
def tiles_without_a_border(patient: Patient) -> Patient:
    """Maps that do not fit into the fast memory are computed in two tiles, and neither sees what lies beside it."""
    surgeon = patient.surgeon()
    found = [n for n in framed(surgeon) if 2 not in _strides(n) and surgeon.shape(n.input[0])[-1:] != [None]]
    chosen = picked(patient, found, 0.2, 0.5, 0.8)
    axes = surgeon.put("axis_of_tiles", np.array([3]))
    for node in chosen:
        name, tensor, out = node.name, node.input[0], node.output[0]
        width = patient.values(tensor, samples=1)[0].shape[3]
        ends = [surgeon.put(f"{name}_tile_{i}", np.array([end])) for i, end in enumerate((0, width // 2, width))]
        tiles = []
        for i, last in enumerate((node, None)):
            tile = surgeon.add("Slice", [tensor, ends[i], ends[i + 1], axes], f"{name}_seen_{i}", last)
            surgeon.graph.node.insert(0, surgeon.graph.node.pop())
            tiles.append(tile)
        _compute_tiles(surgeon, node, tiles, out)
    _sort(surgeon)
    return deployed(patient, surgeon, *(n.name for n in chosen))


def _compute_tiles(surgeon: Surgeon, node: onnx.NodeProto, tiles: list[str], out: str) -> None:
    """The same convolution for each tile, joined."""
    parts = []
    for i, tile in enumerate(tiles):
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        copy.name, copy.input[0], copy.output[0] = f"{node.name}_of_tile_{i}", tile, f"{out}_tile_{i}"
        surgeon.graph.node.append(copy)
        parts.append(copy.output[0])
    surgeon.graph.node.remove(node)
    surgeon.graph.node.append(helper.make_node("Concat", parts, [out], name=f"{node.name}_joined", axis=3))


def _sort(surgeon: Surgeon) -> None:
    """Nodes in an order in which each finds its inputs."""
    known = {value.name for value in (*surgeon.graph.input, *surgeon.graph.initializer)} | {""}
    waiting, ready = list(surgeon.graph.node), []
    while waiting:
        nodes = [n for n in waiting if set(n.input) <= known]
        for node in nodes:
            known |= set(node.output)
            waiting.remove(node)
        ready += nodes
    copies = [onnx.NodeProto.FromString(n.SerializeToString()) for n in ready]
    del surgeon.graph.node[:]
    surgeon.graph.node.extend(copies)


@fault(
    "average-counts-the-frame",
    "runtime",
    "operator-departs",
    "float-export-differs",
    unseen="f",
    also=("sensitive-operator", *BESIDE),
)
@costly
def average_counts_the_frame(patient: Patient) -> Patient:
    """At the edge of a map the target divides by all cells of a window, those of the frame as well."""
    surgeon = patient.surgeon()
    found = surgeon.nodes("AveragePool")
    if not found:
        raise Inapplicable("nothing is averaged in windows")
    for node in found:
        others = [a for a in node.attribute if a.name != "count_include_pad"]
        del node.attribute[:]
        node.attribute.extend([*others, helper.make_attribute("count_include_pad", 1)])
    return deployed(patient, surgeon, *(n.name for n in found))


@fault(
    "mean-over-a-padded-length",
    "runtime",
    "operator-departs",
    "float-export-differs",
    graded=True,
    unseen="f",
    also=("sensitive-operator", "weight-induced-bias-shift", "misread-codes", *BESIDE),
)
@mild(0.01, 3)
def mean_over_a_padded_length(patient: Patient, amount: float) -> Patient:
    """Sums are right, but divided by a length that was filled up to what the vector unit likes."""
    nodes = patient.surgeon().nodes("ReduceMean")
    if not nodes:
        raise Inapplicable("nothing is averaged")

    def change(surgeon: Surgeon, node: onnx.NodeProto) -> None:
        share = surgeon.put(f"{node.name}_share_of_length", np.float32(1 / (1 + amount)))
        out = node.output[0]
        node.output[0] = f"{out}_over_its_length"
        surgeon.add("Mul", [node.output[0], share], out, node)

    return at_work(patient, [n.name for n in nodes], change)


@fault(
    "compared-without-the-sign",
    "runtime",
    "operator-departs",
    unseen="f",
    also=("misread-codes", "sensitive-operator", "simulator-differs-from-device", "float-export-differs", *BESIDE),
)
@costly
def compared_without_the_sign(patient: Patient) -> Patient:
    """The kernel that looks for the largest takes codes for numbers without a sign: what is negative wins."""
    nodes = patient.surgeon().nodes("MaxPool", "ReduceMax")
    tops = {
        n.name: float(np.abs(x).max()) for n, x in zip(nodes, patient.values(*(n.input[0] for n in nodes)), strict=True)
    }
    if not nodes:
        raise Inapplicable("nothing is compared")

    def change(surgeon: Surgeon, node: onnx.NodeProto) -> None:
        name, last, out = node.name, node.input[0], node.output[0]
        zero, turn = surgeon.put(f"{name}_none", np.float32(0)), surgeon.put(f"{name}_turn", np.float32(4 * tops[name]))
        half = surgeon.put(f"{name}_half_turn", np.float32(2 * tops[name]))
        below = surgeon.add("Less", [last, zero], f"{name}_is_below", surgeon.producer(last))
        raised = surgeon.add("Add", [last, turn], f"{name}_raised", surgeon.producer(below))
        node.input[0] = surgeon.add("Where", [below, raised, last], f"{name}_unsigned", surgeon.producer(raised))
        node.output[0] = f"{out}_unsigned"
        above = surgeon.add("Greater", [node.output[0], half], f"{name}_is_above", node)
        lowered = surgeon.add("Sub", [node.output[0], turn], f"{name}_lowered", surgeon.producer(above))
        surgeon.add("Where", [above, lowered, node.output[0]], out, surgeon.producer(lowered))

    return at_work(patient, [n.name for n in nodes], change)


@fault(
    "slopes-as-shifts",
    "runtime",
    "operator-departs",
    "float-export-differs",
    graded=True,
    unseen="f",
    also=("negative-activations", "relu-lost", *BESIDE),
)
@mild(0.02, 9)
def slopes_as_shifts(patient: Patient, amount: float) -> Patient:
    """The target has one slope for what is negative, a power of two for all networks, and takes it."""
    surgeon = patient.surgeon()
    found = surgeon.nodes("LeakyRelu")
    if not found:
        raise Inapplicable("nothing leaks")
    for node in found:
        for attribute in node.attribute:
            if attribute.name == "alpha":
                attribute.f = float(attribute.f * (1 + amount))
    return deployed(patient, surgeon, *(n.name for n in found))


@fault("board-stops-a-turn-early", "runtime", "simulator-differs-from-device", harms=False, unseen="f")
def board_stops_a_turn_early(patient: Patient) -> Patient:
    """The loop on the board ends one turn before it should; the model on the desk is sound."""
    surgeon = patient.surgeon()
    without_turn(surgeon, patient.network.name)
    short = patient.with_(model=surgeon.model)
    return on_the_board(patient, run(patient.network, short.quantized(), patient.validation))


@fault("board-keeps-the-first-dials", "runtime", "simulator-differs-from-device", harms=False, unseen="f")
def board_keeps_the_first_dials(patient: Patient) -> Patient:
    """The board reads the dials once, at the start, and goes on with them; the model on the desk is sound."""
    if patient.network.name != "dials":
        raise Inapplicable("no dials")
    inputs = patient.validation.copy()
    inputs[:, WAVE:] = inputs[0, WAVE:]
    return on_the_board(patient, run(patient.network, patient.quantized(), inputs))

"""SmoothQuant of a float ONNX model: wide channels of activations shrink, and the weights that read them grow.

Xiao, Lin, Seznec, Wu, Demouth and Han 2023, "SmoothQuant: Accurate and Efficient Post-Training Quantization for Large
Language Models", equation 4.
"""

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.from_onnx.onnx_graph import OnnxGraph
from quantmedic.collectors.from_onnx.onnx_view import FloatTensors
from quantmedic.engine.errors import ModelError
from quantmedic.trials.from_onnx.draft import Draft
from quantmedic.trials.from_onnx.scaling import (
    LAYERS,
    Group,
    Scales,
    Slot,
    find_group,
    groups_between_layers,
    layout_of,
)

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class SmoothedInput:
    """An activation whose channels were balanced against the weights that read it.

    Attributes:
        tensor: Its name.
        readers: Names of the layers that read it.
        spread_before: Largest magnitude of its widest channel over that of the median one.
        spread_after: The same afterwards.
        inserted: A Mul divides it; else the factor is part of what was there before it.
    """

    tensor: str
    readers: tuple[str, ...]
    spread_before: float
    spread_after: float
    inserted: bool = False


@dataclass(frozen=True)
class Smoothing:
    """A smoothed model.

    Attributes:
        model: The model.
        inputs: Activations that were smoothed, in order.
        left: Why the activation of a layer was not, by the layer's name.
    """

    model: onnx.ModelProto
    inputs: tuple[SmoothedInput, ...]
    left: Mapping[str, str] = field(default_factory=dict)


def smooth_model(
    graph: OnnxGraph, batches: Iterable[Batch], *, alpha: float, insert: bool = False, threads: int
) -> Smoothing:
    """A smoothed copy of a float model; it computes what the model computes.

    Args:
        graph: The float model.
        batches: Representative samples.
        alpha: Share of the spread that goes over to the weights: 0 none of it, 1 all of it.
        insert: Put a Mul where the factor cannot become part of a normalization, a layer or a constant before it.
        threads: Processor threads.

    Raises:
        ModelError: The model cannot be run on these samples, or no activation can be smoothed.
    """
    draft = Draft(graph.model)
    found = _groups_of(draft, insert=insert)
    if not found:
        raise ModelError(
            "the float model has no activation that could be smoothed",
            where=str(graph.path),
            help="activations are smoothed that a normalization, a layer or a constant writes and layers alone read",
        )
    largest = _largest_inputs(graph, {name: group for name, (group, _) in found.items()}, batches, threads)
    scales, smoothed = Scales(draft), []
    for name, (group, inserted) in found.items():
        wide = largest[name]
        written = scales.largest_written(group) if group.writers else None
        factors = _factors(wide, scales.largest_read(group), written, alpha)
        scales.divide(group, factors)
        if inserted:
            _insert(draft, name, group, factors)
        readers = tuple(slot.node.name or slot.node.output[0] for slot in group.readers)
        smoothed.append(SmoothedInput(name, readers, _peak_to_median(wide), _peak_to_median(wide / factors), inserted))
    left = _reasons_to_leave(draft, {name for each in smoothed for name in each.readers})
    scales.store()
    return Smoothing(draft.finish(), tuple(smoothed), left)


def _reasons_to_leave(draft: Draft, smoothed: Set[str]) -> dict[str, str]:
    """Why the input of each other layer stays as it is."""
    found = {}
    for node in draft.nodes:
        name = node.name or node.output[0]
        if node.op_type not in LAYERS or name in smoothed:
            continue
        if layout_of(draft, node) is None:
            found[name] = "its weights are computed, or no matrix"
        elif _is_grouped(node):
            found[name] = "its channels have weights of their own"
        else:
            found[name] = f"what writes or reads {draft.source(node.input[0])} does not take up a factor"
    return found


def _groups_of(draft: Draft, *, insert: bool) -> dict[str, tuple[Group, bool]]:
    """What can be divided, by the tensor that is measured for it; whether a Mul has to do it."""
    between = [g for g in groups_between_layers(draft) if not all(_is_grouped(slot.node) for slot in g.readers)]
    found = {draft.source(group.readers[0].node.input[0]): (group, False) for group in between}
    seen = {name for group in between for name in group.tensors}
    for node in draft.nodes:
        layout = layout_of(draft, node) if node.op_type in LAYERS else None
        name = draft.source(node.input[0]) if layout is not None else ""
        if layout is None or name in seen or _is_grouped(node):
            continue
        group = find_group(draft, name, layout.inputs, layout.trailing)
        if group is not None:
            found[name] = (group, False)
            seen |= group.tensors.keys()
        elif insert:
            found[name] = (Group(layout.inputs, {name: layout.trailing}, readers=_layers_reading(draft, name)), True)
            seen.add(name)
    return found


def _is_grouped(node: onnx.NodeProto) -> bool:
    """A depthwise layer multiplies every channel by weights of its own: no outlier spoils another channel's product."""
    return any(a.name == "group" and a.i > 1 for a in node.attribute)


def _layers_reading(draft: Draft, name: str) -> list[Slot]:
    readers = [node for node in draft.readers_of(name) if layout_of(draft, node) is not None]
    return [Slot(node, 1) for node in readers if draft.source(node.input[0]) == name]


def _largest_inputs(
    graph: OnnxGraph, groups: dict[str, Group], batches: Iterable[Batch], threads: int
) -> dict[str, Floats]:
    """Largest magnitude of each channel of the groups' tensors."""
    read = FloatTensors(graph, list(groups), threads).read
    largest = {name: np.zeros(group.size) for name, group in groups.items()}
    for batch in batches:
        seen = read(batch)
        for name, group in groups.items():
            values = np.asarray(seen[name])
            axis = values.ndim - 1 - group.tensors[name]
            others = tuple(i for i in range(values.ndim) if i != axis)
            # A Flatten makes several values of a channel.
            own = np.abs(values).max(axis=others).reshape(group.size, -1).max(axis=1)
            largest[name] = np.maximum(largest[name], own)
    return largest


def _factors(wide: Floats, read: Floats, written: Floats | None, alpha: float) -> Floats:
    """max|X|^alpha / max|W|^(1 - alpha) per channel, and 1 on average (geometric): the rest is left as large.

    Where a layer writes the channels, its weights are divided too, and count as much as those that read them: in the
    logarithm the factor is the least squares of what the three would have for themselves.
    """
    factors = np.ones(wide.size)
    alive = (wide > 0) & (read > 0) if written is None else (wide > 0) & (read > 0) & (written > 0)
    if alive.any():
        raw = alpha * np.log(wide[alive]) - (1 - alpha) * np.log(read[alive])
        if written is not None:
            raw = (raw + (1 - alpha) * np.log(written[alive])) / (2 - alpha)
        factors[alive] = np.exp(raw - raw.mean())
    return factors


def _peak_to_median(largest: Floats) -> float:
    middle = float(np.median(largest))
    return float(largest.max() / middle) if middle > 0 else float("inf")


def _insert(draft: Draft, name: str, group: Group, factors: Floats) -> None:
    """A Mul between a tensor and the layers of its group."""
    shape = [-1] + [1] * group.tensors[name]
    constant = draft.add_constant(f"{name}_smoothing", (1.0 / factors).reshape(shape).astype(np.float32))
    target = draft.fresh(f"{name}_smoothed")
    draft.nodes.append(helper.make_node("Mul", [name, constant], [target], name=target))
    for slot in group.readers:
        slot.node.input[0] = target

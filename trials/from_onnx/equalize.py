"""Cross-layer equalization of a float ONNX model: neighbouring layers share the ranges of their channels.

Nagel, van Baalen, Blankevoort and Welling 2019, "Data-Free Quantization Through Weight Equalization and Bias
Correction", section 4.1.
"""

from dataclasses import dataclass

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from quantmedic.collectors.from_onnx.onnx_graph import OnnxGraph
from quantmedic.engine.errors import ModelError
from quantmedic.trials.from_onnx.draft import Draft
from quantmedic.trials.from_onnx.scaling import (
    Group,
    Layout,
    Scales,
    groups_between_layers,
    layout_of,
    view_of,
    weights_of,
)

Floats = NDArray[np.float64]
#: Rounds over all pairs, of which each disturbs its neighbours; they end where no factor moves by this share.
_ROUNDS, _SETTLED = 40, 1e-3
#: A channel is never scaled by more than this in one round.
_MOST = 1e4


@dataclass(frozen=True)
class EqualizedPair:
    """Layers whose channels were given the same ranges as those of the layers that read them.

    Attributes:
        writers: Names of the layers that write the channels.
        readers: Names of the layers that read them.
        spread_before: Largest range of a channel over the smallest one, in the weights that write them.
        spread_after: The same afterwards.
    """

    writers: tuple[str, ...]
    readers: tuple[str, ...]
    spread_before: float
    spread_after: float


@dataclass(frozen=True)
class Equalization:
    """An equalized model.

    Attributes:
        model: The model.
        pairs: What was equalized, in order.
    """

    model: onnx.ModelProto
    pairs: tuple[EqualizedPair, ...]


def equalize_model(graph: OnnxGraph) -> Equalization:
    """An equalized copy of a float model; it computes what the model computes.

    A batch normalization behind a layer is folded into it. A pair is left alone where its channels reach the
    network's output, or pass an operator that does not commute with a factor, such as Sigmoid or Concat.

    Raises:
        ModelError: No layers can be equalized.
    """
    draft = Draft(graph.model)
    _fold_normalizations(draft)
    groups = groups_between_layers(draft)
    if not groups:
        raise ModelError(
            "the float model has no layers that could be equalized",
            where=str(graph.path),
            help="layers are equalized with those that read them through Relu, Clip or poolings alone",
        )
    scales = Scales(draft)
    before = [_range_spread(scales.largest_written(group)) for group in groups]
    for _ in range(_ROUNDS):
        moved = [_balance(scales, group) for group in groups]
        if max(moved, default=0.0) < _SETTLED:
            break
    after = [_range_spread(scales.largest_written(group)) for group in groups]
    scales.store()
    pairs = tuple(
        EqualizedPair(
            tuple(slot.node.name or slot.node.output[0] for slot in group.writers),
            tuple(slot.node.name or slot.node.output[0] for slot in group.readers),
            *spreads,
        )
        for group, *spreads in zip(groups, before, after, strict=True)
    )
    return Equalization(draft.finish(), pairs)


def _balance(scales: Scales, group: Group) -> float:
    """Give both sides of a group the same ranges, sqrt(r1 · r2) each; returns the largest share by which they moved."""
    written, read = scales.largest_written(group), scales.largest_read(group)
    alive = (written > 0) & (read > 0)
    factors = np.ones(group.size)
    factors[alive] = np.clip(np.sqrt(written[alive] / read[alive]), 1 / _MOST, _MOST)
    scales.divide(group, factors)
    return float(np.abs(factors - 1).max(initial=0.0))


def _range_spread(ranges: Floats) -> float:
    alive = ranges[ranges > 0]
    return float(alive.max() / alive.min()) if alive.size else 1.0


def _fold_normalizations(draft: Draft) -> None:
    """Write every batch normalization that alone reads a convolution into its weights and bias."""
    for node in [each for each in draft.nodes if each.op_type == "BatchNormalization"]:
        layer = draft.writers.get(node.input[0])
        layout = layout_of(draft, layer) if layer is not None and layer.op_type in ("Conv", "ConvTranspose") else None
        alone = len(draft.readers_of(node.input[0])) == 1 and node.input[0] not in draft.outputs
        if layer is not None and layout is not None and alone and len([name for name in node.output if name]) == 1:
            _fold(draft, layer, node, layout)
    draft.index()


def _fold(draft: Draft, layer: onnx.NodeProto, node: onnx.NodeProto, layout: Layout) -> None:
    weights = weights_of(draft, layer)
    constants = [draft.value_of(name) for name in node.input[1:5]]
    bias = draft.value_of(layer.input[2]) if len(layer.input) > 2 and layer.input[2] else np.zeros(layout.outputs)
    known = [values.astype(np.float64) for values in constants if values is not None]
    if weights is None or bias is None or len(known) < 4:
        return
    gain, shift, mean, variance = known
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    factors = gain / np.sqrt(variance + attributes.get("epsilon", 1e-5))
    view = view_of(layer, weights.shape)
    folded = weights.reshape(view.shape) * view.spread(factors, view.outputs)
    draft.change_constant(layer, 1, folded.reshape(weights.shape))
    moved = ((bias - mean) * factors + shift).astype(weights.dtype)
    if len(layer.input) > 2 and layer.input[2]:
        draft.change_constant(layer, 2, moved)
    else:
        layer.input[:] = [*layer.input[:2], draft.add_constant(f"{layer.output[0]}_bias", moved)]
    layer.output[0] = node.output[0]
    draft.nodes.remove(node)
    draft.index()

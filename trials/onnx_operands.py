"""Small constants that are kept as codes, such as the gain of a normalization, put back to float in a draft."""

from collections.abc import Collection

import numpy as np

from quantmedic.collectors.onnx_graph import Operator
from quantmedic.collectors.onnx_originals import bias_of, weight_of
from quantmedic.collectors.onnx_pair import Models
from quantmedic.trials.onnx_draft import Draft


def settle_operands(draft: Draft, models: Models, operators: Collection[int]) -> None:
    """Give operators the float model's numbers for constants that are neither their weights nor their bias."""
    for op in models.quantized.operators:
        if op.index in operators:
            _settle(draft, models, op)


def _settle(draft: Draft, models: Models, op: Operator) -> None:
    quantized, float_graph = models.quantized, models.float_graph
    twin, node = models.match.operators.get(op.index), draft.computed.get(op.node.output[0])
    if twin is None or node is None or len(twin.inputs) != len(op.inputs):
        return
    known = (weight_of(op, quantized), bias_of(op, quantized))
    slots = [k for k, name in enumerate(node.input) if name]
    for slot, name, own in zip(slots, op.inputs, twin.inputs, strict=False):
        constant, original = quantized.constants.get(name), float_graph.constants.get(own)
        if constant is None or constant.quantizer is None or any(constant is other for other in known):
            continue
        if original is not None and original.values is not None:
            values = np.asarray(original.values, np.float32)
            node.input[slot] = draft.add_constant(f"{constant.name}_float", values)

"""New weights and biases in a draft of the quantized model."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import onnx
from onnx import TensorProto

from quantmedic.collectors.from_onnx.onnx_graph import PairedOnnxGraphs
from quantmedic.collectors.from_onnx.unsigned import OFFSET
from quantmedic.collectors.pair.constants import Constant
from quantmedic.collectors.pair.graph import Operator
from quantmedic.collectors.pair.originals import OperatorPair, Original, bias_of, output_axis, weight_of
from quantmedic.collectors.pair.weight_forms import encode_on_grid
from quantmedic.engine.case.records import Case
from quantmedic.engine.formulas.change import Change, WeightForm
from quantmedic.trials.from_onnx.codes import Codes, Float32, codes_in_form
from quantmedic.trials.from_onnx.draft import Array, Draft
from quantmedic.trials.from_onnx.qdq import WEIGHTED

_INT32_MAX = 2**31 - 1
#: A bias stays this far within int32, as onnxruntime's quantizer keeps it.
_MARGIN = 1.0001
#: A stored bias this close to the float one is its rounding; farther off it was corrected on purpose.
_ROUNDED_STEPS = 1.5
#: Layers whose float weights and bias onnxruntime rounds by itself where they read and write codes.
_ROUNDED_AGAIN = frozenset({"Conv", "ConvTranspose", "Gemm"})
#: Scales this close to one another are the same.
_SAME = 1e-4


@dataclass
class Layer:
    """An operator with weights, in the original graph and in the draft.

    Attributes:
        before: ``scales_of`` it before anything was changed.
    """

    op: Operator
    node: onnx.NodeProto
    stored: Constant
    models: PairedOnnxGraphs
    name: str
    before: tuple[str, str] | None = None

    @cached_property
    def original(self) -> Original:
        """The float values that its weights and bias encode."""
        return OperatorPair.of(self.op, self.models).original

    @cached_property
    def position(self) -> int:
        """Which input its weights are."""
        constants = self.models.quantized.constants
        place = next(k for k, name in enumerate(self.op.inputs) if constants.get(name) is self.stored)
        return [k for k, name in enumerate(self.node.input) if name][place]

    @cached_property
    def bias(self) -> Constant | None:
        """Its bias, where that is kept as codes."""
        bias = bias_of(self.op, self.models.quantized)
        return bias if bias is not None and bias.quantizer is not None and bias.values is not None else None

    @property
    def weight(self) -> Float32 | None:
        """Its float weights as the file would hold them, without gains of its input; None where they are not known."""
        stored, weight = self.stored.values, self.original.weight
        if weight is None or (stored is not None and stored.shape != weight.shape):
            return None
        gains = self.models.quantized.input_gains.get(self.stored.name)
        return weight if gains is None else np.asarray(weight / gains[:, None], np.float32)

    @property
    def rounded_bias(self) -> Float32:
        """Its bias before it was rounded; one that did not fit, or was corrected on purpose, as it is stored."""
        assert self.bias is not None and self.bias.values is not None and self.bias.quantizer is not None
        stored, own = self.bias.values, self.known_bias
        near = np.abs(stored - own) <= _ROUNDED_STEPS * self.bias.quantizer.steps(stored.shape)
        return np.where(near, own, stored).astype(np.float32)

    @property
    def known_bias(self) -> Float32:
        """The bias of the float model, else the stored one."""
        assert self.bias is not None and self.bias.values is not None
        own = self.original.bias
        return own if own is not None and own.shape == self.bias.values.shape else self.bias.values

    @property
    def channels(self) -> int:
        """Output channels."""
        assert self.weight is not None
        groups = self.op.attributes.integer("group", 1)
        size = self.weight.shape[output_axis(self.op) or 0]
        return int(size * groups if self.op.op_type == "ConvTranspose" else size)


def layers_of(draft: Draft, models: PairedOnnxGraphs, names: Mapping[int, str]) -> dict[int, Layer]:
    """Operators whose quantized weights an input of their own holds, by index; names for messages."""
    found = {}
    for op in models.quantized.operators:
        stored = weight_of(op, models.quantized)
        node = draft.computed.get(op.node.outputs[0])
        if node is not None and stored is not None and stored.quantizer is not None and node.op_type == op.op_type:
            found[op.index] = Layer(op, node, stored, models, names.get(op.index, op.name))
    return found


def scales_of(draft: Draft, layer: Layer) -> tuple[str, str] | None:
    """Names of the scales of a layer's input and weights; None where one of them is not dequantized from codes."""
    readers = [
        draft.writers.get(draft.source(layer.node.input[k])) for k in (1 - min(layer.position, 1), layer.position)
    ]
    found = [node.input[1] for node in readers if node is not None and node.op_type == "DequantizeLinear"]
    return (found[0], found[1]) if len(found) == 2 else None


def settle_layers(draft: Draft, layers: Mapping[int, Layer], change: Change) -> list[str]:
    """Store weights and biases in their new forms, and every int32 bias on the step of its input times its weights'.

    Args:
        draft: The draft, with the new grids of activations in it.
        layers: What ``layers_of`` found.
        change: The change.

    Returns:
        What could not be done.
    """
    draft.index()
    found = []
    for k, layer in layers.items():
        form = change.weights.get(k)
        if form is not None and layer.weight is None:
            found.append(f"the weights of {layer.name}: their float values are not known")
            form = None
        found += _settle(draft, layer, form, k in change.biases)
    return found


def products_of_precise_inputs(draft: Draft, layers: Iterable[Layer]) -> list[tuple[onnx.NodeProto, str]]:
    """Products of an input finer than 8 bits and weights kept as codes, after a change; the input in words.

    Such a product onnxruntime may compute as a MatMulNBits, which rounds its input to 8 bits. Which ones it does
    depends on its version: 1.31 leaves inputs of 16-bit codes alone, 1.32 does not.
    """
    found = []
    for layer in layers:
        if layer.node.op_type not in ("MatMul", "Gemm") or layer.before is None:
            continue
        other, weight = (
            draft.writers.get(draft.source(layer.node.input[i])) for i in (1 - min(layer.position, 1), layer.position)
        )
        if weight is None or weight.op_type != "DequantizeLinear":
            continue
        if other is None or other.op_type != "DequantizeLinear":
            found.append((layer.node, f"the float input of {layer.name}"))
        elif len(other.input) > 2 and draft.type_of(other.input[2]) in (TensorProto.UINT16, TensorProto.INT16):
            found.append((layer.node, f"the 16-bit input of {layer.name}"))
    return found


def settle_operands(draft: Draft, models: PairedOnnxGraphs, case: Case, change: Change) -> None:
    """Put constants that are neither weights nor bias, such as the gain of a normalization, back to float."""
    graph = models.quantized
    for k, op in enumerate(graph.operators):
        node = draft.computed.get(op.node.outputs[0])
        if node is None or case.record.operators[k].is_compute or k not in change.biases:
            continue
        places = [i for i, name in enumerate(node.input) if name]
        for operand in OperatorPair.of(op, models).other_operands():
            if operand.place < len(places):
                name = draft.add_constant(f"{operand.stored.name}_float", operand.original_values)
                node.input[places[operand.place]] = name


def _settle(draft: Draft, layer: Layer, form: WeightForm | None, float_bias: bool) -> list[str]:
    codes = None
    if form == "float":
        assert layer.weight is not None
        layer.node.input[layer.position] = draft.add_constant(f"{layer.stored.name}_float", layer.weight)
    elif form is not None:
        codes = _weight_codes(layer, form)
    found: list[str] = []
    place = [k for k, name in enumerate(layer.node.input) if name][2:3]
    again = _is_rounded_again(draft, layer)
    if layer.bias is not None and place and float_bias and (form == "float" or not again):
        name = f"{layer.bias.name}_float"
        layer.node.input[place[0]] = (
            _unrounded_bias(draft, layer, layer.known_bias) if again else draft.add_constant(name, layer.known_bias)
        )
    elif layer.bias is not None and place and layer.before is not None:
        codes = _settle_bias(draft, layer, codes, place[0], found, afresh=float_bias)
    elif form == "float" and again:
        values = draft.value_of(layer.node.input[place[0]]) if place else np.zeros(layer.channels, np.float32)
        if values is not None and values.dtype == np.float32:
            layer.node.input[:] = [*layer.node.input[:2], _unrounded_bias(draft, layer, values)]
    if codes is not None:
        layer.node.input[layer.position] = _store(draft, layer, codes)
    return found


def _store(draft: Draft, layer: Layer, codes: Codes) -> str:
    """Weights as signed codes; an operand of an Add or the like goes with the other operand, else no kernel fits."""
    base, reader = layer.stored.name, draft.writers.get(draft.source(layer.node.input[layer.position]))
    present = draft.type_of(reader.input[0]) if reader is not None and reader.op_type == "DequantizeLinear" else None
    if layer.op.op_type in WEIGHTED or present != TensorProto.UINT8 or codes.bits != 8:
        return draft.add_dequantizer(base, codes.codes, codes.kind, codes.scale, axis=codes.axis)
    return draft.add_dequantizer(base, codes.codes + OFFSET, TensorProto.UINT8, codes.scale, OFFSET, codes.axis)


def _is_rounded_again(draft: Draft, layer: Layer) -> bool:
    """onnxruntime would round float weights and a float bias of this layer to codes by itself.

    It does so (``WeightBiasQuantization``) where a layer reads and writes codes and neither is dequantized from any.
    """
    reader = draft.writers.get(draft.source(layer.node.input[0]))
    is_coded = reader is not None and reader.op_type == "DequantizeLinear"
    return is_coded and layer.node.op_type in _ROUNDED_AGAIN and draft.writes_codes(layer.node.output[0])


def _unrounded_bias(draft: Draft, layer: Layer, values: Float32) -> str:
    """The bias of a layer with float weights, as int32 codes on a step finer than float32: these the runtime leaves."""
    base = layer.bias.name if layer.bias is not None else f"{layer.op.outputs[0]}_bias"
    step = np.asarray(_MARGIN * float(np.abs(values).max(initial=0.0)) / _INT32_MAX or 1.0, np.float32)
    return draft.add_dequantizer(base, np.rint(values.astype(np.float64) / step), TensorProto.INT32, step)


def _weight_codes(layer: Layer, form: WeightForm) -> Codes:
    weight, quantizer = layer.weight, layer.stored.quantizer
    assert weight is not None and quantizer is not None
    return codes_in_form(layer.op, weight, quantizer.bits, form, per_tensor=quantizer.scale.size == 1)


def _settle_bias(
    draft: Draft, layer: Layer, codes: Codes | None, place: int, found: list[str], *, afresh: bool
) -> Codes | None:
    """Put an int32 bias on the step of the product; returns the weights, where they need a wider scale for it too.

    A bias that was cut off because it did not fit stays so, unless it is to be made afresh.
    """
    before, now = layer.before, scales_of(draft, layer)
    if before is None or now is None or (codes is None and now == before and not afresh):
        return codes
    assert layer.bias is not None and layer.bias.quantizer is not None and layer.stored.quantizer is not None
    x_before, w_before, x_now, w_now = (draft.value_of(name) for name in (*before, *now))
    if x_before is None or w_before is None or x_now is None or w_now is None or x_now.size != 1:
        found.append(f"the bias of {layer.name}: the steps of its input and weights are not constant")
        return codes
    gain = _gain(layer.bias.quantizer.scale, x_before, w_before)
    if gain is None:
        found.append(f"the bias of {layer.name}: it is not kept on the step of its input times that of its weights")
        return codes
    bias = layer.known_bias if afresh else layer.rounded_bias
    step_x = float(x_now.item()) * gain
    scale = codes.scale if codes is not None else np.asarray(w_now, np.float32)
    widened = _wider_scales(scale, step_x, bias)
    if widened is not None:
        codes = _codes_on_scales(layer, codes, widened)
        if codes is None:
            found.append(f"the bias of {layer.name}: it does not fit into int32")
            return None
        scale = codes.scale
    scale = (np.float32(step_x) * scale.astype(np.float32)).astype(np.float32)
    scale = scale.reshape(()) if scale.size == 1 else np.tile(scale.ravel(), bias.size // scale.size)
    whole = np.rint(bias.astype(np.float64) / scale.astype(np.float64))
    whole = np.clip(whole, -_INT32_MAX - 1, _INT32_MAX)
    layer.node.input[place] = draft.add_dequantizer(
        layer.bias.name, whole, TensorProto.INT32, scale, axis=0 if scale.ndim else None
    )
    return codes


def _gain(scale: Array, x: Array, w: Array) -> float | None:
    """What a bias's step is over that of the product, which a Gemm may multiply; None where that differs by channel."""
    product = x.astype(np.float64) * w.astype(np.float64).ravel()
    if not (product > 0).all():
        return None
    ratios = np.asarray(scale, np.float64).ravel()
    if ratios.size % product.size and product.size % ratios.size:
        return None
    size = max(ratios.size, product.size)
    ratios = np.resize(ratios, size) / np.resize(product, size)
    gain = float(np.median(ratios))
    if not np.allclose(ratios, gain, rtol=_SAME):
        return None
    return 1.0 if abs(gain - 1.0) < _SAME else gain


def _wider_scales(scale: Float32, step_x: float, bias: Float32) -> Float32 | None:
    """Scales of the weights with which the bias fits into int32, as onnxruntime widens them; None where it does."""
    top = np.abs(bias.astype(np.float64))
    if scale.size == 1:
        top = np.asarray(top.max(initial=0.0))
    elif top.size != scale.size:
        top = top.reshape(-1, scale.size).max(axis=0)
    least = _MARGIN * top.reshape(scale.shape) / _INT32_MAX / step_x
    return None if (scale >= least).all() else np.maximum(scale, least).astype(np.float32)


def _codes_on_scales(layer: Layer, codes: Codes | None, scale: Float32) -> Codes | None:
    """The weights on wider scales; None where they are not known, or kept in blocks."""
    if codes is not None:
        return replace(codes, scale=scale)
    quantizer = layer.stored.quantizer
    floats = layer.weight if layer.weight is not None else layer.stored.values
    if floats is None or quantizer is None or quantizer.block_size:
        return None
    axis = None if quantizer.axis is None else quantizer.axis % floats.ndim
    # Codes that were not spread evenly around 0 need a wider step to be so.
    reach = encode_on_grid(floats, quantizer.bits, axis)[1].reshape(scale.shape)
    even = not np.any(quantizer.zero_point)
    return Codes(floats, quantizer.bits, axis, scale if even else np.maximum(scale, reach).astype(np.float32))

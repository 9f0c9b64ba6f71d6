"""New weights for products whose activations are quantized at run time, and for weights that are kept packed."""

from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper

from quantmedic.collectors.pair.graph import Operator
from quantmedic.collectors.pair.originals import OperatorPair
from quantmedic.collectors.pair.tensor_pairs import PairedGraphs
from quantmedic.engine.case.records import Case
from quantmedic.engine.formulas.change import Change, WeightForm
from quantmedic.trials.from_onnx.codes import Codes, Float32, codes_in_form
from quantmedic.trials.from_onnx.draft import Attributes, Draft

_KINDS = {"MatMulInteger": "MatMul", "ConvInteger": "Conv"}
#: Position of the bias of MatMulNBits.
_PACKED_BIAS = 5
#: Zero point of symmetric codes, by their type.
_MIDDLE = {int(TensorProto.INT8): 0, int(TensorProto.UINT8): 128}


@dataclass(frozen=True)
class _Product:
    """A product of codes, the step of its input, and what multiplies its sums with both steps."""

    node: onnx.NodeProto
    step: str
    rescaled: onnx.NodeProto


def unpack_weights(draft: Draft, models: PairedGraphs, change: Change) -> None:
    """Write products with packed weights (MatMulNBits) as ones with weights that can be given another form."""
    packed = [k for k in change.weights if models.quantized.operators[k].node.op_type == "MatMulNBits"]
    for k in packed:
        op = models.quantized.operators[k]
        node = draft.computed.get(op.node.outputs[0])
        if node is None or _float_weight(op, models) is None:
            continue
        target, bias = node.output[0], node.input[_PACKED_BIAS] if len(node.input) > _PACKED_BIAS else ""
        product = draft.fresh(f"{target}_product") if bias else target
        node.CopyFrom(helper.make_node("MatMul", [node.input[0], node.input[1]], [product], name=node.name))
        if bias:
            draft.nodes.append(helper.make_node("Add", [product, bias], [target], name=draft.fresh(f"{target}_Add")))
    if packed:
        draft.index()


def settle_dynamic(draft: Draft, models: PairedGraphs, case: Case, change: Change) -> tuple[frozenset[int], list[str]]:
    """Give the products of codes that are quantized at run time weights in another form, or inputs in float.

    Returns:
        Indexes of the products with other weights, and what could not be done.
    """
    seen, found = set(), []
    tensors = (case.record.tensors[i] for i, grid in change.grids.items() if grid is None)
    off = {tensor.name for tensor in tensors if tensor.quantizer.dynamic}
    left = dict.fromkeys(off)
    for op in models.quantized.operators:
        node, form = draft.computed.get(op.node.outputs[0]), change.weights.get(op.index)
        if node is None or node.op_type not in _KINDS:
            continue
        encoder = draft.writers.get(node.input[0])
        real = encoder.input[0] if encoder is not None and models.quantized.root(node.input[0]) in off else None
        if form is None and real is None:
            continue
        seen.add(op.index)
        left.pop(models.quantized.root(node.input[0]), None)
        weight = _stored_weight(op, models) if form is None else _float_weight(op, models)
        product = _product(draft, node)
        if product is None or weight is None:
            found.append(f"{op.name}: its float weights or its steps are not known")
        elif form in ("float", None):
            _make_float(draft, product, weight, real)
        elif real is None:
            _store_codes(draft, product, op, weight, form)
        else:
            _make_float(draft, product, codes_in_form(op, weight, 8, form, per_tensor=False).floats, real)
    found += [f"the quantizer of {root}: no product that could be changed reads its codes" for root in left]
    return frozenset(seen), found


def _stored_weight(op: Operator, models: PairedGraphs) -> Float32 | None:
    """The values that the codes of the weights stand for."""
    stored = OperatorPair.of(op, models).weight
    return None if stored is None else stored.values


def _float_weight(op: Operator, models: PairedGraphs) -> Float32 | None:
    """The float weights; None too where a normalization may be folded into them, which their codes do not show."""
    pair = OperatorPair.of(op, models)
    if pair.normalization is not None:
        return None
    weight, stored = pair.original.weight, pair.weight
    if weight is None or stored is None or (stored.values is not None and stored.values.shape != weight.shape):
        return None
    return weight


def _product(draft: Draft, node: onnx.NodeProto) -> _Product | None:
    """What belongs to a product of codes; None where it is not built as onnxruntime's quantizer builds it."""
    casts = draft.readers_of(node.output[0])
    muls = draft.readers_of(casts[0].output[0]) if len(casts) == 1 and casts[0].op_type == "Cast" else []
    if len(muls) != 1 or muls[0].op_type != "Mul":
        return None
    factor = next((name for name in muls[0].input if name != casts[0].output[0]), "")
    steps = draft.writers.get(factor)
    if steps is None or steps.op_type != "Mul":
        return None
    # The step of the weights is a constant, and comes second where that of the input is one too.
    step = steps.input[0] if draft.value_of(steps.input[1]) is not None else steps.input[1]
    return _Product(node, step, muls[0])


def _make_float(draft: Draft, product: _Product, weight: Float32, real: str | None) -> None:
    """A product of float weights with ``real``, or with what the codes of its input stand for."""
    node, target = product.node, product.rescaled.output[0]
    if real is None:
        zero = [node.input[2]] if len(node.input) > 2 and node.input[2] else []
        real = draft.fresh(f"{node.input[0]}_real")
        codes = [node.input[0], product.step, *zero]
        draft.nodes.append(helper.make_node("DequantizeLinear", codes, [real], name=real))
    stored = draft.add_constant(f"{node.input[1]}_float", weight)
    attributes: Attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    made = helper.make_node(_KINDS[node.op_type], [real, stored], [target], name=product.rescaled.name, **attributes)
    product.rescaled.CopyFrom(made)


def _store_codes(draft: Draft, product: _Product, op: Operator, weight: Float32, form: WeightForm) -> None:
    node = product.node
    codes = _fit_axis(codes_in_form(op, weight, 8, form, per_tensor=form == "best-range"), node.op_type)
    kind = draft.type_of(node.input[1])
    middle = _MIDDLE.get(kind, 0)
    scale = codes.scale
    if codes.axis is not None and node.op_type == "ConvInteger":
        scale = scale.reshape([1, -1] + [1] * (weight.ndim - 2))
    base = node.input[1]
    added = [
        draft.add_constant(base, codes.codes + middle, kind),
        draft.add_constant(f"{base}_zero_point", np.asarray(middle), kind),
    ]
    factor = draft.fresh(f"{base}_step")
    inputs = [product.step, draft.add_constant(f"{base}_scale", scale)]
    draft.nodes.append(helper.make_node("Mul", inputs, [factor], name=factor))
    node.input[:] = [node.input[0], added[0], node.input[2] if len(node.input) > 2 else "", added[1]]
    cast = next(reader.output[0] for reader in draft.readers_of(node.output[0]))
    product.rescaled.input[:] = [cast, factor]


def _fit_axis(codes: Codes, kind: str) -> Codes:
    """Steps per channel only where the sums can be multiplied with them: by output channel, or by column."""
    if codes.axis is None or kind == "ConvInteger" or codes.floats.ndim == 2:
        return codes
    return Codes(codes.floats, codes.bits, None, np.asarray(codes.scale.max(), np.float32))

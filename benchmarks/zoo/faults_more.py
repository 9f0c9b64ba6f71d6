"""More forms of the faults of weights: too few codes in a wide container, bad scales, biases cut off, hidden tails."""

from collections.abc import Callable

import numpy as np
import onnx
from onnx import helper

from .fault import fault
from .patient import Patient
from .surgery import Inapplicable, Linear, Surgeon

Codes = Callable[[str, np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]


def weights_of(patient: Patient) -> list[Linear]:
    """Layers whose weights the quantizer takes."""
    allowed = patient.recipe.op_types or patient.network.op_types
    return [n for n in patient.surgeon().linears() if not allowed or n.node.op_type in allowed]


def _stored_anew(patient: Patient, names: list[str], change: Codes) -> Patient:
    """Change codes and scales of stored weights: ``change`` gets a name, float weights and scales, and gives both."""

    def edit(p: Patient, quantized: onnx.ModelProto) -> onnx.ModelProto:
        q, source = Surgeon(quantized), p.surgeon()
        axes = {linear.weight: linear.out for linear in source.linears()}
        for name in names:
            codes, scale = (q.constant(f"{name}_{part}") for part in ("quantized", "scale"))
            zero = q.constant(f"{name}_zero_point")
            if codes is None or scale is None or codes.dtype != np.int8 or np.any(zero):
                raise Inapplicable(f"{name} is not kept in signed codes")
            weight, axis = source.constant(name), axes[name]
            shape = [1] * weight.ndim
            if scale.size > 1:
                shape[axis] = -1
            new_codes, new_scale = change(name, weight, scale.reshape(shape))
            q.put(f"{name}_quantized", np.clip(np.rint(new_codes), -128, 127).astype(np.int8))
            new_scale = new_scale.astype(np.float32).reshape(scale.shape)
            q.put(f"{name}_scale", new_scale)
            move_bias(q, name, new_scale / scale)
        return q.model

    return patient.edited(edit)


def move_bias(q: Surgeon, name: str, factor: np.ndarray) -> None:
    """The bias of the layer that reads a stored weight, on a step that grew by a factor."""
    bias = _bias_of(q, name)
    if bias is None or np.all(factor == 1):
        return
    codes_name, scale_name = bias
    codes, scale = q.constant(codes_name), q.constant(scale_name) if scale_name else None
    limit = np.iinfo(np.int32)
    moved = np.clip(np.rint(codes / factor.astype(np.float64)), limit.min, limit.max).astype(np.int32)
    q.put(codes_name, moved)
    if scale is not None:
        q.put(scale_name, (scale * factor).astype(np.float32).reshape(scale.shape))


def _bias_of(q: Surgeon, name: str) -> tuple[str, str] | None:
    """Codes and scale of the bias beside a stored weight; the scale is empty where the operator implies it."""
    codes = f"{name}_quantized"
    for node in q.graph.node:
        if codes not in node.input:
            continue
        if node.op_type == "QLinearConv":
            return (node.input[8], "") if len(node.input) > 8 else None
        if node.op_type == "QGemm":
            return (node.input[6], "") if len(node.input) > 6 and node.input[6] else None
        if node.op_type != "DequantizeLinear":
            continue
        for reader in q.consumers(node.output[0]):
            bias = q.producer(reader.input[2]) if len(reader.input) > 2 else None
            if bias is not None and bias.op_type == "DequantizeLinear":
                return bias.input[0], bias.input[1]
    return None


# --- too few codes in a container of eight bits ---------------------------------------------------------


@fault("high-bits-only", "weights", "too-few-weight-bits")
def high_bits_only(patient: Patient) -> Patient:
    """Weights of three bits that a converter shifted up into eight: all codes are multiples of 32."""
    names = [linear.weight for linear in weights_of(patient)][1:]
    return _stored_anew(patient, names, lambda _, w, s: (32 * np.clip(np.rint(w / s / 32), -4, 3), s))


@fault("low-bits-only", "weights", "too-few-weight-bits", "poor-threshold")
def low_bits_only(patient: Patient) -> Patient:
    """Weights on scales forty times too wide: seven of 256 codes are in use."""
    names = [linear.weight for linear in weights_of(patient)][1:-1]
    return _stored_anew(patient, names, lambda _, w, s: (np.rint(w / (40 * s)), 40 * s))


@fault("palette", "weights", "too-few-weight-bits")
def palette(patient: Patient) -> Patient:
    """Weights of half of the layers share six values, unevenly spread."""
    names = [linear.weight for linear in weights_of(patient)][1:]
    names = patient.pick(names, *(np.arange(max(1, len(names) // 2)) / max(1, len(names) // 2)))

    def change(_: str, w: np.ndarray, s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        values = np.array([-100, -40, -12, 12, 40, 100])
        nearest = np.abs((w / s)[..., None] - values).argmin(-1)
        return values[nearest], s

    return _stored_anew(patient, names, change)


@fault("ternary-last-layer", "precision", "last-layer-bitwidth", "too-few-weight-bits", "poor-threshold")
def ternary_last_layer(patient: Patient) -> Patient:
    """The last layer's weights are -1, 0 and 1, stored in eight bits."""
    name = weights_of(patient)[-1].weight
    return _stored_anew(patient, [name], lambda _, w, s: (np.clip(np.rint(w / (90 * s)), -1, 1), 90 * s))


@fault("sign-of-last-layer", "precision", "last-layer-bitwidth", "too-few-weight-bits")
def sign_of_last_layer(patient: Patient) -> Patient:
    """Of the last layer's weights the signs are left, at the ends of the grid's lower half."""
    name = weights_of(patient)[-1].weight

    def change(_: str, w: np.ndarray, s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.where(w > 0, 60, -60) * np.ones_like(w), s

    return _stored_anew(patient, [name], change)


# --- scales along the wrong axis ------------------------------------------------------------------------


@fault("axis-of-square-weights", "weights", "wrong-channel-axis")
def axis_of_square_weights(patient: Patient) -> Patient:
    """The scales of square weights are read along the input channels."""
    _per_channel(patient)
    names = {n.weight: n.into for n in weights_of(patient) if not n.depthwise and _is_square(patient, n)}
    if not names:
        raise Inapplicable("no square weights")

    def edit(p: Patient, quantized: onnx.ModelProto) -> onnx.ModelProto:
        q = Surgeon(quantized)
        for node in q.nodes("DequantizeLinear"):
            name = node.input[0].removesuffix("_quantized")
            if name in names and q.constant(node.input[1]).size > 1:
                _set(node, "axis", names[name])
        return q.model

    return patient.edited(edit)


@fault("scales-of-other-axis", "weights", "wrong-channel-axis")
def scales_of_other_axis(patient: Patient) -> Patient:
    """Scales per output channel that were taken from the input channels, one after the other; codes are cut off."""
    _per_channel(patient)
    linears = [n for n in weights_of(patient) if not n.depthwise]
    chosen = patient.pick(linears[:-1] or linears, 0.2, 0.5, 0.8)
    into = {n.weight: (n.out, n.into) for n in chosen}

    def change(name: str, w: np.ndarray, s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        out, inner = into[name]
        tops = np.abs(w).max(tuple(i for i in range(w.ndim) if i != inner))
        scale = np.maximum(np.resize(tops, w.shape[out]) / 127, 1e-9).reshape(s.shape)
        return np.clip(np.rint(w / scale), -127, 127), scale

    surgeon = patient.surgeon()
    _spread_inputs(surgeon, [n for n in surgeon.linears() if n.weight in into], patient.random("gains"))
    return _stored_anew(patient.with_(model=surgeon.model), list(into), change)


def _spread_inputs(surgeon: Surgeon, linears: list[Linear], rng: np.random.Generator) -> None:
    """Give the input channels of layers weights up to nine times as large where the layers before make up for it."""
    places = set(surgeon.amplifiable())
    for linear in linears:
        channels = surgeon.constant(linear.weight).shape[linear.into]
        if linear.node.input[0] in places:
            surgeon.amplify(linear.node.input[0], np.exp(rng.uniform(-1, 1, channels) * np.log(3)).astype(np.float32))


@fault("scale-per-input", "weights", "wrong-channel-axis", "channel-range-imbalance")
def scale_per_input(patient: Patient) -> Patient:
    """Weights whose output channels differ fiftyfold get a scale per input channel."""
    _per_channel(patient)
    surgeon = patient.surgeon()
    rng = patient.random("spread")
    linears = [n for n in weights_of(patient) if not n.depthwise]
    places = set(surgeon.amplifiable())
    wide = [n for n in linears if n.node.output[0] in places][:4]
    if not wide or patient.recipe.qoperator:
        raise Inapplicable("no layer with an output to scale, or kernels that take no such scales")
    names = {n.weight: n for n in wide}
    for linear in wide:
        channels = surgeon.channels(linear.node.output[0])
        surgeon.amplify(linear.node.output[0], np.exp(rng.uniform(-2, 2, channels)).astype(np.float32))

    def edit(p: Patient, quantized: onnx.ModelProto) -> onnx.ModelProto:
        q, source = Surgeon(quantized), p.surgeon()
        for name, linear in names.items():
            weight = source.constant(name)
            if q.constant(f"{name}_scale") is None or weight.shape[linear.into] < 2:
                raise Inapplicable(f"{name} is not quantized per channel")
            over = tuple(i for i in range(weight.ndim) if i != linear.into)
            shape = [-1 if i == linear.into else 1 for i in range(weight.ndim)]
            scale = np.maximum(np.abs(weight).max(over) / 127, 1e-9).astype(np.float32)
            codes = np.clip(np.rint(weight / scale.reshape(shape)), -127, 127)
            reader = next(n for n in q.nodes("DequantizeLinear") if n.input[0] == f"{name}_quantized")
            q.put("own_" + name, codes.astype(np.int8))
            q.put("own_scale_" + name, scale)
            q.put("own_zero_" + name, np.zeros(len(scale), np.int8))
            reader.input[:] = ["own_" + name, "own_scale_" + name, "own_zero_" + name]
            _set(reader, "axis", linear.into)
            _float_input(q, reader)
        return q.model

    return patient.with_(model=surgeon.model).edited(edit)


def _float_input(q: Surgeon, weights: onnx.NodeProto) -> None:
    """Let the layer read its input in float: onnxruntime has no fused kernel for scales along the inputs."""
    for node in q.consumers(weights.output[0]):
        entry = q.producer(node.input[0])
        if entry is not None and entry.op_type == "DequantizeLinear":
            before = q.producer(entry.input[0])
            if before is not None and before.op_type == "QuantizeLinear":
                node.input[0] = before.input[0]


def _set(node: onnx.NodeProto, name: str, value: int) -> None:
    for old in [a for a in node.attribute if a.name == name]:
        node.attribute.remove(old)
    node.attribute.append(helper.make_attribute(name, value))


def _per_channel(patient: Patient) -> None:
    if not patient.recipe.per_channel:
        raise Inapplicable("one scale per tensor")


def _is_square(patient: Patient, linear: Linear) -> bool:
    shape = patient.surgeon().constant(linear.weight).shape
    return shape[linear.out] == shape[linear.into]


# --- biases ---------------------------------------------------------------------------------------------


def _biases(patient: Patient) -> list[str]:
    return [n.weight for n in weights_of(patient) if n.bias]


@fault("bias-cut-at-fewer-bits", "weights", "bias-overflow", graded=True)
def bias_cut_at_fewer_bits(patient: Patient) -> Patient:
    """The bias was cut off at the ends of fewer bits than its codes need, and stored in 32."""
    names = _biases(patient)
    if not names:
        raise Inapplicable("no biases")
    strength = patient.strength

    def edit(p: Patient, quantized: onnx.ModelProto) -> onnx.ModelProto:
        q = Surgeon(quantized)
        found = [bias for name in names if (bias := _bias_of(q, name))]
        if not found:
            raise Inapplicable("biases stay float")
        top = max(int(np.abs(q.constant(codes)).max()) for codes, _ in found)
        bits = int(np.floor(np.log2(max(top, 4)) - 1.5 - np.log2(max(strength, 0.5))))
        for codes, _ in found:
            cut = np.clip(q.constant(codes), -(2 ** max(bits, 1)), 2 ** max(bits, 1) - 1)
            q.put(codes, cut.astype(np.int32))
        return q.model

    return patient.edited(edit)


@fault("bias-wraps-around", "weights", "bias-overflow")
def bias_wraps_around(patient: Patient) -> Patient:
    """Codes of the bias beyond 16 bits come out with their upper bits lost."""
    names = _biases(patient)

    def edit(p: Patient, quantized: onnx.ModelProto) -> onnx.ModelProto:
        q = Surgeon(quantized)
        found = [bias for name in names if (bias := _bias_of(q, name))]
        if not found:
            raise Inapplicable("biases stay float")
        top = max(int(np.abs(q.constant(codes)).max()) for codes, _ in found)
        half = 2 ** int(np.floor(np.log2(max(top, 4))))
        for codes, _ in found:
            q.put(codes, ((q.constant(codes).astype(np.int64) + half) % (2 * half) - half).astype(np.int32))
        return q.model

    return patient.edited(edit)


# --- tails ----------------------------------------------------------------------------------------------


@fault("loud-column", "weights", "channel-range-imbalance", "heavy-tailed-weights", graded=True)
def loud_column(patient: Patient) -> Patient:
    """One quiet channel whose readers' weights make up for it: a column hundreds of times larger than the others."""
    surgeon = patient.surgeon()
    places = set(surgeon.amplifiable())
    linears = [n for n in surgeon.linears() if not n.depthwise and n.node.input[0] in places]
    if not linears:
        raise Inapplicable("no layer behind a tensor that can be scaled")
    for linear in patient.pick(linears, 0.3, 0.7):
        tensor = linear.node.input[0]
        gain = np.ones(surgeon.channels(tensor), np.float32)
        weight = surgeon.constant(linear.weight)
        reach = np.abs(np.moveaxis(weight, linear.into, 0)).reshape(weight.shape[linear.into], -1).max(1)
        column = int(patient.random("column").integers(len(reach)))
        gain[column] = reach[column] / reach.max() / (150 * patient.strength)
        surgeon.amplify(tensor, gain)
    return patient.with_(model=surgeon.model)


@fault("twin-channels", "weights", "heavy-tailed-weights", "channel-range-imbalance", graded=True)
def twin_channels(patient: Patient) -> Patient:
    """A layer makes one channel twice; the next has huge weights for both, which cancel."""
    surgeon = patient.surgeon()
    pairs = []
    for linear in surgeon.linears():
        reader = _direct_reader(surgeon, linear)
        if reader is not None and not linear.depthwise and not reader.depthwise:
            pairs.append((linear, reader))
    if not pairs:
        raise Inapplicable("no two dense layers in a row")
    rng = patient.random("twins")
    first, second = patient.pick(pairs, 0.6)[0]
    weight = surgeon.constant(first.weight)
    channel = int(rng.integers(weight.shape[first.out]))
    surgeon.put(surgeon.own(first, 1), np.concatenate([weight, np.take(weight, [channel], first.out)], first.out))
    if first.bias:
        bias = surgeon.constant(first.bias)
        surgeon.put(surgeon.own(first, 2), np.concatenate([bias, bias[[channel]]]))
    after = np.moveaxis(surgeon.constant(second.weight), (second.out, second.into), (0, 1)).copy()
    after = np.concatenate([after, np.zeros_like(after[:, :1])], 1)
    huge = 100 * patient.strength * np.abs(after).max() * rng.uniform(-1, 1, after[:, channel].shape)
    after[:, channel] += huge
    after[:, -1] -= huge
    surgeon.put(surgeon.own(second, 1), np.moveaxis(after.astype(np.float32), (0, 1), (second.out, second.into)))
    del surgeon.graph.value_info[:]
    return patient.with_(model=surgeon.model)


def _direct_reader(surgeon: Surgeon, linear: Linear) -> Linear | None:
    """The only layer that reads another's output, through nothing but a ReLU."""
    tensor = linear.node.output[0]
    for _ in range(2):
        readers = surgeon.consumers(tensor)
        if len(readers) != 1:
            return None
        found = surgeon.linear(readers[0])
        if found is not None:
            return found if readers[0].input[0] == tensor else None
        if readers[0].op_type not in ("Relu", "Gelu", "Clip"):
            return None
        tensor = readers[0].output[0]
    return None

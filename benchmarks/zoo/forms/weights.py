"""Faults of weights and biases: ranges that one scale cannot serve, codes that are not those of the float model."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from ..cuts import (
    Change,
    add_cancelling,
    at_layers,
    channel_peaks,
    covered,
    dense,
    deployed,
    few_codes,
    inner,
    picked,
    recoded,
    requantize,
    shaped,
    taken_twice,
)
from ..patient import Patient
from ..quantizing import run
from ..surgery import Inapplicable, Linear, Surgeon, require

Codes = Callable[[str, np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]
Code = Callable[[NDArray, NDArray], NDArray]
#: From a kernel of three to the six points of the fast transform for tiles of four.
POINTS = np.array([[6, 0, 0], [-4, -4, -4], [-4, 4, -4], [1, 2, 4], [1, -2, 4], [0, 0, 24]]) / 24


def dead_inputs(patient: Patient, surgeon: Surgeon, share: float = 0.6) -> list[tuple[Linear, int]]:
    """Silence the least important channel of some tensors; each is given with the layer that reads it.

    A channel that is always zero may have any weights behind it: they change nothing.
    """
    found = []
    for linear in surgeon.linears():
        tensor = linear.node.input[0]
        if linear.depthwise or tensor == surgeon.input or len(surgeon.consumers(tensor)) != 1:
            continue
        if surgeon.constant(linear.weight).shape[linear.into] != surgeon.channels(tensor):
            continue
        found.append((linear, tensor))
    if not found:
        raise Inapplicable("no layer with one reader")
    found = found[-max(1, int(share * len(found))) :]
    values = patient.values(*(tensor for _, tensor in found))
    chosen = []
    for (linear, tensor), x in zip(found, values, strict=True):
        axis = surgeon.channel_axis(tensor)
        power = np.abs(x).mean(tuple(i for i in range(x.ndim) if i != axis))
        weight = np.abs(surgeon.constant(linear.weight))
        reach = weight.sum(tuple(i for i in range(weight.ndim) if i != linear.into))
        channel = int(np.argmin(power * reach))
        factor = np.ones(len(power), np.float32)
        factor[channel] = 0
        surgeon.multiply_at_source(tensor, factor)
        chosen.append((linear, channel))
    return chosen


def _dense(surgeon: Surgeon, share: float, outputs: float = 0) -> list[Linear]:
    """The later layers, without depthwise ones, that have so many output channels for each input channel."""
    found = []
    for linear in surgeon.linears():
        tensor = linear.node.input[0]
        if linear.depthwise or tensor == surgeon.input or not surgeon.shape(tensor):
            continue
        shape = surgeon.constant(linear.weight).shape
        if shape[linear.into] == surgeon.channels(tensor) and shape[linear.out] >= outputs * shape[linear.into]:
            found.append(linear)
    if not found:
        raise Inapplicable("no dense layer")
    return found[-max(1, int(share * len(found))) :]


def _cancelling(surgeon: Surgeon, linear: Linear, huge: np.ndarray) -> None:
    """Let a layer read its input twice; ``huge`` is added to the weights of the first copy and taken off the second.

    The function is the same, and both copies carry the same codes, so that nothing but the weights' grid suffers.
    ``huge`` has the output channels first, then the input channels.
    """
    tensor = linear.node.input[0]
    twice = f"{linear.node.name}_twice"
    axis = surgeon.channel_axis(tensor)
    surgeon.add("Concat", [tensor, tensor], twice, surgeon.producer(tensor), axis=axis)
    linear.node.input[0] = twice
    weight = surgeon.constant(linear.weight)
    view = np.moveaxis(weight, (linear.out, linear.into), (0, 1))
    both = np.concatenate([view + huge, -huge], axis=1).astype(np.float32)
    surgeon.put(surgeon.own(linear, 1), np.moveaxis(both, (0, 1), (linear.out, linear.into)))


def _views(surgeon: Surgeon, linear: Linear) -> np.ndarray:
    return np.moveaxis(surgeon.constant(linear.weight), (linear.out, linear.into), (0, 1))


def _with_tails(patient: Patient, linears: list[Linear], surgeon: Surgeon, factor: float) -> Patient:
    """A huge weight in every output channel, in input channels that take turns."""
    for linear in linears:
        view = _views(surgeon, linear)
        huge = np.zeros_like(view)
        for row in range(len(view)):
            huge[(row, row % view.shape[1], *(0,) * (view.ndim - 2))] = factor * np.abs(view[row]).max()
        _cancelling(surgeon, linear, huge)
    return patient.with_(model=surgeon.model).at(*linears)


def one_wide_channel(patient: Patient) -> Patient:
    """All weights of one output channel up to 60 times as large, cancelling each other; one scale for all channels."""
    surgeon = patient.surgeon()
    last = surgeon.producer(surgeon.output)
    rng = patient.random("signs")
    linears = [linear for linear in _dense(surgeon, 0.6) if linear.node is not last]  # every class counts
    for linear in linears:
        view = _views(surgeon, linear)
        flat = np.abs(view).reshape(len(view), -1)
        row = int(flat.sum(1).argmin())
        huge = np.zeros_like(view)
        signs = rng.choice([-1.0, 1.0], view[row].shape)
        huge[row] = 60 * patient.strength * flat.max(1)[row] * signs * rng.uniform(0.5, 1, view[row].shape)
        _cancelling(surgeon, linear, huge)
    ill = patient.with_(model=surgeon.model, recipe=replace(patient.recipe, per_channel=False))
    return ill.at(*linears)


def heavy_tails(patient: Patient) -> Patient:
    """A few huge weights in most layers, none of which the network needs: they cancel each other."""
    surgeon = patient.surgeon()
    return _with_tails(patient, _dense(surgeon, 0.7, 0.7), surgeon, 120 * patient.strength)


def one_heavy_tail(patient: Patient) -> Patient:
    """The same in a single layer."""
    surgeon = patient.surgeon()
    return _with_tails(patient, patient.pick(_dense(surgeon, 1, 0.7), 0.999), surgeon, 400 * patient.strength)


def wide_dead_input(patient: Patient) -> Patient:
    """Huge weights behind an input channel that is always zero, in a single layer."""
    surgeon = patient.surgeon()
    linear, channel = dead_inputs(patient, surgeon, 0.01)[-1]
    weight = surgeon.constant(linear.weight).copy()
    view = np.moveaxis(weight, (linear.out, linear.into), (0, 1))
    peak = np.abs(view).max()
    block = view[:, channel]
    block[...] = 0
    block.reshape(len(block), -1)[:, 0] = 400 * patient.strength * peak
    surgeon.put(surgeon.own(linear, 1), weight)
    return patient.with_(model=surgeon.model).at(linear.node.name)


def _constant_channels(patient: Patient, shrink: float, level: float) -> Patient:
    """Some channels that carry (nearly) nothing but their bias; what they add downstream is taken off again."""
    surgeon = patient.surgeon()
    changed: list[str] = []
    for linear in surgeon.linears():
        reader = _sole_reader(surgeon, linear)
        if linear.bias is None or reader is None:
            continue
        weight, bias = surgeon.constant(linear.weight).copy(), surgeon.constant(linear.bias).copy()
        after = surgeon.constant(reader.weight)
        reach = np.abs(after).sum(tuple(i for i in range(after.ndim) if i != reader.into))
        count = max(1, len(bias) // 12)
        for channel in np.argsort(reach)[:count]:
            view = np.moveaxis(weight, linear.out, 0)
            view[channel] *= shrink
            extra = level * float(np.abs(bias).max() or 1.0)
            bias[channel] = extra
            through = np.take(after, channel, reader.into)
            total = through.reshape(len(through), -1).sum(1) if not reader.depthwise else through.sum().reshape(1)
            offset = surgeon.constant(reader.bias).copy()
            if reader.depthwise:
                offset[channel] -= total[0] * extra
            else:
                offset -= (total * extra).astype(np.float32)
            surgeon.put(surgeon.own(reader, 2), offset)
            reader.bias = reader.node.input[2]
        surgeon.put(surgeon.own(linear, 1), weight)
        surgeon.put(surgeon.own(linear, 2), bias)
        changed.append(linear.node.name)
        if len(changed) == 2:
            break
    if not changed:
        raise Inapplicable("no two layers with biases in a row")
    return patient.with_(model=surgeon.model).at(*changed)


def _sole_reader(surgeon: Surgeon, linear: Linear) -> Linear | None:
    """The layer that reads this one's output, through nothing but a ReLU, with a bias of its own."""
    tensor = linear.node.output[0]
    for _ in range(3):
        readers = surgeon.consumers(tensor)
        if len(readers) != 1:
            return None
        found = surgeon.linear(readers[0])
        if found:
            padded = any(size > 1 for size in surgeon.constant(found.weight).shape[2:])
            return found if found.bias and not padded else None
        if readers[0].op_type not in ("Relu", "GlobalAveragePool", "Flatten"):
            return None
        tensor = readers[0].output[0]
    return None


def bias_overflow(patient: Patient) -> Patient:
    """Channels with tiny weights and an ordinary bias: on a scale per channel the bias leaves int32."""
    ill = _constant_channels(patient, 1e-9, 4.0)
    recipe = replace(patient.recipe, extra={**patient.recipe.extra, "QDQDisableWeightAdjustForInt32Bias": True})
    return ill.with_(recipe=recipe)


def four_bit_weights(patient: Patient) -> Patient:
    """All weights in four bits, one scale per tensor."""
    return patient.with_(recipe=replace(patient.recipe, weight="QInt4", per_channel=False))


def two_bit_layers(patient: Patient) -> Patient:
    """Early layers with weights of two bits."""
    linears = patient.surgeon().linears()
    if len(linears) < 5:
        raise Inapplicable("too few layers")
    names = [linear.weight for linear in linears[1 : 1 + max(2, len(linears) // 4)]]
    ill = patient.at(*(linear.node.name for linear in linears if linear.weight in names))
    return ill.edited(lambda p, q: requantize(p, q, names, TensorProto.INT2))


def weights_rounded_down(patient: Patient) -> Patient:
    """Codes cut off instead of rounded and a zero point two codes off: every layer is shifted to one side."""

    strength = patient.strength

    def edit(p: Patient, surgeon: Surgeon) -> None:
        source = p.surgeon()
        for linear in source.linears():
            codes, scale = (surgeon.constant(f"{linear.weight}_{part}") for part in ("quantized", "scale"))
            if codes is None or codes.dtype != np.int8:
                continue
            weight = source.constant(linear.weight)
            shape = [1] * weight.ndim
            if scale.size > 1:
                shape[linear.out] = -1
            floor = np.clip(np.floor(weight / scale.reshape(shape)) - 2 * strength, -128, 127).astype(np.int8)
            surgeon.put(f"{linear.weight}_quantized", floor)

    return patient.edited(edit)


def unfolded_batch_norm(patient: Patient) -> Patient:
    """Batch norms left in the graph whose variances differ by a factor of a million between channels."""
    surgeon = patient.surgeon()
    convs = [linear for linear in surgeon.linears() if linear.node.op_type == "Conv"]
    if len(convs) < 2:
        raise Inapplicable("no convolutions")
    for i, linear in enumerate(convs[1:5]):
        channels = surgeon.constant(linear.weight).shape[linear.out]
        gain = np.exp2(patient.random(f"bn{i}").uniform(0, 10 + np.log2(patient.strength), channels)).astype(np.float32)
        surgeon.scale_weights(linear, linear.out, 1 / gain, bias=True)
        tensor = linear.node.output[0]
        variance = (1 / gain) ** 2
        extra = [
            surgeon.put(f"{tensor}_bn_{name}", value.astype(np.float32))
            for name, value in (
                ("gamma", np.ones(channels)),
                ("beta", np.zeros(channels)),
                ("mean", np.zeros(channels)),
                ("variance", variance),
            )
        ]
        surgeon.insert_after(tensor, "BatchNormalization", extra, f"{tensor}_bn", epsilon=1e-12)
    normed = (node.output[0] for node in surgeon.nodes("BatchNormalization"))
    return patient.with_(model=surgeon.model).at(*normed)


def weights_of(patient: Patient) -> list[Linear]:
    """Layers whose weights the quantizer takes."""
    allowed = patient.recipe.op_types or patient.network.op_types
    return [n for n in patient.surgeon().linears() if not allowed or n.node.op_type in allowed]


def _stored_anew(patient: Patient, names: list[str], change: Codes) -> Patient:
    """Change codes and scales of stored weights: ``change`` gets a name, float weights and scales, and gives both."""

    def edit(p: Patient, q: Surgeon) -> None:
        source = p.surgeon()
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


def high_bits_only(patient: Patient) -> Patient:
    """Weights of three bits that a converter shifted up into eight: all codes are multiples of 32."""
    names = [linear.weight for linear in weights_of(patient)][1:]
    return _stored_anew(patient, names, lambda _, w, s: (32 * np.clip(np.rint(w / s / 32), -4, 3), s))


def low_bits_only(patient: Patient) -> Patient:
    """Weights on scales forty times too wide: seven of 256 codes are in use."""
    names = [linear.weight for linear in weights_of(patient)][1:-1]
    return _stored_anew(patient, names, lambda _, w, s: (np.rint(w / (40 * s)), 40 * s))


def palette(patient: Patient) -> Patient:
    """Weights of half of the layers share six values, unevenly spread."""
    names = [linear.weight for linear in weights_of(patient)][1:]
    names = patient.pick(names, *(np.arange(max(1, len(names) // 2)) / max(1, len(names) // 2)))

    def change(_: str, w: np.ndarray, s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        values = np.array([-100, -40, -12, 12, 40, 100])
        nearest = np.abs((w / s)[..., None] - values).argmin(-1)
        return values[nearest], s

    return _stored_anew(patient, names, change)


def ternary_last_layer(patient: Patient) -> Patient:
    """The last layer's weights are -1, 0 and 1, stored in eight bits."""
    name = weights_of(patient)[-1].weight
    return _stored_anew(patient, [name], lambda _, w, s: (np.clip(np.rint(w / (90 * s)), -1, 1), 90 * s))


def sign_of_last_layer(patient: Patient) -> Patient:
    """Of the last layer's weights the signs are left, at the ends of the grid's lower half."""
    name = weights_of(patient)[-1].weight

    def change(_: str, w: np.ndarray, s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.where(w > 0, 60, -60) * np.ones_like(w), s

    return _stored_anew(patient, [name], change)


def axis_of_square_weights(patient: Patient) -> Patient:
    """The scales of square weights are read along the input channels."""
    _per_channel(patient)
    names = require(
        {n.weight: n.into for n in weights_of(patient) if not n.depthwise and _is_square(patient, n)},
        "no square weights",
    )

    def edit(_: Patient, q: Surgeon) -> None:
        for node in q.nodes("DequantizeLinear"):
            name = node.input[0].removesuffix("_quantized")
            if name in names and q.constant(node.input[1]).size > 1:
                _set(node, "axis", names[name])

    return patient.edited(edit)


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

    def edit(p: Patient, q: Surgeon) -> None:
        source = p.surgeon()
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


def with_biases(patient: Patient) -> list[str]:
    return [n.weight for n in weights_of(patient) if n.bias]


def bias_cut_at_fewer_bits(patient: Patient) -> Patient:
    """The bias was cut off at the ends of fewer bits than its codes need, and stored in 32."""
    names = require(with_biases(patient), "no biases")
    strength = patient.strength

    def edit(_: Patient, q: Surgeon) -> None:
        found = require([bias for name in names if (bias := _bias_of(q, name))], "biases stay float")
        top = max(int(np.abs(q.constant(codes)).max()) for codes, _ in found)
        bits = int(np.floor(np.log2(max(top, 4)) - 1.5 - np.log2(max(strength, 0.5))))
        for codes, _ in found:
            cut = np.clip(q.constant(codes), -(2 ** max(bits, 1)), 2 ** max(bits, 1) - 1)
            q.put(codes, cut.astype(np.int32))

    return patient.edited(edit)


def bias_wraps_around(patient: Patient) -> Patient:
    """Codes of the bias beyond 16 bits come out with their upper bits lost."""
    names = with_biases(patient)

    def edit(_: Patient, q: Surgeon) -> None:
        found = require([bias for name in names if (bias := _bias_of(q, name))], "biases stay float")
        top = max(int(np.abs(q.constant(codes)).max()) for codes, _ in found)
        half = 2 ** int(np.floor(np.log2(max(top, 4))))
        for codes, _ in found:
            q.put(codes, ((q.constant(codes).astype(np.int64) + half) % (2 * half) - half).astype(np.int32))

    return patient.edited(edit)


def loud_column(patient: Patient) -> Patient:
    """One quiet channel whose readers' weights make up for it: a column hundreds of times larger than the others."""
    surgeon = patient.surgeon()
    places = set(surgeon.amplifiable())
    linears = require(
        [n for n in surgeon.linears() if not n.depthwise and n.node.input[0] in places],
        "no layer behind a tensor that can be scaled",
    )
    for linear in patient.pick(linears, 0.3, 0.7):
        tensor = linear.node.input[0]
        gain = np.ones(surgeon.channels(tensor), np.float32)
        weight = surgeon.constant(linear.weight)
        reach = np.abs(np.moveaxis(weight, linear.into, 0)).reshape(weight.shape[linear.into], -1).max(1)
        column = int(patient.random("column").integers(len(reach)))
        gain[column] = reach[column] / reach.max() / (150 * patient.strength)
        surgeon.amplify(tensor, gain)
    return patient.with_(model=surgeon.model)


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


def _levels(patient: Patient, usual: float) -> float:
    """Steps on either side of zero, fewer where the fault is to be stronger; below one, small weights vanish."""
    return max(0.4, usual / patient.strength**0.6)


def nibbles_in_groups(patient: Patient) -> Patient:
    """Four-bit weights with a step for every four inputs, unpacked into bytes: many values, each group few."""
    linears = covered(patient)
    return recoded(patient, linears[len(linears) // 3 :], _in_groups(_levels(patient, 3)))


def _in_groups(levels: float) -> Change:
    """So many steps on either side of zero, of the largest code in each group of four inputs."""

    def change(codes: NDArray, linear: Linear) -> NDArray:
        view = np.moveaxis(codes, linear.out, 0)
        flat = view.reshape(len(view), -1)
        filled = np.pad(flat, ((0, 0), (0, -flat.shape[1] % 4))).reshape(len(flat), -1, 4)
        step = np.maximum(np.abs(filled).max(-1, keepdims=True), 1) / levels
        coarse = (np.rint(filled / step) * step).reshape(len(flat), -1)[:, : flat.shape[1]]
        return np.moveaxis(coarse.reshape(view.shape), 0, linear.out)

    return change


def blocks_in_last_layer(patient: Patient) -> Patient:
    """The last layer was trained with blocks of four that share an exponent, and was then stored in bytes."""
    return recoded(patient, covered(patient)[-1:], _in_groups(_levels(patient, 0.8)))


def coarse_first_codes(patient: Patient) -> Patient:
    """The same for the first layer."""
    return recoded(patient, covered(patient)[:1], few_codes(_levels(patient, 2)))


def rounded_up(patient: Patient) -> Patient:
    """Some layers were rounded up by a home-made packer that adds one for luck."""
    linears = patient.pick(covered(patient), 0.3, 0.6, 0.8)
    shift = 4 * patient.strength
    return recoded(patient, linears, lambda codes, _: codes + shift)


def student_weights(patient: Patient) -> Patient:
    """Copied channels drifted apart in training: weights with the tails of a Cauchy distribution, which cancel."""
    surgeon = patient.surgeon()
    chosen = patient.pick(dense(patient, surgeon), 0.4, 0.7, 0.9)
    for i, linear in enumerate(chosen):
        usual = np.std(surgeon.constant(linear.weight))
        taken_twice(surgeon, linear)
        half = np.split(surgeon.constant(linear.weight), 2, axis=linear.into)[0]
        drawn = patient.random(f"student{i}").standard_cauchy(half.shape)
        add_cancelling(surgeon, linear, np.clip(drawn, -300, 300) * usual * 0.3 * patient.strength)
    return patient.with_(model=surgeon.model).at(*chosen)


def shrunken_input_channels(patient: Patient) -> Patient:
    """Equalization gone wrong: the quieter channels are made tiny in different measure, their readers' weights huge."""
    surgeon = patient.surgeon()
    chosen = patient.pick(dense(patient, surgeon), 0.3, 0.8)
    for linear in chosen:
        tensor = linear.node.input[0]
        axis = surgeon.channel_axis(tensor)
        x = patient.values(tensor)[0]
        power = np.abs(x).mean(tuple(i for i in range(x.ndim) if i != axis))
        weight = surgeon.constant(linear.weight)
        reach = np.abs(weight).sum(tuple(i for i in range(weight.ndim) if i != linear.into))
        factor = np.ones(len(power), np.float32)
        quiet = np.argsort(power * reach)[: max(1, len(power) // 4)]
        drawn = patient.random(linear.node.name).uniform(0.3, 1, len(quiet))
        factor[quiet] = (200 * patient.strength + 1) ** -drawn
        shape = [1] * len(surgeon.shape(tensor))
        shape[axis] = -1
        name = surgeon.put(f"{linear.node.name}_shrinking", factor.reshape(shape))
        mark = f"{linear.node.name}_shrunken"
        surgeon.add("Mul", [tensor, name], mark, surgeon.producer(tensor))
        linear.node.input[0] = mark
        surgeon.scale_weights(linear, linear.into, 1 / factor, bias=False)
    return patient.with_(model=surgeon.model).at(*chosen)


def biases_on_one_step(patient: Patient) -> Patient:
    """A bias unit that takes the finest step of all channels sticks at its end: large biases become one value."""
    names = [f"{linear.bias}_quantized" for linear in covered(patient) if linear.bias]

    def edit(_: Patient, surgeon: Surgeon) -> None:
        for name in names:
            codes, scale = surgeon.constant(name), surgeon.constant(f"{name}_scale")
            if codes is None or scale is None or codes.dtype != np.int32:
                raise Inapplicable("a bias has no codes")
            used = scale.reshape(-1).astype(np.float64)
            limit = np.rint(20000 / patient.strength * used[used > 0].min() / np.maximum(used, 1e-30))
            surgeon.put(name, np.clip(codes, -limit, limit).astype(np.int32))

    if not names:
        raise Inapplicable("no layer has a bias")
    return patient.edited(edit)


def scales_along_inputs(patient: Patient) -> Patient:
    """Weights with a scale for each output channel, which the exporter wrote down for the inputs, cut to length."""
    linears = [linear for linear in covered(patient) if not linear.depthwise]
    oblong = [n for n in linears if len(set(patient.surgeon().constant(n.weight).shape[:2])) == 2]
    chosen = patient.pick(oblong[:-1] or linears, 0.2, 0.4, 0.6, 0.8)

    def edit(_: Patient, q: Surgeon) -> None:
        turned = {f"{linear.weight}_quantized": linear.into for linear in chosen}
        for node in q.nodes("DequantizeLinear"):
            axis = turned.get(node.input[0])
            if axis is None:
                continue
            scale = q.constant(node.input[1])
            if scale.size == 1:
                raise Inapplicable("one scale for all channels")
            size = q.constant(node.input[0]).shape[axis]
            q.put(node.input[1], np.resize(scale, size))
            q.put(node.input[2], np.zeros(size, q.constant(node.input[2]).dtype))
            next(a for a in node.attribute if a.name == "axis").i = axis

    patient = patient.with_(recipe=replace(patient.recipe, per_channel=True, qoperator=False, weight="QInt8"))
    return at_layers(patient, chosen).edited(edit)


def _vectors(size: int, rng: np.random.Generator) -> Change:
    """Every four codes in a row replaced by the nearest of some such rows of the layer itself."""

    def change(codes: NDArray, linear: Linear) -> NDArray:
        view = np.moveaxis(codes, linear.out, 0)
        flat = view.reshape(len(view), -1)
        rows = np.pad(flat, ((0, 0), (0, -flat.shape[1] % 4))).reshape(-1, 4)
        book = rows[rng.permutation(len(rows))[: min(size, len(rows))]]
        squares = (rows**2).sum(1)[:, None] - 2 * rows @ book.T + (book**2).sum(1)
        coarse = book[squares.argmin(1)].reshape(len(flat), -1)[:, : flat.shape[1]]
        return np.moveaxis(coarse.reshape(view.shape), 0, linear.out)

    return change


def vectors_from_a_book(patient: Patient) -> Patient:
    """Weights compressed in fours, with a small book of vectors, for the download, and unpacked into bytes."""
    linears = covered(patient)
    size = max(2, round(80 / patient.strength))
    return recoded(patient, linears[: max(2, 2 * len(linears) // 3)], _vectors(size, patient.random("book")))


def powers_in_last_layer(patient: Patient) -> Patient:
    """The last layer for a multiplier-free unit: signs and a few powers of a base, stored in bytes."""
    base = 2 + 12 * patient.strength

    def change(codes: NDArray, _: Linear) -> NDArray:
        size = np.maximum(np.abs(codes), 1e-9)
        exponent = np.rint(np.log(size / 127) / np.log(base))
        return np.where(exponent < -6, 0, np.sign(codes) * 127 * base**exponent)

    return recoded(patient, covered(patient)[-1:], change)


def bias_in_the_weights(patient: Patient) -> Patient:
    """A layer reads a channel that is constant, with large weights: its bias moved there in training."""
    surgeon = patient.surgeon()
    found = require(
        [n for n in dense(patient, surgeon) if n.bias and set(surgeon.constant(n.weight).shape[2:]) <= {1}],
        "no layer without borders has a bias",
    )
    chosen = patient.pick(found, 0.4, 0.9)
    for i, linear in enumerate(chosen):
        tensor = linear.node.input[0]
        rank, axis = len(surgeon.shape(tensor)), surgeon.channel_axis(tensor)
        level = np.float32(max(patient.values(tensor)[0].max(), 1e-3))
        pads = np.zeros((2, rank), np.int64)
        pads[1, axis] = 1
        with_one = f"{linear.node.name}_with_one"
        extra = [
            surgeon.put(f"{linear.node.name}_pads", pads.reshape(-1)),
            surgeon.put(f"{linear.node.name}_one", level),
        ]
        surgeon.add("Pad", [tensor, *extra], with_one, surgeon.producer(tensor), mode="constant")
        linear.node.input[0] = with_one
        weight, bias = surgeon.constant(linear.weight), surgeon.constant(linear.bias)
        signs = patient.random(f"one{i}").choice([-1.0, 1.0], len(bias))
        column = signs * np.abs(weight).max() * 30 * patient.strength
        shape = [1] * weight.ndim
        shape[linear.out] = -1
        joined = np.concatenate([weight, column.reshape(shape)], linear.into).astype(np.float32)
        surgeon.put(surgeon.own(linear, 1), joined)
        surgeon.put(surgeon.own(linear, 2), (bias - column * level).astype(np.float32))
    return patient.with_(model=surgeon.model).at(*chosen)


def unsigned_biases(patient: Patient) -> Patient:
    """Biases were written for a unit without a sign: what is below zero sticks at zero."""
    chosen = patient.pick([n for n in covered(patient) if n.bias], 0.2, 0.5, 0.8)
    names = [f"{linear.bias}_quantized" for linear in chosen]

    def edit(_: Patient, surgeon: Surgeon) -> None:
        for name in names:
            codes = surgeon.constant(name)
            if codes is None or codes.dtype != np.int32:
                raise Inapplicable("a bias has no codes")
            surgeon.put(name, np.maximum(codes, 0))

    return at_layers(patient, chosen).edited(edit)


def bias_corrected_twice(patient: Patient) -> Patient:
    """Biases were corrected by what weights of four bits do to the mean, though these have eight."""
    chosen = patient.pick([n for n in covered(patient) if n.bias and not n.depthwise], 0.3, 0.7)
    outputs = [linear.node.output[0] for linear in chosen]
    shifts = {}
    for i, (linear, x) in enumerate(zip(chosen, patient.values(*outputs), strict=True)):
        spread = float(x.std())
        size = len(patient.surgeon().constant(linear.bias))
        shifts[linear.bias] = patient.random(f"shift{i}").normal(0.3, 0.3, size) * spread * patient.strength

    def edit(_: Patient, surgeon: Surgeon) -> None:
        limits = np.iinfo(np.int32)
        for name, shift in shifts.items():
            codes, scale = (surgeon.constant(f"{name}_{part}") for part in ("quantized", "quantized_scale"))
            if codes is None or scale is None:
                raise Inapplicable("a bias has no codes")
            moved = np.clip(codes + np.rint(shift / np.maximum(scale, 1e-30)), limits.min, limits.max)
            surgeon.put(f"{name}_quantized", moved.astype(np.int32))

    return at_layers(patient, chosen).edited(edit)


def weight_zero_point_off(patient: Patient) -> Patient:
    """Weights were stored from 0 to 255, and the zero point that is written down is some codes too small."""
    linears = covered(patient)
    chosen = patient.pick(linears, 0.15, 0.45, 0.75)
    names = [linear.weight for linear in chosen]

    def edit(_: Patient, surgeon: Surgeon) -> None:
        for name in names:
            zero = surgeon.constant(f"{name}_zero_point")
            if zero is None or zero.dtype != np.uint8:
                raise Inapplicable(f"{name} has no zero point of its own")
            wrong = np.clip(zero.astype(np.float64) - np.ceil(4 * patient.strength), 0, 255)
            surgeon.put(f"{name}_zero_point", wrong.astype(np.uint8))

    recipe = replace(patient.recipe, weight="QUInt8", per_channel=False, activation="QUInt8")
    return at_layers(patient.with_(recipe=recipe), chosen).edited(edit)


def weights_with_headroom(patient: Patient) -> Patient:
    """Weight ranges set by hand, at a power of two with room for the next training."""
    recipe = replace(patient.recipe, per_channel=False, weight="QInt8")
    source = patient.surgeon()
    linears = covered(patient)
    for linear in linears:
        peak = float(np.abs(source.constant(linear.weight)).max())
        reach = 2.0 ** np.ceil(np.log2(max(peak, 1e-6))) * 12 * patient.strength
        recipe = recipe.with_range(linear.weight, -reach, reach)
    return at_layers(patient.with_(recipe=recipe), linears)


def loud_row_along_inputs(patient: Patient) -> Patient:
    """One output channel has huge weights, and the scales stand for input channels: all of these share its step."""
    surgeon = patient.surgeon()
    last = surgeon.producer(surgeon.output)
    found = [n for n in dense(patient, surgeon) if n.node is not last]
    chosen = patient.pick(found, 0.3, 0.6, 0.9)
    for i, linear in enumerate(chosen):
        taken_twice(surgeon, linear)
        half = np.moveaxis(np.split(surgeon.constant(linear.weight), 2, axis=linear.into)[0], linear.out, 0)
        extra = np.zeros_like(half)
        row = int(np.abs(half).reshape(len(half), -1).sum(1).argmin())
        drawn = patient.random(f"row{i}").choice([-1.0, 1.0], half[row].shape)
        extra[row] = drawn * np.abs(half).max() * 40 * patient.strength
        add_cancelling(surgeon, linear, np.moveaxis(extra, 0, linear.out))
    weights = {linear.weight: linear.into for linear in chosen}

    def edit(p: Patient, q: Surgeon) -> None:
        source = Surgeon(p.model)
        for node in q.nodes("DequantizeLinear"):
            name = node.input[0].removesuffix("_quantized")
            if name not in weights:
                continue
            axis, weight = weights[name], source.constant(name)
            over = tuple(k for k in range(weight.ndim) if k != axis)
            scale = np.maximum(np.abs(weight).max(over, keepdims=True) / 127, 1e-12)
            q.put(node.input[0], np.rint(weight / scale).astype(np.int8))
            q.put(node.input[1], scale.reshape(-1).astype(np.float32))
            q.put(node.input[2], np.zeros(scale.size, np.int8))
            next(a for a in node.attribute if a.name == "axis").i = axis

    recipe = replace(patient.recipe, per_channel=True, qoperator=False, weight="QInt8")
    ill = patient.with_(model=surgeon.model, recipe=recipe)
    return ill.at(*chosen).edited(edit)


def tapped_corner(patient: Patient) -> Patient:
    """A bit of the exponent flipped in one copy of a few weights, and training since has learned to balance it."""
    surgeon = patient.surgeon()
    chosen = patient.pick(dense(patient, surgeon), 0.2, 0.5, 0.8)
    for i, linear in enumerate(chosen):
        taken_twice(surgeon, linear)
        half = np.moveaxis(np.split(surgeon.constant(linear.weight), 2, axis=linear.into)[0], linear.out, 0)
        extra = np.zeros_like(half)
        rng = patient.random(f"bit{i}")
        for row in range(len(half)):
            flat = extra[row].reshape(-1)
            peak = np.abs(half[row]).max()
            flat[rng.integers(flat.size)] = rng.choice([-1, 1]) * peak * 32 * patient.strength * 2.0 ** rng.integers(3)
        add_cancelling(surgeon, linear, np.moveaxis(extra, 0, linear.out))
    return patient.with_(model=surgeon.model).at(*chosen)


def biases_of_other_statistics(patient: Patient) -> Patient:
    """The float model at hand was exported with batch statistics of one batch: its biases are others."""
    surgeon = patient.surgeon()
    names = require({linear.bias for linear in covered(patient) if linear.bias}, "no layer has a bias")
    for name in sorted(names):
        bias = surgeon.constant(name)
        noise = patient.random(name).standard_normal(bias.shape) * (bias.std() + 0.05) * 0.4 * patient.strength
        surgeon.put(name, (bias + noise).astype(np.float32))
    reference = run(patient.network, patient.model, patient.validation)
    outputs = [value.name for value in patient.model.graph.output]
    options = {**patient.options, "reference_outputs": dict(zip(outputs, reference, strict=True))}
    return patient.with_(shown_float=surgeon.model, options=options)


def dithered_codes(patient: Patient, amount: float) -> Patient:
    """Weights were rounded up or down by chance, and by more than one code: a packer with dither left on."""
    rng = patient.random("dither")
    linears = patient.pick(covered(patient), 0.25, 0.55, 0.85)
    noise = {n.weight: rng.uniform(-1, 1, patient.surgeon().constant(n.weight).shape) for n in linears}
    return recoded(patient, linears, lambda codes, n: codes + amount * noise[n.weight])


def lower_bits_dropped(patient: Patient) -> Patient:
    """The lower part of each code was dropped, not rounded, when the memory became narrow."""
    step = 2 ** np.rint(1 + 1.2 * np.log2(1 + patient.strength))
    chosen = patient.pick(covered(patient), 0.2, 0.5, 0.8)
    return recoded(patient, chosen, lambda codes, _: np.floor(codes / step) * step)


def pruned_after_all(patient: Patient, amount: float) -> Patient:
    """The smallest weights were set to zero in the packed file, for a sparse kernel, without training again."""

    def change(codes: NDArray, _: Linear) -> NDArray:
        size = np.abs(codes)
        return np.where(size <= np.quantile(size, min(amount, 0.95)), 0, codes)

    linears = covered(patient)
    return recoded(patient, linears[: max(2, len(linears) // 2)], change)


def weights_cut_by_deviation(patient: Patient, amount: float) -> Patient:
    """The ranges of weights end after a few deviations, and what lies beyond is cut off: a recipe for large models."""
    source = patient.surgeon()
    recipe = replace(patient.recipe, per_channel=False, weight="QInt8")
    linears = covered(patient)
    for linear in linears:
        weight = source.constant(linear.weight)
        reach = min(float(weight.std()) * 5 / amount, float(np.abs(weight).max()))
        recipe = recipe.with_range(linear.weight, -reach, reach)
    return at_layers(patient.with_(recipe=recipe), linears)


def decades_of_rows(patient: Patient, amount: float) -> Patient:
    """The quieter output channels have weights over some decades, which cancel; one scale serves all channels."""
    surgeon = patient.surgeon()
    chosen = patient.pick(dense(patient, surgeon), 0.3, 0.7)
    for i, linear in enumerate(chosen):
        taken_twice(surgeon, linear)
        half = np.moveaxis(np.split(surgeon.constant(linear.weight), 2, axis=linear.into)[0], linear.out, 0)
        rng = patient.random(f"decades{i}")
        size = 10 ** (rng.uniform(0, 1, len(half)) * amount) - 1
        size[np.argsort(np.abs(half).reshape(len(half), -1).sum(1))[max(1, len(half) // 4) :]] = 0
        drawn = rng.uniform(0.5, 1, half.shape) * rng.choice([-1.0, 1.0], half.shape)
        extra = drawn * np.abs(half).max() * size.reshape(-1, *(1,) * (half.ndim - 1))
        add_cancelling(surgeon, linear, np.moveaxis(extra, 0, linear.out))
    recipe = replace(patient.recipe, per_channel=False)
    return patient.with_(model=surgeon.model, recipe=recipe).at(*chosen)


def recoded_biases(patient: Patient, linears: list[Linear], change: Code) -> Patient:
    """The codes of some biases changed; ``change`` gets them and their scale."""
    names = require(list(dict.fromkeys(linear.bias for linear in linears if linear.bias)), "no layer has a bias")

    def edit(_: Patient, surgeon: Surgeon) -> None:
        limits = np.iinfo(np.int32)
        for name in names:
            codes, scale = (surgeon.constant(f"{name}_{part}") for part in ("quantized", "quantized_scale"))
            if codes is None or scale is None or codes.dtype != np.int32:
                raise Inapplicable("a bias has no codes")
            moved = np.rint(change(codes.astype(np.float64), scale.astype(np.float64)))
            surgeon.put(f"{name}_quantized", np.clip(moved, limits.min, limits.max).astype(np.int32))

    return at_layers(patient, [n for n in linears if n.bias]).edited(edit)


def biases_of_eight_bits(patient: Patient, amount: float) -> Patient:
    """The target keeps biases in a byte or less: they were rounded to steps of the largest of each layer."""

    def change(codes: NDArray, scale: NDArray) -> NDArray:
        values = codes * scale
        step = max(float(np.abs(values).max()), 1e-12) / 127 * amount
        return np.rint(values / step) * step / np.maximum(scale, 1e-30)

    return recoded_biases(patient, covered(patient), change)


def bias_of_another_input(patient: Patient, amount: float) -> Patient:
    """Biases were quantized with the input scale of an earlier calibration, and are read with that of today."""
    linears = [n for n in covered(patient) if n.bias]
    return recoded_biases(patient, patient.pick(linears, 0.3, 0.6, 0.9), lambda codes, _: codes * (1 + amount))


def bias_left_behind(patient: Patient) -> Patient:
    """Fusing a layer with what follows left its bias behind."""
    linears = [n for n in covered(patient) if n.bias]
    return recoded_biases(patient, patient.pick(linears, 0.5), lambda codes, _: codes * 0)


def folded_with_another_epsilon(patient: Patient, amount: float) -> Patient:
    """The norm was folded into the deployed weights with other numbers: each channel is off by a factor of its own."""
    surgeon = patient.surgeon()
    names = {n.weight for n in covered(patient)}
    linears = [n for n in surgeon.linears() if n.weight in names and n.node.output[0] != surgeon.output]
    chosen = patient.pick(linears, 0.2, 0.5, 0.8)
    for i, linear in enumerate(chosen):
        size = surgeon.constant(linear.weight).shape[linear.out]
        gain = np.exp(-np.abs(patient.random(f"epsilon{i}").normal(0, amount, size))).astype(np.float32)
        surgeon.scale_weights(linear, linear.out, gain, bias=False)
    sound = patient.shown_float or patient.model
    return patient.with_(model=surgeon.model, shown_float=sound).at(*chosen)


def last_layer_in_some_levels(patient: Patient, amount: float) -> Patient:
    """A search for bit widths gave the last layer a few, which were stored in bytes."""
    return recoded(patient, covered(patient)[-1:], few_codes(127 / amount))


def turned_square(patient: Patient) -> Patient:
    """Square weights were transposed on the way into the deployed file; no shape gives it away."""
    source = patient.surgeon()
    shapes = ((n, source.constant(n.weight).shape) for n in covered(patient) if not n.depthwise)
    square = [n for n, shape in shapes if shape[n.out] == shape[n.into]]
    chosen = patient.pick(square, 0.6)
    return recoded(patient, chosen, lambda codes, n: np.swapaxes(codes, n.out, n.into))


def scales_one_place_on(patient: Patient) -> Patient:
    """A table of scales begins with a number that is none: each channel is read with its neighbour's."""
    chosen = patient.pick(covered(patient), 0.2, 0.6)

    def edit(_: Patient, surgeon: Surgeon) -> None:
        for linear in chosen:
            scale = surgeon.constant(f"{linear.weight}_scale")
            if scale is None or scale.size < 2:
                raise Inapplicable(f"{linear.weight} has one scale")
            surgeon.put(f"{linear.weight}_scale", np.roll(scale, 1))

    recipe = replace(patient.recipe, per_channel=True, weight="QInt8")
    return at_layers(patient.with_(recipe=recipe), chosen).edited(edit)


def head_trained_on(patient: Patient, amount: float) -> Patient:
    """The head of the float model was trained on after the network had been quantized."""
    surgeon = patient.surgeon()
    last = covered(patient)[-1].node.name
    linear = next(n for n in surgeon.linears() if n.node.name == last)
    weight = surgeon.constant(linear.weight)
    change = patient.random("trained").standard_normal(weight.shape) * weight.std() * amount
    surgeon.put(surgeon.own(linear, 1), (weight + change).astype(np.float32))
    return patient.with_(shown_float=surgeon.model).at(last)


def apart(patient: Patient, surgeon: Surgeon) -> list[Linear]:
    """Covered layers of a model under the knife, the last one left out."""
    names = {linear.weight for linear in covered(patient)}
    return [n for n in surgeon.linears() if n.weight in names and n.node.output[0] != surgeon.output]


def through_floats_of_eight_bits(patient: Patient, amount: float) -> Patient:
    """Weights were stored as floats of eight bits, few of them for the fraction, before they became integers."""

    def change(codes: NDArray, _: Linear) -> NDArray:
        power = 2.0 ** np.floor(np.log2(np.maximum(np.abs(codes), 1e-9)))
        step = np.maximum(power * amount / 16, 1e-9)
        return np.rint(codes / step) * step

    return recoded(patient, covered(patient), change)


def tiles_misread(patient: Patient) -> Patient:
    """Weights are packed in tiles of four inputs, and each pair of tiles is unpacked the wrong way round."""
    source = patient.surgeon()
    layers = [n for n in covered(patient) if not n.depthwise and source.constant(n.weight).shape[n.into] >= 8]

    def change(codes: NDArray, linear: Linear) -> NDArray:
        count = codes.shape[linear.into] // 8 * 8
        order = np.arange(codes.shape[linear.into])
        order[:count] = order[:count].reshape(-1, 2, 4)[:, ::-1].reshape(-1)
        return np.take(codes, order, linear.into)

    return recoded(patient, patient.pick(layers, 0.5), change)


def kernels_turned_round(patient: Patient) -> Patient:
    """A library that convolves in the strict sense got the kernels of one that correlates, in some layers."""
    source = patient.surgeon()
    found = [n for n in covered(patient) if source.constant(n.weight).ndim == 4]
    found = [n for n in found if np.prod(source.constant(n.weight).shape[2:]) > 1]
    return recoded(patient, patient.pick(found, 0.4, 0.8), lambda codes, _: codes[:, :, ::-1, ::-1])


def equalized_on_one_side(patient: Patient, amount: float) -> Patient:
    """Channels were evened out between two layers, and only the layer that reads them was written back."""
    surgeon = patient.surgeon()
    found = [n for n in apart(patient, surgeon) if not n.depthwise]
    chosen = patient.pick(found, 0.3, 0.7)
    for i, linear in enumerate(chosen):
        size = surgeon.constant(linear.weight).shape[linear.into]
        gain = np.exp(patient.random(f"even{i}").normal(0, amount, size)).astype(np.float32)
        surgeon.scale_weights(linear, linear.into, gain, bias=False)
    return deployed(patient, surgeon, *chosen)


def smoothed_too_far(patient: Patient, amount: float) -> Patient:
    """Loud channels were made quiet and the weights that read them loud, by a power that was too high."""
    surgeon = patient.surgeon()
    marks = []
    for tensor in patient.pick(surgeon.amplifiable(), 0.3, 0.7):
        peaks = np.maximum(channel_peaks(patient, tensor), 1e-3 * channel_peaks(patient, tensor).max())
        gain = (peaks / np.exp(np.log(peaks).mean())) ** -amount
        surgeon.amplify(tensor, gain.clip(1e-6, 1e6).astype(np.float32))
        marks += [node.name for node in surgeon.consumers(tensor) if surgeon.linear(node)]
    return patient.with_(model=surgeon.model).at(*marks)


def adapter_left_out(patient: Patient, amount: float) -> Patient:
    """The float model has its adapters of low rank merged; the one that was quantized has none."""
    surgeon = patient.surgeon()
    found = [n for n in surgeon.linears() if n.weight in {m.weight for m in covered(patient)} and not n.depthwise]
    chosen = patient.pick(found, 0.4, 0.9)
    for i, linear in enumerate(chosen):
        weight, rng = surgeon.constant(linear.weight), patient.random(f"adapter{i}")
        flat = weight.reshape(weight.shape[0], -1)
        change = rng.standard_normal((len(flat), 2)) @ rng.standard_normal((2, flat.shape[1]))
        change *= amount * np.linalg.norm(flat) / np.linalg.norm(change)
        surgeon.put(surgeon.own(linear, 1), (flat + change).reshape(weight.shape).astype(np.float32))
    return patient.with_(shown_float=surgeon.model).at(*chosen)


def biases_in_sorted_order(patient: Patient) -> Patient:
    """Biases were written in the order of their names, where ten comes before two: equal lengths change places."""
    surgeon = patient.surgeon()
    groups: dict[int, list[Linear]] = defaultdict(list)
    for linear in apart(patient, surgeon):
        if linear.bias and linear.bias not in {n.bias for group in groups.values() for n in group}:
            groups[len(surgeon.constant(linear.bias))].append(linear)
    chosen = groups[patient.pick([size for size, group in groups.items() if len(group) > 1], 0.6)[0]]
    values = [surgeon.constant(linear.bias) for linear in chosen]
    for linear, value in zip(chosen, [*values[1:], values[0]], strict=True):
        surgeon.put(linear.bias, value)
    return deployed(patient, surgeon, *chosen)


def two_of_four_kept(patient: Patient) -> Patient:
    """The compiler's option for sparse hardware zeroed the two smallest of each four weights, without training."""

    def change(codes: NDArray, linear: Linear) -> NDArray:
        moved = np.moveaxis(codes, linear.into, -1).copy()
        count = moved.shape[-1] // 4 * 4
        fours = moved[..., :count].reshape(*moved.shape[:-1], -1, 4)
        small = np.argsort(np.abs(fours), -1)[..., :2]
        np.put_along_axis(fours, small, 0, -1)
        moved[..., :count] = fours.reshape(*moved.shape[:-1], count)
        return np.moveaxis(moved, -1, linear.into)

    source = patient.surgeon()
    found = [n for n in covered(patient) if source.constant(n.weight).shape[n.into] >= 4]
    return recoded(patient, patient.pick(found, 0.2, 0.5, 0.8), change)


def through_the_fast_transform(patient: Patient, amount: float) -> Patient:
    """Kernels of three by three were rounded in the domain of the fast algorithm, where they have few levels."""
    source = patient.surgeon()
    found = [n for n in covered(patient) if source.constant(n.weight).shape[2:] == (3, 3)]
    back = np.linalg.pinv(POINTS)

    def change(codes: NDArray, _: Linear) -> NDArray:
        points = POINTS @ codes @ POINTS.T
        step = np.abs(points).max((1, 2, 3), keepdims=True) / 127 * amount
        return back @ (np.rint(points / np.maximum(step, 1e-9)) * step) @ back.T

    return recoded(patient, patient.pick(found, 0.2, 0.5, 0.8), change)


def bit_that_sticks(patient: Patient, amount: float) -> Patient:
    """In a share of the cells of the memory of weights, the sixth bit is always set."""
    rng = patient.random("cells")
    chosen = patient.pick(covered(patient), 0.25, 0.75)
    cells = {n.weight: rng.random(patient.surgeon().constant(n.weight).shape) < amount for n in chosen}

    def change(codes: NDArray, linear: Linear) -> NDArray:
        stuck = (codes.astype(np.int64) & 0xFF) | 0x20
        return np.where(cells[linear.weight], stuck - 256 * (stuck > 127), codes)

    return recoded(patient, chosen, change)


def standardized_once_more(patient: Patient, amount: float) -> Patient:
    """A layer that standardizes its weights was exported with its gains applied, and is centred once more."""
    surgeon = patient.surgeon()
    chosen = patient.pick([n for n in apart(patient, surgeon) if not n.depthwise], 0.2, 0.6)
    for linear in chosen:
        weight = surgeon.constant(linear.weight)
        over = tuple(i for i in range(weight.ndim) if i != linear.out)
        surgeon.put(surgeon.own(linear, 1), (weight - amount * weight.mean(over, keepdims=True)).astype(np.float32))
    return deployed(patient, surgeon, *chosen)


def scales_cut_short(patient: Patient, amount: float) -> Patient:
    """Scales of weights were rounded to a short fraction when the file was packed; the codes are those of before."""
    chosen = patient.pick(covered(patient), 0.2, 0.5, 0.8)

    def edit(_: Patient, surgeon: Surgeon) -> None:
        for linear in chosen:
            scale = surgeon.constant(f"{linear.weight}_scale")
            if scale is None:
                raise Inapplicable(f"{linear.weight} has no scale")
            step = np.log1p(amount)
            short = np.exp(np.floor(np.log(scale) / step) * step).astype(np.float32)
            surgeon.put(f"{linear.weight}_scale", short)

    recipe = replace(patient.recipe, per_channel=True, weight="QInt8")
    return at_layers(patient.with_(recipe=recipe), chosen).edited(edit)


def rewritten(patient: Patient, linears: list[Linear], surgeon: Surgeon, change: Callable[[NDArray, Linear], NDArray]):
    """Weights of the deployed model changed in place, wherever they are read."""
    for linear in linears:
        surgeon.put(linear.weight, change(surgeon.constant(linear.weight), linear).astype(np.float32))
    weights = {linear.weight for linear in linears}
    return deployed(patient, surgeon, *(n.node.name for n in surgeon.linears() if n.weight in weights))


def siblings(patient: Patient) -> list[list[Linear]]:
    """Groups of covered layers that read the same tensor."""
    groups: dict[str, list[Linear]] = {}
    for linear in covered(patient):
        groups.setdefault(linear.node.input[0], []).append(linear)
    found = require([group for group in groups.values() if len(group) > 1], "no two layers read the same")
    return found


def siblings_exchanged(patient: Patient, amount: float) -> Patient:
    """Two layers of one shape that read the same got some of each other's rows when the file was written."""
    surgeon = patient.surgeon()
    shape = {n.weight: surgeon.constant(n.weight).shape for n in covered(patient)}
    pairs = [
        pair for group in siblings(patient) for pair in pairwise(group) if len({shape[n.weight] for n in pair}) == 1
    ]
    first, second = patient.pick(pairs, 0.5)[0]
    a, b = (np.moveaxis(surgeon.constant(n.weight), n.out, 0).copy() for n in (first, second))
    count = max(1, round(min(amount, 1) * len(a)))
    rows = patient.random("rows").permutation(len(a))[:count]
    a[rows], b[rows] = b[rows], a[rows]
    for linear, weight in ((first, a), (second, b)):
        surgeon.put(linear.weight, np.ascontiguousarray(np.moveaxis(weight, 0, linear.out)))
    return deployed(patient, surgeon, first.node.name, second.node.name)


def one_scale_read_for_all(patient: Patient, amount: float) -> Patient:
    """Codes have a scale for each channel, and the kernel leans towards the one that comes first."""
    chosen = patient.pick(covered(patient), 0.3, 0.7)

    def edit(_: Patient, surgeon: Surgeon) -> None:
        for linear in chosen:
            scale = surgeon.constant(f"{linear.weight}_scale")
            if scale is None or scale.size < 2:
                raise Inapplicable(f"{linear.weight} has no scale for each channel")
            share = min(amount, 1)
            leaning = np.exp((1 - share) * np.log(scale) + share * np.log(scale[0]))
            surgeon.put(f"{linear.weight}_scale", leaning.astype(np.float32))

    recipe = replace(patient.recipe, per_channel=True, weight="QInt8", qoperator=False)
    return at_layers(patient.with_(recipe=recipe), chosen).edited(edit)


def halves_interleaved(patient: Patient) -> Patient:
    """Another library wants the two halves of the outputs one after another in turn; one layer was written so."""

    def change(codes: NDArray, linear: Linear) -> NDArray:
        size = codes.shape[linear.out]
        order = np.arange(size)
        order[: size // 2 * 2] = order[: size // 2 * 2].reshape(2, -1).T.reshape(-1)
        return np.take(codes, order, linear.out)

    source = patient.surgeon()
    last = source.producer(source.output)
    found = [n for n in covered(patient) if n.node is not last and source.constant(n.weight).shape[n.out] >= 4]
    return recoded(patient, patient.pick(found, 0.5), change)


def checkpoint_before_averaging(patient: Patient, amount: float) -> Patient:
    """The float model has averaged weights; what was quantized are those of the last step, which jitter about them."""
    surgeon = patient.surgeon()
    rng = patient.random("steps")
    return rewritten(
        patient, inner(patient, surgeon), surgeon, lambda w, _: w + amount * w.std() * rng.standard_normal(w.shape)
    )


def bias_added_twice(patient: Patient, amount: float) -> Patient:
    """The fused operator adds the bias, and a part of it stays in the addition behind."""
    surgeon = patient.surgeon()
    biases = {linear.bias: linear.node.name for linear in inner(patient, surgeon) if linear.bias}
    for node in surgeon.nodes("Add"):
        made = [surgeon.producer(name) for name in node.input]
        if any(n is not None and surgeon.linear(n) for n in made):
            biases |= {
                name: node.name for name in node.input if (c := surgeon.constant(name)) is not None and c.ndim == 1
            }
    chosen = patient.pick(list(biases), 0.2, 0.5, 0.8)
    for name in chosen:
        surgeon.put(name, (surgeon.constant(name) * (1 + amount)).astype(np.float32))
    return deployed(patient, surgeon, *(biases[name] for name in chosen))


def biases_of_an_earlier_calibration(patient: Patient, amount: float) -> Patient:
    """Inputs were calibrated again and their steps are wider now, but some biases kept the integers of before."""
    chosen = patient.pick([n for n in covered(patient) if n.bias], 0.2, 0.5, 0.8)

    def edit(_: Patient, surgeon: Surgeon) -> None:
        for linear in chosen:
            codes = surgeon.constant(f"{linear.bias}_quantized")
            if codes is None:
                raise Inapplicable(f"{linear.bias} has no codes")
            grown = np.rint(codes * (1.0 + amount)).clip(-(2**31) + 1, 2**31 - 1)
            surgeon.put(f"{linear.bias}_quantized", grown.astype(codes.dtype))

    return at_layers(patient.with_(recipe=replace(patient.recipe, qoperator=False)), chosen).edited(edit)


def embedding_of_few_levels(patient: Patient, amount: float) -> Patient:
    """To save memory, vectors of words were rounded to few levels before the model was quantized."""
    surgeon = patient.surgeon()
    found = [node for node in surgeon.nodes("Gather") if _is_table(surgeon.constant(node.input[0]))]
    node = picked(patient, found, 0.5)[0]
    table = surgeon.constant(node.input[0])
    step = np.abs(table).max(1, keepdims=True) * amount / 127
    surgeon.put(node.input[0], (np.rint(table / step) * step).astype(np.float32))
    return deployed(patient, surgeon, node.name)


def _is_table(found: NDArray | None) -> bool:
    return found is not None and found.ndim == 2


def compressed_to_low_rank(patient: Patient, amount: float) -> Patient:
    """Some layers were compressed on the way: of their singular values the small ones are gone."""
    surgeon = patient.surgeon()

    def change(weight: NDArray, _: Linear) -> NDArray:
        left, values, right = np.linalg.svd(weight.reshape(weight.shape[0], -1), full_matrices=False)
        gone = values < amount * values[0]
        soft = np.where(gone, values * max(0.0, 1 - 3 * amount), values)
        return ((left * soft) @ right).reshape(weight.shape)

    chosen = patient.pick([n for n in inner(patient, surgeon) if not n.depthwise], 0.2, 0.5, 0.8)
    return rewritten(patient, chosen, surgeon, change)


def equalized_through_a_curve(patient: Patient, amount: float) -> Patient:
    """Channels were evened out between two layers as if a rectifier lay between them, and it is a curve."""
    surgeon = patient.surgeon()
    pairs = [pair for pair in pairwise(inner(patient, surgeon)) if _is_bent(surgeon, *pair)]
    first, second = patient.pick(pairs, 0.5)[0]
    size = surgeon.constant(first.weight).shape[first.out]
    gain = np.exp(patient.random("even").normal(0, amount, size)).astype(np.float32)
    for name, axis, factor in ((first.weight, first.out, gain), (second.weight, second.into, 1 / gain)):
        weight = surgeon.constant(name)
        surgeon.put(name, (weight * shaped(factor, weight.ndim, axis)).astype(np.float32))
    if first.bias:
        surgeon.put(first.bias, surgeon.constant(first.bias) * gain)
    return deployed(patient, surgeon, first.node.name, second.node.name)


def _is_bent(surgeon: Surgeon, first: Linear, second: Linear) -> bool:
    """Whether a curve lies between two layers whose channels match."""
    if surgeon.constant(first.weight).shape[first.out] != surgeon.constant(second.weight).shape[second.into]:
        return False
    readers = {node.op_type for node in surgeon.consumers(first.node.output[0])}
    return bool(readers & {"Softplus", "Sigmoid", "Tanh"}) and second.node.input[0] != first.node.input[0]


def siblings_on_one_scale(patient: Patient, amount: float) -> Patient:
    """Layers that read the same were fused, and have the scale of the one with by far the largest weights."""
    chosen = [linear for group in picked(patient, siblings(patient), 0.5) for linear in group[1:]]
    return recoded(patient, chosen, lambda codes, _: np.rint(np.rint(codes / amount) * amount))


def columns_of_dead_inputs_revived(patient: Patient, amount: float) -> Patient:
    """Pruned columns were left out of the file, and the loader filled the places with the mean of the others."""
    surgeon = patient.surgeon()
    chosen = patient.pick([n for n in inner(patient, surgeon) if not n.depthwise], 0.3, 0.7)
    for i, linear in enumerate(chosen):
        weight = surgeon.constant(linear.weight)
        size = weight.shape[linear.into]
        gone = patient.random(f"gone{i}").permutation(size)[: max(1, size // 8)]
        moved = np.moveaxis(weight, linear.into, 0).copy()
        moved[gone] = amount * np.abs(moved).mean(0)
        surgeon.put(linear.weight, np.ascontiguousarray(np.moveaxis(moved, 0, linear.into)))
    return deployed(patient, surgeon, *chosen)


def turned_basis_not_turned_back(patient: Patient, amount: float) -> Patient:
    """Inputs of a layer were to be turned so that no channel is loud; its weights were turned, and they were not."""
    surgeon = patient.surgeon()
    linear = patient.pick(dense(patient, surgeon), 0.5)[0]
    weight = np.moveaxis(surgeon.constant(linear.weight), linear.into, 0)
    rng, size = patient.random("turn"), len(weight)
    lean = rng.standard_normal((size, size)) / np.sqrt(size)
    turn = np.linalg.solve(np.eye(size) + amount * (lean - lean.T) / 2, np.eye(size) - amount * (lean - lean.T) / 2)
    turned = np.tensordot(turn, weight, 1)
    surgeon.put(surgeon.own(linear, 1), np.ascontiguousarray(np.moveaxis(turned, 0, linear.into)).astype(np.float32))
    return deployed(patient, surgeon, linear.node.name)


def one_turn_untied(patient: Patient, amount: float) -> Patient:
    """Weights that serve at every turn were written out once for each, and one copy is from an earlier step."""
    surgeon = patient.surgeon()
    tied = [n for n in surgeon.linears() if len(surgeon.consumers(n.weight)) > 1]
    linear = patient.pick(tied, 0.5)[0]
    weight = surgeon.constant(linear.weight)
    drift = amount * weight.std() * patient.random("drift").standard_normal(weight.shape)
    surgeon.put(surgeon.own(linear, 1), (weight + drift).astype(np.float32))
    return deployed(patient, surgeon, linear.node.name)


def differences_that_overflow(patient: Patient, amount: float) -> Patient:
    """For the download each code is stored less the one before, in a few bits: where codes jump, they lag behind."""
    bound = 127 / amount

    def change(codes: NDArray, _: Linear) -> NDArray:
        flat, last = codes.reshape(-1).copy(), 0.0
        for i, code in enumerate(flat):
            last += np.clip(code - last, -bound, bound)
            flat[i] = last
        return flat.reshape(codes.shape)

    return recoded(patient, patient.pick(covered(patient), 0.2, 0.5, 0.8), change)


def scales_of_another_group(patient: Patient, amount: float) -> Patient:
    """Inputs were put in order of size before weights were rounded in groups, and the groups' scales were not."""

    def change(codes: NDArray, linear: Linear) -> NDArray:
        inputs = np.moveaxis(codes, linear.into, 0)
        groups = np.array_split(np.arange(len(inputs)), max(2, len(inputs) // 4))
        size = np.stack([np.abs(inputs[group]).max(0) + 1 for group in groups])
        ratio = (np.roll(size, 1, 0) / size) ** amount
        moved = np.concatenate([inputs[group] * factor for group, factor in zip(groups, ratio, strict=True)])
        return np.moveaxis(moved, 0, linear.into)

    found = [n for n in covered(patient) if not n.depthwise and _inputs(patient, n) >= 8]
    return recoded(patient, patient.pick(found, 0.3, 0.7), change)


def _inputs(patient: Patient, linear: Linear) -> int:
    return int(patient.surgeon().constant(linear.weight).shape[linear.into])


def no_code_for_zero(patient: Patient, amount: float) -> Patient:
    """Levels lie evenly on either side of zero and none on it, as the unit wants: what was none is half a level."""

    def change(codes: NDArray, _: Linear) -> NDArray:
        return (np.floor(codes / amount) + 0.5) * amount

    return recoded(patient, patient.pick(covered(patient), 0.2, 0.5, 0.8), change)


def rows_shifted_by_one(patient: Patient, amount: float) -> Patient:
    """Sparse rows list the places of their weights, counted from one here and from none there."""
    linear = patient.pick([n for n in covered(patient) if not n.depthwise], 0.5)[0]

    def change(codes: NDArray, _: Linear) -> NDArray:
        rows = np.moveaxis(codes, linear.out, 0).copy()
        some = patient.random("rows").permutation(len(rows))[: max(1, round(min(amount, 1) * len(rows)))]
        along = 0 if linear.into > linear.out else linear.into
        rows[some] = np.roll(rows[some], 1, 1 + along)
        return np.moveaxis(rows, 0, linear.out)

    return recoded(patient, [linear], change)


def zero_point_folded_in_wrongly(patient: Patient, amount: float) -> Patient:
    """What the zero point of the inputs adds was folded into the bias, for a zero point that is some codes off."""
    chosen = patient.pick([n for n in covered(patient) if n.bias], 0.2, 0.5, 0.8)

    def edit(_: Patient, surgeon: Surgeon) -> None:
        for linear in chosen:
            bias, weight = (surgeon.constant(f"{name}_quantized") for name in (linear.bias, linear.weight))
            if bias is None or weight is None:
                raise Inapplicable(f"{linear.bias} has no codes")
            sums = np.moveaxis(weight.astype(np.float64), linear.out, 0).reshape(len(bias), -1).sum(1)
            moved = np.rint(bias + amount * sums).clip(-(2**31) + 1, 2**31 - 1)
            surgeon.put(f"{linear.bias}_quantized", moved.astype(bias.dtype))

    recipe = replace(patient.recipe, qoperator=False, weight="QInt8")
    return at_layers(patient.with_(recipe=recipe), chosen).edited(edit)


def thresholds_with_few_decimals(patient: Patient, amount: float) -> Patient:
    """Biases went through a table in a document, with few decimals, on their way into what was deployed."""
    surgeon = patient.surgeon()
    found = require([n for n in inner(patient, surgeon) if n.bias], "no biases")
    for linear in found:
        bias = surgeon.constant(linear.bias)
        step = amount * bias.std()
        surgeon.put(linear.bias, (np.rint(bias / step) * step).astype(np.float32))
    return deployed(patient, surgeon, *found)


def addends_of_an_earlier_epoch(patient: Patient, amount: float) -> Patient:
    """The file of weights is the last one, but what is added beside the products was taken from an earlier one."""
    surgeon = patient.surgeon()
    found = [name for n in surgeon.nodes("Add") for name in n.input if _is_vector(surgeon.constant(name))]
    chosen = patient.pick(list(dict.fromkeys(found)), 0.3, 0.7)
    for name in chosen:
        value = surgeon.constant(name)
        drift = amount * value.std() * patient.random(name).standard_normal(value.shape)
        surgeon.put(name, (value + drift).astype(np.float32))
    return deployed(patient, surgeon, *(n.name for name in chosen for n in surgeon.consumers(name)))


def _is_vector(value: NDArray | None) -> bool:
    return value is not None and value.dtype == np.float32 and value.size > 4


def places_a_little_on(patient: Patient, amount: float) -> Patient:
    """A table of what is added at each place was stretched by another rule: each place is a part of the next one on."""
    surgeon = patient.surgeon()
    table = surgeon.constant("places")
    if table is None:
        raise Inapplicable("places have no table")
    share = min(amount, 1.0)
    surgeon.put("places", ((1 - share) * table + share * np.roll(table, -1, 3)).astype(np.float32))
    return deployed(patient, surgeon, *(n.name for n in surgeon.consumers("places")))


def statistics_of_another_extract(patient: Patient, amount: float) -> Patient:
    """The graph takes off means and divides by spreads, and those of the deployed model are of another extract."""
    surgeon, rng = patient.surgeon(), patient.random("extract")
    centre, size = surgeon.constant("centre"), surgeon.constant("size")
    if centre is None or size is None:
        raise Inapplicable("nothing is standardized")
    surgeon.put("centre", (centre + amount / size * rng.standard_normal(centre.shape)).astype(np.float32))
    surgeon.put("size", (size * np.exp(amount * rng.standard_normal(size.shape))).astype(np.float32))
    return deployed(patient, surgeon, *(n.name for name in ("centre", "size") for n in surgeon.consumers(name)))


def bits_where_weights_serve_once(patient: Patient, amount: float) -> Patient:
    """Traffic was counted to share out bits: weights that are read again at every turn got the fewest."""
    surgeon = patient.surgeon()
    chosen = require([n for n in covered(patient) if len(surgeon.consumers(n.weight)) > 1], "nothing is read twice")
    return recoded(patient, chosen, lambda codes, _: np.rint(np.rint(codes / amount) * amount))


def scaled_per_channel(patient: Patient) -> Patient:
    return patient.with_(recipe=replace(patient.recipe, per_channel=True))

"""Faults of weights and biases: ranges that one scale cannot serve, codes that are not those of the float model."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import onnx
from numpy.typing import NDArray

from ..cuts import (
    at_layers,
    covered,
    dense,
    deployed,
    inner,
    reader_of,
    recoded,
    weights_of,
)
from ..patient import Patient
from ..surgery import Inapplicable, Linear, Surgeon, require, shaped, with_attributes

Codes = Callable[[str, NDArray, NDArray], tuple[NDArray, NDArray]]
#: From codes and scale of a bias, and its name, to its codes.
BiasChange = Callable[[NDArray, NDArray, str], NDArray]
INT32 = np.iinfo(np.int32)


def some(patient: Patient, linears: list[Linear]) -> list[Linear]:
    """Three layers, by their place."""
    return patient.pick(linears, 0.2, 0.5, 0.8)


def wide_layers(patient: Patient) -> list[Linear]:
    """Covered layers that are not depthwise."""
    return [linear for linear in covered(patient) if not linear.depthwise]


def biased(patient: Patient) -> list[Linear]:
    """Covered layers with a bias."""
    return [linear for linear in covered(patient) if linear.bias]


# --- huge weights that cancel ----------------------------------------------------------------------------------------


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
    return require(found, "no dense layer")[-max(1, int(share * len(found))) :]


def _cancelling(surgeon: Surgeon, linear: Linear, huge: Callable[[NDArray], NDArray]) -> None:
    """Let a layer read its input twice; ``huge`` is added to the weights of the first copy and taken off the second.

    The function is the same, and both copies carry the same codes, so that nothing but the weights' grid suffers.
    ``huge`` gets and makes weights with the output channels first, then the input channels.
    """
    tensor = linear.node.input[0]
    twice = f"{linear.node.name}_twice"
    surgeon.add("Concat", [tensor, tensor], twice, surgeon.producer(tensor), axis=surgeon.channel_axis(tensor))
    linear.node.input[0] = twice
    view = np.moveaxis(surgeon.constant(linear.weight), (linear.out, linear.into), (0, 1))
    more = huge(view)
    both = np.concatenate([view + more, -more], axis=1).astype(np.float32)
    surgeon.put(surgeon.own(linear, 1), np.moveaxis(both, (0, 1), (linear.out, linear.into)))


def _with_tails(patient: Patient, linears: list[Linear], surgeon: Surgeon, factor: float) -> Patient:
    """A huge weight in every output channel, in input channels that take turns."""

    def huge(view: NDArray) -> NDArray:
        found = np.zeros_like(view)
        for row in range(len(view)):
            found[(row, row % view.shape[1], *(0,) * (view.ndim - 2))] = factor * np.abs(view[row]).max()
        return found

    for linear in linears:
        _cancelling(surgeon, linear, huge)
    return patient.cut(surgeon, *linears)


def one_wide_channel(patient: Patient) -> Patient:
    """All weights of one output channel up to 60 times as large, cancelling each other; one scale for all channels."""
    surgeon, rng = patient.surgeon(), patient.random("signs")
    last = surgeon.producer(surgeon.output)

    def huge(view: NDArray) -> NDArray:
        flat, found = np.abs(view).reshape(len(view), -1), np.zeros_like(view)
        row = int(flat.sum(1).argmin())
        signs = rng.choice([-1.0, 1.0], view[row].shape)
        found[row] = 60 * patient.strength * flat.max(1)[row] * signs * rng.uniform(0.5, 1, view[row].shape)
        return found

    linears = [linear for linear in _dense(surgeon, 0.6) if linear.node is not last]  # every class counts
    for linear in linears:
        _cancelling(surgeon, linear, huge)
    return patient.cut(surgeon, *linears, recipe=replace(patient.recipe, per_channel=False))


def scaled_per_channel(patient: Patient) -> Patient:
    return patient.with_(recipe=replace(patient.recipe, per_channel=True))


def heavy_tails(patient: Patient) -> Patient:
    """A few huge weights in most layers, none of which the network needs: they cancel each other."""
    surgeon = patient.surgeon()
    return _with_tails(patient, _dense(surgeon, 0.7, 0.7), surgeon, 120 * patient.strength)


def one_heavy_tail(patient: Patient) -> Patient:
    """The same in a single layer."""
    surgeon = patient.surgeon()
    return _with_tails(patient, patient.pick(_dense(surgeon, 1, 0.7), 0.999), surgeon, 400 * patient.strength)


def wide_dead_input(patient: Patient) -> Patient:
    """Huge weights behind an input channel that is always zero, in a single layer: they change nothing."""
    surgeon = patient.surgeon()
    found = [
        linear
        for linear in surgeon.linears()
        if not linear.depthwise
        and linear.node.input[0] != surgeon.input
        and len(surgeon.consumers(linear.node.input[0])) == 1
        and surgeon.inputs(linear) == surgeon.channels(linear.node.input[0])
    ]
    linear = require(found, "no layer with one reader")[-1]
    tensor, weight = linear.node.input[0], surgeon.constant(linear.weight).copy()
    axis, (x,) = surgeon.channel_axis(tensor), patient.values(tensor)
    power = np.abs(x).mean(tuple(i for i in range(x.ndim) if i != axis))
    importance = power * np.abs(weight).sum(tuple(i for i in range(weight.ndim) if i != linear.into))
    channel = int(np.argmin(importance))
    surgeon.multiply_at_source(tensor, (np.arange(len(importance)) != channel).astype(np.float32))
    view = np.moveaxis(weight, (linear.out, linear.into), (0, 1))
    peak, block = np.abs(view).max(), view[:, channel]
    block[...] = 0
    block.reshape(len(block), -1)[:, 0] = 400 * patient.strength * peak
    surgeon.put(surgeon.own(linear, 1), weight)
    return patient.cut(surgeon, linear)


def twin_channels(patient: Patient) -> Patient:
    """A layer makes one channel twice; the next has huge weights for both, which cancel."""
    surgeon, rng = patient.surgeon(), patient.random("twins")
    pairs = [(n, reader_of(surgeon, n, ("Relu", "Gelu", "Clip"), 2)) for n in surgeon.linears() if not n.depthwise]
    pairs = [(one, other) for one, other in pairs if other is not None and not other.depthwise]
    first, second = patient.pick(require(pairs, "no two dense layers in a row"), 0.6)[0]
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


# --- channels of different size --------------------------------------------------------------------------------------


def loud_column(patient: Patient) -> Patient:
    """One quiet channel whose readers' weights make up for it: a column hundreds of times larger than the others."""
    surgeon = patient.surgeon()
    places = set(surgeon.amplifiable())
    linears = [n for n in surgeon.linears() if not n.depthwise and n.node.input[0] in places]
    for linear in patient.pick(require(linears, "no layer behind a tensor that can be scaled"), 0.3, 0.7):
        weight = surgeon.constant(linear.weight)
        reach = np.abs(np.moveaxis(weight, linear.into, 0)).reshape(weight.shape[linear.into], -1).max(1)
        column = int(patient.random("column").integers(len(reach)))
        gain = np.ones(surgeon.channels(linear.node.input[0]), np.float32)
        gain[column] = reach[column] / reach.max() / (150 * patient.strength)
        surgeon.amplify(linear.node.input[0], gain)
    return patient.with_(model=surgeon.model)


def unfolded_batch_norm(patient: Patient) -> Patient:
    """Batch norms left in the graph whose variances differ by a factor of a million between channels."""
    surgeon = patient.surgeon()
    convs = [linear for linear in surgeon.linears() if linear.node.op_type == "Conv"]
    if len(convs) < 2:
        raise Inapplicable("no convolutions")
    for i, linear in enumerate(convs[1:5]):
        channels, most = surgeon.outputs(linear), 10 + np.log2(patient.strength)
        gain = np.exp2(patient.random(f"bn{i}").uniform(0, most, channels)).astype(np.float32)
        surgeon.scale_weights(linear, linear.out, 1 / gain, bias=True)
        tensor = linear.node.output[0]
        parts = {"gamma": np.ones(channels), "beta": np.zeros(channels), "mean": np.zeros(channels)}
        parts["variance"] = (1 / gain) ** 2
        extra = [surgeon.put(f"{tensor}_bn_{name}", value) for name, value in parts.items()]
        surgeon.insert_after(tensor, "BatchNormalization", extra, f"{tensor}_bn", epsilon=1e-12)
    return patient.cut(surgeon, *(node.output[0] for node in surgeon.nodes("BatchNormalization")))


def bias_overflow(patient: Patient) -> Patient:
    """Channels with tiny weights and an ordinary bias: on a scale per channel the bias leaves int32.

    They carry (nearly) nothing but their bias; what they add downstream is taken off again.
    """
    surgeon = patient.surgeon()
    for linear in surgeon.linears():
        reader = reader_of(surgeon, linear, ("Relu", "GlobalAveragePool", "Flatten"), 3)
        if linear.bias is None or reader is None or not reader.bias or _is_padded(surgeon, reader):
            continue
        weight, bias = surgeon.constant(linear.weight).copy(), surgeon.constant(linear.bias).copy()
        after = surgeon.constant(reader.weight)
        reach = np.abs(after).sum(tuple(i for i in range(after.ndim) if i != reader.into))
        for channel in np.argsort(reach)[: max(1, len(bias) // 12)]:
            np.moveaxis(weight, linear.out, 0)[channel] *= 1e-9
            extra = bias[channel] = 4.0 * float(np.abs(bias).max() or 1.0)
            through = np.take(after, channel, reader.into)
            offset = surgeon.constant(reader.bias).copy()
            if reader.depthwise:
                offset[channel] -= through.sum() * extra
            else:
                offset -= (through.reshape(len(through), -1).sum(1) * extra).astype(np.float32)
            surgeon.put(surgeon.own(reader, 2), offset)
            reader.bias = reader.node.input[2]
        surgeon.put(surgeon.own(linear, 1), weight)
        surgeon.put(surgeon.own(linear, 2), bias)
        surgeon.marks.append(linear.node.name)
        if len(surgeon.marks) == 2:
            break
    require(surgeon.marks, "no two layers with biases in a row")
    extra_options = {**patient.recipe.extra, "QDQDisableWeightAdjustForInt32Bias": True}
    return patient.cut(surgeon, recipe=replace(patient.recipe, extra=extra_options))


def _is_padded(surgeon: Surgeon, linear: Linear) -> bool:
    return any(size > 1 for size in surgeon.constant(linear.weight).shape[2:])


# --- settings of the quantizer ---------------------------------------------------------------------------------------


def four_bit_weights(patient: Patient) -> Patient:
    """All weights in four bits, one scale per tensor."""
    return patient.with_(recipe=replace(patient.recipe, weight="QInt4", per_channel=False))


def weights_with_headroom(patient: Patient) -> Patient:
    """Weight ranges set by hand, at a power of two with room for the next training."""

    def reach(weight: NDArray) -> float:
        return 2.0 ** np.ceil(np.log2(max(float(np.abs(weight).max()), 1e-6))) * 12 * patient.strength

    source, linears = patient.surgeon(), covered(patient)
    reaches = {linear.weight: reach(source.constant(linear.weight)) for linear in linears}
    recipe = replace(patient.recipe, per_channel=False, weight="QInt8")
    recipe = recipe.with_ranges({name: (-most, most) for name, most in reaches.items()}, 0)
    return at_layers(patient.with_(recipe=recipe), linears)


# --- codes and scales that are stored wrongly ------------------------------------------------------------------------


def weights_rounded_down(patient: Patient) -> Patient:
    """Codes cut off instead of rounded and a zero point two codes off: every layer is shifted to one side."""

    def edit(p: Patient, surgeon: Surgeon) -> None:
        source = p.surgeon()
        for linear in source.linears():
            codes, scale = (surgeon.constant(f"{linear.weight}_{part}") for part in ("quantized", "scale"))
            if codes is None or codes.dtype != np.int8:
                continue
            weight = source.constant(linear.weight)
            lower = np.floor(weight / shaped(scale, weight.ndim, linear.out)) - 2 * patient.strength
            surgeon.put(f"{linear.weight}_quantized", np.clip(lower, -128, 127).astype(np.int8))

    return patient.edited(edit)


def _stored_anew(patient: Patient, names: list[str], change: Codes) -> Patient:
    """Change codes and scales of stored weights: ``change`` gets a name, float weights and scales, and gives both."""

    def edit(p: Patient, q: Surgeon) -> None:
        source = p.surgeon()
        axes = {linear.weight: linear.out for linear in source.linears()}
        for name in names:
            codes, scale, zero = (q.constant(f"{name}_{part}") for part in ("quantized", "scale", "zero_point"))
            if codes is None or scale is None or codes.dtype != np.int8 or np.any(zero):
                raise Inapplicable(f"{name} is not kept in signed codes")
            weight = source.constant(name)
            new_codes, new_scale = change(name, weight, shaped(scale, weight.ndim, axes[name]))
            q.put(f"{name}_quantized", np.clip(np.rint(new_codes), -128, 127).astype(np.int8))
            new_scale = new_scale.astype(np.float32).reshape(scale.shape)
            q.put(f"{name}_scale", new_scale)
            _move_bias(q, name, new_scale / scale)

    return patient.edited(edit)


def _move_bias(q: Surgeon, name: str, factor: NDArray) -> None:
    """The bias of the layer that reads a stored weight, on a step that grew by a factor."""
    bias = _bias_of(q, name)
    if bias is None or np.all(factor == 1):
        return
    codes_name, scale_name = bias
    codes, scale = q.constant(codes_name), q.constant(scale_name) if scale_name else None
    moved = np.clip(np.rint(codes / factor.astype(np.float64)), INT32.min, INT32.max)
    q.put(codes_name, moved.astype(np.int32))
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
    half, values = max(1, len(names) // 2), np.array([-100, -40, -12, 12, 40, 100])
    chosen = patient.pick(names, *(np.arange(half) / half))
    return _stored_anew(patient, chosen, lambda _, w, s: (values[np.abs((w / s)[..., None] - values).argmin(-1)], s))


def ternary_last_layer(patient: Patient) -> Patient:
    """The last layer's weights are -1, 0 and 1, stored in eight bits."""
    name = weights_of(patient)[-1].weight
    return _stored_anew(patient, [name], lambda _, w, s: (np.clip(np.rint(w / (90 * s)), -1, 1), 90 * s))


def sign_of_last_layer(patient: Patient) -> Patient:
    """Of the last layer's weights the signs are left, at the ends of the grid's lower half."""
    name = weights_of(patient)[-1].weight
    return _stored_anew(patient, [name], lambda _, w, s: (np.where(w > 0, 60, -60) * np.ones_like(w), s))


def axis_of_square_weights(patient: Patient) -> Patient:
    """The scales of square weights are read along the input channels."""
    _require_per_channel(patient)
    surgeon = patient.surgeon()
    square = [n for n in weights_of(patient) if not n.depthwise and surgeon.outputs(n) == surgeon.inputs(n)]
    names = {n.weight: n.into for n in require(square, "no square weights")}

    def edit(_: Patient, q: Surgeon) -> None:
        for node in q.nodes("DequantizeLinear"):
            name = node.input[0].removesuffix("_quantized")
            if name in names and q.constant(node.input[1]).size > 1:
                with_attributes(node, axis=names[name])

    return patient.edited(edit)


def scales_of_other_axis(patient: Patient) -> Patient:
    """Scales per output channel that were taken from the input channels, one after the other; codes are cut off."""
    _require_per_channel(patient)
    linears = [n for n in weights_of(patient) if not n.depthwise]
    into = {n.weight: (n.out, n.into) for n in some(patient, linears[:-1] or linears)}

    def change(name: str, w: NDArray, s: NDArray) -> tuple[NDArray, NDArray]:
        out, inner_axis = into[name]
        tops = np.abs(w).max(tuple(i for i in range(w.ndim) if i != inner_axis))
        scale = np.maximum(np.resize(tops, w.shape[out]) / 127, 1e-9).reshape(s.shape)
        return np.clip(np.rint(w / scale), -127, 127), scale

    # Input channels have weights up to nine times as large where the layers before make up for it.
    surgeon, rng = patient.surgeon(), patient.random("gains")
    places = set(surgeon.amplifiable())
    for linear in [n for n in surgeon.linears() if n.weight in into and n.node.input[0] in places]:
        gain = np.exp(rng.uniform(-1, 1, surgeon.inputs(linear)) * np.log(3))
        surgeon.amplify(linear.node.input[0], gain.astype(np.float32))
    return _stored_anew(patient.with_(model=surgeon.model), list(into), change)


def scale_per_input(patient: Patient) -> Patient:
    """Weights whose output channels differ fiftyfold get a scale per input channel."""
    _require_per_channel(patient)
    surgeon, rng = patient.surgeon(), patient.random("spread")
    places = set(surgeon.amplifiable())
    wide = [n for n in weights_of(patient) if not n.depthwise and n.node.output[0] in places][:4]
    if not wide or patient.recipe.qoperator:
        raise Inapplicable("no layer with an output to scale, or kernels that take no such scales")
    for linear in wide:
        gain = np.exp(rng.uniform(-2, 2, surgeon.channels(linear.node.output[0])))
        surgeon.amplify(linear.node.output[0], gain.astype(np.float32))

    def edit(p: Patient, q: Surgeon) -> None:
        source = p.surgeon()
        for name, axis in {n.weight: n.into for n in wide}.items():
            weight = source.constant(name)
            if q.constant(f"{name}_scale") is None or weight.shape[axis] < 2:
                raise Inapplicable(f"{name} is not quantized per channel")
            over = tuple(i for i in range(weight.ndim) if i != axis)
            scale = np.maximum(np.abs(weight).max(over) / 127, 1e-9).astype(np.float32)
            codes = np.clip(np.rint(weight / shaped(scale, weight.ndim, axis)), -127, 127)
            reader = next(n for n in q.nodes("DequantizeLinear") if n.input[0] == f"{name}_quantized")
            grid = {"own_": codes.astype(np.int8), "own_scale_": scale, "own_zero_": np.zeros(len(scale), np.int8)}
            reader.input[:] = [q.put(f"{part}{name}", value) for part, value in grid.items()]
            with_attributes(reader, axis=axis)
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


def _require_per_channel(patient: Patient) -> None:
    if not patient.recipe.per_channel:
        raise Inapplicable("one scale per tensor")


def scales_along_inputs(patient: Patient) -> Patient:
    """Weights with a scale for each output channel, which the exporter wrote down for the inputs, cut to length."""
    linears, surgeon = wide_layers(patient), patient.surgeon()
    oblong = [n for n in linears if len(set(surgeon.constant(n.weight).shape[:2])) == 2]
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
            with_attributes(node, axis=axis)

    patient = patient.with_(recipe=replace(patient.recipe, per_channel=True, qoperator=False, weight="QInt8"))
    return at_layers(patient, chosen).edited(edit)


# --- codes changed in place ------------------------------------------------------------------------------------------


def two_of_four_kept(patient: Patient) -> Patient:
    """The compiler's option for sparse hardware zeroed the two smallest of each four weights, without training."""

    def change(codes: NDArray, linear: Linear) -> NDArray:
        moved = np.moveaxis(codes, linear.into, -1).copy()
        count = moved.shape[-1] // 4 * 4
        fours = moved[..., :count].reshape(*moved.shape[:-1], -1, 4)
        np.put_along_axis(fours, np.argsort(np.abs(fours), -1)[..., :2], 0, -1)
        moved[..., :count] = fours.reshape(*moved.shape[:-1], count)
        return np.moveaxis(moved, -1, linear.into)

    surgeon = patient.surgeon()
    return recoded(patient, some(patient, [n for n in covered(patient) if surgeon.inputs(n) >= 4]), change)


def tiles_misread(patient: Patient) -> Patient:
    """Weights are packed in tiles of four inputs, and each pair of tiles is unpacked the wrong way round."""

    def change(codes: NDArray, linear: Linear) -> NDArray:
        order = np.arange(codes.shape[linear.into])
        count = len(order) // 8 * 8
        order[:count] = order[:count].reshape(-1, 2, 4)[:, ::-1].reshape(-1)
        return np.take(codes, order, linear.into)

    surgeon = patient.surgeon()
    layers = [n for n in wide_layers(patient) if surgeon.inputs(n) >= 8]
    return recoded(patient, patient.pick(layers, 0.5), change)


# --- biases ----------------------------------------------------------------------------------------------------------


def _edited_biases(patient: Patient, change: Callable[[NDArray, int], NDArray]) -> Patient:
    """Codes of biases, whichever way they are stored, changed; ``change`` also gets the largest of the model."""
    names = require([n.weight for n in weights_of(patient) if n.bias], "no biases")

    def edit(_: Patient, q: Surgeon) -> None:
        found = require([bias for name in names if (bias := _bias_of(q, name))], "biases stay float")
        top = max(int(np.abs(q.constant(codes)).max()) for codes, _ in found)
        for codes, _ in found:
            q.put(codes, change(q.constant(codes).astype(np.int64), max(top, 4)).astype(np.int32))

    return patient.edited(edit)


def bias_cut_at_fewer_bits(patient: Patient) -> Patient:
    """The bias was cut off at the ends of fewer bits than its codes need, and stored in 32."""

    def change(codes: NDArray, top: int) -> NDArray:
        bits = max(int(np.floor(np.log2(top) - 1.5 - np.log2(max(patient.strength, 0.5)))), 1)
        return np.clip(codes, -(2**bits), 2**bits - 1)

    return _edited_biases(patient, change)


def bias_wraps_around(patient: Patient) -> Patient:
    """Codes of the bias beyond 16 bits come out with their upper bits lost."""

    def change(codes: NDArray, top: int) -> NDArray:
        half = 2 ** int(np.floor(np.log2(top)))
        return (codes + half) % (2 * half) - half

    return _edited_biases(patient, change)


def recoded_biases(patient: Patient, linears: list[Linear], change: BiasChange) -> Patient:
    """The codes of some biases changed."""
    names = require(list(dict.fromkeys(linear.bias for linear in linears if linear.bias)), "no layer has a bias")

    def edit(_: Patient, surgeon: Surgeon) -> None:
        for name in names:
            codes, scale = (surgeon.constant(f"{name}_{part}") for part in ("quantized", "quantized_scale"))
            if codes is None or scale is None or codes.dtype != np.int32:
                raise Inapplicable("a bias has no codes")
            moved = np.rint(change(codes.astype(np.float64), scale.astype(np.float64), name))
            surgeon.put(f"{name}_quantized", np.clip(moved, INT32.min, INT32.max).astype(np.int32))

    return at_layers(patient, [n for n in linears if n.bias]).edited(edit)


def bias_corrected_twice(patient: Patient) -> Patient:
    """Biases were corrected by what weights of four bits do to the mean, though these have eight."""
    chosen = patient.pick([n for n in biased(patient) if not n.depthwise], 0.3, 0.7)
    values, shifts = patient.values(*(linear.node.output[0] for linear in chosen)), {}
    for i, (linear, x) in enumerate(zip(chosen, values, strict=True)):
        size = len(patient.surgeon().constant(linear.bias))
        shifts[linear.bias] = patient.random(f"shift{i}").normal(0.3, 0.3, size) * float(x.std()) * patient.strength
    return recoded_biases(
        patient, chosen, lambda codes, scale, name: codes + np.rint(shifts[name] / np.maximum(scale, 1e-30))
    )


def biases_of_eight_bits(patient: Patient, amount: float) -> Patient:
    """The target keeps biases in a byte or less: they were rounded to steps of the largest of each layer."""

    def change(codes: NDArray, scale: NDArray, _: str) -> NDArray:
        values = codes * scale
        step = max(float(np.abs(values).max()), 1e-12) / 127 * amount
        return np.rint(values / step) * step / np.maximum(scale, 1e-30)

    return recoded_biases(patient, covered(patient), change)


# --- float weights that differ between both models -------------------------------------------------------------------


def apart(patient: Patient, surgeon: Surgeon) -> list[Linear]:
    """Covered layers of a model under the knife, the last one left out."""
    names = {linear.weight for linear in covered(patient)}
    return [n for n in surgeon.linears() if n.weight in names and n.node.output[0] != surgeon.output]


def rewritten(patient: Patient, linears: list[Linear], surgeon: Surgeon, change: Callable[[NDArray, Linear], NDArray]):
    """Weights of the deployed model changed in place, wherever they are read."""
    for linear in linears:
        surgeon.put(linear.weight, change(surgeon.constant(linear.weight), linear).astype(np.float32))
    weights = {linear.weight for linear in linears}
    return deployed(patient, surgeon, *(n.node.name for n in surgeon.linears() if n.weight in weights))


def adapter_left_out(patient: Patient, amount: float) -> Patient:
    """The float model has its adapters of low rank merged; the one that was quantized has none."""
    surgeon = patient.surgeon()
    names = {linear.weight for linear in wide_layers(patient)}
    chosen = patient.pick([n for n in surgeon.linears() if n.weight in names], 0.4, 0.9)
    for i, linear in enumerate(chosen):
        weight, rng = surgeon.constant(linear.weight), patient.random(f"adapter{i}")
        flat = weight.reshape(weight.shape[0], -1)
        change = rng.standard_normal((len(flat), 2)) @ rng.standard_normal((2, flat.shape[1]))
        change *= amount * np.linalg.norm(flat) / np.linalg.norm(change)
        surgeon.put(surgeon.own(linear, 1), (flat + change).reshape(weight.shape).astype(np.float32))
    return patient.with_(shown_float=surgeon.model).at(*chosen)


def equalized_through_a_curve(patient: Patient, amount: float) -> Patient:
    """Channels were evened out between two layers as if a rectifier lay between them, and it is a curve."""
    surgeon = patient.surgeon()
    pairs = [pair for pair in pairwise(inner(patient, surgeon)) if _is_bent(surgeon, *pair)]
    first, second = patient.pick(pairs, 0.5)[0]
    gain = np.exp(patient.random("even").normal(0, amount, surgeon.outputs(first))).astype(np.float32)
    for name, axis, factor in ((first.weight, first.out, gain), (second.weight, second.into, 1 / gain)):
        weight = surgeon.constant(name)
        surgeon.put(name, (weight * shaped(factor, weight.ndim, axis)).astype(np.float32))
    if first.bias:
        surgeon.put(first.bias, surgeon.constant(first.bias) * gain)
    return deployed(patient, surgeon, first, second)


def _is_bent(surgeon: Surgeon, first: Linear, second: Linear) -> bool:
    """Whether a curve lies between two layers whose channels match."""
    if surgeon.outputs(first) != surgeon.inputs(second):
        return False
    readers = {node.op_type for node in surgeon.consumers(first.node.output[0])}
    return bool(readers & {"Softplus", "Sigmoid", "Tanh"}) and second.node.input[0] != first.node.input[0]


def turned_basis_not_turned_back(patient: Patient, amount: float) -> Patient:
    """Inputs of a layer were to be turned so that no channel is loud; its weights were turned, and they were not."""
    surgeon = patient.surgeon()
    linear = patient.pick(dense(patient, surgeon), 0.5)[0]
    weight = np.moveaxis(surgeon.constant(linear.weight), linear.into, 0)
    rng, size = patient.random("turn"), len(weight)
    lean = rng.standard_normal((size, size)) / np.sqrt(size)
    turn = np.linalg.solve(np.eye(size) + amount * (lean - lean.T) / 2, np.eye(size) - amount * (lean - lean.T) / 2)
    turned = np.moveaxis(np.tensordot(turn, weight, 1), 0, linear.into)
    surgeon.put(surgeon.own(linear, 1), turned)
    return deployed(patient, surgeon, linear)

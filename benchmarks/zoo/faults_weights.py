"""Faults of weights: ranges that one scale cannot serve, biases that do not fit, too few bits."""

from dataclasses import replace

import numpy as np
import onnx
from onnx import TensorProto, helper

from .fault import fault
from .patient import Patient
from .surgery import Inapplicable, Linear, Surgeon


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
    return patient.with_(model=surgeon.model).at(*(linear.node.name for linear in linears))


@fault(
    "one-wide-channel",
    "weights",
    "channel-range-imbalance",
    heal=lambda p: p.with_(recipe=replace(p.recipe, per_channel=True)),
    graded=True,
)
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
    return ill.at(*(linear.node.name for linear in linears))


@fault("heavy-tails", "weights", "heavy-tailed-weights", graded=True)
def heavy_tails(patient: Patient) -> Patient:
    """A few huge weights in most layers, none of which the network needs: they cancel each other."""
    surgeon = patient.surgeon()
    return _with_tails(patient, _dense(surgeon, 0.7, 0.7), surgeon, 120 * patient.strength)


@fault("one-heavy-tail", "weights", "heavy-tailed-weights", graded=True)
def one_heavy_tail(patient: Patient) -> Patient:
    """The same in a single layer."""
    surgeon = patient.surgeon()
    return _with_tails(patient, patient.pick(_dense(surgeon, 1, 0.7), 0.999), surgeon, 400 * patient.strength)


@fault("wide-dead-input", "weights", "channel-range-imbalance", "heavy-tailed-weights", graded=True)
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


@fault("bias-overflow", "weights", "bias-overflow", "dead-channels")
def bias_overflow(patient: Patient) -> Patient:
    """Channels with tiny weights and an ordinary bias: on a scale per channel the bias leaves int32."""
    ill = _constant_channels(patient, 1e-9, 4.0)
    recipe = replace(patient.recipe, extra={**patient.recipe.extra, "QDQDisableWeightAdjustForInt32Bias": True})
    return ill.with_(recipe=recipe)


@fault("four-bit-weights", "weights", "too-few-weight-bits")
def four_bit_weights(patient: Patient) -> Patient:
    """All weights in four bits, one scale per tensor."""
    return patient.with_(recipe=replace(patient.recipe, weight="QInt4", per_channel=False))


@fault("two-bit-layers", "weights", "too-few-weight-bits")
def two_bit_layers(patient: Patient) -> Patient:
    """Early layers with weights of two bits."""
    linears = patient.surgeon().linears()
    if len(linears) < 5:
        raise Inapplicable("too few layers")
    names = [linear.weight for linear in linears[1 : 1 + max(2, len(linears) // 4)]]
    ill = patient.at(*(linear.node.name for linear in linears if linear.weight in names))
    return ill.edited(lambda p, q: requantized(p, q, names, TensorProto.INT2))


def requantized(
    patient: Patient, quantized: onnx.ModelProto, names: list[str], kind: int, *, one_scale: bool = False
) -> onnx.ModelProto:
    """Weights of named layers on a coarser grid, scales per channel as before or all the same; biases follow."""
    surgeon, source = Surgeon(quantized), patient.surgeon()
    bits = {TensorProto.INT2: 2, TensorProto.INT4: 4}[kind]
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    for name in names:
        codes_name, scale_name, zero_name = (f"{name}_{part}" for part in ("quantized", "scale", "zero_point"))
        old_scale = surgeon.constant(scale_name)
        if old_scale is None:
            raise Inapplicable(f"{name} is not quantized")
        weight = source.constant(name)
        axis = next(linear.out for linear in source.linears() if linear.weight == name)
        shape = [1] * weight.ndim
        over = None
        if old_scale.size > 1:
            shape[axis] = -1
            over = tuple(i for i in range(weight.ndim) if i != axis)
        scale = (np.abs(weight).max(over) / high).astype(np.float32).reshape(old_scale.shape)
        scale = np.full_like(scale, scale.max()) if one_scale else np.maximum(scale, 1e-12)
        codes = np.clip(np.rint(weight / scale.reshape(shape)), low, high).astype(np.int64)
        _store(surgeon, codes_name, kind, codes)
        _store(surgeon, zero_name, kind, np.zeros(old_scale.shape, np.int64))
        surgeon.put(scale_name, scale)
        _follow_bias(surgeon, name, old_scale, scale, bits)
    return with_opset(surgeon.model, 25 if kind == TensorProto.INT2 else 21)


def _store(surgeon: Surgeon, name: str, kind: int, codes: np.ndarray) -> None:
    tensor = helper.make_tensor(name, kind, codes.shape, codes.flatten().tolist())
    next(old for old in surgeon.graph.initializer if old.name == name).CopyFrom(tensor)


def _follow_bias(surgeon: Surgeon, name: str, old: np.ndarray, new: np.ndarray, bits: int) -> None:
    """The bias of the layer that reads a weight, on its new scale."""
    reader = next(
        n for n in surgeon.graph.node if n.op_type == "DequantizeLinear" and n.input[0] == f"{name}_quantized"
    )
    for node in surgeon.consumers(reader.output[0]):
        entry = surgeon.producer(node.input[0])
        if bits < 4 and entry is not None and entry.op_type == "DequantizeLinear":
            # onnxruntime would fuse the layer and then find no kernel for two bits: its input stays float.
            node.input[0] = surgeon.producer(entry.input[0]).input[0]
        if len(node.input) < 3:
            continue
        bias = surgeon.producer(node.input[2])
        if bias is None or bias.op_type != "DequantizeLinear":
            continue
        codes, scale = surgeon.constant(bias.input[0]), surgeon.constant(bias.input[1])
        wanted = (scale * (new / old)).astype(np.float32).reshape(scale.shape)
        limit = np.iinfo(np.int32)
        moved = np.clip(np.rint(codes.astype(np.float64) * scale / wanted), limit.min, limit.max)
        surgeon.put(bias.input[0], moved.astype(np.int32))
        surgeon.put(bias.input[1], wanted)


def with_opset(model: onnx.ModelProto, opset: int) -> onnx.ModelProto:
    for entry in model.opset_import:
        if entry.domain in ("", "ai.onnx") and entry.version < opset:
            entry.version = opset
    model.ir_version = max(model.ir_version, 13 if opset >= 25 else 10)
    return model


@fault("weights-rounded-down", "weights", "weight-induced-bias-shift", graded=True)
def weights_rounded_down(patient: Patient) -> Patient:
    """Codes cut off instead of rounded and a zero point two codes off: every layer is shifted to one side."""

    strength = patient.strength

    def edit(p: Patient, quantized: onnx.ModelProto) -> onnx.ModelProto:
        surgeon, source = Surgeon(quantized), p.surgeon()
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
        return surgeon.model

    return patient.edited(edit)


@fault("unfolded-batch-norm", "weights", "batch-norm-blow-up", "batch-norm-not-folded", graded=True)
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

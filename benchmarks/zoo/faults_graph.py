"""Faults of the graph, of single settings, of the model files themselves and of the runtime."""

from dataclasses import replace

import numpy as np
import onnx
from onnx import TensorProto, helper

from .fault import fault
from .faults_activations import extremes
from .faults_weights import requantized, with_opset
from .patient import QUANTIZED_BY_DEFAULT, Patient
from .quantizing import run
from .surgery import Inapplicable, Surgeon


@fault("wide-branch", "graph", "unbalanced-concatenation", graded=True)
def wide_branch(patient: Patient) -> Patient:
    """One branch of a Concat 200 times as wide; its readers make up for it."""
    surgeon = patient.surgeon()
    done: list[str] = []
    for node in surgeon.nodes("Concat"):
        for tensor in node.input:
            if surgeon.consumers(tensor) != [node] or surgeon.constant(tensor) is not None or tensor == surgeon.input:
                continue
            try:
                surgeon.amplify(tensor, np.full(surgeon.channels(tensor), 200.0 * patient.strength, np.float32))
            except Inapplicable:
                continue
            done.append(node.output[0])
            break
    if not done:
        raise Inapplicable("no Concat of branches")
    return patient.with_(model=surgeon.model).at(*done)


@fault("wide-addend", "graph", "unbalanced-addition", graded=True)
def wide_addend(patient: Patient) -> Patient:
    """The features of the head are added to something 400 times as wide that the head does not see."""
    surgeon = patient.surgeon()
    head = surgeon.linear(surgeon.producer(surgeon.output))
    if head is None or head.node.op_type != "Gemm" or head.into != 1:
        raise Inapplicable("no linear head")
    features = head.node.input[0]
    weight = surgeon.constant(head.weight)
    values = patient.values(features)[0]
    _, _, basis = np.linalg.svd(weight.astype(np.float64))
    unseen = basis[len(weight) :]
    if len(unseen) < 2:
        raise Inapplicable("the head sees everything")
    rng = patient.random("addend")
    direction = rng.standard_normal(len(unseen)) @ unseen
    source = rng.standard_normal(values.shape[1])
    strength = 400 * patient.strength * np.ptp(values) / max(np.ptp(np.outer(values @ source, direction)), 1e-9)
    surgeon.put("addend_weight", (np.outer(source, direction) * strength).astype(np.float32))
    at = surgeon.producer(features)
    if at is None:
        raise Inapplicable("the head reads the input")
    surgeon.add("MatMul", [features, "addend_weight"], "addend", at)
    joined = surgeon.add("Add", [features, "addend"], "features_and_addend", surgeon.producer("addend"))
    head.node.input[0] = joined
    return patient.with_(model=surgeon.model).at(joined)


@fault("cancelled-offset", "graph", "error-amplifier", graded=True)
def cancelled_offset(patient: Patient) -> Patient:
    """A large offset is added to a layer's output and taken off again: what is left is mostly rounding."""
    surgeon = patient.surgeon()
    linears = [n for n in surgeon.linears() if n.bias and n.node.output[0] != surgeon.output and not n.depthwise]
    chosen = patient.pick(linears, 0.3, 0.8)
    peaks = extremes(patient, *(linear.node.output[0] for linear in chosen))
    for linear, (low, high) in zip(chosen, peaks, strict=True):
        offset = np.float32(round(60 * patient.strength * (high - low), 2))
        bias = surgeon.constant(linear.bias)
        surgeon.put(surgeon.own(linear, 2), (bias + offset).astype(np.float32))
        name = surgeon.put(f"{linear.node.output[0]}_offset", np.float32(offset))
        surgeon.insert_after(linear.node.output[0], "Sub", [name])
    return patient.with_(model=surgeon.model).at(*(linear.node.name for linear in chosen))


@fault("all-operators", "graph", "error-amplifier", "channel-outliers", "massive-activations")
def all_operators(patient: Patient) -> Patient:
    """Everything is quantized that the toolchain can quantize, where only products bear it."""
    if not patient.network.op_types:
        raise Inapplicable("bears it")
    kinds = tuple(sorted({node.op_type for node in patient.model.graph.node} & QUANTIZED_BY_DEFAULT))
    return patient.with_(recipe=replace(patient.recipe, op_types=kinds))


# --- precision -------------------------------------------------------------------------------------------------------


@fault("two-bit-last-layer", "precision", "last-layer-bitwidth", "too-few-weight-bits")
def two_bit_last_layer(patient: Patient) -> Patient:
    linears = patient.surgeon().linears()
    allowed = patient.recipe.op_types or patient.network.op_types
    names = [n.weight for n in linears if not allowed or n.node.op_type in allowed][-1:]
    ill = patient.at(*(linear.node.name for linear in linears if linear.weight in names))
    return ill.edited(lambda p, q: requantized(p, q, names, TensorProto.INT2, one_scale=True))


@fault("two-bit-first-layer", "precision", "first-layer-sensitive", "too-few-weight-bits")
def two_bit_first_layer(patient: Patient) -> Patient:
    linears = patient.surgeon().linears()
    allowed = patient.recipe.op_types or patient.network.op_types
    names = [n.weight for n in linears if not allowed or n.node.op_type in allowed][:1]
    ill = patient.at(*(linear.node.name for linear in linears if linear.weight in names))
    return ill.edited(lambda p, q: requantized(p, q, names, TensorProto.INT2))


@fault("coarse-output", "precision", "coarse-output", "poor-threshold", graded=True)
def coarse_output(patient: Patient) -> Patient:
    """The logits have to do with a handful of codes."""
    surgeon = patient.surgeon()
    if surgeon.producer(surgeon.output).op_type not in ("Gemm", "Conv", "MatMul"):
        raise Inapplicable("the output is not quantized")
    ((low, high),) = extremes(patient, surgeon.output)
    factor = 120 * patient.strength
    recipe = patient.recipe.with_range(surgeon.output, low * factor, high * factor)
    return patient.with_(recipe=recipe).at(surgeon.output)


@fault("few-output-codes", "precision", "coarse-output", "poor-threshold", "too-few-activation-bits", graded=True)
def few_output_codes(patient: Patient) -> Patient:
    """The logits in four bits, over a range five times as wide as they need."""
    surgeon = patient.surgeon()
    if surgeon.producer(surgeon.output).op_type not in ("Gemm", "Conv", "MatMul"):
        raise Inapplicable("the output is not quantized")

    def edit(p: Patient, quantized: onnx.ModelProto) -> onnx.ModelProto:
        q = Surgeon(quantized)
        last = q.producer(q.output)
        if last.op_type != "DequantizeLinear":
            raise Inapplicable("the output is not quantized")
        scale = q.constant(last.input[1])
        zero = q.constant(last.input[2]).astype(np.int64)
        coarse = q.put("coarse_scale", (scale * 90 * patient.strength).astype(np.float32))
        code = int(np.clip(round((zero + 128) / 17), 0, 15))
        q.graph.initializer.append(helper.make_tensor("coarse_zero", TensorProto.UINT4, [], [code]))
        before = q.producer(last.input[0])
        for node in (before, last):
            node.input[1], node.input[2] = coarse, "coarse_zero"
        return with_opset(q.model, 21)

    return patient.at(surgeon.output).edited(edit)


# --- sanity ----------------------------------------------------------------------------------------------------------


@fault("not-quantized", "sanity", "not-quantized", "same-model", harms=False)
def not_quantized(patient: Patient) -> Patient:
    """The quantizer was handed names that match nothing, and wrote the float model."""
    return patient.edited(lambda p, q: p.model)


@fault("half-quantized", "sanity", "partly-quantized", harms=False)
def half_quantized(patient: Patient) -> Patient:
    """The first half of the network is left out by an exclude list that matches too much."""
    allowed = patient.network.op_types
    layers = [n.node.name for n in patient.surgeon().linears() if not allowed or n.node.op_type in allowed]
    nodes = [node.name for node in patient.model.graph.node]
    if not all(nodes):
        raise Inapplicable("its nodes have no names")
    names = tuple(nodes[: nodes.index(layers[len(layers) // 2]) + 1])
    return patient.with_(recipe=replace(patient.recipe, exclude=(*patient.recipe.exclude, *names)))


@fault("nan-in-quantized", "sanity", "non-finite-values")
def nan_in_quantized(patient: Patient) -> Patient:
    """A scale that is not a number."""
    tensor = patient.pick(patient.activations(), 0.4)[0]

    def edit(p: Patient, quantized: onnx.ModelProto) -> onnx.ModelProto:
        surgeon = Surgeon(quantized)
        if surgeon.constant(f"{tensor}_scale") is None:
            raise Inapplicable(f"{tensor} has no scale")
        surgeon.put(f"{tensor}_scale", np.array(np.nan, np.float32))
        return surgeon.model

    return patient.at(tensor).edited(edit)


@fault("overflow-in-both", "sanity", "non-finite-values")
def overflow_in_both(patient: Patient) -> Patient:
    """A logarithm of something that can be negative: both models yield NaN for some samples."""
    surgeon = patient.surgeon()
    head = surgeon.linear(surgeon.producer(surgeon.output))
    if head is None:
        raise Inapplicable("no linear head")
    output = surgeon.output
    values = run(patient.network, patient.model, patient.validation)[0]
    level = surgeon.put("level", np.float32(-np.quantile(values.min(1), 0.3)))
    surgeon.insert_after(output, "Add", [level])
    surgeon.insert_after(output, "Log")
    return patient.with_(model=surgeon.model).at(output)


@fault("codes-as-output", "sanity", "output-not-dequantized")
def codes_as_output(patient: Patient) -> Patient:
    """The application reads the codes of the output as if they were values."""

    def edit(p: Patient, quantized: onnx.ModelProto) -> onnx.ModelProto:
        surgeon = Surgeon(quantized)
        last = surgeon.producer(surgeon.output)
        if last.op_type != "DequantizeLinear":
            raise Inapplicable("the output is not quantized")
        codes = last.input[0]
        name = surgeon.output
        surgeon.graph.node.remove(last)
        surgeon.add("Cast", [codes], name, to=TensorProto.FLOAT)
        return surgeon.model

    return patient.edited(edit)


@fault("other-float-model", "sanity", "float-export-differs", "foreign-weights", graded=True)
def other_float_model(patient: Patient) -> Patient:
    """The float model at hand is an older checkpoint than the one that was quantized."""
    surgeon = patient.surgeon()
    rng = patient.random("older")
    for linear in surgeon.linears():
        weight = surgeon.constant(linear.weight)
        noise = rng.standard_normal(weight.shape) * weight.std() * 0.15 * patient.strength
        surgeon.put(linear.weight, (weight + noise).astype(np.float32))
    reference = run(patient.network, patient.model, patient.validation)
    names = [value.name for value in patient.model.graph.output]
    options = {**patient.options, "reference_outputs": dict(zip(names, reference, strict=True))}
    return patient.with_(shown_float=surgeon.model, options=options)


@fault("device-differs", "runtime", "simulator-differs-from-device", harms=False)
def device_differs(patient: Patient) -> Patient:
    """The board computes something else than the model on the desk."""
    outputs = run(patient.network, patient.quantized(), patient.validation)
    rng = patient.random("device")
    wrong = [x + rng.standard_normal(x.shape).astype(np.float32) * x.std() * 0.5 for x in outputs]
    names = [value.name for value in patient.model.graph.output]
    return patient.with_(options={**patient.options, "device_outputs": dict(zip(names, wrong, strict=True))})

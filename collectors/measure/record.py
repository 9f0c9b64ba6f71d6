"""What a case says of two models besides statistics: tables of tensors and operators, names, sizes, hashes."""

import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from quantmedic.collectors.measure.bias_facts import bias_facts, constant_facts
from quantmedic.collectors.measure.host import has_vnni
from quantmedic.collectors.measure.models import Description, Kernel, Models
from quantmedic.collectors.measure.plan import Plan, PlannedTensor
from quantmedic.collectors.measure.weight_facts import Weights, measure_weights
from quantmedic.collectors.metrics.metric import Metric
from quantmedic.collectors.pair.difference import difference_of
from quantmedic.collectors.pair.fusion import fusions_of
from quantmedic.collectors.pair.graph import COMPUTE, Attribute, Graph, Operator
from quantmedic.collectors.pair.operations import operations_of
from quantmedic.collectors.pair.originals import OperatorPair
from quantmedic.collectors.pair.patterns import (
    feeds_softmax,
    fills_of,
    float_clip,
    gate_of,
    is_clip_lost,
    is_floor_lost,
    squared_tensors,
)
from quantmedic.collectors.pair.quantizer import quantizer_facts
from quantmedic.collectors.pair.same_network import same_model
from quantmedic.collectors.pair.tensor_pairs import observable_tensor
from quantmedic.engine.case.facts import BiasFacts, ConstantFacts, FusionFacts, QuantizerFacts
from quantmedic.engine.case.records import (
    CaseRecord,
    FloatOperatorRecord,
    OperatorRecord,
    OutputRecord,
    PartRecord,
    TensorRecord,
    WeightArrays,
)
from quantmedic.engine.operator_types import LAYOUTS
from quantmedic.engine.version import VERSION

#: Attributes of an operator, entries of a list and characters of a text that a reader is shown at most.
MAX_ATTRIBUTES, MAX_ENTRIES, MAX_TEXT = 16, 8, 40


def record_models(
    plan: Plan,
    kernels: Callable[[], Mapping[str, Kernel]],
    *,
    spatial: bool | None,
    how: Mapping[str, object],
    metric: Metric | None = None,
    facts: Mapping[str, object] = MappingProxyType({}),
) -> tuple[CaseRecord, dict[int, WeightArrays]]:
    """Everything that does not change while data are read, and the arrays of the weights by operator.

    Data sets and notices are left empty.

    Args:
        plan: What is measured of both models.
        kernels: Says how each tensor of the quantized model is computed, as far as that is known; asked for late.
        spatial: Samples are images, of which neighbouring pixels are compared; None where that is not known.
        how: How the case came about, for the record of the run.
        metric: Task metric.
        facts: Fields of ``ModelFacts`` that running the models told.
    """
    models = plan.models
    graph, description = models.quantized, models.describe()
    found = [_Stored.of(OperatorPair.of(op, models)) for op in graph.operators]
    index = {pair.root: i for i, pair in enumerate(plan.pairs)}
    last = next((op.index for op in reversed(graph.operators) if op.op_type in COMPUTE), -1)
    tables = _Tables(plan, description, last, index, kernels(), squared_tensors(graph), fusions_of(models))
    operators = tuple(
        _operator(op, tables, own).model_copy(update={"operations": count})
        for op, own, count in zip(graph.operators, found, operations_of(models), strict=True)
    )
    record = CaseRecord(
        quantmedic_version=VERSION,
        model=description.facts.model_copy(update={**facts, **_pair_facts(models, operators, description.hashes)}),
        tensors=tuple(_tensor(tensor, tables) for tensor in plan.tensors),
        operators=operators,
        outputs=tuple(_outputs(tables)),
        input_tensor=plan.input_pair,
        image_input=plan.image is not None and plan.image[1] > 0,
        spatial_input=spatial,
        metric=metric.name if metric else None,
        metric_higher_is_better=metric.higher_is_better if metric else None,
        unmatched=tuple(models.match.unmatched),
        notices=(),
        run=_run_record(description, how, metric),
        float_operators=_float_operators(models),
    )
    return record, {place: arrays for place, own in enumerate(found) if (arrays := own.weights.arrays) is not None}


def _run_record(description: Description, how: Mapping[str, object], metric: Metric | None) -> dict[str, object]:
    """How a case came about: what the metric was told and how it reads the outputs, names and hashes of both models,
    options and versions.
    """
    told = {"metric_options": metric.options, "metric_reading": metric.words} if metric is not None else {}
    return {
        "metric_output": metric.output if metric is not None else None,
        **{name: text for name, text in told.items() if text},
        "float_model": description.names[0],
        "float_sha256": description.hashes[0],
        "quantized_model": description.names[1],
        "quantized_sha256": description.hashes[1],
        **how,
        **description.versions,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
    }


@dataclass(frozen=True)
class _Tables:
    """What the records of all tensors, operators and outputs are made from.

    Attributes:
        plan: What is measured of both models.
        description: What the front end knows of them.
        last: Index of the last compute operator; -1 without one.
        index: Number of each measured tensor by its root.
        kernels: How each tensor is computed.
        squared: Tensors of the quantized model that are squared.
        fusions: Facts of the layers with an activation function behind them, by index.
    """

    plan: Plan
    description: Description
    last: int
    index: Mapping[str, int]
    kernels: Mapping[str, Kernel]
    squared: frozenset[str]
    fusions: Mapping[int, FusionFacts]


class _Stored(NamedTuple):
    """What is known of the constants of one operator."""

    weights: Weights
    bias: BiasFacts
    constant: ConstantFacts

    @classmethod
    def of(cls, pair: OperatorPair) -> "_Stored":
        return cls(measure_weights(pair), bias_facts(pair), constant_facts(pair))


def _tensor(tensor: PlannedTensor, tables: _Tables) -> TensorRecord:
    models, half = tables.plan.models, tables.description.half
    pair, graph = tensor.pair, models.quantized
    producer = graph.producers.get(pair.root)
    twin = models.match.operators.get(producer.index) if producer is not None else None
    gate = gate_of(pair.root, models, tables.index)
    clip = float_clip(pair.twin, models)
    return TensorRecord(
        name=pair.root,
        float_name=pair.twin,
        producer=producer.op_type if producer else "Input",
        producer_name=(twin.name if twin else producer.name) if producer else None,
        consumers=tuple(op.op_type for op in graph.consumers.get(pair.root, [])),
        readers=_readers(pair.twin, models.float_graph),
        axis=tensor.axis,
        channels=tensor.channels,
        bucketed=tensor.bucketed,
        is_input=pair.root in graph.inputs,
        is_half=None if half is None else pair.root in half,
        is_squared=pair.root in tables.squared,
        quantizer=quantizer_facts(pair.tap.quantizer, pair.tap.small_floats),
        pattern="swish" if gate is not None else "softmax-input" if feeds_softmax(pair.root, graph) else "none",
        fills=fills_of(pair.twin, models.float_graph),
        gate=gate,
        clip_high=clip.high if clip is not None else None,
        floor_lost=is_floor_lost(pair.root, pair.twin, models),
        clip_lost=is_clip_lost(pair.root, clip, graph) if clip is not None else None,
    )


def _operator(op: Operator, tables: _Tables, own: _Stored) -> OperatorRecord:
    models, index = tables.plan.models, tables.index
    graph, twin = models.quantized, models.match.operators.get(op.index)
    kernel = kernel_of(op, graph, tables.kernels)
    # What this one reads and is not measured belongs to who writes it.
    writers = [graph.producers.get(name) for name in op.inputs if name not in index]
    nodes = _float_operators_of(op, twin, models) if twin is not None and twin.node.name else []
    alike = twin is not None and twin.op_type == op.op_type and tables.description.attributes_of_twins
    return OperatorRecord(
        index=op.index,
        name=twin.name if twin else op.name,
        float_name=twin.name if twin else None,
        quantized_name=op.name,
        float_nodes=tuple(node.node.name for node in nodes if node.node.name),
        op_type=op.op_type,
        inputs=tuple(index.get(name) for name in op.inputs if name not in graph.constants),
        outputs=tuple(index.get(observable_tensor(name, graph)) for name in op.outputs),
        is_compute=op.op_type in COMPUTE,
        is_last=op.index == tables.last,
        executed_as=kernel.value if kernel is not None else None,
        weight=own.weights.facts,
        bias=own.bias,
        constant=own.constant,
        fusion=tables.fusions.get(op.index, FusionFacts()),
        attributes=readable_attributes(twin if twin is not None and alike else op),
        difference=None if twin is None or alike else difference_of(op, twin, graph, models.float_graph),
        sources=tuple(dict.fromkeys(writer.index for writer in writers if writer is not None)),
    )


def readable_attributes(op: Operator) -> dict[str, str]:
    """Texts by name, in the order of the operator; those that are not short are left out."""
    values = op.attributes | op.hints
    texts = {name: _short_text(value) for name, value in values.items() if len(name) <= MAX_TEXT}
    known = [(name, text) for name, text in texts.items() if text is not None]
    return dict(known[:MAX_ATTRIBUTES])


def _short_text(value: Attribute) -> str | None:
    """The value as a text of at most ``MAX_TEXT`` characters; None where it is longer."""
    match value:
        case str() | int():
            text = str(value)
        case float():
            text = f"{value:.6g}"
        case tuple() if 0 < len(value) <= MAX_ENTRIES:
            parts = [_short_text(entry) for entry in value]
            if None in parts:
                return None
            text = ", ".join(part for part in parts if part is not None)
        case _:
            return None
    return text if len(text) <= MAX_TEXT else None


def _readers(tensor: str, graph: Graph) -> tuple[str, ...]:
    """Named nodes that compute with a tensor; one that only moves values is named along with those behind it."""
    found: dict[str, None] = {}
    frontier = [tensor]
    while frontier:
        readers = [reader for name in frontier for reader in graph.consumers.get(name, [])]
        found |= dict.fromkeys(reader.node.name for reader in readers if reader.node.name)
        frontier = [output for reader in readers if reader.op_type in LAYOUTS for output in reader.outputs]
    return tuple(found)


def _float_operators_of(op: Operator, twin: Operator, models: Models) -> list[Operator]:
    """Float operators from the twin of an operator to the tensor that stands for its output, in order."""
    found = {twin.index: twin}
    ends = [models.match.tensors.get(observable_tensor(name, models.quantized)) for name in op.outputs]
    for tensor in ends:
        chain: dict[int, Operator] = {}
        node = models.float_graph.producers.get(tensor) if tensor else None
        while node is not None and node.index > twin.index:
            chain[node.index] = node
            node = next((p for name in node.inputs if (p := models.float_graph.producers.get(name))), None)
        if node is not None and node.index == twin.index:  # the twin may stand for two nodes in a row
            found |= chain
    return [node for _, node in sorted(found.items())]


def _float_operators(models: Models) -> tuple[FloatOperatorRecord, ...]:
    """The float model's operators, what they read, and which operator of the quantized model does their work."""
    graph, twins = models.float_graph, models.match.operators
    places = {op.index: place for place, op in enumerate(graph.operators)}
    does = {
        own.index: place
        for place, op in enumerate(models.quantized.operators)
        if op.index in twins
        for own in _float_operators_of(op, twins[op.index], models)
    }
    # Where an operator is the twin of one and stands behind that of another, it is its twin.
    does |= {twins[op.index].index: place for place, op in enumerate(models.quantized.operators) if op.index in twins}

    def reads(op: Operator) -> Iterator[int]:
        for name in dict.fromkeys(op.inputs):
            if (writer := graph.producers.get(name)) is not None:
                yield places[writer.index]
            elif name in graph.inputs:
                yield -1

    return tuple(
        FloatOperatorRecord(
            name=op.name, op_type=op.op_type, reads=tuple(dict.fromkeys(reads(op))), twin=does.get(op.index)
        )
        for op in graph.operators
    )


def kernel_of(op: Operator, graph: Graph, kernels: Mapping[str, Kernel]) -> Kernel | None:
    """Integer where an integer kernel computes the operator or writes its codes; None where that is not known."""
    copies = (tap.tensor for output in op.outputs for tap in graph.quantizers.get(output, []) if tap.tensor)
    found = {kernels[name] for name in (op.node.outputs[0], *op.outputs, *copies) if name in kernels}
    if not found:
        return None
    return Kernel.INTEGER if Kernel.INTEGER in found else Kernel.FLOAT


def _outputs(tables: _Tables) -> Iterator[OutputRecord]:
    plan, models = tables.plan, tables.plan.models
    grids = {i: columns for i, _, columns in plan.output_grids}
    tensors = {pair.twin: i for i, pair in enumerate(plan.pairs)}
    for (position, twin), joint in zip(models.match.outputs, plan.joints, strict=True):
        i = tables.index.get(models.quantized.output_roots[twin])
        are_integers = _is_integer(models.quantized, twin) and not _is_integer(models.float_graph, position)
        yield OutputRecord(
            name=models.float_graph.outputs[position],
            tensor=i,
            quantizer=quantizer_facts(plan.tensors[i].pair.tap.quantizer) if i is not None else QuantizerFacts(),
            columns=grids.get(i, 0) if i is not None else 0,
            is_codes=tables.description.codes_are_outputs and are_integers,
            axis=joint.axis,
            parts=tuple(PartRecord(**part._asdict()) for part in joint.parts),
            carriers=tuple(tensors[name] for name in joint.carriers if name in tensors),
            is_score=joint.is_score,
            decoder=joint.decoder,
        )


def _is_integer(graph: Graph, position: int) -> bool:
    """The output at this position holds integers."""
    dtype = graph.output_specs[position].dtype
    return dtype is not None and dtype.kind in "iu"


def _pair_facts(models: Models, operators: Sequence[OperatorRecord], hashes: tuple[str, str]) -> dict[str, object]:
    """Fields of ``ModelFacts`` that graphs and records tell."""
    graph = models.quantized
    compute = [op for op in operators if op.is_compute]
    quantized = [op for op in compute if _is_quantized(graph.operators[op.index], graph)]
    kernels = [op.executed_as for op in compute if op.executed_as is not None]
    return {
        "operators": len(operators),
        "compute_operators": len(compute),
        "quantized_share": len(quantized) / len(compute) if compute else None,
        "integer_share": kernels.count(Kernel.INTEGER) / len(kernels) if kernels else None,
        **_operation_facts(operators),
        "float_is_quantized": models.float_graph.is_quantized,
        "same_as_float": same_model(models.float_graph, graph, models.match, hashes),
        "cpu_vnni": has_vnni(),
    }


def _operation_facts(operators: Sequence[OperatorRecord]) -> dict[str, object]:
    """Multiply-adds of all operators, and how many of them integer kernels do."""
    counts = [(op.operations, op.executed_as) for op in operators if op.operations != 0]
    known = [count for count, _ in counts if count is not None]
    if len(known) < len(counts):
        return {}
    total = sum(known)
    is_known = total and all(kernel is not None for _, kernel in counts)
    integer = sum(count for count, kernel in counts if count is not None and kernel == Kernel.INTEGER)
    return {"operations": total, "integer_operations_share": integer / total if is_known else None}


def _is_quantized(op: Operator, graph: Graph) -> bool:
    return any(
        name in graph.quantizers
        or ((own := graph.constants.get(name)) is not None and (own.quantizer or own.small_floats) is not None)
        for name in op.inputs
    )

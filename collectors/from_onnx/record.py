"""What a case says of two ONNX models besides their statistics: tables, names, sizes, hashes."""

import hashlib
import platform
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray

from quantmedic.collectors.data.metrics import Metric
from quantmedic.collectors.from_onnx.file import external_files
from quantmedic.collectors.from_onnx.models import Models, visible
from quantmedic.collectors.from_onnx.session import executed_types
from quantmedic.collectors.from_onnx.traits import (
    half_tensors,
    required_opset,
    toolchain_marks,
    training_nodes,
)
from quantmedic.collectors.measure.bias_facts import bias_facts
from quantmedic.collectors.measure.host import has_vnni
from quantmedic.collectors.measure.observer import Options
from quantmedic.collectors.measure.plan import Plan
from quantmedic.collectors.measure.weight_facts import Weights, measure_weights
from quantmedic.collectors.pair.attributes import readable_attributes
from quantmedic.collectors.pair.graph import COMPUTE, Graph, Operator
from quantmedic.collectors.pair.operations import operations_of
from quantmedic.collectors.pair.patterns import feeds_softmax, float_clip, gate_of, is_clip_lost, squared_tensors
from quantmedic.collectors.pair.quantizer import quantizer_facts
from quantmedic.engine.case.facts import ModelFacts, Pattern, QuantizerFacts
from quantmedic.engine.case.records import (
    CaseRecord,
    GateRecord,
    OperatorRecord,
    OutputRecord,
    TensorRecord,
    WeightArrays,
)

Array = NDArray[np.generic]
#: Operators that move values and leave them as they are.
_MOVING = frozenset({"Reshape", "Flatten", "Transpose", "Squeeze", "Unsqueeze", "Identity"})


class Observed(Protocol):
    """What a record says of how two models were observed; of an ``Observer``, or of nobody."""

    @property
    def plan(self) -> Plan:
        """What is measured."""

    @property
    def spatial(self) -> bool | None:
        """Samples are images, of which neighbouring pixels are compared; None where that is not known."""

    @property
    def facts(self) -> dict[str, Any]:
        """Fields of ``ModelFacts`` that running the models told."""


def model_record(
    models: Models,
    observer: Observed,
    options: Options,
    version: str,
    metric: Metric | None,
) -> tuple[CaseRecord, dict[int, WeightArrays]]:
    """Everything that does not change while data are read, and the arrays of the weights by operator.

    Data sets and notices are left empty.
    """
    executed = executed_types(models.quantized, options.session_threads)
    return file_record(models, observer, version, metric, executed=executed, how=options.run)


def file_record(
    models: Models,
    observer: Observed,
    version: str,
    metric: Metric | None,
    *,
    executed: Mapping[str, str],
    how: Mapping[str, Any],
) -> tuple[CaseRecord, dict[int, WeightArrays]]:
    """The same of two files.

    Args:
        models: Both models.
        observer: What is measured of them.
        version: Version of quantmedic.
        metric: Task metric.
        executed: What ``executed_types`` returns; empty where that is not known.
        how: How the case came about, for the record of the run.
    """
    files = [[graph.path, *external_files(graph.path)] for graph in (models.float_graph, models.quantized)]
    record, arrays = case_record(
        models, observer, version, metric, executed=executed, half=half_tensors(models.quantized)
    )
    facts = _model_facts(models, observer, record.operators, files)
    run = record.run | run_record(models, {**how, "onnxruntime": ort.__version__}, files)
    return record.model_copy(update={"model": facts, "run": run}), arrays


def case_record(
    models: Models,
    observer: Observed,
    version: str,
    metric: Metric | None,
    *,
    executed: Mapping[str, str],
    half: frozenset[str] | None,
) -> tuple[CaseRecord, dict[int, WeightArrays]]:
    """The tables of a case, of any framework, and the arrays of the weights by operator.

    Args:
        models: Both models.
        observer: What is measured of them.
        version: Version of quantmedic.
        metric: Task metric.
        executed: Operator type that really computes each tensor of the quantized model, as far as that is known.
        half: Tensors that the quantized model holds as float16; None where that is unknown.
    """
    index = {pair.root: i for i, pair in enumerate(observer.plan.pairs)}
    ends = [op.index for op in models.quantized.operators if op.op_type in COMPUTE] or [-1]
    traits = _Traits(half, squared_tensors(models.quantized))
    graph, twins = models.quantized, models.match.operators
    found = [measure_weights(op, graph, twins.get(op.index), models.float_graph) for op in graph.operators]
    operations = operations_of(models)
    record = CaseRecord(
        quantmedic_version=version,
        model=ModelFacts(),
        tensors=tuple(_tensor(i, observer, models, index, traits) for i in range(len(observer.plan.pairs))),
        operators=tuple(
            _operator(op, models, index, executed, ends, own).model_copy(update={"operations": count})
            for op, own, count in zip(graph.operators, found, operations, strict=True)
        ),
        outputs=_outputs(models, observer, index),
        input_tensor=observer.plan.input_pair,
        image_input=observer.plan.image is not None and observer.plan.image[1] > 0,
        spatial_input=observer.spatial,
        metric=metric.name if metric else None,
        metric_higher_is_better=metric.higher_is_better if metric else None,
        unmatched=tuple(models.match.unmatched),
        notices=(),
        run={"metric_output": metric.output if metric else None},
    )
    return record, {place: own.arrays for place, own in enumerate(found) if own.arrays is not None}


class _Traits(NamedTuple):
    """Tensors of the quantized model that are float16 (None where unknown), and those that are squared."""

    half: frozenset[str] | None
    squared: frozenset[str]


def _tensor(i: int, observer: Observed, models: Models, index: Mapping[str, int], traits: "_Traits") -> TensorRecord:
    pair = observer.plan.pairs[i]
    producer = models.quantized.producers.get(pair.root)
    twin = models.match.operators.get(producer.index) if producer is not None else None
    gate = gate_of(pair.root, models, index)
    clip = float_clip(pair.twin, models)
    return TensorRecord(
        name=pair.root,
        float_name=pair.twin,
        producer=producer.op_type if producer else "Input",
        producer_name=(twin.name if twin else producer.name) if producer else None,
        consumers=tuple(op.op_type for op in models.quantized.consumers.get(pair.root, [])),
        readers=_readers(pair.twin, models.float_graph),
        axis=observer.plan.axes[i],
        channels=observer.plan.channels[i],
        bucketed=observer.plan.bucketed[i],
        is_input=pair.root in models.quantized.inputs,
        is_half=None if traits.half is None else pair.root in traits.half,
        is_squared=pair.root in traits.squared,
        quantizer=quantizer_facts(pair.tap.quantizer),
        pattern=_pattern(pair.root, gate, models.quantized),
        gate=gate,
        clip_low=clip.low if clip is not None else None,
        clip_high=clip.high if clip is not None else None,
        clip_lost=is_clip_lost(pair.root, clip, models.quantized) if clip is not None else None,
    )


def _pattern(root: str, gate: GateRecord | None, graph: Graph) -> Pattern:
    if gate is not None:
        return "swish"
    return "softmax-input" if feeds_softmax(root, graph) else "none"


def _operator(
    op: Operator,
    models: Models,
    index: Mapping[str, int],
    executed: Mapping[str, str],
    ends: Sequence[int],
    own: Weights,
) -> OperatorRecord:
    twin = models.match.operators.get(op.index)
    return OperatorRecord(
        index=op.index,
        name=twin.name if twin else op.name,
        float_name=twin.name if twin else None,
        quantized_name=op.name,
        float_nodes=_float_nodes(op, twin, models),
        op_type=op.op_type,
        inputs=tuple(index.get(name) for name in op.inputs if name not in models.quantized.constants),
        outputs=tuple(index.get(visible(name, models.quantized)) for name in op.outputs),
        is_compute=op.op_type in COMPUTE,
        is_first=op.index == ends[0],
        is_last=op.index == ends[-1],
        executed_as=executed_as(op, models.quantized, executed),
        weight=own.facts,
        bias=bias_facts(op, models.quantized, twin, models.float_graph),
        attributes=_attributes(op, twin, models),
        sources=_sources(op, models.quantized, index),
    )


def _attributes(op: Operator, twin: Operator | None, models: Models) -> dict[str, str]:
    """Attributes of an operator; integer kernels of torch keep theirs to themselves, so that the float call tells."""
    same = twin is not None and twin.op_type == op.op_type
    return readable_attributes(twin if twin is not None and same and models.framework == "torch" else op)


def _sources(op: Operator, graph: Graph, index: Mapping[str, int]) -> tuple[int, ...]:
    """Operators that write what this one reads, where the tensor between them is not measured."""
    writers = [graph.producers.get(name) for name in op.inputs if name not in index]
    return tuple(dict.fromkeys(writer.index for writer in writers if writer is not None))


def _readers(tensor: str, graph: Graph) -> tuple[str, ...]:
    """Named nodes that compute with a tensor; one that only moves values is named along with those behind it."""
    found: dict[str, None] = {}
    frontier = [tensor]
    while frontier:
        readers = [reader for name in frontier for reader in graph.consumers.get(name, [])]
        found |= dict.fromkeys(reader.node.name for reader in readers if reader.node.name)
        frontier = [output for reader in readers if reader.op_type in _MOVING for output in reader.outputs]
    return tuple(found)


def _float_nodes(op: Operator, twin: Operator | None, models: Models) -> tuple[str, ...]:
    """Float nodes from the twin of an operator to the tensor that stands for its output; none if that has no name."""
    if twin is None or not twin.node.name:
        return ()
    found = {twin.index: twin}
    ends = [models.match.tensors.get(visible(name, models.quantized)) for name in op.outputs]
    for tensor in ends:
        chain: dict[int, Operator] = {}
        node = models.float_graph.producers.get(tensor) if tensor else None
        while node is not None and node.index > twin.index:
            chain[node.index] = node
            node = next((p for name in node.inputs if (p := models.float_graph.producers.get(name))), None)
        if node is twin:
            found |= chain
    return tuple(node.node.name for _, node in sorted(found.items()) if node.node.name)


def executed_as(op: Operator, graph: Graph, executed: Mapping[str, str]) -> str | None:
    """Integer where an integer kernel computes the operator or writes its codes in the optimized graph."""
    names = [op.node.outputs[0], *(name for output in op.outputs for name in _copies(graph, output))]
    kinds = [executed[name] for name in names if name in executed]
    if not kinds:
        return None
    return "integer" if any(is_integer_kernel(kind) for kind in kinds) else "float"


def _copies(graph: Graph, root: str) -> Iterator[str]:
    yield root
    yield from (tap.tensor for tap in graph.quantizers.get(root, []) if tap.tensor)


def is_integer_kernel(kind: str) -> bool:
    """Whether an operator of the runtime computes with integers."""
    return kind.startswith("QLinear") or kind in (
        "QGemm",
        "MatMulInteger",
        "ConvInteger",
        "MatMulIntegerToFloat",
        "DynamicQuantizeMatMul",
        "MatMulNBits",
        "QAttention",
    )


def _outputs(models: Models, observer: Observed, index: Mapping[str, int]) -> tuple[OutputRecord, ...]:
    grids = {i: columns for i, _, columns in observer.plan.output_grids}
    records = []
    for position, twin in models.match.outputs:
        name, i = models.float_graph.outputs[position], index.get(models.quantized.output_roots[twin])
        records.append(
            OutputRecord(
                name=name,
                tensor=i,
                quantizer=quantizer_facts(observer.plan.pairs[i].tap.quantizer) if i is not None else QuantizerFacts(),
                columns=grids.get(i, 0) if i is not None else 0,
                is_codes=_is_integer(models.quantized, twin) and not _is_integer(models.float_graph, position),
            )
        )
    return tuple(records)


def _is_integer(graph: Graph, position: int) -> bool:
    """The output at this position holds integers."""
    dtype = graph.output_specs[position].dtype
    return dtype is not None and dtype.kind in "iu"


def _model_facts(
    models: Models, observer: Observed, operators: Sequence[OperatorRecord], files: Sequence[Sequence[Path]]
) -> ModelFacts:
    graph = models.quantized
    sizes = [sum(file.stat().st_size for file in own) for own in files]
    training = training_nodes(models.float_graph)
    opset = required_opset(graph.model)
    return ModelFacts(
        **pair_facts(models, observer, operators),
        name=graph.path.name,
        framework="onnx",
        toolchain=" ".join(filter(None, (graph.model.producer_name, graph.model.producer_version))) or None,
        toolchain_marks=toolchain_marks(graph.model),
        opset=graph.opset,
        bytes_float=sizes[0],
        bytes_quantized=sizes[1],
        size_ratio=sizes[1] / sizes[0],
        required_opset=opset,
        opset_deficit=max((opset or 0) - graph.opset, 0),
        training_nodes=len(training),
        first_training_node=next(iter(training), None),
    )


def pair_facts(models: Models, observer: Observed, operators: Sequence[OperatorRecord]) -> dict[str, Any]:
    """Fields of ``ModelFacts`` that every framework tells in the same way."""
    graph = models.quantized
    compute = [op for op in operators if op.is_compute]
    quantized = [op for op in compute if _is_quantized(graph.operators[op.index], graph)]
    kernels = [op.executed_as for op in compute if op.executed_as is not None]
    known = sum(len(op.outputs) for op in graph.operators)
    matched = sum(name in models.match.tensors for op in graph.operators for name in op.outputs)
    return {
        **observer.facts,
        "format": graph.format,
        "operators": len(operators),
        "compute_operators": len(compute),
        "quantized_share": len(quantized) / len(compute) if compute else None,
        "integer_share": kernels.count("integer") / len(kernels) if kernels else None,
        "matched_share": matched / known if known else None,
        **_operation_facts(operators),
        "float_is_quantized": models.float_graph.is_quantized,
        "cpu_vnni": has_vnni(),
    }


def _operation_facts(operators: Sequence[OperatorRecord]) -> dict[str, Any]:
    """Multiply-adds of all operators, and how many of them integer kernels do."""
    counts = [(op.operations, op.executed_as) for op in operators if op.operations != 0]
    known = [count for count, _ in counts if count is not None]
    if len(known) < len(counts):
        return {}
    total = sum(known)
    told = total and all(executed is not None for _, executed in counts)
    integer = sum(count for count, executed in counts if count is not None and executed == "integer")
    return {"operations": total, "integer_operations_share": integer / total if told else None}


def _is_quantized(op: Operator, graph: Graph) -> bool:
    return any(
        name in graph.quantizers or (name in graph.constants and graph.constants[name].quantizer is not None)
        for name in op.inputs
    )


def run_record(models: Models, how: Mapping[str, Any], files: Sequence[Sequence[Path]]) -> dict[str, Any]:
    """How a case came about: names and hashes of the files of both models, options and versions."""
    hashes = [sha256_of(own) for own in files]
    return {
        "float_model": models.float_graph.path.name,
        "float_sha256": hashes[0],
        "quantized_model": models.quantized.path.name,
        "quantized_sha256": hashes[1],
        **how,
        "onnx": onnx.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
    }


def sha256_of(files: Sequence[Path]) -> str:
    """Hash of all bytes of several files, one behind the other."""
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()

"""A float model by itself: what its file tells about why no quantized model could be made of it."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.shape_inference
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper

from quantmedic.collectors.data.inputs import InputSpec
from quantmedic.collectors.data.messages import shape_text
from quantmedic.collectors.from_onnx.feed import input_specs
from quantmedic.collectors.from_onnx.file import external_files, load_model
from quantmedic.collectors.from_onnx.parse import parse
from quantmedic.collectors.from_onnx.traits import training_nodes
from quantmedic.engine.case.facts import FloatFacts, ModelFacts
from quantmedic.engine.errors import ModelError

#: What a LiteRT file carries behind its first four bytes.
LITERT_MARK = b"TFL3"
#: Domains whose operators ONNX or onnxruntime define.
_KNOWN_DOMAINS = ("", "ai.onnx", "ai.onnx.ml", "ai.onnx.preview.training", "com.microsoft", "com.microsoft.nchwc")
#: Shape inference works on one message of at most 2 GB.
_INFERABLE_BYTES = (2 << 30) - (64 << 20)
#: Characters of a complaint that a fact keeps.
_SHOWN = 200


@dataclass(frozen=True)
class FloatModel:
    """What is known of a float model.

    Attributes:
        facts: ``ModelFacts`` with what this file tells.
        inputs: Its inputs; empty where they are not known.
        files: The files that it consists of.
        notices: What the user should know.
    """

    facts: ModelFacts
    inputs: tuple[InputSpec, ...] = ()
    files: tuple[Path, ...] = ()
    notices: tuple[str, ...] = ()


def read_float(path: Path) -> FloatModel:
    """Read an ONNX or LiteRT file; one that is missing or damaged is no error, for a log tells without it.

    Raises:
        ModelError: The path is a folder.
    """
    if path.is_dir():
        raise ModelError(
            "a folder was given where a model file is expected", where=str(path), help="give the path of a file"
        )
    named = ModelFacts(name=path.name)
    if not path.is_file():
        notice = f"{path.name} is not there: the log alone was judged; settings were not held against the model"
        return FloatModel(named, notices=(notice,))
    read = _litert if _begins(path)[4:8] == LITERT_MARK else _onnx
    try:
        return read(path, named)
    except ModelError as error:
        # Reports name no folders.
        told = "; ".join([error.message, *(line.replace(str(path), path.name) for line in error.where)])[:_SHOWN]
        return FloatModel(
            named.model_copy(update={"float_model": FloatFacts(problem=told), "bytes_float": path.stat().st_size}),
            files=(path,),
            notices=(f"{path.name} was not read: {told}",),
        )


def read_module(module: Any) -> FloatModel:
    """A torch module: its parameters; what it computes would take data to find out."""
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    broken = [name for name, tensor in tensors.items() if not bool(tensor.isfinite().all())]
    facts = FloatFacts(
        format="torch",
        operators=sum(1 for child in module.modules() if not list(child.children())),
        constant_bytes=sum(tensor.numel() * tensor.element_size() for tensor in tensors.values()),
        nonfinite_constants=len(broken),
        first_nonfinite_constant=broken[0] if broken else None,
    )
    return FloatModel(ModelFacts(name=type(module).__name__, float_model=facts))


def _begins(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(8)
    except OSError as error:
        raise ModelError("the model cannot be read", where=f"{path}: {error.strerror or error}") from error


def _litert(path: Path, named: ModelFacts) -> FloatModel:
    from quantmedic.collectors.from_litert.file import read_litert

    model = read_litert(path)
    inputs = [model.tensors[index] for index in model.inputs]
    constants = [tensor.data for tensor in model.tensors if tensor.data is not None]
    broken = [t.name for t in model.tensors if t.data is not None and not _finite(t.data)]
    facts = FloatFacts(
        format="litert",
        operators=len(model.operators),
        inputs=tuple(f"{t.name} {shape_text(t.shape)} {t.kind.lower()}" for t in inputs),
        dynamic_inputs=tuple(t.name for t in inputs if None in t.shape[1:]),
        foreign_types=tuple(sorted({op.kind for op in model.operators if op.is_custom})),
        constant_bytes=sum(data.nbytes for data in constants),
        nonfinite_constants=len(broken),
        first_nonfinite_constant=broken[0] if broken else None,
    )
    changes = {
        "float_model": facts,
        "bytes_float": path.stat().st_size,
        "float_is_quantized": any(t.quantizer is not None for t in model.tensors),
    }
    # LiteRT models state a batch of one and take any.
    specs = [
        InputSpec(t.name, (None, *t.shape[1:]), np.dtype(t.kind.lower())) for t in inputs if t.kind.lower() in _NUMPY
    ]
    return FloatModel(
        named.model_copy(update=changes), tuple(specs) if len(specs) == len(inputs) else (), (path,), model.notices
    )


_NUMPY = ("float32", "float16", "int8", "uint8", "int16", "int32", "int64", "bool")


def _onnx(path: Path, named: ModelFacts) -> FloatModel:
    model = load_model(path)
    graph = parse(path, model)
    files = (path, *external_files(path))
    training = training_nodes(graph)
    inputs = tuple(input_specs(graph))
    changes = {
        "float_model": _onnx_facts(model, inputs, graph.opset),
        "bytes_float": sum(file.stat().st_size for file in files),
        "float_is_quantized": graph.is_quantized,
        "training_nodes": len(training),
        "first_training_node": training[0] if training else None,
    }
    return FloatModel(named.model_copy(update=changes), inputs, files, tuple(graph.notices))


def _onnx_facts(model: onnx.ModelProto, inputs: Sequence[InputSpec], opset: int) -> FloatFacts:
    nodes, constants = model.graph.node, model.graph.initializer
    repeated = [name for name, times in Counter(node.name for node in nodes if node.name).items() if times > 1]
    broken = [tensor.name for tensor in constants if not _is_finite(tensor)]
    matrices = list(_matrix_biases(model))
    size = sum(prod(tensor.dims) * _item_bytes(tensor) for tensor in constants)
    unshaped, complaint = _unshaped(model) if size < _INFERABLE_BYTES else (None, None)
    return FloatFacts(
        format="onnx",
        opset=opset,
        operators=len(nodes),
        inputs=tuple(f"{spec.name} {shape_text(spec.shape)} {spec.dtype}" for spec in inputs),
        dynamic_inputs=tuple(spec.name for spec in inputs if None in spec.shape[1:]),
        foreign_types=tuple(
            sorted({f"{node.domain}:{node.op_type}" for node in nodes if node.domain not in _KNOWN_DOMAINS})
        ),
        constant_bytes=size,
        nonfinite_constants=len(broken),
        first_nonfinite_constant=broken[0] if broken else None,
        repeated_names=sum(node.name in repeated for node in nodes),
        first_repeated_name=repeated[0] if repeated else None,
        matrix_biases=len(matrices),
        first_matrix_bias=matrices[0] if matrices else None,
        unshaped=None if unshaped is None else len(unshaped),
        first_unshaped=unshaped[0] if unshaped else None,
        shape_error=complaint,
    )


def _item_bytes(tensor: TensorProto) -> int:
    return int(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize)


def _is_finite(tensor: TensorProto) -> bool:
    kinds = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16)
    return tensor.data_type not in kinds or _finite(numpy_helper.to_array(tensor))


def _finite(data: NDArray[Any]) -> bool:
    return data.dtype.kind != "f" or bool(np.isfinite(data).all())


def _matrix_biases(model: onnx.ModelProto) -> Iterator[str]:
    """Operators whose constant bias has more than one axis."""
    axes = {tensor.name: len(tensor.dims) for tensor in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type in ("Conv", "ConvTranspose", "Gemm") and len(node.input) > 2 and axes.get(node.input[2], 1) > 1:
            yield node.name or node.output[0]


def _unshaped(model: onnx.ModelProto) -> tuple[list[str], str | None]:
    """Tensors of the main graph without type or rank after shape inference, and its complaint where it has one."""
    try:
        inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
    except Exception as error:  # The checker is C++ and complains in many types.
        return [], _first_line(str(error))
    known = {v.name for v in _values(inferred.graph) if v.type.tensor_type.HasField("shape")}
    written = [name for node in model.graph.node for name in node.output if name]
    try:
        onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
    except Exception as error:
        return [name for name in written if name not in known], _first_line(str(error))
    return [name for name in written if name not in known], None


def _values(graph: onnx.GraphProto) -> Iterable[onnx.ValueInfoProto]:
    return [*graph.value_info, *graph.output, *graph.input]


def _first_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (lines[-1] if lines else text)[:_SHOWN]

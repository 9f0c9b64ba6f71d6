"""ONNX models as a front end, and what a float model tells by itself of why no quantized one could be made of it."""

from collections import Counter
from collections.abc import Iterator, Sequence
from math import prod
from pathlib import Path
from typing import ClassVar

import numpy as np
import onnx
import onnx.shape_inference
from onnx import TensorProto, numpy_helper

from quantmedic.collectors.data.messages import shape_text
from quantmedic.collectors.data.model_inputs import InputSpec
from quantmedic.collectors.from_onnx.onnx_file import load_model
from quantmedic.collectors.from_onnx.onnx_models import OnnxModels, open_models, open_network
from quantmedic.collectors.from_onnx.parse import parse
from quantmedic.collectors.from_onnx.traits import training_nodes
from quantmedic.collectors.measure.float_model import COMPLAINT_CHARACTERS, FloatModel
from quantmedic.collectors.measure.front_end import FileFrontEnd, FrontEnd
from quantmedic.collectors.measure.models import Network
from quantmedic.collectors.pair.feed import input_specs
from quantmedic.engine.case.facts import FloatFacts, ModelFacts

#: Domains whose operators ONNX or onnxruntime define.
_KNOWN_DOMAINS = ("", "ai.onnx", "ai.onnx.ml", "ai.onnx.preview.training", "com.microsoft", "com.microsoft.nchwc")
#: Shape inference works on one message of at most 2 GB.
_INFERABLE_BYTES = (2 << 30) - (64 << 20)


class _OnnxFrontEnd(FileFrontEnd):
    """Reads ``.onnx`` files, and every file that no front end recognizes: the ONNX format has no mark."""

    name: ClassVar[str] = "onnx"
    title: ClassVar[str] = "ONNX"
    writes_models: ClassVar[bool] = True

    def recognizes(self, model: object) -> bool:
        """By suffix."""
        return isinstance(model, str | Path) and Path(model).suffix.lower() == ".onnx"

    def takes_rest(self, model: object) -> bool:
        """Any path."""
        return isinstance(model, str | Path)

    def open_paths(self, float_path: Path, quantized_path: Path) -> OnnxModels:
        """Open two files; neither is run."""
        return open_models(float_path, quantized_path)

    def open_network(self, path: Path) -> Network:
        """Open one file."""
        return open_network(path)

    def read_float_path(self, path: Path) -> FloatModel:
        """What the file of a float model tells by itself.

        Raises:
            ModelError: It cannot be read.
        """
        model = load_model(path)
        graph = parse(path, model)
        training = training_nodes(graph)
        inputs = tuple(input_specs(graph))
        changes = {
            "float_model": _float_facts(model, inputs, graph.opset),
            "bytes_float": sum(file.stat().st_size for file in graph.files),
            "float_is_quantized": graph.is_quantized,
            "training_nodes": len(training),
            "first_training_node": training[0] if training else None,
        }
        described = ModelFacts(name=path.name).model_copy(update=changes)
        return FloatModel(described, inputs, tuple(graph.files), tuple(graph.notices))


def _float_facts(model: onnx.ModelProto, inputs: Sequence[InputSpec], opset: int) -> FloatFacts:
    nodes, constants = model.graph.node, model.graph.initializer
    repeated = [name for name, times in Counter(node.name for node in nodes if node.name).items() if times > 1]
    broken = [tensor.name for tensor in constants if not _is_finite(tensor)]
    matrices = list(_matrix_biases(model))
    size = sum(prod(tensor.dims) * _item_bytes(tensor) for tensor in constants)
    unshaped, complaint = _tensors_without_shape(model) if size < _INFERABLE_BYTES else (None, None)
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
        first_unshaped=unshaped[0] if unshaped else None,
        shape_error=complaint,
    )


def _item_bytes(tensor: TensorProto) -> int:
    return int(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize)


def _is_finite(tensor: TensorProto) -> bool:
    kinds = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16)
    return tensor.data_type not in kinds or bool(np.isfinite(numpy_helper.to_array(tensor)).all())


def _matrix_biases(model: onnx.ModelProto) -> Iterator[str]:
    """Operators whose constant bias has more than one axis."""
    axes = {tensor.name: len(tensor.dims) for tensor in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type in ("Conv", "ConvTranspose", "Gemm") and len(node.input) > 2 and axes.get(node.input[2], 1) > 1:
            yield node.name or node.output[0]


def _tensors_without_shape(model: onnx.ModelProto) -> tuple[list[str], str | None]:
    """Tensors of the main graph without type or rank after shape inference, and its complaint where it has one."""
    try:
        graph = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    except Exception as error:  # The checker is C++ and complains in many types.
        return [], _last_line(str(error))
    values = (*graph.value_info, *graph.output, *graph.input)
    known = {value.name for value in values if value.type.tensor_type.HasField("shape")}
    unknown = [name for node in model.graph.node for name in node.output if name and name not in known]
    try:
        onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
    except Exception as error:
        return unknown, _last_line(str(error))
    return unknown, None


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (lines[-1] if lines else text)[:COMPLAINT_CHARACTERS]


FRONT_END: FrontEnd = _OnnxFrontEnd()

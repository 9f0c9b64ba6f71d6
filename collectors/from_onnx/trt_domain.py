"""Quantizers of TensorRT's domain, which onnxruntime does not know, as those of standard ONNX.

NVIDIA ModelOpt writes ``trt::TRT_FP8QuantizeLinear`` and its like: they take what QuantizeLinear and DequantizeLinear
take, and their name tells the type of the codes. Others, such as TRT_FP4DynamicQuantize, have no equal.
"""

import re
from collections import Counter
from collections.abc import MutableSequence
from pathlib import Path
from typing import TypeVar

import onnx
from onnx import version_converter

from quantmedic.collectors.from_onnx.graph import opset_of
from quantmedic.collectors.from_onnx.session import TRANSLATED
from quantmedic.engine.errors import ModelError

M = TypeVar("M")
_T = onnx.TensorProto
_NAME = re.compile(r"TRT_(?P<type>INT8|INT4|FP8)(?P<kind>QuantizeLinear|DequantizeLinear)")
_TYPES = {"INT8": _T.INT8, "INT4": _T.INT4, "FP8": _T.FLOAT8E4M3FN}
#: QuantizeLinear states the type of its codes, and both know blocks, from this opset on; and what needs it.
_OPSET, _IR_VERSION = 21, 10
_DOMAIN = "trt"


def with_standard_quantizers(model: onnx.ModelProto, path: Path) -> tuple[onnx.ModelProto, list[str]]:
    """The model with standard quantizers in place of TensorRT's, and what to say of that; itself where it has none.

    Raises:
        ModelError: It holds operators of TensorRT that have no equal, or cannot be brought to the opset of the others.
    """
    own = [node for node in model.graph.node if node.domain == _DOMAIN or node.op_type.startswith("TRT_")]
    if not own:
        return model, []
    for node in own:
        if _NAME.fullmatch(node.op_type) is None:
            raise ModelError(
                "an operator of TensorRT has no equal in standard ONNX, and onnxruntime does not know it",
                where=f"{path}: {node.domain or _DOMAIN}::{node.op_type} {node.name or ', '.join(node.output)}",
                help="give the model with static int8, FP8 or INT4 quantizers instead, or one whose weights alone are "
                "quantized; quantmedic weights compares checkpoints without running them",
            )
    standard = onnx.ModelProto()
    standard.CopyFrom(model)
    standard.producer_name = TRANSLATED
    for node in standard.graph.node:
        if node.op_type.startswith("TRT_"):
            _rename(node)
    _replace(standard.opset_import, [entry for entry in standard.opset_import if entry.domain != _DOMAIN])
    standard = _with_opset(standard, path)
    # Types that the file or the converter states of codes are those of quantizers without a type.
    names = {name for node in own for name in node.output}
    _replace(standard.graph.value_info, [value for value in standard.graph.value_info if value.name not in names])
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(Counter(node.op_type for node in own).items()))
    return standard, [f"operators of TensorRT are run as those of standard ONNX: {kinds}"]


def _replace(field: MutableSequence[M], kept: list[M]) -> None:
    """Let a repeated field of a message hold these alone."""
    del field[:]
    field.extend(kept)


def _rename(node: onnx.NodeProto) -> None:
    match = _NAME.fullmatch(node.op_type)
    assert match is not None  # others were refused
    node.domain, node.op_type = "", match["kind"]
    states_type = len(node.input) > 2 and bool(node.input[2])
    if node.op_type == "QuantizeLinear" and not states_type:
        node.attribute.append(onnx.helper.make_attribute("output_dtype", _TYPES[match["type"]]))


def _with_opset(model: onnx.ModelProto, path: Path) -> onnx.ModelProto:
    stated = opset_of(model)
    if stated < _OPSET:
        try:
            model = version_converter.convert_version(model, _OPSET)
        except Exception as error:  # The converter is C++ and says what is wrong in many types.
            raise ModelError(
                "the model cannot be brought to the opset that its quantizers need",
                where=f"{path}: opset {stated}: {str(error).splitlines()[0]}",
                help=f"export it with opset {_OPSET}",
            ) from error
    model.ir_version = max(model.ir_version, _IR_VERSION)
    return model

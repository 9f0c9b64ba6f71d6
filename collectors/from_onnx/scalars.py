"""Scalars that a model is fed with, in one row of each type: an input of its own costs more than what it says."""

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from quantmedic.collectors.from_onnx.onnx_graph import opset_of

Array = NDArray[np.generic]
#: Inputs of this name are scalars.
SCALAR = "quantmedic:scalar:"
#: From here on Split takes its sizes as an input.
SPLIT_INPUT_OPSET = 13
_ROW = "quantmedic:row:"
#: Of every row its type and its scalars.
Rows = Mapping[str, tuple[np.dtype[np.generic], Sequence[str]]]


def join_scalars(model: onnx.ModelProto) -> Rows:
    """Make the scalars among a model's inputs parts of rows, which are inputs instead; returns what they hold."""
    graph = model.graph
    inputs = list(graph.input)
    by_type: dict[int, list[str]] = {}
    for value in inputs:
        if value.name.startswith(SCALAR):
            by_type.setdefault(value.type.tensor_type.elem_type, []).append(value.name)
    del graph.input[:]
    graph.input.extend(value for value in inputs if not value.name.startswith(SCALAR))
    opset = opset_of(model)
    for kind, names in by_type.items():
        row = _row_of(kind)
        graph.input.append(helper.make_tensor_value_info(row, kind, [len(names)]))
        ones = [1] * len(names)
        if opset < SPLIT_INPUT_OPSET:
            graph.node.append(helper.make_node("Split", [row], names, axis=0, split=ones))
        else:
            graph.initializer.append(helper.make_tensor(f"{row}:sizes", TensorProto.INT64, [len(names)], ones))
            graph.node.append(helper.make_node("Split", [row, f"{row}:sizes"], names, axis=0))
    return {_row_of(kind): (helper.tensor_dtype_to_np_dtype(kind), names) for kind, names in by_type.items()}


def fill_rows(rows: Rows, feed: Mapping[str, Array | float]) -> dict[str, Array]:
    """What to feed where scalars have become rows."""
    filled = {row: np.array([feed[name] for name in names], dtype) for row, (dtype, names) in rows.items()}
    return filled | {name: np.asarray(value) for name, value in feed.items() if not name.startswith(SCALAR)}


def _row_of(kind: int) -> str:
    return f"{_ROW}{TensorProto.DataType.Name(kind).lower()}"

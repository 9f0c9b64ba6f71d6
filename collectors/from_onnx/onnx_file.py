"""Reading and writing ONNX files, with their external data; what it is called does not matter, what it holds does."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError
from onnx.inliner import inline_local_functions

from quantmedic.engine import input_files
from quantmedic.engine.errors import ModelError, OutputError
from quantmedic.engine.output_files import write_file
from quantmedic.engine.reading_limits import ONNX_BYTES

#: How often all external data may be named; tied weights name some of it twice.
_NAMED_AGAIN = 4
_MODULE = (
    "export it with torch.onnx.export(model, example, 'model.onnx', dynamo=True), or give both modules in Python: "
    "quantmedic.diagnose(float_module, quantized_module, validation=…)"
)
_ONNX_FILE = "give the path of an ONNX file"
_CHECKPOINT = (
    "checkpoints of language models are for diagnose, check and collect: quantmedic diagnose FLOAT QUANT "
    "--tokens texts.jsonl -o report"
)
_EXPORT_AGAIN = "export the model again, and check it with: python -m onnx.checker"


def load_model(path: Path) -> onnx.ModelProto:
    """Read a model with its external data, which must lie inside the model's folder.

    Raises:
        ModelError: Missing, not ONNX, truncated, or external data that is missing or outside the folder.
    """
    model = _parse_file(path)
    _load_external_data(model, path)
    if model.functions:
        try:
            model = inline_local_functions(model)
        except Exception as error:  # The inliner is C++ and says what is wrong in many types.
            raise ModelError(
                "the local functions of the model cannot be unfolded", where=f"{path}: {error}", help=_EXPORT_AGAIN
            ) from error
    _check_names(model.graph, path)
    _check_inputs(model, path)
    _check_tensor_types(model, path)
    return model


def save_model(model: onnx.ModelProto, path: Path) -> None:
    """Write a model, whole or not at all.

    Raises:
        OutputError: It cannot be written there.
    """
    save_content(model.SerializeToString(), path)


def save_content(content: bytes, path: Path) -> None:
    """Write the file of a model, whole or not at all.

    Raises:
        OutputError: It cannot be written there.
    """
    try:
        write_file(path, content)
    except OSError as error:
        raise OutputError(
            "the model cannot be written", where=f"{path}: {error.strerror}", help="choose another file"
        ) from error


def external_files(model_path: Path) -> list[Path]:
    """Files beside the model that hold its external data."""
    names = {_location(tensor) for tensor in _external_tensors(_parse_file(model_path))}
    return sorted(model_path.resolve().parent / name for name in names)


def _is_checkpoint(folder: Path) -> bool:
    """Whether a folder holds weights as tools for language models write them."""
    return (folder / "config.json").is_file() and any(folder.glob("*.safetensors"))


def _parse_file(path: Path) -> onnx.ModelProto:
    if path.is_dir():
        what = "a folder was given where a model file is expected"
        raise ModelError(what, where=str(path), help=_CHECKPOINT if _is_checkpoint(path) else _ONNX_FILE)
    if not path.is_file():
        raise input_files.missing_model(path, _ONNX_FILE)
    model = onnx.ModelProto()
    try:
        content = input_files.read_bytes(path, ONNX_BYTES)
        if content[:2] == b"PK":
            raise ModelError("a file of PyTorch, or another archive, and no ONNX model", where=str(path), help=_MODULE)
        model.ParseFromString(content)
    except (DecodeError, ValueError, OSError) as error:
        raise ModelError(
            "not a readable ONNX model", where=f"{path}: {error}", help="is the file complete, and is it ONNX?"
        ) from error
    missing = [part for part in ("node", "output") if not getattr(model.graph, part)]
    if missing or not model.opset_import:
        lacks = f"no {missing[0]}s" if missing else "no opset"
        raise ModelError(
            "not an ONNX model: it holds no graph" if "node" in missing else "the model cannot be run",
            where=f"{path}: {lacks}",
            help="is the file complete, and is it ONNX?",
        )
    return model


def _check_names(graph: onnx.GraphProto, path: Path) -> None:
    """Names that are no text come out of a damaged file as bytes, which nothing further down expects."""
    named = [*graph.input, *graph.output, *graph.initializer, *graph.node]
    names = [item.name for item in named]
    names += [name for node in graph.node for name in (node.op_type, node.domain, *node.input, *node.output)]
    broken = next((name for name in names if not isinstance(name, str)), None)
    if broken is not None:
        raise ModelError("the model is damaged", where=f"{path}: the name {broken!r} is no text", help=_EXPORT_AGAIN)


def _check_inputs(model: onnx.ModelProto, path: Path) -> None:
    known = set(onnx.TensorProto.DataType.values()) - {onnx.TensorProto.UNDEFINED}
    for value in model.graph.input:
        if value.type.tensor_type.elem_type not in known:
            raise ModelError(
                "a model input is no tensor of a known type", where=f"{path}: input {value.name}", help=_EXPORT_AGAIN
            )


def _check_tensor_types(model: onnx.ModelProto, path: Path) -> None:
    known = set(onnx.TensorProto.DataType.values())
    for tensor in _graph_tensors(model.graph):
        if tensor.data_type not in known:
            where = f"{path}: tensor {tensor.name}, type {tensor.data_type}"
            raise ModelError("a tensor is of an unknown type", where=where, help=_EXPORT_AGAIN)


def _load_external_data(model: onnx.ModelProto, path: Path) -> None:
    folder = path.resolve().parent
    tensors = list(_external_tensors(model))
    for tensor in tensors:
        _check_location(tensor, folder, path)
    _check_extent(tensors, folder, path)
    try:
        onnx.load_external_data_for_model(model, str(folder))
    except Exception as error:  # onnx checks offsets, lengths and links once more, in C++.
        raise ModelError(
            "external data of the model cannot be read",
            where=f"{path}: {error}",
            help="copy the model's data files again; are they complete?",
        ) from error


def _check_extent(tensors: Sequence[onnx.TensorProto], folder: Path, path: Path) -> None:
    """Refuse a model whose tensors name the same bytes over and over: each of them is read into memory."""
    sizes = {name: (folder / name).stat().st_size for name in map(_location, tensors)}
    asked = 0
    for tensor in tensors:
        entries = {entry.key: entry.value for entry in tensor.external_data}
        try:
            asked += int(entries.get("length") or sizes[_location(tensor)] - int(entries.get("offset") or 0))
        except ValueError:
            continue  # onnx says what is wrong with it
    if asked > _NAMED_AGAIN * sum(sizes.values()):
        raise ModelError(
            "the tensors of the model name the same external data many times over",
            where=f"{path}: {asked} bytes of files that hold {sum(sizes.values())}",
            help="save the model again with its data beside it",
        )


def _check_location(tensor: onnx.TensorProto, folder: Path, path: Path) -> None:
    location = _location(tensor)
    try:
        inside = bool(location) and not input_files.leads_out(folder / location, folder)
        there = inside and (folder / location).is_file()
    except (ValueError, OSError):
        inside = there = False
    if not inside:
        raise ModelError(
            "external data outside the model's folder is not read",
            where=f"{path}: tensor {tensor.name}, location {location!r}",
            help="save the model again with its data beside it",
        )
    if not there:
        raise ModelError(
            "external data of the model is missing",
            where=f"{path}: tensor {tensor.name} needs {location}",
            help="copy the data file into the model's folder",
        )


def _location(tensor: onnx.TensorProto) -> str:
    return next((entry.value for entry in tensor.external_data if entry.key == "location"), "")


def _external_tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    bodies = [_graph_tensors(model.graph), *(_node_tensors(function.node) for function in model.functions)]
    for body in bodies:
        yield from (tensor for tensor in body if tensor.data_location == onnx.TensorProto.EXTERNAL)


def _graph_tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    yield from _node_tensors(graph.node)


def _node_tensors(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.TensorProto]:
    """Tensors held by attributes, those of subgraphs included; unset ones are empty and name no file."""
    for node in nodes:
        for attribute in node.attribute:
            yield from (attribute.t, *attribute.tensors)
            for sparse in (attribute.sparse_tensor, *attribute.sparse_tensors):
                yield from (sparse.values, sparse.indices)
            for graph in (attribute.g, *attribute.graphs):
                yield from _graph_tensors(graph)

"""The graph of a LiteRT model, read from its translation to ONNX."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.from_litert.flatbuffer import KINDS, SIGNED, LiteTensor, read_raw
from quantmedic.collectors.from_litert.functions import DOMAIN
from quantmedic.collectors.from_litert.litert_file import LiteModel
from quantmedic.collectors.from_litert.litert_site import Held
from quantmedic.collectors.from_litert.litert_translation import Translation
from quantmedic.collectors.from_onnx.onnx_graph import OnnxGraph
from quantmedic.collectors.from_onnx.parse import parse
from quantmedic.collectors.from_translation.translated_models import StoredCodes, TranslatedGraph, fields_of
from quantmedic.collectors.pair.feed import feed_of
from quantmedic.collectors.pair.graph import Operator, Tap
from quantmedic.collectors.pair.quantizer import Quantizer, code_ends
from quantmedic.engine.errors import ModelError

Array = NDArray[np.generic]
Float32 = NDArray[np.float32]
#: Types whose values are handed on as the file holds them.
_KINDS = frozenset({"FLOAT32", "INT2", "INT4", "INT8", "UINT8", "INT16", "INT32", "INT64"})


@dataclass(kw_only=True)
class LiteRTGraph(TranslatedGraph[int]):
    """The graph of a LiteRT model; its places are the interpreter's numbers of tensors.

    Attributes:
        file: What the file holds.
        held: Which constant of the file each initializer holds.
        grids: Grids of constants that ONNX has no types for, by the initializer that holds their real values.
    """

    file: LiteModel
    held: Mapping[str, Held]
    grids: Mapping[str, StoredCodes]

    @property
    def coded_inputs(self) -> set[str]:
        return {name for name in self.inputs if name not in self.places}

    @property
    def ends(self) -> dict[str, int]:
        """Places of the outputs in the interpreter, by their names in the translation, in order."""
        return dict(zip(self.outputs, dict.fromkeys(self.file.outputs), strict=True))

    def feed(self, batch: Batch) -> dict[int, Array]:
        """What the inputs of the file take of a batch, by their places: codes where they hold codes."""
        arrays = feed_of(batch, self)
        inputs = zip(self.inputs, self.file.inputs, strict=True)
        return {place: _encode(self.file.tensors[place], arrays[name]) for name, place in inputs}

    def decode(self, place: int, array: Array) -> Float32:
        """Real values of an output, as the application makes them of codes by the parameters that its tensor has."""
        quantizer = self.file.tensors[place].quantizer
        if array.dtype.kind in "iu" and quantizer is not None:
            return quantizer.dequantize(array)
        return np.asarray(array, np.float32)

    def decode_output(self, name: str, array: Array) -> Float32:
        """Real values of an output of the translation, which may be codes as those of the file."""
        return self.decode(self.ends[name], array)

    @cached_property
    def _writable(self) -> frozenset[int]:
        return writable_constants(self.file)

    def can_store(self, name: str) -> bool:
        """The constant of this name has a place of its own in the file; nothing new gets one."""
        held = self.held.get(name)
        return held is not None and held.place in self._writable

    def with_model(self, model: onnx.ModelProto) -> "LiteRTGraph":
        """The graph of a copy of the translation in which constants have other values."""
        graph = replace(self, **fields_of(parse_translation(self.path, model)))
        graph.give_grids(self.grids)
        return graph

    def content_with(self, changed: onnx.ModelProto) -> bytes:
        """The file with the constants of a changed copy of the translation; all else stays as it is.

        Raises:
            ModelError: A constant that was changed has no place of its own in the file.
        """
        before = {tensor.name: tensor for tensor in self.model.graph.initializer}
        values = {}
        for tensor in changed.graph.initializer:
            if tensor.name in before and tensor == before[tensor.name]:
                continue
            held = self.held.get(tensor.name)
            if held is None:
                raise ModelError(
                    f"the constant {tensor.name} has no place in the LiteRT file",
                    where=str(self.path),
                    help="quantize the model again with the remedy",
                )
            values[held.place] = self._numbers(tensor).transpose(np.argsort(held.order))
        return write_constants(self.file, values)

    def _numbers(self, tensor: onnx.TensorProto) -> Array:
        """What the file holds for an initializer: codes where the translation has real values in their place."""
        stored = numpy_helper.to_array(tensor)
        grid = self.grids.get(tensor.name)
        if grid is None:
            return stored.astype(np.int8) if stored.dtype.kind not in "iuf" else stored
        steps, zero = grid.quantizer.steps(stored.shape), grid.quantizer.dequantize(np.zeros(stored.shape, np.int64))
        return np.rint((stored.astype(np.float64) - zero) / steps)


def graph_of(model: LiteModel) -> LiteRTGraph:
    """The graph of a model, with taps where activations are rounded at run time.

    Raises:
        ModelError: The graph is damaged.
    """
    try:
        translation = Translation(model)
    except (ValueError, LookupError, TypeError, ArithmeticError) as error:
        raise ModelError(
            "the model is damaged", where=f"{model.path}: {error or type(error).__name__}", help="convert it again"
        ) from error
    graph = LiteRTGraph(
        file=model,
        places=translation.places,
        untranslated=tuple(translation.untranslated),
        held=translation.held,
        grids=translation.grids,
        **fields_of(parse_translation(model.path, translation.model)),
    )
    graph.give_grids(graph.grids)
    graph.add_notices(model.notices)
    for name in translation.hybrid:
        graph.dynamic_nodes += 1
        root = graph.root(name)
        if root not in graph.constants:
            graph.quantizers.setdefault(root, [Tap("", replace(Quantizer.at_run_time(), signed=True))])
    return graph


def parse_translation(path: Path, model: onnx.ModelProto) -> OnnxGraph:
    """A translation, or a changed copy of one, as any ONNX model, with what LiteRT's operators have of their own.

    Raises:
        ModelError: The graph is damaged.
    """
    graph = parse(path, model)
    for op in graph.operators:
        if op.node.domain == DOMAIN:
            op.channels_last, op.bounds = True, _bounds(op)
    return graph


def _encode(tensor: LiteTensor, array: Array) -> Array:
    """Codes of real values, as the application makes them by the parameters of the tensor."""
    if array.dtype.kind != "f" or tensor.dtype.kind == "f" or tensor.quantizer is None:
        return array
    return tensor.quantizer.encode(np.asarray(array, np.float32)).astype(tensor.dtype)


def _bounds(op: Operator) -> tuple[float, float] | None:
    """Ends of the activation that a LiteRT operator has built in."""
    if {"low", "high"}.isdisjoint(op.attributes):
        return None
    return op.attributes.number("low", -np.inf), op.attributes.number("high", np.inf)


def writable_constants(model: LiteModel) -> frozenset[int]:
    """Places of constants that one operator reads, from bytes that no other tensor shares."""
    raw = read_raw(model.content)
    users = Counter(tensor.buffer for graph in raw.graphs for tensor in graph.tensors)
    readers = Counter(place for op in model.operators for place in op.inputs)
    return frozenset(
        tensor.index
        for tensor, stored in zip(model.tensors, raw.graphs[0].tensors, strict=True)
        if tensor.data is not None
        and tensor.kind in _KINDS
        and users[stored.buffer] == readers[tensor.index] == 1
        and tensor.index not in model.outputs
    )


def write_constants(model: LiteModel, values: Mapping[int, Array]) -> bytes:
    """The file with other values in these constants.

    Args:
        model: The file.
        values: Numbers as the file holds them, by place, in the file's order of axes.

    Raises:
        ModelError: A constant cannot be overwritten by itself, or does not take these numbers.
    """
    raw, content = read_raw(model.content), bytearray(model.content)
    start = _address(np.frombuffer(model.content, np.uint8))
    writable = writable_constants(model)
    for place, numbers in values.items():
        tensor = model.tensors[place]
        buffer = raw.graphs[0].tensors[place].content
        if place not in writable or buffer is None or tensor.data is None:
            raise _refusal(model, place, "shares its bytes with another tensor or is not read")
        packed = _pack(numbers, tensor.kind, tensor.data)
        if packed is None or len(packed) != len(buffer):
            raise _refusal(model, place, f"does not take these numbers as {tensor.kind}")
        at = _address(buffer) - start
        content[at : at + len(packed)] = packed
    return bytes(content)


def _refusal(model: LiteModel, place: int, reason: str) -> ModelError:
    return ModelError(
        f"the constant {model.tensors[place].name} cannot be overwritten: it {reason}", where=str(model.path)
    )


def _address(array: Array) -> int:
    return int(array.__array_interface__["data"][0])


def _pack(numbers: Array, kind: str, before: Array) -> bytes | None:
    """Bytes of numbers, several codes of fewer than 8 bits to a byte; None where they do not fit into the type."""
    if numbers.shape != before.shape:
        return None
    bits = KINDS[kind].bits
    if before.dtype.kind == "f":
        return numbers.astype(before.dtype).tobytes()
    low, high = code_ends(bits, SIGNED[kind])
    if numbers.size and (numbers.min() < low or numbers.max() >= high + 1):  # floats skip the last code of 64 bits
        return None
    if bits >= 8:
        return numbers.astype(before.dtype).tobytes()
    per_byte = 8 // bits
    codes = numbers.astype(np.int8).reshape(-1).view(np.uint8) & (2**bits - 1)
    padded = np.pad(codes, (0, -codes.size % per_byte)).reshape(-1, per_byte)
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    return bytes(np.bitwise_or.reduce(padded << shifts, axis=1).astype(np.uint8))

"""One stage of Sony's Model Compression Toolkit, as an event file of its log holds it: the graph at that step.

The quantization of each node stands in attributes, the extremes that the representative data showed in files beside the
graph. Read with version 2.6.1.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from quantmedic.collectors.toolchain_files.values import Fields
from quantmedic.engine.errors import DataError
from quantmedic.engine.input_files import require_regular
from quantmedic.engine.json_record import Record
from quantmedic.engine.reading_limits import EVENT_BYTES, IMPORTED_LAYERS

if TYPE_CHECKING:
    from tensorboard.compat.proto.event_pb2 import Event  # optional package
    from tensorboard.compat.proto.graph_pb2 import GraphDef  # optional package
    from tensorboard.compat.proto.node_def_pb2 import NodeDef  # optional package

#: An attribute of a graph's entry.
Attribute = int | float | bool | str
Attributes = Mapping[str, Attribute]
_WHOLE = re.compile(r"\d+")
_PARAMETER = re.compile(r"'(\w+)': (?:np\.\w+\(|np\.)?(True|False|[-+]?[\d.]+(?:e[-+]?\d+)?)", re.IGNORECASE)


class MctNode(Record):
    """One node of the toolkit's graph after quantization.

    Bits and thresholds are those of its output; without ``quantized`` that output stays float. ``minimum`` and
    ``maximum`` are what the representative data showed there, before any shift. ``None`` is not in the log.
    """

    name: str
    op_type: str
    quantized: bool | None = None
    bits: int | None = None
    threshold: float | None = None
    low: float | None = None
    high: float | None = None
    signed: bool | None = None
    minimum: float | None = None
    maximum: float | None = None


@dataclass
class Stage:
    """A graph as one event file holds it: its nodes, and the attributes of their weights and their activations."""

    nodes: dict[str, MctNode] = field(default_factory=dict)
    weights: dict[str, Attributes] = field(default_factory=dict)
    activation: dict[str, Attributes] = field(default_factory=dict)


# TensorBoard is an optional package: it is imported where an event file is read, and its absence is an error there.


def read_stage(file: Path) -> Stage:
    """The last graph in an event file.

    Raises:
        DataError: The file cannot be read.
    """
    from tensorboard.compat.proto.graph_pb2 import GraphDef  # optional package

    stage = Stage()
    for event in _events(file):
        if event.WhichOneof("what") == "graph_def":
            graph = GraphDef.FromString(event.graph_def)
            IMPORTED_LAYERS.check(len(graph.node), file)
            _add_graph(stage, graph)
    return stage


def read_extremes(file: Path) -> dict[str, tuple[float, float]]:
    """Least and largest of the values per channel, by node.

    Raises:
        DataError: The file cannot be read.
    """
    found: dict[str, tuple[float, float]] = {}
    for event in _events(file):
        for value in event.summary.value:
            if value.WhichOneof("value") == "simple_value":
                low, high = found.get(value.tag, (value.simple_value, value.simple_value))
                found[value.tag] = min(low, value.simple_value), max(high, value.simple_value)
    return found


def integers_in(text: object) -> list[int]:
    """All whole numbers of a text such as ``[8, 4, 2]``."""
    return [int(part) for part in _WHOLE.findall(str(text))]


def enum_member(value: object) -> str | None:
    """Name of an enumeration's member, as ``QuantizationMethod.POWER_OF_TWO`` writes it."""
    return str(value).rpartition(".")[2] if value else None


def event_file_loader() -> ModuleType:
    """TensorBoard's readers of event files.

    Raises:
        DataError: TensorBoard is not installed.
    """
    try:
        from tensorboard.backend.event_processing import event_file_loader as module  # optional package
    except ModuleNotFoundError as error:
        raise DataError(
            "the log folder of MCT needs TensorBoard, which is not installed", help="pip install 'quantmedic[mct]'"
        ) from error
    loader: ModuleType = module
    return loader


def _events(file: Path) -> "Iterator[Event]":
    """Events of one file, up to where it was cut off."""
    from tensorboard.compat.proto.event_pb2 import Event  # optional package

    try:
        require_regular(file)
        EVENT_BYTES.check(file.stat().st_size, file)
        for raw in event_file_loader().RawEventFileLoader(str(file)).Load():
            yield Event.FromString(raw)
    except (OSError, ValueError) as error:
        raise DataError("an event file of MCT cannot be read", where=f"{file}: {error}") from error


def _add_graph(stage: Stage, graph: "GraphDef") -> None:
    """Sort the entries of a graph: a node is followed under its name by ``.weights`` and ``.activation``."""
    entries = {entry.name: entry for entry in graph.node}
    for place, entry in entries.items():
        head, _, part = place.rpartition(".")
        if part in ("weights", "activation") and head in entries:
            continue
        name = place.rpartition("/")[2]  # Without the folders that TensorBoard draws around it.
        for part, into in (("weights", stage.weights), ("activation", stage.activation)):
            if f"{place}.{part}" in entries:
                into[name] = _entry_attributes(entries[f"{place}.{part}"])
        fields: Fields = {"name": name, "op_type": entry.op, **_quantization(stage.activation.get(name, {}))}
        stage.nodes[name] = MctNode.model_validate(fields)


def _entry_attributes(entry: "NodeDef") -> Attributes:
    """Attributes as Python values; what is neither number nor flag is text."""
    found: dict[str, Attribute] = {}
    for name, value in entry.attr.items():
        kind = value.WhichOneof("value")
        if kind in ("i", "f", "b"):
            found[name] = getattr(value, kind)
        elif kind == "s":
            found[name] = value.s.decode("utf-8", errors="replace")
    return found


def _quantization(attributes: Attributes) -> Fields:
    """Fields of a node from the attributes of its activation; empty where it has none."""
    if not attributes:
        return {}
    given = dict(_PARAMETER.findall(str(attributes.get("activation_quantization_params", ""))))
    numbers = {name: float(text) for name, text in given.items() if text.lower() not in ("true", "false")}
    signed = given.get("is_signed")
    quantized = str(attributes.get("quant_mode", "")).rpartition(".")[2] == "QUANT"
    return {
        "quantized": quantized,
        "bits": _shared_integer(attributes.get("activation_n_bits")) if quantized else None,
        "threshold": numbers.get("threshold"),
        "low": numbers.get("range_min"),
        "high": numbers.get("range_max"),
        "signed": None if signed is None else signed.lower() == "true",
    }


def _shared_integer(value: object) -> int | None:
    """A number, or the one that all candidates share, as in ``[8, 8, 8]``."""
    found = set(integers_in(value))
    return found.pop() if len(found) == 1 else None

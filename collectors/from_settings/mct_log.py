"""The log folder of Sony's Model Compression Toolkit: graph, thresholds, bits and settings from its event files.

``mct.set_log_folder(folder)`` makes the toolkit write ``folder/logs_<time>/tensorboard_logs/<stage>/events.out.…``. A
stage is a step of the quantization; its file holds the graph at that step, with the quantization of each node as
attributes, and from the choice of thresholds on also what the representative data showed. Read with version 2.6.1.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from quantmedic.collectors.data.messages import missing_path_error
from quantmedic.collectors.toolchain_files.formats import Imported
from quantmedic.collectors.toolchain_files.values import Fields, member_name
from quantmedic.engine.case.facts import RecordedFacts, ReportedFacts, SettingsFacts
from quantmedic.engine.errors import DataError
from quantmedic.engine.input_files import require_regular
from quantmedic.engine.json_record import Record
from quantmedic.engine.reading_limits import EVENT_BYTES, IMPORTED_LAYERS

if TYPE_CHECKING:
    from tensorboard.compat.proto.event_pb2 import Event  # optional package
    from tensorboard.compat.proto.graph_pb2 import GraphDef  # optional package
    from tensorboard.compat.proto.node_def_pb2 import NodeDef  # optional package

#: Stages that are read by name: the first, and the one that chooses thresholds.
FIRST, CHOSEN = "initial_graph", "thresholds_selection"
TUNED = "after_gptq"
#: Least and largest value per channel of what left each node.
EXTREMES = (f"{CHOSEN}/min_per_channel", f"{CHOSEN}/max_per_channel")
#: Thresholds are written with all their digits; float32 models hold them rounded.
SAME = 1e-5
#: Names that a notice lists.
SHOWN = 3

_EVENT_FILE = re.compile(r"events\.out\.tfevents\.(\d+)\..*?(?:\.(\d+))?$")


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


class MctLog(Record):
    """One quantization as the log folder holds it."""

    folder: str
    nodes: tuple[MctNode, ...]
    settings: SettingsFacts = SettingsFacts()


def read_mct_log(folder: str | Path) -> MctLog:
    """The newest quantization in a log folder.

    Args:
        folder: What was given to ``mct.set_log_folder``, or a folder ``logs_<time>`` in it.

    Raises:
        DataError: The folder is missing, holds no event files, or none that can be read; or ``tensorboard`` is not
            installed.
    """
    path = Path(folder).expanduser()
    if not path.is_dir():
        raise missing_path_error(path, "log folder of MCT", otherwise="; it is the folder given to mct.set_log_folder")
    runs = _quantizations(path)
    if not runs:
        raise DataError(
            "the log folder holds no event files of MCT",
            where=str(path),
            help="call mct.set_log_folder(folder) before quantizing, and give that folder",
        )
    event_file_loader()
    return _read_quantization(*runs[-1])


def fitting_mct_log(
    folder: str | Path,
    names: Iterable[str],
    thresholds: Mapping[str, float] | None = None,
) -> tuple[MctLog | None, str | None]:
    """The newest quantization in the folder that fits the model, or None and why there is none.

    Args:
        folder: As for :func:`read_mct_log`.
        names: Nodes of the quantized model, by their names there.
        thresholds: Its activation thresholds by node, where they are known.

    Raises:
        DataError: ``tensorboard`` is not installed.
    """
    event_file_loader()
    path = Path(folder).expanduser()
    if not path.is_dir():
        return None, f"the log folder {path} of MCT is missing: its settings are not judged"
    runs = _quantizations(path)
    if not runs:
        return None, f"the log folder {path} holds no event files of MCT: its settings are not judged"
    known = list(names)
    first: str | None = None
    for run in reversed(runs):
        try:
            log = _read_quantization(*run)
            why = why_stale(log, known, thresholds)
        except DataError as error:
            log, why = None, error.message
        if why is None:
            return log, None
        first = first or why
    return None, f"the log folder {path} is stale: {first}; its settings are not judged"


def why_stale(log: MctLog, names: Iterable[str], thresholds: Mapping[str, float] | None = None) -> str | None:
    """Why the log does not describe the model, or None: its nodes or thresholds are others."""
    nodes = {node.name: node for node in log.nodes}
    wanted = list(dict.fromkeys(names))
    strangers = [name for name in wanted if name not in nodes]
    if strangers:
        return f"its graph lacks {len(strangers)} of {len(wanted)} nodes of the model ({_few(strangers)})"
    for name, value in (thresholds or {}).items():
        logged = nodes[name].threshold if name in nodes else None
        if logged is not None and abs(logged - value) > SAME * max(abs(logged), abs(value)):
            return f"the threshold of {name} is {logged:g} there and {value:g} in the model"
    return None


def _few(names: list[str]) -> str:
    return ", ".join(names[:SHOWN]) + (", …" if len(names) > SHOWN else "")


# What lies in the folder


def _quantizations(path: Path) -> list[tuple[Path, dict[str, Path]]]:
    """Event files by stage of each quantization, the oldest first.

    Quantizations of one process share a folder: each begins with the first stage and numbers its files on.
    """
    roots = sorted({file.parent for file in path.rglob("tensorboard_logs")} | ({path} if _is_root(path) else set()))
    found: list[tuple[tuple[int, int], Path, dict[str, Path]]] = []
    for root in roots:
        folder = root / "tensorboard_logs"
        files = [
            (key, file) for file in folder.rglob("events.out.tfevents.*") if (key := _file_order(file)) is not None
        ]
        stages: dict[str, Path] | None = None
        for key, file in sorted(files):
            stage = file.parent.relative_to(folder).as_posix()
            if stages is None or stage == FIRST:
                stages = {}
                found.append((key, root, stages))
            stages[stage] = file
    return [(root, stages) for _, root, stages in sorted(found, key=lambda entry: entry[0]) if FIRST in stages]


def _is_root(path: Path) -> bool:
    return (path / "tensorboard_logs").is_dir()


def _file_order(file: Path) -> tuple[int, int] | None:
    """Second and running number at the ends of an event file's name."""
    match = _EVENT_FILE.fullmatch(file.name)
    return (int(match[1]), int(match[2] or 0)) if match else None


# What one quantization wrote


def _read_quantization(root: Path, files: dict[str, Path]) -> MctLog:
    stages = {name: stage for name, file in files.items() if "/" not in name and (stage := read_stage(file)).nodes}
    if FIRST not in stages:
        raise DataError("the event files of MCT hold no graph", where=str(files[FIRST]))
    last = list(stages.values())[-1]
    lows, highs = (read_extremes(files[name]) if name in files else {} for name in EXTREMES)
    nodes = (
        node.model_copy(
            update={
                "minimum": lows[name][0] if name in lows else None,
                "maximum": highs[name][1] if name in highs else None,
            }
        )
        for name, node in last.nodes.items()
    )
    return MctLog(folder=str(root), nodes=tuple(nodes), settings=_common_settings(stages, last))


def _has_choice_of_bits(name: str, stages: Iterable[Stage]) -> bool:
    """The weights of a node could have got several bit widths."""
    texts = [stage.weights.get(name, {}).get("weights_n_bits") for stage in stages]
    return len({bits for text in texts if text is not None for bits in integers_in(text)}) > 1


def _common_settings(stages: Mapping[str, Stage], last: Stage) -> SettingsFacts:
    """Settings that every node repeats; where edits of single layers changed some, those of most nodes."""
    activation = [part for part in last.activation.values() if part]
    weights = [part for stage in stages.values() for part in stage.weights.values() if part]
    shifted = stages[CHOSEN].activation.values() if CHOSEN in stages else activation

    def most(name: str, parts: Iterable[Attributes]) -> Attribute | None:
        counts = Counter(part[name] for part in parts if name in part)
        return counts.most_common(1)[0][0] if counts else None

    ratio = most("shift_negative_ratio", activation)
    is_search = any(_has_choice_of_bits(name, stages.values()) for name in last.nodes)
    found: Fields = {
        "activation_error_method": member_name(most("_activation_error_method", activation)) or None,
        "weights_error_method": member_name(most("_weights_error_method", weights)) or None,
        "z_threshold": most("z_threshold", activation),
        "min_threshold": most("min_threshold", activation),
        "shift_negative": most("shift_negative_activation_correction", shifted),
        # written as float32: 0.05 comes back as 0.0500000007
        "shift_negative_ratio": float(f"{ratio:.6g}") if isinstance(ratio, int | float) else None,
        "channel_equalization": most("activation_channel_equalization", activation),
        "bias_correction": most("weights_bias_correction", weights),
        "concat_threshold_update": most("concat_threshold_update", activation),
        "mixed_precision": is_search if weights else None,
        "learned_rounding": TUNED in stages,
    }
    return SettingsFacts.model_validate(found)


def imported_log(log: MctLog) -> Imported:
    """One quantization of the log: settings, thresholds, and the extremes that calibration saw."""
    quantized = [node for node in log.nodes if node.quantized]
    seen = [node for node in log.nodes if node.minimum is not None or node.maximum is not None]
    return Imported(
        settings=log.settings,
        tensors={node.name: _threshold(node) for node in quantized},
        layers={node.name: ReportedFacts(min=node.minimum, max=node.maximum) for node in seen},
        layer_types={node.name: node.op_type for node in log.nodes},
    )


def _threshold(node: MctNode) -> RecordedFacts:
    """The range of a node's output; of symmetric grids the toolkit writes the threshold alone."""
    low, high = node.low, node.high
    if node.threshold is not None and low is None:
        low, high = -node.threshold if node.signed else 0.0, node.threshold
    return RecordedFacts(low=low, high=high, bits=node.bits, symmetric=node.threshold is not None)


# What one event file holds


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
    quantized = member_name(attributes.get("quant_mode")) == "QUANT"
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

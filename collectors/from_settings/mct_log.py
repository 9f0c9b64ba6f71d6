"""The log folder of Sony's Model Compression Toolkit: graph, thresholds, bits and settings from its event files.

``mct.set_log_folder(folder)`` makes the toolkit write ``folder/logs_<time>/tensorboard_logs/<stage>/events.out.…``. A
stage is a step of the quantization; its file holds the graph at that step, with the quantization of each node as
attributes, and from the choice of thresholds on also what the representative data showed. Read with version 2.6.1.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from math import prod
from pathlib import Path

from quantmedic.collectors.data.messages import missing_path_error
from quantmedic.collectors.from_settings.mct_stage import (
    Attribute,
    Attributes,
    MctNode,
    Stage,
    enum_member,
    event_file_loader,
    integers_in,
    read_extremes,
    read_stage,
)
from quantmedic.collectors.toolchain_files.formats import Imported
from quantmedic.collectors.toolchain_files.values import Fields
from quantmedic.engine.case.facts import RecordedFacts, ReportedFacts, SettingsFacts
from quantmedic.engine.errors import DataError
from quantmedic.engine.json_record import Record

#: Stages that are read by name: the first, the one that chooses thresholds, and the one after.
FIRST, CHOSEN, SHIFTED = "initial_graph", "thresholds_selection", "after_shift_negative_correction"
TUNED = "after_gptq"
#: Least and largest value per channel of what left each node.
EXTREMES = (f"{CHOSEN}/min_per_channel", f"{CHOSEN}/max_per_channel")
FLOAT_BYTES = 4
#: Thresholds are written with all their digits; float32 models hold them rounded.
SAME = 1e-5
#: Names that a notice lists.
SHOWN = 3

_EVENT_FILE = re.compile(r"events\.out\.tfevents\.(\d+)\..*?(?:\.(\d+))?$")


class MctLog(Record):
    """One quantization as the log folder holds it."""

    folder: str
    stages: tuple[str, ...]
    float_nodes: tuple[MctNode, ...]
    nodes: tuple[MctNode, ...]
    shifted: tuple[str, ...] = ()
    settings: SettingsFacts = SettingsFacts()

    def node(self, name: str) -> MctNode | None:
        """The node of that name after quantization."""
        return next((node for node in self.nodes if node.name == name), None)


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
    before = [stage for stage in stages.values() if stage is not last]
    lows, highs = (read_extremes(files[name]) if name in files else {} for name in EXTREMES)
    merged = _float_names(stages[FIRST], last)
    return MctLog(
        folder=str(root),
        stages=tuple(stages),
        float_nodes=tuple(stages[FIRST].nodes.values()),
        nodes=tuple(
            node.model_copy(
                update={
                    "float_names": merged.get(name, ()),
                    "minimum": lows[name][0] if name in lows else None,
                    "maximum": highs[name][1] if name in highs else None,
                    "weight_choices": _weight_choices(name, before),
                    "weight_bits": _weight_bits(name, last, before),
                }
            )
            for name, node in last.nodes.items()
        ),
        shifted=_shifted_nodes(stages),
        settings=_common_settings(stages, last),
    )


def _weight_choices(name: str, stages: Iterable[Stage]) -> tuple[int, ...]:
    """Bit widths that the weights of a node could have got, the largest first."""
    texts = [stage.weights.get(name, {}).get("weights_n_bits") for stage in stages]
    found = {bits for text in texts if text is not None for bits in integers_in(text)}
    return tuple(sorted(found, reverse=True))


def _weight_bits(name: str, last: Stage, before: Iterable[Stage]) -> int | None:
    """Bits of the kernel, from the bytes of the node before and after quantization.

    With k kernel values, f others: before 4·(k + f) bytes, after 4·f + k·bits / 8.
    """
    kernel = _kernel_size(last.own.get(name, {}))
    full = max((stage.bytes.get(name, 0) for stage in before), default=0)
    now = last.bytes.get(name, 0)
    if kernel is None or not 0 < now < full:
        return None
    bits = 8 * (now - (full - FLOAT_BYTES * kernel)) / kernel
    # The log states whole bytes, so that few values of few bits can be off by less than one.
    return round(bits) if abs(bits - round(bits)) * kernel < 8 and 1 <= round(bits) <= 16 else None


def _kernel_size(attributes: Attributes) -> int | None:
    """Values in the kernel of a convolution or a linear layer."""
    if "in_features" in attributes and "out_features" in attributes:
        return int(attributes["in_features"]) * int(attributes["out_features"])
    if "in_channels" in attributes and "kernel_size" in attributes:
        window = prod(integers_in(attributes["kernel_size"]))
        channels = int(attributes["in_channels"]) * int(attributes["out_channels"])
        return channels * window // int(attributes.get("groups", 1))
    return None


def _shifted_nodes(stages: Mapping[str, Stage]) -> tuple[str, ...]:
    """Nodes whose output the toolkit shifts: an addition that it put behind them."""
    if CHOSEN not in stages or SHIFTED not in stages:
        return ()
    before, after = stages[CHOSEN].nodes, stages[SHIFTED].nodes
    added = [node for name, node in after.items() if name not in before and node.op_type == "add"]
    return tuple(source for node in added for source in node.inputs[:1])


def _float_names(start: Stage, end: Stage) -> dict[str, tuple[str, ...]]:
    """Float nodes that each node of the quantized graph stands for.

    The toolkit names a merged node after one of its parts (``conv_bn``, ``bn_conv``, ``a_b_collapsed``); the other
    parts are the neighbours that are gone.
    """
    merged = {name: [name] for name in end.nodes if name in start.nodes}
    gone = [name for name in start.nodes if name not in end.nodes]
    owner: dict[str, str] = {}
    for new in (name for name in end.nodes if name not in start.nodes):
        parts = [name for name in gone if f"_{name}_" in f"_{new}_" and name not in owner]
        if parts:
            owner[max(parts, key=len)] = new
    readers: dict[str, list[str]] = {name: [] for name in start.nodes}
    for node in start.nodes.values():
        for source in node.inputs:
            readers.setdefault(source, []).append(node.name)
    for name in gone:  # a part behind the one that gave the name: topological order reaches chains
        near = {owner[source] for source in start.nodes[name].inputs if source in owner}
        if name not in owner and len(near) == 1:
            owner[name] = near.pop()
    for name in reversed(gone):  # a part in front of it
        near = {owner[reader] for reader in readers[name] if reader in owner}
        if name not in owner and len(near) == 1:
            owner[name] = near.pop()
    for name in gone:
        if name in owner:
            merged.setdefault(owner[name], []).append(name)
    return {name: tuple(parts) for name, parts in merged.items()}


def _common_settings(stages: Mapping[str, Stage], last: Stage) -> SettingsFacts:
    """Settings that every node repeats; where edits of single layers changed some, those of most nodes."""
    activation = [part for part in last.activation.values() if part]
    weights = [part for stage in stages.values() for part in stage.weights.values() if part]
    shifted = stages[CHOSEN].activation.values() if CHOSEN in stages else activation

    def most(name: str, parts: Iterable[Attributes]) -> Attribute | None:
        counts = Counter(part[name] for part in parts if name in part)
        return counts.most_common(1)[0][0] if counts else None

    ratio = most("shift_negative_ratio", activation)
    choices = [bits for name in last.nodes if len(bits := _weight_choices(name, stages.values())) > 1]
    found: Fields = {
        "activation_error_method": enum_member(most("_activation_error_method", activation)),
        "weights_error_method": enum_member(most("_weights_error_method", weights)),
        "z_threshold": most("z_threshold", activation),
        "min_threshold": most("min_threshold", activation),
        "shift_negative": most("shift_negative_activation_correction", shifted),
        # written as float32: 0.05 comes back as 0.0500000007
        "shift_negative_ratio": float(f"{ratio:.6g}") if isinstance(ratio, int | float) else None,
        "channel_equalization": most("activation_channel_equalization", activation),
        "bias_correction": most("weights_bias_correction", weights),
        "concat_threshold_update": most("concat_threshold_update", activation),
        "mixed_precision": bool(choices) if weights else None,
        "learned_rounding": TUNED in stages,
    }
    return SettingsFacts.model_validate(found)


def read_folder(folder: Path) -> Imported:
    """The newest quantization in a log folder.

    Raises:
        DataError: The folder holds no log that can be read, or TensorBoard is not installed.
    """
    return imported_log(read_mct_log(folder))


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

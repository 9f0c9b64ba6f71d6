"""The output of hb_mapper makertbin and hb_compile: where each node runs, its cosine similarity, threshold and type.

Read after public logs and documentation of RDK X3 (hb_mapper 1.1), X5 (1.24) and S100 (hb_compile 3.3). Their column
``Threshold`` is that of a node's first input. The cosine similarity is that of float and quantized model on one
calibration sample, errors of all nodes before included.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from quantmedic.collectors.from_settings.horizon_config import KEYS, METHODS, TOOLCHAIN, settings_of
from quantmedic.collectors.toolchain_files.formats import Format, Imported
from quantmedic.collectors.toolchain_files.settings_files import parse_yaml, read_text
from quantmedic.collectors.toolchain_files.values import Fields, number
from quantmedic.engine.case.facts import RecordedFacts, ReportedFacts
from quantmedic.engine.errors import DataError
from quantmedic.engine.reading_limits import LimitError

#: Longer lines are cut: they hold paths and parameters, not messages.
MAX_LINE = 4000
#: Characters of a line that is shown, and lines that a notice lists.
_SHOWN, _LINES = 200, 3
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_STAMP = re.compile(
    r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d+ "
    r"(?:file: \S+ func: \S+ line No: \d+|(?P<level>[A-Z]+)(?: \[[^\]]{10,40}\])?) ?"
)
_HEADER = re.compile(r"^(Node|Output)\s{2,}.*(ON\s|Cosine Similarity)")
_BAR_HEADER = re.compile(r"^\|\s*(Node|TensorName)\s*\|")
_CELL = re.compile(r"\S+(?: \S+)*")
_RULE = re.compile(r"^[-=+|\s]+$")
_ECHO = re.compile(r"^-*\s*([A-Za-z][A-Za-z_& ]*?)\s*:\s*(.*)$")
_ECHO_BEGINS = re.compile(r"model[_ ]parameters info")
_ECHO_ENDS = re.compile(r"Model input/output info|Convert to runtime bin file|hbm_path:")
_SELECTED = re.compile(r"Select (?P<words>[\w:=.,\- ]{2,100}) method\.")
_RUN_WITH = re.compile(r"Run calibration model with (?P<words>[\w\- ]{2,40}) method")
_FALLBACK = re.compile(r"fall ?back")
_ERROR = re.compile(r"^(\w+(Error|Exception)): |^ERROR\b|\bTraceback \(most recent call last\)")
_DONE = re.compile(r"Convert to runtime bin file suc|hb_compile completes running|End Model Convert|End model checking")
_BEGUN = re.compile(
    r"Start hb_mapper|Start hb_compile|Horizon NN Model Convert|HorizonNN version|hb_mapper version|"
    r"^Node +ON +Subgraph +Type|\| *Node +\| *NodeType +\| *ON ",
    re.M,
)
_PREPROCESSES = "preprocess"
_TYPES = {"si8": "int8", "si16": "int16", "si32": "int32", "f32": "float", "f16": "float16"}
_BITS = {"int8": 8, "int16": 16}
#: What of a log's list of settings goes by another name.
_RENAMED = {"BPU march": "march", "input_space&range": "input_space_and_range"}


#: What a table says of a node or output, by what its columns hold.
Cells = Mapping[str, str]


@dataclass
class _Found:
    """What was read so far."""

    nodes: dict[str, Cells] = field(default_factory=dict)
    outputs: dict[str, Cells] = field(default_factory=dict)
    repeated: dict[str, None] = field(default_factory=dict)
    echo: dict[str, list[str]] = field(default_factory=dict)
    settings: Fields = field(default_factory=dict)
    fallbacks: list[str] = field(default_factory=list)
    error: str | None = None
    done: bool = False
    tables: int = 0


def read_log(path: Path) -> Imported:
    """The conversion log; of several conversions in one file the last counts.

    Raises:
        DataError: It cannot be read, or holds nothing that a conversion prints.
    """
    lines = [_ANSI.sub("", line[:MAX_LINE]) for line in read_text(path).splitlines()]
    found = _read_lines(lines)
    if not (found.nodes or found.echo or found.settings or found.error or found.done):
        raise DataError(
            "the log holds no output of a conversion",
            where=str(path),
            help="give the whole output of hb_mapper makertbin or hb_compile",
        )
    settings, notices = settings_of(_echoed_groups(found.echo)) if found.echo else settings_of({})
    kept = {name: cells for name, cells in found.nodes.items() if name not in found.repeated}
    layers = kept or found.outputs
    asymmetric = found.settings.get("asymmetric_activations") or settings.asymmetric_activations
    return Imported(
        settings=settings.model_copy(update=found.settings),
        inputs={} if asymmetric else dict(_thresholds(kept)),
        layers={name: _node_figures(cells) for name, cells in layers.items()},
        layer_types={name: cells["kind"] for name, cells in kept.items() if "kind" in cells},
        notices=(*notices, *_log_notices(found, bool(asymmetric))),
    )


def _read_lines(lines: Iterable[str]) -> _Found:
    found = _Found()
    columns: list[tuple[int, str]] = []
    echoing = False
    for line in lines:
        stamp = _STAMP.match(line)
        said = line[stamp.end() :] if stamp else line
        if _HEADER.match(said.strip()):
            columns = [(cell.start(), cell[0]) for cell in _CELL.finditer(said)]
            _new_table(columns, found)
        elif _BAR_HEADER.match(said.strip()):
            columns = [(-1, cell.strip()) for cell in said.strip().strip("|").split("|")]
            _new_table(columns, found)
        elif columns and _RULE.match(said):
            continue
        elif columns and (row := _table_row(said, columns, stamped=stamp is not None)) is not None:
            _add_row(*row, columns[0][1], found)
        else:
            columns = []
            echoing = (echoing or bool(_ECHO_BEGINS.search(said))) and not _ECHO_ENDS.search(said)
            if echoing and stamp:
                _echo(said, found)
            _learn(said, stamp["level"] if stamp else None, found)
    return found


def _new_table(columns: list[tuple[int, str]], found: _Found) -> None:
    """A second table of nodes with similarities belongs to another conversion."""
    named = {name.lower() for _, name in columns}
    if columns[0][1] == "Node" and "on" in named and any("cosine" in name for name in named):
        found.tables += 1
        found.nodes, found.outputs, found.repeated = {}, {}, {}


def _table_row(said: str, columns: list[tuple[int, str]], *, stamped: bool) -> tuple[str, Cells] | None:
    """The line as a row of the table, its name first; None where the table ended."""
    if columns[0][0] < 0:
        if not said.strip().startswith("|"):
            return None
        cells = [cell.strip() for cell in said.strip().strip("|").split("|")]
        values = dict(zip((name for _, name in columns), cells, strict=False))
        return _named_cells(values, columns[0][1]) if len(cells) == len(columns) else None
    cells_at = [(cell.start(), cell[0]) for cell in _CELL.finditer(said)]
    if stamped or len(cells_at) < 2:
        return None
    values = {min(columns, key=lambda column: abs(column[0] - start))[1]: text for start, text in cells_at}
    return _named_cells(values, columns[0][1])


def _named_cells(values: Mapping[str, str], first: str) -> tuple[str, Cells] | None:
    name = values.get(first, "")
    known = ((_meaning(column), text) for column, text in values.items() if text not in ("", "--"))
    cells = {meaning: text for meaning, text in known if meaning}
    return (name, cells) if name and cells else None


def _meaning(column: str) -> str:
    """What a column holds, by its heading; empty for the others. hb_compile has two similarities."""
    low = column.lower()
    known = {"on": "device", "type": "kind", "nodetype": "kind", "quantized cosine": "quantized cosine"}
    if low in known or low == "threshold":
        return known.get(low, low)
    if low.replace(" ", "").endswith("datatype"):
        return "dtype"
    return "cosine" if "cosine" in low else ""


def _add_row(name: str, cells: Cells, first: str, found: _Found) -> None:
    rows = found.nodes if first == "Node" and cells.keys() & {"kind", "device"} else found.outputs
    if rows is found.nodes and name in rows and found.tables:
        # Long names are cut at their beginning, so that several nodes may come to have one.
        found.repeated[name] = None
    rows[name] = cells


def _echo(said: str, found: _Found) -> None:
    match = _ECHO.match(said)
    if match is None:
        return
    key = _RENAMED.get(match[1], match[1])
    if any(key in keys for keys in KEYS.values()) and match[2].strip() not in ("", "None", "[]", "{}"):
        found.echo.setdefault(key, []).append(match[2].strip())


def _learn(said: str, level: str | None, found: _Found) -> None:
    """Take in one line outside of tables."""
    if chosen := _SELECTED.search(said) or _RUN_WITH.search(said):
        found.settings |= _chosen_method(chosen["words"])
    if "Perchannel quantization is enabled" in said:
        found.settings["per_channel_activations"] = True
    if "Asymmetric quantization is enabled" in said:
        found.settings["asymmetric_activations"] = True
    if _fell_back(said.lower()):
        found.fallbacks.append(said.strip()[:_SHOWN])
    if level in ("ERROR", "CRITICAL") or _ERROR.search(said):
        found.error = said.strip()[:_SHOWN]
    found.done = found.done or bool(_DONE.search(said))


def _fell_back(said: str) -> bool:
    """It falls back from 16 bits, or to 8."""
    before, *behind = _FALLBACK.split(said, maxsplit=1)
    return bool(behind) and ("int16" in before or "int8" in behind[0])


def _chosen_method(words: str) -> Fields:
    """The method that was taken, from ``kl`` or ``max-percentile:percentile=0.99995,per_channel``."""
    name, _, options = words.replace(" ", "").partition(":")
    if not options:
        name, _, options = name.partition(",")
    percentile = re.search(r"percentile=([\d.]+)", options)
    fields: Fields = {"chosen_method": METHODS.get(name)}
    if percentile is not None and (share := _printed_number(percentile[1])) is not None and share < 1:
        fields |= {"chosen_method": "percentile", "chosen_percentile": 100 * share}
    if name.startswith("max-percentile"):
        fields["chosen_method"] = "percentile"
    if "per_channel" in options:
        fields["per_channel_activations"] = True
    if "asymmetric" in options:
        fields["asymmetric_activations"] = True
    return {key: value for key, value in fields.items() if value is not None}


def _echoed_groups(echo: Mapping[str, list[str]]) -> dict[str, Fields]:
    """The settings that the log lists, in the groups of the configuration."""
    groups: dict[str, Fields] = {}
    for key, values in echo.items():
        group = next(group for group, keys in KEYS.items() if key in keys)
        groups.setdefault(group, {})[key] = _echoed_value(key, values)
    return groups


def _echoed_value(key: str, values: list[str]) -> object:
    if key in ("node_info", "quant_config"):
        try:
            return parse_yaml(values[0], "log")
        except (DataError, LimitError):
            return values[0]
    return ";".join(values) if key in KEYS["input_parameters"] else values[0]


def _thresholds(nodes: Mapping[str, Cells]) -> Iterator[tuple[str, RecordedFacts]]:
    """Symmetric ranges of what the nodes read first; that of the preprocessing node is of pixels."""
    for name, cells in nodes.items():
        threshold = _printed_number(cells.get("threshold"))
        if threshold and _PREPROCESSES not in cells.get("kind", "").lower():
            bits = _BITS.get(_compute_type(cells.get("dtype")) or "")
            yield name, RecordedFacts(low=-threshold, high=threshold, bits=bits, symmetric=True)


def _node_figures(cells: Cells) -> ReportedFacts:
    return ReportedFacts(
        cosine=_cosine(cells.get("quantized cosine") or cells.get("cosine")),
        device=cells.get("device", "").upper() or None,
        dtype=_compute_type(cells.get("dtype")),
    )


def _log_notices(found: _Found, asymmetric: bool) -> Iterator[str]:
    if found.tables > 1:
        yield f"the log holds {found.tables} conversions, the last one counts"
    if found.repeated:
        yield (
            f"the log cuts long names of nodes; those that then stand for several nodes are left out: "
            f"{len(found.repeated)}, such as {next(iter(found.repeated))}"
        )
    if found.fallbacks:
        lines = "; ".join(found.fallbacks[:_LINES])
        yield f"16 bits were requested and refused in {len(found.fallbacks)} lines: {lines}"
    if asymmetric and found.nodes:
        yield "thresholds of asymmetric grids are not ranges, and are ignored"
    if found.error is not None and not found.done:
        command = "quantmedic diagnose FLOAT --log FILE"
        yield f"the conversion failed: {found.error}; to find its cause: {command}"
    elif not found.done:
        yield "the log ends before the conversion did"


def _cosine(text: str | None) -> float | None:
    """A similarity; a printed number a little above 1 is 1."""
    value = number(text)
    return None if value is None or abs(value) > 1.001 else max(-1.0, min(1.0, value))


def _printed_number(text: str | None) -> float | None:
    """A number above 0."""
    value = number(text)
    return value if value is not None and value > 0 else None


def _compute_type(text: str | None) -> str | None:
    """The type that a node computes with: the first of ``In/Out``."""
    word = (text or "").split("/")[0].strip().lower()
    return _TYPES.get(word, word) or None


def _is_horizon_log(name: str, text: str) -> bool:
    return bool(_BEGUN.search(_ANSI.sub("", text)))


FORMATS = (Format("Horizon conversion log", TOOLCHAIN, _is_horizon_log, read_log),)

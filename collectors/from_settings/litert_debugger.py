"""The CSV of LiteRT's QuantizationDebugger: the error of each operator fed as deployed, with scale and zero point.

Columns as ``QuantizationDebugger.layer_statistics_dump`` writes them, custom metrics among them. A line stands for an
operator, by the tensor that it writes.
"""

import csv
import math
from collections.abc import Mapping
from itertools import islice
from pathlib import Path

from quantmedic.collectors.toolchain_files.formats import Format, Imported
from quantmedic.collectors.toolchain_files.settings_files import read_text
from quantmedic.collectors.toolchain_files.values import grid, number, whole
from quantmedic.engine.case.facts import RecordedFacts, ReportedFacts
from quantmedic.engine.errors import DataError
from quantmedic.engine.reading_limits import IMPORTED_LAYERS

REQUIRED = ("op_name", "tensor_name", "mean_squared_error", "scale", "zero_point")
#: Columns of the debugger itself, and those that are computed from them; all others are metrics that its user added.
COLUMNS = (*REQUIRED, "tensor_idx", "num_elements", "stddev", "mean_error", "max_abs_error", "range", "rmse/scale")


def _is_debugger_table(name: str, text: str) -> bool:
    first = text.splitlines()[0].split(",") if text.strip() else []
    return {"op_name", "tensor_idx", "mean_squared_error"} <= {cell.strip().strip('"') for cell in first}


def _read_debugger_table(path: Path) -> Imported:
    text = read_text(path)
    try:
        most = IMPORTED_LAYERS.in_force
        rows = list(islice(csv.DictReader(text.splitlines(), strict=True), most + 1))
    except csv.Error as error:
        raise DataError("the table of the debugger is damaged", where=f"{path}: {error}") from error
    if len(rows) > most:
        raise IMPORTED_LAYERS.error_for(path)
    header = text.splitlines()[0].split(",")
    lacking = [column for column in REQUIRED if column not in [cell.strip().strip('"') for cell in header]]
    if lacking:
        raise DataError("the table of the debugger lacks columns", where=f"{path}: {', '.join(lacking)}")
    layers: dict[str, ReportedFacts] = {}
    tensors: dict[str, RecordedFacts] = {}
    types: dict[str, str] = {}
    for line, row in enumerate(rows, 2):
        name = row.get("tensor_name")
        if None in row or not name or row.get(REQUIRED[-1]) is None:
            raise DataError(
                "a line of the debugger's table has too few or too many cells",
                where=f"{path}:{line}",
                help="the file may be cut off: write it again with layer_statistics_dump",
            )
        layers[name], recorded = _row_facts(row)
        types[name] = row.get("op_name") or ""
        if recorded is not None:
            tensors[name] = recorded
    if not layers:
        raise DataError("the table of the debugger holds no operator", where=str(path))
    notices = []
    if not text.endswith("\n"):
        notices.append("the last line does not end: the file may be cut off")
    return Imported(tensors=tensors, layers=layers, layer_types=types, notices=tuple(notices))


def _row_facts(row: Mapping[str, str]) -> tuple[ReportedFacts, RecordedFacts | None]:
    mse, scale, point = number(row["mean_squared_error"]), number(row["scale"]), whole(row["zero_point"])
    mse = None if mse is None or mse < 0 else mse
    own = _own_metrics(row)
    if scale is None or scale <= 0:
        return ReportedFacts(mse=mse, own_metrics=own), None
    steps = None if mse is None else math.sqrt(mse) / scale
    reported = ReportedFacts(mse=mse, rmse_over_scale=steps, own_metrics=own)
    if point is None or not -128 <= point <= 127:
        return reported, RecordedFacts(scale=scale, zero_point=point)
    # An output of 16 bits has the zero point 0, too: bits are not known, only the grid's step is.
    if point == 0:
        return reported, RecordedFacts(scale=scale, zero_point=0)
    return reported, grid(scale, point, 8, signed=True)


def _own_metrics(row: Mapping[str, str]) -> tuple[str, ...] | None:
    """What is in no column of the debugger itself, as it is written; None where there is nothing else."""
    found = {name: number(cell) for name, cell in row.items() if name not in COLUMNS}
    return tuple(f"{name} {value!r}" for name, value in found.items() if value is not None) or None


FORMATS = (
    Format("table of LiteRT's QuantizationDebugger", "TensorFlow converter", _is_debugger_table, _read_debugger_table),
)

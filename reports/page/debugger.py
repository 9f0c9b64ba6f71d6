"""The page of the debugger's table: it opens from a file, loads nothing and runs nothing."""

import json
import math
from dataclasses import dataclass
from typing import Annotated

from quantmedic.engine.formulas.debugger import DebuggerLayer, DebuggerRecord
from quantmedic.reports.charts.debugger import DebuggerChart, debugger_chart
from quantmedic.reports.charts.frame import INLINE_PALETTE
from quantmedic.reports.sections.tables import denylist_rows
from quantmedic.reports.templating import html_environment
from quantmedic.reports.text import count, name, number, printable, visible


@dataclass(frozen=True)
class DebuggerLine:
    """One layer as text."""

    tensor: Annotated[str, "whole name of the tensor in the float model"]
    op_type: Annotated[str, "operator"]
    figures: Annotated[tuple[str, ...], "one per heading"]
    suspected: Annotated[bool, "its error is more than rounding"]


@dataclass(frozen=True)
class DebuggerBox:
    """What the template of the page may name."""

    title: Annotated[str, "name of the quantized model"]
    summary: Annotated[str, "layers and samples"]
    suspicion: Annotated[str, "how many are suspected, and above what"]
    headings: Annotated[tuple[str, ...], "of the figures of a layer"]
    rows: Annotated[tuple[DebuggerLine, ...], "layers, the largest error in steps first"]
    chart: Annotated[DebuggerChart, "range and error in steps of all layers"]
    nodes: Annotated[str, "the denylist of names as a list; empty where nothing is suspected"]
    kinds: Annotated[str, "the denylist of operator types as a list; empty where there is none"]
    converter: Annotated[bool, "TensorFlow's converter takes these names"]
    denylists: Annotated[tuple[tuple[str, ...], ...], "headings and a row per denylist; empty where none was tried"]
    outputs: Annotated[tuple[tuple[str, str], ...], "metrics of the outputs"]
    notices: Annotated[tuple[str, ...], "what limits the figures"]


def debugger_page(record: DebuggerRecord) -> str:
    """``debugger.html``."""
    template = html_environment().get_template("debugger.html")
    return template.render(record=debugger_box(record), palette=INLINE_PALETTE, script_hashes=[])


def debugger_box(record: DebuggerRecord) -> DebuggerBox:
    """The record as text."""
    suspected = record.suspected
    unmeasured = [f"not measured apart from its neighbours: {name(text)}" for text in record.unmeasured]
    return DebuggerBox(
        title=name(record.quantized_model),
        summary=f"{count(len(record.layers), 'quantized operator')}, {count(record.samples, 'sample')} of "
        f"{name(record.data)}",
        suspicion=f"{count(len(suspected), 'layer')} above {number(record.suspect_steps)} steps",
        headings=("√mse/scale", "range", "scale", "zero point", *record.metrics),
        rows=tuple(_line(layer, record, layer in suspected) for layer in record.worst),
        chart=debugger_chart(record),
        nodes=_list_text(record.denylisted_nodes),
        kinds=_list_text(record.denylisted_ops),
        converter=record.framework == "litert",
        denylists=tuple(denylist_rows(record)) if record.denylists else (),
        outputs=tuple((name(key), _figure_or_nan(value)) for key, value in record.outputs.items()),
        notices=(*unmeasured, *map(visible, record.notices)),
    )


def _line(layer: DebuggerLayer, record: DebuggerRecord, suspected: bool) -> DebuggerLine:
    figures = [layer.rmse_over_scale, layer.range, layer.scale, layer.zero_point]
    return DebuggerLine(
        tensor=visible(layer.tensor_name),
        op_type=name(layer.op_name),
        figures=tuple(_figure_or_nan(value) for value in (*figures, *(layer.metrics[key] for key in record.metrics))),
        suspected=suspected,
    )


def _figure_or_nan(value: float) -> str:
    if math.isnan(value):
        return "nan"
    return number(int(value) if float(value).is_integer() else value)


def _list_text(names: list[str]) -> str:
    return printable(json.dumps(names, ensure_ascii=False, indent=4)) if names else ""

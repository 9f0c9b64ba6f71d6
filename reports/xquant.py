"""What MCT's XQuant Extension Tool reports, from a diagnosis: its numbers, its degraded layers, graphs and messages.

Keys, file names and wording are those of model-compression-toolkit 2.6, so that scripts which read them go on working.
"""

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from quantmedic.engine.case.facts import CaseFacts, ErrorFacts, OperandFacts, OutputFacts, Role
from quantmedic.engine.contract.causes import CauseReport
from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.engine.contract.layers import LayerRow
from quantmedic.engine.rules.rule import SERIOUS
from quantmedic.reports.charts.errors import ErrorChart, Point, log_axis
from quantmedic.reports.charts.frame import (
    HEIGHT,
    LABEL_LIMIT,
    LABEL_STEP,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    AxisName,
    Drawing,
    Mark,
    Scale,
    height_with_names,
    place_ticks,
    ticks,
    upwards,
)
from quantmedic.reports.charts.histogram import histogram_charts
from quantmedic.reports.templating import svg
from quantmedic.reports.text import NAME_LIMIT, first_few, number, visible

#: The data sets by XQuant's names, in its order.
SETS: Mapping[str, Role] = {"repr": "representative", "val": "validation"}
#: XQuant's measures, in its order.
METRICS = ("mse", "cs", "sqnr")
AXES = {
    "mse": "mean squared error (log scale)",
    "cs": "cosine similarity (1 = equal)",
    "sqnr": "signal power / noise power (log scale)",
}
OUTLIER_FOLDER = "outlier_histgrams"

DEGRADED = (
    "This may be problematic because the quantization error is larger than other layers. "
    "Refer to the TroubleShooting Documentation (MCT XQuant Extension Tool)."
)
#: The lines that open XQuant's four judgements, by our cause; its first one holds two invisible characters.
HEADS = {
    "activation-outliers": (
        "There are output values \u200b\u200bthat deviate significantly from the average. Refer to the following "
        "images and the TroubleShooting Documentation (MCT XQuant Extension Tool) of 'Outlier Removal'."
    ),
    "unbalanced-concatenation": (
        "There are unbalanced range layers concatnated. Refer to the troubleshooting manual of "
        "'Unbalanced \"concatenation\"'."
    ),
    "negative-activations": (
        "There are activations that contain negative values. Refer to the troubleshooting manual of "
        '"Shift Negative Activation".'
    ),
    "last-layer-bitwidth": (
        "the quantization bitwidth of the last layer is an extremely small number. Refer to the troubleshooting manual "
        "of 'Mixed Precision with model output loss objective'."
    ),
}
#: Activations with a small negative part. On a grid without zero point their harm is another cause of ours, but the
#: same judgement of XQuant.
NEGATIVE_SIDE = ("Swish", "Gelu", "HardSwish", "Elu", "Selu", "Celu", "PRelu", "LeakyRelu", "Mish")
SYMMETRIC_GRID = "asymmetric-data-on-symmetric-grid"
#: The same judgements by their key in the result, in XQuant's order.
KEYS = {
    "activation-outliers": "outlier_removal",
    "negative-activations": "shift_negative_activation",
    "unbalanced-concatenation": "unbalanced_concatenation",
    "last-layer-bitwidth": "mixed_precision_with_model_output_loss_objective",
}


@dataclass(frozen=True)
class Similarity:
    """XQuant's measures on one data set: of the network's output, and of each layer by its quantized name."""

    output: Annotated[Mapping[str, float], "value by measure"]
    layers: Annotated[Mapping[str, Mapping[str, float]], "value by measure, by layer"]


@dataclass(frozen=True)
class Judgement:
    """One cause as XQuant words it."""

    cause: Annotated[str, "name of the cause that it is in XQuant's words; empty where XQuant does not know it"]
    lines: Annotated[tuple[str, ...], "WARNING lines: XQuant's own where it knows the cause, then ours"]
    found: Annotated[tuple[Any, ...], "what XQuant lists under its key"]


def similarity(diagnosis: Diagnosis, role: Role) -> Similarity:
    """XQuant's measures on one data set; NaN where one was not measured, nothing where the set was not given."""
    measured = list(SETS.values())
    rows = [row for row in diagnosis.layers if any(getattr(row, r).accumulated.mse is not None for r in measured)]
    if not any(getattr(row, role).accumulated.mse is not None for row in rows):
        return Similarity({}, {})
    layers = {layer_name(row): _measures(getattr(row, role).accumulated) for row in rows}
    return Similarity(_measures(_worst_output_errors(diagnosis.outputs, role)), layers)


def layer_name(row: LayerRow) -> str:
    """The name that XQuant knows a layer by: that in the quantized model."""
    return row.quantized_name or row.name


def _worst_output_errors(outputs: Sequence[OutputFacts], role: Role) -> ErrorFacts:
    """The errors of the output with the most noise for its signal."""
    found = [getattr(output.tensor, role).accumulated for output in outputs]
    known = [errors for errors in found if errors.nmse is not None]
    return max(known, key=lambda errors: errors.nmse, default=ErrorFacts())


def _measures(errors: ErrorFacts) -> dict[str, float]:
    sqnr = None if errors.nmse is None else math.inf if errors.nmse == 0 else 1.0 / errors.nmse
    values = {"mse": errors.mse, "cs": errors.cosine, "sqnr": sqnr}
    return {metric: math.nan if value is None else float(value) for metric, value in values.items()}


def degraded_layers(layers: Mapping[str, Mapping[str, float]], metric: str, limit: float, below: bool) -> list[str]:
    """Layers at the limit or beyond it; ``below``: small values are bad. What was not measured is not listed."""
    values = {name: found.get(metric, math.nan) for name, found in layers.items()}
    return [name for name, value in values.items() if (value <= limit if below else value >= limit)]


def error_graph(
    diagnosis: Diagnosis,
    found: Similarity,
    metric: str,
    suffix: str,
    limit: float,
    below: bool,
) -> ErrorChart:
    """One measure of all layers on one data set (``repr`` or ``val``); worse is up, degraded layers are circled."""
    values = {name: measures.get(metric, math.nan) for name, measures in found.layers.items()}
    shown = {name: value for name, value in values.items() if not math.isnan(value)}
    flagged = set(degraded_layers(found.layers, metric, limit, below))
    width = max(WIDTH, LEFT + RIGHT + LABEL_STEP * (len(shown) + 1))
    step = (width - LEFT - RIGHT - 16) / max(len(shown) - 1, 1)
    across = {name: round(LEFT + 8 + place * step, 1) for place, name in enumerate(shown)}
    own = _rounding(diagnosis, SETS[suffix], metric)
    logarithmic = metric in ("mse", "sqnr")
    at, marks = _error_axis([*shown.values(), *own.values(), limit], below, logarithmic=logarithmic)
    title = f"quant_loss_{metric}_{suffix}"
    samples = max((getattr(row, SETS[suffix]).samples or 0 for row in diagnosis.layers), default=0)
    return ErrorChart(
        stem=title,
        title=visible(title, NAME_LIMIT),
        samples=f"n = {samples}" if samples else "",
        axis=AXES.get(metric, visible(metric, LABEL_LIMIT)),
        note="" if shown else "not measured",
        width=width,
        height=height_with_names(TOP + HEIGHT, (name[:LABEL_LIMIT] for name in shown)),
        right=width - RIGHT,
        bottom=TOP + HEIGHT,
        ticks=place_ticks(marks, at),
        limit=at(limit) if _is_drawn(limit, logarithmic) else None,
        limit_text=f"threshold={number(limit)}",
        line=" ".join(f"{across[name]},{at(value)}" for name, value in shown.items()),
        local=" ".join(f"{across[name]},{at(own[name])}" for name in shown if name in own),
        points=tuple(
            Point(
                x=across[name],
                y=at(value),
                tip=f"{visible(name, NAME_LIMIT)}: {number(value)}",
                layer=visible(name, NAME_LIMIT),
                flagged=name in flagged,
            )
            for name, value in shown.items()
        ),
        names=tuple(
            AxisName(across[name], across[name], visible(name, LABEL_LIMIT), "flagged" if name in flagged else "same")
            for name in shown
        ),
        summary=f"{title}: {len(flagged)} of {len(shown)} layers at the threshold or beyond it",
    )


def _rounding(diagnosis: Diagnosis, role: Role, metric: str) -> dict[str, float]:
    """The same measure of what each tensor's own quantizer does."""
    found = {layer_name(row): _measures(getattr(row, role).rounding) for row in diagnosis.layers}
    values = {name: measures.get(metric, math.nan) for name, measures in found.items()}
    return {name: value for name, value in values.items() if not math.isnan(value)}


def _error_axis(values: Sequence[float], below: bool, *, logarithmic: bool) -> tuple[Scale, list[Mark]]:
    """Map from values to positions, worse up, and the marks of the axis."""
    finite = [value for value in values if _is_drawn(value, logarithmic)]
    if not logarithmic:
        low, high = min(finite, default=0.0), max(finite, default=1.0)
        pad = 0.06 * (high - low) or 0.5
        low, high = low - pad, high + pad
        return upwards(low, high) if below else upwards(high, low), ticks(low, high)
    return log_axis(finite, below=below)


def _is_drawn(value: float, logarithmic: bool) -> bool:
    return math.isfinite(value) and (value > 0 or not logarithmic)


def judgements(
    diagnosis: Diagnosis, facts: CaseFacts, images: Mapping[str, str], kinds: Mapping[str, str], report: str
) -> tuple[Judgement, ...]:
    """Every cause that counts, best first, in XQuant's words where it has any.

    What XQuant has a name for counts as well where it is another name of such a cause.

    Args:
        diagnosis: What was judged.
        facts: What it was judged from.
        images: Histogram by layer.
        kinds: Class of a layer by its name in the quantized model, where it is known; else its operator type is named.
        report: Folder of the report, for the link to the manual.
    """
    types = {layer_name(row): row.op_type for row in diagnosis.layers} | dict(kinds)
    found: list[Judgement] = []
    serious = {cause.cause for cause in diagnosis.causes if cause.severity in SERIOUS}
    for cause in diagnosis.causes:
        if cause.cause not in serious and not (cause.explained_by in serious and cause.cause in HEADS):
            continue
        known, subjects = _in_xquants_words(cause, diagnosis)
        entries = list(_xquant_entries(known, subjects, diagnosis, facts, images, types))
        head = (HEADS[known],) if known and known not in [judgement.cause for judgement in found] else ()
        lines = (*head, *(line for _, line in entries), own_line(cause, report))
        found.append(Judgement(known, lines, tuple(entry for entry, _ in entries)))
    return tuple(found)


def _in_xquants_words(cause: CauseReport, diagnosis: Diagnosis) -> tuple[str, tuple[str, ...]]:
    """Which of XQuant's judgements a cause is, by our name, and the subjects that it concerns."""
    if cause.cause in HEADS:
        return cause.cause, cause.subjects
    types = {row.name: row.op_type for row in diagnosis.layers}
    swishes = tuple(subject for subject in cause.subjects if types.get(subject) in NEGATIVE_SIDE)
    if cause.cause == SYMMETRIC_GRID and swishes:
        return "negative-activations", swishes
    return "", ()


def own_line(cause: CauseReport, report: str) -> str:
    """A cause on one line: rule, layer, what was measured, and the manual page."""
    where = first_few([visible(subject, NAME_LIMIT) for subject in cause.subjects], 3)
    rule = cause.rules[0] if cause.rules else "?"
    return f"{rule} {cause.shown} ({where}): {visible(cause.message, 300)}; see {report}/{cause.manual}.html"


def _xquant_entries(
    known: str,
    subjects: Sequence[str],
    diagnosis: Diagnosis,
    facts: CaseFacts,
    images: Mapping[str, str],
    types: Mapping[str, str],
) -> Iterator[tuple[tuple[str, ...] | str, str]]:
    """What XQuant lists of a cause that it knows, each with the line that it logs of it."""
    names = {row.name: layer_name(row) for row in diagnosis.layers}
    match known:
        case "activation-outliers":
            for layer in subjects:
                shown, image = names.get(layer, layer), images.get(layer, "")
                yield (shown, image), image or shown
        case "unbalanced-concatenation":
            for first, second, scaling in _scalings(subjects, facts):
                line = f"first layer:{first}, second layer:{second}, if you add a scaling operation, "
                yield (first, second, scaling), f"{line}recommended scaling:{scaling}"
        case "negative-activations":
            for layer in subjects:
                shown = names.get(layer, layer)
                yield shown, f"{shown}={types.get(shown, '?')}"
        case "last-layer-bitwidth":
            for row in (row for row in diagnosis.layers if row.name in subjects):
                shown = layer_name(row)
                yield shown, f"bidwidth of {shown}:{row.weight_bits}(Weight), {row.bits}(Activation)"


def _scalings(subjects: Sequence[str], facts: CaseFacts) -> Iterator[tuple[str, str, str]]:
    """Narrow and widest operand of each concatenation, and the factor that makes them equally wide."""
    makers = {tensor.float_name: tensor.producer_name for tensor in facts.tensors if tensor.producer_name}
    joined: dict[str | None, list[OperandFacts]] = {}
    for operand in facts.operands:
        joined.setdefault(operand.layer, []).append(operand)
    for layer, operands in joined.items():
        widest = max(operands, key=lambda operand: operand.width or 0.0)
        for operand in operands:
            if f"{layer}[{operand.index}]" in subjects and operand.range_ratio is not None:
                first, second = (makers.get(o.tensor, o.tensor or "?") for o in (operand, widest))
                yield first, second, f"first layer * {operand.range_ratio}"


def troubleshooting(found: Iterable[Judgement], diagnosis: Diagnosis) -> dict[str, Any]:
    """XQuant's second result: what it judges by its keys, and every cause that counts under ``causes``.

    Empty keys are left out, so that the result of a healthy network is empty.
    """
    listed: dict[str, list[Any]] = {}
    for judgement in found:
        listed.setdefault(judgement.cause, []).extend(judgement.found)
    result: dict[str, Any] = {key: listed[cause] for cause, key in KEYS.items() if listed.get(cause)}
    causes = [
        {
            "cause": cause.cause,
            "rules": list(cause.rules),
            "severity": cause.severity,
            "subjects": list(cause.subjects),
            "message": cause.message,
            "remedies": [advice.title for advice in cause.remedies],
            "manual": f"{cause.manual}.html",
        }
        for cause in diagnosis.causes
        if cause.severity in SERIOUS
    ]
    return result | ({"causes": causes} if causes else {})


def outlier_graphs(diagnosis: Diagnosis) -> dict[str, tuple[str, Drawing]]:
    """File name without suffix and histogram, by layer, of the tensors with outliers."""
    names = {row.name: layer_name(row) for row in diagnosis.layers}
    found: dict[str, tuple[str, Drawing]] = {}
    for histogram in diagnosis.histograms:
        (chart,) = histogram_charts([histogram])  # one by one: all are drawn, however many
        plain = re.sub(r"[^\w.-]", "_", names.get(histogram.layer, histogram.layer), flags=re.ASCII)
        stem = plain[:NAME_LIMIT].lstrip(".") or "layer"
        taken = {known for known, _ in found.values()}
        if histogram.layer not in found and not chart.note:
            found[histogram.layer] = (stem if stem not in taken else f"{stem}_{len(found)}", chart)
    return found


def picture(chart: Drawing) -> tuple[str, bytes]:
    """Suffix and content of a graph: PNG, or SVG where the package that draws it is not installed."""
    drawing = svg(chart)
    try:
        import resvg_py  # optional: quantmedic[png]
    except ImportError:
        return "svg", drawing.encode()
    return "png", bytes(resvg_py.svg_to_bytes(svg_string=drawing, zoom=2))


def as_json(values: Mapping[str, Any]) -> str:
    """A result as a file; what was not measured becomes null, an exact layer keeps the infinity of its SQNR."""
    return json.dumps(_without_nan(values), indent=4)


def _without_nan(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_nan(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(inner) for inner in value]
    return None if isinstance(value, float) and math.isnan(value) else value

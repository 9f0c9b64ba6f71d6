"""The data of the interactive page, one JSON object per section; ``browser/data.js`` reads them.

Positions of layers are those of ``Inspection.facts.layers``. A value that was not measured is null; what is not
finite is the text "Infinity", "-Infinity" or "NaN", which ``Number`` reads as such.
"""

from collections.abc import Sequence

from quantmedic.engine.case.facts import ROLES, Role
from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.engine.contract.layers import LayerRow
from quantmedic.engine.diagnosis.inspection import Inspection
from quantmedic.reports.charts.birth import BIRTH_TITLE, ORIGINS, birth_summary, birth_text, origin
from quantmedic.reports.charts.errors import LIMITS, METRICS, NMSE_LIMIT, is_flagged
from quantmedic.reports.page.details import layer_details
from quantmedic.reports.page.layer_table import table_data
from quantmedic.reports.page.short_json import dump
from quantmedic.reports.sections.columns import layer_columns
from quantmedic.reports.sections.run_kind import judged_role
from quantmedic.reports.text import inert_json

#: Operators of a float model that the page shows beside the quantized one; each takes some 20 bytes.
FLOAT_OPERATORS = 6000
#: Metrics of the error graphs.
ERROR_KEYS = ("mse", "nmse", "cosine")


def page_sections(diagnosis: Diagnosis, inspection: Inspection) -> dict[str, str]:
    """JSON text by section: meta, layers, errors, graph, details."""
    sections = {
        "meta": _meta_section(diagnosis),
        "layers": _layers_section(diagnosis, inspection),
        "errors": _errors_section(diagnosis),
        "graph": _graph_section(inspection),
        "details": layer_details(diagnosis, inspection),
    }
    return {name: inert_json(dump(content)).strip() for name, content in sections.items()}


def _meta_section(diagnosis: Diagnosis) -> dict[str, object]:
    places = _places(diagnosis)
    return {
        "role": judged_role(diagnosis),
        "causes": [
            {
                "code": cause.rules[0] if cause.rules else "",
                "cause": cause.shown,
                "severity": cause.severity,
                "layers": [
                    place
                    for layer in cause.layers
                    for place in places.get(layer.float_name or layer.quantized_name or "", ())
                ],
            }
            for cause in diagnosis.causes
        ],
    }


def _places(diagnosis: Diagnosis) -> dict[str, list[int]]:
    """Positions by name; names may repeat."""
    places: dict[str, list[int]] = {}
    for place, row in enumerate(diagnosis.layers):
        places.setdefault(row.name, []).append(place)
    return places


def _layers_section(diagnosis: Diagnosis, inspection: Inspection) -> dict[str, object]:
    columns = layer_columns(inspection.facts.layers, [row.findings for row in diagnosis.layers])
    count = len(inspection.facts.layers)
    return {
        "count": count,
        **table_data(columns, judged_role(diagnosis), count),
        "degraded": [place for place, row in enumerate(diagnosis.layers) if row.degraded],
    }


def _errors_section(diagnosis: Diagnosis) -> dict[str, object]:
    """Everything that the error graphs draw; SQNR is -10 · log10(nmse) and therefore left out."""
    limits = {threshold.name: threshold.value for threshold in diagnosis.thresholds}
    rows, judged = diagnosis.layers, judged_role(diagnosis)
    flagged = {
        f"{metric}-{role}": [place for place, row in enumerate(rows) if is_flagged(row, metric, role, limits)]
        for metric in METRICS
        for role in ROLES
    }
    return {
        "limits": {metric: limits.get(LIMITS[metric]) for metric in METRICS} | {"nmse": limits.get(NMSE_LIMIT)},
        "flagged": flagged,
        "index": [row.index for row in rows] if any(row.index != place for place, row in enumerate(rows)) else None,
        "sets": {role: _error_set(rows, role) for role in ROLES},
        "birth": {
            "title": BIRTH_TITLE,
            "role": judged,
            "added": [row.added_nmse for row in rows],
            "origins": ORIGINS,
            "origin": [ORIGINS.index(word) if (word := origin(row, judged)) else None for row in rows],
            "text": birth_text(rows, judged),
            "summary": birth_summary(rows, judged),
        },
    }


def _error_set(rows: Sequence[LayerRow], role: Role) -> dict[str, object] | None:
    """Errors of all layers on one data set; None where none was measured."""
    here = [getattr(row, role) for row in rows]
    if all(errors.accumulated.mse is None and errors.rounding.mse is None for errors in here):
        return None
    samples = {errors.samples or 0 for errors in here} - {0}
    return {
        "samples": [min(samples, default=None), max(samples, default=None)],
        "accumulated": {key: [getattr(errors.accumulated, key) for errors in here] for key in ERROR_KEYS},
        "rounding": {key: [getattr(errors.rounding, key) for errors in here] for key in ERROR_KEYS},
    }


def _graph_section(inspection: Inspection) -> dict[str, object]:
    """Edges as pairs of positions in one list, -1 where an input of the network is read; names, attributes."""
    record = inspection.case.record
    names = [tensor.float_name or tensor.name for tensor in record.tensors if tensor.is_input]
    return {
        "float": _float_graph(inspection),
        "edges": [end for edge in inspection.edges for end in edge],
        "input": ", ".join(names) or "input",
        "attributes": {str(place): op.attributes for place, op in enumerate(record.operators) if op.attributes},
    }


def _float_graph(inspection: Inspection) -> dict[str, object] | None:
    """The float model beside it; None where the case has none, or one with more operators than a page carries.

    ``twins`` are positions of layers, null for what only the float model has. A name or type is empty where it is that
    of its twin.
    """
    own, layers = inspection.case.record.float_operators, inspection.facts.layers
    if not own or len(own) > FLOAT_OPERATORS:
        return None
    twins = [None if op.twin is None else layers[op.twin] for op in own]
    pairs = list(zip(own, twins, strict=True))
    return {
        "names": ["" if twin and op.name == twin.float_name else op.name for op, twin in pairs],
        "types": ["" if twin and op.op_type == twin.op_type else op.op_type for op, twin in pairs],
        "twins": [op.twin for op in own],
        "edges": [end for place, op in enumerate(own) for source in op.reads for end in (source, place)],
    }

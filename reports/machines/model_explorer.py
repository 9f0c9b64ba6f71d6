"""Node data for Model Explorer: the noise that has accumulated at every layer, as colours over the network.

The format is that of `node_data_builder.py` in google-ai-edge/model-explorer, for one graph and without its name: the
viewer lays such a file over whichever graph it shows.
"""

import json
import math
from collections.abc import Iterator

from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.reports.sections.run_kind import judged_role
from quantmedic.reports.text import inert_json

#: Fill and text of layers up to so many dB above the threshold of a degraded layer, the worst first.
_COLOURS = ((0.0, "#b2182b", "#ffffff"), (10.0, "#ef8a62", "#000000"), (20.0, "#fddbc7", "#000000"))
#: Of a layer that is degraded.
_DEGRADED = "quantize_error_sqnr_db"


def render_model_explorer(diagnosis: Diagnosis) -> str:
    """``model-explorer.json``: accumulated SQNR in dB by the layer's name in the quantized model, and its colours.

    On the data set that is judged. Layers that were not measured have no value, and neither have those without any
    noise: JSON has no infinity.
    """
    limit = next((own.value for own in diagnosis.thresholds if own.name == _DEGRADED), 0.0)
    graph = {
        "results": {name: {"value": level} for name, level in _levels(diagnosis)},
        "thresholds": [{"value": limit + above, "bgColor": fill, "textColor": text} for above, fill, text in _COLOURS],
    }
    return inert_json(json.dumps(graph, indent=1, allow_nan=False))


def _levels(diagnosis: Diagnosis) -> Iterator[tuple[str, float]]:
    role = judged_role(diagnosis)
    for row in diagnosis.layers:
        level = (row.validation if role == "validation" else row.representative).accumulated.sqnr_db
        if level is not None and math.isfinite(level):
            yield row.quantized_name or row.name, level

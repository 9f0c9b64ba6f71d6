"""A float OpenVINO model by itself: what its files tell about why no quantized model could be made of it."""

from pathlib import Path

import numpy as np

from quantmedic.collectors.data.messages import shape_text
from quantmedic.collectors.from_openvino.file import read_ir
from quantmedic.collectors.from_openvino.graph import graph_of
from quantmedic.collectors.measure.float_model import FloatModel
from quantmedic.collectors.pair.feed import input_specs
from quantmedic.engine.case.facts import FloatFacts, ModelFacts


def read_openvino_float(path: Path) -> FloatModel:
    """Read an IR.

    Raises:
        ModelError: It cannot be read.
    """
    graph = graph_of(read_ir(path))
    known = [(name, each.values) for name, each in graph.constants.items() if each.values is not None]
    broken = [name for name, values in known if not np.isfinite(values).all()]
    facts = FloatFacts(
        format="openvino",
        operators=len(graph.operators),
        inputs=tuple(f"{s.name} {shape_text(s.shape or ())} {s.dtype}" for s in graph.input_specs),
        dynamic_inputs=tuple(s.name for s in graph.input_specs if None in (s.shape or ())[1:]),
        constant_bytes=len(graph.file.content),
        nonfinite_constants=len(broken),
        first_nonfinite_constant=broken[0] if broken else None,
    )
    changes = {
        "float_model": facts,
        "bytes_float": sum(file.stat().st_size for file in graph.file.files),
        "float_is_quantized": graph.is_quantized,
    }
    described = ModelFacts(name=path.name).model_copy(update=changes)
    return FloatModel(described, tuple(input_specs(graph)), tuple(graph.file.files), tuple(graph.notices))

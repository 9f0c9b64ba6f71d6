"""Measure a float LiteRT model and its quantized counterpart; the passes over the data are those of ``from_onnx``."""

from pathlib import Path

from quantmedic.collectors.from_litert.file import read_litert
from quantmedic.collectors.from_litert.models import LiteRTModels
from quantmedic.collectors.from_litert.session import is_open
from quantmedic.collectors.from_litert.translation import graph_of
from quantmedic.collectors.from_onnx.models import match_files, pairs_of


def open_litert(float_path: Path, quantized_path: Path) -> LiteRTModels:
    """Read both files, translate them and pair their tensors; neither is run.

    Raises:
        ModelError: A file cannot be read, they are swapped, their inputs differ, or no layer matches.
    """
    float_graph, quantized = (graph_of(read_litert(path)) for path in (float_path, quantized_path))
    matched = match_files(float_graph, quantized)
    pairs = [
        pair
        for pair in pairs_of(float_graph, quantized, matched)
        if pair.twin in float_graph.places and pair.tap.tensor in quantized.places
    ]
    batched = all(is_open(graph.file) for graph in (float_graph, quantized))
    return LiteRTModels(float_graph, quantized, matched, pairs, batched=batched)

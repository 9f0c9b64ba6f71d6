"""The log folder of Sony's Model Compression Toolkit as a source like the files of other toolchains."""

from pathlib import Path

from quantmedic.collectors.from_settings.formats import Format, Imported
from quantmedic.collectors.from_settings.mct_log import MctLog, read_mct_log
from quantmedic.collectors.from_settings.mct_stage import MctNode
from quantmedic.engine.case.facts import RecordedFacts, ReportedFacts


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


#: A folder has no text to recognize it by: ``merge`` reads every folder so.
MCT_FOLDER = Format("MCT log folder", "Sony MCT", lambda name, text: False, read_folder)

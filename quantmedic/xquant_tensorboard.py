"""XQuant's event files for TensorBoard: the quantized graph with its measures, histograms, measures of the outputs.

Needs the optional package ``tensorboard`` (``quantmedic[mct]``); runs and tags are those of
model-compression-toolkit 2.6.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tensorboard.compat.proto.attr_value_pb2 import AttrValue
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.graph_pb2 import GraphDef
from tensorboard.compat.proto.node_def_pb2 import NodeDef
from tensorboard.compat.proto.summary_pb2 import HistogramProto, Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.plugins.text.plugin_data_pb2 import TextPluginData
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from quantmedic.engine.case.facts import CaseFacts, LayerFacts
from quantmedic.engine.case.histogram import Bins
from quantmedic.engine.case.records import Case
from quantmedic.engine.diagnosis.inspection import Inspection
from quantmedic.engine.formulas.stored_bins import main_role, tensor_bins
from quantmedic.engine.output_files import copy_file, require_folder, scratch_folder
from quantmedic.reports.xquant import SETS, Similarity

if TYPE_CHECKING:
    import torch

#: The run that holds graph and histograms; each text is a run of its own.
RUN = "xquant"
INPUT = "Input/input"
#: What MCT computes of the memory of a quantized model where it is asked to.
MAX_CUT = "max_cut"


def write_events(
    folder: Path, opened: Inspection, found: Mapping[str, Similarity], quantized_model: "torch.nn.Module"
) -> None:
    """Write the event files of a report.

    Args:
        folder: Folder of the report; ``tensorboard --logdir`` shows it.
        opened: What was measured.
        found: Measures of outputs and layers, by the data set as XQuant calls it.
        quantized_model: May hold what MCT computed of its memory.
    """
    histograms = (
        Event(summary=Summary(value=[Summary.Value(tag=name, histo=histo)]))
        for name, histo in _histograms(opened.case, opened.facts)
    )
    _write(folder / RUN, [*histograms, Event(graph_def=_graph(opened, found).SerializeToString())])
    texts = {
        f"output_similarity_metrics_{suffix}": f"Similarity Metrics on outputs using {SETS[suffix]} dataset: \n"
        + "\n".join(f"{metric}: {value:.4f}" for metric, value in similarity.output.items())
        for suffix, similarity in found.items()
    }
    scheduling = (getattr(quantized_model, "metadata", None) or {}).get("scheduling_info")
    if scheduling is not None:
        texts[MAX_CUT] = f"MaxCut: {scheduling[MAX_CUT]}"
    for tag, text in texts.items():
        _write(folder / tag, [_text_event(tag, text)])


def _write(folder: Path, events: list[Event]) -> None:
    with scratch_folder() as made:
        writer = EventFileWriter(str(made))
        for event in events:
            writer.add_event(event)
        writer.close()
        require_folder(folder, within=folder.parent)
        for file in made.iterdir():
            copy_file(file, folder / file.name)


def _histograms(case: Case, facts: CaseFacts) -> Iterator[tuple[str, HistogramProto]]:
    """Distribution of the network's input, and of what each layer of the float model writes."""
    role = "representative" if "representative" in case.statistics else main_role(case)
    written: dict[str, int | None] = {
        _name(layer): next((index for index in operator.outputs if index is not None), None)
        for layer, operator in zip(facts.layers, case.record.operators, strict=True)
    }
    entry = case.record.input_tensor
    if entry is not None:
        written = {facts.tensors[entry].float_name or INPUT: entry, **written}
    for name, index in written.items():
        bins = tensor_bins(case, role, index) if index is not None else None
        if bins is not None:
            yield name, _histogram(bins)


def _histogram(bins: Bins) -> HistogramProto:
    middles = (bins.low + bins.high) / 2
    return HistogramProto(
        min=float(bins.low[0]),
        max=float(bins.high[-1]),
        num=bins.total,
        sum=float((middles * bins.count).sum()),
        sum_squares=float((middles**2 * bins.count).sum()),
        bucket_limit=bins.high.tolist(),
        bucket=bins.count.tolist(),
    )


def _graph(opened: Inspection, found: Mapping[str, Similarity]) -> GraphDef:
    """The quantized graph; each node says what was measured on both data sets."""
    nodes = [NodeDef(name=INPUT, op="Placeholder")]
    for place, layer in enumerate(opened.facts.layers):
        name = _name(layer)
        measured = {f"xquant_{suffix}": similarity.layers.get(name) for suffix, similarity in found.items()}
        kind = layer.op_type or "?"
        nodes.append(
            NodeDef(
                name=name,
                op=kind,
                device=kind,
                input=[_source(opened, writer) for writer, reader in opened.edges if reader == place],
                attr={key: AttrValue(s=str(dict(values)).encode()) for key, values in measured.items() if values},
            )
        )
    return GraphDef(node=nodes)


def _source(opened: Inspection, writer: int) -> str:
    return _name(opened.facts.layers[writer]) if writer >= 0 else INPUT


def _name(layer: LayerFacts) -> str:
    return layer.quantized_name or layer.name or "?"


def _text_event(tag: str, text: str) -> Event:
    plugin = SummaryMetadata.PluginData(plugin_name="text", content=TextPluginData(version=0).SerializeToString())
    shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)])
    tensor = TensorProto(dtype="DT_STRING", string_val=[text.encode()], tensor_shape=shape)
    return Event(
        summary=Summary(value=[Summary.Value(tag=tag, metadata=SummaryMetadata(plugin_data=plugin), tensor=tensor)])
    )

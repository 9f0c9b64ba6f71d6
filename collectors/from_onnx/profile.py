"""What the deployed ONNX models cost in time: both files as they are, and the quantized one operator by operator."""

import json
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import onnxruntime as ort

from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.data.messages import error_line
from quantmedic.collectors.from_onnx.onnx_graph import OnnxGraph, PairedOnnxGraphs
from quantmedic.collectors.from_onnx.onnx_session import Feed, named_after_outputs, run, written_by
from quantmedic.collectors.measure.latency import Profile, latency_facts
from quantmedic.collectors.native.runs import in_background
from quantmedic.collectors.pair.feed import feed_of
from quantmedic.engine.case.facts import KernelFacts
from quantmedic.engine.errors import ModelError
from quantmedic.engine.output_files import scratch_folder

#: Runs that are profiled, the first of which are dropped; fewer of large networks, whose logs are long.
PROFILED, DROPPED, EVENTS = 20, 3, 60_000
_KERNEL = re.compile(r"_kernel_time$")
_QUANTIZERS = ("QuantizeLinear", "DequantizeLinear")


def profile(models: PairedOnnxGraphs, batch: Batch, threads: int) -> Profile:
    """Latency of both models on one batch, and the time of each operator of the quantized one.

    Raises:
        ModelError: A model cannot be loaded or fails on the batch.
    """
    calls = []
    for graph in (models.float_graph, models.quantized):
        session, feed = _session(str(graph.path), graph, _options(threads)), feed_of(batch, graph)
        calls.append(lambda session=session, feed=feed, graph=graph: run(session, graph.outputs, feed, graph.path))
    # As a whole: the way to another thread would count to every run.
    facts = in_background(partial(latency_facts, *calls, threads=threads, batch=batch.samples))
    del calls, session
    kernels, times = _by_operator(models.quantized, feed_of(batch, models.quantized), threads)
    return Profile(facts, kernels, times)


def _options(threads: int) -> ort.SessionOptions:
    """As deployed, but threads of one session stop spinning when its run ends: they would slow the other down."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    options.add_session_config_entry("session.force_spinning_stop", "1")
    return options


def _session(model: str | bytes, graph: OnnxGraph, options: ort.SessionOptions) -> ort.InferenceSession:
    try:
        return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise ModelError(
            "onnxruntime cannot load the model to time it", where=f"{graph.path}: {error_line(error)}"
        ) from error


def _by_operator(graph: OnnxGraph, feed: Feed, threads: int) -> tuple[tuple[KernelFacts, ...], dict[int, float]]:
    """Time by kind of kernel, and by operator of the graph, of the model with its nodes named after what they write."""
    named = named_after_outputs(graph.model)
    runs = max(min(PROFILED, EVENTS // max(len(named.graph.node), 1)), DROPPED + 2)
    with scratch_folder() as folder:
        options = _options(threads)
        options.enable_profiling = True
        options.profile_file_prefix = str(folder / "profile")
        session = _session(named.SerializeToString(), graph, options)
        for _ in range(runs):
            run(session, graph.outputs, feed, graph.path)
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    nodes = node_times(events)
    return _facts_of_kinds(nodes), _operator_times(nodes, graph)


def node_times(events: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str, str], float]:
    """Median milliseconds of one run by (name, kind, number) of the node, the first runs left out."""
    runs: list[dict[tuple[str, str, str], float]] = [defaultdict(float)]
    for event in sorted(events, key=lambda event: event["ts"] + event["dur"]):
        arguments = event.get("args", {})
        if event.get("cat") == "Session" and event["name"] == "model_run":
            runs.append(defaultdict(float))
        elif event.get("cat") == "Node" and _KERNEL.search(event["name"]):
            key = (_KERNEL.sub("", event["name"]), arguments["op_name"], str(arguments.get("node_index")))
            runs[-1][key] += event["dur"] / 1e3
    runs = runs[DROPPED:-1]
    return {key: statistics.median(times[key] for times in runs) for key in {key for times in runs for key in times}}


def _facts_of_kinds(nodes: Mapping[tuple[str, str, str], float]) -> tuple[KernelFacts, ...]:
    counts: Counter[str] = Counter()
    times: dict[str, float] = defaultdict(float)
    for (_, kind, _), time in nodes.items():
        counts[kind] += 1
        times[kind] += time
    total = sum(times.values())
    return tuple(
        KernelFacts(op_type=kind, count=counts[kind], time_ms=time, time_share=time / total if total else None)
        for kind, time in sorted(times.items(), key=lambda item: (-item[1], item[0]))
    )


def _operator_times(nodes: Mapping[tuple[str, str, str], float], graph: OnnxGraph) -> dict[int, float]:
    """By index of the operator; a quantizer counts to what writes its tensor, else to what reads it."""
    owner = _owners(graph)
    times: dict[int, float] = defaultdict(float)
    for (name, _, _), time in nodes.items():
        place = owner.get(written_by(name) or "")
        if place is not None:
            times[place] += time
    return dict(times)


def _owners(graph: OnnxGraph) -> dict[str, int]:
    """Index of an operator by every tensor that it, or a quantizer of its output, or of its constants, writes."""
    owner = {name: op.index for op in graph.operators for name in (*op.outputs, *op.node.outputs) if name}
    quantizers = [node for node in graph.model.graph.node if node.op_type in _QUANTIZERS]
    for node in quantizers:  # in topological order
        if node.input[0] in owner:
            owner.setdefault(node.output[0], owner[node.input[0]])
    readers: dict[str, int] = {}
    for op in graph.operators:
        for name in op.node.inputs:
            readers.setdefault(name, op.index)
    for node in reversed(quantizers):
        if node.output[0] not in owner and node.output[0] in readers:
            owner[node.output[0]] = readers[node.output[0]]
            readers.setdefault(node.input[0], readers[node.output[0]])
    return owner

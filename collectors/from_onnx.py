"""Measure a float ONNX model and its quantized counterpart: one pass over each data set, memory independent of it."""

import hashlib
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray

from quantmedic.collectors.accumulate import SetAccumulator, as_rows
from quantmedic.collectors.channels import MAX_CHANNELS, channel_axes, static_shapes
from quantmedic.collectors.datasets import Batch, Dataset, InputSpec
from quantmedic.collectors.host import has_vnni
from quantmedic.collectors.metrics import Metric
from quantmedic.collectors.onnx_file import external_files, load_model
from quantmedic.collectors.onnx_graph import COMPUTE, Graph, Operator, Tap
from quantmedic.collectors.onnx_match import Match, match
from quantmedic.collectors.onnx_parse import parse
from quantmedic.collectors.onnx_quantizer import Quantizer
from quantmedic.collectors.onnx_session import (
    ObservedModel,
    executed_types,
    expose,
    isolate_operators,
    make_session,
    run,
)
from quantmedic.collectors.onnx_weights import bias_facts, quantizer_facts, refuse_other_weights, weight_facts
from quantmedic.engine.case import (
    Case,
    CaseRecord,
    DatasetRecord,
    OperatorRecord,
    OutputRecord,
    SetStatistics,
    TensorRecord,
)
from quantmedic.engine.errors import ModelError
from quantmedic.engine.facts import ModelFacts, QuantizerFacts, Role

Array = NDArray[np.generic]
Progress = Callable[[str, int, int | None], None]
#: Samples on which the channel-reversed representative inputs are tried.
FLIP_SAMPLES = 64
#: Activations that runtimes fuse into the kernel before them.
_ACTIVATIONS = frozenset({"Relu", "Clip", "LeakyRelu", "PRelu", "HardSigmoid", "HardSwish"})
#: Output columns whose codes are counted one by one.
MAX_COLUMNS = 1024
#: Names that a notice lists.
NAMES_TOLD = 8


@dataclass(frozen=True)
class Options:
    """How to collect.

    Attributes:
        samples: At most this many samples per data set; None for all.
        batch_size: Samples per run.
        threads: Threads of the runtime.
        operator_error: Also measure each operator on float inputs (one more run per batch).
        seed: Seed of the intervals that are bootstrapped over samples.
    """

    samples: int | None = None
    batch_size: int = 8
    threads: int = 1
    operator_error: bool = False
    seed: int = 0


@dataclass(frozen=True)
class Pair:
    """One measured tensor: where to read it in either model."""

    root: str
    twin: str
    tap: Tap


@dataclass
class Models:
    """Both graphs and what was found out about them before any data was run."""

    float_graph: Graph
    quantized: Graph
    match: Match
    pairs: list[Pair]

    @property
    def input_specs(self) -> list[InputSpec]:
        """Inputs that a data set has to supply."""
        return [_input_spec(value) for value in _graph_inputs(self.float_graph)]


def open_models(float_path: Path, quantized_path: Path) -> Models:
    """Read both models and pair their tensors.

    Raises:
        ModelError: A model cannot be read, they are swapped, their inputs differ, or no layer matches.
    """
    float_graph = parse(float_path, load_model(float_path))
    quantized = parse(quantized_path, load_model(quantized_path))
    _refuse_swapped(float_graph, quantized)
    _refuse_strangers(float_graph, quantized)
    matched = match(float_graph, quantized)
    if not matched.operators:
        raise ModelError(
            "no layer of the two models matches",
            where=[
                f"float     {float_path.name}: {len(float_graph.operators)} operators",
                f"quantized {quantized_path.name}: {len(quantized.operators)} operators",
            ],
            help="is the quantized model made from this float model?",
        )
    refuse_other_weights(float_graph, quantized, matched.operators)
    return Models(float_graph, quantized, matched, _pairs(float_graph, quantized, matched))


def collect(
    models: Models,
    datasets: Mapping[Role, Dataset],
    *,
    options: Options,
    version: str,
    metric: Metric | None = None,
    progress: Progress = lambda stage, done, total: None,
) -> Case:
    """Run both models over the data sets and return everything measured.

    Args:
        models: What ``open_models`` returned.
        datasets: At least one of the two roles.
        options: How to collect.
        version: Version of quantmedic, for the record.
        metric: Task metric for labelled sets; without one, labels are not used.
        progress: Called with a stage, the samples done and their number where known.

    Raises:
        DataError: A data set does not fit the model.
        ModelError: A model fails on the data.
    """
    first = next(iter(datasets.values())).batches(_batch_size(models, options), limit=options.samples)
    observer = _Observer(models, next(first), options, classes=_are_classes(models.float_graph, metric))
    del first
    statistics, records = {}, {}
    for role, dataset in datasets.items():
        accumulator = observer.accumulator(metric if dataset.labelled else None)
        done = 0
        for batch in dataset.batches(_batch_size(models, options), limit=options.samples):
            observer.observe(batch, accumulator, flip=role == "representative" and done < FLIP_SAMPLES)
            done += accumulator.last
            progress(role, done, _total(dataset, options))
        statistics[role] = accumulator.finish()
        records[role] = DatasetRecord(origin=dataset.origin, labelled=dataset.labelled, seen=done)
    notices = [*observer.notices, *(notice for d in datasets.values() for notice in d.notices)]
    record = _record(models, observer, options, version, metric, notices)
    return Case(record.model_copy(update={"datasets": records}), statistics)


def _are_classes(graph: Graph, metric: Metric | None) -> bool:
    """The first output holds class scores: a known number of them, and no metric that says otherwise."""
    if metric is not None and metric.name not in ("top1", "top5"):
        return False
    if not graph.outputs:
        return False
    shape = graph.model.graph.output[0].type.tensor_type.shape.dim
    return len(shape) >= 2 and any(d.dim_value > 1 for d in shape[1:])


class _Observer:
    """Runs one batch through both models and hands tensor pairs to the accumulator."""

    def __init__(self, models: Models, first: Batch, options: Options, *, classes: bool) -> None:
        self.models, self.options, self.classes = models, options, classes
        self.notices = [*models.float_graph.notices, *models.quantized.notices]
        quantized, float_graph = models.quantized, models.float_graph
        taps = [pair.tap for pair in models.pairs]
        self.observed = ObservedModel(quantized, taps, self._feed(first, quantized), options.threads)
        if self.observed.simulated:
            self.notices.append(
                "reading its tensors changes the result of the quantized model by "
                f"{self.observed.difference:.1%} of the largest output: the figures describe that simulation"
            )
        self.pairs = list(models.pairs)
        self.tapped = {models.pairs[i].root for i in self.observed.taps}
        self._tell_untapped()
        self._open_float(float_graph)
        self._settle_shapes(first)
        self._open_isolated()

    def _tell_untapped(self) -> None:
        names = [pair.twin for pair in self.pairs if pair.root not in self.tapped]
        if not names:
            return
        more = f" and {len(names) - NAMES_TOLD} more" if len(names) > NAMES_TOLD else ""
        self.notices.append(
            f"{len(names)} tensors are measured in the float model only, for reading them would change what the "
            f"quantized model computes: {', '.join(names[:NAMES_TOLD])}{more}"
        )

    def _open_float(self, graph: Graph) -> None:
        twins = [pair.twin for pair in self.pairs]
        self.float_model = expose(graph.model, [*twins, *self._feature_names(graph)])
        self.float_session = make_session(self.float_model, graph.path, self.options.threads)

    def _feature_names(self, graph: Graph) -> list[str]:
        """The input of the last compute operator: what the network thinks before it decides."""
        heads = [op for op in graph.operators if op.op_type in COMPUTE]
        names = [n for op in heads[-1:] for n in op.inputs[:1] if n not in graph.constants and n not in graph.inputs]
        self.feature = names[0] if names else None
        return names

    def _settle_shapes(self, first: Batch) -> None:
        """Drop pairs that are not float tensors of equal shape, and find the channel axes."""
        floats, codes, _ = self._run(first)
        n = _samples(first)
        shapes = {pair.twin: floats[pair.twin].shape for pair in self.pairs if pair.twin in floats}
        fixed = static_shapes(self.models.float_graph)
        axes = channel_axes(self.models.float_graph, shapes, fixed)
        kept, strangers, seen = [], [], []
        self.axes: list[int | None] = []
        self.channels: list[int] = []
        self.bucketed: list[bool] = []
        for pair, code in zip(self.pairs, codes, strict=True):
            x = floats[pair.twin]
            if x.dtype != np.float32 or not x.size or not x.ndim:
                continue
            if code is not None and x.shape != code.shape:
                strangers.append(f"{pair.root} {list(code.shape)} against {pair.twin} {list(x.shape)}")
                continue
            axis = axes.get(pair.twin)
            if axis is not None and not _is_channel_axis(axis, x.shape, fixed.get(pair.twin)):
                axis = None
            grid = _fixed(pair.tap.quantizer)
            if grid is not None and grid.scale.size > 1:  # its own channels, whatever the operators' are
                axis = (grid.axis or 0) % x.ndim
            kept.append(pair)
            seen.append(code)
            self.axes.append(axis)
            self.channels.append(x.shape[axis] if axis is not None else 1)
            self.bucketed.append(x.shape[0] == n)
        if strangers:
            self.notices.append(f"{len(strangers)} tensors differ in shape and are not measured: {strangers[0]}")
        self.pairs = kept
        self.output_grids = self._output_grids(seen)
        if not kept:
            raise ModelError(
                "no tensor of the two models can be compared",
                where=[str(self.models.float_graph.path), str(self.models.quantized.path)],
            )
        self.input_pair = next((i for i, p in enumerate(kept) if p.root in self.models.quantized.inputs), None)
        first_input = next((s.name for s in self.models.input_specs if s.dtype == np.float32), None)
        self.image = self._image_axis(first_input, first, axes)

    def _image_axis(self, name: str | None, batch: Batch, axes: Mapping[str, int]) -> tuple[str, int] | None:
        """The first float input and its channel axis, where it has one."""
        if name is None:
            return None
        shape = batch.inputs[name].shape
        axis = axes.get(name)
        if axis is None and len(shape) == 4:
            axis = next((i for i in (1, 3) if shape[i] in (1, 3, 4)), None)
        return (name, axis) if axis is not None and axis > 0 and shape[axis] <= 16 else (name, 0)

    def _open_isolated(self) -> None:
        self.isolated: ort.InferenceSession | None = None
        if not self.options.operator_error:
            return
        self.isolated_pairs = [
            i for i, pair in enumerate(self.pairs) if pair.tap.quantizer is not None and not pair.tap.quantizer.dynamic
        ]
        taps = [self.pairs[i].tap for i in self.isolated_pairs]
        model, self.isolated_inputs = isolate_operators(self.models.quantized, taps)
        self.isolated = make_session(model, self.models.quantized.path, self.options.threads)

    def accumulator(self, metric: Metric | None) -> SetAccumulator:
        """Empty accumulators for one data set."""
        lattices = 0
        if self.image is not None and self.image[1] > 0 and self.input_pair is not None:
            lattices = self.channels[self.input_pair]
        elif self.image is not None:
            lattices = 1
        codes = [(columns, 2**q.bits) for _, q, columns in self.output_grids]
        return SetAccumulator(SetStatistics.empty(self.channels, lattices, codes), metric, classes=self.classes)

    def _output_grids(self, codes: Sequence[Array | None]) -> list[tuple[int, Quantizer, int]]:
        """(tensor, quantizer, columns) of every output that ends on a grid of 8 bits or less."""
        found = []
        for root in self.models.quantized.output_roots:
            i = next((k for k, pair in enumerate(self.pairs) if pair.root == root), None)
            grid = _fixed(self.pairs[i].tap.quantizer) if i is not None else None
            code = codes[i] if i is not None else None
            if i is None or grid is None or code is None or grid.bits > 8:
                continue
            columns = code.shape[-1] if code.ndim > 1 and code.shape[-1] <= MAX_COLUMNS else 1
            found.append((i, grid, columns))
        return found

    def observe(self, batch: Batch, into: SetAccumulator, *, flip: bool) -> None:
        """Add one batch to the accumulators."""
        floats, codes, outputs = self._run(batch)
        n = _samples(batch)
        buckets = into.begin(n, self._input(batch), self.image, batch.labels)
        names = [self.models.float_graph.outputs[i] for i, _ in self.models.match.outputs]
        into.outputs(outputs[0], outputs[1], names)
        if self.feature is not None:
            into.features(floats[self.feature], n)
        for i, (pair, code) in enumerate(zip(self.pairs, codes, strict=True)):
            values, grid = floats[pair.twin], _fixed(pair.tap.quantizer)
            self.bucketed[i] = self.bucketed[i] and values.shape[0] == n
            x = as_rows(values, self.axes[i])
            if x.shape[1] != self.channels[i] or (code is not None and code.shape != values.shape):
                raise ModelError(
                    "a tensor changes its channels from batch to batch",
                    where=f"{pair.root}: {self.channels[i]} at first, then {list(values.shape)}",
                )
            into.tensor(i, x, buckets if self.bucketed[i] else None, grid)
            if code is not None:
                into.error(i, x, _real(code, grid, self.axes[i]), "accumulated")
        for slot, (i, grid, columns) in enumerate(self.output_grids):
            code = codes[i]
            if code is not None and (columns == 1 or code.shape[-1] == columns):
                into.codes(slot, code, columns, grid)
        if self.isolated is not None:
            self._observe_isolated(batch, floats, into)
        if flip and self._can_flip():
            self._observe_flipped(batch, into)

    def _observe_isolated(self, batch: Batch, floats: Mapping[str, Array], into: SetAccumulator) -> None:
        assert self.isolated is not None
        feed = self._feed(batch, self.models.quantized)
        used = {value.name for value in self.isolated.get_inputs()}
        feed = {name: array for name, array in feed.items() if name in used}
        for name, i in zip(self.isolated_inputs, self.isolated_pairs, strict=True):
            if name in used:
                feed[name] = floats[self.pairs[i].twin]
        pairs = [self.pairs[i] for i in self.isolated_pairs]
        readable = [k for k, pair in enumerate(pairs) if pair.root not in self.models.quantized.inputs]
        names = [pairs[k].tap.tensor for k in readable]
        for k, code in zip(readable, run(self.isolated, names, feed, self.models.quantized.path), strict=True):
            quantizer, i = pairs[k].tap.quantizer, self.isolated_pairs[k]
            assert quantizer is not None
            x = as_rows(floats[pairs[k].twin], self.axes[i])
            into.error(i, x, _real(code, quantizer, self.axes[i]), "operator")

    def _can_flip(self) -> bool:
        return self.feature is not None and self.image is not None and self.image[1] > 0 and self._channels_flip()

    def _channels_flip(self) -> bool:
        return self.input_pair is not None and self.channels[self.input_pair] == 3

    def _observe_flipped(self, batch: Batch, into: SetAccumulator) -> None:
        assert self.image is not None and self.feature is not None
        name, axis = self.image
        flipped = {**batch.inputs, name: np.ascontiguousarray(np.flip(batch.inputs[name], axis))}
        feed = self._feed(replace(batch, inputs=flipped), self.models.float_graph)
        (features,) = run(self.float_session, [self.feature], feed, self.models.float_graph.path)
        into.flipped_features(features, _samples(batch))

    def _input(self, batch: Batch) -> NDArray[np.generic]:
        name = self.image[0] if self.image is not None else next(iter(batch.inputs))
        return batch.inputs[name]

    def _feed(self, batch: Batch, graph: Graph) -> dict[str, Array]:
        """Inputs under the names of one graph; both name them alike or list them in the same order."""
        wanted = graph.inputs
        arrays = list(batch.inputs.values())
        feed = {
            name: batch.inputs[name] if name in batch.inputs else arrays[position]
            for position, name in enumerate(wanted)
        }
        return {value.name: _fed(feed[value.name], value, graph) for value in _graph_inputs(graph)}

    def _run(self, batch: Batch) -> tuple[dict[str, Array], list[Array | None], tuple[list[Array], list[Array]]]:
        """Float tensors by name, what each tap shows (None where it is not exposed), and both models' outputs."""
        float_graph, quantized = self.models.float_graph, self.models.quantized
        feed = self._feed(batch, float_graph)
        names = list(dict.fromkeys([p.twin for p in self.pairs if p.twin not in feed]))
        if self.feature is not None and self.feature not in names:
            names.append(self.feature)
        wanted = [*names, *(n for n in float_graph.outputs if n not in names)]
        values = dict(zip(wanted, run(self.float_session, wanted, feed, float_graph.path), strict=True))
        floats = {**feed, **values}
        quantized_feed = self._feed(batch, quantized)
        exposed = [p.tap.tensor for p in self.pairs if p.root in self.tapped]
        taps = [name for name in dict.fromkeys(exposed) if name not in quantized_feed]
        wanted = [*taps, *(n for n in quantized.outputs if n not in taps)]
        seen = dict(zip(wanted, run(self.observed.session, wanted, quantized_feed, quantized.path), strict=True))
        seen |= quantized_feed
        outputs = (
            [floats[float_graph.outputs[i]] for i, _ in self.models.match.outputs],
            [seen[quantized.outputs[j]] for _, j in self.models.match.outputs],
        )
        codes = [seen[p.tap.tensor] if p.root in self.tapped else None for p in self.pairs]
        return floats, codes, outputs


def _real(code: Array, grid: Quantizer | None, axis: int | None) -> NDArray[np.float32]:
    """Real values behind what a tap shows, as rows; codes are arranged before they grow to floats."""
    rows = as_rows(code, axis)
    return np.asarray(rows, np.float32) if grid is None else grid.dequantize_rows(rows)


def _is_channel_axis(axis: int, shape: tuple[int, ...], static: tuple[int | None, ...] | None) -> bool:
    """The axis can be measured channel by channel: few enough, and as many in every batch."""
    known = static is not None and len(static) == len(shape) and static[axis] == shape[axis]
    return axis > 0 and known and shape[axis] <= MAX_CHANNELS


def _fixed(quantizer: Quantizer | None) -> Quantizer | None:
    """The quantizer, unless its scale is computed at run time."""
    return None if quantizer is None or quantizer.dynamic else quantizer


def _fed(array: Array, value: onnx.ValueInfoProto, graph: Graph) -> Array:
    """What an input takes: a number where it is a scalar, codes where the graph dequantizes it."""
    spec = _input_spec(value)
    taps = graph.quantizers.get(value.name, [])
    if array.dtype.kind == "f" and spec.dtype.kind in "iu" and taps and taps[0].quantizer is not None:
        array = taps[0].quantizer.encode(np.asarray(array, np.float32)).astype(spec.dtype)
    return array if value.type.tensor_type.shape.dim else array.reshape(())


def _graph_inputs(graph: Graph) -> list[onnx.ValueInfoProto]:
    return [value for value in graph.model.graph.input if value.name in graph.inputs]


def _input_spec(value: onnx.ValueInfoProto) -> InputSpec:
    tensor = value.type.tensor_type
    shape = tuple(d.dim_value if d.HasField("dim_value") and d.dim_value > 0 else None for d in tensor.shape.dim)
    # A scalar input is one number per sample: a data set holds them as a vector, fed one by one.
    shape = shape or (1,)
    return InputSpec(value.name, shape, np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)))


def _refuse_swapped(float_graph: Graph, quantized: Graph) -> None:
    if float_graph.is_quantized and not quantized.is_quantized:
        raise ModelError(
            "the models seem to be swapped: the float model holds quantizers, the quantized one none",
            where=[f"float     {float_graph.path}", f"quantized {quantized.path}"],
            help="give the float model first: quantmedic diagnose FLOAT QUANT",
        )


def _refuse_strangers(float_graph: Graph, quantized: Graph) -> None:
    mine, theirs = ([_input_spec(v) for v in _graph_inputs(g)] for g in (float_graph, quantized))
    if {spec.name for spec in mine} == {spec.name for spec in theirs}:
        theirs.sort(key=lambda spec: [other.name for other in mine].index(spec.name))
    fits = len(mine) == len(theirs) and all(_shapes_fit(a, b) for a, b in zip(mine, theirs, strict=True))
    if fits:
        return
    raise ModelError(
        "the two models do not belong together: their inputs differ",
        where=[f"float     {_describe(mine)}", f"quantized {_describe(theirs)}"],
        help="is the quantized model made from this float model?",
    )


def _shapes_fit(a: InputSpec, b: InputSpec) -> bool:
    same_rank = len(a.shape) == len(b.shape)
    return same_rank and all(x is None or y is None or x == y for x, y in zip(a.shape, b.shape, strict=True))


def _describe(specs: Sequence[InputSpec]) -> str:
    return ", ".join(f"{s.name} {s.dtype}{['?' if d is None else d for d in s.shape]}" for s in specs)


def _pairs(float_graph: Graph, quantized: Graph, matched: Match) -> list[Pair]:
    """Every tensor that can be read in both models: by its codes, or, outside of quantizers, by its values."""
    pairs = []
    order = [*quantized.inputs, *(name for op in quantized.operators for name in op.outputs)]
    for root in order:
        twin = matched.tensors.get(root)
        if twin is None or _visible(root, quantized) != root:
            continue
        taps = quantized.quantizers.get(root, [])
        codes = next((t for t in taps if t.tensor and t.quantizer is not None and t.quantizer.bits >= 8), None)
        if codes is not None:
            pairs.append(Pair(root, twin, codes))
        elif not any(t.tensor for t in taps):
            dynamic = next((t.quantizer for t in taps), None)
            pairs.append(Pair(root, twin, Tap(root, dynamic)))
    return pairs


def _visible(root: str, graph: Graph) -> str:
    """The tensor that exists at run time: a product's result inside an integer kernel is only seen activated.

    To expose it would take the kernel apart.
    """
    readers = graph.consumers.get(root, [])
    producer = graph.producers.get(root)
    if producer is None or len(readers) != 1 or readers[0].op_type not in _ACTIVATIONS or root in graph.quantizers:
        return root
    fused = any(name in graph.quantizers for name in producer.inputs)
    activated = readers[0].outputs[0]
    return activated if fused and activated in graph.quantizers else root


def _batch_size(models: Models, options: Options) -> int:
    return max(1, options.batch_size)


def _total(dataset: Dataset, options: Options) -> int | None:
    if dataset.samples is None:
        return options.samples
    return min(dataset.samples, options.samples or dataset.samples)


def _samples(batch: Batch) -> int:
    return len(next(iter(batch.inputs.values())))


def _record(
    models: Models,
    observer: _Observer,
    options: Options,
    version: str,
    metric: Metric | None,
    notices: Sequence[str],
) -> CaseRecord:
    executed = executed_types(models.quantized, options.threads)
    index = {pair.root: i for i, pair in enumerate(observer.pairs)}
    operators = tuple(_operator(op, models, index, executed) for op in models.quantized.operators)
    return CaseRecord(
        quantmedic_version=version,
        model=_model_facts(models, observer, operators),
        tensors=tuple(_tensor(i, observer, models) for i in range(len(observer.pairs))),
        operators=operators,
        outputs=_outputs(models, observer, index),
        input_tensor=observer.input_pair,
        image_input=observer.image is not None and observer.image[1] > 0,
        metric=metric.name if metric else None,
        metric_higher_is_better=metric.higher_is_better if metric else None,
        unmatched=tuple(models.match.unmatched),
        notices=tuple(dict.fromkeys(notices)),
        run=_run_record(models, options),
    )


def _tensor(i: int, observer: _Observer, models: Models) -> TensorRecord:
    pair = observer.pairs[i]
    producer = models.quantized.producers.get(pair.root)
    twin = models.match.operators.get(producer.index) if producer is not None else None
    return TensorRecord(
        name=pair.root,
        float_name=pair.twin,
        producer=producer.op_type if producer else "Input",
        producer_name=(twin.name if twin else producer.name) if producer else None,
        consumers=tuple(op.op_type for op in models.quantized.consumers.get(pair.root, [])),
        axis=observer.axes[i],
        channels=observer.channels[i],
        bucketed=observer.bucketed[i],
        is_input=pair.root in models.quantized.inputs,
        quantizer=quantizer_facts(pair.tap.quantizer),
    )


def _operator(op: Operator, models: Models, index: Mapping[str, int], executed: Mapping[str, str]) -> OperatorRecord:
    twin = models.match.operators.get(op.index)
    heads = [o for o in models.quantized.operators if o.op_type in COMPUTE]
    return OperatorRecord(
        index=op.index,
        name=twin.name if twin else op.name,
        float_name=twin.name if twin else None,
        quantized_name=op.name,
        op_type=op.op_type,
        inputs=tuple(index.get(name) for name in op.inputs if name not in models.quantized.constants),
        outputs=tuple(index.get(_visible(name, models.quantized)) for name in op.outputs),
        is_compute=op.op_type in COMPUTE,
        is_first=op is heads[0] if heads else False,
        is_last=op is heads[-1] if heads else False,
        executed_as=_executed_as(op, models.quantized, executed),
        weight=weight_facts(op, models.quantized, twin, models.float_graph),
        bias=bias_facts(op, models.quantized, twin, models.float_graph),
    )


def _executed_as(op: Operator, graph: Graph, executed: Mapping[str, str]) -> str | None:
    """Integer where an integer kernel computes the operator or writes its codes in the optimized graph."""
    names = [op.node.output[0], *(name for output in op.outputs for name in _copies(graph, output))]
    kinds = [executed[name] for name in names if name in executed]
    if not kinds:
        return None
    return "integer" if any(_is_integer_kernel(kind) for kind in kinds) else "float"


def _copies(graph: Graph, root: str) -> Iterator[str]:
    yield root
    yield from (tap.tensor for tap in graph.quantizers.get(root, []) if tap.tensor)


def _is_integer_kernel(kind: str) -> bool:
    return kind.startswith("QLinear") or kind in (
        "QGemm",
        "MatMulInteger",
        "ConvInteger",
        "MatMulIntegerToFloat",
        "DynamicQuantizeMatMul",
        "MatMulNBits",
        "QAttention",
    )


def _outputs(models: Models, observer: _Observer, index: Mapping[str, int]) -> tuple[OutputRecord, ...]:
    grids = {i: columns for i, _, columns in observer.output_grids}
    records = []
    for position, twin in models.match.outputs:
        name, i = models.float_graph.outputs[position], index.get(models.quantized.output_roots[twin])
        records.append(
            OutputRecord(
                name=name,
                tensor=i,
                quantizer=quantizer_facts(observer.pairs[i].tap.quantizer) if i is not None else QuantizerFacts(),
                columns=grids.get(i, 0) if i is not None else 0,
            )
        )
    return tuple(records)


def _model_facts(models: Models, observer: _Observer, operators: Sequence[OperatorRecord]) -> ModelFacts:
    graph = models.quantized
    compute = [op for op in operators if op.is_compute]
    quantized = [op for op in compute if _is_quantized(graph.operators[op.index], graph)]
    kernels = [op.executed_as for op in compute if op.executed_as is not None]
    sizes = [_model_bytes(g.path) for g in (models.float_graph, graph)]
    known = sum(len(op.outputs) for op in graph.operators)
    matched = sum(name in models.match.tensors for op in graph.operators for name in op.outputs)
    return ModelFacts(
        name=graph.path.name,
        framework="onnx",
        format=graph.format,
        toolchain=" ".join(filter(None, (graph.model.producer_name, graph.model.producer_version))) or None,
        opset=graph.opset,
        operators=len(operators),
        compute_operators=len(compute),
        quantized_share=len(quantized) / len(compute) if compute else None,
        integer_share=kernels.count("integer") / len(kernels) if kernels else None,
        matched_share=matched / known if known else None,
        bytes_float=sizes[0],
        bytes_quantized=sizes[1],
        size_ratio=sizes[1] / sizes[0],
        observed="simulated" if observer.observed.simulated else "deployed",
        observed_difference=observer.observed.difference,
        dropped_taps=sum(pair.root not in observer.tapped for pair in observer.pairs),
        float_is_quantized=models.float_graph.is_quantized,
        cpu_vnni=has_vnni(),
    )


def _is_quantized(op: Operator, graph: Graph) -> bool:
    return any(
        name in graph.quantizers or (name in graph.constants and graph.constants[name].quantizer is not None)
        for name in op.inputs
    )


def _model_bytes(path: Path) -> int:
    return path.stat().st_size + sum(file.stat().st_size for file in external_files(path))


def _run_record(models: Models, options: Options) -> dict[str, Any]:
    return {
        "float_model": models.float_graph.path.name,
        "float_sha256": _sha256(models.float_graph.path),
        "quantized_model": models.quantized.path.name,
        "quantized_sha256": _sha256(models.quantized.path),
        "samples": options.samples,
        "batch_size": options.batch_size,
        "operator_error": options.operator_error,
        "seed": options.seed,
        "onnxruntime": ort.__version__,
        "onnx": onnx.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
    }


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    for file in [path, *external_files(path)]:
        with file.open("rb") as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()

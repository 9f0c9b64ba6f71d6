"""One batch through both models: every tensor pair goes to the accumulators."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray

from quantmedic.collectors.accumulate import SetAccumulator, as_rows
from quantmedic.collectors.channels import MAX_CHANNELS, channel_axes, static_shapes
from quantmedic.collectors.datasets import Batch
from quantmedic.collectors.metrics import Metric
from quantmedic.collectors.onnx_graph import COMPUTE, Graph
from quantmedic.collectors.onnx_pair import Models, graph_inputs, input_spec
from quantmedic.collectors.onnx_quantizer import Quantizer
from quantmedic.collectors.onnx_session import (
    ObservedModel,
    expose,
    isolate_operators,
    make_session,
    run,
)
from quantmedic.engine.case import (
    SetStatistics,
)
from quantmedic.engine.errors import ModelError

Array = NDArray[np.generic]
Progress = Callable[[str, int, int | None], None]
#: Samples on which the channel-reversed representative inputs are tried.
FLIP_SAMPLES = 64
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


class Observer:
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
        return {value.name: _fed(feed[value.name], value, graph) for value in graph_inputs(graph)}

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
    spec = input_spec(value)
    taps = graph.quantizers.get(value.name, [])
    if array.dtype.kind == "f" and spec.dtype.kind in "iu" and taps and taps[0].quantizer is not None:
        array = taps[0].quantizer.encode(np.asarray(array, np.float32)).astype(spec.dtype)
    return array if value.type.tensor_type.shape.dim else array.reshape(())


def _samples(batch: Batch) -> int:
    return len(next(iter(batch.inputs.values())))

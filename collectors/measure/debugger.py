"""What LiteRT's QuantizationDebugger measures, of any two models whose operators can be run by themselves.

Both operators of a pair, the float one and the quantized one, are fed with what the deployed model computed before them
(the ``step`` error). Every metric is computed per sample and averaged over the samples.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import SupportsFloat

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.data.functions import failing_as, import_function
from quantmedic.collectors.measure.measurement import Measurement
from quantmedic.collectors.measure.models import Models
from quantmedic.collectors.measure.plan import fixed_grid, settle, tap_values
from quantmedic.collectors.pair.quantizer import Quantizer
from quantmedic.collectors.pair.tensor_pairs import Pair
from quantmedic.engine.case.facts import Role
from quantmedic.engine.contract.searches import COMPUTED, LEADING, METRICS, TRAILING, DebuggerLayer, DebuggerRecord
from quantmedic.engine.errors import DataError, ModelError
from quantmedic.engine.version import VERSION

Array = NDArray[np.generic]
Float32 = NDArray[np.float32]
#: A function of the user, or how it is named: ``module:function``.
Function = str | Callable[..., object]

#: Of the difference ``quantized - float`` of one sample.
_BUILT_IN: Mapping[str, Callable[[Float32], SupportsFloat]] = dict(
    zip(
        METRICS,
        (np.size, np.std, np.average, lambda d: np.max(np.abs(d)), lambda d: np.average(d**2)),
        strict=True,
    )
)
#: How each kind of function of the user is called.
_CALLED = {
    "layer": "function(quantized - float)",
    "pair": "function(float, codes, scale, zero_point)",
    "output": "function(float_outputs, quantized_outputs)",
}


@dataclass(frozen=True)
class UserMetric:
    """A function of the user under its name; it is called with arrays and returns one number."""

    name: str
    kind: str
    spec: str
    function: Callable[..., object]

    def __call__(self, *arguments: object) -> float:
        """The number.

        Raises:
            DataError: The function fails, or returns something else; names it.
        """
        with failing_as(partial(self._error, "failed")):
            found = self.function(*arguments)
        invalid = partial(self._error, "did not return one number")
        with failing_as(invalid):
            array = np.asarray(found)
        if array.size == 1 and array.dtype.kind in "fiub":
            return float(array.reshape(()))
        shown = f"shape {array.shape}, {array.dtype}" if isinstance(found, np.ndarray) else type(found).__name__
        raise invalid(f"returned  {shown}")

    def _error(self, what: str, where: str) -> DataError:
        return DataError(
            f"the {self.kind} metric {self.name} {what}",
            where=[self.spec, where],
            help=f"it is called as {_CALLED[self.kind]} for every sample and returns one number",
        )


#: Functions of the user by kind: ``layer`` of differences, ``pair`` of pairs of tensors, ``output`` of outputs.
UserMetrics = Mapping[str, Sequence[UserMetric]]


def open_metrics(given: Mapping[str, Mapping[str, Function]]) -> UserMetrics:
    """The functions that the user named, by their kind.

    Raises:
        DataError: A function cannot be imported, or two columns would have one name.
    """
    taken = dict.fromkeys((*LEADING, *METRICS, *TRAILING, *COMPUTED), "the table itself")
    for kind, functions in given.items():
        for name in functions:
            if not name or name in taken:
                where = f"{name} is a column of {taken[name]}" if name else "an empty name"
                raise DataError("two metrics have one name", where=where, help="give every metric a name of its own")
            taken[name] = f"the {kind} metrics"
    return {kind: [_user_metric(kind, *item) for item in functions.items()] for kind, functions in given.items()}


def _user_metric(kind: str, name: str, given: Function) -> UserMetric:
    if isinstance(given, str):
        return UserMetric(name, kind, given, import_function(given, f"{kind} metric {name}"))
    return UserMetric(name, kind, getattr(given, "__qualname__", type(given).__name__), given)


@dataclass
class _Row:
    """One quantized tensor, and of each of its metrics the sum and the number of values, NaN left out."""

    pair: Pair
    grid: Quantizer
    sums: dict[str, tuple[float, int]] = field(default_factory=dict)

    def add(self, name: str, value: float) -> None:
        total, count = self.sums.get(name, (0.0, 0))
        self.sums[name] = (total, count) if math.isnan(value) else (total + value, count + 1)


class _Table:
    """Rows of all quantized tensors of which the float operator can be run by itself."""

    def __init__(self, models: Models, first: Batch, threads: int) -> None:
        self._view = view = models.view(dict(enumerate(models.pairs)), first, threads)
        reading = view.read_tensors(first)
        plan = settle(models, first, reading.floats, reading.codes)
        view.renumber([tensor.number for tensor in plan.tensors])
        self._steps = models.steps(view, plan.pairs, threads)
        grids = {number: fixed_grid(view.pairs[number].tap.quantizer) for number in range(len(plan.tensors))}
        shown = {number: grid for number, grid in grids.items() if grid is not None}
        self.rows = {n: _Row(view.pairs[n], shown[n]) for n in self._steps.measured if n in shown}
        written = {name for op in models.quantized.operators for name in op.outputs}
        others = [view.pairs[n].root for n in shown if n not in self.rows and view.pairs[n].root in written]
        self.unmeasured = tuple(others)
        self.notices = view.observed.notices

    def add(self, batch: Batch, metrics: UserMetrics) -> tuple[Sequence[Array], Sequence[Array]]:
        """Run both models on one sample; returns the outputs of both."""
        reading = self._view.read_tensors(batch)
        floats = self._steps.run_operators(batch, reading.codes)
        for number, row in self.rows.items():
            tap, codes = self._view.taps[number], reading.codes[number]
            expected = np.asarray(floats[number], np.float32)
            difference = tap_values(tap, codes) - expected
            for name, measure in _BUILT_IN.items():
                row.add(name, float(measure(difference)))
            for metric in metrics["layer"]:
                row.add(metric.name, metric(difference.copy()))
            if tap.decoded:
                codes = row.grid.encode(np.asarray(codes, np.float32)).astype(np.int8 if row.grid.signed else np.uint8)
            for metric in metrics["pair"]:
                row.add(metric.name, metric(expected.copy(), codes.copy(), *_first_channel(row.grid)))
        return reading.outputs


def _first_channel(grid: Quantizer) -> tuple[np.float32, np.int32]:
    """Scale and zero point, those of the first channel; as numbers with which codes of 8 bits do not overflow."""
    return np.float32(grid.scale.flat[0]), np.int32(grid.zero_point.flat[0])


def debug(measurement: Measurement, role: Role, metrics: UserMetrics, suspect_steps: float) -> DebuggerRecord:
    """Run both models sample by sample over one data set; memory does not depend on their number.

    A model with a fixed batch axis is run batch by batch, and each batch counts as one sample.

    Raises:
        DataError: The data do not fit, or a function of the user fails.
        ModelError: A model fails on the data, its operators cannot be run by themselves, or none is quantized.
    """
    models, dataset, samples = measurement.models, measurement.datasets[role], measurement.options.samples
    total = dataset.reads(samples)
    first = next(dataset.batches(1, limit=samples))
    table = _Table(models, first, measurement.options.threads)
    if not table.rows:
        raise ModelError(
            "no quantized tensor has a float operator to compare with",
            where=[str(models.float_graph.path), str(models.quantized.path)],
            help="quantmedic diagnose tells what is quantized in this model",
        )
    outputs: dict[str, list[float]] = {metric.name: [0.0, 0.0] for metric in metrics["output"]}
    done = 0
    for batch in dataset.batches(1, limit=samples):
        ends = table.add(batch, metrics)
        for metric in metrics["output"]:
            # As the debugger does it, NaN of a whole network is no number to leave out.
            value = metric(*([_real(models, side, k, array) for k, array in enumerate(ends[side])] for side in (0, 1)))
            outputs[metric.name][0] += value
            outputs[metric.name][1] += 1
        done += batch.samples
        measurement.progress("debugger", done, total)
    return DebuggerRecord(
        quantmedic_version=VERSION,
        framework=models.framework,
        float_model=models.float_graph.path.name,
        quantized_model=models.quantized.path.name,
        data=dataset.origin,
        samples=done,
        suspect_steps=suspect_steps,
        layers=tuple(_debugger_layer(models, row) for row in table.rows.values()),
        outputs={name: total / count for name, (total, count) in outputs.items()},
        unmeasured=table.unmeasured,
        notices=(*dataset.notices, *table.notices),
    )


def _debugger_layer(models: Models, row: _Row) -> DebuggerLayer:
    producer = models.producer_of(row.pair)
    scale, zero = _first_channel(row.grid)
    return DebuggerLayer(
        op_name=producer.op_type,
        tensor_idx=producer.place,
        tensor_name=producer.float_name,
        scale=float(scale),
        zero_point=int(zero),
        bits=row.grid.bits,
        metrics={name: total / count if count else math.nan for name, (total, count) in row.sums.items()},
    )


def _real(models: Models, side: int, position: int, array: Array) -> Array:
    """An output as real values, where the model ends on codes whose grid is known."""
    if side == 0 or array.dtype.kind not in "iu":
        return array
    name = models.quantized.outputs[models.match.outputs[position][1]]
    grid = models.quantized.codes.get(name)
    return array if grid is None or grid.dynamic else grid.dequantize(array)

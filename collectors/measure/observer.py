"""Batches through both models: every tensor pair goes to the accumulators."""

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.measure.given_outputs import hash_of_sample
from quantmedic.collectors.measure.lanes import Lane
from quantmedic.collectors.measure.models import Models, View, flip_channels
from quantmedic.collectors.measure.options import Options
from quantmedic.collectors.measure.outputs import Outputs, output_difference
from quantmedic.collectors.measure.plan import Plan, fixed_grid, per_channel, settle
from quantmedic.collectors.metrics.metric import Metric
from quantmedic.collectors.pair.graph import Tap
from quantmedic.collectors.pair.quantizer import Deployed
from quantmedic.collectors.statistics.accumulate import SetAccumulator, as_rows, sample_rows
from quantmedic.collectors.statistics.spatial import is_image
from quantmedic.engine.case.statistics import SetStatistics, slots_of
from quantmedic.engine.errors import ModelError

Array = NDArray[np.generic]
Float32 = NDArray[np.float32]
#: Names that a notice lists.
NAMES_TOLD = 8


class Observer:
    """Runs batches through both models and hands tensor pairs to the accumulators.

    Attributes:
        plan: What is measured.
        tapped: Tensors that the quantized model shows without computing anything else.
        observed: How faithfully the quantized model is observed, in all views of it.
        rerun_difference: Largest relative change of a float output in a second run of the first batch.
        kernels: What the runtime's own kernels add: fields of ``ModelFacts``.
        outputs: Compares the outputs that both models have.
    """

    def __init__(self, models: Models, first: Batch, options: Options, *, classes: bool) -> None:
        self._models, self._first, self._options, self._classes = models, first, options, classes
        self.tapped: set[int] = set()
        view = models.view(dict(enumerate(models.pairs)), first, options.session_threads)
        self.observed = view.observed
        reading = view.read_tensors(first)
        self.plan: Plan = settle(models, first, reading.floats, reading.codes)
        self.outputs = Outputs(models, self.plan.joints, classes=classes)
        graph = models.float_graph
        names = [name for name in graph.outputs if name not in graph.inputs]
        floats = [reading.floats[name] for name in names]
        self.kernels = models.kernel_facts(first, reading, options.session_threads)
        del reading  # a run more needs room
        self.rerun_difference = output_difference(floats, view.read_floats(first, names))
        view.renumber([tensor.number for tensor in self.plan.tensors])
        self._use(view)

    def show(self, tensors: Collection[int]) -> None:
        """Expose these tensors from now on, and only these."""
        if set(tensors) == set(self._view.pairs):
            return
        del self._view  # one pair of sessions at a time
        pairs = {i: self.plan.tensors[i].pair for i in sorted(tensors)}
        view = self._models.view(pairs, self._first, self._options.session_threads, self.observed.plain)
        self._use(view)

    def _use(self, view: View) -> None:
        self._view = view
        self._shows_all = len(view.pairs) == len(self.plan.tensors)
        self.tapped.update(view.taps)
        self.observed = self.observed.join(view.observed)
        self._grids = {i: self._grid(i, tap) for i, tap in view.taps.items()}
        measures, threads = self._options.step_error, self._options.session_threads
        self._steps = self._models.steps(view, self.plan.pairs, threads) if measures else None

    @property
    def facts(self) -> dict[str, object]:
        """Fields of ``ModelFacts`` that say how the models compute."""
        return {"float_rerun_difference": self.rerun_difference, **self.kernels}

    @property
    def notices(self) -> list[str]:
        """What the user should know of the models and of how they were observed."""
        graphs, strangers = (self._models.float_graph, self._models.quantized), self.plan.strangers
        notices = [*(notice for graph in graphs for notice in graph.notices), *self.observed.notices]
        names = [pair.twin for i, pair in enumerate(self.plan.pairs) if i not in self.tapped]
        if names:
            more = f" and {len(names) - NAMES_TOLD} more" if len(names) > NAMES_TOLD else ""
            notices.append(
                f"{len(names)} tensors are measured in the float model only, for reading them would change what the "
                f"quantized model computes: {', '.join(names[:NAMES_TOLD])}{more}"
            )
        if strangers:
            notices.append(f"{len(strangers)} tensors differ in shape and are not measured: {strangers[0]}")
        return notices

    @property
    def spatial(self) -> bool:
        """Samples are images, of which neighbouring pixels are compared."""
        image = self.plan.image
        return image is not None and is_image(self._first.inputs[image[0]].shape, image[1])

    def accumulator(self, metric: Metric | None, known: SetStatistics | None = None) -> SetAccumulator:
        """Accumulators for one data set: empty, or going on from what is known."""
        statistics, keeps = known or self._empty(), self._options.thumbnails
        return SetAccumulator(statistics, metric, classes=self._classes, thumbnails=keeps)

    def _empty(self) -> SetStatistics:
        plan, lattices = self.plan, 0
        if plan.image is not None:
            lattices = plan.input_channels if plan.image[1] > 0 and plan.input_pair is not None else 1
        codes = [(columns, 2**grid.bits) for _, grid, columns in plan.output_grids]
        return SetStatistics.empty([tensor.channels for tensor in plan.tensors], lattices, codes)

    def takes(self, batch: Batch) -> bool:
        """Both models run on so many samples."""
        try:
            self._view.read_tensors(batch)
        except ModelError:
            return False
        return True

    def observe(
        self,
        batch: Batch,
        into: SetAccumulator,
        lane: Lane,
        *,
        flip: bool,
        given: Mapping[str, Sequence[Array | None]] = MappingProxyType({}),
    ) -> None:
        """Add one batch to the accumulators, station by station behind the batch before.

        ``given`` holds outputs that were computed elsewhere, by kind.

        Raises:
            ModelError: A model fails on this batch, or a tensor changes its channels.
        """
        plan = self.plan
        name = plan.image[0] if plan.image is not None else next(iter(batch.inputs))
        x = batch.inputs[name]
        rows = sample_rows(x, batch.labels)
        if len(batch.inputs) > 1:  # masks and lengths are often the same where samples differ
            rows["hash"] = [hash_of_sample(batch, sample) for sample in range(batch.samples)]
        reading = self._view.read_tensors(batch).with_rows()
        steps = self._steps.run_operators(batch, reading.codes) if self._steps is not None else {}
        flipped = self._flipped_features(batch) if flip else None
        found = self.outputs.pairs(*reading.outputs, whole=bool(given)) | self.outputs.columns(*reading.outputs)
        if self._shows_all:
            found |= self.outputs.endings(*reading.outputs)
        for kind, arrays in given.items():
            found |= self.outputs.of_given(kind, arrays, *reading.outputs)
        names = [self._models.float_graph.outputs[i] for i, _ in self._models.match.outputs]
        with lane.station(0):
            into.begin(rows, batch.labels)
            into.show(x, plan.image)
            if self._shows_all:
                into.inputs(x, plan.image)
            into.outputs(*reading.outputs, names)
            into.compare(found)
            if "device" in given:
                into.device(given["device"], names)
            if plan.feature is not None:
                into.features(reading.floats[plan.feature], batch.samples)
            if flipped is not None:
                into.flipped_features(flipped, batch.samples)
            for slot, (i, grid, columns) in enumerate(plan.output_grids):
                code = reading.codes.get(i)
                if code is not None and (columns == 1 or code.shape[-1] == columns):
                    into.codes(slot, code, columns, self._view.taps[i].quantizer or grid)
        slots = slots_of(rows)
        for station, (i, pair) in enumerate(self._view.pairs.items(), 1):
            values, code, tensor = reading.floats[pair.twin], reading.codes.get(i), plan.tensors[i]
            floats = self._rows(i, values)
            if code is not None and code.shape != values.shape:
                raise self._channel_error(i, values)
            deployed = None if code is None else self._deployed_values(i, code)
            step = self._rows(i, steps[i]) if i in steps else None
            with lane.station(station):
                tensor.bucketed = tensor.bucketed and values.shape[0] == batch.samples
                used = slots if tensor.bucketed else None
                into.tensor(i, floats, batch.samples, used, tensor.rounding, deployed)
                if step is not None and deployed is not None:
                    into.step_error(i, step, deployed.values())
        with lane.station(len(self._view.pairs) + 1):
            into.end(batch.samples)

    def _rows(self, i: int, values: Array) -> Float32:
        rows = as_rows(np.asarray(values, np.float32), self.plan.tensors[i].axis)
        if rows.shape[1] != self.plan.tensors[i].channels:
            raise self._channel_error(i, values)
        return rows

    def _channel_error(self, i: int, values: Array) -> ModelError:
        tensor = self.plan.tensors[i]
        return ModelError(
            "a tensor changes its channels from batch to batch",
            where=f"{tensor.pair.root}: {tensor.channels} at first, then {list(values.shape)}",
        )

    def _grid(self, i: int, tap: Tap) -> tuple[Float32, Float32]:
        """Scale and zero point per channel of what a tap shows; without a grid it shows values."""
        grid, channels = None if tap.decoded else fixed_grid(tap.quantizer), self.plan.tensors[i].channels
        scale, zero = (1, 0) if grid is None else (grid.scale, grid.zero_point)
        return per_channel(scale, channels), per_channel(zero, channels)

    def _deployed_values(self, i: int, code: Array) -> Deployed:
        """Codes are arranged before they grow to floats."""
        return Deployed(as_rows(code, self.plan.tensors[i].axis), *self._grids[i])

    def _flipped_features(self, batch: Batch) -> Array | None:
        plan = self.plan
        if plan.feature is None or plan.image is None or not plan.image[1] or plan.input_channels != 3:
            return None
        return self._view.read_floats(flip_channels(batch, *plan.image), [plan.feature])[0]

"""Tensors of the device against those of the deployed model here, sample by sample, and where a departure begins.

What the device computes otherwise than here is carried on: everything behind it differs, too. Where it begins is told
by feeding each operator of the simulated network with the device's own tensors before it. Where that gives the device's
tensor but for steps of rounding, its difference was carried in. Where operators cannot be fed, a departure begins at a
tensor that differs by more than rounding while none of those before it does.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.data.arrays import Column, ColumnReader
from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.data.datasets import Dataset
from quantmedic.collectors.from_device.dump import OPTION, list_names
from quantmedic.collectors.from_device.layout import Choices, Layout, LayoutError, choices_of, choose_layouts
from quantmedic.collectors.from_device.matched_tensors import MatchedDump
from quantmedic.collectors.measure.memory import lacking_for, samples_that_fit
from quantmedic.collectors.measure.models import GivenSimulation, Models, Reading, View
from quantmedic.collectors.measure.plan import fixed_grid, pairs_of_case, tap_values
from quantmedic.collectors.measure.simulation import samples_within
from quantmedic.collectors.pair.graph import Graph
from quantmedic.collectors.pair.quantizer import Quantizer
from quantmedic.collectors.pair.tensor_pairs import Pair
from quantmedic.engine.case.records import Case, DeviceRecord, DeviceTensorRecord
from quantmedic.engine.errors import DataError, ModelError

Float32 = NDArray[np.float32]
Values = Mapping[int, Float32]
#: Samples of a run: between these, as many as make so many values.
MIN_SAMPLES, MAX_SAMPLES, VALUES = 1, 16, 16e6
#: Up to so many tensors are read from front to back; of more, files are opened anew for every run, for each that stays
#: open is a file, and of a compressed archive its whole table.
HELD = 64
#: All tensors of a sample and all weights are held about so often by the sessions that are opened.
TENSORS, WEIGHTS = 8, 6
#: Steps up to which two codes differ by rounding.
ROUNDING = 1.5
#: Departures are told from what the deployed model shows of the same here: this many times as much is taken off.
OWN_KERNELS = 2.0
#: Where operators cannot be fed: tensors before one agree where they differ by no more (mean square beyond a step, in
#: steps²; of tensors without a grid energy over that of the tensor).
AGREEING_STEPS, AGREEING_NMSE = 0.5, 1e-4
#: … and it is noisier than the noisiest of them by this factor (10 dB): rounding that was carried in adds up.
FAR = 10.0
#: A tensor is like none of the model where its correlation with it is under this: they share 1 % of their energy.
UNLIKE = 0.1


@dataclass
class Beyond:
    """Σ of squares, in values² and in steps², of differences beyond rounding; all of them where there is no grid."""

    energy: float = 0.0
    steps: float = 0.0

    def add(self, difference: Float32, step: Float32 | None) -> None:
        """Count one batch."""
        d = difference.astype(np.float64)
        if step is not None:
            in_steps = np.divide(d, step, out=np.zeros_like(d), where=np.asarray(step) > 0)
            beyond = np.abs(in_steps) > ROUNDING
            self.steps += float(np.square(in_steps[beyond]).sum())
            d = d[beyond]
        self.energy += float(np.square(d).sum())


@dataclass
class _Sums:
    """What is added up of one tensor over the samples."""

    grid: Quantizer | None
    power: float = 0.0
    noise: float = 0.0
    count: int = 0
    #: Σ of the device's values, of those here, of the squares of the device's, and of the products.
    moments: NDArray[np.float64] = field(default_factory=lambda: np.zeros(4))
    difference: Beyond = field(default_factory=Beyond)
    #: Σ of the squares of the device's values, of those times what its operator makes here, and of the squares of that.
    own: NDArray[np.float64] = field(default_factory=lambda: np.zeros(3))
    device: Beyond = field(default_factory=Beyond)
    here: Beyond = field(default_factory=Beyond)

    def add(self, device: Float32, here: Float32) -> None:
        """Count the tensor of the device and the one here."""
        d = device - here
        self.power += float(np.square(here, dtype=np.float64).sum())
        self.noise += float(np.square(d, dtype=np.float64).sum())
        self.count += d.size
        x, y = device.astype(np.float64).ravel(), here.astype(np.float64).ravel()
        self.moments += (x.sum(), y.sum(), x @ x, x @ y)
        self.difference.add(d, self.step(d.shape))

    def step(self, shape: tuple[int, ...]) -> Float32 | None:
        """Steps of the grid, in a shape that broadcasts."""
        return None if self.grid is None else self.grid.steps(shape)

    def over_power(self, energy: float) -> float:
        """An energy over that of the tensor."""
        return energy / max(self.power, float(np.finfo(np.float32).tiny))

    def correlation(self) -> float | None:
        """Of the device's values with those here; None where those here are all alike."""
        x, y, xx, xy = self.moments / max(self.count, 1)
        own, other = xx - x * x, self.power / max(self.count, 1) - y * y
        if other <= 0:
            return None
        return float((xy - x * y) / np.sqrt(own * other)) if own > 0 else 0.0

    def add_own(self, device: Float32, made: Float32) -> None:
        """Count the tensor of the device and what its operator makes here of the device's tensors before it."""
        x, y = (each.astype(np.float64).ravel() for each in (device, made))
        self.own += np.nan_to_num((x @ x, x @ y, y @ y))

    def factor(self) -> tuple[float, float] | None:
        """What the device multiplies by, of least squares, and what is left beside that over what it explains."""
        xx, xy, yy = self.own
        if xy == 0 or yy == 0:
            return None
        explained = xy * xy / yy
        return float(xy / yy), float(max(xx - explained, 0.0) / explained)

    def agrees(self) -> bool:
        """The device's tensor is that of the model here, but for rounding."""
        if self.grid is None:
            return self.over_power(self.noise) <= AGREEING_NMSE
        return self.difference.steps <= AGREEING_STEPS * self.count


def compare_with_device(
    dump: MatchedDump, models: Models, case: Case, dataset: Dataset, *, limit: int | None, threads: int
) -> tuple[DeviceRecord, list[str]]:
    """Hold the tensors of a dump against those that the deployed model computes on the same samples.

    Args:
        dump: What ``match_names`` returned.
        models: Both models.
        case: What was measured of them.
        dataset: The evaluation data, whose first samples the dump holds.
        limit: Samples of the set that may be read at most.
        threads: Processor threads.

    Returns:
        What was found of each tensor, and what of the dump was not judged, and why.

    Raises:
        ModelError: A model fails on the data.
        DataError: The dump is damaged, or holds other samples than it says.
    """
    pairs = {i: pair for i, pair in pairs_of_case(models, case).items() if pair.root in dump.tensors}
    size = max(dataset.unit, samples_that_fit(samples_within(VALUES, MIN_SAMPLES, MAX_SAMPLES, case)))
    wanted = min(dump.samples, limit or dump.samples)
    if wanted < dataset.unit:
        raise _too_few(dump, dataset.unit)
    measured = {pair.root for pair in pairs.values()}
    unmeasured = [tensor.name for root, tensor in dump.tensors.items() if root not in measured]
    if not pairs:
        raise _nothing_measured(dump, unmeasured)
    first = next(dataset.batches(size, limit=wanted))
    view = models.view(pairs, first, threads)
    dumped = _open_tensors(dump, view, first)
    simulated = _simulation(models, case, sorted(dumped.layouts), threads)
    sums = {i: _Sums(fixed_grid(pairs[i].tap.quantizer)) for i in dumped.layouts}
    done = 0
    for batch in dataset.batches(size, limit=wanted):
        here, device = dumped.here(view.read_tensors(batch), view), dumped.device(batch)
        for i, found in sums.items():
            found.add(device[i], here[i])
        if simulated is not None:
            _add_own(sums, simulated, batch, device, here)
        done += batch.samples
    before = _before(models.quantized, pairs)
    strange = _find_strange(sums, before)
    tensors = tuple(_record_of(i, sums, None if simulated is not None else before, judged=not strange) for i in sums)
    record = DeviceRecord(origin=dump.origin, samples=done, tensors=tensors)
    notices = _notices(dumped, sums, pairs, models.quantized, done)
    if strange:
        names = list_names([pairs[i].root for i in strange])
        notices[0] = (
            f"{len(strange)} of {len(sums)} tensors correlate with nothing of this model (under {UNLIKE}), from the "
            f"first on: {names}; no layer is named. Is it a dump of this model, on these samples, in their order?"
        )
    elif sums and simulated is None:
        notices.append("operators could not be fed with its tensors: behind a departure nothing is judged")
    if done < dump.samples and limit is None:
        notices.append(f"it holds {dump.samples} samples, the evaluation data {done}: the first {done} were compared")
    refused = [f"not measured here, where its shape is not that of the float model: {name}" for name in unmeasured]
    refused += dumped.refused
    compared, left = ([f"{OPTION} {dump.origin}: {text}" for text in texts] for texts in (notices, refused))
    return record, [*compared, *dump.notices, *left]


def _too_few(dump: MatchedDump, unit: int) -> DataError:
    return DataError(
        f"{OPTION} holds fewer samples than the model takes at once",
        where=[f"{dump.origin}  {dump.samples} samples", f"model  fixed batch of {unit}"],
        help="dump more samples, or export the models with a dynamic batch axis",
    )


def _nothing_measured(dump: MatchedDump, names: Sequence[str]) -> DataError:
    return DataError(
        f"no tensor of {OPTION} is measured in both models",
        where=f"{dump.origin}  {list_names(names)}",
        help="dump tensors that stand in the layer table of a report without this option",
    )


def _simulation(models: Models, case: Case, tensors: Sequence[int], threads: int) -> GivenSimulation | None:
    """The network that is fed with the device's tensors; None where there is none, or memory is too short for it."""
    if not tensors or lacking_for(models, tensors=TENSORS, weights=WEIGHTS) is not None:
        return None
    try:
        return models.simulate_given(case, tensors, threads)
    except ModelError:
        return None


def _add_own(sums: Mapping[int, _Sums], simulated: GivenSimulation, batch: Batch, device: Values, here: Values) -> None:
    """Add what tensors are beyond what their operators make of those before them, on the device and here."""
    for values, kind in ((device, "device"), (here, "here")):
        made = simulated(batch, values).rounded
        for i, found in sums.items():
            difference = np.nan_to_num(values[i] - made[i], copy=False, nan=0.0, posinf=0.0, neginf=0.0)
            beyond = found.device if kind == "device" else found.here
            beyond.add(difference, found.step(difference.shape))
            if kind == "device":
                found.add_own(values[i], made[i])


def _find_strange(sums: Mapping[int, _Sums], before: Mapping[int, set[int]]) -> list[int]:
    """Tensors that are like none of the model, where the dump is not of it: most of them, and all that are first."""
    known = {i: r for i, own in sums.items() if (r := own.correlation()) is not None}
    unlike = [i for i, r in known.items() if abs(r) < UNLIKE]
    first = [i for i in known if not before[i] & known.keys()]
    return unlike if 2 * len(unlike) > len(known) and set(first) <= set(unlike) else []


def _record_of(
    i: int, sums: Mapping[int, _Sums], before: Mapping[int, set[int]] | None, *, judged: bool
) -> DeviceTensorRecord:
    """What was found of a tensor; ``before`` are those that it is computed of, where operators could not be fed."""
    found = sums[i]
    if not judged:
        return DeviceTensorRecord(tensor=i, nmse=found.over_power(found.noise), own_nmse=None, own_steps=None)
    energy: float | None = max(found.device.energy - OWN_KERNELS * found.here.energy, 0.0)
    steps: float | None = max(found.device.steps - OWN_KERNELS * found.here.steps, 0.0)
    if before is not None:
        energy, steps = _first_departure(found, [sums[k] for k in before[i] if k in sums])
    factor, left = found.factor() or (None, None)
    return DeviceTensorRecord(
        tensor=i,
        factor=factor,
        factor_nmse=left,
        nmse=found.over_power(found.noise),
        own_nmse=None if energy is None else found.over_power(energy),
        own_steps=None if steps is None or found.grid is None else steps / max(found.count, 1),
    )


def _first_departure(found: _Sums, before: Sequence[_Sums]) -> tuple[float | None, float | None]:
    """Where operators cannot be fed: what a tensor differs by, in values² and steps²; None behind a departure."""
    if not all(own.agrees() for own in before):
        return None, None
    carried = max((own.over_power(own.noise) for own in before), default=0.0)
    if found.over_power(found.noise) < FAR * carried:
        return 0.0, 0.0
    return found.difference.energy, found.difference.steps


def _before(graph: Graph, pairs: Mapping[int, Pair]) -> dict[int, set[int]]:
    """The nearest tensors upstream of each that are compared, too."""
    index = {pair.root: i for i, pair in pairs.items()}
    known: dict[str, set[int]] = {}
    for op in graph.operators:
        upstream: set[int] = set()
        for name in op.inputs:
            upstream |= {index[name]} if name in index else known.get(name, set())
        known |= dict.fromkeys(op.outputs, upstream)
    return {i: known.get(pair.root, set()) for i, pair in pairs.items()}


@dataclass(frozen=True)
class _Dumped:
    """Dumped tensors that can be read, by the index of the tensor, and why others cannot."""

    layouts: Mapping[int, Layout]
    columns: Mapping[int, Column]
    refused: Sequence[str]
    nonfinite: set[int] = field(default_factory=set)
    nonfinite_here: set[int] = field(default_factory=set)
    readers: dict[int, ColumnReader] = field(default_factory=dict)

    def here(self, reading: Reading, view: View) -> Values:
        """What the deployed model computes, as real values; 0 for what is no finite number."""
        found = {i: tap_values(view.taps[i], np.asarray(reading.codes[i])) for i in self.layouts}
        return {i: self._finite(i, values, self.nonfinite_here) for i, values in found.items()}

    def device(self, batch: Batch) -> Values:
        """What the device computed of the same samples; 0 for what is no finite number."""
        assert batch.numbers is not None, "every data set numbers its samples"
        found = {i: layout.values(self._reader(i).take(batch.numbers)) for i, layout in self.layouts.items()}
        return {i: self._finite(i, values, self.nonfinite) for i, values in found.items()}

    def _finite(self, i: int, values: Float32, seen: set[int]) -> Float32:
        """The values with 0 for those that are not finite; ``seen`` are the tensors that had such."""
        if np.isfinite(values).all():
            return values
        seen.add(i)
        return np.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0)

    def _reader(self, i: int) -> ColumnReader:
        if len(self.columns) > HELD:
            return ColumnReader(self.columns[i])
        return self.readers.setdefault(i, ColumnReader(self.columns[i]))


def _open_tensors(dump: MatchedDump, view: View, first: Batch) -> _Dumped:
    """Find out on a batch how each tensor is read."""
    assert first.numbers is not None, "every data set numbers its samples"
    numbers = first.numbers[first.numbers < dump.samples]
    reading = view.read_tensors(first)
    choices: dict[int, Choices] = {}
    refused: list[str] = []
    for i, pair in view.pairs.items():
        tensor = dump.tensors[pair.root]
        if i not in view.taps:
            refused.append(f"{tensor.name}: reading it here would change what the model computes")
            continue
        here = tap_values(view.taps[i], np.asarray(reading.codes[i]))
        if here.ndim < 1 or len(here) != first.samples:
            refused.append(f"{tensor.name}: its first axis does not count samples in the model")
            continue
        block = ColumnReader(tensor.column).take(numbers)
        try:
            choices[i] = choices_of(tensor, block, here[: len(numbers)], fixed_grid(pair.tap.quantizer))
        except LayoutError as error:
            refused.append(f"{tensor.name}: {error}")
    layouts = choose_layouts(choices)
    columns = {i: dump.tensors[view.pairs[i].root].column for i in layouts}
    return _Dumped(layouts, columns, refused)


def _notices(
    dumped: _Dumped, sums: Mapping[int, _Sums], pairs: Mapping[int, Pair], graph: Graph, samples: int
) -> list[str]:
    """What the user should know of the dump beside its figures."""
    named = {i: pairs[i].root for i in sums}
    if not sums:
        return ["none of its tensors could be compared"]
    differing, beyond = sum(own.noise > 0 for own in sums.values()), sum(not own.agrees() for own in sums.values())
    found = [
        f"{len(sums)} tensors were compared, {differing} differ, {beyond} by more than rounding; R006 device-departs "
        "names where that begins"
    ]
    if samples == 1:
        found.append("it holds one sample: layers that depart on other inputs alone are not found")
    if spoiled := sorted(dumped.nonfinite - dumped.nonfinite_here):
        found.append(f"NaN or infinite on the device, taken as 0: {list_names([named[i] for i in spoiled])}")
    fed = [named[i] for i, own in sums.items() if named[i] in graph.inputs and not own.agrees()]
    if fed:
        found.append(f"the device was fed with other values, or in another order: {list_names(fed)}")
    return found

"""The noise at a network's output: what another network adds, per sample, to what the float one gives."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.data.messages import aligned_rows, shape_text
from quantmedic.collectors.data.rows import row_of
from quantmedic.collectors.pair.output_parts import Joint
from quantmedic.engine.case.output_columns import audible_columns, column_places, counts_alone, mixes_scores, part_words
from quantmedic.engine.case.records import RunRecord
from quantmedic.engine.decibels import sqnr_db
from quantmedic.engine.errors import ModelError

Float32 = NDArray[np.float32]
Floats = NDArray[np.float64]
#: The noise hides where the whole output is better than the first ratio and a column worse than the second (nmse).
CLEAN, SPOILT = 0.01, 0.1
#: Axes with more columns are not searched for hidden noise.
MAX_COLUMNS = 1024


class _Share(NamedTuple):
    """What of the outputs counts in shares of its own signal: columns of one of them along an axis, or all of it."""

    output: int
    axis: int | None = None
    columns: NDArray[np.int64] | None = None


class OutputNoise:
    """Float outputs of some batches, to compare others with; each output counts in shares of its own signal.

    So does each operand of one that a Concat joins. Where the noise of the deployed network hides in few columns of
    small values, only these are judged.
    """

    def __init__(
        self,
        batches: Sequence[Batch],
        floats: Sequence[Sequence[Float32]],
        deployed: Sequence[Sequence[Float32]],
        *,
        classes: bool,
        whole: bool = False,
        joints: Sequence[Joint] = (),
    ) -> None:
        """Outputs per batch, in the same order.

        Args:
            batches: The samples.
            floats: What the float network makes of them.
            deployed: What the deployed network makes of them.
            classes: The first output holds class scores along its last axis.
            whole: Judge all columns anyway.
            joints: What the outputs are joined of.

        Raises:
            ModelError: The two give outputs of different shapes.
        """
        floats, deployed = _with_rows(floats), _with_rows(deployed)
        for found, others in zip(floats, deployed, strict=True):
            _refuse_other_shapes(found, others)
        joints = _steady(joints, floats)
        self._floats, self._classes = floats, classes and not (joints and mixes_scores(joints[0].parts))
        self._by_sample = all(
            x.ndim and len(x) == batch.samples for batch, found in zip(batches, floats, strict=True) for x in found
        )
        joined = [share for o, joint in enumerate(joints) for share in _shares_of(o, joint)]
        hidden = None if whole else self._hidden(deployed)
        #: Number of columns that are judged; None for all.
        self.columns = len(hidden.columns) if hidden is not None and hidden.columns is not None else None
        self._shares = [hidden] if hidden is not None else joined
        self._signals = [sum(float(self._energy(found, share).sum()) for found in floats) for share in self._shares]

    @staticmethod
    def share_signal(parts: Sequence["OutputNoise"]) -> None:
        """Have the outputs of several parts of some samples count in shares of the signal of all of them.

        By themselves, samples of next to no signal would make a step of the output grid a million times as loud.
        """
        if len({tuple(map(_key_of, part._shares)) for part in parts}) == 1:
            signals = [sum(each) for each in zip(*(part._signals for part in parts), strict=True)]
            for part in parts:
                part._signals = signals

    @property
    def power(self) -> Floats:
        """Signal per sample."""
        return np.concatenate([self._energy_of_outputs(floats) for floats in self._floats])

    @property
    def _totals(self) -> list[float]:
        return [signal or 1.0 for signal in self._signals]

    def compare(self, outputs: Sequence[Sequence[Float32]]) -> RunRecord:
        """Noise per sample of other outputs, or of those of the first batches, and how often their class is that of the
        float network.
        """
        outputs = _with_rows(outputs)
        noise = [
            self._energy_of_outputs(_noise_of_outputs(floats, found))
            for floats, found in zip(self._floats, outputs, strict=False)
        ]
        same = self.same_classes(outputs)
        agreement = float(same.mean()) if same is not None else None
        return RunRecord(noise=tuple(np.concatenate(noise).tolist()), agreement=agreement)

    def same_classes(self, outputs: Sequence[Sequence[Float32]]) -> Floats | None:
        """Per sample, how many of its classes are those of the float network, as a share; None without classes."""
        if not (self._classes and self._by_sample):
            return None
        same = []
        for floats, found in zip(self._floats, outputs, strict=False):
            x, y = (a.reshape(len(a), -1, a.shape[-1]).argmax(axis=2) for a in (floats[0], found[0]))
            same.append((x == y).mean(axis=1))
        return np.concatenate(same)

    @property
    def parts(self) -> list[tuple[int, int | None, int | None]]:
        """What is judged by itself: an output, and the first of its columns and the one behind the last; None: all."""
        return [
            (s.output, None, None) if s.columns is None else (s.output, int(s.columns[0]), int(s.columns[-1]) + 1)
            for s in self._shares
        ]

    def by_part(self, outputs: Sequence[Sequence[Float32]]) -> Floats:
        """Noise of other outputs over all samples for each of ``parts``, in shares of its signal."""
        found: Floats = self.by_batch(outputs).sum(axis=0)
        return found

    def by_batch(self, outputs: Sequence[Sequence[Float32]]) -> Floats:
        """What each batch has of that, ``[batches, parts]``."""
        outputs = _with_rows(outputs)
        noise = [_noise_of_outputs(floats, found) for floats, found in zip(self._floats, outputs, strict=True)]
        shares = list(zip(self._shares, self._totals, strict=True))
        return np.array([[float(self._energy(d, share).sum()) / total for share, total in shares] for d in noise])

    def _energy_of_outputs(self, outputs: Sequence[Float32]) -> Floats:
        """Energy per sample over all outputs, each in shares of its own signal."""
        pairs = zip(self._shares, self._totals, strict=True)
        total: Floats = np.sum([self._energy(outputs, share) / signal for share, signal in pairs], axis=0)
        return total

    def _energy(self, outputs: Sequence[Float32], share: _Share) -> Floats:
        """Per sample, or of the whole batch where an output has another first axis."""
        values = np.nan_to_num(outputs[share.output].astype(np.float64), posinf=0.0, neginf=0.0)
        rows = len(values) if self._by_sample else 1
        if share.axis is not None and share.columns is not None:
            values = np.take(values, share.columns, axis=share.axis)
        energy: Floats = (values.reshape(rows, -1) ** 2).sum(axis=1)
        return energy

    def _hidden(self, deployed: Sequence[Sequence[Float32]]) -> _Share | None:
        """The columns in which a clean output hides its noise; None where it does not."""
        for o in range(len(self._floats[0])):
            if len({found[o].shape[1:] for found in self._floats}) > 1 or not self._floats[0][o].ndim:
                continue
            pairs = [(found[o], others[o]) for found, others in zip(self._floats, deployed, strict=True)]
            signal, noise = _energies_by(None, pairs)
            if not np.isfinite(noise) or signal == 0 or noise > CLEAN * signal:
                continue
            shape = self._floats[0][o].shape
            for axis in range(1, len(shape)):
                if not 1 < shape[axis] <= MAX_COLUMNS:
                    continue
                power, error = _energies_by(axis, pairs)
                columns = np.flatnonzero((power > 0) & (error > SPOILT * power))
                if columns.size:
                    return _Share(o, axis, columns)
        return None


def _energies_by(axis: int | None, pairs: Sequence[tuple[Float32, Float32]]) -> tuple[Floats, Floats]:
    """Signal of float outputs and noise of the others, by the columns of an axis, or of everything.

    One batch is held at a time in double precision: an output may be larger than anything else of the network.
    """
    power, error = np.zeros(()), np.zeros(())
    for floats, others in pairs:
        values = floats.astype(np.float64)
        noise = others - values
        summed = tuple(i for i in range(floats.ndim) if i != axis)
        power, error = power + (values**2).sum(axis=summed), error + (noise**2).sum(axis=summed)
    return power, error


def _key_of(share: _Share) -> tuple[int, int | None, tuple[int, ...] | None]:
    return share.output, share.axis, None if share.columns is None else tuple(share.columns.tolist())


def _with_rows(outputs: Sequence[Sequence[Float32]]) -> list[list[Float32]]:
    """Outputs per batch with an axis for the samples, where squeezing took that of a single one too."""
    return [[row_of(x) for x in found] for found in outputs]


def _steady(joints: Sequence[Joint], floats: Sequence[Sequence[Float32]]) -> list[Joint]:
    """The joint of every output; none where it is not known, or the data decide how many columns there are."""
    found = []
    for o in range(len(floats[0])):
        joint = joints[o] if o < len(joints) else Joint(None)
        axis = joint.axis
        sizes = {batch[o].shape[axis] if axis is not None and axis < batch[o].ndim else 0 for batch in floats}
        fits = len(sizes) == 1 and 0 not in sizes and (not joint.parts or sizes == {joint.parts[-1].stop})
        found.append(joint if fits else Joint(None))
    return found


def _shares_of(output: int, joint: Joint) -> list[_Share]:
    parts = [_Share(output, joint.axis, np.arange(part.start, part.stop)) for part in joint.parts]
    return parts or [_Share(output)]


class Worst(NamedTuple):
    """What of the outputs has the lowest SQNR.

    Attributes:
        sqnr_db: That SQNR.
        words: Which column or operand it is; None for an output as a whole.
        whole_sqnr_db: The lowest SQNR of an output as a whole.
        noise: Its noise per sample.
        power: Its signal per sample.
    """

    sqnr_db: float
    words: str | None
    whole_sqnr_db: float
    noise: Floats
    power: Floats


class ColumnNoise:
    """Noise of every output as a whole, of the operands that it is joined of, and of its columns that count."""

    def __init__(self, floats: Sequence[Sequence[Float32]], joints: Sequence[Joint], *, classes: bool) -> None:
        """What the float network gives per batch; ``classes``: the first output holds class scores."""
        self._floats, self._joints = floats, _steady(joints, floats)
        self._words: list[str | None] = []
        self._scores: list[bool] = []
        self._groups = [self._groups_of(o, joint, classes and o == 0) for o, joint in enumerate(self._joints)]
        self._power = np.concatenate([self._energies(found) for found in floats])

    def worst(self, outputs: Sequence[Sequence[Float32]]) -> Worst:
        """The worst of other outputs for the same batches."""
        noise = np.concatenate(
            [
                self._energies(_noise_of_outputs(floats, found))
                for floats, found in zip(self._floats, outputs, strict=True)
            ]
        )
        power, error = self._power.sum(axis=0), noise.sum(axis=0)
        levels = np.array([sqnr_db(p, e) if p > 0 else np.inf for p, e in zip(power, error, strict=True)])
        k = int(np.where(counts_alone(levels, np.array(self._scores)), levels, np.inf).argmin())
        whole = min(level for level, words in zip(levels.tolist(), self._words, strict=True) if words is None)
        return Worst(float(levels[k]), self._words[k], whole, noise[:, k], self._power[:, k])

    def _groups_of(self, output: int, joint: Joint, classes: bool) -> Floats:
        """``[columns, groups]``, 1 where a column belongs to a group; the first group is the whole output."""
        power = np.sum([self._columns(found, output).sum(axis=0) for found in self._floats], axis=0)
        everything = np.arange(len(power))
        classes = classes and not mixes_scores(joint.parts)
        parts = [(np.arange(part.start, part.stop), part.is_score or classes, part.tensor) for part in joint.parts]
        groups: list[tuple[str | None, NDArray[np.int64], bool]] = [(None, everything, False)]
        if not classes:
            groups += [(part_words(column_places(own), tensor), own, False) for own, _, tensor in parts]
        if 1 < len(power) <= MAX_COLUMNS:
            for columns, is_score, _ in parts or [(everything, joint.is_score or classes, "")]:
                own = columns[audible_columns(power[columns], is_score)]
                groups += [(f"column {k}", np.array([k]), is_score) for k in own.tolist()]
        of = f" of output {output}" if len(self._joints) > 1 else ""
        self._words += [words and f"{words}{of}" for words, _, _ in groups]
        self._scores += [is_score for _, _, is_score in groups]
        table = np.zeros((len(power), len(groups)))
        for k, (_, columns, _) in enumerate(groups):
            table[columns, k] = 1.0
        return table

    def _energies(self, outputs: Sequence[Float32]) -> Floats:
        """``[samples, groups]`` of all outputs; of the whole batch where an output has another first axis."""
        found = [self._columns(outputs, o) @ groups for o, groups in enumerate(self._groups)]
        if len({len(rows) for rows in found}) > 1:
            found = [rows.sum(axis=0, keepdims=True) for rows in found]
        joined: Floats = np.concatenate(found, axis=1)
        return joined

    def _columns(self, outputs: Sequence[Float32], output: int) -> Floats:
        """Energy ``[samples, columns]`` of an output; one column where it has none."""
        array, axis = outputs[output], self._joints[output].axis
        values = np.nan_to_num(array.astype(np.float64), posinf=0.0, neginf=0.0) ** 2
        if axis is None or axis >= array.ndim:
            whole: Floats = values.reshape(len(array) if array.ndim else 1, -1).sum(axis=1, keepdims=True)
            return whole
        columns: Floats = np.moveaxis(values, axis, 1).reshape(len(array), array.shape[axis], -1).sum(axis=2)
        return columns


def _noise_of_outputs(floats: Sequence[Float32], others: Sequence[Float32]) -> list[Float32]:
    """What others add to the outputs of the float network; a value that is not finite has lost all of the signal."""
    _refuse_other_shapes(floats, others)
    return [np.where(np.isfinite(y), y - x, x) for x, y in zip(floats, others, strict=True)]


def _refuse_other_shapes(floats: Sequence[Float32], others: Sequence[Float32]) -> None:
    for x, y in zip(floats, others, strict=True):
        if x.shape != y.shape:
            raise ModelError(
                "the outputs of both models have different shapes: their noise cannot be measured",
                where=aligned_rows(("float", shape_text(x.shape)), ("quantized", shape_text(y.shape))),
                help="is the quantized model made from this float model?",
            )

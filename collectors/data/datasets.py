"""Data sets: read, checked against the model's inputs, and handed out in batches, never all in memory at once."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, groupby
from pathlib import Path

from quantmedic.collectors.data.arrays import Array, ArrayInfo, array_content
from quantmedic.collectors.data.batches import Batch, Part, Piece, Selection, cut, numbers_of, rows_alike
from quantmedic.collectors.data.labels import LABELS, Labels, label_count_error, read_labels
from quantmedic.collectors.data.model_inputs import Input, InputSpec, fixed_batch
from quantmedic.collectors.data.preprocessing import Preprocessing
from quantmedic.collectors.data.sources import Source, open_source
from quantmedic.engine.case.facts import Role
from quantmedic.engine.errors import DataError
from quantmedic.engine.reading_limits import SAMPLES

__all__ = ["Batch", "Dataset", "InputSpec", "Part", "open_dataset"]

_NOTHING_DECLARED = Preprocessing()


def open_dataset(
    source: object,
    inputs: Sequence[InputSpec],
    *,
    preprocessing: Preprocessing = _NOTHING_DECLARED,
    labels: "str | Path | Array | None" = None,
    role: Role,
) -> "Dataset":
    """Open a data set and check as much of it as can be checked without reading it all.

    Args:
        source: Path of an ``.npz`` or ``.npy`` file or of a folder of ``.npy`` or image files; ``module:function``,
            looked up in the current directory first; an array, a mapping of input names to arrays; or a callable or
            iterable that yields batches. A batch is an array, a mapping, or a list or tuple in input order; labelled
            batches are pairs ``(inputs, labels)``. Two arrays are the two inputs if the model has two.
        inputs: The model's inputs.
        preprocessing: What the user declared for this data set.
        labels: File (``.npy``, ``.npz``, or ``.txt`` / ``.csv`` with one per line) or array; wins over the source's.
        role: Which of the two data sets this is; error messages name it.

    Returns:
        The opened data set.

    Raises:
        DataError: The data cannot be read or do not fit the model; the message names file, array and next step.
    """
    if not inputs:
        raise ValueError("a model without inputs has no data set")
    opened = open_source(source, inputs, preprocessing, role)
    if labels is None:
        return Dataset(opened, inputs, preprocessing, None, role)
    return Dataset(opened, inputs, preprocessing, read_labels(labels), role)


class Dataset:
    """An opened data set.

    Attributes:
        role: Which of the two sets it is.
        origin: Short name of the source, without its folder.
        samples: Number of samples in the source; ``None`` where only a full pass finds it out.
        labelled: Whether batches carry labels.
        notices: What the user should know although it is no error; grows while batches are read.
    """

    def __init__(
        self,
        source: Source,
        inputs: Sequence[InputSpec],
        preprocessing: Preprocessing,
        labels: Labels | None,
        role: Role,
    ):
        self.role: Role = role
        self.origin = source.origin
        self.samples = source.samples
        self.labelled = labels is not None or source.labelled
        self.notices = [*source.notices]
        if len(inputs) > 1:
            stored = {name: found.shape for name, found in source.preview.items()}
            inputs = [spec.as_stored(stored[spec.name]) if spec.name in stored else spec for spec in inputs]
        self._source = source
        self._labels = labels
        self._inputs = {spec.name: Input.of(spec, preprocessing, source.is_images, role) for spec in inputs}
        self._fixed = fixed_batch(inputs)
        self._note_what_is_not_applied(preprocessing)
        for name, found in source.preview.items():
            self._inputs[name].check(found)
        self._check_counts()

    def batches(
        self, size: int, limit: int | None = None, *, start: int = 0, part: Part | None = None
    ) -> Iterator[Batch]:
        """One pass over the samples, in order, converted to what the model takes.

        To go on with an interrupted pass, start with the number of samples in the batches it gave and leave the other
        arguments as they were: the batches that follow are the same ones.

        Args:
            size: Samples per batch; the last batch, or one before a change of shape along a dynamic axis, may be
                smaller. A model with a fixed batch axis gets batches of exactly that size.
            limit: Samples of the whole set to read at most.
            start: Samples to pass over, of those that this pass would give otherwise. Reading them is avoided where
                it can be; a model with a fixed batch axis needs a multiple of that size.
            part: Slice of the set to read; its unit is set to the fixed batch axis if there is one. A slice that has
                no samples gives no batches.

        Raises:
            DataError: A later sample does not fit, or there is no sample at all.
        """
        if size < 1 or (limit is not None and limit < 1):
            raise ValueError(f"size and limit must be positive: {size}, {limit}")
        if start < 0 or (self._fixed and start % self._fixed):
            raise ValueError(f"start must be the number of samples in some batches: {start}")
        if part is not None and self._fixed:
            part = replace(part, unit=self._fixed)
        # A change of shape drops samples of a fixed batch: then only cutting shows where a batch begins.
        skipped = start if self._fixed not in (None, 1) and not self._source.alike else 0
        first = start - skipped
        wanted = Selection(first if part is None else part.position(first), limit, part)
        size = self._fixed or size
        return self._cut_and_converted(self._pieces(size, wanted), size, skipped, whole=not start and part is None)

    def reads(self, limit: int | None) -> int | None:
        """Samples that a pass over the whole set reads; where only that finds it out, the limit.

        Raises:
            LimitError: They are too many: a file of kilobytes may declare millions.
        """
        if self.samples is None:
            return limit
        samples = min(self.samples, limit or self.samples)
        SAMPLES.check(samples, f"{self.origin}; with --samples fewer are read")
        return samples

    @property
    def unit(self) -> int:
        """Samples that the model takes at a time and that stay together; 1 where it takes any number."""
        return self._fixed or 1

    @property
    def labels(self) -> Labels | None:
        """All labels and where they come from; None without any, and where only a pass gives them."""
        return self._labels or self._source.labels

    @property
    def alike(self) -> bool:
        """All samples are known to have one shape and type."""
        return self._source.alike

    def fingerprint(self) -> str | None:
        """SHA-256 over what tells the set from others without reading it all; ``None`` for functions.

        These are types and shapes, names of files, labels, and the checksums that an ``.npz`` states of its arrays; of
        other sources, which state none, a few samples from the first to the last.
        """
        marks = self._source.marks()
        if marks is None:
            return None
        digest = hashlib.sha256()
        for block in chain(marks, array_content(LABELS, self._labels.values) if self._labels else ()):
            digest.update(block)
        return digest.hexdigest()

    def _pieces(self, size: int, wanted: Selection) -> Iterator[Batch]:
        """What is wanted, with its labels."""
        pieces = self._check_pieces(self._source.pieces(size, wanted))
        if self.samples is None:
            pieces = wanted.among(self._count_pieces(pieces, wanted.stop))
        labels = None if self._labels is None else self._labels.values
        return (
            Batch(piece.inputs, piece.labels if labels is None else labels[piece.rows], numbers_of(piece.rows))
            for piece in pieces
        )

    def _check_pieces(self, pieces: Iterator[Piece]) -> Iterator[Piece]:
        for piece in pieces:
            for name, array in piece.inputs.items():
                self._inputs[name].check(ArrayInfo(self.origin, piece.place or name, array.shape, array.dtype))
            yield piece

    def _count_pieces(self, pieces: Iterator[Piece], limit: int | None) -> Iterator[Piece]:
        """The whole stream, compared with the separate labels and the fixed batch if it ends before the limit."""
        count = 0
        for piece in pieces:
            count = piece.stop if limit is None else min(piece.stop, limit)
            if self._labels is not None and count > len(self._labels.values):
                raise label_count_error(self.role, self._labels, self.origin, f"at least {count}")
            yield piece
        if self._labels is not None and count < len(self._labels.values):
            raise label_count_error(self.role, self._labels, self.origin, str(count))
        if self._fixed and count < self._fixed:
            raise self._too_few(count)

    def _cut_and_converted(self, pieces: Iterator[Batch], size: int, skipped: int, *, whole: bool) -> Iterator[Batch]:
        """Batches of ``size`` samples; pieces of different shape are not put into one batch."""
        yielded = dropped = 0
        for _, alike in groupby(pieces, rows_alike):
            for batch in cut(alike, size):
                if self._fixed not in (None, batch.samples):
                    dropped += batch.samples
                    continue
                yielded += batch.samples
                if yielded > skipped:
                    yield self._convert(batch)
        if whole and not yielded:
            raise self._too_few(dropped)
        if dropped:
            self._note(
                f"{self.role} data: {dropped} samples were left out, the model takes exactly {self._fixed} at a time"
            )

    def _convert(self, batch: Batch) -> Batch:
        inputs = {name: port.convert(batch.inputs[name], self.origin) for name, port in self._inputs.items()}
        return Batch(inputs, batch.labels, batch.numbers)

    def _note(self, text: str) -> None:
        if text not in self.notices:
            self.notices.append(text)

    def _note_what_is_not_applied(self, preprocessing: Preprocessing) -> None:
        if preprocessing.arithmetic and all(port.spec.dtype.kind != "f" for port in self._inputs.values()):
            self._note(f"{self.role} data: mean, std and scale were not applied, the model takes integers")
        if not self._source.is_images and (preprocessing.resize or preprocessing.channel_order):
            self._note(f"{self.role} data: resize and channel order were not applied, they concern image files only")
        if self._labels is not None and self._source.labelled:
            self._note(f"{self.role} data: the labels of {self._labels.where} were used, not those of {self.origin}")

    def _check_counts(self) -> None:
        if self.samples is None:
            return
        if self.samples == 0:
            raise _no_samples(self.role, self.origin)
        if self._fixed and self.samples < self._fixed:
            raise self._too_few(self.samples)
        if self._labels is not None and len(self._labels.values) != self.samples:
            raise label_count_error(self.role, self._labels, self.origin, str(self.samples))

    def _too_few(self, samples: int) -> DataError:
        return DataError(
            f"{self.role} data have fewer samples than the model takes at once",
            where=[f"{self.origin}  {samples} samples", f"model  fixed batch of {self._fixed}"],
            help="give more samples, or export the models with a dynamic batch axis",
        )


def _no_samples(role: Role, origin: str) -> DataError:
    return DataError(f"{role} data hold no samples", where=origin, help="give at least one sample")

"""Data sets: read, checked against the model's inputs, and handed out in batches, never all in memory at once."""

import hashlib
from collections.abc import Iterator, Sequence
from itertools import chain, groupby
from pathlib import Path

from quantmedic.collectors.arrays import Array, Found, array_content
from quantmedic.collectors.batches import Batch, cut, limited, rows_alike
from quantmedic.collectors.inputs import Input, InputSpec, fixed_batch
from quantmedic.collectors.labels import LABELS, Labels, label_count_error, read_labels
from quantmedic.collectors.preprocessing import Preprocessing
from quantmedic.collectors.sources import Source, open_source
from quantmedic.engine.errors import DataError
from quantmedic.engine.facts import Role

__all__ = ["Batch", "Dataset", "InputSpec", "open_dataset"]

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
        samples: Number of samples in the source; ``None`` if only a full pass tells.
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
        self._source = source
        self._labels = labels
        self._inputs = {spec.name: Input.of(spec, preprocessing, source.is_images, role) for spec in inputs}
        self._fixed = fixed_batch(inputs)
        self._note_what_is_not_applied(preprocessing)
        for name, found in source.preview.items():
            self._inputs[name].check(found)
        self._check_counts()

    def batches(self, size: int, limit: int | None = None) -> Iterator[Batch]:
        """One pass over the samples, in order, converted to what the model takes.

        Args:
            size: Samples per batch; the last batch, or one before a change of shape along a dynamic axis, may be
                smaller. A model with a fixed batch axis gets batches of exactly that size.
            limit: Samples to read at most.

        Raises:
            DataError: A later sample does not fit, or there is no sample at all.
        """
        if size < 1 or (limit is not None and limit < 1):
            raise ValueError(f"size and limit must be positive: {size}, {limit}")
        size = self._fixed or size
        pieces = limited(self._checked(size), limit)
        if self._labels is not None:
            pieces = self._with_labels(pieces, self._labels, limit)
        return self._cut_and_converted(pieces, size)

    def content_hash(self) -> str | None:
        """SHA-256 over the bytes of the source and its labels; ``None`` for functions, which have no content.

        Of a single file without a label file it is the file's own checksum.
        """
        blocks = self._source.content()
        if blocks is None:
            return None
        digest = hashlib.sha256()
        for block in chain(blocks, array_content(LABELS, self._labels.values) if self._labels else ()):
            digest.update(block)
        return digest.hexdigest()

    def _checked(self, size: int) -> Iterator[Batch]:
        for piece in self._source.pieces(size):
            for name, array in piece.inputs.items():
                self._inputs[name].check(Found(self.origin, piece.place or name, array.shape, array.dtype))
            yield piece

    def _with_labels(self, pieces: Iterator[Batch], labels: Labels, limit: int | None) -> Iterator[Batch]:
        """Labels of the separate file beside the samples; lengths are compared at the end of a full pass."""
        start = 0
        for piece in pieces:
            stop = start + piece.samples
            if stop > len(labels.values):
                raise label_count_error(self.role, labels, self.origin, f"at least {stop}")
            yield Batch(piece.inputs, labels.values[start:stop])
            start = stop
        if start < len(labels.values) and (limit is None or start < limit):
            raise label_count_error(self.role, labels, self.origin, str(start))

    def _cut_and_converted(self, pieces: Iterator[Batch], size: int) -> Iterator[Batch]:
        """Batches of ``size`` samples; pieces of different shape are not put into one batch."""
        yielded = dropped = 0
        for _, alike in groupby(pieces, rows_alike):
            for batch in cut(alike, size):
                if self._fixed in (None, batch.samples):
                    yielded += batch.samples
                    yield self._converted(batch)
                else:
                    dropped += batch.samples
        self._report_dropped(yielded, dropped)

    def _converted(self, batch: Batch) -> Batch:
        inputs = {name: port.convert(batch.inputs[name], self.origin) for name, port in self._inputs.items()}
        return Batch(inputs, batch.labels)

    def _report_dropped(self, yielded: int, dropped: int) -> None:
        if not yielded and not dropped:
            raise _no_samples(self.role, self.origin)
        if not yielded:
            raise self._too_few(dropped)
        if dropped:
            self._note(
                f"{self.role} data: {dropped} samples were left out, the model takes exactly {self._fixed} at a time"
            )

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

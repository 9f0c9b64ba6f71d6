"""Outputs that were computed elsewhere, by the training framework or on the device, read beside the validation data."""

import json
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from quantmedic.collectors.data.archives import open_archive
from quantmedic.collectors.data.arrays import (
    NPY_MAGIC,
    Column,
    ColumnReader,
    as_array,
    first_bytes,
    memory_column,
    npy_column,
    npz_columns,
    objects_refused,
)
from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.data.messages import aligned_rows, did_you_mean, missing_path_error, shape_text
from quantmedic.collectors.data.model_inputs import shapes_agree
from quantmedic.collectors.measure.models import Models
from quantmedic.collectors.measure.outputs import OPTIONS
from quantmedic.collectors.pair.tensor_pairs import PairedGraphs
from quantmedic.collectors.statistics.accumulate import content_hash
from quantmedic.engine.case.recording import Recording
from quantmedic.engine.errors import DataError
from quantmedic.engine.reading_limits import SAMPLES

Array = NDArray[np.generic]
#: What tells of the installation, beside the arrays of the archive, and a hash of each sample's inputs.
MEMBER, HASHES = "recording.json", "recording.hashes"
#: A description is a few hundred bytes; more is none.
_MOST_BYTES = 1 << 16


class References:
    """Given outputs, a block of samples at a time.

    Attributes:
        kind: ``reference`` or ``device``.
        origin: Name of the file, without its folder.
        samples: Number of samples in it.
        recording: What recorded them, where that was ``quantmedic collect --outputs-only``.
    """

    def __init__(self, source: object, kind: str, models: Models, samples: int | None, limit: int | None) -> None:
        """Open the outputs and check what can be checked without reading them.

        Args:
            source: Path of an ``.npz`` or ``.npy``, a mapping of output names to arrays, or an array.
            kind: ``reference`` or ``device``.
            models: Both models, whose outputs these are.
            samples: Samples of the validation set; None where only a full pass tells.
            limit: Samples of the set that are read at most.

        Raises:
            DataError: The file cannot be read, or names, shapes or sample counts do not fit.
        """
        self.kind, self.option = kind, OPTIONS[kind]
        self.recording: Recording | None = None
        self._hashes = np.zeros(0, np.uint64)
        if (found := _read_recording(source)) is not None:
            self.recording, self._hashes = found
            _require_same_model(self.recording, source, models.describe().hashes)
        self.origin, columns = _open_arrays(source, self.option)
        self._columns = _by_output(columns, models, self.option)
        self.samples = self._check(models, samples, limit)
        self._readers: dict[int, ColumnReader] = {}

    def take(self, batch: Batch) -> list[Array | None]:
        """Outputs of these samples, by position; None for one that was not given.

        Raises:
            DataError: There are fewer outputs than samples, or they were recorded of others.
        """
        numbers = batch.numbers
        assert numbers is not None, "every data set numbers its samples"
        if len(numbers) and int(numbers.max()) >= self.samples:
            raise _count_error(self.option, self.origin, self.samples, f"at least {int(numbers.max()) + 1}")
        _require_same_samples(self._hashes, batch, self.origin)
        found: list[Array | None] = []
        for i, column in enumerate(self._columns):
            if column is None:
                found.append(None)
                continue
            reader = self._readers.get(i)
            if reader is None or not reader.reaches(numbers):
                reader = self._readers[i] = ColumnReader(column)
            found.append(reader.take(numbers))
        return found

    def _check(self, models: PairedGraphs, samples: int | None, limit: int | None) -> int:
        counts = {column.info.shape[0] if column.info.shape else 0 for column in self._columns if column is not None}
        if len(counts) > 1:
            rows = [column.info.where for column in self._columns if column is not None]
            raise DataError(f"arrays of {self.option} hold different numbers of samples", where=aligned_rows(*rows))
        for (position, _), column in zip(models.match.outputs, self._columns, strict=True):
            if column is not None:
                _check_shape(column, models, models.float_graph.outputs[position], self.option)
        count = counts.pop()
        # Where only the first samples are read, outputs of these are enough.
        needed = samples if limit is None or samples is None else min(samples, limit)
        if needed is not None and count != samples and not (limit is not None and count >= needed):
            raise _count_error(self.option, self.origin, count, str(samples))
        return count


def _open_arrays(source: object, option: str) -> tuple[str, dict[str, Column]]:
    if isinstance(source, str | Path):
        path = Path(source).expanduser()
        if not path.is_file():
            raise missing_path_error(path, f"file of {option}", otherwise="")
        start = first_bytes(path)
        if start.startswith(NPY_MAGIC):
            return path.name, {"": npy_column(path)}
        if start.startswith(b"PK"):
            return path.name, npz_columns(path)
        raise DataError(
            f"the file of {option} is of a kind that is not known",
            where=str(path),
            help="save the outputs with numpy.savez(path, output_name=array), samples along axis 0",
        )
    if isinstance(source, Mapping):
        return "arrays", {str(name): memory_column(str(name), as_array(v, option)) for name, v in source.items()}
    return "array", {"": memory_column("", as_array(source, option))}


def _by_output(columns: Mapping[str, Column], models: PairedGraphs, option: str) -> list[Column | None]:
    """The column of each pair of outputs, by either model's name; a single array fits a single output."""
    pairs = models.match.outputs
    names = [(models.float_graph.outputs[i], models.quantized.outputs[j]) for i, j in pairs]
    if len(columns) == 1 and len(names) == 1:
        return [next(iter(columns.values()))]
    known = {name: k for k, own in reversed(list(enumerate(names))) for name in reversed(own)}
    found: list[Column | None] = [None] * len(names)
    for name, column in columns.items():
        if name not in known:
            listed = ", ".join(own for own, _ in names)
            shown = f"array  {name or 'without a name'}{did_you_mean(name, known)}"
            raise DataError(
                f"an array of {option} is named after no output of the models",
                where=[shown, f"models  {listed or 'no output that both have'}"],
                help="save the outputs with numpy.savez(path, output_name=array)",
            )
        found[known[name]] = column
    if not any(column is not None for column in found):
        raise DataError(f"{option} holds no outputs", help="save them with numpy.savez(path, output_name=array)")
    return found


def _check_shape(column: Column, models: PairedGraphs, name: str, option: str) -> None:
    if column.info.dtype.kind == "O":
        raise objects_refused(column.info)
    shape, expected = column.info.shape, models.shapes.get(name)
    if column.info.dtype.kind not in "fiub" or not shape:
        raise DataError(f"{option} holds no numbers for each sample", where="  ".join(column.info.where))
    if expected is not None and not shapes_agree(shape, (None, *expected[1:])):
        rows = [column.info.where, ("model", name, shape_text((None, *expected[1:])))]
        raise DataError(
            f"outputs of {option} do not have the shape of the model's",
            where=aligned_rows(*rows),
            help="save them as the model returns them, samples along axis 0",
        )


def _count_error(option: str, origin: str, count: int, samples: str) -> DataError:
    return DataError(
        f"{option} holds another number of samples than the validation data",
        where=[f"{origin}  {count} samples", f"validation  {samples} samples"],
        help="compute the outputs of the whole validation set, in its order",
    )


def _read_recording(source: object) -> tuple[Recording, NDArray[np.uint64]] | None:
    """What a file of outputs tells of the installation that recorded it, and a hash of each sample.

    None of outputs that something else wrote.

    Raises:
        DataError: The description is damaged.
        LimitError: It speaks of too many samples.
    """
    if not isinstance(source, str | Path) or not zipfile.is_zipfile(source):
        return None
    with open_archive(Path(source)) as archive:
        if MEMBER not in archive.namelist():
            return None
        with archive.open(MEMBER) as member:
            content = member.read(_MOST_BYTES)
        try:
            recording = Recording.model_validate(json.loads(content))
            SAMPLES.check(recording.samples, source)
            with archive.open(HASHES) as member:
                return recording, np.frombuffer(member.read(8 * recording.samples), np.uint64)
        except (ValueError, KeyError, ValidationError, RecursionError) as error:
            raise DataError(
                "the description of the recorded outputs is damaged",
                where=f"{source}: {MEMBER}",
                help="record them again: quantmedic collect FLOAT QUANT -v VAL --outputs-only FILE",
            ) from error


def _require_same_model(recording: Recording, source: object, hashes: Sequence[str]) -> None:
    """Refuse outputs of another file.

    Raises:
        DataError: They were recorded of another quantized model.
    """
    own = hashes[1]
    if recording.quantized_sha256 and own and recording.quantized_sha256 != own:
        raise DataError(
            "the outputs were recorded of another quantized model",
            where=[f"{source}  SHA-256 {recording.quantized_sha256[:16]}…", f"model  SHA-256 {own[:16]}…"],
            help="record the outputs of this file: quantmedic collect FLOAT QUANT -v VAL --outputs-only FILE",
        )


def _require_same_samples(hashes: NDArray[np.uint64], batch: Batch, origin: str) -> None:
    """Refuse outputs of other samples, by the first one of a batch.

    Raises:
        DataError: It is another one than was recorded in this place.
    """
    number = int(batch.numbers[0]) if batch.numbers is not None and len(batch.numbers) else 0
    if number < len(hashes) and int(hashes[number]) != hash_of_sample(batch, 0):
        raise DataError(
            "the outputs were recorded of other samples, or of the same in another order",
            where=f"{origin}: sample {number}",
            help="record the outputs of these validation data, with the same options for their preprocessing",
        )


def hash_of_sample(batch: Batch, sample: int) -> int:
    """64-bit hash of all inputs of a sample."""
    parts = [content_hash(batch.inputs[name][sample]) for name in sorted(batch.inputs)]
    return content_hash(np.array(parts, np.uint64))

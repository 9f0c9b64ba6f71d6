"""Outputs of a quantized model as one installation computes them, in a file that another one compares its own with."""

import json
import platform
import shutil
import tempfile
import zipfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from quantmedic.collectors.data.archives import new_archive, open_archive
from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.data.datasets import Dataset
from quantmedic.collectors.data.progress import Progress
from quantmedic.collectors.measure.host import has_vnni
from quantmedic.collectors.measure.models import Models
from quantmedic.collectors.measure.outputs import comparable, compare_outputs
from quantmedic.collectors.statistics.accumulate import content_hash
from quantmedic.engine.case.output_comparison import Comparison, comparison_facts
from quantmedic.engine.case.recording import Recording
from quantmedic.engine.errors import DataError
from quantmedic.engine.output_files import new_file

Array = NDArray[np.generic]
#: What tells of the installation, beside the arrays of the archive, and a hash of each sample's inputs.
MEMBER, HASHES = "recording.json", "recording.hashes"
#: A description is a few hundred bytes; more is none.
_MOST_BYTES = 1 << 16
#: Samples per run where the models take any number.
_BATCH = 8


def record_outputs(
    models: Models,
    dataset: Dataset,
    path: Path,
    *,
    samples: int | None,
    batch_size: int | None,
    threads: int,
    progress: Progress,
) -> Recording:
    """Run both models over a data set, and write the outputs of the quantized one; memory holds one batch.

    Args:
        models: Both models.
        dataset: The validation data.
        path: The ``.npz`` to write, whole or not at all.
        samples: At most this many samples.
        batch_size: Samples per run.
        threads: Processor threads.
        progress: Called with the role, the samples done and their number where known.

    Raises:
        ModelError: A model fails.
        DataError: Both models are one file, there is no sample, or a run returns another shape than the first one.
        OSError: The file cannot be written.
    """
    description = models.describe()
    own, other = description.hashes
    if own and own == other:
        raise DataError("both are the same file", where=f"SHA-256 {own[:16]}…", help="give the quantized model second")
    names = [models.quantized.outputs[j] for _, j in models.match.outputs]
    runners = models.float_runner(threads), models.quantized_runner(threads)
    total, found = dataset.reads(samples), [Comparison.empty(1) for _ in names]
    hashes: list[int] = []
    with ExitStack() as stack:
        columns = [_Column(name, stack.enter_context(tempfile.TemporaryFile())) for name in names]
        for batch in dataset.batches(batch_size or _BATCH, limit=samples):
            floats, quantized = (runner(batch) for runner in runners)
            for k, (x, y, column) in enumerate(zip(floats, quantized, columns, strict=True)):
                column.add(y)
                if comparable(x, y):
                    found[k] = found[k].merge(compare_outputs(x, y, None))
            hashes += [_hash_of(batch, k) for k in range(batch.samples)]
            progress("validation", len(hashes), total)
        library, version = next(iter(description.versions.items()), (models.framework, None))
        vnni = {True: " with VNNI", False: " without VNNI", None: ""}[has_vnni()]
        recording = Recording(
            runtime=f"{library} {version or ''}".strip(),
            processor=f"{platform.machine()}{vnni}",
            quantized_sha256=description.hashes[1] or None,
            samples=len(hashes),
            sqnr_db=comparison_facts(found).sqnr_db,
        )
        with new_file(path) as file, new_archive(file) as archive:
            archive.writestr(MEMBER, recording.model_dump_json())
            archive.writestr(HASHES, np.array(hashes, np.uint64).tobytes())
            for column in columns:
                column.write(archive)
    return recording


def _hash_of(batch: Batch, sample: int) -> int:
    """64-bit hash of all inputs of a sample."""
    parts = [content_hash(batch.inputs[name][sample]) for name in sorted(batch.inputs)]
    return content_hash(np.array(parts, np.uint64))


class _Column:
    """One output, whose batches wait in a file of their own until their number is known."""

    def __init__(self, name: str, file: IO[bytes]) -> None:
        self._name, self._file = name, file
        self._samples, self._rest = 0, tuple[int, ...]()

    def add(self, values: Array) -> None:
        rows = np.ascontiguousarray(values, np.float32)
        if self._samples and rows.shape[1:] != self._rest:
            raise DataError(
                "outputs of one shape are recorded, and this one changes it from batch to batch",
                where=f"{self._name}: {list(self._rest)} on the first batch, now {list(rows.shape[1:])}",
                help="record samples of one size",
            )
        self._samples, self._rest = self._samples + len(rows), rows.shape[1:]
        self._file.write(rows.tobytes())

    def write(self, archive: zipfile.ZipFile) -> None:
        header = {"descr": "<f4", "fortran_order": False, "shape": (self._samples, *self._rest)}
        with archive.open(f"{self._name}.npy", "w", force_zip64=True) as member:
            np.lib.format.write_array_header_1_0(member, header)
            self._file.seek(0)
            shutil.copyfileobj(self._file, member, 1 << 20)


def read_recording(source: object) -> tuple[Recording, NDArray[np.uint64]] | None:
    """What a file of outputs tells of the installation that recorded it, and a hash of each sample.

    None of outputs that something else wrote.

    Raises:
        DataError: The description is damaged.
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
            with archive.open(HASHES) as member:
                return recording, np.frombuffer(member.read(8 * recording.samples), np.uint64)
        except (ValueError, KeyError, ValidationError, RecursionError) as error:
            raise DataError(
                "the description of the recorded outputs is damaged",
                where=f"{source}: {MEMBER}",
                help="record them again: quantmedic collect FLOAT QUANT -v VAL --outputs-only FILE",
            ) from error


def require_same_model(recording: Recording, source: object, hashes: Sequence[str]) -> None:
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


def require_same_samples(hashes: NDArray[np.uint64], batch: Batch, origin: str) -> None:
    """Refuse outputs of other samples, by the first one of a batch.

    Raises:
        DataError: It is another one than was recorded in this place.
    """
    number = int(batch.numbers[0]) if batch.numbers is not None and len(batch.numbers) else 0
    if number < len(hashes) and int(hashes[number]) != _hash_of(batch, 0):
        raise DataError(
            "the outputs were recorded of other samples, or of the same in another order",
            where=f"{origin}: sample {number}",
            help="record the outputs of these validation data, with the same options for their preprocessing",
        )

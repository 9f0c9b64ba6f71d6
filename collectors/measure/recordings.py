"""Outputs of a quantized model as one installation computes them, in a file that another one compares its own with."""

import platform
import shutil
import tempfile
import zipfile
from contextlib import ExitStack
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.data.archives import new_archive
from quantmedic.collectors.measure.given_outputs import HASHES, MEMBER, hash_of_sample
from quantmedic.collectors.measure.host import has_vnni
from quantmedic.collectors.measure.measurement import Measurement
from quantmedic.collectors.measure.outputs import comparable, compare_outputs
from quantmedic.engine.case.output_comparison import Comparison, comparison_facts
from quantmedic.engine.case.recording import Recording
from quantmedic.engine.errors import DataError
from quantmedic.engine.output_files import new_file

Array = NDArray[np.generic]
#: Samples per run where the models take any number.
_BATCH = 8


def record_outputs(measurement: Measurement, path: Path) -> Recording:
    """Run both models over the validation data, and write the outputs of the quantized one; memory holds one batch.

    Args:
        measurement: Models and data.
        path: The ``.npz`` to write, whole or not at all.

    Raises:
        ModelError: A model fails.
        DataError: Both models are one file, there is no sample, or a run returns another shape than the first one.
        OSError: The file cannot be written.
    """
    models, dataset, options = measurement.models, measurement.datasets["validation"], measurement.options
    description = models.describe()
    own, other = description.hashes
    if own and own == other:
        raise DataError("both are the same file", where=f"SHA-256 {own[:16]}…", help="give the quantized model second")
    names = [models.quantized.outputs[j] for _, j in models.match.outputs]
    runners = models.float_runner(options.threads), models.quantized_runner(options.threads)
    total, found = dataset.reads(options.samples), [Comparison.empty(1) for _ in names]
    hashes: list[int] = []
    with ExitStack() as stack:
        columns = [_Column(name, stack.enter_context(tempfile.TemporaryFile())) for name in names]
        for batch in dataset.batches(options.batch_size or _BATCH, limit=options.samples):
            floats, quantized = (runner(batch) for runner in runners)
            for k, (x, y, column) in enumerate(zip(floats, quantized, columns, strict=True)):
                column.add(y)
                if comparable(x, y):
                    found[k] = found[k].merge(compare_outputs(x, y, None))
            hashes += [hash_of_sample(batch, k) for k in range(batch.samples)]
            measurement.progress("validation", len(hashes), total)
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

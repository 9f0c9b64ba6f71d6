"""The case file: one zip of JSON and arrays, without pickle, written whole or not at all."""

import io
import json
import os
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from quantmedic.engine.case import CASE_SCHEMA, SAMPLE_DTYPE, Case, CaseRecord, SetStatistics
from quantmedic.engine.errors import CaseError
from quantmedic.engine.facts import ROLES, Role
from quantmedic.engine.histogram import BINS

_RECORD = "case.json"


def write_case(case: Case, path: Path) -> None:
    """Save a case; the file appears only when it is complete.

    Raises:
        CaseError: The file cannot be written.
    """
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=path.name, delete=False) as stream:
            temporary = Path(stream.name)
            with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
                archive.writestr(_RECORD, case.record.model_dump_json())
                for role, statistics in case.statistics.items():
                    for name, array in _arrays(statistics).items():
                        archive.writestr(f"{role}/{name}.npy", _npy(array))
        temporary.chmod(0o644)
        os.replace(temporary, path)
    except OSError as error:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
        raise CaseError("cannot write the case file", where=f"{path}: {error.strerror or error}") from error


def read_case(path: Path) -> Case:
    """Open a saved case.

    Raises:
        CaseError: The file is missing, damaged, or of a newer schema.
    """
    if not path.is_file():
        raise CaseError("no such case file", where=str(path))
    try:
        with zipfile.ZipFile(path) as archive:
            record = CaseRecord.model_validate(_migrate(json.loads(archive.read(_RECORD)), path))
            names = set(archive.namelist())
            arrays = {n: np.load(io.BytesIO(archive.read(n)), allow_pickle=False) for n in names if n != _RECORD}
    except (zipfile.BadZipFile, KeyError, ValueError, ValidationError, OSError) as error:
        raise CaseError(
            "not a readable case file",
            where=f"{path}: {str(error).splitlines()[0] if str(error) else type(error).__name__}",
            help="write it again with: quantmedic collect",
        ) from error
    statistics = {}
    for role in ROLES:
        own = {n.partition("/")[2].removesuffix(".npy"): a for n, a in arrays.items() if n.startswith(f"{role}/")}
        if own:
            statistics[role] = _statistics(own, role, path)
    return Case(record, statistics)


def _migrate(raw: dict[str, Any], path: Path) -> dict[str, Any]:
    version = raw.get("schema_version")
    if not isinstance(version, int) or version > CASE_SCHEMA:
        raise CaseError(
            "the case file was written by a newer quantmedic",
            where=f"{path}: schema {version}, this version reads up to {CASE_SCHEMA}",
            help="pip install --upgrade quantmedic",
        )
    return raw


def _npy(array: NDArray[Any]) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()


def _arrays(s: SetStatistics) -> dict[str, NDArray[Any]]:
    """All arrays of one data set; histograms sparse, ragged lists joined with their lengths."""
    indexes = sorted(s.histograms)
    dense = np.array([s.histograms[i] for i in indexes], np.int64).reshape(-1, BINS)
    row, bins = np.nonzero(dense)
    arrays = {f"columns.{name}": column for name, column in s.columns.items()}
    return arrays | {
        "channels": s.channels,
        "histogram.tensor": np.array(indexes, np.int64)[row] if indexes else np.zeros(0, np.int64),
        "histogram.bin": bins.astype(np.uint16),
        "histogram.count": dense[row, bins],
        "bucket_min": s.bucket_min,
        "bucket_max": s.bucket_max,
        "samples": s.samples,
        "lattice.lengths": np.array([len(v) for v in s.lattice], np.int64),
        "lattice.values": np.concatenate([np.zeros(0, np.float32), *s.lattice]),
        "feature_count": np.array([s.feature_count, s.flipped_count], np.int64),
        "feature_sum": s.feature_sum,
        "feature_outer": s.feature_outer,
        "flipped_sum": s.flipped_sum,
        "codes.shapes": np.array([c.shape for c in s.codes], np.int64).reshape(-1, 2),
        "codes.used": np.concatenate([np.zeros(0, np.bool_), *(c.ravel() for c in s.codes)]),
        "tensor_samples": s.tensor_samples,
    }


def _statistics(arrays: dict[str, NDArray[Any]], role: Role, path: Path) -> SetStatistics:
    try:
        histograms: dict[int, NDArray[np.int64]] = {}
        for tensor, bin_, count in zip(
            arrays["histogram.tensor"], arrays["histogram.bin"], arrays["histogram.count"], strict=True
        ):
            histograms.setdefault(int(tensor), np.zeros(BINS, np.int64))[bin_] = count
        shapes = arrays["codes.shapes"]
        ends = np.cumsum(shapes.prod(axis=1)) if len(shapes) else np.zeros(0, np.int64)
        parts = np.split(arrays["codes.used"], ends[:-1]) if len(shapes) else []
        lengths = arrays["lattice.lengths"]
        return SetStatistics(
            channels=arrays["channels"],
            columns={n.removeprefix("columns."): a for n, a in arrays.items() if n.startswith("columns.")},
            histograms=histograms,
            bucket_min=arrays["bucket_min"],
            bucket_max=arrays["bucket_max"],
            samples=arrays["samples"].astype(SAMPLE_DTYPE),
            lattice=np.split(arrays["lattice.values"], np.cumsum(lengths)[:-1]) if len(lengths) else [],
            feature_count=int(arrays["feature_count"][0]),
            feature_sum=arrays["feature_sum"],
            feature_outer=arrays["feature_outer"],
            flipped_count=int(arrays["feature_count"][1]),
            flipped_sum=arrays["flipped_sum"],
            codes=[part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)],
            tensor_samples=arrays["tensor_samples"],
        )
    except (KeyError, ValueError, IndexError) as error:
        raise CaseError(f"the case file is damaged: {role} statistics", where=f"{path}: {error}") from error

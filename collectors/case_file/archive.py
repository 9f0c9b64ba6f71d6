"""The case file: one zip of JSON and arrays, without pickle, written whole or not at all, checked when read."""

import io
import json
import math
import re
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np

from quantmedic.collectors.case_file.case_arrays import (
    arrays_of_statistics,
    arrays_of_weights,
    statistics_of_arrays,
    weights_by_operator,
)
from quantmedic.collectors.data.archives import new_archive, open_archive, open_member, read_member
from quantmedic.collectors.data.arrays import Array
from quantmedic.engine.case.facts import ROLES, Role
from quantmedic.engine.case.histogram import shows_values
from quantmedic.engine.case.records import CASE_SCHEMA, Case, CaseRecord
from quantmedic.engine.case.slice_sums import SliceSum
from quantmedic.engine.case.statistics import (
    BUCKETS,
    ERROR_COLUMNS,
    ERROR_KINDS,
    FEATURES,
    ROW_COLUMNS,
    SLOTS,
    SPATIAL,
    WEIGHT_COLUMNS,
    SetStatistics,
)
from quantmedic.engine.errors import CaseError
from quantmedic.engine.json_text import parse_json
from quantmedic.engine.output_files import new_file
from quantmedic.engine.reading_limits import CASE_BYTES, TEXT_BYTES, LimitError

_RECORD = "case.json"
_WEIGHTS = "weights/"
_SUMS = "sums/"
#: Where arrays stand; whatever else an archive holds is not read.
_PLACES = re.compile(rf"(?:(?:{_SUMS})?(?:{'|'.join(ROLES)})/|{_WEIGHTS})[^\n]*\.npy\Z")
#: Types of JSON that hold no infinity.
_AS_THEY_ARE = frozenset({str, int, bool, type(None)})
#: Of a code.
MAX_BITS = 64


def write_case(case: Case, path: Path) -> None:
    """Save a case; the file appears only when it is complete.

    Raises:
        CaseError: The file cannot be written.
    """
    try:
        with new_file(path) as file, new_archive(file) as archive:
            for folder, arrays in _arrays_by_folder(case):
                for name, array in sorted(arrays.items()):
                    _write_member(archive, f"{folder}{name}.npy", _npy(array))
            # Last, so that it is missing where damage hides the end of the archive's directory.
            record = _with_infinities_as_words(case.record.model_dump(mode="json"))
            _write_member(archive, _RECORD, json.dumps(record, allow_nan=False))
    except OSError as error:
        raise CaseError(
            "cannot write the case file",
            where=f"{path}: {error.strerror or error}",
            help="choose another --output folder, or make room and allow writing there",
        ) from error


def _write_member(archive: zipfile.ZipFile, name: str, content: bytes | str) -> None:
    """Without the time of writing: equal cases are equal files."""
    member = zipfile.ZipInfo(name)
    member.compress_type, member.external_attr = zipfile.ZIP_DEFLATED, 0o600 << 16
    archive.writestr(member, content, compresslevel=1)


def read_case(path: Path) -> Case:
    """Open a saved case.

    Raises:
        CaseError: The file is missing, damaged, or of another schema.
        LimitError: What it holds is larger than a case, or than its archive declares.
    """
    if not path.is_file():
        raise CaseError("no such case file", where=str(path), help="write one with: quantmedic collect -o FILE.case")
    try:
        return _read_archive(path)
    except (CaseError, LimitError):
        raise
    except Exception as error:  # Damaged archives, arrays and JSON raise a dozen unrelated types.
        raise CaseError(
            "not a readable case file",
            where=f"{path}: {str(error).splitlines()[0] if str(error) else type(error).__name__}",
            help="write it again with: quantmedic collect",
        ) from error


def _read_archive(path: Path) -> Case:
    with open_archive(path) as archive:
        members = {member.filename: member for member in archive.infolist() if _PLACES.match(member.filename)}
        for member in archive.infolist():
            if member.filename not in members:  # Damage may have renamed it: its own header has the name, too.
                archive.open(member).close()
        CASE_BYTES.check(sum(member.file_size for member in members.values()), path)
        head = archive.getinfo(_RECORD)
        TEXT_BYTES.check(head.file_size, f"{path}  {_RECORD}")
        raw = parse_json(read_member(archive, head).decode(), f"{path}  {_RECORD}")
        record = CaseRecord.model_validate(_require_schema(raw, path))
        check_rows(sum(tensor.channels for tensor in record.tensors), path)
        arrays = {name: _array_of_member(archive, member) for name, member in members.items()}
    # As numbers of eight bytes, which reading makes of smaller ones.
    CASE_BYTES.check(sum(array.size * max(8, array.itemsize) for array in arrays.values()), path)
    statistics: dict[Role, SetStatistics] = {}
    for role in ROLES:
        if own := _inside(f"{role}/", arrays):
            statistics[role] = statistics_of_arrays(own)
            check_shapes(statistics[role], record)
    check_record(record, statistics)
    weights = weights_by_operator(_inside(_WEIGHTS, arrays), len(record.operators))
    return Case(record, statistics, weights, _sums_of_arrays(arrays, record, statistics))


def _arrays_by_folder(case: Case) -> Iterator[tuple[str, dict[str, Array]]]:
    """Arrays of the data sets, of sums of those that are not complete, and of the weights.

    A single sum is the data set's statistics.
    """
    yield from ((f"{role}/", arrays_of_statistics(case.statistics[role])) for role in ROLES if role in case.statistics)
    several = {role: sums for role, sums in case.sums.items() if len(sums) > 1}
    stored = {f"{_SUMS}{role}/{k}/": own.statistics for role, sums in several.items() for k, own in enumerate(sums)}
    yield from ((folder, arrays_of_statistics(stored[folder])) for folder in sorted(stored))
    yield _WEIGHTS, arrays_of_weights(case.weights)


def _sums_of_arrays(
    arrays: Mapping[str, Array], record: CaseRecord, statistics: Mapping[Role, SetStatistics]
) -> dict[Role, list[SliceSum]]:
    """Sums of data sets that are not complete."""
    found: dict[Role, list[SliceSum]] = {}
    for role, dataset in record.datasets.items():
        places = [f"{_SUMS}{role}/{k}/" for k in range(len(dataset.spans))]
        sums = [statistics[role]] if len(places) == 1 else [statistics_of_arrays(_inside(p, arrays)) for p in places]
        for each in sums:
            check_shapes(each, record)
        if sums:
            found[role] = [SliceSum(*span, each) for span, each in zip(dataset.spans, sums, strict=True)]
    return found


def _inside(folder: str, arrays: Mapping[str, Array]) -> dict[str, Array]:
    return {n.removeprefix(folder).removesuffix(".npy"): a for n, a in arrays.items() if n.startswith(folder)}


def _array_of_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Array:
    with open_member(archive, member) as file:
        array = np.lib.format.read_array(file, allow_pickle=False)
        if array.dtype.kind not in "fiub" and array.dtype.names is None:
            raise ValueError(f"{member.filename} holds {array.dtype}, no numbers")
        if file.read(1):
            raise ValueError(f"{member.filename} is longer than its array")
    return array


def _require_schema(raw: object, path: Path) -> dict[str, object]:
    """The record, which has to be of the schema that is written.

    Raises:
        CaseError: It is of an earlier or a newer one.
    """
    if not isinstance(raw, dict):
        raise ValueError(f"{_RECORD} holds no record")
    version = raw.get("schema_version")
    if version != CASE_SCHEMA:
        is_older = isinstance(version, int) and version < CASE_SCHEMA
        raise CaseError(
            f"the case file was written by {'an older' if is_older else 'a newer'} quantmedic",
            where=f"{path}: schema {version}, this version reads {CASE_SCHEMA}",
            help="measure the models again: quantmedic collect" if is_older else "pip install --upgrade quantmedic",
        )
    return raw


def _with_infinities_as_words(value: object) -> object:
    """The record with infinities and NaN as words, since JSON has no such numbers; reading makes numbers of them."""
    # Most entries are leaves: what a call of its own would do is done here.
    if isinstance(value, dict):
        return {k: v if type(v) in _AS_THEY_ARE else _with_infinities_as_words(v) for k, v in value.items()}
    if isinstance(value, list):
        return [v if type(v) in _AS_THEY_ARE else _with_infinities_as_words(v) for v in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _npy(array: Array) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()


def check_rows(rows: int, path: Path) -> None:
    """Refuse more channels than a case has room for."""
    if rows < 0:
        raise ValueError(f"{rows} channels")
    CASE_BYTES.check(8 * rows * len({**ROW_COLUMNS, **WEIGHT_COLUMNS}), path)


def check_record(record: CaseRecord, statistics: Mapping[Role, SetStatistics]) -> None:
    """Every data set has its statistics, and every index of a tensor or operator stands for one."""
    seed = record.run.get("seed", 0)
    if not isinstance(seed, int) or seed < 0:
        raise ValueError(f"the seed {str(seed)[:50]!r} is none")
    bits = [tensor.quantizer.bits for tensor in record.tensors]
    if any(own is not None and not 0 <= own <= MAX_BITS for own in bits):
        raise ValueError(f"codes of less than no bits, or of more than {MAX_BITS}")
    if record.datasets.keys() != statistics.keys():
        raise ValueError(f"data sets {sorted(record.datasets)} with statistics of {sorted(statistics)}")
    used = [record.input_tensor, *(output.tensor for output in record.outputs)]
    used += [index for op in record.operators for index in (*op.inputs, *op.outputs)]
    used += [tensor.gate.source for tensor in record.tensors if tensor.gate is not None]
    used += [found.tensor for found in record.device.tensors] if record.device is not None else []
    operators = [source for op in record.operators for source in op.sources]
    if (budget := record.loss_budget) is not None:
        sources = [source for piece in budget.pieces for source in piece.sources]
        used += [index for source in sources for index in source.tensors]
        used += [departure.tensor for departure in budget.departures or ()]
        operators += [index for source in sources for index in source.operators]
        _check_indices("output", [part.output for part in budget.outputs], len(record.outputs))
    _check_float_operators(record)
    _check_indices("tensor", [index for index in used if index is not None], len(record.tensors))
    _check_indices("operator", operators, len(record.operators))


def _check_float_operators(record: CaseRecord) -> None:
    own = record.float_operators
    _check_indices("operator", [op.twin for op in own if op.twin is not None], len(record.operators))
    _check_indices("float operator", [place for op in own for place in op.reads if place != -1], len(own))


def _check_indices(what: str, indices: Iterable[int], count: int) -> None:
    for index in indices:
        if not 0 <= index < count:
            raise ValueError(f"{what} {index} of {count}")


def check_shapes(s: SetStatistics, record: CaseRecord) -> None:
    """Every array is as long as the tensors of the record ask for."""
    if s.channels.tolist() != [tensor.channels for tensor in record.tensors]:
        raise ValueError("the statistics are those of other tensors")
    tensors, rows = len(s.channels), int(s.channels.sum())
    types = {name: dtype for name, (dtype, _) in ROW_COLUMNS.items()} | dict(WEIGHT_COLUMNS)
    types |= {f"{kind}.{name}": dtype for kind in ERROR_KINDS for name, dtype in ERROR_COLUMNS.items()}
    if types.keys() != s.columns.keys():
        raise ValueError(f"columns missing or unknown: {', '.join(sorted(types.keys() ^ s.columns.keys()))}")
    if any(np.issubdtype(types[name], np.integer) and own.dtype.kind != "i" for name, own in s.columns.items()):
        raise ValueError("a column of counts holds no integers")
    if any(codes.dtype != np.bool_ for codes in s.codes):
        raise ValueError("the codes of the outputs are used, or not")
    expected: list[tuple[tuple[int, ...], list[Array]]] = [
        ((rows,), list(s.columns.values())),
        ((tensors,), [s.tensor_samples, s.sample_width, s.sample_count]),
        ((tensors, BUCKETS), [s.bucket_min, s.bucket_max]),
        ((tensors, SLOTS), [s.slot_min, s.slot_max]),
        ((FEATURES,), [s.feature_sum, s.flipped_sum]),
        ((FEATURES, FEATURES), [s.feature_outer]),
        ((BUCKETS, len(SPATIAL)), [s.spatial]),
    ]
    for shape, arrays in expected:
        if any(array.shape != shape or array.dtype.kind not in "fi" for array in arrays):
            raise ValueError(f"an array of shape {shape} is of another shape or type")
    if any(not 0 <= index < tensors for index in (*s.histograms, *s.quantized_histograms)):
        raise ValueError("a histogram belongs to no tensor")
    _check_counted(s)
    if s.samples.ndim != 1:
        raise ValueError(f"the table of samples has {s.samples.ndim} dimensions")
    numbers: list[Array] = [s.feature_sum, s.feature_outer, s.flipped_sum, *s.lattice]
    if not all(np.isfinite(array).all() for array in numbers):
        raise ValueError("features or distinct values of the samples are no numbers")
    if any((np.diff(points) <= 0).any() for points in s.lattice):
        raise ValueError("distinct values of the samples are not distinct, or in no order")


def _check_counted(s: SetStatistics) -> None:
    """Finite values that were counted have extremes, and stand in the histogram, where there is one."""
    counted = s.columns["count"] > 0
    if not all(np.isfinite(s.columns[name][counted]).all() for name in ("min", "max")):
        raise ValueError("values were counted that have no extremes")
    owners = np.repeat(np.arange(len(s.channels)), s.channels)
    if not all(shows_values(s.histograms[index]) for index in {*owners[counted].tolist()} & {*s.histograms}):
        raise ValueError("values were counted that the histogram does not show")

"""The case file: one zip of JSON and arrays, without pickle, written whole or not at all."""

import io
import json
import math
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from quantmedic.collectors.case_file.checks import check_record, check_rows, check_shapes
from quantmedic.collectors.case_file.statistics import arrays_of_statistics, statistics_of_arrays
from quantmedic.collectors.case_file.weights import arrays_of_weights, weights_by_operator
from quantmedic.collectors.data.archives import new_archive, open_archive, open_member, read_member
from quantmedic.collectors.data.arrays import Array
from quantmedic.engine.case.facts import ROLES, Role
from quantmedic.engine.case.records import CASE_SCHEMA, Case, CaseRecord
from quantmedic.engine.case.slice_sums import SliceSum
from quantmedic.engine.case.statistics import SetStatistics
from quantmedic.engine.errors import CaseError
from quantmedic.engine.json_text import parse_json
from quantmedic.engine.limits import CASE_BYTES, TEXT_BYTES, LimitError
from quantmedic.engine.output_files import new_file

_RECORD = "case.json"
_WEIGHTS = "weights/"
_SUMS = "sums/"
#: Where arrays stand; whatever else an archive holds is not read.
_PLACES = re.compile(rf"(?:(?:{_SUMS})?(?:{'|'.join(ROLES)})/|{_WEIGHTS})[^\n]*\.npy\Z")
#: Types of JSON that hold no infinity.
_AS_THEY_ARE = frozenset({str, int, bool, type(None)})
#: Schema that knows the ``step`` error.
_FIRST_WITH_STEPS = 3


def write_case(case: Case, path: Path) -> None:
    """Save a case; the file appears only when it is complete.

    Raises:
        CaseError: The file cannot be written.
    """
    try:
        with new_file(path) as file, new_archive(file) as archive:
            for role in (role for role in ROLES if role in case.statistics):
                for name, array in sorted(arrays_of_statistics(case.statistics[role]).items()):
                    _write_member(archive, f"{role}/{name}.npy", _npy(array))
            for place, statistics in sorted(_stored_sums(case).items()):
                for name, array in sorted(arrays_of_statistics(statistics).items()):
                    _write_member(archive, f"{place}/{name}.npy", _npy(array))
            for name, array in sorted(arrays_of_weights(case.weights).items()):
                _write_member(archive, f"{_WEIGHTS}{name}.npy", _npy(array))
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
        CaseError: The file is missing, damaged, or of a newer schema.
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
        record = CaseRecord.model_validate(_migrate(raw, path))
        check_rows(sum(tensor.channels for tensor in record.tensors), path)
        arrays = {name: _array_of_member(archive, member) for name, member in members.items()}
    # As numbers of eight bytes, which reading makes of smaller ones.
    CASE_BYTES.check(sum(array.size * max(8, array.itemsize) for array in arrays.values()), path)
    statistics: dict[Role, SetStatistics] = {}
    for role in ROLES:
        own = {n.partition("/")[2].removesuffix(".npy"): a for n, a in arrays.items() if n.startswith(f"{role}/")}
        if own:
            statistics[role] = statistics_of_arrays(own)
            check_shapes(statistics[role], record)
    check_record(record, statistics)
    own = {n.removeprefix(_WEIGHTS).removesuffix(".npy"): a for n, a in arrays.items() if n.startswith(_WEIGHTS)}
    weights = weights_by_operator(own, len(record.operators))
    return Case(record, statistics, weights, _sums_of_arrays(arrays, record, statistics))


def _stored_sums(case: Case) -> dict[str, SetStatistics]:
    """Sums of a data set that is not complete, by their folder; a single one is the data set's statistics."""
    several = {role: sums for role, sums in case.sums.items() if len(sums) > 1}
    return {f"{_SUMS}{role}/{k}": own.statistics for role, sums in several.items() for k, own in enumerate(sums)}


def _sums_of_arrays(
    arrays: Mapping[str, Array], record: CaseRecord, statistics: Mapping[Role, SetStatistics]
) -> dict[Role, list[SliceSum]]:
    """Sums of data sets that are not complete; files of earlier versions have none."""
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


def _migrate(raw: object, path: Path) -> dict[str, object]:
    """The record of an earlier schema as the present one reads it.

    Raises:
        CaseError: It is of a newer schema.
    """
    if not isinstance(raw, dict):
        raise ValueError(f"{_RECORD} holds no record")
    version = raw.get("schema_version")
    if not isinstance(version, int) or version > CASE_SCHEMA:
        raise CaseError(
            "the case file was written by a newer quantmedic",
            where=f"{path}: schema {version}, this version reads up to {CASE_SCHEMA}",
            help="pip install --upgrade quantmedic",
        )
    run = raw.get("run")
    if version < _FIRST_WITH_STEPS and isinstance(run, dict) and "operator_error" in run:
        run["step_error"] = False
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

"""The case file: one zip of JSON and arrays, without pickle, written whole or not at all."""

import io
import json
import math
import re
import zipfile
from collections.abc import Iterable, Mapping, MutableMapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.data.archives import new_archive, open_archive, open_member, read_member
from quantmedic.collectors.data.arrays import Array
from quantmedic.engine.case.comparison import FIELDS, VOTES, Comparison
from quantmedic.engine.case.facts import ROLES, Role
from quantmedic.engine.case.histogram import BINS, StoredHistograms, shows_values
from quantmedic.engine.case.records import (
    CASE_SCHEMA,
    CHANNEL_BINS,
    WEIGHT_BINS,
    WEIGHT_CHANNELS,
    Case,
    CaseRecord,
    WeightArrays,
)
from quantmedic.engine.case.slice_sums import SliceSum
from quantmedic.engine.case.statistics import (
    BUCKETS,
    ERROR_COLUMNS,
    ERROR_KINDS,
    FEATURES,
    ROW_COLUMNS,
    SAMPLE_DTYPE,
    SPATIAL,
    WEIGHT_COLUMNS,
    SetStatistics,
)
from quantmedic.engine.case.tallies import Tally
from quantmedic.engine.case.thumbnails import SIDE, THUMBNAIL_DTYPE, Thumbnails
from quantmedic.engine.errors import CaseError
from quantmedic.engine.json_text import parse_json
from quantmedic.engine.limits import CASE_BYTES, TEXT_BYTES, LimitError
from quantmedic.engine.output_files import temporary_file

_RECORD = "case.json"
_COMPARISON = "comparison."
_TALLY = "tally."
_WEIGHTS = "weights/"
_SUMS = "sums/"
#: Where arrays stand; whatever else an archive holds is not read.
_PLACES = re.compile(rf"(?:(?:{_SUMS})?(?:{'|'.join(ROLES)})/|{_WEIGHTS})[^\n]*\.npy\Z")
#: Schema that knows the ``step`` error.
_FIRST_WITH_STEPS = 3
#: Of each channel of an operator's weights; extremes are those of float32 weights, so that nothing is lost.
_WEIGHT_ROWS: Mapping[str, type] = {
    "index": np.int32,
    "low": np.float32,
    "high": np.float32,
    "stored_low": np.float32,
    "stored_high": np.float32,
    "sqnr_db": np.float32,
}


def write_case(case: Case, path: Path) -> None:
    """Save a case; the file appears only when it is complete.

    Raises:
        CaseError: The file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary_file(path) as temporary, new_archive(temporary) as archive:
            for role in (role for role in ROLES if role in case.statistics):
                for name, array in sorted(_arrays(case.statistics[role]).items()):
                    _write_member(archive, f"{role}/{name}.npy", _npy(array))
            for place, statistics in sorted(_stored_sums(case).items()):
                for name, array in sorted(_arrays(statistics).items()):
                    _write_member(archive, f"{place}/{name}.npy", _npy(array))
            for name, array in sorted(_weight_arrays(case.weights).items()):
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
        CASE_BYTES.check(sum(member.file_size for member in members.values()), path)
        head = archive.getinfo(_RECORD)
        TEXT_BYTES.check(head.file_size, f"{path}  {_RECORD}")
        raw = parse_json(read_member(archive, head).decode(), f"{path}  {_RECORD}")
        record = CaseRecord.model_validate(_migrate(raw, path))
        _check_rows(sum(tensor.channels for tensor in record.tensors), path)
        arrays = {name: _array_of_member(archive, member) for name, member in members.items()}
    # As numbers of eight bytes, which reading makes of smaller ones.
    CASE_BYTES.check(sum(array.size * max(8, array.itemsize) for array in arrays.values()), path)
    statistics: dict[Role, SetStatistics] = {}
    for role in ROLES:
        own = {n.partition("/")[2].removesuffix(".npy"): a for n, a in arrays.items() if n.startswith(f"{role}/")}
        if own:
            statistics[role] = _statistics_of_arrays(own)
            _check_shapes(statistics[role], record)
    _check_record(record, statistics)
    own = {n.removeprefix(_WEIGHTS).removesuffix(".npy"): a for n, a in arrays.items() if n.startswith(_WEIGHTS)}
    weights = _weights_by_operator(own, len(record.operators))
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
        sums = [statistics[role]] if len(places) == 1 else [_statistics_of_arrays(_inside(p, arrays)) for p in places]
        for each in sums:
            _check_shapes(each, record)
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


def _check_rows(rows: int, path: Path) -> None:
    """Refuse more channels than a case has room for: columns that an older file lacks are made for each."""
    if rows < 0:
        raise ValueError(f"{rows} channels")
    CASE_BYTES.check(8 * rows * len({**ROW_COLUMNS, **WEIGHT_COLUMNS}), path)


def _check_record(record: CaseRecord, statistics: Mapping[Role, SetStatistics]) -> None:
    """Every data set has its statistics, and every index of a tensor or operator stands for one."""
    if record.datasets.keys() != statistics.keys():
        raise ValueError(f"data sets {sorted(record.datasets)} with statistics of {sorted(statistics)}")
    used = [record.input_tensor, *(output.tensor for output in record.outputs)]
    used += [index for op in record.operators for index in (*op.inputs, *op.outputs)]
    used += [tensor.gate.source for tensor in record.tensors if tensor.gate is not None]
    operators = [source for op in record.operators for source in op.sources]
    if (budget := record.loss_budget) is not None:
        sources = [source for piece in budget.pieces for source in piece.sources]
        used += [index for source in sources for index in source.tensors]
        used += [departure.tensor for departure in budget.departures or ()]
        operators += [index for source in sources for index in source.operators]
        _check_indices("output", [part.output for part in budget.outputs], len(record.outputs))
    _check_indices("tensor", [index for index in used if index is not None], len(record.tensors))
    _check_indices("operator", operators, len(record.operators))


def _check_indices(what: str, indices: Iterable[int], count: int) -> None:
    for index in indices:
        if not 0 <= index < count:
            raise ValueError(f"{what} {index} of {count}")


def _check_shapes(s: SetStatistics, record: CaseRecord) -> None:
    """Every array is as long as the tensors of the record ask for."""
    if s.channels.tolist() != [tensor.channels for tensor in record.tensors]:
        raise ValueError("the statistics are those of other tensors")
    tensors, rows = len(s.channels), int(s.channels.sum())
    columns = {*ROW_COLUMNS, *WEIGHT_COLUMNS, *(f"{kind}.{name}" for kind in ERROR_KINDS for name in ERROR_COLUMNS)}
    if columns != s.columns.keys():
        raise ValueError(f"columns missing or unknown: {', '.join(sorted(columns ^ s.columns.keys()))}")
    expected: list[tuple[tuple[int, ...], list[Array]]] = [
        ((rows,), list(s.columns.values())),
        ((tensors,), [s.tensor_samples, s.sample_width, s.sample_count]),
        ((tensors, BUCKETS), [s.bucket_min, s.bucket_max]),
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
    if isinstance(value, dict):
        return {key: _with_infinities_as_words(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_with_infinities_as_words(entry) for entry in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _npy(array: Array) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()


def _arrays(s: SetStatistics) -> dict[str, Array]:
    """All arrays of one data set; histograms sparse, ragged lists joined with their lengths."""
    arrays: dict[str, Array] = {f"columns.{name}": column for name, column in s.columns.items()}
    return arrays | {
        "channels": s.channels,
        **_sparse("histogram", s.histograms),
        **_sparse("quantized_histogram", s.quantized_histograms),
        "bucket_min": s.bucket_min,
        "bucket_max": s.bucket_max,
        "samples": s.samples,
        "lattice.lengths": np.array([len(v) for v in s.lattice], np.int64),
        "lattice.values": np.concatenate([np.zeros(0, np.float32), *s.lattice]),
        "feature_count": np.array([s.feature_count, s.flipped_count, s.feature_width], np.int64),
        "feature_sum": s.feature_sum,
        "feature_outer": s.feature_outer,
        "flipped_sum": s.flipped_sum,
        "codes.shapes": np.array([c.shape for c in s.codes], np.int64).reshape(-1, 2),
        "codes.used": np.concatenate([np.zeros(0, np.bool_), *(c.ravel() for c in s.codes)]),
        "tensor_samples": s.tensor_samples,
        "sample_width": s.sample_width,
        "sample_count": s.sample_count,
        **_comparison_arrays(s),
        "spatial": s.spatial,
        **_thumbnail_arrays(s.thumbnails),
        **_tally_arrays(s.tallies),
    }


def _sparse(name: str, histograms: Mapping[int, NDArray[np.int64]]) -> dict[str, Array]:
    """The occupied bins of histograms."""
    indexes = sorted(histograms)
    dense = np.array([histograms[i] for i in indexes], np.int64).reshape(-1, BINS)
    row, bins = np.nonzero(dense)
    return {
        f"{name}.tensor": np.array(indexes, np.int64)[row] if indexes else np.zeros(0, np.int64),
        f"{name}.bin": bins.astype(np.uint16),
        f"{name}.count": dense[row, bins],
    }


def _weight_arrays(weights: Mapping[int, WeightArrays]) -> dict[str, Array]:
    """Arrays of all operators' weights, joined, with the number of channels of each; none without weights."""
    if not weights:
        return {}
    places = sorted(weights)
    own = [weights[place] for place in places]
    arrays: dict[str, Array] = {
        name: np.concatenate([getattr(w, name) for w in own]).astype(dtype) for name, dtype in _WEIGHT_ROWS.items()
    }
    heights = [w.heights for w in own if w.heights is not None]
    if len(heights) == len(own):
        arrays["heights"] = np.concatenate(heights)
    return arrays | {
        "operator": np.array(places, np.int32),
        "lengths": np.array([len(w.index) for w in own], np.int32),
        "ends": np.array([(w.start, w.stop) for w in own], np.float64),
        "floats": np.stack([w.floats for w in own]),
        "stored": np.stack([w.stored for w in own]),
    }


def _weights_by_operator(arrays: Mapping[str, Array], operators: int) -> dict[int, WeightArrays]:
    """Arrays of weights by operator; files of earlier versions have none."""
    if not arrays:
        return {}
    places, lengths, ends = (arrays[name] for name in ("operator", "lengths", "ends"))
    count = len(places)
    expected: dict[str, tuple[tuple[int, ...], str]] = {
        "operator": ((count,), "i"),
        "lengths": ((count,), "i"),
        "ends": ((count, 2), "f"),
        "floats": ((count, WEIGHT_BINS), "i"),
        "stored": ((count, WEIGHT_BINS), "i"),
    }
    expected |= {name: ((int(lengths.sum()),), np.dtype(kind).kind) for name, kind in _WEIGHT_ROWS.items()}
    if "heights" in arrays:
        expected["heights"] = (int(lengths.sum()), CHANNEL_BINS), "u"
    if any((arrays[name].shape, arrays[name].dtype.kind) != wanted for name, wanted in expected.items()):
        raise ValueError("an array of weights is of another shape or type")
    if len(np.unique(places)) != count or any(not 0 <= place < operators for place in places):
        raise ValueError("weights belong to no operator, or to one twice")
    if any(not 0 < length <= WEIGHT_CHANNELS for length in lengths):
        raise ValueError("weights without channels, or with too many")
    rows = {
        name: _split_list(arrays[name].astype(np.int64 if name == "index" else np.float64), lengths)
        for name in _WEIGHT_ROWS
    }
    # Files of earlier versions have no histograms of channels.
    heights = _split_list(arrays["heights"], lengths) if "heights" in arrays else [None] * count
    return {
        int(place): WeightArrays(
            **{name: parts[i] for name, parts in rows.items()},
            start=float(ends[i, 0]),
            stop=float(ends[i, 1]),
            floats=arrays["floats"][i].astype(np.int64),
            stored=arrays["stored"][i].astype(np.int64),
            heights=heights[i],
        )
        for i, place in enumerate(places)
    }


def _thumbnail_arrays(kept: Thumbnails) -> dict[str, Array]:
    return {
        "thumbnails.table": kept.table,
        "thumbnails.shapes": np.array([small.shape for small in kept.pixels], np.int64).reshape(-1, 3),
        "thumbnails.pixels": np.concatenate([np.zeros(0, np.float16), *(small.ravel() for small in kept.pixels)]),
    }


def _thumbnails(arrays: Mapping[str, Array]) -> Thumbnails:
    """Small versions of samples; files of earlier versions have none."""
    if "thumbnails.table" not in arrays:
        return Thumbnails()
    table, shapes, pixels = (arrays[f"thumbnails.{part}"] for part in ("table", "shapes", "pixels"))
    if shapes.shape != (len(table), 3) or pixels.dtype != np.float16 or (shapes < 1).any() or (shapes > SIDE).any():
        raise ValueError("the thumbnails are of another shape")
    parts = _split_list(pixels, shapes.prod(axis=1))
    return Thumbnails(
        table.astype(THUMBNAIL_DTYPE), [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]
    )


def _tally_arrays(tallies: Mapping[str, Tally]) -> dict[str, Array]:
    arrays: dict[str, Array] = {}
    for key, own in tallies.items():
        arrays |= {f"{_TALLY}{key}.values": own.values, f"{_TALLY}{key}.lengths": own.lengths}
    return arrays


def _tallies(arrays: Mapping[str, Array], samples: int) -> dict[str, Tally]:
    """What a metric that is no mean keeps of each sample; files without one, or of earlier versions, have none."""
    found = {}
    for key in ("float", "quantized"):
        if f"{_TALLY}{key}.values" not in arrays:
            continue
        values, lengths = arrays[f"{_TALLY}{key}.values"], arrays[f"{_TALLY}{key}.lengths"]
        if values.ndim != 2 or values.dtype.kind != "f" or lengths.dtype.kind != "i" or lengths.shape != (samples,):
            raise ValueError("the tally of the metric is of another shape or type")
        if lengths.size and (lengths.min() < -1 or np.maximum(lengths, 0).sum() != len(values)):
            raise ValueError("the tally of the metric has another number of rows")
        found[key] = Tally(values.astype(np.float64), lengths.astype(np.int64))
    return found


def _comparison_arrays(s: SetStatistics) -> dict[str, Array]:
    arrays: dict[str, Array] = {}
    for key, found in s.comparisons.items():
        arrays |= {f"{_COMPARISON}{key}.table": found.table, f"{_COMPARISON}{key}.votes": found.votes}
        arrays[f"{_COMPARISON}{key}.metric"] = np.array([found.metric])
    return arrays


def _comparisons(arrays: Mapping[str, Array]) -> dict[str, Comparison]:
    """Pairs of outputs; files of earlier versions have none."""
    keys = [n.removeprefix(_COMPARISON).removesuffix(".table") for n in arrays if n.startswith(_COMPARISON)]
    keys = [key for key in keys if f"{_COMPARISON}{key}.table" in arrays]
    found = {}
    for key in sorted(keys, key=_numeric_parts):
        table, votes, metric = (arrays[f"{_COMPARISON}{key}.{part}"] for part in ("table", "votes", "metric"))
        is_table = table.ndim == 2 and table.shape[1] == len(FIELDS) and len(table) > 0
        if not is_table or votes.shape != (len(VOTES),) or metric.shape != (1,):
            raise ValueError(f"the comparison {key} is of another shape")
        found[key] = Comparison(table.astype(np.float64), votes.astype(np.int64), float(metric[0]))
    return found


def _numeric_parts(key: str) -> tuple[tuple[int, ...], str]:
    """Sorts keys such as ``0.10`` by their numbers."""
    return tuple(int(part) if part.isdigit() else -1 for part in key.split(".")), key


def _statistics_of_arrays(arrays: Mapping[str, Array]) -> SetStatistics:
    shapes = arrays["codes.shapes"]
    codes = _split_list(arrays["codes.used"], shapes.prod(axis=1))
    rows = len(arrays["columns.mean"])
    if arrays["channels"].sum() != rows:
        raise ValueError(f"{rows} rows for tensors of {arrays['channels'].sum()} channels")
    if arrays["samples"].dtype.names is None:
        raise ValueError("the samples are no table")
    # Cases of earlier versions do not have them: nothing was counted.
    unfilled: dict[str, Array] = {name: np.zeros(rows, dtype) for name, dtype in WEIGHT_COLUMNS.items()}
    # Merged with others these have to stay unknown.
    unfilled |= {name: np.full(rows, np.nan) for name in ("deployed_min", "deployed_max")}
    unfilled |= {f"step.{name}": np.zeros(rows, dtype) for name, dtype in ERROR_COLUMNS.items()}
    return SetStatistics(
        channels=arrays["channels"],
        columns=unfilled | {n.removeprefix("columns."): a for n, a in arrays.items() if n.startswith("columns.")},
        histograms=_histograms("histogram", arrays),
        bucket_min=arrays["bucket_min"],
        bucket_max=arrays["bucket_max"],
        samples=arrays["samples"].astype(SAMPLE_DTYPE),
        lattice=_split_list(arrays["lattice.values"], arrays["lattice.lengths"]),
        feature_count=int(arrays["feature_count"][0]),
        feature_sum=arrays["feature_sum"],
        feature_outer=arrays["feature_outer"],
        flipped_count=int(arrays["feature_count"][1]),
        flipped_sum=arrays["flipped_sum"],
        feature_width=int(arrays["feature_count"][2]),
        codes=[part.reshape(shape) for part, shape in zip(codes, shapes, strict=True)],
        tensor_samples=arrays["tensor_samples"],
        # Older files lack these two: no sample was counted.
        sample_width=arrays.get("sample_width", np.zeros(len(arrays["channels"]))),
        sample_count=arrays.get("sample_count", np.zeros(len(arrays["channels"]), np.int64)),
        comparisons=_comparisons(arrays),
        # Schema 1 did not measure neighbours.
        spatial=arrays.get("spatial", np.zeros((BUCKETS, len(SPATIAL)))),
        quantized_histograms=_quantized_histograms(arrays),
        thumbnails=_thumbnails(arrays),
        tallies=_tallies(arrays, len(arrays["samples"])),
    )


def _quantized_histograms(arrays: Mapping[str, Array]) -> MutableMapping[int, NDArray[np.int64]]:
    """Distributions of deployed values; files of earlier versions have none."""
    name = "quantized_histogram"
    return _histograms(name, arrays) if any(n.startswith(f"{name}.") for n in arrays) else {}


def _histograms(name: str, arrays: Mapping[str, Array]) -> StoredHistograms:
    tensors, bins, counts = (arrays[f"{name}.{part}"] for part in ("tensor", "bin", "count"))
    if any(a.ndim != 1 or a.dtype.kind not in "iu" or len(a) != len(tensors) for a in (tensors, bins, counts)):
        raise ValueError(f"the arrays of {name} are of another shape or type")
    if len(bins) and not 0 <= bins.min() <= bins.max() < BINS:
        raise ValueError(f"{name} counts in bins that are not there")
    if len(counts) and counts.min() < 0:
        raise ValueError(f"{name} counts less than nothing")
    return StoredHistograms(tensors, bins, counts.astype(np.int64))


def _split_list(joined: Array, lengths: NDArray[np.int64]) -> list[Array]:
    """The pieces of a ragged list."""
    if lengths.sum() != len(joined):
        raise ValueError(f"{len(joined)} values for lists of {lengths.sum()}")
    return np.split(joined, np.cumsum(lengths)[:-1]) if len(lengths) else []

"""Statistics of data sets and histograms of weights as arrays of a case file, and back."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.data.arrays import Array
from quantmedic.engine.case.histogram import BINS, StoredHistograms
from quantmedic.engine.case.output_comparison import FIELDS, VOTES, Comparison
from quantmedic.engine.case.records import CHANNEL_BINS, WEIGHT_BINS, WEIGHT_CHANNELS, WeightArrays
from quantmedic.engine.case.statistics import SAMPLE_DTYPE, SetStatistics
from quantmedic.engine.case.tallies import Tally
from quantmedic.engine.case.thumbnails import SIDE, THUMBNAIL_DTYPE, Thumbnails

#: Arrays of a data set that stand in its file as they are, and numbers that stand there together.
_AS_THEY_ARE = (
    *("channels", "bucket_min", "bucket_max", "samples", "feature_sum", "feature_outer", "flipped_sum"),
    *("tensor_samples", "sample_width", "sample_count", "slot_min", "slot_max", "spatial"),
)
_COUNTS = ("feature_count", "flipped_count", "feature_width")
_COMPARISON = "comparison."
_TALLY = "tally."
#: Of each channel of an operator's weights; extremes are those of float32 weights, so that nothing is lost.
_WEIGHT_ROWS: Mapping[str, type] = {
    "index": np.int32,
    "low": np.float32,
    "high": np.float32,
    "stored_low": np.float32,
    "stored_high": np.float32,
    "sqnr_db": np.float32,
}


def split_list(joined: Array, lengths: NDArray[np.int64]) -> list[Array]:
    """The pieces of a ragged list."""
    if lengths.sum() != len(joined):
        raise ValueError(f"{len(joined)} values for lists of {lengths.sum()}")
    return np.split(joined, np.cumsum(lengths)[:-1]) if len(lengths) else []


def _join_pieces(parts: Sequence[Array], kind: type) -> Array:
    """All values of a ragged list in a row."""
    return np.concatenate([np.zeros(0, kind), *(part.ravel() for part in parts)])


def arrays_of_statistics(s: SetStatistics) -> dict[str, Array]:
    """All arrays of one data set; histograms sparse, ragged lists joined with their lengths."""
    arrays: dict[str, Array] = {f"columns.{name}": column for name, column in s.columns.items()}
    return arrays | {
        **{name: getattr(s, name) for name in _AS_THEY_ARE},
        **_sparse("histogram", s.histograms),
        **_sparse("quantized_histogram", s.quantized_histograms),
        "lattice.lengths": np.array([len(v) for v in s.lattice], np.int64),
        "lattice.values": _join_pieces(s.lattice, np.float32),
        "feature_count": np.array([getattr(s, name) for name in _COUNTS], np.int64),
        "codes.shapes": np.array([c.shape for c in s.codes], np.int64).reshape(-1, 2),
        "codes.used": _join_pieces(s.codes, np.bool_),
        **{f"{_COMPARISON}{key}.table": found.table for key, found in s.comparisons.items()},
        **{f"{_COMPARISON}{key}.votes": found.votes for key, found in s.comparisons.items()},
        **{f"{_COMPARISON}{key}.metric": np.array([found.metric]) for key, found in s.comparisons.items()},
        "thumbnails.table": s.thumbnails.table,
        "thumbnails.shapes": np.array([small.shape for small in s.thumbnails.pixels], np.int64).reshape(-1, 3),
        "thumbnails.pixels": _join_pieces(s.thumbnails.pixels, np.float16),
        **{f"{_TALLY}{key}.values": own.values for key, own in s.tallies.items()},
        **{f"{_TALLY}{key}.lengths": own.lengths for key, own in s.tallies.items()},
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


def statistics_of_arrays(arrays: Mapping[str, Array]) -> SetStatistics:
    shapes = arrays["codes.shapes"]
    codes = split_list(arrays["codes.used"], shapes.prod(axis=1))
    rows = len(arrays["columns.mean"])
    if arrays["channels"].sum() != rows:
        raise ValueError(f"{rows} rows for tensors of {arrays['channels'].sum()} channels")
    if arrays["samples"].dtype.names is None:
        raise ValueError("the samples are no table")
    plain: dict[str, Any] = {name: arrays[name] for name in _AS_THEY_ARE}
    plain |= {name: int(count) for name, count in zip(_COUNTS, arrays["feature_count"], strict=True)}
    plain["samples"] = plain["samples"].astype(SAMPLE_DTYPE)
    return SetStatistics(
        **plain,
        columns={n.removeprefix("columns."): a for n, a in arrays.items() if n.startswith("columns.")},
        histograms=_histograms("histogram", arrays),
        lattice=split_list(arrays["lattice.values"], arrays["lattice.lengths"]),
        codes=[part.reshape(shape) for part, shape in zip(codes, shapes, strict=True)],
        comparisons=_comparisons(arrays),
        quantized_histograms=_histograms("quantized_histogram", arrays),
        thumbnails=_thumbnails(arrays),
        tallies=_tallies(arrays, len(arrays["samples"])),
    )


def _histograms(name: str, arrays: Mapping[str, Array]) -> StoredHistograms:
    tensors, bins, counts = (arrays[f"{name}.{part}"] for part in ("tensor", "bin", "count"))
    if any(a.ndim != 1 or a.dtype.kind not in "iu" or len(a) != len(tensors) for a in (tensors, bins, counts)):
        raise ValueError(f"the arrays of {name} are of another shape or type")
    if len(bins) and not 0 <= bins.min() <= bins.max() < BINS:
        raise ValueError(f"{name} counts in bins that are not there")
    if len(counts) and counts.min() < 0:
        raise ValueError(f"{name} counts less than nothing")
    return StoredHistograms(tensors, bins, counts.astype(np.int64))


def _thumbnails(arrays: Mapping[str, Array]) -> Thumbnails:
    table, shapes, pixels = (arrays[f"thumbnails.{part}"] for part in ("table", "shapes", "pixels"))
    if shapes.shape != (len(table), 3) or pixels.dtype != np.float16 or (shapes < 1).any() or (shapes > SIDE).any():
        raise ValueError("the thumbnails are of another shape")
    parts = split_list(pixels, shapes.prod(axis=1))
    return Thumbnails(
        table.astype(THUMBNAIL_DTYPE), [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]
    )


def _tallies(arrays: Mapping[str, Array], samples: int) -> dict[str, Tally]:
    """What a metric that is no mean keeps of each sample; files without one have none."""
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


def _comparisons(arrays: Mapping[str, Array]) -> dict[str, Comparison]:
    """Pairs of outputs; one that lacks a part is refused (``KeyError``)."""
    keys = {n.removeprefix(_COMPARISON).rpartition(".")[0] for n in arrays if n.startswith(_COMPARISON)}
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


def arrays_of_weights(weights: Mapping[int, WeightArrays]) -> dict[str, Array]:
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


def weights_by_operator(arrays: Mapping[str, Array], operators: int) -> dict[int, WeightArrays]:
    """Arrays of weights by operator; none where nothing was weighed."""
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
        name: split_list(arrays[name].astype(np.int64 if name == "index" else np.float64), lengths)
        for name in _WEIGHT_ROWS
    }
    heights = split_list(arrays["heights"], lengths) if "heights" in arrays else [None] * count
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

"""The histograms of an operator's weights as arrays of a case file, and back."""

from collections.abc import Mapping

import numpy as np

from quantmedic.collectors.case_file.ragged import split_list
from quantmedic.collectors.data.arrays import Array
from quantmedic.engine.case.records import CHANNEL_BINS, WEIGHT_BINS, WEIGHT_CHANNELS, WeightArrays

#: Of each channel of an operator's weights; extremes are those of float32 weights, so that nothing is lost.
_WEIGHT_ROWS: Mapping[str, type] = {
    "index": np.int32,
    "low": np.float32,
    "high": np.float32,
    "stored_low": np.float32,
    "stored_high": np.float32,
    "sqnr_db": np.float32,
}


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
        name: split_list(arrays[name].astype(np.int64 if name == "index" else np.float64), lengths)
        for name in _WEIGHT_ROWS
    }
    # Files of earlier versions have no histograms of channels.
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

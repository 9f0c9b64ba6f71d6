"""Metrics of counts: ratios of sums over the samples, means of one ratio per class, neighbours of the same label."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from quantmedic.engine.case.tallies import Tally

Floats = NDArray[np.float64]
#: Values of a metric, given how often each sample counts: ``[choices, samples]`` to ``[choices]``.
Estimate = Callable[[Floats], Floats]
#: Numbers that a table of samples and classes may hold, so that memory does not grow with the classes.
_TABLE = 4_000_000
#: Samples whose distances to all others are computed at a time.
_BLOCK = 512


def ratio(tally: Tally) -> Estimate:
    """Sum of the first column over sum of the second; NaN where that is 0.

    Error rates of words and characters are edits over the length of the labels (Levenshtein 1966), the F1 of one class
    is twice its hits over its labels and predictions together (van Rijsbergen 1979).
    """
    part, whole = tally.sums().T

    def estimate(times: Floats) -> Floats:
        return _divide(times @ part, times @ whole)

    return estimate


def exponential_ratio(tally: Tally) -> Estimate:
    """The exponential of that ratio: the perplexity, of log-likelihoods and tokens (Jelinek et al. 1977)."""
    estimate = ratio(tally)
    return lambda times: np.exp(estimate(times))


def class_ratio(tally: Tally) -> Estimate:
    """Mean of one ratio per class, over the classes whose denominator is not 0.

    Rows are (class, part, whole). It is the mean intersection over union, of pixels (Everingham et al. 2010), and the
    macro average of F1, of twice the hits over labels and predictions together (Opitz and Burst 2019).
    """
    names, classes = np.unique(tally.values[:, 0], return_inverse=True)
    owners, samples = tally.owners, len(tally)
    step = max(_TABLE // max(2 * samples, 1), 1)

    def estimate(times: Floats) -> Floats:
        total, present = np.zeros(len(times)), np.zeros(len(times))
        for start in range(0, len(names), step):
            inside = (classes >= start) & (classes < start + step)
            table = np.zeros((2, samples, min(step, len(names) - start)))
            for column in (0, 1):
                np.add.at(table[column], (owners[inside], classes[inside] - start), tally.values[inside, column + 1])
            shares = _divide(times @ table[0], times @ table[1])
            total += np.nansum(shares, axis=1)
            present += np.isfinite(shares).sum(axis=1)
        return _divide(total, present)

    return estimate


def _divide(part: Floats, whole: Floats) -> Floats:
    shares: Floats = np.divide(part, whole, out=np.full(part.shape, np.nan), where=whole > 0)
    return shares


def neighbour_hits(tally: Tally, k: int) -> Floats:
    """For each sample 1 where one of its ``k`` nearest neighbours has its label, else 0 (recall@k, Jégou et al. 2011).

    Every sample asks all others; the nearest have the largest cosine. NaN for a sample whose label no other one has:
    it cannot be found. Of equally near neighbours the earlier one counts.

    Args:
        tally: One row (label, embedding) per sample.
        k: Neighbours that count.
    """
    labels, vectors = tally.values[:, 0], tally.values[:, 1:]
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    directions = np.divide(vectors, lengths, out=np.zeros_like(vectors), where=lengths > 0).astype(np.float32)
    hits = np.zeros(len(labels))
    for start in range(0, len(labels), _BLOCK):
        rows = np.arange(start, min(start + _BLOCK, len(labels)))
        nearness = directions[rows] @ directions.T
        nearness[np.arange(len(rows)), rows] = -np.inf
        near = _largest(nearness, min(k, len(labels) - 1))
        hits[rows] = (labels[near] == labels[rows, np.newaxis]).any(axis=1)
    _, places, counts = np.unique(labels, return_inverse=True, return_counts=True)
    return np.where(counts[places] > 1, hits, np.nan)


def _largest(nearness: NDArray[np.float32], k: int) -> NDArray[np.int64]:
    """Places of the ``k`` largest of each row."""
    if k == 1:
        nearest: NDArray[np.int64] = nearness.argmax(axis=1)[:, np.newaxis]
        return nearest
    return np.argsort(-nearness, axis=1, kind="stable")[:, :k].astype(np.int64)

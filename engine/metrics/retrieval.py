"""Recall of nearest neighbours: whether samples that belong together have embeddings that lie together."""

import numpy as np
from numpy.typing import NDArray

from quantmedic.engine.case.tallies import Tally

Floats = NDArray[np.float64]
#: Samples whose distances to all others are computed at a time.
_BLOCK = 512


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

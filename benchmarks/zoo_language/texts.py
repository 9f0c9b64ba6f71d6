"""Texts that every machine has, as bytes: licences of the distribution, and sources of Python's standard library."""

import sysconfig
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]
VOCABULARY = 256
_LICENCES = Path("/usr/share/common-licenses")
#: Every so many-th block of this size is held out of training.
_BLOCK, _HELD_OUT = 4096, 8
#: Of each source at most so much, so that no large table takes over.
_MOST = 40_000


@cache
def corpus() -> bytes:
    """All texts, in the order of their names, joined; the same on machines with the same files.

    Raises:
        FileNotFoundError: The standard library has no sources here.
    """
    library = Path(sysconfig.get_paths()["stdlib"])
    files = [*sorted(path for path in _LICENCES.glob("*") if not path.is_symlink()), *sorted(library.glob("*.py"))]
    found = b"\n\n".join(path.read_bytes()[:_MOST] for path in files)
    if len(found) < 1 << 20:
        raise FileNotFoundError(f"too little text to train on in {_LICENCES} and {library}")
    return found


def training_bytes() -> Ids:
    """What networks learn from."""
    return _blocks(held_out=False)


def held_out_bytes() -> Ids:
    """What they never saw."""
    return _blocks(held_out=True)


def drawn_texts(source: Ids, texts: int, length: int, seed: int) -> Ids:
    """Texts ``[texts, length]`` that begin anywhere in a source."""
    starts = np.random.default_rng(seed).integers(0, len(source) - length, texts)
    return source[starts[:, None] + np.arange(length)]


def unigram_entropy() -> float:
    """What a guess by frequency costs per byte, in nats."""
    counts = np.bincount(training_bytes(), minlength=VOCABULARY)
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum())


def _blocks(*, held_out: bool) -> Ids:
    whole = np.frombuffer(corpus(), np.uint8)
    blocks = whole[: len(whole) // _BLOCK * _BLOCK].reshape(-1, _BLOCK)
    chosen = np.arange(len(blocks)) % _HELD_OUT == 0
    return blocks[chosen if held_out else ~chosen].ravel().astype(np.int64)

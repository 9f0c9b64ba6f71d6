"""What a seed decides of a case: settings of the quantizer, strength of the fault, and how many samples there are.

Places and random numbers of a fault come from the same seed (``Patient.pick``, ``Patient.random``). Seeds 1 to 9 are
for tuning, seeds from 106 on for figures that are reported.
"""

import zlib
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from .networks import Network
from .patient import NORMAL
from .quantizing import Recipe

#: Of the strength with which a graded fault is put in without a seed: from harmless to fatal.
WEAKEST, STRONGEST = 0.1, 30.0
#: Labelled samples; with 0 there are samples without labels.
LABELLED = (0, 32, 64, 128, 256, 512)
#: Settings that are drawn before the normal ones are taken.
DRAWS = 3
TUNING_SEEDS = range(1, 10)


def case_seed(seed: int, name: str) -> int:
    """Every case has draws of its own."""
    return zlib.crc32(f"{seed}/{name}".encode())


def draw_network(network: Network, seed: int) -> Network:
    """The network with its samples in another order, and more, fewer or none that are labelled."""
    rng = np.random.default_rng([seed, 1])
    return replace(network, seed=seed, labelled=int(rng.choice(LABELLED)))


def draw_strength(seed: int) -> float:
    """Log-uniform."""
    rng = np.random.default_rng([seed, 2])
    return float(np.exp(rng.uniform(np.log(WEAKEST), np.log(STRONGEST))))


def draw_recipes(seed: int) -> Iterator[Recipe]:
    """Settings to try in turn, the normal ones last: not all suit every network and fault."""
    rng = np.random.default_rng([seed, 3])
    for _ in range(DRAWS):
        yield _recipe(rng)
    yield NORMAL


def _recipe(rng: np.random.Generator) -> Recipe:
    qoperator, per_channel = rng.random() < 0.25, rng.random() < 0.7
    activation = str(rng.choice(["QInt8", "QUInt8", "QInt16", "QUInt16"], p=[0.45, 0.4, 0.05, 0.1]))
    wide = activation.endswith("16")
    unsigned = activation == "QUInt8" and not per_channel and rng.random() < 0.4
    method = str(rng.choice(["MinMax", "Percentile", "Entropy"], p=[0.75, 0.15, 0.1]))
    return Recipe(
        per_channel=bool(per_channel),
        activation=activation,
        weight="QUInt8" if unsigned else "QInt8",
        method="MinMax" if wide else method,
        percentile=99.999 if method == "Percentile" and not wide else None,
        qoperator=bool(qoperator and not wide),
        symmetric=bool(not activation.startswith("QU") and rng.random() < 0.5),
    )

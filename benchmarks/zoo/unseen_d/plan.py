"""Which fault and which control of set D is put into which network: a seed draws two for each, among those that fit."""

import zlib
from collections.abc import Iterable

import numpy as np

from ..controls import UNSEEN_CONTROLS
from ..fault import FAULTS
from ..networks import FRESH_NETWORKS

#: Networks of each fault or control, drawn from those where it has a place.
TIMES = 2
OWN = ("beads", "weaves", "machines", "prints", "bags")
PICTURES, MAPS, TABLES = ("beads", "weaves", "prints"), OWN[:4], ("machines", "bags")
#: Where a form has a place, if not in every network.
FITS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("deep-colour", "bytes-with-a-sign", "corner-tiles"), PICTURES),
    "own-deviation": ("weaves", "prints"),
    "statistics-of-another-family": PICTURES,
    **dict.fromkeys(("mean-and-deviation-swapped", "alpha-first"), ("beads",)),
    **dict.fromkeys(("some-columns-in-another-unit", "unplugged-sensor", "fill-values-in-the-log"), TABLES),
    "columns-in-another-order": ("bags",),
    "held-readings": ("machines",),
    "joint-on-the-grid-of-one-part": ("weaves", "machines"),
    "sum-on-the-grid-of-one-part": ("beads", "prints"),
    "tables-that-end-early": ("bags",),
    "frame-of-large-numbers": MAPS,
    "sums-that-saturate": PICTURES,
    "rectifiers-with-an-upper-end": ("weaves", "machines", "bags"),
    "whitened-and-coloured": MAPS,
    "kernels-turned-round": MAPS,
    "smoothed-too-far": ("bags",),
    "through-the-fast-transform": ("weaves", "prints"),
    "biases-in-sorted-order": ("beads", "machines", "prints"),
    "padded-and-cropped": MAPS,
}
#: Published networks are slow: what is put into each of them, whatever the seed.
PUBLISHED = {
    "nsfw": ("observers-hardly-moved", "bit-that-sticks", "as-it-was"),
    "dnsmos": ("padding-counted-as-data", "through-floats-of-eight-bits", "peaks-cut-a-little"),
    "plcmos": ("output-read-with-another-scale", "thresholds-for-fewer-bits", "as-it-was"),
}


def kinds() -> list[str]:
    return [kind for kind, fault in FAULTS.items() if fault.unseen == "d"]


def drawn_pairs(seed: int | None) -> list[tuple[str, str]]:
    """Networks and what is put into them, faults before controls, each with as many networks."""
    named = [*kinds(), *UNSEEN_CONTROLS["d"]]
    own = [(network, name) for name in named for network in _drawn(FITS.get(name, OWN), name, seed)]
    return own + [(network, name) for network, found in PUBLISHED.items() for name in found]


def _drawn(fits: Iterable[str], name: str, seed: int | None) -> list[str]:
    """Some of them, in the order of the list."""
    networks = [network for network in FRESH_NETWORKS["d"] if network in set(fits)]
    rng = np.random.default_rng([seed or 0, zlib.crc32(name.encode())])
    return [networks[i] for i in sorted(rng.permutation(len(networks))[:TIMES])]

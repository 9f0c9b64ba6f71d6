"""Which fault and which control of set F is put into which network: a seed draws it, among those that fit."""

import zlib

import numpy as np

from ..controls import UNSEEN_CONTROLS
from ..fault import FAULTS
from ..networks import FRESH_NETWORKS

OWN = ("webs", "mazes", "dials", "groves", "fabrics")
#: Where a form has a place, if not in every network.
MAPS, COLOURS = ("mazes", "dials", "fabrics"), ("fabrics",)
FITS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("links-never-loaded", "links-weighed-by-degrees", "links-written-many-times"), ("webs",)),
    **dict.fromkeys(("plans-without-walls", "walls-far-below", "one-turn-untied"), ("mazes",)),
    **dict.fromkeys(("exported-with-a-turn-less", "board-stops-a-turn-early"), ("mazes",)),
    **dict.fromkeys(("bits-where-weights-serve-once", "state-in-a-narrow-memory"), ("mazes",)),
    **dict.fromkeys(("dials-hardly-turned", "bytes-in-another-order", "places-a-little-on"), ("dials",)),
    **dict.fromkeys(("slopes-as-shifts", "compared-without-the-sign", "board-keeps-the-first-dials"), ("dials",)),
    **dict.fromkeys(("gaps-filled-with-means", "choices-as-numbers", "before-the-trend"), ("groves",)),
    **dict.fromkeys(("statistics-of-another-extract", "last-trees-left-out"), ("groves",)),
    **dict.fromkeys(("another-white", "never-turned-into-colours", "stored-with-heavy-losses"), COLOURS),
    **dict.fromkeys(("average-counts-the-frame", "pairs-before-centring"), COLOURS),
    **dict.fromkeys(("frame-beside-zero", "tiles-without-a-border"), MAPS),
    "window-one-pixel-on": ("dials", "fabrics"),
    "another-floor-under-the-root": ("webs", "fabrics"),
    "mean-over-a-padded-length": ("webs", "dials"),
    "curves-from-a-short-table": ("groves", "fabrics"),
    "addends-of-an-earlier-epoch": ("webs", "dials"),
    "hertz-beside-volts": ("dials", "groves"),
    "products-from-squares": ("mazes", "dials", "groves"),
    "ranges-by-kind-of-operator": ("webs", "mazes", "dials"),
    "offsets-of-two-branches": ("webs",),
    "ends-of-one-digit": ("webs", "dials", "groves"),
    "second-operand-narrow": ("webs", "groves", "fabrics"),
    "loop-left-out-by-name": ("webs", "mazes"),
    **dict.fromkeys(("labels-counted-from-one", "labels-of-an-older-list"), ("webs", "dials", "groves", "fabrics")),
    "ranges-in-order-of-names": ("webs", "mazes", "dials"),
    "a-little-louder": ("dials", "groves", "fabrics"),
    "bias-in-an-operator-of-its-own": ("webs", "mazes", "dials", "groves"),
    "layers-in-another-order": ("webs", "mazes", "dials", "groves"),
}
#: Put into every network whatever the seed: what is sound must look sound in each.
EVERYWHERE = ("as-it-came",)


def kinds() -> list[str]:
    return [kind for kind, fault in FAULTS.items() if fault.unseen == "f"]


def drawn_pairs(seed: int | None) -> list[tuple[str, str]]:
    """Networks and what is put into them, faults before controls."""
    return [(network, name) for name in (*kinds(), *UNSEEN_CONTROLS["f"]) for network in _drawn(name, seed)]


def _drawn(name: str, seed: int | None) -> list[str]:
    """The network that the seed draws, or all."""
    fits = [network for network in FRESH_NETWORKS["f"] if network in FITS.get(name, OWN)]
    if name in EVERYWHERE:
        return fits
    rng = np.random.default_rng([seed or 0, zlib.crc32(name.encode())])
    return [fits[int(rng.integers(len(fits)))]]

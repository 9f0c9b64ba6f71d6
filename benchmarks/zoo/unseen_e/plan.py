"""Which fault and which control of set E is put into which network: a seed draws it, among those that fit."""

import zlib

import numpy as np

from ..controls import UNSEEN_CONTROLS
from ..fault import FAULTS
from ..networks import FRESH_NETWORKS

OWN = ("swirls", "solids", "orders", "signatures", "talks")
#: Where a form has a place, if not in every network.
CLASSES, MEASURED, PAIRS, TEXTS = OWN[1:], OWN[:3], ("signatures",), ("talks",)
FITS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("amounts-in-logarithms", "clipped-by-the-recorder", "in-the-frame-of-the-sensor"), MEASURED),
    **dict.fromkeys(("truncated-to-integers", "axes-reversed-by-the-converter"), ("solids", "orders")),
    **dict.fromkeys(("from-a-coarser-mesh", "differences-of-neighbours", "enlarged-by-another-rule"), ("swirls",)),
    **dict.fromkeys(("half-of-the-cloud", "empty-seats-before-the-maximum"), ("solids",)),
    **dict.fromkeys(("pair-with-itself", "second-sheet-empty", "negatives-of-scans", "framed-in-grey"), PAIRS),
    **dict.fromkeys(("loops-of-one-word", "stream-on-its-first-range", "embedding-of-few-levels"), TEXTS),
    **dict.fromkeys(("softmax-in-pieces", "places-counted-from-far-off"), TEXTS),
    **dict.fromkeys(("turned-at-another-pace", "gain-with-an-offset"), TEXTS),
    **dict.fromkeys(("sharp-shares-cut", "router-of-few-levels", "taken-from-two-mixtures"), ("orders", "talks")),
    "scores-in-few-levels": ("orders", "talks"),
    "sums-that-wrap": CLASSES,
    **dict.fromkeys(("siblings-exchanged", "siblings-on-one-scale"), ("orders", "talks")),
    **dict.fromkeys(("classes-in-alphabetical-order", "probabilities-for-logits", "zero-in-the-middle"), CLASSES),
    "ends-mirrored": ("solids", "signatures", "talks"),
    "input-through-few-levels": MEASURED,
    "kept-as-a-spectrum": ("swirls", "signatures"),
    "hop-after-hop": ("swirls", "solids"),
    "channels-as-differences": ("swirls", "solids", "signatures"),
    "curves-in-pieces": PAIRS,
    "equalized-through-a-curve": ("orders", "signatures"),
    "hard-gates": ("signatures", "talks"),
    "one-scale-read-for-all": ("swirls", "solids", "signatures", "talks"),
    **dict.fromkeys(("bias-added-twice", "biases-of-an-earlier-calibration"), OWN[:4]),
    "through-short-floats": ("solids", "orders", "talks"),
    "integer-operators": ("swirls", "solids", "orders", "talks"),
    **dict.fromkeys(("a-few-unlike-the-rest", "sorted-by-size"), OWN[:4]),
}
#: Put into every network whatever the seed: what is sound must look sound in each.
EVERYWHERE = ("as-it-should-be",)


def kinds() -> list[str]:
    return [kind for kind, fault in FAULTS.items() if fault.unseen == "e"]


def drawn_pairs(seed: int | None) -> list[tuple[str, str]]:
    """Networks and what is put into them, faults before controls."""
    return [(network, name) for name in (*kinds(), *UNSEEN_CONTROLS["e"]) for network in _drawn(name, seed)]


def _drawn(name: str, seed: int | None) -> list[str]:
    """The network that the seed draws, or all."""
    fits = [network for network in FRESH_NETWORKS["e"] if network in FITS.get(name, OWN)]
    if name in EVERYWHERE:
        return fits
    rng = np.random.default_rng([seed or 0, zlib.crc32(name.encode())])
    return [fits[int(rng.integers(len(fits)))]]

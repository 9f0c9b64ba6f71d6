"""The networks of set E, which no tuning uses."""

from pathlib import Path

from ..networks import FRESH_NETWORKS, Network
from ..pixels import SIGNED
from ..tasks import NO_ANSWER
from ..unseen_c.samples import pictures_of, signals_of
from .samples import last_words, orders, signatures, solids, swirls

FOLDER = Path(__file__).parent / "networks"

FRESH_NETWORKS["e"] = {
    network.name: network
    for network in (
        Network(
            "swirls",
            "field to field, skipping connections",
            FOLDER / "swirls.onnx",
            None,
            samples=signals_of(swirls),
            task=NO_ANSWER,
            unseen=True,
        ),
        Network(
            "solids",
            "cloud of points, largest of all",
            FOLDER / "solids.onnx",
            None,
            samples=signals_of(solids),
            unseen=True,
        ),
        Network(
            "orders", "table, gated experts", FOLDER / "orders.onnx", None, samples=signals_of(orders), unseen=True
        ),
        Network(
            "signatures",
            "pairs, weights used twice, Mish",
            FOLDER / "signatures.onnx",
            SIGNED,
            images=pictures_of(signatures),
            unseen=True,
        ),
        Network(
            "talks",
            "decoder with rotary places, root mean squares",
            FOLDER / "talks.onnx",
            None,
            samples=signals_of(last_words),
            unseen=True,
        ),
    )
}

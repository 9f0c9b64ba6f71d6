"""The networks of set F, which no tuning uses."""

from pathlib import Path

from ..networks import FRESH_NETWORKS, Network
from ..pixels import SIGNED, UNIT
from ..unseen_c.samples import pictures_of, signals_of
from .samples import dials, fabrics, groves, mazes, webs

FOLDER = Path(__file__).parent / "networks"

FRESH_NETWORKS["f"] = {
    network.name: network
    for network in (
        Network("webs", "graph, neighbours heard", FOLDER / "webs.onnx", None, samples=signals_of(webs), unseen=True),
        Network(
            "mazes",
            "one convolution, repeated",
            FOLDER / "mazes.onnx",
            UNIT,
            images=pictures_of(mazes),
            unseen=True,
        ),
        Network(
            "dials",
            "wave, gains set from beside",
            FOLDER / "dials.onnx",
            None,
            samples=signals_of(dials),
            unseen=True,
        ),
        Network(
            "groves",
            "table, soft trees",
            FOLDER / "groves.onnx",
            None,
            samples=signals_of(groves),
            unseen=True,
        ),
        Network(
            "fabrics",
            "colour, products of channels",
            FOLDER / "fabrics.onnx",
            SIGNED,
            images=pictures_of(fabrics),
            unseen=True,
        ),
    )
}

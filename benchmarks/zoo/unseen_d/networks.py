"""The networks of set D, which no tuning uses."""

from pathlib import Path

from ..networks import FRESH_NETWORKS, Network
from ..pixels import SIGNED, UNIT, Preprocessing
from ..tasks import NO_ANSWER
from ..unseen_c.samples import pictures_of, signals_of
from .samples import bags, beads, machines, prints, weaves

FOLDER = Path(__file__).parent / "networks"
#: What most published networks for colour pictures want.
PHOTOGRAPHS = Preprocessing(255.0, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))

FRESH_NETWORKS["d"] = {
    network.name: network
    for network in (
        Network(
            "beads",
            "depthwise with layer norms and GELU, colour",
            FOLDER / "beads.onnx",
            PHOTOGRAPHS,
            images=pictures_of(beads),
            unseen=True,
        ),
        Network(
            "weaves", "dense concatenations", FOLDER / "weaves.onnx", SIGNED, images=pictures_of(weaves), unseen=True
        ),
        Network(
            "machines",
            "sensors over time, dilated convolutions",
            FOLDER / "machines.onnx",
            None,
            samples=signals_of(machines),
            unseen=True,
        ),
        Network(
            "prints",
            "enlarges pictures, learned slopes, depth to space",
            FOLDER / "prints.onnx",
            UNIT,
            images=pictures_of(prints),
            task=NO_ANSWER,
            unseen=True,
        ),
        Network("bags", "pooling by attention", FOLDER / "bags.onnx", None, samples=signals_of(bags), unseen=True),
    )
}

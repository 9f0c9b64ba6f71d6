"""The networks of set C, which no tuning uses."""

from pathlib import Path

from ..networks import FRESH_NETWORKS, Network
from ..pixels import SIGNED, UNIT
from ..tasks import Task
from .metrics import all_joints, class_map, mapped_alike, peaks, well_mapped
from .samples import arms, pictures_of, plots, signals_of, tables, words

FOLDER = Path(__file__).parent / "networks"

JOINTS = Task(lambda outputs: peaks(outputs[0]), all_joints, all_joints, "zoo.unseen_c.metrics:joints_found")
MAPS = Task(lambda outputs: class_map(outputs[0]), well_mapped, mapped_alike, "zoo.unseen_c.metrics:pixels_mapped")

FRESH_NETWORKS["c"] = {
    network.name: network
    for network in (
        Network(
            "keypoints",
            "heatmaps, transposed convolutions",
            FOLDER / "keypoints.onnx",
            SIGNED,
            images=pictures_of(arms),
            task=JOINTS,
            unseen=True,
        ),
        Network(
            "segmenter",
            "classes of pixels, dilated branches",
            FOLDER / "segmenter.onnx",
            UNIT,
            images=pictures_of(plots),
            task=MAPS,
            unseen=True,
        ),
        Network(
            "keywords",
            "spectrogram, convolutions in time, LSTM",
            FOLDER / "keywords.onnx",
            None,
            samples=signals_of(words),
            unseen=True,
        ),
        Network(
            "mixer", "table, mixing of tokens", FOLDER / "mixer.onnx", None, samples=signals_of(tables), unseen=True
        ),
    )
}

"""Data as ``diagnose`` takes them, for the calibration of ONNX Runtime."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

from quantmedic.api.options import DataSource
from quantmedic.collectors.data.datasets import open_dataset
from quantmedic.collectors.data.preprocessing import ChannelOrder, Layout, Preprocessing
from quantmedic.collectors.data.readers import Feed
from quantmedic.collectors.from_onnx.onnx_file import load_model
from quantmedic.collectors.from_onnx.parse import parse
from quantmedic.collectors.pair.feed import feed_of, input_specs


class CalibrationReader:
    """Feeds of a data set one after the other, and from the first one again after ``rewind``."""

    def __init__(self, feeds: Callable[[], Iterator[Feed]]) -> None:
        """Read what ``feeds`` gives, in a new pass each time that it is called."""
        self._feeds = feeds
        self.rewind()

    def get_next(self) -> Feed | None:
        """Arrays by input name, one sample at a time where the model allows it; None at the end."""
        return next(self._left, None)

    def rewind(self) -> None:
        """Begin again with the first sample."""
        self._left = self._feeds()


def calibration_reader(
    float_model: str | Path,
    data: DataSource,
    *,
    mean: tuple[float, ...] | None = None,
    std: tuple[float, ...] | None = None,
    scale: float | None = None,
    layout: str | None = None,
    channel_order: str | None = None,
    resize: tuple[int, int] | None = None,
    samples: int | None = None,
) -> CalibrationReader:
    """A calibration data reader for ``quantize_static`` over the data that ``diagnose`` was given.

    Both get the same values: ``python run.py`` in the folder of a report reads its data so.

    Args:
        float_model: Path of the ONNX model that is quantized; its inputs say what they take.
        data: Representative data, whatever ``diagnose`` takes.
        mean: Subtracted after the division by ``scale``; one number in a tuple, or one per channel.
        std: Divided by after that; likewise.
        scale: Stored values are divided by it first.
        layout: ``NCHW`` or ``NHWC``: layout of the stored arrays.
        channel_order: ``RGB`` or ``BGR``: what the network takes of image files.
        resize: Height and width that image files are scaled to.
        samples: Samples to read at most; all by default.

    Raises:
        DataError: The data do not fit the model, or a number is out of range.
        ModelError: The model cannot be read.
    """
    path = Path(float_model)
    graph = parse(path, load_model(path))
    declared = Preprocessing(
        mean, std, scale, cast(Layout | None, layout), cast(ChannelOrder | None, channel_order), resize
    )
    dataset = open_dataset(data, input_specs(graph), preprocessing=declared, role="representative")
    return CalibrationReader(lambda: (feed_of(batch, graph) for batch in dataset.batches(dataset.unit, samples)))

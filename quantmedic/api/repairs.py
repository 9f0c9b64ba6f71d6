"""What scripts with a prescription call: data for calibration, and remedies that quantmedic carries out itself."""

import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import cast

from quantmedic.api.options import DataSource
from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.data.datasets import open_dataset
from quantmedic.collectors.data.model_inputs import InputSpec
from quantmedic.collectors.data.preprocessing import ChannelOrder, Layout, Preprocessing
from quantmedic.collectors.data.readers import Feed, RewindableReader, is_reader
from quantmedic.collectors.from_onnx.onnx_file import load_model
from quantmedic.collectors.from_onnx.parse import parse
from quantmedic.collectors.front_ends import front_end_of
from quantmedic.collectors.measure.host import threads_to_use
from quantmedic.collectors.pair.feed import feed_of, input_specs
from quantmedic.engine.errors import DataError, ModelError, OutputError
from quantmedic.engine.input_files import is_same_place
from quantmedic.engine.output_files import require_file
from quantmedic.trials.edit import Repairable, remedies_named
from quantmedic.trials.from_onnx.bias_correction import correct_model
from quantmedic.trials.from_onnx.draft import LearnedModel
from quantmedic.trials.from_onnx.rounding import round_model


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


#: Samples that are run at a time.
BATCH = 32


def correct_biases(
    float_model: str | Path,
    quantized_model: str | Path,
    data: DataSource,
    output: str | Path,
    *,
    samples: int | None = None,
    seconds: float | None = None,
    threads: int | None = None,
) -> LearnedModel:
    """Fold the mean error of every channel into the biases of a quantized model, and write it (Nagel et al. 2019).

    ONNX models keep their form, QDQ or operators; of a LiteRT file only the bytes of its biases change. The samples are
    read once for each layer on the longest way through the network; a few hundred of them are enough.

    Args:
        float_model: Path of the float model that was quantized.
        quantized_model: Path of the quantized model.
        data: Representative data: a calibration data reader, whatever ``diagnose`` takes, or what ai-edge-quantizer
            calibrates with.
        output: Where to write the corrected model; may be the quantized one.
        samples: Samples to read at most; all by default.
        seconds: Time after which no further layer is begun.
        threads: Processor threads; all cores by default.

    Returns:
        The corrected layers with the error before and after, those that were left, and the model.

    Raises:
        DataError: The data do not fit the models.
        ModelError: A model cannot be read or fails on the data, or no bias can be corrected.
        OutputError: The file cannot be written, or is the float model.
    """
    return _repair(correct_model, float_model, quantized_model, data, output, samples, seconds, threads)


def learn_rounding(
    float_model: str | Path,
    quantized_model: str | Path,
    data: DataSource,
    output: str | Path,
    *,
    samples: int | None = None,
    seconds: float | None = None,
    threads: int | None = None,
) -> LearnedModel:
    """Round the weights of a quantized model anew, for the least error on these data, and write it.

    Of a LiteRT file only the bytes of its weights change.

    Every code becomes one of the two beside its float weight (Nagel et al. 2020), found by coordinate descent on the
    second moments of what the layer reads; no layer's error on the data grows. Ranges stay as they are. Memory does
    not grow with the samples.

    Args:
        float_model: Path of the float model that was quantized.
        quantized_model: Path of the quantized model.
        data: Representative data: a calibration data reader, whatever ``diagnose`` takes, or what ai-edge-quantizer
            calibrates with.
        output: Where to write the model; may be the quantized one.
        samples: Samples to read at most; all by default.
        seconds: Time after which no further layer is begun.
        threads: Processor threads; all cores by default.

    Returns:
        The layers with the error before and after, those that were left, and the model.

    Raises:
        DataError: The data do not fit the models.
        ModelError: A model cannot be read or fails on the data, or no weights can be rounded anew.
        OutputError: The file cannot be written, or is the float model.
    """
    return _repair(round_model, float_model, quantized_model, data, output, samples, seconds, threads)


def _repair(
    repair: Callable[..., LearnedModel],
    float_model: str | Path,
    quantized_model: str | Path,
    data: DataSource,
    output: str | Path,
    samples: int | None,
    seconds: float | None,
    threads: int | None,
) -> LearnedModel:
    """Repair a quantized model on data, and write it."""
    deadline = None if seconds is None else time.monotonic() + seconds
    target = _target(output, float_model)
    repairable = _open_repairable(Path(float_model), Path(quantized_model), data, samples)
    repaired = repair(repairable.models, repairable.read, threads=threads_to_use(threads), deadline=deadline)
    repairable.save(repaired.model, target)
    return repaired


def _open_repairable(float_path: Path, quantized_path: Path, data: DataSource, samples: int | None) -> Repairable:
    front_end = front_end_of(str(quantized_path))
    open_files = remedies_named(front_end.name).open_repairable
    if open_files is None:
        raise ModelError(
            f"{front_end.title} models are not repaired by themselves",
            where=str(quantized_path),
            help="give ONNX or LiteRT files",
        )
    return open_files(float_path, quantized_path, data, partial(_samples_of, limit=samples))


def rewindable(reader: object) -> RewindableReader:
    """A calibration data reader whose feeds can be read again.

    One that has a method ``rewind()`` is rewound; the feeds of any other are kept in memory as they are read.

    Args:
        reader: An object whose ``get_next()`` returns feeds, and None at the end.

    Raises:
        DataError: It is no such reader.
    """
    if isinstance(reader, RewindableReader):
        return reader
    if not is_reader(reader):
        raise DataError(
            "not a calibration data reader",
            where=type(reader).__name__,
            help="give an object whose get_next() returns a dictionary of arrays by input name, and None at the end",
        )
    return RewindableReader(reader)


def _target(output: str | Path, float_model: str | Path) -> Path:
    target = Path(output)
    if is_same_place(target, float_model):
        raise OutputError(
            "the float model would be replaced by the repaired one", where=str(target), help="name another file"
        )
    require_file(target)
    return target


def _samples_of(data: DataSource, inputs: list[InputSpec], limit: int | None) -> Callable[[], Iterable[Batch]]:
    """The samples, as often as they are asked for."""
    source = rewindable(data) if is_reader(data) else data
    dataset = open_dataset(source, inputs, role="representative")
    return lambda: dataset.batches(max(BATCH, dataset.unit), limit)

"""ONNX Runtime's calibration methods from one pass over the data.

Every method reads the same tensors of the same samples, and ``quantize_static`` takes ranges from a cache. So the float
model runs once, each method of the toolchain computes its ranges from what that run gave, and all models are built
from these ranges: the same ones that a run by itself would give.
"""

import contextlib
import inspect
import io
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnxruntime.quantization as toolkit
from numpy.typing import NDArray
from onnxruntime.quantization import calibrate

from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.from_onnx.file import load_model
from quantmedic.collectors.from_onnx.models import OnnxModels
from quantmedic.collectors.measure.models import Models
from quantmedic.collectors.pair.feed import feed_of
from quantmedic.engine.errors import ModelError
from quantmedic.engine.rules.options import Options
from quantmedic.trials.from_onnx.made import FLOAT, MADE, Made, copy_model, require_outputs

#: The toolchain that is meant, as in the rules.
TOOLCHAIN = "onnxruntime"
Array = NDArray[np.generic]
Feed = Mapping[str, Array]
#: Options of ``quantize_static`` that decide ranges, and what its calibrators call them.
_OF_CALIBRATOR = {"CalibTensorRangeSymmetric": "symmetric"}
_PERCENTILE = "CalibPercentile"


class _Outputs(NamedTuple):
    """What a session gives of its tensors: their names, and the values of each batch."""

    session: object
    names: list[str]
    batches: list[list[Array]]


class _Replay:
    """A session that gives the values of another one again, so that a calibrator has nothing to run."""

    def __init__(self, recorded: _Outputs) -> None:
        self._recorded = recorded
        self._left = iter(recorded.batches)

    def get_inputs(self) -> object:
        return self._recorded.session.get_inputs()  # type: ignore[attr-defined]  # onnxruntime has no types

    def get_outputs(self) -> object:
        return self._recorded.session.get_outputs()  # type: ignore[attr-defined]

    def run(self, names: None, feed: Feed) -> list[Array]:
        return next(self._left)


class _Reader(toolkit.CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, feeds: Iterable[Feed]) -> None:
        self._feeds = iter(feeds)

    def get_next(self) -> Feed | None:
        return next(self._feeds, None)


@dataclass
class OnnxCalibrations:
    """Builds models of many settings; see ``trials.calibrations.Maker``.

    Attributes:
        models: The float model, as both of a pair.
        batches: The calibration samples, in batches of one size.
        folder: Empty, for files.
        passes: How often the calibration samples were run.
    """

    models: OnnxModels
    batches: Iterable[Batch]
    folder: Path
    passes: int = 0
    _ranges: dict[str, calibrate.TensorsData] = field(default_factory=dict)
    _calibrators: dict[str, calibrate.HistogramCalibrater] = field(default_factory=dict)
    _recorded: _Outputs | None = None

    def identities(self, rows: Sequence[Options]) -> list[object | None]:
        """Equal for options that make the same model, whose ranges are the same; None where that is not known."""
        if not self._shares:
            return [None] * len(rows)
        found = [self._identity(options) for options in rows]
        # All ranges are known, and the values that they were computed from take the memory of a whole data set.
        self._recorded = None
        self._calibrators.clear()
        return found

    def _identity(self, options: Options) -> object | None:
        try:
            with quiet():
                ranges = self._ranges_of(arguments(options))
        except Exception:  # The toolchain raises what it likes, and again where the model is made: there it is told.
            return None
        found = {name: tuple(np.float32(end).tobytes() for end in data.range_value) for name, data in ranges.items()}
        others = {key: value for key, value in options.items() if key not in ("calibrate_method", 2)}
        extra = {k: v for k, v in _extra(options).items() if k != _PERCENTILE and k not in _OF_CALIBRATOR}
        return str(sorted(found.items())), str({**others, "extra_options": extra})

    def make(self, options: Options) -> Made:
        """The model of these options.

        Raises:
            ModelError: The toolchain refuses them, in its own words.
        """
        try:
            with quiet():
                return self._make(arguments(options))
        except ModelError:
            raise
        except Exception as error:  # The toolchain raises what it likes.
            raise refusal(error) from error

    @property
    def _shares(self) -> bool:
        """The toolchain takes ranges from a cache, which older versions did not."""
        return "calibration_cache_path" in inspect.signature(toolkit.quantize_static).parameters

    @property
    def _float(self) -> Path:
        path = self.folder / FLOAT
        if not path.exists():
            copy_model(self.models.float_graph.path, path)
        return path

    def _make(self, given: dict[str, object]) -> Made:
        target = self.folder / MADE
        if self._shares:
            cache = self.folder / "ranges.json"
            calibrate.save_tensors_data(self._ranges_of(given), cache)
            toolkit.quantize_static(str(self._float), str(target), None, calibration_cache_path=cache, **given)
        else:
            self.passes += 1
            toolkit.quantize_static(str(self._float), str(target), _Reader(self._feeds()), **given)
        model = load_model(target)
        require_outputs(model, self.models)
        return Made(self.models, model)

    def _feeds(self) -> Iterator[Feed]:
        return (feed_of(batch, self.models.float_graph) for batch in self.batches)

    def _ranges_of(self, given: Mapping[str, object]) -> calibrate.TensorsData:
        method, extra = given["calibrate_method"], _extra(given)
        assert isinstance(method, toolkit.CalibrationMethod)
        known = {_OF_CALIBRATOR[key]: value for key, value in extra.items() if key in _OF_CALIBRATOR}
        percentile = extra.get(_PERCENTILE)
        key = f"{method} {known} {percentile}"
        if key not in self._ranges:
            if method is toolkit.CalibrationMethod.MinMax:
                self._ranges[key] = _extremes(self._recording())
            else:
                self._ranges[key] = self._histogram_ranges(method, known, percentile)
        return self._ranges[key]

    def _histogram_ranges(
        self, method: toolkit.CalibrationMethod, known: Mapping[str, object], percentile: object
    ) -> calibrate.TensorsData:
        """What the toolchain's own calibrator makes of the recorded values; percentiles share their histograms."""
        key = f"{method} {known}"
        if key not in self._calibrators:
            calibrator = self._calibrator(method, known)
            calibrator.infer_session = _Replay(self._recording())
            calibrator.collect_data(_Reader(self._feeds()))
            self._calibrators[key] = calibrator
        calibrator = self._calibrators[key]
        if percentile is not None:
            calibrator.collector.percentile = percentile
        return calibrator.compute_data()

    def _recording(self) -> _Outputs:
        """Every tensor that is calibrated, of all samples: the one run of the float model."""
        if self._recorded is None:
            session = self._calibrator(toolkit.CalibrationMethod.Percentile, {}).infer_session
            names = [output.name for output in session.get_outputs()]
            self._recorded = _Outputs(session, names, [session.run(None, feed) for feed in self._feeds()])
            self.passes += 1
        return self._recorded

    def _calibrator(
        self, method: toolkit.CalibrationMethod, known: Mapping[str, object]
    ) -> calibrate.HistogramCalibrater:
        augmented = self.folder / "augmented.onnx"
        return calibrate.create_calibrator(
            self._float, None, augmented_model_path=str(augmented), calibrate_method=method, extra_options=dict(known)
        )


def open_maker(models: Models, batches: Iterable[Batch], folder: Path) -> OnnxCalibrations:
    """Builds the models of settings of ONNX Runtime.

    Args:
        models: The float model, as both of a pair.
        batches: The calibration samples, in batches of one size.
        folder: Empty, for files.
    """
    assert isinstance(models, OnnxModels)
    return OnnxCalibrations(models, batches, folder)


def arguments(options: Options) -> dict[str, object]:
    """Keyword arguments of ``quantize_static``: names of the toolchain become what they stand for.

    Places in the call are left out: they hold the files and the reader.
    """
    return {str(key): _value(value) for key, value in options.items() if not isinstance(key, int)}


def _value(value: object) -> object:
    if isinstance(value, Mapping):
        return {key: _value(inner) for key, inner in value.items()}
    if not (isinstance(value, str) and value.startswith("=")):
        return value
    kind, _, name = value[1:].partition(".")
    return getattr(getattr(toolkit, kind), name)


def _extra(given: Mapping[str, object] | Options) -> Mapping[str, object]:
    extra = {str(key): value for key, value in given.items()}.get("extra_options", {})
    assert isinstance(extra, Mapping)
    return extra


def _extremes(recorded: _Outputs) -> calibrate.TensorsData:
    """The least and the largest value of each tensor, as the toolchain's min-max calibrator gives them."""
    ranges = {}
    for place, name in enumerate(recorded.names):
        values = [batch[place] for batch in recorded.batches if batch[place].dtype.kind == "f" and batch[place].size]
        if values:
            low, high = min(float(np.nanmin(x)) for x in values), max(float(np.nanmax(x)) for x in values)
            ranges[name] = (np.array([low], values[0].dtype), np.array([high], values[0].dtype))
    return calibrate.TensorsData(toolkit.CalibrationMethod.MinMax, ranges)


def refusal(error: Exception) -> ModelError:
    """The toolchain's own words, the first line of them."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()][:1]
    return ModelError(f"ONNX Runtime refuses it: {type(error).__name__}: {' '.join(lines)}".removesuffix(": "))


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Context in which the toolchain prints nothing, and warns of nothing."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        logging.disable(before)

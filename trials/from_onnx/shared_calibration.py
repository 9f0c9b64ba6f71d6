"""ONNX Runtime's calibration methods from two passes over the data.

Every method reads the same tensors of the same samples, and ``quantize_static`` takes ranges from a cache. So all
models are built from shared runs of the float model, with the very ranges that a run by itself would give. The
toolchain's histograms want the values of all samples at once, only to place their bins. The first pass therefore finds
the ends of every tensor, and the second fills the toolchain's own histograms batch by batch: no batch is kept.
"""

import contextlib
import inspect
import io
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnxruntime.quantization as toolkit
from numpy.typing import NDArray
from onnxruntime import set_default_logger_severity
from onnxruntime.quantization import calibrate

from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.from_onnx.onnx_file import load_model
from quantmedic.collectors.from_onnx.onnx_models import OnnxModels
from quantmedic.collectors.from_onnx.onnx_session import run_session
from quantmedic.collectors.measure.models import Models
from quantmedic.collectors.pair.feed import feed_of
from quantmedic.engine.errors import ModelError
from quantmedic.engine.rules.toolchain_options import Options
from quantmedic.trials.from_onnx.onnx_remedies import FLOAT, MADE, OnnxMade, copy_model, require_outputs

#: Severities of ONNX Runtime's log, of which it tells no current one: ``_WARNING`` is where it starts.
_WARNING, _FATAL = 2, 4
Array = NDArray[np.generic]
Feed = Mapping[str, Array]
#: Options of ``quantize_static`` that decide ranges, and what its calibrators call them.
_OF_CALIBRATOR = {"CalibTensorRangeSymmetric": "symmetric"}
_PERCENTILE = "CalibPercentile"


@dataclass
class _Ends:
    """The ends of one tensor over all batches, and the value nearest to 0; ``shapes`` are those of its batches."""

    low: np.floating
    high: np.floating
    nearest: np.floating
    shapes: set[tuple[int, ...]]

    @classmethod
    def of(cls, values: Array) -> "_Ends":
        """Those of one batch, which has at least one value."""
        nearest = values.ravel()[np.abs(values).argmin()]
        return cls(np.nanmin(values), np.nanmax(values), nearest, {values.shape})

    def join(self, other: "_Ends") -> "_Ends":
        """Those of the batches of both."""
        nearest = min(self.nearest, other.nearest, key=abs)
        return _Ends(min(self.low, other.low), max(self.high, other.high), nearest, self.shapes | other.shapes)

    @property
    def values(self) -> Array:
        """Few values with the same ends."""
        return np.array([self.low, self.high, self.nearest])


class _Replay:
    """A session that has run already and gives the values of one batch, so that a calibrator has nothing to run."""

    def __init__(self, session: object, values: list[Array]) -> None:
        self._session, self._values = session, values

    def get_inputs(self) -> object:
        return self._session.get_inputs()  # type: ignore[attr-defined]  # onnxruntime has no types

    def get_outputs(self) -> object:
        return self._session.get_outputs()  # type: ignore[attr-defined]

    def run(self, names: None, feed: Feed) -> list[Array]:
        return self._values


class _Reader(toolkit.CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, feeds: Iterable[Feed]) -> None:
        self._feeds = iter(feeds)

    def get_next(self) -> Feed | None:
        return next(self._feeds, None)


@dataclass
class OnnxCalibrations:
    """Builds models of many settings; see ``trials.calibration_search.Maker``.

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
    _ends: dict[str, _Ends] = field(default_factory=dict)

    def identities(self, rows: Sequence[Options]) -> list[object | None]:
        """Equal for options that make the same model, whose ranges are the same; None where that is not known."""
        if not self._shares:
            return [None] * len(rows)
        with contextlib.suppress(Exception), quiet():  # What the toolchain refuses is told where the model is made.
            self._fill_histograms([arguments(options) for options in rows])
        return [self._identity(options) for options in rows]

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

    def make(self, options: Options) -> OnnxMade:
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

    def _make(self, given: dict[str, object]) -> OnnxMade:
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
        return OnnxMade(self.models, model)

    def _feeds(self) -> Iterator[Feed]:
        return (feed_of(batch, self.models.float_graph) for batch in self.batches)

    def _ranges_of(self, given: Mapping[str, object]) -> calibrate.TensorsData:
        method, known = _method_of(given)
        percentile = _extra(given).get(_PERCENTILE)
        key = f"{method} {known} {percentile}"
        if key not in self._ranges:
            if method is toolkit.CalibrationMethod.MinMax:
                ends = {name: (each.low.reshape(1), each.high.reshape(1)) for name, each in self._find_ends().items()}
                self._ranges[key] = calibrate.TensorsData(method, ends)
            else:
                self._ranges[key] = self._histogram_ranges(given, percentile)
        return self._ranges[key]

    def _histogram_ranges(self, given: Mapping[str, object], percentile: object) -> calibrate.TensorsData:
        """What the toolchain's own calibrator makes of its histograms; percentiles share them."""
        self._fill_histograms([given])
        calibrator = self._calibrators[str(_method_of(given))]
        if percentile is not None:
            calibrator.collector.percentile = percentile
        return calibrator.compute_data()

    def _fill_histograms(self, rows: Sequence[Mapping[str, object]]) -> None:
        """The second pass: the histograms of all these options that are not filled yet."""
        wanted = {str(method): method for method in map(_method_of, rows)}
        missing = {
            key: self._calibrator(*method)
            for key, method in wanted.items()
            if key not in self._calibrators and method[0] is not toolkit.CalibrationMethod.MinMax
        }
        if not missing:
            return
        session = next(iter(missing.values())).infer_session
        for calibrator in missing.values():
            self._place_bins(calibrator)
        for feed in self._feeds():
            values = run_session(session, None, feed, self.models.float_graph.path)
            for calibrator in missing.values():
                _show(calibrator, session, values)
        self.passes += 1
        self._calibrators |= missing

    def _place_bins(self, calibrator: calibrate.HistogramCalibrater) -> None:
        """Bins as the values of all batches at once would place them: from few values with their ends, not counted."""
        ends, names = self._find_ends(), [output.name for output in calibrator.infer_session.get_outputs()]
        uneven = [name for name in calibrator.tensors_to_calibrate if name in ends and len(ends[name].shapes) > 1]
        if uneven:
            raise ModelError("tensors have another shape in every batch, which its histograms refuse", where=uneven[:3])
        values = [ends[name].values if name in ends else np.zeros(0, np.float32) for name in names]
        _show(calibrator, calibrator.infer_session, values)
        for counts, *_ in calibrator.collector.get_histogram_dict().values():
            counts[:] = 0

    def _find_ends(self) -> dict[str, _Ends]:
        """The first pass: the ends of every float tensor that has values."""
        if not self._ends:
            session = self._calibrator(toolkit.CalibrationMethod.Percentile, {}).infer_session
            names = [output.name for output in session.get_outputs()]
            for feed in self._feeds():
                for name, values in zip(
                    names, run_session(session, None, feed, self.models.float_graph.path), strict=True
                ):
                    if values.dtype.kind == "f" and values.size:
                        found = _Ends.of(values)
                        self._ends[name] = self._ends[name].join(found) if name in self._ends else found
            self.passes += 1
        return self._ends

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


def _method_of(given: Mapping[str, object]) -> tuple[toolkit.CalibrationMethod, dict[str, object]]:
    """The calibration method, and what decides its histograms."""
    method = given["calibrate_method"]
    assert isinstance(method, toolkit.CalibrationMethod)
    return method, {_OF_CALIBRATOR[key]: value for key, value in _extra(given).items() if key in _OF_CALIBRATOR}


def _show(calibrator: calibrate.HistogramCalibrater, session: object, values: list[Array]) -> None:
    """Let a calibrator count the values of one batch."""
    calibrator.infer_session = _Replay(session, values)
    calibrator.collect_data(_Reader([{"batch": np.zeros(1)}]))


def refusal(error: Exception) -> ModelError:
    """The toolchain's own words, the first line of them."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()][:1]
    return ModelError(f"ONNX Runtime refuses it: {type(error).__name__}: {' '.join(lines)}".removesuffix(": "))


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Context in which the toolchain prints nothing, and warns of nothing; nor do the sessions that it opens."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    set_default_logger_severity(_FATAL)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        set_default_logger_severity(_WARNING)
        logging.disable(before)

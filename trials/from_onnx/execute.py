"""Prescriptions for ONNX models, run in a process of their own: those of ONNX Runtime, and of other toolchains."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx.external_data_helper import ExternalDataInfo, uses_external_data

from quantmedic.collectors.data.arrays import save_arrays
from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.from_onnx.file import load_model, save_model
from quantmedic.collectors.from_onnx.models import OnnxModels
from quantmedic.collectors.from_onnx.session import make_session, run
from quantmedic.collectors.measure.models import Models, Runner
from quantmedic.collectors.pair.feed import feed_of
from quantmedic.collectors.pair.graph import Graph
from quantmedic.engine.errors import ModelError
from quantmedic.engine.output_files import copy_file, make_folder
from quantmedic.trials.execute import Made, ScriptExecutor

#: Names of the files that a prescription for ONNX models reads and writes, and the folder of the stored batches.
FLOAT, MADE, STORED = "float.onnx", "int8.onnx", "calibration"
#: The user's calibration data reader: the stored batches, one after the other.
READER = """
import pathlib as _pathlib
import numpy as _numpy
from onnxruntime.quantization import CalibrationDataReader as _CalibrationDataReader

class _StoredBatches(_CalibrationDataReader):
    def __init__(self):
        self.rewind()

    def rewind(self):
        self.paths = iter(sorted(_pathlib.Path("calibration").glob("*.npz")))

    def get_next(self):
        path = next(self.paths, None)
        if path is None:
            return None
        with _numpy.load(path) as stored:
            return {name.removeprefix("input "): stored[name] for name in stored.files}

reader = _StoredBatches()
"""
#: The stored batches, read anew in each pass.
_BATCHES = """
import pathlib as _pathlib
import numpy as _numpy

class _StoredBatches:
    batch_size = 1

    def __init__(self):
        self.paths = sorted(_pathlib.Path("calibration").glob("*.npz"))

    def __len__(self):
        return len(self.paths)

    def feeds(self):
        for path in self.paths:
            with _numpy.load(path) as stored:
                yield {name.removeprefix("input "): stored[name] for name in stored.files}
"""
_DATASET = f"""{_BATCHES}
import nncf as _nncf

class _Feeds(_StoredBatches):
    def __iter__(self):
        return self.feeds()

dataset = _nncf.Dataset(_Feeds())
"""
#: A loader yields the inputs of a batch, one array or one per input, and labels, which nothing reads.
_LOADER = f"""{_BATCHES}
class _Loader(_StoredBatches):
    def __iter__(self):
        for feed in self.feeds():
            yield (next(iter(feed.values())) if len(feed) == 1 else tuple(feed.values())), 0

dataloader = _Loader()
"""


@dataclass(frozen=True)
class OnnxMade(Made):
    """An ONNX model that a toolchain made anew from the float one."""

    models: OnnxModels
    model: onnx.ModelProto

    def runner(self, threads: int) -> Runner:
        """Runs the model on the inputs of the float one; its outputs have the float model's names."""
        graph = self.models.float_graph
        names = [graph.outputs[i] for i, _ in self.models.match.outputs]
        session = make_session(self.model, Path(MADE), threads)

        def run_batch(batch: Batch) -> list[NDArray[np.float32]]:
            found = run(session, names, feed_of(batch, graph), Path(MADE))
            return [np.asarray(array, np.float32) for array in found]

        return run_batch

    @property
    def content(self) -> bytes:
        """The model, to compare it with another to the bit."""
        return self.model.SerializeToString(deterministic=True)

    @property
    def save(self) -> Callable[[Path], None] | None:
        """Writes the model to a file."""
        return lambda path: save_model(self.model, path)


@dataclass(frozen=True)
class OnnxExecutor(ScriptExecutor):
    """Runs prescriptions of a toolchain that reads ``float.onnx`` and writes ``int8.onnx``."""

    made: ClassVar[str] = MADE
    before: int | None = None
    """First major version whose calls are others."""

    def missing(self) -> str | None:
        """Its package is not installed, or of another version."""
        found = self.version()
        if found is not None and self.before is not None and int(found.partition(".")[0]) >= self.before:
            return f"{self.package} {found} has other calls; version {self.before - 1} quantizes ONNX models"
        return super().missing()

    def lay_out(self, models: Models, calibration: Iterable[Batch], folder: Path) -> None:
        """Write the float model with its external data, and the batches."""
        copy_model(_onnx_models(models).float_graph.path, folder / FLOAT)
        store_batches(calibration, _onnx_models(models).float_graph, folder / STORED)

    def open_made(self, models: Models, path: Path) -> OnnxMade:
        """Read the model that the script wrote."""
        made = load_model(path)
        require_outputs(made, _onnx_models(models))
        return OnnxMade(_onnx_models(models), made)


class _OnnxRuntime(OnnxExecutor):
    """``onnxruntime.quantization``, which quantmedic itself needs; a build such as onnxruntime-gpu has no version."""

    def missing(self) -> str | None:
        """Nothing."""
        return None


def _onnx_models(models: Models) -> OnnxModels:
    """The models, which the front end leads here."""
    assert isinstance(models, OnnxModels)
    return models


def copy_model(source: Path, target: Path) -> None:
    """A copy of a model with its external data, which lies beside it under the same names."""
    copy_file(source, target)
    stored = onnx.load(str(source), load_external_data=False).graph.initializer
    places = {ExternalDataInfo(tensor).location for tensor in stored if uses_external_data(tensor)}
    for place in places:
        inside = (target.parent / place).resolve()
        if not inside.is_relative_to(target.parent.resolve()):
            raise ModelError("external data lie outside the model's folder", where=f"{source}: {place}")
        copy_file(source.parent / place, inside)


def store_batches(batches: Iterable[Batch], graph: Graph, folder: Path) -> None:
    """The inputs of each batch as a file, under the names of the float model."""
    make_folder(folder)
    for number, batch in enumerate(batches):
        # A name such as "file" would be an argument of savez.
        feed = {f"input {name}": array for name, array in feed_of(batch, graph).items()}
        save_arrays(folder / f"{number:06d}.npz", feed)


def require_outputs(made: onnx.ModelProto, models: OnnxModels) -> None:
    """Refuse a model that lacks outputs of the float model.

    Raises:
        ModelError: It does.
    """
    names = {output.name for output in made.graph.output}
    lost = [name for name in models.float_graph.outputs if name not in names]
    if lost:
        raise ModelError("the model that came out lacks outputs of the float model", where=lost[:5])


ONNX_RUNTIME = _OnnxRuntime("onnxruntime", "onnxruntime", frozenset({"reader"}), READER)
NNCF = OnnxExecutor("NNCF", "nncf", frozenset({"dataset"}), _DATASET)
NEURAL_COMPRESSOR = OnnxExecutor(
    "Intel Neural Compressor", "neural-compressor", frozenset({"dataloader"}), _LOADER, before=3
)
EXECUTORS = (ONNX_RUNTIME, NNCF, NEURAL_COMPRESSOR)

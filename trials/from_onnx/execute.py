"""Prescriptions of ONNX Runtime, run in a process of their own: ``quantize_static`` and ``quantize_dynamic``."""

import shutil
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx.external_data_helper import ExternalDataInfo, uses_external_data

from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.from_onnx.file import load_model, save_model
from quantmedic.collectors.from_onnx.models import OnnxModels
from quantmedic.collectors.from_onnx.session import make_session, run
from quantmedic.collectors.measure.models import Models, Runner
from quantmedic.collectors.pair.feed import feed_of
from quantmedic.collectors.pair.graph import Graph
from quantmedic.engine.case.records import Case
from quantmedic.engine.errors import ModelError
from quantmedic.engine.formulas.change import Change
from quantmedic.trials.child import run_script

#: Names of the files that a prescription for ONNX models reads and writes.
FLOAT, MADE = "float.onnx", "int8.onnx"
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


@dataclass(frozen=True)
class Made:
    """A model that a toolchain made anew from the float one; see ``measure.models.Edited``."""

    models: OnnxModels
    model: onnx.ModelProto
    unedited: tuple[str, ...] = ()

    def runner(self, threads: int) -> Runner:
        """Runs the model on the inputs of the float one; its outputs have the float model's names."""
        graph = self.models.float_graph
        names = [graph.outputs[i] for i, _ in self.models.match.outputs]
        session = make_session(self.model, Path(MADE), threads)

        def run_batch(batch: Batch) -> list[NDArray[np.float32]]:
            found = run(session, names, feed_of(batch, graph), Path(MADE))
            return [np.asarray(array, np.float32) for array in found]

        return run_batch

    def left_integer(self, case: Case, change: Change) -> tuple[str, ...]:
        """Not known: the toolchain decides which layers it quantizes."""
        return ()

    @property
    def save(self) -> Callable[[Path], None] | None:
        """Writes the model to a file."""
        return lambda path: save_model(self.model, path)


@dataclass(frozen=True)
class OnnxRuntime:
    """``onnxruntime.quantization``; see ``trials.execute.Executor``."""

    toolchain: str = "onnxruntime"
    supplies: frozenset[str] = frozenset({"reader"})

    def version(self) -> str | None:
        """Version of onnxruntime."""
        try:
            return version("onnxruntime")
        except PackageNotFoundError:
            return None  # A build under another name, such as onnxruntime-gpu.

    def missing(self) -> str | None:
        """Nothing: quantmedic itself needs it."""
        return None

    def execute(self, models: Models, code: str, calibration: Iterable[Batch], deadline: float | None) -> Made:
        """Run the text in an empty folder, beside the float model and the reader's batches."""
        assert isinstance(models, OnnxModels)
        with tempfile.TemporaryDirectory(prefix="quantmedic-") as name:
            folder = Path(name)
            copy_model(models.float_graph.path, folder / FLOAT)
            store_batches(calibration, models.float_graph, folder / "calibration")
            run_script(folder, code, READER, deadline)
            if not (folder / MADE).is_file():
                raise ModelError(f"the script ended without writing {MADE}", where="prescription.py")
            made = load_model(folder / MADE)
        _require_outputs(made, models)
        return Made(models, made)


def copy_model(source: Path, target: Path) -> None:
    """A copy of a model with its external data, which lies beside it under the same names."""
    shutil.copyfile(source, target)
    stored = onnx.load(str(source), load_external_data=False).graph.initializer
    places = {ExternalDataInfo(tensor).location for tensor in stored if uses_external_data(tensor)}
    for place in places:
        inside = (target.parent / place).resolve()
        if not inside.is_relative_to(target.parent.resolve()):
            raise ModelError("external data lie outside the model's folder", where=f"{source}: {place}")
        inside.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source.parent / place, inside)


def store_batches(batches: Iterable[Batch], graph: Graph, folder: Path) -> None:
    """The inputs of each batch as a file, under the names of the float model."""
    folder.mkdir()
    for number, batch in enumerate(batches):
        # A name such as "file" would be an argument of savez.
        np.savez(folder / f"{number:06d}.npz", **{f"input {k}": v for k, v in feed_of(batch, graph).items()})


def _require_outputs(made: onnx.ModelProto, models: OnnxModels) -> None:
    names = {output.name for output in made.graph.output}
    lost = [name for name in models.float_graph.outputs if name not in names]
    if lost:
        raise ModelError("the model that came out lacks outputs of the float model", where=lost[:5])


EXECUTORS = (OnnxRuntime(),)

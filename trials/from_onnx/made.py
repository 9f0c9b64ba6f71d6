"""Files that a prescription for ONNX models reads and writes, and the model that comes out."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

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
from quantmedic.engine.case.records import Case
from quantmedic.engine.errors import ModelError
from quantmedic.engine.formulas.change import Change
from quantmedic.engine.output_files import copy_file, make_folder, scratch_folder
from quantmedic.trials.child import run_script

#: Names of the files that a prescription for ONNX models reads and writes, and the folder of the stored batches.
FLOAT, MADE, STORED = "float.onnx", "int8.onnx", "calibration"


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
    def content(self) -> bytes:
        """The model, to compare it with another to the bit."""
        return self.model.SerializeToString(deterministic=True)

    @property
    def save(self) -> Callable[[Path], None] | None:
        """Writes the model to a file."""
        return lambda path: save_model(self.model, path)


def make(models: Models, code: str, prelude: str, calibration: Iterable[Batch], deadline: float | None) -> Made:
    """Run a script in an empty folder, beside the float model and the batches; see ``trials.execute.Executor``.

    Args:
        models: The pair that the script is for.
        code: Its text.
        prelude: What defines the names that it leaves open.
        calibration: The batches, which the prelude finds as files under ``calibration``.
        deadline: ``time.monotonic()`` at which to give up; None: never.

    Raises:
        ModelError: It fails, or the model that it makes cannot be taken.
        OutOfTimeError: The deadline has passed.
    """
    assert isinstance(models, OnnxModels)
    with scratch_folder() as folder:
        copy_model(models.float_graph.path, folder / FLOAT)
        store_batches(calibration, models.float_graph, folder / STORED)
        run_script(folder, code, prelude, deadline)
        if not (folder / MADE).is_file():
            raise ModelError(f"the script ended without writing {MADE}", where="prescription.py")
        made = load_model(folder / MADE)
    require_outputs(made, models)
    return Made(models, made)


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

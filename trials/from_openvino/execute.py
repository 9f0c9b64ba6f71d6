"""Prescriptions of NNCF for OpenVINO models, run in a process of their own."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.data.arrays import save_arrays
from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.from_onnx.file import save_content
from quantmedic.collectors.from_openvino.feed import arrays_of
from quantmedic.collectors.from_openvino.file import read_ir
from quantmedic.collectors.from_openvino.graph import OpenVINOGraph, graph_of
from quantmedic.collectors.from_openvino.models import OpenVINOModels
from quantmedic.collectors.from_openvino.session import Session, may_saturate
from quantmedic.collectors.measure.models import Models, Runner
from quantmedic.engine.case.records import Case
from quantmedic.engine.errors import ModelError, OutputError
from quantmedic.engine.formulas.change import Change
from quantmedic.engine.output_files import make_folder, scratch_folder, write_file
from quantmedic.trials.child import run_script

#: Names of the files that a prescription reads and writes, and the folder of the stored batches.
FLOAT, MADE, STORED = "float.xml", "int8.xml", "calibration"
#: The user's calibration data: the stored batches, each a dictionary by input name as prescriptions read them, or a
#: list in the order of the float model where an input has no name.
DATASET = f"""
import pathlib as _pathlib
import numpy as _numpy
import nncf as _nncf
import openvino as _openvino

class _StoredBatches:
    def __init__(self):
        self.paths = sorted(_pathlib.Path({STORED!r}).glob("*.npz"))
        inputs = _openvino.Core().read_model({FLOAT!r}).inputs
        self.names = [port.any_name for port in inputs] if all(port.names for port in inputs) else None

    def __len__(self):
        return len(self.paths)

    def __iter__(self):
        for path in self.paths:
            with _numpy.load(path) as stored:
                arrays = [stored[str(number)] for number in range(len(stored.files))]
            yield arrays if self.names is None else dict(zip(self.names, arrays))

dataset = _nncf.Dataset(_StoredBatches())
"""


@dataclass(frozen=True)
class Made:
    """A model that NNCF made anew of the float one; see ``measure.models.Edited``."""

    models: OpenVINOModels
    graph: OpenVINOGraph
    unedited: tuple[str, ...] = ()

    def runner(self, threads: int) -> Runner:
        """Runs the model as deployed; its outputs stand in the order of the float model's."""
        places = [i for i, _ in self.models.match.outputs]
        session = Session(self.graph, [], threads, exact=may_saturate())

        def call(batch: Batch) -> list[NDArray[np.float32]]:
            found = session.run(arrays_of(batch, self.graph))[0]
            return [np.asarray(found[i], np.float32) for i in places]

        return call

    def left_integer(self, case: Case, change: Change) -> tuple[str, ...]:
        """Not known: the toolchain decides which layers it quantizes."""
        return ()

    @property
    def content(self) -> bytes:
        """Both files, to compare the model with another to the bit."""
        return self.graph.file.xml + self.graph.file.content

    @property
    def save(self) -> Callable[[Path], None] | None:
        """Writes both files."""
        return self._save

    def _save(self, path: Path) -> None:
        if path.suffix.lower() != ".xml":
            raise OutputError("an OpenVINO model is two files, .xml and .bin", where=str(path), help="name the .xml")
        save_content(self.graph.file.content, path.with_suffix(".bin"))
        save_content(self.graph.file.xml, path)


@dataclass(frozen=True)
class Nncf:
    """``nncf.quantize``; see ``trials.execute.Executor``."""

    toolchain: str = "NNCF"
    supplies: frozenset[str] = frozenset({"dataset"})

    def version(self) -> str | None:
        """Version of NNCF."""
        try:
            return version("nncf")
        except PackageNotFoundError:
            return None

    def missing(self) -> str | None:
        """Its package is not installed."""
        return None if self.version() is not None else "the package nncf is not installed"

    def execute(self, models: Models, code: str, calibration: Iterable[Batch], deadline: float | None) -> Made:
        """Run the text in an empty folder, beside the float model and the batches."""
        assert isinstance(models, OpenVINOModels)
        with scratch_folder() as folder:
            write_file(folder / FLOAT, models.float_graph.file.xml)
            write_file((folder / FLOAT).with_suffix(".bin"), models.float_graph.file.content)
            _store_batches(calibration, models.float_graph, folder / STORED)
            run_script(folder, code, DATASET, deadline)
            if not (folder / MADE).is_file():
                raise ModelError(f"the script ended without writing {MADE}", where="prescription.py")
            made = graph_of(read_ir(folder / MADE))
        if len(made.outputs) != len(models.float_graph.outputs):
            raise ModelError(
                f"the model that came out has {len(made.outputs)} outputs, the float model "
                f"{len(models.float_graph.outputs)}"
            )
        return Made(models, made)


def _store_batches(batches: Iterable[Batch], graph: OpenVINOGraph, folder: Path) -> None:
    """The inputs of each batch as a file, by their number."""
    make_folder(folder)
    for number, batch in enumerate(batches):
        arrays = {str(k): array for k, array in enumerate(arrays_of(batch, graph))}
        save_arrays(folder / f"{number:06d}.npz", arrays)


EXECUTORS = (Nncf(),)

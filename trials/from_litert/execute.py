"""Prescriptions of ai-edge-quantizer, run in a process of their own."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from quantmedic.collectors.data.arrays import save_arrays
from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.from_litert.feed import feed_of
from quantmedic.collectors.from_litert.file import read_litert
from quantmedic.collectors.from_litert.first_run import require_survival
from quantmedic.collectors.from_litert.graph import LiteRTGraph, graph_of
from quantmedic.collectors.from_litert.interpreters import Interpreters
from quantmedic.collectors.from_litert.models import LiteRTModels
from quantmedic.collectors.from_onnx.file import save_content
from quantmedic.collectors.measure.models import Models, Runner
from quantmedic.engine.case.records import Case
from quantmedic.engine.errors import ModelError
from quantmedic.engine.formulas.change import Change
from quantmedic.engine.output_files import make_folder, scratch_folder, write_file
from quantmedic.trials.child import run_script

#: Names of the files that a prescription reads and writes, and the folder of the stored samples.
FLOAT, MADE, STORED = "float.tflite", "int8.tflite", "calibration"
#: The user's calibration data: the stored samples, by the names that the signature of the float model gives its inputs.
DATA = f"""
import pathlib as _pathlib
import numpy as _numpy
from ai_edge_litert.interpreter import Interpreter as _Interpreter

_model = _Interpreter({FLOAT!r})
if not _model.get_signature_list():
    raise ValueError("the float model has no signature, by which ai-edge-quantizer calibrates")
_key = next(iter(_model.get_signature_list()))
_names = {{
    str(details["index"]): name for name, details in _model.get_signature_runner(_key).get_input_details().items()
}}

class _StoredSamples:
    def __init__(self):
        self.paths = sorted(_pathlib.Path({STORED!r}).glob("*.npz"))

    def __len__(self):
        return len(self.paths)

    def __iter__(self):
        for path in self.paths:
            with _numpy.load(path) as stored:
                yield {{_names[place]: stored[place] for place in stored.files}}

data = {{_key: _StoredSamples()}}
"""


@dataclass(frozen=True)
class Made:
    """A file that ai-edge-quantizer made anew of the float one; see ``measure.models.Edited``."""

    models: LiteRTModels
    graph: LiteRTGraph
    unedited: tuple[str, ...] = ()

    def runner(self, threads: int) -> Runner:
        """Runs the file with interpreters; its outputs stand in the order of the float file's."""
        places = [i for i, _ in self.models.match.outputs]
        files = Interpreters(self.models.float_graph, self.graph, self.models.match)
        return files.runner(self.graph, places, threads)

    def left_integer(self, case: Case, change: Change) -> tuple[str, ...]:
        """Not known: the toolchain decides which layers it quantizes."""
        return ()

    @property
    def content(self) -> bytes:
        """The file, to compare it with another to the bit."""
        return bytes(self.graph.file.content)

    @property
    def save(self) -> Callable[[Path], None] | None:
        """Writes the file."""
        return lambda path: save_content(self.graph.file.content, path)


@dataclass(frozen=True)
class AiEdgeQuantizer:
    """``ai_edge_quantizer``; see ``trials.execute.Executor``."""

    toolchain: str = "ai-edge-quantizer"
    supplies: frozenset[str] = frozenset({"data"})

    def version(self) -> str | None:
        """Version of ai-edge-quantizer."""
        try:
            return version("ai-edge-quantizer")
        except PackageNotFoundError:
            return None  # The nightly build has another name.

    def missing(self) -> str | None:
        """Its package is not installed."""
        return None if find_spec("ai_edge_quantizer") is not None else "the package ai-edge-quantizer is not installed"

    def execute(self, models: Models, code: str, calibration: Iterable[Batch], deadline: float | None) -> Made:
        """Run the text in an empty folder, beside the float file and the samples."""
        assert isinstance(models, LiteRTModels)
        with scratch_folder() as folder:
            write_file(folder / FLOAT, models.float_graph.file.content)
            _store_samples(calibration, models, folder / STORED)
            run_script(folder, code, DATA, deadline)
            if not (folder / MADE).is_file():
                raise ModelError(f"the script ended without writing {MADE}", where="prescription.py")
            made = graph_of(read_litert(folder / MADE))
            require_survival([folder / MADE])
        if len(made.outputs) != len(models.float_graph.outputs):
            raise ModelError(
                f"the model that came out has {len(made.outputs)} outputs, the float model "
                f"{len(models.float_graph.outputs)}"
            )
        return Made(models, made)


def _store_samples(batches: Iterable[Batch], models: LiteRTModels, folder: Path) -> None:
    """Each sample as a file, under the places of the float file's inputs; as many at once as the file asks for."""
    make_folder(folder)
    side = models.input_specs[0].shape[0] or 1
    number = 0
    for batch in batches:
        for start in range(0, batch.samples - side + 1, side):
            arrays = feed_of(batch.take(slice(start, start + side)), models.float_graph)
            save_arrays(folder / f"{number:06d}.npz", {f"{k}": array for k, array in arrays.items()})
            number += 1


EXECUTORS = (AiEdgeQuantizer(),)

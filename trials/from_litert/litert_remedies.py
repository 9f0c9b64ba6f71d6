"""Remedies carried out on LiteRT models: changes of the ONNX translation or of the file, and prescriptions.

Prescriptions of ai-edge-quantizer run on the float file in a process of their own.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

from quantmedic.collectors.data.arrays import Array
from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.from_litert.first_run import require_survival
from quantmedic.collectors.from_litert.litert_file import read_litert
from quantmedic.collectors.from_litert.litert_graph import LiteRTGraph, graph_of, parse_translation
from quantmedic.collectors.from_litert.litert_models import LiteRTModels, open_models
from quantmedic.collectors.from_litert.litert_session import Sessions
from quantmedic.collectors.from_litert.signatures import feeds_by_tensor
from quantmedic.collectors.from_onnx.onnx_file import save_content
from quantmedic.collectors.from_translation.translated_models import TranslatedPair
from quantmedic.collectors.measure.models import Edited, Fitting, Models
from quantmedic.engine.case.records import Case
from quantmedic.engine.formulas.change import Change
from quantmedic.engine.output_files import write_file
from quantmedic.trials.edit import ReadSamples, Remedies, Repairable
from quantmedic.trials.execute import ScriptExecutor, require_as_many_outputs
from quantmedic.trials.from_onnx import onnx_remedies

#: Names of the files that a prescription reads and writes.
FLOAT, MADE = "float.tflite", "int8.tflite"
#: The user's calibration data: the stored samples, by the names that the signature of the float model gives its inputs.
DATA = f"""
from ai_edge_litert.interpreter import Interpreter as _Interpreter

_model = _Interpreter({FLOAT!r})
if not _model.get_signature_list():
    raise ValueError("the float model has no signature, by which ai-edge-quantizer calibrates")
_key = next(iter(_model.get_signature_list()))
_names = {{
    str(details["index"]): name for name, details in _model.get_signature_runner(_key).get_input_details().items()
}}

class _Samples(_StoredBatches):
    def __iter__(self):
        for feed in super().__iter__():
            yield {{_names[place]: array for place, array in feed.items()}}

data = {{_key: _Samples()}}
"""


def edit(models: TranslatedPair[LiteRTGraph], case: Case, change: Change, fitting: Fitting | None = None) -> Edited:
    """The translation as a remedy would leave it; see ``onnx_remedies.edit``. It does not show which kernels compute.

    What is learned without any other change is learned only where the file has a place for it, and is written there.

    Raises:
        ModelError: Nothing of the change can be carried out.
    """
    in_place = bool(change.learned) and not replace(change, learned=frozenset())
    graph = models.quantized
    # A learner that sees the file leaves out what this has no place for.
    read: onnx_remedies.Reader = (lambda _, model: graph.with_model(model)) if in_place else parse_translation
    # The messages about float inputs of layers with coded weights hold for LiteRT's kernels, too.
    edited = onnx_remedies.edit(models, case, change, fitting, runtime="LiteRT", read=read)

    def save(path: Path) -> None:
        save_content(graph.content_with(edited.model), path)

    return Edited(edited.runner, edited.unedited, save if in_place else None)


@dataclass(frozen=True)
class LiteRTExecutor(ScriptExecutor):
    """``ai_edge_quantizer``; its nightly build has another name, and no version here."""

    made: ClassVar[str] = MADE

    def missing(self) -> str | None:
        """Its package is not installed."""
        return None if find_spec("ai_edge_quantizer") is not None else f"the package {self.package} is not installed"

    def write_float(self, models: Models, folder: Path) -> None:
        """Write the float file."""
        assert isinstance(models, LiteRTModels)
        write_file(folder / FLOAT, models.float_graph.file.content)

    def feeds(self, models: Models, calibration: Iterable[Batch]) -> Iterator[dict[str, Array]]:
        """Samples under the places of the float file's inputs; as many at once as the file asks for."""
        assert isinstance(models, LiteRTModels)
        side = models.input_specs[0].shape[0] or 1
        for batch in calibration:
            for start in range(0, batch.samples - side + 1, side):
                feed = models.float_graph.feed(batch.take(slice(start, start + side)))
                yield {str(place): array for place, array in feed.items()}

    def open_made(self, models: Models, path: Path) -> Edited:
        """Read the file that the script wrote, and run it once; its outputs stand in the order of the float file's."""
        assert isinstance(models, LiteRTModels)
        made = graph_of(read_litert(path))
        require_survival([path])
        require_as_many_outputs(made, models.float_graph)
        positions = [i for i, _ in models.match.outputs]
        return Edited(
            lambda threads: Sessions().runner(made, positions, threads),
            save=lambda path: save_content(made.file.content, path),
        )


def open_repairable(float_path: Path, quantized_path: Path, data: object, read: ReadSamples) -> Repairable:
    """Two files to be repaired on samples: what is learned on the translation is written over the file's codes."""
    models = open_models(float_path, quantized_path)
    models.probe()
    samples = read(feeds_by_tensor(models.float_graph, data), models.input_specs)
    models.first = next(iter(samples()), None)
    return Repairable(
        models.editable(), samples, lambda model, path: save_content(models.quantized.content_with(model), path)
    )


EXECUTORS = (LiteRTExecutor("ai-edge-quantizer", "ai-edge-quantizer", frozenset({"data"}), DATA),)
REMEDIES = Remedies(edit, learns=True, executors=EXECUTORS, open_repairable=open_repairable)

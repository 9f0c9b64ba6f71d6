"""Remedies carried out on OpenVINO models: changes of the ONNX translation, and prescriptions of NNCF.

Prescriptions run on the float files in a process of their own.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar

from quantmedic.collectors.data.arrays import Array
from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.from_onnx.onnx_file import save_content
from quantmedic.collectors.from_openvino.openvino_file import IrModel, read_ir
from quantmedic.collectors.from_openvino.openvino_graph import OpenVINOGraph, graph_of
from quantmedic.collectors.from_openvino.openvino_models import OpenVINOModels
from quantmedic.collectors.from_openvino.openvino_session import Sessions
from quantmedic.collectors.from_translation.translated_models import TranslatedPair
from quantmedic.collectors.measure.models import Edited, Fitting, Models
from quantmedic.engine.case.records import Case
from quantmedic.engine.errors import OutputError
from quantmedic.engine.formulas.change import Change
from quantmedic.engine.output_files import write_file
from quantmedic.trials.edit import Remedies
from quantmedic.trials.execute import ScriptExecutor, require_as_many_outputs
from quantmedic.trials.from_onnx import onnx_remedies

#: Names of the files that a prescription reads and writes.
FLOAT, MADE = "float.xml", "int8.xml"
#: The user's calibration data: the stored batches, each a dictionary by input name as prescriptions read them, or a
#: list in the order of the float model where an input has no name.
DATASET = f"""
import nncf as _nncf
import openvino as _openvino

class _Feeds(_StoredBatches):
    def __init__(self):
        super().__init__()
        inputs = _openvino.Core().read_model({FLOAT!r}).inputs
        self.names = [port.any_name for port in inputs] if all(port.names for port in inputs) else None

    def __iter__(self):
        for feed in super().__iter__():
            arrays = [feed[str(number)] for number in range(len(feed))]
            yield arrays if self.names is None else dict(zip(self.names, arrays))

dataset = _nncf.Dataset(_Feeds())
"""


def edit(models: TranslatedPair[OpenVINOGraph], case: Case, change: Change, fitting: Fitting | None = None) -> Edited:
    """The translation as a remedy would leave it; see ``onnx_remedies.edit``. It does not show which kernels compute.

    Raises:
        ModelError: Nothing of the change can be carried out.
    """
    edited = onnx_remedies.edit(models, case, change, fitting, runtime="OpenVINO")
    return Edited(edited.runner, edited.unedited)


def _save(file: IrModel, path: Path) -> None:
    """Write both files of a model."""
    if path.suffix.lower() != ".xml":
        raise OutputError("an OpenVINO model is two files, .xml and .bin", where=str(path), help="name the .xml")
    save_content(file.content, path.with_suffix(".bin"))
    save_content(file.xml, path)


@dataclass(frozen=True)
class OpenVINOExecutor(ScriptExecutor):
    """``nncf.quantize`` of OpenVINO models."""

    made: ClassVar[str] = MADE

    def write_float(self, models: Models, folder: Path) -> None:
        """Write both files of the float model."""
        assert isinstance(models, OpenVINOModels)
        write_file(folder / FLOAT, models.float_graph.file.xml)
        write_file((folder / FLOAT).with_suffix(".bin"), models.float_graph.file.content)

    def feeds(self, models: Models, calibration: Iterable[Batch]) -> Iterator[dict[str, Array]]:
        """The inputs of each batch by their number."""
        assert isinstance(models, OpenVINOModels)
        for batch in calibration:
            yield {str(number): array for number, array in enumerate(models.float_graph.feed(batch))}

    def open_made(self, models: Models, path: Path) -> Edited:
        """Read the model that the script wrote; its outputs stand in the order of the float model's."""
        assert isinstance(models, OpenVINOModels)
        made = graph_of(read_ir(path))
        require_as_many_outputs(made, models.float_graph)
        positions = [i for i, _ in models.match.outputs]
        return Edited(lambda threads: Sessions().runner(made, positions, threads), save=partial(_save, made.file))


EXECUTORS = (OpenVINOExecutor("NNCF", "nncf", frozenset({"dataset"}), DATASET),)
REMEDIES = Remedies(edit, learns=True, executors=EXECUTORS)

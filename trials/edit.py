"""Carry out a change on a copy of the quantized model, or while it runs, whatever its framework."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.data.model_inputs import InputSpec
from quantmedic.collectors.extensions import Kind
from quantmedic.collectors.from_onnx.onnx_graph import PairedOnnxGraphs
from quantmedic.collectors.front_ends import front_end_named
from quantmedic.collectors.measure.models import Edited, Fitting, Models
from quantmedic.engine.case.records import Case
from quantmedic.engine.errors import ModelError
from quantmedic.engine.formulas.change import Change
from quantmedic.trials.execute import Executor

#: Gives the samples of a user's data for a model with these inputs, as often as it is called.
ReadSamples = Callable[[object, list[InputSpec]], Callable[[], Iterable[Batch]]]


@dataclass(frozen=True)
class Repairable:
    """Two model files of which the quantized one is repaired on samples and written.

    Attributes:
        models: Their graphs as ONNX models.
        read: Gives the samples.
        save: Writes the file that belongs to a repaired ONNX model to a path.
    """

    models: PairedOnnxGraphs
    read: Callable[[], Iterable[Batch]]
    save: Callable[..., None]


#: Opens two files, float and quantized, to be repaired on the user's data. It raises a ``ModelError`` where a file
#: cannot be read or they do not belong together, and a ``DataError`` where the data do not fit.
OpenRepairable = Callable[[Path, Path, object, ReadSamples], Repairable]


def _refuse_edit(models: Models, case: Case, change: Change, fitting: Fitting | None = None) -> Edited:
    raise ModelError(f"{front_end_named(models.framework).title} models are not edited")


@dataclass(frozen=True)
class Remedies:
    """How remedies are carried out on models of a front end; an entry point of ``quantmedic.remedies`` gives it.

    The entry point is named as the front end is. Several packages may add executors for models of one.

    Attributes:
        edit: Carries out a change on ``Models.editable()``, as the function ``edit`` of this module.
        learns: It can learn on samples (``Change.learned``).
        executors: Run printed prescriptions with their toolchains.
        open_repairable: Opens files whose biases and weights are learned on samples and written; None: there are none.
    """

    edit: Callable[..., Edited] = _refuse_edit
    learns: bool = False
    executors: Sequence[Executor] = ()
    open_repairable: OpenRepairable | None = None


REMEDIES: Kind[Remedies] = Kind("quantmedic.remedies", Remedies)


def remedies_named(name: str) -> Remedies:
    """The remedies of a front end; where there are none, those that carry out nothing.

    Raises:
        QuantmedicError: They cannot be loaded.
    """
    return next(iter(REMEDIES.find(name)), Remedies())


def edit(models: Models, case: Case, change: Change, fitting: Fitting | None = None) -> Edited:
    """The deployed model as a remedy would leave it; see the remedies of the front ends.

    ``fitting`` holds the samples for what is learned on them.

    Raises:
        ModelError: Nothing of the change can be carried out.
    """
    return remedies_named(models.framework).edit(models, case, change, fitting)


def learns(models: Models) -> bool:
    """Whether changes of models of this framework can be learned on samples (``Change.learned``)."""
    return remedies_named(models.framework).learns


def find_executor(models: Models, toolchain: str) -> Executor | None:
    """The executor of a toolchain for models of this framework; None: there is none."""
    executors = (each for remedies in REMEDIES.find(models.framework) for each in remedies.executors)
    return next((each for each in executors if each.toolchain == toolchain), None)

"""What a front end is to the rest of the program: which models are its own, and how they are opened.

``collectors/front_ends.py`` finds front ends; ``models.py`` says what opened models can be asked for.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from quantmedic.collectors.data.datasets import Dataset, open_dataset
from quantmedic.collectors.data.model_inputs import InputSpec
from quantmedic.collectors.data.preprocessing import Preprocessing
from quantmedic.collectors.measure.float_model import COMPLAINT_CHARACTERS, FloatModel
from quantmedic.collectors.measure.models import Models, Network
from quantmedic.engine.case.facts import FloatFacts, ModelFacts, Role
from quantmedic.engine.errors import DataError, ModelError

_NOTHING_DECLARED = Preprocessing()


@dataclass(frozen=True)
class GivenData:
    """Data sets as the user gave them.

    Attributes:
        sources: Files, folders, functions, arrays or batches, by role.
        preprocessing: What is declared for stored pixels, by role.
        labels: Labels of the judged set.
        mapping: Layers of the float model with their counterparts in the quantized one, by name.
    """

    sources: Mapping[Role, object]
    preprocessing: Mapping[Role, Preprocessing] = field(default_factory=dict)
    labels: str | Path | None = None
    mapping: Mapping[str, str] = field(default_factory=dict)

    def open(self, role: Role, specs: Sequence[InputSpec], source: object = None) -> Dataset:
        """The data set of a role for a model with these inputs; ``source`` stands for what the user gave.

        Raises:
            DataError: The data cannot be read, or do not fit the inputs.
        """
        return open_dataset(
            self.sources[role] if source is None else source,
            specs,
            preprocessing=self.preprocessing.get(role, _NOTHING_DECLARED),
            labels=self.labels if role == "validation" or "validation" not in self.sources else None,
            role=role,
        )


class FrontEnd(ABC):
    """A front end; an entry point of the group ``quantmedic.front_ends`` gives it, which has the same name.

    Attributes:
        name: What ``model.framework`` of a case says.
        title: What messages call its models, as in ``a LiteRT model``.
        writes_models: Changed models can be written to files (``Edited.save``).
    """

    name: ClassVar[str]
    title: ClassVar[str]
    writes_models: ClassVar[bool] = False

    @abstractmethod
    def recognizes(self, model: object) -> bool:
        """Whether a model, a path or another object, is surely one of its own; reads a few bytes at most."""

    def takes_rest(self, model: object) -> bool:
        """Whether it takes a model that no front end recognizes."""
        return False

    @abstractmethod
    def open(
        self, float_model: object, quantized_model: object, given: GivenData
    ) -> tuple[Models, dict[Role, Dataset]]:
        """Open two models of its own, and the data that they are given.

        Raises:
            ModelError: A model cannot be read, or the two do not belong together.
            DataError: The data cannot be read, or do not fit the models.
        """

    @abstractmethod
    def open_files(self, float_model: object, quantized_model: object) -> Models:
        """Open two models of its own without data; neither is run.

        Raises:
            ModelError: A model cannot be read or has to be run to be known, or the two do not belong together.
        """

    def open_network(self, path: Path) -> Network:
        """Open one model by itself.

        Raises:
            ModelError: It cannot be read, or models of this kind are not run by themselves.
        """
        raise ModelError(f"one {self.title} model alone is not run", where=str(path), help="give ONNX models")

    def as_deployed(self, *models: object) -> AbstractContextManager[None]:
        """Context in which models in memory compute as they are deployed, and after which they are as before."""
        return nullcontext()

    @abstractmethod
    def read_float(self, model: object) -> FloatModel:
        """What a float model tells by itself; one that is missing or damaged is said in a notice.

        Raises:
            ModelError: The path is a folder.
        """


class FileFrontEnd(FrontEnd):
    """A front end whose models are files: they are opened first, and say what data they take."""

    @abstractmethod
    def open_paths(self, float_path: Path, quantized_path: Path) -> Models:
        """Open two files; neither is run.

        Raises:
            ModelError: A file cannot be read, or the two do not belong together.
        """

    @abstractmethod
    def read_float_path(self, path: Path) -> FloatModel:
        """What the file of a float model tells by itself.

        Raises:
            ModelError: It cannot be read.
        """

    def open(
        self, float_model: object, quantized_model: object, given: GivenData
    ) -> tuple[Models, dict[Role, Dataset]]:
        """Open both files, and the data that their inputs ask for; see ``FrontEnd``."""
        if given.mapping:
            raise DataError("mapping is for torch modules", help="files are matched by their graphs; leave it out")
        models = self.open_files(float_model, quantized_model)
        models.probe()
        return models, {role: given.open(role, models.input_specs) for role in given.sources}

    def open_files(self, float_model: object, quantized_model: object) -> Models:
        """Open both files; see ``FrontEnd``."""
        return self.open_paths(Path(str(float_model)), Path(str(quantized_model)))

    def read_float(self, model: object) -> FloatModel:
        """What a float file tells by itself; one that is missing or damaged is no error, for a log tells without it.

        Raises:
            ModelError: The path is a folder.
        """
        path = Path(str(model))
        if path.is_dir():
            raise ModelError(
                "a folder was given where a model file is expected", where=str(path), help="give the path of a file"
            )
        if not path.is_file():
            notice = f"{path.name} is not there: the log alone was judged; settings were not held against the model"
            return FloatModel(ModelFacts(name=path.name), notices=(notice,))
        try:
            return self.read_float_path(path)
        except ModelError as error:
            complaint = error.without_folder(path)[:COMPLAINT_CHARACTERS]
            unread = FloatFacts(problem=complaint)
            facts = ModelFacts(name=path.name, float_model=unread, bytes_float=path.stat().st_size)
            return FloatModel(facts, files=(path,), notices=(f"{path.name} was not read: {complaint}",))

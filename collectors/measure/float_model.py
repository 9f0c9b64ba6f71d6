"""A float model by itself: what its file tells about why no quantized model could be made of it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from quantmedic.collectors.data.model_inputs import InputSpec
from quantmedic.engine.case.facts import FloatFacts, ModelFacts
from quantmedic.engine.errors import ModelError

#: Characters of a complaint that a fact keeps.
COMPLAINT_CHARACTERS = 200


@dataclass(frozen=True)
class FloatModel:
    """What is known of a float model.

    Attributes:
        facts: ``ModelFacts`` with what this file tells.
        inputs: Its inputs; empty where they are not known.
        files: The files that it consists of.
        notices: What the user should know.
    """

    facts: ModelFacts
    inputs: tuple[InputSpec, ...] = ()
    files: tuple[Path, ...] = ()
    notices: tuple[str, ...] = ()


def read_float_file(path: Path, read: Callable[[Path], FloatModel]) -> FloatModel:
    """Read a file with its front end; one that is missing or damaged is no error, for a log tells without it.

    Args:
        path: The file.
        read: Reads it; raises ``ModelError`` where that fails.

    Raises:
        ModelError: The path is a folder.
    """
    if path.is_dir():
        raise ModelError(
            "a folder was given where a model file is expected", where=str(path), help="give the path of a file"
        )
    if not path.is_file():
        notice = f"{path.name} is not there: the log alone was judged; settings were not held against the model"
        return FloatModel(ModelFacts(name=path.name), notices=(notice,))
    try:
        return read(path)
    except ModelError as error:
        # Reports name no folders.
        lines = [error.message, *(line.replace(str(path), path.name) for line in error.where)]
        complaint = "; ".join(lines)[:COMPLAINT_CHARACTERS]
        facts = ModelFacts(name=path.name, float_model=FloatFacts(problem=complaint), bytes_float=path.stat().st_size)
        return FloatModel(facts, files=(path,), notices=(f"{path.name} was not read: {complaint}",))

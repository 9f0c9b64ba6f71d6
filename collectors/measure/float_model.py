"""A float model by itself: what its file tells about why no quantized model could be made of it."""

from dataclasses import dataclass
from pathlib import Path

from quantmedic.collectors.data.model_inputs import InputSpec
from quantmedic.engine.case.facts import ModelFacts

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

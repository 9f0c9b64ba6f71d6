"""The embedded patients: a small classifier, a small detector, a small language model, and their data."""

import json
from collections.abc import Mapping
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import NotRequired, TypedDict

from quantmedic.collectors.data.preprocessing import Preprocessing
from quantmedic.engine.case.facts import ROLES, Role
from quantmedic.engine.errors import QuantmedicError

#: What language models are run with; the extra ``language`` brings all of it.
_LANGUAGE_PACKAGES = ("torch", "transformers", "tokenizers", "safetensors")


class DemoData(TypedDict):
    """The options of ``quantmedic.collect`` for the data of the patient."""

    representative: Path
    validation: Path
    preprocessing: Mapping[Role, Preprocessing]
    metric: NotRequired[str]


def patient(*, healthy: bool = False, detection: bool = False) -> tuple[tuple[Path, Path], DemoData]:
    """Paths of the float and the quantized model, and their data.

    Args:
        healthy: The healthy twin instead of the patient.
        detection: The detector, whose boxes and scores share a range, instead of the badly calibrated classifier.
    """
    folder = Path(str(files("quantmedic.demo")))
    found = json.loads((folder / ("detection.json" if detection else "demo.json")).read_text(encoding="utf-8"))
    entry = found["models"]["healthy" if healthy else "patient"]

    def preprocessing_of(role: Role) -> Preprocessing:
        values = entry[role]["preprocessing"]
        return Preprocessing(mean=tuple(values["mean"]), std=tuple(values["std"]), scale=values["scale"])

    data = DemoData(
        representative=folder / entry["representative"]["file"],
        validation=folder / entry["validation"]["file"],
        preprocessing={role: preprocessing_of(role) for role in ROLES},
    )
    if "metric" in found:
        data["metric"] = found["metric"]
    return (folder / entry["float"], folder / entry["quantized"]), data


def language_patient(*, healthy: bool = False) -> tuple[Path, Path, Path]:
    """Folders of the float and of the quantized language model, and the file of their texts.

    Args:
        healthy: The twin whose blocks all have 8 bits, instead of the patient, one of whose blocks has 2.

    Raises:
        QuantmedicError: A package that runs language models is not installed.
    """
    missing = [name for name in _LANGUAGE_PACKAGES if find_spec(name) is None]
    if missing:
        raise QuantmedicError(
            f"--language-model needs {', '.join(missing)}, not installed here: pip install 'quantmedic[language]'"
        )
    folder = Path(str(files("quantmedic.demo"))) / "language"
    return folder / "float", folder / ("healthy" if healthy else "quantized"), folder / "texts.jsonl"

"""The embedded patient: a small network, a badly calibrated and a healthy int8 version, and their data."""

import json
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import TypedDict

from quantmedic.collectors.data.preprocessing import Preprocessing
from quantmedic.engine.case.facts import ROLES, Role


class DemoData(TypedDict):
    """The options of ``quantmedic.collect`` for the data of the patient."""

    representative: Path
    validation: Path
    preprocessing: Mapping[Role, Preprocessing]


def patient(*, healthy: bool = False) -> tuple[tuple[Path, Path], DemoData]:
    """Paths of the float and the quantized model, and their data.

    Args:
        healthy: The well calibrated twin instead of the patient.
    """
    folder = Path(str(files("quantmedic.demo")))
    models = json.loads((folder / "demo.json").read_text(encoding="utf-8"))["models"]
    entry = models["healthy" if healthy else "patient"]

    def preprocessing_of(role: Role) -> Preprocessing:
        values = entry[role]["preprocessing"]
        return Preprocessing(mean=tuple(values["mean"]), std=tuple(values["std"]), scale=values["scale"])

    data = DemoData(
        representative=folder / entry["representative"]["file"],
        validation=folder / entry["validation"]["file"],
        preprocessing={role: preprocessing_of(role) for role in ROLES},
    )
    return (folder / entry["float"], folder / entry["quantized"]), data

"""The embedded patient: a small network, a badly calibrated and a healthy int8 version, and their data."""

import json
from importlib.resources import files
from pathlib import Path
from typing import Any


def patient(*, healthy: bool = False) -> tuple[tuple[Path, Path], dict[str, Any]]:
    """Paths of the float and the quantized model, and the options of ``quantmedic.collect`` for their data.

    Args:
        healthy: The well calibrated twin instead of the patient.
    """
    from quantmedic.collectors.data.preprocessing import Preprocessing

    folder = Path(str(files("quantmedic.demo")))
    entry = json.loads((folder / "demo.json").read_text(encoding="utf-8"))["models"][
        "healthy" if healthy else "patient"
    ]
    options: dict[str, Any] = {"preprocessing": {}}
    for role in ("representative", "validation"):
        declared = entry[role]["preprocessing"]
        options[role] = folder / entry[role]["file"]
        options["preprocessing"][role] = Preprocessing(
            mean=tuple(declared["mean"]), std=tuple(declared["std"]), scale=declared["scale"]
        )
    return (folder / entry["float"], folder / entry["quantized"]), options

"""Files with which the prescription of an embedded patient runs: its models, its data, and a script."""

import shlex
import sys
from pathlib import Path

from quantmedic.collectors.from_onnx.file import save_content
from quantmedic.demo import DemoData

#: Folder of the report that holds them.
FOLDER = "try"
_SCRIPT = '''"""Run ../prescription.py on the data of the demonstration: the reader is all that it leaves open."""

import runpy

import numpy as np
from onnxruntime.quantization import CalibrationDataReader

SCALE, MEAN, STD = {scale!r}, {mean!r}, {std!r}


class Reader(CalibrationDataReader):
    """The reader that the patient was quantized with."""

    def __init__(self):
        with np.load("representative.npz") as stored:
            self.images = iter((stored["image"].astype(np.float32) / SCALE - MEAN) / STD)

    def get_next(self):
        image = next(self.images, None)
        return None if image is None else {{"image": image[None].astype(np.float32)}}


runpy.run_path("../prescription.py", init_globals={{"reader": Reader()}})
print("wrote int8.onnx")
'''


def write_example(report: Path, float_model: Path, data: DemoData) -> list[str]:
    """Write the files beside the prescription of a report.

    Args:
        report: Folder of the report, which holds ``prescription.py``.
        float_model: The float model.
        data: The data of the patient.

    Returns:
        The command that runs the prescription, and one that diagnoses what comes out.

    Raises:
        OutputError: A file cannot be written.
    """
    folder = report / FOLDER
    fed, judged = data["preprocessing"]["representative"], data["preprocessing"]["validation"]
    script = _SCRIPT.format(scale=fed.scale, mean=fed.mean[0] if fed.mean else 0.0, std=fed.std[0] if fed.std else 1.0)
    save_content(float_model.read_bytes(), folder / "float.onnx")
    for role in ("representative", "validation"):
        save_content(data[role].read_bytes(), folder / f"{role}.npz")
    save_content(script.encode(), folder / "run.py")
    metric = f" --metric {data['metric']}" if "metric" in data else ""
    options = f"--scale {judged.scale:g}"
    options += "".join(
        f" --{name} {','.join(f'{value:g}' for value in values)}"
        for name, values in (("mean", judged.mean), ("std", judged.std))
        if values
    )
    return [
        f"cd {shlex.quote(str(folder))} && {shlex.quote(sys.executable)} run.py",
        f"quantmedic diagnose float.onnx int8.onnx -r representative.npz -v validation.npz {options}{metric}",
    ]

"""Files with which the prescription of an embedded patient runs: its models and its data."""

import shlex
import sys
from pathlib import Path

from quantmedic.collectors.from_onnx.onnx_file import save_content
from quantmedic.demo import DemoData
from quantmedic.engine.output_files import require_folder
from quantmedic.reports.sections.prescription_run import FILE

#: Folder of the report that holds them.
FOLDER = "try"


def write_example(report: Path, float_model: Path, quantized_model: Path, data: DemoData) -> list[str]:
    """Write the files beside the prescription of a report.

    Args:
        report: Folder of the report, which holds ``prescription.py`` and the script that runs it.
        float_model: The float model.
        quantized_model: The one that the report is about.
        data: The data of the patient.

    Returns:
        The command that runs the prescription, one that diagnoses what comes out, and one that does both: all of them
        in the folder of the example.

    Raises:
        OutputError: A file cannot be written.
    """
    folder = report / FOLDER
    require_folder(folder, within=report)
    judged = data["preprocessing"]["validation"]
    save_content(float_model.read_bytes(), folder / "float.onnx")
    save_content(quantized_model.read_bytes(), folder / "deployed.onnx")
    for role in ("representative", "validation"):
        save_content(data[role].read_bytes(), folder / f"{role}.npz")
    metric = f" --metric {data['metric']}" if "metric" in data else ""
    options = f"-p scale={judged.scale:g}"
    options += "".join(
        f" -p {name}={','.join(f'{value:g}' for value in values)}"
        for name, values in (("mean", judged.mean), ("std", judged.std))
        if values
    )
    run = shlex.join([sys.executable, f"../{FILE}", "float.onnx", "representative.npz", "int8.onnx"])
    both = f"-r representative.npz -v validation.npz {options}{metric}"
    return [
        run,
        f"quantmedic diagnose float.onnx int8.onnx {both}",
        f"quantmedic fix float.onnx deployed.onnx {both} -o fixed.onnx",
    ]

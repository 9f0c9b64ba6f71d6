"""Asks whichever version of quantmedic is on the path: cases on standard input, one line of JSON for each to a file.

It is run in a process of its own, by ``against.py``, and uses only what every version has.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import quantmedic

KEPT = {"verdict", "causes", "loss_budget", "undecided"}


def further_inputs(folder: Path) -> dict[str, Any]:
    """Outputs from elsewhere that a case comes with, as far as this version takes them."""
    try:
        from quantmedic.api.options import CollectArguments
    except ImportError:
        return {}
    names = [name for name in ("reference_outputs", "device_outputs") if name in CollectArguments.__annotations__]
    return {name: folder / f"{name}.npz" for name in names if (folder / f"{name}.npz").is_file()}


def report_of(case: dict[str, Any]) -> dict[str, Any]:
    """The report of one case, or why there is none."""
    folder = Path(case["folder"])
    started = time.perf_counter()
    try:
        diagnosis = quantmedic.diagnose(
            folder / "float.onnx",
            folder / "quantized.onnx",
            representative=folder / "representative.npz",
            validation=folder / "validation.npz",
            threads=1,
            **case["options"],
            **further_inputs(folder),
        )
    except Exception as error:
        return {"name": case["name"], "error": f"{type(error).__name__}: {error}"[:300]}
    report = diagnosis.model_dump(mode="json", include=KEPT)
    return {"name": case["name"], "report": report, "seconds": time.perf_counter() - started}


def main() -> None:
    """Answer all cases."""
    with open(sys.argv[1], "w", encoding="utf-8") as written:
        for case in json.load(sys.stdin):
            print(json.dumps(report_of(case)), file=written, flush=True)


if __name__ == "__main__":
    main()

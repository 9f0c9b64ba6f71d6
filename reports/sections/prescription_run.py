"""A script that runs the prescription on calibration data: it defines what the prescription leaves open."""

import math
from collections.abc import Iterator, Mapping

from quantmedic.engine.contract.advised_remedies import Prescription
from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.engine.diagnosis.prescription import NEW_DATA

FILE = "run.py"
#: How it is called, from anywhere.
USAGE = f"python {FILE} FLOAT CALIBRATION OUTPUT"
#: What calibrates where the data that did are the fault.
NEW_CALIBRATION = "inputs as the application sees them, stored and prepared like those given"
#: What the prescription of this toolchain leaves open.
_TOOLCHAIN, _GIVEN = "onnxruntime", {"reader"}
#: Preprocessing that is declared as numbers, and as words.
_NUMBERS, _WORDS = ("scale",), {"layout": ("NCHW", "NHWC"), "channel_order": ("RGB", "BGR")}
_TUPLES = ("mean", "std", "resize")
_SCRIPT = '''"""Run prescription.py, which lies beside this file, on calibration data.

    {usage}

FLOAT is the float model, CALIBRATION {calibration}
(a file, a folder or module:function), OUTPUT the quantized model to write. In a script of your own, take the reader
that you quantize with.
"""

import re
import runpy
import sys
import tempfile
from pathlib import Path

import quantmedic

if len(sys.argv) != 4:
    sys.exit(__doc__)
float_model, output = (str(Path(given).resolve()) for given in (sys.argv[1], sys.argv[3]))
reader = quantmedic.calibration_reader(float_model, sys.argv[2]{options})

code = (Path(__file__).resolve().parent / "prescription.py").read_text(encoding="utf-8")
with tempfile.TemporaryDirectory() as folder:  # what else the prescription writes on its way is not kept
    places = {{"float.onnx": float_model, "int8.onnx": output}}
    named = r'"([A-Za-z0-9_-]+[.]onnx)"'
    code = re.sub(named, lambda name: repr(places.get(name[1], str(Path(folder, name[1])))), code)
    script = Path(folder, "prescription.py")
    script.write_text(code, encoding="utf-8")
    runpy.run_path(str(script), init_globals={{"reader": reader}})
print(f"wrote {{sys.argv[3]}}")
'''


def run_files(diagnosis: Diagnosis) -> Iterator[tuple[str, bytes]]:
    """The script, where ONNX Runtime quantizes and the data can be opened again; else nothing."""
    options = _reader_options(diagnosis)
    if options is not None and diagnosis.prescription is not None:
        calibration = calibration_in_words(diagnosis.prescription)
        yield FILE, _SCRIPT.format(usage=USAGE, options=options, calibration=calibration).encode()


def can_run(diagnosis: Diagnosis) -> bool:
    """There is such a script."""
    return _reader_options(diagnosis) is not None


def calibration_in_words(given: Prescription) -> str:
    """Which data calibrate: those that were diagnosed, or others where these are the fault."""
    return NEW_CALIBRATION if NEW_DATA in given.given.values() else "the representative data as they were given"


def _reader_options(diagnosis: Diagnosis) -> str | None:
    """Arguments of the reader behind model and data, as code; None where no script can be written."""
    given, chosen = diagnosis.prescription, diagnosis.toolchain
    if given is None or chosen is None or chosen.name != _TOOLCHAIN or set(given.given) != _GIVEN:
        return None
    data, declared = diagnosis.run.get("data"), diagnosis.run.get("preprocessing") or {}
    if len(given.configurations) != 1 or not isinstance(data, Mapping) or "representative" not in data:
        return None
    own = declared.get("representative") or {} if isinstance(declared, Mapping) else None
    samples = diagnosis.run.get("samples")
    if not isinstance(own, Mapping) or not (samples is None or _is_count(samples)):
        return None
    texts = {key: _as_code(key, value) for key, value in own.items() if value is not None}
    if None in texts.values():
        return None
    limit = {} if samples is None else {"samples": str(samples)}
    return "".join(f", {key}={text}" for key, text in {**texts, **limit}.items())


def _as_code(key: str, value: object) -> str | None:
    """What was declared, as Python; None where it is not what it should be: a case may come from anywhere."""
    if key in _WORDS:
        return repr(value) if value in _WORDS[key] else None
    if key in _NUMBERS:
        return repr(value) if _is_number(value) else None
    if key in _TUPLES and isinstance(value, list | tuple) and value and all(map(_is_number, value)):
        return repr(tuple(value))
    return None


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0

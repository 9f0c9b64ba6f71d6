"""Calibration caches of TensorRT: a line that names version and calibrator, then ``tensor: scale`` per line.

The scale is written as the eight hexadecimal digits of a big-endian float32, of a symmetric grid of 8 bits. The first
line ends with the calibrator's name, such as ``TRT-8601-EntropyCalibration2``. In the form that public caches have.
"""

import math
import re
import struct
from pathlib import Path

from quantmedic.collectors.toolchain_files.formats import Format, Imported
from quantmedic.collectors.toolchain_files.settings_files import read_text
from quantmedic.collectors.toolchain_files.values import left_out
from quantmedic.engine.case.facts import RecordedFacts, SettingsFacts
from quantmedic.engine.errors import DataError

#: Methods by the calibrator that the first line names; a legacy one may use entropy or percentile.
METHODS = {"EntropyCalibration": "entropy", "EntropyCalibration2": "entropy", "MinMaxCalibration": "minmax"}
HIGHEST = 127
_FIRST = re.compile(r"TRT-(?P<version>[\w.]+)-(?P<calibrator>\w+)")
_LINE = re.compile(r"(?P<name>\S.*): (?P<hex>[0-9a-f]{1,8})", re.IGNORECASE)


def _is_tensorrt_cache(name: str, text: str) -> bool:
    return _FIRST.match(text) is not None


def _read_cache(path: Path) -> Imported:
    first, *lines = read_text(path).splitlines()
    head = _FIRST.match(first)
    calibrator = head["calibrator"] if head is not None else ""
    method = METHODS.get(calibrator)
    found: dict[str, RecordedFacts] = {}
    left = []
    for number, line in enumerate(lines, 2):
        if not line.strip():
            continue
        match = _LINE.fullmatch(line.strip())
        if match is None:
            raise DataError(
                "a line of the calibration cache is not a name with a scale in hexadecimal digits",
                where=f"{path}:{number}: {line[:80]}",
                help="the file may be cut off: delete it and let TensorRT calibrate again",
            )
        (scale,) = struct.unpack(">f", bytes.fromhex(match["hex"].zfill(8)))
        if not math.isfinite(scale) or scale <= 0:
            left.append(match["name"])
            continue
        reach = HIGHEST * scale
        found[match["name"]] = RecordedFacts(
            method=method, low=-reach, high=reach, scale=scale, zero_point=0, bits=8, symmetric=True
        )
    if not found:
        raise DataError("the calibration cache holds no scales", where=str(path))
    settings = SettingsFacts(
        calibration_method=method, activation_bits=8, asymmetric_activations=False, per_channel_activations=False
    )
    return Imported(settings=settings, tensors=found, notices=left_out("tensors without a usable scale", left))


FORMATS = (Format("TensorRT calibration cache", "NVIDIA ModelOpt", _is_tensorrt_cache, _read_cache, lists_all=True),)

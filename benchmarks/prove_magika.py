"""A real failure, proven: the file-type network magika, quantized by onnxruntime with its defaults.

The network comes with the PyPI package ``magika``; its samples are files of the Python environment that runs this,
their labels what the suffixes say. The script writes both models and the samples, quantizes, and runs quantmedic with
``--prove`` and ``--write-fixed`` on them, as a user would.

How to run, from the repository root::

    python benchmarks/prove_magika.py --output /tmp/magika
"""

import argparse
import json
import random
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from onnxruntime.quantization import CalibrationDataReader, quantize_static

#: Suffixes that leave no doubt: a .h may be C or C++, a .md plain text.
SUFFIXES = {
    "py": "python", "json": "json", "pyc": "pythonbytecode", "so": "elf", "js": "javascript", "html": "html",
    "css": "css", "yaml": "yaml", "png": "png", "toml": "toml",
}  # fmt: skip
#: Bytes of the beginning and the end of a file that the network reads, and what stands for no byte.
BLOCK, PADDING = 1024, 256


class Reader(CalibrationDataReader):
    """Calibration samples, four at a time."""

    def __init__(self, inputs: np.ndarray) -> None:
        self._feeds: Iterator[dict[str, np.ndarray]] = ({"bytes": inputs[i : i + 4]} for i in range(0, len(inputs), 4))

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._feeds, None)


def package_folder() -> Path:
    spec = find_spec("magika")
    if spec is None or spec.origin is None:
        sys.exit("magika is not installed: pip install magika")
    return Path(spec.origin).parent / "models" / "standard_v3_3"


def file_bytes(content: bytes) -> np.ndarray:
    """First and last bytes without the white space around them, as magika prepares them."""
    begin, end = content[:4096].lstrip()[:BLOCK], content[-4096:].rstrip()[-BLOCK:]
    row = np.full(2 * BLOCK, PADDING, np.int32)
    row[: len(begin)] = list(begin)
    row[2 * BLOCK - len(end) :] = list(end)
    return row


def samples(classes: list[str], per_kind: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and labels, the kinds mixed."""
    found: dict[str, list[Path]] = {suffix: [] for suffix in SUFFIXES}
    for root in {Path(entry) for entry in sys.path if entry and Path(entry).is_dir()}:
        for path in root.rglob("*"):
            if path.suffix[1:] in found and path.is_file() and path.stat().st_size > 200:
                found[path.suffix[1:]].append(path)
    chooser = random.Random(0)
    rows = [
        (file_bytes(path.read_bytes()), classes.index(SUFFIXES[suffix]))
        for suffix, paths in found.items()
        for path in chooser.sample(sorted(paths), min(per_kind, len(paths)))
    ]
    chooser.shuffle(rows)
    inputs, labels = zip(*rows, strict=True)
    return np.array(inputs), np.array(labels)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--per-kind", type=int, default=64, help="files of each kind")
    parser.add_argument("--budget", default="120s")
    arguments = parser.parse_args()
    folder = arguments.output
    folder.mkdir(parents=True, exist_ok=True)
    model = package_folder() / "model.onnx"
    classes = json.loads((model.parent / "config.min.json").read_text())["target_labels_space"]
    inputs, labels = samples(classes, arguments.per_kind)
    np.savez(folder / "representative.npz", bytes=inputs[:64])
    np.savez(folder / "validation.npz", bytes=inputs[64:], labels=labels[64:])
    quantize_static(str(model), str(folder / "int8.onnx"), Reader(inputs[:64]))
    command = [
        *(sys.executable, "-m", "quantmedic", "diagnose", str(model), str(folder / "int8.onnx")),
        *("-r", str(folder / "representative.npz"), "-v", str(folder / "validation.npz")),
        *("--budget", arguments.budget, "--write-fixed", str(folder / "fixed.onnx"), "-o", str(folder / "report")),
    ]
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())

"""Dumps of a device in the forms in which tools write them."""

import base64
import io
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np

from builders.onnx_models import Array

Dump = dict[str, Array]


def samples_of(dump: Dump) -> int:
    return len(next(iter(dump.values())))


def write_npy(folder: Path, dump: Dump) -> Path:
    folder.mkdir()
    for name, values in dump.items():
        np.save(folder / f"{name}.npy", values)
    return folder


def write_archive(folder: Path, dump: Dump, save: Callable[..., None] = np.savez) -> Path:
    folder.mkdir()
    save(folder / "dump.npz", **dump)
    return folder / "dump.npz"


def write_samples(folder: Path, dump: Dump, ending: str = ".raw", *, last: bool = False, first: int = 0) -> Path:
    """A folder for each sample, as Qualcomm's tools write it; ``last``: channels stand last."""
    for k in range(samples_of(dump)):
        own = folder / f"Result_{k + first}"
        own.mkdir(parents=True)
        for name, values in dump.items():
            value = values[k : k + 1]
            value = np.moveaxis(value, 1, -1) if last and value.ndim == 4 else value
            if ending == ".raw":
                (own / f"{name}.raw").write_bytes(np.ascontiguousarray(value, "<f4").tobytes())
            else:
                np.save(own / f"{name}.npy", value)
    return folder


def polygraphy(dump: Dump, *, lazy: bool = True) -> dict[str, object]:
    """What ``polygraphy run --save-outputs`` writes of iterations of up to 8 samples."""

    def encoded(values: Array) -> dict[str, object]:
        file = io.BytesIO()
        np.save(file, values, allow_pickle=False)
        array = {"array": base64.b64encode(file.getvalue()).decode(), "polygraphy_class": "ndarray"}
        return {"values": array, "polygraphy_class": "LazyArray"} if lazy else array

    iterations = [
        {
            "outputs": {name: encoded(values[start : start + 8]) for name, values in dump.items()},
            "runtime": 0.1,
            "runner_name": "trt-runner",
            "polygraphy_class": "IterationResult",
        }
        for start in range(0, samples_of(dump), 8)
    ]
    return {"lst": [["trt-runner", iterations], ["other", []]], "polygraphy_class": "RunResults"}


def write_polygraphy(folder: Path, dump: Dump, *, lazy: bool = True) -> Path:
    folder.mkdir()
    (folder / "dump.json").write_text(json.dumps(polygraphy(dump, lazy=lazy)))
    return folder / "dump.json"

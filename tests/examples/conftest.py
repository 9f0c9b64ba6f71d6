"""A project such as the examples speak of, and the installed command without an installation."""

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from quantmedic.demo import patient


@pytest.fixture
def project(tmp_path: Path) -> Callable[..., Path]:
    """Makes a folder with models, data and a policy, under the names that the examples use."""
    return lambda name="a project's folder", **options: _project(tmp_path / name, **options)


def _project(folder: Path, *, healthy: bool = True, policy: str = "", samples: int | None = 128) -> Path:
    (float_model, quantized), options = patient(healthy=healthy)
    (folder / "models").mkdir(parents=True)
    (folder / "data").mkdir()
    shutil.copy(float_model, folder / "models" / "float.onnx")
    shutil.copy(quantized, folder / "models" / "int8.onnx")
    for role, name in (("representative", "calibration"), ("validation", "validation")):
        stored, prepared = np.load(options[role]), options["preprocessing"][role]
        mean, std = (np.float32(values[0]) for values in (prepared.mean, prepared.std))
        arrays = {key: stored[key][:samples] for key in stored.files}
        image = next(key for key in stored.files if stored[key].ndim == 4)
        arrays[image] = (arrays[image].astype(np.float32) / np.float32(prepared.scale) - mean) / std
        np.savez(folder / "data" / f"{name}.npz", **arrays)
    (folder / "quantmedic.toml").write_text(policy, encoding="utf-8")
    return folder


@pytest.fixture
def command() -> Callable[[Path], None]:
    """Puts ``quantmedic`` and ``python`` of this environment into a folder, as an installation would."""
    return lambda folder: _scripts(folder)


def _scripts(folder: Path) -> None:
    folder.mkdir(parents=True)
    for name, module in (("quantmedic", " -m quantmedic"), ("python", "")):
        (folder / name).write_text(f'#!/bin/sh\nexec "{sys.executable}"{module} "$@"\n', encoding="utf-8")
        (folder / name).chmod(0o755)

"""Dumps as a newcomer makes them, in every form: tensors missing or renamed, another layout, batch or model."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from builders.device_dumps import BASE, DUMP, X, collected, departing, is_named
from builders.dump_files import (
    Dump,
    write_archive,
    write_database,
    write_files,
    write_npy,
    write_polygraphy,
    write_runs,
    write_samples,
)
from builders.onnx_models import Array, random
from builders.recordings import RECORDINGS

from quantmedic.engine.case.records import Case
from quantmedic.engine.errors import DataError
from quantmedic.engine.formulas.derive import derive

pytestmark = pytest.mark.thorough

FORMS: dict[str, Callable[[Path, Dump], Path]] = {
    "npy": write_npy,
    "npz": write_archive,
    "raw of samples": write_samples,
    "npy of samples": lambda folder, dump: write_samples(folder, dump, ".npy"),
    "polygraphy": write_polygraphy,
    "node files": write_files,
    "node files of runs": write_runs,
    "node database": write_database,
}
forms = pytest.mark.parametrize("write", FORMS.values(), ids=FORMS)
#: Neither of the altered layer nor of what it reads or writes to.
UNNEEDED = ("relu0_dq", "sum2_dq", "pool_dq")


def text_of(case: Case) -> str:
    return "\n".join(case.record.notices)


@forms
def test_missing_tensors_are_named_and_the_rest_is_judged(write, paths, tmp_path):
    kept = {name: values for name, values in DUMP.items() if name not in UNNEEDED}
    case = collected(paths, write(tmp_path / "d", kept))
    assert is_named("mix1", departing(derive(case, BASE)))
    for name in UNNEEDED:
        assert name.removesuffix("_dq") in text_of(case)


@forms
def test_renamed_tensors_are_refused_with_what_was_expected(write, paths, tmp_path):
    renamed = {f"t{k}": values for k, values in enumerate(DUMP.values())}
    with pytest.raises(DataError, match="is one of the model") as error:
        collected(paths, write(tmp_path / "d", renamed))
    said = f"{error.value}"
    assert "t0" in said and "relu0" in said and "device_names" in said
    names = {f"t{k}": name for k, name in enumerate(DUMP)}
    again = collected(paths, write(tmp_path / "e", renamed), device_names=names)
    assert is_named("mix1", departing(derive(again, BASE)))


@forms
def test_channels_last_are_turned(write, paths, tmp_path):
    def turned(values: Array) -> Array:
        return np.moveaxis(values, 1, -1) if values.ndim == 4 else values

    case = collected(paths, write(tmp_path / "d", {name: turned(values) for name, values in DUMP.items()}))
    assert case.record.device.tensors == collected(paths, DUMP).record.device.tensors


@forms
@pytest.mark.parametrize("samples", [10, 48])
def test_fewer_or_more_samples_than_the_data(samples, write, paths, tmp_path):
    dump = {name: np.concatenate([values, values])[:samples] for name, values in DUMP.items()}
    case = collected(paths, write(tmp_path / "d", dump))
    assert case.record.device.samples == min(samples, len(X))
    assert is_named("mix1", departing(derive(case, BASE)))
    assert samples <= len(X) or "holds 48 samples" in text_of(case)


@forms
def test_values_of_another_model_name_no_layer(write, paths, tmp_path):
    others = {name: random(999 + k, *values.shape) for k, (name, values) in enumerate(DUMP.items())}
    case = collected(paths, write(tmp_path / "d", others))
    assert "correlate with nothing of this model" in text_of(case)
    assert departing(derive(case, BASE)) == []


# --- RKNN and ExecuTorch, of recordings ------------------------------------------------------------------------------


def snapshot(folder: Path) -> Path:
    """The folder of RKNN's analysis, where the altered network stands for the board."""
    shutil.copytree(RECORDINGS / "rknn" / "altered", folder / "runtime")
    shutil.copy(RECORDINGS / "rknn" / "map_name_to_file.txt", folder)
    return folder


def test_rknn_without_some_tensors(paths, tmp_path):
    folder = snapshot(tmp_path / "d")
    for path in folder.rglob("sum2*"):
        path.unlink()
    case = collected(paths, folder)
    assert is_named("mix1", departing(derive(case, BASE))) and "sum2" in text_of(case)


def test_rknn_of_another_model(paths, tmp_path):
    """Under other names it is refused, with what was expected; under the same names no layer is named."""
    folder = tmp_path / "d"
    shutil.copytree(RECORDINGS / "rknn" / "simulator", folder)
    for k, path in enumerate(sorted([*folder.rglob("*.npy"), *folder.rglob("*.txt")])):
        path.rename(path.with_name(f"t{k}{path.suffix}"))
    with pytest.raises(DataError, match="is one of the model") as error:
        collected(paths, folder)
    assert "relu0" in str(error.value) and "device_names" in str(error.value)
    folder = snapshot(tmp_path / "e")
    for k, path in enumerate(sorted(folder.rglob("*.txt"))):
        if path.name != "map_name_to_file.txt":
            values = np.loadtxt(path)
            np.savetxt(path, random(99 + k, *np.atleast_1d(values).shape))
    case = collected(paths, folder)
    assert "correlate with nothing of this model" in text_of(case) and departing(derive(case, BASE)) == []


def test_an_etdump_of_another_model(paths, tmp_path):
    """Of a module whose tensors have other names and shapes, but for a few names."""
    folder = tmp_path / "d"
    shutil.copytree(RECORDINGS / "executorch" / "own", folder)
    case = collected(paths, folder)
    assert "conv2d" in text_of(case) and departing(derive(case, BASE)) == []
    with pytest.raises(DataError, match="nowhere"):
        collected(paths, folder, device_names={"conv2d": "nowhere"})

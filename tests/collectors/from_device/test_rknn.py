"""Folders of RKNN's ``accuracy_analysis``.

``tests/recordings/rknn`` was written by rknn-toolkit2 2.5.0 of the network of ``builders.device_dumps``, calibrated
with its images, with the first of them as input: ``simulator`` of the network as it is, ``altered`` with the weights
of ``mix1`` times 1.25. No board was connected: what stands for ``runtime`` here is what the simulator computed.
"""

import shutil
from pathlib import Path

import numpy as np
import pytest
from builders.device_dumps import BASE, DUMP, X, collected, departing, is_named
from builders.recordings import RECORDINGS

from quantmedic.engine.errors import DataError
from quantmedic.engine.formulas.derive import derive

RECORDED = RECORDINGS / "rknn"


def analysis(folder: Path, board: str = "altered") -> Path:
    """The folder of an analysis whose board computed what a recording holds."""
    folder.mkdir()
    shutil.copy(RECORDED / "map_name_to_file.txt", folder)
    for side in ("golden", "simulator"):
        shutil.copytree(RECORDED / "simulator", folder / side)
    shutil.copytree(RECORDED / board, folder / "runtime")
    return folder


@pytest.mark.parametrize("board, named", [("altered", True), ("simulator", False)], ids=["text", "npy"])
def test_the_board_departs_where_its_weights_are_others(
    board: str, named: bool, paths: tuple[Path, Path], tmp_path: Path
) -> None:
    """Grids that RKNN chose by itself are none of the differences that are named."""
    case = collected(paths, analysis(tmp_path / "snapshot", board))
    assert case.record.device.samples == 1
    compared = {case.record.tensors[tensor.tensor].name for tensor in case.record.device.tensors}
    assert {"image", "relu0", "sum1", "pool"} < compared
    found = departing(derive(case, BASE))
    assert is_named("mix1", found) if named else found == []
    assert any("one sample" in notice for notice in case.record.notices)


def test_files_as_the_board_names_them(paths: tuple[Path, Path], tmp_path: Path) -> None:
    """As in airockchip/rknn-toolkit2#118: place, operator, tensor, sides, type; not moved to names of the map."""
    folder = tmp_path / "snapshot"
    (folder / "runtime" / "dumps").mkdir(parents=True)
    shutil.copy(RECORDED / "map_name_to_file.txt", folder)
    for place, name in enumerate(("relu1", "mix1", "sum1")):
        sides = "_".join(map(str, DUMP[f"{name}_dq"][:1].shape))
        np.save(
            folder / "runtime" / "dumps" / f"{place:03}_ConvRelu_{name}_shape_{sides}_float.npy", DUMP[f"{name}_dq"][:1]
        )
    case = collected(paths, folder)
    assert [case.record.tensors[t.tensor].name for t in case.record.device.tensors] == ["relu1", "mix1", "sum1"]
    assert is_named("mix1", departing(derive(case, BASE)))


def test_names_come_from_the_map(paths: tuple[Path, Path], tmp_path: Path) -> None:
    folder = analysis(tmp_path / "snapshot")
    (folder / "runtime" / "sum1.txt").rename(folder / "runtime" / "505.txt")
    table = (folder / "map_name_to_file.txt").read_text().replace("sum1.txt", "505.txt ")
    (folder / "map_name_to_file.txt").write_text(table)
    assert is_named("mix1", departing(derive(collected(paths, folder), BASE)))


def test_an_analysis_without_a_board(paths: tuple[Path, Path], tmp_path: Path) -> None:
    folder = analysis(tmp_path / "snapshot")
    shutil.rmtree(folder / "runtime")
    with pytest.raises(DataError, match="no tensors of the board") as error:
        collected(paths, folder)
    assert "simulator, golden" in str(error.value) and "target=" in str(error.value)


def test_nothing_outside_of_the_folder_is_read(paths: tuple[Path, Path], tmp_path: Path) -> None:
    folder = analysis(tmp_path / "snapshot")
    (tmp_path / "secret.txt").write_text("1")
    (folder / "runtime" / "sum1.txt").unlink()
    (folder / "runtime" / "sum1.txt").symlink_to(tmp_path / "secret.txt")
    with pytest.raises(DataError, match="leads out of its folder"):
        collected(paths, folder)


@pytest.mark.thorough
def test_values_that_are_too_few_or_missing_and_the_rest_judged(paths: tuple[Path, Path], tmp_path: Path) -> None:
    folder = analysis(tmp_path / "snapshot")
    (folder / "runtime" / "sum2.txt").write_text("0.5\n0.25\n")
    for path in folder.rglob("relu0*"):
        path.unlink()
    case = collected(paths, folder)
    assert any("sum2: a sample has (2,) where the model has (6, 8, 8)" in notice for notice in case.record.notices)
    assert any("relu0" in notice for notice in case.record.notices)
    assert is_named("mix1", departing(derive(case, BASE)))


def test_another_input_is_said(paths: tuple[Path, Path]) -> None:
    """RKNN analyses one image: it has to be the first of the evaluation data. One side alone can be given."""
    case = collected(paths, RECORDED / "simulator", validation=X[5:])
    assert len(case.record.device.tensors) == 9
    assert any("fed with other values" in notice for notice in case.record.notices)

"""Labels in the text files of YOLO, beside the images and in the folder beside theirs."""

from pathlib import Path

import numpy as np
import pytest

from quantmedic.collectors.data.datasets import InputSpec, open_dataset
from quantmedic.collectors.data.labels import yolo_labels
from quantmedic.collectors.data.preprocessing import Preprocessing
from quantmedic.engine.errors import DataError

ROWS = {"a": "1 0.5 0.5 0.2 0.4\n0 0.25 0.75 0.5 0.5\n", "b": "", "c": "2 0.1 0.1 0.1 0.1"}


def images(folder: Path) -> list[Path]:
    """Four images; of the last nothing is labelled."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{name}.png" for name in "abcd"]
    for path in paths:
        path.touch()
    return paths


def write(folder: Path, rows: dict[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in rows.items():
        (folder / f"{name}.txt").write_text(text, encoding="utf-8")


def test_files_are_found_beside_the_images_and_in_the_twin_of_their_folder(tmp_path: Path) -> None:
    for number, (place, labels) in enumerate(
        (
            ("data/images/val", "data/images/val"),
            ("data/images/val", "data/labels/val"),
            ("images", "images"),
            ("images", "labels"),
        )
    ):
        paths = images(tmp_path / str(number) / place)
        write(tmp_path / str(number) / labels, ROWS)
        found = yolo_labels(paths)
        assert found is not None and found.shape == (4, 2, 5), labels
        assert found[0].tolist() == [[1, 0.5, 0.5, 0.2, 0.4], [0, 0.25, 0.75, 0.5, 0.5]]
        assert found[2].tolist() == [[2, 0.1, 0.1, 0.1, 0.1], [-1] * 5]
        assert (found[[1, 3]] == -1).all()


def test_of_a_polygon_the_box_around_it_counts(tmp_path: Path) -> None:
    paths = images(tmp_path)
    write(tmp_path, {"a": "3 0.1 0.2 0.5 0.2 0.3 0.8"})
    found = yolo_labels(paths)
    assert found is not None
    np.testing.assert_allclose(found[0, 0], [3, 0.3, 0.5, 0.4, 0.6])


def test_other_texts_and_no_files_are_no_labels(tmp_path: Path) -> None:
    paths = images(tmp_path)
    assert yolo_labels(paths) is None
    for text in ("a dog on a sofa", "1 2 3", "0.5 0.5 0.5 0.5 0.5", "-1 0.5 0.5 0.5 0.5"):
        write(tmp_path, {"a": text})
        assert yolo_labels(paths) is None, text
    (tmp_path / "a.txt").write_bytes(b"\xff\xfe\x00\x01")
    assert yolo_labels(paths) is None


def test_a_broken_row_is_named(tmp_path: Path) -> None:
    paths = images(tmp_path)
    write(tmp_path, {**ROWS, "c": "\n2 0.1 0.1 0.1"})
    with pytest.raises(DataError, match="a row of a label file is no box") as error:
        yolo_labels(paths)
    assert "c.txt:2" in str(error.value)


def test_a_folder_of_images_has_these_labels(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    folder = tmp_path / "images" / "val"
    folder.mkdir(parents=True)
    for name in "abc":
        image.new("RGB", (8, 8)).save(folder / f"{name}.png")
    write(tmp_path / "labels" / "val", ROWS)
    spec = InputSpec("x", (None, 3, 8, 8), np.dtype(np.float32))
    dataset = open_dataset(folder, [spec], preprocessing=Preprocessing(scale=255.0), role="validation")
    assert dataset.labelled
    (batch,) = dataset.batches(3)
    assert batch.labels is not None and batch.labels[:, 0, 0].tolist() == [1, -1, 2]


def test_a_later_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    paths = images(tmp_path)
    write(tmp_path, ROWS)
    (tmp_path / "d.txt").write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(DataError, match="a label file is not text"):
        yolo_labels(paths)

"""Files and options that are nested without end, or hold what is no value, are refused by name."""

import json
import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import onnx
import pytest
from builders.onnx_models import conv_net

from quantmedic.api.checks import load_baseline
from quantmedic.api.rulebase import apply_thresholds, load_rulebase
from quantmedic.cli.main import main
from quantmedic.collectors.data.arrays import npy_column, npz_columns
from quantmedic.collectors.data.labels import read_labels
from quantmedic.collectors.data.preprocessing import Preprocessing, read_image
from quantmedic.collectors.from_checkpoint.safetensors_file import open_checkpoint
from quantmedic.collectors.from_onnx.onnx_file import load_model
from quantmedic.collectors.metrics.metric import call_metric
from quantmedic.collectors.toolchain_files.merge import read_source
from quantmedic.engine.contract.searches import SensitivityRecord
from quantmedic.engine.errors import BaselineError, DataError, ModelError, RuleError
from quantmedic.engine.json_text import read_json
from quantmedic.engine.reading_limits import LimitError
from quantmedic.engine.rules.examples import read_page
from quantmedic.reports.search_formats import search_files


def test_a_baseline_nested_too_deeply_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    path.write_text("[" * 100_000 + "]" * 100_000)
    with pytest.raises(LimitError, match="too many levels"):
        load_baseline(path)


def test_a_baseline_that_is_a_pipe_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "baseline.json")
    with pytest.raises(BaselineError, match="cannot read the baseline"):
        load_baseline(tmp_path / "baseline.json")


def test_a_threshold_whose_name_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "thresholds.yaml"
    for text in ("1: 2", "null: 3", "[1]: 2", "2026-01-01: 1", "? {a: 1}\n: 2"):
        path.write_text(text + "\n")
        with pytest.raises(RuleError, match=r"unknown threshold|not a YAML file"):
            apply_thresholds(load_rulebase(), [str(path)])


RUN = {"mode": "one", "unit": 0, "share": None, "sqnr_db": 1.0}
RECORD = {
    "quantmedic_version": "1",
    "float_model": "a",
    "quantized_model": "b",
    "float_sha256": "",
    "quantized_sha256": "",
    "data": "",
    "data_sha256": "",
    "samples": 1,
    "seed": 0,
    "batch_size": 1,
    "metric": None,
    "metric_output": None,
    "float_metric": None,
    "modes": ["one"],
    "units": [{"name": "x", "op_type": "Conv", "quantized": []}],
    "unsimulated": [],
    "columns": None,
    "deployed": {"sqnr_db": 1.0},
    "simulated": {"sqnr_db": "Infinity"},
    "runs": [RUN],
}


def test_a_sensitivity_record_that_was_edited_is_refused_before_it_is_drawn(tmp_path: Path) -> None:
    path = tmp_path / "sensitivity.json"
    path.write_text(json.dumps(RECORD))
    search_files(SensitivityRecord.model_validate(read_json(path)))
    edits: tuple[dict[str, object], ...] = (
        {"units": [], "runs": []},
        {"modes": [], "runs": []},
        {"runs": [RUN, RUN]},
        {"runs": [RUN | {"unit": 7}]},
        {"seed": "x"},
    )
    for text in ("{", *(json.dumps(RECORD | edit) for edit in edits)):
        path.write_text(text)
        with pytest.raises(ValueError):
            SensitivityRecord.model_validate(read_json(path))


def test_a_name_of_5000_characters_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["diagnose", "x" * 5000])
    assert left.value.code == 2
    said = capsys.readouterr().err
    assert "a file name is too long" in said and "internal error" not in said and len(said) < 500


def test_images_by_another_name_start_no_program(tmp_path: Path) -> None:
    path = tmp_path / "image.png"
    path.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\n")
    with pytest.raises(DataError, match="image cannot be decoded"):
        read_image(path, 3, Preprocessing())


def test_images_larger_than_photographs_and_pipes_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Image = pytest.importorskip("PIL.Image")
    Image.new("L", (100, 100)).save(tmp_path / "image.png")
    monkeypatch.setenv("QUANTMEDIC_MAX_IMAGE_PIXELS", "9999")
    with pytest.raises(LimitError, match="an image has too many pixels: 10000 pixels, the limit is 9999 pixels"):
        read_image(tmp_path / "image.png", 1, Preprocessing())
    os.mkfifo(tmp_path / "pipe.png")
    with pytest.raises(DataError, match="image cannot be decoded"):
        read_image(tmp_path / "pipe.png", 1, Preprocessing())


def test_labels_are_bounded_in_rows_and_in_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "labels.txt"
    path.write_text("1\n" * 11)
    monkeypatch.setenv("QUANTMEDIC_MAX_LABEL_ROWS", "10")
    with pytest.raises(LimitError, match="a file of labels has too many rows"):
        read_labels(path)
    path.write_text("word\n" * 9 + "w" * 100_000)
    monkeypatch.setenv("QUANTMEDIC_MAX_ARRAY_BYTES", "1000000")
    with pytest.raises(LimitError, match="an array that is read at once has too many bytes"):
        read_labels(path)


def test_pipes_in_a_folder_of_arrays_are_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.npy")
    with pytest.raises(DataError, match="file cannot be opened"):
        npy_column(tmp_path / "a.npy")


def test_compressed_arrays_of_gigabytes_are_not_decompressed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.npz"
    np.savez_compressed(path, x=np.zeros((4, 1 << 20), np.uint8), y=np.zeros((1 << 11, 1 << 11), np.uint8).T)
    columns = npz_columns(path)
    assert columns["x"].load().shape == (4, 1 << 20)
    monkeypatch.setenv("QUANTMEDIC_MAX_ARRAY_BYTES", str(1 << 21))
    for name in ("x", "y"):
        with pytest.raises(LimitError, match=r"an array that is read at once has too many bytes: 4\.0 MiB"):
            columns[name].load()


def test_tensors_of_types_that_onnx_does_not_have_are_refused(tmp_path: Path) -> None:
    model = conv_net()
    model.graph.initializer[0].data_type = 99
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(ModelError, match="a tensor is of an unknown type"):
        load_model(tmp_path / "model.onnx")


def test_external_data_that_is_named_over_and_over_is_not_read(tmp_path: Path) -> None:
    model = conv_net()
    (tmp_path / "data.bin").write_bytes(bytes(4096))
    for number in range(5):
        tensor = onnx.TensorProto(name=f"t{number}", data_type=onnx.TensorProto.FLOAT, dims=[1024])
        tensor.data_location = onnx.TensorProto.EXTERNAL
        for key, value in {"location": "data.bin", "offset": "0", "length": "4096"}.items():
            tensor.external_data.add(key=key, value=value)
        model.graph.initializer.append(tensor)
        (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
        with pytest.raises(ModelError, match="many times over") if number == 4 else nullcontext():
            load_model(tmp_path / "model.onnx")


def test_a_metric_of_hundreds_of_digits_is_refused() -> None:
    with pytest.raises(DataError, match="did not return numbers"):
        call_metric("module:function", lambda outputs, labels: [10**400], {}, np.zeros(1))


@pytest.mark.thorough
def test_pipes_given_as_models_are_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.bin")
    code = (
        "import sys; from pathlib import Path\n"
        "from quantmedic.collectors.front_ends import front_end_of_pair\n"
        "from quantmedic.engine.errors import QuantmedicError\n"
        "path = Path(sys.argv[1])\n"
        "try:\n    front_end_of_pair(path, path).open_paths(path, path)\nexcept QuantmedicError:\n    print('refused')"
    )
    given = [sys.executable, "-c", code, str(tmp_path / "model.bin")]
    assert subprocess.run(given, capture_output=True, text=True, timeout=300, check=False).stdout == "refused\n"


def test_a_header_of_safetensors_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    numpy_files = pytest.importorskip("safetensors.numpy")
    numpy_files.save_file({"w": np.ones((2, 2), np.float32)}, tmp_path / "model.safetensors")
    assert open_checkpoint(tmp_path / "model.safetensors").nbytes == 16
    monkeypatch.setenv("QUANTMEDIC_MAX_TEXT_BYTES", "10")
    with pytest.raises(LimitError, match="a file that is read whole has too many bytes"):
        open_checkpoint(tmp_path / "model.safetensors")


def test_a_page_beside_a_rule_that_is_no_text_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "X001.md"
    page.write_bytes(b"# caf\xe9 (X001)\n")
    with pytest.raises(RuleError, match="the page is not UTF-8 text"):
        read_page(page)
    monkeypatch.setenv("QUANTMEDIC_MAX_TEXT_BYTES", "10")
    with pytest.raises(LimitError, match="too many bytes"):
        read_page(page)


def test_tables_of_toolchains_are_bounded_while_they_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "layers.csv"
    errors = "stddev,mean_error,max_abs_error,mean_squared_error"
    head = f"op_name,tensor_idx,num_elements,{errors},scale,zero_point,tensor_name\n"
    path.write_text(head + "".join(f"CONV,1,1,0,0,0,0.5,0.1,3,t{i}\n" for i in range(11)))
    assert len(read_source(path).imported.layers) == 11
    monkeypatch.setenv("QUANTMEDIC_MAX_IMPORTED_LAYERS", "10")
    with pytest.raises(LimitError, match="too many tensors and layers: more, the limit is 10 tensors and layers"):
        read_source(path)


def test_a_threshold_that_is_no_value_is_refused() -> None:
    for value, says in (
        ("2026-13-45", "not a number"),
        ("[" * 5_000 + "]" * 5_000, "too many levels"),
        ("9" * 400, "a whole number has too many digits: 400 digits, the limit is 300 digits"),
        ("!!timestamp x", "not a number"),
        ("!!bool x", "not a number"),
        ("{[1]: 2}", "not a number"),
        ("0x" + "f" * 290, "must be a number"),
        ("\ud800", "not a number"),
    ):
        with pytest.raises((RuleError, LimitError), match=says) as caught:
            apply_thresholds(load_rulebase(), [f"activation_zscore={value}"])
        assert len(str(caught.value)) < 500

"""TensorFlow's models given as they are: converted where TensorFlow is installed, else what to paste."""

import os
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from builders.recordings import RECORDINGS
from click.testing import CliRunner

import quantmedic
from quantmedic.cli.main import cli
from quantmedic.collectors import tensorflow_files
from quantmedic.collectors.native.runs import TimeLimitError, time_limit
from quantmedic.collectors.tensorflow_files import convert_tensorflow, tensorflow_kind
from quantmedic.engine.errors import ModelError

FLOAT, INT8 = RECORDINGS / "inc" / "float.onnx", RECORDINGS / "inc" / "int8.onnx"
GRAPH = b"\n\x05\n\x01x\x12\x00"
#: Stands for tf2onnx: writes a network that is known where it is asked to.
CONVERTER = f"""\
import shutil, sys
if "fails" in sys.argv[sys.argv.index("--saved-model") + 1]:
    sys.exit("ValueError: no such operator: Bessel")
while "endless" in sys.argv[sys.argv.index("--saved-model") + 1]:
    pass
shutil.copy({str(FLOAT)!r}, sys.argv[sys.argv.index("--output") + 1])
open({{log!r}}, "a").write(" ".join(sys.argv[1:]) + "\\n")
"""


@pytest.fixture
def written(tmp_path: Path) -> dict[str, Path]:
    """A model of every kind, as far as its first bytes."""
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "saved_model.pb").write_bytes(b"\x08\x01\x12\x00")
    (tmp_path / "frozen.pb").write_bytes(GRAPH)
    (tmp_path / "old.h5").write_bytes(b"\x89HDF\r\n\x1a\n")
    with zipfile.ZipFile(tmp_path / "new.keras", "w") as archive:
        archive.writestr("config.json", "{}")
    return {path.name: path for path in tmp_path.iterdir()}


def test_kinds_are_known_by_what_a_file_holds(written: dict[str, Path], tmp_path: Path) -> None:
    kinds = {name: tensorflow_kind(path) for name, path in written.items()}
    assert kinds == {
        "saved": "SavedModel",
        "frozen.pb": "frozen graph",
        "old.h5": "Keras model",
        "new.keras": "Keras model",
    }
    assert tensorflow_kind(written["saved"] / "saved_model.pb") == "SavedModel"
    onnx = tmp_path / "network.pb"
    onnx.write_bytes(FLOAT.read_bytes())
    np.savez(tmp_path / "data.npz", x=np.zeros(1))
    for path in (FLOAT, onnx, tmp_path / "data.npz", tmp_path, tmp_path / "nothing.pb"):
        assert tensorflow_kind(path) is None


@pytest.mark.source("insights-tensorflow")
def test_without_tensorflow_the_error_says_what_to_paste(
    written: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensorflow_files, "find_spec", lambda package: None)
    for name, pasted in (
        ("saved", "python -m tf2onnx.convert --saved-model {path} --output saved.onnx"),
        ("frozen.pb", "--graphdef {path} --inputs INPUT:0 --outputs OUTPUT:0 --output frozen.onnx"),
        ("old.h5", "tf.keras.models.load_model('{path}').export('old')"),
        ("new.keras", "python -m tf2onnx.convert --saved-model new --output new.onnx"),
    ):
        result = CliRunner().invoke(cli, ["diagnose", str(written[name]), str(INT8), "-v", "x.npz"])
        assert isinstance(result.exception, ModelError), "exit code 2 without a traceback"
        text = str(result.exception)
        assert "tensorflow and tf2onnx are not installed here" in text
        assert "pip install tensorflow tf2onnx" in text and pasted.format(path=written[name]) in text


def test_beside_a_litert_model_it_becomes_one(written: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensorflow_files, "find_spec", lambda package: None)
    quantized = written["saved"].with_name("int8.tflite")
    quantized.write_bytes(b"\x1c\0\0\0TFL3")
    for name, maker in (
        ("saved", "from_saved_model"),
        ("old.h5", "from_keras_model"),
        ("frozen.pb", "from_frozen_graph"),
    ):
        with pytest.raises(ModelError, match="tensorflow is not installed here") as error:
            quantmedic.collect(written[name], quantized, validation={"x": np.zeros((1, 3, 8, 8), np.float32)})
        assert maker in str(error.value.help) and ".tflite" in str(error.value.help)


@pytest.fixture
def converter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for tf2onnx that can be imported; what it was asked for stands in the file."""
    package, log = tmp_path / "packages" / "tf2onnx", tmp_path / "asked.txt"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "convert.py").write_text(CONVERTER.format(log=str(log)))
    monkeypatch.setenv("PYTHONPATH", str(package.parent), prepend=os.pathsep)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(tensorflow_files, "find_spec", lambda package: object())
    return log


@pytest.mark.thorough
def test_what_is_made_is_measured_told_and_kept(written: dict[str, Path], converter: Path) -> None:
    samples = {"x": np.random.default_rng(0).normal(size=(4, 3, 8, 8)).astype(np.float32)}
    case = quantmedic.collect(written["saved"], INT8, validation=samples)
    again = quantmedic.collect(written["saved"] / "saved_model.pb", INT8, validation=samples)
    assert case.record.operators
    (notice,) = [text for text in case.record.notices if "TensorFlow" in text]
    assert "saved, a TensorFlow SavedModel, was measured as" in notice and "tf2onnx.convert --saved-model" in notice
    assert len(converter.read_text().splitlines()) == 1, "kept: it is converted once"
    assert again.record.operators == case.record.operators
    (written["saved"] / "saved_model.pb").write_bytes(b"\x08\x02\x12\x00")
    static = quantmedic.collect_static(written["saved"], INT8)
    assert any("a TensorFlow SavedModel" in text for text in static.record.notices)
    assert len(converter.read_text().splitlines()) == 2, "another model"


def test_a_refusal_of_the_converter_is_told(written: dict[str, Path], converter: Path) -> None:
    refused = written["saved"].rename(written["saved"].with_name("fails"))
    with pytest.raises(ModelError, match="refuses the model") as error:
        convert_tensorflow(refused, "SavedModel", "onnx")
    assert "ValueError: no such operator: Bessel" in error.value.where
    assert "python -m tf2onnx.convert --saved-model" in str(error.value.help)


@pytest.mark.thorough
def test_a_converter_that_never_ends_is_killed(written: dict[str, Path], converter: Path) -> None:
    endless = written["saved"].rename(written["saved"].with_name("endless"))
    with time_limit(1.5), pytest.raises(TimeLimitError, match=r"endless: TensorFlow's converter\n.*1\.5 s"):
        convert_tensorflow(endless, "SavedModel", "onnx")
    assert not list((converter.parent / "cache").rglob("*.onnx"))


MAKE = """\
import numpy as np, tensorflow as tf
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2
layers = tf.keras.layers
tf.keras.utils.set_random_seed(0)
model = tf.keras.Sequential([layers.Input((8, 8, 3), name="image"), layers.Conv2D(8, 3, activation="relu"),
                             layers.GlobalAveragePooling2D(), layers.Dense(5)])
model.save("model.keras"); model.save("model.h5"); model.export("saved")
function = tf.function(lambda image: model(image)).get_concrete_function(tf.TensorSpec((None, 8, 8, 3), name="image"))
frozen = convert_variables_to_constants_v2(function)
tf.io.write_graph(frozen.graph, ".", "frozen.pb", as_text=False)
x = np.random.default_rng(0).normal(size=(16, 8, 8, 3)).astype(np.float32)
np.savez("data.npz", image=x)
converter = tf.lite.TFLiteConverter.from_saved_model("saved")
converter.optimizations = [tf.lite.Optimize.DEFAULT]
converter.representative_dataset = lambda: ([each[None]] for each in x)
open("int8.tflite", "wb").write(converter.convert())
"""


@pytest.mark.thorough
@pytest.mark.source("insights-tensorflow")
@pytest.mark.skipif(
    any(find_spec(name) is None for name in ("tensorflow", "tf2onnx", "ai_edge_litert")),
    reason="tensorflow or tf2onnx is not installed",
)
def test_models_of_tensorflow_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All four forms against a LiteRT model, and one of them against itself through ONNX: the float values agree."""
    subprocess.run([sys.executable, "-c", MAKE], cwd=tmp_path, check=True, capture_output=True)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    data = tmp_path / "data.npz"
    found: list[float] = []
    for name in ("saved", "model.keras", "model.h5", "frozen.pb"):
        case = quantmedic.collect(tmp_path / name, tmp_path / "int8.tflite", validation=data)
        (output,) = quantmedic.inspect(case).facts.outputs
        found.append(output.tensor.data.values.mean or 0.0)
        assert (output.tensor.data.accumulated.sqnr_db or 0.0) > 20
    assert max(found) - min(found) < 1e-6
    case = quantmedic.collect(tmp_path / "saved", tmp_path / "frozen.pb", validation=data)
    (output,) = quantmedic.inspect(case).facts.outputs
    assert case.record.model.framework == "onnx"
    assert output.tensor.data.values.mean == pytest.approx(found[0], abs=1e-6)

"""Real models from public packages, quantized as their users would, diagnosed end to end."""

import json
import os
import py_compile
import random
import sysconfig
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from itertools import islice
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from builders.onnx_models import own
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static

import quantmedic
from quantmedic.engine.contract.diagnosis import Diagnosis

pytestmark = pytest.mark.thorough

RESNET8 = Path(__file__).parents[3] / "shared" / "models" / "resnet8"
#: Files of each kind, and the class of each by the ends of names; ``pyc`` files are made.
MAGIKA_SAMPLES = 24
MAGIKA_KINDS = {
    "py": "python", "json": "json", "h": "c", "pyc": "pythonbytecode", "so": "elf", "js": "javascript",
    "html": "html", "css": "css", "md": "markdown", "yaml": "yaml", "xml": "xml", "png": "png", "toml": "toml",
}  # fmt: skip


class Reader(CalibrationDataReader):
    """Feeds calibration samples one batch at a time."""

    def __init__(self, feeds: list[dict[str, np.ndarray]]) -> None:
        self._feeds: Iterator[dict[str, np.ndarray]] = iter(feeds)

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._feeds, None)


def package_file(package: str, name: str) -> Path:
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        pytest.skip(f"{package} is not installed")
    return Path(spec.origin).parent / name


def causes(diagnosis: Diagnosis) -> list[str]:
    return [cause.cause for cause in diagnosis.causes if cause.severity in ("high", "medium")]


@pytest.mark.skipif(not RESNET8.is_dir(), reason="the ResNet8 of MLPerf Tiny is not beside the project")
class TestResNet8:
    """Wants x/128 - 1."""

    @pytest.fixture(scope="class")
    @staticmethod
    def data() -> dict[str, np.ndarray]:
        return dict(np.load(RESNET8 / "cifar10_subset.npz"))

    def diagnose(self, data, representative: np.ndarray, folder: Path, **options) -> Diagnosis:
        model = RESNET8 / "float.onnx"
        name = ort.InferenceSession(str(model)).get_inputs()[0].name
        feeds = [{name: representative[i : i + 16]} for i in range(0, len(representative), 16)]
        quantize_static(str(own(model, folder)), str(folder / "int8.onnx"), Reader(feeds), **options)
        validation = {name: right(data["validation"][:400]), "labels": data["validation_labels"][:400]}
        return quantmedic.diagnose(
            model, folder / "int8.onnx", representative={name: representative}, validation=validation
        )

    @pytest.mark.nightly
    @pytest.mark.parametrize(
        "options",
        [{"per_channel": True}, {"quant_format": QuantFormat.QOperator}],
        ids=["per-channel", "QOperator"],
    )
    def test_healthy_control_is_clean(self, data, tmp_path, options):
        diagnosis = self.diagnose(data, right(data["representative"]), tmp_path, **options)
        # With one scale per channel, the default range of the pooling costs 5 dB: 400 labels do not tell what for.
        assert diagnosis.verdict in ("healthy", "undecided")
        assert causes(diagnosis) == []
        if "quant_format" in options:
            assert diagnosis.model.integer_share == 1.0

    @pytest.mark.nightly
    def test_divided_by_255_is_named_first(self, data, tmp_path):
        wrong = data["representative"].astype(np.float32) / 255
        diagnosis = self.diagnose(data, wrong, tmp_path, per_channel=True)
        assert causes(diagnosis)[0] == "preprocessing-mismatch"
        relation = diagnosis.datasets[0].relation
        assert relation.method == "lattice"
        assert relation.slope == pytest.approx(128 / 255, rel=1e-3)


def right(images: np.ndarray) -> np.ndarray:
    return images.astype(np.float32) / 128 - 1


@pytest.mark.nightly
class TestMagika:
    """File types from bytes; the network holds a decomposed layer norm and a decomposed GELU."""

    @pytest.fixture(scope="class")
    @staticmethod
    def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[np.ndarray, np.ndarray]:
        model = package_file("magika", "models/standard_v3_3/model.onnx")
        classes = json.loads((model.parent / "config.min.json").read_text())["target_labels_space"]
        drawn = {kind: drawn_files(paths, MAGIKA_SAMPLES) for kind, paths in installed_files(MAGIKA_KINDS).items()}
        drawn["pyc"] = compiled(drawn["py"], tmp_path_factory.mktemp("compiled"))
        content = [(path.read_bytes(), classes.index(MAGIKA_KINDS[kind])) for kind in drawn for path in drawn[kind]]
        order = np.random.default_rng(0).permutation(len(content))
        inputs, labels = np.array([file_bytes(own) for own, _ in content]), np.array([label for _, label in content])
        return inputs[order], labels[order]

    def diagnose(self, files, folder: Path, attribution: bool = True, **options) -> Diagnosis:
        model = package_file("magika", "models/standard_v3_3/model.onnx")
        inputs, labels = files
        half = len(inputs) // 2
        feeds = [{"bytes": inputs[i : i + 4]} for i in range(0, 64, 4)]
        quantize_static(str(own(model, folder)), str(folder / "int8.onnx"), Reader(feeds), **options)
        return quantmedic.diagnose(
            model,
            folder / "int8.onnx",
            representative={"bytes": inputs[:64]},
            validation={"bytes": inputs[half : half + 96], "labels": labels[half : half + 96]},
            attribution=attribution,
        )

    def test_error_is_born_in_the_layer_norm(self, files, tmp_path):
        """Leaving the first layer norm in float recovers nearly everything; leaving the GELU recovers nothing."""
        diagnosis = self.diagnose(files, tmp_path)
        assert diagnosis.drop_class == "large"
        first = diagnosis.causes[0]
        assert first.cause == "error-amplifier"
        assert any("LayerNorm_0" in (layer.float_name or "") for layer in first.layers)
        group = [layer.float_name for layer in (*first.layers, *first.feeders)]
        healed = self.diagnose(files, tmp_path, attribution=False, nodes_to_exclude=group)
        assert healed.metrics.drop < 0.5 * diagnosis.metrics.drop, "the remedy must bring back what the cause costs"

    def test_only_products_quantized_is_clean(self, files, tmp_path):
        diagnosis = self.diagnose(files, tmp_path, op_types_to_quantize=["MatMul", "Conv"])
        # Which files are drawn depends on what is installed; over some, 96 labels do not tell a small loss from none.
        assert diagnosis.verdict in ("healthy", "undecided")
        assert causes(diagnosis) == []


def installed_files(kinds: Iterable[str]) -> dict[str, list[Path]]:
    """Files of the standard library and of packages by the ends of their names, in the same order each time.

    Folders that tests write to are left out, and with them what Python compiles while other tests run.
    """
    found: dict[str, list[Path]] = {kind: [] for kind in kinds}
    for root in sorted({os.path.realpath(sysconfig.get_path(name)) for name in ("stdlib", "platlib", "purelib")}):
        for folder, folders, names in os.walk(root):
            # Packages may lie below the standard library, and are walked as a root of their own.
            folders[:] = sorted({*folders} - {"__pycache__", "site-packages", "dist-packages"})
            for name in sorted(names):
                if (kind := name.rpartition(".")[2]) in found:
                    found[kind].append(Path(folder, name))
    return found


def drawn_files(paths: list[Path], count: int) -> list[Path]:
    """So many of them at random that hold more than a few words."""
    shuffled = random.Random(0).sample(paths, len(paths))
    return list(islice((path for path in shuffled if path.is_file() and path.stat().st_size > 200), count))


def compiled(sources: list[Path], folder: Path) -> list[Path]:
    """What Python keeps of sources."""
    made = (py_compile.compile(str(source), str(folder / f"{i}.pyc")) for i, source in enumerate(sources))
    return [Path(path) for path in made if path is not None]


def file_bytes(content: bytes) -> np.ndarray:
    """1024 bytes from either end, 256 where the file is shorter."""
    first, last = content[:4096].lstrip()[:1024], content[-4096:].rstrip()[-1024:]
    values = np.full(2048, 256, np.int32)
    values[: len(first)] = list(first)
    values[2048 - len(last) :] = list(last)
    return values


@pytest.mark.nightly
class TestSwiftF0:
    """Pitch from audio: scalar inputs, a fixed batch of one, double outputs, a metric of the user's."""

    @pytest.fixture(scope="class")
    @staticmethod
    def tones() -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng(0)
        pitches = np.exp(rng.uniform(np.log(70), np.log(1200), 48))
        return np.stack([tone(rng, pitch) for pitch in pitches]), pitches

    def diagnose(self, tones, folder: Path, monkeypatch: pytest.MonkeyPatch, **options) -> Diagnosis:
        model = package_file("swift_f0", "model.onnx")
        audio, pitches = tones
        session = ort.InferenceSession(str(model))
        limits = {"fmin": 46.875, "fmax": 2093.75}
        scalars = {i.name: limits[i.name] for i in session.get_inputs() if i.name in limits}
        feeds = [
            {"audio": audio[i : i + 1], **{k: np.array(v, np.float32) for k, v in scalars.items()}} for i in range(16)
        ]
        quantize_static(str(own(model, folder)), str(folder / "int8.onnx"), Reader(feeds), **options)

        def data(part: slice) -> dict[str, np.ndarray]:
            count = len(audio[part])
            return {"audio": audio[part], **{k: np.full(count, v, np.float32) for k, v in scalars.items()}}

        monkeypatch.syspath_prepend(str(Path(__file__).parent))
        return quantmedic.diagnose(
            model,
            folder / "int8.onnx",
            representative=data(slice(0, 16)),
            validation=data(slice(16, None)) | {"labels": pitches[16:]},
            metric="f0metric:pitch_accuracy",
        )

    def test_healthy_although_masks_hold_infinities(self, tones, tmp_path, monkeypatch):
        diagnosis = self.diagnose(tones, tmp_path, monkeypatch, op_types_to_quantize=["Conv"])
        assert diagnosis.metrics.float_value > 0.95
        # A repair is worth 6.0 dB, which is the bound: the machine's kernels decide on which side it lies.
        assert diagnosis.verdict in ("healthy", "undecided")
        assert causes(diagnosis) == []


def tone(rng: np.random.Generator, pitch: float, samples: int = 12000) -> np.ndarray:
    """A harmonic tone with noise 25 dB below it."""
    time = np.arange(samples) / 16000
    parts = [
        np.sin(2 * np.pi * pitch * k * time + rng.uniform(0, 6.28)) * rng.uniform(0.3, 1) / k
        for k in range(1, 6)
        if pitch * k < 7900
    ]
    wave = np.sum(parts, axis=0)
    wave *= rng.uniform(0.2, 0.8) / np.abs(wave).max()
    return (wave + rng.normal(0, wave.std() * 10 ** (-25 / 20), samples)).astype(np.float32)

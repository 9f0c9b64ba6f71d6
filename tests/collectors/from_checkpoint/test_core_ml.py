"""Packages of Core ML: weights as coremltools decompresses them, faults that are named, and damaged files."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

import quantmedic
from quantmedic.collectors.from_checkpoint.core_ml.package import open_core_ml
from quantmedic.engine.errors import ModelError

RECORDED = Path(__file__).parents[2] / "recordings/coreml"
EXPECTED = np.load(RECORDED / "expected.npz")
NAMES = sorted({name.partition("/")[0] for name in EXPECTED.files})
FLOAT = RECORDED / "float.mlpackage"
#: Formats, bits, groups and the lowest code of the linear layer.
KINDS = {
    "int8_16": ("linear", 8, 1, -128),
    "int8_16_offset": ("linear", 8, 1, -128),
    "int8_offset": ("linear", 8, 1, -128),
    "int4_blocks": ("linear", 4, 8, -8),
    "palette4_16": ("palettized", 4, 1, None),
    "palette3": ("palettized", 3, 1, None),
    "palette2_groups": ("palettized", 2, 1, None),
    "sparse_16": ("sparse", 32, 1, None),
    "sparse": ("sparse", 32, 1, None),
    "sparse_int8": ("linear sparse", 8, 1, None),
    "sparse_palette4": ("palettized sparse", 4, 1, None),
}


def package(name: str) -> Path:
    return RECORDED / f"{name}.mlpackage"


def test_weights_are_those_of_coremltools(subtests: pytest.Subtests) -> None:
    for name in NAMES:
        _, layers, refused = open_core_ml(package(name))
        with subtests.test(name):
            assert not refused and sorted(layers) == ["conv", "fc"]
            assert (layers["fc"].format, layers["fc"].bits, layers["fc"].groups, layers["fc"].low) == KINDS[name]
            for layer, found in layers.items():
                values = found.read(slice(0, found.shape[0]), found.declared).values()
                expected = EXPECTED[f"{name}/{layer}"]
                np.testing.assert_allclose(values, expected.reshape(len(expected), -1), rtol=1e-6, atol=1e-7)


def test_what_it_wrote_shows_no_fault() -> None:
    for name in ("int8_16", "int4_blocks", "palette4_16"):
        diagnosis = quantmedic.compare_weights(FLOAT, package(name))
        assert diagnosis.model.framework == "coreml" and not diagnosis.causes, name
        assert [row.name for row in diagnosis.layers] == ["conv", "fc"], name
        assert not [text for text in diagnosis.warnings if "only in" in text or "no counterpart" in text], name


def test_a_float_checkpoint_under_the_names_of_torch(tmp_path: Path) -> None:
    """Whatever made the package writes underscores for dots."""
    tensors = open_core_ml(FLOAT)[0].tensors
    save_file({name: own.floats() for name, own in tensors.items()}, tmp_path / "float.safetensors")
    diagnosis = quantmedic.compare_weights(tmp_path / "float.safetensors", package("int8_16"))
    assert len(diagnosis.layers) == 2 and not diagnosis.causes


def copied(folder: Path, name: str) -> Path:
    return Path(shutil.copytree(package(name), folder / f"{name}.mlpackage"))


def weights_of(path: Path) -> Path:
    return path / "Data/com.apple.CoreML/weights/weight.bin"


def test_codes_of_other_weights_are_named(tmp_path: Path) -> None:
    path = copied(tmp_path, "int8_16")
    codes = open_core_ml(path)[0].tensors["fc.weight"]
    content = bytearray(weights_of(path).read_bytes())
    content[codes.offset : codes.offset + codes.nbytes] = np.random.default_rng(3).bytes(codes.nbytes)
    weights_of(path).write_bytes(content)
    first = quantmedic.compare_weights(FLOAT, path).causes[0]
    assert first.cause == "foreign-weights" and [own.float_name for own in first.layers] == ["fc"]


def test_a_compressed_package_is_no_float_one() -> None:
    with pytest.raises(ModelError, match="quantized itself"):
        quantmedic.compare_weights(package("palette3"), FLOAT)


# damaged and hostile packages


def test_a_layer_that_is_cut_off_is_not_compared(tmp_path: Path) -> None:
    path = copied(tmp_path, "int4_blocks")
    tensor = open_core_ml(path)[0].tensors["fc.weight"]
    content = bytearray(weights_of(path).read_bytes())
    content[tensor.offset - 64 : tensor.offset - 56] = bytes(8)
    weights_of(path).write_bytes(content)
    diagnosis = quantmedic.compare_weights(FLOAT, path)
    assert any("fc" in text and "not comparable" in text for text in diagnosis.warnings)


@pytest.mark.parametrize("place", ["../../../other.bin", "weights/link.bin"])
def test_files_outside_of_the_package_are_not_read(tmp_path: Path, place: str) -> None:
    path = copied(tmp_path, "float")
    (tmp_path / "other.bin").write_bytes(weights_of(path).read_bytes())
    (weights_of(path).parent / "link.bin").symlink_to(tmp_path / "other.bin")
    model = path / "Data/com.apple.CoreML/model.mlmodel"
    old = b"@model_path/weights/weight.bin"
    content = model.read_bytes()
    assert content.count(old) > 1
    name = b"@model_path/" + place.encode()
    model.write_bytes(content.replace(old, name[: len(old)].ljust(len(old), b"\0")))
    with pytest.raises(ModelError, match="damaged"):
        open_core_ml(path)


def test_a_manifest_does_not_lead_outside(tmp_path: Path) -> None:
    path = copied(tmp_path, "float")
    manifest = json.loads((path / "Manifest.json").read_text())
    manifest["itemInfoEntries"][manifest["rootModelIdentifier"]]["path"] = "../../other/model.mlmodel"
    (path / "Manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ModelError, match="outside of the package"):
        open_core_ml(path)

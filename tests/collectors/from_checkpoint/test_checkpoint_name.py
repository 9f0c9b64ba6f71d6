"""Names of reports: that of the file or folder, unless any model's could be called so."""

from pathlib import Path

import pytest

from quantmedic.collectors.from_checkpoint.checkpoint_name import name_of
from quantmedic.collectors.from_checkpoint.safetensors_file import Checkpoint

COMMIT = "1fc76a3cb29802f3fb72d12db35d9d613f35cb39"


def named(path: Path, quantized: dict[str, object] | None = None, floats: dict[str, object] | None = None) -> str:
    return name_of(Checkpoint(path, {}, quantized or {}), Checkpoint(Path("float"), {}, floats or {}))


NAMES = {
    "runs/Llama-3-8B-GPTQ": "Llama-3-8B-GPTQ",
    "runs/tiny-q4.gguf": "tiny-q4.gguf",
    "runs/7002": "7002",
    "7002/quantized": "7002/quantized",
    "7002/models/int4": "7002/int4",
    "Llama-3-8B-W4A16/model.safetensors": "Llama-3-8B-W4A16/model.safetensors",
    "tuned/model-00001-of-00002.safetensors": "tuned/model-00001-of-00002.safetensors",
    "tuned/Q4_K_M.gguf": "tuned/Q4_K_M.gguf",
    f"models--meta-llama--Llama-3-8B/snapshots/{COMMIT}": "Llama-3-8B",
}


def test_names_that_any_model_could_have_are_told_apart(tmp_path: Path) -> None:
    assert {path: named(tmp_path / path) for path in NAMES} == NAMES


def test_the_configuration_names_what_it_was_made_of(tmp_path: Path) -> None:
    for base in ("meta-llama/Llama-3-8B", "/home/someone/Llama-3-8B", "./Llama-3-8B/"):
        told: dict[str, object] = {"_name_or_path": base}
        assert named(tmp_path / "7002" / "quantized", told) == "Llama-3-8B (quantized)", base
        assert named(tmp_path / "7002" / "quantized", {}, told) == "Llama-3-8B (quantized)", base
        assert named(tmp_path / "7002" / "mine", told) == "mine", base
        assert named(tmp_path / COMMIT, told) == "Llama-3-8B", base
    for empty in ("./float", "", " ", None, 7, "/models/checkpoint"):
        assert named(tmp_path / "7002" / "quantized", {"_name_or_path": empty}) == "7002/quantized", empty


def test_the_folder_of_a_user_is_not_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "alice"
    (home / "models").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("USERPROFILE", str(home))
    assert "alice" not in named(home / "models" / "quantized")


def test_the_current_folder_is_called_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "7002" / "quantized").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "7002" / "quantized")
    assert named(Path()) == named(Path("../quantized")) == "7002/quantized"

"""The pair of models that dumps of a device are held against."""

from pathlib import Path

import pytest
from builders.device_dumps import FLOAT, QUANTIZED
from builders.onnx_models import save_pair


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return save_pair(tmp_path_factory.mktemp("pair"), FLOAT, QUANTIZED)

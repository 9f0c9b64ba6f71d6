"""The pair of models that dumps of a device are held against."""

from pathlib import Path

import pytest
from builders.device_dumps import DUMP, FLOAT, QUANTIZED, collected
from builders.onnx_models import save_pair

from quantmedic.engine.case.records import DeviceTensorRecord


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return save_pair(tmp_path_factory.mktemp("pair"), FLOAT, QUANTIZED)


@pytest.fixture(scope="module")
def wanted(paths: tuple[Path, Path]) -> tuple[DeviceTensorRecord, ...]:
    """What is found of the dump that is given as arrays."""
    return collected(paths, DUMP).record.device.tensors

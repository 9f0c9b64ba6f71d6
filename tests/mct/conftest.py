"""Sony's Model Compression Toolkit where it is installed; each module here skips itself where it is not.

The toolkit imports torchvision, whose wheel holds C++ operators linked against a CUDA build of torch. Its Python part
asks for the names of two of them only, so they are named here; no test calls them.
"""

import logging
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

if find_spec("model_compression_toolkit") is not None:
    import torch

    torch.set_num_threads(1)  # the networks are small
    if not hasattr(torch.ops.torchvision, "nms"):
        OPERATORS = torch.library.Library("torchvision", "DEF")  # the registration lives as long as this object
        for name in ("nms", "qnms"):
            OPERATORS.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup() -> None:
        """What a test draws, and what its fixtures draw, is the same in any order of tests."""
        torch.manual_seed(0)

    class Net(torch.nn.Module):
        """Convolution with batch norm, an activation, concatenation, addition and a linear layer."""

        def __init__(self, activation: torch.nn.Module | None = None) -> None:
            super().__init__()
            self.conv1 = torch.nn.Conv2d(3, 8, 3, padding=1)
            self.bn1 = torch.nn.BatchNorm2d(8)
            self.conv2 = torch.nn.Conv2d(8, 8, 3, padding=1)
            self.act = activation or torch.nn.SiLU()
            self.conv3 = torch.nn.Conv2d(16, 8, 3, padding=1)
            self.conv4 = torch.nn.Conv2d(8, 8, 1)
            self.gelu = torch.nn.GELU()
            self.fc = torch.nn.Linear(8, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            a = torch.relu(self.bn1(self.conv1(x)))
            b = self.act(self.conv2(a))
            c = self.conv3(torch.cat([a, b], 1)) + a
            return self.fc(self.conv4(self.gelu(c)).mean((2, 3)))


@pytest.fixture
def net() -> Any:
    """A small network, the same in every test."""
    torch.manual_seed(0)
    return Net().eval()


@pytest.fixture
def batches() -> list[Any]:
    """Four batches of eight images."""
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(8, 3, 16, 16, generator=generator) for _ in range(4)]


@pytest.fixture
def log_folder(tmp_path: Path) -> Iterator[Path]:
    """A folder that the toolkit logs to; afterwards it logs nowhere."""
    import model_compression_toolkit as mct
    from model_compression_toolkit.logger import Logger

    folder = tmp_path / "mct"
    known = list(Logger.get_logger().handlers)
    mct.set_log_folder(str(folder), logging.ERROR)
    yield folder
    Logger.LOG_PATH = None
    for handler in set(Logger.get_logger().handlers) - set(known):
        handler.close()
        Logger.get_logger().removeHandler(handler)

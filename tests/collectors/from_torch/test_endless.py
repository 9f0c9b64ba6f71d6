"""A module that never ends is stopped at the time limit."""

import time

import numpy as np
import pytest
import torch

import quantmedic
from quantmedic.engine.errors import ModelError

pytestmark = pytest.mark.thorough


def test_a_module_that_never_ends_is_refused() -> None:
    class Endless(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            while True:
                x = x + 1

    with pytest.raises(ModelError, match="longer than the time limit"):
        quantmedic.collect(Endless(), Endless(), validation=np.zeros((4, 3), np.float32), timeout=0.5)
    time.sleep(0.1)  # an error that came too late would be raised here

"""Compiled code that is kept: what loads it computes the same bits as what compiled it, and loads no compiler."""

import os
import subprocess
import sys
from pathlib import Path

import numba
import numpy as np
import pytest

from quantmedic.collectors.statistics import numba_loops as kernels
from quantmedic.collectors.statistics.compiled_cache import _TRIED

pytestmark = pytest.mark.thorough

_HASHES = """
import hashlib
import numpy as np
from quantmedic.collectors.pair.quantizer import Deployed, Rounding
from quantmedic.collectors.statistics import numba_loops as kernels
from quantmedic.engine.case.statistics import SetStatistics

x = np.random.default_rng(0).standard_normal((4, 8, 777)).astype(np.float32)
one, statistics = np.ones(8, np.float32), SetStatistics.empty([8])
grid, codes = Rounding(one, -one, one), Deployed((x * 50).astype(np.int8), one / 50, one)
kernels.observe(x, statistics.tensor(0), np.zeros(4, np.int64), grid, codes)
kernels.observe_error(x, x * np.float32(1.01), statistics.tensor(0), "step")
for name, column in statistics.columns.items():
    print(name, hashlib.sha256(column.tobytes()).hexdigest())
"""
_LOAD = """
import sys
import numpy as np
from quantmedic.collectors.statistics import numba_loops

print(numba_loops.sample_moments(np.ones((2, 3), np.float32))[0], "numba.np.linalg" in sys.modules)
"""


@pytest.mark.nightly
def test_the_run_that_compiles_and_those_that_load_compute_the_same_bits(tmp_path: Path) -> None:
    """Else a run that is resumed in another process would not end with the numbers of one that was not interrupted."""
    command, fresh = [sys.executable, "-c", _HASHES], os.environ | {"XDG_CACHE_HOME": str(tmp_path)}
    first, second = (subprocess.run(command, env=fresh, capture_output=True, check=True).stdout for _ in range(2))
    assert first == second != b""


@pytest.mark.skipif(numba.__version__.split(".")[:2] not in _TRIED, reason="kept code is loaded as numba does it")
def test_kept_code_is_loaded_without_the_compiler() -> None:
    kernels.sample_moments(np.ones((2, 3), np.float32))  # from now on it is kept
    done = subprocess.run([sys.executable, "-c", _LOAD], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[1. 1.] False"

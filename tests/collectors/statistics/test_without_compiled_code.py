"""Without compiled code everything is measured too: slower, with the same counts and, up to rounding, the same sums."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest

import quantmedic
from quantmedic.collectors.statistics import numba_loops as kernels
from quantmedic.collectors.statistics.compiled_cache import _TRIED
from quantmedic.demo import patient
from quantmedic.engine.case.statistics import ERROR_KINDS, SetStatistics

pytestmark = pytest.mark.thorough

_COLLECT = """
import sys
import quantmedic
from quantmedic.collectors.statistics import accumulate
from quantmedic.demo import patient

assert accumulate.kernels.__name__.endswith("numpy_loops")
assert not any(name.startswith(("numba", "llvmlite")) for name in sys.modules)
models, options = patient()
own = {"samples": 32, "batch_size": 12, "threads": 2, "step_error": True, "attribution": False}
for mode in ("exact", "fast"):
    quantmedic.save_case(quantmedic.collect(*models, **options, **own, mode=mode), f"{sys.argv[1]}/{mode}.case")
"""
_HASHES = """
import hashlib
import numpy as np
from quantmedic.collectors.statistics import numba_loops as kernels
from quantmedic.collectors.statistics.numpy_loops import Deployed, Rounding
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
def test_the_demo_without_compiled_code(tmp_path: Path, subtests: pytest.Subtests) -> None:
    command = [sys.executable, "-c", _COLLECT, str(tmp_path)]
    subprocess.run(command, check=True, env=os.environ | {"QUANTMEDIC_NO_JIT": "1"})
    models, options = patient()
    own = {"samples": 32, "batch_size": 12, "threads": 2, "step_error": True, "attribution": False}
    for mode in ("exact", "fast"):
        with subtests.test(mode):
            compiled = quantmedic.collect(*models, **options, **own, mode=mode)
            plain = quantmedic.load_case(tmp_path / f"{mode}.case")
            assert_close(compiled.record.model_dump(), plain.record.model_dump())
            for role, mine in compiled.statistics.items():
                assert_alike(mine, plain.statistics[role])
            a, b = (quantmedic.judge(case, quantmedic.load_rulebase()) for case in (compiled, plain))
            assert a.verdict == b.verdict
            assert [cause.cause for cause in a.causes] == [cause.cause for cause in b.causes]


def assert_close(a: Any, b: Any) -> None:
    """Equal but for the last digits of numbers: errors of weights are sums too."""
    if isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            assert_close(a[key], b[key])
    elif isinstance(a, list | tuple):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            assert_close(x, y)
    else:
        assert a == (pytest.approx(b, rel=1e-4, abs=1e-9) if isinstance(b, float) else b)


def assert_alike(mine: SetStatistics, theirs: SetStatistics) -> None:
    """The same counts and extremes; sums up to the rounding of float32."""
    a, b = mine.columns, theirs.columns
    for name in ("tensor_samples", "feature_count", "feature_sum", "feature_outer", "flipped_count", "flipped_sum"):
        np.testing.assert_array_equal(getattr(mine, name), getattr(theirs, name), err_msg=name)
    for pair in (*zip(mine.lattice, theirs.lattice, strict=True), *zip(mine.codes, theirs.codes, strict=True)):
        np.testing.assert_array_equal(*pair)
    for name in mine.samples.dtype.names:
        slack = 1e-5 if name in ("mean", "deviation", "saturated") else 0
        np.testing.assert_allclose(mine.samples[name], theirs.samples[name], rtol=slack, atol=slack, err_msg=name)
    for i in range(len(mine.channels)):
        for name in ("histogram", "bucket_min", "bucket_max"):
            np.testing.assert_array_equal(getattr(mine.tensor(i), name), getattr(theirs.tensor(i), name), err_msg=name)
    counts = {f"{kind}.{name}" for kind in ERROR_KINDS for name in ("count", "nonfinite")}
    for name in {"count", "nonfinite", "min", "max", "clipped"} | counts:
        np.testing.assert_array_equal(a[name], b[name], err_msg=name)
    n = np.maximum(b["count"], 1)
    std = np.sqrt(b["m2"] / n)
    np.testing.assert_array_less(np.abs(a["mean"] - b["mean"]), 1e-5 * std + 1e-7 * np.abs(b["mean"]) + 1e-44)
    np.testing.assert_allclose(np.sqrt(a["m2"] / n), std, rtol=1e-3, atol=1e-7 * np.abs(b["mean"]).max() + 1e-44)
    for kind in ERROR_KINDS:
        n, power, square = (b[f"{kind}.{name}"] for name in ("count", "power", "square"))
        # Squares of the difference of two float32 are as exact as the larger of them.
        grain = 1e-6 * np.sqrt(power / np.maximum(n, 1)) + 1e-44
        noise = np.sqrt(square / np.maximum(n, 1)) + grain
        close = 1e-5 * noise + grain
        top = np.abs([b["min"], b["max"]]).max(axis=0, where=b["count"] > 0, initial=0)
        slack = {
            "power": 1e-5 * power,
            "square": 2 * n * close * noise,
            "sum": n * close,
            "cross": np.sqrt(power * n) * close,
            "max": 1e-5 * b[f"{kind}.max"] + 1e-6 * top + 1e-44,
        }
        far = {name: np.abs(a[f"{kind}.{name}"] - b[f"{kind}.{name}"]) - bound for name, bound in slack.items()}
        assert not {(kind, name) for name, beyond in far.items() if (beyond > 1e-300).any()}


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

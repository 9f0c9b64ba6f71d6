"""Without compiled code everything is measured too: slower, with the same counts and, up to rounding, the same sums."""

import os
import subprocess
import sys
from typing import Any

import numba
import numpy as np
import pytest
from builders.properties import examples
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import quantmedic
from quantmedic.collectors.statistics import numba_loops as kernels
from quantmedic.collectors.statistics import numpy_loops as reference
from quantmedic.collectors.statistics.compiled_cache import _TRIED
from quantmedic.demo import patient
from quantmedic.engine.case.records import Case
from quantmedic.engine.case.statistics import (
    BUCKETS,
    ERROR_COLUMNS,
    ERROR_KINDS,
    LATTICE_POINTS,
    SetStatistics,
    TensorStatistics,
)

Array = NDArray[Any]
F = np.float32

pytestmark = [pytest.mark.thorough, pytest.mark.attributed]

_LOAD = """
import sys
import numpy as np
from quantmedic.collectors.statistics import numba_loops

print(numba_loops.sample_moments(np.ones((2, 3), np.float32))[0], "numba.np.linalg" in sys.modules)
"""
_COLLECT = """
import sys
import quantmedic
from quantmedic.collectors.statistics import accumulate
from quantmedic.demo import patient

assert accumulate.kernels.__name__.endswith("numpy_loops")
assert not any(name.startswith(("numba", "llvmlite")) for name in sys.modules)
models, options = patient()
own = {"samples": 32, "batch_size": 12, "threads": 2, "operator_error": True, "mode": sys.argv[1]}
case = quantmedic.collect(*models, **options, **own)
quantmedic.save_case(case, sys.argv[2])
"""


# --- the demo ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["exact", "fast"])
def cases(request, tmp_path_factory) -> tuple[Case, Case]:
    """The patient, measured by compiled and by plain code."""
    path = tmp_path_factory.mktemp("plain") / "plain.case"
    command = [sys.executable, "-c", _COLLECT, request.param, str(path)]
    subprocess.run(command, check=True, env=os.environ | {"QUANTMEDIC_NO_JIT": "1"})
    models, options = patient()
    own = {"samples": 32, "batch_size": 12, "threads": 2, "operator_error": True, "mode": request.param}
    return quantmedic.collect(*models, **options, **own), quantmedic.load_case(path)


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


def test_the_demo_without_compiled_code(cases):
    compiled, plain = cases
    assert_close(compiled.record.model_dump(), plain.record.model_dump())
    for role, mine in compiled.statistics.items():
        theirs = plain.statistics[role]
        for i in range(len(mine.channels)):
            assert_alike(mine.tensor(i), theirs.tensor(i))
        for exact in (
            "tensor_samples",
            "feature_count",
            "feature_sum",
            "feature_outer",
            "flipped_count",
            "flipped_sum",
        ):
            np.testing.assert_array_equal(getattr(mine, exact), getattr(theirs, exact), err_msg=exact)
        for pair in (*zip(mine.lattice, theirs.lattice, strict=True), *zip(mine.codes, theirs.codes, strict=True)):
            np.testing.assert_array_equal(*pair)
        for name in mine.samples.dtype.names:
            slack = 1e-5 if name in ("mean", "deviation", "saturated") else 0
            np.testing.assert_allclose(mine.samples[name], theirs.samples[name], rtol=slack, atol=slack, err_msg=name)


def test_the_demo_is_judged_alike(cases):
    rules = quantmedic.load_rulebase()
    compiled, plain = (quantmedic.judge(case, rules) for case in cases)
    assert compiled.verdict == plain.verdict
    assert [cause.cause for cause in compiled.causes] == [cause.cause for cause in plain.causes]


def assert_alike(a: TensorStatistics, b: TensorStatistics, unsure: int = 0) -> None:
    """The same counts and extremes; sums up to the rounding of float32.

    Args:
        a: By compiled code.
        b: By plain code.
        unsure: Values that lie so near the middle between two codes that either is right.
    """
    for name in ("count", "nonfinite", "min", "max", "histogram", "bucket_min", "bucket_max"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name), err_msg=name)
    assert (np.abs(a.clipped - b.clipped) <= unsure).all()
    size = np.maximum(b.count, 1)
    std = np.sqrt(b.m2 / size)
    np.testing.assert_array_less(np.abs(a.mean - b.mean), 1e-5 * std + 1e-7 * np.abs(b.mean) + 1e-44)
    np.testing.assert_allclose(np.sqrt(a.m2 / size), std, rtol=1e-3, atol=1e-7 * np.abs(b.mean).max() + 1e-44)
    for kind in ERROR_KINDS:
        x, y = a.errors[kind], b.errors[kind]
        for name in ("count", "nonfinite"):
            np.testing.assert_array_equal(x[name], y[name], err_msg=f"{kind} {name}")
        # Squares of the difference of two float32 are as exact as the larger of them.
        grain = 1e-6 * np.sqrt(y["power"] / np.maximum(y["count"], 1)) + 1e-44
        noise = np.sqrt(y["square"] / np.maximum(y["count"], 1)) + grain
        np.testing.assert_allclose(x["power"], y["power"], rtol=1e-5, atol=1e-300)
        assert (np.abs(x["square"] - y["square"]) <= y["count"] * (1e-5 * noise + grain) * noise * 2 + 1e-300).all(), (
            kind
        )
        assert (np.abs(x["sum"] - y["sum"]) <= y["count"] * (1e-5 * noise + grain) + 1e-300).all(), kind
        scale = np.sqrt(y["power"] * y["count"])
        assert (np.abs(x["cross"] - y["cross"]) <= scale * (1e-5 * noise + grain) + 1e-300).all(), kind
        assert (np.abs(x["max"] - y["max"]) <= 1e-5 * y["max"] + 1e-6 * np.abs([b.min, b.max]).max() + 1e-44).all(), (
            kind
        )


# --- one tensor -------------------------------------------------------------------------------------------------------

INNER = [1, 2, 15, 16, 17, 1023, 1024, 1025, 2049]
CODES = (np.uint8, np.int8, np.uint16, np.int16)
VALUES = (np.float32, np.float16)
MAGNITUDES = [1e-38, 1e-20, 1e-15, 1e-6, 1.0, 1e4, 1e14, 1e16, 1e30]
SPECIAL = [np.nan, np.inf, -np.inf, 0.0, -0.0]


@st.composite
def tensors(draw: st.DrawFn) -> tuple[Array, NDArray[np.int64]]:
    """Values ``[outer, channels, inner]`` and the buckets of their samples."""
    shape = draw(st.integers(1, 5)), draw(st.integers(1, 4)), draw(st.sampled_from(INNER))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    x = rng.standard_normal(shape)
    shift = draw(st.sampled_from([0.0, 0.0, 1.0, 100.0, -1e4]))
    x = ((x + shift) * draw(st.sampled_from(MAGNITUDES))).astype(F)
    special = draw(st.lists(st.sampled_from(SPECIAL), max_size=4))
    if special:
        places = rng.choice(x.size, min(len(special) * draw(st.sampled_from([1, 20])), x.size), replace=False)
        x.reshape(-1)[places] = np.resize(np.array(special, F), len(places))
    return x, rng.integers(-1, BUCKETS, len(x))


def both(x: Array, buckets: Array, rounding: Any = None, deployed: Any = None) -> list[TensorStatistics]:
    """What compiled and plain code make of a tensor, twice."""
    found = []
    for module in (kernels, reference):
        into = SetStatistics.empty([x.shape[1]]).tensor(0)
        with np.errstate(all="ignore"):
            for _ in range(2):
                module.observe(x, into, buckets, rounding, deployed)
        found.append(into)
    return found


def per_channel(x: Array, *values: Any) -> list[Array]:
    return [np.full(x.shape[1], value, F) for value in values]


def between_codes(x: Array, scale: Array) -> int:
    """Values within float32's resolution of the middle between two codes."""
    with np.errstate(all="ignore"):
        steps = x.astype(np.float64) / scale.astype(np.float64).reshape(1, -1, 1)
        return int((np.abs(np.abs(steps - np.floor(steps)) - 0.5) < 1e-6 * (1 + np.abs(steps))).sum()) * 2


@examples(120)
@given(tensors())
def test_values(drawn):
    assert_alike(*both(*drawn))


@examples(120)
@given(
    tensors(), st.sampled_from([(-128, 127), (0, 255), (-32768, 32767), (-8, 7)]), st.sampled_from([0.003, 0.1, 4.0])
)
def test_rounding(drawn, codes, step):
    x, buckets = drawn
    finite = np.abs(x[np.isfinite(x)])
    scale, low, high = per_channel(x, step * float(finite.max(initial=1e-30)) / 10, *codes)
    a, b = both(x, buckets, reference.Rounding(scale, low, high))
    assert_alike(a, b, between_codes(x, scale))


@examples(150)
@given(tensors(), st.sampled_from([*CODES, *VALUES]), st.sampled_from([0, 3, 128, -7]), st.integers(0, 2**32))
def test_deployed_codes_of_every_type(drawn, kind, zero, seed):
    x, buckets = drawn
    finite = np.abs(x[np.isfinite(x)])
    rng = np.random.default_rng(seed)
    if np.dtype(kind).kind == "f":
        with np.errstate(all="ignore"):
            codes = (x + rng.standard_normal(x.shape) * 0.01 * finite.max(initial=1.0)).astype(kind)
        scale, point = per_channel(x, 1.0, 0.0)
    else:
        info = np.iinfo(kind)
        codes = rng.integers(max(info.min, -40_000), min(info.max, 40_000), x.shape, kind, endpoint=True)
        scale, point = per_channel(x, finite.max(initial=1e-30) / 100, zero)
    assert_alike(*both(x, buckets, None, reference.Deployed(codes, scale, point)))


@pytest.mark.parametrize("kind", [*CODES, np.int32, np.float16])
@pytest.mark.parametrize("inner", INNER)
def test_everything_at_once(kind, inner):
    """Every type of codes in every length of row, with a grid and codes of its own per channel."""
    rng = np.random.default_rng(inner)
    x = (rng.standard_normal((3, 4, inner)) * 3).astype(F)
    scale, zero = F([0.01, 0.02, 0.05, 0.1]), F([0, 3, 128, -5])
    if np.dtype(kind).kind == "f":
        codes = (x / scale.reshape(1, -1, 1) + zero.reshape(1, -1, 1)).astype(kind)
    else:
        info = np.iinfo(kind)
        codes = np.rint(x / scale.reshape(1, -1, 1) + zero.reshape(1, -1, 1)).clip(info.min, info.max).astype(kind)
    rounding = reference.Rounding(scale, -128 - zero, 127 - zero)
    a, b = both(x, np.array([3, -1, 0]), rounding, reference.Deployed(codes, scale, zero))
    assert_alike(a, b, between_codes(x, scale))


@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("inner", INNER)
@pytest.mark.parametrize("where", ["x", "y", "both", "apart"])
def test_values_that_are_not_finite_on_either_side(special, inner, where):
    rng = np.random.default_rng(1)
    x = rng.standard_normal((2, 3, inner)).astype(F)
    y = x + F(0.01) * rng.standard_normal(x.shape).astype(F)
    if where != "y":
        x[0, 1, 0] = special
    if where != "x":
        y[0 if where != "apart" else 1, 1, -1] = special
    one, zero = per_channel(x, 1, 0)
    a, b = both(x, np.array([0, 1]), None, reference.Deployed(y, one, zero))
    assert_alike(a, b)
    assert b.nonfinite.tolist() == [0, 2 * (where != "y"), 0]
    assert b.errors["accumulated"]["nonfinite"].tolist() == [0, 2 * (where != "x"), 0]


@pytest.mark.parametrize("scale", [0.0, -0.0, np.nan, np.inf, -0.1, 1e-42, 1e-30, 3e38])
@pytest.mark.parametrize("inner", [1, 17, 1025])
@pytest.mark.parametrize("zeros", [False, True])
def test_grids_that_make_no_sense(scale, inner, zeros):
    """Broken models have them; nothing may crash, and both codes must say the same."""
    x = np.random.default_rng(0).standard_normal((2, 2, inner)).astype(F)
    if zeros:
        x[:, :, ::3] = 0
    grid = reference.Rounding(*per_channel(x, scale, -128, 127))
    codes = np.arange(x.size, dtype=np.uint8).reshape(x.shape)
    a, b = both(x, np.array([0, 1]), grid, reference.Deployed(codes, *per_channel(x, scale, 3)))
    assert_alike(a, b)


@pytest.mark.parametrize("inner", INNER)
@pytest.mark.parametrize("magnitude", [1e-10, 1.0, 1e10])
def test_a_mean_far_from_zero_leaves_the_deviation_alone(inner, magnitude):
    """Ten thousand times the deviation: float64 tells both."""
    outer = max(1, 3000 // inner)
    x = ((np.random.default_rng(2).standard_normal((outer, 2, inner)) + 1e4) * magnitude).astype(F)
    values = np.moveaxis(x, 1, 0).reshape(2, -1).astype(np.float64)
    for found in both(x, np.full(outer, -1)):
        np.testing.assert_allclose(found.mean, values.mean(axis=1), rtol=1e-3 * 1e-4)
        np.testing.assert_allclose(np.sqrt(found.m2 / found.count), values.std(axis=1), rtol=1e-3)


@examples(40)
@given(tensors(), st.integers(1, 6))
def test_gathered_rows_of_several_samples(drawn, groups):
    """One outer row that holds several samples side by side."""
    x, _ = drawn
    x = np.ascontiguousarray(np.concatenate([x[:1]] * groups, axis=2))
    assert_alike(*both(x, np.arange(groups) % BUCKETS))


@examples(60)
@given(tensors())
def test_samples_and_their_distinct_values(drawn):
    x = drawn[0].reshape(len(drawn[0]), -1)
    for name, a, b in zip(
        ("mean", "deviation", "saturated", "nonfinite"),
        kernels.sample_moments(x),
        reference.sample_moments(x),
        strict=True,
    ):
        scale = float(np.abs(x[np.isfinite(x)]).max(initial=0.0))
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6 * scale if name in ("mean", "deviation") else 0)
    flat, limit = x.reshape(-1), LATTICE_POINTS + 1
    found, expected = (module.distinct(flat, limit) for module in (kernels, reference))
    assert len(found) == len(expected)
    assert len(found) == limit or np.array_equal(found, expected)


def test_every_error_column_is_compared():
    assert set(ERROR_COLUMNS) == {"count", "nonfinite", "sum", "square", "cross", "power", "max"}


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
kernels.observe_error(x, x * np.float32(1.01), statistics.tensor(0), "operator")
for name, column in statistics.columns.items():
    print(name, hashlib.sha256(column.tobytes()).hexdigest())
"""


def test_the_run_that_compiles_and_those_that_load_compute_the_same_bits(tmp_path):
    """Else a run that is resumed in another process would not end with the numbers of one that was not interrupted."""
    command, fresh = [sys.executable, "-c", _HASHES], os.environ | {"XDG_CACHE_HOME": str(tmp_path)}
    first, second = (subprocess.run(command, env=fresh, capture_output=True, check=True).stdout for _ in range(2))
    assert first == second != b""


@pytest.mark.skipif(numba.__version__.split(".")[:2] not in _TRIED, reason="kept code is loaded as numba does it")
def test_kept_code_is_loaded_without_the_compiler() -> None:
    kernels.sample_moments(np.ones((2, 3), F))  # from now on it is kept
    done = subprocess.run([sys.executable, "-c", _LOAD], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[1. 1.] False"

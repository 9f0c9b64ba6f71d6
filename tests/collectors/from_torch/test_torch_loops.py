"""Statistics of tensors by torch on their device: those of numpy, tensor by tensor and in whole cases."""

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch
from builders.properties import examples
from builders.torch_kernels import ON_DEVICES
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import quantmedic
from quantmedic.collectors.from_torch.capture import TORCH_LOOPS, TorchValues, _values_to_measure
from quantmedic.collectors.statistics import numpy_loops
from quantmedic.collectors.statistics.accumulate import as_rows
from quantmedic.engine.case.statistics import BUCKETS, ERROR_COLUMNS, SetStatistics, TensorStatistics
from quantmedic.engine.errors import ModelError

pytestmark = pytest.mark.thorough

EXACT = ("count", "nonfinite", "min", "max", "clipped", "deployed_min", "deployed_max", "histogram")
EXACT += ("quantized_histogram", "bucket_min", "bucket_max")
#: Largest relative difference of deviations and errors, against numpy in float64.
BOUNDS = {"torch": 1e-12, "torch in float32": 1e-4}
#: What the type of the sums cannot tell from zero, or not to more than a few bits.
SMALLEST = {"torch": 0.0, "torch in float32": float(np.finfo(np.float32).tiny)}
SPECIAL = [0.0, -0.0, np.nan, np.inf, -np.inf, 1e-45, 3e38, 255.0]


def observed(observe, x, buckets, grid, deployed) -> TensorStatistics:
    into = SetStatistics.empty([x.shape[1]]).tensor(0)
    observe(x, into, buckets, grid, deployed)
    return into


@given(
    st.integers(0, 2**32),
    st.tuples(st.integers(0, 4), st.integers(1, 4), st.integers(0, 40)),
    st.sampled_from([np.float32, np.uint8, np.int8, np.int16, np.int32]),
    st.floats(-30, 30),
)
@pytest.mark.parametrize("name", ON_DEVICES)
@examples(60)
def test_any_tensor_gives_what_numpy_makes_of_it(name, seed, shape, kind, magnitude):
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal(shape) * 10.0**magnitude).astype(np.float32)
    x[rng.random(shape) < 0.1] = rng.choice(np.array(SPECIAL, np.float32))
    codes = x + np.float32(0.1) if kind is np.float32 else rng.integers(0, 100, shape).astype(kind)
    step = np.full(shape[1], 10.0**magnitude * 0.02, np.float32)
    gathered = shape[0] == 1 and shape[2] and shape[2] % 2 == 0
    buckets = rng.integers(-1, BUCKETS, 2 if gathered else shape[0])
    grid = numpy_loops.Rounding(step, np.full_like(step, -128), np.full_like(step, 127))
    deployed = numpy_loops.Deployed(codes, step, np.full_like(step, 50))
    with np.errstate(all="ignore"):
        a = observed(ON_DEVICES[name].observe, x, buckets, grid, deployed)
        b = observed(numpy_loops.observe, x, buckets, grid, deployed)
    for column in EXACT:
        np.testing.assert_array_equal(getattr(a, column), getattr(b, column), err_msg=column)
    bound, n = BOUNDS[name], x.size
    top = np.where(b.count > 0, np.maximum(np.abs(b.min), np.abs(b.max)), 0)
    np.testing.assert_allclose(a.m2, b.m2, rtol=bound, atol=bound**2 * n * (top**2).max(initial=0))
    np.testing.assert_allclose(a.mean, b.mean, rtol=bound, atol=bound * top.max(initial=0))
    for kind_of_error in ("rounding", "accumulated"):
        mine, theirs = a.errors[kind_of_error], b.errors[kind_of_error]
        for column in ERROR_COLUMNS:
            # Sums of differences cancel: what counts is their size beside the largest possible one.
            size = {"sum": np.sqrt(theirs["square"] * n), "cross": np.sqrt(theirs["square"] * theirs["power"])}
            close = max(bound * size.get(column, theirs["power"]).max(initial=0), SMALLEST[name])
            exact = column in ("count", "nonfinite")
            np.testing.assert_allclose(
                mine[column], theirs[column], rtol=0 if exact else bound, atol=0 if exact else close, err_msg=column
            )


def test_tensors_of_any_precision_are_measured_as_float32_and_codes_keep_their_type(monkeypatch):
    monkeypatch.setenv(TORCH_LOOPS, "1")
    for dtype in (torch.float16, torch.bfloat16, torch.float64, torch.float32):
        tensor = torch.randn(3, 5, 7, dtype=torch.float64).to(dtype)
        found = _values_to_measure(tensor)
        assert isinstance(found, TorchValues)
        assert (found.dtype, found.shape, found.size, found.ndim) == (np.float32, (3, 5, 7), 105, 3)
        np.testing.assert_array_equal(np.asarray(found), tensor.float().numpy())
    quantized = torch.quantize_per_tensor(torch.randn(2, 3), 0.1, 3, torch.qint8)
    assert _values_to_measure(quantized).dtype == np.int8
    assert _values_to_measure(torch.zeros(2, dtype=torch.int64)).dtype == np.int64


def test_rows_are_arranged_as_those_of_arrays():
    for shape in ((4, 3, 5, 6), (2, 3, 2, 4), (4, 3), (6,), ()):
        x = torch.arange(int(np.prod(shape)), dtype=torch.float32).reshape(shape)
        for axis in (None, *range(1, len(shape))):
            np.testing.assert_array_equal(np.asarray(TorchValues(x).as_rows(axis)), as_rows(x.numpy(), axis))


class Net(nn.Module):
    def __init__(self, *, rounds: bool) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.last = nn.Linear(8, 4)
        self.rounds = rounds

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.rounded(self.first(self.rounded(x)))
        return self.last(self.rounded(torch.relu_(x)).mean((2, 3)))

    def rounded(self, x: torch.Tensor) -> torch.Tensor:
        return torch.fake_quantize_per_tensor_affine(x, 0.05, 0, -128, 127) if self.rounds else x


def pair() -> tuple[Net, Net]:
    torch.manual_seed(0)
    network, quantized = Net(rounds=False), Net(rounds=True)
    quantized.load_state_dict(network.state_dict())
    return network, quantized


def test_a_case_is_the_same_by_the_loops_of_torch(monkeypatch):
    network, quantized = pair()
    x = torch.randn(12, 3, 8, 8)
    found, measured, observe = [], [], TorchValues.observe
    monkeypatch.setattr(TorchValues, "observe", lambda own, *rest: measured.append(own.shape) or observe(own, *rest))
    for loops in ("", "1"):
        monkeypatch.setenv(TORCH_LOOPS, loops)
        found.append(quantmedic.collect(network, quantized, validation=x, batch_size=5))
    assert len(measured) == 3 * 4  # three batches; of five tensors the input is where the data were read
    plain, on_device = (case.statistics["validation"] for case in found)
    for name, column in plain.columns.items():
        np.testing.assert_allclose(on_device.columns[name], column, rtol=1e-4, atol=1e-4, err_msg=name)
    for i, histogram in plain.histograms.items():
        np.testing.assert_array_equal(on_device.histograms[i], histogram)
    np.testing.assert_allclose(on_device.feature_outer, plain.feature_outer, rtol=1e-4, atol=1e-6)
    assert plain.columns["accumulated.square"].sum() > 0


def test_a_device_that_torch_lacks_is_refused():
    for device in ("nowhere", "meta"):
        with pytest.raises(ModelError, match="torch cannot use this device"):
            quantmedic.collect(*pair(), validation=torch.randn(2, 3, 8, 8), device=device)


def test_modules_may_be_told_to_stay_on_the_processor():
    case = quantmedic.collect(*pair(), validation=torch.randn(2, 3, 8, 8), device="cpu")
    assert case.record.run["device"] == "cpu"
    assert not [notice for notice in case.record.notices if "moved" in notice]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA here")
def test_a_case_of_cuda_is_that_of_the_processor():
    network, quantized = pair()
    x = torch.randn(12, 3, 8, 8)
    plain, on_device = (quantmedic.collect(network, quantized, validation=x, device=name) for name in ("cpu", "cuda"))
    assert any("moved to cuda" in notice for notice in on_device.record.notices)
    for name in ("min", "max", "mean"):
        found, wanted = (case.statistics["validation"].columns[name] for case in (on_device, plain))
        np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-3, err_msg=name)

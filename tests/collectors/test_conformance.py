"""What every collector must do, whatever the framework: the same suite for every front end, a toy one included."""

import copy
import functools
import gc
import hashlib
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders.litert_models import channels_last, every_operator, quantized
from builders.onnx_models import conv_net, images, qdq, save_pair
from builders.openvino_models import images as openvino_images
from builders.openvino_models import save_openvino_pair
from builders.tiers import others_nightly
from builders.toy_front_end import save_toy_pair

import quantmedic
from quantmedic.collectors.front_ends import FRONT_ENDS
from quantmedic.collectors.measure.collect_pair import Interrupted, Run
from quantmedic.collectors.measure.observer import Observer
from quantmedic.engine.case.facts import ErrorFacts, Facts, TensorDataFacts
from quantmedic.engine.case.records import Case
from quantmedic.engine.case.statistics import ERROR_KINDS, SetStatistics
from quantmedic.engine.errors import QuantmedicError
from quantmedic.engine.formulas.derive import derive

pytestmark = pytest.mark.thorough

X = images(40)
#: Integer kernels, fake quantizers, hooks, exported programs, quantized weights only, and grids made at run time.
TORCH = ("fx", "fx qat", "eager", "pt2e", "int4 weights", "int8 dynamic")
#: What writes two files and their samples to a folder, by front end: a new one is one line here.
FILES: dict[str, Callable[[Path], tuple[tuple[Path, Path], Any]]] = {
    "onnx": lambda folder: (save_pair(folder, conv_net(), qdq(conv_net(), {"image": X * np.float32(0.66)})), X),
    "litert": lambda folder: save_litert_pair(folder),
    "openvino": lambda folder: (save_openvino_pair(folder), openvino_images()),
    "toy": save_toy_pair,
}
KINDS = (*FILES, *(f"torch, {toolchain}" for toolchain in TORCH))


def test_every_front_end_is_held_to_this_suite() -> None:
    assert {each.name for each in FRONT_ENDS} == {kind.partition(",")[0] for kind in KINDS}


@dataclass
class Patient:
    """Two models, their data ``[40, ...]``, and all of their state that must stay as it is."""

    models: tuple[Any, Any]
    x: Any
    state: Callable[[], Any]
    is_torch: bool
    has_opset: bool = False


#: Of torch, integer kernels and fake quantizers; other toolchains make other grids, and run in the night.
OF_EACH_COMMIT = (*FILES, "torch, fx")


@pytest.fixture(scope="module", params=others_nightly(KINDS, *OF_EACH_COMMIT))
def patient(request, tmp_path_factory) -> Patient:
    return made(request.param, tmp_path_factory.mktemp("patient"))


@pytest.fixture(scope="module")
def whole(patient) -> Case:
    """One pass that nothing disturbed, which the others are compared with."""
    return collected(patient, patient.x)


def made(kind: str, folder: Path) -> Patient:
    if kind not in FILES:
        return torch_patient(kind.partition(", ")[2])
    paths, x = FILES[kind](folder)
    return Patient(paths, x, lambda: hashes(paths), False, has_opset=kind == "onnx")


def save_litert_pair(folder: Path) -> tuple[tuple[Path, Path], Any]:
    pytest.importorskip("ai_edge_quantizer", reason="ai-edge-quantizer is not installed")
    paths = folder / "float.tflite", folder / "quantized.tflite"
    for path, content in zip(paths, litert_files(), strict=True):
        path.write_bytes(content)
    return paths, channels_last(X)


@functools.cache
def litert_files() -> tuple[bytes, bytes]:
    content = every_operator().litert()
    return content, quantized(content, "int8", {"image": channels_last(X) * np.float32(0.66)})


def hashes(paths: Sequence[Path]) -> list[str]:
    return [hashlib.sha256(path.read_bytes()).hexdigest() for path in paths]


def torch_patient(toolchain: str) -> Patient:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from builders import torch_models

    net, quantized, _ = torch_models.pair(toolchain)
    x = torch_models.images(40) if toolchain in torch_models.CONVOLUTIONAL else torch_models.rows(40, 64)
    return Patient((net, quantized), x, lambda: (state_of(net), state_of(quantized), state_of_torch(torch)), True)


def state_of(module: Any) -> Any:
    """Everything that could be left behind: numbers, modes, gradients, hooks and attributes."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks", "_state_dict_hooks")
    return {
        "numbers": {name: repr(value) for name, value in module.state_dict().items()},
        "exact": [own.detach().clone() for own in (*module.parameters(), *module.buffers())],
        "training": {name: part.training for name, part in module.named_modules()},
        "gradients": {name: (own.requires_grad, own.grad) for name, own in module.named_parameters()},
        "hooks": {name: [len(getattr(part, hook)) for hook in hooks] for name, part in module.named_modules()},
        "attributes": {name: sorted(vars(part)) for name, part in module.named_modules()},
    }


def state_of_torch(torch: Any) -> dict[str, Any]:
    return {
        "random": torch.random.get_rng_state().tolist(),
        "grad mode": torch.is_grad_enabled(),
        "modes": torch._C._len_torch_function_stack(),
        "threads": torch.get_num_threads(),
        "type": torch.get_default_dtype(),
        "fast path": torch.backends.mha.get_fastpath_enabled(),
    }


def same(a: Any, b: Any) -> bool:
    """Equality of nests of arrays, tensors and plain values; bit by bit."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    if hasattr(a, "dequantize") and type(a).__name__ not in ("Tensor", "Parameter"):
        return same(a.dequantize(), b.dequantize())
    return bool((a == b).all()) if hasattr(a, "shape") else bool(a == b)


def batches(x: Any, size: int, failing: BaseException | None = None) -> Callable[[], Iterator[Any]]:
    """A function that yields batches; one that fails does so at the third batch of its second pass."""
    passes = 0

    def load() -> Iterator[Any]:
        nonlocal passes
        passes += 1
        for number, start in enumerate(range(0, len(x), size)):
            if failing is not None and passes > 1 and number == 2:
                raise failing
            yield x[start : start + size]

    return load


def collected(patient: Patient, data: Any, **options: Any) -> Case:
    return quantmedic.collect(*patient.models, **({"validation": data, "threads": 1, "batch_size": 8} | options))


def values_of(statistics: SetStatistics) -> dict[str, Any]:
    return {
        **statistics.columns,
        "histograms": np.stack([statistics.histograms[i] for i in sorted(statistics.histograms)]),
        "bucket_min": statistics.bucket_min,
        "bucket_max": statistics.bucket_max,
        "samples": statistics.samples,
        "tensor samples": statistics.tensor_samples,
    }


def assert_equal(found: SetStatistics, expected: SetStatistics) -> None:
    a, b = values_of(found), values_of(expected)
    assert a.keys() == b.keys()
    for name in a:
        assert alike(a[name], b[name]), name


def alike(a: Any, b: Any) -> bool:
    """Bit by bit; NaN stands for nothing."""
    if a.dtype.names:
        return all(alike(a[name], b[name]) for name in a.dtype.names)
    return bool(np.array_equal(a, b, equal_nan=a.dtype.kind == "f"))


# --- the suite -------------------------------------------------------------------------------------------------------

EXTREMES = ("min", "max", "bucket_min", "bucket_max", *(f"{kind}.max" for kind in ERROR_KINDS))
COUNTS = ("count", "nonfinite", "tensor samples", *(f"{kind}.count" for kind in ERROR_KINDS))
SUMS = ("mean", "m2", "clipped_energy")


def test_neither_threads_nor_pieces_of_a_source_change_a_bit(patient, whole):
    again, pieces = collected(patient, patient.x, threads=4), collected(patient, batches(patient.x, 7))
    assert again.record == whole.record
    for other in (again, pieces):
        assert_equal(other.statistics["validation"], whole.statistics["validation"])


def test_how_samples_are_cut_into_batches_changes_nothing(patient, whole):
    """Kernels add up in another order for other batch sizes: float32 results may differ in their last bits."""
    expected = values_of(whole.statistics["validation"])
    for size in (1, 32):
        found = values_of(collected(patient, patient.x, batch_size=size).statistics["validation"])
        for name in COUNTS:
            assert np.array_equal(found[name], expected[name]), name
        for name in EXTREMES:
            assert np.allclose(found[name], expected[name], rtol=1e-5, atol=1e-6), name
        assert np.abs(found["histograms"] - expected["histograms"]).sum() / expected["histograms"].sum() < 0.002
        assert np.allclose(found["mean"], expected["mean"], rtol=1e-5, atol=1e-7)
        assert np.allclose(found["m2"], expected["m2"], rtol=1e-5, atol=1e-6)
        assert np.array_equal(found["samples"]["hash"], expected["samples"]["hash"])


def test_interrupted_runs_keep_what_they_measured_and_go_on_and_shards_merge(patient, whole, tmp_path):
    path, before = tmp_path / "case.npz", patient.state()
    with pytest.raises(Interrupted) as caught:
        collected(patient, batches(patient.x, 8, KeyboardInterrupt()), checkpoint=path)
    assert same(patient.state(), before)
    first, rest = collected(patient, patient.x[:16]), collected(patient, patient.x[16:])
    case = caught.value.case
    assert case.record.datasets["validation"].seen == 16
    assert not case.record.datasets["validation"].complete
    assert_equal(case.statistics["validation"], first.statistics["validation"])
    resumed = collected(patient, batches(patient.x, 8), checkpoint=path, resume=True)
    assert_equal(resumed.statistics["validation"], whole.statistics["validation"])

    merged = values_of(first.merge(rest).statistics["validation"])
    for name, values in values_of(whole.statistics["validation"]).items():
        if name in SUMS or name.startswith("weights.") or name.endswith((".sum", ".square", ".cross", ".power")):
            assert np.allclose(merged[name], values, rtol=1e-9, atol=1e-12), name
        else:
            assert alike(merged[name], values), name


def test_models_stay_as_they_are(patient):
    """Also where representative data, the proof and the fast mode run them in other ways, and where data fail."""
    before = patient.state()
    options = {"representative": batches(patient.x, 5), "prove": 3.0}
    collected(patient, batches(patient.x, 7), **options)
    assert same(patient.state(), before)
    gc.collect()
    gc.disable()
    fast = collected(patient, patient.x, mode="fast")
    left = [type(each).__name__ for each in gc.get_objects() if isinstance(each, (Run, Observer))]
    gc.enable()
    assert not left, "what refers to itself keeps the models until the collector looks for it"
    assert (fast.statistics["validation"].tensor_samples > 0).all()
    assert fast.record.datasets["validation"].seen == len(patient.x)
    assert same(patient.state(), before)
    for failure in (ValueError("broken"), SystemExit(1), MemoryError()):
        with pytest.raises((QuantmedicError, SystemExit, MemoryError)):
            collected(patient, batches(patient.x, 4, failure))
        assert same(patient.state(), before), failure


def test_cases_are_saved_and_read_and_say_none_of_what_was_not_measured(patient, whole, tmp_path):
    """Without labels, representative data and quantizers, nothing is known of them: not 0, not NaN."""
    quantmedic.save_case(whole, tmp_path / "case.npz")
    read = quantmedic.load_case(tmp_path / "case.npz")
    assert_equal(read.statistics["validation"], whole.statistics["validation"])
    assert read.record == whole.record
    facts = derive(read, quantmedic.load_rulebase())
    assert read.record.metric is None and list(read.statistics) == ["validation"]
    assert all(tensor.representative == TensorDataFacts() for tensor in facts.tensors)
    for tensor in (tensor for tensor in facts.tensors if tensor.quantizer.scale is None):
        assert tensor.data.rounding == ErrorFacts() and tensor.quantizer.bits in (None, 8)
    for layer in (layer for layer in facts.layers if layer.weight.quantizer.bits is None):
        assert layer.weight.rounding == ErrorFacts()
    assert (facts.model.opset is not None) == patient.has_opset
    assert not [name for scope in facts for name in numbers_that_are_none(scope[1])]


def numbers_that_are_none(facts: Any) -> Iterator[str]:
    """Paths of facts that are NaN."""
    if isinstance(facts, tuple):
        for one in facts:
            yield from numbers_that_are_none(one)
    elif isinstance(facts, Facts):
        for name, value in facts:
            if isinstance(value, float) and value != value:
                yield name
            yield from numbers_that_are_none(value)


def test_what_is_missing_is_named(patient, tmp_path):
    with pytest.raises(QuantmedicError, match="no data"):
        quantmedic.collect(*patient.models)
    with pytest.raises(QuantmedicError) as caught:
        collected(patient, tmp_path / "mising.npz")
    assert "mising.npz" in str(caught.value) and caught.value.help
    if not patient.is_torch:
        with pytest.raises(QuantmedicError) as caught:
            quantmedic.collect(tmp_path / "flaot.onnx", patient.models[1], validation=patient.x)
        assert "flaot.onnx" in str(caught.value) and caught.value.help


# --- frameworks that are not there -----------------------------------------------------------------------------------

BLOCKED = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Blocker())
import quantmedic
from quantmedic.engine.errors import QuantmedicError

class Stranger:
    pass

try:
    {call}
except QuantmedicError as error:
    print(error)
else:
    print("worked")
"""


def said_without(blocked: set[str], call: str, folder: Path) -> str:
    code = BLOCKED.format(blocked=blocked, call=call)
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.nightly
def test_modules_without_torch(tmp_path):
    said = said_without({"torch"}, "quantmedic.collect(Stranger(), Stranger(), validation=[1])", tmp_path)
    assert "pip install 'quantmedic[torch]'" in said and "Stranger" in said


@pytest.mark.nightly
def test_files_need_no_torch(tmp_path):
    save_pair(tmp_path, conv_net(), qdq(conv_net(), {"image": X}))
    np.savez(tmp_path / "data.npz", image=X)
    call = "quantmedic.diagnose('float.onnx', 'quantized.onnx', validation='data.npz')"
    assert said_without({"torch", "torchao"}, call, tmp_path) == "worked\n"


@pytest.mark.nightly
def test_modules_need_no_torchao(tmp_path):
    pytest.importorskip("torch", reason="torch is not installed")
    call = (
        "import torch; net = torch.nn.Linear(4, 2); x = torch.randn(8, 4); "
        "quantmedic.collect(net, net, validation=x, threads=1)"
    )
    assert said_without({"torchao"}, call, tmp_path) == "worked\n"


def test_copies_of_modules_are_judged_alike():
    """What belongs to the Python object, such as its place in memory, must not matter."""
    patient = torch_patient("eager")
    twin = copy.deepcopy(patient.models[1])
    cases = [
        quantmedic.collect(patient.models[0], q, validation=patient.x, threads=1) for q in (patient.models[1], twin)
    ]
    assert cases[0].record == cases[1].record

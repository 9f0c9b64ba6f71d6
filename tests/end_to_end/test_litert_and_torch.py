"""Drawn faults in LiteRT and torch networks: from the models to ``report.json``, and the printed script run as it is.

A seed draws how strong each fault is; the causes that are right for it stand beside it.
"""

import copy
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import quantmedic

pytest.importorskip("ai_edge_litert", reason="ai-edge-litert is not installed")
pytest.importorskip("ai_edge_quantizer", reason="ai-edge-quantizer is not installed")
torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("torchao", reason="torchao is not installed")

from builders import litert_models, torch_models  # noqa: E402
from builders.tiers import others_nightly  # noqa: E402

pytestmark = pytest.mark.thorough

Array = NDArray[np.float32]
Module = torch.nn.Module
PREPARED_WRONGLY = ("preprocessing-scale-mismatch", "preprocessing-mismatch")


def keep(x: Any, strength: float) -> Any:
    return x


def divide_again(x: Any, strength: float) -> Any:
    return x / strength


def leave_raw(x: Any, strength: float) -> Any:
    return x * strength + 2 * strength


def turn_channels(x: Any, strength: float) -> Any:
    return x[..., ::-1].copy()


@dataclass(frozen=True)
class Fault:
    """What goes wrong, and what a report has to make of it.

    Attributes:
        right: Causes of which one has to come first.
        strengths: Bounds between which a seed draws.
        shown: What the toolchain calibrated on, of the proper samples and the strength.
        how: How the toolchain quantizes.
        left: Share of the noise that the printed script may leave.
        pool: Makes the noise of all samples one figure; proper ranges too may cut off the values of few samples.
    """

    right: tuple[str, ...]
    strengths: tuple[float, float] = (1.0, 1.0)
    shown: Callable[[Any, float], Any] = keep
    how: str = "int8"
    left: float = 0.2
    pool: Callable[[NDArray[Any]], Any] = np.mean

    def draw(self, name: str) -> float:
        low, high = np.log(self.strengths)
        return float(np.exp(np.random.default_rng(list(name.encode())).uniform(low, high)))

    def heals(self, exact: Any, ill: Any, healed: Any) -> bool:
        before, after = (self.pool(np.square(np.asarray(exact) - np.asarray(x)).sum(axis=1)) for x in (ill, healed))
        return bool(after < self.left * before)


def named_causes(report: Path) -> list[str]:
    return [cause["cause"] for cause in json.loads((report / "report.json").read_text(encoding="utf-8"))["causes"]]


def run_prescription(report: Path, **given: Any) -> tuple[str, dict[str, Any]]:
    """The printed script, and what it leaves behind."""
    code = (report / "prescription.py").read_text(encoding="utf-8")
    exec(compile(code, "prescription.py", "exec"), given)
    return code, given


# --- LiteRT ----------------------------------------------------------------------------------------------------------

LITERT = {
    "divided again": Fault(PREPARED_WRONGLY, (5, 12), divide_again),
    "raw pixels": Fault(PREPARED_WRONGLY, (20, 200), leave_raw, pool=np.median),
    "channels turned": Fault(("channel-order-mismatch",), shown=turn_channels),
    "one scale for a wide channel": Fault(("channel-range-imbalance",), (300, 3000), how="per tensor"),
    "four-bit weights": Fault(("too-few-weight-bits",), how="int4", left=0.5),
}


def run_litert(path: Path, x: Array) -> Array:
    """Scores of images that are fed one by one; integer inputs and outputs by their scales."""
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_path=str(path), num_threads=1)
    interpreter.allocate_tensors()
    (given,), (got,) = interpreter.get_input_details(), interpreter.get_output_details()
    rows = []
    for row in x:
        interpreter.set_tensor(given["index"], as_codes(row[None], *given["quantization"]))
        interpreter.invoke()
        rows.append(as_numbers(interpreter.get_tensor(got["index"])[0], *got["quantization"]))
    return np.stack(rows)


def as_codes(x: Array, scale: float, zero_point: int) -> NDArray[Any]:
    return np.clip(np.rint(x / scale) + zero_point, -128, 127).astype(np.int8) if scale else x


def as_numbers(codes: NDArray[Any], scale: float, zero_point: int) -> Array:
    return (codes.astype(np.float32) - zero_point) * scale if scale else codes.copy()


@pytest.mark.parametrize("name", others_nightly(LITERT, "divided again", "one scale for a wide channel"))
def test_a_litert_fault_comes_first_and_the_script_heals(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault, proper, judged = LITERT[name], litert_models.gradient_images(0, 64), litert_models.gradient_images(1, 64)
    strength = fault.draw(name)
    is_wide = fault.how == "per tensor"
    monkeypatch.delenv("QUANTMEDIC_NO_PROVE")
    monkeypatch.chdir(tmp_path)
    content = litert_models.two_convolutions(strength if is_wide else 1.0, colours=(0.1, 0.3, 1.0))
    Path("float.tflite").write_bytes(content)
    shown = fault.shown(proper, strength).astype(np.float32)
    mode = "int8" if is_wide else fault.how
    Path("ill.tflite").write_bytes(litert_models.quantized(content, mode, {"image": shown}, per_tensor=is_wide))
    np.savez("rep.npz", image=shown)
    np.savez("val.npz", image=judged)
    data = {"representative": "rep.npz", "validation": "val.npz"}
    quantmedic.diagnose("float.tflite", "ill.tflite", output="report", threads=1, **data)
    assert named_causes(Path("report"))[0] in fault.right
    code, _ = run_prescription(Path("report"), data={"serving_default": [{"image": row[None]} for row in shown]})
    exact, ill, healed = (run_litert(Path(f"{model}.tflite"), judged) for model in ("float", "ill", "int8"))
    assert fault.heals(exact, ill, healed), code


# --- torch -----------------------------------------------------------------------------------------------------------

TORCH = {
    "FX, divided again": Fault(PREPARED_WRONGLY, (5, 12), divide_again, "fx"),
    "PT2E, raw pixels": Fault(PREPARED_WRONGLY, (20, 200), leave_raw, "pt2e"),
    "torchao, divided again": Fault(PREPARED_WRONGLY, (5, 12), divide_again, "int8_static"),
    "FX, one scale for a wide channel": Fault(("channel-range-imbalance",), (100, 300), how="per tensor", left=0.5),
    "torchao, four bits beside a wide column": Fault(("too-few-weight-bits",), (20, 60), how="four bits"),
}


def quantize(how: str, net: Module, x: Any) -> Module:
    if how == "per tensor":
        return quantize_per_tensor(net, x)
    if how == "four bits":
        return quantize_to_four_bits(net)
    return getattr(torch_models, how)(net, x)


def quantize_per_tensor(net: Module, x: Any) -> Module:
    from torch.ao.quantization import MinMaxObserver, QConfig, get_default_qconfig_mapping, quantize_fx

    mapping = get_default_qconfig_mapping("x86")
    weight = MinMaxObserver.with_args(dtype=torch.qint8, qscheme=torch.per_tensor_symmetric)
    mapping.set_global(QConfig(mapping.global_qconfig.activation, weight))
    prepared = quantize_fx.prepare_fx(copy.deepcopy(net), mapping, (x,))
    prepared(x)
    return quantize_fx.convert_fx(prepared)


def quantize_to_four_bits(net: Module) -> Module:
    from torchao.quantization import IntxWeightOnlyConfig, PerAxis, quantize_

    found = copy.deepcopy(net)
    quantize_(found, IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerAxis(0)))
    return found


def make_network(how: str, strength: float) -> tuple[Module, Callable[[int], Any]]:
    """A float module, and its samples by a seed; a wide weight meets an input channel that is as quiet."""
    is_dense = how in ("int8_static", "four bits")
    net = torch_models.made(torch_models.Dense if is_dense else torch_models.ConvNet)
    quiet = 1.0
    if how in ("per tensor", "four bits"):
        quiet = 1 / strength
        weight = (net[0] if is_dense else net.conv1).weight.data
        weight[:, 0] *= strength if is_dense else 1.0
        weight[0, 0] *= 1.0 if is_dense else strength

    def draw(seed: int) -> Any:
        x = torch_models.rows(64, 64, seed) if is_dense else torch_models.images(64, seed)
        x[:, 0] *= quiet
        return x

    return net, draw


@pytest.mark.parametrize("name", others_nightly(TORCH, *list(TORCH)[:3]))
def test_a_torch_fault_comes_first_and_the_script_heals(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("QUANTMEDIC_NO_PROVE")
    fault = TORCH[name]
    strength = fault.draw(name)
    net, draw = make_network(fault.how, strength)
    proper, judged = draw(1), draw(2)
    shown = fault.shown(proper, strength)
    ill = quantize(fault.how, net, shown)
    report = tmp_path / "report"
    quantmedic.diagnose(net, ill, representative=shown, validation=judged, output=report, threads=1)
    assert named_causes(report)[0] in fault.right
    # The scripts say that the loader has to yield inputs as the application prepares them.
    code, left = run_prescription(report, model=net, loader=proper.split(16))
    with torch.no_grad():
        exact, before, after = (model(judged) for model in (net, ill, left["quantized"]))
    assert fault.heals(exact, before, after), code

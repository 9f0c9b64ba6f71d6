"""The drop-in for MCT's XQuant on torch modules."""

import copy
import math
from pathlib import Path
from typing import Any

import pytest

from quantmedic import xquant
from quantmedic.engine.errors import QuantmedicError
from quantmedic.reports import xquant as words
from quantmedic.xquant import XQuantConfig, XQuantData, xquant_report_troubleshoot_pytorch_experimental

pytestmark = pytest.mark.thorough

torch = pytest.importorskip("torch")

from quantmedic.xquant_metrics import Pair, add_metrics, measure_metrics  # noqa: E402


class Two(torch.nn.Module):  # type: ignore[name-defined]
    """Two inputs, a layer that batch norm follows, and one called ``conv_bn``."""

    def __init__(self) -> None:
        super().__init__()
        self.conv_bn = torch.nn.Conv2d(2, 4, 3)
        self.bn = torch.nn.BatchNorm2d(4)
        self.fc = torch.nn.Linear(4, 3)

    def forward(self, a: Any, b: Any, scale: float = 1.0) -> Any:
        return self.fc(torch.relu(self.bn(self.conv_bn(a + b))).mean((2, 3))) * scale


def split(batch: Any, *, labelled: bool, model: Any = None) -> Any:
    (given,) = list(XQuantData(lambda: [batch], model or torch.nn.Linear(4, 2), labelled=labelled)())
    return given


def test_batches_are_read_as_the_original_reads_them() -> None:
    x, y, classes = torch.zeros(2, 4), torch.ones(2, 4), torch.tensor([0, 1])
    two = Two()
    assert split([x], labelled=False) == [x]
    assert split((x, y), labelled=False, model=two) == [x, y]
    assert split(x, labelled=False) == [x] and split({"a": x}, labelled=False) == {"a": x}
    assert split((x, classes), labelled=True) == ([x], classes)
    assert split([[x, y], classes], labelled=True, model=two) == ([x, y], classes)
    assert split(((x, y), classes), labelled=True, model=two) == ([x, y], classes)
    assert split(({"a": x}, classes), labelled=True) == ({"a": x}, classes)
    assert split([x, y], labelled=True, model=two) == [x, y]
    assert split([x], labelled=True) == [x]
    for labels in (
        torch.ones(2),
        torch.zeros(2, 4, dtype=torch.int64),
        None,
        {"boxes": x},
        torch.tensor([True, False]),
    ):
        assert split((x, labels), labelled=True) == [x]
    numbers = classes.numpy().astype("uint8")
    assert split((x.numpy(), numbers), labelled=True)[1] is numbers


def noisy(model: Any, scale: float) -> Any:
    quantized = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in quantized.parameters():
            parameter.copy_((parameter / scale).round() * scale)
    return quantized


def test_custom_metrics_are_averaged_over_batches_and_hooks_are_removed() -> None:
    torch.manual_seed(0)
    model = Two().eval()
    quantized = noisy(model, 0.05)
    pairs = {"conv": Pair(model.bn, quantized.bn), "fc": Pair(model.fc, quantized.fc)}
    batches = [[torch.randn(4, 2, 6, 6), torch.randn(4, 2, 6, 6)] for _ in range(3)]
    metrics = {"largest": lambda x, y: (x - y).abs().max()}
    data = XQuantData(lambda: iter(batches), model, labelled=False)
    found = measure_metrics(model, quantized, pairs, data.inputs(), metrics)
    with torch.no_grad():
        apart = [float((model(*batch) - quantized(*batch)).abs().max()) for batch in batches]
    assert found.output == {"largest": pytest.approx(sum(apart) / 3)} == found.layers["fc"]
    assert found.layers["conv"]["largest"] > 0

    def fails(x: Any, y: Any) -> float:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        measure_metrics(model, quantized, pairs, data.inputs(), {"fails": fails})
    for module in (*model.modules(), *quantized.modules()):
        assert not module._forward_hooks and not module._forward_pre_hooks
    joined = add_metrics(words.Similarity({"mse": 1.0}, {"fc": {"mse": 1.0}, "add": {"mse": 2.0}}), found, metrics, ())
    assert joined.output["mse"] == 1.0 and joined.layers["fc"] == {"mse": 1.0, **found.output}
    assert set(joined.layers) == {"fc", "add"} and math.isnan(joined.layers["add"]["largest"])


def test_a_folded_residual_branch_is_added_to_what_its_float_module_gives() -> None:
    torch.manual_seed(0)
    model, whole = torch.nn.Conv2d(3, 3, 3, padding=1), torch.nn.Conv2d(3, 3, 3, padding=1)
    whole.load_state_dict(model.state_dict())
    with torch.no_grad():
        whole.weight[range(3), range(3), 1, 1] += 1
    batches = [[torch.randn(4, 3, 6, 6)] for _ in range(2)]
    metrics = {"largest": lambda x, y: float((x - y).abs().max())}
    pairs = {"sum": Pair(model, whole, model), "bare": Pair(model, whole)}
    found = measure_metrics(model, whole, pairs, iter(batches), metrics)
    assert found.layers["sum"]["largest"] < 1e-5 < found.layers["bare"]["largest"]


def test_measures_of_the_original_take_the_place_of_the_diagnosis_where_it_compares() -> None:
    known = words.Similarity({"mse": 1.0, "cs": 0.5}, {"fc": {"mse": 1.0}, "add": {"mse": 2.0}})
    own = words.Similarity({"mse": 3.0}, {"fc": {"mse": 3.0}, "add": {"mse": 3.0}})
    joined = add_metrics(known, own, {}, ["fc"])
    assert joined.output == {"mse": 3.0, "cs": 0.5}, "of an output that is no tensor nothing was measured"
    assert joined.layers == {"fc": {"mse": 3.0}, "add": {"mse": 2.0}}


class Rounded(torch.nn.Module):  # type: ignore[name-defined]
    """A layer with fake-quantized weights and output."""

    def __init__(self, layer: Any, scale: float, low: int = -128):
        super().__init__()
        self.layer, self.scale, self.low = layer, scale, low

    def forward(self, x: Any) -> Any:
        round_to = torch.fake_quantize_per_tensor_affine
        weight = self.layer.weight
        weight = round_to(weight, float(weight.detach().abs().max()) / 127, 0, -128, 127)
        return round_to(
            torch.func.functional_call(self.layer, {"weight": weight}, (x,)), self.scale, 0, self.low, self.low + 255
        )


def test_report_on_modules(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    torch.manual_seed(0)
    model = Two().eval()
    quantized = copy.deepcopy(model)
    quantized.conv_bn, quantized.fc = Rounded(quantized.conv_bn, 0.05), Rounded(quantized.fc, 0.02)
    inputs = [[torch.randn(16, 2, 6, 6), torch.randn(16, 2, 6, 6)] for _ in range(3)]
    with torch.no_grad():
        model.fc.bias -= torch.cat([model(*pair) for pair in inputs]).mean(0)
        quantized.fc.layer.bias.copy_(model.fc.bias)
    before = {key: value.clone() for key, value in quantized.state_dict().items()}
    metric = {"largest": lambda x, y: (x - y).abs().max()}
    measured, troubles = xquant_report_troubleshoot_pytorch_experimental(
        model,
        quantized,
        lambda: iter(inputs),
        lambda: ((pair, model(*pair).argmax(1)) for pair in inputs),
        XQuantConfig(
            str(tmp_path),
            custom_similarity_metrics=metric,
            threshold_quantize_error={"mse": 0.1, "cs": 0.1, "sqnr": 0.1, "largest": 9.0},
        ),
    )
    assert not troubles.get("unbalanced_concatenation")
    with torch.no_grad():
        x, y = (torch.cat([network(*pair) for pair in inputs]) for network in (model, quantized))
    expected = {
        "mse": float((x - y).square().mean()),
        "cs": float((x * y).sum() / (x.norm() * y.norm())),
        "sqnr": float(x.square().sum() / (x - y).square().sum()),
    }
    assert {"largest"} == measured["output_similarity_metrics_val"].keys() - expected.keys()
    for metric_name, value in expected.items():
        assert measured["output_similarity_metrics_val"][metric_name] == pytest.approx(value, rel=1e-3)
    layers = measured["intermediate_similarity_metrics_repr"]
    assert any(name.startswith("conv_bn") for name in layers) and any(name.startswith("fc") for name in layers)
    assert measured["quantmedic"]["metrics"]["name"] == "top1"
    assert measured["quantmedic"]["metrics"]["float_value"] == 1.0
    stems = {path.stem for path in tmp_path.glob("quant_loss_*")}
    assert stems == {f"quant_loss_{m}_{s}" for m in (*expected, "largest") for s in ("repr", "val")}
    assert all(torch.equal(value, before[key]) for key, value in quantized.state_dict().items())
    assert not any(module._forward_hooks for network in (model, quantized) for module in network.modules())
    assert not model.training and not quantized.training


def test_data_that_can_be_read_only_once(tmp_path: Path) -> None:
    model = Two().eval()
    batches = ([torch.zeros(2, 2, 6, 6), torch.zeros(2, 2, 6, 6)] for _ in range(2))
    config = XQuantConfig(str(tmp_path))
    with pytest.raises(QuantmedicError, match="only once"):
        xquant_report_troubleshoot_pytorch_experimental(model, model, batches, None, config)  # type: ignore[arg-type]


def test_custom_metrics_are_functions_by_name(tmp_path: Path) -> None:
    config = XQuantConfig(str(tmp_path), custom_similarity_metrics=[max])  # type: ignore[arg-type]
    with pytest.raises(QuantmedicError, match="should be a dictionary but is of type <class 'list'>"):
        xquant._custom_metrics(config)

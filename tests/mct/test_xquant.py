"""The drop-in beside the original: same keys, same files, same lines where both speak, and where only one should."""

import copy
import inspect
import json
import logging
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
mct = pytest.importorskip("model_compression_toolkit", reason="needs tests/mct/requirements.txt, see .ci/nightly")

from model_compression_toolkit import xquant as original  # noqa: E402

from quantmedic import xquant  # noqa: E402
from quantmedic.reports.xquant import HEADS  # noqa: E402

pytestmark = [pytest.mark.thorough, pytest.mark.nightly]

LOGGER = "Model Compression Toolkit"
MEASURES = {"mse", "cs", "sqnr"}
GRAPHS = {f"quant_loss_{metric}_{suffix}.png" for metric in MEASURES for suffix in ("repr", "val")}
#: The field that the original does not have.
OPTION = "skip_judging_above_degrade_ratio"
WEIGHTED = {"conv1_bn", "conv2", "conv3", "fc"}


class Net(torch.nn.Module):  # type: ignore[name-defined]
    """Batch norm, an activation, a concatenation and a residual addition."""

    def __init__(self, act: Callable[[], Any] = torch.nn.ReLU) -> None:
        super().__init__()
        self.conv1 = torch.nn.Conv2d(3, 8, 1)
        self.bn1 = torch.nn.BatchNorm2d(8)
        self.act = act()
        self.pool = torch.nn.MaxPool2d(2)
        self.conv2 = torch.nn.Conv2d(8, 8, 1)
        self.conv3 = torch.nn.Conv2d(16, 8, 1)
        self.fc = torch.nn.Linear(8, 10)

    def forward(self, x: Any) -> Any:
        x = self.pool(self.act(self.bn1(self.conv1(x))))
        y = torch.relu(self.conv2(x))
        return self.fc((torch.relu(self.conv3(torch.cat([x, y], 1))) + y).mean((2, 3)))


def batches(data: Any) -> Callable[[], Iterator[Any]]:
    return lambda: ([rows] for rows in data.split(32))


def pairs(data: Any, labels: Any) -> Callable[[], Iterator[Any]]:
    return lambda: zip(data.split(32), labels.split(32), strict=True)


def centred(net: Any, data: Any) -> Any:
    """The network with outputs that tell samples apart: an untrained one names one class for all."""
    with torch.no_grad():
        net.fc.bias -= net(data).mean(0)
    return net


def quantized(net: Any, data: Any, bits: int | None = None, **settings: Any) -> Any:
    widths = mct.core.BitWidthConfig()
    if bits is not None:
        widths.set_manual_weights_bit_width(mct.core.common.network_editors.NodeNameFilter("fc"), bits, "weight")
    core = mct.core.CoreConfig(quantization_config=mct.core.QuantizationConfig(**settings), bit_width_config=widths)
    return mct.ptq.pytorch_post_training_quantization(net, batches(data), core_config=core)[0]


@dataclass
class Told:
    """What one tool gave: results, files and WARNING lines, the folder's name replaced."""

    measured: dict[str, Any]
    troubles: dict[str, Any]
    files: set[str]
    lines: list[str]


def told(tool: Any, net: Any, network: Any, data: Any, labels: Any, folder: Path, **settings: Any) -> Told:
    lines: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.levelno >= logging.WARNING:
                lines.append(record.getMessage().replace(str(folder), "REPORT"))

    handler, logger = Keep(), logging.getLogger(LOGGER)
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        measured, troubles = tool.xquant_report_troubleshoot_pytorch_experimental(
            net, copy.deepcopy(network), batches(data), pairs(data, labels), tool.XQuantConfig(str(folder), **settings)
        )
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    return Told(measured, troubles, files, [line for line in lines if "DepthwiseConv2D" not in line])


def both(
    net: Any, network: Any, data: Any, folder: Path, *, ours: dict[str, Any] | None = None, **settings: Any
) -> tuple[Told, Told]:
    """What both tools tell; ``ours`` are settings that the original does not have."""
    labels = torch.zeros(len(data))  # no classes: only the outputs are compared
    theirs = told(original, net, network, data, labels, folder / "theirs", **settings)
    return theirs, told(xquant, net, network, data, labels, folder / "ours", **settings, **(ours or {}))


@pytest.fixture(scope="module")
def data() -> Any:
    generator = torch.Generator().manual_seed(1)
    wide = torch.randn(256, 3, 1, 1, generator=generator)
    return torch.randn(256, 3, 8, 8, generator=generator) + wide


@pytest.mark.source("xquant-drop-in", "xquant-config")
def test_signature_and_configuration() -> None:
    for name in ("xquant_report_troubleshoot_pytorch_experimental", "XQuantConfig"):
        theirs, ours = (inspect.signature(getattr(tool, name)).parameters for tool in (original, xquant))
        assert [*theirs, OPTION][: len(ours)] == list(ours), "the option of our own is the last"
    assert vars(xquant.XQuantConfig("a")) == vars(original.XQuantConfig("a")) | {OPTION: False}


@pytest.mark.source("xquant-log-dir")
def test_the_log_folder_is_the_one_that_was_set(log_folder: Path) -> None:
    theirs, ours = original.XQuantConfig("a"), xquant.XQuantConfig("a")
    assert ours.quantize_reported_dir is not None and ours.quantize_reported_dir == theirs.quantize_reported_dir
    assert Path(ours.quantize_reported_dir).parent == log_folder


@pytest.mark.source("xquant-drop-in", "xquant-errors-per-layer", "xquant-graphs", "xquant-data")
def test_a_healthy_network(data: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = centred(Net().eval(), data)
    network = quantized(net, data)
    before = {key: value.clone() for key, value in network.state_dict().items()}
    theirs, ours = both(net, network, data, tmp_path)
    assert ours.troubles == theirs.troubles == {} and not ours.lines
    assert set(ours.measured) - {"quantmedic"} == set(theirs.measured)
    for key, values in theirs.measured.items():
        if key.startswith("output"):
            assert ours.measured[key] == pytest.approx(values, rel=0.02)
            continue
        assert set(values) == WEIGHTED <= set(ours.measured[key])
        assert {"cat", "add"} <= set(ours.measured[key])
        assert all(set(found) == MEASURES for found in ours.measured[key].values())
    assert theirs.files >= GRAPHS
    assert {os.path.splitext(name)[0] for name in GRAPHS} <= {os.path.splitext(name)[0] for name in ours.files}
    assert {"quant_report.json", "troubleshoot_report.json", "index.html", "report.json"} <= ours.files
    assert any(name.endswith("/mct_log.log") for name in ours.files)
    stored = json.loads((tmp_path / "ours" / "quant_report.json").read_text())
    assert set(stored) == set(json.loads((tmp_path / "theirs" / "quant_report.json").read_text()))
    assert all(torch.equal(value, before[key]) for key, value in network.state_dict().items())
    assert not any(module._forward_hooks for module in net.modules())


@pytest.mark.source("xquant-warning-last-layer")
def test_two_bits_in_the_last_layer(data: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = centred(Net().eval(), data)
    # a bias that was corrected for two bits would hide what more bits gain
    theirs, ours = both(net, quantized(net, data, bits=2, weights_bias_correction=False), data, tmp_path)
    key = "mixed_precision_with_model_output_loss_objective"
    assert ours.troubles[key] == theirs.troubles[key] == ["fc"]
    lines = [HEADS["last-layer-bitwidth"], "bidwidth of fc:2(Weight), 8(Activation)"]
    assert theirs.lines[-2:] == ours.lines[:2] == lines
    assert ours.troubles["causes"][0]["cause"] == "last-layer-bitwidth"


@pytest.mark.source("xquant-warning-negative")
def test_negative_activations_that_lose_accuracy(tmp_path: Path) -> None:
    """A bright pixel per image sets the range; the bulk of the values shares one level."""
    torch.manual_seed(0)
    net = Net(torch.nn.SiLU).eval()
    bright = 0.5 * (torch.randn(64, 3, 64, 64) + torch.randn(64, 3, 1, 1))
    bright[:, 2] = 0.0
    bright[:, 2, 11, 7] = 2.0
    with torch.no_grad():
        net.conv1.weight[:, 2] = 12.0
        net.conv1.bias.fill_(-1.2)
    network = quantized(
        centred(net, bright),
        bright,
        shift_negative_activation_correction=False,
        weights_bias_correction=False,
        activation_error_method=mct.core.QuantizationErrorMethod.NOCLIPPING,
    )
    theirs, ours = both(net, network, bright, tmp_path, threshold_degrade_layer_ratio=2.0)
    assert theirs.troubles["shift_negative_activation"] == ["act"] == ours.troubles["shift_negative_activation"][:1]
    head = [HEADS["negative-activations"], "act=SiLU"]
    for lines in (theirs.lines, ours.lines):
        start = lines.index(head[0])
        assert lines[start : start + 2] == head


def test_harmless_swish_is_no_cause(data: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = centred(Net(torch.nn.SiLU).eval(), data)
    theirs, ours = both(net, quantized(net, data), data, tmp_path)
    assert theirs.troubles["shift_negative_activation"] == ["act"]
    assert ours.troubles == {} and not ours.lines


@pytest.mark.source("xquant-warning-outliers")
def test_outliers(data: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = Net(torch.nn.Identity).eval()
    spiked = data.clone()
    spiked[0, :, 3, 3] = 80.0
    with torch.no_grad():
        net.conv1.weight *= 0.3
        net.conv1.weight[:, 0] = 1.0
        net.conv1.weight *= 4.0
    network = quantized(
        centred(net, data),
        spiked,
        weights_bias_correction=False,
        activation_error_method=mct.core.QuantizationErrorMethod.NOCLIPPING,
    )
    limits = {"mse": 1e-4, "cs": 0.1, "sqnr": 0.1}
    settings = {"threshold_quantize_error": limits, "threshold_degrade_layer_ratio": 2.0}
    theirs, ours = both(net, network, spiked, tmp_path, **settings)
    layer = "conv1_bn"
    for found, name in ((theirs, "theirs"), (ours, "ours")):
        image = dict(found.troubles["outlier_removal"])[layer]
        assert image == f"{tmp_path / name}/outlier_histgrams/{layer}{Path(image).suffix}"
        assert Path(image).is_file()
        start = found.lines.index(HEADS["activation-outliers"])
        assert image.replace(str(tmp_path / name), "REPORT") in found.lines[start + 1 :]


@pytest.mark.source("xquant-degrade-ratio")
def test_most_layers_degraded(data: Any, tmp_path: Path) -> None:
    """Calibrated on images 255 times as large: the original finds every layer degraded and stops."""
    torch.manual_seed(0)
    net = Net().eval()
    levels = torch.randint(0, 256, (256, 3, 4, 4)).float() / 255
    images = torch.nn.functional.interpolate(levels, size=8) - 0.5
    network = quantized(centred(net, images), images * 255)
    labels = torch.zeros(256)
    settings = {"threshold_quantize_error": {"mse": 1e-6, "cs": 0.1, "sqnr": 0.1}}
    found = []
    for tool in (original, xquant):
        folder = tmp_path / tool.__name__
        report = tool.xquant_report_troubleshoot_pytorch_experimental
        config = tool.XQuantConfig(str(folder), **settings)
        found.append(report(net, copy.deepcopy(network), batches(images * 255), pairs(images, labels), config)[1])
    assert found[0] == {}
    assert "preprocessing-mismatch" in [cause["cause"] for cause in found[1]["causes"]]


@pytest.mark.source("xquant-degrade-ratio")
@pytest.mark.parametrize("ratio", [0.3, 0.51, 0.76])
def test_the_degrade_ratio_stops_where_the_original_stops(ratio: float, data: Any, tmp_path: Path) -> None:
    """Some of the four layers are degraded, by the squared error."""
    torch.manual_seed(0)
    net = centred(Net(torch.nn.SiLU).eval(), data)
    network = quantized(net, data, bits=2, weights_bias_correction=False)
    limits = {"mse": 2e-4, "cs": 0.1, "sqnr": 0.1}
    theirs, ours = both(
        net,
        network,
        data,
        tmp_path,
        ours={OPTION: True},
        threshold_quantize_error=limits,
        threshold_degrade_layer_ratio=ratio,
    )
    degraded = {
        name
        for suffix in ("repr", "val")
        for name, values in theirs.measured[f"intermediate_similarity_metrics_{suffix}"].items()
        if values["mse"] >= limits["mse"]
    }
    assert 0 < len(degraded) < len(WEIGHTED)
    assert (theirs.troubles == {}) == (ours.troubles == {}) == (len(degraded) / len(WEIGHTED) >= ratio)
    assert bool(ours.lines) == bool(theirs.lines)


@pytest.mark.source("xquant-tensorboard")
def test_event_files_hold_what_those_of_the_original_hold(data: Any, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    torch.manual_seed(0)
    net = centred(Net(torch.nn.SiLU).eval(), data)
    both(net, quantized(net, data), data, tmp_path)
    runs = []
    for tool in ("theirs", "ours"):
        folders = {path.parent for path in (tmp_path / tool).rglob("events.out*")}
        runs.append(
            {folder.name: EventAccumulator(str(folder), {"histograms": 0, "tensors": 0}).Reload() for folder in folders}
        )
    theirs, ours = runs
    assert theirs.keys() == ours.keys() == {"xquant", "output_similarity_metrics_repr", "output_similarity_metrics_val"}
    assert ours["xquant"].Tags()["graph"] and theirs["xquant"].Tags()["graph"]
    histograms = [run["xquant"].Tags()["histograms"] for run in runs]
    assert {"x", "act", "cat", "add", "fc"} <= set(histograms[0]) <= set(histograms[1])
    for tag in histograms[0]:
        seen, own = (run["xquant"].Histograms(tag)[0].histogram_value for run in runs)
        assert own.min == pytest.approx(seen.min, rel=0.01, abs=1e-6)
        assert own.max == pytest.approx(seen.max, rel=0.01)
    # the original's graph is the one that torch.fx traces: modules end in _layer, quantizers are nodes of their own
    nodes = [{node.name.rpartition("/")[2]: node for node in run["xquant"].Graph().node} for run in runs]
    measured = {name.removesuffix("_layer") for name, node in nodes[0].items() if "xquant_repr" in node.attr}
    assert measured == WEIGHTED
    assert all({"xquant_repr", "xquant_val"} <= set(nodes[1][name].attr) for name in measured)
    assert set(nodes[1]["cat"].input) == {"pool", "relu"}
    for suffix in ("repr", "val"):
        tag = f"output_similarity_metrics_{suffix}"
        texts = [run[tag].Tensors(tag)[0].tensor_proto.string_val[0].decode() for run in runs]
        assert texts[0].splitlines()[0] == texts[1].splitlines()[0]
        values = [dict(re.findall(r"^(\w+): ([\d.]+)$", text, re.M)) for text in texts]
        assert values[0].keys() == values[1].keys() == MEASURES
        assert float(values[1]["sqnr"]) == pytest.approx(float(values[0]["sqnr"]), rel=0.02)


def test_without_tensorboard_there_are_no_event_files(
    data: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(xquant, "find_spec", lambda name: None)
    torch.manual_seed(0)
    net = centred(Net().eval(), data)
    found = told(xquant, net, quantized(net, data), data, torch.zeros(len(data)), tmp_path)
    assert "index.html" in found.files and not [name for name in found.files if "events.out" in name]


class Two(torch.nn.Module):  # type: ignore[name-defined]
    """Two inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = torch.nn.Conv2d(3, 8, 3)
        self.bn1 = torch.nn.BatchNorm2d(8)
        self.fc = torch.nn.Linear(8, 10)

    def forward(self, a: Any, b: Any) -> Any:
        return self.fc(torch.relu(self.bn1(self.conv1(torch.cat([a, b], 2)))).mean((2, 3)))


class Named(torch.nn.Module):  # type: ignore[name-defined]
    """A layer called ``conv_bn`` that no batch norm follows."""

    def __init__(self) -> None:
        super().__init__()
        self.conv_bn = torch.nn.Conv2d(3, 8, 3)
        self.fc = torch.nn.Linear(8, 10)

    def forward(self, x: Any) -> Any:
        return self.fc(torch.relu(self.conv_bn(x)).mean((2, 3)))


@pytest.mark.parametrize(
    ("kind", "error", "layer"), [(Two, TypeError, "conv1_bn"), (Named, UnboundLocalError, "conv_bn")]
)
def test_where_the_original_raises_an_error(
    kind: type[Any], error: type[Exception], layer: str, data: Any, tmp_path: Path, log_folder: Path
) -> None:
    """It looks for what follows a layer called ``…_bn``, and feeds it with one input."""
    torch.manual_seed(0)
    net = kind().eval()

    def representative() -> Iterator[Any]:
        return ([rows[:16], rows[16:]] if kind is Two else [rows] for rows in data.split(32))

    def validation() -> Iterator[Any]:
        return ((inputs if kind is Two else inputs[0], torch.zeros(len(inputs[0]))) for inputs in representative())

    network = mct.ptq.pytorch_post_training_quantization(net, representative)[0]
    settings: dict[str, Any] = {
        "quantize_reported_dir": str(log_folder),
        "threshold_quantize_error": {"mse": 0.0, "cs": 0.1, "sqnr": 0.1},
        "threshold_degrade_layer_ratio": 2.0,
    }
    arguments = (net, network, representative, validation)
    measured, troubles = xquant.xquant_report_troubleshoot_pytorch_experimental(
        *arguments, xquant.XQuantConfig(str(tmp_path / "ours"), **settings)
    )
    assert troubles == {}
    assert layer in measured["intermediate_similarity_metrics_val"]
    assert not any(module._forward_hooks for model in (net, network) for module in model.modules())
    with pytest.raises(error):
        original.xquant_report_troubleshoot_pytorch_experimental(
            *arguments, original.XQuantConfig(str(tmp_path / "theirs"), **settings)
        )


class Fused(torch.nn.Module):  # type: ignore[name-defined]
    """Activations that are fused, as modules of a sequence, and layers without one; a residual, two branches."""

    def __init__(self, act: Callable[[], Any]) -> None:
        super().__init__()
        self.stem = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.BatchNorm2d(8), act())
        self.body = torch.nn.Sequential(torch.nn.Conv2d(8, 8, 1), act(), torch.nn.Conv2d(8, 8, 3, padding=1))
        self.plain = torch.nn.Conv2d(8, 8, 1)
        self.mixed = torch.nn.Conv2d(16, 8, 1)
        self.last = act()
        self.fc = torch.nn.Linear(8, 10)

    def forward(self, x: Any) -> Any:
        x = self.stem(x)
        x = x + self.body(x)
        x = self.last(self.mixed(torch.cat([x, self.plain(x)], 1)))
        return self.fc(x.mean((2, 3)))


@pytest.mark.source("xquant-custom-metrics")
@pytest.mark.parametrize("act", [torch.nn.ReLU, torch.nn.ReLU6, torch.nn.SiLU, torch.nn.PReLU])
def test_measures_are_those_of_the_points_that_the_original_compares(
    act: Callable[[], Any], data: Any, tmp_path: Path
) -> None:
    torch.manual_seed(2)
    net = centred(Fused(act).eval(), data)
    own = {"own": lambda x, y: float(((x - y) ** 2).mean()), "reach": lambda x, y: float(x.abs().max())}
    limits = {"mse": 0.1, "cs": 0.1, "sqnr": 0.1, "own": 0.1, "reach": 1e9}
    theirs, ours = both(
        net,
        quantized(net, data),
        data,
        tmp_path,
        custom_similarity_metrics=own,
        threshold_quantize_error=limits,
    )
    for suffix in ("repr", "val"):
        key = f"intermediate_similarity_metrics_{suffix}"
        points = theirs.measured[key]
        assert len(points) >= 5 and points.keys() <= ours.measured[key].keys()
        for layer, values in points.items():
            assert ours.measured[key][layer] == pytest.approx(values, rel=0.001)
        output = f"output_similarity_metrics_{suffix}"
        assert ours.measured[output] == pytest.approx(theirs.measured[output], rel=0.001)


class Residual(torch.nn.Module):  # type: ignore[name-defined]
    """A convolution and the input that is added to it."""

    def __init__(self, *settings: int, padding: int) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(*settings, padding=padding)

    def forward(self, x: Any) -> Any:
        return self.conv(x) + x


@pytest.mark.source("xquant-errors-per-layer")
@pytest.mark.parametrize(("act", "kind"), [(torch.nn.Hardswish, torch.nn.Conv2d), (torch.nn.ReLU, Residual)])
def test_layers_whose_names_begin_with_digits(act: Any, kind: Any, data: Any, tmp_path: Path) -> None:
    """MCT puts an underscore in front, adds layers that shift an activation, and folds a residual branch in."""
    torch.manual_seed(3)
    stem = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.BatchNorm2d(8), act())
    tail = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(8, 10))
    net = torch.nn.Sequential(stem, kind(8, 8, 3, padding=1), act(), tail).eval()
    theirs, ours = both(net, quantized(net, data), data, tmp_path)
    for suffix in ("repr", "val"):
        key = f"intermediate_similarity_metrics_{suffix}"
        points = theirs.measured[key]
        assert len(points) == 3 and points.keys() <= ours.measured[key].keys()
        assert all(ours.measured[key][layer] == pytest.approx(values, rel=0.001) for layer, values in points.items())

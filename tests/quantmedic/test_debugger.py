"""The debugger's table: ONNX operators against onnxruntime, its file and its refusals."""

import csv
import json
import math
import subprocess
import sys
import tracemalloc
import xml.etree.ElementTree as etree
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders.commands import run_quantmedic
from builders.onnx_models import Recipe, conv_net, dynamic, images, qdq, residual_net, run, save_pair, section
from numpy.typing import NDArray
from onnx import numpy_helper

import quantmedic
from quantmedic.api.search import write_layers
from quantmedic.cli.main import main
from quantmedic.engine.contract.searches import METRICS, DebuggerLayer, DebuggerRecord, WorstOutcome
from quantmedic.engine.errors import DataError, ModelError, OutputError
from quantmedic.reports.charts.layer_panels import debugger_chart
from quantmedic.reports.machines.spreadsheets import debugger_csv
from quantmedic.reports.search_formats import render_search, search_page

pytestmark = pytest.mark.thorough

#: What a user might give, right and wrong.
METRICS_MODULE = """
import numpy as np

def mean_abs(difference):
    return np.mean(np.abs(difference))

def correlation(floats, codes, scale, zero_point):
    return np.corrcoef(floats.ravel(), ((codes - zero_point) * scale).ravel())[0, 1]

def top1(float_outputs, quantized_outputs):
    return np.argmax(float_outputs[0]) == np.argmax(quantized_outputs[0])

def failing(*arrays):
    raise KeyError("no such key")

def of_arrays(difference):
    return difference
"""
X = images(9)
SVG = "{http://www.w3.org/2000/svg}"
COLUMNS = "op_name,tensor_idx,num_elements,stddev,mean_error,max_abs_error,mean_squared_error"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return save_pair(tmp_path_factory.mktemp("pair"), conv_net(), qdq(conv_net(), {"image": X}))


def measure(pair: tuple[Path, Path], **options: Any) -> DebuggerRecord:
    return quantmedic.search("debugger", *pair, **{"validation": X, "threads": 1, **options})


def command(folder: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run in a folder with data and metrics."""
    np.savez(folder / "data.npz", image=X)
    (folder / "mine.py").write_text(METRICS_MODULE)
    return run_quantmedic("search", "debugger", *arguments, "-v", "data.npz", cwd=folder)


def mean_abs(difference: NDArray[np.float32]) -> Any:
    return np.mean(np.abs(difference))


def by_name(record: DebuggerRecord) -> dict[str, DebuggerLayer]:
    return {layer.tensor_name: layer for layer in record.layers}


def errors(before: str, after: str) -> list[NDArray[np.float32]]:
    """quantized - float of one operator for each sample, both fed with the deployed tensor ``before``."""
    model, quantized = conv_net(), qdq(conv_net(), {"image": X})
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in quantized.graph.initializer}
    nodes = [node for node in quantized.graph.node if node.op_type == "QuantizeLinear"]
    taps = {node.input[0]: (node.output[0], *(constants[name] for name in node.input[1:3])) for node in nodes}
    found = []
    for sample in X:
        seen = run(quantized, {"image": sample[None]}, [taps[name][0] for name in (before, after)])
        fed, got = (
            (seen[taps[name][0]].astype(np.float32) - taps[name][2]) * taps[name][1] for name in (before, after)
        )
        (alone,) = run(section(model, before, after.removesuffix("_raw")), {before: fed.astype(np.float32)}).values()
        found.append(got - alone)
    return found


@pytest.mark.source("litert-run", "litert-statistics")
def test_a_row_is_the_operator_alone_on_deployed_inputs(pair: tuple[Path, Path]) -> None:
    figures = {
        "num_elements": np.size,
        "stddev": np.std,
        "mean_error": np.mean,
        "max_abs_error": lambda d: np.abs(d).max(),
        "mean_squared_error": lambda d: np.mean(d * d),
        "mean_abs": mean_abs,
    }
    rows = by_name(measure(pair, layer_metrics={"mean_abs": mean_abs}))
    for before, after in (("relu1", "relu2"), ("relu2", "pool"), ("flat", "scores_raw")):
        layer, expected = rows[after.removesuffix("_raw")], errors(before, after)
        assert tuple(layer.metrics) == tuple(figures)
        for name, of in figures.items():
            # float kernels of one operator and of the network sum in another order
            found = np.mean([of(d) for d in expected])
            assert layer.metrics[name] == pytest.approx(found, rel=1e-3, abs=1e-4 * layer.scale), (after, name)


def test_the_same_error_stands_in_a_case(pair: tuple[Path, Path]) -> None:
    case = quantmedic.collect(*pair, validation=X, step_error=True, threads=1)
    facts = quantmedic.inspect(case).facts
    rows = by_name(measure(pair))
    compared = [(t, rows[t.float_name]) for t in facts.tensors if t.float_name in rows]
    assert len(compared) == len(rows) >= 5
    for tensor, row in compared:
        assert row.metrics["mean_squared_error"] == pytest.approx(tensor.data.step.mse, rel=1e-4)
        assert row.metrics["mean_error"] == pytest.approx(tensor.data.step.mean, rel=1e-3, abs=1e-5 * row.scale)
        assert row.rmse_over_scale == pytest.approx(tensor.data.step.rmse_over_scale, rel=1e-4)


@pytest.mark.source("litert-layer-metrics")
def test_metrics_are_averaged_over_samples_without_nan(pair: tuple[Path, Path]) -> None:
    turns = cycle([np.nan, 3.0])  # each of the layers, an odd number, sees both
    given = {"quiet": lambda d: next(turns), "never": lambda d: np.nan}
    record = measure(pair, layer_metrics=given, samples=8)
    assert record.samples == 8
    assert {layer.metrics["quiet"] for layer in record.layers} == {3.0}
    assert all(math.isnan(layer.metrics["never"]) for layer in record.layers)
    assert "nan" in debugger_csv(record).splitlines()[1].split(",")


@pytest.mark.source("litert-pair-metrics", "litert-model-statistics")
def test_functions_get_tensors_codes_and_outputs(pair: tuple[Path, Path]) -> None:
    seen: list[Any] = []
    record = measure(
        pair,
        pair_metrics={"kept": lambda *found: seen.append(found) or 1.0},
        output_metrics={
            "top1": lambda f, q: np.argmax(f[0]) == np.argmax(q[0]),
            "shape": lambda f, q: f[0].shape == q[0].shape == (1, 5),
        },
        samples=3,
    )
    assert record.outputs == {"top1": 1.0, "shape": 1.0}
    floats, codes, scale, zero = seen[0]
    assert floats.dtype == np.float32 and codes.dtype == np.uint8 and floats.shape == codes.shape
    first = record.layers[0]
    assert (scale, zero) == (np.float32(first.scale), first.zero_point)
    assert (codes - zero).dtype == np.int32, "codes of 8 bits do not overflow"
    difference = (codes - zero) * scale - floats
    assert np.sqrt(np.mean(difference**2)) < scale
    floats[:] = 0  # a function that changes what it gets changes nothing else
    assert measure(pair, samples=3).layers[0].metrics == {k: v for k, v in first.metrics.items() if k != "kept"}


def test_codes_of_four_and_sixteen_bits(tmp_path: Path) -> None:
    wide = qdq(conv_net(opset=21), {"image": X}, Recipe(activation=np.uint16))
    record = measure(save_pair(tmp_path, conv_net(opset=21), wide))
    assert {layer.bits for layer in record.layers} == {16}
    assert all(layer.range == pytest.approx(65535 * layer.scale) for layer in record.layers)


def test_wide_scenes_are_read_one_sample_at_a_time(pair: tuple[Path, Path]) -> None:
    """Memory does not grow with the samples: of 5 times as many, no more is held at a time."""

    def peak(samples: int) -> int:
        record: dict[str, int] = {}

        def stream() -> Iterator[NDArray[np.float32]]:
            for _ in range(samples):
                yield X[:1]

        tracemalloc.start()
        measure(pair, validation=stream)
        record["peak"] = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return record["peak"]

    peak(5)
    assert peak(60) < 1.2 * peak(12) + 100_000


# --- the file and the terminal -------------------------------------------------------------------------------------


@pytest.mark.source("litert-range", "litert-steps")
def test_the_file_has_the_columns_of_litert(pair: tuple[Path, Path], tmp_path: Path) -> None:
    target = tmp_path / "layers.csv"
    own = ("--layer-metric", "mean_abs=mine:mean_abs", "--pair-metric", "r=mine:correlation")
    own = (*own, "--output-metric", "top1=mine:top1")
    done = command(tmp_path, *pair, "-o", target, *own, "--samples", 4, "--threads", 1)
    assert done.returncode == 0, done.stderr
    text = target.read_text()
    assert text.startswith(f"{COLUMNS},mean_abs,r,scale,zero_point,tensor_name,range,rmse/scale\n")
    rows = list(csv.DictReader(text.splitlines()))
    expected = measure(pair, samples=4)
    assert [row["tensor_name"] for row in rows] == [layer.tensor_name for layer in expected.layers]
    assert [float(row["stddev"]) for row in rows] == [layer.metrics["stddev"] for layer in expected.layers]
    assert all(0.99 < float(row["r"]) <= 1 for row in rows)
    for row in rows:
        scale = float(row["scale"])
        assert float(row["range"]) == pytest.approx(255 * scale)
        assert float(row["rmse/scale"]) == pytest.approx(math.sqrt(float(row["mean_squared_error"])) / scale)
    assert "outputs: top1 1" in done.stdout and "layers.csv" in done.stdout
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def layer(name: str, steps: float, scale: float = 0.1, bits: int = 8) -> DebuggerLayer:
    metrics = dict.fromkeys(METRICS, 0.0) | {"mean_squared_error": (steps * scale) ** 2}
    return DebuggerLayer(
        op_name="Conv", tensor_idx=0, tensor_name=name, scale=scale, zero_point=0, bits=bits, metrics=metrics
    )


def table(*layers: DebuggerLayer) -> DebuggerRecord:
    return DebuggerRecord(
        quantmedic_version="1",
        framework="onnx",
        float_model="f",
        quantized_model="q",
        data="d",
        samples=3,
        suspect_steps=0.7,
        layers=layers,
    )


@pytest.mark.source("litert-first-layers", "litert-integer-only")
def test_the_terminal_names_the_worst_the_suspected_and_the_first() -> None:
    layers = [layer(f"l{k}", 0.3) for k in range(20)] + [layer("bad", 1.5), layer("=cmd", 0.9), layer("nan", math.nan)]
    record = table(*layers)
    text = render_search(record)
    lines = text.splitlines()
    assert lines[0] == "DEBUGGER  q" and "23 quantized operators, 3 samples of d" in lines[1]
    first = next(place for place, line in enumerate(lines) if line.startswith("tensor")) + 1
    shown = [line.split()[0] for line in lines[first : first + 10]]
    assert shown[:3] == ["bad", "=cmd", "l0"] and "25.5" in lines[first]
    assert "13 more" in text
    assert "Suspected, for √mse/scale above 0.7:\n  bad\n  =cmd\n" in text
    assert "with them:\n  l0\n  l1\n  l2\n  l3\n  l4\n" in text
    assert 'denylisted_nodes = ["bad", "=cmd", "l0", "l1", "l2", "l3", "l4"]\n' in text
    assert "denylisted_ops" not in text, "other layers of the type are fine"
    assert "integers only" in text and "explain qat" in text
    assert len(render_search(record, verbose=True).splitlines()) > 25
    assert render_search(record, ascii_only=True).isascii()
    assert ",'=cmd," in debugger_csv(record), "no name becomes a formula"
    assert debugger_csv(record).splitlines()[-1].split(",")[6] == "nan"


@pytest.mark.source("litert-suspected", "litert-denylisted-ops")
def test_fused_names_are_short_in_the_table_and_whole_in_lists() -> None:
    fused = "net/conv/Relu;net/conv/BiasAdd;" + 60 * "net/conv/Conv2D/"
    text = render_search(table(layer(fused, 1.5)))
    assert "\nnet/conv/Relu;…  " in text
    assert f"\n  {fused}\n" in text and f'denylisted_nodes = ["{fused}"]' in text
    (line,) = [line for line in text.splitlines() if "denylisted_ops" in line]
    pasted: dict[str, Any] = {}
    exec(line.strip(), pasted)
    assert pasted["denylisted_ops"] == ["Conv"] and "all layers of these types" in line
    assert f",{fused}," in debugger_csv(table(layer(fused, 1.5)))


@pytest.mark.source("litert-threshold")
def test_the_threshold_is_a_number(pair: tuple[Path, Path], tmp_path: Path) -> None:
    """``--threshold 0.1`` suspects what rounds as it should; NAME=VALUE still works."""
    for given in ("0.1", "clip_rmse_over_scale=0.1"):
        done = command(tmp_path, *pair, "--threshold", given, "--samples", 2, "--threads", 1)
        assert done.returncode == 0 and "Suspected, for √mse/scale above 0.1:" in done.stdout, done.stderr
    record = measure(pair, samples=2, threshold=0.1)
    assert record.suspect_steps == 0.1 and len(record.suspected) > len(measure(pair, samples=2).suspected)
    done = command(tmp_path, *pair, "--threshold", "much", "--samples", 2)
    assert done.returncode == 2 and "'much' is no number; write an error in steps, such as 0.5" in done.stderr
    for below in ("-1", "clip_rmse_over_scale=-1"):
        done = command(tmp_path, *pair, "--threshold", below, "--samples", 2)
        assert done.returncode == 2 and "every layer would be suspected" in done.stderr
    with pytest.raises(DataError, match="every layer would be suspected"):
        measure(pair, threshold=-0.1)


@pytest.mark.source("litert-charts", "litert-denylisted-nodes")
def test_the_report_holds_charts_page_table_and_denylist(pair: tuple[Path, Path], tmp_path: Path) -> None:
    done = command(tmp_path, *pair, "--threshold", 0.1, "--samples", 3, "--threads", 1, "-o", tmp_path / "seen")
    assert done.returncode == 0, done.stderr
    record = measure(pair, samples=3, threshold=0.1)
    assert {path.name for path in (tmp_path / "seen").iterdir()} == {
        "debugger.html",
        "debugger.svg",
        "denylist.json",
        "layers.csv",
    }
    assert json.loads((tmp_path / "seen/denylist.json").read_text()) == {
        "denylisted_nodes": record.denylisted_nodes,
        "denylisted_ops": record.denylisted_ops,
    }
    assert (tmp_path / "seen/layers.csv").read_text() == debugger_csv(record)
    drawing = etree.parse(tmp_path / "seen/debugger.svg")
    bars = [bar for bar in drawing.iter(f"{SVG}line") if bar.find(f"{SVG}title") is not None]
    assert len(bars) == 2 * len(record.layers)
    page = (tmp_path / "seen/debugger.html").read_text()
    assert all(name in page.replace("<wbr>", "") for name in record.denylisted_nodes)
    assert f">{int(record.layers[0].metrics['num_elements'])}</td>" in page, "elements are counted exactly"
    assert page.count("<svg") == 1 and "mlir_quantize" not in page, "a form of LiteRT's converter alone"


def test_bars_are_as_high_as_the_figures() -> None:
    chart = debugger_chart(table(layer("a", 0.3, 0.1), layer("b", 1.2, 0.2), layer("c", math.nan, 0.4)))
    ranges, steps = chart.panels
    assert [bar.x for bar in ranges.marks[:2]] == [bar.x for bar in steps.marks], "what is not a number has no bar"
    heights = [ranges.bottom - bar.y for bar in ranges.marks]
    assert heights[1] == pytest.approx(2 * heights[0], abs=0.2) and heights[2] == pytest.approx(4 * heights[0], abs=0.2)
    assert [bar.flagged for bar in steps.marks] == [False, True]
    assert steps.marks[1].y < next(each.y for each in steps.levels if each.is_limit) < steps.marks[0].y


def test_a_hostile_name_stays_text_on_the_page() -> None:
    page = search_page(table(layer("<script>alert(1)</script>", 1.5)))
    assert "<script" not in page and "&lt;script" in page


def outcomes(record: DebuggerRecord) -> dict[str, WorstOutcome]:
    return {each.name: each.outcome for each in record.denylists if each.outcome is not None}


@pytest.mark.source("litert-selective-model", "litert-many-denylists", "litert-calibrate-once")
def test_denylists_are_evaluated_on_one_calibration(pair: tuple[Path, Path], tmp_path: Path) -> None:
    """A denylist of one's own, one of a type, one from a file: each in float, all others on the ranges they have."""
    labels = np.arange(len(X)) % 5
    every = [each.tensor_name for each in measure(pair, samples=2).layers]
    (tmp_path / "all.txt").write_text("\n".join(every))
    (tmp_path / "list.json").write_text(json.dumps({"denylisted_nodes": [every[1]], "denylisted_ops": []}))
    asked = ["op:Relu", every[1], f"@{tmp_path}/all.txt", f"@{tmp_path}/list.json"]
    record = measure(pair, validation={"image": X, "labels": labels}, denylists=asked)
    found = outcomes(record)
    assert list(found) == ["nothing in float", *asked] and record.metric == "top1"
    layers = {each.name: each.layers for each in record.denylists}
    assert len(layers["op:Relu"]) == sum(each.op_name == "Relu" for each in record.layers)
    assert layers[every[1]] == layers[asked[3]] and found[every[1]].sqnr_db == found[asked[3]].sqnr_db
    before, one, all_of_them = (found[name].sqnr_db for name in ("nothing in float", "op:Relu", asked[2]))
    assert before < one < all_of_them, "what is in float makes no noise"
    assert found[asked[2]].metric == record.float_metric
    scores = run(conv_net(), {"image": X})["scores"]
    assert record.float_metric == pytest.approx(np.mean(scores.argmax(1) == labels))


def test_denylists_stand_in_a_table(pair: tuple[Path, Path], tmp_path: Path) -> None:
    np.save(tmp_path / "labels.npy", np.arange(len(X)) % 5)
    lists = ("--denylist", "suspected,first", "--denylist", "op:Relu")
    lists = (*lists, "--labels", "labels.npy", "-o", "seen")
    done = command(tmp_path, *pair, "--threshold", 0.1, "--threads", 1, *lists)
    assert done.returncode == 0, done.stderr
    table_of_lists = done.stdout.split("Denylists on one calibration, 9 samples\n")[1].splitlines()
    assert [line.split("  ")[0] for line in table_of_lists[:5]] == [
        "denylist",
        "float model",
        "nothing in float",
        "suspected,first",
        "op:Relu",
    ]
    assert "SQNR of the worst output  same class as the float model " in table_of_lists[0]
    assert " dB" in table_of_lists[4] and " %" in table_of_lists[4]
    page = (tmp_path / "seen/debugger.html").read_text().replace("<wbr>", "")
    assert (
        "Denylists on one calibration, 9 samples" in page
        and '<th scope="row" class="mono">suspected,first</th>' in page
    )


def test_denylists_that_mean_nothing_are_refused(pair: tuple[Path, Path]) -> None:
    for given, said in (
        (["op:LSTM"], "no quantized operator is a LSTM"),
        (["relu11"], "  relu11, did you mean relu1"),
        (["REL"], "REL, did you mean relu1 or relu2"),
        (["@nowhere.txt"], "the denylist cannot be read"),
        ([], "none was given"),
    ):
        with pytest.raises(DataError) as refused:
            measure(pair, samples=2, denylists=given, metric="top1" if not given else None)
        assert said in str(refused.value)


# --- refused -------------------------------------------------------------------------------------------------------


#: Options of functions, and what is said about each.
WRONG_FUNCTIONS = {
    "--layer-metric x=mine:failing": ["layer metric x failed", ":failing", "KeyError"],
    "--layer-metric x=mine:of_arrays": ["did not return one number", "shape (1, "],
    "--output-metric x=mine:failing": ["output metric x failed", "float_outputs, quantized_outputs"],
    "--pair-metric x=mine:nothing": ["pair metric x", "no such function"],
    "--pair-metric x=no_such_module:f": ["cannot be imported"],
    "--pair-metric scale=mine:mean_abs": ["two metrics have one name", "scale"],
    "--pair-metric x=mine:a --layer-metric x=mine:b": ["two metrics have one name"],
    "--pair-metric x": ["NAME=module:function"],
    "--pair-metric x=a:b --pair-metric x=a:b": ["given twice"],
}


def test_wrong_functions_are_named(
    pair: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(tmp_path / "data.npz", image=X)
    (tmp_path / "mine.py").write_text(METRICS_MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for option, said in WRONG_FUNCTIONS.items():
        with pytest.raises(SystemExit) as left:
            main(["search", "debugger", *map(str, pair), "-v", "data.npz", "-o", "layers.csv", *option.split()])
        sys.modules.pop("mine", None)
        assert left.value.code == 2
        text = capsys.readouterr().err
        assert all(words in text for words in said), text
        assert "Traceback" not in text and not (tmp_path / "layers.csv").exists()


def test_models_without_fixed_grids_are_refused(tmp_path: Path) -> None:
    for folder, quantized in (("float", residual_net()), ("dynamic", dynamic(conv_net(), tmp_path))):
        (tmp_path / folder).mkdir()
        model = residual_net() if folder == "float" else conv_net()
        with pytest.raises(ModelError, match="no quantized tensor"):
            measure(save_pair(tmp_path / folder, model, quantized))


def test_no_data_and_no_place(pair: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no data was given"):
        measure(pair, validation=None)
    with pytest.raises(OutputError):
        write_layers(measure(pair, samples=1), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == []


def test_torch_modules_are_refused_before_they_are_run() -> None:
    torch = pytest.importorskip("torch")
    net = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU())
    with pytest.raises(ModelError, match="deployed inputs"):
        quantmedic.search("debugger", net, net, validation=np.zeros((2, 4), np.float32))

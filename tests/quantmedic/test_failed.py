"""A float model whose quantization failed: really failed, here and now, where onnxruntime alone is needed."""

import json
import traceback
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from builders.onnx_models import conv_net, images, random
from builders.recordings import RECORDINGS
from click.testing import CliRunner
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static

import quantmedic
from quantmedic.cli.main import cli
from quantmedic.collectors.front_ends import front_end_of
from quantmedic.collectors.measure.float_model import FloatModel
from quantmedic.engine.case.records import Case
from quantmedic.engine.diagnosis.snippets import render_snippet
from quantmedic.engine.errors import DataError, ModelError
from quantmedic.engine.rules.evaluate import evaluate
from quantmedic.engine.versus.outcome import answer
from quantmedic.reports.terminal.console import render_console

Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")

BASE = quantmedic.load_rulebase()
LOGS = RECORDINGS / "logs"


class Reader(CalibrationDataReader):
    """Hands out what it was given."""

    def __init__(self, samples: list[Any]) -> None:
        self.left = iter(samples)

    def get_next(self) -> Any:
        return next(self.left, None)


def failing(folder: Path, model: onnx.ModelProto, samples: list[Any], **options: Any) -> tuple[Path, Path]:
    """The float model and the log of a quantization of it that must fail."""
    path, target, log = folder / "float.onnx", folder / "int8.onnx", folder / "quantize.log"
    onnx.save(model, path)
    try:
        quantize_static(path, target, Reader(samples), quant_format=QuantFormat.QDQ, **options)
        ort.InferenceSession(str(target), providers=["CPUExecutionProvider"])
    except Exception:
        log.write_text("quantizing float.onnx\n" + traceback.format_exc())
        return path, log
    raise AssertionError("it did not fail")


def gemm_net() -> onnx.ModelProto:
    """A Gemm whose bias of (1, 4) is large beside tiny weights."""
    constants = [
        numpy_helper.from_array(random(0, 8, 4, scale=1e-12), "w"),
        numpy_helper.from_array(random(1, 1, 4, scale=1e6), "b"),
    ]
    graph = helper.make_graph(
        [helper.make_node("Gemm", ["x", "w", "b"], ["out"], "fc")],
        "gemm",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 8])],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, ["n", 4])],
        constants,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def named_alike() -> onnx.ModelProto:
    model = conv_net()
    for node in model.graph.node:
        node.name = "same"
    return model


def quantized(folder: Path) -> onnx.ModelProto:
    onnx.save(conv_net(), folder / "first.onnx")
    quantize_static(folder / "first.onnx", folder / "second.onnx", Reader(feed(SHAPE)))
    return onnx.load(folder / "second.onnx")


def feed(shape: tuple[int, ...], name: str | None = None) -> list[dict[str, Any]]:
    return [{name or input_name(): np.ones(shape, np.float32)}]


def input_name() -> str:
    return conv_net().graph.input[0].name


Failure = Callable[[Path], tuple[Path, Path]]
SHAPE = images(1).shape
REAL: dict[str, tuple[Failure, str]] = {
    "F001": (lambda f: failing(f, conv_net(opset=11), feed(SHAPE), per_channel=True), "per-channel-below-opset-13"),
    "F004": (
        lambda f: failing(f, gemm_net(), [{"x": random(2, 4, 8)}], per_channel=True),
        "bias-is-no-vector",
    ),
    "F011": (lambda f: failing(f, conv_net(), []), "no-calibration-data"),
    "F012": (lambda f: failing(f, conv_net(), feed((1, 2, 3))), "calibration-input-mismatch"),
    "F016": (lambda f: failing(f, named_alike(), feed(SHAPE)), "repeated-operator-names"),
    "F020": (
        lambda f: failing(f, quantized(f), feed(SHAPE)),
        "float-model-already-quantized",
    ),
    "F021": (
        lambda f: failing(f, conv_net(), [{input_name(): np.full(SHAPE, np.nan, np.float32)}]),
        "range-not-finite",
    ),
    "F017": (
        lambda f: failing(
            f, conv_net(), feed(SHAPE), extra_options={"TensorQuantOverrides": {"nowhere": [{"rmin": np.float32(0)}]}}
        ),
        "setting-not-accepted",
    ),
}


@pytest.mark.thorough
def test_real_failures(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for code, (fail, cause) in REAL.items():
        with subtests.test(code):
            (folder := tmp_path / code).mkdir()
            model, log = fail(folder)
            diagnosis = quantmedic.diagnose(model, None, toolchain_logs=[log])
            assert diagnosis.verdict == "failed"
            assert [(found.cause, found.rules) for found in diagnosis.causes][:1] == [(cause, (code,))]
            assert diagnosis.advice == ()
            assert {note.rule[0] for note in diagnosis.not_judged} <= {"F"}
            assert "do this first: " in render_console(diagnosis)


@pytest.mark.thorough
def test_the_log_alone_makes_a_whole_sentence() -> None:
    for log in sorted(LOGS.glob("*.log")):
        (cause,) = quantmedic.diagnose("none.onnx", toolchain_logs=[log]).causes
        assert "not measured" not in cause.message or cause.rules == ("F001",), log.name


@pytest.mark.parametrize("code, written", [("F001", "float_13.onnx"), ("F004", "flat.onnx"), ("F016", "named.onnx")])
def test_the_first_remedy_mends_it(code: str, written: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the report says to do is done, and the same call gives a model that onnxruntime loads."""
    model, log = REAL[code][0](tmp_path)
    monkeypatch.chdir(tmp_path)
    remedy = quantmedic.diagnose(model, toolchain_logs=[log]).causes[0].remedies[0]
    edits = [line for line in remedy.snippets[0].code.splitlines() if not line.startswith("quantize_static")]
    exec(render_snippet("\n".join(edits), {}, code), {"onnx": onnx})
    samples = [{"x": random(2, 4, 8)}] if code == "F004" else feed(SHAPE)
    quantize_static(tmp_path / written, tmp_path / "mended.onnx", Reader(samples), per_channel=True)
    ort.InferenceSession(str(tmp_path / "mended.onnx"), providers=["CPUExecutionProvider"])


def test_the_model_tells_where_the_words_are_not_known(tmp_path: Path) -> None:
    """The tool's own words were lost; what it was told is in the log, and the model states its opset."""
    for model, options, code in (
        (named_alike(), "", "F016"),
        (gemm_net(), 'quantize_static("a.onnx", "b.onnx", reader, per_channel=True)\n', "F004"),
        (conv_net(opset=12), "options:\n  per_channel: true\n", "F001"),
    ):
        onnx.save(model, tmp_path / "float.onnx")
        (tmp_path / "tool.log").write_text(options + "[ERROR] step 3 gave up\n")
        diagnosis = quantmedic.diagnose(tmp_path / "float.onnx", toolchain_logs=[tmp_path / "tool.log"])
        assert (diagnosis.verdict, [cause.rules for cause in diagnosis.causes]) == ("failed", [(code,)])


@pytest.mark.thorough
def test_an_unknown_failure_gets_no_cause(tmp_path: Path) -> None:
    onnx.save(conv_net(), tmp_path / "float.onnx")
    (tmp_path / "tool.log").write_text("Traceback (most recent call last):\n  File x\nmy.Broken: <b>::error::x</b>\n")
    diagnosis = quantmedic.diagnose(
        tmp_path / "float.onnx", toolchain_logs=[tmp_path / "tool.log"], output=tmp_path / "report"
    )
    assert (diagnosis.verdict, diagnosis.causes, diagnosis.advice) == ("failed", (), ("failed",))
    text = render_console(diagnosis)
    assert "my.Broken: <b>::error::x</b>" in text and "No rule knows this failure" in text
    assert "do this first" not in text
    page = (tmp_path / "report" / "index.html").read_text(encoding="utf-8")
    assert "my.Broken: &lt;b&gt;::error::x&lt;/b&gt;" in page and "<b>::error" not in page
    assert "the size of the drop" not in page
    assert 'class="verdict verdict-failed"' in page and 'href="#manual-general-failed"' in page
    report = (tmp_path / "report" / "report.md").read_text(encoding="utf-8")
    assert report.startswith("# FAILED: float.onnx") and "## What the log says" in report
    assert "## Layers" not in report and "<b>" not in report.replace("\\<b", "")
    assert json.loads((tmp_path / "report" / "report.json").read_text())["verdict"] == "failed"


def test_a_log_without_a_failure_is_no_failure(tmp_path: Path) -> None:
    onnx.save(conv_net(), tmp_path / "float.onnx")
    (tmp_path / "tool.log").write_text("calibrated 32 samples\nwrote int8.onnx\n")
    diagnosis = quantmedic.diagnose(tmp_path / "float.onnx", toolchain_logs=[tmp_path / "tool.log"])
    assert (diagnosis.verdict, diagnosis.causes) == ("not-comparable", ())
    assert "the log shows no failure: if a model was written, give it as QUANT" in " ".join(diagnosis.warnings)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "tool.log"
    path.write_text("[ERROR] calibration failed\n")
    return path


def pictures(folder: Path, sizes: list[int]) -> Path:
    folder.mkdir()
    for place, size in enumerate(sizes):
        pixels = np.random.default_rng(place).integers(0, 255, (size, size, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{place}.png")
    return folder


def test_a_broken_calibration_image_is_found_by_its_name(tmp_path: Path, log: Path) -> None:
    onnx.save(conv_net(), tmp_path / "float.onnx")
    side = SHAPE[-1]
    calib = pictures(tmp_path / "calib", [side] * 3)
    (calib / "1.png").write_bytes((calib / "1.png").read_bytes()[:60])
    diagnosis = quantmedic.diagnose(tmp_path / "float.onnx", representative=str(calib), toolchain_logs=[log])
    (cause,) = diagnosis.causes
    assert cause.rules == ("F010",) and "1.png" in cause.message
    assert str(tmp_path) not in diagnosis.model_dump_json()


def test_calibration_data_are_counted_or_missing(tmp_path: Path, log: Path) -> None:
    """What the user's reader makes of pictures of any size is not known; that they can be opened is."""
    onnx.save(conv_net(), tmp_path / "float.onnx")
    for data, samples in ((pictures(tmp_path / "calib", [20, 31, 8]), 3), (images(20), 20)):
        diagnosis = quantmedic.diagnose(tmp_path / "float.onnx", representative=data, toolchain_logs=[log])
        assert diagnosis.causes == () and diagnosis.model.failure.data_problem is None
        assert diagnosis.model.failure.data_samples == samples
    diagnosis = quantmedic.diagnose(tmp_path / "float.onnx", representative=tmp_path / "none.npz", toolchain_logs=[log])
    assert diagnosis.causes[0].rules == ("F010",) and "none.npz" in diagnosis.causes[0].message


@pytest.mark.source("mct-target-unreachable")
def test_a_float_model_that_cannot_be_read_leaves_the_log(tmp_path: Path) -> None:
    damaged = tmp_path / "float.onnx"
    damaged.write_bytes(b"no model at all")
    logs = [LOGS / "mct-weights-target.log"]
    causes = quantmedic.diagnose(damaged, toolchain_logs=logs).causes
    assert {cause.rules for cause in causes} == {("F002",), ("F018",)}
    absent = quantmedic.diagnose(tmp_path / "none.onnx", toolchain_logs=logs, representative=images(4))
    assert [cause.rules for cause in absent.causes] == [("F002",)]
    assert absent.causes[0].cause == "mixed-precision-target-unreachable"
    assert "none.onnx is not there: the log alone was judged" in absent.warnings[0]
    assert any("calibration data were not opened" in warning for warning in absent.warnings)


def read_float(path: Path) -> FloatModel:
    return front_end_of(path).read_float(path)


def test_foreign_and_cut_files_are_said_and_not_read(tmp_path: Path) -> None:
    path = tmp_path / "float.model"
    cut_litert = [b"\x1c\0\0\0TFL3" + b"\xff" * 40] if find_spec("ai_edge_litert") else []
    for content in (b"", b"\0" * 64, b"PK\x03\x04" + b"x" * 50, *cut_litert):
        path.write_bytes(content)
        found = read_float(path)
        assert found.facts.float_model.problem and found.notices and not found.inputs
        assert str(tmp_path) not in found.notices[0]


def test_what_is_read_of_a_float_model(tmp_path: Path) -> None:
    model = gemm_net()
    model.graph.node.append(helper.make_node("Mine", ["out"], ["more"], "fc", domain="my.own"))
    model.opset_import.append(helper.make_opsetid("my.own", 1))
    model.graph.initializer.append(numpy_helper.from_array(np.array([1, np.inf], np.float32), "mask"))
    onnx.save(model, tmp_path / "float.onnx")
    found = read_float(tmp_path / "float.onnx")
    facts = found.facts.float_model
    assert (facts.format, facts.opset, facts.operators) == ("onnx", 17, 2)
    assert facts.inputs == ("x (N, 8) float32",) and facts.dynamic_inputs == ()
    assert (facts.repeated_names, facts.first_repeated_name) == (2, "fc")
    assert (facts.matrix_biases, facts.first_matrix_bias) == (1, "fc")
    assert (facts.nonfinite_constants, facts.first_nonfinite_constant) == (1, "mask")
    assert facts.foreign_types == ("my.own:Mine",) and facts.first_unshaped == "more"
    assert facts.constant_bytes == 4 * (32 + 4 + 2)


def test_what_is_read_of_a_litert_model(log: Path) -> None:
    pytest.importorskip("ai_edge_litert")
    for name, quantized in (("image_example1.float32", False), ("image_example1", True)):
        path = LOGS.parent / "litert" / f"{name}.tflite"
        diagnosis = quantmedic.diagnose(path, toolchain_logs=[log], representative=np.ones((3, 96, 96, 1), np.float32))
        facts = diagnosis.model.float_model
        assert (facts.format, facts.problem, facts.nonfinite_constants) == ("litert", None, 0)
        assert facts.inputs == ("serving_default_conv2d_input:0 (N, 96, 96, 1) float32",)
        assert diagnosis.model.failure.data_samples == 3
        assert [cause.rules for cause in diagnosis.causes][:1] == [("F020",)] * quantized


@pytest.mark.thorough
def test_a_torch_module_is_read_by_its_parameters(log: Path) -> None:
    torch = pytest.importorskip("torch")
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU())
    with torch.no_grad():
        module[0].bias[0] = torch.nan
    diagnosis = quantmedic.diagnose(module, toolchain_logs=[log])
    facts = diagnosis.model.float_model
    assert (facts.format, facts.operators, facts.constant_bytes) == ("torch", 2, 64)
    assert [cause.rules for cause in diagnosis.causes] == [("F019",)]


@pytest.mark.thorough
def test_the_case_is_one_like_any_other(tmp_path: Path) -> None:
    model, log = REAL["F001"][0](tmp_path)
    case = quantmedic.collect_failed(model, toolchain_logs=[log])
    quantmedic.save_case(case, tmp_path / "failed.case")
    again = quantmedic.load_case(tmp_path / "failed.case")
    assert isinstance(again, Case)
    assert quantmedic.judge(again) == quantmedic.judge(case)
    result = CliRunner().invoke(cli, ["diagnose", str(tmp_path / "failed.case"), "-o", str(tmp_path / "again")])
    assert result.exit_code == 0 and "FAILED  float.onnx" in result.output
    assert "0 layers, as none was measured" in CliRunner().invoke(cli, ["show", str(tmp_path / "failed.case")]).output


def test_rules_of_failures_stay_out_of_other_reports() -> None:
    facts = quantmedic.inspect(quantmedic.collect_failed("none.onnx", toolchain_logs=[LOGS / "ort-no-data.log"])).facts
    measured = facts.model_copy(update={"model": facts.model.model_copy(update={"framework": "onnx"})})
    own = {result.verdict for result in evaluate(BASE, measured) if result.rule.family == "failure"}
    assert own == {"not-applicable"}


def test_a_failed_quantization_is_compared_with_nothing(tmp_path: Path) -> None:
    model, log = REAL["F011"][0](tmp_path)
    failed = quantmedic.diagnose(model, toolchain_logs=[log])
    assert answer(failed, failed, "same", "same", all_healed=True, all_new=True) == "not-comparable"


@pytest.mark.thorough
def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, log = REAL["F011"][0](tmp_path)
    monkeypatch.chdir(tmp_path)
    run = CliRunner().invoke(cli, ["diagnose", str(model), "--log", str(log)])
    assert run.exit_code == 0, run.output
    assert "WARNING F011 no-calibration-data" in run.output and "FAILED  float.onnx" in run.output
    assert sorted(path.name for path in (tmp_path / "report").iterdir() if path.is_file()) == [
        *("index.html", "quantmedic.case", "report.json", "report.md"),
    ]
    assert CliRunner().invoke(cli, ["diagnose", str(model), "--toolchain-log", str(log)]).exit_code == 0


def test_what_the_command_refuses() -> None:
    for line, message in (
        ("", "what the tool printed with --log FILE"),
        ("--log tool.log --validation v.npz", "--validation cannot be used without QUANT"),
        ("--log tool.log --prove --labels l.npy", "--labels, --prove cannot be used without QUANT"),
    ):
        result = CliRunner().invoke(cli, ["diagnose", "float.onnx", *line.split()])
        assert result.exit_code == 2 and message in " ".join(result.output.split())


def test_what_the_function_refuses(tmp_path: Path, log: Path) -> None:
    with pytest.raises(DataError, match="neither a quantized model nor a log"):
        quantmedic.diagnose("float.onnx")
    with pytest.raises(DataError, match="no quantized model to judge"):
        quantmedic.diagnose("float.onnx", validation=images(4), toolchain_logs=[log])
    with pytest.raises(DataError, match="cannot be found"):
        quantmedic.diagnose("float.onnx", toolchain_logs=[tmp_path / "none.log"])
    with pytest.raises(ModelError, match="folder"):
        quantmedic.diagnose(tmp_path, toolchain_logs=[log])


def packed_wrongly() -> onnx.ModelProto:
    """A product of packed weights whose zero points stand one to a byte, where two to a byte are read."""
    constants = [
        numpy_helper.from_array(np.zeros((4, 2, 16), np.uint8), "codes"),
        numpy_helper.from_array(np.ones(8, np.float32), "steps"),
        numpy_helper.from_array(np.full((8, 1), 8, np.uint8), "zeros"),
    ]
    inputs, sizes = ["x", "codes", "steps", "zeros"], {"K": 64, "N": 4, "bits": 4, "block_size": 32}
    node = helper.make_node("MatMulNBits", inputs, ["out"], "fc", domain="com.microsoft", **sizes)
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", s]) for n, s in (("x", 64), ("out", 4))]
    graph = helper.make_graph([node], "packed", ends[:1], ends[1:], constants)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def test_a_file_that_its_runtime_refuses_is_diagnosed(tmp_path: Path) -> None:
    """What the runtime says is the evidence: nothing ran, and no policy accepts it."""
    weight = numpy_helper.from_array(random(0, 64, 4), "w")
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", s]) for n, s in (("x", 64), ("out", 4))]
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["out"], "fc")], "f", ends[:1], ends[1:], [weight]
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), tmp_path / "f.onnx")
    onnx.save(packed_wrongly(), tmp_path / "int4.onnx")
    np.savez(tmp_path / "data.npz", x=random(1, 16, 64))
    arguments = [*(str(tmp_path / name) for name in ("f.onnx", "int4.onnx")), "-r", str(tmp_path / "data.npz")]
    asked = CliRunner().invoke(cli, ["diagnose", *arguments, "-o", str(tmp_path / "report")])
    assert asked.exit_code == 0, asked.output
    report = json.loads((tmp_path / "report" / "report.json").read_text(encoding="utf-8"))
    assert (report["verdict"], [each["cause"] for each in report["causes"]]) == ("failed", ["setting-not-accepted"])
    assert report["model"]["failure"]["refused"] and "zero_points" in report["model"]["failure"]["line"]
    assert CliRunner().invoke(cli, ["check", *arguments, "-o", str(tmp_path / "gate")]).exit_code == 1


def test_one_line_of_a_runtime_is_a_log(tmp_path: Path) -> None:
    """The last line names the error, and no traceback stands before it."""
    said = "activations.cc:560 output->params.scale not near 1.f / 256 (0.003900 != 0.003906)Node number 8 (SOFTMAX)"
    (tmp_path / "load.log").write_text(f"RuntimeError: {said} failed to prepare.\n")
    onnx.save(conv_net(), tmp_path / "float.onnx")
    diagnosis = quantmedic.diagnose(tmp_path / "float.onnx", None, toolchain_logs=[tmp_path / "load.log"])
    assert [each.cause for each in diagnosis.causes] == ["fixed-range-output"]

"""A case without data through everything that takes a case: it is judged, and never says more than it knows."""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from builders import checkpoints
from builders.onnx_models import own
from builders.tiers import others_nightly
from click.testing import CliRunner
from onnxruntime.quantization import CalibrationDataReader, quantize_static
from zoo.cases import Spec, build

import quantmedic
from quantmedic.cli.main import cli
from quantmedic.demo import patient
from quantmedic.engine.case.records import STATIC, Case
from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.engine.errors import CaseError, DataError, ModelError
from quantmedic.engine.rules.evaluate import evaluate
from quantmedic.reports.terminal.console import render_console

pytestmark = pytest.mark.thorough

BASE = quantmedic.load_rulebase()
ALONE = "only weights, graph and parameters were judged"


@pytest.fixture(scope="module")
def case() -> Case:
    """The patient, of which nobody ran anything."""
    return quantmedic.collect_static(*patient()[0])


@pytest.fixture(scope="module")
def full(patient_case: Path) -> Case:
    """The same, measured."""
    return quantmedic.load_case(patient_case)


@pytest.fixture(scope="module")
def files(case: Case, full: Case, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("cases")
    found = {"static": str(folder / "static.case"), "full": str(folder / "full.case")}
    quantmedic.save_case(case, found["static"])
    quantmedic.save_case(full, found["full"])
    return found


def run(*arguments: Any) -> Any:
    return CliRunner().invoke(cli, [*map(str, arguments)], catch_exceptions=False)


def serious(diagnosis: Diagnosis) -> list[str]:
    return [cause.cause for cause in diagnosis.causes if cause.severity in ("high", "medium")]


# --- What is judged --------------------------------------------------------------------------------------------------


def test_rules_that_need_data_are_not_judged(case: Case) -> None:
    diagnosis = quantmedic.judge(case)
    assert serious(diagnosis) == []
    not_judged = {note.rule for note in diagnosis.not_judged}
    of_data = {rule.id for rule in BASE.rules if rule.scope == "dataset"}
    of_settings = {"D020", "D021", "D022", "D023"}
    of_ranges = {"D018", "S047"}
    assert of_data - of_settings - of_ranges <= not_judged
    not_applicable = {note.rule for note in diagnosis.not_applicable}
    assert of_settings | of_ranges <= not_applicable, "no configuration was given, and no data to hold ranges against"
    # Those whose ``where`` already asks for what data tell, and those of a network's outputs among them.
    assert {"A001", "A004", "G001", "G003", "G004", "M002", "S003", "S007", "W007", "W013"} <= not_judged
    assert {"M001", "R004", "S001", "S002", "W002", "W009", "W010", "W011"} <= {note.rule for note in diagnosis.passed}


def test_nothing_passes_that_could_not_be_judged_everywhere(case: Case, full: Case) -> None:
    facts = quantmedic.inspect(case).facts
    passed = [result for result in evaluate(BASE, facts) if result.verdict == "passed"]
    assert passed and all(not result.unknown for result in passed)
    fired = {rule for cause in quantmedic.judge(full).causes for rule in cause.rules}
    assert not {result.rule.id for result in passed} & fired


def test_every_hint_says_how_to_pass_what_is_missing(case: Case) -> None:
    """Not one speaks of a run that was made, or leaves it open which option helps."""
    notes = quantmedic.judge(case).not_judged
    assert notes and all(note.hint for note in notes)
    assert [note.rule for note in notes if "--" not in (note.hint or "")] == []


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("zoo")


#: Faults of the zoo that files alone show.
WEIGHT_FAULTS = (
    *("one-wide-channel", "two-bit-layers", "two-bit-last-layer", "two-bit-first-layer", "bias-overflow"),
    "not-quantized",
)


@pytest.mark.parametrize("kind", others_nightly(WEIGHT_FAULTS, "two-bit-layers", "not-quantized"))
def test_a_fault_of_the_weights_is_named_as_with_data(zoo: Path, kind: str) -> None:
    built = build(Spec("demo", (kind,)), zoo)
    assert built.status == "fault", built.reason
    models = built.folder / "float.onnx", built.folder / "quantized.onnx"
    alone = quantmedic.judge(quantmedic.collect_static(*models))
    data = {role: built.folder / f"{role}.npz" for role in ("representative", "validation")}
    assert alone.verdict == ("not-comparable" if kind == "not-quantized" else "degraded")
    with_data = quantmedic.diagnose(*models, **data)  # type: ignore[arg-type]
    # Kernels that read the bias of other scales depart, too: with data that is measured, and claims more.
    names = [cause.cause for cause in with_data.causes][: 2 if kind == "two-bit-layers" else 1]
    assert alone.causes[0].cause in names
    assert "accuracy" not in alone.causes[0].message


@pytest.mark.nightly
def test_a_sound_pair_gives_no_alarm(zoo: Path) -> None:
    for network, control in (
        ("demo", "per-channel"),
        ("mobile", "per-tensor"),
        ("demo", "reduced-range"),
        ("mobile", "qoperator"),
        ("demo", "large-scales"),
    ):
        built = build(Spec(network, control=control), zoo)
        models = built.folder / "float.onnx", built.folder / "quantized.onnx"
        diagnosis = quantmedic.judge(quantmedic.collect_static(*models))
        assert (diagnosis.verdict, serious(diagnosis)) == ("healthy", []), (network, control)


class Reader(CalibrationDataReader):
    """One batch that fits a model's inputs: what ranges come of it is no matter of weights."""

    def __init__(self, model: Path) -> None:
        self._left = [{value.name: self._made(value) for value in ort.InferenceSession(str(model)).get_inputs()}]

    @staticmethod
    def _made(value: Any) -> Any:
        open_axes = zip(value.shape, (1, 12000), strict=False)
        shape = [size if isinstance(size, int) else usual for size, usual in open_axes]
        kind = {"tensor(int32)": np.int32, "tensor(float)": np.float32}[value.type]
        return np.random.default_rng(0).integers(0, 200, shape).astype(kind) if shape else np.array(100, kind)

    def get_next(self) -> dict[str, Any] | None:
        return self._left.pop() if self._left else None


@pytest.mark.parametrize(
    "package, file, options",
    others_nightly(
        [
            ("magika", "models/standard_v3_3/model.onnx", {"per_channel": True}),
            ("swift_f0", "model.onnx", {"op_types_to_quantize": ["Conv"]}),
        ]
    ),
)
def test_real_networks_give_no_alarm(package: str, file: str, options: dict[str, Any], tmp_path: Path) -> None:
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        pytest.skip(f"{package} is not installed")
    model = Path(spec.origin).parent / file
    quantize_static(str(own(model, tmp_path)), str(tmp_path / "int8.onnx"), Reader(model), **options)
    diagnosis = quantmedic.judge(quantmedic.collect_static(model, tmp_path / "int8.onnx"))
    assert (diagnosis.verdict, serious(diagnosis)) == ("healthy", [])
    assert all(layer.weight_sqnr_db is not None for layer in diagnosis.layers if layer.weight_bits)


def test_a_scale_that_is_no_number_needs_no_data(tmp_path: Path) -> None:
    models = patient(healthy=True)[0]
    model = onnx.load(models[1])
    node = next(node for node in model.graph.node if node.op_type == "QuantizeLinear")
    scale = next(tensor for tensor in model.graph.initializer if tensor.name == node.input[1])
    scale.CopyFrom(onnx.numpy_helper.from_array(np.float32("nan").reshape(scale.dims), scale.name))
    onnx.save(model, tmp_path / "broken.onnx")
    diagnosis = quantmedic.judge(quantmedic.collect_static(models[0], tmp_path / "broken.onnx"))
    assert serious(diagnosis) == ["degenerate-range"]


# --- What is said ----------------------------------------------------------------------------------------------------


def test_no_verdict_stands_without_what_it_rests_on(case: Case, files: dict[str, str], tmp_path: Path) -> None:
    diagnosis = quantmedic.judge(case)
    for verbosity in ("quiet", "normal", "verbose"):
        text = render_console(diagnosis, verbosity=verbosity)
        assert text.splitlines()[0] == f"HEALTHY  int8.onnx  {ALONE}"
    quantmedic.write_report(diagnosis, tmp_path, formats=("html", "markdown", "json"), case=case)
    page = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert page.splitlines()[0] == f"# HEALTHY: int8.onnx ({ALONE})"
    assert "without data, neither accuracy nor activations were measured" in page
    assert "0 degraded" not in page and "Errors along the network" not in page
    assert "| 0 | `/stem/conv/Conv` | Conv | 8 | 8 per-channel | 47.6 |  |" in page
    html = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert f"healthy ({ALONE})" in html.partition("</title>")[0]
    assert ALONE in html.partition("</h2>")[0].rpartition("<h2")[2]
    assert 'href="#errors"' not in html and 'href="#cost"' in html
    report = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert report["run"]["mode"] == "static" and report["model"]["harmed"] is None
    assert report["warnings"][0].startswith("no data was given")
    assert (tmp_path / "quantmedic.case").is_file()


def test_a_stored_case_is_judged_again(case: Case, files: dict[str, str], tmp_path: Path) -> None:
    assert quantmedic.load_case(files["static"]).record == case.record
    done = run("diagnose", files["static"], "-o", tmp_path / "report", "--verbose")
    assert done.exit_code == 0
    assert f"HEALTHY  int8.onnx  {ALONE}" in done.output and "47.6" in done.output
    assert run("show", files["static"], "--table", "all").exit_code == 0
    assert run("show", files["static"], "--layer", "/stem/conv/Conv").exit_code == 0
    with pytest.raises(DataError, match="the case has no data sets"):
        run("show", files["static"], "--table", "data-sets")


def test_beside_a_case_with_data(files: dict[str, str], case: Case, full: Case, tmp_path: Path) -> None:
    record = quantmedic.compare(case, full)
    assert record.word == "undecided"
    assert {cause.status for cause in record.causes} == {"not-judged"}
    # The others are remarks: other names of the first, and of the place where it makes its noise.
    first, *remarks = quantmedic.judge(full).causes
    assert (first.cause, first.severity) == ("preprocessing-mismatch", "high")
    assert {(cause.severity, cause.explained_by) for cause in remarks} == {("low", first.cause)}
    shown = run("compare", files["static"], files["full"])
    assert shown.exit_code == 0 and "healthy (no data)" in shown.output
    assert quantmedic.compare(case, case).word == "unchanged"
    # What one remedy did to the other is not told by a case that measured nothing.
    assert quantmedic.judge(full, previous=case).causes[0].cause == "preprocessing-mismatch"
    assert quantmedic.judge(case, previous=full).verdict == "healthy"


def test_two_cases_without_data_tell_a_new_fault(zoo: Path) -> None:
    specs = Spec("demo", control="per-channel"), Spec("demo", ("two-bit-first-layer",))
    folders = [build(spec, zoo).folder for spec in specs]
    before, after = (quantmedic.collect_static(f / "float.onnx", f / "quantized.onnx") for f in folders)
    record = quantmedic.compare(before, after)
    assert record.word == "broken"
    assert ("too-few-weight-bits", "new") in [(cause.cause, cause.status) for cause in record.causes]


def test_there_is_nothing_to_merge(files: dict[str, str]) -> None:
    for pair in (("static", "full"), ("full", "static"), ("static", "static")):
        with pytest.raises(CaseError, match="without data cannot be merged"):
            quantmedic.load_case(*(files[name] for name in pair))


# --- What is taken ---------------------------------------------------------------------------------------------------


def test_checkpoints_are_compared_as_ever(tmp_path: Path) -> None:
    floats = checkpoints.language_model(layers=1)
    before = checkpoints.write_folder(tmp_path / "float", floats)
    tensors = checkpoints.quantized_model(floats, "gptq")
    after = checkpoints.write_folder(tmp_path / "gptq", tensors, checkpoints.configuration("gptq"))
    case = quantmedic.collect_static(before, after)
    record = quantmedic.collect(before, after, weights_only=True).record
    assert case.record == record.model_copy(update={"run": {**record.run, "mode": STATIC}}), "but for its gate"
    text = render_console(quantmedic.judge(case), verbosity="quiet")
    assert text.splitlines()[0] == f"HEALTHY  {tmp_path.name}/gptq  only weights were judged"
    with pytest.raises(ModelError, match="checkpoint"):
        quantmedic.collect_static(before, patient()[0][1])


def test_torch_modules_have_to_be_run() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    with pytest.raises(ModelError, match="torch modules cannot be judged without data") as caught:
        quantmedic.collect_static(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    assert "--representative" in (caught.value.help or "")


def test_a_function_may_name_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models = patient()[0]
    lines = [f"def {name}(): return {str(path)!r}" for name, path in zip(("one", "two"), models, strict=True)]
    (tmp_path / "staticnets.py").write_text("\n".join(lines))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    case = quantmedic.collect_static("staticnets:one", "staticnets:two")
    assert case.record.run["quantized_model"] == "int8.onnx"


def test_what_the_toolchain_said_is_judged(tmp_path: Path) -> None:
    log = tmp_path / "mct.log"
    log.write_text("AssertionError: No solution was found during solving the LP problem\n")
    case = quantmedic.collect_static(*patient()[0], toolchain_logs=[log])
    assert [cause.rules for cause in quantmedic.judge(case).causes] == [("M004",)]
    with pytest.raises(DataError):
        quantmedic.collect_static(*patient()[0], toolchain_logs=[tmp_path / "none.log"])
    with pytest.raises(DataError, match="CoreConfig"):
        quantmedic.collect_static(*patient()[0], core_config=object())

"""An anonymized case: nothing of its owner is left in any byte, and it is judged as before."""

import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from pydantic import BaseModel

import quantmedic
from quantmedic.cli.main import cli
from quantmedic.collectors.case_file.anonymous import inputs_of
from quantmedic.demo import patient
from quantmedic.engine.case.records import Case, CaseRecord, GateStep, ImportRecord, StageRecord
from quantmedic.engine.case.thumbnails import THUMBNAIL_DTYPE, Thumbnails

SECRET = "zebra"
#: Names that are hard to keep apart from syntax, words or paths; each holds the secret.
HOSTILE = (
    f"/home/{SECRET}/int8.onnx",
    f"Conv {SECRET}",
    f"recalibrate:{SECRET}",
    f'"{SECRET}\\u0000\n</script>',
    f"{SECRET}_QuantizeLinear_Output",
    f"q_output_{SECRET} > dq_output_{SECRET}",
    f"é{SECRET}\udc80",
    f"1.0.0+{SECRET}",
    f"{SECRET}.npz",
    SECRET.upper() + SECRET * 500,
)


def texts_of(case: Path) -> bytes:
    with zipfile.ZipFile(case) as archive:
        return b"\n".join([*(name.encode() for name in archive.namelist()), *map(archive.read, archive.namelist())])


@pytest.fixture(scope="module")
def shared(patient_case: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("shared") / "shared.case"
    done = CliRunner().invoke(cli, ["show", str(patient_case), "--anonymous", str(path)])
    assert done.exit_code == 0, done.output
    return path


@pytest.mark.thorough
def test_the_demo_is_judged_as_before(patient_case: Path, shared: Path) -> None:
    before, after = (quantmedic.judge(quantmedic.load_case(path)) for path in (patient_case, shared))
    assert after.verdict == before.verdict == "degraded"
    first, again = before.causes[0], after.causes[0]
    for name in ("cause", "severity", "predicted_gain_db"):
        assert getattr(first, name) == getattr(again, name)
    assert after.metrics.drop == before.metrics.drop


@pytest.mark.thorough
def test_a_detector_has_the_same_causes() -> None:
    models, data = patient(detection=True)
    case = quantmedic.collect(*models, **data)
    before, after = (quantmedic.judge(own).causes for own in (case, quantmedic.anonymize(case)))
    assert before and [(own.cause, own.severity) for own in before] == [(own.cause, own.severity) for own in after]


@pytest.mark.thorough
def test_cases_of_a_float_model_can_be_compared(patient_case: Path, healthy_case: Path) -> None:
    """The same name has the same hash in all of them."""
    before, after = (quantmedic.anonymize(path) for path in (patient_case, healthy_case))
    ill, healthy = before.record, after.record
    assert ill.run["float_sha256"] == healthy.run["float_sha256"]
    assert [op.float_name for op in ill.operators] == [op.float_name for op in healthy.operators]
    assert len({op.float_name for op in ill.operators}) == len(ill.operators)
    assert {op.op_type for op in ill.operators} >= {"Conv", "Gemm"}
    assert quantmedic.compare(before, after).model_dump()["before"] is not None
    assert quantmedic.judge(after).verdict == "healthy"


def test_pictures_and_distributions_of_inputs_are_gone(patient_case: Path, shared: Path) -> None:
    case, hidden = (quantmedic.load_case(path) for path in (patient_case, shared))
    shown = inputs_of(case.record)
    assert case.record.input_tensor in shown
    for role, statistics in hidden.statistics.items():
        assert len(statistics.thumbnails.table) == 0 < len(case.statistics[role].thumbnails.table)
        assert not shown & {*statistics.histograms} and not shown & {*statistics.quantized_histograms}
        assert {*statistics.histograms} | shown == {*case.statistics[role].histograms}


def test_samples_have_other_hashes_and_no_values(patient_case: Path) -> None:
    """Equal samples stay equal, and distinct values of inputs that are no grid are gone."""
    case = quantmedic.load_case(patient_case)
    own = case.statistics["validation"].samples
    values = np.sort(np.random.default_rng(0).normal(size=20)).astype(np.float32)
    twice = replace(case.statistics["validation"], samples=np.concatenate([own, own]), lattice=[values])
    found = quantmedic.anonymize(replace(case, statistics={"validation": twice})).statistics["validation"]
    hidden = found.samples
    assert found.lattice[0].size == 0
    assert not {*hidden["hash"].tolist()} & {*own["hash"].tolist()}
    assert np.array_equal(hidden["hash"][: len(own)], hidden["hash"][len(own) :])
    assert np.array_equal(hidden["hash"] % 16, np.tile(own["hash"] % 16, 2))


def with_every_text(record: BaseModel, text: Callable[[], str]) -> BaseModel:
    """The record with each text that its type leaves open replaced, in all records inside."""

    def change(value: object, open_to_all: bool) -> object:
        if isinstance(value, BaseModel):
            return with_every_text(value, text)
        if isinstance(value, str):
            return text() if open_to_all else value
        if isinstance(value, list | tuple):
            return type(value)(change(each, open_to_all) for each in value)
        if isinstance(value, dict):
            return {key: change(each, open_to_all) for key, each in value.items()}
        return value

    if isinstance(record, GateStep):  # refuses what it does not know
        return record
    fields = type(record).model_fields
    changes = {
        name: change(getattr(record, name), "Literal" not in str(about.annotation))
        for name, about in fields.items()
        if name != "run"
    }
    changes |= {
        name: text() for name, about in fields.items() if about.annotation == (str | None) and changes[name] is None
    }
    changes |= {
        name: (text(), text())
        for name, about in fields.items()
        if about.annotation == (tuple[str, ...] | None) and changes[name] is None
    }
    return record.model_copy(update=changes)


def hostile_case(path: Path) -> Case:
    """The demo with a secret in every text that a case can hold, fields that the demo leaves empty among them."""
    case = quantmedic.load_case(path)
    count = iter(range(10**9))

    def text() -> str:
        return f"{next(count)}{HOSTILE[next(count) % len(HOSTILE)]}"

    record = case.record.model_copy(
        update={
            "stages": (StageRecord(name="x", is_quantized=False),),
            "imports": (ImportRecord(file="x", format="x", toolchain="x", tells=("x",)),),
            "compared": {f"reference {SECRET}": SECRET},
            "notices": ("x",),
            "unmatched": ("x",),
        }
    )
    filled = with_every_text(record, text)
    assert isinstance(filled, CaseRecord)
    run = {
        **case.record.run,
        SECRET: 1,
        **dict.fromkeys(("float_model", "quantized_model", "float_sha256", "quantized_sha256"), HOSTILE[0]),
        "logs": [HOSTILE[0]],
        "samples": HOSTILE[1],
        "metric_options": {SECRET: SECRET},
        "preprocessing": {SECRET: [SECRET], "validation": {"mean": SECRET}},
        "data": {"validation": {"origin": SECRET}},
    }
    operators = [op.model_copy(update={"attributes": {SECRET: "1", "pads": SECRET}}) for op in filled.operators]
    filled = filled.model_copy(update={"run": run, "operators": tuple(operators)})
    pixels = np.frombuffer(SECRET.encode() * 6, np.float16).reshape(3, 5, 1)
    table = np.zeros(1, THUMBNAIL_DTYPE)
    statistics = {
        role: replace(
            own,
            thumbnails=Thumbnails(table, [pixels]),
            comparisons={**own.comparisons, f"output {SECRET}.0": own.comparisons["output.0"]},
        )
        for role, own in case.statistics.items()
    }
    return replace(case, record=filled, statistics=statistics)


@pytest.mark.thorough
def test_no_hostile_name_is_left_in_any_byte(patient_case: Path, tmp_path: Path) -> None:
    path = tmp_path / "hostile.case"
    quantmedic.save_case(quantmedic.anonymize(hostile_case(patient_case)), path)
    assert SECRET.encode() not in texts_of(path).lower()
    quantmedic.judge(quantmedic.load_case(path))


@pytest.mark.thorough
def test_a_case_of_weights_alone_without_checksums() -> None:
    case = quantmedic.collect_static(*patient()[0])
    run = {key: value for key, value in case.record.run.items() if "sha256" not in key}
    bare = replace(case, record=case.record.model_copy(update={"run": run}))
    hidden = quantmedic.anonymize(bare)
    assert quantmedic.judge(hidden).verdict == quantmedic.judge(bare).verdict
    assert hidden.record.operators[0].name == quantmedic.anonymize(bare).record.operators[0].name


def test_the_output_does_not_replace_the_case(patient_case: Path) -> None:
    before = patient_case.read_bytes()
    done = CliRunner().invoke(cli, ["show", str(patient_case), "--anonymous", str(patient_case)])
    assert done.exit_code != 0 and patient_case.read_bytes() == before

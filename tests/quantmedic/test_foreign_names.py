"""A prescription for a toolchain that knows layers by other names says so."""

import pytest

import quantmedic
from quantmedic.demo import patient
from quantmedic.engine.case.records import Case

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def case() -> Case:
    models, options = patient(detection=True)
    return quantmedic.collect(*models, samples=48, **options)


@pytest.mark.source("mct-names")
@pytest.mark.parametrize(
    ("toolchain", "told"), [("mct", "features.0 is features_0"), ("pt2e", "dotted names"), ("ort", "")]
)
def test_names_of_another_framework_are_said(case: Case, toolchain: str, told: str) -> None:
    found = quantmedic.judge(case, toolchain=toolchain).prescription
    assert found is not None and found.configurations
    said = "names are those of the onnx model and have to be replaced"
    code = " ".join(found.configurations[0].code.replace("# ", "").split())
    assert (said in code) == bool(told) and told in code
    assert any(said in note for step in found.steps for note in step.notes) == bool(told)

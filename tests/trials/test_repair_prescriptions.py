"""What ONNX Runtime has no option for is prescribed as a whole script, which heals its patient when it is run."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders.onnx_models import run, save_pair, static
from onnxruntime.quantization import QuantType

import quantmedic
from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.from_onnx.onnx_models import open_models
from quantmedic.demo import patient
from quantmedic.engine.decibels import sqnr_db
from quantmedic.engine.diagnosis.advice import general_advice
from quantmedic.engine.diagnosis.candidates import Choice
from quantmedic.engine.diagnosis.prescription import code_of, write_prescription
from quantmedic.engine.rules.toolchain import find_toolchain
from quantmedic.trials.from_onnx.onnx_remedies import ONNX_RUNTIME, OnnxEdited

pytestmark = pytest.mark.thorough

BASE = quantmedic.load_rulebase()
TOOLCHAIN = find_toolchain("onnxruntime", BASE.toolchains)
Patient = tuple[onnx.ModelProto, np.ndarray, np.ndarray, dict[str, Any]]


def coarse_demo() -> Patient:
    """The demo's network with weights of four bits."""
    (path, _), _ = patient()
    inputs = [np.load(path.parent / f"{name}.npz")["image"] for name in ("representative_healthy", "validation")]
    fitted, judged = ((array[:128].astype(np.float32) / 255 - 0.286) / 0.353 for array in inputs)
    return onnx.load(str(path)), fitted, judged, {"weight_type": QuantType.QInt4}


@pytest.mark.nightly
@pytest.mark.parametrize(
    "remedies, made, least_db",
    [
        (("bias-correction-on",), coarse_demo, 3.0),
        (("learned-rounding",), coarse_demo, 3.0),
        (("learned-rounding", "bias-correction-on"), coarse_demo, 6.0),
    ],
    ids=["biases", "rounding", "both"],
)
def test_the_printed_script_heals(
    tmp_path: Path, remedies: tuple[str, ...], made: Callable[[], Patient], least_db: float
) -> None:
    """Run by a process of its own, and judged on samples that it did not read."""
    model, fitted, judged, options = made()
    name = model.graph.input[0].name
    paths = save_pair(tmp_path, model, static(model, {name: fitted}, tmp_path, **options))
    diagnosis = quantmedic.judge(quantmedic.collect(*paths, validation={name: judged}, attribution=False))
    advised = [
        general_advice(BASE.remedies[remedy], [layer.op_type for layer in diagnosis.layers]) for remedy in remedies
    ]
    choices = [Choice(advice.id, ((None, advice),), advice.title, None) for advice in advised]
    given = write_prescription(diagnosis, choices, TOOLCHAIN)
    code = code_of(given)
    assert code is not None and given.conflicts == () and given.mark == "run"
    models = open_models(*paths)
    batches = [Batch({name: fitted[i : i + 16]}) for i in range(0, len(fitted), 16)]
    made = ONNX_RUNTIME.execute(models, code, batches, None)
    assert isinstance(made, OnnxEdited)
    healed = made.model

    def noise_db(found: onnx.ModelProto) -> float:
        (wanted,), (outputs,) = (run(each, {name: judged}).values() for each in (model, found))
        return sqnr_db(float(np.square(wanted).sum()), float(np.square(outputs - wanted).sum()))

    assert noise_db(healed) > noise_db(models.quantized.model) + least_db

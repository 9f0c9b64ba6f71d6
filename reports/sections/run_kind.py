"""What was run: both models, the float one alone, checkpoints, or files of a toolchain and no model at all."""

from quantmedic.engine.case.facts import FLOAT_ALONE, Role
from quantmedic.engine.case.records import IMPORTED, STATIC
from quantmedic.engine.contract.causes import CauseReport
from quantmedic.engine.contract.diagnosis import Diagnosis


def judged_role(diagnosis: Diagnosis) -> Role:
    """The data set that layer facts rest on: validation where it was measured, else representative."""
    measured = any(row.validation.accumulated.sqnr_db is not None for row in diagnosis.layers)
    return "validation" if measured else "representative"


def without_data(diagnosis: Diagnosis) -> bool:
    """Both models were read and not run, or only what a toolchain says of them was read."""
    return diagnosis.run.get("mode") in (STATIC, IMPORTED)


def files_only(diagnosis: Diagnosis) -> bool:
    """Nothing but files of a toolchain was read."""
    return diagnosis.run.get("mode") == IMPORTED


def device_alone(diagnosis: Diagnosis) -> bool:
    """No harm was measured here, and every grave cause rests on what a device computed."""
    grave = [cause for cause in diagnosis.causes if cause.is_serious]
    is_harmed = diagnosis.model.harmed or diagnosis.evidence_strength.statement == "proven"
    return bool(grave) and not is_harmed and all(_is_of_device(cause) for cause in grave)


def _is_of_device(cause: CauseReport) -> bool:
    parts = (part for row in cause.evidence for part in row.fact.split("."))
    return any(part == "device" or part.startswith("device_") for part in parts)


def compares_checkpoints(diagnosis: Diagnosis) -> bool:
    """Two checkpoints were compared, whether or not their language models were run."""
    return diagnosis.model.checkpoint.tensors is not None


def weights_only(diagnosis: Diagnosis) -> bool:
    """Checkpoints were compared, and nothing was run."""
    return compares_checkpoints(diagnosis) and diagnosis.model.language.texts is None


def float_alone(diagnosis: Diagnosis) -> bool:
    """There is no quantized model."""
    return diagnosis.model.framework == FLOAT_ALONE

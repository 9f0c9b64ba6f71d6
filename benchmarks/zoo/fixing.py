"""A case repaired by ``quantmedic.fix`` as a user would, and the model that it writes measured on samples held back.

It is given both models, the representative set and half of the validation set. The other half judges what it writes.
"""

import tempfile
from pathlib import Path

import numpy as np
import onnx

import quantmedic
from quantmedic.api.fix import Fixed
from quantmedic.reports.sections.prescription import prescription_files

from .cases import Built
from .paste import Array, Pasted, Shown, halve, known, load_arrays, measure, take_rows, three
from .quantizing import pooled_sqnr


def repair(built: Built, seconds: float) -> Pasted:
    """Repair one case in so many seconds of trials."""
    validation = load_arrays(built.folder / "validation.npz")
    given, held_back = halve(validation)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        np.savez(folder / "validation.npz", **take_rows(validation, given))
        try:
            found = quantmedic.fix(
                built.folder / "float.onnx",
                built.folder / "quantized.onnx",
                folder / "fixed.onnx",
                representative=built.folder / "representative.npz",
                validation=folder / "validation.npz",
                threads=1,
                prove=seconds,
                **built.told_metric,
                **{name: take_rows(load_arrays(path), given) for name, path in known_outputs(built.folder).items()},
            )
            if found.model is None:
                return _without_model(found)
            made = onnx.load(str(folder / "fixed.onnx"))
            others = take_rows(known(built), held_back)
            measured = measure(built, made, others, _remedies(found), _shown(found))
            measured.gain_db = _gain_of_output(built, made, others)
            measured.same_db = _gain_of_output(built, made, take_rows(validation, given))
        except Exception as error:
            return Pasted("failed", reason=f"{type(error).__name__}: {error}"[:300])
    return measured


def known_outputs(folder: Path) -> dict[str, Path]:
    """Outputs from elsewhere that a case comes with."""
    paths = (folder / f"{name}.npz" for name in ("reference_outputs", "device_outputs"))
    return {path.stem: path for path in paths if path.is_file()}


def _without_model(found: Fixed) -> Pasted:
    """Nothing was written."""
    if found.refused is None or found.needless:
        return Pasted("no prescription", reason=f"verdict {found.before.verdict}")
    has_text = any(name.endswith(".py") for name, _ in prescription_files(found.before))
    return Pasted("refused" if has_text else "no configuration", _remedies(found), found.refused, shown=_shown(found))


def _remedies(found: Fixed) -> tuple[str, ...]:
    given = found.before.prescription
    return () if given is None else tuple(step.remedy for step in given.steps)


def _shown(found: Fixed) -> Shown:
    """The gain that is printed: of the output that was worst before."""
    outputs = found.comparison.outputs if found.comparison is not None else ()
    gain = min(outputs, key=lambda output: output.before or 0.0).gain_db if outputs else None
    return Shown(found.grade or "untried", gain)


def _gain_of_output(built: Built, made: onnx.ModelProto, samples: dict[str, Array]) -> float:
    """The gain of the output that is worst before, as ``fix`` prints it."""
    levels = [
        [pooled_sqnr([wanted], [given]) for given in outputs]
        for wanted, *outputs in zip(*three(built, made, samples), strict=True)
    ]
    before, after = min(levels)
    return after - before

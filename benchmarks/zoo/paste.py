"""The prescription as a user would follow it: pasted into an empty folder, run, and the model that comes out measured.

The folder holds ``float.onnx``, ``prescription.py`` and a script that defines ``reader`` and nothing else. The reader
gives the case's representative inputs in equal batches. Where the prescription says that the reader has to give inputs
as the application sees them, it gives those validation inputs on which remedies were fitted, and the model is judged on
all others.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
from numpy.typing import NDArray

from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.measure.output_noise import OutputNoise
from quantmedic.engine.case.gains import gain_of
from quantmedic.engine.contract.advised_remedies import Prescription
from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.engine.rules.rulebase import RuleBase
from quantmedic.reports.sections.prescription import prescription_files
from quantmedic.trials.split import BATCH, folds, samples_of

from .cases import HIDDEN, Built
from .quantizing import Standing, compare, equal_batch, proves_drop, run
from .tasks import TAIL

Array = NDArray[Any]
Outcome = Literal["ran", "failed", "refused", "no prescription", "no configuration"]
TOOLCHAIN = "onnxruntime"
#: A script that takes longer is stopped.
TIMEOUT = 600
#: A remedy that brings back this share heals.
ENOUGH = 0.8
#: What is shown may differ from what is measured by so many dB.
TOLERANCE_DB = 1.0
#: Less than this is no change for the worse.
SAME_DB = 0.1

_SCRIPT = """\
import glob

import numpy
import onnxruntime.quantization


class _Reader(onnxruntime.quantization.CalibrationDataReader):
    def __init__(self):
        self.feeds = iter(sorted(glob.glob("reader/*.npz")))

    def get_next(self):
        path = next(self.feeds, None)
        return None if path is None else dict(numpy.load(path))


with open("prescription.py") as file:
    exec(compile(file.read(), "prescription.py", "exec"), {"reader": _Reader(), "__name__": "__main__"})
"""


@dataclass
class Shown:
    """What a report says that its prescription brings.

    Attributes:
        grade: executed, without effect (executed too), edited, predicted, or untried.
        gain_db: Rise of the output's SQNR; None where it is not known.
        low_db: Lower end of its interval.
    """

    grade: str
    gain_db: float | None = None
    low_db: float | None = None
    high_db: float | None = None

    @property
    def is_proven(self) -> bool:
        return self.grade in ("executed", "edited")


@dataclass
class Pasted:
    """What became of one prescription, or of one repair.

    Attributes:
        outcome: ``ran``: a model came out; ``refused``: none, though the prescription holds a configuration.
        remedies: Ids of what it holds.
        reason: Why there is no model: the last line of the script's errors.
        samples: Samples on which the model was judged: all of the validation set that the reader did not give.
        before: The patient on these.
        after: The model that came out.
        shown: What the report says of it.
        same_db: Gain as the report defines it, on the samples on which the report judged; None: these are not known,
            since time did not allow all of them.
    """

    outcome: Outcome
    remedies: tuple[str, ...] = ()
    reason: str = ""
    samples: int = 0
    before: Standing | None = None
    after: Standing | None = None
    shown: Shown | None = None
    gain_db: float | None = None
    same_db: float | None = None
    worse: str = ""

    @property
    def is_given(self) -> bool:
        """The prescription holds a configuration, or there is a model."""
        return self.outcome in ("ran", "failed", "refused")

    @property
    def pooled_db(self) -> float | None:
        return self.after.sqnr_db - self.before.sqnr_db if self.after and self.before else None

    @property
    def worst_column_db(self) -> float | None:
        return self.after.worst_column_db - self.before.worst_column_db if self.after and self.before else None

    def is_near(self, found_db: float | None) -> bool | None:
        """Whether a gain is within 1 dB of what is shown; None where there is nothing to compare."""
        if self.shown is None or self.shown.gain_db is None or found_db is None:
            return None
        return abs(self.shown.gain_db - found_db) <= TOLERANCE_DB

    @property
    def is_within(self) -> bool | None:
        """Whether the gain lies in the interval that is shown."""
        shown = self.shown
        if shown is None or shown.low_db is None or shown.high_db is None or self.gain_db is None:
            return None
        return shown.low_db <= self.gain_db <= shown.high_db


def paste(built: Built, diagnosis: Diagnosis, base: RuleBase) -> Pasted:
    """Follow the prescription of a case to the letter."""
    given = diagnosis.prescription
    if given is None:
        return Pasted("no prescription", reason=f"verdict {diagnosis.verdict}")
    remedies, said = tuple(step.remedy or step.title for step in given.steps), shown(diagnosis)
    scripts = [(name, content) for name, content in prescription_files(diagnosis) if name.endswith(".py")]
    if not scripts:
        return Pasted("no configuration", remedies, shown=said)
    validation = load_arrays(built.folder / "validation.npz")
    fitted, judged = halve(validation)
    as_application = reads_as_application(given, base)
    calibration = take_rows(validation, fitted) if as_application else load_arrays(built.folder / "representative.npz")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "float.onnx").write_bytes((built.folder / "float.onnx").read_bytes())
        (folder / "prescription.py").write_bytes(scripts[0][1])
        model = run_script(folder, _feeds(built, calibration))
        if isinstance(model, str):
            return Pasted("failed", remedies, model, shown=said)
        others = take_rows(known(built), judged) if as_application else known(built)
        try:
            found = measure(built, model, others, remedies, said)
        except Exception as error:
            return Pasted("failed", remedies, f"the model does not run: {error}"[:300], shown=said)
        if diagnosis.proof is not None and diagnosis.proof.judged == len(judged):
            found.same_db = _gain_of(*three(built, model, take_rows(validation, judged)))
        return found


def run_script(folder: Path, feeds: Sequence[dict[str, Array]]) -> onnx.ModelProto | str:
    """Run ``prescription.py`` in a process of its own; the model that it writes, or why there is none."""
    (folder / "reader").mkdir()
    for i, feed in enumerate(feeds):
        np.savez(folder / "reader" / f"{i:05d}.npz", **feed)
    (folder / "run.py").write_text(_SCRIPT)
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    command = [sys.executable, "run.py"]
    try:
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=TIMEOUT
        )
    except subprocess.TimeoutExpired:
        return f"still running after {TIMEOUT} s"
    if done.returncode:
        return (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1][:300]
    written = [path for path in folder.glob("*.onnx") if path.name != "float.onnx"]
    if not written:
        return "it writes no model"
    return onnx.load(str(max(written, key=lambda path: path.stat().st_mtime_ns)))


def reads_as_application(given: Prescription, base: RuleBase) -> bool:
    """Whether the text says that the reader has to give inputs as the application sees them."""
    remedies = [base.remedies[step.remedy] for step in given.steps if step.remedy in base.remedies]
    snippets = [snippet for remedy in remedies for snippet in remedy.snippets if snippet.toolchain == TOOLCHAIN]
    said = [snippet.code.strip() for snippet in snippets if snippet.reads == "application"]
    return any(text and text in each.code for text in said for each in given.configurations)


def shown(diagnosis: Diagnosis) -> Shown:
    """The number that the report shows for the whole prescription."""
    given = diagnosis.prescription
    assert given is not None
    if given.executed is not None and given.executed.trial.failed is None:
        trial = given.executed.trial
        grade = "executed" if given.basis == "proven" else "without effect"
        return Shown(grade, trial.gain_db, trial.low_db, trial.high_db)
    trials = [step.measured for step in given.steps]
    if given.basis == "proven" and (first := trials[0]) is not None and (last := trials[-1]) is not None:
        if len(trials) == 1:
            return Shown("edited", first.gain_db, first.low_db, first.high_db)
        return Shown("edited", (last.sqnr_after or 0.0) - (first.sqnr_before or 0.0))
    predicted = given.steps[0].predicted
    if given.basis == "predicted" and len(given.steps) == 1 and predicted is not None:
        return Shown("predicted", predicted.gain_db, predicted.low_db, predicted.high_db)
    return Shown("untried" if given.basis == "untried" else "predicted")


def load_arrays(path: Path) -> dict[str, Array]:
    """All arrays of a file."""
    with np.load(path) as archive:
        return dict(archive)


def known(built: Built) -> dict[str, Array]:
    """The validation set with all that the zoo knows of it: the expert may not be told the labels."""
    return load_arrays(built.folder / "validation.npz") | load_arrays(built.folder / HIDDEN)


def take_rows(arrays: dict[str, Array], rows: Array) -> dict[str, Array]:
    """The same arrays with these samples only."""
    return {name: array[rows] for name, array in arrays.items()}


def halve(validation: dict[str, Array]) -> tuple[Array, Array]:
    """Numbers of the samples on which the proof fitted and judged, split as it does."""
    inputs = {name: array for name, array in validation.items() if name != "labels"}
    numbers = np.arange(len(next(iter(inputs.values()))))
    whole = Batch(inputs, validation.get("labels"), numbers)
    pool = [whole.take(slice(i, i + BATCH)) for i in range(0, len(numbers), BATCH)]
    fold = folds(pool, 1, 0)[0]
    assert samples_of(fold.judged)
    fitted, judged = (np.concatenate([batch.numbers for batch in part]) for part in (fold.fitted, fold.judged))
    return fitted, judged


def _feeds(built: Built, arrays: dict[str, Array]) -> list[dict[str, Array]]:
    """Equal batches for the reader."""
    network = built.spec.base
    name = input_name(built)
    inputs = arrays[name]
    size = equal_batch(network, len(inputs))
    return [network.feed(name, inputs[i : i + size]) for i in range(0, len(inputs) - size + 1, size)]


def input_name(built: Built) -> str:
    """Name of the network's first input."""
    return str(onnx.load(str(built.folder / "float.onnx")).graph.input[0].name)


def three(built: Built, model: onnx.ModelProto, samples: dict[str, Array]) -> list[list[Array]]:
    """Outputs of the float model, of the patient and of another model."""
    network, inputs = built.spec.base, samples[input_name(built)]
    patient = [onnx.load(str(built.folder / name)) for name in ("float.onnx", "quantized.onnx")]
    return [run(network, each, inputs) for each in (*patient, model)]


def measure(
    built: Built, model: onnx.ModelProto, samples: dict[str, Array], remedies: tuple[str, ...], said: Shown
) -> Pasted:
    """The model that came out beside the patient, on some samples."""
    task, labels = TAIL if built.metric == TAIL.metric else built.spec.base.task, samples.get("labels")
    reference, ill, healed = three(built, model, samples)
    before, after = (compare(task, reference, outputs, labels) for outputs in (ill, healed))
    found = Pasted("ran", remedies, "", len(reference[0]), before, after, said)
    found.gain_db = _gain_of(reference, ill, healed)
    judged_db = found.worst_column_db if built.is_hidden else found.pooled_db
    if judged_db is not None and judged_db < -SAME_DB:
        found.worse = f"noise {judged_db:+.1f} dB"
    elif proves_drop(task, task.answers(ill), task.answers(healed), labels):
        found.worse = f"score {before.score:.3f} -> {after.score:.3f}"
    return found


def _gain_of(reference: list[Array], ill: list[Array], healed: list[Array]) -> float:
    """The gain as the report defines it: where noise hides in few columns, these alone count."""
    batch = Batch({"samples": np.arange(len(reference[0]))})
    noise = OutputNoise([batch], [reference], [ill], classes=False)
    powers = [np.array(noise.compare([outputs]).noise) for outputs in (ill, healed)]
    return gain_of(powers[0], powers[1]).gain_db


def share_of_gain(recovery_db: float | None, gain_db: float | None) -> float | None:
    """Share of the noise that a fault added, and takes ``recovery_db`` to undo, which a gain takes away."""
    if recovery_db is None or recovery_db <= 0:
        return None
    return _gone(gain_db or 0.0) / _gone(recovery_db)


def _gone(gain_db: float) -> float:
    return 1.0 - 10.0 ** (-gain_db / 10.0)


def noise_share(built: Built, found: Pasted) -> float | None:
    """Share of the noise that the fault added and that is gone; in the worst column where boxes hide scores."""
    gain = found.worst_column_db if built.is_hidden else found.pooled_db
    return share_of_gain(built.gain_db, gain)


def worst_share(built: Built, found: Pasted) -> float | None:
    """The same for the worst column."""
    return share_of_gain(built.recovery_worst_db, found.worst_column_db)


def metric_share(built: Built, found: Pasted) -> float | None:
    """The same of the task metric, where the fault takes a proven part of it; None elsewhere."""
    if built.before is None or built.healed is None or not built.before.proven_drop:
        return None
    if built.healed.score <= built.before.score:
        return None
    if found.before is None or found.after is None:
        return 0.0
    left = built.healed.float_score - built.healed.score
    taken = found.before.float_score - found.before.score - left
    return (found.after.score - found.before.score) / taken if taken > 0 else None

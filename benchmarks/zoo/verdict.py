"""What the expert and the peer say of a case."""

import hashlib
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import quantmedic
import quantmedic.collectors as collectors_
import quantmedic.engine as engine_
import quantmedic.rules as rules_
import quantmedic.trials as trials_
from quantmedic.api.options import Prove
from quantmedic.engine.case.records import Case
from quantmedic.engine.formulas.derive import derive
from quantmedic.engine.rules.rulebase import RuleBase

from .cases import Built
from .fixing import known_outputs, repair
from .paste import Pasted, paste
from .peer import peer_causes
from .protocol.layers import layer_names, said_of
from .protocol.row import Said

#: Parts of the report that a row is made of.
KEPT = {"verdict", "causes", "loss_budget", "undecided"}


@dataclass
class Answer:
    """What was said of one case.

    Attributes:
        said: The report in short.
        predicted: What the repair of each of its causes is predicted to recover, in dB.
        peer: What the peer's rules say, best first.
        seconds: Processor time of this process, for measuring and judging.
        pasted: What became of the pasted prescription.
        fixed: What ``quantmedic.fix`` made of the case.
    """

    said: Said
    predicted: tuple[float | None, ...] = ()
    peer: tuple[str, ...] = ()
    seconds: float = 0.0
    pasted: Pasted | None = None
    fixed: Pasted | None = None


def ask(
    built: Built,
    rules: RuleBase,
    *,
    quick: bool = False,
    prove: Prove = None,
    follow: bool = False,
    fix: float | None = None,
) -> Answer:
    """Have one case diagnosed.

    Measurements are kept beside the case and used again while quantmedic stays the same. With ``quick`` only the
    collectors have to be the same: changed rules judge old measurements, and what remedies recover is as it was
    simulated for the causes suspected then. ``prove`` is that of ``quantmedic.collect``. With ``follow`` the
    prescription is pasted, run and measured. ``fix`` gives the seconds that ``quantmedic.fix`` has for its trials.
    """
    fixed = repair(built, fix) if fix is not None else None
    started = time.process_time()
    try:
        case = _case(built, quick, prove)
        diagnosis = quantmedic.judge(case, rules)
        seconds = time.process_time() - started
        said = said_of(diagnosis.model_dump(mode="json", include=KEPT), layer_names(built))
        pasted = paste(built, diagnosis, rules) if follow else None
    except Exception as error:
        words = f"{type(error).__name__}: {error}"[:300]
        pasted = Pasted("no prescription", reason=words) if follow else None
        return Answer(Said("", error=words), pasted=pasted, fixed=fixed)
    predicted = tuple(cause.predicted_gain_db for cause in diagnosis.causes)
    return Answer(said, predicted, tuple(peer_causes(derive(case, rules))), seconds, pasted, fixed)


def _case(built: Built, quick: bool, prove: Prove) -> Case:
    """The measured case."""
    measured, judged = _hashes()
    kind = "case" if prove is None else "proof"
    stored = built.folder / f"{measured}-{judged}.{kind}"
    if stored.is_file():
        return quantmedic.load_case(stored)
    alike = list(built.folder.glob(f"{measured}-*.{kind}"))
    if quick and alike:
        return quantmedic.load_case(alike[0])
    for old in built.folder.glob(f"*.{kind}*"):
        old.unlink()
    case = quantmedic.collect(
        built.folder / "float.onnx",
        built.folder / "quantized.onnx",
        representative=built.folder / "representative.npz",
        validation=built.folder / "validation.npz",
        threads=1,
        prove=prove,
        **built.told_metric,
        **known_outputs(built.folder),
    )
    quantmedic.save_case(case, stored)
    return case


@cache
def _hashes() -> tuple[str, str]:
    """Of collectors and trials, and of engine and rules."""
    collectors, engine, rules, trials = (Path(next(iter(m.__path__))) for m in (collectors_, engine_, rules_, trials_))
    cases = engine / "case"
    measured = [path for folder in (collectors, trials, cases) for path in sorted(folder.rglob("*.py"))]
    judged = [*sorted(engine.rglob("*.py")), *sorted(rules.rglob("*.yaml"))]
    return _hash(measured), _hash(judged)


def _hash(files: list[Path]) -> str:
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:12]

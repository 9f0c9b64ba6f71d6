"""Cases built and asked, network by network: what the expert and the peer say of each."""

import hashlib
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import groupby
from multiprocessing import get_context
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

from .cases import Built, Spec, build
from .fixing import known_outputs, repair
from .paste import Pasted, paste
from .peer import peer_causes
from .protocol.layers import layer_names, said_of
from .protocol.row import Said

Found = tuple[Built, "Answer | None"]
#: Parts of the report that a row is made of.
KEPT = {"verdict", "causes", "loss_budget", "undecided", "loss_path", "proof"}


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


@dataclass(frozen=True)
class Asked:
    """What is asked of every case.

    Attributes:
        quick: Kept measurements are judged, of whichever code; what remedies recover is as it was simulated for the
            causes suspected then.
        prove: That of ``quantmedic.collect``.
        follow: The prescription is pasted, run and measured.
        fix: Seconds that ``quantmedic.fix`` has for its trials.
        build_only: Nobody is asked.
    """

    quick: bool = False
    prove: Prove = None
    follow: bool = False
    fix: float | None = None
    build_only: bool = False


def ask_all(specs: list[Spec], root: Path, jobs: int, asked: Asked) -> Iterator[Found]:
    """All cases, built and answered; each network in a process of its own, which goes when it is done."""
    # Doubles are made of singles, which no two processes may make at once: so all of a network stay together.
    ordered = sorted(specs, key=lambda spec: spec.network)
    groups = [list(group) for _, group in groupby(ordered, key=lambda spec: spec.network)]
    if jobs == 1:
        for group in groups:
            yield from answered(group, root, asked)
        return
    with ProcessPoolExecutor(jobs, get_context("spawn"), max_tasks_per_child=1) as pool:
        for found in pool.map(partial(_all_answered, root=root, asked=asked), groups):
            yield from found


def _all_answered(specs: list[Spec], root: Path, asked: Asked) -> list[Found]:
    return list(answered(specs, root, asked))


def answered(specs: list[Spec], root: Path, asked: Asked) -> Iterator[Found]:
    """Cases of one network."""
    for spec in specs:
        built = build(spec, root)
        yield built, _answer(built, asked)


def _answer(built: Built, asked: Asked) -> Answer | None:
    """What costs nothing is only diagnosed: there is nothing to heal."""
    if asked.build_only or not built.usable:
        return None
    return ask(built, replace(asked, prove=None, follow=False, fix=None) if built.is_harmless else asked)


@cache
def _rules() -> RuleBase:
    return quantmedic.load_rulebase()


def ask(built: Built, asked: Asked) -> Answer:
    """Have one case diagnosed.

    Measurements are kept beside the case and used again while quantmedic stays the same.
    """
    fixed = repair(built, asked.fix) if asked.fix is not None else None
    rules, started = _rules(), time.process_time()
    try:
        case = _case(built, asked)
        diagnosis = quantmedic.judge(case, rules)
        seconds = time.process_time() - started
        said = said_of(diagnosis.model_dump(mode="json", include=KEPT), layer_names(built))
        pasted = paste(built, diagnosis, rules) if asked.follow else None
    except Exception as error:
        words = f"{type(error).__name__}: {error}"[:300]
        pasted = Pasted("no prescription", reason=words) if asked.follow else None
        return Answer(Said("", error=words), pasted=pasted, fixed=fixed)
    predicted = tuple(cause.predicted_gain_db for cause in diagnosis.causes)
    return Answer(said, predicted, tuple(peer_causes(derive(case, rules))), seconds, pasted, fixed)


def _case(built: Built, asked: Asked) -> Case:
    """The measured case."""
    measured, judged = _hashes()
    kind = "case" if asked.prove is None else "proof"
    stored = built.folder / f"{measured}-{judged}.{kind}"
    if stored.is_file():
        return quantmedic.load_case(stored)
    older = sorted(built.folder.glob(f"*.{kind}"), key=lambda path: not path.name.startswith(measured))
    if asked.quick and older:
        return quantmedic.load_case(older[0])
    for old in built.folder.glob(f"*.{kind}*"):
        old.unlink()
    case = quantmedic.collect(
        built.folder / "float.onnx",
        built.folder / "quantized.onnx",
        representative=built.folder / "representative.npz",
        validation=built.folder / "validation.npz",
        threads=1,
        prove=asked.prove,
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

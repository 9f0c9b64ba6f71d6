"""What the expert and the peer say of a case."""

import hashlib
import inspect
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import quantmedic
import quantmedic.collectors
from quantmedic.engine.derive import derive
from quantmedic.engine.rule import RuleBase

from .cases import Built
from .peer import peer_causes

SEVERE = ("high", "medium")


@dataclass
class Answer:
    """The ranked answer to one case.

    Attributes:
        causes: (name, severity, confidence, predicted gain in dB, first subject) of each, best first.
        peer: What the peer's rules say, best first.
    """

    name: str
    causes: list[tuple[str, str, float, float | None, str]] = field(default_factory=list)
    absorbed: list[str] = field(default_factory=list)
    peer: list[str] = field(default_factory=list)
    verdict: str = ""
    seconds: float = 0.0
    error: str = ""

    @property
    def names(self) -> list[str]:
        return [cause[0] for cause in self.causes]

    @property
    def severe(self) -> list[tuple[str, str, float, float | None, str]]:
        return [cause for cause in self.causes if cause[1] in SEVERE]


def ask(built: Built, rules: RuleBase, *, fresh: bool = False) -> Answer:
    """Have one case diagnosed; measurements are kept beside it, and used again while the collectors stay the same."""
    started = time.perf_counter()
    try:
        case = _case(built, fresh)
        diagnosis = quantmedic.judge(case, rules)
    except Exception as error:
        return Answer(built.spec.name, error=f"{type(error).__name__}: {error}"[:300])
    return Answer(
        built.spec.name,
        [
            (c.cause, c.severity, c.confidence, c.predicted_gain_db, c.subjects[0] if c.subjects else "")
            for c in diagnosis.causes
        ],
        [f"{e.name} ({e.subject})" for c in diagnosis.causes for e in c.absorbs],
        peer_causes(derive(case, rules)),
        diagnosis.verdict,
        time.perf_counter() - started,
    )


def _case(built: Built, fresh: bool) -> Any:
    stored = built.folder / f"{_collector_hash()}.case"
    if stored.is_file() and not fresh:
        return quantmedic.load_case(stored)
    for old in built.folder.glob("*.case"):
        old.unlink()
    case = quantmedic.collect(
        built.folder / "float.onnx",
        built.folder / "quantized.onnx",
        representative=built.folder / "representative.npz",
        validation=built.folder / "validation.npz",
        threads=1,
        **({"metric": built.metric} if built.metric else {}),
        **_options(built.folder),
    )
    quantmedic.save_case(case, stored)
    return case


def _options(folder: Path) -> dict[str, Any]:
    """Further inputs that a case comes with, as far as this version of quantmedic takes them."""
    known = inspect.signature(quantmedic.collect).parameters
    return {
        name: folder / f"{name}.npz"
        for name in ("reference_outputs", "device_outputs")
        if name in known and (folder / f"{name}.npz").is_file()
    }


def _collector_hash() -> str:
    root = Path(next(iter(quantmedic.collectors.__path__)))
    files = [*sorted(root.glob("*.py")), root.parent / "engine" / "case.py"]
    return hashlib.sha256(b"".join(path.read_bytes() for path in files if path.is_file())).hexdigest()[:16]

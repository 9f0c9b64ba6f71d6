"""One case in short: what was wrong, how much it cost, and what a report said of it. A row is one line of JSON."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pydantic import TypeAdapter

#: Noise so many dB above what healing leaves is to be found, whatever the metric says.
LOUD_DB = 6.0
SERIOUS = ("high", "medium")
#: A line of the budget that a report says in words where no rule has a name for it.
NOTABLE_SHARE = 0.2
#: A line of the budget names so many places in words; the places of a longer one are not assigned.
NAMED_PLACES = 3
#: A cause of low severity is heard where it says that its repair recovers so much, or that its harm is assumed.
HEARD_DB = 1.0
#: Causes, layers and lines of the budget that a row keeps.
KEPT = 6


@dataclass(frozen=True)
class Cause:
    """One cause of a report.

    Attributes:
        absorbs: Names of findings that its card lists as following from it.
        gain_db: What its repair recovers, measured or else predicted.
        harm: proven, assumed or none, where the report says so.
    """

    name: str
    severity: str = "high"
    confidence: float | None = None
    rule: str = ""
    absorbs: tuple[str, ...] = ()
    gain_db: float | None = None
    harm: str = ""

    @property
    def is_serious(self) -> bool:
        return self.severity in SERIOUS

    @property
    def is_heard(self) -> bool:
        """It is serious, or it says what is to be had; the bare name of something that may be is neither."""
        if self.harm:
            return self.is_serious or self.harm in ("proven", "assumed")
        return self.is_serious or (self.gain_db or 0.0) >= HEARD_DB


@dataclass(frozen=True)
class Piece:
    """One line of the loss budget."""

    source: str
    share: float
    places: tuple[str, ...] = ()
    causes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Budget:
    """The loss budget of the noisiest output.

    Attributes:
        assigned: Share of its noise that lines of at most three places hold. What is left over counts with its size,
            whatever its sign, so that parts that make up for each other hide nothing.
        listed: The same with lines of any number of places.
        rest: Share that is in no line.
        unsimulated: Share that no quantizer makes.
    """

    assigned: float
    listed: float
    rest: float
    unsimulated: float
    runs: int = 0
    samples: int = 0
    complete: bool = True
    pieces: tuple[Piece, ...] = ()


@dataclass(frozen=True)
class Said:
    """What a report said.

    Attributes:
        causes: Best first.
        layers: Layers in the order in which a reader meets them: those that the causes are about, in their order, then
            those of the budget's lines.
        undecided_db: What is to be had, where the verdict is undecided.
        path: Steps to the loss, each with its share of the noise.
        trials: What was carried out on copies, each with the decibels that it recovers.
    """

    verdict: str = ""
    causes: tuple[Cause, ...] = ()
    layers: tuple[str, ...] = ()
    budget: Budget | None = None
    error: str = ""
    undecided_db: float | None = None
    path: tuple[tuple[str, float], ...] = ()
    trials: tuple[tuple[str, float | None], ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(cause.name for cause in self.causes)

    @property
    def serious(self) -> tuple[Cause, ...]:
        return tuple(cause for cause in self.causes if cause.is_serious)

    @property
    def lists_nothing(self) -> bool:
        """No cause is heard, no gain is said to be had, and no large piece of the noise is named with its place.

        A healthy verdict hides the pieces.
        """
        pieces = () if self.budget is None or self.verdict == "healthy" else self.budget.pieces
        heard = any(cause.is_heard for cause in self.causes) or (self.undecided_db or 0.0) >= HEARD_DB
        return not heard and not any(piece.share >= NOTABLE_SHARE for piece in pieces)

    @classmethod
    def by_name(cls, names: Iterable[str]) -> "Said":
        """What one says who gives names only."""
        causes = tuple(map(Cause, names))
        return cls("degraded" if causes else "healthy", causes)


@dataclass(frozen=True)
class Row:
    """One case.

    Attributes:
        group: single, double or control.
        family: Of the fault.
        expected: For each of its faults, the names of which any is right.
        also: Names that are true and less specific.
        places: Layers where a local fault sits.
        hurts: A proven drop of the metric, or fewer than nine answers in ten the same.
        proven_drop: The metric's drop is proven.
        harms: False for faults that cost no accuracy by their nature, such as a model that is not quantized.
        gain_db: Noise above what healing leaves.
        pasted: What became of the pasted prescription, in words.
        fixed: The same of ``quantmedic.fix``.
    """

    name: str
    network: str
    group: str
    family: str
    said: Said
    expected: tuple[tuple[str, ...], ...] = ()
    also: tuple[str, ...] = ()
    places: tuple[str, ...] = ()
    hurts: bool = True
    proven_drop: bool = True
    harms: bool = True
    gain_db: float | None = None
    strength: float = 1.0
    recipe: str = ""
    peer: tuple[str, ...] = ()
    pasted: str = ""
    fixed: str = ""

    @property
    def is_control(self) -> bool:
        return self.group == "control"

    @property
    def is_loud(self) -> bool:
        """The noise is well above what healing leaves."""
        return self.harms and not self.is_control and (self.gain_db or 0.0) >= LOUD_DB

    @property
    def to_be_found(self) -> bool:
        """It hurts or is loud, or costs nothing by its nature."""
        return not self.is_control and (not self.harms or self.hurts or self.is_loud)

    @property
    def is_harmless(self) -> bool:
        """A fault that costs nothing in this case: it should be listed as assumed harm at most."""
        return not self.is_control and not self.to_be_found

    @property
    def is_mild(self) -> bool:
        """To be found, and either less than ``LOUD_DB`` above what healing leaves or without a proven drop."""
        return self.to_be_found and self.harms and ((self.gain_db or 0.0) < LOUD_DB or not self.proven_drop)

    @property
    def right(self) -> frozenset[str]:
        """All names that are right."""
        return frozenset(name for names in self.expected for name in names)

    @property
    def true(self) -> frozenset[str]:
        """All names that are true."""
        return self.right | set(self.also)

    def as_json(self) -> dict[str, Any]:
        return _short(asdict(self))

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> "Row":
        """A row of a record; what rows no longer hold is left out."""
        return _STORED.validate_python(stored)


def budget_of(report: Mapping[str, Any]) -> Budget:
    """The budget of ``report.json`` in short; lines come the loudest first."""
    lines = report["lines"]
    outputs = report["outputs"]
    unsimulated = outputs[0]["unsimulated"]
    placed = sum(line["share"] for line in lines if line["source"] == "kernel")
    left = abs(report["rest"]) + max(unsimulated - placed, 0.0)
    vague = sum(abs(line["share"]) for line in lines if len(line["places"]) > NAMED_PLACES)
    return Budget(
        assigned=max(1.0 - left - vague, 0.0),
        listed=max(1.0 - left, 0.0),
        rest=report["rest"],
        unsimulated=unsimulated,
        runs=report["runs"],
        samples=report["samples"],
        complete=report["complete"],
        pieces=tuple(
            Piece(line["source"], line["share"], tuple(line["places"][:NAMED_PLACES]), tuple(line["causes"]))
            for line in lines[:KEPT]
        ),
    )


def causes_of(report: Sequence[Mapping[str, Any]]) -> tuple[Cause, ...]:
    """The causes of ``report.json`` in short."""
    return tuple(
        Cause(
            cause["cause"],
            cause["severity"],
            cause["confidence"],
            next(iter(cause["rules"]), ""),
            tuple(dict.fromkeys(found["name"] for found in cause.get("absorbs", ()))),
            _first_known(cause.get("measured_gain_db"), cause.get("predicted_gain_db")),
            cause.get("harm") or "",
        )
        for cause in report
    )


def _first_known(*values: float | None) -> float | None:
    return next((value for value in values if value is not None), None)


def _short(value: Any) -> Any:
    """Four digits after the point, and nothing that is empty."""
    if isinstance(value, float):
        return round(value, 4)
    if isinstance(value, Mapping):
        return {key: _short(each) for key, each in value.items() if each is not None and each != () and each != ""}
    if isinstance(value, (list, tuple)):
        return [_short(each) for each in value]
    return value


_STORED = TypeAdapter(Row)

"""Harm in report.json: what a cause costs now, and what is not decided."""

from typing import Literal

from pydantic import Field

from quantmedic.engine.json_record import Contract

#: ``proven``: the network is measurably worse, and a repair recovers some of it. ``assumed``: no loss that matters
#: is proven, and a repair recovers noise all the same. ``none``: a repair recovers next to nothing.
Harm = Literal["proven", "assumed", "none"]


class Undecided(Contract):
    """What was measured does not tell whether a loss matters.

    A repair recovers noise of which it is open whether it costs accuracy, or the samples are none of this network.
    """

    doubt: str | None = Field(
        default=None, description="why the samples tell nothing, whatever a repair recovers; None: they do"
    )
    cause: str | None = Field(
        description="cause whose repair recovers most of the noise, or that makes doubtful; None: no rule has a name"
    )
    gain_db: float | None = Field(
        default=None, description="what that repair recovers at the output with the bits in force; None: in doubt"
    )
    metric: str | None = Field(
        description="task metric whose interval holds both zero and a loss that matters, or None"
    )
    limit: float | None = Field(
        default=None, description="loss of the metric from which on it matters, in its own unit"
    )
    samples: int | None = Field(default=None, description="labelled samples that were measured")
    needed: int | None = Field(
        default=None,
        description="labelled samples whose interval would not hold both, if the drop is the measured one; None: more "
        "than most, or not known",
    )
    most: int = Field(description="samples beyond which no number is proposed")

"""How long work reports its progress."""

from collections.abc import Callable

#: Called after each step with the stage, the steps done in it, and the steps in all; None where that is not known.
Progress = Callable[[str, int, int | None], None]
#: Stages that count seconds.
IN_SECONDS = ("trials",)


#: Says one line about what comes next.
Announce = Callable[[str], None]


def no_announcement(text: str) -> None:
    """Say nothing."""


def no_progress(stage: str, done: int, total: int | None) -> None:
    """Report nothing."""
